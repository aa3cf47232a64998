//! Moving stock without a buyer who waits for it: the first spreading, refills, and gathering.
//!
//! All of it goes through the same commands as a pull for a thirsty bucket, with the same bounds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::desk::{Outcome, Question, Reply};
use super::directory::Layout;
use super::parley::pair_of;
use super::router::Router;
use super::slake::level_in;
use super::supply::{Asked, Rank, Supply};
use crate::ledger::{
    AcceptStock, Answer, BucketId, BucketRef, Command, Duty, Found, ItemRef, Level, Query,
    SendStock, SettleStock, ShardId, UnixMs,
};
use crate::runtime::{self, Instant};

/// How long one step of it may take.
const STEP_MAX: Duration = Duration::from_millis(500);
/// Sends of one spreading before it lets others have a turn.
const SENDS_A_TURN: usize = 32;

/// Duties that the figure of what is in transit is taken from.
const DUTIES_MAX: u32 = 1_000;

/// What a spreading left to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spreading {
    /// Nothing, for now.
    Done,
    /// Buckets lack units of their quotas which bucket 0 does not have.
    Lacks,
}

/// What gathering came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gathered {
    /// Units that came.
    pub(crate) brought: u64,
    /// Units that are left in all other buckets together; `None` when that is not known.
    pub(crate) left: Option<u64>,
}

impl Router {
    /// Returns the shard of a bucket of a spread item, if it is known here.
    pub(crate) fn shard_of_bucket(&self, bucket: BucketRef) -> Option<ShardId> {
        if bucket.bucket == BucketId(0) {
            return Some(bucket.home);
        }
        let layout = self.directory.numbered(ItemRef { home: bucket.home, item: bucket.item })?;
        Some(layout.place_of(bucket.bucket)?.shard)
    }

    /// Estimates ledger time of a shard here.
    pub(crate) fn time_of(&self, shard: ShardId) -> UnixMs {
        self.ledger_time(shard)
    }

    /// Returns buckets of spread items on a shard, from the `from`-th on, in the order of their
    /// items.
    pub(crate) fn spread_items(
        &self,
        shard: ShardId,
        from: usize,
        at_most: usize,
    ) -> Vec<BucketRef> {
        let layouts = self.directory.all();
        let here = layouts.iter().flat_map(|layout| {
            let here = layout.buckets().iter().filter(|place| place.shard == shard);
            here.map(|place| layout.bucket(place.bucket))
        });
        here.skip(from).take(at_most).collect()
    }

    /// Units that buckets led here have sent and do not know to be accepted.
    pub(super) fn in_transit(&self) -> u64 {
        let mut units = 0_u64;
        for shard in (0..self.shard_count()).map(ShardId).filter(|shard| self.leads(*shard)) {
            let Some(place) = self.place(shard) else { continue };
            let state = place.replica.read();
            let query = Query::Duties { after: None, limit: DUTIES_MAX };
            let Found::Duties(duties) = state.ledger.query(&query) else { continue };
            let owing: BTreeSet<ItemRef> = duties
                .iter()
                .filter_map(|duty| match duty {
                    Duty::Deliver { accept, .. } => {
                        Some(ItemRef { home: accept.to.home, item: accept.to.item })
                    }
                    Duty::Configure { .. }
                    | Duty::Erase { .. }
                    | Duty::Lower { .. }
                    | Duty::Delete { .. } => None,
                })
                .collect();
            for item in owing {
                if let Found::Levels(levels) = state.ledger.query(&Query::Levels(item)) {
                    let under_way = levels.buckets.iter().map(|level| level.in_transit);
                    units = units.saturating_add(under_way.sum());
                }
            }
        }
        units
    }

    fn layout_of(&self, bucket: BucketRef) -> Option<Arc<Layout>> {
        self.directory.numbered(ItemRef { home: bucket.home, item: bucket.item })
    }

