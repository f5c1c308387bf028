//! Random commands from several hosts on several cores, each read compared with a shadow copy; and
//! data PDUs cut into every kind of pieces.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use raidfabric_initiator::raw::Connection;
use raidfabric_initiator::{Controller, Options, Volume};
use raidfabric_protocol::tcp::encode;
use raidfabric_protocol::tcp::pdu::PduType;
use raidfabric_protocol::tcp::rules::{H2cDataFields, IcReqFields};
use raidfabric_protocol::tcp::{Digests, PduAlignment};
use raidfabric_tests::data::{Random, difference, pattern};
use raidfabric_tests::host::{
    BOTH, Login, NONE, RawHost, completion, inline_sqe, options, read_sqe, soon, write_sqe,
};
use raidfabric_tests::setup::{NQN, Setup, Target};

const BLOCK: usize = 4096;

/// What the volume must hold, and which blocks have a command on them just now.
pub(crate) struct Model {
    pub(crate) shadow: Vec<u8>,
    readers: Vec<u16>,
    writing: Vec<bool>,
    /// Whether what is deallocated reads as zeros whatever its size: stripes with parity are only
    /// deallocated whole.
    is_freely_deallocated: bool,
}

impl Model {
    /// A volume that holds this.
    pub(crate) fn new(shadow: Vec<u8>) -> Self {
        let blocks = shadow.len() / BLOCK;
        let (readers, writing) = (vec![0; blocks], vec![false; blocks]);
        Self { shadow, readers, writing, is_freely_deallocated: true }
    }

    /// The same for an array of this level.
    pub(crate) fn of(level: &str, shadow: Vec<u8>) -> Self {
        let has_parity = matches!(level, "raid5" | "raid6");
        Self { is_freely_deallocated: !has_parity, ..Self::new(shadow) }
    }

    fn try_read(&mut self, blocks: &Range<usize>) -> bool {
        let free = !self.writing[blocks.clone()].contains(&true);
        if free {
            self.readers[blocks.clone()].iter_mut().for_each(|count| *count += 1);
        }
        free
    }

    fn try_write(&mut self, blocks: &Range<usize>) -> bool {
        let free = !self.writing[blocks.clone()].contains(&true)
            && self.readers[blocks.clone()].iter().all(|count| *count == 0);
        if free {
            self.writing[blocks.clone()].fill(true);
        }
        free
    }

    fn read_done(&mut self, blocks: &Range<usize>) {
        self.readers[blocks.clone()].iter_mut().for_each(|count| *count -= 1);
    }

    fn write_done(&mut self, blocks: &Range<usize>, data: Option<&[u8]>) {
        let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
        match data {
            Some(data) => self.shadow[bytes].copy_from_slice(data),
            None => self.shadow[bytes].fill(0),
        }
        self.writing[blocks.clone()].fill(false);
    }
}

/// Does random commands on blocks that nobody else has a command on, and checks each read.
pub(crate) async fn actor(volume: Volume, model: Rc<RefCell<Model>>, seed: u64, turns: usize) {
    let mut random = Random::new(seed);
    let total = volume.namespace().blocks;
    for _ in 0..turns {
        let most = random.choose(&[1u64, 4, 17, 64, 256]);
        let count = 1 + random.below(most);
        let start = random.below(total - count + 1);
        let blocks = start as usize..(start + count) as usize;
        let writes = random.below(100) >= 45;
        let granted = match writes {
            true => model.borrow_mut().try_write(&blocks),
            false => model.borrow_mut().try_read(&blocks),
        };
        if !granted {
            tokio::task::yield_now().await;
            continue;
        }
        if !writes {
            let found = volume.read(start, count as u32).await.unwrap();
            let mut model = model.borrow_mut();
            let expected = &model.shadow[blocks.start * BLOCK..blocks.end * BLOCK];
            if let Some(difference) = difference(expected, &found) {
                panic!("{count} blocks at {start}: {difference}");
            }
            model.read_done(&blocks);
            continue;
        }
        let kind = match random.below(10) {
            1 if !model.borrow().is_freely_deallocated => 0,
            kind => kind,
        };
        let data = match kind {
            0 => {
                volume.write_zeroes(start, count as u32, random.below(2) == 0).await.unwrap();
                None
            }
            1 => {
                volume.deallocate(&[(start, count as u32)]).await.unwrap();
                None
            }
            kind => {
                let data = random.bytes(count as usize * BLOCK);
                match kind {
                    2 => volume.write_durably(start, data.clone()).await.unwrap(),
                    _ => volume.write(start, data.clone()).await.unwrap(),
                }
                Some(data)
            }
        };
        model.borrow_mut().write_done(&blocks, data.as_deref());
        if random.below(16) == 0 {
            volume.flush().await.unwrap();
        }
    }
}

