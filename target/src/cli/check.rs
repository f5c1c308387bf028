//! `raidfabric check` and `raidfabric schema`: everything about a configuration that can be known
//! without starting.

use clap::Args;

use super::{ConfigFile, Failure, print};
use crate::config::cores::{self, Available};
use crate::config::drives::{Absence, Drives};
use crate::config::memory::Bound;
use crate::config::{self, Config, Loaded, format_bytes};
use crate::server::present;

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(
    after_help = "Opens no drive and binds no port, so that it can run beside a daemon that uses \
                  them.\n\nExample: raidfabric check /etc/raidfabric/raidfabric.yaml"
)]
pub(super) struct Check {
    #[command(flatten)]
    file: ConfigFile,
}

impl Check {
    pub(super) fn run(self) -> Result<(), Failure> {
        let (loaded, drives, cores) = load(&self.file, Absence::Refused)?;
        let config = &loaded.config;
        print::text(present::configuration(config, &drives))?;
        let available = Available::read().map_err(Failure::refused)?;
        print::line(cores::describe(&config.cores, &available, &cores))?;
        print::line(Bound::new(config, cores.len()))
    }
}

/// Loads a configuration with its drives and cores, and prints its warnings.
pub(super) fn load(
    file: &ConfigFile,
    absence: Absence,
) -> Result<(Loaded, Vec<Drives>, Vec<usize>), Failure> {
    let (loaded, drives) = load_drives(file, absence)?;
    let cores = choose_cores(&loaded.config)?;
    Ok((loaded, drives, cores))
}

/// Loads a configuration with its drives, and prints its warnings.
pub(super) fn load_drives(
    file: &ConfigFile,
    absence: Absence,
) -> Result<(Loaded, Vec<Drives>), Failure> {
    let loaded = config::load(&file.path).map_err(Failure::misconfigured)?;
    if !loaded.warnings.is_empty() {
        print::note(loaded.warnings.to_string().trim_end());
    }
    let drives = loaded.drives(absence).map_err(Failure::misconfigured)?;
    Ok((loaded, drives))
}

/// The data cores of a configuration.
pub(super) fn choose_cores(config: &Config) -> Result<Vec<usize>, Failure> {
    let available = Available::read().map_err(Failure::refused)?;
    cores::choose(&config.cores, &available).map_err(Failure::refused)
}

/// Prints the JSON Schema.
pub(super) fn print_schema() -> Result<(), Failure> {
    print::line(config::schema_json())
}

/// A size for a person.
pub(super) fn size(bytes: u64) -> String {
    format_bytes(bytes)
}
