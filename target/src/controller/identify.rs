//! Identify: what the controller says about itself and its namespaces.
//!
//! Only what works is advertised: no Compare, Copy, Verify, Write Uncorrectable,
//! reservations, fused commands, metadata or protection information.
use super::Fault;
use super::events::REQUESTS_MAX;
use super::logs::ERROR_ENTRIES;
use super::properties::VERSION;
use super::subsystem::{Discovery, FIRMWARE, Limits, MODEL, Namespace, Subsystem};
use raidfabric_protocol::fabrics::nqn;
use raidfabric_protocol::nvme::admin::Identify;
use raidfabric_protocol::nvme::identify::*;
use raidfabric_protocol::nvme::sqe::SQE_BYTES;
use raidfabric_protocol::nvme::status::{Generic, Status};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Abort commands that may run at a time, 0's based.
const ACL: u8 = 3;

/// Bound of a shutdown in microseconds: hosts wait this long for SHST.
const SHUTDOWN_MICROSECONDS: u32 = 10_000_000;

/// Entry sizes as powers of two: 64 bytes and 16 bytes.
const SQES: u8 = 6;
const CQES: u8 = 4;

/// OAES of an I/O controller.
pub(super) fn io_events() -> Oaes {
    Oaes::default().with_namespace_attribute(true)
}

/// OAES of a discovery controller.
pub(super) fn discovery_events() -> Oaes {
    Oaes::default().with_discovery_change(true)
}

/// Fields that both kinds of controller have in common.
fn common(cntlid: u16, serial: &str, subsystem_nqn: &str, limits: &Limits) -> IdentifyController {
    let mut id = IdentifyController::default();
    put_ascii(&mut id.sn, serial);
    put_ascii(&mut id.mn, MODEL);
    put_ascii(&mut id.fr, FIRMWARE);
    id.cmic = Cmic::default().with_multi_port(true).with_multi_controller(true);
    // In units of the smallest page, 4 KiB.
    id.mdts = limits.max_transfer_bytes.ilog2().saturating_sub(12) as u8;
    id.cntlid = cntlid.into();
    id.ver = VERSION.raw().into();
    id.rtd3e = SHUTDOWN_MICROSECONDS.into();
    id.ctratt = Ctratt::default().with_hids(true);
    id.acl = ACL;
    id.aerl = (REQUESTS_MAX - 1) as u8;
    id.frmw = Frmw::default().with_slot_1_read_only(true).with_slots(1);
    id.lpa =
        Lpa::default().with_effects_log(true).with_extended_data(true).with_supported_logs(true);
    id.elpe = (ERROR_ENTRIES - 1) as u8;
    id.kas = super::keep_alive::GRANULARITY.into();
    id.sqes = EntrySizes::default().with_minimum(SQES).with_maximum(SQES);
    id.cqes = EntrySizes::default().with_minimum(CQES).with_maximum(CQES);
    id.maxcmd = limits.max_queue_entries.into();
    id.sgls = Sgls::default().with_support(1).with_offset(true).with_transport(true);
    if let Ok(field) = nqn::to_field(subsystem_nqn) {
        id.subnqn = field;
    }
    id.ioccsz = ((SQE_BYTES as u32 + limits.in_capsule_bytes) / 16).into();
    id.iorcsz = 1.into();
    id.msdbd = 1;
    id
}

/// CNS 01h of an I/O controller.
pub(super) fn io_controller(subsystem: &Subsystem, cntlid: u16) -> IdentifyController {
    let mut id = common(cntlid, &subsystem.serial, &subsystem.nqn, &subsystem.limits);
    let capacity: u128 = subsystem.namespaces().iter().map(Namespace::size_bytes).sum();
    id.cntrltype = ControllerType::Io.raw();
    id.oaes = io_events();
    id.wctemp = subsystem.warning_kelvin.into();
    id.cctemp = subsystem.critical_kelvin.into();
    id.tnvmcap = capacity.into();
    id.nn = subsystem.limits.max_nsid.into();
    id.oncs = Oncs::default()
        .with_dataset_management(true)
        .with_write_zeroes(true)
        .with_save_select(true);
    id.vwc = Vwc::default()
        .with_present(subsystem.has_volatile_cache())
        .with_flush_all(FlushAll::Supported.raw());
    id.ofcs = Ofcs::default().with_disconnect(true);
    id
}

/// CNS 01h of a discovery controller.
pub(super) fn discovery_controller(discovery: &Discovery, cntlid: u16) -> IdentifyController {
    let limits = Limits { in_capsule_bytes: 0, ..discovery.limits };
    let mut id = common(cntlid, &discovery.serial, nqn::DISCOVERY_NQN, &limits);
    id.cntrltype = ControllerType::Discovery.raw();
    id.oaes = discovery_events();
    id.oncs = Oncs::default().with_save_select(true);
    id
}

