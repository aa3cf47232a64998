//! Three whole nodes in one thread of virtual time, driven by a seed: clients over HTTP, faults of
//! every kind, and everything that was answered compared with the laws and with what is found at
//! the end. Run with `--features sim`.
//!
//! `SIM_SEED=n` runs one seed and prints its trace hash; `SIM_SEEDS=n` runs so many; `SIM_FIRST=n`
//! begins at another; `SIM_TRACE=1` prints every line of the trace.
#![cfg(feature = "sim")]

#[path = "simulation/books.rs"]
mod books;
#[path = "simulation/buyers.rs"]
mod buyers;
#[path = "simulation/finale.rs"]
mod finale;
#[path = "simulation/judge.rs"]
mod judge;
#[path = "simulation/nemesis.rs"]
mod nemesis;
#[path = "simulation/plan.rs"]
mod plan;
#[path = "simulation/trace.rs"]
mod trace;
#[path = "simulation/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use holdfast::runtime::{Rt, life};
use openraft_rt::AsyncRuntime as _;
use parking_lot::Mutex;

use books::Books;
use buyers::Client;
use nemesis::Nemesis;
use plan::Plan;
use world::World;

/// Seeds of an ordinary run.
const SEEDS: u64 = 200;

/// What a run leaves.
struct Verdict {
    broken: Vec<String>,
    hash: u64,
    tail: Vec<String>,
    calls: u64,
    virtual_ms: u64,
}

/// Runs one seed.
fn run(seed: u64) -> Verdict {
    let plan = Plan::draw(seed);
    let mut runtime = Rt::with_seed(seed);
    life::take_panics();
    let world = runtime.block_on(async {
        let world = World::new(plan);
        let spread = (0..).zip(&world.plan.items).filter(|(_, item)| item.buckets > 1);
        let spread = spread.map(|(at, _)| at).collect();
        let books = Arc::new(Mutex::new(Books { spread, ..Books::default() }));
        if let Err(law) = play(&world, &books).await {
            world.broken(law);
        }
        for panic in life::take_panics() {
            world.broken(format!("a task of a node panicked: {panic}"));
        }
        world.trace.say("the end");
        world.end();
        world
    });
    let virtual_ms = runtime.block_on(async { holdfast::runtime::since_start_ms() });
    drop(runtime);
    Verdict {
        broken: world.judge.verdict(),
        hash: world.trace.hash(),
        tail: world.trace.tail(),
        calls: world.calls(),
        virtual_ms,
    }
}

async fn play(world: &Arc<World>, books: &Arc<Mutex<Books>>) -> Result<(), String> {
    world.trace.say(format!("{:?}", world.plan));
    finale::found(world).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let nemesis = life::spawn_in_the_world(Nemesis::new(world, &stop).run());
    let clients: Vec<_> = (0..world.plan.clients as u64)
        .map(|number| life::spawn_in_the_world(Client::new(world, books, number).run()))
        .collect();
    for client in clients {
        client.await.map_err(|error| format!("a client: {error}"))?;
    }
    stop.store(true, Ordering::Relaxed);
    nemesis.await.map_err(|error| format!("the nemesis: {error}"))?;
    if world.judge.is_broken() {
        return Ok(());
    }
    finale::heal(world);
    finale::commit_everywhere(world).await?;
    finale::settle(world).await?;
    let mut books = std::mem::take(&mut *books.lock());
    finale::read_back(world, &mut books).await
}

fn replay(seed: u64) -> String {
    format!("SIM_SEED={seed} cargo test --features sim --test simulation -- --nocapture")
}

fn report(seed: u64, verdict: &Verdict) -> String {
    let tail = verdict.tail.join("\n");
    let broken = verdict.broken.join("\n  ");
    format!("{tail}\n\nseed {seed} breaks:\n  {broken}\nreplay it with: {}\n", replay(seed))
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

#[test]
fn every_seed_keeps_the_laws() {
    if let Some(seed) = number("SIM_SEED") {
        let verdict = run(seed);
        println!("seed {seed}: trace hash {:016x}", verdict.hash);
        assert!(verdict.broken.is_empty(), "{}", report(seed, &verdict));
        return;
    }
    let first = number("SIM_FIRST").unwrap_or(1);
    let seeds = number("SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let done = Mutex::new((0_u64, 0_u64));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || !failed.lock().is_empty() {
                        return;
                    }
                    let ran = std::panic::catch_unwind(|| run(seed));
                    let Ok(verdict) = ran else {
                        let words = format!("seed {seed} ends in a panic: {}", replay(seed));
                        failed.lock().push(words);
                        return;
                    };
                    let mut done = done.lock();
                    done.0 += verdict.calls;
                    done.1 += verdict.virtual_ms;
                    if !verdict.broken.is_empty() {
                        failed.lock().push(report(seed, &verdict));
                    }
                }
            });
        }
    });
    let (calls, virtual_ms) = *done.lock();
    println!(
        "{seeds} seeds from {first}: {calls} calls, {} s of virtual time in {:?}",
        virtual_ms / 1_000,
        began.elapsed()
    );
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs a seed in a process of its own and returns its trace hash.
fn hash_elsewhere(seed: u64) -> String {
    let own = std::env::current_exe().expect("a test knows its own path");
    let output = std::process::Command::new(own)
        .args(["every_seed_keeps_the_laws", "--exact", "--nocapture"])
        .env("SIM_SEED", seed.to_string())
        .output()
        .expect("this test runs, so it can run again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|line| line.split("trace hash ").nth(1));
    found.unwrap_or_else(|| panic!("seed {seed} told no hash: {text}")).trim().to_owned()
}

#[test]
fn the_same_seed_gives_the_same_trace_in_any_process() {
    for seed in [7, 29, 104] {
        let first = format!("{:016x}", run(seed).hash);
        // Other seeds ran on this thread, and a whole run of this one.
        assert_eq!(first, format!("{:016x}", run(seed).hash), "seed {seed}, the second time");
        assert_eq!(first, hash_elsewhere(seed), "seed {seed}, in another process");
    }
    assert_ne!(run(7).hash, run(8).hash, "the hash sees something");
}
