//! `subsystems:`: NQNs, hosts, serial numbers, and the ranges of the namespaces.

use super::{Findings, KIB};
use crate::config::error::closest;
use crate::config::raw;
use crate::config::source::At;
use crate::config::types::{Array, Hosts, Namespace, Subsystem};
use crate::config::units;

/// NQN of every discovery subsystem (NVMe Base 2.1, "Discovery Subsystem").
const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest NQN (NVMe Base 2.1, "NVMe Qualified Names").
const MAX_NQN_BYTES: usize = 223;
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
        if !ranges.0.iter().any(|range| range.array == i) {
            findings.warn(
                &At::root().key("arrays").index(i).key("name"),
                format!("array `{}` is assembled, but no namespace exports it", array.name),
                "name it in a subsystem's namespaces, or remove it",
            );
        }
    }
    checked
}

/// Why a text is not a valid NQN, if it is not.
fn nqn_fault(nqn: &str) -> Option<&'static str> {
    if nqn.len() > MAX_NQN_BYTES {
        return Some("an NQN has at most 223 bytes");
    }
    if !nqn.starts_with("nqn.") {
        return Some("an NQN begins with `nqn.`, as in nqn.2026-11.org.example:name");
    }
    if nqn.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Some("an NQN has no blanks and no control characters");
    }
    let date = nqn.get(4..12).map(str::as_bytes);
    let dated = date.is_some_and(|date| {
        date.iter().enumerate().all(|(i, c)| match i {
            4 => *c == b'-',
            7 => *c == b'.',
            _ => c.is_ascii_digit(),
        }) && (b"01"..=b"12").contains(&&[date[5], date[6]])
    });
    if !dated {
        return Some(
            "after `nqn.` stand year and month and a dot, as in nqn.2026-11.org.example:name",
        );
    }
    match nqn[12..].split_once(':') {
        _ if nqn[12..].is_empty() => {
            Some("after the date stands a reversed domain name, as in nqn.2026-11.org.example:name")
        }
        Some((domain, name)) if domain.is_empty() || name.is_empty() => {
            Some("before and after the colon stands a name, as in nqn.2026-11.org.example:name")
        }
        _ => None,
    }
}

fn subsystem_nqn(at: &At, nqn: &str, earlier: &[Subsystem], findings: &mut Findings<'_>) {
    if let Some(help) = nqn_fault(nqn) {
        findings.error(at, format!("`{nqn}` is not an NVMe Qualified Name"), help);
    } else if nqn == DISCOVERY_NQN {
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
        if let Some(help) = nqn_fault(nqn) {
            let help = if nqn == "any" { "write `hosts: any`, without brackets" } else { help };
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

#[cfg(test)]
mod tests {
    use super::nqn_fault;

    #[test]
    fn names_that_are_right() {
        for nqn in [
            "nqn.2026-11.io.raidfabric:fast",
            "nqn.2014-08.org.nvmexpress:uuid:1e57ab1e-0000-4000-8000-000000000001",
            "nqn.2014-08.com.vmware:nvme:host-1",
            "nqn.1994-11.com.samsung:nvme:PM1725",
            "nqn.2014-08.org.nvmexpress.discovery",
        ] {
            assert_eq!(nqn_fault(nqn), None, "{nqn}");
        }
    }

    #[test]
    fn names_that_are_wrong() {
        let long = format!("nqn.2026-11.org.example:{}", "x".repeat(200));
        for (nqn, why) in [
            ("", "begins with"),
            ("iqn.2026-11.org.example:x", "begins with"),
            ("nqn.2026-13.org.example:x", "year and month"),
            ("nqn.26-11.org.example:x", "year and month"),
            ("nqn.2026-11", "year and month"),
            ("nqn.2026-11.", "reversed domain"),
            ("nqn.2026-11.org.example:", "before and after"),
            ("nqn.2026-11.:x", "before and after"),
            ("nqn.2026-11.org.example:a b", "no blanks"),
            ("nqn.2026-1é.org", "year and month"),
            (long.as_str(), "at most 223"),
        ] {
            let fault = nqn_fault(nqn).expect(nqn);
            assert!(fault.contains(why), "{nqn}: {fault}");
        }
    }
}
