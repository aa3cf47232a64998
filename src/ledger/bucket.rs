//! A bucket: a share of an item's stock that one shard may spend alone, and its holds.
//!
//! Invariants: received + accepted = available + held + sold + written off + sent, because units
//! move only in [`Bucket::account`] and the counters of `escrow.rs` and `definition.rs`;
//! `held` and `sold` are the sums over its records (sold ones that were forgotten are kept in
//! `sold_forgotten`). A subtraction that would go below zero stops at zero and sets `fault`, which
//! `settle.rs` finds. Never decides what may be done.

use std::collections::{BTreeMap, BTreeSet};

use super::BucketRef;
use super::books::Books;
use super::bucket_page::{FLOORS_PER_PAGE, chunk_page, floor_hash};
use super::buyers::Share;
use super::chunk::{self, chunk_of};
use super::deadline::Deadlines;
use super::ids::RegionOrdinal;
use super::page::{Kind, PageId};
use super::receipts::Trace;
use super::record::{Record, Standing};
use super::segment::segment_of;
use super::slot::Slot;
use crate::planted::{Fault, planted};

/// An hour of placement in ms: receipts are forgotten by hours.
pub(super) const HOUR_MS: u64 = 3_600_000;

/// What is written of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counters {
    /// Its region.
    pub(super) region: RegionOrdinal,
    /// Its place among its region's buckets, and how many they are.
    pub(super) place: (u16, u16),
    /// Its share of the region's floor.
    pub(super) floor: u64,
    /// Units from outside.
    pub(super) received: u64,
    /// Units gone for good.
    pub(super) written_off: u64,
    /// Units that can be held.
    pub(super) available: u64,
    /// Units held, due ones included.
    pub(super) held: u64,
    /// Units sold.
    pub(super) sold: u64,
    /// Those of them whose records are forgotten.
    pub(super) sold_forgotten: u64,
    /// Units that ever raised what the bucket could give.
    pub(super) credits: u64,
}

/// Cumulative counters with one other bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Pair {
    /// S: units ever sent to it.
    pub(super) sent: u64,
    /// F: floor ever sent to it.
    pub(super) floor_sent: u64,
    /// A: units it is known to have accepted.
    pub(super) acked: u64,
    /// R: units ever accepted from it.
    pub(super) accepted: u64,
    /// Floor ever accepted from it.
    pub(super) floor_accepted: u64,
}

/// Records by where they stand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) held: u64,
    pub(super) sold: u64,
    pub(super) ended: u64,
}

/// A bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Which it is.
    pub(super) key: BucketRef,
    /// What is written of it.
    pub(super) stock: Counters,
    /// Counters by peer.
    pub(super) pairs: BTreeMap<u16, Pair>,
    /// Σ R.
    pub(super) accepted: u64,
    /// Σ S.
    pub(super) sent: u64,
    /// Whether a subtraction had to stop at zero.
    pub(super) fault: bool,
    /// Units that it keeps for a lowering of the total, as far as it has them; the item's record
    /// says so.
    pub(super) earmark: u64,
    /// Slots that were ever used since the load, or hold something.
    pub(super) slots: Vec<Option<Box<Slot>>>,
    /// Units by deadline.
    pub(super) deadlines: Deadlines,
    /// Slots by their earliest deadline.
    pub(super) due_order: BTreeSet<(u64, u16)>,
    /// Records.
    pub(super) counts: Counts,
    /// Records whose receipts are kept, by hour of placement.
    pub(super) generations: BTreeMap<u64, u64>,
    /// Records that are kept for their sale only, by hour of placement.
    pub(super) sales: BTreeMap<u64, u64>,
    /// The slots at which forgetting goes on. Only saves steps.
    pub(super) forget_slot: [u16; 2],
    /// When something may be forgotten next, as `books.forget` has it.
    pub(super) forget_at: Option<u64>,
    /// Hash of the counters as the digest has them.
    pub(super) hashed: u128,
    /// Whether this entry has changed it.
    pub(super) touched: bool,
    /// The cut for which the books know that its records may be marked. Only saves steps.
    looked_into: u32,
}

/// What a record means for the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Weight {
    held: u64,
    sold: u64,
    deadline: Option<u64>,
    counts: (u8, u8, u8),
}

