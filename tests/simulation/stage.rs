//! Scenes that are written by hand: an order of events that once broke a model or a prototype,
//! played on whole nodes, with what may vary drawn from a seed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast::api::{Hold, HoldState};
use holdfast::ledger::NodeId;
use holdfast::raft::bear_witness;
use holdfast::runtime::{self, Rt, life};
use openraft_rt::AsyncRuntime as _;
use rand::RngExt as _;
use serde_json::json;

use super::books::hold_of;
use super::cut::Cut;
use super::finale;
use super::judge::parsed;
use super::plan::{ItemPlan, NODES, Plan, stream};
use super::trace::Trace;
use super::verdict::Verdict;
use super::world::{Ask, Told, World};

/// A scene under a seed.
pub(crate) type Scene = fn(u64, Trace) -> Verdict;

/// Every scene by its name.
pub(crate) const SCENES: [(&str, Scene); 3] = [
    ("retry-after-exhaustion", retry_after_exhaustion),
    ("stopped-leader", stopped_leader),
    ("attempt-after-its-void", attempt_after_its_void),
];

/// Plays a scene by its name.
pub(crate) fn scene(name: &str, seed: u64, trace: Trace) -> Option<Verdict> {
    let (_, play) = SCENES.iter().find(|(known, _)| *known == name)?;
    Some(play(seed, trace))
}

/// The name of the only item.
const ITEM: &str = "ticket";

fn ticket(total: u64, buckets: u16) -> ItemPlan {
    ItemPlan {
        name: ITEM.to_owned(),
        total,
        limit_per_buyer: None,
        ttl_ms: 600_000,
        max_extends: 1,
        buckets,
        regions: Vec::new(),
    }
}

/// Plays a scene in a world with one item, heals the world, and lets every law be checked.
fn play<F>(
    (seed, trace): (u64, Trace),
    shards: u16,
    item: ItemPlan,
    scene: impl FnOnce(Arc<World>) -> F,
) -> Verdict
where
    F: Future<Output = Result<(), String>>,
{
    let mut plan = Plan::bare(seed, shards, vec![item]);
    plan.unrest_per_thousand = u32::try_from(seed % 3 * 200).unwrap_or(0);
    life::take_panics();
    life::unrest(seed, plan.unrest_per_thousand);
    let mut runtime = Rt::with_seed(seed);
    let verdict = runtime.block_on(async {
        let world = World::new(plan, Cut::default(), trace);
        bear_witness(Some(world.witness()));
        let played = async {
            finale::found(&world).await?;
            // Stock that is spread is where it belongs.
            runtime::sleep(Duration::from_millis(600)).await;
            scene(Arc::clone(&world)).await?;
            finale::heal(&world);
            finale::commit_everywhere(&world).await?;
            finale::settle(&world).await
        };
        if let Err(law) = played.await {
            world.broken(law);
        }
        for panic in life::take_panics() {
            world.broken(format!("a task of a node panicked: {panic}"));
        }
        world.end();
        Verdict::of(&world)
    });
    bear_witness(None);
    life::unrest(0, 0);
    verdict
}

fn place(key: &str, buyer: &str, deadline_ms: u64) -> Ask {
    let body = json!({"quantity": 1, "buyer": buyer, "reference": key});
    let ask = Ask::post(format!("/v1/items/{ITEM}/holds"), key, body);
    Ask { deadline_ms, ..ask }
}

fn release(hold: &Hold) -> Ask {
    Ask::post(format!("/v1/holds/{}/release", hold.id), &format!("r-{}", hold.id), json!({}))
}

/// The hold that an answer tells of, live or ended.
fn hold_in(told: &Told) -> Option<Hold> {
    let Told::Answer(answer) = told else { return None };
    hold_of(&answer.body).or_else(|| answer.body.get("hold").and_then(hold_of))
}

