//! Tests of the configuration as a whole: a file in, a configuration or messages out.

use std::path::Path;
use std::time::Duration;

use super::*;

/// The example that the project's README shows, and then some.
const FULL: &str = r#"
arrays:
  - name: fast
    level: raid10
    chunk: 64KiB
    members: [/dev/disk/by-id/nvme-A, /dev/disk/by-id/nvme-B, /dev/disk/by-id/nvme-C, /dev/disk/by-id/nvme-D]
    uuid: 3f0c1d3a-6b0e-4b9b-9a0e-0d6a52a3c001
  - name: scratch
    level: raid1
    members: ["/srv/raid/m*.img"]
    consistency: resync
    spares: [/dev/disk/by-id/nvme-E, "/srv/spare/*"]
    degraded_wait: 0s
    member_timeout: 8s
    hold: 30s
    safe_mode_delay: 200ms
    read_error_limit: 3
    resync: { min: 8MiB, max: 1GiB }
subsystems:
  - nqn: nqn.2026-11.io.raidfabric:fast
    hosts: [nqn.2014-08.org.nvmexpress:uuid:1e57ab1e-0000-4000-8000-000000000001]
    serial: RF0001
    namespaces:
      - { nsid: 1, array: fast, size: 1GiB }
      - { nsid: 2, array: fast, block_size: 512, offset: 1GiB }
  - nqn: nqn.2026-11.io.raidfabric:scratch
    hosts: any
    namespaces:
      - { nsid: 1, array: scratch }
listen: ["192.0.2.10:4420", "[::1]:4420"]
discovery: ["192.0.2.10:8009"]
cores: [2, 3]
state_dir: /srv/state
busy_poll: off
reply_timeout: 10s
memory: { capsule: 8MiB, transfer: 64MiB }
queue_depth: 65535
io_queues: 8
in_capsule: 8KiB
max_transfer: 2MiB
ring: { entries: 256, coop_taskrun: false }
control: { socket: /run/raidfabric/fast.sock }
"#;

const SMALL: &str = r#"
arrays:
  - { name: a, level: raid0, members: ["memory:64MiB", "memory:64MiB"] }
subsystems:
  - { nqn: "nqn.2026-11.org.example:a", hosts: any, namespaces: [{ nsid: 1, array: a }] }
listen: ["127.0.0.1:4420"]
"#;

fn read(text: &str) -> Result<Loaded, ConfigErrors> {
    parse(Path::new("f.yaml"), text)
}

/// The messages that a text gets.
fn errors(text: &str) -> String {
    read(text).expect_err("it must be refused").to_string()
}

