//! Buyers who wait at dry buckets of this node, until stock has travelled there.
//!
//! A wait is bounded in number and in time, and proposes nothing: whoever is told that there is
//! stock asks the gate again. Waiters are told in the order in which they came, and only as many as
//! the stock can serve. One pull at a time serves all waiters of a bucket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::supply::Rank;
use crate::ledger::{BucketRef, UnixMs};
use crate::planted::{Fault, planted};
use crate::runtime::Instant;

/// Bounds of the waiting, and of what is said when it was in vain.
#[derive(Debug, Clone, Copy)]
pub struct ThirstLimits {
    /// How long a request waits for stock.
    pub wait_max: Duration,
    /// Requests that wait on this node at once.
    pub waiters_max: usize,
    /// How old the moment may be at which nothing was free, for `sold-out`.
    pub sold_out_age_max: Duration,
    /// A home collects the levels of one item no more often than this.
    pub collect_every: Duration,
    /// What a bucket may have under way, in percent of the item's total.
    pub transit_percent_max: u64,
}

#[cfg(test)]
impl ThirstLimits {
    /// The bounds of tests.
    pub(crate) fn trial() -> ThirstLimits {
        let ms = Duration::from_millis;
        ThirstLimits {
            wait_max: ms(250),
            waiters_max: 64,
            sold_out_age_max: ms(100),
            collect_every: ms(50),
            transit_percent_max: 5,
        }
    }
}

/// What a waiter is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// There may be stock: ask again.
    AskAgain,
    /// At some moment since it came, or just before, nothing was free anywhere.
    SoldOut {
        /// Whether something was held that may come back.
        may_return: bool,
    },
    /// Less is left in all buckets together than it asks for.
    TooLittle {
        /// Units seen free.
        free: u64,
    },
}

#[derive(Debug)]
struct Waiter {
    quantity: u64,
    since: UnixMs,
    arrived: Instant,
    told: oneshot::Sender<Word>,
}

/// A verdict that this node was told, and until when it may be repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) may_return: bool,
    /// The bucket's credits when it was judged: another figure ends it.
    pub(crate) credits: u64,
    /// When it was asked for.
    pub(crate) asked_at: Instant,
    /// Nothing was free no longer than this before that moment.
    pub(crate) age: Duration,
}

impl Told {
    fn age(&self, now: Instant) -> Duration {
        let since = if now > self.asked_at { now - self.asked_at } else { Duration::ZERO };
        self.age + since
    }

    /// Tells whether nothing was free at some moment after `arrived`.
    fn is_after(&self, arrived: Instant) -> bool {
        arrived + self.age <= self.asked_at
    }
}

#[derive(Debug, Default)]
struct Dry {
    waiters: BTreeMap<u64, Waiter>,
    is_pulling: bool,
    told: Option<Told>,
}

#[derive(Debug, Default)]
struct Board {
    buckets: BTreeMap<BucketRef, Dry>,
    next: u64,
    waiting: usize,
}

/// What waits at one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Queue {
    /// Units asked for.
    pub(crate) units: u64,
    /// The largest quantity.
    pub(crate) largest: u64,
    /// Of the units, those that the stock given can serve, first come, first served.
    pub(crate) servable: u64,
    /// When the oldest waiter came.
    pub(crate) since: Option<UnixMs>,
}

impl Queue {
    /// The rank of the bucket whose queue this is.
    pub(crate) fn rank(&self, bucket: BucketRef) -> Option<Rank> {
        self.since.map(|since| Rank { since, bucket: bucket.bucket })
    }
}

/// The thirsty buckets of one node. One for all threads.
#[derive(Debug)]
pub(crate) struct Thirst {
    pub(crate) limits: ThirstLimits,
    board: Mutex<Board>,
}

/// One wait. Dropped, it waits no longer.
#[derive(Debug)]
pub(crate) struct Wait {
    thirst: Arc<Thirst>,
    bucket: BucketRef,
    number: u64,
    told: oneshot::Receiver<Word>,
    /// Whether nobody pulls for this bucket yet: whoever waits has to begin.
    pub(crate) begins_pull: bool,
}

impl Wait {
    /// Waits for a word; `None` when whoever pulled has gone.
    pub(crate) async fn word(&mut self) -> Option<Word> {
        (&mut self.told).await.ok()
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut board = self.thirst.board.lock();
        let Some(dry) = board.buckets.get_mut(&self.bucket) else { return };
        if dry.waiters.remove(&self.number).is_some() {
            board.waiting = board.waiting.saturating_sub(1);
        }
    }
}

impl Thirst {
    pub(crate) fn new(limits: ThirstLimits) -> Arc<Thirst> {
        Arc::new(Thirst { limits, board: Mutex::default() })
    }

