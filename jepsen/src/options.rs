//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// What the top of `--help` says.
const ABOUT: &str = "\
Breaks a Holdfast cluster on purpose and judges what it answered.

`run` starts real `holdfast` processes, each in a network namespace of its own, lets clients work \
while it cuts, kills, pauses, fills, flips and turns clocks, heals, reads everything back, and \
says whether the history can be explained. It talks HTTP only and shares no code with Holdfast.";

const AFTER: &str = "\
Examples:
  holdfast-jepsen run --profile thin                  does it work here? half a minute
  holdfast-jepsen run --profile fast --seed 7         five minutes, the faults that seed 7 draws
  holdfast-jepsen run --faults kill-leader,pause      only these
  holdfast-jepsen check target/jepsen/fast-7/history.jsonl   judge again, from the file alone
  holdfast-jepsen list                                faults, workloads, profiles, properties

What a run leaves in its directory: history.jsonl (see jepsen/README.md), verdict.json,
timeline.html, and the nodes' logs.

Verdicts and exit codes:
  0  valid            nothing contradicts the contract, and enough was done to say so
  1  invalid          something does: verdict.json says what
  2  (usage)
  3  insufficient     nothing contradicts it, but a floor was missed: too few operations or faults
  4  harness-failure  the suite itself could not do its work; says nothing about Holdfast";

/// The partition suite of Holdfast.
#[derive(Debug, Parser)]
#[command(name = "holdfast-jepsen", version, about = ABOUT, after_help = AFTER)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a cluster, break it, judge it
    Run(Box<Run>),
    /// Judge a history that a run has left
    Check(Check),
    /// Tell which faults, workloads, profiles and properties there are, and what this machine lacks
    List,
    /// Remove what killed runs have left behind: processes and directories with the suite's mark
    Reap,
    /// Open a connection and close it: the probe that proves a partition
    #[command(hide = true)]
    Touch(Touch),
}

/// Where the nodes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Namespaces where they can be had, else the loopback, loudly
    Auto,
    /// A network namespace for each node: every fault
    Namespaces,
    /// All on the loopback: no partitions, no disks of their own, no root
    Loopback,
}

#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct Run {
    /// How long and how hard: thin, fast, full or soak
    #[arg(long, default_value = "fast")]
    pub(crate) profile: String,
    /// Draws faults, workloads and pauses; printed, and random when absent
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The `holdfast` binary; beside this one when absent
    #[arg(long, value_name = "FILE", env = "HOLDFAST_BINARY")]
    pub(crate) binary: Option<PathBuf>,
    /// Where history, verdict, timeline and logs go; target/jepsen/PROFILE-SEED when absent
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) mode: Mode,
    /// Faults go on for so long instead of the profile's time
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<u64>,
    /// Only these faults, by name (see `list`), separated by commas; `none` for none
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) faults: Vec<String>,
    /// Only these workloads, by name, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) workloads: Vec<String>,
    /// Nodes instead of the profile's number
    #[arg(long, value_name = "COUNT")]
    pub(crate) nodes: Option<u64>,
    /// Print the verdict as JSON on stdout instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Say nothing while it runs
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Keep the nodes' data too
    #[arg(long)]
    pub(crate) keep: bool,
    /// Set by the suite when it starts itself inside its namespaces
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) inside: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Check {
    /// The history
    #[arg(value_name = "FILE")]
    pub(crate) history: PathBuf,
    /// Print the report as JSON on stdout instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw a timeline into this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Touch {
    /// Whom
    #[arg(value_name = "ADDRESS")]
    pub(crate) target: std::net::SocketAddr,
    /// For how long it is tried
    #[arg(long, default_value_t = 300)]
    pub(crate) within_ms: u64,
}
