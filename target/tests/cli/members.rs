//! Members that fail, go, come, and are missing at the start, over files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::array::create;
use crate::control::Daemon;
use crate::program::{configuration, drive, folder, run};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Files with a configuration of one array over them.
struct Setup {
    folder: tempfile::TempDir,
    drives: Vec<PathBuf>,
    config: String,
}

impl Setup {
    fn new(level: &str, count: usize) -> Self {
        let folder = folder();
        let name = |index: usize| format!("d{index}");
        let drives: Vec<_> =
            (0..count).map(|index| drive(folder.path(), &name(index), 32)).collect();
        let config = configuration(folder.path(), &[("fast", level, &drives)]);
        Self { folder, drives, config }
    }

    /// Adds a line to the array in the configuration.
    fn set(&self, line: &str) {
        let yaml = fs::read_to_string(&self.config).unwrap();
        let place = "  - name: fast\n";
        fs::write(&self.config, yaml.replace(place, &format!("{place}    {line}\n"))).unwrap();
    }

    fn start(&self) -> Daemon {
        Daemon::start(&self.config, &self.folder.path().join("state/control.sock"))
    }

    /// Takes a drive's file away.
    fn pull(&self, slot: usize) {
        fs::rename(&self.drives[slot], self.away(slot)).unwrap();
    }

    fn put_back(&self, slot: usize) {
        fs::rename(self.away(slot), &self.drives[slot]).unwrap();
    }

    fn away(&self, slot: usize) -> PathBuf {
        self.drives[slot].with_extension("away")
    }
}

/// The words for the members' states.
fn states(status: &Value) -> Vec<String> {
    let members = status["arrays"][0]["members"].as_array().unwrap();
    members.iter().map(|member| member["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_member_is_failed_removed_and_replaced() {
    let setup = Setup::new("raid1", 2);
    let daemon = setup.start();
    let fail = daemon.ask(&["array", "fail", "fast", "1"]);
    assert!(fail.succeeds().contains("slot 1 of array fast has failed"), "{fail:?}");
    let status = daemon.ask(&["status"]);
    assert_eq!(status.code, Some(1), "{status:?}");
    for part in ["array fast: degraded", "it was failed by the operator", "can lose 0 more"] {
        assert!(status.out.contains(part), "{part}: {status:?}");
    }
    let again = daemon.ask(&["array", "fail", "fast", "1"]);
    assert!(again.fails(2).contains("has failed already"), "{again:?}");
    let last = daemon.ask(&["array", "fail", "fast", text(&setup.drives[0])]);
    assert!(last.fails(2).contains("would be lost without slot 0"), "{last:?}");
    assert_eq!(states(&daemon.status()), ["in_sync", "failed"]);

    let remove = daemon.ask(&["array", "remove", "fast", text(&setup.drives[1])]);
    let out = remove.succeeds();
    assert!(out.contains("slot 1 of array fast is empty") && out.contains("d1 is free"), "{out}");
    let kept = daemon.ask(&["array", "remove", "fast", "0"]);
    assert!(kept.fails(2).contains("raidfabric array fail fast 0"), "{kept:?}");
    assert_eq!(states(&daemon.status()), ["in_sync", "missing"]);

    let new = drive(setup.folder.path(), "new", 32);
    let add = daemon.ask(&["array", "add", "fast", text(&new)]);
    assert!(add.succeeds().contains("is slot 1 of array fast now; it is filled whole"), "{add:?}");
    let wait = daemon.ask(&["wait", "--for", "rebuilt", "--timeout", "60s"]);
    wait.succeeds();
    daemon.ask(&["status"]).succeeds();
    daemon.stop();
    // The old drive is not taken for a member, in whatever order the drives are given.
    let listed =
        run(&["array", "examine", text(&setup.drives[0]), text(&new), text(&setup.drives[1])]);
    assert!(listed.succeeds().contains("array"), "{listed:?}");
    assert!(
        listed.out.contains("out of date") || listed.out.contains("recorded as failed"),
        "{listed:?}"
    );
}

#[test]
fn what_cannot_be_added_is_refused() {
    let setup = Setup::new("raid1", 2);
    let small = drive(setup.folder.path(), "small", 2);
    let other = drive(setup.folder.path(), "other", 32);
    crate::array::make_ext4(&other);
    let daemon = setup.start();
    let full = daemon.ask(&["array", "add", "fast", text(&other)]);
    assert!(full.fails(2).contains("a member in every slot"), "{full:?}");
    daemon.ask(&["array", "fail", "fast", "1"]).succeeds();
    daemon.ask(&["array", "remove", "fast", "1"]).succeeds();
    for (drive, lesson) in [
        (text(&other), "ext2"),
        (text(&small), "bytes"),
        (text(&setup.drives[0]), "is slot 0 of the array, and in use"),
        ("/nowhere/x", "/nowhere/x"),
    ] {
        let add = daemon.ask(&["array", "add", "fast", drive]);
        assert!(add.fails(2).contains(lesson), "{add:?}");
        assert_eq!(states(&daemon.status()), ["in_sync", "missing"]);
    }
    let add = daemon.ask(&["array", "add", "fast", text(&other), "--slot", "7"]);
    assert!(add.fails(2).contains("no slot 7"), "{add:?}");
    let none = daemon.ask(&["array", "fail", "slow", "1"]);
    assert!(none.fails(2).contains("there is no array slow"), "{none:?}");
    daemon.stop();
}

/// An array that a member is missing of at the start is waited for, and starts without it.
#[test]
fn a_missing_member_is_waited_for_and_then_done_without() {
    let setup = Setup::new("raid1", 2);
    setup.set("degraded_wait: 1s");
    create(&setup.config, &[]).succeeds();
    setup.pull(1);
    let daemon = setup.start();
    let status = daemon.ask(&["status"]);
    assert_eq!(status.code, Some(1), "{status:?}");
    assert!(status.out.contains("array fast: degraded"), "{status:?}");
    assert!(status.out.contains("slot 1 is missing"), "{status:?}");
    daemon.stop();
}
