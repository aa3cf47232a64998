//! How much stock moves, and who gives: the policy of transfers, separate from their safety.
//!
//! Pure and replaceable: a bad policy can be slow, it cannot be wrong, since the ledgers check
//! every transfer. It sizes a pull by the rate of sale and the time until a bucket runs out,
//! refills ahead of need at low water, and at the tail lets the last units gather where the
//! best-ranked buyer waits. The rank is fixed while a thirst lasts: its oldest waiter, then the
//! bucket's number. So two buckets never swap a unit for ever.

use crate::shard::{Asked, Donor, StockPolicy, Supply};

/// A refill covers so many ms of sale.
const AHEAD_MS: u64 = 2_000;
/// A bucket that sells out within so many ms is at low water.
const LOW_WATER_MS: u64 = 500;
/// A donor keeps at least one part in so many of what it has when it only helps another ahead of
/// need.
const KEEPS_OF: u64 = 2;

/// The policy that ships.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOut;

/// Units sold in `ms` at a rate of so many a second, rounded up.
fn sold_within(per_second: u64, ms: u64) -> u64 {
    per_second.saturating_mul(ms).div_ceil(1_000)
}

impl StockPolicy for RunOut {
    fn wants(&self, own: &Supply) -> u64 {
        let stock = sold_within(own.per_second, AHEAD_MS);
        if own.waiting > 0 {
            // What waits, and stock for what will come meanwhile.
            return own.waiting.saturating_add(stock).saturating_sub(own.free).max(1);
        }
        let low = sold_within(own.per_second, LOW_WATER_MS);
        if own.per_second > 0 && own.free <= low { stock.saturating_sub(own.free) } else { 0 }
    }

    fn gives(&self, donor: &Donor, asked: &Asked) -> u64 {
        let most = donor.lendable.min(donor.room);
        if asked.waiting == 0 {
            // Ahead of need: never what own buyers will want soon, and never more than what
            // leaves the donor with as much as the other would have.
            let own = sold_within(donor.per_second, AHEAD_MS);
            let spare = donor.lendable.saturating_sub(own.max(donor.waiting));
            let even = donor.lendable.saturating_sub(asked.free) / KEEPS_OF;
            return asked.wanted.min(spare).min(even).min(most);
        }
        if donor.waiting == 0 {
            // Buyers wait there and nobody waits here. Beyond what waits, an even share.
            let even = donor.lendable.saturating_sub(asked.free) / KEEPS_OF;
            return asked.wanted.min(even.max(asked.waiting)).min(most);
        }
        if donor.servable > 0 {
            // Own waiters whom the own stock can serve keep their part.
            return asked.waiting.min(donor.lendable.saturating_sub(donor.servable)).min(most);
        }
        // Own waiters that the own stock cannot serve: everything goes to the better rank.
        if asked.rank < donor.rank { asked.waiting.min(most) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{BucketId, UnixMs};
    use crate::shard::Rank;

    fn rank(since: u64, bucket: u16) -> Option<Rank> {
        Some(Rank { since: UnixMs(since), bucket: BucketId(bucket) })
    }

    fn donor(lendable: u64) -> Donor {
        let rank = rank(50, 5);
        Donor { lendable, room: 1_000, waiting: 0, servable: 0, per_second: 0, rank }
    }

    fn asked(wanted: u64, waiting: u64) -> Asked {
        Asked { wanted, waiting, free: 0, rank: rank(10, 1) }
    }

    #[test]
    fn bucket_at_low_water_asks_for_what_it_will_sell_and_a_quiet_one_for_nothing() {
        let quiet = Supply { free: 3, waiting: 0, per_second: 0 };
        assert_eq!(RunOut.wants(&quiet), 0);
        let busy = Supply { free: 400, waiting: 0, per_second: 1_000 };
        assert_eq!(RunOut.wants(&busy), 1_600, "two seconds of sale");
        let full = Supply { free: 501, waiting: 0, per_second: 1_000 };
        assert_eq!(RunOut.wants(&full), 0, "above low water");
    }

    #[test]
    fn bucket_with_waiters_asks_for_them_at_least() {
        let dry = Supply { free: 0, waiting: 3, per_second: 0 };
        assert_eq!(RunOut.wants(&dry), 3);
        let short = Supply { free: 2, waiting: 3, per_second: 0 };
        assert_eq!(RunOut.wants(&short), 1);
        let selling = Supply { free: 0, waiting: 3, per_second: 10 };
        assert_eq!(RunOut.wants(&selling), 23);
    }

    #[test]
    fn donor_without_waiters_gives_all_that_waits_elsewhere() {
        assert_eq!(RunOut.gives(&donor(3), &asked(3, 3)), 3);
        assert_eq!(RunOut.gives(&donor(1), &asked(9, 9)), 1, "the last unit goes where it waits");
    }

    #[test]
    fn what_is_asked_ahead_of_need_evens_out_and_goes_no_further() {
        assert_eq!(RunOut.gives(&donor(100), &asked(500, 0)), 50);
        let swapped = Asked { free: 50, ..asked(500, 0) };
        assert_eq!(RunOut.gives(&donor(50), &swapped), 0, "no ping-pong between equals");
        let busy = Donor { per_second: 100, ..donor(100) };
        assert_eq!(RunOut.gives(&busy, &asked(500, 0)), 0, "its own buyers will want it");
    }

    #[test]
    fn own_waiters_who_can_be_served_keep_their_part() {
        let served = Donor { waiting: 2, servable: 2, ..donor(3) };
        assert_eq!(RunOut.gives(&served, &asked(3, 3)), 1);
    }

    /// Trap "tail": donors that give all swap one unit for ever; donors that serve their own
    /// waiters first, always, can serve nobody.
    #[test]
    fn unservable_waiters_give_everything_to_a_better_rank_and_nothing_to_a_worse_one() {
        let stuck = Donor { waiting: 2, servable: 0, ..donor(1) };
        assert_eq!(RunOut.gives(&stuck, &asked(1, 1)), 1);
        let worse = Asked { rank: rank(60, 1), ..asked(1, 1) };
        assert_eq!(RunOut.gives(&stuck, &worse), 0);
        let same_moment = Asked { rank: rank(50, 4), ..asked(1, 1) };
        assert_eq!(RunOut.gives(&stuck, &same_moment), 1, "then the number decides");
    }

    #[test]
    fn nothing_goes_beyond_the_room_in_transit() {
        let narrow = Donor { room: 2, ..donor(100) };
        assert_eq!(RunOut.gives(&narrow, &asked(50, 50)), 2);
    }
}
