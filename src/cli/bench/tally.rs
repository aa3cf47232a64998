//! What one connection, or all of them, were answered.
//!
//! Promises: what counts as measured lies within the measured time; what was acknowledged counts
//! whenever it was, since the audit knows no warm-up.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The most hold ids that are kept for the check after the run, over all connections.
pub(super) const IDS_MAX: usize = 200_000;

/// Counts and times.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// Requests measured.
    pub(super) requests: u64,
    /// Decisions measured: an answer for or against one operation.
    pub(super) decisions: u64,
    /// Latencies measured, a request, in µs.
    pub(super) latency_us: Histogram<u64>,
    /// Refusals measured, by reason.
    pub(super) refused: BTreeMap<String, u64>,
    /// Grants measured.
    pub(super) granted: u64,
    /// Unknown outcomes, ever.
    pub(super) unknown: Vec<KeyRange>,
    /// Holds acknowledged, ever.
    pub(super) placed: u64,
    /// Sales acknowledged, ever.
    pub(super) confirmed: u64,
    /// Releases acknowledged, ever.
    pub(super) released: u64,
    /// Changes of holds whose outcome is unknown, ever.
    pub(super) unknown_changes: u64,
    /// Ids of acknowledged holds that nothing has ended, up to a bound.
    pub(super) ids: Vec<String>,
    ids_max: usize,
    /// Answers that no right server gives.
    pub(super) faults: Vec<String>,
}

/// Keys `first` … `first + count − 1` of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyRange {
    pub(super) first: u64,
    pub(super) count: u64,
}

/// The most faults that are told.
const FAULTS_MAX: usize = 20;

impl Tally {
    /// Makes an empty tally that keeps at most `ids_max` ids.
    pub(super) fn new(ids_max: usize) -> Tally {
        Tally {
            requests: 0,
            decisions: 0,
            latency_us: Histogram::new(3).expect("3 significant figures are allowed"),
            refused: BTreeMap::new(),
            granted: 0,
            unknown: Vec::new(),
            placed: 0,
            confirmed: 0,
            released: 0,
            unknown_changes: 0,
            ids: Vec::new(),
            ids_max,
            faults: Vec::new(),
        }
    }

    /// Notes one answered request of `decisions` decisions.
    pub(super) fn measured(&mut self, took: Duration, decisions: u64) {
        record(&mut self.latency_us, took);
        self.requests += 1;
        self.decisions += decisions;
    }

    /// Notes a refusal.
    pub(super) fn refused(&mut self, reason: &str, times: u64) {
        match self.refused.get_mut(reason) {
            Some(count) => *count += times,
            None => {
                self.refused.insert(reason.to_owned(), times);
            }
        }
    }

    /// Keeps the id of an acknowledged hold, while there is room.
    pub(super) fn keep(&mut self, id: &str) {
        if self.ids.len() < self.ids_max {
            self.ids.push(id.to_owned());
        }
    }

    /// Notes what no right server answers.
    pub(super) fn fault(&mut self, words: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(words);
        }
    }

    /// How many keys have an unknown outcome.
    pub(super) fn unknown_keys(&self) -> u64 {
        self.unknown.iter().map(|range| range.count).sum()
    }

    /// Adds another connection's tally.
    pub(super) fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.decisions += other.decisions;
        self.latency_us.add(&other.latency_us).expect("both have the same figures and grow");
        for (reason, times) in &other.refused {
            self.refused(reason, *times);
        }
        self.granted += other.granted;
        self.unknown.extend(other.unknown);
        self.placed += other.placed;
        self.confirmed += other.confirmed;
        self.released += other.released;
        self.unknown_changes += other.unknown_changes;
        let room = self.ids_max.saturating_sub(self.ids.len());
        self.ids.extend(other.ids.into_iter().take(room));
        for fault in other.faults {
            self.fault(fault);
        }
    }

    /// Latency at a quantile.
    pub(super) fn latency(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.latency_us.value_at_quantile(quantile))
    }

    /// The latencies for programs, in ms.
    pub(super) fn latency_json(&self) -> Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "p50": ms(self.latency(0.5)),
            "p90": ms(self.latency(0.9)),
            "p99": ms(self.latency(0.99)),
            "p99_9": ms(self.latency(0.999)),
            "max": ms(Duration::from_micros(self.latency_us.max())),
        })
    }
}

/// The longest time that a histogram tells apart, in µs: an hour.
const TIME_US_MAX: u64 = 3_600_000_000;

/// Records a time in µs. (`saturating_record` would not let the histogram grow.)
pub(in crate::cli) fn record(histogram: &mut Histogram<u64>, took: Duration) {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(1, TIME_US_MAX);
    histogram.record(us).expect("a histogram made by `new` grows to an hour");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_run_are_told_within_a_thousandth() {
        let mut tally = Tally::new(0);
        for us in 1..=10_000 {
            tally.measured(Duration::from_micros(us), 1);
        }
        for (quantile, expected) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0)] {
            let found = tally.latency(quantile).as_secs_f64() * 1e6;
            assert!((found / expected - 1.0).abs() < 0.001, "{quantile}: {found} µs");
        }
        assert_eq!((tally.requests, tally.decisions), (10_000, 10_000));
        tally.measured(Duration::MAX, 1);
        assert!(tally.latency_us.max() >= TIME_US_MAX);
    }

    #[test]
    fn adding_tallies_keeps_every_count_and_the_bound_of_ids() {
        let mut one = Tally::new(3);
        let mut two = Tally::new(3);
        for (tally, us) in [(&mut one, 10), (&mut two, 1_000)] {
            tally.measured(Duration::from_micros(us), 100);
            tally.refused("sold-out", 2);
            tally.unknown.push(KeyRange { first: 5, count: 100 });
            tally.keep("hld_a");
            tally.keep("hld_b");
            tally.placed += 98;
        }
        one.add(two);
        assert_eq!((one.requests, one.decisions, one.placed), (2, 200, 196));
        assert_eq!(one.refused["sold-out"], 4);
        assert_eq!(one.unknown_keys(), 200);
        assert_eq!(one.ids.len(), 3);
        assert_eq!(one.latency_us.len(), 2);
    }
}
