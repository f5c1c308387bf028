//! The state directory: what the daemon remembers of its arrays beside the drives themselves.
//!
//! One small file per array, replaced atomically and durably. Its uses:
//!
//! * An array of which all listed drives turn out to be blank is created only if none of this name
//!   ever existed here; otherwise somebody has put in the wrong drives, and a new array would hide
//!   that.
//! * An array that has lost a member counts events on without it. The count is noted here before any
//!   write that the member missed is acknowledged, and again at each start without all members, so
//!   that the lost member, should it be the only one that is there one day, is known to be behind.
//!   Where that cannot be noted the record is taken away: without it, an incomplete array does not
//!   start by itself.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The format's name and version, in every file.
const SCHEMA: &str = "raidfabric.array-record/1";

/// The state directory.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    path: PathBuf,
}

/// What is remembered of an array.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Record {
    pub(super) schema: String,
    /// The array's UUID, as in the superblocks of its members.
    pub uuid: Uuid,
    /// The members' names by slot, as they were at the last start.
    pub members: Vec<String>,
    /// The event count that the array had when it last lost a member, or an earlier one that no
    /// lost member has; null if that is not known.
    #[serde(default)]
    pub events: Option<u64>,
    /// Whether its redundancy has never been whole.
    #[serde(default)]
    pub is_building: bool,
}

impl Record {
    /// What is to be remembered.
    pub fn new(uuid: Uuid, members: Vec<String>, events: Option<u64>) -> Self {
        Self { schema: SCHEMA.to_owned(), uuid, members, events, is_building: false }
    }
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The system refuses.
    #[error(
        "cannot {doing} {path:?}: {source}; give a directory that this user can write as \
         `state_dir`"
    )]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The record is not one of ours.
    #[error("{path:?} is not a record of an array ({reason}); move it away if it is not needed")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl StateDirectory {
    /// The directory, made if it is missing.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn open(path: &Path) -> Result<Self, StateError> {
        fs::create_dir_all(path).map_err(|source| StateError::Io {
            doing: "make the state directory",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path: path.to_owned() })
    }

    fn file(&self, array: &str) -> PathBuf {
        // Names come from the configuration, where `/` and `.` at the start are refused.
        self.path.join(format!("array-{array}.json"))
    }

    /// What is remembered of an array; `None` if it never existed here.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn record(&self, array: &str) -> Result<Option<Record>, StateError> {
        let path = self.file(array);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(StateError::Io { doing: "read", path, source });
            }
        };
        let record: Record = serde_json::from_slice(&text).map_err(|error| {
            StateError::Unreadable { path: path.clone(), reason: error.to_string() }
        })?;
        if record.schema != SCHEMA {
            let reason = format!("its schema is {}, not {SCHEMA}", record.schema);
            return Err(StateError::Unreadable { path, reason });
        }
        Ok(Some(record))
    }

    /// Remembers an array, durably, before it returns.
    ///
    /// # Errors
    /// [`StateError::Io`]; the old record is still there then.
    pub fn remember(&self, array: &str, record: &Record) -> Result<(), StateError> {
        let path = self.file(array);
        if self.record(array).ok().flatten().as_ref() == Some(record) {
            return Ok(());
        }
        let write = || -> io::Result<()> {
            let new = path.with_extension("json.new");
            let mut file = File::create(&new)?;
            serde_json::to_writer(&mut file, record)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|source| StateError::Io { doing: "write", path: path.clone(), source })
    }

    /// Forgets what is remembered of an array, durably.
    ///
    /// # Errors
    /// [`StateError::Io`]; the record may still be there then.
    pub fn forget(&self, array: &str) -> Result<(), StateError> {
        let path = self.file(array);
        let forget = || -> io::Result<()> {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            File::open(&self.path)?.sync_all()
        };
        forget().map_err(|source| StateError::Io { doing: "remove", path: path.clone(), source })
    }

    /// Where an array's record is, for messages.
    pub fn path_of(&self, array: &str) -> PathBuf {
        self.file(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_replaces_and_refuses_what_is_not_a_record() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(&directory.path().join("new")).unwrap();
        assert_eq!(state.record("fast").unwrap(), None);
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        state.remember("fast", &Record::new(one, vec!["a".into()], None)).unwrap();
        assert_eq!(state.record("fast").unwrap().unwrap().uuid, one);
        let record = Record::new(two, vec!["a".into(), "b".into()], Some(7));
        state.remember("fast", &record).unwrap();
        assert_eq!(state.record("fast").unwrap().unwrap(), record);
        state.forget("fast").unwrap();
        state.forget("fast").unwrap();
        assert_eq!(state.record("fast").unwrap(), None);
        // Of a daemon that did not note events.
        let old = format!("{{\"schema\":\"{SCHEMA}\",\"uuid\":\"{one}\",\"members\":[]}}");
        fs::write(state.path_of("fast"), old).unwrap();
        assert_eq!(state.record("fast").unwrap().unwrap().events, None);

        fs::write(state.path_of("fast"), "{}").unwrap();
        let error = state.record("fast").unwrap_err().to_string();
        assert!(error.contains("array-fast.json"), "{error}");
        fs::write(state.path_of("fast"), format!("{{\"schema\":\"x/9\",\"uuid\":\"{one}\"}}"))
            .unwrap();
        assert!(matches!(state.record("fast"), Err(StateError::Unreadable { .. })));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named_with_the_cure() {
        let error = StateDirectory::open(Path::new("/proc/nowhere")).unwrap_err().to_string();
        assert!(error.contains("/proc/nowhere") && error.contains("state_dir"), "{error}");
    }
}
