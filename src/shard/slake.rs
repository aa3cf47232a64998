//! A placement that found its bucket dry waits here, while stock is pulled to it.
//!
//! The request stays where it was refused, at the leader of its bucket, and nothing of it is
//! proposed until the gate admits it. One task pulls for all who wait at a bucket: it reads the
//! levels of the others, asks the best donors first, accepts what they sent, and sends the waiters
//! to ask again. When nobody has anything it asks the item's home for a verdict.

use std::sync::Arc;
use std::time::Duration;

use super::ask::Addressed;
use super::desk::{Outcome, Question, Reply};
use super::directory::Layout;
use super::double_collect::Finding;
use super::home::reply;
use super::parley::{Parley, Pull, Told as Heard, Waiting, pair_of};
use super::router::Router;
use super::supply::{Asked, Supply};
use super::thirst::{Queue, Thirst, Told, Word};
use crate::ledger::{
    AcceptStock, Answer, BucketId, BucketRef, Command, Level, Levels, PlaceRef, Refusal,
    RegionOrdinal, ScopeRef, SettleStock, ShardId, UnixMs, home_shard,
};
use crate::runtime::{self, Instant};

/// How long one question to another leader may take.
const PARLEY_MAX: Duration = Duration::from_millis(200);
/// How long a pull that brought nothing rests at first, and at most.
const REST: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(25));
/// A wait ends so long before its request's deadline, to be answered in time.
const ANSWER_WITHIN: Duration = Duration::from_millis(30);
/// How long a request that waited in vain waits for a verdict.
const VERDICT_MAX: Duration = Duration::from_millis(500);
/// Donors that one pull asks before it looks at the levels again.
const DONORS_A_PULL: usize = 4;

/// Tells whether a placement found too little in its bucket.
pub(super) fn is_dry(reply: &Reply) -> bool {
    matches!(&reply.outcome, Outcome::Answered(Answer::Refused(Refusal::InsufficientStock { .. })))
}

/// What a pull brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brought {
    Units(u64),
    Nothing,
}

impl Router {
    /// Tells whether a placement's item lies on several buckets, as far as this node knows.
    fn is_spread(&self, asked: &Addressed) -> bool {
        let Question::Command(command) = &asked.question else { return false };
        command.placing().is_some_and(|place| {
            home_shard(place.name, self.shard_count()) != asked.shard
                || self.directory.named(place.name).is_some()
        })
    }

    /// Passes an answer on, unless it says that a spread item's bucket is dry: then the placement
    /// waits for stock, within bounds, and is asked again.
    pub(super) async fn slake(
        self: &Arc<Router>,
        asked: Addressed,
        first: Reply,
        deadline: Instant,
    ) -> Reply {
        if !is_dry(&first) || !self.is_spread(&asked) {
            return first;
        }
        Box::pin(self.wait_for_stock(asked, first, deadline)).await
    }

    /// Lets those of many placements wait that found their buckets dry.
    pub(super) async fn slake_all(
        self: &Arc<Router>,
        dry: Vec<(usize, Addressed, Reply)>,
        deadline: Instant,
    ) -> Vec<(usize, Reply)> {
        let waits = dry.into_iter().map(|(at, asked, first)| {
            let router = Arc::clone(self);
            async move { (at, router.slake(asked, first, deadline).await) }
        });
        futures_util::future::join_all(waits).await
    }

