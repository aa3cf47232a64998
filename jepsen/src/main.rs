//! The partition suite of Holdfast: it builds a cluster of real processes, breaks it while clients
//! work, heals it, reads everything back, and judges. It talks HTTP only and never imports
//! `holdfast`: the judge shares no code with the judged. See `jepsen/README.md`.
//!
//! ```text
//! sandbox      the walls: namespaces that the kernel tears down
//! run          the course of a run        last      the final reads
//! cluster      the nodes                  net, disk what they stand on
//! operator     orders to the cluster      roll      who belongs to it
//! nemesis/     the faults, with proofs    prober    how long healing takes
//! workload/    what clients do            room      one item after the other
//! worker       a client that resolves what is unknown
//! client, wire HTTP                       recorder, history   what happened
//! check/       the judge                  model     what should have happened
//! verdict      the sentence               timeline/ the picture
//! ```

mod check;
mod client;
mod cluster;
mod dice;
mod disk;
mod history;
mod last;
mod model;
mod nemesis;
mod net;
mod observer;
mod operator;
mod options;
mod prober;
mod profile;
mod progress;
mod race;
mod recorder;
mod roll;
mod room;
mod run;
mod sandbox;
mod timeline;
mod tool;
mod verdict;
mod wire;
mod worker;
mod workload;

#[cfg(test)]
mod selftest;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use cluster::Ground;
use options::{Command, Mode, Options, Run, Touch};
use profile::Profile;
use verdict::Verdict;

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(why) => return failed(&why.to_string()),
    };
    runtime.block_on(async {
        match options.command {
            Command::Run(run) => start(*run).await,
            Command::Check(check) => judge(&check),
            Command::List => list().await,
            Command::Reap => {
                let reaped = sandbox::reap();
                for words in &reaped {
                    println!("{words}");
                }
                if reaped.is_empty() {
                    println!("nothing was left");
                }
                ExitCode::SUCCESS
            }
            Command::Touch(touch) => probe(&touch).await,
        }
    })
}

/// Says that the suite itself failed.
fn failed(why: &str) -> ExitCode {
    eprintln!("holdfast-jepsen: {why}");
    ExitCode::from(Verdict::HARNESS_FAILURE)
}

/// Says that the command line is wrong.
fn misused(why: &str) -> ExitCode {
    eprintln!("holdfast-jepsen: {why}");
    ExitCode::from(2)
}

fn profile_of(run: &Run) -> Result<Profile, String> {
    let names: Vec<&str> = profile::all().iter().map(|profile| profile.name).collect();
    let mut profile = profile::named(&run.profile).ok_or(format!(
        "no profile `{}`; there are {}",
        run.profile,
        names.join(", ")
    ))?;
    if let Some(seconds) = run.seconds {
        profile.faults_for = Duration::from_secs(seconds);
    }
    match run.nodes {
        Some(nodes @ 3..=9) => profile.nodes = nodes,
        Some(_) => return Err("a cluster here has 3 to 9 nodes".to_owned()),
        None => {}
    }
    run::named_workloads(run, &mut profile)?;
    Ok(profile)
}

/// Finds the binary: named, or beside this program, or beside it in the release directory.
fn binary(named: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(named) = named {
        let path = named.canonicalize();
        return path.map_err(|e| format!("{}: {e}", named.display()));
    }
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let beside = own.with_file_name("holdfast");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(format!("{} is not there; build it, or say --binary", beside.display()))
}

async fn start(run: Run) -> ExitCode {
    let checked = profile_of(&run).and_then(|profile| {
        let (faults, no_faults) = run::named_faults(&run)?;
        Ok((profile, faults, no_faults, binary(run.binary.as_deref())?))
    });
    let (profile, faults, no_faults, binary) = match checked {
        Ok(checked) => checked,
        Err(why) => return misused(&why),
    };
    let Some(scratch) = run.inside.clone() else { return outside(run).await };
    let Some(seed) = run.seed else { return misused("the inside is always told its seed") };
    let ground = if run.mode == Mode::Loopback { Ground::Loopback } else { Ground::Namespaces };
    let out = out_dir(&run, seed);
    let quiet = run.quiet;
    let order =
        run::Order { profile, seed, ground, binary, scratch, out, faults, no_faults, quiet };
    let ended = tokio::select! {
        judged = run::run(&order) => judged,
        () = supervisor_gone() => Err("the run was ended".to_owned()),
    };
    match ended {
        Ok(judgement) => {
            if run.json {
                let text = serde_json::to_string(&judgement).expect("plain data");
                println!("{text}");
            } else {
                println!("{}", judgement.table());
            }
            if !run.quiet {
                eprintln!("history, verdict, timeline and logs: {}", order.out.display());
            }
            ExitCode::from(judgement.verdict.code())
        }
        Err(why) => failed(&why),
    }
}

