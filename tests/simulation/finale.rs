//! The beginning and the end of a run: the cluster is founded; everything is healed, every shard
//! must commit again, and everything that was ever said is compared with what is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast::api::{Adopted, Audit, Digests, Hold, HoldList, HoldState};
use holdfast::ledger::{ItemName, home_shard};
use holdfast::runtime::{self, now};
use serde_json::json;

use parking_lot::Mutex;

use super::books::{Books, Refusal, moment};
use super::call::{Answer, Ask, Told};
use super::judge::parsed;
use super::plan::{ItemPlan, NODES};
use super::world::World;

/// After healing, every shard commits within this.
const COMMIT_WITHIN: Duration = Duration::from_secs(10);
/// And every replica has caught up within this.
const LEVEL_WITHIN: Duration = Duration::from_secs(60);
/// The longest that a client's request may sit in a socket.
const SOCKET_MAX: Duration = Duration::from_secs(7);

/// How old the moment may be at which nothing of a spread item was free, by the default of
/// `stock.sold_out_age_ms_max`.
const SOLD_OUT_AGE_US: u64 = 100_000;

/// Asks until there is an answer of this status, but not for ever.
async fn ask_until(
    world: &Arc<World>,
    at: usize,
    ask: Ask,
    status: &[u16],
) -> Result<Answer, String> {
    let begun = now();
    loop {
        let told = world.call(at, ask.clone()).await;
        if let Told::Answer(answer) = &told
            && status.contains(&answer.status)
        {
            return Ok(answer.clone());
        }
        if now() - begun > LEVEL_WITHIN {
            return Err(format!("n{} gives no {status:?} to {ask:?}: {told:?}", at + 1));
        }
        runtime::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns an item name whose home is this shard.
fn probe_of(world: &World, shard: u16) -> String {
    let name = |n: u32| format!("probe-{n}");
    let home = |item: String| {
        let name = ItemName { tenant: "default".to_owned(), item };
        home_shard(name.borrowed(), world.plan.shards)
    };
    let found = (0..).find(|n| home(name(*n)).0 == shard);
    name(found.expect("some name hashes to every shard"))
}

/// Makes a cluster of three empty nodes and fills its shop.
pub(crate) async fn found(world: &Arc<World>) -> Result<(), String> {
    (0..NODES).for_each(|at| world.start(at));
    let mut members = Vec::new();
    for at in 0..NODES {
        let ask = Ask::post("/admin/v1/adopt", "adopt", world.adoption(at));
        let answer = ask_until(world, at, ask, &[200]).await?;
        let Adopted { log_uuid, peer_addr, http_addr, region } = parsed(&answer)?;
        members.push(json!({
            "node": at + 1, "log_uuid": log_uuid, "peer_addr": peer_addr,
            "http_addr": http_addr, "region": region,
        }));
    }
    *world.members.lock() = members.clone();
    for at in 0..NODES {
        let ask = Ask::post("/admin/v1/begin", "begin", json!({ "members": members }));
        ask_until(world, at, ask, &[200]).await?;
    }
    for item in &world.plan.items {
        let mut body = json!({
            "total": item.total,
            "hold": {
                "ttl_ms": item.ttl_ms,
                "max_ttl_ms": 3_600_000,
                "max_extends": item.max_extends,
            },
        });
        if let Some(limit) = item.limit_per_buyer {
            body["limit_per_buyer"] = json!(limit);
        }
        if item.buckets > 1 {
            body["buckets"] = json!(item.buckets);
        }
        let there = item.regions.iter().filter(|region| !region.late);
        for one in there {
            let spec = json!({"quota": one.quota, "floor": one.floor, "buckets": one.buckets});
            body["regions"][&one.name] = spec;
        }
        put(world, &item.name, body).await?;
    }
    for shard in 0..world.plan.shards {
        put(world, &probe_of(world, shard), json!({"total": 1_000})).await?;
    }
    Ok(())
}

async fn put(world: &Arc<World>, item: &str, body: serde_json::Value) -> Result<(), String> {
    let at = world.members_at()[0];
    ask_until(world, at, Ask::put(format!("/v1/items/{item}"), body), &[200, 201]).await?;
    Ok(())
}

/// Takes every fault back.
pub(crate) fn heal(world: &Arc<World>) {
    world.trace.say("world", "everything is healed");
    world.wire.heal();
    world.wire.behave(world.plan.wire.clone());
    for (at, machine) in world.machines.iter().enumerate() {
        machine.disk.set_sync_delay(world.plan.sync);
        machine.disk.set_hung(false);
        machine.disk.set_capacity(None);
        machine.pages.iter().for_each(|pages| pages.heal());
        machine.offset_ms.store(0, Ordering::Relaxed);
        if let Some(life) = world.life(at) {
            life.go_on();
        }
        if let Some(why) = world.failure(at) {
            world.trace.say_of(machine.id, format!("has failed: {why}"));
            world.kill(at);
        }
        world.start(at);
    }
}

/// Every shard commits again soon, whatever operators had asked of the nodes.
pub(crate) async fn commit_everywhere(world: &Arc<World>) -> Result<(), String> {
    let healed = now();
    for shard in 0..world.plan.shards {
        let item = probe_of(world, shard);
        let mut tries = 0;
        loop {
            let key = format!("probe-{shard}");
            let ask = Ask::post(format!("/v1/items/{item}/holds"), &key, json!({"quantity": 1}));
            let members = world.members_at();
            let told = world.call(members[tries % members.len()], ask).await;
            if matches!(&told, Told::Answer(answer) if matches!(answer.status, 200 | 201)) {
                break;
            }
            if now() - healed > COMMIT_WITHIN {
                return Err(format!("shard {shard} does not commit after healing: {told:?}"));
            }
            tries += 1;
            runtime::sleep(Duration::from_millis(50)).await;
        }
    }
    world.trace.say("world", format!("every shard commits after {:?}", now() - healed));
    Ok(())
}

/// Lets what sits in sockets arrive, opens every item, and waits until all replicas are level.
pub(crate) async fn settle(world: &Arc<World>) -> Result<(), String> {
    runtime::sleep(SOCKET_MAX).await;
    world.close_the_door();
    for item in &world.plan.items {
        let ask = Ask::new("POST", format!("/v1/items/{}/resume", item.name));
        ask_until(world, world.members_at()[0], ask, &[200]).await?;
    }
    level(world).await
}

/// Waits until all replicas of members have applied the same.
async fn level(world: &Arc<World>) -> Result<(), String> {
    let begun = now();
    loop {
        let mut applied = Vec::new();
        let members = world.members_at();
        for at in members.iter().copied() {
            if let Told::Answer(answer) = world.call(at, Ask::get("/admin/v1/digest")).await
                && answer.status == 200
            {
                let digests: Digests = parsed(&answer)?;
                applied.push(digests.shards.iter().map(|one| one.applied).collect::<Vec<_>>());
            }
        }
        if applied.len() == members.len() && applied.iter().all(|one| *one == applied[0]) {
            return Ok(());
        }
        if now() - begun > LEVEL_WITHIN {
            let why: Vec<_> = (0..NODES).map(|at| (world.is_up(at), world.failure(at))).collect();
            return Err(format!("the replicas are not level after healing: {applied:?} {why:?}"));
        }
        runtime::sleep(Duration::from_millis(100)).await;
    }
}

/// The most units that are bought up at the end of a run.
const SELL_OUT_MAX: u64 = 60;
/// The longest that the last units of an item may take to reach those who ask for them.
const SELL_OUT_WITHIN: Duration = Duration::from_secs(20);

/// Nothing is left behind in a bucket: what is free of an item can be bought to the last unit by
/// whoever comes, wherever it lies, and then it is sold out.
pub(crate) async fn sell_out(world: &Arc<World>, books: &Arc<Mutex<Books>>) -> Result<(), String> {
    // Holds that end bring units back, and it is never sold out.
    let open = |item: &ItemPlan| {
        item.regions.is_empty() && item.total <= SELL_OUT_MAX && item.ttl_ms >= 600_000
    };
    let spread_first = |item: &(usize, &ItemPlan)| !item.1.is_spread();
    let candidates = world.plan.items.iter().enumerate().filter(|(_, item)| open(item));
    let Some((at, item)) = candidates.min_by_key(spread_first) else { return Ok(()) };
    world.trace.say("world", format!("buys what is left of {}", item.name));
    let begun = now();
    for number in 0.. {
        let (key, buyer) = (format!("last-{number}"), format!("last-{number}"));
        let body = json!({"quantity": 1, "buyer": buyer, "reference": key});
        let ask = Ask::post(format!("/v1/items/{}/holds", item.name), &key, body);
        books.lock().open_key(&key, at, &buyer, 1);
        loop {
            let members = world.members_at();
            let sent = moment();
            let told = world.call(members[number % members.len()], ask.clone()).await;
            books.lock().place_told(&key, sent, &told)?;
            if let Told::Answer(answer) = &told {
                if matches!(answer.status, 200 | 201) {
                    break;
                }
                if answer.slug() == "sold-out" {
                    return Ok(());
                }
            }
            if now() - begun > SELL_OUT_WITHIN {
                return Err(format!("{} is not sold to the last unit: {told:?}", item.name));
            }
            runtime::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Reads everything back and compares it with everything that was said.
pub(crate) async fn read_back(world: &Arc<World>, books: &mut Books) -> Result<(), String> {
    let mut found = BTreeMap::new();
    for at in 0..world.plan.items.len() {
        let holds = list(world, at).await?;
        check_sums(world, at, &holds).await?;
        check_limit(world, at, &holds)?;
        for hold in holds {
            let key = hold.reference.clone().ok_or("a hold without its reference")?;
            books.see_hold(&key, moment(), &hold)?;
            if books.keys[&key].item != at {
                return Err(format!("a hold of another item: {hold:?}"));
            }
            books.holds[&hold.id].check_end(&hold)?;
            check_time(world, books, &hold)?;
            if found.insert(key.clone(), hold).is_some() {
                return Err(format!("key {key} has two holds"));
            }
        }
    }
    check_keys(books, &found)?;
    check_pauses(books)?;
    books.refusals.iter().try_for_each(|refusal| check_refusal(world, books, &found, refusal))
}

/// Lists every hold of an item.
async fn list(world: &Arc<World>, at: usize) -> Result<Vec<Hold>, String> {
    let name = &world.plan.items[at].name;
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/holds?item={name}&limit=200{cursor}");
        let members = world.members_at();
        let at = members[all.len() % members.len()];
        let answer = ask_until(world, at, Ask::get(path), &[200]).await?;
        let page: HoldList = parsed(&answer)?;
        all.extend(page.holds);
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(all),
        }
    }
}

/// The holds are the sums, on every replica.
async fn check_sums(world: &Arc<World>, at: usize, holds: &[Hold]) -> Result<(), String> {
    let name = &world.plan.items[at].name;
    let sold: u64 = holds.iter().map(|hold| hold.sold).sum();
    for node in world.members_at() {
        let path = format!("/v1/items/{name}/audit?consistency=local");
        let answer = ask_until(world, node, Ask::get(path), &[200]).await?;
        let audit: Audit = parsed(&answer)?;
        if audit.sold != sold {
            return Err(format!("n{}: {sold} are sold by the holds: {audit:?}", node + 1));
        }
        let held: u64 = holds
            .iter()
            .filter(|hold| hold.state == HoldState::Held)
            .map(|hold| hold.quantity)
            .sum();
        let due: u64 = audit.buckets.iter().map(|bucket| bucket.due).sum();
        if audit.held - due > held {
            return Err(format!("n{}: {held} are held by the holds: {audit:?}", node + 1));
        }
    }
    Ok(())
}

fn check_limit(world: &World, at: usize, holds: &[Hold]) -> Result<(), String> {
    let Some(limit) = world.plan.items[at].limit_per_buyer else { return Ok(()) };
    let mut by_buyer: BTreeMap<&str, u64> = BTreeMap::new();
    for hold in holds {
        let units = if hold.state == HoldState::Held { hold.quantity } else { hold.sold };
        *by_buyer.entry(hold.buyer.as_deref().unwrap_or_default()).or_default() += units;
    }
    match by_buyer.into_iter().find(|(_, units)| *units > limit) {
        Some((buyer, units)) => Err(format!("{buyer} has {units}, the limit is {limit}")),
        None => Ok(()),
    }
}

/// A confirm that did not re-acquire came before the deadline, by ledger time; a refusal as expired
/// did not.
fn check_time(world: &World, books: &Books, hold: &Hold) -> Result<(), String> {
    let book = &books.holds[&hold.id];
    if let Some((shard, index)) = book.confirmed_at.filter(|_| !book.reacquire_sent)
        && let Some(time) = world.judge.time_before(shard, index)
        && time >= hold.expires_at.0
    {
        return Err(format!("sold after its end ({time} before {shard}:{index}): {hold:?}"));
    }
    for (shard, index) in &book.refused_as_expired {
        let time = world.judge.time_from(*shard, *index);
        if !book.reacquire_sent && time.is_some_and(|time| time < hold.expires_at.0) {
            return Err(format!("refused as expired too early, at {shard}:{index}: {hold:?}"));
        }
    }
    Ok(())
}

/// Every key has the effect that was told, and no other; and none was refused where its hold was.
fn check_keys(books: &Books, found: &BTreeMap<String, Hold>) -> Result<(), String> {
    for (key, book) in &books.keys {
        let blind = book.placed_at.and_then(|(shard, placed)| {
            let sees = |(at, index): &&(u16, u64)| *at == shard && *index >= placed;
            book.refused_at.iter().find(sees)
        });
        if let Some(refused) = blind {
            return Err(format!(
                "refused at {refused:?}, after its hold was placed: {key} {book:?}"
            ));
        }
        match (found.get(key), &book.hold) {
            (None, Some(hold)) => {
                return Err(format!("an acknowledged hold is lost: {key} {hold}"));
            }
            (Some(hold), None) if book.unknown == 0 => {
                return Err(format!("a refusal had an effect: {key} {book:?} {hold:?}"));
            }
            (Some(hold), _) if book.voided.is_some() => {
                return Err(format!("a voided key has a hold: {key} {hold:?}"));
            }
            (Some(_) | None, _) => {}
        }
    }
    Ok(())
}

/// Nothing was granted while an item was certainly paused.
fn check_pauses(books: &Books) -> Result<(), String> {
    for pause in books.pauses.iter() {
        let Some(until) = pause.until else { continue };
        // A resume in some socket may have opened it meanwhile.
        if books.modes_unsure.contains_key(&pause.item) {
            continue;
        }
        let within = books
            .grants
            .iter()
            .find(|(item, sent, told)| *item == pause.item && *sent > pause.from && *told < until);
        if let Some(grant) = within {
            return Err(format!("granted while paused: {grant:?} {pause:?}"));
        }
    }
    Ok(())
}

/// A refusal for want of stock was true at some moment of its request: even if everything that was
/// ever granted and might have been there then was there, less was free than it says.
fn check_refusal(
    world: &World,
    books: &Books,
    found: &BTreeMap<String, Hold>,
    refusal: &Refusal,
) -> Result<(), String> {
    let item = &world.plan.items[refusal.item];
    let mut total = i128::from(item.total);
    // Of a spread item it was true at some moment up to so long before.
    let age_us = if item.buckets > 1 { SOLD_OUT_AGE_US } else { 0 };
    let sent = refusal.sent.saturating_sub(age_us);
    // A lowering of a spread item sets units aside until it is given up.
    let counts = |refused: u64| item.buckets > 1 && refused >= sent;
    let of_item = books.adjustments.iter().filter(|one| one.item == refusal.item);
    for change in of_item.filter(|one| one.refused.is_none_or(counts)) {
        let surely_before = change.acked.is_some_and(|acked| acked < sent);
        if (change.delta < 0 && change.sent < refusal.answered)
            || (change.delta > 0 && surely_before)
        {
            total += i128::from(change.delta);
        }
    }
    let mut moments = BTreeSet::from([sent]);
    let mut spans = Vec::new();
    for (key, hold) in found {
        let book = &books.keys[key];
        if book.item != refusal.item || book.first_sent > refusal.answered {
            continue;
        }
        // After it had gone it may have come back only by re-acquiring.
        let held = &books.holds[&hold.id];
        let gone = held.gone_by.filter(|_| !held.reacquire_sent).unwrap_or(u64::MAX);
        if gone >= sent {
            moments.insert(book.first_sent.max(sent));
            spans.push((book.first_sent, gone, i128::from(hold.quantity)));
        }
    }
    let most_taken = moments.iter().map(|at| {
        let there = spans.iter().filter(|(from, to, _)| from <= at && at <= to);
        there.map(|(_, _, units)| *units).sum::<i128>()
    });
    let most = most_taken.max().unwrap_or(0);
    if total - most >= i128::from(refusal.wanted) {
        return Err(format!(
            "refused with stock free: at most {most} of {total} were taken: {refusal:?}"
        ));
    }
    Ok(())
}
