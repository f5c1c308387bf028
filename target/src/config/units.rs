//! Sizes and durations as people write them.
//!
//! Sizes: bytes as a number, or a number with a unit that says whether it counts
//! in 1024s (`64KiB`) or in 1000s (`64kB`). Where a bare letter (`64K`) could mean
//! either, it is refused rather than guessed: a chunk or an offset that is wrong
//! by 2.4 % is found out late.

use std::time::Duration;

use bytesize::ByteSize;

use super::raw::Size;

/// Bytes of a size; the error says what is wrong and what would be right.
pub(super) fn size_bytes(size: &Size) -> Result<u64, String> {
    match size {
        Size::Bytes(bytes) => Ok(*bytes),
        Size::Text(text) => parse_size(text),
    }
}

/// Bytes of a size that is written as text.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = text[digits.len()..].trim_start();
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(format!("`{text}` is not a size; write a number and a unit, as in 64KiB"));
    }
    if unit.len() == 1 && !unit.eq_ignore_ascii_case("b") {
        let letter = unit.to_ascii_uppercase();
        return Err(format!(
            "`{text}` could count in 1024s or in 1000s; write {digits}{letter}iB or {digits}{letter}B"
        ));
    }
    let bytes = text
        .parse::<ByteSize>()
        .map_err(|_| {
            format!("`{text}` is not a size; units are B, KiB, MiB, GiB, TiB (1024s) and kB, MB, GB, TB (1000s)")
        })?
        .as_u64();
    // `ByteSize` saturates; no drive is that large.
    if bytes == u64::MAX {
        return Err(format!("`{text}` is too large for a size"));
    }
    Ok(bytes)
}

/// A duration between two bounds.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let range =
        || format!("{} to {}", humantime::format_duration(min), humantime::format_duration(max));
    let parsed = humantime::parse_duration(text.trim()).map_err(|_| {
        format!(
            "`{text}` is not a duration; write a number and a unit, as in 50us or 5s ({})",
            range()
        )
    })?;
    if parsed < min || parsed > max {
        return Err(format!("`{text}` is out of range; {} is possible", range()));
    }
    Ok(parsed)
}

/// A size in the largest binary unit that gives a whole number.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, factor) in UNITS {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{} {unit}", bytes / factor);
        }
    }
    match UNITS.iter().find(|(_, factor)| bytes >= 100 * factor) {
        Some((unit, factor)) => format!("{:.1} {unit}", bytes as f64 / *factor as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("64KiB", 65536),
            ("64 kib", 65536),
            ("1.5GiB", 3 << 29),
            ("64kB", 64000),
            ("2TB", 2_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_that_are_refused() {
        for (text, why) in [
            ("64K", "64KiB or 64KB"),
            ("1g", "1GiB or 1GB"),
            ("", "not a size"),
            ("-5", "not a size"),
            ("KiB", "not a size"),
            ("5 parsecs", "units are"),
            ("64KiBs", "units are"),
            ("1..2KiB", "units are"),
            ("99999999999EiB", "too large"),
            ("5 µs", "not a size"),
        ] {
            let error = parse_size(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn durations() {
        let (min, max) = (Duration::from_micros(1), Duration::from_millis(10));
        assert_eq!(duration("50us", min, max), Ok(Duration::from_micros(50)));
        assert_eq!(duration("1ms", min, max), Ok(max / 10));
        assert!(duration("50", min, max).expect_err("no unit").contains("as in 50us"));
        assert!(duration("1s", min, max).expect_err("long").contains("1us to 10ms"));
        assert!(duration("0s", min, max).expect_err("short").contains("1us to 10ms"));
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(format_bytes(0), "0 bytes");
        assert_eq!(format_bytes(65536), "64 KiB");
        assert_eq!(format_bytes(3 << 40), "3 TiB");
        assert_eq!(format_bytes((200 << 20) + 512), "200.0 MiB");
        assert_eq!(format_bytes(5000), "5000 bytes");
    }
}
