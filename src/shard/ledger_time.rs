//! The stamp of an entry: ledger time as the leader proposes it.
//!
//! A leadership begins with the last applied ledger time plus the monotonic time since that stamp was
//! applied here. From then on it goes by its own stamps and by when it made them, not by when they
//! were applied: an entry that follows the one before as soon as that commits would otherwise lose
//! the time of every commit, and time would all but stand still under load. It is slewed towards
//! the wall clock by at most 1 %. So no jump of one clock expires everybody's holds or freezes
//! expiry. The wall clock is followed at once only when there is no monotonic base (nothing was
//! stamped since the start, as after a stop of the whole cluster), and only when a majority of the
//! members' clocks agrees.

use std::time::Duration;

use crate::ledger::{LeaderId, UnixMs};
use crate::runtime::Instant;

/// Time is slewed by one part in so many.
const SLEW_PART: u64 = 100;

/// A moment of ledger time and when that was here.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    /// Microseconds: what is left of a millisecond adds up.
    us: u64,
    at: Instant,
    /// Whether it came from entries or from agreed clocks, and not from where time stood still.
    is_founded: bool,
}

/// Proposes stamps for one leadership after another.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StampSource {
    leader: Option<LeaderId>,
    anchor: Option<Anchor>,
    last: UnixMs,
}

impl StampSource {
    /// Proposes the stamp of an entry of `leader`.
    ///
    /// `applied` is applied ledger time, `stamped` the stamp applied last and when that was here,
    /// `wall` the wall clock if a majority of the members' clocks agrees with it.
    pub(crate) fn stamp(
        &mut self,
        leader: LeaderId,
        now: Instant,
        applied: UnixMs,
        stamped: Option<(UnixMs, Instant)>,
        wall: Option<UnixMs>,
    ) -> UnixMs {
        if self.leader != Some(leader) {
            self.leader = Some(leader);
            let base = |(base, at)| Anchor { us: us(base), at, is_founded: true };
            self.anchor = stamped.map(base);
        }
        let anchor = match self.anchor {
            Some(anchor) if anchor.is_founded => slewed(anchor, now, wall),
            Some(anchor) => found(slewed(anchor, now, None), wall),
            None => found(Anchor { us: us(applied), at: now, is_founded: false }, wall),
        };
        // Two entries may be in flight: the second is never stamped before the first.
        self.last = UnixMs((anchor.us / 1_000).max(applied.0).max(self.last.0));
        self.anchor = Some(Anchor { us: anchor.us.max(us(self.last)), ..anchor });
        self.last
    }
}

fn us(ms: UnixMs) -> u64 {
    ms.0.saturating_mul(1_000)
}

/// Follows agreed clocks at once, never back.
fn found(anchor: Anchor, wall: Option<UnixMs>) -> Anchor {
    match wall {
        Some(wall) => Anchor { us: anchor.us.max(us(wall)), is_founded: true, ..anchor },
        None => anchor,
    }
}

fn slewed(anchor: Anchor, now: Instant, wall: Option<UnixMs>) -> Anchor {
    let since = if now > anchor.at { now - anchor.at } else { Duration::ZERO };
    let since = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    let plain = anchor.us.saturating_add(since);
    let slack = since / SLEW_PART;
    let us = match wall {
        None => plain,
        Some(wall) => us(wall).clamp(plain.saturating_sub(slack), plain.saturating_add(slack)),
    };
    Anchor { us, at: if now > anchor.at { now } else { anchor.at }, ..anchor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::NodeId;
    use crate::raft::trial::run;
    use crate::runtime;

    const OWN: LeaderId = LeaderId { term: 3, node: NodeId(1) };
    const NEXT: LeaderId = LeaderId { term: 4, node: NodeId(1) };

    fn at(ms: u64) -> UnixMs {
        UnixMs(1_000_000 + ms)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_wild_wall_clock_moves_ledger_time_by_at_most_one_percent() {
        run(async {
            let begin = runtime::now();
            for (wall, after) in [
                (Some(UnixMs(u64::MAX)), at(10_100)),
                (Some(UnixMs(0)), at(9_900)),
                (None, at(10_000)),
                (Some(at(10_007)), at(10_007)),
            ] {
                let base = Some((at(0), begin));
                let mut source = StampSource::default();
                let stamp = source.stamp(OWN, begin + ms(10_000), at(0), base, wall);
                assert_eq!(stamp, after, "{wall:?}");
            }
        });
    }

    #[test]
    fn a_jump_late_in_a_long_leadership_is_slewed_from_the_last_stamp_on() {
        run(async {
            let begin = runtime::now();
            let mut source = StampSource::default();
            let base = Some((at(0), begin));
            let hour = 3_600_000;
            source.stamp(OWN, begin + ms(hour), at(0), base, Some(at(hour)));
            let wild = Some(at(9 * hour));
            let next = source.stamp(OWN, begin + ms(hour + 1_000), at(hour), base, wild);
            assert_eq!(next, at(hour + 1_010));
        });
    }

    #[test]
    fn ledger_time_does_not_lose_the_time_of_the_commits() {
        run(async {
            let begin = runtime::now();
            let mut source = StampSource::default();
            let (mut applied, mut stamped) = (at(0), Some((at(0), begin)));
            for entry in 0..1_000 {
                // Each entry is proposed in the moment in which the one before is applied.
                let now = begin + Duration::from_micros(2_500 * entry);
                let stamp = source.stamp(OWN, now, applied, stamped, None);
                let applied_at = now + Duration::from_micros(2_500);
                (applied, stamped) = (stamp, Some((stamp, applied_at)));
            }
            assert_eq!(applied, at(2_497));
        });
    }

    #[test]
    fn stamps_never_go_back() {
        run(async {
            let begin = runtime::now();
            let mut source = StampSource::default();
            let first = source.stamp(OWN, begin + ms(50), at(0), Some((at(0), begin)), None);
            assert_eq!(first, at(50));
            // A new leadership whose base is older, a clock that goes back, an applied time ahead.
            let second = source.stamp(NEXT, begin + ms(51), at(0), None, Some(UnixMs(5)));
            assert_eq!(second, first);
            let third = source.stamp(NEXT, begin + ms(49), at(80), None, None);
            assert_eq!(third, at(80));
        });
    }

    #[test]
    fn without_a_base_time_follows_the_wall_clock_only_once_a_majority_agrees() {
        run(async {
            let begin = runtime::now();
            let mut source = StampSource::default();
            assert_eq!(source.stamp(OWN, begin, at(0), None, None), at(0));
            let alone = source.stamp(OWN, begin + ms(10), at(0), Some((at(0), begin)), None);
            assert_eq!(alone, at(10), "it runs on from where it stood");
            let agreed = Some(at(7_200_000));
            let stamp = source.stamp(OWN, begin + ms(20), at(10), Some((at(10), begin)), agreed);
            assert_eq!(stamp, at(7_200_000), "the whole cluster had stopped for two hours");
            let wild = Some(at(9_999_999));
            let stamp = source.stamp(OWN, begin + ms(1_020), stamp, None, wild);
            assert_eq!(stamp, at(7_201_010), "and from then on it is slewed");
        });
    }
}
