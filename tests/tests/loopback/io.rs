//! Every I/O command, on every level, in every way in which data can travel.

use bytes::{Bytes, BytesMut};
use raidfabric_initiator::queue::Data;
use raidfabric_initiator::{Controller, Options, Volume};
use raidfabric_protocol::nvme::identify::NSID_ALL;
use raidfabric_protocol::nvme::io::{BlockRange, IoCommand, Prinfo};
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{Generic, Nvm, Status};
use raidfabric_protocol::tcp::{Digests, PduAlignment};
use raidfabric_tests::data::{difference, pattern};
use raidfabric_tests::host::{options, range};
use raidfabric_tests::setup::{NQN, Setup, Target};

const KIB: usize = 1 << 10;
const MDTS: usize = 1 << 20;
/// Size of each of the two namespaces.
const NAMESPACE: usize = 4 << 20;

/// One array of 8 MiB; namespace 1 has blocks of 512 bytes, namespace 2 of 4096.
fn target(level: &str, members: usize, member_mib: u64, in_capsule: &str) -> Target {
    Setup::new()
        .memory_array("a", level, members, member_mib)
        .namespace_with(1, "a", 512, "size: 4MiB")
        .namespace_with(2, "a", 4096, "offset: 4MiB, size: 4MiB")
        .setting(&format!("in_capsule: {in_capsule}"))
        .start()
}

/// A volume beside what must be in it.
struct Shadowed {
    volume: Volume,
    shadow: Vec<u8>,
    block: usize,
    seed: u64,
}

impl Shadowed {
    fn lba(&self, offset: usize) -> u64 {
        (offset / self.block) as u64
    }

    fn next(&mut self, length: usize) -> Bytes {
        self.seed += 1;
        pattern(self.seed, length)
    }

    async fn write(&mut self, offset: usize, length: usize, fua: bool) {
        let data = self.next(length);
        let lba = self.lba(offset);
        if fua {
            self.volume.write_durably(lba, data.clone()).await.unwrap();
        } else {
            self.volume.write(lba, data.clone()).await.unwrap();
        }
        self.shadow[offset..offset + length].copy_from_slice(&data);
    }

    async fn check(&self, offset: usize, length: usize, what: &str) {
        let blocks = (length / self.block) as u32;
        let found = self.volume.read(self.lba(offset), blocks).await.unwrap();
        if let Some(difference) = difference(&self.shadow[offset..offset + length], &found) {
            panic!("{what}: {length} bytes at {offset}: {difference}");
        }
    }

    async fn check_all(&self, what: &str) {
        for offset in (0..NAMESPACE).step_by(MDTS) {
            self.check(offset, MDTS, what).await;
        }
    }

    fn clear(&mut self, offset: usize, length: usize) {
        self.shadow[offset..offset + length].fill(0);
    }

    /// Sizes from one block to the largest, at places that meet the borders of chunks.
    async fn sizes(&mut self) {
        let block = self.block;
        let sizes = [
            block,
            2 * block,
            8 * KIB,
            16 * KIB - block,
            16 * KIB,
            16 * KIB + block,
            64 * KIB,
            64 * KIB + block,
            200 * KIB,
            MDTS - block,
            MDTS,
        ];
        for (turn, size) in sizes.into_iter().enumerate() {
            let offset = (turn + 1) * 128 * KIB - block;
            self.write(offset, size, turn % 3 == 0).await;
            let from = offset - block;
            self.check(from, (size + 2 * block).min(MDTS), "written").await;
            self.check(offset, size, "written").await;
        }
    }

