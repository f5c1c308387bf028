//! The `raidfabric` program. Everything is in the library, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    raidfabric::cli::main()
}
