//! Three whole nodes in one thread of virtual time, driven by a seed: clients over HTTP, faults of
//! every kind, and everything that was answered and applied compared with the laws.
//!
//! The tests (`tests/simulation.rs`) and the command (`examples/simulate`) are two crates that
//! include this one folder: a seed that fails in one is replayed by the other.
//!
//! A run is decided by its seed and its [`Cut`] alone: the same two give the same trace, in any
//! process.

pub(crate) mod books;
pub(crate) mod buyers;
pub(crate) mod call;
pub(crate) mod cut;
pub(crate) mod finale;
pub(crate) mod judge;
pub(crate) mod machine;
pub(crate) mod nemesis;
pub(crate) mod operators;
pub(crate) mod plan;
pub(crate) mod scale;

pub(crate) mod shrink;
pub(crate) mod stage;

pub(crate) mod stock;
pub(crate) mod trace;
pub(crate) mod verdict;
pub(crate) mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast::raft::bear_witness;
use holdfast::runtime::{self, Rt, life};
use openraft_rt::AsyncRuntime as _;
use parking_lot::Mutex;

use books::Books;
use buyers::Client;
use cut::Cut;
use nemesis::Nemesis;
use plan::Plan;
use trace::Trace;
use verdict::Verdict;
use world::World;

/// The longest that a run may take, in virtual time.
const RUN_MAX: Duration = Duration::from_secs(1_800);

/// Runs what is left of a seed after a cut.
pub(crate) fn run(seed: u64, cut: &Cut, trace: Trace) -> Verdict {
    let plan = Plan::draw(seed, cut);
    let mut runtime = Rt::with_seed(seed);
    life::take_panics();
    life::unrest(seed, plan.unrest_per_thousand);
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async {
            let world = World::new(plan, cut.clone(), trace);
            bear_witness(Some(world.witness()));
            let books = Arc::new(Mutex::new(Books::of(&world.plan)));
            let played = runtime::timeout(RUN_MAX, play(&world, &books)).await;
            if let Err(law) = played.unwrap_or_else(|_| Err("the run does not end".to_owned())) {
                world.broken(law);
            }
            for panic in life::take_panics() {
                world.broken(format!("a task of a node panicked: {panic}"));
            }
            world.trace.say("world", "the end");
            world.end();
            Verdict::of(&world)
        })
    }));
    bear_witness(None);
    life::unrest(0, 0);
    drop(runtime);
    played.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Verdict::of_a_panic(seed, words.unwrap_or_default())
    })
}

async fn play(world: &Arc<World>, books: &Arc<Mutex<Books>>) -> Result<(), String> {
    world.plan.lines().into_iter().for_each(|line| world.trace.say("plan", line));
    finale::found(world).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let nemesis = life::spawn_in_the_world(Nemesis::new(world, &stop).run());
    let clients: Vec<_> = (0..world.plan.clients)
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
    finale::sell_out(world, books).await?;
    let mut books = std::mem::take(&mut *books.lock());
    finale::read_back(world, &mut books).await
}
