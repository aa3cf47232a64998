//! The node's watch over itself: clocks, log and disk.
//!
//! Every 50 ms it decides whether this node may lead: a disk that hangs or a wild clock hands every
//! leadership over and keeps the node from standing, and so does a log that waits for room on a
//! full disk, which goes on by itself. A log that failed, or hangs for too long, ends the node's
//! part. A drained node, or one with a wild clock, stands all the same for a shard that nobody has
//! led for long: perhaps it alone has all of the log. It hands over what it wins at once.
//!
//! Once a second it looks at the room on the disk: when that runs out, the ballast is given up,
//! every shard makes a checkpoint so that the log can be purged, new places are shed until there is
//! room again, and leadership goes to whoever has room.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::clocks::ASK_EVERY;
use super::office::Office;
use super::running::{Running, run_on};
use crate::runtime::{self, Instant};
use crate::shard::Bar;

/// How often log and clock are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the room on the disk is looked at.
const SPACE_EVERY: Duration = Duration::from_secs(1);
/// How long a leadership that nobody took rests before it is offered again.
const OFFER_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The same on a node whose disk is full: it sheds placements, which others need not.
const OFFER_AGAIN_WHEN_FULL: Duration = Duration::from_secs(10);
/// How long a disk must be well before the node stands again.
const WELL_FOR: Duration = Duration::from_secs(2);

/// After so many leases without a leader a shard is led by whoever can.
const VACANT_LEASES: u32 = 5;

/// What the watch goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchRules {
    /// The age of the oldest unsynced append at which leaderships are handed over.
    pub(super) hung: Duration,
    /// The age of the oldest unsynced append at which the node's part ends.
    pub(super) dead: Duration,
    /// The room on the disk, the ballast not counted, below which new places are shed.
    pub(super) floor_bytes: u64,
    /// The ballast.
    pub(super) ballast_bytes: u64,
    /// How long a follower's promise to a leader holds.
    pub(super) lease: Duration,
}

/// Since when a shard has had no leader that this node hears.
#[derive(Debug, Clone, Copy, Default)]
struct Vacancy(Option<Instant>);

impl Vacancy {
    /// Takes note of how it is now, and tells whether it has been so for long.
    fn is_long(&mut self, leaderless: bool, now: Instant, lease: Duration) -> bool {
        let since = self.0.filter(|_| leaderless).unwrap_or(now);
        self.0 = leaderless.then_some(since);
        leaderless && now - since >= lease * VACANT_LEASES
    }
}

/// What the room on the disk asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    /// Nothing.
    Enough,
    /// Shed, give up the ballast, purge.
    Full,
    /// There is room for the ballast and more: take it back and serve again.
    Recovered,
}

/// Judges the room on the disk. `holds_ballast` tells whether the ballast is in place.
fn judge_space(free: u64, full: bool, holds_ballast: bool, rules: &WatchRules) -> Space {
    let ballast = if holds_ballast { 0 } else { rules.ballast_bytes };
    // Going back takes a quarter more than staying, so that it does not flutter.
    let enough = rules.floor_bytes.saturating_add(rules.floor_bytes / 4);
    // The ballast is only taken back when the disk has it twice over.
    let back = enough.saturating_add(ballast.saturating_mul(2));
    match (free < rules.floor_bytes, free >= back) {
        (true, _) => Space::Full,
        (false, true) if full || !holds_ballast => Space::Recovered,
        (false, true | false) => Space::Enough,
    }
}

/// Starts the watch of a node's part. It ends when the part does.
pub(super) fn start(office: &Arc<Office>, running: &Arc<Running>, rules: WatchRules) {
    let front = running.front();
    let part = Arc::downgrade(running);
    front(Box::pin(watch_health(Arc::downgrade(office), part.clone(), rules)));
    front(Box::pin(watch_space(part.clone(), rules)));
    front(Box::pin(watch_clocks(part)));
}