/// Returns when the supervisor is gone or wants the run to end: the other end of our input closes.
async fn supervisor_gone() {
    use std::io::Read;
    let (gone, waits) = tokio::sync::oneshot::channel();
    // A thread of its own, which nobody waits for: it may sit in its read until the end.
    std::thread::spawn(move || {
        let mut byte = [0];
        let _ = std::io::stdin().read(&mut byte);
        let _ = gone.send(());
    });
    let _ = waits.await;
}

fn out_dir(run: &Run, seed: u64) -> PathBuf {
    let usual = || PathBuf::from(format!("target/jepsen/{}-{seed}", run.profile));
    run.out.clone().unwrap_or_else(usual)
}

/// The supervisor's part: everything that needs no cluster.
async fn outside(mut run: Run) -> ExitCode {
    for words in sandbox::reap() {
        eprintln!("left by an earlier run: {words}");
    }
    let way = match sandbox::way(run.mode).await {
        Ok(way) => way,
        Err(why) => return failed(&why),
    };
    if let Some(lacks) = &way.lacks {
        eprintln!("ROOTLESS SUBSET: {lacks}");
    }
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let drawn = dice::mix(clock.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(0)));
    let seed = *run.seed.get_or_insert(drawn % 1_000_000);
    let out = out_dir(&run, seed);
    if let Err(why) = empty(&out) {
        return failed(&why);
    }
    eprintln!("seed {seed}, profile {}: {}", run.profile, out.display());
    let scratch = match sandbox::scratch() {
        Ok(scratch) => scratch,
        Err(why) => return failed(&why),
    };
    match sandbox::supervise(&way, &scratch, seed, run.keep).await {
        // Only who has written a verdict may end with the code of one.
        Ok(code) if out.join("verdict.json").is_file() => ExitCode::from(code),
        Ok(Verdict::HARNESS_FAILURE) => ExitCode::from(Verdict::HARNESS_FAILURE),
        Ok(code) => failed(&format!("the suite ended with {code} and no verdict")),
        Err(why) => failed(&why),
    }
}

/// Makes the directory of a run, and empties it when it is an earlier run's.
fn empty(out: &Path) -> Result<(), String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", out.display());
    if out.join("history.jsonl").is_file() {
        std::fs::remove_dir_all(out).map_err(wrong)?;
    }
    std::fs::create_dir_all(out).map_err(wrong)?;
    if std::fs::read_dir(out).map_err(wrong)?.next().is_some() {
        return Err(format!("{} is not empty and not an earlier run's", out.display()));
    }
    Ok(())
}

fn judge(check: &options::Check) -> ExitCode {
    let history = match history::History::read(&check.history) {
        Ok(history) => history,
        Err(why) => return misused(&why),
    };
    let report = check::judge(&history);
    let broken = report.broken();
    if let Some(file) = &check.timeline
        && let Err(why) = std::fs::write(file, timeline::draw(&history, None))
    {
        return failed(&format!("{}: {why}", file.display()));
    }
    if check.json {
        println!("{}", serde_json::to_string(&report).expect("plain data"));
    } else {
        for (property, outcome) in &report.properties {
            let name = property.name();
            println!("{name:<24} {:>9} {:>6}", outcome.checked, outcome.violations);
            for example in &outcome.examples {
                println!("    {example}");
            }
        }
        println!("undecided: {:?}; unreplayed: {:?}", report.undecided, report.unreplayed);
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(Verdict::Invalid.code()) }
}

async fn list() -> ExitCode {
    println!("faults:");
    for fault in nemesis::Fault::ALL {
        println!("  {:<18} {}", fault.name(), fault.what());
    }
    println!("\nworkloads:");
    for workload in workload::Workload::ALL {
        println!("  {:<18} {}", workload.name(), workload.what());
    }
    println!("\nprofiles:");
    for profile in profile::all() {
        println!("  {:<18} {}", profile.name, profile.what);
    }
    println!("\nproperties:");
    for property in check::Property::ALL {
        println!("  {:<24} {}", property.name(), property.sentence());
    }
    println!("\nthis machine:");
    match sandbox::way(Mode::Auto).await {
        Ok(way) => match way.lacks {
            None => println!("  network namespaces can be had"),
            Some(lacks) => println!("  ROOTLESS SUBSET: {lacks}"),
        },
        Err(why) => println!("  {why}"),
    }
    for (name, lost) in [
        ("nft", "packet loss; cuts are made by neighbour entries instead"),
        ("strace", "slow and failing disks"),
        ("mkfs.ext4", "power cuts"),
        ("dumpe2fs", "power cuts"),
    ] {
        if tool::is_there(name) {
            println!("  {name} is there");
        } else {
            println!("  {name} is MISSING: no {lost}");
        }
    }
    ExitCode::SUCCESS
}

async fn probe(touch: &Touch) -> ExitCode {
    let within = Duration::from_millis(touch.within_ms);
    let connected = tokio::net::TcpStream::connect(touch.target);
    match tokio::time::timeout(within, connected).await {
        Ok(Ok(_)) => ExitCode::SUCCESS,
        Ok(Err(_)) | Err(_) => ExitCode::FAILURE,
    }
}
