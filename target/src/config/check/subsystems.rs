//! `subsystems:`: NQNs, hosts, serial numbers, and the ranges of the namespaces.

use raidfabric_protocol::fabrics::nqn;

use super::{Findings, KIB};
use crate::config::error::closest;
use crate::config::raw;
use crate::config::source::At;
use crate::config::types::{Array, Hosts, Namespace, Subsystem};
use crate::config::units;

/// Length of the serial number in Identify Controller (NVMe Base 2.1, "Identify
/// Controller Data Structure").
const MAX_SERIAL_BYTES: usize = 20;
/// The highest NSID that is served: the changed-namespace list then always
/// suffices (NVMe Base 2.1, "Changed Attached Namespace List").
const MAX_NSID: u64 = 1024;
/// What every offset and size of a namespace is a multiple of.
const GRAIN_BYTES: u64 = 4 * KIB;

/// The subsystems; where a value is wrong, a harmless one stands.
pub(super) fn check(
    file: &raw::File,
    arrays: &[Array],
    findings: &mut Findings<'_>,
) -> Vec<Subsystem> {
    let at = At::root().key("subsystems");
    if file.subsystems.is_empty() {
        findings.error(
            &at,
            "there is no subsystem",
            "hosts connect to subsystems; describe one: nqn, hosts, namespaces",
        );
    }
    let mut ranges = Ranges::default();
    let mut checked: Vec<Subsystem> = Vec::new();
    for (i, subsystem) in file.subsystems.iter().enumerate() {
        let at = at.index(i);
        subsystem_nqn(&at.key("nqn"), &subsystem.nqn, &checked, findings);
        serial(&at.key("serial"), subsystem, &file.subsystems[..i], findings);
        let hosts = hosts(&at.key("hosts"), &subsystem.hosts, findings);
        let namespaces =
            namespaces(&at.key("namespaces"), subsystem, arrays, &mut ranges, findings);
        checked.push(Subsystem {
            nqn: subsystem.nqn.clone(),
            hosts,
            serial: subsystem.serial.clone(),
            namespaces,
        });
    }
    for (i, array) in arrays.iter().enumerate() {
        let is_leaf = arrays.iter().any(|other| other.leaves.contains(&i));
        if !is_leaf && !ranges.0.iter().any(|range| range.array == i) {
            findings.warn(
                &At::root().key("arrays").index(i).key("name"),
                format!("array `{}` is assembled, but no namespace exports it", array.name),
                "name it in a subsystem's namespaces, or remove it",
            );
        }
    }
    checked
}

fn subsystem_nqn(at: &At, nqn: &str, earlier: &[Subsystem], findings: &mut Findings<'_>) {
    if let Err(fault) = nqn::validate(nqn) {
        findings.error(at, format!("`{nqn}` is not an NVMe Qualified Name"), fault.to_string());
    } else if nqn == nqn::DISCOVERY_NQN {
        findings.error(
            at,
            "this NQN belongs to the discovery subsystem, which is always there",
            "choose a name of your own, as in nqn.2026-11.org.example:name",
        );
    } else if earlier.iter().any(|subsystem| subsystem.nqn == nqn) {
        findings.error(
            at,
            format!("there are two subsystems with the NQN `{nqn}`"),
            "give one of them another, or put the namespaces into one subsystem",
        );
    }
}

fn serial(
    at: &At,
    subsystem: &raw::Subsystem,
    earlier: &[raw::Subsystem],
    findings: &mut Findings<'_>,
) {
    let Some(serial) = &subsystem.serial else { return };
    let printable = serial.bytes().all(|c| (0x20..=0x7e).contains(&c));
    if serial.is_empty() || serial.len() > MAX_SERIAL_BYTES || !printable || serial.trim() != serial
    {
        findings.error(
            at,
            format!("`{serial}` cannot be a serial number"),
            format!("it is 1 to {MAX_SERIAL_BYTES} printable ASCII characters without blanks at its ends"),
        );
    } else if earlier.iter().any(|other| other.serial.as_ref() == Some(serial)) {
        findings.error(
            at,
            format!("there are two subsystems with the serial number `{serial}`"),
            "hosts tell drives apart by it; give one of them another, or none",
        );
    }
}

fn hosts(at: &At, hosts: &raw::Hosts, findings: &mut Findings<'_>) -> Hosts {
    let raw::Hosts::List(list) = hosts else {
        findings.warn(
            at,
            "whoever reaches the target can read and write these namespaces",
            "list the NQNs of the hosts: each host has its own in /etc/nvme/hostnqn",
        );
        return Hosts::Any;
    };
    if list.is_empty() {
        findings.error(
            at,
            "no host may connect",
            "list the hosts' NQNs (/etc/nvme/hostnqn there), or say `any`",
        );
    }
    for (i, nqn) in list.iter().enumerate() {
        if let Err(fault) = nqn::validate(nqn) {
            let help = match nqn.as_str() {
                "any" => "write `hosts: any`, without brackets".to_owned(),
                _ => fault.to_string(),
            };
            findings.error(&at.index(i), format!("`{nqn}` is not an NVMe Qualified Name"), help);
        } else if list[..i].contains(nqn) {
            findings.error(
                &at.index(i),
                format!("host `{nqn}` is listed twice"),
                "remove one of the two",
            );
        }
    }
    Hosts::Only(list.clone())
}

