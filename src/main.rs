//! The `holdfast` binary: reads the command line and runs one verb.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    holdfast::cli::run(holdfast::cli::CommandLine::parse())
}
