//! `array create` on files: what is created, what is refused, and that a refusal changes nothing.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use raidfabric_raid::assemble::describe;
use raidfabric_raid::device::signature::Contents;
use raidfabric_raid::device::{Intent, open};

use crate::program::{Run, configuration, drive, folder, run};

pub fn create(config: &str, more: &[&str]) -> Run {
    let mut arguments = vec!["array", "create", config];
    arguments.extend(more);
    run(&arguments)
}

/// What a drive's ends hold, to see that nothing was written.
pub fn snapshot(drives: &[PathBuf]) -> Vec<Vec<u8>> {
    drives.iter().map(|path| fs::read(path).unwrap()).collect()
}

pub fn array_uuid(drive: &Path) -> Option<uuid::Uuid> {
    match describe(drive).unwrap().contents {
        Contents::Md(superblock) => Some(superblock.array_uuid()),
        _ => None,
    }
}

pub fn put(drive: &Path, offset: usize, bytes: &[u8]) {
    let mut data = fs::read(drive).unwrap();
    data[offset..offset + bytes.len()].copy_from_slice(bytes);
    fs::write(drive, data).unwrap();
}

/// Looks like ext4 to whoever looks.
pub fn make_ext4(drive: &Path) {
    put(drive, 1024 + 56, &[0x53, 0xef]);
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn blank_drives_become_an_array_which_is_then_left_alone() {
    let folder = folder();
    let drives = ["a", "b", "c", "d"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("fast", "raid10", &drives)]);
    let run = create(&config, &[]);
    let out = run.succeeds();
    let uuid = array_uuid(&drives[0]).unwrap().to_string();
    for part in [
        "array fast: created\n",
        &uuid,
        "raid10, chunk 64 KiB, 4 drives",
        "consistency  bitmap: after a crash what was being written is made good; its redundancy is whole",
        "slot 0       ",
        text(&drives[3]),
        "now: raidfabric serve ",
        "then, on a host: nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-11.org.example:fast",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(drives.iter().all(|drive| array_uuid(drive).unwrap().to_string() == uuid));
    let record = fs::read_to_string(folder.path().join("state/array-fast.json")).unwrap();
    assert!(record.contains(&uuid), "{record}");

    let before = snapshot(&drives);
    let run = create(&config, &[]);
    assert!(run.succeeds().contains("array fast: exists (UUID "), "{run:?}");
    assert!(!run.out.contains("now: "), "{run:?}");
    assert!(before == snapshot(&drives), "an array that exists is not written to");
}

#[test]
fn only_the_array_that_is_asked_for() {
    let folder = folder();
    let one = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let two = ["c", "d"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("one", "raid1", &one), ("two", "raid0", &two)]);
    let refused = create(&config, &["--array", "three"]);
    assert!(refused.fails(2).contains("no array three; it describes one, two"), "{refused:?}");
    let run = create(&config, &["--array", "two"]);
    assert!(run.succeeds().contains("none: there are no copies"), "{run:?}");
    assert_eq!(array_uuid(&one[0]), None);
    assert!(array_uuid(&two[0]).is_some());
    let out = create(&config, &[]);
    assert!(out.succeeds().contains("array one: created\n"), "{out:?}");
    assert!(out.out.contains("array two: exists"), "{out:?}");
}

/// A fault in one array leaves all of them as they were.
#[test]
fn a_foreign_drive_is_refused_by_name_and_nothing_is_created() {
    let folder = folder();
    let one = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let two = ["c", "d"].map(|name| drive(folder.path(), name, 16));
    make_ext4(&two[1]);
    let config = configuration(folder.path(), &[("one", "raid1", &one), ("two", "raid0", &two)]);
    let before = snapshot(&[&one[..], &two].concat());
    let run = create(&config, &[]);
    let err = run.fails(2);
    assert!(err.contains(text(&two[1])) && err.contains("ext2, ext3 or ext4"), "{err}");
    assert!(err.contains("`raidfabric array create FILE --overwrite DRIVE`"), "{err}");
    assert!(before == snapshot(&[&one[..], &two].concat()));
}