impl Weight {
    fn of(record: &Record<'_>) -> Weight {
        let counts = match record.standing {
            Standing::Held => (1, 0, 0),
            Standing::Sold => (0, 1, 0),
            Standing::Released | Standing::Expired | Standing::Returned => (0, 0, 1),
            Standing::Voided => (0, 0, 0),
        };
        let deadline = (record.standing == Standing::Held).then_some(record.expires_at);
        Weight { held: record.open(), sold: record.sold, deadline, counts }
    }

    fn units(&self) -> u64 {
        self.held.saturating_add(self.sold)
    }

    fn share(&self) -> Share {
        Share { held: self.held, sold: self.sold, live: self.deadline.is_some() }
    }
}

impl Bucket {
    /// An empty bucket.
    pub(super) fn new(key: BucketRef, stock: Counters, slots: u16) -> Bucket {
        Bucket {
            key,
            stock,
            pairs: BTreeMap::new(),
            accepted: 0,
            sent: 0,
            fault: false,
            earmark: 0,
            slots: (0..slots).map(|_| None).collect(),
            deadlines: Deadlines::default(),
            due_order: BTreeSet::new(),
            counts: Counts::default(),
            generations: BTreeMap::new(),
            sales: BTreeMap::new(),
            forget_slot: [0; 2],
            forget_at: None,
            hashed: 0,
            touched: false,
            looked_into: 0,
        }
    }

