//! Building the suites once, and running one of them with or without a fault.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use holdfast::planted::{Fault, VARIABLE};

use crate::rungs::{Build, Suite};

/// How long a suite may take whose time without a fault is not known yet.
const FIRST_MAX: Duration = Duration::from_secs(900);
/// How long a test binary may go on after its first failure, to say why.
const LAST_WORDS: Duration = Duration::from_secs(45);
/// The partition suite under a fault: faults go on for so long.
const PARTITION_SECONDS: &str = "75";
/// Lines of a suite that may wait to be read.
const LINES_MAX: usize = 1 << 16;

/// The test binaries that were built.
#[derive(Debug, Default)]
pub(crate) struct Built {
    tests: BTreeMap<(Build, String), PathBuf>,
    /// The `holdfast` binary that carries the faults.
    binary: Option<PathBuf>,
}

/// How a run of a suite ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) took: Duration,
    /// The first test that failed, and what it said; `None` when all passed.
    pub(crate) failed: Option<Failed>,
    /// Why the suite could not judge, when it could not.
    pub(crate) unable: Option<String>,
}

/// A failure.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) test: String,
    pub(crate) why: String,
    pub(crate) after: Duration,
    pub(crate) output: String,
}

fn cargo(words: &[&str], optimised: bool) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(words).arg("--message-format=json").stderr(Stdio::inherit());
    if optimised {
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    }
    let output = command.output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {} failed", words.join(" ")));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

impl Built {
    /// Builds what these suites need.
    pub(crate) fn new(suites: &[Suite]) -> Result<Built, String> {
        let mut built = Built::default();
        let needs = |build| suites.iter().any(|suite| suite.build == build);
        if needs(Build::Units) || needs(Build::Test) || needs(Build::Partition) {
            let words =
                ["build", "--package", "holdfast", "--features", "planted", "--lib", "--bins"];
            built.learn(&cargo(&[&words[..], &["--tests"]].concat(), false)?, Build::Test);
        }
        if needs(Build::Simulated) {
            let words = ["build", "--package", "holdfast", "--features", "sim,planted"];
            let words = [&words[..], &["--test", "simulation"]].concat();
            built.learn(&cargo(&words, true)?, Build::Simulated);
        }
        if needs(Build::Partition) {
            let words = ["build", "--release", "--package", "holdfast-jepsen"];
            built.learn(&cargo(&words, false)?, Build::Partition);
        }
        Ok(built)
    }

    fn learn(&mut self, messages: &str, build: Build) {
        for line in messages.lines() {
            let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
            let Some(path) = message["executable"].as_str().map(PathBuf::from) else { continue };
            let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
            let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
            let is_test = message["profile"]["test"].as_bool() == Some(true);
            match (build, kind, is_test) {
                (Build::Test, "bin", false) => self.binary = Some(path),
                (Build::Test, "lib", true) => {
                    self.tests.insert((Build::Units, name), path);
                }
                (Build::Test | Build::Simulated, "test", true)
                | (Build::Partition, "bin", false) => {
                    self.tests.insert((build, name), path);
                }
                (Build::Units | Build::Test | Build::Simulated | Build::Partition, _, _) => {}
            }
        }
    }

    /// Runs a suite, only its test `only` if one is named, for at most `within`.
    pub(crate) fn run(
        &self,
        suite: Suite,
        fault: Option<Fault>,
        only: Option<&str>,
        within: Option<Duration>,
    ) -> Result<Ran, String> {
        let key = (suite.build, suite.name.to_owned());
        let path = self.tests.get(&key).ok_or_else(|| format!("{} was not built", suite.name))?;
        let mut command = Command::new(path);
        command.env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"));
        command.env_remove(VARIABLE).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        if let Some(fault) = fault {
            command.env(VARIABLE, fault.name());
        }
        let within = within.unwrap_or(FIRST_MAX);
        if suite.build == Build::Partition {
            let binary = self.binary.as_deref().ok_or("the planted binary was not built")?;
            return judge_partitions(command, binary, fault, within);
        }
        if let Some(test) = only {
            command.args([test, "--exact"]);
        }
        watch(command, within)
    }
}

