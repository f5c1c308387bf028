//! From the file's member names to the drives they stand for.
//!
//! This is the one part of the configuration that looks at the file system: it
//! expands patterns, and finds one drive that is listed under two names (a link in
//! /dev/disk/by-id and the kernel's own name, a hard link). It opens no drive, so
//! that it can run beside a daemon that has them.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use raidfabric_raid::device::paths::{self, PathError};
use raidfabric_raid::device::{Identity, Kind, Roots};

use super::error::{ConfigErrors, Problem, Problems};
use super::source::{self, At};
use super::types::{Array, Member};
use super::{Loaded, Position};

/// Where an array's data lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drives {
    /// Block devices or regular files.
    Paths(Listed),
    /// Sizes of members in memory, in bytes.
    Memory(Vec<u64>),
    /// Other arrays, as in [`Array::leaves`].
    Arrays(Vec<usize>),
}

/// Members that are drives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listed {
    /// Paths of those that are there, in the order of the file; those of a pattern in the order
    /// of their names.
    pub present: Vec<PathBuf>,
    /// Those that are not.
    pub absent: Vec<Absent>,
}

impl From<Vec<PathBuf>> for Listed {
    fn from(present: Vec<PathBuf>) -> Self {
        Self { present, absent: Vec::new() }
    }
}

/// A member that the file names and that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// The path, or the pattern that stands for nothing.
    pub name: String,
    /// What is known about it: "does not exist".
    pub why: String,
}

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.why)
    }
}

/// What is made of members that are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// They are mistakes of the file.
    Refused,
    /// The array may do without them; whoever looks at the other drives finds out.
    Allowed,
}

impl Loaded {
    /// The drives of every array, in the order of [`super::Config::arrays`].
    ///
    /// # Errors
    ///
    /// One drive under two names, a drive and its partition, or what is neither a block device nor
    /// a regular file; where absence is refused, also a drive that does not exist, a pattern that
    /// matches nothing, and fewer drives than the level needs. All of them are reported together,
    /// each with its place in the configuration file.
    pub fn drives(&self, absence: Absence) -> Result<Vec<Drives>, ConfigErrors> {
        let mut resolver = Resolver {
            loaded: self,
            absence,
            tree: source::parse(&self.text),
            known: Vec::new(),
            problems: Vec::new(),
        };
        let arrays = &self.config.arrays;
        let drives = arrays.iter().enumerate().map(|(i, array)| resolver.array(i, array)).collect();
        if resolver.problems.is_empty() {
            return Ok(drives);
        }
        Err(ConfigErrors::Wrong(Problems::new(&self.file, &self.text, resolver.problems)))
    }
}

/// A drive that is listed.
struct Known {
    identity: Identity,
    /// Index of its array.
    array: usize,
}

struct Resolver<'a> {
    loaded: &'a Loaded,
    absence: Absence,
    tree: Option<source::Node>,
    /// The drives so far.
    known: Vec<Known>,
    problems: Vec<Problem>,
}