/// SMALL with one text replaced by another.
fn with(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

/// Asserts that a text is refused with one message that has all of these parts.
#[track_caller]
fn refused(text: &str, parts: &[&str]) {
    let message = errors(text);
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
    let count = message.matches(": error: ").count();
    assert_eq!(count, 1, "one fault, one message:\n{message}");
}

#[test]
fn everything_that_can_be_said() {
    let Loaded { config, warnings, .. } = read(FULL).expect("a right configuration");
    let [fast, scratch] = config.arrays.as_slice() else { panic!("two arrays") };
    assert_eq!((fast.level, fast.chunk_bytes, fast.members.len()), (Level::Raid10, 65536, 4));
    assert_eq!(fast.members[0], Member::Path("/dev/disk/by-id/nvme-A".into()));
    assert_eq!(
        fast.uuid.map(|uuid| uuid.to_string()).as_deref(),
        Some("3f0c1d3a-6b0e-4b9b-9a0e-0d6a52a3c001")
    );
    assert_eq!((scratch.level, scratch.chunk_bytes), (Level::Raid1, 0));
    assert_eq!(scratch.members, [Member::Glob("/srv/raid/m*.img".into())]);
    assert_eq!((fast.consistency, fast.consistency_is_given), (Consistency::Bitmap, false));
    assert_eq!((scratch.consistency, scratch.consistency_is_given), (Consistency::Resync, true));
    assert_eq!(
        scratch.spares,
        [Member::Path("/dev/disk/by-id/nvme-E".into()), Member::Glob("/srv/spare/*".into())]
    );
    assert_eq!(scratch.degraded_wait, Duration::ZERO);
    assert_eq!(scratch.member_timeout, Duration::from_secs(8));
    assert_eq!(scratch.hold, Duration::from_secs(30));
    assert_eq!(scratch.safe_mode_delay, Duration::from_millis(200));
    assert_eq!(scratch.read_error_limit, 3);
    assert_eq!(scratch.resync, ResyncRates { min_bytes: 8 << 20, max_bytes: 1 << 30 });
    assert_eq!(config.control_socket.as_deref(), Some(Path::new("/run/raidfabric/fast.sock")));
    let namespaces = &config.subsystems[0].namespaces;
    assert_eq!(
        namespaces[0],
        Namespace {
            nsid: 1,
            array: 0,
            block_size_bytes: 4096,
            offset_bytes: 0,
            size_bytes: Some(1 << 30)
        }
    );
    assert_eq!(
        namespaces[1],
        Namespace {
            nsid: 2,
            array: 0,
            block_size_bytes: 512,
            offset_bytes: 1 << 30,
            size_bytes: None
        }
    );
    let host = "nqn.2014-08.org.nvmexpress:uuid:1e57ab1e-0000-4000-8000-000000000001";
    assert!(config.subsystems[0].hosts.allows(host));
    assert!(!config.subsystems[0].hosts.allows(&host.to_uppercase()));
    assert_eq!(config.subsystems[0].serial.as_deref(), Some("RF0001"));
    assert_eq!(config.subsystems[1].hosts, Hosts::Any);
    assert_eq!(config.listen, ["192.0.2.10:4420", "[::1]:4420"].map(|a| a.parse().expect("one")));
    assert_eq!(config.discovery, ["192.0.2.10:8009".parse().expect("one")]);
    assert_eq!(config.cores, CoreSelection::List(vec![2, 3]));
    assert_eq!(config.state_dir, Path::new("/srv/state"));
    assert_eq!(config.busy_poll, None);
    assert_eq!(config.reply_timeout, Duration::from_secs(10));
    assert_eq!(config.memory, Memory { capsule_bytes: 8 << 20, transfer_bytes: 64 << 20 });
    assert_eq!(
        config.limits,
        Limits {
            queue_depth: 65535,
            io_queues: 8,
            in_capsule_bytes: 8192,
            max_transfer_bytes: 2 << 20
        }
    );
    assert_eq!(config.ring, Ring { entries: 256, coop_taskrun: false });
    let text = warnings.to_string();
    assert_eq!(warnings.list().len(), 1, "{text}");
    assert!(text.contains("f.yaml:27:12: warning: whoever reaches"), "{text}");
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let Loaded { config, .. } = read(SMALL).expect("a right configuration");
    assert_eq!(config.arrays[0].chunk_bytes, 64 << 10);
    assert_eq!(config.cores, CoreSelection::Auto);
    assert_eq!(config.state_dir, Path::new("/var/lib/raidfabric"));
    assert_eq!(config.busy_poll, Some(Duration::from_micros(50)));
    assert_eq!(config.reply_timeout, Duration::from_secs(30));
    assert_eq!(config.memory, Memory { capsule_bytes: 32 << 20, transfer_bytes: 128 << 20 });
    assert_eq!(
        config.limits,
        Limits {
            queue_depth: 1023,
            io_queues: 64,
            in_capsule_bytes: 16384,
            max_transfer_bytes: 1 << 20
        }
    );
    assert_eq!(config.ring, Ring { entries: 1024, coop_taskrun: true });
    assert!(config.discovery.is_empty());
    let array = &config.arrays[0];
    assert_eq!((array.consistency, array.spares.len()), (Consistency::None, 0));
    assert_eq!(array.degraded_wait, Duration::from_secs(30));
    assert_eq!(array.member_timeout, Duration::from_secs(30));
    assert_eq!(array.hold, Duration::ZERO);
    assert_eq!(array.safe_mode_delay, Duration::from_secs(5));
    assert_eq!(array.read_error_limit, 20);
    assert_eq!(array.resync, ResyncRates { min_bytes: 32 << 20, max_bytes: 0 });
    assert_eq!(config.control_socket, None, "memory leaves no trace");
    let on_drives = with("\"memory:64MiB\", \"memory:64MiB\"", "/srv/x, /srv/y");
    let config = read(&on_drives).expect("a right configuration").config;
    assert_eq!(config.control_socket, Some(default_control_socket()));
    let moved = read(&format!("{on_drives}state_dir: /srv/state\n")).expect("right").config;
    assert_eq!(moved.control_socket.as_deref(), Some(Path::new("/srv/state/control.sock")));
    let off = read(&format!("{on_drives}control: {{ socket: off }}\n")).expect("right").config;
    assert_eq!(off.control_socket, None);
}

#[test]
fn the_default_consistency_is_the_levels() {
    for (level, consistency) in [
        ("raid0", Consistency::None),
        ("raid1", Consistency::Bitmap),
        ("raid10", Consistency::Bitmap),
        ("raid5", Consistency::Ppl),
        ("raid6", Consistency::Ppl),
    ] {
        let text = with("\"memory:64MiB\", \"memory:64MiB\"", "/srv/w, /srv/x, /srv/y, /srv/z");
        let config = read(&text.replace("raid0", level)).expect("a right configuration").config;
        assert_eq!(config.arrays[0].consistency, consistency, "{level}");
    }
}

#[test]
fn conduct_that_cannot_be() {
    let drives = |more: &str| {
        with("\"memory:64MiB\", \"memory:64MiB\"", "/srv/x, /srv/y")
            .replace("raid0", &format!("raid1, {more}"))
    };
    refused(&with("raid0", "raid0, consistency: resync"), &["raid0 has no copies"]);
    refused(&with("raid0", "raid1, consistency: bitmap"), &["memory do not outlive a crash"]);
    refused(&drives("consistency: ppl"), &["raid1 has no parity that could be logged", "bitmap"]);
    refused(&drives("consistency: journal"), &["`consistency` cannot be `journal`"]);
    refused(&with("raid0", "raid0, spares: [/srv/z]"), &["raid0 has no use for spares"]);
    refused(&with("raid0", "raid1, spares: [/srv/z]"), &["members in memory have no spares"]);
    refused(&drives("spares: [/srv/x]"), &["`/srv/x` is a member of array `a` already"]);
    refused(&drives("spares: [\"memory:1MiB\"]"), &["memory cannot be a spare"]);
    refused(&drives("spares: [z]"), &["`z` is not an absolute path"]);
    refused(&drives("degraded_wait: 2d"), &["0s to 1day"]);
    refused(&drives("member_timeout: 10ms"), &["1s to 10m", "the default is 30s"]);
    refused(&drives("hold: 2h"), &["1s to 1h", "the default is off"]);
    refused(&drives("safe_mode_delay: 1ms"), &["100ms to 1h"]);
    refused(&drives("read_error_limit: 0"), &["a limit of 0", "1 to 1000000", "default is 20"]);
    refused(&drives("resync: { min: 4KiB }"), &["a rate of 4 KiB is not possible"]);
    refused(&drives("resync: { max: 8MiB }"), &["at most 8 MiB a second contradicts"]);
    refused(&drives("resync: { rate: 8MiB }"), &["unknown key `rate` in resync rates"]);
    refused(&format!("{SMALL}control: {{ socket: x.sock }}\n"), &["`x.sock` is not an absolute"]);
    refused(&format!("{SMALL}control: {{ path: /x }}\n"), &["unknown key `path` in control"]);
}

#[test]
fn an_unknown_key_names_the_known_ones() {
    refused(
        &with("level: raid0", "level: raid0, chunks: 64KiB"),
        &["f.yaml:3:30: error: unknown key `chunks` in an array", "did you mean `chunk`?"],
    );
    refused(&format!("{SMALL}cluster: x\n"), &["unknown key `cluster`", "known keys: arrays"]);
    refused(&with("hosts: any", "hosts: any, host: any"), &["unknown key `host` in a subsystem"]);
}

#[test]
fn a_value_of_the_wrong_kind_says_what_is_right() {
    refused(&with("raid0", "raid51"), &["`level` cannot be `raid51`", "did you mean `raid"]);
    refused(&with("raid0", "10"), &["`level` cannot be `10`", "did you mean `raid10`?"]);
    refused(&with("hosts: any", "hosts: all"), &["`hosts` cannot be `all`", "`any` or a list"]);
    refused(
        &with("listen: [\"127.0.0.1:4420\"]", "listen: 4420"),
        &["f.yaml:6:9: error: `listen` cannot be `4420`", "a list, such as [\"192.0.2.10:4420\""],
    );
    refused(&with("nsid: 1", "nsid: -1"), &["`nsid` cannot be `-1`", "a whole number"]);
    refused(&with("nsid: 1", "nsid: {}"), &["`nsid` must not be a mapping"]);
    refused(&with("[{ nsid: 1, array: a }]", "1"), &["`namespaces` cannot be `1`", "a list"]);
    refused(&with("name: a,", "name:,"), &["`name` has no value"]);
    refused(&format!("{SMALL}memory: {{ capsule: [] }}\n"), &["must not be a list", "64KiB"]);
    refused(&format!("{SMALL}ring: {{ coop_taskrun: 1 }}\n"), &["`true` or `false`"]);
    refused(&format!("{SMALL}cores: automatic\n"), &["did you mean `auto`"]);
}

#[test]
fn a_missing_key_is_named() {
    refused(&with("name: a, ", ""), &["f.yaml:3:5: error: an array needs the key `name`"]);
    refused(&with("hosts: any, ", ""), &["a subsystem needs the key `hosts`", "`any` or a list"]);
    refused(&with("listen: [\"127.0.0.1:4420\"]", ""), &["needs the key `listen`"]);
}

#[test]
fn a_repeated_key_is_refused() {
    refused(&with("name: a", "name: a, name: b"), &["f.yaml:3:16: error: `name` occurs twice"]);
}

#[test]
fn what_is_no_yaml_is_refused_where_it_stops_being_yaml() {
    refused("arrays:\n  - name: [a\nlisten: x\n", &["f.yaml:3:", "YAML itself"]);
    refused("arrays:\n\t- x: 1\n", &["f.yaml:2:", "use spaces"]);
    let message = errors("");
    assert!(message.contains("f.yaml"), "{message}");
    refused("- 1\n- 2\n", &["the file must not be a list"]);
    refused(&format!("{SMALL}---\n{SMALL}"), &["more than one document"]);
}

#[test]
fn all_mistakes_are_reported_at_once_and_in_order() {
    let text = r#"
arrays:
  - { name: "a b", level: raid1, chunk: 64KiB, members: ["memory:64MiB"] }
  - { name: b, level: raid0, chunk: 63KiB, members: [relative, /dev/disk/by-id/x] }
subsystems:
  - { nqn: nonsense, hosts: [], namespaces: [{ nsid: 0, array: c, block_size: 1024 }] }
listen: ["192.0.2.10", "host:4420"]
queue_depth: 1
"#;
    let error = read(text).expect_err("wrong in many ways");
    let lines: Vec<u64> = error.problems().iter().map(|problem| problem.position.line).collect();
    assert_eq!(lines, [3, 3, 3, 4, 4, 6, 6, 6, 6, 6, 7, 7, 8], "{error}");
    // And so are mistakes of form.
    let text = "arrays: 1\nsubsytems: []\nlisten: {}\n";
    let lines: Vec<u64> =
        read(text).expect_err("wrong").problems().iter().map(|p| p.position.line).collect();
    assert_eq!(lines, [1, 1, 2, 3], "{}", errors(text));
}

#[test]
fn arrays_that_cannot_be() {
    refused(
        &with("name: a,", "name: a b,").replace("array: a ", "array: a b "),
        &["cannot be the name"],
    );
    refused(&with("raid0", "raid5"), &["raid5 needs at least 3 members, and here are 2"]);
    refused(&with("raid0", "raid6"), &["raid6 needs at least 4 members, and here are 2"]);
    refused(&with("raid0", "raid1, chunk: 64KiB"), &["3:37: error: raid1 has no chunks", "remove"]);
    refused(&with("raid0", "raid0, chunk: 48KiB"), &["a chunk of 48 KiB", "a power of two"]);
    refused(&with("raid0", "raid0, chunk: 2MiB"), &["a chunk of 2 MiB", "4 KiB to 1 MiB"]);
    refused(&with("raid0", "raid0, chunk: 64K"), &["1024s or in 1000s", "64KiB or 64KB"]);
    refused(&with(", \"memory:64MiB\"]", "]"), &["raid0 needs at least 2 members, and here is 1"]);
    refused(&with("memory:64MiB", "memory:64"), &["multiple of 1 MiB"]);
    refused(&with("memory:64MiB", "memory:lots"), &["not a size"]);
    refused(&with("memory:64MiB", "/srv/x"), &["memory and drives cannot form one array"]);
    refused(&with("raid0", "raid0, uuid: xyz"), &["`xyz` is not the UUID of an array"]);
    refused(
        &with("raid0", "raid0, uuid: \"3f0c1d3a:6b0e4b9b:9a0e0d6a:52a3c001\""),
        &["cannot have a UUID"],
    );
    let many = vec!["\"memory:1MiB\""; 65].join(", ");
    refused(&with("\"memory:64MiB\", \"memory:64MiB\"", &many), &["at most 64 members"]);
    refused("arrays: []\nsubsystems: [{nqn: nqn.2026-11.a:b, hosts: any, namespaces: []}]\nlisten: ['[::1]:1']\n"
        .replace("namespaces: []", "namespaces: [{nsid: 1, array: a}]").replace("array: a", "array: b").as_str()
        .replace("arrays: []", "arrays: [{name: b, level: raid0, members: []}]").as_str(),
        &["at least 2 members, and here are 0"]);
}

#[test]
fn names_of_arrays_are_fit_to_be_names_of_files() {
    for name in ["''", "..", "-x", "a/b", "\"a b\"", "é", "x23456789012345678901234567890123"] {
        let text = with("name: a,", &format!("name: {name},"));
        let message = errors(&text);
        assert!(message.contains("cannot be the name of an array"), "{name}: {message}");
    }
    assert!(
        read(&SMALL.replace("name: a,", "name: _A-1.b,").replace("array: a ", "array: _A-1.b "))
            .is_ok()
    );
}

#[test]
fn a_drive_has_one_place() {
    let text = with("\"memory:64MiB\", \"memory:64MiB\"", "/srv/x, /srv//y/../x");
    refused(&text, &["3:48: error: `/srv//y/../x` is a member of array `a` already"]);
    let text = with("\"memory:64MiB\", \"memory:64MiB\"", "/srv/x, /srv/y").replace(
        "subsystems:",
        "  - { name: b, level: raid0, members: [/srv/z, /srv/y] }\nsubsystems:",
    );
    refused(&text, &["f.yaml:4:48: error: `/srv/y` is a member of array `a` already"]);
}

#[test]
fn an_identity_is_given_once() {
    let array = "  - { name: a, level: raid0, members: [/srv/x, /srv/y] }\nsubsystems:";
    refused(&with("subsystems:", array), &["4:13: error: there are two arrays with the name `a`"]);
    let namespace = "{ nsid: 1, array: a, size: 4KiB }, { nsid: 1, array: a, offset: 4KiB }";
    refused(&with("{ nsid: 1, array: a }", namespace), &["there are two namespaces 1"]);

    let two = |first: &str, second: &str| {
        with(
            "subsystems:\n  - { nqn: \"nqn.2026-11.org.example:a\", hosts: any, namespaces: [{ nsid: 1, array: a }] }",
            &format!(
                "subsystems:\n  - {{ {first}, hosts: any, namespaces: [{{ nsid: 1, array: a, size: 4KiB }}] }}\n  - {{ {second}, hosts: any, namespaces: [{{ nsid: 1, array: a, offset: 4KiB }}] }}"
            ),
        )
    };
    refused(
        &two("nqn: nqn.2026-11.a:x", "nqn: nqn.2026-11.a:x"),
        &["f.yaml:6:12: error: there are two subsystems with the NQN"],
    );
    refused(
        &two("nqn: nqn.2026-11.a:x, serial: S", "nqn: nqn.2026-11.a:y, serial: S"),
        &["two subsystems with the serial number `S`"],
    );
    assert!(read(&two("nqn: nqn.2026-11.a:x", "nqn: nqn.2026-11.a:y")).is_ok());
    let uuid = "uuid: 3f0c1d3a-6b0e-4b9b-9a0e-0d6a52a3c001";
    let text = with("\"memory:64MiB\", \"memory:64MiB\"", "/srv/x, /srv/y")
        .replace("raid0", &format!("raid0, {uuid}"))
        .replace(
            "subsystems:",
            &format!(
                "  - {{ name: b, level: raid0, members: [/srv/z, /srv/w], {uuid} }}\nsubsystems:"
            ),
        );
    refused(&text, &["array `a` has this UUID already"]);
}

#[test]
fn namespaces_that_cannot_be() {
    let namespace = |text: &str| with("{ nsid: 1, array: a }", text);
    refused(&namespace("{ nsid: 0, array: a }"), &["cannot have the identifier 0", "1 to 1024"]);
    refused(&namespace("{ nsid: 1025, array: a }"), &["1025 is too large"]);
    refused(&namespace("{ nsid: 1, array: aa }"), &["5:84: error: there is no array `aa`"]);
    refused(&namespace("{ nsid: 1, array: a, block_size: 1024 }"), &["use 4096", "or 512"]);
    refused(&namespace("{ nsid: 1, array: a, size: 0 }"), &["cannot be empty"]);
    refused(&namespace("{ nsid: 1, array: a, size: 5000 }"), &["closest are 4096 and 8192"]);
    refused(&namespace("{ nsid: 1, array: a, offset: 1 }"), &["closest are 0 and 4096"]);
    refused(
        &namespace("{ nsid: 1, array: a, offset: 16EiB, size: 4KiB }"),
        &["too large for a size"],
    );
    refused(
        &namespace("{ nsid: 1, array: a, offset: 15EiB, size: 1EiB }"),
        &["offset and size together are too large"],
    );
    refused(&with("[{ nsid: 1, array: a }]", "[]"), &["has no namespace"]);
}

#[test]
fn ranges_of_an_array_do_not_overlap() {
    let two = |first: &str, second: &str| {
        with(
            "{ nsid: 1, array: a }",
            &format!("{{ nsid: 1, array: a{first} }}, {{ nsid: 2, array: a{second} }}"),
        )
    };
    refused(&two("", ""), &["is namespace 1 of `nqn.2026-11.org.example:a` already"]);
    refused(&two(", size: 8KiB", ", offset: 4KiB"), &["reaches from 0 bytes to 8 KiB"]);
    refused(&two(", offset: 8KiB", ", size: 12KiB"), &["reaches from 8 KiB to the array's end"]);
    assert!(read(&two(", offset: 8KiB", ", size: 8KiB")).is_ok());
    assert!(read(&two(", size: 4KiB", ", offset: 4KiB, size: 4KiB")).is_ok());
}

#[test]
fn hosts_and_names() {
    let hosts = |text: &str| with("hosts: any", &format!("hosts: {text}"));
    refused(&hosts("[]"), &["no host may connect"]);
    refused(&hosts("[any]"), &["write `hosts: any`, without brackets"]);
    refused(&hosts("[nqn.2026-11.a:h, nqn.2026-11.a:h]"), &["is listed twice"]);
    refused(
        &with("nqn.2026-11.org.example:a", "nqn.2014-08.org.nvmexpress.discovery"),
        &["belongs to the discovery subsystem"],
    );
    refused(&with("hosts: any", "hosts: any, serial: 'x '"), &["cannot be a serial number"]);
    refused(
        &with("hosts: any", "hosts: any, serial: '123456789012345678901'"),
        &["cannot be a serial number"],
    );
}

#[test]
fn addresses_that_cannot_be() {
    let listen = |text: &str| with("[\"127.0.0.1:4420\"]", text);
    refused(&listen("[]"), &["no address to listen on"]);
    refused(&listen("[\"192.0.2.1\"]"), &["6:10: error", "add the port: 192.0.2.1:4420"]);
    refused(&listen("[\"::1\"]"), &["add the port: [::1]:4420"]);
    refused(&listen("[\":4420\"]"), &["write the address, too"]);
    refused(&listen("[\"storage:4420\"]"), &["numeric address"]);
    refused(&listen("[\"192.0.2.1:99999\"]"), &["not an address with a port"]);
    refused(&listen("[\"[::1]:1\", \"[0::1]:1\"]"), &["`[::1]:1` is in `listen` already"]);
    refused(&listen("[\"0.0.0.0:1\", \"192.0.2.1:1\"]"), &["cannot be bound both"]);
    refused(
        &format!("{SMALL}discovery: [\"127.0.0.1:4420\"]\n"),
        &["in `listen` already", "answer discovery, too"],
    );
    assert!(read(&listen("[\"127.0.0.1:0\", \"127.0.0.1:0\"]")).is_ok());
    assert!(read(&listen("[\"[::]:1\", \"0.0.0.0:1\"]")).is_ok());
}

#[test]
fn the_remaining_numbers() {
    let and = |text: &str| format!("{SMALL}{text}\n");
    refused(&and("queue_depth: 14"), &["7:14: error: a queue depth of 14", "15 to 65535"]);
    refused(&and("queue_depth: 65536"), &["15 to 65535"]);
    refused(&and("io_queues: 0"), &["1 to 128"]);
    refused(&and("in_capsule: 6000"), &["a multiple of 4 KiB"]);
    refused(&and("max_transfer: 512KiB"), &["1 MiB to 32 MiB"]);
    refused(&and("ring: { entries: 100 }"), &["a power of two, 64 to 32768"]);
    refused(&and("busy_poll: 50"), &["`50` is not a duration", "50us"]);
    refused(&and("busy_poll: 1s"), &["1us to 10ms"]);
    refused(&and("busy_poll: on"), &["not a duration"]);
    refused(&and("memory: { transfer: 2MiB }"), &["2 MiB for transfers is too little", "4 MiB"]);
    refused(&and("memory: { capsule: 1 }"), &["a capsule budget of 1 bytes"]);
    refused(&and("cores: []"), &["no core is listed"]);
    refused(&and("cores: [1, 2, 1]"), &["7:15: error: core 1 is listed twice"]);
    refused(&and("cores: [5000]"), &["there is no core 5000"]);
    refused(&and("state_dir: state"), &["not an absolute path"]);
}

#[test]
fn what_is_allowed_but_questionable() {
    let warned = |text: &str, part: &str| {
        let text = read(text).expect("a right configuration").warnings.to_string();
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    };
    warned(SMALL, "5:48: warning: whoever reaches the target");
    warned(&with("127.0.0.1:4420", "0.0.0.0:4420"), "serves on every network");
    warned(&with("127.0.0.1:4420", "127.0.0.1:0"), "lets the kernel pick a port");
    let drives = with("\"memory:64MiB\", \"memory:64MiB\"", "/dev/nvme0n1, /dev/sdb");
    warned(&drives, "`/dev/nvme0n1` can be another drive after the next boot");
    warned(&drives, "`/dev/sdb` can be");
    warned(
        &with(
            "subsystems:",
            "  - { name: b, level: raid0, members: [/srv/x, /srv/y] }\nsubsystems:",
        ),
        "array `b` is assembled, but no namespace exports it",
    );
    let quiet = with("hosts: any", "hosts: [nqn.2026-11.a:h]");
    assert!(read(&quiet).expect("right").warnings.is_empty());
}

#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("f.yaml");
    let message = load(&path).expect_err("absent").to_string();
    assert!(message.contains("there is no such file"), "{message}");
    let message = load(folder.path()).expect_err("a folder").to_string();
    assert!(message.contains("cannot be read"), "{message}");
    std::fs::write(&path, b"\xff\xfe").expect("a file");
    let message = load(&path).expect_err("no text").to_string();
    assert!(message.contains("not text"), "{message}");
    std::fs::write(&path, vec![b' '; (1 << 20) + 1]).expect("a file");
    let message = load(&path).expect_err("too large").to_string();
    assert!(message.contains("larger than 1 MiB"), "{message}");
    std::fs::write(&path, SMALL).expect("a file");
    assert_eq!(load(&path).expect("right").config.arrays.len(), 1);
}