/// Runs a test binary to its end, or to some time after its first failure.
fn watch(mut command: Command, within: Duration) -> Result<Ran, String> {
    let began = Instant::now();
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let (sender, lines) = sync_channel::<String>(LINES_MAX);
    for pipe in pipes(&mut child) {
        let sender = sender.clone();
        std::thread::spawn(move || {
            // A test may print anything; what is not text is of no interest.
            let mut reader = BufReader::new(pipe);
            let mut bytes = Vec::new();
            while matches!(reader.read_until(b'\n', &mut bytes), Ok(read) if read > 0) {
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                bytes.clear();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut output = String::new();
    let mut first: Option<(String, Duration)> = None;
    let mut until = began + within;
    let mut late = false;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => {
                let failed = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"));
                if let Some(test) = failed.filter(|_| first.is_none()) {
                    first = Some((test.to_owned(), began.elapsed()));
                    until = until.min(Instant::now() + LAST_WORDS);
                }
                output.push_str(&line);
                output.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                late = true;
                break;
            }
        }
    }
    end(&child);
    let status = child.wait().map_err(|error| error.to_string())?;
    let took = began.elapsed();
    let failed = match first {
        Some((test, after)) => {
            Some(Failed { why: why_of(&output, &test), test, after, output: output.clone() })
        }
        None if late => {
            let why = format!("it hangs: not done after {} s", within.as_secs());
            Some(Failed { test: "(hangs)".into(), why, after: took, output: output.clone() })
        }
        None if !status.success() => {
            let why = format!("{status}; {}", last_panic(&output).unwrap_or_default());
            Some(Failed { test: "(ends badly)".into(), why, after: took, output: output.clone() })
        }
        None => None,
    };
    let is_empty = failed.is_none() && !output.contains(" passed");
    let unable = is_empty.then(|| "it ran no test".to_owned());
    Ok(Ran { took, failed, unable })
}

fn pipes(child: &mut Child) -> Vec<Box<dyn Read + Send>> {
    let out = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    let err = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    out.into_iter().chain(err).collect()
}

/// Ends a suite and whatever it started: they are one process group.
fn end(child: &Child) {
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        // It may have ended by itself.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// What a test said: the seed, and the words of its panic.
fn why_of(output: &str, test: &str) -> String {
    let head = format!("---- {test} stdout ----");
    let said = output.split_once(&head).map_or(output, |(_, rest)| rest);
    let said = said.split_once("\n---- ").map_or(said, |(own, _)| own);
    let said = said.split_once("\nfailures:\n").map_or(said, |(own, _)| own);
    let words = last_panic(said).unwrap_or_else(|| said.trim().lines().take(2).collect());
    let seed = said.lines().find(|line| line.contains("seed ") && line.contains("breaks"));
    let breaks = said.split_once("breaks:\n").map(|(_, rest)| rest.lines().next());
    match (seed, breaks) {
        (Some(seed), Some(Some(law))) => format!("{} {}", seed.trim(), law.trim()),
        (_, _) => words,
    }
}

/// The words of the last panic.
fn last_panic(output: &str) -> Option<String> {
    let at = output.rfind("panicked at ")?;
    let words = output[at..].split_once('\n')?.1;
    let line: Vec<&str> = words.lines().take(2).map(str::trim).collect();
    Some(line.join(" "))
}

/// Runs the partition suite; only the verdict `invalid` catches anything, and only `valid` and
/// `insufficient` pass.
fn judge_partitions(
    mut command: Command,
    binary: &Path,
    fault: Option<Fault>,
    within: Duration,
) -> Result<Ran, String> {
    let name = fault.map_or("none", Fault::name);
    let out = format!("target/ladder/partition-{name}");
    command.args(["run", "--profile", "fast", "--seconds", PARTITION_SECONDS, "--seed", "4"]);
    command.args(["--quiet", "--json", "--out", &out, "--binary"]).arg(binary);
    let began = Instant::now();
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let mut readers = Vec::new();
    for mut pipe in pipes(&mut child) {
        readers.push(std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before an error is kept.
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        }));
    }
    let mut status = None;
    while status.is_none() && began.elapsed() < within {
        status = child.try_wait().map_err(|error| error.to_string())?;
        std::thread::sleep(Duration::from_millis(200));
    }
    end(&child);
    let status = match status {
        Some(status) => status,
        None => child.wait().map_err(|error| error.to_string())?,
    };
    let output: String = readers.into_iter().filter_map(|reader| reader.join().ok()).collect();
    let took = began.elapsed();
    let told = serde_json::from_str::<serde_json::Value>(&output).unwrap_or_default();
    let ran = |failed, unable| Ok(Ran { took, failed, unable });
    match status.code() {
        Some(0 | 3) => ran(None, None),
        Some(1) => {
            let broken = told["properties"].as_array().into_iter().flatten().find(|property| {
                property["violations"].as_array().is_some_and(|all| !all.is_empty())
            });
            let test = broken.and_then(|it| it["name"].as_str()).unwrap_or("verdict").to_owned();
            let first = broken.map(|it| it["violations"][0].to_string()).unwrap_or_default();
            let why = format!("seed 4: invalid; {first}");
            ran(Some(Failed { test, why, after: took, output }), None)
        }
        _ => ran(None, Some(format!("{status}: {}", output.lines().last().unwrap_or_default()))),
    }
}
