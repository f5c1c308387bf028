//! Output that nobody reads, or that cannot be written.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::program::{command, folder, run};

/// `raidfabric schema | head -1` panicked: the standard library's `println!` does when the reader
/// has gone.
#[test]
fn a_reader_that_has_read_enough_ends_the_command_quietly() {
    for arguments in [&["schema"][..], &["completions", "bash"], &["--help"]] {
        let mut child = command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {err}");
        assert_eq!(err, "", "{arguments:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(&["schema"]).stdout(full).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("cannot write the output"), "{err}");
}

#[test]
fn an_error_that_nobody_reads_has_its_exit_code() {
    let mut child = command(&["check", "/nowhere/fabric.yaml"]).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

/// A daemon outlives whoever read its log and its output (`raidfabric serve … | tee log`).
#[test]
fn a_daemon_serves_on_when_nobody_reads_its_log() {
    let folder = folder();
    let text = "arrays:\n  - { name: a, level: raid1, members: [\"memory:8MiB\", \"memory:8MiB\"] }\n\
                subsystems:\n  - nqn: nqn.2026-11.org.example:a\n    hosts: any\n    \
                namespaces: [{ nsid: 1, array: a }]\n\
                listen: [\"127.0.0.1:0\"]\ncores: [0]\n";
    let file = folder.path().join("fabric.yaml");
    std::fs::write(&file, text).unwrap();
    let mut child = command(&["serve", file.to_str().unwrap()]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    drop(child.stderr.take());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("nvme connect -t tcp -a 127.0.0.1 -s "), "{line}");
    drop(out);
    // SIGUSR1 makes it log what is in use: into a closed pipe.
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    for _ in 0..3 {
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    let port: String =
        line.split(" -s ").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
    let url = format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-11.org.example:a");
    run(&["bench", &url, "--duration", "20ms", "--warm-up", "0s"]).succeeds();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "it does not stop");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn nothing_is_coloured_without_a_terminal() {
    for arguments in [&["--help"][..], &["bench", "--help"], &["bench", "x"]] {
        let output = command(arguments).stdin(Stdio::null()).output().unwrap();
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b));
    }
}
