//! `raidfabric demo`: a volume to play with, on any machine, without any drives.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::serve::serve;
use super::{Failure, check, print, start_logging};
use crate::config::drives::Drives;
use crate::config::{self, Config};
use crate::server::{self, Plan};

/// Size of each of the four files.
const FILE_BYTES: u64 = 1 << 30;
/// The free space that is asked for beyond what the files can still grow by.
const SPARE_BYTES: u64 = 64 << 20;

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Ctrl-C ends the service and leaves the files, so that the next run serves the \
                  same data; delete the directory to be rid of them.\n\nExample: raidfabric demo \
                  --directory /var/tmp/demo --listen 127.0.0.1:4421"
)]
pub(super) struct Demo {
    /// Where the four files are kept [default: raidfabric-demo in the user's data directory]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// The address to serve on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4420")]
    listen: SocketAddr,
}

impl Demo {
    pub(super) fn run(self) -> Result<(), Failure> {
        start_logging()?;
        let directory = self.directory.map_or_else(default_directory, Ok)?;
        let directory = std::path::absolute(&directory)
            .map_err(|error| Failure::Refused(format!("--directory {directory:?}: {error}")))?;
        // Before anything is made, so that a refusal leaves nothing behind.
        server::check_address(self.listen).map_err(Failure::refused)?;
        let files = make_files(&directory)?;
        print::line(format_args!("demo: four files of 1 GiB in {}", directory.display()))?;
        let config = configuration(&directory, self.listen)?;
        let cores = check::choose_cores(&config)?;
        serve(&Plan { config, drives: vec![Drives::Paths(files.into())], cores })
    }
}

fn default_directory() -> Result<PathBuf, Failure> {
    let base = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    base.filter(|base| base.is_absolute()).map(|base| base.join("raidfabric-demo")).ok_or_else(
        || {
            Failure::Refused(
                "neither XDG_DATA_HOME nor HOME is an absolute path, so that there is no usual \
                 place for the files; say where by --directory"
                    .into(),
            )
        },
    )
}

/// Makes the files that are missing, sparse; leaves those that are there as they are.
fn make_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |doing: &str, path: &Path, error: &io::Error| {
        Failure::Failed(format!(
            "cannot {doing} {}: {error}; another place can be chosen by --directory",
            path.display()
        ))
    };
    let files: Vec<_> = (0..4).map(|n| directory.join(format!("drive{n}.img"))).collect();
    check_free_space(directory, &files)?;
    fs::create_dir_all(directory).map_err(|error| failed("make", directory, &error))?;
    for path in &files {
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => file.set_len(FILE_BYTES).map_err(|error| failed("size", path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("make", path, &error)),
        }
    }
    Ok(files)
}

/// The files are sparse: writing into them must not fill the file system later.
fn check_free_space(directory: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;
    let present: u64 = files
        .iter()
        .filter_map(|path| fs::metadata(path).ok())
        .map(|meta| meta.blocks() * 512)
        .sum();
    let needed = (FILE_BYTES * files.len() as u64).saturating_sub(present) + SPARE_BYTES;
    // The directory itself may not be there yet.
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let space = rustix::fs::statvfs(there).map_err(|error| {
        Failure::Failed(format!(
            "cannot ask for the free space of {}: {error}",
            directory.display()
        ))
    })?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < needed {
        return Err(Failure::Refused(format!(
            "{} has {} free, and the demo can come to need {}; choose another place with \
             --directory",
            directory.display(),
            check::size(free),
            check::size(needed),
        )));
    }
    Ok(())
}

fn configuration(directory: &Path, listen: SocketAddr) -> Result<Config, Failure> {
    let text = format!(
        "arrays:\n  - name: demo\n    level: raid10\n    chunk: 64KiB\n    members: [{}]\n\
         subsystems:\n  - nqn: nqn.2026-11.io.raidfabric:demo\n    hosts: any\n    namespaces:\n      \
         - {{ nsid: 1, array: demo, block_size: 4096 }}\n\
         listen: [\"{listen}\"]\nstate_dir: {}\n",
        (0..4)
            .map(|n| yaml_string(&directory.join(format!("drive{n}.img"))))
            .collect::<Vec<_>>()
            .join(", "),
        yaml_string(&directory.join("state")),
    );
    let loaded = config::parse(Path::new("(demo)"), &text).map_err(Failure::failed)?;
    Ok(loaded.config)
}

/// A path as a quoted YAML string.
fn yaml_string(path: &Path) -> String {
    // JSON strings are YAML strings.
    serde_json::Value::from(path.to_string_lossy()).to_string()
}