async fn random_commands(level: &str, members: usize, member_mib: u64, more: &str) {
    random_commands_on(&Setup::memory(level, members, member_mib).setting(more)).await;
}

pub(crate) async fn random_commands_on(setup: &Setup) {
    let target = setup.start();
    let mut volumes = Vec::new();
    let mut controllers = Vec::new();
    for (digests, disable_sq_flow_control, hpda) in
        [(NONE, false, 0), (NONE, true, 0), (BOTH, false, 15), (BOTH, true, 31)]
    {
        let hpda = PduAlignment::from_wire(hpda).unwrap();
        let options = Options { digests, disable_sq_flow_control, hpda, ..options() };
        let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
        for _ in 0..2 {
            volumes.push(controller.volume(1, 16).await.unwrap());
        }
        controllers.push(controller);
    }
    let blocks = volumes[0].namespace().blocks as usize;
    let model = Rc::new(RefCell::new(Model::new(vec![0; blocks * BLOCK])));
    let local = tokio::task::LocalSet::new();
    for (n, volume) in volumes.iter().enumerate() {
        for depth in 0..12 {
            let seed = (n * 100 + depth) as u64;
            local.spawn_local(actor(volume.clone(), Rc::clone(&model), seed, 30));
        }
    }
    soon("random commands", local).await;
    let shadow = std::mem::take(&mut model.borrow_mut().shadow);
    // Read until every copy has been read.
    for volume in volumes.iter().cycle().take(12) {
        for (part, expected) in shadow.chunks(256 * BLOCK).enumerate() {
            let found = volume.read(part as u64 * 256, (expected.len() / BLOCK) as u32).await;
            if let Some(difference) = difference(expected, &found.unwrap()) {
                panic!("MiB {part}: {difference}");
            }
        }
    }
    drop((volumes, controllers));
    target.settle_and_stop().await;
}

#[tokio::test]
async fn random_commands_on_raid0() {
    random_commands("raid0", 3, 3, "").await;
}

#[tokio::test]
async fn random_commands_on_raid1() {
    random_commands("raid1", 3, 8, "in_capsule: 0").await;
}

#[tokio::test]
async fn random_commands_on_raid10() {
    random_commands("raid10", 4, 4, "").await;
}

/// Chunks of the smallest and of the largest size: commands of many parts, and of one.
#[tokio::test]
async fn random_commands_on_other_chunks() {
    for (level, members, chunk) in
        [("raid0", 3, "4KiB"), ("raid10", 4, "4KiB"), ("raid0", 5, "1MiB"), ("raid10", 6, "1MiB")]
    {
        let setup = Setup::new().chunk(chunk).memory_array("a", level, members, 4);
        random_commands_on(&setup.namespace(1, "a", 4096)).await;
    }
}

/// The same while memory is so short that commands go in pieces.
#[tokio::test]
async fn random_commands_with_little_memory() {
    random_commands("raid10", 4, 4, "memory: { capsule: 1MiB, transfer: 4MiB }").await;
}

