//! Members that are lost, come back and are replaced, under hosts' commands.
//!
//! What happens to drives is done to the array in the server (a drive of a file cannot be pulled);
//! what an operator does goes by the control socket, with the program.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raidfabric_initiator::{Controller, Volume};
use raidfabric_protocol::nvme::log::SmartLog;
use raidfabric_protocol::nvme::status::{Generic, Media, Status};
use raidfabric_raid::array::{MemberFault, MemberState, Shared};
use raidfabric_raid::drive::DriveError;
use raidfabric_tests::data::{Random, difference, pattern};
use raidfabric_tests::host::{NONE, RawHost, inline_sqe, soon, volume};
use raidfabric_tests::setup::{Setup, Target};
use tempfile::TempDir;
use zerocopy::FromBytes;

use crate::files::{check, fill};
use crate::model::{Model, actor};

const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 20 << 20;
/// What was written before that is on all members for sure, and no return has to go through it.
const UNTIL_NOTHING_IS_RECENT: Duration = Duration::from_secs(15);
/// How long a rebuild of such files may take on a busy machine.
const REBUILD: Duration = Duration::from_secs(60);

/// A directory with blank files d0, d1, ...
fn files(count: usize) -> (TempDir, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..count).map(|number| format!("d{number}")).collect();
    for name in &names {
        fs::File::create(directory.path().join(name)).unwrap().set_len(FILE_BYTES).unwrap();
    }
    (directory, names)
}

fn setup(level: &str, directory: &Path, names: &[String], more: &str) -> Setup {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    Setup::files_with(level, directory, &names, more)
}

fn shared(target: &Target) -> Arc<Shared> {
    Arc::clone(target.server().arrays().next().unwrap().1)
}

/// An order of the operator, which succeeds; what the program says.
async fn order(directory: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raidfabric-under-test"));
    command.args(words).arg("--socket").arg(directory.join("state/control.sock"));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {text}{errors}");
    text
}

