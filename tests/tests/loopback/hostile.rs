//! Hosts that break the protocol. Each gets the answer that the specification names, alone: the
//! target lives, nothing stays in use, and an innocent connection on the same core goes on.

use std::time::Duration;

use raidfabric_initiator::raw::Connection;
use raidfabric_initiator::{Controller, Error, Volume};
use raidfabric_protocol::nvme::status::{Generic, Status};
use raidfabric_protocol::tcp::encode;
use raidfabric_protocol::tcp::pdu::PduType;
use raidfabric_protocol::tcp::rules::{H2cDataFields, IcReqFields};
use raidfabric_protocol::tcp::{Digests, PduAlignment, digest};
use raidfabric_tests::data::{Random, pattern};
use raidfabric_tests::host::{
    BOTH, Login, NONE, RawHost, completion, inline_sqe, open, read_sqe, soon, volume, write_sqe,
};
use raidfabric_tests::setup::{Setup, Target};
use zerocopy::IntoBytes;

const HEADER_FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const OUT_OF_RANGE: u16 = 4;
const LIMIT: u16 = 5;
const UNSUPPORTED: u16 = 6;

/// One data core, and an innocent host on it.
struct Scene {
    target: Target,
    innocent: Volume,
    controller: Controller,
    turn: u64,
}

impl Scene {
    async fn new() -> Self {
        let target = Setup::memory("raid10", 4, 8).cores(1).start();
        let (controller, innocent) = volume(target.address, 16).await;
        Self { target, innocent, controller, turn: 0 }
    }

    /// The innocent host writes and reads, and only it is left in the end.
    async fn undisturbed(&mut self, after: &str) {
        self.turn += 1;
        let lba = 1024 + self.turn % 64 * 8;
        for blocks in [1usize, 8] {
            let data = pattern(self.turn, blocks * 4096);
            soon(after, self.innocent.write(lba, data.clone())).await.unwrap();
            let found = soon(after, self.innocent.read(lba, blocks as u32)).await.unwrap();
            assert!(found == data, "{after}: the innocent host's data is wrong");
        }
    }

    async fn alone_again(&mut self, after: &str) {
        self.undisturbed(after).await;
        let alone = |in_use: &raidfabric::server::InUse| {
            in_use.connections == 2
                && in_use.controllers == 1
                && in_use.commands == 0
                && in_use.memory_bytes == 0
        };
        self.target.settled_at(after, alone).await;
    }

    async fn end(self) {
        drop((self.innocent, self.controller));
        self.target.settle_and_stop().await;
    }
}

fn ic_req() -> Vec<u8> {
    let mut bytes = Vec::new();
    let fields = IcReqFields { hpda: PduAlignment::NONE, digests: NONE, max_r2t: 1 };
    encode::ic_req(&fields, &mut bytes);
    bytes
}

/// The C2HTermReq that must come, and the end after it.
async fn terminated(connection: &mut Connection, what: &str) -> (u16, u32) {
    let termination = match soon(what, connection.receive_termination()).await {
        Ok(termination) => termination,
        Err(error) => panic!("{what}: no C2HTermReq: {error}"),
    };
    soon(what, connection.receive_end()).await.unwrap();
    (termination.fes, termination.fei)
}

/// The connection is reset after each byte of ICReq and of Connect.
#[tokio::test]
async fn a_reset_at_every_byte_of_the_start() {
    let mut scene = Scene::new().await;
    let mut start = ic_req();
    let login = Login::default();
    let mut plain = Connection::connect(scene.target.address).await.unwrap();
    plain.initialize(NONE, PduAlignment::NONE).await.unwrap();
    start.extend(plain.command_bytes(&login.sqe(), login.data().as_bytes()));
    drop(plain);
    for cut in 0..=start.len() {
        let mut connection = Connection::connect(scene.target.address).await.unwrap();
        connection.send(&start[..cut]).await.unwrap();
        if cut % 3 == 0 {
            // Let it be seen before the reset comes.
            tokio::task::yield_now().await;
        }
        if cut % 2 == 0 {
            connection.reset().unwrap();
        } else {
            drop(connection);
        }
        if cut % 128 == 0 {
            scene.undisturbed("a reset").await;
        }
    }
    scene.alone_again("resets at every byte").await;
    scene.end().await;
}

