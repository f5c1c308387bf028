//! `serve` and `demo` as a user meets them: what a refusal leaves behind, how the log is chosen, and
//! which signals end the service well.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::program::{command, configuration, drive, folder, run};

/// The array was created before the namespace was found to be too large for it, and the command
/// ended with "nothing was touched" (2).
#[test]
fn a_namespace_that_does_not_fit_is_refused_before_the_array_is_created() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 64));
    let file = configuration(folder.path(), &[("m", "raid1", &drives)]);
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("array: m }", "array: m, size: 1TiB }");
    fs::write(&file, text.replace("127.0.0.1:4420", "127.0.0.1:0")).unwrap();
    let refused = run(&["serve", &file]);
    let err = refused.fails(2);
    assert!(err.contains("namespace 1 ends at byte"), "{err}");
    assert!(!err.contains("created"), "{err}");
    for drive in &drives {
        let bytes = fs::read(drive).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{drive:?} was written to");
    }
}

/// Four files stayed behind when the port was taken, and again with code 2.
#[test]
fn a_demo_that_is_refused_leaves_nothing() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = folder.path().join("demo");
    let demo = run(&["demo", "--listen", &address, "--directory", directory.to_str().unwrap()]);
    assert!(demo.fails(2).contains("another program has the port"), "{demo:?}");
    assert!(!directory.exists());
}

/// A relative directory was refused with ten lines about a file that the user never wrote; a
/// closed terminal (SIGHUP) killed the service, and left its arrays to be checked.
#[test]
fn a_demo_in_a_relative_directory_ends_cleanly_with_its_terminal() {
    let folder = folder();
    let mut child = command(&["demo", "--listen", "127.0.0.1:0", "--directory", "./relative"])
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let serves = out.any(|line| line.unwrap().starts_with("serving"));
    assert!(serves, "{:?}", child.wait_with_output());
    assert!(folder.path().join("relative/drive3.img").exists());
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it does not stop");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    assert!(err.contains("stopping: SIGHUP"), "{err}");
}

/// `debgu` was understood as a part of the program, and silenced all others, errors too.
#[test]
fn a_log_filter_with_a_slip_is_refused() {
    for wrong in ["debgu", "raidfabric=loud", "info,,"] {
        let output =
            command(&["serve", "/nowhere/fabric.yaml"]).env("RAIDFABRIC_LOG", wrong).output();
        let output = output.unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("RAIDFABRIC_LOG") && err.contains("debug, trace"), "{wrong}: {err}");
    }
    for right in ["", "debug", "WARN", "raidfabric=trace,raidfabric_raid=debug", "info,tokio=off"] {
        let output =
            command(&["serve", "/nowhere/fabric.yaml"]).env("RAIDFABRIC_LOG", right).output();
        let err = String::from_utf8(output.unwrap().stderr).unwrap();
        assert!(err.contains("there is no such file"), "{right}: {err}");
    }
}

/// The first of several mistakes had the program's name before its place, so that editors did not
/// find it, and the documentation showed something else.
#[test]
fn every_mistake_of_a_file_begins_with_its_place() {
    let folder = folder();
    let file = folder.path().join("fabric.yaml");
    fs::write(&file, "arays: []\nsubsystem: []\n").unwrap();
    let file = file.to_str().unwrap();
    let check = run(&["check", file]);
    let places: Vec<_> = check.fails(2).lines().filter(|line| line.contains(": error: ")).collect();
    assert!(places.len() > 1, "{places:?}");
    assert!(places.iter().all(|line| line.starts_with(file)), "{places:?}");
}

/// One drive of another array at the head of the list, and the error called the array's own drives
/// foreign, and told to overwrite them.
#[test]
fn a_foreign_member_is_named_and_not_the_arrays_own() {
    let folder = folder();
    let ours = ["b", "c"].map(|name| drive(folder.path(), name, 64));
    let file = configuration(folder.path(), &[("ours", "raid1", &ours)]);
    run(&["array", "create", &file]).succeeds();
    let theirs = ["a", "d"].map(|name| drive(folder.path(), name, 64));
    let file = configuration(folder.path(), &[("theirs", "raid1", &theirs)]);
    run(&["array", "create", &file]).succeeds();
    let [a, _] = theirs;
    let [b, c] = ours;
    let file = configuration(folder.path(), &[("ours", "raid1", &[a, b, c])]);
    let create = run(&["array", "create", &file]);
    let err = create.fails(2);
    assert!(err.contains("/a is member 0 of 2 of the md array"), "{err}");
    assert!(err.contains(":theirs"), "{err}");
}