impl Resolver<'_> {
    fn array(&mut self, index: usize, array: &Array) -> Drives {
        let at = At::root().key("arrays").index(index).key("members");
        if array.is_composed() {
            return Drives::Arrays(array.leaves.clone());
        }
        if array.is_memory() {
            let sizes = array.members.iter().filter_map(|member| match member {
                Member::Memory { size_bytes } => Some(*size_bytes),
                _ => None,
            });
            return Drives::Memory(sizes.collect());
        }
        let before = self.problems.len();
        let mut listed = Listed::default();
        for (i, member) in array.members.iter().enumerate() {
            let at = at.index(i);
            match member {
                Member::Path(path) => self.drive(&at, path.clone(), index, &mut listed),
                Member::Glob(pattern) => {
                    for path in self.expand(&at, pattern, &mut listed) {
                        self.drive(&at, path, index, &mut listed);
                    }
                }
                Member::Memory { .. } => {}
            }
        }
        let (min, has) = (array.level.min_members(), listed.present.len());
        if has < min && self.problems.len() == before && self.absence == Absence::Refused {
            self.problem(
                &at,
                format!("{} needs at least {min} members, and these are {has}", array.level),
                "add members, or a pattern that matches more drives".to_owned(),
            );
        }
        Drives::Paths(listed)
    }

    /// Notes a member that is not there.
    fn absent(&mut self, at: &At, absent: Absent, message: String, help: &str, to: &mut Listed) {
        match self.absence {
            Absence::Refused => self.problem(at, message, help.to_owned()),
            Absence::Allowed => to.absent.push(absent),
        }
    }

    /// The drives of a pattern, each once: `nvme-*` in /dev/disk/by-id meets a drive
    /// under several names, and its partitions.
    fn expand(&mut self, at: &At, pattern: &str, listed: &mut Listed) -> Vec<PathBuf> {
        let error = match paths::expand(&[pattern]) {
            Ok(paths) => return paths,
            Err(error) => error,
        };
        let help = "`ls` with the same pattern shows what there is";
        if let PathError::NoMatch(_) = error {
            let why = "nothing matches this pattern".to_owned();
            let absent = Absent { name: pattern.to_owned(), why };
            self.absent(at, absent, error.to_string(), help, listed);
        } else {
            self.problem(at, error.to_string(), help.to_owned());
        }
        Vec::new()
    }

    fn drive(&mut self, at: &At, path: PathBuf, array: usize, listed: &mut Listed) {
        let help = "`ls -l /dev/disk/by-id` shows the drives that are there";
        let kind = match kind(&path) {
            Ok(kind) => kind,
            Err(NoDrive::Absent(why)) => {
                let message = format!("`{}` {why}", path.display());
                let absent = Absent { name: path.display().to_string(), why };
                return self.absent(at, absent, message, help, listed);
            }
            Err(NoDrive::Other(why)) => {
                let message = format!("`{}` {why}", path.display());
                return self.problem(at, message, help.to_owned());
            }
        };
        let identity = Identity::look_up(&Roots::default(), &path, kind);
        if let Some((message, help)) = self.conflict(&identity) {
            return self.problem(at, message, help.to_owned());
        }
        self.known.push(Known { identity, array });
        listed.present.push(path);
    }

    /// Why a drive cannot be listed beside those that are, and the cure.
    fn conflict(&self, new: &Identity) -> Option<(String, &'static str)> {
        let path = new.path.display();
        self.known.iter().find_map(|Known { identity, array }| {
            let other = identity.path.display();
            let array = self.loaded.config.arrays.get(*array).map_or("", |array| &array.name);
            let once = "a drive can be one member only; remove one of the two";
            if identity.kind == new.kind {
                return Some(match identity.path == new.path {
                    true => (format!("`{path}` is listed twice (in array `{array}`)"), once),
                    false => (
                        format!("`{path}` is the same drive as `{other}` (in array `{array}`)"),
                        once,
                    ),
                });
            }
            let within = |part: &Identity, whole: &Identity| {
                part.partition_of.is_some() && part.partition_of == whole.kernel_name
            };
            let apart = "use the whole drive or its partitions; remove one of the two";
            if within(new, identity) {
                Some((format!("`{path}` is a partition of `{other}` (in array `{array}`)"), apart))
            } else if within(identity, new) {
                Some((format!("`{other}` (in array `{array}`) is a partition of `{path}`"), apart))
            } else {
                None
            }
        })
    }

    fn problem(&mut self, at: &At, message: String, help: String) {
        let position =
            self.tree.as_ref().map_or(Position::default(), |tree| source::locate(tree, at));
        self.problems.push(Problem { position, message, help: Some(help) });
    }
}

/// Why a path is no drive.
enum NoDrive {
    /// It is not there, or cannot be reached.
    Absent(String),
    /// It is something else.
    Other(String),
}

