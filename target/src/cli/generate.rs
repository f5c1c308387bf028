//! `raidfabric completions` and `raidfabric man`: what packages ship beside the program, made from
//! the same definitions as `--help`. Hidden, as only packagers need them; told in
//! `docs/commands.md`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Failure, print};

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: raidfabric completions bash >/usr/share/bash-completion/completions/raidfabric"
)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "raidfabric", &mut script);
        print::text(String::from_utf8_lossy(&script))
    }
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "Example: raidfabric man /usr/local/share/man/man1")]
pub(super) struct Man {
    /// Where the pages go; made if it is missing
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

impl Man {
    pub(super) fn run(self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::Failed(format!(
                "cannot write manual pages into {}: {error}",
                self.directory.display()
            ))
        };
        std::fs::create_dir_all(&self.directory).map_err(failed)?;
        clap_mangen::generate_to(Cli::command(), &self.directory).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }
}
