//! Many seeds, in several processes, with a display of how far it is.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::simulation::verdict::{Verdict, replay_command};
use crate::summary::Summary;
use crate::worker::Worker;

/// Every so many seeds, one is run in a second process, which must leave the same trace.
const REPEAT_EVERY: u64 = 100;
/// How often a line is printed where there is no terminal to draw on.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// How many seeds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// How many processes; as many as there are cores when absent.
    #[arg(long)]
    jobs: Option<usize>,
    /// Go on after a failure, and collect them all.
    #[arg(long)]
    keep_going: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
}

/// What the threads share.
struct Sweep<'a> {
    options: &'a Options,
    next: AtomicU64,
    stop: AtomicBool,
    summary: Mutex<Summary>,
    bar: ProgressBar,
    began: Instant,
    last_line: Mutex<Instant>,
}

/// Runs the seeds; returns whether all were clean.
pub(crate) fn run(options: &Options) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = options.jobs.unwrap_or(cores).max(1);
    let bar = if options.json { ProgressBar::hidden() } else { ProgressBar::new(options.seeds) };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds  {elapsed}  {msg}");
    bar.set_style(style.expect("the template is well formed"));
    let sweep = Sweep {
        options,
        next: AtomicU64::new(options.from),
        stop: AtomicBool::new(false),
        summary: Mutex::new(Summary::default()),
        bar,
        began: Instant::now(),
        last_line: Mutex::new(Instant::now()),
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| sweep.work());
        }
    });
    sweep.bar.finish_and_clear();
    let took = sweep.began.elapsed();
    let summary = sweep.summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    let is_clean = summary.is_clean();
    if options.json {
        println!("{}", crate::to_json(&summary.figures(options.from, jobs, took)));
    } else {
        println!("{}", summary.words(options.from, jobs, took));
    }
    is_clean
}

impl Sweep<'_> {
    fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut worker = match Worker::start() {
            Ok(worker) => worker,
            Err(error) => return self.give_up(&format!("a worker does not start: {error}")),
        };
        while !self.stop.load(Ordering::Relaxed) {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.options.from + self.options.seeds {
                return;
            }
            let mut verdict = worker.run(seed);
            if !verdict.is_clean() {
                // Whatever state it was left in.
                match Worker::start() {
                    Ok(fresh) => worker = fresh,
                    Err(error) => self.give_up(&format!("a worker does not start: {error}")),
                }
            } else if seed % REPEAT_EVERY == self.options.from % REPEAT_EVERY {
                self.repeat(&mut verdict);
            }
            self.note(verdict);
        }
    }

    /// Runs a seed again in a process of its own: the trace must be the same.
    fn repeat(&self, verdict: &mut Verdict) {
        let again = match Worker::start() {
            Ok(mut other) => other.run(verdict.seed),
            Err(error) => return self.give_up(&format!("a worker does not start: {error}")),
        };
        self.summary().repeated += 1;
        if again.hash != verdict.hash {
            let words = format!("another trace in another process: {}", again.hash);
            verdict.broken.push(words);
        }
    }

    fn give_up(&self, words: &str) {
        eprintln!("{words}");
        self.summary().trouble.push(words.to_owned());
        self.stop.store(true, Ordering::Relaxed);
    }

    fn note(&self, verdict: Verdict) {
        if !verdict.is_clean() {
            if !self.options.keep_going {
                self.stop.store(true, Ordering::Relaxed);
            }
            let replay = replay_command(verdict.seed, &Default::default());
            let words = format!("seed {} breaks: {}\n  {replay}", verdict.seed, verdict.broken[0]);
            self.bar.suspend(|| eprintln!("{words}"));
        }
        let mut summary = self.summary();
        summary.add(verdict);
        let words = summary.progress(self.began.elapsed());
        self.bar.set_message(words.clone());
        self.bar.set_position(summary.seeds);
        if !self.options.json && !std::io::stderr().is_terminal() {
            let mut last = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= LINE_EVERY {
                *last = Instant::now();
                eprintln!("{}/{} seeds  {words}", summary.seeds, self.options.seeds);
            }
        }
    }
}
