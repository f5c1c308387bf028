//! Other limits than the usual ones: what is advertised holds.

use bytes::BytesMut;
use raidfabric_initiator::queue::Data;
use raidfabric_initiator::{Controller, Options};
use raidfabric_protocol::fabrics::InvalidParameter;
use raidfabric_protocol::nvme::io::IoCommand;
use raidfabric_protocol::nvme::status::Generic;
use raidfabric_tests::data::{Random, difference, pattern};
use raidfabric_tests::host::{BOTH, NONE, RawHost, open, options, range, volume};
use raidfabric_tests::setup::{NQN, Setup};

/// 4 MiB in one command, and 64 KiB in a capsule.
#[tokio::test]
async fn large_transfers_and_capsules() {
    let target =
        Setup::memory("raid10", 4, 8).setting("max_transfer: 4MiB\nin_capsule: 64KiB").start();
    for digests in [NONE, BOTH] {
        let options = Options { digests, ..options() };
        let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
        assert_eq!(controller.identity().mdts, 10);
        assert_eq!(controller.identity().ioccsz.get(), (64 + 64 * 1024) / 16);
        let volume = controller.volume(1, 8).await.unwrap();
        for blocks in [1usize, 15, 16, 17, 256, 257, 1000, 1024] {
            let data = pattern(blocks as u64, blocks * 4096);
            volume.write(3, data.clone()).await.unwrap();
            let found = volume.read(3, blocks as u32).await.unwrap();
            if let Some(difference) = difference(&data, &found) {
                panic!("{blocks} blocks: {difference}");
            }
        }
        let refused = volume.read(0, 1025).await.unwrap_err();
        assert_eq!(refused.status(), Some(Generic::InvalidField.into()));
        let refused = volume.write(0, vec![0; 1025 * 4096].into()).await.unwrap_err();
        assert_eq!(refused.status(), Some(Generic::InvalidField.into()));
        volume.read(0, 1).await.unwrap();
    }
    target.settle_and_stop().await;
}

/// The deepest queue there is, full of reads and of writes.
#[tokio::test]
async fn the_deepest_queue() {
    let target = Setup::memory("raid10", 4, 8).start();
    let (controller, volume) = volume(target.address, 16).await;
    let content = pattern(1, 12 << 20);
    for (slot, part) in content.chunks(1 << 20).enumerate() {
        let part = content.slice_ref(part);
        volume.write(slot as u64 * 256, part).await.unwrap();
    }
    let depth = controller.cap().mqes();
    let mut queue = controller.engine(depth).await.unwrap();
    let mut random = Random::new(3);
    let mut places = Vec::new();
    let mut completions = Vec::new();
    let mut ended = 0;
    while ended < 6000 {
        while queue.free_slots() > 0 && places.len() < 6000 {
            let lba = random.below(3000);
            let blocks = random.choose(&[1u32, 1, 1, 2, 9]);
            let token = places.len() as u64;
            let data = Data::Read(BytesMut::zeroed(blocks as usize * 4096));
            queue.submit(IoCommand::Read(range(lba, blocks)).to_sqe(0), data, token).unwrap();
            places.push(lba as usize * 4096);
        }
        queue.turn(&mut completions).await.unwrap();
        for completion in completions.drain(..) {
            completion.check("Read").unwrap();
            let start = places[completion.token as usize];
            let Data::Read(found) = completion.data else { panic!("no data") };
            let expected = &content[start..start + found.len()];
            if let Some(difference) = difference(expected, &found) {
                panic!("at {start}: {difference}");
            }
            ended += 1;
        }
    }
    drop((queue, volume, controller));
    target.settle_and_stop().await;
}

/// As many I/O queues as are granted, and not one more.
#[tokio::test]
async fn every_io_queue() {
    let target = Setup::memory("raid0", 2, 4).setting("io_queues: 5\nqueue_depth: 31").start();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    assert_eq!(controller.cap().mqes(), 30);
    assert_eq!(controller.set_number_of_queues(128).await.unwrap(), 5);
    let raw = RawHost::connect(target.address, NONE).await;
    let mut queues = Vec::new();
    for qid in 1..=4 {
        queues.push(raw.io(qid, 31).await);
    }
    let mut last = open(target.address, NONE, Default::default()).await;
    for (login, wrong) in [
        (raw.io_login(6, 31), InvalidParameter::Qid),
        (raw.io_login(5, 32), InvalidParameter::SqSize),
    ] {
        let cqe = login.send(&mut last).await.unwrap();
        assert_eq!((cqe.status(), cqe.dw0.get()), (wrong.status(), wrong.result()));
    }
    assert!(raw.io_login(5, 31).send(&mut last).await.unwrap().status().is_success());
    queues.push(last);
    drop((queues, raw, controller));
    target.settle_and_stop().await;
}

/// Several namespaces on one array, and one subsystem over two arrays: each has its own place.
#[tokio::test]
async fn namespaces_do_not_touch_each_other() {
    let target = Setup::new()
        .memory_array("a", "raid10", 4, 4)
        .memory_array("b", "raid0", 2, 4)
        .namespace_with(1, "a", 4096, "size: 2MiB")
        .namespace_with(9, "a", 512, "offset: 2MiB, size: 3MiB")
        .namespace_with(4, "a", 4096, "offset: 5MiB")
        .namespace(2, "b", 512)
        .start();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    assert_eq!(controller.namespaces().await.unwrap(), [1, 2, 4, 9]);
    let mut volumes = Vec::new();
    let mut identities = Vec::new();
    for (nsid, mib) in [(1u32, 2u64), (2, 8), (4, 3), (9, 3)] {
        let volume = controller.volume(nsid, 8).await.unwrap();
        assert_eq!(volume.namespace().size_bytes(), mib << 20);
        identities.push(volume.namespace().nguid);
        let per_mib = (1 << 20) / volume.namespace().block_bytes;
        for part in 0..mib {
            let data = pattern(u64::from(nsid) << 32 | part, 1 << 20);
            volume.write(part * u64::from(per_mib), data).await.unwrap();
        }
        volumes.push((nsid, mib, per_mib, volume));
    }
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), 4, "each has an identity of its own");
    for (nsid, mib, per_mib, volume) in &volumes {
        for part in 0..*mib {
            let found = volume.read(part * u64::from(*per_mib), *per_mib).await.unwrap();
            assert!(found == pattern(u64::from(*nsid) << 32 | part, 1 << 20), "{nsid}: {part}");
        }
        let end = volume.namespace().blocks;
        let beyond = volume.read(end, 1).await.unwrap_err();
        assert_eq!(beyond.status(), Some(Generic::LbaOutOfRange.into()));
    }
    drop((volumes, controller));
    target.settle_and_stop().await;
}