#[test]
fn overwriting_needs_a_yes_and_then_happens() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    make_ext4(&drives[1]);
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    let before = snapshot(&drives);
    let run = create(&config, &["--overwrite", text(&drives[1])]);
    let err = run.fails(2);
    for part in
        ["everything on this drive is destroyed", "16 MiB", "an ext2", "no terminal", "--yes"]
    {
        assert!(err.contains(part), "{part}: {err}");
    }
    assert!(!err.contains("Type"), "nothing is asked: {err}");
    assert!(before == snapshot(&drives));

    let run = create(&config, &["--overwrite", text(&drives[1]), "--yes"]);
    assert!(run.succeeds().contains("array fast: created\n"), "{run:?}");
    assert!(run.err.contains("an ext2"), "what is destroyed is shown all the same: {run:?}");
    assert!(array_uuid(&drives[1]).is_some());
    assert_eq!(array_uuid(&drives[0]), array_uuid(&drives[1]));
}

/// With a terminal, which `script` gives it.
#[test]
fn on_a_terminal_the_name_has_to_be_typed() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    make_ext4(&drives[1]);
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    let before = snapshot(&drives);
    let answer = |answer: &str| {
        let program = env!("CARGO_BIN_EXE_raidfabric");
        let line =
            format!("'{program}' array create '{config}' --overwrite '{}'", text(&drives[1]));
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
    for wrong in ["yes\n", "\n", ""] {
        let (code, out) = answer(wrong);
        assert_eq!(code, Some(2), "{out}");
        assert!(out.contains("Type b to destroy what it holds: "), "{out}");
        assert!(out.contains("that is not the name of b; nothing was touched"), "{out}");
        assert!(before == snapshot(&drives));
    }
    let (code, out) = answer("b\n");
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(array_uuid(&drives[0]), array_uuid(&drives[1]));
    assert!(array_uuid(&drives[0]).is_some());
}

#[test]
fn only_drives_of_the_array_can_be_named() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let other = drive(folder.path(), "other", 16);
    make_ext4(&other);
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    for name in [text(&other), "/nowhere/x", "S3R1AL"] {
        let run = create(&config, &["--overwrite", name, "--yes"]);
        let err = run.fails(2);
        assert!(
            err.contains(&format!("--overwrite {name}: this is no drive of array fast")),
            "{err}"
        );
        assert!(err.contains(text(&drives[0])), "{err}");
    }
    // Another name for the same drive is as good.
    make_ext4(&drives[0]);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&drives[0], &link).unwrap();
    create(&config, &["--overwrite", text(&link), "--yes"]).succeeds();
    let run = create(&config, &["--yes"]);
    assert!(run.fails(2).contains("--overwrite"), "--yes alone makes no sense: {run:?}");
}

#[test]
fn half_an_array_is_refused_and_so_is_a_member_of_another() {
    let folder = folder();
    let mut drives = ["a", "b", "c"].map(|name| drive(folder.path(), name, 16)).to_vec();
    let config = configuration(folder.path(), &[("old", "raid1", &drives[..2])]);
    create(&config, &[]).succeeds();
    let old = array_uuid(&drives[0]);

    // One of its drives, and a blank one.
    let mixed = [drives[0].clone(), drives[2].clone()];
    let config = configuration(folder.path(), &[("new", "raid1", &mixed)]);
    let before = snapshot(&drives);
    let run = create(&config, &[]);
    let err = run.fails(2);
    assert!(err.contains("is blank, but") && err.contains("--overwrite DRIVE"), "{err}");
    // The blank one may be overwritten as often as one likes: the other is not named.
    let run = create(&config, &["--overwrite", text(&drives[2]), "--yes"]);
    let err = run.fails(2);
    assert!(err.contains(text(&drives[0])) && err.contains("nothing is created on it"), "{err}");
    assert!(before == snapshot(&drives));
    // Named, it is.
    create(&config, &["--overwrite", text(&drives[0]), "--yes"]).succeeds();
    assert_ne!(array_uuid(&drives[0]), old);
    assert_eq!(array_uuid(&drives[1]), old, "a drive that was not named is as it was");

    // A member of the old array, and one of the new.
    drives.remove(0);
    let config = configuration(folder.path(), &[("third", "raid1", &drives)]);
    let run = create(&config, &[]);
    assert!(run.fails(2).contains("and not of array"), "{run:?}");
}

