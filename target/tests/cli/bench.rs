//! `bench` against a server in this process, with members in memory.

use std::path::Path;
use std::sync::OnceLock;

use raidfabric::config;
use raidfabric::server::{Plan, Server};
use serde_json::Value;

use crate::program::{Run, run};

const NQN: &str = "nqn.2026-11.org.example:bench";
const ALLOWED: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";

/// A server that lives as long as the tests: one subsystem for everybody, one for one host.
fn server() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| {
        let text = format!(
            "arrays:\n  - {{ name: a, level: raid0, members: [\"memory:16MiB\", \"memory:16MiB\"] }}\n  \
             - {{ name: b, level: raid1, members: [\"memory:8MiB\", \"memory:8MiB\"] }}\n\
             subsystems:\n  - nqn: {NQN}\n    hosts: any\n    \
             namespaces: [{{ nsid: 1, array: a }}]\n  - nqn: {NQN}-private\n    \
             hosts: [\"{ALLOWED}\"]\n    namespaces: [{{ nsid: 1, array: b, block_size: 512 }}]\n\
             listen: [\"127.0.0.1:0\"]\ncores: [0]\nqueue_depth: 64\nio_queues: 4\n"
        );
        let loaded = config::parse(Path::new("test.yaml"), &text).unwrap();
        let drives = loaded.drives(raidfabric::config::drives::Absence::Refused).unwrap();
        let server =
            Server::start(&Plan { config: loaded.config, drives, cores: vec![0] }).unwrap();
        let place = server.addresses()[0].to_string();
        // It is never stopped: it ends with the process.
        std::mem::forget(server);
        place
    })
}

fn url(nqn: &str) -> String {
    format!("nvme-tcp://{}/{nqn}", server())
}

/// A short run, yet long enough for operations to end in it on a machine that is busy with the
/// other tests.
fn bench(nqn: &str, more: &[&str]) -> Run {
    let url = url(nqn);
    let mut arguments = vec!["bench", &url, "--duration", "1s", "--warm-up", "10ms"];
    arguments.extend(more);
    run(&arguments)
}

/// Every key with what kind of value it has, in order.
fn shape(value: &Value, path: &str, lines: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                shape(value, &format!("{path}.{key}"), lines);
            }
        }
        Value::Number(number) if number.is_f64() => lines.push(format!("{path}: fraction")),
        Value::Number(_) => lines.push(format!("{path}: whole")),
        Value::Bool(_) => lines.push(format!("{path}: truth")),
        Value::String(_) => lines.push(format!("{path}: text")),
        Value::Null => lines.push(format!("{path}: null")),
        Value::Array(_) => lines.push(format!("{path}: list")),
    }
}