/// A raw host with 512 KiB to cut.
async fn cut_everywhere(target: &Target, digests: Digests) {
    let host = RawHost::connect(target.address, digests).await;
    let mut io = host.io(1, 16).await;
    let content = pattern(5, 2 * BLOCK);
    let capsule = io.command_bytes(&inline_sqe(1, 0, 2), &content);
    for cut in (1..120).chain(capsule.len() - 8..capsule.len()) {
        io.send(&capsule[..cut]).await.unwrap();
        tokio::task::yield_now().await;
        io.send(&capsule[cut..]).await.unwrap();
        assert!(completion(&mut io).await.unwrap().status().is_success(), "cut at {cut}");
    }
    let command = io.command_bytes(&write_sqe(2, 4, 2), &[]);
    for cut in (1..120).chain(2 * BLOCK..2 * BLOCK + 28) {
        io.send(&command[..cut.min(command.len())]).await.unwrap();
        io.send(&command[cut.min(command.len())..]).await.unwrap();
        let r2t = soon("R2T", io.receive()).await.unwrap().r2t().unwrap();
        let ttag = r2t.ttag.get();
        let mut stream = Vec::new();
        for (datao, last) in [(0, false), (BLOCK as u32, true)] {
            let fields = H2cDataFields { cccid: 2, ttag, datao, datal: BLOCK as u32, last };
            let start = datao as usize;
            stream.extend(io.data_bytes(&fields, &content[start..start + BLOCK]));
        }
        io.send(&stream[..cut]).await.unwrap();
        tokio::task::yield_now().await;
        io.send(&stream[cut..]).await.unwrap();
        assert!(completion(&mut io).await.unwrap().status().is_success(), "cut at {cut}");
    }
    // A command and data byte by byte.
    for byte in io.command_bytes(&write_sqe(3, 8, 2), &[]) {
        io.send(&[byte]).await.unwrap();
    }
    let ttag = soon("R2T", io.receive()).await.unwrap().r2t().unwrap().ttag.get();
    let fields = H2cDataFields { cccid: 3, ttag, datao: 0, datal: 2 * BLOCK as u32, last: true };
    let stream = io.data_bytes(&fields, &content);
    for part in stream.chunks(7) {
        io.send(part).await.unwrap();
    }
    assert!(completion(&mut io).await.unwrap().status().is_success());
    for lba in [0, 4, 8] {
        io.send_command(&read_sqe(4, lba, 2), &[]).await.unwrap();
        let (_, found) = soon("data", io.receive_response()).await.unwrap();
        assert!(found == content, "at {lba}");
    }
}

#[tokio::test]
async fn pdus_cut_at_every_byte() {
    let target = Setup::memory("raid1", 2, 4).start();
    cut_everywhere(&target, NONE).await;
    cut_everywhere(&target, BOTH).await;
    target.settle_and_stop().await;
}

/// One H2CData PDU that still has to be sent, or a rest of it.
struct Transfer {
    cid: u16,
    ttag: u16,
    next: u32,
    end: u32,
}