/// What `status` says, whatever its exit code.
async fn status(directory: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raidfabric-under-test"));
    command.arg("status").arg("--socket").arg(directory.join("state/control.sock"));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn fail(directory: &Path, slot: usize) {
    order(directory, &["array", "fail", "a", &slot.to_string()]).await;
}

/// Has another drive in the place of a member.
async fn replace(directory: &Path, slot: usize, by: &str) -> String {
    fail(directory, slot).await;
    order(directory, &["array", "remove", "a", &slot.to_string()]).await;
    let path = directory.join(by);
    order(directory, &["array", "add", "a", path.to_str().unwrap()]).await
}

fn is_rebuilding(shared: &Shared) -> bool {
    shared.member_states().contains(&MemberState::Rebuilding)
}

fn is_whole(shared: &Shared) -> bool {
    shared.member_states().iter().all(|state| *state == MemberState::InSync)
}

async fn becomes(what: &str, limit: Duration, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Hosts that do random commands and check each read, in rounds, for as long as `goes_on` says; how
/// many rounds that were.
async fn load(
    volumes: &[Volume],
    model: &Rc<RefCell<Model>>,
    what: &str,
    goes_on: impl Fn(u64) -> bool,
) -> u64 {
    let start = Instant::now();
    let mut rounds = 0;
    while goes_on(rounds) {
        assert!(start.elapsed() < REBUILD, "{what}: no end of it");
        let local = tokio::task::LocalSet::new();
        for (number, volume) in volumes.iter().enumerate() {
            for depth in 0..4 {
                let seed = rounds * 100 + (number * 10 + depth) as u64;
                local.spawn_local(actor(volume.clone(), Rc::clone(model), seed, 12));
            }
        }
        soon(what, local).await;
        rounds += 1;
    }
    rounds
}

async fn two_hosts(target: &Target) -> (Vec<Controller>, Vec<Volume>) {
    let (first, one) = volume(target.address, 16).await;
    let (second, two) = volume(target.address, 16).await;
    (vec![first, second], vec![one, two])
}

/// Members are replaced while hosts read and write. What the new ones hold is right: the array is
/// read with them alone afterwards, and after a restart.
async fn rebuild_under_load(level: &str, count: usize, lost: &[usize], then: &[usize]) {
    let (directory, names) = files(count + lost.len());
    let place = directory.path();
    let (members, spares) = names.split_at(count);
    let setup_of =
        |names: &[String]| setup(level, place, names, "resync: { min: 4MiB, max: 8MiB }");
    let target = setup_of(members).start();
    let array = shared(&target);
    order(place, &["wait", "--for", "synced", "--timeout", "60s"]).await;
    let (controllers, volumes) = two_hosts(&target).await;
    let model = Rc::new(RefCell::new(Model::of(level, fill(&volumes[0], 3).await)));
    for (slot, spare) in lost.iter().zip(spares) {
        fail(place, *slot).await;
        load(&volumes, &model, level, |rounds| rounds < 1).await;
        replace_failed(place, *slot, spare).await;
    }
    assert!(is_rebuilding(&array), "{level}: {:?}", array.member_states());
    let rounds = load(&volumes, &model, level, |_| is_rebuilding(&array)).await;
    assert!(rounds > 1, "{level}: {rounds} rounds beside the rebuild");
    assert!(is_whole(&array), "{level}: {:?}", array.member_states());
    let shadow = std::mem::take(&mut model.borrow_mut().shadow);
    check(&volumes[0], &shadow, level).await;
    for slot in then {
        fail(place, *slot).await;
    }
    check(&volumes[1], &shadow, &format!("{level} with the new members")).await;
    drop((controllers, volumes));
    target.settle_and_stop().await;
    let target = setup_of(&names).start();
    let (controller, volume) = volume(target.address, 16).await;
    check(&volume, &shadow, &format!("{level} after a restart")).await;
    drop((controller, volume));
    target.settle_and_stop().await;
}

async fn replace_failed(directory: &Path, slot: usize, by: &str) {
    order(directory, &["array", "remove", "a", &slot.to_string()]).await;
    let path = directory.join(by);
    let slot = slot.to_string();
    order(directory, &["array", "add", "a", path.to_str().unwrap(), "--slot", &slot]).await;
}

#[tokio::test]
async fn raid1_rebuild_under_load() {
    rebuild_under_load("raid1", 3, &[0], &[1, 2]).await;
}

#[tokio::test]
async fn raid10_rebuild_under_load() {
    rebuild_under_load("raid10", 4, &[0, 3], &[1, 2]).await;
}

#[tokio::test]
async fn raid5_rebuild_under_load() {
    rebuild_under_load("raid5", 4, &[2], &[1]).await;
}

#[tokio::test]
async fn raid6_rebuild_under_load() {
    rebuild_under_load("raid6", 4, &[0, 2], &[1, 3]).await;
}

/// Hosts connect, write, read and go, some without a word and in the middle of writes, while members
/// are rebuilt: nobody waits, nothing is left behind, and what was written is there.
async fn hosts_come_and_go(level: &str, count: usize) {
    let (directory, names) = files(count + 1);
    let place = directory.path();
    let (members, spare) = names.split_at(count);
    let target = setup(level, place, members, "resync: { min: 4MiB, max: 5MiB }").start();
    let array = shared(&target);
    order(place, &["wait", "--for", "synced", "--timeout", "60s"]).await;
    let shadow = {
        let (_controller, volume) = volume(target.address, 16).await;
        fill(&volume, 8).await
    };
    target.settled().await;
    replace(place, 1, &spare[0]).await;
    let host = async |number: u64| {
        let mut turns = 0u64;
        let lba = 512 * number;
        while is_rebuilding(&array) {
            turns += 1;
            if turns.is_multiple_of(4) {
                let host = RawHost::connect(target.address, NONE).await;
                let mut queue = host.io(1, 64).await;
                for cid in 0..16 {
                    let sqe = inline_sqe(cid, lba + 64 + u64::from(cid), 1);
                    queue.send_command(&sqe, &pattern(turns, BLOCK)).await.unwrap();
                }
                continue;
            }
            let (controller, volume) = volume(target.address, 8).await;
            let data = pattern(number << 32 | turns, 16 * BLOCK);
            soon("a write", volume.write(lba, data.clone())).await.unwrap();
            let found = soon("a read", volume.read(lba, 16)).await.unwrap();
            assert!(found == data, "{level}: host {number}, turn {turns}");
            if turns % 4 == 1 {
                controller.shutdown().await.unwrap();
            }
        }
        turns
    };
    let turns = soon_rebuilt(async { tokio::join!(host(0), host(1), host(2)) }).await;
    assert!(turns.0.min(turns.1).min(turns.2) > 3, "{level}: {turns:?} turns");
    target.settled().await;
    assert!(is_whole(&array), "{level}: {:?}", array.member_states());
    // With what was rebuilt instead of what it was rebuilt from.
    fail(place, 0).await;
    let (controller, volume) = volume(target.address, 16).await;
    for part in (0..shadow.len() / BLOCK).step_by(256) {
        let blocks = (shadow.len() / BLOCK - part).min(256);
        let found = volume.read(part as u64, blocks as u32).await.unwrap();
        for (block, found) in (part..).zip(found.chunks(BLOCK)) {
            let expected = &shadow[block * BLOCK..][..BLOCK];
            let is_hosts =
                block < 3 * 512 && (block % 512 < 16 || (64..80).contains(&(block % 512)));
            assert!(is_hosts || found == expected, "{level}: block {block}");
        }
    }
    drop((controller, volume));
    target.settle_and_stop().await;
}

async fn soon_rebuilt<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(REBUILD, future).await.expect("the rebuild ends")
}

#[tokio::test]
async fn hosts_come_and_go_while_raid1_is_rebuilt() {
    hosts_come_and_go("raid1", 2).await;
}

#[tokio::test]
async fn hosts_come_and_go_while_raid5_is_rebuilt() {
    hosts_come_and_go("raid5", 3).await;
}

#[tokio::test]
async fn hosts_come_and_go_while_raid6_is_rebuilt() {
    hosts_come_and_go("raid6", 4).await;
}

/// What a writer has sent and had acknowledged, by number.
type Written = Rc<RefCell<Vec<(u64, u64)>>>;

fn numbered(writer: usize, number: u64) -> bytes::Bytes {
    pattern((writer as u64) << 32 | number, BLOCK)
}

/// Writes its block again and again, until that is refused; why.
async fn writer(volume: Volume, number: usize, written: Written) -> Option<Status> {
    loop {
        let next = written.borrow()[number].0 + 1;
        written.borrow_mut()[number].0 = next;
        match volume.write(number as u64 * 7, numbered(number, next)).await {
            Ok(()) => written.borrow_mut()[number].1 = next,
            Err(error) => return error.status(),
        }
    }
}

/// Another member is lost while one is being rebuilt, which the level does not stand: the array
/// fails, and says so. Commands under way end with a clear status, so do later ones, hosts can go on
/// connecting, and reads give what is right or say that they cannot. When it is started anew, with
/// the drive being all right after all, the rebuild goes on and everything acknowledged is there.
async fn a_loss_too_many(level: &str, count: usize, lost: &[usize], then: usize) {
    const WRITERS: usize = 12;
    let (directory, names) = files(count + lost.len());
    let place = directory.path();
    let (members, spares) = names.split_at(count);
    let target = setup(level, place, members, "resync: { min: 1MiB, max: 1MiB }").start();
    let array = shared(&target);
    order(place, &["wait", "--for", "synced", "--timeout", "60s"]).await;
    let (controller, one) = volume(target.address, 32).await;
    let shadow = fill(&one, 5).await;
    for (slot, spare) in lost.iter().zip(spares) {
        replace(place, *slot, spare).await;
    }
    let written: Written = Rc::new(RefCell::new(vec![(0, 0); WRITERS]));
    let local = tokio::task::LocalSet::new();
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| local.spawn_local(writer(one.clone(), number, Rc::clone(&written))))
        .collect();
    local.run_until(tokio::time::sleep(Duration::from_millis(300))).await;
    assert!(is_rebuilding(&array), "{level}: {:?}", array.member_states());
    assert!(!array.fail_member(then, MemberFault::Write(DriveError::Io { errno: 5 })));
    for writer in writers {
        let end = soon("the end of a writer", local.run_until(writer)).await.unwrap();
        assert_eq!(end.map(|status| status.code), Some(Media::WriteFault.into()), "{level}");
    }
    assert!(written.borrow().iter().all(|(_, acknowledged)| *acknowledged > 0), "{level}");

    let refused = soon("a write", one.write(3000, pattern(1, BLOCK))).await.unwrap_err();
    assert_eq!(refused.status(), Some(Media::WriteFault.into()), "{level}");
    soon("a flush", one.flush()).await.unwrap_err();
    reads_are_right_or_refused(&one, &shadow, WRITERS, level).await;
    let smart = SmartLog::read_from_bytes(&controller.smart_log().await.unwrap()).unwrap();
    assert!(smart.critical_warning.reliability(), "{level}");
    let text = status(place).await;
    assert!(text.contains("array a: failed"), "{level}: {text}");
    let (again, two) = volume(target.address, 8).await;
    assert_eq!(two.namespace().blocks, one.namespace().blocks);
    drop((controller, again, one, two));
    target.settled().await;
    let unclean = target.into_server().stop();
    assert_eq!(unclean.len(), 1, "{level}: {unclean:?}");

    let target = setup(level, place, &names, "resync: { min: 64MiB }").start();
    let array = shared(&target);
    let (controller, one) = volume(target.address, 32).await;
    let written = written.take();
    for turn in 0..2 {
        for (number, (sent, acknowledged)) in written.iter().enumerate() {
            let found = soon("a read", one.read(number as u64 * 7, 1)).await.unwrap();
            let is_right =
                (*acknowledged..=*sent).any(|version| found == numbered(number, version));
            assert!(is_right, "{level}: writer {number}, {acknowledged} to {sent}, turn {turn}");
        }
        check_behind_writers(&one, &shadow, WRITERS, level).await;
        becomes(level, REBUILD, || is_whole(&array)).await;
    }
    one.write(3000, pattern(1, BLOCK)).await.unwrap();
    drop((controller, one));
    target.settle_and_stop().await;
}