/// Asks one node after the other until there is this status; 60 s at most.
async fn until(world: &Arc<World>, ask: &Ask, status: u16) -> Result<Told, String> {
    let mut last = Told::Refused;
    for attempt in 0..600 {
        last = world.call(attempt % NODES, ask.clone()).await;
        if matches!(&last, Told::Answer(answer) if answer.status == status) {
            return Ok(last);
        }
        runtime::sleep(Duration::from_millis(100)).await;
    }
    Err(format!("no {status} to {ask:?}: {last:?}"))
}

async fn leader(world: &Arc<World>) -> Result<usize, String> {
    for _ in 0..200 {
        if let Some(at) = (0..NODES).find(|at| world.leads(*at) > 0) {
            return Ok(at);
        }
        runtime::sleep(Duration::from_millis(50)).await;
    }
    Err("nobody leads".to_owned())
}

/// A buyer's first attempt ends in the unknown, its bucket is sold out, and then units lie in the
/// other bucket: whatever the retries are told, and by whom, the key has one hold at most.
fn retry_after_exhaustion(seed: u64, trace: Trace) -> Verdict {
    play((seed, trace), 2, ticket(6, 2), async |world: Arc<World>| {
        let mut rng = stream(seed, 50);
        let mut holds = BTreeSet::new();
        let first = place("k", "the-buyer", 40);
        let at = rng.random_range(0..NODES);
        let attempt = {
            let (world, first, at) =
                (Arc::clone(&world), first.clone(), rng.random_range(0..NODES));
            life::spawn_in_the_world(async move { world.call(at, first).await })
        };
        runtime::sleep(Duration::from_micros(rng.random_range(0..9_000))).await;
        let peers: Vec<NodeId> =
            (0..NODES).filter(|peer| *peer != at).map(|peer| NodeId(peer as u64 + 1)).collect();
        let own = NodeId(at as u64 + 1);
        let kind = rng.random_range(0..3);
        match kind {
            0 => world.kill(at),
            1 => world.life(at).into_iter().for_each(|life| life.stop()),
            _ => peers.iter().for_each(|peer| {
                world.wire.partition(own, *peer, true);
                world.wire.partition(*peer, own, true);
            }),
        }
        let told = attempt.await.map_err(|error| error.to_string())?;
        holds.extend(hold_in(&told).map(|hold| hold.id));
        // Others take everything that they can get.
        let mut others = Vec::new();
        let mut dry = 0;
        for number in 0..400 {
            let (key, at) = (format!("other-{number}"), rng.random_range(0..NODES));
            let told = world.call(at, place(&key, &key, 400)).await;
            others.extend(hold_in(&told));
            let is_refused = matches!(&told, Told::Answer(answer) if answer.status == 409);
            dry = if is_refused { dry + 1 } else { 0 };
            if dry > 6 {
                break;
            }
        }
        for at in 0..NODES {
            holds.extend(hold_in(&world.call(at, first.clone()).await).map(|hold| hold.id));
        }
        match kind {
            0 => world.start(at),
            1 => world.life(at).into_iter().for_each(|life| life.go_on()),
            _ => world.wire.heal(),
        }
        for hold in others.iter().take(2) {
            until(&world, &release(hold), 200).await?;
        }
        let patient = place("k", "the-buyer", 2_000);
        for attempt in 0..12 {
            let told = world.call(attempt % NODES, patient.clone()).await;
            holds.extend(hold_in(&told).map(|hold| hold.id));
        }
        if holds.len() > 1 {
            return Err(format!("key k made the holds {holds:?}"));
        }
        let list = Ask::get(format!("/v1/holds?item={ITEM}&buyer=the-buyer&limit=50"));
        let Told::Answer(answer) = until(&world, &list, 200).await? else { return Ok(()) };
        let found: holdfast::api::HoldList = parsed(&answer)?;
        match found.holds.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("the buyer has {:?}", found.holds)),
        }
    })
}

