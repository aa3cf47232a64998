//! A process that runs the seeds that it is given, and its handle in the process that gives them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::simulation::cut::Cut;
use crate::simulation::run;
use crate::simulation::trace::Trace;
use crate::simulation::verdict::Verdict;

/// The longest that a seed may take by a real clock: virtual time that stands still would hang it.
const SEED_MAX: Duration = Duration::from_secs(300);

/// Answers each seed on standard input with a line of JSON.
pub(crate) fn serve() -> bool {
    let seeds = std::io::stdin().lines().map_while(Result::ok);
    for seed in seeds.filter_map(|line| line.trim().parse::<u64>().ok()) {
        let verdict = run(seed, &Cut::default(), Trace::quiet());
        let line = serde_json::to_string(&verdict).expect("a verdict is JSON");
        if writeln!(std::io::stdout(), "{line}").is_err() {
            return false;
        }
    }
    true
}

/// A worker process. It ends with its handle.
pub(crate) struct Worker {
    process: Child,
    seeds: ChildStdin,
    verdicts: mpsc::Receiver<String>,
}

impl Worker {
    /// Starts a process.
    pub(crate) fn start() -> std::io::Result<Worker> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let broken = || std::io::Error::other("a pipe of the worker is missing");
        let seeds = process.stdin.take().ok_or_else(broken)?;
        let output = BufReader::new(process.stdout.take().ok_or_else(broken)?);
        let (told, verdicts) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { process, seeds, verdicts })
    }

    /// Runs a seed there. A process that dies or hangs breaks a law, too.
    pub(crate) fn run(&mut self, seed: u64) -> Verdict {
        let sent = writeln!(self.seeds, "{seed}").and_then(|()| self.seeds.flush());
        let line = sent
            .map_err(|error| error.to_string())
            .and_then(|()| self.verdicts.recv_timeout(SEED_MAX).map_err(|end| end.to_string()));
        let verdict = line.and_then(|line| {
            serde_json::from_str::<Verdict>(&line).map_err(|error| format!("{error}: {line}"))
        });
        verdict.unwrap_or_else(|why| {
            let status = self.process.try_wait();
            Verdict::of_a_panic(seed, format!("its process hangs or died ({status:?}): {why}"))
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
