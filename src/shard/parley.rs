//! What the leaders of an item's buckets ask each other: levels, pulls, and whether it is sold out.
//!
//! Every answer rests on applied state of a leadership that was fresh after it was read; a pull is
//! answered only when its send is applied. None of it is trusted: what moves is checked by the
//! ledgers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::desk::{Outcome, Reply};
use super::double_collect::Finding;
use super::router::Router;
use super::supply::{Asked, Donor, Rank};
use crate::codec;
use crate::ledger::{
    Answer, BucketId, BucketRef, Command, Found, ItemRef, ItemView, Level, Levels, PairLevel,
    Query, RegionOrdinal, SendStock, ShardId,
};
use crate::peer::ReplyTo;
use crate::runtime::{self, Instant};

/// The frame kind of these questions.
pub(super) const PARLEY_FRAME: u16 = 34;

/// A question between leaders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Parley {
    /// The levels of an item's buckets on a shard.
    Levels(ItemRef),
    /// A thirsty bucket asks a donor on the shard.
    Pull(Pull),
    /// Whether nothing of an item is free for a region; asked of its home.
    SoldOut(ItemRef, RegionOrdinal),
    /// Where the item's buckets live; asked of its home.
    Layout(ItemRef),
}

/// What a thirsty bucket asks of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pull {
    /// The donor.
    pub(crate) from: BucketRef,
    /// The thirsty one.
    pub(crate) to: BucketId,
    /// R: what it has ever accepted from the donor. The donor sends only if it has sent no more.
    pub(crate) accepted: u64,
    /// Whether both are of one region.
    pub(crate) same_region: bool,
    /// The item's total, for the bound of what may be under way.
    pub(crate) total: u64,
    /// The largest quantity that waits, for the same.
    pub(crate) largest: u64,
    /// What it asks for.
    pub(crate) asked: Asked,
}

/// What waits at a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// The bucket.
    pub(crate) bucket: BucketId,
    /// Units that wait.
    pub(crate) units: u64,
    /// Its rank.
    pub(crate) rank: Option<Rank>,
}

/// An answer between leaders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The levels, and who waits there.
    Levels(Levels, Vec<Waiting>),
    /// The donor has sent so much in all: S and F.
    Sent {
        /// Units ever sent.
        sent: u64,
        /// Floor ever sent.
        floor_sent: u64,
    },
    /// The donor gives nothing.
    Nothing,
    /// The verdict, how old its moment is, and the credits that it was judged by.
    Verdict {
        /// What was found.
        finding: Finding,
        /// How long ago the first of its two rounds ended, in µs, rounded up.
        age_us: u64,
        /// Each bucket's credits.
        credits: Vec<(BucketId, u64)>,
    },
    /// The item as its home has it; `None` when there is none.
    Layout(Option<Box<ItemView>>),
    /// This node does not lead the shard with a fresh quorum.
    NotHere,
}

#[derive(Debug, Serialize, Deserialize)]
struct Spoken {
    left_ms: u64,
    shard: ShardId,
    parley: Parley,
}

impl Router {
    /// Asks the leader of a shard. `None` when it is not known, or does not answer.
    pub(super) async fn parley(
        self: &Arc<Router>,
        shard: ShardId,
        parley: Parley,
        deadline: Instant,
    ) -> Option<Told> {
        if self.leads(shard) {
            return Some(Arc::clone(self).serve(shard, parley, deadline).await);
        }
        let link = self.link_to_leader(shard)?;
        let now = runtime::now();
        let left = if deadline > now { deadline - now } else { Duration::ZERO };
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let body = codec::encode(&Spoken { left_ms, shard, parley }).ok()?;
        let answer = link.send(PARLEY_FRAME, Bytes::from(body), deadline).await.ok()?;
        match codec::decode(&answer) {
            Ok(Told::NotHere) | Err(_) => None,
            Ok(told) => Some(told),
        }
    }

    /// Answers a frame of another node.
    pub(super) fn hear(self: &Arc<Router>, body: &Bytes, reply_to: ReplyTo) {
        let spoken: Spoken = match codec::decode(body) {
            Ok(spoken) => spoken,
            Err(error) => return reply_to.refuse(error.to_string()),
        };
        let router = Arc::clone(self);
        runtime::spawn(async move {
            let deadline = runtime::now() + Duration::from_millis(spoken.left_ms.min(60_000));
            let told = router.serve(spoken.shard, spoken.parley, deadline).await;
            match codec::encode(&told) {
                Ok(bytes) => reply_to.send(Bytes::from(bytes)),
                Err(error) => tracing::error!(%error, "an answer that cannot be sent"),
            }
        });
    }

