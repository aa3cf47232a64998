//! The binary under test, as people run it.

use std::process::{Command, Stdio};

/// What a finished command said.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Its words, wherever it said them.
    pub(crate) fn words(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// A command line of the built binary, with nothing of this process's environment that could
/// change it.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    for (name, _) in std::env::vars() {
        if name.starts_with("HOLDFAST_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// Runs the built binary to its end.
pub(crate) fn holdfast(arguments: &[&str]) -> Finished {
    let output = command(arguments).stdin(Stdio::null()).output().expect("the binary runs");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
