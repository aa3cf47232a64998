//! In which order a slot's live holds fall due.
//!
//! Most holds of an item live equally long, so their deadlines are in the order of their
//! sequences: of those only a mark is kept beside the record, which tells its deadline itself. The
//! others are listed. Invariants: each live hold is marked or listed, never both; the deadlines of
//! marked holds do not decrease with the sequence; `front` is the first marked one, `last` has the
//! greatest deadline and sequence that was ever marked since `front` was there.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::segment::{Segment, segment_of};
use super::slot::Slot;

/// A hold by deadline and sequence.
pub(super) type Moment = (u64, u64);

/// The order of a slot.
#[derive(Debug, Default)]
pub(super) struct Lapse {
    front: Option<Moment>,
    last: Moment,
    listed: BTreeSet<Moment>,
}

/// How far a walk through the order has come. The slot must not change meanwhile.
#[derive(Debug)]
pub(super) struct Stroll {
    marked: Option<Moment>,
    listed: Option<Moment>,
}

impl Slot {
    /// The live hold whose deadline comes first.
    pub(super) fn first_due(&self) -> Option<Moment> {
        let Lapse { front, listed, .. } = &self.lapse;
        front.iter().chain(listed.first()).min().copied()
    }

    /// A walk from the first on.
    pub(super) fn stroll(&self) -> Stroll {
        Stroll { marked: self.lapse.front, listed: self.lapse.listed.first().copied() }
    }

    /// Takes a step: returns where the walk was, and goes on.
    pub(super) fn step(&self, stroll: &mut Stroll) -> Option<Moment> {
        let next = stroll.marked.into_iter().chain(stroll.listed).min()?;
        if stroll.marked == Some(next) {
            stroll.marked = self.marked_after(next.1);
        } else {
            let after = (Bound::Excluded(next), Bound::Unbounded);
            stroll.listed = self.lapse.listed.range(after).next().copied();
        }
        Some(next)
    }

    /// Takes a live hold into the order. Its record and segment are there.
    pub(super) fn expect_lapse(&mut self, moment: Moment) {
        let Lapse { front, last, listed } = &mut self.lapse;
        let in_order = front.is_none() || (moment.0 >= last.0 && moment.1 > last.1);
        if !in_order {
            listed.insert(moment);
            return;
        }
        if front.is_none() {
            *front = Some(moment);
        }
        *last = moment;
        if let Some(segment) = self.segment_mut(segment_of(moment.1)) {
            segment.put_in_order(moment.1);
        }
    }

    /// Takes a hold out of the order. Its segment is there.
    pub(super) fn drop_lapse(&mut self, moment: Moment) {
        let segment = self.segment_mut(segment_of(moment.1));
        let Some(segment) = segment.filter(|segment| segment.is_in_order(moment.1)) else {
            self.lapse.listed.remove(&moment);
            return;
        };
        segment.take_from_order(moment.1);
        if self.lapse.front.is_some_and(|front| front.1 == moment.1) {
            self.lapse.front = self.marked_after(moment.1);
        }
    }

    /// The first marked hold after a sequence.
    fn marked_after(&self, sequence: u64) -> Option<Moment> {
        let first = self.find_segment(segment_of(sequence)).unwrap_or_else(|place| place);
        let mut segments = self.segments.iter().skip(first);
        let next = segments.find_map(|segment| Segment::next_in_order(segment, sequence))?;
        Some((self.gist(next)?.expires_at, next))
    }
}