/// The JSON is an interface: other programs break if a key goes or changes its kind.
#[test]
fn the_json_keeps_its_shape() {
    let run = bench(NQN, &["--output", "json"]);
    let report: Value = serde_json::from_str(run.succeeds()).unwrap();
    assert_eq!(run.err, "", "no bar without a terminal");
    assert_eq!(report["schema"], "raidfabric.bench/1");
    assert_eq!(report["subnqn"], NQN);
    assert_eq!(report["address"], server());
    let expected = ["access", "io_bytes", "queue_depth", "connections", "workers", "read_percent"];
    let found: Vec<_> = expected.iter().map(|key| report[*key].to_string()).collect();
    assert_eq!(found, ["\"random\"", "4096", "32", "1", "1", "100"]);
    assert!(report["total"]["operations"].as_u64().unwrap() > 0, "{report}");

    let mut lines = Vec::new();
    shape(&report, "", &mut lines);
    lines.sort_unstable();
    let mut golden = vec![
        ".schema: text",
        ".address: text",
        ".subnqn: text",
        ".nsid: whole",
        ".block_bytes: whole",
        ".access: text",
        ".read_percent: whole",
        ".io_bytes: whole",
        ".queue_depth: whole",
        ".connections: whole",
        ".workers: whole",
        ".header_digest: truth",
        ".data_digest: truth",
        ".sq_flow_control_disabled: truth",
        ".seconds: fraction",
        ".verification: null",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect::<Vec<_>>();
    for side in ["total", "read", "write"] {
        for key in
            ["operations: whole", "bytes: whole", "iops: fraction", "bytes_per_second: fraction"]
        {
            golden.push(format!(".{side}.{key}"));
        }
        golden.push(format!(".{side}.latency_ns.mean: fraction"));
        for key in ["min", "p50", "p90", "p99", "p99_9", "max"] {
            golden.push(format!(".{side}.latency_ns.{key}: whole"));
        }
    }
    golden.sort_unstable();
    assert_eq!(lines, golden);
}

#[test]
fn the_table_says_what_was_done() {
    let run = bench(
        NQN,
        &[
            "--workload",
            "mixed",
            "--read-percent",
            "50",
            "--verify",
            "--destroy-data",
            "--sequential",
            "--block-size",
            "16KiB",
            "--depth",
            "8",
            "--connections",
            "2",
            "--workers",
            "1",
            "--hdr-digest",
            "--data-digest",
            "--disable-sqflow",
            "--span",
            "8MiB",
            "--cpus",
            "0",
        ],
    );
    let out = run.succeeds();
    for part in [
        "sequential 50 % reads, 50 % writes of 16 KiB, depth 8 on 2 connections, 1 worker, for 1.000 s",
        "header digests, data digests, no SQ flow control",
        "IOPS",
        "MB/s",
        "p99.9",
        "\nread ",
        "\nwrite ",
        "\ntotal ",
        "verified: ",
        " and 512 places read back",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn nothing_is_written_without_leave() {
    for (more, why) in [
        (&["--workload", "write"][..], "this workload writes"),
        (&["--workload", "mixed"], "this workload writes"),
        (&["--verify"], "--verify writes known contents"),
        (&["--workload", "write", "--sweep"], "this workload writes"),
    ] {
        let run = bench(NQN, more);
        let err = run.fails(2);
        for part in [why, "namespace 1 (32 MiB, UUID ", NQN, server(), "add --destroy-data"] {
            assert!(err.contains(part), "{part}: {err}");
        }
        assert_eq!(run.out, "");
    }
    let run = bench(NQN, &["--workload", "write", "--span", "1MiB"]);
    assert!(run.fails(2).contains("the first 1 MiB of namespace 1"), "{run:?}");
}

#[test]
fn errors_say_what_to_do() {
    for (nqn, more, code, lesson) in [
        ("nqn.2026-11.org.example:absent", &[][..], 1, "there are nqn.2026-11.org.example:bench"),
        ("nqn.2026-11.org.example:bench-private", &[], 1, "--hostnqn"),
        (NQN, &["--namespace", "7"], 2, "namespace 7 is not active"),
        (NQN, &["--read-percent", "70"], 2, "add --workload mixed"),
        (NQN, &["--block-size", "4K"], 2, "4KiB or 4KB"),
        (NQN, &["--block-size", "1000"], 2, "whole logical blocks of 4096 bytes"),
        (NQN, &["--block-size", "0"], 2, "try 4KiB to 1MiB"),
        (NQN, &["--span", "5 m"], 2, "5MiB or 5MB"),
        (NQN, &["--depth", "0"], 2, "0"),
        (NQN, &["--depth", "500"], 2, "hold 63 commands"),
        (NQN, &["--connections", "9"], 2, "grants 4 I/O queues"),
        (NQN, &["--cpus", "a"], 2, "as in 2,4-7"),
        (NQN, &["--cpus", "1000"], 2, "core 1000"),
        (NQN, &["--hostnqn", "me"], 2, "an NQN is"),
        (NQN, &["--sweep", "--depth", "4"], 2, "cannot be used with"),
    ] {
        let run = bench(nqn, more);
        let err = run.fails(code);
        assert!(err.contains(lesson), "{nqn} {more:?}: {lesson}: {err}");
    }
    let run = run(&["bench", &url(NQN), "--duration", "5"]);
    assert!(run.fails(2).contains("as in 50us or 5s (10ms to 1day)"), "{run:?}");
    let run = crate::program::run(&["bench", "nvme-tcp://127.0.0.1:1/nqn.2026-11.org.example:x"]);
    assert!(run.fails(1).contains("is the target running"), "{run:?}");
    let run = crate::program::run(&["bench", "127.0.0.1:4420"]);
    assert!(run.fails(2).contains("write nvme-tcp://HOST:PORT/NQN"), "{run:?}");
}

#[test]
fn a_host_can_say_who_it_is() {
    let nqn = format!("{NQN}-private");
    let run = bench(&nqn, &["--hostnqn", ALLOWED, "--block-size", "512B"]);
    assert!(run.succeeds().contains("random reads of 512 bytes"), "{run:?}");
}

#[test]
fn a_sweep_prints_its_table() {
    let url = url(NQN);
    let arguments = ["bench", &url, "--sweep", "--duration", "10ms", "--warm-up", "0s"];
    let run = run(&arguments);
    let out = run.succeeds();
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("depth  IOPS, 1 worker"), "{out}");
    assert!(lines[0].contains("IOPS, 8 workers"), "{out}");
    let depths: Vec<_> =
        lines[1..11].iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(depths, ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512"]);
    // The target's queues hold 63 commands, and it has 4 of them for each controller.
    assert!(out.contains("- not measured: "), "{out}");
    assert!(lines[6].matches('s').count() >= 3, "depth 32 was measured: {out}");
}