    /// The commands that transfer no blocks.
    async fn zeros(&mut self) {
        let block = self.block;
        for (offset, length, deallocate) in [
            (64 * KIB - block, 128 * KIB + 3 * block, true),
            (512 * KIB, 2 * block, false),
            (MDTS, 2 * MDTS, true),
            (3 * MDTS + block, 512 * KIB, false),
        ] {
            self.write(offset & !(64 * KIB - 1), 256 * KIB, false).await;
            let blocks = (length / block) as u32;
            self.volume.write_zeroes(self.lba(offset), blocks, deallocate).await.unwrap();
            self.clear(offset, length);
        }
        self.check_all("write zeroes").await;
        self.write(0, MDTS, false).await;
        let ranges: Vec<_> = (0..200).map(|n| (n * 4096, (n % 3) * block)).collect();
        let list: Vec<_> =
            ranges.iter().map(|&(at, length)| (self.lba(at), (length / block) as u32)).collect();
        self.volume.deallocate(&list).await.unwrap();
        for (at, length) in ranges {
            self.clear(at, length);
        }
        self.check_all("deallocated blocks read as zeros").await;
    }

    /// What the limits forbid is refused, and the connection goes on.
    async fn beyond_the_limits(&mut self) {
        let (block, volume) = (self.block, self.volume.clone());
        let too_much = MDTS + block;
        let blocks = (too_much / block) as u32;
        let invalid: Status = Generic::InvalidField.into();
        let refused = volume.read(0, blocks).await.unwrap_err();
        assert_eq!(refused.status(), Some(invalid), "a read above MDTS");
        let refused = volume.write(0, self.next(too_much)).await.unwrap_err();
        assert_eq!(refused.status(), Some(invalid), "a write above MDTS");
        let end = (NAMESPACE / block) as u64;
        let beyond: Status = Generic::LbaOutOfRange.into();
        for lba in [end, end - 1, u64::MAX, u64::MAX - 1] {
            let refused = volume.read(lba, 2).await.unwrap_err();
            assert_eq!(refused.status(), Some(beyond), "a read of 2 at {lba}");
            let refused = volume.write(lba, self.next(2 * block)).await.unwrap_err();
            assert_eq!(refused.status(), Some(beyond), "a write of 2 at {lba}");
            let refused = volume.write_zeroes(lba, 2, true).await.unwrap_err();
            assert_eq!(refused.status(), Some(beyond), "zeroes of 2 at {lba}");
            let refused = volume.deallocate(&[(0, 1), (lba, 2)]).await.unwrap_err();
            assert_eq!(refused.status(), Some(beyond), "deallocation of 2 at {lba}");
        }
        let last = NAMESPACE - block;
        self.write(last, block, false).await;
        self.check(last, block, "the last block").await;
        self.check_all("what was refused changed nothing").await;
    }
}

async fn shadowed(controller: &Controller, nsid: u32, shadow: Vec<u8>, seed: u64) -> Shadowed {
    let volume = controller.volume(nsid, 16).await.unwrap();
    let block = volume.namespace().block_bytes as usize;
    assert_eq!(volume.namespace().size_bytes() as usize, NAMESPACE);
    Shadowed { volume, shadow, block, seed }
}

async fn every_way(level: &str, members: usize, member_mib: u64, in_capsule: &str) {
    let target = target(level, members, member_mib, in_capsule);
    let mut shadows = [vec![0; NAMESPACE], vec![0; NAMESPACE]];
    let mut seed = 0;
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        for disable_sq_flow_control in [false, true] {
            let digests = Digests { header, data };
            let options = Options { digests, disable_sq_flow_control, ..options() };
            let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
            for nsid in [1, 2] {
                let shadow = std::mem::take(&mut shadows[nsid as usize - 1]);
                let mut here = shadowed(&controller, nsid, shadow, seed).await;
                assert_eq!(
                    here.volume.queue().is_sq_flow_control_disabled(),
                    disable_sq_flow_control
                );
                here.sizes().await;
                here.volume.flush().await.unwrap();
                if header == data {
                    here.zeros().await;
                    here.beyond_the_limits().await;
                }
                here.check_all("at the end").await;
                seed = here.seed;
                shadows[nsid as usize - 1] = here.shadow;
            }
            controller.shutdown().await.unwrap();
        }
    }
    target.settle_and_stop().await;
}

#[tokio::test]
async fn raid0_with_in_capsule_data() {
    every_way("raid0", 2, 4, "16KiB").await;
}

#[tokio::test]
async fn raid1_with_in_capsule_data() {
    every_way("raid1", 2, 8, "16KiB").await;
}