/// What stands in an editor's schema and what the program takes must be the same:
/// whatever `serde_yaml` refuses for its form, the schema refuses, too, so that the
/// operator reads our message and not serde's.
#[test]
fn the_schema_explains_every_refusal_of_form() {
    let schema = raw::schema();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    for (key, value) in [("name", "{}"), ("chunk", "[]"), ("members", "[{}]"), ("uuid", "{}")] {
        let text = FULL.lines().map(|line| match line.split_once(&format!("{key}: ")) {
            Some((indent, _)) if indent.trim_start_matches(['-', ' ']).is_empty() => {
                format!("{indent}{key}: {value}\n")
            }
            _ => format!("{line}\n"),
        });
        let message = errors(&text.collect::<String>());
        assert!(!message.contains("YAML itself"), "{key}: {message}");
    }
    let tree = source::parse(FULL).expect("YAML");
    assert_eq!(structure::check(&schema, &tree), []);
}

/// The examples that we ship are right, and an editor with our schema says so, too.
#[test]
fn the_examples_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let schema = raw::schema();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the examples") {
        let path = entry.expect("an example").path();
        let text = std::fs::read_to_string(&path).expect("text");
        if let Err(errors) = load(&path) {
            panic!("{errors}");
        }
        let tree = source::parse(&text).expect("YAML");
        assert_eq!(structure::check(&schema, &tree), [], "{}", path.display());
        count += 1;
    }
    assert!(count >= 7, "{count} examples");
}

