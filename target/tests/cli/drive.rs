//! `drive list`, `examine` and `wipe` on files: what is told, what is refused, and that a refusal and
//! a dry run change nothing.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use raidfabric_raid::device::{Intent, open};
use serde_json::Value;

use crate::array::{array_uuid, create, make_ext4, snapshot};
use crate::program::{configuration, drive, folder, run};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_list_has_all_drives_and_the_files_that_are_named() {
    let folder = folder();
    let drives = ["a", "b", "c"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("fast", "raid1", &drives[..2])]);
    create(&config, &[]).succeeds();
    let files = drives.iter().map(|path| text(path));
    let run_list = |form: &[&'static str]| {
        let mut arguments = vec!["drive", "list"];
        arguments.extend(form);
        arguments.extend(files.clone());
        run(&arguments)
    };
    let listed = run_list(&["--output", "json"]);
    // Drives of this machine may not be readable for who tests.
    assert!(matches!(listed.code, Some(0 | 1)), "{listed:?}");
    let report = json(&listed.out);
    assert_eq!(report["schema"], "raidfabric.drives/1");
    let all = report["drives"].as_array().unwrap();
    let ours: Vec<_> = all
        .iter()
        .filter(|one| {
            text(folder.path()).len() < one["path"].as_str().unwrap().len()
                && one["path"].as_str().unwrap().starts_with(text(folder.path()))
        })
        .collect();
    assert_eq!(ours.len(), 3, "{report}");
    assert_eq!(ours[1]["holds"]["member"]["slot"], 1);
    assert_eq!(ours[1]["holds"]["member"]["level"], "raid1");
    assert_eq!(ours[2]["holds"]["kind"], "nothing");
    assert_eq!(ours[2]["size_bytes"], 16 << 20);
    let words = run_list(&[]);
    assert!(words.out.starts_with("drive "), "{words:?}");
    assert!(words.out.contains("slot 1 of 2 of raid1 "), "{words:?}");
    let yaml = run_list(&["--output", "yaml"]);
    assert!(yaml.out.starts_with("schema: raidfabric.drives/1\n"), "{yaml:?}");
}

/// 2 means that something has failed, where 1 and 2 tell a state: everything else is 4.
#[test]
fn what_is_not_there_and_what_makes_no_sense_has_code_4() {
    for (arguments, lesson) in [
        (&["drive", "list", "/nowhere/x"][..], "there is no such file"),
        (&["drive", "list", "--output", "xml"], "json"),
        (&["drive", "examine"], "<DRIVE>"),
        (&["drive", "examine", "/nowhere/x"], "no such drive or file"),
        (&["drive", "examine", "S3R1AL-OF-NONE"], "no drive has this name or serial number"),
    ] {
        let run = run(arguments);
        assert!(run.fails(4).contains(lesson), "{arguments:?}: {run:?}");
    }
    for arguments in [&["drive", "wipe"][..], &["drive", "lsit"], &["drive", "wipe", "/nowhere/x"]]
    {
        run(arguments).fails(2);
    }
}

#[test]
fn one_drive_is_examined_also_while_it_is_in_use() {
    let folder = folder();
    let path = drive(folder.path(), "a", 16);
    make_ext4(&path);
    let owned = open(&path, Intent::Own).unwrap();
    let examined = run(&["drive", "examine", text(&path)]);
    let out = examined.succeeds();
    for part in ["16 MiB (16777216 bytes)", "an ext2", &format!("process {}", std::process::id())] {
        assert!(out.contains(part), "{part}: {out}");
    }
    drop(owned);
}

/// A dry run opens drives read-only: it works beside whoever owns them, which nothing that opens
/// them to write does, and leaves every byte as it was.
#[test]
fn a_dry_run_only_reads() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    drives.iter().for_each(|path| make_ext4(path));
    let before = snapshot(&drives);
    let owned: Vec<_> = drives.iter().map(|path| open(path, Intent::Own).unwrap()).collect();
    let wipe = run(&["drive", "wipe", "--dry-run", text(&drives[0]), "--drive", text(&drives[1])]);
    let out = wipe.succeeds();
    for part in ["would be refused: it is in use by process", "an ext2", "nothing was touched"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    drop(owned);
    let wipe = run(&["drive", "wipe", "--dry-run", "--yes", "--drive", text(&drives[0])]);
    assert!(!wipe.succeeds().contains("refused"), "{wipe:?}");
    assert!(before == snapshot(&drives));
}

#[test]
fn without_a_terminal_each_drive_is_named_twice_over() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    drives.iter().for_each(|path| make_ext4(path));
    let before = snapshot(&drives);
    for arguments in [
        &["drive", "wipe", text(&drives[0])][..],
        &["drive", "wipe", "--drive", text(&drives[0])],
        // A yes to one drive is none to another.
        &["drive", "wipe", text(&drives[0]), "--yes", "--drive", text(&drives[1])],
    ] {
        let wipe = run(arguments);
        let err = wipe.fails(2);
        assert!(err.contains("no terminal to ask on, so nothing was touched"), "{err}");
        assert!(err.contains("name each drive by --drive, and add --yes"), "{err}");
        assert!(err.contains("an ext2"), "what it holds is shown: {err}");
        assert!(before == snapshot(&drives));
    }
    assert!(run(&["drive", "wipe", "--yes", text(&drives[0])]).fails(2).contains("--drive"));
    let wipe = run(&["drive", "wipe", "--yes", "--drive", text(&drives[1])]);
    assert_eq!(wipe.succeeds(), "b: wiped; it counts as blank\n");
    assert!(before[0] == snapshot(&drives)[0], "the other is as it was");
    let listed = run(&["drive", "examine", text(&drives[1])]);
    assert!(listed.succeeds().contains("holds         nothing"), "{listed:?}");
}

#[test]
fn at_a_terminal_the_name_is_typed() {
    let folder = folder();
    let path = drive(folder.path(), "a", 16);
    make_ext4(&path);
    let answer = |answer: &str| {
        let line = format!("'{}' drive wipe '{}'", env!("CARGO_BIN_EXE_raidfabric"), text(&path));
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        script.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        let output = script.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, out) = answer("yes\n");
    assert!(code == Some(2) && out.contains("that is not the name of a"), "{out}");
    let (code, out) = answer("a\n");
    assert!(code == Some(0) && out.contains("a: wiped"), "{out}");
}

#[test]
fn a_drive_in_use_and_a_member_that_is_named() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    create(&config, &[]).succeeds();
    let owned = open(&drives[0], Intent::Own).unwrap();
    let both = ["drive", "wipe", "--yes", "--drive", text(&drives[1]), "--drive", text(&drives[0])];
    let before = snapshot(&drives);
    assert!(run(&both).fails(2).contains("in use by process"));
    assert!(before == snapshot(&drives), "nothing is wiped unless all can be");
    drop(owned);
    let wipe = run(&both);
    assert!(wipe.succeeds().contains("b: wiped") && wipe.err.contains("member 1 of 2"), "{wipe:?}");
    assert_eq!(array_uuid(&drives[0]), None);
    assert_eq!(array_uuid(&drives[1]), None);
}
