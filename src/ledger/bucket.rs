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
use super::bucket_page::{FLOORS_PER_PAGE, encode_chunk, floor_hash};
use super::deadline::Deadlines;
use super::ids::RegionOrdinal;
use super::page::{Kind, PageId};
use super::receipts::{buyer_hash, key_fragment};
use super::record::{Record, Standing};
use super::slot::{Slot, chunk_of};

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
    fn of(record: &Record) -> Weight {
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
        }
    }

    /// The slot of that number, when it was ever used.
    pub(super) fn slot(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number))?.as_deref()
    }

    /// A record.
    pub(super) fn record(&self, slot: u16, sequence: u64) -> Option<&Record> {
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
    pub(super) fn insert(&mut self, slot: u16, record: Record, books: &mut Books) -> u64 {
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return 0 };
        let sequence = place.get_or_insert_default().next;
        self.touch(books);
        self.mark(slot, sequence, books);
        let name = PageId::of_bucket(Kind::Records, self.key, slot, sequence);
        let hash = books.hash(name, |out| record.encode(out));
        books.digest.exchange(0, hash);
        self.adopt(slot, sequence, record, books);
        sequence
    }

    /// Takes a record that is written already into every index and sum but `available`, `held` and
    /// `sold` when `loading`.
    fn adopt(&mut self, slot: u16, sequence: u64, record: Record, books: &mut Books) {
        let weight = Weight::of(&record);
        let buyer = record.buyer().map(|buyer| buyer_hash(&books.settings.tag_key, buyer));
        self.enter(slot, sequence, record, books);
        self.account(Weight::default(), weight);
        self.follow(slot, sequence, buyer, Weight::default(), weight, books);
    }

    /// Takes a record from a page: into every index, but not into the counters, which have their
    /// own page. `None` when its place is taken or does not exist.
    pub(super) fn load(
        &mut self,
        slot: u16,
        sequence: u64,
        record: Record,
        books: &mut Books,
    ) -> Option<()> {
        self.slots.get(usize::from(slot))?;
        let empty = record.standing == Standing::Held && record.quantity == 0;
        if empty || sequence == 0 || sequence == u64::MAX || self.record(slot, sequence).is_some() {
            return None;
        }
        let weight = Weight::of(&record);
        let buyer = record.buyer().map(|buyer| buyer_hash(&books.settings.tag_key, buyer));
        self.enter(slot, sequence, record, books);
        self.count(Weight::default(), weight);
        self.follow(slot, sequence, buyer, Weight::default(), weight, books);
        Some(())
    }

    fn enter(&mut self, slot: u16, sequence: u64, record: Record, books: &Books) {
        let generations = if record.compacted { &mut self.sales } else { &mut self.generations };
        let records = generations.entry(record.placed_at / HOUR_MS).or_default();
        *records = records.saturating_add(1);
        let fragment = key_fragment(&books.settings.tag_key, record.buyer(), record.key());
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return };
        let place = place.get_or_insert_default();
        place.next = place.next.max(sequence.saturating_add(1));
        place.index.insert(fragment, sequence);
        place.chunks.entry(chunk_of(sequence)).or_default().put(sequence, record);
    }

    /// Changes a record, and everything that follows from it. Nothing when there is no such record.
    pub(super) fn restate(
        &mut self,
        slot: u16,
        sequence: u64,
        books: &mut Books,
        change: impl FnOnce(&mut Record),
    ) {
        if self.record(slot, sequence).is_none() {
            return;
        }
        self.touch(books);
        self.mark(slot, sequence, books);
        let name = PageId::of_bucket(Kind::Records, self.key, slot, sequence);
        let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        let Some(record) = place.record_mut(sequence) else { return };
        let before = Weight::of(record);
        let old = books.hash(name, |out| record.encode(out));
        change(record);
        let after = Weight::of(record);
        let new = books.hash(name, |out| record.encode(out));
        books.digest.exchange(old, new);
        let buyer = record.buyer().map(|buyer| buyer_hash(&books.settings.tag_key, buyer));
        self.account(before, after);
        self.follow(slot, sequence, buyer, before, after, books);
    }

    /// Forgets a record, whatever it was: a live hold must be swept first. What it sold stays sold.
    pub(super) fn forget(&mut self, slot: u16, sequence: u64, books: &mut Books) {
        if self.record(slot, sequence).is_none() {
            return;
        }
        self.touch(books);
        self.mark(slot, sequence, books);
        let name = PageId::of_bucket(Kind::Records, self.key, slot, sequence);
        let Some(place) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) else {
            return;
        };
        let Some(chunk) = place.chunks.get_mut(&chunk_of(sequence)) else { return };
        let Some(record) = chunk.remove(sequence) else { return };
        if chunk.is_empty() {
            place.chunks.remove(&chunk_of(sequence));
        }
        let secret = &books.settings.tag_key;
        place.index.remove(key_fragment(secret, record.buyer(), record.key()), sequence);
        let newest = place.next == sequence.saturating_add(1);
        let buyer = record.buyer().map(|buyer| buyer_hash(secret, buyer));
        let weight = Weight::of(&record);
        let old = books.hash(name, |out| record.encode(out));
        books.digest.exchange(old, 0);
        self.stock.sold_forgotten = self.stock.sold_forgotten.saturating_add(weight.sold);
        self.leave_generation(record.compacted, record.placed_at / HOUR_MS);
        self.count(weight, Weight::default());
        self.follow(slot, sequence, buyer, weight, Weight::default(), books);
        if newest {
            self.raise_floor(slot, sequence.saturating_add(1), books);
        }
    }

    /// Forgets a sold hold's receipts and keeps its sale.
    pub(super) fn compact(&mut self, slot: u16, sequence: u64, books: &mut Books) {
        let Some(record) = self.record(slot, sequence) else { return };
        let hour = record.placed_at / HOUR_MS;
        self.restate(slot, sequence, books, Record::compact);
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
        if let Some(buyer) = buyer
            && (before.held, before.sold) != (after.held, after.sold)
        {
            let (mut held, mut sold) = place.buyers.of(buyer);
            shift(&mut held, after.held, before.held, &mut self.fault);
            shift(&mut sold, after.sold, before.sold, &mut self.fault);
            place.buyers.set(buyer, held, sold);
        }
        if before.deadline == after.deadline {
            return;
        }
        if let Some(buyer) = buyer {
            let entry = (buyer as u32, sequence as u32);
            match (before.deadline, after.deadline) {
                (None, Some(_)) => drop(place.held.insert(entry)),
                (Some(_), None) => drop(place.held.remove(&entry)),
                (None, None) | (Some(_), Some(_)) => {}
            }
        }
        let was = place.due.first().map(|first| first.0);
        if let Some(at) = before.deadline {
            place.due.remove(&(at, sequence));
        }
        if let Some(at) = after.deadline {
            place.due.insert((at, sequence));
        }
        let is = place.due.first().map(|first| first.0);
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
        let number = chunk_of(sequence);
        let name = PageId::of_bucket(Kind::Records, self.key, slot, number);
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return };
        let chunk = place.get_or_insert_default().chunks.entry(number).or_default();
        if chunk.marked != books.pages.epoch {
            books.pages.touch(name, || encode_chunk(chunk, number));
            chunk.marked = books.pages.epoch;
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