fn is_writers(block: usize, writers: usize) -> bool {
    block.is_multiple_of(7) && block / 7 < writers
}

async fn reads_are_right_or_refused(volume: &Volume, shadow: &[u8], writers: usize, what: &str) {
    let mut random = Random::new(4);
    for _ in 0..300 {
        let block = random.below((shadow.len() / BLOCK) as u64) as usize;
        match soon("a read", volume.read(block as u64, 1)).await {
            Ok(found) => {
                let is_right = found == shadow[block * BLOCK..][..BLOCK];
                assert!(is_right || is_writers(block, writers), "{what}: block {block}");
            }
            Err(error) => {
                assert_eq!(error.status(), Some(Media::UnrecoveredReadError.into()), "{what}");
            }
        }
    }
}

async fn check_behind_writers(volume: &Volume, shadow: &[u8], writers: usize, what: &str) {
    for (part, expected) in shadow.chunks(256 * BLOCK).enumerate() {
        let first = part * 256;
        let found = volume.read(first as u64, (expected.len() / BLOCK) as u32).await.unwrap();
        let blocks = (first..).zip(expected.chunks(BLOCK).zip(found.chunks(BLOCK)));
        for (block, (expected, found)) in blocks.filter(|(block, _)| !is_writers(*block, writers)) {
            if let Some(difference) = difference(expected, found) {
                panic!("{what}: block {block}: {difference}");
            }
        }
    }
}

