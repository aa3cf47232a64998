//! The simulator's command: many seeds, one seed with its trace, and a failing seed made small.
//!
//! ```text
//! cargo run --release --features sim --example simulate -- run --seeds 5000 [--from N]
//! cargo run --release --features sim --example simulate -- replay SEED
//! cargo run --release --features sim --example simulate -- shrink SEED
//! cargo run --release --features sim --example simulate -- scene NAME SEED
//! cargo run --release --features sim --example simulate -- scale-out
//! ```
//!
//! It lives here, and not in the binary, because a node of a simulated build runs on virtual time:
//! the feature `sim` makes another program of the crate. What a seed draws, does and checks is
//! `tests/simulation/`, the same files that the tests include.
//!
//! Exit codes: 0, every law was kept; 1, one was broken, or a trace was not the same in a second
//! process; 2, the command was not understood.

#[path = "../../tests/simulation/mod.rs"]
mod simulation;

mod summary;
mod sweep;
mod worker;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use simulation::cut::{Cut, Keep, Unease};
use simulation::trace::Trace;
use simulation::verdict::{Verdict, replay_command};
use simulation::{run, scale, shrink, stage};

/// Runs whole clusters in virtual time: the same seed does the same thing, always.
#[derive(Parser)]
#[command(name = "simulate")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run many seeds, in as many processes as there are cores.
    Run(sweep::Options),
    /// Run one seed and print its trace: virtual time, who, what.
    Replay(Replay),
    /// Find a smaller run that fails as this seed does, and print the command that replays it.
    Shrink(Shrink),
    /// Play a scene that is written by hand, under a seed, and print its trace.
    Scene(Scene),
    /// Measure, by a model, how one item sells on one bucket and on eight.
    ScaleOut(ScaleOut),
    /// Run the seeds that come on standard input, one a line, and print a verdict for each.
    #[command(hide = true)]
    Worker,
}

#[derive(Args)]
struct Replay {
    /// The seed.
    seed: u64,
    /// Keep only these faults, as `0-3,7`, or `none`.
    #[arg(long)]
    faults: Option<Keep>,
    /// Keep only these decisions of clients.
    #[arg(long)]
    decisions: Option<Keep>,
    /// With so many clients at most.
    #[arg(long)]
    clients: Option<u64>,
    /// Without these disturbances: impatience, wire, unrest, sync, checkpoints.
    #[arg(long, value_delimiter = ',')]
    calm: Vec<Unease>,
    /// Draw anew what is drawn on the way.
    #[arg(long, default_value_t = 0)]
    salt: u64,
    /// Print the verdict only.
    #[arg(long)]
    quiet: bool,
    /// Print the verdict as JSON.
    #[arg(long)]
    json: bool,
    /// Tell on standard error what the nodes log, as they log it: `info`, `debug`, or a filter.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

#[derive(Args)]
struct Shrink {
    /// The seed.
    seed: u64,
    /// How long to go on, in minutes.
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// Print the smallest run as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Scene {
    /// Which one.
    #[arg(value_parser = stage::SCENES.map(|(name, _)| name))]
    name: String,
    /// The seed.
    seed: u64,
}

#[derive(Args)]
struct ScaleOut {
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let is_clean = match Cli::parse().verb {
        Verb::Run(options) => sweep::run(&options),
        Verb::Replay(replay) => replay.run(),
        Verb::Shrink(shrink) => shrink.run(),
        Verb::Scene(scene) => scene.run(),
        Verb::ScaleOut(wanted) => wanted.run(),
        Verb::Worker => worker::serve(),
    };
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).expect("figures and texts are JSON")
}

impl Replay {
    fn run(self) -> bool {
        if let Some(filter) = &self.log {
            // What it tells has no time: that of this process is not the nodes'.
            let format = tracing_subscriber::fmt().without_time().with_writer(std::io::stderr);
            format.with_env_filter(filter).with_ansi(false).init();
        }
        let all = |keep: Option<Keep>| keep.unwrap_or_default();
        let cut = Cut {
            faults: all(self.faults),
            decisions: all(self.decisions),
            clients: self.clients,
            calm: self.calm.into_iter().collect::<BTreeSet<_>>(),
            salt: self.salt,
        };
        let trace = Trace::new(!self.quiet && !self.json);
        let verdict = run(self.seed, &cut, trace);
        if self.json {
            println!("{}", to_json(&verdict));
        } else {
            summary::tell_one(&verdict);
        }
        verdict.is_clean()
    }
}

impl Shrink {
    fn run(self) -> bool {
        // Panics are expected here, again and again: the verdict tells of them.
        std::panic::set_hook(Box::new(|_| ()));
        let limit = Duration::from_secs(self.minutes * 60);
        let mut told = |cut: &Cut, verdict: &Verdict| {
            let (decisions, faults) = (&cut.decisions, &cut.faults);
            eprintln!(
                "still fails with {} calls, faults {faults}, decisions {decisions}",
                verdict.calls
            );
        };
        let mut attempt = |cut: &Cut| run(self.seed, cut, Trace::new(false));
        let (cut, verdict) = shrink::shrink(&mut attempt, Cut::default(), limit, &mut told);
        let replay = replay_command(self.seed, &cut);
        if self.json {
            let value = serde_json::json!({"replay": replay, "verdict": verdict});
            println!("{}", to_json(&value));
        } else if verdict.is_clean() {
            println!("seed {} keeps every law: there is nothing to shrink", self.seed);
        } else {
            println!("{}", verdict.broken.join("\n"));
            println!("replay the smallest run found with:\n{replay}");
        }
        verdict.is_clean()
    }
}

impl Scene {
    fn run(self) -> bool {
        let verdict = stage::scene(&self.name, self.seed, Trace::new(true));
        let verdict = verdict.expect("the name was checked where it was read");
        summary::tell_one(&verdict);
        verdict.is_clean()
    }
}

impl ScaleOut {
    fn run(self) -> bool {
        let figures = scale::measure();
        if self.json {
            println!("{}", to_json(&figures));
        } else {
            println!("{}", figures.words());
        }
        figures.is_good()
    }
}