    /// Lets a request wait at a bucket; `None` when too many wait here already.
    pub(crate) fn wait(
        self: &Arc<Thirst>,
        bucket: BucketRef,
        quantity: u64,
        since: UnixMs,
        arrived: Instant,
    ) -> Option<Wait> {
        let mut board = self.board.lock();
        if board.waiting >= self.limits.waiters_max {
            return None;
        }
        board.waiting += 1;
        board.next += 1;
        let number = board.next;
        let (told, word) = oneshot::channel();
        let dry = board.buckets.entry(bucket).or_default();
        dry.waiters.insert(number, Waiter { quantity, since, arrived, told });
        let begins_pull = !std::mem::replace(&mut dry.is_pulling, true);
        Some(Wait { thirst: Arc::clone(self), bucket, number, told: word, begins_pull })
    }

    /// Says that nobody pulls for a bucket any more, unless somebody waits there. Tells whether it
    /// was said.
    pub(crate) fn end_pull(&self, bucket: BucketRef) -> bool {
        let mut board = self.board.lock();
        let Some(dry) = board.buckets.get_mut(&bucket) else { return true };
        if !dry.waiters.is_empty() {
            return false;
        }
        dry.is_pulling = false;
        if dry.told.is_none() {
            board.buckets.remove(&bucket);
        }
        true
    }

    /// Says that nobody pulls for a bucket any more, and sends all who wait there to ask again.
    pub(crate) fn abandon_pull(&self, bucket: BucketRef) {
        let mut board = self.board.lock();
        let Some(dry) = board.buckets.remove(&bucket) else { return };
        board.waiting = board.waiting.saturating_sub(dry.waiters.len());
        for waiter in dry.waiters.into_values() {
            waiter.told.send(Word::AskAgain).ok();
        }
    }

    /// Tells how many units wait at a bucket, and which of them `free` units can serve.
    pub(crate) fn queue(&self, bucket: BucketRef, free: u64) -> Queue {
        let board = self.board.lock();
        let Some(dry) = board.buckets.get(&bucket) else { return Queue::default() };
        let mut queue = Queue::default();
        let mut is_served = true;
        for waiter in dry.waiters.values() {
            queue.units = queue.units.saturating_add(waiter.quantity);
            queue.largest = queue.largest.max(waiter.quantity);
            queue.since = Some(queue.since.map_or(waiter.since, |since| since.min(waiter.since)));
            is_served = is_served && queue.units <= free;
            if is_served {
                queue.servable = queue.units;
            }
        }
        queue
    }

    /// Sends as many waiters to ask again as `free` units can serve, first come, first served.
    /// Returns how many units they ask for.
    pub(crate) fn serve(&self, bucket: BucketRef, free: u64) -> u64 {
        let word = |waiter: &Waiter, left: &mut u64| {
            *left = left.checked_sub(waiter.quantity)?;
            Some(Word::AskAgain)
        };
        free - self.tell(bucket, word, free, true)
    }

    /// Tells those who ask for more than all buckets together have.
    pub(crate) fn tell_too_little(&self, bucket: BucketRef, free: u64) {
        let word = |waiter: &Waiter, free: &mut u64| {
            (waiter.quantity > *free).then_some(Word::TooLittle { free: *free })
        };
        self.tell(bucket, word, free, false);
    }

    /// Tells that nothing was free, to those for whom that is true: who came before the judgement
    /// began, or lately enough.
    pub(crate) fn tell_sold_out(&self, bucket: BucketRef, told: Told, now: Instant) {
        if let Some(dry) = self.board.lock().buckets.get_mut(&bucket) {
            dry.told = Some(told);
        }
        let is_young = told.age(now) <= self.limits.sold_out_age_max;
        let word = |waiter: &Waiter, _: &mut u64| {
            let holds = is_young || told.is_after(waiter.arrived);
            holds.then_some(Word::SoldOut { may_return: told.may_return })
        };
        self.tell(bucket, word, 0, false);
    }

    fn tell(
        &self,
        bucket: BucketRef,
        word: impl Fn(&Waiter, &mut u64) -> Option<Word>,
        mut state: u64,
        in_order: bool,
    ) -> u64 {
        let mut board = self.board.lock();
        let Some(dry) = board.buckets.get_mut(&bucket) else { return state };
        let mut told = Vec::new();
        for (number, waiter) in &dry.waiters {
            match word(waiter, &mut state) {
                Some(word) => told.push((*number, word)),
                None if in_order => break,
                None => {}
            }
        }
        let count = told.len();
        for (number, word) in told {
            if let Some(waiter) = dry.waiters.remove(&number) {
                waiter.told.send(word).ok();
            }
        }
        board.waiting = board.waiting.saturating_sub(count);
        state
    }

