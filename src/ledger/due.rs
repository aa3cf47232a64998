//! A bucket's due holds: how many units they are, what sweeping them would give, and the sweeping.
//!
//! Promises: one entry's commands sweep a bounded number of holds between them, and what they are
//! granted is judged by the same bound. Never walks all holds of a bucket or a slot.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::books::Books;
use super::bucket::Bucket;
use super::receipts::buyer_hash;
use super::record::Standing;
use super::slot::Slot;

/// The most holds that the commands of one entry sweep between them, because they need the units: a
/// command that needs more is told that too little is available, and finds more at its retry. A
/// sweep costs less than a microsecond, so such an entry stays within a few milliseconds.
pub(super) const SWEPT_FOR_COMMANDS_MAX: u32 = 2_048;

impl Bucket {
    /// Units whose deadline has come and which are not swept.
    pub(super) fn due(&self, now: u64) -> u64 {
        self.deadlines.due_at(now)
    }

    /// Units that it could give now: available and due.
    pub(super) fn free(&self, now: u64) -> u64 {
        self.stock.available.saturating_add(self.due(now))
    }

    /// Units that are its own: available, held and sold.
    pub(super) fn units(&self) -> u64 {
        let stock = &self.stock;
        stock.available.saturating_add(stock.held).saturating_add(stock.sold)
    }

    /// Units that it keeps now for a lowering of the total: never more than it needs, and never
    /// what its floor keeps.
    pub(super) fn earmarked(&self, now: u64) -> u64 {
        if self.earmark == 0 {
            return 0;
        }
        let above = self.units().saturating_sub(self.stock.floor);
        self.earmark.min(self.free(now)).min(above)
    }

    /// Units that it could give now to a placement or to its own region.
    pub(super) fn sellable(&self, now: u64) -> u64 {
        self.free(now).saturating_sub(self.earmarked(now))
    }

    /// Units held by holds that are not due.
    pub(super) fn live(&self, now: u64) -> u64 {
        self.stock.held.saturating_sub(self.due(now))
    }

    /// The earliest deadline of a live hold, due ones included.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.due_order.first().map(|first| first.0)
    }

    /// Units that it could give now to a command that wants `units`, if the command may sweep so
    /// many holds: [`Bucket::sellable`], unless that would not be enough of them.
    pub(super) fn within_reach(&self, now: u64, units: u64, sweeps: u32) -> u64 {
        self.within(self.sellable(now), now, units, sweeps)
    }

    /// The same with what is kept for a lowering of the total.
    pub(super) fn within_all(&self, now: u64, units: u64, sweeps: u32) -> u64 {
        self.within(self.free(now), now, units, sweeps)
    }

    fn within(&self, free: u64, now: u64, units: u64, sweeps: u32) -> u64 {
        let needed = units.saturating_sub(self.stock.available);
        // A due hold has at least one unit.
        if units > free || needed <= u64::from(sweeps) {
            return free;
        }
        let swept = self.first_due(now, needed, sweeps);
        if swept >= needed { free } else { self.stock.available.saturating_add(swept) }
    }

    /// Units of the due holds that are swept first: at most `holds` of them, until `units`.
    fn first_due(&self, now: u64, units: u64, holds: u32) -> u64 {
        // Slots join the merge as their earliest deadline comes up.
        let mut slots = self.due_order.range(..=(now, u16::MAX)).peekable();
        let mut strolls = BTreeMap::new();
        let mut heads = BinaryHeap::new();
        let mut sum = 0_u64;
        for _ in 0..holds {
            let next = heads.peek().map(|Reverse((at, slot, _))| (*at, *slot));
            while let Some(first) = slots.next_if(|first| next.is_none_or(|next| **first <= next)) {
                if let Some(slot) = self.slot(first.1) {
                    let stroll = strolls.entry(first.1).or_insert_with(|| slot.stroll());
                    let due = slot.step(stroll);
                    heads.extend(due.map(|(at, sequence)| Reverse((at, first.1, sequence))));
                }
                if next.is_none() {
                    break;
                }
            }
            let Some(Reverse((_, number, sequence))) = heads.pop() else { break };
            let Some(slot) = self.slot(number) else { continue };
            sum = sum.saturating_add(slot.gist(sequence).map_or(0, |gist| gist.open()));
            if sum >= units {
                break;
            }
            let next = strolls.get_mut(&number).and_then(|stroll| slot.step(stroll));
            let next = next.filter(|next| next.0 <= now);
            heads.extend(next.map(|(at, sequence)| Reverse((at, number, sequence))));
        }
        sum
    }

    /// Sweeps the hold whose deadline came first. False when none is due.
    pub(super) fn sweep_first(&mut self, books: &mut Books) -> bool {
        let now = books.now.0;
        let Some((_, slot)) = self.due_order.first().filter(|first| first.0 <= now) else {
            return false;
        };
        let slot = *slot;
        let first = self.slot(slot).and_then(Slot::first_due);
        let Some((_, sequence)) = first else { return false };
        self.sweep(slot, sequence, books);
        true
    }

    /// Sweeps one due hold.
    pub(super) fn sweep(&mut self, slot: u16, sequence: u64, books: &mut Books) {
        self.restate(slot, sequence, books, |record| record.standing = Standing::Expired);
        books.swept = books.swept.saturating_add(1);
        books.expired = books.expired.saturating_add(1);
    }

    /// Sweeps for a command until `units` are available; see [`Bucket::within_reach`].
    pub(super) fn make_room(&mut self, units: u64, books: &mut Books) {
        while self.stock.available < units && books.sweeps_left > 0 && self.sweep_first(books) {
            books.sweeps_left = books.sweeps_left.saturating_sub(1);
        }
    }

    /// A buyer's units at `now`: (held by holds that are not due, sold).
    pub(super) fn usage(&self, slot: u16, buyer: &str, now: u64, secret: &[u8; 16]) -> (u64, u64) {
        let Some(place) = self.slot(slot) else { return (0, 0) };
        place.usage(buyer_hash(secret, buyer), buyer, now)
    }
}