    async fn wait_for_stock(
        self: &Arc<Router>,
        asked: Addressed,
        mut last: Reply,
        deadline: Instant,
    ) -> Reply {
        let Question::Command(command) = &asked.question else { return last };
        let Some(place) = command.placing() else { return last };
        let (arrived, shard) = (runtime::now(), asked.shard);
        let PlaceRef { name, region, buyer, key, quantity, .. } = place;
        let scope = ScopeRef { name, region, buyer, key };
        let owned = |layout: &Arc<Layout>| layout.owner(scope).filter(|one| one.shard == shard);
        // This shard owns the buyer: a layout that does not say so is an old one.
        let known = self.directory.named(name).filter(|layout| owned(layout).is_some());
        let layout = match known {
            Some(layout) => layout,
            None => match self.learn(name, deadline).await {
                Some(layout) => layout,
                None => return last,
            },
        };
        let Some(owner) = owned(&layout) else { return last };
        let bucket = layout.bucket(owner.bucket);
        let mut until = arrived + self.thirst.limits.wait_max;
        // A request that has little time waits no longer than that.
        if deadline < until + ANSWER_WITHIN {
            let left = if deadline > arrived { deadline - arrived } else { Duration::ZERO };
            until = arrived + left.saturating_sub(ANSWER_WITHIN);
        }
        let since = self.ledger_time(shard);
        loop {
            if let Some(word) = self.remembered(shard, bucket) {
                self.stock.waited(true);
                return self.last_word(&asked, last, word, deadline).await;
            }
            let Some(mut wait) = self.thirst.wait(bucket, quantity, since, arrived) else {
                return last;
            };
            if wait.begins_pull {
                let (router, layout) = (Arc::clone(self), Arc::clone(&layout));
                runtime::spawn(router.pull_for(shard, layout, bucket));
            }
            match runtime::timeout_at(until, wait.word()).await {
                Ok(Some(Word::AskAgain)) => {
                    last = self.ask_again(&asked, deadline).await;
                    if !is_dry(&last) {
                        self.stock.waited(false);
                        return last;
                    }
                }
                Ok(Some(word)) => {
                    self.stock.waited(true);
                    return self.last_word(&asked, last, word, deadline).await;
                }
                // Whoever pulled has gone: another begins.
                Ok(None) => {}
                Err(runtime::Elapsed) => break,
            }
            if runtime::now() >= until {
                break;
            }
        }
        // In vain: the home may know that nothing is left anywhere.
        self.stock.waited(true);
        let region = layout.region_of(bucket.bucket).unwrap_or_default();
        let asked_by = (runtime::now() + VERDICT_MAX).min(deadline);
        self.tell_if_sold_out(shard, &layout, bucket, region, asked_by).await;
        match self.remembered(shard, bucket) {
            Some(word) => self.last_word(&asked, last, word, deadline).await,
            None => last,
        }
    }

    /// The verdict that this node remembers on a bucket that is still dry.
    fn remembered(&self, shard: ShardId, bucket: BucketRef) -> Option<Word> {
        let item = crate::ledger::ItemRef { home: bucket.home, item: bucket.item };
        let (levels, _) = self.levels_here(shard, item)?;
        let own = level_in(&levels, bucket.bucket)?;
        let word = self.thirst.verdict(bucket, own.credits, runtime::now())?;
        (own.free == 0).then_some(word)
    }

    /// Answers a waiter that was told what is left. Its key may have been granted meanwhile, to
    /// another copy of the request: the gate is asked last.
    async fn last_word(
        self: &Arc<Router>,
        asked: &Addressed,
        last: Reply,
        word: Word,
        deadline: Instant,
    ) -> Reply {
        let now = match self.recall_here(asked) {
            Some(reply) => reply,
            None => self.ask_again(asked, deadline).await,
        };
        if !is_dry(&now) {
            return now;
        }
        let refusal = match word {
            Word::SoldOut { may_return } => Refusal::SoldOut { may_return },
            Word::TooLittle { free } => Refusal::InsufficientStock { available: free },
            Word::AskAgain => return last,
        };
        Reply { outcome: Outcome::Answered(Answer::Refused(refusal)), ..now }
    }

    async fn ask_again(self: &Arc<Router>, asked: &Addressed, deadline: Instant) -> Reply {
        let Some(sent) = self.home().send(vec![asked.clone()], deadline) else {
            return reply(Outcome::Overloaded);
        };
        let answered = sent.answers.await.unwrap_or_default().pop();
        answered.unwrap_or_else(|| reply(Outcome::Unknown))
    }

    /// Estimates ledger time of a shard here, as an entry would be stamped.
    pub(super) fn ledger_time(&self, shard: ShardId) -> UnixMs {
        let Some(place) = self.place(shard) else { return UnixMs(0) };
        let state = place.replica.read();
        let Some((base, at)) = state.stamped else { return state.ledger.now() };
        let now = runtime::now();
        let since = if now > at { (now - at).as_millis() } else { 0 };
        UnixMs(base.0.saturating_add(u64::try_from(since).unwrap_or(u64::MAX)))
    }

    /// Pulls stock to a bucket here until nobody waits there.
    async fn pull_for(self: Arc<Router>, shard: ShardId, layout: Arc<Layout>, bucket: BucketRef) {
        let mut pulling = Pulling { thirst: Arc::clone(&self.thirst), bucket, is_over: false };
        let mut rest = REST.0;
        loop {
            let Some((levels, _)) = self.levels_here(shard, layout.item()) else { return };
            let Some(mut own) = level_in(&levels, bucket.bucket).cloned() else { return };
            // What was promised to some is not there for the others.
            own.free = own.free.saturating_sub(self.thirst.serve(bucket, own.free));
            let queue = self.thirst.queue(bucket, own.free);
            if queue.units == 0 {
                if self.thirst.end_pull(bucket) {
                    pulling.is_over = true;
                    return;
                }
                continue;
            }
            match self.pull_once(shard, &layout, &own, queue).await {
                Brought::Units(_) => rest = REST.0,
                Brought::Nothing => {
                    runtime::sleep(rest).await;
                    rest = (rest * 2).min(REST.1);
                }
            }
        }
    }