#[tokio::test]
async fn raid10_with_in_capsule_data() {
    every_way("raid10", 4, 4, "16KiB").await;
}

/// Without in-capsule data everything but Connect comes by R2T.
#[tokio::test]
async fn raid0_without_in_capsule_data() {
    every_way("raid0", 3, 3, "0").await;
}

#[tokio::test]
async fn raid10_without_in_capsule_data() {
    every_way("raid10", 4, 4, "0").await;
}

/// A read is answered by SUCCESS where SQ flow control is off, and there only.
#[tokio::test]
async fn success_flag() {
    let target = Setup::memory("raid0", 2, 4).start();
    for disable_sq_flow_control in [false, true] {
        let options = Options { disable_sq_flow_control, ..options() };
        let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
        let volume = controller.volume(1, 4).await.unwrap();
        for blocks in [1u32, 256] {
            let sqe = IoCommand::Read(range(0, blocks)).to_sqe(0);
            let data = Data::Read(BytesMut::zeroed(blocks as usize * 4096));
            let completion = volume.queue().submit(sqe, data).await.unwrap();
            completion.check("Read").unwrap();
            assert_eq!(completion.by_success_flag, disable_sq_flow_control);
        }
    }
    target.settle_and_stop().await;
}

/// With flow control on, SQHD goes round the queue by one for each command.
#[tokio::test]
async fn sq_head_goes_round() {
    let target = Setup::memory("raid0", 2, 4).start();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let mut queue = controller.engine(7).await.unwrap();
    // Connect was the first entry of a queue of eight.
    for turn in 1..40u16 {
        let sqe = IoCommand::Read(range(0, 1)).to_sqe(0);
        let data = Data::Read(BytesMut::zeroed(4096));
        queue.execute(sqe, data, options().timeout).await.unwrap().check("Read").unwrap();
        assert_eq!(queue.sqhd(), (turn + 1) % 8);
    }
    drop((queue, controller));
    target.settle_and_stop().await;
}

/// What a host may ask for, and we do not serve, has its status; nothing is taken for something else.
#[tokio::test]
async fn refused_commands() {
    let target = Setup::memory("raid1", 2, 4).start();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let volume = controller.volume(1, 4).await.unwrap();
    let status = async |command: IoCommand, data: Data| {
        volume.queue().submit(command.to_sqe(0), data).await.unwrap().cqe.status()
    };
    let block = || Data::Read(BytesMut::zeroed(4096));
    let one = range(0, 1);
    let other = BlockRange { nsid: 2, ..one };
    let unknown: Status = Generic::InvalidNamespaceOrFormat.into();
    assert_eq!(status(IoCommand::Read(other), block()).await, unknown);
    let broadcast = BlockRange { nsid: NSID_ALL, ..one };
    assert_eq!(status(IoCommand::Read(broadcast), block()).await, unknown);
    assert_eq!(status(IoCommand::Flush { nsid: 2 }, Data::None).await, unknown);
    assert!(status(IoCommand::Flush { nsid: NSID_ALL }, Data::None).await.is_success());
    let protected = BlockRange { prinfo: Prinfo::from_raw(1), ..one };
    // Its code means something else among the Fabrics statuses, so it is compared as a number.
    let protection: Status = Nvm::InvalidProtectionInformation.into();
    let found = status(IoCommand::Read(protected), block()).await;
    assert_eq!(found.code.raw(), protection.code.raw());
    let directed = IoCommand::Write { range: one, directive: 1 };
    let data = || Data::Write(Bytes::from(vec![1; 4096]));
    assert_eq!(status(directed, data()).await, Generic::InvalidField.into());
    // Data that is shorter or longer than the blocks.
    let length: Status = Generic::DataSglLengthInvalid.into();
    assert_eq!(status(IoCommand::Read(range(0, 2)), block()).await, length);
    let write = IoCommand::Write { range: range(0, 2), directive: 0 };
    assert_eq!(status(write, data()).await, length);
    for opcode in [0x03u8, 0x04, 0x05, 0x0C, 0x0D, 0x0E, 0x11, 0x15, 0x19, 0x7E, 0x80, 0xFF] {
        let sqe = Sqe { opcode, ..IoCommand::Read(one).to_sqe(0) };
        let completion = volume.queue().submit(sqe, Data::None).await.unwrap();
        let refused: Status = Generic::InvalidOpcode.into();
        assert_eq!(completion.cqe.status(), refused, "opcode {opcode:#04x}");
    }
    assert!(volume.read(0, 1).await.unwrap().iter().all(|byte| *byte == 0));
    drop((volume, controller));
    target.settle_and_stop().await;
}