    fn serve(
        self: Arc<Router>,
        shard: ShardId,
        parley: Parley,
        deadline: Instant,
    ) -> BoxFuture<'static, Told> {
        Box::pin(async move {
            match parley {
                Parley::Levels(item) => match self.levels_here(shard, item) {
                    Some((levels, waiting)) => Told::Levels(levels, waiting),
                    None => Told::NotHere,
                },
                Parley::Pull(pull) => self.give(shard, pull, deadline).await,
                Parley::SoldOut(item, region) if item.home == shard => {
                    self.sold_out_verdict(item, region, deadline).await
                }
                Parley::SoldOut(_, _) => Told::NotHere,
                Parley::Layout(item) => self.layout_here(shard, item),
            }
        })
    }

    /// Reads the levels of an item's buckets on a shard that is led here, and who waits there.
    pub(super) fn levels_here(
        &self,
        shard: ShardId,
        item: ItemRef,
    ) -> Option<(Levels, Vec<Waiting>)> {
        let place = self.place(shard)?;
        let state = place.replica.read();
        let found = state.ledger.query(&Query::Levels(item));
        let applied = state.applied;
        drop(state);
        place.fence.may_answer(applied).ok()?;
        let Found::Levels(levels) = found else { return None };
        let waiting = levels.buckets.iter().filter_map(|level| {
            let bucket = BucketRef { home: item.home, item: item.item, bucket: level.bucket };
            let queue = self.thirst.queue(bucket, level.free);
            let rank = queue.rank(bucket);
            (queue.units > 0).then_some(Waiting { bucket: level.bucket, units: queue.units, rank })
        });
        let waiting = waiting.collect();
        Some((levels, waiting))
    }

    fn layout_here(&self, shard: ShardId, item: ItemRef) -> Told {
        let Some(place) = self.place(shard) else { return Told::NotHere };
        let state = place.replica.read();
        let view = state.ledger.item_numbered(item.home, item.item);
        let applied = state.applied;
        drop(state);
        match place.fence.may_answer(applied) {
            Ok(_) => Told::Layout(view.map(Box::new)),
            Err(_) => Told::NotHere,
        }
    }

    /// Decides what a donor here gives, sends it, and tells its counters once that is applied.
    async fn give(self: &Arc<Router>, shard: ShardId, pull: Pull, deadline: Instant) -> Told {
        let item = ItemRef { home: pull.from.home, item: pull.from.item };
        let Some((levels, _)) = self.levels_here(shard, item) else { return Told::NotHere };
        let Some(level) = levels.buckets.iter().find(|one| one.bucket == pull.from.bucket) else {
            return Told::NotHere;
        };
        let pair = pair_of(level, pull.to);
        if pair.sent > pull.accepted {
            // It was sent before, and the word of it was lost.
            return Told::Sent { sent: pair.sent, floor_sent: pair.floor_sent };
        }
        if pair.sent < pull.accepted {
            return Told::Nothing;
        }
        let donor = self.donor(level, &pull);
        let quantity = self.policy.gives(&donor, &pull.asked).min(donor.lendable).min(donor.room);
        if quantity == 0 {
            return Told::Nothing;
        }
        let send = SendStock {
            from: pull.from,
            to: pull.to,
            quantity,
            acked: pull.accepted,
            if_sent: pull.accepted,
            same_region: pull.same_region,
            bound: self.bound(pull.total, pull.largest),
        };
        // Two buckets of one shard trade in one entry.
        let is_beside = levels.buckets.iter().any(|one| one.bucket == pull.to);
        let command = if is_beside { Command::MoveStock(send) } else { Command::SendStock(send) };
        let Reply { outcome, .. } = self.command_on(shard, command, deadline).await;
        match outcome {
            Outcome::Answered(Answer::Sent { sent, floor_sent }) => {
                self.stock.sent(quantity);
                Told::Sent { sent, floor_sent }
            }
            Outcome::Answered(_)
            | Outcome::Found(_)
            | Outcome::InFlight
            | Outcome::Paused(_)
            | Outcome::Overloaded
            | Outcome::Late
            | Outcome::Unknown
            | Outcome::Elsewhere { .. }
            | Outcome::NotServing(_) => Told::Nothing,
        }
    }

    fn donor(&self, level: &Level, pull: &Pull) -> Donor {
        let own = pull.from;
        let queue = self.thirst.queue(own, level.free);
        let pair = pair_of(level, pull.to);
        // What the puller has accepted is settled by this very send.
        let under_way = level.in_transit.saturating_sub(pull.accepted.saturating_sub(pair.acked));
        Donor {
            lendable: if pull.same_region { level.free } else { level.lendable },
            room: self.bound(pull.total, pull.largest).saturating_sub(under_way),
            waiting: queue.units,
            servable: queue.servable,
            per_second: self.stock.per_second(own),
            rank: queue.rank(own),
        }
    }

    /// The most units that one bucket may have under way: what a partition can strand.
    pub(super) fn bound(&self, total: u64, largest: u64) -> u64 {
        let share = u128::from(total) * u128::from(self.thirst.limits.transit_percent_max);
        let share = u64::try_from(share.div_ceil(100)).unwrap_or(u64::MAX);
        share.max(largest).max(1)
    }
}

/// The counters of a bucket with another; zeros before they traded.
pub(super) fn pair_of(level: &Level, peer: BucketId) -> PairLevel {
    let known = level.pairs.iter().find(|pair| pair.peer == peer).copied();
    known.unwrap_or(PairLevel {
        peer,
        sent: 0,
        floor_sent: 0,
        acked: 0,
        accepted: 0,
        floor_accepted: 0,
    })
}