async fn watch_clocks(running: Weak<Running>) {
    loop {
        let Some(part) = running.upgrade() else { return };
        let (clocks, network, members) = part.clock_parts();
        drop(part);
        clocks.ask_all(members, &network).await;
        runtime::sleep(ASK_EVERY).await;
    }
}

async fn watch_health(office: Weak<Office>, running: Weak<Running>, rules: WatchRules) {
    let mut ill_at: Option<Instant> = None;
    let mut offered_at: Option<Instant> = None;
    let offering = Arc::new(AtomicBool::new(false));
    let mut vacancies = Vec::new();
    loop {
        runtime::sleep(LOOK_EVERY).await;
        let Some(part) = running.upgrade() else { return };
        let health = part.log.health();
        let age = health.oldest_unsynced.unwrap_or_default();
        let end = if let Some(why) = health.failed {
            let words = format!(
                "the write-ahead log takes nothing any more: {why}. Free space, or mend the disk, \
                 and restart this node; nothing that was acknowledged is lost"
            );
            Some((words, false))
        } else if age > rules.dead && health.waits_for_room.is_none() {
            let words = format!("the disk hangs: an append has waited for {} ms", age.as_millis());
            Some((words, true))
        } else {
            None
        };
        if let Some((why, is_fatal)) = end {
            drop(part);
            if let Some(office) = office.upgrade() {
                office.end(why, is_fatal).await;
            }
            return;
        }
        let now = runtime::now();
        if age > rules.hung && health.waits_for_room.is_none() {
            ill_at = Some(now);
        }
        let is_ill = ill_at.is_some_and(|at| now - at < WELL_FOR);
        let is_able = health.waits_for_room.is_none() && !is_ill;
        let reason = if health.waits_for_room.is_some() {
            Some("its disk is full: the write-ahead log waits for room".to_owned())
        } else if is_ill {
            Some("the disk hangs: it takes too long to sync the log".to_owned())
        } else if part.clocks.is_wild() {
            let apart_max = part.clocks.status().offset_ms_max;
            Some(format!("its clock is more than {apart_max} ms from a majority of the members"))
        } else {
            part.drained()
        };
        let (abstains, full) = (reason.is_some(), part.disk_full.load(Ordering::Relaxed));
        part.abstain(reason);
        part.tell_stands();
        vacancies.resize(part.shards.len(), Vacancy::default());
        for (shard, vacancy) in part.shards.iter().zip(&mut vacancies) {
            let is_long = vacancy.is_long(shard.is_leaderless(), now, rules.lease);
            part.fill_in(shard, is_long && is_able);
        }
        let rest = if abstains { OFFER_AGAIN_AFTER } else { OFFER_AGAIN_WHEN_FULL };
        let rested = offered_at.is_none_or(|at| now - at >= rest);
        if (abstains || full)
            && rested
            && part.shards.iter().any(|shard| shard.is_leader())
            && !offering.swap(true, Ordering::AcqRel)
        {
            offered_at = Some(now);
            let (part, offering) = (Arc::clone(&part), Arc::clone(&offering));
            drop(runtime::spawn(async move {
                part.hand_all_over().await;
                offering.store(false, Ordering::Release);
            }));
        }
    }
}

async fn watch_space(running: Weak<Running>, rules: WatchRules) {
    loop {
        let Some(part) = running.upgrade() else { return };
        let ballast = Arc::clone(&part.ballast);
        let looked = part.desk.run(move || Ok((ballast.free_bytes()?, ballast.is_there()))).await;
        let looked: std::io::Result<(u64, bool)> = looked.and_then(|looked| looked);
        match looked {
            Ok((free, held)) => {
                let holds_ballast = rules.ballast_bytes == 0 || held;
                part.ballast_released.store(!holds_ballast, Ordering::Relaxed);
                let full = part.disk_full.load(Ordering::Relaxed);
                match judge_space(free, full, holds_ballast, &rules) {
                    Space::Enough => {}
                    Space::Full => make_room(&part, free, full).await,
                    Space::Recovered => recover(&part, full).await,
                }
            }
            Err(error) => tracing::warn!(%error, "the room on the disk is not known"),
        }
        drop(part);
        runtime::sleep(SPACE_EVERY).await;
    }
}

