//! The meaning of the file: from texts to the typed [`Config`].
//!
//! Every check adds to one list and goes on, so that a file with five mistakes is
//! reported once and not five times. A value that is wrong is replaced by its
//! default for the checks that follow; since the list is then not empty, the
//! resulting configuration is never used.
//!
//! What needs the file system (does a drive exist, are two names one drive) is not
//! checked here but in `drives`.

mod addresses;
mod arrays;
mod composed;
mod conduct;
mod subsystems;

use std::path::PathBuf;
use std::time::Duration;

use super::error::Problem;
use super::raw;
use super::source::{self, At, Node};
use super::types::{Array, Config, CoreSelection, Limits, Memory, Ring};
use super::units;

/// Bytes in a KiB and a MiB.
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Mistakes and warnings of one file, collected while it is checked.
pub(super) struct Findings<'a> {
    tree: &'a Node,
    pub(super) errors: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(tree: &'a Node) -> Findings<'a> {
        Findings { tree, errors: Vec::new(), warnings: Vec::new() }
    }

    fn problem(&self, at: &At, message: String, help: String) -> Problem {
        Problem::new(source::locate(self.tree, at), message).help(help)
    }

    fn error(&mut self, at: &At, message: impl Into<String>, help: impl Into<String>) {
        self.errors.push(self.problem(at, message.into(), help.into()));
    }

    fn warn(&mut self, at: &At, message: impl Into<String>, help: impl Into<String>) {
        self.warnings.push(self.problem(at, message.into(), help.into()));
    }

    /// Bytes of a size, or `None` if it is absent or wrong.
    fn size(&mut self, at: &At, size: Option<&raw::Size>) -> Option<u64> {
        match units::size_bytes(size?) {
            Ok(bytes) => Some(bytes),
            Err(message) => {
                self.error(at, message, "a size is a number of bytes or has a unit: 64KiB");
                None
            }
        }
    }

    /// A size that must be within bounds and meet a condition.
    fn size_within(&mut self, at: &At, size: Option<&raw::Size>, rule: &SizeRule) -> u64 {
        let Some(bytes) = self.size(at, size) else { return rule.default };
        let in_range = (rule.min..=rule.max).contains(&bytes);
        let aligned = match rule.grain {
            Grain::PowerOfTwo => bytes.is_power_of_two(),
            Grain::MultipleOf(grain) => bytes.is_multiple_of(grain),
        };
        if in_range && aligned {
            return bytes;
        }
        let grain = match rule.grain {
            Grain::PowerOfTwo => "a power of two".to_owned(),
            Grain::MultipleOf(grain) => format!("a multiple of {}", units::format_bytes(grain)),
        };
        let (min, max) = (units::format_bytes(rule.min), units::format_bytes(rule.max));
        self.error(
            at,
            format!("{} of {} is not possible", rule.what, units::format_bytes(bytes)),
            format!("it must be {grain}, {min} to {max}"),
        );
        rule.default
    }

    /// A duration within bounds, or the default if it is absent or wrong.
    fn time(&mut self, at: &At, time: Option<&raw::Time>, rule: &TimeRule) -> Duration {
        let Some(raw::Time(text)) = time else { return rule.default };
        units::duration(text, rule.min, rule.max).unwrap_or_else(|message| {
            let default = match rule.default {
                Duration::ZERO => "off".to_owned(),
                default => humantime::format_duration(default).to_string(),
            };
            self.error(at, message, format!("the default is {default}"));
            rule.default
        })
    }

    /// A number within bounds, or the default if it is absent or wrong.
    fn number(&mut self, at: &At, what: &str, number: Option<u64>, rule: &NumberRule) -> u64 {
        let Some(number) = number else { return rule.default };
        let NumberRule { min, max, default, power_of_two } = *rule;
        if (min..=max).contains(&number) && (!power_of_two || number.is_power_of_two()) {
            return number;
        }
        let kind = if power_of_two { "a power of two, " } else { "" };
        self.error(
            at,
            format!("{what} of {number} is not possible"),
            format!("it must be {kind}{min} to {max}; the default is {default}"),
        );
        default
    }
}

