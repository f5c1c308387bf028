//! Arrays over arrays: created, looked at, and asked for what only their arrays can do.

use std::fs;
use std::path::{Path, PathBuf};

use crate::array::{create, snapshot};
use crate::control::Daemon;
use crate::program::{configuration, drive, folder, run};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// RAID 50 over two arrays of three files each, `left` and `right`.
fn raid50(folder: &Path) -> (String, Vec<PathBuf>) {
    let drives: Vec<_> = (0..6).map(|number| drive(folder, &format!("d{number}"), 32)).collect();
    let arrays = [("left", "raid5", &drives[..3]), ("right", "raid5", &drives[3..])];
    let config = configuration(folder, &arrays);
    let yaml = fs::read_to_string(&config).unwrap();
    let (arrays, _) = yaml.split_once("subsystems:").unwrap();
    let yaml = format!(
        "{arrays}  - name: wide\n    level: raid50\n    members: [array:left, array:right]\n\
         subsystems:\n  - nqn: nqn.2026-11.org.example:wide\n    hosts: any\n    namespaces: \
         [{{ nsid: 1, array: wide }}]\nlisten: [\"127.0.0.1:4420\"]\nstate_dir: {:?}\n",
        folder.join("state")
    );
    fs::write(&config, yaml).unwrap();
    (config, drives)
}

#[test]
fn it_is_created_with_its_arrays_and_then_left_alone() {
    let folder = folder();
    let (config, drives) = raid50(folder.path());
    let check = run(&["check", &config]);
    assert!(check.succeeds().contains("array wide: raid50, chunk 512 KiB, 2 members"), "{check:?}");
    assert!(check.out.contains("  array right\n"), "{check:?}");
    let outlook = run(&["array", "assemble", &config, "--array", "wide"]);
    assert!(outlook.succeeds().contains("hold nothing yet"), "{outlook:?}");

    let made = create(&config, &[]);
    let out = made.succeeds();
    for part in ["array left: created", "array right: created", "array wide: created"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(out.contains("level        raid50, chunk 512 KiB, 2 arrays"), "{out}");
    assert!(out.contains("  slot 1       array right\n"), "{out}");
    let before = snapshot(&drives);
    let again = create(&config, &["--array", "wide"]);
    let out = again.succeeds();
    assert_eq!(out.matches("left alone").count(), 3, "{out}");
    let outlook = run(&["array", "assemble", &config]);
    assert!(outlook.succeeds().contains("array wide: complete, over left, right"), "{outlook:?}");
    let decision = run(&["array", "assemble", &config, "--array", "wide", "--run"]);
    assert!(decision.fails(2).contains("wide is over arrays"), "{decision:?}");
    assert!(before == snapshot(&drives), "what is only looked at is not written to");

    // The drives alone tell all three, as a configuration.
    let mut arguments = vec!["array", "examine"];
    arguments.extend(drives.iter().map(|path| text(path)));
    let examined = run(&arguments);
    let out = examined.succeeds();
    assert!(out.contains("level        raid50, chunk 512 KiB, 2 members"), "{out}");
    for part in ["- name: wide", "level: raid50", "  - array:left", "  - array:right"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(before == snapshot(&drives));
    // Half of it is told as such.
    let half = run(&arguments[..5]);
    assert!(half.fails(2).is_empty() && half.out.contains("array wide"), "{half:?}");

    // All anew, or not at all.
    let some = ["--overwrite", text(&drives[0]), "--yes"];
    let refused = create(&config, &some);
    refused.fails(2);
    assert!(before == snapshot(&drives));
    let mut all: Vec<_> = drives.iter().flat_map(|path| ["--overwrite", text(path)]).collect();
    all.push("--yes");
    let anew = create(&config, &all);
    assert!(anew.succeeds().contains("array wide: created"), "{anew:?}");
}

#[test]
fn what_is_asked_of_it_its_arrays_do_or_are_to_be_asked() {
    let folder = folder();
    let (config, drives) = raid50(folder.path());
    let daemon = Daemon::start(&config, &folder.path().join("state/control.sock"));
    let status = daemon.ask(&["status", "wide"]);
    let out = status.succeeds();
    assert!(out.starts_with("array wide: healthy\n  raid50, chunk 512 KiB, 2 members"), "{out}");
    assert!(out.contains("array:left") && out.contains("can lose 1 more"), "{out}");
    let names = |status: &serde_json::Value| -> Vec<String> {
        let arrays = status["arrays"].as_array().unwrap();
        arrays.iter().map(|array| array["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&daemon.status()), ["left", "right", "wide"]);
    for verb in [&["fail", "wide", "0"][..], &["remove", "wide", "0"], &["add", "wide", "/x"]] {
        let refused = daemon.ask(&[&["array"], verb].concat());
        assert!(refused.fails(2).contains("goes to the one of left, right"), "{refused:?}");
    }
    let stop = daemon.ask(&["array", "stop", "left"]);
    assert!(stop.fails(2).contains("raidfabric array stop wide"), "{stop:?}");
    let check = daemon.ask(&["array", "check", "wide"]);
    assert!(check.succeeds().contains("left") && check.out.contains("right"), "{check:?}");
    daemon.ask(&["wait", "wide", "--for", "idle", "--timeout", "60s"]).succeeds();

    daemon.ask(&["array", "fail", "right", text(&drives[4])]).succeeds();
    let degraded = daemon.ask(&["status", "wide"]);
    assert_eq!(degraded.code, Some(1), "{degraded:?}");
    for part in ["array wide: degraded", "slot 1, array right, is degraded", "can lose 0 more"] {
        assert!(degraded.out.contains(part), "{part}: {degraded:?}");
    }
    daemon.ask(&["array", "stop", "wide"]).succeeds();
    let stopped = daemon.ask(&["status", "wide"]);
    assert!(stopped.out.starts_with("array wide: stopped"), "{stopped:?}");
    daemon.stop();
    // It is found degraded, and served.
    let daemon = Daemon::start(&config, &folder.path().join("state/control.sock"));
    let degraded = daemon.ask(&["status", "wide"]);
    assert!(degraded.out.starts_with("array wide: degraded"), "{degraded:?}");
    daemon.stop();
}