/// The start of a connection may come in any pieces.
#[tokio::test]
async fn the_start_split_at_every_byte() {
    let mut scene = Scene::new().await;
    let start = ic_req();
    for cut in 1..start.len() {
        let mut connection = Connection::connect(scene.target.address).await.unwrap();
        connection.send(&start[..cut]).await.unwrap();
        if cut % 8 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        connection.send(&start[cut..]).await.unwrap();
        let pdu = soon("ICResp", connection.receive()).await.unwrap();
        assert_eq!(pdu.pdu_type(), Some(PduType::IcResp));
        assert_eq!(pdu.bytes.len(), 128);
    }
    // And a whole session byte by byte.
    let mut connection = Connection::connect(scene.target.address).await.unwrap();
    for byte in &start {
        connection.send(&[*byte]).await.unwrap();
    }
    soon("ICResp", connection.receive()).await.unwrap();
    let login = Login::default();
    for byte in connection.command_bytes(&login.sqe(), login.data().as_bytes()) {
        connection.send(&[byte]).await.unwrap();
    }
    assert!(completion(&mut connection).await.unwrap().status().is_success());
    drop(connection);
    scene.alone_again("a start in pieces").await;
    scene.end().await;
}

/// What ICReq may not say.
#[tokio::test]
async fn bad_initializations() {
    let mut scene = Scene::new().await;
    let cases: [(&str, usize, u8, u16, u32); 6] = [
        ("PFV 1", 8, 1, UNSUPPORTED, 8),
        ("HPDA 32", 10, 32, HEADER_FIELD, 10),
        ("HLEN 127", 2, 127, HEADER_FIELD, 2),
        ("PLEN 129", 4, 129, HEADER_FIELD, 4),
        ("PLEN 64 KiB more", 6, 1, HEADER_FIELD, 4),
        ("a reserved type", 0, 8, HEADER_FIELD, 0),
    ];
    for (what, at, value, fes, fei) in cases {
        let mut bytes = ic_req();
        bytes[at] = value;
        let mut connection = Connection::connect(scene.target.address).await.unwrap();
        connection.send(&bytes).await.unwrap();
        assert_eq!(terminated(&mut connection, what).await, (fes, fei), "{what}");
    }
    // A second ICReq.
    let mut connection = open(scene.target.address, NONE, PduAlignment::NONE).await;
    connection.send(&ic_req()).await.unwrap();
    assert_eq!(terminated(&mut connection, "a second ICReq").await.0, SEQUENCE);
    scene.alone_again("bad initializations").await;
    scene.end().await;
}

/// The states in which a peer can misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    Initialized,
    Admin,
    Io,
    /// A write waits for its data.
    Asked,
}

const STATES: [State; 5] =
    [State::Fresh, State::Initialized, State::Admin, State::Io, State::Asked];

/// A connection in this state, with what keeps it there.
async fn in_state(scene: &Scene, state: State, digests: Digests) -> (Connection, Option<RawHost>) {
    let address = scene.target.address;
    match state {
        State::Fresh => (Connection::connect(address).await.unwrap(), None),
        State::Initialized => (open(address, digests, PduAlignment::NONE).await, None),
        State::Admin => {
            let mut connection = open(address, digests, PduAlignment::NONE).await;
            let cqe = Login::default().send(&mut connection).await.unwrap();
            assert!(cqe.status().is_success());
            (connection, None)
        }
        State::Io | State::Asked => {
            let host = RawHost::connect(address, digests).await;
            let mut io = host.io(1, 16).await;
            if state == State::Asked {
                io.send_command(&write_sqe(9, 0, 8), &[]).await.unwrap();
                let pdu = soon("R2T", io.receive()).await.unwrap();
                assert_eq!(pdu.pdu_type(), Some(PduType::R2t));
            }
            (io, Some(host))
        }
    }
}

