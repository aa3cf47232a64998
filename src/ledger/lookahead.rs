//! What an entry's placements will look up, looked at beforehand.
//!
//! A placement asks two tables that are too large for any cache, and writes behind the records of
//! one of many slots: it would wait for memory several times. The placements of an entry ask for
//! different places, so that memory can be asked for all of them at once: looked at one right after
//! the other, before the first is judged. Promises: changes nothing, and means nothing for any
//! answer.

use super::Ledger;
use super::bucket::Bucket;
use super::command::BatchOf;
use super::receipts::Trace;
use super::scope::Placement;

impl Ledger {
    /// The trace of a placing key.
    pub(super) fn trace(&self, buyer: Option<&str>, key: &str) -> Trace {
        Trace::of(&self.books.settings, buyer, key)
    }

    /// Looks at what the placements of an entry will ask for. Leaves their traces, in order, in
    /// `traces`.
    pub(super) fn look_ahead<P: Placement>(&self, batch: &BatchOf<P>, traces: &mut Vec<Trace>) {
        let placements = || batch.commands.iter().filter_map(|command| command.placing());
        traces.clear();
        traces.extend(placements().map(|place| self.trace(place.buyer, place.key)));
        // Nearly always all are of one item: what others ask for is not looked at.
        let Some(first) = placements().next() else { return };
        let Ok((item, _)) = self.item_named(first.name) else { return };
        if let Some(bucket) = self.buckets_of(item).next() {
            let looks = traces.iter().map(|trace| bucket.glance(trace));
            std::hint::black_box(looks.fold(0, usize::wrapping_add));
        }
    }
}

impl Bucket {
    /// Looks at what is known of a key and its buyer, and at where its record would be written;
    /// what it tells is only to have been read.
    fn glance(&self, trace: &Trace) -> usize {
        let Some(slot) = self.slot(trace.slot) else { return 0 };
        let buyer = trace.buyer.is_some_and(|buyer| slot.buyers.glance(buyer));
        usize::from(slot.index.glance(trace.fragment) | buyer).wrapping_add(slot.glance_behind())
    }
}
