//! NVMe Qualified Names: what is a legal one, and how they lie on the wire.
//!
//! Names are compared byte by byte, without case folding. A host's name may be
//! any legal one; it need not contain a UUID.

/// Longest name in bytes, without the terminating NUL (NVMe Base, NVMe Qualified Names).
pub const NQN_BYTES_MAX: usize = 223;

/// Size of a name's field on the wire.
pub const NQN_FIELD_BYTES: usize = 256;

/// The well-known name of the discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Why a text or field is not an NQN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// Longer than 223 bytes.
    #[error("an NQN has at most 223 bytes; this one has {length}: shorten it")]
    TooLong {
        /// Bytes it has.
        length: usize,
    },
    /// No NUL in the field.
    #[error("the NQN field is not terminated by a NUL byte")]
    NotTerminated,
    /// Not UTF-8, or a control character.
    #[error("an NQN is UTF-8 text without control characters")]
    NotText,
    /// Not `nqn.yyyy-mm.reverse.domain[:name]`.
    #[error(
        "an NQN is `nqn.YYYY-MM.reverse.domain:name`, for example `nqn.2026-11.io.example:fast`"
    )]
    NotNqn,
}

/// Checks a name's form: `nqn.`, a year and month, `.`, a domain, and optionally `:` and a name.
///
/// # Errors
/// The first rule that the name breaks.
pub fn validate(name: &str) -> Result<(), NqnError> {
    if name.len() > NQN_BYTES_MAX {
        return Err(NqnError::TooLong { length: name.len() });
    }
    if name.chars().any(char::is_control) {
        return Err(NqnError::NotText);
    }
    let rest = name.strip_prefix("nqn.").ok_or(NqnError::NotNqn)?;
    let (date, rest) = rest.split_once('.').ok_or(NqnError::NotNqn)?;
    if !is_year_and_month(date) {
        return Err(NqnError::NotNqn);
    }
    let domain = rest.split_once(':').map_or(rest, |(domain, _)| domain);
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if domain.split('.').all(label) { Ok(()) } else { Err(NqnError::NotNqn) }
}

fn is_year_and_month(text: &str) -> bool {
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    text.split_once('-').is_some_and(|(year, month)| {
        digits(year, 4) && digits(month, 2) && ("01"..="12").contains(&month)
    })
}

/// The name in a 256-byte field: the bytes before the first NUL.
///
/// Only what the wire needs is checked (terminated, length, UTF-8): a host is
/// not refused for a name that is unusual but was configured as allowed.
///
/// # Errors
/// Not terminated, too long, or not UTF-8.
pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<&str, NqnError> {
    let length = field.iter().position(|&b| b == 0).ok_or(NqnError::NotTerminated)?;
    if length > NQN_BYTES_MAX {
        return Err(NqnError::TooLong { length });
    }
    let (name, _) = field.split_at(length);
    core::str::from_utf8(name).map_err(|_| NqnError::NotText)
}

/// The field for a name, zero filled.
///
/// # Errors
/// Too long, or with a NUL inside.
pub fn to_field(name: &str) -> Result<[u8; NQN_FIELD_BYTES], NqnError> {
    if name.len() > NQN_BYTES_MAX {
        return Err(NqnError::TooLong { length: name.len() });
    }
    if name.bytes().any(|b| b == 0) {
        return Err(NqnError::NotText);
    }
    let mut field = [0; NQN_FIELD_BYTES];
    for (to, from) in field.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_names() {
        for name in [
            DISCOVERY_NQN,
            "nqn.2026-11.io.raidfabric:fast",
            "nqn.2014-08.org.nvmexpress:uuid:6f2c5ba1-32b1-4b3a-9a5e-1f2c5ba132b1",
            "nqn.2014-08.com.vmware:nvme:esx-01",
            "nqn.2026-11.io.raidfabric:größe",
        ] {
            assert_eq!(validate(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn illegal_names() {
        for name in [
            "",
            "nqn.",
            "iqn.2026-11.io.raidfabric:fast",
            "nqn.2026-13.io.raidfabric:fast",
            "nqn.2026-00.io.raidfabric:fast",
            "nqn.26-11.io.raidfabric:fast",
            "nqn.2026-11",
            "nqn.2026-11.",
            "nqn.2026-11.io..raidfabric:x",
            "nqn.2026-11.io raidfabric:x",
        ] {
            assert_eq!(validate(name), Err(NqnError::NotNqn), "{name}");
        }
        assert_eq!(validate("nqn.2026-11.io.x:a\nb"), Err(NqnError::NotText));
        let long = format!("nqn.2026-11.io.x:{}", "a".repeat(NQN_BYTES_MAX));
        assert_eq!(validate(&long), Err(NqnError::TooLong { length: long.len() }));
    }

    #[test]
    fn fields() {
        let field = to_field("nqn.2026-11.io.x:a").unwrap();
        assert_eq!(from_field(&field), Ok("nqn.2026-11.io.x:a"));
        let longest = "a".repeat(NQN_BYTES_MAX);
        assert_eq!(from_field(&to_field(&longest).unwrap()), Ok(&longest[..]));
        assert_eq!(to_field(&"a".repeat(224)), Err(NqnError::TooLong { length: 224 }));
        assert_eq!(to_field("a\0b"), Err(NqnError::NotText));
        assert_eq!(from_field(&[b'a'; 256]), Err(NqnError::NotTerminated));
        let mut field = [b'a'; 256];
        field[224] = 0;
        assert_eq!(from_field(&field), Err(NqnError::TooLong { length: 224 }));
        field[0] = 0xFF;
        field[100] = 0;
        assert_eq!(from_field(&field), Err(NqnError::NotText));
    }

    #[test]
    fn bytes_after_the_nul_do_not_count() {
        let mut field = to_field("nqn.2026-11.io.x").unwrap();
        field[255] = 0xFF;
        assert_eq!(from_field(&field), Ok("nqn.2026-11.io.x"));
    }
}
