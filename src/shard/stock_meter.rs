//! Counts of what moved between buckets on this node, and how fast its buckets sell.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::status::StockTraffic;
use crate::ledger::BucketRef;
use crate::runtime::Instant;

/// A rate is measured over at least so long.
const RATE_OVER: Duration = Duration::from_millis(100);
/// A bucket that was not looked at for so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
struct Rate {
    given: u64,
    at: Instant,
    per_second: u64,
}

/// One node's meter of transfers.
#[derive(Debug, Default)]
pub(crate) struct StockMeter {
    sends: AtomicU64,
    units_sent: AtomicU64,
    accepts: AtomicU64,
    units_accepted: AtomicU64,
    pulls_empty: AtomicU64,
    collects: AtomicU64,
    verdicts: AtomicU64,
    waited: AtomicU64,
    waited_in_vain: AtomicU64,
    rates: Mutex<BTreeMap<BucketRef, Rate>>,
}

fn add(count: &AtomicU64, units: u64) {
    count.fetch_add(units, Ordering::Relaxed);
}

impl StockMeter {
    /// Counts a send that is applied.
    pub(crate) fn sent(&self, units: u64) {
        add(&self.sends, 1);
        add(&self.units_sent, units);
    }

    /// Counts an accept that is applied.
    pub(crate) fn accepted(&self, units: u64) {
        add(&self.accepts, 1);
        add(&self.units_accepted, units);
    }

    /// Counts a pull of which no donor gave anything.
    pub(crate) fn pulled_nothing(&self) {
        add(&self.pulls_empty, 1);
    }

    /// Counts a double collect.
    pub(crate) fn collected(&self, sold_out: bool) {
        add(&self.collects, 1);
        add(&self.verdicts, u64::from(sold_out));
    }

    /// Counts a request that waited for stock.
    pub(crate) fn waited(&self, in_vain: bool) {
        add(&self.waited, 1);
        add(&self.waited_in_vain, u64::from(in_vain));
    }

    /// Takes note of what a bucket has given so far (held and sold), for its rate of sale.
    pub(crate) fn note_given(&self, bucket: BucketRef, given: u64, now: Instant) {
        let mut rates = self.rates.lock();
        let rate = rates.entry(bucket).or_insert(Rate { given, at: now, per_second: 0 });
        if now <= rate.at || now - rate.at < RATE_OVER {
            return;
        }
        let micros = u64::try_from((now - rate.at).as_micros()).unwrap_or(u64::MAX).max(1);
        let gave = u128::from(given.saturating_sub(rate.given)) * 1_000_000;
        let fresh = u64::try_from(gave / u128::from(micros)).unwrap_or(u64::MAX);
        // Half of what it was: a rush shows at once, and is not forgotten at once.
        let per_second = fresh.max(fresh / 2 + rate.per_second / 2);
        *rate = Rate { given, at: now, per_second };
        rates.retain(|_, rate| now <= rate.at || now - rate.at < FORGET_AFTER);
    }

    /// Returns the units that a bucket sells in a second, lately.
    pub(crate) fn per_second(&self, bucket: BucketRef) -> u64 {
        self.rates.lock().get(&bucket).map_or(0, |rate| rate.per_second)
    }

    /// Returns the counts so far.
    pub(crate) fn traffic(&self) -> StockTraffic {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StockTraffic {
            sends: of(&self.sends),
            units_sent: of(&self.units_sent),
            accepts: of(&self.accepts),
            units_accepted: of(&self.units_accepted),
            pulls_empty: of(&self.pulls_empty),
            collects: of(&self.collects),
            sold_out_verdicts: of(&self.verdicts),
            waited: of(&self.waited),
            waited_in_vain: of(&self.waited_in_vain),
            ..StockTraffic::default()
        }
    }
}
