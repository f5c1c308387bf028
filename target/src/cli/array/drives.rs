//! Which drives of which arrays `--overwrite` names.

use std::path::Path;

use raidfabric_raid::assemble::{Description, describe};

use super::super::{Failure, print};
use crate::config::Array;
use crate::config::drives::Drives;

/// For each array, the indices of its drives that are named. Every name must be of one of them.
///
/// # Errors
/// A name that is not a drive of these arrays.
pub(super) fn victims(
    arrays: &[(&Array, &Drives)],
    names: &[String],
) -> Result<Vec<Vec<usize>>, Failure> {
    let mut victims = vec![Vec::new(); arrays.len()];
    if names.is_empty() {
        return Ok(victims);
    }
    let known = arrays.iter().map(|(_, drives)| look(drives)).collect::<Result<Vec<_>, _>>()?;
    for name in names {
        let mut found = known.iter().zip(&mut victims).filter_map(|(drives, victims)| {
            drives.iter().position(|drive| is_named(drive, name)).map(|index| (index, victims))
        });
        let Some((index, victims)) = found.next() else {
            return Err(Failure::Refused(not_a_member(name, arrays, &known)));
        };
        if !victims.contains(&index) {
            victims.push(index);
        }
    }
    victims.iter_mut().for_each(|victims| victims.sort_unstable());
    Ok(victims)
}

fn look(drives: &Drives) -> Result<Vec<Description>, Failure> {
    match drives {
        Drives::Memory(_) | Drives::Arrays(_) => Ok(Vec::new()),
        Drives::Paths(listed) => {
            listed.present.iter().map(|path| describe(path).map_err(Failure::refused)).collect()
        }
    }
}

/// By any path that leads to it, or its serial number.
fn is_named(drive: &Description, name: &str) -> bool {
    if drive.identity.serial.as_deref() == Some(name) {
        return true;
    }
    let Ok(named) = describe(Path::new(name)) else { return false };
    let same = named.identity.kind == drive.identity.kind;
    if same && let Some(warning) = named.identity.warning() {
        print::note(format_args!("raidfabric: {warning}"));
    }
    same
}

fn not_a_member(name: &str, arrays: &[(&Array, &Drives)], known: &[Vec<Description>]) -> String {
    let lists: Vec<_> = arrays
        .iter()
        .zip(known)
        .map(|((array, _), drives)| {
            let drives: Vec<_> = drives.iter().map(|drive| drive.identity.to_string()).collect();
            let drives =
                if drives.is_empty() { "memory only".to_owned() } else { drives.join(", ") };
            format!("{} ({drives})", array.name)
        })
        .collect();
    format!(
        "--overwrite {name}: this is no drive of array {}; nothing was touched. Name a drive as \
         the file does, or by its serial number",
        lists.join(" or of ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use raidfabric_raid::device::signature::Contents;
    use raidfabric_raid::device::{Identity, Kind};

    #[test]
    fn a_drive_is_known_by_its_serial_number_and_by_no_part_of_it() {
        let drive = |serial: Option<&str>| Description {
            identity: Identity {
                path: "/dev/nvme9n1".into(),
                kind: Kind::Block { major: 259, minor: 9 },
                by_id: None,
                kernel_name: Some("nvme9n1".into()),
                partition_of: None,
                serial: serial.map(str::to_owned),
                model: None,
            },
            size_bytes: 1 << 30,
            contents: Contents::Blank,
        };
        assert!(is_named(&drive(Some("S3R1AL")), "S3R1AL"));
        for name in ["S3R1A", "s3r1al", "", "/dev/null"] {
            assert!(!is_named(&drive(Some("S3R1AL")), name), "{name}");
            assert!(!is_named(&drive(None), name), "{name}");
        }
    }
}
