//! What time does by itself: due holds are swept, old receipts are forgotten, retired items erased.
//!
//! Promises: one entry does a bounded part of it, the oldest first, and which part depends on the
//! state alone. Who asks about a hold or a stock never sees whether it was done yet, except that
//! forgotten keys are unknown.

use super::books::Books;
use super::bucket::{Bucket, HOUR_MS};
use super::item::ItemKey;
use super::page::{Kind, PageId};
use super::record::Standing;
use super::{BucketRef, Ledger};
use crate::planted::{Fault, planted};

/// Records that an entry forgets at most, unless it has more than half as many commands.
const FORGET_MAX: usize = 512;

/// How long an item's records are kept after the hour of their placement, in ms.
#[derive(Debug, Clone, Copy)]
struct Retention {
    receipts_ms: u64,
    sales_ms: u64,
    /// The item is deleted: nothing is kept.
    retired: bool,
    /// Its empty buckets are kept until then.
    erase_after: u64,
}

impl Retention {
    /// The moment from which a generation's records are forgotten.
    fn over(&self, hour: u64, compacted: bool) -> u64 {
        let end = hour.saturating_add(1).saturating_mul(HOUR_MS);
        end.saturating_add(if compacted { self.sales_ms } else { self.receipts_ms })
    }
}

impl Ledger {
    /// Sweeps due holds, those of the bucket with the oldest first.
    pub(super) fn sweep_due(&mut self) {
        while self.books.swept < self.books.settings.sweep_max {
            let first = self.books.due.first().copied();
            let Some((_, key)) = first.filter(|first| first.0 <= self.books.now.0) else { return };
            let Some(bucket) = self.buckets.get_mut(&key) else { return };
            if !bucket.sweep_first(&mut self.books) {
                return;
            }
        }
    }

    /// Forgets what is old, in proportion to what `commands` may bring.
    pub(super) fn forget_old(&mut self, commands: usize) {
        let mut budget = FORGET_MAX.max(commands.saturating_mul(2));
        while budget > 0 {
            let first = self.books.forget.first().copied();
            let Some((_, key)) = first.filter(|first| first.0 <= self.books.now.0) else { return };
            let retention = self.retention((key.home, key.item));
            let Some(bucket) = self.buckets.get_mut(&key) else { return };
            let done = bucket.forget_some(retention, budget, &mut self.books);
            budget = budget.saturating_sub(done.max(1));
            let over = retention.retired && retention.erase_after <= self.books.now.0;
            if over && bucket.is_forgotten() {
                budget = budget.saturating_sub(self.erase_bucket(key, budget));
            } else {
                self.schedule_forgetting(key);
            }
        }
    }

    fn retention(&self, item: ItemKey) -> Retention {
        let settings = &self.books.settings;
        let (lifetime_ms, retired, erase_after) =
            self.items.get(&item).map_or((0, true, 0), |item| {
                let record = &item.record;
                (record.lifetime_ms_ever, record.retired, record.erase_after.0)
            });
        let longer = settings.receipt_retention_ms.max(settings.sold_retention_ms);
        let kept_ms =
            if planted(Fault::ReceiptsForgotten) { 0 } else { settings.receipt_retention_ms };
        Retention {
            receipts_ms: lifetime_ms.saturating_add(kept_ms),
            sales_ms: lifetime_ms.saturating_add(longer),
            retired,
            erase_after,
        }
    }

    /// Notes when a bucket's oldest generation is over. A younger one changes nothing.
    pub(super) fn schedule_forgetting(&mut self, key: BucketRef) {
        let retention = self.retention((key.home, key.item));
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        let first = |generations: &std::collections::BTreeMap<u64, u64>, compacted| {
            generations.keys().next().map(|hour| retention.over(*hour, compacted))
        };
        let receipts = first(&bucket.generations, false);
        let sales = first(&bucket.sales, true);
        let at = match retention.retired {
            true if bucket.is_forgotten() => Some(retention.erase_after),
            true => Some(0),
            false => receipts.into_iter().chain(sales).min(),
        };
        if bucket.forget_at == at {
            return;
        }
        if let Some(was) = std::mem::replace(&mut bucket.forget_at, at) {
            self.books.forget.remove(&(was, key));
        }
        if let Some(at) = at {
            self.books.forget.insert((at, key));
        }
    }

    /// Removes a retired item's empty bucket, and the item with its last one; returns the steps it
    /// took. The receipts of adjustments go first, a budget at a time.
    fn erase_bucket(&mut self, key: BucketRef, budget: usize) -> usize {
        let item_key: ItemKey = (key.home, key.item);
        let mut steps = 0_usize;
        while let Some(number) = self.first_adjustment(item_key) {
            if steps >= budget {
                return steps;
            }
            self.set_adjustment(item_key, number, None);
            steps = steps.saturating_add(1);
        }
        let Some(mut bucket) = self.buckets.remove(&key) else { return steps };
        bucket.erase(&mut self.books);
        // An item of several buckets waits for its copies to be erased.
        let home = self.items.get(&item_key).and_then(|item| item.record.home.as_ref());
        let waits = home.is_some_and(|home| !home.copies.is_empty());
        if self.buckets_of(item_key).next().is_none() && !waits {
            self.erase_item(item_key);
        }
        steps
    }

