//! In which order a slot's live holds fall due.
//!
//! Most holds of an item live equally long, or one of a few lifetimes, so their deadlines are in
//! the order of their sequences, or fall into a few rows that are. Of a hold in a row only a mark
//! is kept beside the record, which tells its deadline itself; the others are listed. Invariants:
//! each live hold is in one row or listed; in a row deadlines do not decrease with the sequence;
//! `front` is its first hold, `last` has the greatest deadline and sequence that it has had since
//! it was empty.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::segment::{Segment, segment_of};
use super::slot::Slot;

/// Rows a slot: a hold that lives longer than the others spoils one for those after it.
pub(super) const ROWS: usize = 3;

/// A hold by deadline and sequence.
pub(super) type Moment = (u64, u64);

/// A row of holds that fall due in the order of their sequences.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    front: Option<Moment>,
    last: Moment,
}

/// The order of a slot.
#[derive(Debug, Default)]
pub(super) struct Lapse {
    rows: [Row; ROWS],
    listed: BTreeSet<Moment>,
}

impl Lapse {
    /// The row that a hold may join: the one that it follows most closely, or an empty one.
    fn row_for(&self, moment: Moment) -> Option<usize> {
        let joins = |row: &Row| moment.0 >= row.last.0 && moment.1 > row.last.1;
        let rows = self.rows.iter().enumerate();
        let follows = rows.clone().filter(|(_, row)| row.front.is_some() && joins(row));
        let closest = follows.max_by_key(|(_, row)| row.last).map(|(number, _)| number);
        closest.or_else(|| self.rows.iter().position(|row| row.front.is_none()))
    }
}

/// How far a walk through the order has come. The slot must not change meanwhile.
#[derive(Debug)]
pub(super) struct Stroll {
    rows: [Option<Moment>; ROWS],
    listed: Option<Moment>,
}

impl Slot {
    /// The live hold whose deadline comes first.
    pub(super) fn first_due(&self) -> Option<Moment> {
        let Lapse { rows, listed } = &self.lapse;
        rows.iter().filter_map(|row| row.front).chain(listed.first().copied()).min()
    }

    /// A walk from the first on.
    pub(super) fn stroll(&self) -> Stroll {
        let Lapse { rows, listed } = &self.lapse;
        Stroll { rows: rows.map(|row| row.front), listed: listed.first().copied() }
    }

    /// Takes a step: returns where the walk was, and goes on.
    pub(super) fn step(&self, stroll: &mut Stroll) -> Option<Moment> {
        let next = stroll.rows.iter().flatten().chain(&stroll.listed).min().copied()?;
        match stroll.rows.iter().position(|row| *row == Some(next)) {
            Some(row) => stroll.rows[row] = self.next_in_row(row, next.1),
            None => {
                let after = (Bound::Excluded(next), Bound::Unbounded);
                stroll.listed = self.lapse.listed.range(after).next().copied();
            }
        }
        Some(next)
    }

    /// Takes a live hold into the order. Its record and segment are there.
    pub(super) fn expect_lapse(&mut self, moment: Moment) {
        let Some(number) = self.lapse.row_for(moment) else {
            self.lapse.listed.insert(moment);
            return;
        };
        let row = &mut self.lapse.rows[number];
        row.front = row.front.or(Some(moment));
        row.last = moment;
        if let Some(segment) = self.segment_mut(segment_of(moment.1)) {
            segment.enter_row(number, moment.1);
        }
    }

    /// Takes a hold out of the order. Its segment is there.
    pub(super) fn drop_lapse(&mut self, moment: Moment) {
        let sequence = moment.1;
        let segment = self.segment_mut(segment_of(sequence));
        let row = segment.and_then(|segment| {
            let row = segment.row_of(sequence)?;
            segment.leave_row(row, sequence);
            Some(row)
        });
        let Some(row) = row else {
            self.lapse.listed.remove(&moment);
            return;
        };
        if self.lapse.rows[row].front.is_some_and(|front| front.1 == sequence) {
            self.lapse.rows[row].front = self.next_in_row(row, sequence);
        }
    }

    /// The first hold of a row after a sequence.
    fn next_in_row(&self, row: usize, sequence: u64) -> Option<Moment> {
        let first = self.find_segment(segment_of(sequence)).unwrap_or_else(|place| place);
        let mut segments = self.segments.iter().skip(first);
        let next = segments.find_map(|segment| Segment::next_in_row(segment, row, sequence))?;
        Some((self.gist(next)?.expires_at, next))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cut::Pages;
    use super::super::record::{Record, RuleSet, Standing};
    use super::*;

    /// Holds come with deadlines in order and out of it, are extended, end and are forgotten: the
    /// order is always that of a plain sorted set.
    #[test]
    fn holds_fall_due_by_deadline_and_sequence_whether_they_are_in_rows_or_listed() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let pages = Pages::new();
        let (mut slot, mut plain) = (Slot::default(), BTreeSet::new());
        let (mut listed_most, mut most) = (0, 0);
        let write = |expires_at: u64| {
            let rules = RuleSet { rules: (1, 1, 1, 1), limit: None };
            let mut record = Record::of("key", None, None, rules, Standing::Held);
            record.expires_at = expires_at;
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            bytes
        };
        for step in 0..6_000_u64 {
            // Phases in which holds come, and in which they go.
            let comes = random(10) < if step / 1_000 % 2 == 0 { 8 } else { 3 };
            if comes || plain.is_empty() {
                let sequence = slot.next;
                let odd = random(8) == 0;
                let at = 1_000 + step / 3 * 10 + if odd { random(900) } else { 500 };
                slot.segment_or_new(segment_of(sequence), pages.plan());
                slot.append(sequence, &write(at));
                slot.expect_lapse((at, sequence));
                plain.insert((at, sequence));
            } else {
                let place = if random(2) == 0 { 0 } else { random(plain.len() as u64) as usize };
                let (at, sequence) = *plain.iter().nth(place).expect("in range");
                plain.remove(&(at, sequence));
                if random(4) == 0 {
                    let later = at + random(3) * 200;
                    slot.rewrite(sequence, &write(later));
                    slot.drop_lapse((at, sequence));
                    slot.expect_lapse((later, sequence));
                    plain.insert((later, sequence));
                } else {
                    slot.drop_lapse((at, sequence));
                    slot.remove(sequence);
                }
            }
            listed_most = listed_most.max(slot.lapse.listed.len());
            most = most.max(plain.len());
            assert_eq!(slot.first_due(), plain.first().copied(), "step {step}");
            if step % 97 == 0 {
                let mut stroll = slot.stroll();
                let order: Vec<Moment> = std::iter::from_fn(|| slot.step(&mut stroll)).collect();
                assert!(order.iter().eq(&plain), "step {step}");
            }
        }
        assert!(listed_most > 10 && listed_most < most / 2, "{listed_most} of {most}");
    }
}
