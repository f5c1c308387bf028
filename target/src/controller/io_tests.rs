use super::super::subsystem::{Deallocation, Hosts};
use super::*;
use proptest::prelude::*;
use raidfabric_protocol::fabrics::command::{Authentication, Connect};
use raidfabric_protocol::fabrics::{FabricsCommand, PropertySize};
use raidfabric_protocol::nvme::io::{DsmAttributes, IoOpcode};
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::SqeFlags;
use zerocopy::IntoBytes;

const MIB: u32 = 1 << 20;

fn namespace(nsid: u32, block_size_bytes: u32, size_blocks: u64) -> Namespace {
    Namespace {
        nsid,
        block_size_bytes,
        size_blocks,
        nguid: [1; 16],
        uuid: [1; 16],
        volatile_cache: true,
        ready: true,
        deallocation: Deallocation::default(),
        write_granularity_bytes: 0,
        optimal_write_bytes: 0,
        stripe_bytes: 0,
    }
}

/// Namespace 1 has 1000 blocks of 4096 bytes, namespace 2 has 2^40 of 512.
fn subsystem() -> Subsystem {
    let namespaces = vec![namespace(1, 4096, 1000), namespace(2, 512, 1 << 40)];
    let nqn = "nqn.2026-11.io.raidfabric:fast".to_owned();
    Subsystem::new(nqn, "s".into(), Hosts::Any, Limits::default(), namespaces).unwrap()
}

fn range(nsid: u32, slba: u64, blocks: u32) -> BlockRange {
    BlockRange {
        nsid,
        slba,
        blocks,
        fua: false,
        limited_retry: false,
        prinfo: Prinfo::default(),
        storage_tag_check: false,
    }
}

fn parse_with(command: IoCommand, dptr: Sgl, capsule_bytes: u32) -> Result<IoRequest, Status> {
    parse(&Sqe { dptr, ..command.to_sqe(1) }, capsule_bytes, &subsystem())
}

fn read(range: BlockRange, bytes: u32) -> Result<IoRequest, Status> {
    parse_with(IoCommand::Read(range), Sgl::transport(bytes), 0)
}

fn write(range: BlockRange, dptr: Sgl, capsule_bytes: u32) -> Result<IoRequest, Status> {
    parse_with(IoCommand::Write { range, directive: 0 }, dptr, capsule_bytes)
}

fn refused(code: Generic) -> Result<IoRequest, Status> {
    Err(code.into())
}

#[test]
fn a_read_becomes_a_byte_range() {
    let expected =
        IoRequest::Read { nsid: 1, offset_bytes: 40_960, length_bytes: 8192, fua: false };
    assert_eq!(read(range(1, 10, 2), 8192), Ok(expected));
    let far = IoRequest::Read {
        nsid: 2,
        offset_bytes: ((1 << 40) - 1) << 9,
        length_bytes: 512,
        fua: true,
    };
    let fua = BlockRange { fua: true, ..range(2, (1 << 40) - 1, 1) };
    assert_eq!(read(fua, 512), Ok(far));
}

#[test]
fn a_write_says_where_its_data_is() {
    let inline = DataIn::InCapsule { offset_bytes: 0, length_bytes: 8192 };
    let expected = IoRequest::Write { nsid: 1, offset_bytes: 4096, data: inline, fua: false };
    assert_eq!(write(range(1, 1, 2), Sgl::in_capsule(0, 8192), 8192), Ok(expected));
    let fetched = DataIn::Transport { length_bytes: 8192 };
    let expected = IoRequest::Write { nsid: 1, offset_bytes: 4096, data: fetched, fua: true };
    let fua = BlockRange { fua: true, ..range(1, 1, 2) };
    assert_eq!(write(fua, Sgl::transport(8192), 0), Ok(expected));
}

#[test]
fn namespaces_must_exist() {
    for nsid in [0, 3, NSID_ALL] {
        let unknown = refused(Generic::InvalidNamespaceOrFormat);
        assert_eq!(read(range(nsid, 0, 1), 4096), unknown, "{nsid:#x}");
        assert_eq!(write(range(nsid, 0, 1), Sgl::transport(4096), 0), unknown, "{nsid:#x}");
    }
    let flush = |nsid| parse_with(IoCommand::Flush { nsid }, Sgl::default(), 0);
    assert_eq!(flush(1), Ok(IoRequest::Flush(Flush::One(1))));
    assert_eq!(flush(NSID_ALL), Ok(IoRequest::Flush(Flush::All)));
    assert_eq!(flush(0), refused(Generic::InvalidNamespaceOrFormat));
    assert_eq!(flush(3), refused(Generic::InvalidNamespaceOrFormat));
}

