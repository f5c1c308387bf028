//! Runs the program and keeps what it said; configuration files and drives for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a run came to.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    /// The run must have ended with this code; gives what it said on standard error.
    #[track_caller]
    pub fn fails(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.err.contains("panicked"), "{self:#?}");
        &self.err
    }

    /// The run must have succeeded; gives its output.
    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:#?}");
        &self.out
    }
}

/// The program, in an environment that does not depend on who tests.
pub fn command<A: AsRef<std::ffi::OsStr>>(arguments: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raidfabric"));
    command.args(arguments).env("COLUMNS", "100").env_remove("RAIDFABRIC_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end, without a terminal.
pub fn run<A: AsRef<std::ffi::OsStr>>(arguments: &[A]) -> Run {
    let output = command(arguments).output().unwrap();
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A folder on a real file system: members need O_DIRECT, which tmpfs has not everywhere.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A sparse file of a size in MiB.
pub fn drive(folder: &Path, name: &str, mebibytes: u64) -> PathBuf {
    let path = folder.join(name);
    File::create(&path).unwrap().set_len(mebibytes << 20).unwrap();
    path
}

/// Writes a configuration of arrays, each with its members, each exported by a subsystem.
pub fn configuration(folder: &Path, arrays: &[(&str, &str, &[PathBuf])]) -> String {
    let mut text = String::from("arrays:\n");
    for (name, level, members) in arrays {
        let members: Vec<_> = members.iter().map(|path| format!("{:?}", path)).collect();
        let members = members.join(", ");
        text += &format!("  - name: {name}\n    level: {level}\n    members: [{members}]\n");
    }
    text += "subsystems:\n";
    for (name, _, _) in arrays {
        text += &format!(
            "  - nqn: nqn.2026-11.org.example:{name}\n    \
             hosts: [\"nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111\"]\n    \
             namespaces: [{{ nsid: 1, array: {name} }}]\n"
        );
    }
    text += &format!("listen: [\"127.0.0.1:4420\"]\nstate_dir: {:?}\n", folder.join("state"));
    let path = folder.join("fabric.yaml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