    fn first_adjustment(&self, item: ItemKey) -> Option<u64> {
        self.items.get(&item)?.adjustments.keys().next().copied()
    }
}

impl Bucket {
    /// Whether it keeps no record.
    pub(super) fn is_forgotten(&self) -> bool {
        self.generations.is_empty() && self.sales.is_empty()
    }

    /// Forgets up to `budget` records of generations that are over; returns how many.
    fn forget_some(&mut self, retention: Retention, budget: usize, books: &mut Books) -> usize {
        let now = books.now.0;
        let mut done = 0_usize;
        for compacted in [false, true] {
            while done < budget {
                let generations = if compacted { &self.sales } else { &self.generations };
                let Some(hour) = generations.keys().next().copied() else { break };
                if !retention.retired && retention.over(hour, compacted) > now {
                    break;
                }
                let Some((slot, sequence)) = self.next_of(hour, compacted) else {
                    // Nothing is left of it, whatever its count says.
                    let generations =
                        if compacted { &mut self.sales } else { &mut self.generations };
                    generations.remove(&hour);
                    self.forget_slot[usize::from(compacted)] = 0;
                    continue;
                };
                self.let_go(slot, sequence, retention.retired, books);
                done = done.saturating_add(1);
            }
        }
        done
    }

    /// The next record of a generation, in the order of slots and sequences.
    fn next_of(&mut self, hour: u64, compacted: bool) -> Option<(u16, u64)> {
        let slots = u16::try_from(self.slots.len()).unwrap_or(u16::MAX);
        for number in self.forget_slot[usize::from(compacted)]..slots {
            self.forget_slot[usize::from(compacted)] = number;
            let Some(slot) = self.slots.get_mut(usize::from(number)).and_then(Option::as_mut)
            else {
                continue;
            };
            let from = if compacted { 0 } else { slot.forget_from };
            let found = slot
                .gists_from(from)
                .find(|(_, gist)| gist.compacted == compacted)
                .filter(|(_, gist)| gist.placed_at / HOUR_MS <= hour)
                .map(|(sequence, _)| sequence);
            if let Some(sequence) = found {
                if !compacted {
                    slot.forget_from = sequence;
                }
                return Some((number, sequence));
            }
        }
        None
    }

    /// Forgets one record, or only its receipts when it is sold and its sale is kept.
    fn let_go(&mut self, slot: u16, sequence: u64, retired: bool, books: &mut Books) {
        let Some(gist) = self.slot(slot).and_then(|place| place.gist(sequence)) else { return };
        let (standing, compacted) = (gist.standing, gist.compacted);
        if standing == Standing::Held {
            self.sweep(slot, sequence, books);
        }
        if standing == Standing::Sold && !compacted && !retired {
            self.compact(slot, sequence, books);
        } else {
            self.forget(slot, sequence, books);
        }
    }

    /// Takes the last records of an empty bucket, which leaves the ledger, out of the books.
    fn erase(&mut self, books: &mut Books) {
        self.touch(books);
        books.digest.exchange(self.hashed, 0);
        let mut pages: Vec<u16> = self.pairs.keys().map(|peer| peer / PAIRS).collect();
        pages.dedup();
        for page in pages {
            let name = PageId::of_bucket(Kind::Pairs, self.key, 0, u64::from(page));
            books.pages.touch(name, || self.encode_pairs(page));
        }
        for (peer, pair) in &self.pairs {
            let name = PageId::of_bucket(Kind::Pairs, self.key, 0, u64::from(*peer));
            let hash = books.hash(name, |out| pair.encode(out));
            books.digest.exchange(hash, 0);
        }
        for slot in 0..u16::try_from(self.slots.len()).unwrap_or(u16::MAX) {
            let floor = self.slot(slot).map_or(1, |slot| slot.floor);
            if floor > 1 {
                let page = slot / super::bucket_page::FLOORS_PER_PAGE;
                let name = PageId::of_bucket(Kind::Floors, self.key, 0, u64::from(page));
                books.pages.touch(name, || self.encode_floors(page));
                let name = PageId::of_bucket(Kind::Floors, self.key, slot, 0);
                let hash = super::bucket_page::floor_hash(name, floor, books);
                books.digest.exchange(hash, 0);
            }
        }
        if let Some(at) = self.forget_at.take() {
            books.forget.remove(&(at, self.key));
        }
    }
}

const PAIRS: u16 = super::bucket_page::PAIRS_PER_PAGE;