/// The state directory remembers an array, so that drives put in by mistake do not become a new
/// one of its name. Naming all of them says that it is no mistake.
#[test]
fn an_array_that_existed_is_replaced_only_if_all_its_drives_are_named() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    create(&config, &[]).succeeds();
    let first = array_uuid(&drives[0]).unwrap();
    for drive in &drives {
        fs::write(drive, vec![0; 16 << 20]).unwrap();
    }
    let run = create(&config, &[]);
    let err = run.fails(2);
    assert!(err.contains(&first.to_string()) && err.contains("array-fast.json"), "{err}");
    assert!(err.contains("`raidfabric array create FILE --array fast`"), "{err}");
    let run = create(&config, &["--overwrite", text(&drives[0]), "--yes"]);
    assert!(run.fails(2).contains("existed here with UUID"), "{run:?}");

    let both = ["--overwrite", text(&drives[0]), "--overwrite", text(&drives[1]), "--yes"];
    create(&config, &both).succeeds();
    let second = array_uuid(&drives[0]).unwrap();
    assert_ne!(first, second);
    let record = fs::read_to_string(folder.path().join("state/array-fast.json")).unwrap();
    assert!(record.contains(&second.to_string()), "{record}");
    // And again over the array that is there now.
    create(&config, &both).succeeds();
    assert_ne!(array_uuid(&drives[0]).unwrap(), second);
    assert_eq!(array_uuid(&drives[0]), array_uuid(&drives[1]));
}

#[test]
fn a_configured_uuid_is_an_array_that_exists() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    let yaml = fs::read_to_string(&config).unwrap();
    let uuid = "6f2c5ba1-32b1-4b3a-9a5e-1f2c5ba132b1";
    fs::write(&config, yaml.replace("level: raid1", &format!("level: raid1\n    uuid: {uuid}")))
        .unwrap();
    let run = create(&config, &[]);
    assert!(run.fails(2).contains("none of the drives belongs to array"), "{run:?}");
    let run = create(&config, &["--overwrite", text(&drives[0]), "--yes"]);
    let err = run.fails(2);
    assert!(err.contains(uuid) && err.contains("take that key out of the file"), "{err}");
}

/// Whoever owns the drives keeps them: nothing is wiped under a running daemon.
#[test]
fn drives_that_are_served_are_refused() {
    let folder = folder();
    let drives = ["a", "b"].map(|name| drive(folder.path(), name, 16));
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    create(&config, &[]).succeeds();
    let before = snapshot(&drives);
    let owned: Vec<_> = drives.iter().map(|drive| open(drive, Intent::Own).unwrap()).collect();
    let all = ["--overwrite", text(&drives[0]), "--overwrite", text(&drives[1]), "--yes"];
    let run = create(&config, &all);
    let err = run.fails(2);
    assert!(err.contains("in use by process") && err.contains(text(&drives[0])), "{err}");
    assert!(err.contains(&std::process::id().to_string()), "{err}");
    // That it exists can be seen all the same.
    assert!(create(&config, &[]).succeeds().contains("exists"));
    drop(owned);
    assert!(before == snapshot(&drives));
    create(&config, &all).succeeds();
}

#[test]
fn what_cannot_become_an_array_is_refused_before_a_drive_is_wiped() {
    let folder = folder();
    let drives = [drive(folder.path(), "a", 16), drive(folder.path(), "b", 1)];
    make_ext4(&drives[0]);
    let config = configuration(folder.path(), &[("fast", "raid1", &drives)]);
    let before = snapshot(&drives);
    let run = create(&config, &["--overwrite", text(&drives[0]), "--yes"]);
    assert!(run.fails(2).contains(text(&drives[1])), "too small, and named: {run:?}");
    assert!(before == snapshot(&drives));
}

#[test]
fn assuming_that_drives_agree_says_what_is_risked() {
    let folder = folder();
    let drives = ["a", "b", "c"].map(|name| drive(folder.path(), name, 32));
    let config = configuration(folder.path(), &[("fast", "raid5", &drives)]);
    let run = create(&config, &["--assume-clean"]);
    assert!(run.succeeds().contains("ppl: after a crash its log is replayed"), "{run:?}");
    assert!(run.err.contains("a lost member's are computed wrong"), "{run:?}");
    let again = create(&config, &["--assume-clean"]);
    assert!(!again.succeeds().is_empty() && !again.err.contains("computed wrong"), "{again:?}");
}
