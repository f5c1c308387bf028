//! Every signature by its bytes, blank and not quite blank drives, and `blkid`.

use super::*;
use crate::assemble::test_medium::TestMedium;
use std::os::unix::fs::PermissionsExt;

const SIZE: u64 = 70 * MIB;

fn drive() -> TestMedium {
    TestMedium::drives(&[SIZE], true).remove(0)
}

#[test]
fn every_signature_is_named() {
    for magic in MAGICS {
        let places = magic.candidates(SIZE);
        assert!(!places.is_empty());
        // The first and the last place that it is looked for.
        for at in [places[0], places[places.len() - 1]] {
            let drive = drive();
            drive.put(at, magic.bytes);
            let expected = Contents::Foreign { what: magic.what.to_owned(), offset_bytes: at };
            assert_eq!(probe_medium(&drive).unwrap(), expected);
        }
    }
    for magic in DEEP_MAGICS {
        let drive = drive();
        drive.put(magic.offset_bytes, magic.bytes);
        let expected =
            Contents::Foreign { what: magic.what.to_owned(), offset_bytes: magic.offset_bytes };
        assert_eq!(probe_medium(&drive).unwrap(), expected);
    }
}

#[test]
fn a_drive_is_blank_if_both_ends_are_zero() {
    assert_eq!(probe_medium(&drive()).unwrap(), Contents::Blank);
    for at in [0, 4095, 4096, MIB - 1, SIZE - MIB, SIZE - 1] {
        let drive = drive();
        drive.put(at, &[1]);
        assert_eq!(probe_medium(&drive).unwrap(), Contents::NotBlank { offset_bytes: at });
    }
    for at in [MIB, SIZE - MIB - 1] {
        let drive = drive();
        drive.put(at, &[1]);
        assert_eq!(probe_medium(&drive).unwrap(), Contents::Blank);
    }
}

#[test]
fn small_drives_have_overlapping_ends() {
    for size in [0, 512, 4096, 8192, MIB, MIB + 512] {
        let drive = TestMedium::drives(&[size], true).remove(0);
        assert_eq!(probe_medium(&drive).unwrap(), Contents::Blank);
        if size > 0 {
            drive.put(size - 1, &[1]);
            let expected = Contents::NotBlank { offset_bytes: size - 1 };
            assert_eq!(probe_medium(&drive).unwrap(), expected);
        }
    }
}

#[test]
fn a_damaged_superblock_is_named_as_such() {
    let drive = drive();
    drive.put(4096, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
    drive.put(5000, &[1]);
    let Contents::Foreign { what, offset_bytes } = probe_medium(&drive).unwrap() else {
        panic!("it is there");
    };
    assert!(what.starts_with("the md superblock is damaged"), "{what}");
    assert_eq!(offset_bytes, 4096);
}

/// A program in the place of `blkid`.
fn blkid(script: &str, limit: Duration) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("blkid");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    // Another thread's fork may hold the file open for writing a moment longer.
    for _ in 0..100 {
        match Command::new(&program).arg("-V").stdout(Stdio::null()).spawn() {
            Ok(mut child) => {
                child.kill().ok();
                child.wait().ok();
                break;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    ask_blkid(&program, "/dev/null".as_ref(), limit)
}

#[test]
fn blkid_is_asked_and_need_not_answer() {
    let long = Duration::from_secs(20);
    let found = blkid("echo DEVNAME=$4; echo TYPE=minix; echo USAGE=filesystem", long);
    assert_eq!(found.as_deref(), Some("something of type minix"));
    let found = blkid("echo PTTYPE=sun", long);
    assert_eq!(found.as_deref(), Some("something of type sun"));
    assert_eq!(blkid("exit 2", long), None);
    assert_eq!(blkid("exit 8", long).as_deref(), Some("several signatures at once"));
    let begin = Instant::now();
    assert_eq!(blkid("exec sleep 60", Duration::from_millis(50)), None);
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(ask_blkid("/no/such/program".as_ref(), "/dev/null".as_ref(), long), None);
}