    /// Asks the best donors once for what a bucket lacks.
    async fn pull_once(
        self: &Arc<Router>,
        shard: ShardId,
        layout: &Arc<Layout>,
        own: &Level,
        queue: Queue,
    ) -> Brought {
        let deadline = runtime::now() + PARLEY_MAX;
        let bucket = layout.bucket(own.bucket);
        let region = own.region;
        let survey = self.survey(layout, deadline).await;
        let supply = Supply {
            free: own.free,
            waiting: queue.units,
            per_second: self.stock.per_second(bucket),
        };
        let wanted = self.policy.wants(&supply);
        let asked = Asked {
            wanted,
            waiting: queue.units.saturating_sub(own.free),
            free: own.free,
            rank: queue.rank(bucket),
        };
        let brought = self.pull_from(layout, own, &survey, asked, queue.largest, deadline).await;
        if brought > 0 {
            return Brought::Units(brought);
        }
        self.stock.pulled_nothing();
        match survey.left_for(region, layout.buckets().len()) {
            Some(0) => self.tell_if_sold_out(shard, layout, bucket, region, deadline).await,
            Some(free) => self.thirst.tell_too_little(bucket, free),
            None => {}
        }
        Brought::Nothing
    }

    /// Reads the levels of all buckets of an item, as far as their leaders answer.
    pub(super) async fn survey(
        self: &Arc<Router>,
        layout: &Arc<Layout>,
        deadline: Instant,
    ) -> Survey {
        let item = layout.item();
        let asks = layout.shards().into_iter().map(|shard| {
            let router = Arc::clone(self);
            async move { router.parley(shard, Parley::Levels(item), deadline).await }
        });
        let mut survey = Survey::default();
        for told in futures_util::future::join_all(asks).await {
            let Some(Heard::Levels(levels, waiting)) = told else { continue };
            survey.total = levels.total.or(survey.total);
            survey.levels.extend(levels.buckets);
            survey.waiting.extend(waiting);
        }
        survey
    }

    /// Asks donors, best first and as many as it takes at once, and accepts what they sent. Returns
    /// the units that came.
    pub(super) async fn pull_from(
        self: &Arc<Router>,
        layout: &Arc<Layout>,
        own: &Level,
        survey: &Survey,
        asked: Asked,
        largest: u64,
        deadline: Instant,
    ) -> u64 {
        let mut left = asked;
        let mut pulls = Vec::new();
        for donor in survey.donors(own, DONORS_A_PULL) {
            let Some(place) = layout.place_of(donor.bucket) else { continue };
            if left.wanted == 0 {
                break;
            }
            let pull = Pull {
                from: layout.bucket(donor.bucket),
                to: own.bucket,
                accepted: pair_of(own, donor.bucket).accepted,
                same_region: donor.region == own.region,
                total: survey.total.unwrap_or(layout.view().total),
                largest,
                asked: left,
            };
            let (router, layout) = (Arc::clone(self), Arc::clone(layout));
            pulls.push(async move { router.pull(&layout, place.shard, pull, deadline).await });
            // What this one can give is not asked of the next.
            let gives = if pull.same_region { donor.free } else { donor.lendable };
            left.wanted = left.wanted.saturating_sub(gives);
            left.waiting = left.waiting.saturating_sub(gives);
        }
        let came = futures_util::future::join_all(pulls).await;
        came.into_iter().fold(0, u64::saturating_add)
    }

    /// Asks one donor and accepts what it sent.
    async fn pull(
        self: &Arc<Router>,
        layout: &Arc<Layout>,
        donor_shard: ShardId,
        pull: Pull,
        deadline: Instant,
    ) -> u64 {
        let told = self.parley(donor_shard, Parley::Pull(pull), deadline).await;
        let Some(Heard::Sent { sent, floor_sent }) = told else { return 0 };
        self.accept(layout, pull, (sent, floor_sent), donor_shard).await
    }

