//! A bucket's records and pages as bytes.
//!
//! Promises: what is written of a bucket depends on its records alone. Never changes anything.

use super::books::Books;
use super::bucket::{Bucket, Pair};
use super::encoding::put_u64;
use super::page::{PAGE_VERSION, PageId};

/// Transfer counters a page.
pub(super) const PAIRS_PER_PAGE: u16 = 128;
/// Slots' floors a page.
pub(super) const FLOORS_PER_PAGE: u16 = 512;

impl Bucket {
    /// Appends the counters' bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let stock = &self.stock;
        for value in [
            u64::from(stock.region.0),
            u64::from(stock.place.0),
            u64::from(stock.place.1),
            stock.floor,
            stock.received,
            stock.written_off,
            stock.available,
            stock.held,
            stock.sold,
            stock.sold_forgotten,
            stock.credits,
        ] {
            put_u64(out, value);
        }
    }

    /// Its page.
    pub(super) fn encode_page(&self) -> Vec<u8> {
        let mut page = vec![PAGE_VERSION];
        self.encode(&mut page);
        page
    }

    /// One page of a slot's records; `None` when nothing is left of it.
    pub(super) fn encode_records(&self, slot: u16, number: u64) -> Option<Vec<u8>> {
        self.slot(slot)?.chunk(number).map(chunk_page)
    }

    /// One page of transfer counters.
    pub(super) fn encode_pairs(&self, number: u16) -> Option<Vec<u8>> {
        let first = number.saturating_mul(PAIRS_PER_PAGE);
        let last = first.saturating_add(PAIRS_PER_PAGE.saturating_sub(1));
        let mut page = vec![PAGE_VERSION];
        for (peer, pair) in self.pairs.range(first..=last) {
            put_u64(&mut page, u64::from(*peer));
            pair.encode(&mut page);
        }
        (page.len() > 1).then_some(page)
    }

    /// One page of floors.
    pub(super) fn encode_floors(&self, number: u16) -> Option<Vec<u8>> {
        let first = number.saturating_mul(FLOORS_PER_PAGE);
        let last = first.saturating_add(FLOORS_PER_PAGE.saturating_sub(1));
        let mut page = vec![PAGE_VERSION];
        for slot in first..=last {
            if let Some(place) = self.slot(slot)
                && place.floor > 1
            {
                put_u64(&mut page, u64::from(slot));
                put_u64(&mut page, place.floor);
            }
        }
        (page.len() > 1).then_some(page)
    }
}

impl Pair {
    /// Appends its bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.sent, self.floor_sent, self.acked, self.accepted, self.floor_accepted] {
            put_u64(out, value);
        }
    }
}

/// Hash of a slot's floor; the floor that an unused slot has is no record.
pub(super) fn floor_hash(name: PageId, floor: u64, books: &mut Books) -> u128 {
    if floor <= 1 {
        return 0;
    }
    books.hash(name, |out| put_u64(out, floor))
}

/// A page of records.
pub(super) fn chunk_page(chunk: &[u8]) -> Vec<u8> {
    [&[PAGE_VERSION], chunk].concat()
}