#[test]
fn ranges_must_lie_in_the_namespace() {
    let out = refused(Generic::LbaOutOfRange);
    assert!(read(range(1, 999, 1), 4096).is_ok());
    assert_eq!(read(range(1, 1000, 1), 4096), out);
    assert_eq!(read(range(1, 999, 2), 8192), out);
    assert_eq!(read(range(1, u64::MAX, 1), 4096), out);
    assert_eq!(read(range(1, u64::MAX, 65_536), 4096), out);
    let zeroes = |slba, blocks| {
        let command = IoCommand::WriteZeroes { range: range(1, slba, blocks), deallocate: true };
        parse_with(command, Sgl::default(), 0)
    };
    assert_eq!(zeroes(1, 1000), out);
    let expected = IoRequest::WriteZeroes {
        nsid: 1,
        offset_bytes: 0,
        length_bytes: 4_096_000,
        deallocate: true,
        fua: false,
    };
    assert_eq!(zeroes(0, 1000), Ok(expected), "more than the largest transfer: no data moves");
}

#[test]
fn a_transfer_has_a_limit() {
    assert!(read(range(1, 0, 256), MIB).is_ok());
    assert_eq!(read(range(1, 0, 257), MIB + 4096), refused(Generic::InvalidField));
    assert!(read(range(2, 0, 2048), MIB).is_ok());
    assert_eq!(read(range(2, 0, 65_536), 32 * MIB), refused(Generic::InvalidField));
}

#[test]
fn the_data_is_as_long_as_the_blocks() {
    let wrong = refused(Generic::DataSglLengthInvalid);
    for bytes in [0, 512, 4095, 4097, 8192, u32::MAX] {
        assert_eq!(read(range(1, 0, 1), bytes), wrong, "{bytes}");
        assert_eq!(write(range(1, 0, 1), Sgl::transport(bytes), 0), wrong, "{bytes}");
    }
    assert_eq!(write(range(1, 0, 1), Sgl::in_capsule(0, 4096), 4095), wrong, "capsule too short");
    assert_eq!(
        write(range(1, 0, 1), Sgl::in_capsule(4097, 4096), 4096),
        refused(Generic::SglOffsetInvalid)
    );
}

#[test]
fn data_pointers_that_are_not_of_this_transport() {
    let kind = refused(Generic::SglDescriptorTypeInvalid);
    let in_capsule = Sgl::in_capsule(0, 4096);
    assert_eq!(parse_with(IoCommand::Read(range(1, 0, 1)), in_capsule, 4096), kind);
    for id in (0..=255u8).filter(|id| ![0x01, 0x5A].contains(id)) {
        use raidfabric_protocol::nvme::sgl::SglIdentifier;
        let dptr = Sgl { identifier: SglIdentifier::from_raw(id), ..Sgl::transport(4096) };
        assert_eq!(write(range(1, 0, 1), dptr, 4096), kind, "{id:#x}");
    }
    let mut prp = Sqe { dptr: Sgl::transport(4096), ..IoCommand::Read(range(1, 0, 1)).to_sqe(1) };
    prp.flags = SqeFlags::default();
    assert_eq!(parse(&prp, 0, &subsystem()), refused(Generic::InvalidField));
}

#[test]
fn protection_and_directives_are_not_ignored_silently() {
    let protected = [
        BlockRange { prinfo: Prinfo::default().with_pract(true), ..range(1, 0, 1) },
        BlockRange { prinfo: Prinfo::default().with_prchk(1), ..range(1, 0, 1) },
        BlockRange { storage_tag_check: true, ..range(1, 0, 1) },
    ];
    let status = Err(Nvm::InvalidProtectionInformation.into());
    for range in protected {
        assert_eq!(read(range, 4096), status);
        assert_eq!(write(range, Sgl::transport(4096), 0), status);
        let zeroes = IoCommand::WriteZeroes { range, deallocate: false };
        assert_eq!(parse_with(zeroes, Sgl::default(), 0), status);
    }
    let directed = IoCommand::Write { range: range(1, 0, 1), directive: 1 };
    let answer = parse_with(directed, Sgl::transport(4096), 0);
    assert_eq!(answer, refused(Generic::InvalidField));
}