enum Grain {
    PowerOfTwo,
    MultipleOf(u64),
}

struct SizeRule {
    what: &'static str,
    min: u64,
    max: u64,
    default: u64,
    grain: Grain,
}

struct TimeRule {
    min: Duration,
    max: Duration,
    default: Duration,
}

struct NumberRule {
    min: u64,
    max: u64,
    default: u64,
    power_of_two: bool,
}

const BUSY_POLL: TimeRule = TimeRule {
    min: Duration::from_micros(1),
    max: Duration::from_millis(10),
    default: Duration::from_micros(50),
};
const REPLY_TIMEOUT: TimeRule = TimeRule {
    min: Duration::from_secs(1),
    max: Duration::from_secs(3600),
    default: Duration::from_secs(30),
};
const CAPSULE: SizeRule = SizeRule {
    what: "a capsule budget",
    min: MIB,
    max: MIB << 20,
    default: 32 * MIB,
    grain: Grain::MultipleOf(4 * KIB),
};
const TRANSFER: SizeRule = SizeRule { what: "a transfer budget", default: 128 * MIB, ..CAPSULE };
const IN_CAPSULE: SizeRule = SizeRule {
    what: "in-capsule data",
    min: 0,
    max: 64 * KIB,
    default: 16 * KIB,
    grain: Grain::MultipleOf(4 * KIB),
};
const MAX_TRANSFER: SizeRule = SizeRule {
    what: "a largest transfer",
    min: MIB,
    max: 32 * MIB,
    default: MIB,
    grain: Grain::PowerOfTwo,
};
// The depth counts commands, and a queue has one entry more (NVMe Base 2.1,
// "Full Queue"); CAP.MQES allows 65,536 entries and a host needs more than one.
const QUEUE_DEPTH: NumberRule =
    NumberRule { min: 15, max: 65_535, default: 1023, power_of_two: false };
const IO_QUEUES: NumberRule = NumberRule { min: 1, max: 128, default: 64, power_of_two: false };
const RING_ENTRIES: NumberRule =
    NumberRule { min: 64, max: 32_768, default: 1024, power_of_two: true };
/// The control socket's name beside the daemon's state.
pub(super) const SOCKET_NAME: &str = "control.sock";
/// More cores than any machine has.
const MAX_CORE: u64 = 4095;

/// Checks everything and builds the configuration; it is only right if the findings
/// hold no error.
pub(super) fn check(file: &raw::File, findings: &mut Findings<'_>) -> Config {
    let root = At::root();
    let arrays = arrays::check(&file.arrays, findings);
    let subsystems = subsystems::check(file, &arrays, findings);
    let (listen, discovery) = addresses::check(file, findings);
    let max_transfer_bytes =
        findings.size_within(&root.key("max_transfer"), file.max_transfer.as_ref(), &MAX_TRANSFER);
    let limits = Limits {
        queue_depth: findings.number(
            &root.key("queue_depth"),
            "a queue depth",
            file.queue_depth,
            &QUEUE_DEPTH,
        ) as u32,
        io_queues: findings.number(
            &root.key("io_queues"),
            "a number of I/O queues",
            file.io_queues,
            &IO_QUEUES,
        ) as u16,
        in_capsule_bytes: findings.size_within(
            &root.key("in_capsule"),
            file.in_capsule.as_ref(),
            &IN_CAPSULE,
        ) as u32,
        max_transfer_bytes: max_transfer_bytes as u32,
    };
    let in_memory = arrays.iter().all(Array::is_memory);
    let state_dir = state_dir(file.state_dir.as_deref(), findings);
    Config {
        arrays,
        subsystems,
        listen,
        discovery,
        cores: cores(file.cores.as_ref(), findings),
        busy_poll: busy_poll(file.busy_poll.as_ref(), findings),
        reply_timeout: findings.time(
            &root.key("reply_timeout"),
            file.reply_timeout.as_ref(),
            &REPLY_TIMEOUT,
        ),
        memory: memory(file.memory.as_ref(), &limits, findings),
        limits,
        ring: ring(file.ring.as_ref(), findings),
        control_socket: control_socket(file, &state_dir, in_memory, findings),
        state_dir,
    }
}

