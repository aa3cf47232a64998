//! The stamp of an entry: ledger time as the leader proposes it.
//!
//! The stamp is the last applied ledger time plus the monotonic time since that stamp was applied
//! here, slewed towards the wall clock by at most 1 %. So no jump of one clock expires everybody's
//! holds or freezes expiry. The wall clock is followed at once only when there is no monotonic base
//! (nothing was applied here since the start), or time is behind after a stop of the whole cluster,
//! and only when a majority of the members' clocks agrees.

use std::time::Duration;

use crate::ledger::UnixMs;
use crate::runtime::Instant;

/// Time is slewed by one part in so many.
const SLEW_PART: u64 = 100;

/// Proposes stamps for one leadership after another.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StampSource {
    last: UnixMs,
}

impl StampSource {
    /// Proposes the stamp of an entry.
    ///
    /// `applied` is applied ledger time, `stamped` the stamp applied last and when that was here,
    /// `wall` the wall clock if a majority of the members' clocks agrees with it.
    pub(crate) fn stamp(
        &mut self,
        now: Instant,
        applied: UnixMs,
        stamped: Option<(UnixMs, Instant)>,
        wall: Option<UnixMs>,
    ) -> UnixMs {
        let proposed = match stamped {
            None => UnixMs(applied.0.max(wall.unwrap_or(applied).0)),
            Some((base, at)) => {
                slewed(base, if now > at { now - at } else { Duration::ZERO }, wall)
            }
        };
        // Two entries may be in flight: the second is never stamped before the first.
        self.last = UnixMs(proposed.0.max(applied.0).max(self.last.0));
        self.last
    }
}

fn slewed(base: UnixMs, since: Duration, wall: Option<UnixMs>) -> UnixMs {
    let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let plain = base.0.saturating_add(since);
    let slack = since / SLEW_PART;
    match wall {
        None => UnixMs(plain),
        Some(wall) => {
            UnixMs(wall.0.clamp(plain.saturating_sub(slack), plain.saturating_add(slack)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> UnixMs {
        UnixMs(1_000_000 + ms)
    }

    #[test]
    fn a_wild_wall_clock_moves_ledger_time_by_at_most_one_percent() {
        let passed = Duration::from_secs(10);
        assert_eq!(slewed(at(0), passed, Some(UnixMs(u64::MAX))), at(10_100));
        assert_eq!(slewed(at(0), passed, Some(UnixMs(0))), at(9_900));
        assert_eq!(slewed(at(0), passed, None), at(10_000));
        assert_eq!(slewed(at(0), passed, Some(at(10_007))), at(10_007));
    }
}