#[test]
fn limited_retry_is_a_wish() {
    let wish = BlockRange { limited_retry: true, ..range(1, 0, 1) };
    assert!(read(wish, 4096).is_ok());
}

#[test]
fn other_commands_are_invalid_opcodes_and_fused_ones_are_refused() {
    for opcode in (0..=255u8).filter(|&opcode| opcode != FABRICS_OPCODE) {
        let mut sqe = Sqe { dptr: Sgl::transport(4096), ..Sqe::new(opcode, 1) };
        sqe.nsid = 1.into();
        let answer = parse(&sqe, 0, &subsystem());
        if IoOpcode::from_raw(opcode).is_some() {
            assert!(answer.is_ok(), "{opcode:#x}: {answer:?}");
        } else {
            assert_eq!(answer, refused(Generic::InvalidOpcode), "{opcode:#x}");
        }
    }
    // Compare and Write, as ESXi would lock with it if it were advertised.
    for (opcode, fuse) in [(0x01, 2), (0x02, 1)] {
        let mut sqe = Sqe { dptr: Sgl::transport(4096), ..Sqe::new(opcode, 1) };
        sqe.nsid = 1.into();
        sqe.flags = sqe.flags.with_fuse(fuse);
        assert_eq!(parse(&sqe, 0, &subsystem()), refused(Generic::InvalidField));
    }
}

#[test]
fn fabrics_commands_on_an_io_queue() {
    let on_io = |command: FabricsCommand| parse(&command.to_sqe(1), 0, &subsystem());
    assert_eq!(on_io(FabricsCommand::Disconnect { recfmt: 0 }), Ok(IoRequest::Disconnect));
    assert_eq!(
        on_io(FabricsCommand::Disconnect { recfmt: 1 }),
        Err(CommandSpecific::ConnectIncompatibleFormat.into())
    );
    let connect = FabricsCommand::Connect(Connect::new(1, 31, 0));
    assert_eq!(on_io(connect), refused(Generic::CommandSequenceError));
    let message = Authentication { secp: 0, spsp0: 0, spsp1: 0, length_bytes: 0 };
    let size = PropertySize::Four;
    for command in [
        FabricsCommand::PropertyGet { offset: 0x14, size },
        FabricsCommand::PropertySet { offset: 0x14, size, value: 0 },
        FabricsCommand::AuthenticationSend(message),
        FabricsCommand::AuthenticationReceive(message),
    ] {
        assert_eq!(on_io(command), refused(Generic::InvalidOpcode));
    }
}

fn dsm(ranges: u16, deallocate: bool, dptr: Sgl) -> Result<IoRequest, Status> {
    let attributes = DsmAttributes::default().with_ad(deallocate);
    parse_with(IoCommand::DatasetManagement { nsid: 1, ranges, attributes }, dptr, 4096)
}

#[test]
fn dataset_management_brings_room_for_its_ranges() {
    let data = DataIn::Transport { length_bytes: 32 };
    let expected = IoRequest::DatasetManagement { nsid: 1, ranges: 2, deallocate: true, data };
    assert_eq!(dsm(2, true, Sgl::transport(32)), Ok(expected));
    // Linux sends 4096 bytes for one range, too.
    assert!(dsm(1, true, Sgl::in_capsule(0, 4096)).is_ok());
    assert!(dsm(256, true, Sgl::transport(4096)).is_ok());
    let wrong = refused(Generic::DataSglLengthInvalid);
    assert_eq!(dsm(2, true, Sgl::transport(31)), wrong);
    assert_eq!(dsm(1, true, Sgl::transport(4097)), wrong);
    assert_eq!(dsm(1, true, Sgl::transport(u32::MAX)), wrong);
    assert!(matches!(
        dsm(1, false, Sgl::transport(16)),
        Ok(IoRequest::DatasetManagement { deallocate: false, .. })
    ));
}

fn dsm_list(list: &[(u64, u32)]) -> Vec<u8> {
    let entry = |&(slba, nlb): &(u64, u32)| DsmRange {
        cattr: 0.into(),
        nlb: nlb.into(),
        slba: slba.into(),
    };
    list.iter().flat_map(|range| entry(range).as_bytes().to_vec()).collect()
}