/// Where commands reach the daemon: beside its state, unless the file says otherwise. What is in
/// memory only leaves no trace unasked.
fn control_socket(
    file: &raw::File,
    state_dir: &std::path::Path,
    in_memory: bool,
    findings: &mut Findings<'_>,
) -> Option<PathBuf> {
    let given = file.control.as_ref().and_then(|control| control.socket.as_deref());
    let Some(text) = given else {
        return (!in_memory).then(|| state_dir.join(SOCKET_NAME));
    };
    if text.eq_ignore_ascii_case("off") {
        return None;
    }
    let path = PathBuf::from(text);
    if !path.is_absolute() || path.file_name().is_none() {
        findings.error(
            &At::root().key("control").key("socket"),
            format!("`{text}` is not an absolute path of a socket"),
            format!("write the path from / on, as in /run/raidfabric/{SOCKET_NAME}, or `off`"),
        );
    }
    Some(path)
}

fn cores(cores: Option<&raw::Cores>, findings: &mut Findings<'_>) -> CoreSelection {
    let Some(raw::Cores::List(list)) = cores else { return CoreSelection::Auto };
    let at = At::root().key("cores");
    if list.is_empty() {
        findings.error(&at, "no core is listed", "list at least one, as in [1, 2], or say `auto`");
    }
    let mut chosen: Vec<usize> = Vec::new();
    for (i, core) in list.iter().enumerate() {
        let number = usize::try_from(*core).ok().filter(|_| *core <= MAX_CORE);
        match number {
            None => findings.error(
                &at.index(i),
                format!("there is no core {core}"),
                format!("cores are numbered from 0 to at most {MAX_CORE}"),
            ),
            Some(number) if chosen.contains(&number) => findings.error(
                &at.index(i),
                format!("core {number} is listed twice"),
                "a core runs one data thread; remove one of the two",
            ),
            Some(number) => chosen.push(number),
        }
    }
    CoreSelection::List(chosen)
}

fn state_dir(text: Option<&str>, findings: &mut Findings<'_>) -> PathBuf {
    let path = PathBuf::from(text.unwrap_or(super::DEFAULT_STATE_DIR));
    if !path.is_absolute() {
        findings.error(
            &At::root().key("state_dir"),
            format!("`{}` is not an absolute path", path.display()),
            "the daemon has no working directory to rely on; write the path from / on",
        );
    }
    path
}

fn busy_poll(time: Option<&raw::Time>, findings: &mut Findings<'_>) -> Option<Duration> {
    if time.is_some_and(|raw::Time(text)| text.eq_ignore_ascii_case("off")) {
        return None;
    }
    Some(findings.time(&At::root().key("busy_poll"), time, &BUSY_POLL))
}

fn memory(memory: Option<&raw::Memory>, limits: &Limits, findings: &mut Findings<'_>) -> Memory {
    let at = At::root().key("memory");
    let capsule = memory.and_then(|memory| memory.capsule.as_ref());
    let transfer = memory.and_then(|memory| memory.transfer.as_ref());
    let capsule_bytes = findings.size_within(&at.key("capsule"), capsule, &CAPSULE);
    let transfer_bytes = findings.size_within(&at.key("transfer"), transfer, &TRANSFER);
    let smallest = 4 * u64::from(limits.max_transfer_bytes);
    if transfer_bytes < smallest {
        findings.error(
            &at.key("transfer"),
            format!("{} for transfers is too little", units::format_bytes(transfer_bytes)),
            format!(
                "four transfers of `max_transfer` must fit in each core's budget: at least {}",
                units::format_bytes(smallest)
            ),
        );
    }
    Memory { capsule_bytes, transfer_bytes }
}

fn ring(ring: Option<&raw::Ring>, findings: &mut Findings<'_>) -> Ring {
    let at = At::root().key("ring").key("entries");
    let entries = ring.and_then(|ring| ring.entries);
    Ring {
        entries: findings.number(&at, "a ring size", entries, &RING_ENTRIES) as u32,
        coop_taskrun: ring.and_then(|ring| ring.coop_taskrun).unwrap_or(true),
    }
}