/// A PDU of this type that is right in itself.
fn pdu_of(code: u8, digests: Digests) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    let (hlen, plen) = match PduType::from_code(code) {
        Some(pdu) => (pdu.hlen(), u32::from(pdu.hlen())),
        None => (24, 24),
    };
    let digested = digests.header && PduType::from_code(code).is_some_and(PduType::is_digested);
    let plen = plen + if digested { 4 } else { 0 };
    bytes[0] = code;
    bytes[1] = u8::from(digested);
    bytes[2] = hlen;
    bytes[4..8].copy_from_slice(&plen.to_le_bytes());
    bytes.resize(usize::from(hlen), 0);
    if digested {
        let sum = digest::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// Every type of PDU in every state; what is out of place ends that connection.
#[tokio::test]
async fn every_pdu_in_every_state() {
    let mut scene = Scene::new().await;
    for digests in [NONE, BOTH] {
        for state in STATES {
            for code in (0x00..=0x0A).chain([0x40, 0x80, 0xFF]) {
                let what = format!("type {code:#04x} in {state:?} with {digests:?}");
                let (mut connection, _host) = in_state(&scene, state, digests).await;
                let fresh = state == State::Fresh;
                let bytes = pdu_of(code, if fresh { NONE } else { digests });
                connection.send(&bytes).await.unwrap();
                let expected = match PduType::from_code(code) {
                    None => Some(HEADER_FIELD),
                    Some(PduType::IcReq) if fresh => None,
                    Some(PduType::IcReq) => Some(SEQUENCE),
                    Some(PduType::H2cTermReq) => {
                        // The host has ended it: the end, and no answer.
                        let end = soon(&what, connection.receive_end()).await.unwrap();
                        assert!(end.is_empty(), "{what}");
                        continue;
                    }
                    Some(PduType::CapsuleCmd) if !fresh => None,
                    Some(PduType::CapsuleCmd) => Some(SEQUENCE),
                    Some(PduType::H2cData) if fresh => Some(SEQUENCE),
                    // Without payload it is no data PDU.
                    Some(PduType::H2cData) => Some(HEADER_FIELD),
                    Some(_) => Some(HEADER_FIELD),
                };
                match expected {
                    Some(fes) => {
                        let (found, fei) = terminated(&mut connection, &what).await;
                        assert_eq!(found, fes, "{what}: FEI {fei}");
                    }
                    None => {
                        soon(&what, connection.receive()).await.unwrap();
                    }
                }
            }
        }
        scene.alone_again("PDUs in every state").await;
    }
    scene.end().await;
}

/// Data that nobody asked for, or with something wrong about it.
#[tokio::test]
async fn lies_about_data() {
    let mut scene = Scene::new().await;
    let good = H2cDataFields { cccid: 9, ttag: 0, datao: 0, datal: 8 * 4096, last: true };
    for state in [State::Initialized, State::Admin, State::Io] {
        let (mut connection, _host) = in_state(&scene, state, NONE).await;
        connection.send_data(&good, &vec![1; 8 * 4096]).await.unwrap();
        let (fes, _) = terminated(&mut connection, "data without R2T").await;
        assert_eq!(fes, SEQUENCE, "{state:?}");
    }
    type Lie = (&'static str, fn(H2cDataFields) -> H2cDataFields, u16);
    let lies: [Lie; 9] = [
        ("another tag", |d| H2cDataFields { ttag: d.ttag ^ 1, ..d }, HEADER_FIELD),
        ("a tag far away", |d| H2cDataFields { ttag: !d.ttag, ..d }, HEADER_FIELD),
        ("another command", |d| H2cDataFields { cccid: 8, ..d }, HEADER_FIELD),
        ("an offset too large", |d| H2cDataFields { datao: 4096, ..d }, OUT_OF_RANGE),
        ("an offset beyond all", |d| H2cDataFields { datao: u32::MAX, ..d }, OUT_OF_RANGE),
        ("too long", |d| H2cDataFields { datal: 9 * 4096, ..d }, OUT_OF_RANGE),
        ("a gap", |d| H2cDataFields { datao: 4096, datal: 4096, last: false, ..d }, SEQUENCE),
        ("LAST too early", |d| H2cDataFields { datal: 4096, ..d }, SEQUENCE),
        ("LAST missing", |d| H2cDataFields { last: false, ..d }, SEQUENCE),
    ];
    for (what, lie, fes) in lies {
        for digests in [NONE, BOTH] {
            let (mut io, _host, ttag) = asked(&scene, digests).await;
            let fields = lie(H2cDataFields { ttag, ..good });
            let payload = vec![7; fields.datal as usize];
            // The target may have ended the connection before all of it is sent.
            let _ = io.send_data(&fields, &payload).await;
            assert_eq!(terminated(&mut io, what).await.0, fes, "{what} with {digests:?}");
        }
    }
    // After the first half: the same half again, and the second twice.
    for (what, datao, fes) in [("again", 0u32, SEQUENCE), ("skipping", 6 * 4096, SEQUENCE)] {
        let (mut io, _host, ttag) = asked(&scene, NONE).await;
        let half = H2cDataFields { ttag, datal: 4 * 4096, last: false, ..good };
        io.send_data(&half, &vec![7; 4 * 4096]).await.unwrap();
        let rest = H2cDataFields { datao, datal: 2 * 4096, ..half };
        let _ = io.send_data(&rest, &vec![7; 2 * 4096]).await;
        assert_eq!(terminated(&mut io, what).await.0, fes, "{what}");
    }
    let (mut io, host, ttag) = asked(&scene, NONE).await;
    let whole = H2cDataFields { ttag, ..good };
    io.send_data(&whole, &vec![7; 8 * 4096]).await.unwrap();
    assert!(completion(&mut io).await.unwrap().status().is_success());
    io.send_data(&whole, &vec![7; 8 * 4096]).await.unwrap();
    assert_eq!(terminated(&mut io, "the same data again").await.0, SEQUENCE);
    drop(host);
    scene.alone_again("lies about data").await;
    scene.end().await;
}

/// A write of 8 blocks by command 9 whose data has been asked for, and the tag.
async fn asked(scene: &Scene, digests: Digests) -> (Connection, RawHost, u16) {
    let host = RawHost::connect(scene.target.address, digests).await;
    let mut io = host.io(1, 16).await;
    io.send_command(&write_sqe(9, 0, 8), &[]).await.unwrap();
    let r2t = soon("R2T", io.receive()).await.unwrap().r2t().unwrap();
    assert_eq!((r2t.cccid.get(), r2t.r2to.get(), r2t.r2tl.get()), (9, 0, 8 * 4096));
    (io, host, r2t.ttag.get())
}

/// Every field of the header of a capsule and of data, one wrong at a time.
#[tokio::test]
async fn lies_about_lengths() {
    let mut scene = Scene::new().await;
    type Lie = (&'static str, fn(&mut Vec<u8>), u16, u32);
    let capsules: [Lie; 9] = [
        ("HLEN", |pdu| pdu[2] = 71, HEADER_FIELD, 2),
        ("PDO in the header", |pdu| pdu[3] = 70, HEADER_FIELD, 3),
        (
            "PDO beyond the end",
            |pdu| {
                pdu[3] = 255;
                pdu[4..8].copy_from_slice(&200u32.to_le_bytes());
            },
            HEADER_FIELD,
            3,
        ),
        ("PDO not aligned", |pdu| pdu[3] = 73, HEADER_FIELD, 3),
        ("PLEN 0", |pdu| pdu[4..8].fill(0), HEADER_FIELD, 4),
        ("PLEN 71", |pdu| pdu[4..8].copy_from_slice(&71u32.to_le_bytes()), HEADER_FIELD, 4),
        ("PLEN 4 GiB", |pdu| pdu[4..8].fill(0xFF), HEADER_FIELD, 4),
        ("HDGSTF", |pdu| pdu[1] |= 1, HEADER_FIELD, 1),
        ("DDGSTF", |pdu| pdu[1] |= 2, HEADER_FIELD, 1),
    ];
    for (what, lie, fes, fei) in capsules {
        let (mut io, _host) = in_state(&scene, State::Io, NONE).await;
        let mut pdu = io.command_bytes(&inline_sqe(1, 0, 1), &[1; 4096]);
        lie(&mut pdu);
        let _ = io.send(&pdu).await;
        assert_eq!(terminated(&mut io, what).await, (fes, fei), "capsule: {what}");
    }
    // More in the capsule than IOCCSZ allows.
    let (mut io, host) = in_state(&scene, State::Io, NONE).await;
    let sqe = inline_sqe(1, 0, 5);
    let _ = io.send_command(&sqe, &vec![1; 5 * 4096]).await;
    assert_eq!(terminated(&mut io, "a capsule too long").await.0, HEADER_FIELD);
    drop(host);
    let (mut admin, _) = in_state(&scene, State::Admin, NONE).await;
    let _ = admin.send_command(&sqe, &vec![1; 8192 + 4]).await;
    assert_eq!(terminated(&mut admin, "an admin capsule too long").await.0, HEADER_FIELD);
    let data: [Lie; 7] = [
        ("HLEN", |pdu| pdu[2] = 25, HEADER_FIELD, 2),
        ("PDO 0", |pdu| pdu[3] = 0, HEADER_FIELD, 3),
        ("PDO 255", |pdu| pdu[3] = 253, HEADER_FIELD, 3),
        (
            "PLEN shorter than DATAL",
            |pdu| {
                pdu[4..8].copy_from_slice(&(24 + 4096u32).to_le_bytes());
            },
            HEADER_FIELD,
            16,
        ),
        ("DATAL 0", |pdu| pdu[16..20].fill(0), HEADER_FIELD, 16),
        ("DATAL 4 GiB", |pdu| pdu[16..20].fill(0xFF), LIMIT, 0),
        ("no payload", |pdu| pdu[4..8].copy_from_slice(&24u32.to_le_bytes()), HEADER_FIELD, 4),
    ];
    for (what, lie, fes, fei) in data {
        let (mut io, _host, ttag) = asked(&scene, NONE).await;
        let fields = H2cDataFields { cccid: 9, ttag, datao: 0, datal: 8 * 4096, last: true };
        let mut pdu = io.data_bytes(&fields, &vec![1; 8 * 4096]);
        lie(&mut pdu);
        let _ = io.send(&pdu).await;
        assert_eq!(terminated(&mut io, what).await, (fes, fei), "data: {what}");
    }
    scene.alone_again("lies about lengths").await;
    scene.end().await;
}

/// A damaged header ends the connection, damaged data the command.
#[tokio::test]
async fn damaged_headers_and_data() {
    let mut scene = Scene::new().await;
    // Headers.
    for at in [0usize, 1, 8, 20, 71, 72, 75] {
        let (mut io, _host) = in_state(&scene, State::Io, BOTH).await;
        let mut pdu = io.command_bytes(&read_sqe(1, 0, 1), &[]);
        // Not what says where the digest is: type, HLEN and PLEN.
        let at = if at < 8 { 8 + at } else { at };
        pdu[at] ^= 0x10;
        io.send(&pdu).await.unwrap();
        assert_eq!(terminated(&mut io, "a damaged header").await.0, HEADER_DIGEST, "byte {at}");
    }
    let (mut io, host, ttag) = asked(&scene, BOTH).await;
    let fields = H2cDataFields { cccid: 9, ttag, datao: 0, datal: 8 * 4096, last: true };
    let mut pdu = io.data_bytes(&fields, &vec![1; 8 * 4096]);
    pdu[12] ^= 1;
    let _ = io.send(&pdu).await;
    assert_eq!(terminated(&mut io, "a damaged data header").await.0, HEADER_DIGEST);
    drop(host);
    // Data, in the capsule and asked for.
    let damaged: Status = Generic::TransientTransportError.into();
    let (mut io, host, ttag) = asked(&scene, BOTH).await;
    let content = pattern(77, 8 * 4096);
    let mut pdu = io.data_bytes(&H2cDataFields { ttag, ..fields }, &content);
    let middle = pdu.len() / 2;
    pdu[middle] ^= 1;
    io.send(&pdu).await.unwrap();
    let cqe = completion(&mut io).await.unwrap();
    assert_eq!((cqe.cid.get(), cqe.status()), (9, damaged));
    assert!(!cqe.status().dnr, "the host may try again");
    for at in [76usize, 76 + 4095, 76 + 4096] {
        let mut pdu = io.command_bytes(&inline_sqe(3, 0, 1), &content[..4096]);
        pdu[at] ^= 0x80;
        io.send(&pdu).await.unwrap();
        let cqe = completion(&mut io).await.unwrap();
        assert_eq!((cqe.cid.get(), cqe.status()), (3, damaged), "byte {at}");
    }
    // The connection stays, and the same command succeeds.
    for _ in 0..3 {
        io.send_command(&write_sqe(9, 0, 8), &[]).await.unwrap();
        let r2t = soon("R2T", io.receive()).await.unwrap().r2t().unwrap();
        let fields = H2cDataFields { ttag: r2t.ttag.get(), ..fields };
        io.send_data(&fields, &content).await.unwrap();
        assert!(completion(&mut io).await.unwrap().status().is_success());
    }
    io.send_command(&read_sqe(5, 0, 8), &[]).await.unwrap();
    let (_, found) = soon("data", io.receive_response()).await.unwrap();
    assert!(found == content);
    drop((io, host));
    scene.alone_again("damage").await;
    scene.end().await;
}

/// Damage in one of several PDUs, and in a payload that is received straight into its place, is
/// found as well; what was damaged is not written.
#[tokio::test]
async fn damage_in_long_data() {
    const BLOCKS: u32 = 256;
    let mut scene = Scene::new().await;
    let before = pattern(50, BLOCKS as usize * 4096);
    scene.innocent.write(0, before.clone()).await.unwrap();
    let host = RawHost::connect(scene.target.address, BOTH).await;
    let mut io = host.io(1, 16).await;
    let content = pattern(51, BLOCKS as usize * 4096);
    for (parts, damaged) in [(1usize, 0usize), (4, 0), (4, 2), (4, 3), (64, 5), (1, 1)] {
        io.send_command(&write_sqe(9, 0, BLOCKS), &[]).await.unwrap();
        let r2t = soon("R2T", io.receive()).await.unwrap().r2t().unwrap();
        assert_eq!(r2t.r2tl.get() as usize, content.len());
        let each = content.len() / parts;
        for (part, payload) in content.chunks(each).enumerate() {
            let fields = H2cDataFields {
                cccid: 9,
                ttag: r2t.ttag.get(),
                datao: (part * each) as u32,
                datal: each as u32,
                last: part + 1 == parts,
            };
            let mut pdu = io.data_bytes(&fields, payload);
            if part == damaged {
                let middle = pdu.len() - each / 3;
                pdu[middle] ^= 4;
            }
            // The header first, so that the payload is waited for.
            io.send(&pdu[..28]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            io.send(&pdu[28..]).await.unwrap();
        }
        let status = completion(&mut io).await.unwrap().status();
        let expected = match damaged < parts {
            true => Generic::TransientTransportError.into(),
            false => Status::SUCCESS,
        };
        assert_eq!(status, expected, "part {damaged} of {parts}");
        let found = scene.innocent.read(0, BLOCKS).await.unwrap();
        assert!(found == if damaged < parts { &before } else { &content }, "{damaged} of {parts}");
    }
    drop((io, host));
    scene.alone_again("damage in long data").await;
    scene.end().await;
}

/// More commands than the queue holds end the connection; as many as it holds do not.
#[tokio::test]
async fn more_commands_than_the_queue_holds() {
    let mut scene = Scene::new().await;
    let host = RawHost::connect(scene.target.address, NONE).await;
    let mut io = host.io(1, 8).await;
    // Seven writes that wait for data fill a queue of eight.
    for cid in 0..7 {
        io.send_command(&write_sqe(cid, u64::from(cid) * 8, 8), &[]).await.unwrap();
        assert_eq!(soon("R2T", io.receive()).await.unwrap().pdu_type(), Some(PduType::R2t));
    }
    scene.undisturbed("a full queue").await;
    let mut burst = Vec::new();
    for cid in 7..40 {
        burst.extend(io.command_bytes(&write_sqe(cid, 0, 8), &[]));
    }
    let _ = io.send(&burst).await;
    soon("the end", io.receive_end()).await.unwrap();
    // One admin command too many, of those that are held.
    drop(host);
    scene.alone_again("too many commands").await;
    scene.end().await;
}

/// Two commands with one identifier: the host's mistake, which harms nobody else.
#[tokio::test]
async fn identifiers_used_twice() {
    let mut scene = Scene::new().await;
    let host = RawHost::connect(scene.target.address, NONE).await;
    let mut io = host.io(1, 16).await;
    io.send_command(&write_sqe(4, 0, 8), &[]).await.unwrap();
    let r2t = soon("R2T", io.receive()).await.unwrap().r2t().unwrap();
    io.send_command(&write_sqe(4, 64, 8), &[]).await.unwrap();
    let cqe = completion(&mut io).await.unwrap();
    assert_eq!((cqe.cid.get(), cqe.status()), (4, Generic::CommandIdConflict.into()));
    let fields =
        H2cDataFields { cccid: 4, ttag: r2t.ttag.get(), datao: 0, datal: 8 * 4096, last: true };
    io.send_data(&fields, &pattern(1, 8 * 4096)).await.unwrap();
    assert!(completion(&mut io).await.unwrap().status().is_success());
    for _ in 0..8 {
        io.send_command(&read_sqe(4, 0, 8), &[]).await.unwrap();
    }
    for _ in 0..8 {
        let (_, data) = soon("data", io.receive_response()).await.unwrap();
        assert!(data == pattern(1, 8 * 4096));
    }
    drop((io, host));
    scene.alone_again("identifiers used twice").await;
    scene.end().await;
}

/// Random bytes in every state, and random changes of what is right.
#[tokio::test]
async fn garbage() {
    let mut scene = Scene::new().await;
    let mut random = Random::new(42);
    for turn in 0..200 {
        let state = random.choose(&STATES);
        let digests = random.choose(&[NONE, BOTH]);
        let (mut connection, _host) = in_state(&scene, state, digests).await;
        let mut bytes = match turn % 3 {
            0 => {
                let length = 1 + random.below(5000) as usize;
                random.bytes(length).to_vec()
            }
            1 => connection.command_bytes(&inline_sqe(1, 0, 2), &[3; 8192]),
            _ => {
                let fields =
                    H2cDataFields { cccid: 9, ttag: 0, datao: 0, datal: 8 * 4096, last: true };
                connection.data_bytes(&fields, &vec![3; 8 * 4096])
            }
        };
        for _ in 0..1 + random.below(4) {
            let reach = if random.below(2) == 0 { 24.min(bytes.len()) } else { bytes.len() };
            let at = random.below(reach as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        let _ = connection.send(&bytes).await;
        let _ = tokio::time::timeout(Duration::from_millis(2), connection.receive()).await;
        if turn % 2 == 0 {
            let _ = connection.reset();
        }
        if turn % 20 == 0 {
            scene.undisturbed("garbage").await;
        }
    }
    scene.alone_again("garbage").await;
    scene.end().await;
}

/// What the target says about an error reaches a host that goes on sending for a while.
#[tokio::test]
async fn the_reason_reaches_a_host_that_is_still_sending() {
    let mut scene = Scene::new().await;
    for _ in 0..10 {
        let (mut io, _host) = in_state(&scene, State::Io, NONE).await;
        let mut bytes = io.command_bytes(&read_sqe(1, 0, 1), &[]);
        bytes[2] = 70;
        bytes.resize(64 * 1024, 0);
        io.send(&bytes).await.unwrap();
        assert_eq!(terminated(&mut io, "a bad header").await.0, HEADER_FIELD);
        assert!(matches!(soon("the end", io.receive()).await, Err(Error::Closed | Error::Io(_))));
    }
    scene.alone_again("errors while sending").await;
    scene.end().await;
}