fn kind(path: &Path) -> Result<Kind, NoDrive> {
    let metadata = std::fs::metadata(path).map_err(|error| {
        NoDrive::Absent(match error.kind() {
            std::io::ErrorKind::NotFound => "does not exist".to_owned(),
            _ => format!("cannot be looked at: {error}"),
        })
    })?;
    if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Ok(Kind::Block { major, minor })
    } else if metadata.is_file() {
        Ok(Kind::File { device: metadata.dev(), inode: metadata.ino() })
    } else {
        Err(NoDrive::Other("is neither a block device nor a regular file".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn loaded(members: &str) -> Loaded {
        let text = format!(
            "arrays:\n  - name: a\n    level: raid0\n    members: {members}\nsubsystems:\n  - nqn: nqn.2026-11.org.example:a\n    hosts: any\n    namespaces: [{{ nsid: 1, array: a }}]\nlisten: [\"127.0.0.1:4420\"]\n"
        );
        parse(Path::new("test.yaml"), &text).expect("a right configuration")
    }

    fn folder() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["m2", "m1", "m10"] {
            std::fs::write(folder.path().join(name), b"").expect("a file");
        }
        let name = folder.path().to_str().expect("text").to_owned();
        (folder, name)
    }

    fn messages(result: Result<Vec<Drives>, ConfigErrors>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn patterns_are_expanded_in_the_order_of_names() {
        let (_keep, folder) = folder();
        let drives =
            loaded(&format!("[\"{folder}/m*\"]")).drives(Absence::Refused).expect("drives");
        let paths = ["m1", "m10", "m2"].map(|name| PathBuf::from(format!("{folder}/{name}")));
        assert_eq!(drives, [Drives::Paths(paths.to_vec().into())]);
    }

    #[test]
    fn memory_has_sizes() {
        let drives =
            loaded("[\"memory:2MiB\", \"memory:3MiB\"]").drives(Absence::Refused).expect("drives");
        assert_eq!(drives, [Drives::Memory(vec![2 << 20, 3 << 20])]);
    }

    #[test]
    fn one_drive_under_two_names_is_refused() {
        let (keep, folder) = folder();
        std::fs::hard_link(keep.path().join("m1"), keep.path().join("hard")).expect("a link");
        std::os::unix::fs::symlink("m2", keep.path().join("soft")).expect("a link");
        let text = messages(
            loaded(&format!("[{folder}/m1, {folder}/m2, {folder}/hard, {folder}/soft]"))
                .drives(Absence::Refused),
        );
        assert!(text.contains(&format!("hard` is the same drive as `{folder}/m1`")), "{text}");
        assert!(text.contains(&format!("soft` is the same drive as `{folder}/m2`")), "{text}");
        assert!(text.contains("test.yaml:4:"), "{text}");
        // A pattern that catches a listed drive again is the same mistake.
        let text =
            messages(loaded(&format!("[{folder}/m1, \"{folder}/m*\"]")).drives(Absence::Refused));
        assert!(text.contains("m1` is listed twice"), "{text}");
    }

    /// An array does without a member that has died; only what the other drives say tells whether
    /// it can.
    #[test]
    fn what_is_absent_is_told_where_that_is_allowed() {
        let (_keep, folder) = folder();
        let loaded = loaded(&format!("[{folder}/absent, {folder}/m1, \"{folder}/x*\"]"));
        let drives = loaded.drives(Absence::Allowed).expect("drives");
        let [Drives::Paths(listed)] = &drives[..] else { panic!("{drives:?}") };
        assert_eq!(listed.present, [PathBuf::from(format!("{folder}/m1"))]);
        let absent: Vec<_> = listed.absent.iter().map(ToString::to_string).collect();
        let expected = [
            format!("{folder}/absent: does not exist"),
            format!("{folder}/x*: nothing matches this pattern"),
        ];
        assert_eq!(absent, expected);
        let loaded = self::loaded(&format!("[{folder}/m1, {folder}]"));
        assert!(messages(loaded.drives(Absence::Allowed)).contains("is neither"));
    }

    #[test]
    fn what_is_no_drive_is_refused() {
        let (_keep, folder) = folder();
        let text = messages(
            loaded(&format!("[{folder}/absent, {folder}, \"{folder}/x*\", /dev/null]"))
                .drives(Absence::Refused),
        );
        for part in ["absent` does not exist", "/x*: no drive or file matches", "null` is neither"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = messages(loaded(&format!("[\"{folder}/m10*\"]")).drives(Absence::Refused));
        assert!(text.contains("at least 2 members, and these are 1"), "{text}");
    }
}