/// A leader stands still for seconds and goes on as if no time had passed. Meanwhile another leads,
/// and the unit that was held is free again: the old one must not answer from what it remembers.
fn stopped_leader(seed: u64, trace: Trace) -> Verdict {
    play((seed, trace), 1, ticket(1, 1), async |world: Arc<World>| {
        let mut rng = stream(seed, 51);
        let old = leader(&world).await?;
        let told = until(&world, &place("a", "a", 2_000), 201).await?;
        let hold = hold_in(&told).ok_or("a 201 without its hold")?;
        // It knows that nothing is left.
        world.call(old, place("b", "b", 2_000)).await;
        let Some(life) = world.life(old) else { return Err("the leader is gone".to_owned()) };
        life.stop();
        runtime::sleep(Duration::from_millis(rng.random_range(900..4_000))).await;
        until(&world, &release(&hold), 200).await?;
        life.go_on();
        for number in 0..30 {
            let key = format!("c{number}");
            let told = world.call(old, place(&key, &key, 60)).await;
            let Told::Answer(answer) = told else { continue };
            if matches!(answer.slug(), "sold-out" | "insufficient-stock") {
                return Err(format!("refused from the past: {answer:?}"));
            }
            if !answer.is_definite() || answer.status == 201 {
                break;
            }
            let read = world.call(old, Ask::get(format!("/v1/holds/{}", hold.id))).await;
            let state = hold_in(&read).map(|hold| hold.state);
            if state.is_some_and(|state| state != HoldState::Released) {
                return Err(format!("read from the past: {read:?}"));
            }
        }
        Ok(())
    })
}

/// The first attempt sits in a socket while a retry is told sold-out. A unit comes back, the client
/// gives its key up by a void, and then the first attempt arrives: it makes no hold.
fn attempt_after_its_void(seed: u64, trace: Trace) -> Verdict {
    play((seed, trace), 2, ticket(2, 2), async |world: Arc<World>| {
        let mut rng = stream(seed, 52);
        let mut others = Vec::new();
        for number in 0..2 {
            let key = format!("other-{number}");
            let told = until(&world, &place(&key, &key, 2_000), 201).await?;
            others.push(hold_in(&told).ok_or("a 201 without its hold")?);
        }
        let node = rng.random_range(0..NODES);
        let late = Duration::from_millis(rng.random_range(2_500..4_000));
        let first = {
            let world = Arc::clone(&world);
            life::spawn_in_the_world(async move {
                runtime::sleep(late).await;
                world.carry_out(node, place("k", "the-buyer", 30_000)).await
            })
        };
        let told = world.call(rng.random_range(0..NODES), place("k", "the-buyer", 2_000)).await;
        if !matches!(&told, Told::Answer(answer) if answer.status == 409) {
            return Err(format!("two of two are held, and a third gets {told:?}"));
        }
        until(&world, &release(&others[0]), 200).await?;
        let body = json!({"item": ITEM, "buyer": "the-buyer"});
        until(&world, &Ask::post("/v1/receipts/k/void", "k", body), 200).await?;
        match first.await.map_err(|error| error.to_string())? {
            Told::Answer(answer) if answer.slug() == "key-voided" => Ok(()),
            told @ (Told::Refused | Told::Lost | Told::Answer(_)) => {
                Err(format!("an attempt after its void: {told:?}"))
            }
        }
    })
}

/// Units that no entry made appear in the memory of one node (or of all). Not a scene: the judges
/// must find it.
#[cfg(test)]
pub(crate) fn units_from_nowhere(nodes: usize) -> Verdict {
    play((1, Trace::new(false)), 1, ticket(9, 1), async |world: Arc<World>| {
        until(&world, &place("a", "a", 2_000), 201).await?;
        (0..nodes).for_each(|at| world.conjure(at, 0, ITEM, 5));
        for number in 0..4 {
            let key = format!("b{number}");
            world.call(number % NODES, place(&key, &key, 2_000)).await;
        }
        runtime::sleep(Duration::from_millis(100)).await;
        Ok(())
    })
}