#[test]
fn the_memory_bound_is_printed_with_its_terms() {
    let Loaded { config, .. } = read(SMALL).expect("a right configuration");
    let bound = memory::Bound::new(&config, 2);
    // 128 MiB / 128 KiB is less than 32 MiB / 16 KiB.
    assert_eq!(bound.connections_per_core, 1024);
    let connection = (64 << 10) + (128 << 10) + 512 * 1024;
    assert_eq!(bound.connection_bytes, connection);
    let arrays = (8 << 20) + (512 << 10);
    let cores = 2 * ((32 << 20) + (128 << 20) + (24 << 20) + arrays + 1024 * connection);
    assert_eq!(bound.total_bytes(), cores + (32 << 20) + (128 << 20));
    assert_eq!(
        bound.to_string(),
        "memory: at most 1953 MiB\n  \
         = cores × (capsule + transfer + workers + arrays + connections × per connection) + base + \
         members in memory\n  \
         = 2 × (32 MiB + 128 MiB + 24 MiB + 8704 KiB + 1024 × 704 KiB) + 32 MiB + 128 MiB\n  \
         connections per core = the fewer of capsule / 16 KiB and transfer / 128 KiB"
    );
    // Parity has to be computed somewhere, and an array over arrays needs nothing.
    let parity = r#"["memory:64MiB", "memory:64MiB", "memory:64MiB"]"#;
    let three = with(
        r#"raid0, members: ["memory:64MiB", "memory:64MiB"]"#,
        &format!("raid5, members: {parity}"),
    );
    let Loaded { config, .. } = read(&three).expect("a right configuration");
    let with_parity = memory::Bound::new(&config, 2).arrays_bytes;
    assert_eq!(with_parity, arrays + (16 << 20) + (64 << 20));
}

