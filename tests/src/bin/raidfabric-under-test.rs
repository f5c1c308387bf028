//! The `raidfabric` program, under a name by which Cargo tells the tests where it is.

use std::process::ExitCode;

fn main() -> ExitCode {
    raidfabric::cli::main()
}
