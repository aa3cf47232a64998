//! The pages of a cut, one after the other.
//!
//! Promises: of a cut of the whole ledger every page that exists comes once, those of records after
//! all others, which come in the order of [`PageId`]; the cost of a step does not grow with the
//! number of pages before it. Never keeps a list of them.

use super::bucket::Bucket;
use super::bucket_page::{FLOORS_PER_PAGE, PAIRS_PER_PAGE};
use super::cut::Plan;
use super::item::{ADJUSTMENTS_PER_PAGE, ItemKey};
use super::page::{Kind, PageId};
use super::{BucketId, BucketRef, Ledger};
use std::ops::Bound;

impl Ledger {
    /// The first page, not of records, that exists after `page`; the first of all after `None`.
    pub(super) fn page_after(&self, page: Option<PageId>) -> Option<PageId> {
        let Some(page) = page else { return Some(PageId::META) };
        if page < PageId::ROSTER && self.roster().revision > 0 {
            return Some(PageId::ROSTER);
        }
        if page < PageId::SCHEMA && self.schema.is_written() {
            return Some(PageId::SCHEMA);
        }
        let key = (page.home, page.item);
        self.page_in_item(key, page).or_else(|| {
            let next = self.items.range((Bound::Excluded(key), Bound::Unbounded)).next()?;
            Some(PageId::of_item(Kind::Item, *next.0, 0))
        })
    }

    fn page_in_item(&self, key: ItemKey, page: PageId) -> Option<PageId> {
        let item = self.items.get(&key)?;
        if page.kind < Kind::Item {
            return Some(PageId::of_item(Kind::Item, key, 0));
        }
        if page.kind <= Kind::Adjustments {
            let first = match page.kind {
                Kind::Adjustments => first_of_next(page.number, ADJUSTMENTS_PER_PAGE),
                Kind::Meta | Kind::Item => 0,
                Kind::Bucket | Kind::Pairs | Kind::Floors | Kind::Records => 0,
                Kind::Roster | Kind::Schema => 0,
            };
            if let Some((number, _)) = item.adjustments.range(first..).next() {
                let number = number / ADJUSTMENTS_PER_PAGE;
                return Some(PageId::of_item(Kind::Adjustments, key, number));
            }
        }
        let kinds = [Kind::Bucket, Kind::Pairs, Kind::Floors];
        kinds.into_iter().filter(|kind| *kind >= page.kind).find_map(|kind| {
            let after = (kind == page.kind).then_some(page);
            self.page_in_buckets(key, kind, after)
        })
    }

    /// The first page of that kind in an item's buckets, after `after`.
    fn page_in_buckets(&self, item: ItemKey, kind: Kind, after: Option<PageId>) -> Option<PageId> {
        let bucket = |bucket| BucketRef { home: item.0, item: item.1, bucket: BucketId(bucket) };
        let first = after.map_or(0, |page| page.bucket.0);
        self.buckets.range(bucket(first)..=bucket(u16::MAX)).find_map(|(key, bucket)| {
            let after = after.filter(|page| page.bucket == key.bucket);
            let (slot, number) =
                bucket.page_after(kind, after.map(|page| (page.slot, page.number)))?;
            Some(PageId::of_bucket(kind, *key, slot, number))
        })
    }
}

impl Ledger {
    /// The next page of records of the cut under way that nobody has encoded.
    pub(super) fn next_page_of_records(&mut self) -> Option<PageId> {
        let Ledger { buckets, books, .. } = self;
        loop {
            let next = |from| buckets.range((from, Bound::Unbounded)).next().map(|next| *next.0);
            let (key, slot, segment) = books.pages.bucket_of_cut(next)?;
            let bucket = buckets.get_mut(&key);
            let found = bucket.and_then(|it| it.take_pending(slot, segment, books.pages.plan()));
            books.pages.found_in(key, found.map(|(slot, segment, _)| (slot, segment)));
            if let Some((slot, _, number)) = found {
                return Some(PageId::of_bucket(Kind::Records, key, slot, number));
            }
        }
    }
}

impl Bucket {
    /// Slot, segment and number of the first page of records that waits to be encoded, from a slot
    /// and segment on.
    fn take_pending(&mut self, slot: u16, segment: u64, plan: Plan<'_>) -> Option<(u16, u64, u64)> {
        if self.is_forgotten() {
            return None;
        }
        let slots = (0_u16..).zip(&mut self.slots).skip(usize::from(slot));
        slots.filter_map(|(number, slot)| Some((number, slot.as_mut()?))).find_map(
            |(number, place)| {
                let from = if number == slot { segment } else { 0 };
                let (segment, page) = place.take_pending(from, plan)?;
                Some((number, segment, page))
            },
        )
    }

    /// Slot and number of its first page of that kind, after those of `after`.
    fn page_after(&self, kind: Kind, after: Option<(u16, u64)>) -> Option<(u16, u64)> {
        let next = after.map_or(0, |(_, number)| number.saturating_add(1));
        match kind {
            Kind::Meta | Kind::Item | Kind::Adjustments => None,
            Kind::Roster | Kind::Schema => None,
            Kind::Bucket => after.is_none().then_some((0, 0)),
            Kind::Pairs => {
                let first = u16::try_from(next.checked_mul(PAIRS_PER_PAGE.into())?).ok()?;
                let (peer, _) = self.pairs.range(first..).next()?;
                Some((0, u64::from(peer / PAIRS_PER_PAGE)))
            }
            Kind::Floors => {
                let first = u16::try_from(next.checked_mul(FLOORS_PER_PAGE.into())?).ok()?;
                let slots = u16::try_from(self.slots.len()).unwrap_or(u16::MAX);
                let floor = |slot: &u16| self.slot(*slot).is_some_and(|slot| slot.floor > 1);
                let slot = (first..slots).find(floor)?;
                Some((0, u64::from(slot / FLOORS_PER_PAGE)))
            }
            Kind::Records => None,
        }
    }
}

/// The first number of the page after a page.
fn first_of_next(page: u64, numbers: u64) -> u64 {
    page.saturating_add(1).saturating_mul(numbers)
}