mod random {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// No text makes the reader panic, however broken.
        #[test]
        fn texts_never_panic(text in "[a-z:{}\\[\\]\"',\n -]{0,200}") {
            let _ = read(&text);
        }

        /// Nor does the full example with any part cut out or doubled.
        #[test]
        fn mutilated_examples_never_panic(
            start in 0..FULL.len(),
            length in 0usize..80,
            doubled: bool,
        ) {
            let end = (start + length).min(FULL.len());
            let part = &FULL[start..end];
            let (before, after) = (&FULL[..start], &FULL[end..]);
            let text = if doubled { [before, part, part, after].concat() } else { [before, after].concat() };
            let _ = read(&text).map(|loaded| loaded.warnings.to_string());
        }
    }
}

/// `chunk: -4` was answered with serde's "data did not match any variant of untagged enum Size",
/// and with the advice to look for YAML's own mistakes.
#[test]
fn a_value_that_is_no_size_is_told_by_its_key() {
    for wrong in ["-4", "1e5", "true", "1.5"] {
        let text = SMALL.replace("level: raid0,", &format!("level: raid0, chunk: {wrong},"));
        let errors = errors(&text);
        assert!(errors.contains("f.yaml:3:"), "{errors}");
        assert!(errors.contains("`chunk` cannot be `"), "{errors}");
        assert!(errors.contains("a size such as 64KiB"), "{errors}");
        assert!(!errors.contains("untagged") && !errors.contains("YAML itself"), "{errors}");
    }
    // Text that only looks like a number is text as ever.
    assert!(read(&SMALL.replace("level: raid0,", "level: raid0, chunk: \"65536\",")).is_ok());
}