#[tokio::test]
async fn raid1_loses_its_last_copy_in_a_rebuild() {
    a_loss_too_many("raid1", 2, &[1], 0).await;
}

#[tokio::test]
async fn raid10_loses_a_pair_in_a_rebuild() {
    a_loss_too_many("raid10", 4, &[1], 0).await;
}

#[tokio::test]
async fn raid5_loses_a_second_member_in_a_rebuild() {
    a_loss_too_many("raid5", 3, &[0], 1).await;
}

#[tokio::test]
async fn raid6_loses_a_third_member_in_a_rebuild() {
    a_loss_too_many("raid6", 5, &[0, 3], 1).await;
}

/// A member that was out for a while and is known gets only what it missed, keeps its identity, and
/// is as good as the others then.
async fn a_return(level: &str, count: usize, consistency: &str) {
    let (directory, names) = files(count);
    let place = directory.path();
    let what = format!("{level}, {consistency}");
    let target = setup(level, place, &names, &format!("consistency: {consistency}")).start();
    let array = shared(&target);
    order(place, &["wait", "--for", "synced", "--timeout", "60s"]).await;
    let (controllers, volumes) = two_hosts(&target).await;
    let mut shadow = fill(&volumes[0], 7).await;
    tokio::time::sleep(UNTIL_NOTHING_IS_RECENT).await;
    let identity = device_uuid(&place.join(&names[1]));
    fail(place, 1).await;
    for (turn, lba) in [0u64, 1, 900, 901, 2000].into_iter().enumerate() {
        let data = pattern(turn as u64, BLOCK);
        volumes[1].write(lba, data.clone()).await.unwrap();
        shadow[lba as usize * BLOCK..][..BLOCK].copy_from_slice(&data);
    }
    order(place, &["array", "remove", "a", "1"]).await;
    let path = place.join(&names[1]);
    let said = order(place, &["array", "add", "a", path.to_str().unwrap()]).await;
    let missed = said.split_once("it gets the ").and_then(|(_, rest)| rest.split_once(" MiB"));
    let missed: u64 = missed.and_then(|(mib, _)| mib.parse().ok()).unwrap_or_else(|| {
        panic!("{what}: {said}");
    });
    assert!(missed <= 5, "{what}: {missed} MiB for 20 KiB");
    becomes(&what, REBUILD, || is_whole(&array)).await;
    assert_eq!(device_uuid(&path), identity, "{what}");
    // It alone has its data now.
    let others: &[usize] = match (level, count) {
        ("raid6", _) => &[0, 2],
        _ => &[0],
    };
    for slot in others {
        fail(place, *slot).await;
    }
    check(&volumes[0], &shadow, &what).await;
    drop((controllers, volumes));
    target.settle_and_stop().await;
}