    /// Sends from bucket 0 of an item what its quotas put into the other buckets and what never was
    /// there, as far as bucket 0 has more than its own share.
    pub(crate) async fn spread_out(
        self: &Arc<Router>,
        shard: ShardId,
        bucket: BucketRef,
    ) -> Spreading {
        if bucket.bucket != BucketId(0) {
            return Spreading::Done;
        }
        for _ in 0..SENDS_A_TURN {
            let Some(layout) = self.fresh_layout(shard, bucket) else { return Spreading::Done };
            let Some((levels, _)) = self.levels_here(shard, layout.item()) else {
                return Spreading::Done;
            };
            let Some(own) = level_in(&levels, bucket.bucket) else { return Spreading::Done };
            let total = levels.total.unwrap_or(layout.view().total);
            let Some((to, missing)) = next_share(&layout, own) else { return Spreading::Done };
            let spare = spare_of(&layout, own);
            let quantity = room_of(own, self.bound(total, 0)).min(spare).min(missing);
            if quantity == 0 {
                return if spare == 0 { Spreading::Lacks } else { Spreading::Done };
            }
            if !self.push(shard, &layout, own, to, quantity, total).await {
                return Spreading::Done;
            }
        }
        Spreading::Done
    }

    /// Pulls to bucket 0, from the buckets that have most beyond their shares, what others lack of
    /// theirs: after a change of quotas. Tells whether anything came. Never from a bucket that has
    /// no more than its share, nor for one that has its own: so units do not go in circles.
    pub(crate) async fn collect_surplus(
        self: &Arc<Router>,
        shard: ShardId,
        bucket: BucketRef,
    ) -> bool {
        let Some(layout) = self.fresh_layout(shard, bucket) else { return false };
        let Some((levels, _)) = self.levels_here(shard, layout.item()) else { return false };
        let Some(own) = level_in(&levels, bucket.bucket) else { return false };
        let deadline = runtime::now() + STEP_MAX;
        let mut survey = self.survey(&layout, deadline).await;
        let lacking = survey.levels.iter().filter_map(|one| lack_of(&layout, own, one));
        let wanted = lacking.fold(0_u64, u64::saturating_add);
        let mut donors: Vec<(u64, Level)> = std::mem::take(&mut survey.levels)
            .into_iter()
            .filter(|one| one.bucket != own.bucket)
            .map(|one| (spare_of(&layout, &one), one))
            .filter(|(spare, _)| *spare > 0)
            .collect();
        donors.sort_by_key(|(spare, one)| (std::cmp::Reverse(*spare), one.bucket));
        // After every buyer who waits anywhere.
        let rank = Some(Rank { since: UnixMs(u64::MAX), bucket: BucketId(u16::MAX) });
        let mut brought = 0_u64;
        for (spare, donor) in donors {
            let wanted = wanted.saturating_sub(brought).min(spare);
            if wanted == 0 || runtime::now() >= deadline {
                break;
            }
            survey.levels = vec![donor];
            let asked = Asked { wanted, waiting: wanted, free: own.free, rank };
            let came = self.pull_from(&layout, own, &survey, asked, 0, deadline).await;
            brought = brought.saturating_add(came);
        }
        brought > 0
    }

    /// The layout with the quotas of now: this node has the home's replica when it leads the home.
    fn fresh_layout(&self, shard: ShardId, bucket: BucketRef) -> Option<Arc<Layout>> {
        let known = self.layout_of(bucket)?;
        let state = self.place(shard)?.replica.read();
        let view = state.ledger.item_numbered(bucket.home, bucket.item)?;
        drop(state);
        if view.revision > known.view().revision {
            self.directory.learn(&view);
            return self.layout_of(bucket);
        }
        Some(known)
    }

    /// Sends stock of a bucket here to another, and has it accepted. Tells whether it was.
    async fn push(
        self: &Arc<Router>,
        shard: ShardId,
        layout: &Arc<Layout>,
        own: &Level,
        to: BucketId,
        quantity: u64,
        total: u64,
    ) -> bool {
        let Some(place) = layout.place_of(to) else { return false };
        let from = layout.bucket(own.bucket);
        let pair = pair_of(own, to);
        let send = SendStock {
            from,
            to,
            quantity,
            acked: pair.acked,
            if_sent: pair.sent,
            same_region: place.region == own.region,
            bound: self.bound(total, 0),
        };
        let is_beside = place.shard == shard;
        let command = if is_beside { Command::MoveStock(send) } else { Command::SendStock(send) };
        let deadline = runtime::now() + STEP_MAX;
        let sent = self.command_on(shard, command, deadline).await;
        let Reply { outcome: Outcome::Answered(Answer::Sent { sent, floor_sent }), .. } = sent
        else {
            return false;
        };
        self.stock.sent(quantity);
        if is_beside {
            return true;
        }
        let to_ref = layout.bucket(to);
        let accept = AcceptStock { to: to_ref, from: own.bucket, sent, floor_sent };
        let accept = Question::from(Command::AcceptStock(accept));
        let accepted = self.ask_shard(place.shard, accept, deadline).await;
        let Outcome::Answered(Answer::Accepted { accepted }) = accepted.outcome else {
            return false;
        };
        let settle = Command::SettleStock(SettleStock { from, to, accepted });
        self.command_on(shard, settle, deadline).await;
        true
    }

