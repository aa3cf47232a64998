//! The judge of sold-out: two readings of every bucket, one after the other.
//!
//! An item is sold out when at one moment nothing of it was free, in any bucket or on the way. No
//! single reading of several buckets shows such a moment: a unit can walk behind the reader. Two
//! readings do, when in both every bucket has nothing free and nothing under way, and no bucket was
//! *credited* in between: between the end of the first and the beginning of the second each bucket
//! was at zero the whole time, since whatever raises what a bucket could give counts as a credit,
//! in its ledger. Comparing how often a bucket sent or received proves nothing (`escrow.md`).
//!
//! Pure: it decides from what it is given. Whoever gathers the readings promises that the second
//! began after the last answer of the first, and that each answer left a leadership that was fresh
//! after it was read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ledger::BucketId;
use crate::planted::{Fault, planted};

/// One bucket's figures at one applied entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// Units that it could give: available and due. For a region, what it could lend to it.
    pub(crate) free: u64,
    /// Units that may come back: of live holds, and those set aside for a lower total.
    pub(crate) held: u64,
    /// Whether it has sent units that it does not know to be accepted.
    pub(crate) unsettled: bool,
    /// Units that ever raised what it could give.
    pub(crate) credits: u64,
}

/// One reading of every bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Round {
    /// The version of the layout at home.
    pub(crate) version: u64,
    /// The buckets that answered.
    pub(crate) buckets: BTreeMap<BucketId, Reading>,
}

/// What two rounds say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Finding {
    /// At some moment between the rounds nothing was free.
    SoldOut {
        /// Whether something was held that may come back.
        may_return: bool,
    },
    /// Something is free, or was on its way.
    SomeLeft {
        /// Units seen free.
        free: u64,
    },
    /// Nothing can be said: a bucket did not answer, or something moved.
    Unclear,
}

/// Tells what a first round alone excludes: with something free or under way a second is idle.
pub(crate) fn after_first(round: &Round, buckets: &[BucketId]) -> Finding {
    let free = round.buckets.values().fold(0_u64, |sum, one| sum.saturating_add(one.free));
    let whole = buckets.iter().all(|bucket| round.buckets.contains_key(bucket));
    let still = round.buckets.values().all(|one| !one.unsettled);
    if free > 0 {
        Finding::SomeLeft { free }
    } else if whole && still && !buckets.is_empty() {
        let may_return = round.buckets.values().any(|one| one.held > 0);
        Finding::SoldOut { may_return }
    } else {
        Finding::Unclear
    }
}

/// Judges two rounds over the same buckets.
pub(crate) fn judge(first: &Round, second: &Round, buckets: &[BucketId]) -> Finding {
    let (one, two) = (after_first(first, buckets), after_first(second, buckets));
    let Finding::SoldOut { .. } = one else { return one };
    if planted(Fault::CollectOnce) {
        return one;
    }
    let Finding::SoldOut { may_return } = two else { return two };
    let same = |bucket: &BucketId| {
        let credits = |round: &Round| round.buckets.get(bucket).map(|one| one.credits);
        credits(first) == credits(second)
    };
    let same_layout = first.version == second.version
        && first.buckets.len() == second.buckets.len()
        && first.buckets.len() == buckets.len();
    if same_layout && buckets.iter().all(same) {
        Finding::SoldOut { may_return }
    } else {
        Finding::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRY: Reading = Reading { free: 0, held: 0, unsettled: false, credits: 7 };
    const BOTH: [BucketId; 2] = [BucketId(0), BucketId(1)];

    fn round(zero: Reading, one: Reading) -> Round {
        let buckets = BTreeMap::from([(BucketId(0), zero), (BucketId(1), one)]);
        Round { version: 3, buckets }
    }

    fn sold_out(may_return: bool) -> Finding {
        Finding::SoldOut { may_return }
    }

    #[test]
    fn two_rounds_of_nothing_without_a_credit_between_are_sold_out() {
        let dry = round(DRY, DRY);
        assert_eq!(judge(&dry, &dry, &BOTH), sold_out(false));
        let held = round(DRY, Reading { held: 2, ..DRY });
        assert_eq!(judge(&held, &held, &BOTH), sold_out(true), "what is held may come back");
    }

    #[test]
    fn one_unit_free_in_either_round_is_not_sold_out() {
        let dry = round(DRY, DRY);
        let left = round(DRY, Reading { free: 1, ..DRY });
        assert_eq!(judge(&left, &dry, &BOTH), Finding::SomeLeft { free: 1 });
        assert_eq!(judge(&dry, &left, &BOTH), Finding::SomeLeft { free: 1 });
    }

    /// A unit walked from bucket 1 to bucket 0 behind the reader, and back before the second round:
    /// sent and accepted counters of a *pair* could be compared in vain, the credits cannot.
    #[test]
    fn a_unit_that_walked_between_the_rounds_is_seen_by_its_credit() {
        let first = round(DRY, DRY);
        let second = round(Reading { credits: 8, ..DRY }, DRY);
        assert_eq!(judge(&first, &second, &BOTH), Finding::Unclear);
    }

    #[test]
    fn one_round_of_zeros_with_a_unit_in_transit_behind_the_reader_is_not_sold_out() {
        let on_its_way = round(DRY, Reading { unsettled: true, ..DRY });
        let dry = round(DRY, DRY);
        assert_eq!(judge(&on_its_way, &dry, &BOTH), Finding::Unclear);
        assert_eq!(judge(&dry, &on_its_way, &BOTH), Finding::Unclear);
    }

    #[test]
    fn bucket_that_did_not_answer_leaves_it_unclear() {
        let dry = round(DRY, DRY);
        let mut half = dry.clone();
        half.buckets.remove(&BucketId(1));
        assert_eq!(judge(&half, &dry, &BOTH), Finding::Unclear);
        assert_eq!(judge(&dry, &half, &BOTH), Finding::Unclear);
        assert_eq!(judge(&half, &half, &BOTH), Finding::Unclear);
    }

    #[test]
    fn bucket_zero_left_out_is_never_sold_out() {
        let mut rest = round(DRY, DRY);
        rest.buckets.remove(&BucketId(0));
        assert_eq!(judge(&rest, &rest, &BOTH), Finding::Unclear);
    }

    #[test]
    fn layout_that_changed_between_the_rounds_leaves_it_unclear() {
        let (first, mut second) = (round(DRY, DRY), round(DRY, DRY));
        second.version = 4;
        assert_eq!(judge(&first, &second, &BOTH), Finding::Unclear);
        let mut more = round(DRY, DRY);
        more.buckets.insert(BucketId(2), DRY);
        assert_eq!(judge(&more, &more, &BOTH), Finding::Unclear, "a bucket of another layout");
    }

    #[test]
    fn no_bucket_at_all_proves_nothing() {
        assert_eq!(judge(&Round::default(), &Round::default(), &[]), Finding::Unclear);
    }

    #[test]
    fn hold_that_is_due_counts_as_free_and_so_is_not_sold_out() {
        // The ledger counts due units as free; a reading that left them out would say zero.
        let due = round(Reading { free: 1, held: 0, ..DRY }, DRY);
        assert_eq!(judge(&due, &due, &BOTH), Finding::SomeLeft { free: 1 });
    }
}