/// Writes of 256 KiB to 1 MiB at depth 128, their data interleaved and cut at random.
async fn large_writes(digests: Digests, max_r2t: u32, seed: u64) {
    const COMMANDS: u16 = 128;
    const SLOT: u64 = 256;
    let target = Setup::memory("raid0", 2, 64).cores(1).start();
    let host = RawHost::connect(target.address, digests).await;
    let mut io = Connection::connect(target.address).await.unwrap();
    let mut request = Vec::new();
    encode::ic_req(&IcReqFields { hpda: PduAlignment::NONE, digests, max_r2t }, &mut request);
    io.send(&request).await.unwrap();
    let response = soon("ICResp", io.receive()).await.unwrap();
    assert_eq!(response.pdu_type(), Some(PduType::IcResp));
    io.encoder_mut().digests = digests;
    let login: Login = host.io_login(1, COMMANDS + 1);
    assert!(login.send(&mut io).await.unwrap().status().is_success());

    let mut random = Random::new(seed);
    let mut contents: HashMap<u16, Bytes> = HashMap::new();
    let mut burst = Vec::new();
    for cid in 0..COMMANDS {
        let blocks = 64 + random.below(193) as u32;
        contents.insert(cid, pattern(seed + u64::from(cid), blocks as usize * BLOCK));
        burst.extend(io.command_bytes(&write_sqe(cid, u64::from(cid) * SLOT, blocks), &[]));
    }
    io.send(&burst).await.unwrap();
    let mut transfers: Vec<Transfer> = Vec::new();
    let mut left = COMMANDS;
    while left > 0 {
        let mut byte = [0; 1];
        let waiting = tokio::time::timeout(Duration::ZERO, io.stream().peek(&mut byte)).await;
        if transfers.is_empty() || waiting.is_ok() {
            let pdu = soon("R2T or completion", io.receive()).await.unwrap();
            if let Ok(cqe) = pdu.response() {
                assert!(cqe.status().is_success(), "command {}: {}", cqe.cid.get(), cqe.status());
                left -= 1;
                continue;
            }
            let r2t = pdu.r2t().unwrap();
            let (cid, start) = (r2t.cccid.get(), r2t.r2to.get());
            assert!(
                max_r2t > 1 || transfers.iter().all(|other| other.cid != cid),
                "two R2Ts at a time for command {cid}"
            );
            let end = start + r2t.r2tl.get();
            assert!(end as usize <= contents[&cid].len());
            transfers.push(Transfer { cid, ttag: r2t.ttag.get(), next: start, end });
            continue;
        }
        let chosen = random.below(transfers.len() as u64) as usize;
        let transfer = &mut transfers[chosen];
        let rest = transfer.end - transfer.next;
        let datal = rest.min(4 * (1 + random.below(64 * 1024) as u32));
        let last = datal == rest;
        let datao = transfer.next;
        let fields = H2cDataFields { cccid: transfer.cid, ttag: transfer.ttag, datao, datal, last };
        let start = datao as usize;
        let pdu = io.data_bytes(&fields, &contents[&transfer.cid][start..start + datal as usize]);
        transfer.next += datal;
        if last {
            transfers.swap_remove(chosen);
        }
        let mut rest = &pdu[..];
        while !rest.is_empty() {
            let length = (1 + random.below(100_000) as usize).min(rest.len());
            io.send(&rest[..length]).await.unwrap();
            rest = &rest[length..];
        }
    }
    for (cid, content) in &contents {
        let blocks = (content.len() / BLOCK) as u32;
        io.send_command(&read_sqe(*cid, u64::from(*cid) * SLOT, blocks), &[]).await.unwrap();
        let (_, found) = soon("data", io.receive_response()).await.unwrap();
        if let Some(difference) = difference(content, &found) {
            panic!("command {cid}: {difference}");
        }
    }
    drop((io, host));
    target.settle_and_stop().await;
}

#[tokio::test]
async fn large_writes_with_one_r2t() {
    large_writes(NONE, 1, 7).await;
}

#[tokio::test]
async fn large_writes_with_digests() {
    large_writes(BOTH, 4, 8).await;
}

/// Two hosts on two cores write the same blocks of a mirror at the same time: afterwards every
/// reader sees one and the same outcome.
#[tokio::test]
async fn overlapping_writes_on_mirrors_leave_equal_copies() {
    for (level, members) in [("raid1", 3), ("raid10", 4)] {
        let target = Setup::memory(level, members, 4).start();
        let mut volumes = Vec::new();
        let mut controllers = Vec::new();
        for _ in 0..4 {
            let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
            volumes.push(controller.volume(1, 32).await.unwrap());
            controllers.push(controller);
        }
        let local = tokio::task::LocalSet::new();
        for (writer, volume) in volumes.iter().enumerate() {
            for depth in 0..8 {
                let volume = volume.clone();
                let mut random = Random::new((writer * 8 + depth) as u64);
                local.spawn_local(async move {
                    for _ in 0..40 {
                        let count = 1 + random.below(40);
                        let lba = random.below(128 - count);
                        let data = random.bytes(count as usize * BLOCK);
                        volume.write(lba, data).await.unwrap();
                    }
                });
            }
        }
        soon("overlapping writes", local).await;
        let first = volumes[0].read(0, 128).await.unwrap();
        // Reads take turns over the copies when several are under way.
        for _ in 0..8 {
            let reads = volumes.iter().flat_map(|volume| [volume.clone(), volume.clone()]);
            let reads: Vec<_> = reads
                .map(|volume| tokio::spawn(async move { volume.read(0, 128).await.unwrap() }))
                .collect();
            for read in reads {
                let found = read.await.unwrap();
                if let Some(difference) = difference(&first, &found) {
                    panic!("{level}: the copies differ: {difference}");
                }
            }
        }
        drop((volumes, controllers));
        target.settle_and_stop().await;
    }
}