    /// Pulls stock to a bucket here ahead of need, when the policy says so.
    pub(crate) async fn refill(self: &Arc<Router>, shard: ShardId, bucket: BucketRef) {
        let item = ItemRef { home: bucket.home, item: bucket.item };
        let Some((levels, _)) = self.levels_here(shard, item) else { return };
        let Some(own) = level_in(&levels, bucket.bucket) else { return };
        self.stock.note_given(bucket, own.held.saturating_add(own.sold), runtime::now());
        if self.thirst.queue(bucket, own.free).units > 0 {
            return;
        }
        let per_second = self.stock.per_second(bucket);
        let supply = Supply { free: own.free, waiting: 0, per_second };
        let wanted = self.policy.wants(&supply);
        let Some(layout) = self.layout_of(bucket).filter(|_| wanted > 0) else { return };
        let asked = Asked { wanted, waiting: 0, free: own.free, rank: None };
        let deadline = runtime::now() + STEP_MAX;
        let survey = self.survey(&layout, deadline).await;
        self.pull_from(&layout, own, &survey, asked, 0, deadline).await;
    }

    /// Pulls `missing` units to a bucket here, from whoever has them: for a lower total.
    pub(crate) async fn gather(
        self: &Arc<Router>,
        bucket: BucketRef,
        missing: u64,
        deadline: Instant,
    ) -> Gathered {
        let nothing = Gathered { brought: 0, left: None };
        let Some(layout) = self.layout_of(bucket) else { return nothing };
        let Some(shard) = self.shard_of_bucket(bucket) else { return nothing };
        let Some((levels, _)) = self.levels_here(shard, layout.item()) else { return nothing };
        let Some(own) = level_in(&levels, bucket.bucket) else { return nothing };
        let survey = self.survey(&layout, deadline).await;
        // Before every buyer who cannot be served by what is there anyway.
        let rank = Some(Rank { since: UnixMs(0), bucket: bucket.bucket });
        let asked = Asked { wanted: missing, waiting: missing, free: own.free, rank };
        let brought = self.pull_from(&layout, own, &survey, asked, 0, deadline).await;
        let left = survey.left_elsewhere(own, layout.buckets().len());
        Gathered { brought, left }
    }
}

/// Everything that a bucket has of its item.
fn has(level: &Level) -> u64 {
    [level.free, level.held, level.sold, level.earmarked].into_iter().fold(0, u64::saturating_add)
}

/// What a bucket has free beyond its share.
fn spare_of(layout: &Layout, level: &Level) -> u64 {
    let share = share_of(layout, level.bucket).unwrap_or(u64::MAX);
    has(level).saturating_sub(share).min(level.free)
}

/// What may still go under way from a bucket.
fn room_of(own: &Level, bound: u64) -> u64 {
    bound.saturating_sub(own.in_transit)
}

/// What a bucket lacks of its share, of which bucket 0 (`own`) has not sent it as much before.
fn lack_of(layout: &Layout, own: &Level, one: &Level) -> Option<u64> {
    if one.bucket == own.bucket {
        return None;
    }
    let share = share_of(layout, one.bucket)?;
    let sent = pair_of(own, one.bucket).sent;
    Some(share.saturating_sub(sent).min(share.saturating_sub(has(one))))
}

/// The next send of a spreading: to whom, and how much that one has never been sent of its share.
/// `None` when it is done.
fn next_share(layout: &Layout, own: &Level) -> Option<(BucketId, u64)> {
    let others = layout.buckets().iter().filter(|place| place.bucket != own.bucket);
    let missing = others.filter_map(|place| {
        let sent = pair_of(own, place.bucket).sent;
        Some(Missing {
            of_floor: floor_at(layout, place.bucket).saturating_sub(sent),
            of_share: share_of(layout, place.bucket)?.saturating_sub(sent),
            bucket: place.bucket,
        })
    });
    most_needed(missing)
}