/// `device_uuid` of a member's superblock.
fn device_uuid(path: &Path) -> [u8; 16] {
    let mut field = [0; 16];
    fs::File::open(path).unwrap().read_exact_at(&mut field, 4096 + 168).unwrap();
    field
}

#[tokio::test]
async fn a_known_member_gets_only_what_it_missed() {
    tokio::join!(
        a_return("raid1", 2, "bitmap"),
        a_return("raid1", 2, "resync"),
        a_return("raid10", 4, "bitmap"),
        a_return("raid5", 3, "bitmap"),
        a_return("raid5", 3, "ppl"),
        a_return("raid6", 4, "ppl"),
    );
}

/// Both drives of a mirror are gone: with `hold`, commands wait for them, and go on when they are
/// back as if nothing had been.
#[tokio::test]
async fn commands_wait_for_drives_that_come_back() {
    let (directory, names) = files(2);
    let place = directory.path();
    let target = setup("raid1", place, &names, "hold: 60s").start();
    let (controller, one) = volume(target.address, 16).await;
    one.write(5, pattern(5, BLOCK)).await.unwrap();
    let away = both_are_gone(&target, place, &names, &one).await;
    let held = [one.clone(), one.clone()].map(|volume| {
        tokio::spawn(async move {
            volume.write(6, pattern(6, BLOCK)).await?;
            volume.read(6, 1).await
        })
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(held.iter().all(|held| !held.is_finished()), "they wait");
    come_back(&away);
    for held in held {
        let found = soon("what was held", held).await.unwrap().unwrap();
        assert!(found == pattern(6, BLOCK));
    }
    assert!(soon("a read", one.read(5, 1)).await.unwrap() == pattern(5, BLOCK));
    let array = shared(&target);
    becomes("both copies", REBUILD, || is_whole(&array)).await;
    drop((controller, one));
    target.settle_and_stop().await;
}

/// When `hold` is over, hosts are told to try again themselves.
#[tokio::test]
async fn a_hold_ends_with_not_ready() {
    let (directory, names) = files(2);
    let place = directory.path();
    let target = setup("raid1", place, &names, "hold: 2s").start();
    let (controller, one) = volume(target.address, 16).await;
    one.write(5, pattern(5, BLOCK)).await.unwrap();
    let start = Instant::now();
    let away = both_are_gone(&target, place, &names, &one).await;
    let refused = soon("a write", one.write(6, pattern(6, BLOCK))).await.unwrap_err();
    let status = refused.status().unwrap();
    assert_eq!((status.code, status.dnr), (Generic::NamespaceNotReady.into(), false));
    assert!(start.elapsed() > Duration::from_millis(1900), "after {:?}", start.elapsed());
    let start = Instant::now();
    let refused = one.write(6, pattern(6, BLOCK)).await.unwrap_err();
    assert_eq!(refused.status().map(|status| status.code), Some(status.code));
    assert!(start.elapsed() < Duration::from_secs(1), "not held again");
    come_back(&away);
    let array = shared(&target);
    becomes("the mirror", REBUILD, || array.failure().is_none()).await;
    soon("a write", one.write(6, pattern(6, BLOCK))).await.unwrap();
    drop((controller, one));
    target.settle_and_stop().await;
}

/// As if the drives of a mirror had been pulled one after the other; where they are now.
async fn both_are_gone(
    target: &Target,
    place: &Path,
    names: &[String],
    volume: &Volume,
) -> Vec<(PathBuf, PathBuf)> {
    let array = shared(target);
    let mut away = Vec::new();
    for slot in [1, 0] {
        let path = place.join(&names[slot]);
        let elsewhere = path.with_extension("away");
        fs::rename(&path, &elsewhere).unwrap();
        away.push((elsewhere, path));
        array.fail_member(slot, MemberFault::Write(DriveError::Gone));
        if slot == 1 {
            soon("a write to one copy", volume.write(7, pattern(7, BLOCK))).await.unwrap();
        }
    }
    assert!(array.failure().is_some());
    away
}

fn come_back(away: &[(PathBuf, PathBuf)]) {
    // A drive that is put back is another device than the one that is still open.
    for (elsewhere, path) in away {
        fs::copy(elsewhere, path.with_extension("back")).unwrap();
    }
    for (_, path) in away {
        fs::rename(path.with_extension("back"), path).unwrap();
    }
}
