//! Counts and times of one shard's gate and batcher, written by many threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::ask::GateLane;
use super::desk::Outcome;
use super::status::{Histogram, Traffic};
use crate::ledger::{Answer, Refusal};

/// Upper bounds of times, in seconds.
const SECONDS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256,
    0.512, 1.024,
];
/// Upper bounds of commands an entry.
const COMMANDS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Words of the refusals, in the order of [`refusal_kind`].
const REFUSALS: [&str; 28] = [
    "sold-out",
    "insufficient-stock",
    "buyer-limit",
    "item-paused",
    "item-closed",
    "sale-not-open",
    "key-voided",
    "idempotency-key-reused",
    "hold-expired",
    "hold-confirmed",
    "hold-released",
    "not-sold",
    "extend-budget-spent",
    "validation",
    "item-not-found",
    "region-not-found",
    "hold-not-found",
    "stock-committed",
    "open-holds",
    "use-adjustments",
    "revision-mismatch",
    "not-owner",
    "transfer-refused",
    "under-way",
    "not-under-way",
    "not-answered",
    "lower-in-steps",
    "other",
];

fn refusal_kind(refusal: &Refusal) -> usize {
    match refusal {
        Refusal::SoldOut { .. } => 0,
        Refusal::InsufficientStock { .. } => 1,
        Refusal::BuyerLimit { .. } => 2,
        Refusal::ItemPaused { .. } => 3,
        Refusal::ItemClosed => 4,
        Refusal::SaleNotOpen { .. } => 5,
        Refusal::KeyVoided => 6,
        Refusal::KeyReused { .. } => 7,
        Refusal::HoldExpired { .. } => 8,
        Refusal::HoldConfirmed { .. } => 9,
        Refusal::HoldReleased { .. } => 10,
        Refusal::NotSold { .. } => 11,
        Refusal::ExtendBudgetSpent { .. } => 12,
        Refusal::Invalid { .. } => 13,
        Refusal::ItemNotFound => 14,
        Refusal::RegionNotFound => 15,
        Refusal::HoldNotFound => 16,
        Refusal::StockCommitted { .. } => 17,
        Refusal::OpenHolds { .. } => 18,
        Refusal::UseAdjustments { .. } => 19,
        Refusal::RevisionMismatch { .. } => 20,
        Refusal::NotOwner => 21,
        Refusal::TransferRefused { .. } => 22,
        Refusal::UnderWay { .. } => 23,
        Refusal::NotUnderWay => 24,
        Refusal::NotAnswered { .. } => 25,
        Refusal::LowerInSteps => 26,
    }
}

#[derive(Debug)]
struct Buckets<const N: usize> {
    bounds: [f64; N],
    counts: [AtomicU64; N],
    above: AtomicU64,
    /// In millionths, so that it fits an integer.
    sum_millionths: AtomicU64,
}

impl<const N: usize> Buckets<N> {
    fn new(bounds: [f64; N]) -> Buckets<N> {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Buckets { bounds, counts, above: AtomicU64::new(0), sum_millionths: AtomicU64::new(0) }
    }

    fn record(&self, value: f64) {
        let cell = self.bounds.iter().position(|bound| value <= *bound);
        cell.map_or(&self.above, |at| &self.counts[at]).fetch_add(1, Ordering::Relaxed);
        self.sum_millionths.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Histogram {
        let counts = self.counts.iter().chain([&self.above]);
        Histogram {
            bounds: self.bounds.to_vec(),
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum_millionths.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }
}

/// How much may wait in a shard's queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneLimits {
    /// Questions of all kinds.
    pub(crate) all_max: usize,
    /// Of those, places that placements can never take.
    pub(crate) kept_for_finishes: usize,
}

/// One shard's meter.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The disk is full: new places are shed.
    sheds_places: AtomicBool,
    granted: AtomicU64,
    replayed: AtomicU64,
    refused: [AtomicU64; REFUSALS.len()],
    from_memory: AtomicU64,
    unknown: AtomicU64,
    paused: AtomicU64,
    shed: AtomicU64,
    forwarded: AtomicU64,
    commands: AtomicU64,
    entries: AtomicU64,
    /// Questions between a home and the shard's decision, by lane.
    queued_places: AtomicU64,
    queued_finishes: AtomicU64,
    in_flight: AtomicU64,
    parked: AtomicU64,
    commit_seconds: Buckets<14>,
    apply_seconds: Buckets<14>,
    batch_commands: Buckets<11>,
}

impl Default for Meter {
    fn default() -> Meter {
        let zero = || AtomicU64::new(0);
        Meter {
            sheds_places: AtomicBool::new(false),
            granted: zero(),
            replayed: zero(),
            refused: std::array::from_fn(|_| zero()),
            from_memory: zero(),
            unknown: zero(),
            paused: zero(),
            shed: zero(),
            forwarded: zero(),
            commands: zero(),
            entries: zero(),
            queued_places: zero(),
            queued_finishes: zero(),
            in_flight: zero(),
            parked: zero(),
            commit_seconds: Buckets::new(SECONDS),
            apply_seconds: Buckets::new(SECONDS),
            batch_commands: Buckets::new(COMMANDS),
        }
    }
}

impl Meter {
    fn queued(&self, lane: GateLane) -> &AtomicU64 {
        match lane {
            GateLane::Place => &self.queued_places,
            GateLane::Finish => &self.queued_finishes,
        }
    }