/// A host may leave room between header and payload, more than it was asked to.
#[tokio::test]
async fn payloads_of_the_host_are_where_it_says() {
    use raidfabric_protocol::tcp::rules::H2cDataFields;
    use raidfabric_tests::host::{RawHost, completion, inline_sqe, read_sqe, soon, write_sqe};
    let target = Setup::memory("raid0", 2, 4).start();
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        let digests = Digests { header, data };
        let host = RawHost::connect(target.address, digests).await;
        let mut io = host.io(1, 16).await;
        for cpda in [0u8, 1, 3, 7, 15, 30, 31] {
            io.encoder_mut().alignment = PduAlignment::from_wire(cpda).unwrap();
            let content = pattern(u64::from(cpda) + 100, 4 * 4096);
            io.send_command(&inline_sqe(1, 8, 4), &content).await.unwrap();
            assert!(completion(&mut io).await.unwrap().status().is_success());
            io.send_command(&write_sqe(2, 20, 4), &[]).await.unwrap();
            let ttag = soon("R2T", io.receive()).await.unwrap().r2t().unwrap().ttag.get();
            for part in 0..4u32 {
                let fields = H2cDataFields {
                    cccid: 2,
                    ttag,
                    datao: part * 4096,
                    datal: 4096,
                    last: part == 3,
                };
                let start = part as usize * 4096;
                io.send_data(&fields, &content[start..start + 4096]).await.unwrap();
            }
            assert!(completion(&mut io).await.unwrap().status().is_success());
            for lba in [8, 20] {
                io.send_command(&read_sqe(3, lba, 4), &[]).await.unwrap();
                let (_, found) = soon("data", io.receive_response()).await.unwrap();
                assert!(found == content, "CPDA {cpda} at {lba} with {digests:?}");
            }
        }
    }
    target.settle_and_stop().await;
}

/// Payloads are where the host wants them: HPDA from none to the largest.
#[tokio::test]
async fn host_alignment_is_honoured() {
    use raidfabric_protocol::tcp::pdu::PduType;
    use raidfabric_tests::host::{Login, RawHost, completion, inline_sqe, read_sqe, soon};
    let target = Setup::memory("raid0", 2, 4).start();
    for hpda in [0u8, 1, 3, 7, 15, 30, 31] {
        for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
            let digests = Digests { header, data };
            let alignment = PduAlignment::from_wire(hpda).unwrap();
            let login = Login { disable_sq_flow_control: hpda % 2 == 1, ..Login::default() };
            let host = RawHost::connect_with(target.address, digests, alignment, login).await;
            let mut io = host.io(1, 16).await;
            let content = pattern(u64::from(hpda) + 1, 8192);
            io.send_command(&inline_sqe(1, 2, 2), &content).await.unwrap();
            assert!(completion(&mut io).await.unwrap().status().is_success());
            io.send_command(&read_sqe(2, 2, 2), &[]).await.unwrap();
            let pdu = soon("data", io.receive()).await.unwrap();
            assert_eq!(pdu.pdu_type(), Some(PduType::C2hData));
            let unit = (usize::from(hpda) + 1) * 4;
            let first = (24 + if header { 4 } else { 0 } as usize).next_multiple_of(unit);
            assert_eq!(usize::from(pdu.header.pdo), first, "HPDA {hpda}, {digests:?}");
            assert!(pdu.digests_match());
            assert_eq!(pdu.payload(), &content[..]);
            if hpda % 2 == 0 {
                assert!(completion(&mut io).await.unwrap().status().is_success());
            }
        }
    }
    target.settle_and_stop().await;
}
