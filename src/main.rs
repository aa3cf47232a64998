//! The `holdfast` binary: reads the command line and runs one verb.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast::cli::run(std::env::args_os().collect())
}
