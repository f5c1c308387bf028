//! Drives that fail while they are served.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use raidfabric_initiator::Controller;
use raidfabric_protocol::nvme::feature::FeatureId;
use raidfabric_protocol::nvme::log::SmartLog;
use raidfabric_protocol::nvme::status::Media;
use raidfabric_tests::data::pattern;
use raidfabric_tests::host::{options, soon, volume};
use raidfabric_tests::setup::{NQN, Setup};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use zerocopy::FromBytes;

use crate::ended::Program;
use crate::files::blank;

const BLOCK: usize = 4096;

/// A file that has become short cannot be read: a mirror reads the other copy, a stripe says that
/// it cannot.
#[tokio::test]
async fn reads_that_fail() {
    for (level, count) in [("raid0", 2), ("raid1", 2), ("raid10", 4)] {
        let (directory, names) = blank(count);
        let target = Setup::files(level, directory.path(), &names).start();
        let (controller, volume) = volume(target.address, 8).await;
        let content = pattern(1, 1 << 20);
        for part in 0..8 {
            volume.write(part * 256, content.clone()).await.unwrap();
        }
        volume.flush().await.unwrap();
        let victim = fs::File::options().write(true).open(directory.path().join(names[0]));
        victim.unwrap().set_len(4 << 20).unwrap();
        let mut failed = 0;
        // Several times, so that each copy has its turn.
        for part in (0..8).cycle().take(32) {
            match soon("a read", volume.read(part * 256, 256)).await {
                Ok(found) => assert!(found == content, "{level}: part {part}"),
                Err(error) => {
                    assert_eq!(error.status(), Some(Media::UnrecoveredReadError.into()));
                    failed += 1;
                }
            }
        }
        assert_eq!(failed > 0, level == "raid0", "{level}: {failed} reads failed");
        controller.keep_alive().await.unwrap();
        drop((controller, volume));
        target.settled().await;
        let _ = target.into_server().stop();
    }
}

/// Writes that a drive refuses: the command has its status, the array takes no more writes, hosts
/// are told, and what was written can still be read.
#[tokio::test]
async fn writes_that_fail() {
    let (directory, names) = blank(2);
    let place = directory.path();
    let setup = Setup::files_with("raid1", place, &names, "consistency: resync");
    let mut program = Program::start_unlimited(&setup, place);
    let (controller, volume) = volume(program.address, 8).await;
    let content = pattern(4, 64 * BLOCK);
    volume.write(100, content.clone()).await.unwrap();
    volume.flush().await.unwrap();
    let smart = SmartLog::read_from_bytes(&controller.smart_log().await.unwrap()).unwrap();
    assert_eq!(smart.critical_warning.raw(), 0);
    controller.set_feature(FeatureId::AsyncEventConfiguration, 0xFF).await.unwrap();
    let watcher = Controller::connect(program.address, NQN, &options()).await.unwrap();
    watcher.set_feature(FeatureId::AsyncEventConfiguration, 0xFF).await.unwrap();
    let event = tokio::spawn(async move {
        let event = watcher.async_event().await.unwrap();
        (watcher, event)
    });
    // From now on every write beyond the first MiB of a file fails with EFBIG.
    let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    prlimit(Some(Pid::from_child(program.child())), Resource::Fsize, limit).unwrap();
    let refused = soon("a write", volume.write(200, content.clone())).await.unwrap_err();
    assert_eq!(refused.status(), Some(Media::WriteFault.into()));
    let (watcher, event) = soon("the event", event).await.unwrap();
    assert_eq!((event.kind(), event.information(), event.log()), (1, 0, 2), "reliability");
    let smart = SmartLog::read_from_bytes(&watcher.smart_log().await.unwrap()).unwrap();
    assert!(smart.critical_warning.reliability());
    soon("a write", volume.write(300, content.clone())).await.unwrap_err();
    for _ in 0..4 {
        assert!(volume.read(100, 64).await.unwrap() == content);
    }
    drop((controller, watcher, volume));
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.wait().code(), Some(1), "not stopped cleanly");
    let target = setup.start();
    assert!(!target.server().arrays().all(|(_, array)| array.is_in_sync()), "not clean");
    let (controller, volume) = raidfabric_tests::host::volume(target.address, 8).await;
    assert!(volume.read(100, 64).await.unwrap() == content);
    volume.write(200, content.clone()).await.unwrap();
    drop((controller, volume));
    target.settle_and_stop().await;
}

fn allocated(directory: &Path, names: &[&str]) -> u64 {
    names.iter().map(|name| fs::metadata(directory.join(name)).unwrap().blocks() * 512).sum()
}

/// What is deallocated is given back to the file system, and what is zeroed without it is not.
#[tokio::test]
async fn deallocation_reaches_the_files() {
    for (level, count) in [("raid0", 2), ("raid1", 2), ("raid10", 4)] {
        let (directory, names) = blank(count);
        let place = directory.path();
        let target = Setup::files(level, place, &names).start();
        let (controller, volume) = volume(target.address, 8).await;
        let parts = volume.namespace().size_bytes() >> 20;
        for part in 0..parts {
            volume.write(part * 256, pattern(part, 1 << 20)).await.unwrap();
        }
        volume.flush().await.unwrap();
        let full = allocated(place, &names);
        assert!(full >= parts << 20, "{level}: {full} bytes");
        for part in 0..parts {
            match part % 2 {
                0 => volume.deallocate(&[(part * 256, 256)]).await.unwrap(),
                _ => volume.write_zeroes(part * 256, 256, true).await.unwrap(),
            }
        }
        volume.flush().await.unwrap();
        let start = Instant::now();
        while allocated(place, &names) > full / 4 {
            let left = allocated(place, &names);
            assert!(start.elapsed() < Duration::from_secs(5), "{level}: {left} of {full} bytes");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for part in 0..parts {
            let found = volume.read(part * 256, 256).await.unwrap();
            assert!(found.iter().all(|byte| *byte == 0), "{level}: part {part}");
        }
        drop((controller, volume));
        target.settle_and_stop().await;
    }
}