    /// Accepts what a donor has sent, and lets it know.
    async fn accept(
        self: &Arc<Router>,
        layout: &Arc<Layout>,
        pull: Pull,
        (sent, floor_sent): (u64, u64),
        donor_shard: ShardId,
    ) -> u64 {
        let Some(shard) = layout.place_of(pull.to).map(|place| place.shard) else { return 0 };
        let accept =
            AcceptStock { to: layout.bucket(pull.to), from: pull.from.bucket, sent, floor_sent };
        let deadline = runtime::now() + PARLEY_MAX;
        let Reply { outcome, .. } =
            self.command_on(shard, Command::AcceptStock(accept), deadline).await;
        let Outcome::Answered(Answer::Accepted { accepted }) = outcome else { return 0 };
        let came = accepted.saturating_sub(pull.accepted);
        if came > 0 {
            self.stock.accepted(came);
        }
        if donor_shard != shard {
            let settle = SettleStock { from: pull.from, to: pull.to, accepted };
            let router = Arc::clone(self);
            runtime::spawn(async move {
                let question = Question::from(Command::SettleStock(settle));
                // Lost, it is repeated by the donor's steward.
                router.ask_shard(donor_shard, question, deadline).await;
            });
        }
        came
    }

    /// Asks the item's home whether nothing is free, and tells those who wait.
    async fn tell_if_sold_out(
        self: &Arc<Router>,
        shard: ShardId,
        layout: &Arc<Layout>,
        bucket: BucketRef,
        region: RegionOrdinal,
        deadline: Instant,
    ) {
        let asked_at = runtime::now();
        let parley = Parley::SoldOut(layout.item(), region);
        let told = self.parley(bucket.home, parley, deadline).await;
        let Some(Heard::Verdict { finding: Finding::SoldOut { may_return }, age_us, credits }) =
            told
        else {
            return;
        };
        let judged_by = credits.iter().find(|(one, _)| *one == bucket.bucket);
        let Some((_, credits)) = judged_by.copied() else { return };
        let Some((levels, _)) = self.levels_here(shard, layout.item()) else { return };
        let own = level_in(&levels, bucket.bucket);
        if own.is_none_or(|own| own.credits != credits || own.free > 0) {
            return;
        }
        let age = Duration::from_micros(age_us);
        let told = Told { may_return, credits, asked_at, age };
        self.thirst.tell_sold_out(bucket, told, runtime::now());
    }
}

/// Ends a pull however it ends.
struct Pulling {
    thirst: Arc<Thirst>,
    bucket: BucketRef,
    is_over: bool,
}

impl Drop for Pulling {
    fn drop(&mut self) {
        if !self.is_over {
            self.thirst.abandon_pull(self.bucket);
        }
    }
}

/// The levels of an item's buckets, each of its own moment.
#[derive(Debug, Default)]
pub(super) struct Survey {
    total: Option<u64>,
    pub(super) levels: Vec<Level>,
    waiting: Vec<Waiting>,
}

impl Survey {
    /// The buckets that may give something to `own`, best first: those where nobody waits before
    /// the others, then by what they can lend.
    fn donors(&self, own: &Level, at_most: usize) -> Vec<&Level> {
        let lendable = |one: &Level| {
            if one.region == own.region { one.free } else { one.lendable }
        };
        // Units that were sent to it and that it has not accepted: nobody else will.
        let on_the_way = |one: &Level| {
            pair_of(one, own.bucket).sent.saturating_sub(pair_of(own, one.bucket).accepted)
        };
        let waits = |one: &Level| self.waiting.iter().any(|other| other.bucket == one.bucket);
        let mut donors: Vec<&Level> = self
            .levels
            .iter()
            .filter(|one| one.bucket != own.bucket && (lendable(one) > 0 || on_the_way(one) > 0))
            .collect();
        donors.sort_by_key(|one| {
            (on_the_way(one) == 0, waits(one), std::cmp::Reverse(lendable(one)), one.bucket)
        });
        donors.truncate(at_most);
        donors
    }

    /// What the other buckets together may give to `own`; `None` as for [`Survey::left_for`].
    pub(super) fn left_elsewhere(&self, own: &Level, buckets: usize) -> Option<u64> {
        let own_free = self.levels.iter().find(|one| one.bucket == own.bucket)?.free;
        Some(self.left_for(own.region, buckets)?.saturating_sub(own_free))
    }

    /// What is free for a region in all buckets together; `None` when one did not answer or has
    /// something under way.
    fn left_for(&self, region: RegionOrdinal, buckets: usize) -> Option<u64> {
        let is_whole = self.levels.len() == buckets;
        let is_settled = self.levels.iter().all(Level::is_settled);
        (is_whole && is_settled).then(|| {
            let free = |one: &Level| if one.region == region { one.free } else { one.lendable };
            self.levels.iter().fold(0_u64, |sum, one| sum.saturating_add(free(one)))
        })
    }
}

/// A bucket among the levels of a shard.
pub(super) fn level_in(levels: &Levels, bucket: BucketId) -> Option<&Level> {
    levels.buckets.iter().find(|level| level.bucket == bucket)
}