/// An editor's mark at the beginning made the file "miss" its first key.
#[test]
fn a_byte_order_mark_is_no_part_of_the_file() {
    assert!(read(&format!("\u{feff}{}", SMALL.trim_start())).is_ok());
}

#[test]
fn common_slips_of_yaml_have_their_own_cure() {
    let tab = errors(&SMALL.replace("  - { name", "\t- { name"));
    assert!(tab.contains("use spaces"), "{tab}");
    let two = errors(&format!("{SMALL}---{SMALL}"));
    assert!(two.contains("holds one configuration"), "{two}");
    for empty in ["", "\n", "# nothing\n"] {
        let errors = errors(empty);
        assert!(errors.contains("the file is empty"), "{errors}");
    }
}

/// Arrays a to d over files, and `outer` over some of them.
fn composed(leaves: &str, outer: &str) -> String {
    let leaf = |(name, keys): (char, &str)| {
        format!(
            "  - {{ name: {name}, {keys}, members: [/srv/{name}1, /srv/{name}2, /srv/{name}3] }}\n"
        )
    };
    let leaves: String = "abcd".chars().map(|name| leaf((name, leaves))).collect();
    format!(
        "arrays:\n{leaves}  - {{ name: outer, {outer} }}\nsubsystems:\n  - {{ nqn: \
         \"nqn.2026-11.org.example:a\", hosts: any, namespaces: [{{ nsid: 1, array: outer }}] }}\n\
         listen: [\"127.0.0.1:4420\"]\n"
    )
}