    /// Returns the last verdict on a bucket's item while it may be repeated: it is young, and the
    /// bucket was not credited since.
    pub(crate) fn verdict(&self, bucket: BucketRef, credits: u64, now: Instant) -> Option<Word> {
        let mut board = self.board.lock();
        let dry = board.buckets.get_mut(&bucket)?;
        let told = dry.told?;
        let is_young = told.age(now) <= self.limits.sold_out_age_max;
        if is_young && told.credits == credits || planted(Fault::SoldOutForever) {
            return Some(Word::SoldOut { may_return: told.may_return });
        }
        dry.told = None;
        None
    }

    /// Returns how many requests wait on this node.
    pub(crate) fn waiting(&self) -> usize {
        self.board.lock().waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{BucketId, ItemNumber, ShardId};
    use crate::runtime;

    const BUCKET: BucketRef =
        BucketRef { home: ShardId(0), item: ItemNumber(1), bucket: BucketId(2) };

    fn thirst(waiters_max: usize) -> Arc<Thirst> {
        Thirst::new(ThirstLimits { waiters_max, ..ThirstLimits::trial() })
    }

    fn wait(thirst: &Arc<Thirst>, quantity: u64, since: u64) -> Wait {
        thirst.wait(BUCKET, quantity, UnixMs(since), runtime::now()).expect("room")
    }

    fn told(wait: &mut Wait) -> Option<Word> {
        wait.told.try_recv().ok()
    }

    #[test]
    fn waiters_are_served_in_the_order_in_which_they_came_and_no_further_than_the_stock() {
        crate::raft::trial::run(async {
            let thirst = thirst(9);
            let (mut one, mut two, mut three) =
                (wait(&thirst, 1, 10), wait(&thirst, 3, 11), wait(&thirst, 1, 12));
            assert!(one.begins_pull && !two.begins_pull, "one pull serves all");
            thirst.serve(BUCKET, 2);
            assert_eq!(told(&mut one), Some(Word::AskAgain));
            assert_eq!(told(&mut two), None, "three are not there");
            assert_eq!(told(&mut three), None, "nobody overtakes");
            let queue = thirst.queue(BUCKET, 3);
            assert_eq!((queue.units, queue.largest, queue.servable), (4, 3, 3));
            assert_eq!(queue.since, Some(UnixMs(11)));
        });
    }

    #[test]
    fn waiting_is_bounded_and_a_wait_that_is_dropped_gives_its_place_back() {
        crate::raft::trial::run(async {
            let thirst = thirst(1);
            let first = wait(&thirst, 1, 10);
            assert!(thirst.wait(BUCKET, 1, UnixMs(11), runtime::now()).is_none());
            assert!(!thirst.end_pull(BUCKET), "somebody waits");
            drop(first);
            assert_eq!(thirst.waiting(), 0);
            assert!(thirst.end_pull(BUCKET));
            assert!(wait(&thirst, 1, 12).begins_pull);
        });
    }

    /// Trap "joining a running collect": a verdict says nothing to who came after its moment,
    /// unless it is young.
    #[test]
    fn verdict_is_told_to_those_who_came_before_its_moment_and_to_others_only_while_young() {
        crate::raft::trial::run(async {
            let thirst = thirst(9);
            let came = runtime::now();
            let ms = Duration::from_millis;
            let mut early = wait(&thirst, 1, 10);
            let old = Told { may_return: true, credits: 4, asked_at: came, age: ms(1) };
            thirst.tell_sold_out(BUCKET, old, came + ms(200));
            assert_eq!(told(&mut early), None, "it came after that moment, which is old");
            let new = Told { asked_at: runtime::now() + ms(2), ..old };
            thirst.tell_sold_out(BUCKET, new, came + ms(400));
            assert_eq!(told(&mut early), Some(Word::SoldOut { may_return: true }));
            let now = new.asked_at + ms(99);
            assert!(thirst.verdict(BUCKET, 4, now).is_some());
            assert!(thirst.verdict(BUCKET, 4, now + ms(1)).is_none(), "it is too old");
            thirst.tell_sold_out(BUCKET, new, now);
            assert!(thirst.verdict(BUCKET, 5, now).is_none(), "a credit ends it");
            assert!(thirst.verdict(BUCKET, 4, now).is_none(), "for good");
        });
    }

    #[test]
    fn only_who_asks_for_more_than_is_left_is_told_so() {
        crate::raft::trial::run(async {
            let thirst = thirst(9);
            let (mut large, mut small) = (wait(&thirst, 5, 10), wait(&thirst, 2, 11));
            thirst.tell_too_little(BUCKET, 3);
            assert_eq!(told(&mut large), Some(Word::TooLittle { free: 3 }));
            assert_eq!(told(&mut small), None);
        });
    }
}