    /// Takes places in a lane's queue for so many, and says for how many there were any: placements
    /// can fill only their part of it, the others all that placements left.
    pub(crate) fn enter(&self, lane: GateLane, count: u64, limits: LaneLimits) -> u64 {
        let (all, kept) = (limits.all_max as u64, limits.kept_for_finishes as u64);
        let (max, is_open) = match lane {
            GateLane::Place => {
                (all.saturating_sub(kept), !self.sheds_places.load(Ordering::Relaxed))
            }
            GateLane::Finish => {
                (all.saturating_sub(self.queued_places.load(Ordering::Acquire)).max(kept), true)
            }
        };
        let entered = if is_open {
            let queued = self.queued(lane);
            let before = queued.fetch_add(count, Ordering::AcqRel);
            let entered = count.min(max.saturating_sub(before));
            queued.fetch_sub(count - entered, Ordering::AcqRel);
            entered
        } else {
            0
        };
        self.shed.fetch_add(count - entered, Ordering::Relaxed);
        entered
    }

    /// Sheds new placements from now on, or takes them again.
    pub(crate) fn shed_places(&self, sheds: bool) {
        self.sheds_places.store(sheds, Ordering::Relaxed);
    }

    /// Gives places in a lane's queue back.
    pub(crate) fn leave(&self, lane: GateLane, count: u64) {
        self.queued(lane).fetch_sub(count, Ordering::AcqRel);
    }

    /// Counts a question that was not answered.
    pub(crate) fn gave_up(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Unknown => self.unknown.fetch_add(1, Ordering::Relaxed),
            Outcome::Paused(_) => self.paused.fetch_add(1, Ordering::Relaxed),
            Outcome::Overloaded | Outcome::Late => self.shed.fetch_add(1, Ordering::Relaxed),
            Outcome::Answered(_)
            | Outcome::Found(_)
            | Outcome::InFlight
            | Outcome::Elsewhere { .. }
            | Outcome::NotServing(_) => 0,
        };
    }

    /// Counts an answer that applied state or an entry gave.
    pub(crate) fn answered(&self, answer: &Answer, from_memory: bool) {
        if from_memory {
            self.from_memory.fetch_add(1, Ordering::Relaxed);
        }
        match answer {
            Answer::Refused(refusal) => {
                self.refused[refusal_kind(refusal)].fetch_add(1, Ordering::Relaxed);
            }
            Answer::Hold { replayed: true, .. }
            | Answer::Item { replayed: true, .. }
            | Answer::Voided { replayed: true } => {
                self.replayed.fetch_add(1, Ordering::Relaxed);
            }
            Answer::Placed(_) => {
                self.granted.fetch_add(1, Ordering::Relaxed);
            }
            Answer::Hold { .. }
            | Answer::Item { .. }
            | Answer::Retired { .. }
            | Answer::Voided { .. }
            | Answer::Advanced { .. }
            | Answer::BucketOpen
            | Answer::Sent { .. }
            | Answer::Accepted { .. }
            | Answer::Settled
            | Answer::Copy(_)
            | Answer::Noted
            | Answer::Moved { .. } => {}
        }
    }

    pub(crate) fn forwarded(&self, questions: usize) {
        self.forwarded.fetch_add(questions as u64, Ordering::Relaxed);
    }

    pub(crate) fn proposed(&self, commands: u64) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(commands, Ordering::Relaxed);
        self.batch_commands.record(commands as f64);
    }

    pub(crate) fn committed(&self, took: Duration) {
        self.commit_seconds.record(took.as_secs_f64());
    }

    pub(crate) fn applied(&self, took: Duration) {
        self.apply_seconds.record(took.as_secs_f64());
    }

    pub(crate) fn depth(&self, in_flight: usize, parked: usize) {
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
        self.parked.store(parked as u64, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let refused = REFUSALS.iter().zip(&self.refused);
        Traffic {
            granted: of(&self.granted),
            replayed: of(&self.replayed),
            refused: refused.map(|(word, count)| ((*word).to_owned(), of(count))).collect(),
            from_memory: of(&self.from_memory),
            unknown: of(&self.unknown),
            paused: of(&self.paused),
            shed: of(&self.shed),
            forwarded: of(&self.forwarded),
            commands: of(&self.commands),
            entries: of(&self.entries),
            queued: of(&self.queued_places) + of(&self.queued_finishes),
            in_flight: of(&self.in_flight),
            parked: of(&self.parked),
            commit_seconds: self.commit_seconds.snapshot(),
            apply_seconds: self.apply_seconds.snapshot(),
            batch_commands: self.batch_commands.snapshot(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LaneLimits = LaneLimits { all_max: 8, kept_for_finishes: 3 };

    fn entered(meter: &Meter, lane: GateLane) -> u64 {
        (0..20).map(|_| meter.enter(lane, 1, LIMITS)).sum()
    }

    #[test]
    fn placements_can_never_fill_the_places_kept_for_finishes() {
        let meter = Meter::default();
        assert_eq!(entered(&meter, GateLane::Place), 5);
        assert_eq!(entered(&meter, GateLane::Finish), 3);
        meter.leave(GateLane::Place, 1);
        assert_eq!(entered(&meter, GateLane::Place), 1, "each lane gives back its own");
        meter.leave(GateLane::Place, 3);
        assert_eq!(meter.enter(GateLane::Place, 20, LIMITS), 3, "of many at once, as many as fit");
        assert_eq!(entered(&meter, GateLane::Place), 0);
    }

    #[test]
    fn a_full_disk_sheds_placements_and_nothing_else() {
        let meter = Meter::default();
        meter.shed_places(true);
        assert_eq!(entered(&meter, GateLane::Place), 0);
        assert_eq!(entered(&meter, GateLane::Finish), 8);
        meter.shed_places(false);
        assert_eq!(entered(&meter, GateLane::Place), 5);
        assert_eq!(meter.traffic().shed, 20 + 12 + 15);
    }
}
