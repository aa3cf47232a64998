//! Three whole nodes in one thread of virtual time, driven by a seed, in CI. Run with
//! `--features sim`; the command for more, `examples/simulate`, shares all of it.
//!
//! `SIM_SEEDS=n` runs so many seeds, `SIM_FIRST=n` begins at another. A failing seed prints the
//! command that replays it.
#![cfg(feature = "sim")]

#[path = "simulation/mod.rs"]
mod simulation;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use simulation::cut::{Cut, Keep};
use simulation::shrink::shrink;
use simulation::trace::Trace;
use simulation::verdict::Verdict;
use simulation::{run, scale, stage};

/// Seeds of an ordinary run.
const SEEDS: u64 = 520;
/// Threads that run seeds.
const THREADS: usize = 2;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

fn quietly(seed: u64) -> Verdict {
    run(seed, &Cut::default(), Trace::new(false))
}

/// Every hundredth seed is run again in another process, which must leave the same trace.
#[test]
fn every_seed_keeps_the_laws_and_leaves_the_same_trace_in_any_process() {
    if let Some(seed) = number("SIM_HASH_OF") {
        println!("seed {seed}: trace hash {}", quietly(seed).hash);
        return;
    }
    let first = number("SIM_FIRST").unwrap_or(1);
    let seeds = number("SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let (failed, done) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || !failed.lock().is_empty() {
                        return;
                    }
                    let verdict = quietly(seed);
                    if !verdict.is_clean() {
                        failed.lock().push(verdict.report());
                    } else if seed.is_multiple_of(100) {
                        assert_eq!(verdict.hash, hash_elsewhere(seed), "seed {seed} elsewhere");
                    }
                    done.lock().push(verdict);
                }
            });
        }
    });
    let done = done.into_inner();
    let sum = |of: fn(&Verdict) -> u64| done.iter().map(of).sum::<u64>();
    println!(
        "{} seeds from {first} in {:?}: {} calls, {} faults, {} entries, {} units moved, {} s of \
         virtual time",
        done.len(),
        began.elapsed(),
        sum(|one| one.calls),
        sum(|one| u64::from(one.fault_count())),
        sum(|one| one.entries),
        sum(|one| one.moved),
        sum(|one| one.virtual_ms) / 1_000,
    );
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs a seed in a process of its own and returns its trace hash.
fn hash_elsewhere(seed: u64) -> String {
    let own = std::env::current_exe().expect("a test knows its own path");
    let output = std::process::Command::new(own)
        .args([
            "every_seed_keeps_the_laws_and_leaves_the_same_trace_in_any_process",
            "--exact",
            "--nocapture",
        ])
        .env("SIM_HASH_OF", seed.to_string())
        .output()
        .expect("this test runs, so it can run again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|line| line.split("trace hash ").nth(1));
    found.unwrap_or_else(|| panic!("seed {seed} told no hash: {text}")).trim().to_owned()
}

#[test]
fn trace_is_decided_by_the_seed_and_by_what_is_left_out_of_it() {
    let plain = quietly(7);
    assert_eq!(plain.hash, quietly(7).hash, "the same seed again, on a thread that ran others");
    assert_ne!(plain.hash, quietly(8).hash, "the hash sees something");
    let cut = Cut { faults: Keep::only([0, 2]), decisions: Keep::only(0..40), ..Cut::default() };
    let smaller = run(7, &cut, Trace::new(false));
    assert!(smaller.fault_count() <= 2 && smaller.decisions <= 40, "{smaller:?}");
    assert_eq!(smaller.hash, run(7, &cut, Trace::new(false)).hash);
}

/// A run that fails when it keeps one fault and two decisions is shrunk to these.
#[test]
fn failing_run_is_shrunk_to_what_it_needs() {
    let mut attempts = 0;
    let mut attempt = |cut: &Cut| {
        attempts += 1;
        let fails = cut.faults.has(3) && cut.decisions.has(17) && cut.decisions.has(140);
        let broken = if fails { vec![format!("a unit is missing: {attempts}")] } else { vec![] };
        let faults = [("Kill".to_owned(), 12)].into();
        Verdict { broken, decisions: 200, faults, ..Verdict::default() }
    };
    let limit = Duration::from_secs(60);
    let (cut, verdict) = shrink(&mut attempt, Cut::default(), limit, &mut |_, _| {});
    assert_eq!((cut.faults, cut.decisions), (Keep::only([3]), Keep::only([17, 140])));
    assert_eq!(cut.clients, Some(1));
    assert_eq!(verdict.law().as_deref(), Some("a unit is missing:"));
}

/// Plays a scene under some seeds; `simulate scene` replays one.
fn play(name: &str) {
    for seed in 1..=24 {
        let verdict = stage::scene(name, seed, Trace::new(false)).expect("there is such a scene");
        let (tail, broken) = (verdict.tail.join("\n"), verdict.broken.join("\n  "));
        assert!(verdict.is_clean(), "{tail}\nseed {seed} of {name} breaks:\n  {broken}");
    }
}

#[test]
fn retry_that_would_take_a_second_unit_after_exhaustion_takes_none() {
    play("retry-after-exhaustion");
}

#[test]
fn leader_that_stood_still_answers_nothing_from_the_past() {
    play("stopped-leader");
}

#[test]
fn attempt_that_arrives_after_its_key_was_given_up_makes_no_hold() {
    play("attempt-after-its-void");
}

#[test]
fn shard_is_led_again_when_a_drained_node_alone_has_all_of_its_log() {
    play("newest-on-the-drained");
}

#[test]
fn leader_that_is_cut_off_answers_nothing_by_an_acknowledgement_that_comes_late() {
    play("late-acknowledgement");
}

#[test]
fn machine_that_takes_the_place_of_a_lost_node_serves_and_votes() {
    play("another-machine");
}

/// The judges judge: units that no entry made are seen at the next entry, whether one replica has
/// them, which another digest tells, or all, where the sums do not add up.
#[test]
fn units_from_nowhere_are_seen_at_once() {
    let one = stage::units_from_nowhere(1).broken;
    assert!(one.iter().any(|law| law.contains("another digest")), "{one:?}");
    let all = stage::units_from_nowhere(3).broken;
    let sums = ["are not", "the equation", "broken law"];
    assert!(all.iter().any(|law| sums.iter().any(|word| law.contains(word))), "{all:?}");
}

/// By the model that `simulate scale-out` prints.
#[test]
fn eight_buckets_sell_six_times_what_one_sells_and_seldom_trade() {
    let figures = scale::measure();
    println!("{}", figures.words());
    assert!(figures.is_good(), "{figures:?}");
}