    /// The slot of that number, when it was ever used.
    pub(super) fn slot(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number))?.as_deref()
    }

    /// A record.
    pub(super) fn record(&self, slot: u16, sequence: u64) -> Option<Record<'_>> {
        self.slot(slot)?.record(sequence)
    }

    /// Says that the counters are about to change.
    pub(super) fn touch(&mut self, books: &mut Books) {
        if !self.touched {
            self.touched = true;
            let name = PageId::of_bucket(Kind::Bucket, self.key, 0, 0);
            books.pages.touch(name, || Some(self.encode_page()));
            books.touched_buckets.push(self.key);
            self.deadlines.advance(books.now.0);
        }
    }

    /// Writes a new record and returns its sequence.
    pub(super) fn insert(&mut self, trace: Trace, record: Record<'_>, books: &mut Books) -> u64 {
        let slot = trace.slot;
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return 0 };
        let sequence = place.get_or_insert_default().next;
        self.touch(books);
        self.mark(slot, sequence, books);
        let name = PageId::of_bucket(Kind::Records, self.key, slot, sequence);
        let hash = books.hash(name, |out| record.encode(out));
        books.digest.exchange(0, hash);
        if let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) {
            place.append(sequence, books.hashed());
        }
        let weight = Weight::of(&record);
        self.account(Weight::default(), weight);
        self.adopt(trace, sequence, &record, weight, books);
        sequence
    }

    /// Takes a page of records: into every index, but not into the counters, which have their own
    /// page. `None` when a record is none, or its place is taken or does not exist.
    pub(super) fn load(
        &mut self,
        slot: u16,
        number: u64,
        body: &[u8],
        books: &mut Books,
    ) -> Option<()> {
        let place = self.slots.get_mut(usize::from(slot))?.get_or_insert_default();
        if body.is_empty() || place.chunk(number).is_some() {
            return None;
        }
        let first = number.checked_mul(chunk::CHUNK_RECORDS)?;
        place.take_chunk(number, body, books.pages.plan());
        let mut entries = chunk::entries(body);
        let mut least = 0;
        for (place, bytes) in entries.by_ref() {
            let sequence = first.checked_add(place)?;
            let record = Record::decode(bytes)?;
            let empty = record.standing == Standing::Held && record.quantity == 0;
            if empty || place < least || sequence == 0 || sequence == u64::MAX {
                return None;
            }
            least = place.saturating_add(1);
            let name = PageId::of_bucket(Kind::Records, self.key, slot, sequence);
            let hash = books.hash(name, |out| out.extend_from_slice(bytes));
            books.digest.exchange(0, hash);
            let weight = Weight::of(&record);
            self.count(Weight::default(), weight);
            let trace = Trace::of(&books.settings, record.buyer(), record.key());
            self.adopt(Trace { slot, ..trace }, sequence, &record, weight, books);
            if planted(Fault::ReceiptsLostAtLoad)
                && weight.units() == 0
                && let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut)
            {
                place.index.remove(trace.fragment, sequence);
            }
        }
        entries.is_done().then_some(())
    }

    /// Takes a record that is written already into every index.
    fn adopt(
        &mut self,
        trace: Trace,
        sequence: u64,
        record: &Record<'_>,
        weight: Weight,
        books: &mut Books,
    ) {
        let Trace { slot, fragment, buyer } = trace;
        let generations = if record.compacted { &mut self.sales } else { &mut self.generations };
        let records = generations.entry(record.placed_at / HOUR_MS).or_default();
        *records = records.saturating_add(1);
        let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        place.next = place.next.max(sequence.saturating_add(1));
        place.index.insert(fragment, sequence);
        self.follow(slot, sequence, buyer, Weight::default(), weight, books);
    }

    /// Changes a record, and everything that follows from it. Nothing when there is no such record.
    pub(super) fn restate(
        &mut self,
        slot: u16,
        sequence: u64,
        books: &mut Books,
        change: impl FnOnce(&mut Record<'_>),
    ) {
        if self.slot(slot).is_none_or(|place| place.bytes(sequence).is_none()) {
            return;
        }
        self.touch(books);
        self.mark(slot, sequence, books);
        let name = PageId::of_bucket(Kind::Records, self.key, slot, sequence);
        let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        let Some(bytes) = place.bytes(sequence) else { return };
        let Some(mut record) = Record::decode(bytes) else { return };
        let before = Weight::of(&record);
        let old = books.hash(name, |out| out.extend_from_slice(bytes));
        change(&mut record);
        let after = Weight::of(&record);
        let new = books.hash(name, |out| record.encode(out));
        books.digest.exchange(old, new);
        let Trace { buyer, .. } = Trace::of(&books.settings, record.buyer(), record.key());
        place.rewrite(sequence, books.hashed());
        self.account(before, after);
        self.follow(slot, sequence, buyer, before, after, books);
    }

    /// Forgets a record, whatever it was: a live hold must be swept first. What it sold stays sold.
    pub(super) fn forget(&mut self, slot: u16, sequence: u64, books: &mut Books) {
        if self.slot(slot).is_none_or(|place| place.bytes(sequence).is_none()) {
            return;
        }
        self.touch(books);
        self.mark(slot, sequence, books);
        let name = PageId::of_bucket(Kind::Records, self.key, slot, sequence);
        let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        let Some(bytes) = place.bytes(sequence) else { return };
        let Some(record) = Record::decode(bytes) else { return };
        let Trace { fragment, buyer, .. } =
            Trace::of(&books.settings, record.buyer(), record.key());
        let weight = Weight::of(&record);
        let (compacted, hour) = (record.compacted, record.placed_at / HOUR_MS);
        let old = books.hash(name, |out| out.extend_from_slice(bytes));
        books.digest.exchange(old, 0);
        place.index.remove(fragment, sequence);
        let newest = place.next == sequence.saturating_add(1);
        self.stock.sold_forgotten = self.stock.sold_forgotten.saturating_add(weight.sold);
        self.leave_generation(compacted, hour);
        self.count(weight, Weight::default());
        self.follow(slot, sequence, buyer, weight, Weight::default(), books);
        let place = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
        if place.is_some_and(|place| place.remove(sequence)) {
            let number = chunk_of(sequence);
            books.pages.bury(PageId::of_bucket(Kind::Records, self.key, slot, number));
        }
        if newest {
            self.raise_floor(slot, sequence.saturating_add(1), books);
        }
    }

    /// Forgets a sold hold's receipts and keeps its sale.
    pub(super) fn compact(&mut self, slot: u16, sequence: u64, books: &mut Books) {
        let Some(record) = self.record(slot, sequence) else { return };
        let hour = record.placed_at / HOUR_MS;
        self.restate(slot, sequence, books, |record| record.compact());
        self.leave_generation(false, hour);
        let records = self.sales.entry(hour).or_default();
        *records = records.saturating_add(1);
    }

    fn leave_generation(&mut self, compacted: bool, hour: u64) {
        let generations = if compacted { &mut self.sales } else { &mut self.generations };
        if let Some(records) = generations.get_mut(&hour) {
            *records = records.saturating_sub(1);
            if *records == 0 {
                generations.remove(&hour);
                self.forget_slot[usize::from(compacted)] = 0;
            }
        }
    }

    /// Sees to it that a slot's sequences go on above its newest record, which was forgotten.
    fn raise_floor(&mut self, slot: u16, next: u64, books: &mut Books) {
        let page = PageId::of_bucket(Kind::Floors, self.key, 0, u64::from(slot / FLOORS_PER_PAGE));
        books.pages.touch(page, || self.encode_floors(slot / FLOORS_PER_PAGE));
        let name = PageId::of_bucket(Kind::Floors, self.key, slot, 0);
        let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        let old = floor_hash(name, place.floor, books);
        place.floor = next;
        let new = floor_hash(name, next, books);
        books.digest.exchange(old, new);
    }

    /// Units follow the record: what leaves a hold or a sale is available, and the other way round.
    fn account(&mut self, before: Weight, after: Weight) {
        self.count(before, after);
        let (was, is) = (before.units(), after.units());
        let credit = was.saturating_sub(is);
        let was = if planted(Fault::DoubleCredit) { was.saturating_add(credit) } else { was };
        self.stock.credits = self.stock.credits.saturating_add(credit);
        let Bucket { stock, fault, .. } = self;
        shift(&mut stock.available, was, is, fault);
        shift(&mut stock.held, after.held, before.held, fault);
        shift(&mut stock.sold, after.sold, before.sold, fault);
    }

    fn count(&mut self, before: Weight, after: Weight) {
        let Bucket { counts, fault, .. } = self;
        let ((a, b, c), (x, y, z)) = (after.counts, before.counts);
        shift(&mut counts.held, a.into(), x.into(), fault);
        shift(&mut counts.sold, b.into(), y.into(), fault);
        shift(&mut counts.ended, c.into(), z.into(), fault);
    }

    /// Keeps deadlines, their orders and the buyer's counts in step with a record.
    fn follow(
        &mut self,
        slot: u16,
        sequence: u64,
        buyer: Option<u64>,
        before: Weight,
        after: Weight,
        books: &mut Books,
    ) {
        if before.deadline != after.deadline || before.held != after.held {
            if let Some(at) = before.deadline {
                self.deadlines.remove(at, before.held);
            }
            if let Some(at) = after.deadline {
                self.deadlines.add(at, after.held);
            }
        }
        let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        shift(&mut place.units.0, after.held, before.held, &mut self.fault);
        shift(&mut place.units.1, after.sold, before.sold, &mut self.fault);
        if let Some(buyer) = buyer
            && before.share() != after.share()
        {
            place.count(buyer, sequence as u32, (before.share(), after.share()), &mut self.fault);
        }
        if before.deadline == after.deadline {
            return;
        }
        let was = place.first_due().map(|first| first.0);
        if let Some(at) = before.deadline {
            place.drop_lapse((at, sequence));
        }
        if let Some(at) = after.deadline {
            place.expect_lapse((at, sequence));
        }
        let is = place.first_due().map(|first| first.0);
        if was != is {
            self.reorder(slot, was, is, books);
        }
    }

    /// Keeps the orders of slots and buckets in step with a slot's earliest deadline.
    fn reorder(&mut self, slot: u16, was: Option<u64>, is: Option<u64>, books: &mut Books) {
        let bucket_was = self.next_due();
        if let Some(at) = was {
            self.due_order.remove(&(at, slot));
        }
        if let Some(at) = is {
            self.due_order.insert((at, slot));
        }
        let bucket_is = self.next_due();
        if bucket_was != bucket_is {
            if let Some(at) = bucket_was {
                books.due.remove(&(at, self.key));
            }
            if let Some(at) = bucket_is {
                books.due.insert((at, self.key));
            }
        }
    }

    /// Says that a record's page is about to change.
    fn mark(&mut self, slot: u16, sequence: u64, books: &mut Books) {
        let pages = &mut books.pages;
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return };
        let place = place.get_or_insert_default();
        let segment = place.segment_or_new(segment_of(sequence), pages.plan());
        if segment.is_marked(sequence, pages.epoch) {
            return;
        }
        segment.follow(pages.plan());
        let number = chunk_of(sequence);
        let page = PageId::of_bucket(Kind::Records, self.key, slot, number);
        if segment.chunk(sequence).is_empty() {
            pages.revive(page);
        } else if segment.claim(sequence) {
            pages.claimed(page, Some(chunk_page(segment.chunk(sequence))));
        }
        pages.count(segment.mark(sequence));
        if self.looked_into != pages.epoch {
            self.looked_into = pages.epoch;
            pages.look_into(self.key);
        }
    }
}

/// Adds and subtracts; below zero it stops there and says so.
pub(super) fn shift(counter: &mut u64, plus: u64, minus: u64, fault: &mut bool) {
    match counter.checked_add(plus).and_then(|sum| sum.checked_sub(minus)) {
        Some(result) => *counter = result,
        None => {
            *counter = counter.saturating_add(plus).saturating_sub(minus);
            *fault = true;
        }
    }
}