#[test]
fn arrays_over_arrays_have_the_level_of_what_they_are_over() {
    let members = "members: [array:b, array:a]";
    for (leaf, written, level) in [
        ("raid5", "raid0", Level::Raid50),
        ("raid5", "raid50", Level::Raid50),
        ("raid10", "raid100", Level::Raid100),
        ("raid10", "raid0", Level::Raid100),
        ("raid1", "raid0", Level::Raid0),
        ("raid0", "raid0", Level::Raid0),
    ] {
        let text = composed(&format!("level: {leaf}"), &format!("level: {written}, {members}"));
        let config = read(&text).unwrap_or_else(|error| panic!("{error}")).config;
        let outer = &config.arrays[4];
        assert_eq!((outer.level, outer.chunk_bytes), (level, 512 << 10), "{written} over {leaf}");
        assert_eq!((&outer.leaves[..], &outer.members[..]), (&[1, 0][..], &[][..]));
        assert_eq!(config.over(0).map(|outer| outer.name.as_str()), Some("outer"));
        assert_eq!(config.over(2), None);
    }
    // Told of the arrays that are assembled and not exported: those that are no parts.
    let text = composed("level: raid5", &format!("level: raid50, {members}"));
    let warnings = read(&text).expect("a right configuration").warnings.to_string();
    assert!(warnings.contains("array `c`") && !warnings.contains("array `a`"), "{warnings}");
}