#[test]
fn dataset_ranges_become_byte_ranges() {
    let namespace = namespace(1, 4096, 1000);
    let mut data = dsm_list(&[(0, 1), (10, 0), (990, 10), (0, u32::MAX)]);
    let ranges = |data: &[u8], count| {
        dsm_ranges(data, count, &namespace).map(|ranges| ranges.collect::<Vec<_>>())
    };
    // The fourth is not part of the list, whatever it says.
    assert_eq!(ranges(&data, 3), Ok(vec![(0, 4096), (990 * 4096, 40_960)]));
    // All or nothing.
    assert_eq!(ranges(&data, 4), Err(Generic::LbaOutOfRange.into()));
    assert_eq!(ranges(&data, 5), Err(Generic::DataSglLengthInvalid.into()));
    data.truncate(63);
    assert_eq!(ranges(&data, 4), Err(Generic::DataSglLengthInvalid.into()));
    let beyond = dsm_list(&[(1001, 0)]);
    assert_eq!(ranges(&beyond, 1), Err(Generic::LbaOutOfRange.into()), "even if it is empty");
}

#[test]
fn offsets_of_the_largest_namespace_do_not_overflow() {
    let huge = namespace(1, 65_536, 1 << 47);
    let list = dsm_list(&[((1 << 47) - 1, 1), (u64::MAX, u32::MAX)]);
    let ranges: Vec<_> = dsm_ranges(&list, 1, &huge).unwrap().collect();
    assert_eq!(ranges, [((1 << 63) - 65_536, 65_536)]);
    assert!(dsm_ranges(&list, 2, &huge).is_err());
}

proptest! {
    #[test]
    fn what_passes_is_inside(
        bytes: [u8; 64], opcode in 0u8..12, nsid in 0u32..4, slba in 0u64..1100,
        capsule_bytes in 0u32..9000, near: bool,
    ) {
        let mut sqe = Sqe::from_bytes(bytes);
        sqe.opcode = opcode;
        if near {
            sqe.flags = SqeFlags::from_raw(0x40);
            sqe.nsid = nsid.into();
            (sqe.cdw10, sqe.cdw11) = ((slba as u32).into(), 0.into());
            sqe.cdw12 = (sqe.cdw12.get() & 0xC200_000F).into();
            let shift = if nsid == 1 { 12 } else { 9 };
            let length = ((sqe.cdw12.get() & 0xF) + 1) << shift;
            sqe.dptr = if capsule_bytes % 2 == 0 {
                Sgl::transport(length)
            } else {
                Sgl::in_capsule(0, length)
            };
        }
        let subsystem = subsystem();
        let Ok(request) = parse(&sqe, capsule_bytes, &subsystem) else { return Ok(()) };
        let inside = |nsid: u32, offset: u64, length: u64| {
            let namespace = subsystem.namespace(nsid).unwrap();
            let block = u64::from(namespace.block_size_bytes);
            length > 0
                && offset.is_multiple_of(block)
                && length.is_multiple_of(block)
                && u128::from(offset) + u128::from(length) <= namespace.size_bytes()
        };
        let in_capsule = |data: DataIn| match data {
            DataIn::InCapsule { offset_bytes, length_bytes } => {
                offset_bytes + length_bytes <= capsule_bytes
            }
            DataIn::Transport { .. } => true,
        };
        let right = match request {
            IoRequest::Read { nsid, offset_bytes, length_bytes, .. } => {
                length_bytes <= MIB && inside(nsid, offset_bytes, length_bytes.into())
            }
            IoRequest::Write { nsid, offset_bytes, data, .. } => {
                data.length_bytes() <= MIB
                    && in_capsule(data)
                    && inside(nsid, offset_bytes, data.length_bytes().into())
            }
            IoRequest::WriteZeroes { nsid, offset_bytes, length_bytes, .. } => {
                inside(nsid, offset_bytes, length_bytes)
            }
            IoRequest::DatasetManagement { ranges, data, .. } => {
                in_capsule(data) && data.length_bytes() >= u32::from(ranges) * 16
            }
            IoRequest::Flush(_) | IoRequest::Disconnect => true,
        };
        prop_assert!(right, "{request:?}");
    }

    #[test]
    fn random_range_lists_stay_inside(
        data in proptest::collection::vec(any::<u8>(), 0..4200), ranges in 1u16..=256,
    ) {
        let namespace = namespace(1, 512, u64::MAX >> 12);
        if let Ok(list) = dsm_ranges(&data, ranges, &namespace) {
            for (offset, length) in list {
                prop_assert!(u128::from(offset) + u128::from(length) <= namespace.size_bytes());
            }
        }
    }
}
