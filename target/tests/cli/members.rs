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
    assert!(status.out.contains("d1) is missing"), "{status:?}");
    daemon.stop();
}

/// Without the state directory nobody knows whether the drive that is missing has gone on alone.
#[test]
fn what_may_be_behind_needs_a_decision() {
    let setup = Setup::new("raid1", 2);
    setup.set("degraded_wait: 0s");
    create(&setup.config, &[]).succeeds();
    fs::remove_dir_all(setup.folder.path().join("state")).unwrap();
    setup.pull(1);
    let before = fs::read(&setup.drives[0]).unwrap();
    let text = fs::read_to_string(&setup.config).unwrap();
    fs::write(&setup.config, text.replace("127.0.0.1:4420", "127.0.0.1:0")).unwrap();
    let serve = run(&["serve", &setup.config]);
    let err = serve.fails(2);
    assert!(err.contains("is incomplete: slot 1 of 2 missing") && err.contains("`--run`"), "{err}");
    let plan = run(&["array", "assemble", &setup.config]);
    plan.fails(1);
    assert!(plan.out.contains("would not start by itself"), "{plan:?}");
    assert!(before == fs::read(&setup.drives[0]).unwrap(), "looking changes nothing");

    let run_it = run(&["array", "assemble", &setup.config, "--run"]);
    let out = run_it.succeeds();
    assert!(out.contains("it starts by itself from now on"), "{out}");
    assert!(out.contains("accepted: members are missing that may be newer"), "{out}");
    let again = run(&["array", "assemble", &setup.config]);
    assert!(again.succeeds().contains("would start degraded"), "{again:?}");
    let daemon = setup.start();
    assert_eq!(states(&daemon.status()), ["in_sync", "missing"]);
    daemon.stop();
    // The drive that was left behind is behind now, whatever the state directory knows.
    fs::remove_dir_all(setup.folder.path().join("state")).unwrap();
    setup.put_back(1);
    let plan = run(&["array", "assemble", &setup.config]);
    assert!(plan.succeeds().contains("it is recorded as failed"), "{plan:?}");
}

/// Each half was used without the other: nobody but the operator can say which is right.
#[test]
fn halves_that_were_used_apart_need_a_winner() {
    let setup = Setup::new("raid1", 2);
    setup.set("degraded_wait: 0s");
    create(&setup.config, &[]).succeeds();
    for (here, away) in [(0, 1), (1, 0)] {
        let _ = fs::remove_dir_all(setup.folder.path().join("state"));
        setup.pull(away);
        run(&["array", "assemble", &setup.config, "--run"]).succeeds();
        let daemon = setup.start();
        assert_eq!(states(&daemon.status())[here], "in_sync");
        daemon.stop();
        setup.put_back(away);
    }
    let serve = run(&["serve", &setup.config]);
    assert!(serve.fails(2).contains("each record the other as failed"), "{serve:?}");
    let winner = text(&setup.drives[1]);
    let asked = run(&["array", "assemble", &setup.config, "--winner", winner]);
    assert!(asked.fails(2).contains("no terminal to ask on, so nothing was touched"), "{asked:?}");
    assert!(asked.err.contains("everything on this drive is destroyed"), "{asked:?}");
    let decided = run(&["array", "assemble", &setup.config, "--winner", winner, "--yes"]);
    assert!(decided.succeeds().contains("it starts by itself from now on"), "{decided:?}");
    let daemon = setup.start();
    assert_eq!(states(&daemon.status()), ["missing", "in_sync"]);
    let add = daemon.ask(&["array", "add", "fast", text(&setup.drives[0])]);
    assert!(add.succeeds().contains("is slot 0 of array fast now"), "{add:?}");
    daemon.stop();
}

