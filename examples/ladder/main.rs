//! The ladder, run against planted bugs: which rung of the proof catches which fault.
//!
//! ```text
//! make ladder                                  # all faults, all rungs; an hour or two
//! make ladder ARGS="--only no-sync,key-dropped"
//! make ladder ARGS="--to 6 --json"             # without the partition suite
//! ```
//!
//! One build with the feature `planted` serves all: `PLANTED_FAULT` names the fault in every process
//! that a test starts. For each fault the rungs are climbed in order, the cheap ones first, and the
//! first test that fails has caught it; the same test is then run once more, so that a coincidence
//! is told from a catch. Before a suite counts it must pass without a fault: one that fails anyway
//! catches nothing. A fault that nothing catches needs a new test, on the lowest rung that can see
//! it.
//!
//! The report is a table on stdout (`--json`, `--markdown`), and always in
//! `target/ladder/report.json`; what each failing test said is beside it. Exit code 0: all are
//! caught and every suite passed without a fault.

mod catches;
mod report;
mod rungs;
mod suites;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast::planted::{Fault, VARIABLE};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use catches::Ladder;
use report::Row;

/// Runs the ladder of tests against each planted fault and tells which rung catches it.
#[derive(Debug, Parser)]
struct Options {
    /// Only these faults, separated by commas (see --list).
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The first rung.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=7))]
    from: u8,
    /// The last rung; 7 is the partition suite, which takes minutes a fault.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=7))]
    to: u8,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Print the table as Markdown.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// List the faults and the rungs, and run nothing.
    #[arg(long)]
    list: bool,
}

/// What a run shows while it goes on: one line that moves for people, a line an event for others.
pub(crate) struct Voice(ProgressBar);

impl Voice {
    fn new(faults: u64) -> Voice {
        let bar = ProgressBar::new(faults);
        if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = "{bar:24.cyan/dim} {pos}/{len} {elapsed}  {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is constant"));
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Voice(bar)
    }

    /// Shows what goes on now.
    pub(crate) fn now(&self, words: &str) {
        self.0.set_message(words.to_owned());
    }

    /// Says something that stays.
    pub(crate) fn say(&self, words: &str) {
        if self.0.is_hidden() { eprintln!("{words}") } else { self.0.println(words) }
    }
}

fn chosen(names: &[String]) -> Result<Vec<Fault>, String> {
    if names.is_empty() {
        return Ok(Fault::ALL.to_vec());
    }
    let find = |name: &String| {
        let found = Fault::ALL.iter().copied().find(|fault| fault.name() == name);
        found.ok_or_else(|| format!("`{name}` is no fault; --list names them"))
    };
    names.iter().map(find).collect()
}

fn list() {
    for rung in rungs::RUNGS {
        let suites: Vec<&str> = rung.suites.iter().map(|suite| suite.name).collect();
        println!("rung {}  {}: {}", rung.number, rung.name, suites.join(", "));
    }
    for fault in Fault::ALL {
        println!("{:24} {}", fault.name(), fault.rule());
    }
}

fn run(options: &Options) -> Result<bool, String> {
    let faults = chosen(&options.only)?;
    if std::env::var_os(VARIABLE).is_some() {
        return Err(format!("{VARIABLE} is set: a suite must first pass without a fault"));
    }
    let voice = Voice::new(faults.len() as u64);
    let out = PathBuf::from("target/ladder");
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut ladder = Ladder::build(&voice, &out, options.from..=options.to)?;
    let mut rows: Vec<Row> = Vec::new();
    for fault in faults {
        let row = ladder.climb(fault)?;
        voice.say(&report::line(&row));
        voice.0.inc(1);
        rows.push(row);
        report::write(&out.join("report.json"), &rows, ladder.broken())?;
    }
    voice.0.finish_and_clear();
    if options.json {
        println!("{}", report::json(&rows, ladder.broken()));
    } else if options.markdown {
        print!("{}", report::markdown(&rows));
    } else {
        println!("{}", report::table(&rows));
    }
    for (suite, why) in ladder.broken() {
        eprintln!("NOT COUNTED: {suite} fails without any fault: {why}");
    }
    for (suite, why) in ladder.skipped() {
        eprintln!("SKIPPED: {suite}: {why}");
    }
    let missed = rows.iter().filter(|row| row.catch.is_none()).count();
    eprintln!("{} of {} faults are caught", rows.len() - missed, rows.len());
    Ok(missed == 0 && ladder.broken().is_empty())
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        list();
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("ladder: {why}");
            ExitCode::from(2)
        }
    }
}
