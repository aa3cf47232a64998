//! When things happened in a run: how the last units went, and the grants in each tenth of a
//! second.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::runtime::{Instant, now};

/// How the last units went.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Units whose grant begins the last hundredth.
    pub(super) from: u64,
    /// Units that there are.
    pub(super) total: u64,
    pub(super) began: OnceLock<Instant>,
    pub(super) ended: OnceLock<Instant>,
}

impl Tail {
    /// The tail of so many units.
    pub(super) fn of(total: u64) -> Tail {
        Tail { from: total - total.div_ceil(100), total, ..Tail::default() }
    }

    /// Takes note of the grant of the `count`-th unit.
    pub(super) fn granted(&self, count: u64, at: Instant) {
        if count >= self.from {
            self.began.get_or_init(|| at);
        }
        if count >= self.total {
            self.ended.get_or_init(|| at);
        }
    }

    /// How long the last hundredth took; `None` while units are left.
    pub(super) fn took(&self) -> Option<Duration> {
        Some(*self.ended.get()? - *self.began.get()?)
    }
}

/// Length of a slot of a timeline.
pub(super) const SLOT: Duration = Duration::from_millis(100);
/// Slots that are shown before and behind a kill.
const SHOWN: (usize, usize) = (10, 20);
/// Slots of the second that begins with a kill.
const SECOND: usize = 10;

/// Grants in each tenth of a second of a run.
#[derive(Debug)]
pub(super) struct Timeline {
    began: Instant,
    slots: Vec<AtomicU64>,
}

impl Timeline {
    /// The timeline of a run of this length that begins now.
    pub(super) fn of(length: Duration) -> Timeline {
        let slots = length.as_millis() / SLOT.as_millis() + 1;
        let slots = usize::try_from(slots).unwrap_or(1).min(1 << 20);
        Timeline { began: now(), slots: (0..slots).map(|_| AtomicU64::new(0)).collect() }
    }

    fn slot(&self, at: Instant) -> usize {
        let since = if at > self.began { (at - self.began).as_millis() } else { 0 };
        usize::try_from(since / SLOT.as_millis()).unwrap_or(usize::MAX)
    }

    /// Takes note of grants.
    pub(super) fn granted(&self, units: u64, at: Instant) {
        if let Some(slot) = self.slots.get(self.slot(at)) {
            slot.fetch_add(units, Ordering::Relaxed);
        }
    }

    /// What became of the grants when a leader was killed, in a run whose measuring began at
    /// `measured_from`. `None` when the run did not last for a second from then on.
    pub(super) fn around(&self, measured_from: Instant, killed: Instant) -> Option<Around> {
        let counts: Vec<u64> = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed)).collect();
        around(&counts, self.slot(measured_from) + 1, self.slot(killed))
    }
}

/// Grants before and after a leader was killed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Around {
    /// Grants of each slot, a second before and two behind.
    pub(super) slots: Vec<u64>,
    /// Which of them is the one of the kill.
    pub(super) kill_at: usize,
    /// Grants a second before the kill.
    pub(super) before_per_s: f64,
    /// Grants in the second that begins with the slot of the kill.
    pub(super) second: u64,
}

impl Around {
    /// What was kept of the rate.
    pub(super) fn kept(&self) -> f64 {
        self.second as f64 / self.before_per_s.max(1e-9)
    }
}

fn around(counts: &[u64], from: usize, kill: usize) -> Option<Around> {
    let before = counts.get(from..kill).filter(|slots| !slots.is_empty())?;
    let per_second = 1.0 / SLOT.as_secs_f64();
    let before_per_s = before.iter().sum::<u64>() as f64 / before.len() as f64 * per_second;
    let second = counts.get(kill..kill + SECOND)?.iter().sum();
    let first = kill.saturating_sub(SHOWN.0);
    let last = (kill + SHOWN.1).min(counts.len());
    let slots = counts[first..last].to_vec();
    Some(Around { slots, kill_at: kill - first, before_per_s, second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_the_second_from_the_kill_on_against_the_time_before() {
        // 100 a slot, 20 slots of it warm-up; killed in slot 50, half the rate for 6 slots.
        let counts: Vec<u64> = (0..90)
            .map(|at| match at {
                0..20 => 7,
                50..56 => 50,
                _ => 100,
            })
            .collect();
        let seen = around(&counts, 20, 50).expect("there is enough of it");
        assert_eq!((seen.before_per_s, seen.second), (1_000.0, 700));
        assert_eq!((seen.slots.len(), seen.kill_at), (30, 10));
        assert_eq!(seen.slots[10], 50);
        assert_eq!(seen.kept(), 0.7);
        assert_eq!(around(&counts, 20, 85), None, "no whole second is left");
        assert_eq!(around(&counts, 50, 50), None, "nothing was measured before");
    }
}
