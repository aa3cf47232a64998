//! The end of an entry: the law is checked for every bucket touched, and the digest takes what
//! changed.
//!
//! Promises: costs what the entry touched, never what the item holds. A broken law marks the item
//! in this same entry, on every replica alike, and nobody stops.

use super::bucket::Bucket;
use super::due::SWEPT_FOR_COMMANDS_MAX;
use super::item::{self, Item, ItemKey};
use super::page::{Kind, PAGE_VERSION, PageId};
use super::{BucketId, Ledger};

/// Whether a bucket's equation holds: received + ΣR = available + held + sold + written off + ΣS,
/// nothing went below zero, and at home held + sold ≤ total, which is what came in less what is
/// gone.
pub(super) fn law_holds(bucket: &Bucket, item: &Item) -> bool {
    let stock = &bucket.stock;
    let sum = |units: &[u64]| units.iter().fold(0_u128, |sum, n| sum.saturating_add((*n).into()));
    let came = sum(&[stock.received, bucket.accepted]);
    let went = sum(&[stock.available, stock.held, stock.sold, stock.written_off, bucket.sent]);
    let home = item.record.home.as_ref().filter(|_| bucket.key.bucket == BucketId(0));
    let total_holds = home.is_none_or(|home| {
        sum(&[home.total, stock.written_off]) == u128::from(stock.received)
            && sum(&[stock.held, stock.sold]) <= u128::from(home.total)
    });
    came == went && total_holds && !bucket.fault && stock.sold_forgotten <= stock.sold
}

impl Ledger {
    /// Says that an item's record is about to change.
    pub(super) fn touch_item(&mut self, key: ItemKey) {
        let Some(item) = self.items.get_mut(&key).filter(|item| !item.touched) else { return };
        item.touched = true;
        let page = PageId::of_item(Kind::Item, key, 0);
        self.books.pages.touch(page, || Some(encode_item(item)));
        self.books.touched_items.push(key);
    }

    /// Checks the law and settles the digest for all that the entry touched.
    pub(super) fn settle(&mut self) {
        self.books.sweeps_left = SWEPT_FOR_COMMANDS_MAX;
        for key in std::mem::take(&mut self.books.touched_buckets) {
            let Ledger { buckets, items, books, .. } = self;
            let Some(bucket) = buckets.get_mut(&key) else { continue };
            bucket.touched = false;
            let name = PageId::of_bucket(Kind::Bucket, key, 0, 0);
            let hash = books.hash(name, |out| bucket.encode(out));
            books.digest.exchange(std::mem::replace(&mut bucket.hashed, hash), hash);
            let item_key = (key.home, key.item);
            let Some(item) = items.get(&item_key) else { continue };
            // What went below zero did so in this entry: a replica that loads it forgets it too.
            let holds = law_holds(bucket, item);
            bucket.fault = false;
            if !holds && !item.record.invariant_broken && !item.record.retired {
                self.touch_item(item_key);
                if let Some(item) = self.items.get_mut(&item_key) {
                    item.record.invariant_broken = true;
                }
            }
        }
        for key in std::mem::take(&mut self.books.touched_items) {
            let Ledger { items, books, .. } = self;
            let Some(item) = items.get_mut(&key) else { continue };
            item.touched = false;
            let name = PageId::of_item(Kind::Item, key, 0);
            let hash = books.hash(name, |out| item::encode(&item.record, out));
            books.digest.exchange(std::mem::replace(&mut item.hashed, hash), hash);
            if item.is_driven() {
                books.driven.insert(key);
            } else {
                books.driven.remove(&key);
            }
        }
        let (meta, old) = (self.meta(), self.meta_hashed);
        let hash = self.books.hash(PageId::META, |out| item::encode(&meta, out));
        self.books.digest.exchange(old, hash);
        self.meta_hashed = hash;
    }
}

/// An item's page.
pub(super) fn encode_item(item: &Item) -> Vec<u8> {
    let mut page = vec![PAGE_VERSION];
    item::encode(&item.record, &mut page);
    page
}
