//! Arrays over arrays: RAID 50, 60 and 100.

use std::fs;
use std::path::Path;

use raidfabric_tests::data::pattern;
use raidfabric_tests::host::volume;
use raidfabric_tests::setup::{Setup, quoted};
use tempfile::TempDir;

use crate::files::{check, contents, fill, identity, unchanged};
use crate::model::random_commands_on;

const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 20 << 20;

/// A directory with blank files for arrays of so many members: `a0`, `a1`, …, `b0`, …
fn blank(leaves: &str, members: usize) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for leaf in leaves.chars() {
        for member in 0..members {
            let file = fs::File::create(directory.path().join(format!("{leaf}{member}")));
            file.unwrap().set_len(FILE_BYTES).unwrap();
        }
    }
    directory
}

/// An array of this level over the files of each leaf.
fn leaf(setup: Setup, place: &Path, name: &str, of: &str, level: &str, members: usize) -> Setup {
    let path = |member| place.join(format!("{of}{member}"));
    let there: Vec<_> =
        (0..members).map(path).filter(|path| path.exists()).map(|path| quoted(&path)).collect();
    setup.array_with(name, level, &there.join(", "), "degraded_wait: 0s")
}

/// One array over two, as namespace 1 with blocks of 4096 bytes.
fn over_two(place: &Path, outer: &str, level: &str, members: usize, order: [&str; 2]) -> Setup {
    let state = format!("state_dir: {}\n", quoted(&place.join("state")));
    let setup = leaf(Setup::new().setting(&state), place, "a", "a", level, members);
    let setup = leaf(setup, place, "b", "b", level, members);
    let leaves = order.map(|name| format!("\"array:{name}\"")).join(", ");
    setup.array("outer", outer, &leaves).namespace(1, "outer", 4096)
}

/// Created, served, found again in any order, and with a member of each leaf gone.
async fn survives(outer: &str, level: &str, members: usize) {
    let directory = blank("ab", members);
    let place = directory.path();
    let target = over_two(place, outer, level, members, ["a", "b"]).start();
    let (controller, first) = volume(target.address, 8).await;
    let before = identity(&controller).await;
    let mut shadow = fill(&first, 1).await;
    first.write_zeroes(100, 300, true).await.unwrap();
    shadow[100 * BLOCK..400 * BLOCK].fill(0);
    first.write_durably(15, pattern(9, 2 * BLOCK)).await.unwrap();
    shadow[15 * BLOCK..17 * BLOCK].copy_from_slice(&pattern(9, 2 * BLOCK));
    check(&first, &shadow, "before the restart").await;
    drop((controller, first));
    target.settle_and_stop().await;
    for (round, gone) in [None, None, Some("a0"), Some("b1")].into_iter().enumerate() {
        if let Some(gone) = gone {
            fs::remove_file(place.join(gone)).unwrap();
        }
        let order = if round % 2 == 0 { ["b", "a"] } else { ["a", "b"] };
        let what = format!("{outer}, round {round} as {order:?} without {gone:?}");
        let target = over_two(place, outer, level, members, order).start();
        let (controller, again) = volume(target.address, 8).await;
        assert_eq!(identity(&controller).await, before, "{what}");
        check(&again, &shadow, &what).await;
        let data = pattern(round as u64, 40 * BLOCK);
        again.write(9, data.clone()).await.unwrap();
        shadow[9 * BLOCK..49 * BLOCK].copy_from_slice(&data);
        check(&again, &shadow, &what).await;
        drop((controller, again));
        target.settle_and_stop().await;
    }
}

#[tokio::test]
async fn raid50_survives_restarts_and_lost_members() {
    survives("raid50", "raid5", 4).await;
}

#[tokio::test]
async fn raid60_survives_restarts_and_lost_members() {
    survives("raid60", "raid6", 5).await;
}

#[tokio::test]
async fn raid100_survives_restarts_and_lost_members() {
    survives("raid100", "raid10", 4).await;
}

