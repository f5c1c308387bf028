//! The paths that a configuration's member patterns stand for.

use super::holder::kind_of;
use super::identity::{Identity, Kind, Roots};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use thiserror::Error;

/// Why patterns do not name drives.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathError {
    /// A pattern that stands for nothing.
    #[error("{0}: no drive or file matches this pattern; check it, and that the drives are there")]
    NoMatch(String),
    /// A pattern with an error in it.
    #[error("{pattern}: not a valid pattern: {reason}")]
    Invalid {
        /// As given.
        pattern: String,
        /// What is wrong.
        reason: String,
    },
    /// A directory that cannot be read, for one.
    #[error("{pattern}: could not be looked up: {reason}")]
    Unreadable {
        /// As given.
        pattern: String,
        /// The system's error.
        reason: String,
    },
    /// Two entries for one drive.
    #[error("{first} and {second} are the same drive; list it once")]
    Twice {
        /// One way to name it.
        first: String,
        /// Another.
        second: String,
    },
    /// A drive and a part of it.
    #[error("{partition} is a partition of {drive}; list one or the other")]
    PartOf {
        /// The partition.
        partition: String,
        /// The drive.
        drive: String,
    },
}

/// Expands patterns (`*`, `?`, `[…]`) to paths, in the order of the patterns and sorted
/// within each. A path without pattern characters stays as it is, there or not.
///
/// One pattern that meets a drive under several names (as in `/dev/disk/by-id`) yields
/// it once, and not the partitions of drives that it meets as well; two *entries* for
/// one drive are an error.
///
/// # Errors
/// Names the pattern at fault, or the two paths.
pub fn expand<S: AsRef<str>>(patterns: &[S]) -> Result<Vec<PathBuf>, PathError> {
    let mut paths = Vec::new();
    for pattern in patterns {
        paths.extend(expand_one(pattern.as_ref())?);
    }
    check_apart(&paths)?;
    Ok(paths)
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

fn expand_one(pattern: &str) -> Result<Vec<PathBuf>, PathError> {
    if !is_pattern(pattern) {
        return Ok(vec![PathBuf::from(pattern)]);
    }
    let invalid = |e: glob::PatternError| PathError::Invalid {
        pattern: pattern.to_owned(),
        reason: e.to_string(),
    };
    let mut found = Vec::new();
    for path in glob::glob(pattern).map_err(invalid)? {
        let path = path.map_err(|e| PathError::Unreadable {
            pattern: pattern.to_owned(),
            reason: e.to_string(),
        })?;
        // Directories and character devices that match are not meant.
        if let Some(kind) = kind(&path) {
            found.push((path, kind));
        }
    }
    let mut seen = HashSet::new();
    found.retain(|(_, kind)| seen.insert(*kind));
    let identities: Vec<_> = found.iter().map(|(path, kind)| identity(path, *kind)).collect();
    let whole: HashSet<_> = identities.iter().filter_map(|i| i.kernel_name.clone()).collect();
    let paths: Vec<_> = identities
        .into_iter()
        .filter(|i| i.partition_of.as_ref().is_none_or(|disk| !whole.contains(disk)))
        .map(|i| i.path)
        .collect();
    if paths.is_empty() {
        return Err(PathError::NoMatch(pattern.to_owned()));
    }
    Ok(paths)
}

/// That no two of the paths are one drive, or a drive and its partition.
fn check_apart(paths: &[PathBuf]) -> Result<(), PathError> {
    let mut by_kind: HashMap<Kind, &PathBuf> = HashMap::new();
    let mut names = HashMap::new();
    let mut partitions = Vec::new();
    for path in paths {
        let Some(kind) = kind(path) else { continue };
        if let Some(first) = by_kind.insert(kind, path) {
            return Err(PathError::Twice {
                first: first.display().to_string(),
                second: path.display().to_string(),
            });
        }
        let identity = identity(path, kind);
        if let Some(disk) = identity.partition_of {
            partitions.push((path, disk));
        } else if let Some(name) = identity.kernel_name {
            names.insert(name, path);
        }
    }
    for (partition, disk) in partitions {
        if let Some(drive) = names.get(&disk) {
            return Err(PathError::PartOf {
                partition: partition.display().to_string(),
                drive: drive.display().to_string(),
            });
        }
    }
    Ok(())
}

fn kind(path: &std::path::Path) -> Option<Kind> {
    kind_of(&std::fs::metadata(path).ok()?)
}

fn identity(path: &std::path::Path, kind: Kind) -> Identity {
    Identity::look_up(&Roots::default(), path, kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn expands_sorted_and_names_what_matches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.img", "a.img", "c.txt"] {
            File::create(dir.path().join(name)).unwrap();
        }
        std::fs::create_dir(dir.path().join("d.img")).unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let found = expand(&[at("*.img"), at("c.txt"), at("not-there")]).unwrap();
        let expected = ["a.img", "b.img", "c.txt", "not-there"].map(|n| dir.path().join(n));
        assert_eq!(found, expected);
        assert_eq!(expand(&[at("x*")]), Err(PathError::NoMatch(at("x*"))));
        assert!(matches!(expand(&[at("a***")]), Err(PathError::Invalid { .. })));
    }

    #[test]
    fn one_drive_under_two_names_counts_once_in_a_pattern_and_is_refused_in_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        File::create(at("drive")).unwrap();
        std::os::unix::fs::symlink("drive", at("drive-again")).unwrap();
        assert_eq!(expand(&[at("drive*")]).unwrap(), [dir.path().join("drive")]);
        let twice = expand(&[at("drive"), at("drive-again")]);
        assert_eq!(twice, Err(PathError::Twice { first: at("drive"), second: at("drive-again") }));
    }
}