fn namespaces(
    at: &At,
    subsystem: &raw::Subsystem,
    arrays: &[Array],
    ranges: &mut Ranges,
    findings: &mut Findings<'_>,
) -> Vec<Namespace> {
    if subsystem.namespaces.is_empty() {
        findings.error(at, "this subsystem has no namespace", "add one: { nsid: 1, array: NAME }");
    }
    let mut checked: Vec<Namespace> = Vec::new();
    for (i, namespace) in subsystem.namespaces.iter().enumerate() {
        let at = at.index(i);
        let nsid = nsid(&at.key("nsid"), namespace.nsid, &checked, findings);
        let array = array_index(&at.key("array"), &namespace.array, arrays, findings);
        let block_size_bytes = block_size(&at.key("block_size"), namespace, findings);
        let offset_bytes =
            grained(&at.key("offset"), namespace.offset.as_ref(), findings).unwrap_or(0);
        let size_bytes = grained(&at.key("size"), namespace.size.as_ref(), findings);
        if size_bytes == Some(0) {
            findings.error(
                &at.key("size"),
                "a namespace cannot be empty",
                "give it a size, or leave `size` away to use the rest of the array",
            );
        }
        let Some(array) = array else { continue };
        let namespace = Namespace { nsid, array, block_size_bytes, offset_bytes, size_bytes };
        ranges.add(&at, &subsystem.nqn, &namespace, arrays, findings);
        checked.push(namespace);
    }
    checked
}

fn nsid(at: &At, nsid: u64, earlier: &[Namespace], findings: &mut Findings<'_>) -> u32 {
    if !(1..=MAX_NSID).contains(&nsid) {
        let message = match nsid {
            0 => "a namespace cannot have the identifier 0".to_owned(),
            other => format!("the namespace identifier {other} is too large"),
        };
        findings.error(at, message, format!("use 1 to {MAX_NSID}"));
    } else if earlier.iter().any(|namespace| u64::from(namespace.nsid) == nsid) {
        findings.error(
            at,
            format!("there are two namespaces {nsid} in this subsystem"),
            "give one of them another `nsid`",
        );
    }
    u32::try_from(nsid).unwrap_or(0)
}

fn array_index(
    at: &At,
    name: &str,
    arrays: &[Array],
    findings: &mut Findings<'_>,
) -> Option<usize> {
    let found = arrays.iter().position(|array| array.name == name);
    if found.is_none() {
        let names: Vec<&str> = arrays.iter().map(|array| array.name.as_str()).collect();
        let help = match closest(name, names.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`? Arrays here: {}", names.join(", ")),
            None => format!("arrays here: {}", names.join(", ")),
        };
        findings.error(at, format!("there is no array `{name}`"), help);
    }
    let over = |index: &usize| arrays.iter().find(|array| array.leaves.contains(index));
    if let Some(outer) = found.as_ref().and_then(over) {
        findings.error(
            at,
            format!("array `{name}` is a part of array `{}`, whose data it holds", outer.name),
            format!("export `{}`, or remove `array:{name}` from its members", outer.name),
        );
    }
    found
}

fn block_size(at: &At, namespace: &raw::Namespace, findings: &mut Findings<'_>) -> u32 {
    match findings.size(at, namespace.block_size.as_ref()) {
        Some(512) => 512,
        None | Some(4096) => 4096,
        Some(other) => {
            findings.error(
                at,
                format!("a block size of {} is not served", units::format_bytes(other)),
                "use 4096 (the default), or 512 where a host needs it",
            );
            4096
        }
    }
}

fn grained(at: &At, size: Option<&raw::Size>, findings: &mut Findings<'_>) -> Option<u64> {
    let bytes = findings.size(at, size)?;
    if !bytes.is_multiple_of(GRAIN_BYTES) {
        let below = bytes - bytes % GRAIN_BYTES;
        findings.error(
            at,
            format!("{bytes} bytes is not a multiple of 4096"),
            format!("the closest are {below} and {}", below.saturating_add(GRAIN_BYTES)),
        );
        return None;
    }
    Some(bytes)
}

/// The ranges of arrays that are exported so far, over all subsystems.
#[derive(Default)]
struct Ranges(Vec<Range>);

struct Range {
    array: usize,
    start: u64,
    end: u64,
    nqn: String,
    nsid: u32,
}

impl Ranges {
    /// Adds a namespace's range, and refuses it if it overlaps an earlier one: two
    /// hosts would change the same blocks, each with a cache of its own.
    fn add(
        &mut self,
        at: &At,
        nqn: &str,
        namespace: &Namespace,
        arrays: &[Array],
        findings: &mut Findings<'_>,
    ) {
        let start = namespace.offset_bytes;
        let end = match namespace.size_bytes {
            None => u64::MAX,
            Some(size) => match start.checked_add(size) {
                Some(end) => end,
                None => {
                    findings.error(
                        &at.key("size"),
                        "offset and size together are too large",
                        "no array is that large",
                    );
                    return;
                }
            },
        };
        let overlaps = |range: &&Range| {
            range.array == namespace.array && start < range.end && range.start < end
        };
        if let Some(other) = self.0.iter().find(overlaps) {
            let until = match other.end {
                u64::MAX => "to the array's end".to_owned(),
                end => format!("to {}", units::format_bytes(end)),
            };
            findings.error(
                at,
                format!(
                    "this range of array `{}` is namespace {} of `{}` already",
                    arrays.get(namespace.array).map_or("", |array| array.name.as_str()), other.nsid, other.nqn
                ),
                format!(
                    "that one reaches from {} {until}; give both an `offset` and a `size` so that they lie side by side",
                    units::format_bytes(other.start)
                ),
            );
        }
        self.0.push(Range {
            array: namespace.array,
            start,
            end,
            nqn: nqn.to_owned(),
            nsid: namespace.nsid,
        });
    }
}