#[tokio::test]
async fn random_commands_on_arrays_over_arrays() {
    for (level, members, chunk) in [("raid10", 4, "16KiB"), ("raid1", 2, "64KiB")] {
        let setup = Setup::new().chunk(chunk).cores(2);
        let setup = setup.memory_array("a", level, members, 4).memory_array("b", level, members, 4);
        let setup = setup.array("outer", "raid0", "\"array:a\", \"array:b\"");
        random_commands_on(&setup.namespace(1, "outer", 4096)).await;
    }
}

/// A start that is refused names these, and changes nothing on the drives.
fn refused(setup: &Setup, place: &Path, parts: &[&str], what: &str) {
    let before = contents(place);
    let error = match setup.try_start() {
        Ok(_) => panic!("{what}: it started"),
        Err(error) => error.to_string(),
    };
    for part in parts {
        assert!(error.contains(part), "{what}: {part}: {error}");
    }
    unchanged(place, &before, what);
}

/// Two arrays over two each, of which a part of one is put in the place of one of the other.
#[tokio::test]
async fn parts_of_different_arrays_are_not_put_together() {
    let directory = blank("abcd", 2);
    let place = directory.path();
    let setup = |pairs: [[&str; 2]; 2]| {
        let state = format!("state_dir: {}\n", quoted(&place.join("state")));
        let mut setup = Setup::new().setting(&state);
        for name in ["a", "b", "c", "d"] {
            setup = leaf(setup, place, name, name, "raid10", 2);
        }
        for (name, pair) in ["one", "two"].into_iter().zip(pairs) {
            let leaves = pair.map(|name| format!("\"array:{name}\"")).join(", ");
            setup = setup.array(name, "raid100", &leaves);
        }
        setup.namespace(1, "one", 4096).namespace(2, "two", 4096)
    };
    setup([["a", "b"], ["c", "d"]]).start().stop();
    let exchanged = setup([["a", "d"], ["c", "b"]]);
    refused(&exchanged, place, &["array one: array d is member 1 of 2"], "exchanged");
    fs::remove_dir_all(place.join("state")).unwrap();
    // What is read of the leaves says it, too, without any memory of them.
    refused(&exchanged, place, &["array one: array d is member"], "exchanged and forgotten");
    // As a whole the other way around: that is another array than was known by the name.
    setup([["a", "b"], ["c", "d"]]).start().stop();
    let turned = setup([["d", "c"], ["b", "a"]]);
    refused(&turned, place, &["array one: ", "hosts would find other data"], "as a whole");
    setup([["b", "a"], ["d", "c"]]).start().stop();
}

/// An array over arrays of which the drives of one are blank is neither put together nor created.
#[tokio::test]
async fn a_part_that_is_not_there_is_not_made_anew() {
    let directory = blank("ab", 3);
    let place = directory.path();
    let setup = over_two(place, "raid50", "raid5", 3, ["a", "b"]);
    setup.start().stop();
    for member in 0..3 {
        let path = place.join(format!("b{member}"));
        fs::remove_file(&path).unwrap();
        fs::File::create(&path).unwrap().set_len(FILE_BYTES).unwrap();
    }
    refused(&setup, place, &["array b: it existed here"], "remembered");
    fs::remove_dir_all(place.join("state")).unwrap();
    let parts = ["array outer: array a below holds", "the drives of b are blank"];
    refused(&setup, place, &parts, "forgotten");
    // What was cut short between its two arrays goes on.
    for member in 0..3 {
        let path = place.join(format!("a{member}"));
        fs::remove_file(&path).unwrap();
        fs::File::create(&path).unwrap().set_len(FILE_BYTES).unwrap();
    }
    let state = format!("state_dir: {}\n", quoted(&place.join("state")));
    let alone = leaf(Setup::new().setting(&state), place, "a", "a", "raid5", 3);
    alone.namespace(1, "a", 4096).start().stop();
    setup.start().stop();
    setup.start().stop();
}