#[test]
fn every_level_is_created_served_checked_and_rebuilt() {
    for (level, count) in [("raid5", 3), ("raid6", 4), ("raid10", 4), ("raid1", 3)] {
        let setup = Setup::new(level, count);
        let daemon = setup.start();
        daemon.ask(&["wait", "--for", "synced", "--timeout", "60s"]).succeeds();
        let status = daemon.ask(&["status"]);
        assert!(status.succeeds().starts_with("array fast: healthy\n"), "{level}: {status:?}");
        let check = daemon.ask(&["array", "check", "fast"]);
        assert!(check.succeeds().contains("the check of array fast has begun"), "{check:?}");
        daemon.ask(&["wait", "--for", "idle", "--timeout", "60s"]).succeeds();
        let found = &daemon.status()["arrays"][0]["last_check"];
        assert_eq!(found["is_complete"], true, "{level}: {found}");
        assert_eq!(found["mismatch_bytes"], 0, "{level}: {found}");
        daemon.ask(&["array", "fail", "fast", "0"]).succeeds();
        daemon.ask(&["array", "remove", "fast", "0"]).succeeds();
        let back = daemon.ask(&["array", "add", "fast", text(&setup.drives[0])]);
        assert!(back.succeeds().contains("is slot 0 of array fast now"), "{level}: {back:?}");
        daemon.ask(&["wait", "--for", "healthy", "--timeout", "60s"]).succeeds();
        daemon.stop();
        let after = setup.start();
        after.ask(&["status"]).succeeds();
        after.kill();
        let again = setup.start();
        assert_eq!(states(&again.status()), vec!["in_sync"; count], "{level}");
        again.stop();
    }
}

#[test]
fn a_check_that_makes_no_sense_is_refused() {
    let setup = Setup::new("raid0", 2);
    let daemon = setup.start();
    let check = daemon.ask(&["array", "check", "fast"]);
    assert!(check.fails(2).contains("nothing to compare"), "{check:?}");
    let cancel = daemon.ask(&["array", "check", "fast", "--cancel"]);
    assert!(cancel.fails(2).contains("is not being checked"), "{cancel:?}");
    daemon.stop();
}

/// A member that was away at the start is taken again as soon as it is there.
#[test]
fn a_member_that_comes_back_is_taken_again_and_a_stranger_is_not() {
    let setup = Setup::new("raid1", 2);
    setup.set("degraded_wait: 0s");
    create(&setup.config, &[]).succeeds();
    setup.pull(1);
    let daemon = setup.start();
    assert_eq!(states(&daemon.status()), ["in_sync", "missing"]);
    setup.put_back(1);
    daemon.ask(&["wait", "--for", "healthy", "--timeout", "60s"]).succeeds();
    assert_eq!(states(&daemon.status()), ["in_sync", "in_sync"]);
    daemon.stop();
}

#[test]
fn a_spare_takes_a_failed_members_place() {
    let setup = Setup::new("raid5", 3);
    let spare = drive(setup.folder.path(), "spare", 32);
    let used = drive(setup.folder.path(), "spare-used", 32);
    crate::array::make_ext4(&used);
    setup.set(&format!("spares: [{:?}]", setup.folder.path().join("spare*")));
    let daemon = setup.start();
    let status = daemon.status();
    let spares = status["arrays"][0]["spares"].as_array().unwrap();
    assert_eq!(spares.len(), 2, "{status}");
    assert_eq!((&spares[0]["is_ready"], &spares[1]["is_ready"]), (&true.into(), &false.into()));
    daemon.ask(&["array", "fail", "fast", "2"]).succeeds();
    daemon.ask(&["wait", "--for", "rebuilt", "--timeout", "60s"]).succeeds();
    let status = daemon.status();
    assert_eq!(status["arrays"][0]["members"][2]["drive"], text(&spare));
    daemon.stop();
    // The spare is not among the members of the configuration, and a file.
    let daemon = setup.start();
    assert_eq!(states(&daemon.status()), ["in_sync"; 3]);
    daemon.stop();
    // What was replaced may be wiped, or used for something else.
    fs::write(&setup.drives[2], vec![0; 32 << 20]).unwrap();
    let daemon = setup.start();
    assert_eq!(states(&daemon.status()), ["in_sync"; 3]);
    daemon.stop();
}
