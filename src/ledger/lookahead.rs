//! What an entry's placements will look up, looked at beforehand.
//!
//! A placement asks two tables that are too large for any cache, and writes behind the records of
//! one of many slots: it would wait for memory several times. The placements of an entry ask for
//! different places, so that memory can be asked for all of them at once: looked at one right after
//! the other, before the first is judged. Promises: changes nothing, and means nothing for any
//! answer.

use super::Ledger;
use super::bucket::Bucket;
use super::command::CommandOf;
use super::receipts::Trace;
use super::scope::Placement;

/// What looking at a command has found out, for whoever judges it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen(pub(super) Option<Trace>);

impl Ledger {
    /// Looks at what placements among commands that are about to be judged will ask for: `seen` has
    /// a part for each of them afterwards, in order. What is no placement is `None`.
    pub fn look_at<'a, P: Placement + 'a>(
        &self,
        commands: impl Iterator<Item = Option<&'a CommandOf<P>>>,
        seen: &mut Vec<Seen>,
    ) {
        seen.clear();
        let mut first = None;
        for command in commands {
            let place = command.and_then(|command| command.placing());
            seen.push(Seen(place.map(|place| self.trace(place.buyer, place.key))));
            first = first.or(place);
        }
        // Nearly always all are of one item: what others ask for is not looked at.
        let Some(first) = first else { return };
        let Ok((item, _)) = self.item_named(first.name) else { return };
        if let Some(bucket) = self.buckets_of(item).next() {
            let looks = seen.iter().filter_map(|seen| Some(bucket.glance(seen.0.as_ref()?)));
            std::hint::black_box(looks.fold(0, usize::wrapping_add));
        }
    }

    /// The trace of a placing key.
    pub(super) fn trace(&self, buyer: Option<&str>, key: &str) -> Trace {
        Trace::of(&self.books.settings, buyer, key)
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