#[test]
fn arrays_over_arrays_that_cannot_be() {
    let refuse = |outer: &str, parts: &[&str]| {
        refused(&composed("level: raid5", outer), parts);
    };
    refuse(
        "level: raid50, members: [array:a, array:x]",
        &["f.yaml:6:54: error: there is no array `x`", "arrays here: a, b"],
    );
    refuse("level: raid50, members: [array:a, array:a]", &["array `a` is listed twice"]);
    refuse("level: raid50, members: [array:a]", &["one array is not striped over"]);
    refuse("level: raid50, members: [array:outer, array:a]", &["cannot be over itself"]);
    refuse("level: raid50, members: [array:a, /srv/x]", &["`/srv/x` is no array", "not over both"]);
    refuse("level: raid50, members: [/srv/x, /srv/y]", &["raid50 is over arrays", "level raid5"]);
    refuse(
        "level: raid60, members: [array:a, array:b]",
        &["raid60 is over arrays of level raid6, and array `a` is of level raid5"],
    );
    for level in ["raid1", "raid5", "raid6", "raid10"] {
        refuse(
            &format!("level: {level}, members: [array:a, array:b]"),
            &[&format!("{level} over arrays is not served"), "raid50, raid60 or raid100"],
        );
    }
    for key in [
        "consistency: ppl",
        "spares: [/srv/s]",
        "degraded_wait: 1s",
        "member_timeout: 1s",
        "hold: 1s",
        "safe_mode_delay: 1s",
        "read_error_limit: 1",
        "resync: { min: 1MiB }",
    ] {
        let name = key.split(':').next().unwrap();
        let text = format!("`{name}` is about drives");
        refuse(&format!("level: raid50, members: [array:a, array:b], {key}"), &[&text]);
    }
    let second = "}\n  - { name: second, level: raid50, members: [array:b, array:c]";
    refuse(
        &format!("level: raid50, members: [array:a, array:b] {second}"),
        &["array `b` is a member of array `outer` already"],
    );
    let deeper = "}\n  - { name: second, level: raid0, members: [array:outer, array:c]";
    let deep =
        composed("level: raid5", &format!("level: raid50, members: [array:a, array:b] {deeper}"));
    refused(
        &deep.replace("array: outer", "array: second"),
        &["array `outer` is over arrays itself", "one level deep"],
    );
    let leaf = composed("level: raid5", "level: raid50, members: [array:a, array:b]")
        .replace("array: outer", "array: a");
    refused(&leaf, &["array `a` is a part of array `outer`", "export `outer`"]);
    let half = composed("level: raid5", "level: raid50, members: [array:a, array:b]")
        .replace("/srv/a1, /srv/a2, /srv/a3", "\"memory:1MiB\", \"memory:1MiB\", \"memory:1MiB\"");
    refused(&half, &["arrays in memory and on drives cannot form one array"]);
    let spare = composed("level: raid5", "level: raid50, members: [array:a, array:b]")
        .replace("{ name: d, level: raid5", "{ name: d, level: raid5, spares: [\"array:b\"]");
    refused(&spare, &["an array cannot be a spare"]);
}