/// Sheds new places; the first time, gives the ballast up and makes every shard purge its log.
async fn make_room(part: &Running, free: u64, was_full: bool) {
    for shard in &part.shards {
        shard.shed_places(true);
    }
    part.disk_full.store(true, Ordering::Relaxed);
    if was_full {
        return;
    }
    tracing::error!(free, "the disk is full: new places are shed until there is room again");
    let ballast = Arc::clone(&part.ballast);
    match part.desk.run(move || ballast.release()).await.and_then(|released| released) {
        Ok(true) => tracing::warn!("the ballast was given up, for one checkpoint of each shard"),
        Ok(false) => {}
        Err(error) => tracing::error!(%error, "the ballast could not be given up"),
    }
    for (shard, spawner) in part.shards.iter().zip(part.spawners()) {
        let group = shard.group().clone();
        match run_on(spawner, async move { group.checkpoint_to_make_room().await }).await {
            Ok(Ok(position)) => {
                let (shard, index) = (shard.shard(), position.index);
                tracing::warn!(%shard, %index, "purged to make room");
            }
            Ok(Err(error)) | Err(error) => {
                tracing::warn!(shard = %shard.shard(), %error, "no checkpoint on the full disk");
            }
        }
    }
}

/// Takes the ballast back, and new places again.
async fn recover(part: &Running, was_full: bool) {
    let ballast = Arc::clone(&part.ballast);
    match part.desk.run(move || ballast.restore()).await.and_then(|restored| restored) {
        Ok(held) => part.ballast_released.store(!held, Ordering::Relaxed),
        Err(error) => {
            tracing::warn!(%error, "the ballast could not be taken back");
            return;
        }
    }
    if was_full {
        tracing::warn!("there is room on the disk again: new places are taken");
        part.disk_full.store(false, Ordering::Relaxed);
        for shard in &part.shards {
            shard.shed_places(false);
        }
    }
}

/// Bars every shard of a part that ends: nothing is answered from its memory any more.
pub(super) fn bar_all(running: &Running) {
    for shard in &running.shards {
        shard.bar(Bar::Node, Some(crate::ledger::PauseReason::Moving));
        shard.stand(Bar::Node, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_vacant_for_long_only_when_no_leader_was_heard_all_the_time() {
        crate::raft::trial::run(async {
            let (at, lease) = (runtime::now(), Duration::from_millis(400));
            let ms = |ms: u64| at + Duration::from_millis(ms);
            let mut vacancy = Vacancy::default();
            for (ms_after, leaderless, long) in [
                (0, true, false),
                (1_950, true, false),
                (2_000, true, true),
                (2_050, false, false),
                (2_100, true, false),
                (4_050, true, false),
                (4_100, true, true),
            ] {
                let judged = vacancy.is_long(leaderless, ms(ms_after), lease);
                assert_eq!(judged, long, "after {ms_after} ms");
            }
        });
    }

    #[test]
    fn a_full_disk_sheds_until_there_is_room_for_the_ballast_and_a_quarter_more() {
        let rules = WatchRules {
            hung: Duration::from_millis(500),
            dead: Duration::from_secs(10),
            floor_bytes: 100,
            ballast_bytes: 50,
            lease: Duration::from_millis(400),
        };
        for (free, full, held, expected) in [
            (1_000, false, true, Space::Enough),
            (100, false, true, Space::Enough),
            (99, false, true, Space::Full),
            (149, true, false, Space::Enough),
            (99, true, false, Space::Full),
            (224, true, false, Space::Enough),
            (225, true, false, Space::Recovered),
            (225, false, false, Space::Recovered),
            (124, true, true, Space::Enough),
            (125, true, true, Space::Recovered),
        ] {
            let judged = judge_space(free, full, held, &rules);
            assert_eq!(judged, expected, "{free} free, full: {full}, ballast: {held}");
        }
    }
}
