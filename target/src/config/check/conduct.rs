//! What an array of `arrays:` does when something goes wrong: consistency, waiting, limits, rates.

use std::time::Duration;

use super::{Findings, Grain, KIB, MIB, NumberRule, SizeRule, TimeRule};
use crate::config::raw;
use crate::config::source::At;
use crate::config::types::{Consistency, Level, ResyncRates};
use crate::config::units;

const DEGRADED_WAIT: TimeRule = TimeRule {
    min: Duration::ZERO,
    max: Duration::from_secs(24 * 3600),
    default: Duration::from_secs(30),
};
const MEMBER_TIMEOUT: TimeRule = TimeRule {
    min: Duration::from_secs(1),
    max: Duration::from_secs(600),
    default: Duration::from_secs(30),
};
const HOLD: TimeRule = TimeRule {
    min: Duration::from_secs(1),
    max: Duration::from_secs(3600),
    default: Duration::ZERO,
};
const SAFE_MODE_DELAY: TimeRule = TimeRule {
    min: Duration::from_millis(100),
    max: Duration::from_secs(3600),
    default: Duration::from_secs(5),
};
const READ_ERROR_LIMIT: NumberRule =
    NumberRule { min: 1, max: 1_000_000, default: 20, power_of_two: false };
const MIN_RATE: SizeRule = SizeRule {
    what: "a rate",
    min: MIB,
    max: MIB << 20,
    default: 32 * MIB,
    grain: Grain::MultipleOf(KIB),
};

/// How a new array is made consistent after a crash.
pub(super) fn consistency(
    at: &At,
    array: &raw::Array,
    level: Level,
    is_memory: bool,
    findings: &mut Findings<'_>,
) -> Consistency {
    let at = at.key("consistency");
    let default = match is_memory {
        true if level != Level::Raid0 => Consistency::Resync,
        _ => Consistency::default_of(level),
    };
    let given = match array.consistency {
        None => return default,
        Some(raw::Consistency::Resync) => Consistency::Resync,
        Some(raw::Consistency::Bitmap) => Consistency::Bitmap,
        Some(raw::Consistency::Ppl) => Consistency::Ppl,
    };
    if level == Level::Raid0 {
        findings.error(
            &at,
            "raid0 has no copies and no parity that could disagree after a crash",
            "remove `consistency`",
        );
    } else if is_memory && given != Consistency::Resync {
        findings.error(
            &at,
            format!("members in memory do not outlive a crash, so that they have no {given}"),
            "remove `consistency`",
        );
    } else if given == Consistency::Ppl && !matches!(level, Level::Raid5 | Level::Raid6) {
        findings.error(
            &at,
            format!("{level} has no parity that could be logged"),
            "write bitmap (the default) or resync",
        );
    }
    given
}

pub(super) fn degraded_wait(at: &At, array: &raw::Array, findings: &mut Findings<'_>) -> Duration {
    findings.time(&at.key("degraded_wait"), array.degraded_wait.as_ref(), &DEGRADED_WAIT)
}

pub(super) fn member_timeout(at: &At, array: &raw::Array, findings: &mut Findings<'_>) -> Duration {
    findings.time(&at.key("member_timeout"), array.member_timeout.as_ref(), &MEMBER_TIMEOUT)
}

/// Zero for `off`.
pub(super) fn hold(at: &At, array: &raw::Array, findings: &mut Findings<'_>) -> Duration {
    match &array.hold {
        Some(raw::Time(text)) if text.eq_ignore_ascii_case("off") => Duration::ZERO,
        given => findings.time(&at.key("hold"), given.as_ref(), &HOLD),
    }
}

pub(super) fn safe_mode_delay(
    at: &At,
    array: &raw::Array,
    findings: &mut Findings<'_>,
) -> Duration {
    findings.time(&at.key("safe_mode_delay"), array.safe_mode_delay.as_ref(), &SAFE_MODE_DELAY)
}

pub(super) fn read_error_limit(at: &At, array: &raw::Array, findings: &mut Findings<'_>) -> u32 {
    let at = at.key("read_error_limit");
    findings.number(&at, "a limit", array.read_error_limit, &READ_ERROR_LIMIT) as u32
}

pub(super) fn resync(at: &At, array: &raw::Array, findings: &mut Findings<'_>) -> ResyncRates {
    let at = at.key("resync");
    let given = array.resync.as_ref();
    let min = given.and_then(|resync| resync.min.as_ref());
    let min_bytes = findings.size_within(&at.key("min"), min, &MIN_RATE);
    let max = given.and_then(|resync| resync.max.as_ref());
    let max_bytes = match max {
        None => 0,
        some => findings.size_within(&at.key("max"), some, &MIN_RATE),
    };
    if max.is_some() && max_bytes < min_bytes {
        findings.error(
            &at.key("max"),
            format!(
                "at most {} a second contradicts at least {}",
                units::format_bytes(max_bytes),
                units::format_bytes(min_bytes)
            ),
            "set `min`, too",
        );
    }
    ResyncRates { min_bytes, max_bytes }
}