/// What a bucket was never sent.
#[derive(Debug, Clone, Copy)]
struct Missing {
    of_floor: u64,
    of_share: u64,
    bucket: BucketId,
}

/// Floors before shares: until its units are there, a region's floor keeps nothing from the buyers
/// of bucket 0.
fn most_needed(all: impl Iterator<Item = Missing>) -> Option<(BucketId, u64)> {
    let lacks = all.filter(|missing| missing.of_share > 0);
    let next = lacks.max_by_key(|missing| (missing.of_floor, missing.of_share))?;
    let floor_first = if next.of_floor > 0 { next.of_floor } else { next.of_share };
    Some((next.bucket, floor_first.min(next.of_share)))
}

/// The floor that is granted to a bucket: to its region's first one.
fn floor_at(layout: &Layout, bucket: BucketId) -> u64 {
    let Some(region) = layout.region_of(bucket) else { return 0 };
    let first = layout.buckets().iter().find(|place| place.region == region);
    let info = layout.view().region_list.iter().find(|info| info.ordinal == region);
    match (first, info) {
        (Some(first), Some(info)) if first.bucket == bucket => info.floor,
        (Some(_) | None, Some(_) | None) => 0,
    }
}

/// What a bucket has of its region's quota.
fn share_of(layout: &Layout, bucket: BucketId) -> Option<u64> {
    let region = layout.region_of(bucket)?;
    let buckets: Vec<BucketId> = layout
        .buckets()
        .iter()
        .filter(|place| place.region == region)
        .map(|place| place.bucket)
        .collect();
    let name = layout.view().region_list.iter().find(|info| info.ordinal == region)?;
    let quota = layout.view().regions.get(&name.name)?.quota;
    let count = buckets.len() as u64;
    let at = buckets.iter().position(|one| *one == bucket)? as u64;
    Some(part_of(quota, name.floor, count, at))
}

/// Even parts, the first ones a unit more. But the floor is granted to the region's first bucket,
/// which must have the units for it: a bucket without a share of the floor lends all that it has.
/// From there the floor travels with the stock to whoever asks.
fn part_of(quota: u64, floor: u64, count: u64, at: u64) -> u64 {
    let even = |units: u64, of: u64, at: u64| {
        let more = units.checked_rem(of).is_some_and(|rest| at < rest);
        units.checked_div(of).unwrap_or(0).saturating_add(u64::from(more))
    };
    let floor = floor.min(quota);
    match at {
        _ if even(quota, count, 0) >= floor => even(quota, count, at),
        0 => floor,
        _ => even(quota.saturating_sub(floor), count.saturating_sub(1), at.saturating_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreading_sends_every_floor_before_it_fills_the_shares() {
        let missing = |bucket, of_floor, of_share| {
            let bucket = BucketId(bucket);
            Missing { of_floor, of_share, bucket }
        };
        let next = |all: &[Missing]| most_needed(all.iter().copied());
        let all = [missing(1, 0, 90), missing(2, 4, 10), missing(3, 6, 6)];
        assert_eq!(next(&all), Some((BucketId(3), 6)));
        assert_eq!(next(&all[..2]), Some((BucketId(2), 4)), "of its share only the floor first");
        assert_eq!(next(&all[..1]), Some((BucketId(1), 90)));
        assert_eq!(next(&[missing(1, 0, 0)]), None);
    }

    #[test]
    fn parts_of_a_quota_are_even_unless_the_first_bucket_needs_more_for_the_floor() {
        let parts = |quota, floor, count| {
            let parts: Vec<u64> = (0..count).map(|at| part_of(quota, floor, count, at)).collect();
            assert_eq!(parts.iter().sum::<u64>(), quota);
            parts
        };
        assert_eq!(parts(10, 0, 3), [4, 3, 3]);
        assert_eq!(parts(10, 4, 3), [4, 3, 3]);
        assert_eq!(parts(10, 5, 3), [5, 3, 2]);
        assert_eq!(parts(4, 4, 2), [4, 0]);
        assert_eq!(parts(7, 7, 1), [7]);
        assert_eq!(parts(0, 0, 2), [0, 0]);
    }
}