/// CNS 00h.
fn namespace(namespace: &Namespace) -> IdentifyNamespace {
    let mut id = IdentifyNamespace::default();
    let deallocation = &namespace.deallocation;
    id.nsze = namespace.size_blocks.into();
    id.ncap = id.nsze;
    // Nothing is thin here: all of it is in use.
    id.nuse = id.nsze;
    id.nmic = Nmic::default().with_shared(true);
    id.dlfeat = Dlfeat::default()
        .with_read_behaviour(u8::from(deallocation.reads_zeros))
        .with_write_zeroes_deallocates(deallocation.by_write_zeroes);
    id.noiob = namespace.io_boundary_blocks().into();
    id.nvmcap = namespace.size_bytes().into();
    let optimal = [
        namespace.write_granularity_bytes,
        namespace.optimal_write_bytes,
        deallocation.granularity_bytes,
    ];
    if optimal.iter().any(|&bytes| bytes != 0) {
        id.nsfeat = Nsfeat::default().with_optimal_io(true);
        id.npwg = namespace.zeros_based_blocks(namespace.write_granularity_bytes).into();
        id.npwa = id.npwg;
        id.npdg = namespace.zeros_based_blocks(deallocation.granularity_bytes).into();
        id.npda = id.npdg;
        id.nows = namespace.zeros_based_blocks(namespace.optimal_write_bytes).into();
    }
    id.nguid = namespace.nguid;
    // There is at least one format; the others stay zero.
    if let Some(format) = id.lbaf.first_mut() {
        format.lbads = namespace.block_shift() as u8;
    }
    id
}

/// CNS 08h.
fn independent(namespace: &Namespace) -> IndependentNamespace {
    IndependentNamespace {
        nmic: Nmic::default().with_shared(true),
        nstat: Nstat::default().with_nrdy(namespace.ready),
        ..IndependentNamespace::default()
    }
}

/// CNS 03h.
fn descriptors(namespace: &Namespace, out: &mut [u8]) {
    let ids = [
        (NamespaceIdType::Nguid, &namespace.nguid[..]),
        (NamespaceIdType::Uuid, &namespace.uuid[..]),
        (NamespaceIdType::Csi, &[CSI_NVM][..]),
    ];
    let mut at = 0;
    for (kind, id) in ids {
        at = put_namespace_id(out, at, kind, id).unwrap_or(at);
    }
}

/// CNS 02h and 07h: the NSIDs after `nsid`.
fn list(subsystem: &Subsystem, nsid: u32, out: &mut [u8]) -> Result<(), Fault> {
    if nsid >= NSID_ALL - 1 {
        return Err(Fault::nsid(Generic::InvalidNamespaceOrFormat.into()));
    }
    let after = subsystem.namespaces().iter().map(|ns| ns.nsid).filter(|&other| other > nsid);
    for (entry, nsid) in out.chunks_exact_mut(4).zip(after) {
        entry.copy_from_slice(U32::new(nsid).as_bytes());
    }
    Ok(())
}

/// The namespace asked for; `None` for an NSID that is valid but not in use.
fn find(subsystem: &Subsystem, nsid: u32) -> Result<Option<&Namespace>, Fault> {
    if nsid == 0 || nsid > subsystem.limits.max_nsid {
        return Err(Fault::nsid(Generic::InvalidNamespaceOrFormat.into()));
    }
    Ok(subsystem.namespace(nsid))
}

/// Fills `out`, which is zeros, for an I/O controller.
pub(super) fn serve_io(
    command: &Identify,
    subsystem: &Subsystem,
    cntlid: u16,
    out: &mut [u8; IDENTIFY_BYTES],
) -> Result<(), Fault> {
    let invalid_cns = || Fault::at(Generic::InvalidField.into(), Fault::CDW10);
    let cns = Cns::from_raw(command.cns).ok_or_else(invalid_cns)?;
    match cns {
        Cns::CommandSetNamespace | Cns::CommandSetController | Cns::CommandSetActiveNamespaces
            if command.csi != CSI_NVM =>
        {
            return Err(Fault::at(Generic::InvalidField.into(), Fault::CDW11 + 3));
        }
        _ => {}
    }
    let inactive: Status = Generic::InvalidNamespaceOrFormat.into();
    match cns {
        Cns::Controller => {
            out.copy_from_slice(io_controller(subsystem, cntlid).as_bytes());
        }
        Cns::Namespace => {
            if let Some(found) = find(subsystem, command.nsid)? {
                out.copy_from_slice(namespace(found).as_bytes());
            }
        }
        Cns::ActiveNamespaces | Cns::CommandSetActiveNamespaces => {
            list(subsystem, command.nsid, out)?;
        }
        Cns::NamespaceDescriptors => {
            let found = find(subsystem, command.nsid)?.ok_or(Fault::nsid(inactive))?;
            descriptors(found, out);
        }
        // No protection information: all zeros, for every namespace.
        Cns::CommandSetNamespace => {
            find(subsystem, command.nsid)?;
        }
        // No limits beyond those of the fields, and all zeros says so.
        Cns::CommandSetController => {}
        Cns::IndependentNamespace => {
            if let Some(found) = find(subsystem, command.nsid)? {
                out.copy_from_slice(independent(found).as_bytes());
            }
        }
    }
    Ok(())
}

/// Fills `out`, which is zeros, for a discovery controller.
pub(super) fn serve_discovery(
    command: &Identify,
    discovery: &Discovery,
    cntlid: u16,
    out: &mut [u8; IDENTIFY_BYTES],
) -> Result<(), Fault> {
    if Cns::from_raw(command.cns) != Some(Cns::Controller) {
        return Err(Fault::at(Generic::InvalidField.into(), Fault::CDW10));
    }
    out.copy_from_slice(discovery_controller(discovery, cntlid).as_bytes());
    Ok(())
}
