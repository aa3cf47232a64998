//! From pages back to a ledger.
//!
//! Promises: any bytes are answered, with a ledger or an error; what is derived is built anew, the
//! digest is recomputed from the records, and counters are compared with what they count.

use std::collections::BTreeSet;

use super::bucket::{Bucket, Counters, Pair};
use super::bucket_page::{FLOORS_PER_PAGE, PAIRS_PER_PAGE, floor_hash};
use super::encoding::Reader;
use super::escrow::in_transit;
use super::ids::RegionOrdinal;
use super::item::{self, ADJUSTMENTS_PER_PAGE, Adjustment, Item, ItemRecord};
use super::page::{Kind, PAGE_VERSION, PageId};
use super::roster::{Roster, RosterPage};
use super::schema::{SchemaPage, SchemaVersion};
use super::{BucketRef, Ledger, LoadError, Meta, PageKey, Settings, ShardId};

fn error<T>(what: impl Into<String>) -> Result<T, LoadError> {
    Err(LoadError(what.into()))
}

/// Rebuilds a ledger; see [`Ledger::load`].
pub(super) fn load(
    shard: ShardId,
    settings: Settings,
    pages: impl Iterator<Item = (PageKey, Vec<u8>)>,
) -> Result<Ledger, LoadError> {
    let mut loader = Loader { ledger: Ledger::new(shard, settings), meta: None, later: Vec::new() };
    loader.ledger.books.pages = super::cut::Pages::new();
    loader.ledger.books.digest = super::digest::Digest::default();
    let mut seen = BTreeSet::new();
    for (key, bytes) in pages {
        let Some(page) = PageId::parse(&key.0) else { return error("a page has no valid name") };
        if !seen.insert(page) {
            return error(format!("two pages are called {page:?}"));
        }
        match page.kind {
            // What stands in a bucket waits for the bucket.
            Kind::Adjustments | Kind::Pairs | Kind::Floors | Kind::Records => {
                loader.later.push((page, bytes));
            }
            Kind::Meta | Kind::Item | Kind::Bucket | Kind::Roster | Kind::Schema => {
                loader.take(page, &bytes)?;
            }
        }
    }
    for (page, bytes) in std::mem::take(&mut loader.later) {
        loader.take(page, &bytes)?;
    }
    loader.finish()
}

struct Loader {
    ledger: Ledger,
    meta: Option<Meta>,
    later: Vec<(PageId, Vec<u8>)>,
}

impl Loader {
    fn take(&mut self, page: PageId, bytes: &[u8]) -> Result<(), LoadError> {
        let body = bytes.strip_prefix(&[PAGE_VERSION]);
        let taken = body.and_then(|body| match page.kind {
            Kind::Meta => self.take_meta(page, body),
            Kind::Item => self.take_item(page, body),
            Kind::Adjustments => self.take_adjustments(page, body),
            Kind::Bucket => self.take_bucket(page, body),
            Kind::Pairs => self.take_pairs(page, body),
            Kind::Floors => self.take_floors(page, body),
            Kind::Records => self.take_records(page, body),
            Kind::Roster => self.take_roster(page, body),
            Kind::Schema => self.take_schema(page, body),
        });
        taken.ok_or_else(|| LoadError(format!("the page {page:?} is not valid")))
    }

    fn take_meta(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        self.meta = Some(item::decode(body).filter(|_| page == PageId::META)?);
        Some(())
    }

    fn take_roster(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let read = item::decode(body).filter(|read: &Roster| read.revision > 0);
        let roster = read.filter(|_| page == PageId::ROSTER)?;
        self.ledger.roster = RosterPage::load(roster, &mut self.ledger.books);
        Some(())
    }

    fn take_schema(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let read = item::decode(body).filter(|read| *read > SchemaVersion::FIRST);
        let version = read.filter(|_| page == PageId::SCHEMA)?;
        self.ledger.schema = SchemaPage::load(version, &mut self.ledger.books);
        Some(())
    }

    fn take_item(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let key = (page.home, page.item);
        if page != PageId::of_item(Kind::Item, key, 0) {
            return None;
        }
        let record: ItemRecord = item::decode(body)?;
        if !record.retired {
            // A bucket opened for a later creation has taken the name over.
            let bound = self.ledger.names.entry(record.name.clone()).or_insert(key);
            *bound = (*bound).max(key);
        }
        let mut item = Item::new(record);
        let books = &mut self.ledger.books;
        item.hashed = books.hash(page, |out| item::encode(&item.record, out));
        books.digest.exchange(0, item.hashed);
        self.ledger.items.insert(key, item);
        Some(())
    }

    fn take_adjustments(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let key = (page.home, page.item);
        if page != PageId::of_item(Kind::Adjustments, key, page.number) {
            return None;
        }
        let Ledger { items, books, .. } = &mut self.ledger;
        let item = items.get_mut(&key)?;
        // A copy's receipts, of moves by hand, have no such bound.
        let next = item.record.home.as_ref().map(|home| home.next_adjustment);
        let mut reader = Reader::new(body);
        while !reader.is_done() {
            let place = reader.u64().filter(|place| *place < ADJUSTMENTS_PER_PAGE)?;
            let number = page.number.checked_mul(ADJUSTMENTS_PER_PAGE)?.checked_add(place)?;
            let bytes = reader.bytes()?;
            let receipt: Adjustment = item::decode(bytes)?;
            // The digest is of these bytes, and what is written next is encoded anew.
            let mut again = Vec::new();
            item::encode(&receipt, &mut again);
            if again != bytes {
                return None;
            }
            let name = PageId::of_item(Kind::Adjustments, key, number);
            let hash = books.hash(name, |out| out.extend_from_slice(bytes));
            books.digest.exchange(0, hash);
            let beyond = next.is_some_and(|next| number >= next);
            if beyond || item.keys.insert(receipt.key.clone(), number).is_some() {
                return None;
            }
            if item.adjustments.insert(number, receipt).is_some() {
                return None;
            }
        }
        Some(())
    }

    fn take_bucket(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let key = page.bucket_ref();
        if page != PageId::of_bucket(Kind::Bucket, key, 0, 0) {
            return None;
        }
        let mut reader = Reader::new(body);
        let mut small = || u16::try_from(reader.u64()?).ok();
        let (region, place, places) = (RegionOrdinal(small()?), small()?, small()?);
        let mut values = [0_u64; 8];
        for value in &mut values {
            *value = reader.u64()?;
        }
        let [floor, received, written_off, available, held, sold, sold_forgotten, credits] = values;
        if !reader.is_done() || place >= places {
            return None;
        }
        let stock = Counters {
            region,
            place: (place, places),
            floor,
            received,
            written_off,
            available,
            held,
            sold,
            sold_forgotten,
            credits,
        };
        let books = &mut self.ledger.books;
        let mut bucket = Bucket::new(key, stock, books.settings.slots);
        bucket.hashed = books.hash(page, |out| bucket.encode(out));
        books.digest.exchange(0, bucket.hashed);
        self.ledger.buckets.insert(key, bucket);
        Some(())
    }

    fn take_pairs(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let key = page.bucket_ref();
        if page != PageId::of_bucket(Kind::Pairs, key, 0, page.number) {
            return None;
        }
        let Ledger { buckets, books, .. } = &mut self.ledger;
        let bucket = buckets.get_mut(&key)?;
        let mut reader = Reader::new(body);
        while !reader.is_done() {
            let peer = u16::try_from(reader.u64()?).ok()?;
            let mut next = || reader.u64();
            let pair = Pair {
                sent: next()?,
                floor_sent: next()?,
                acked: next()?,
                accepted: next()?,
                floor_accepted: next()?,
            };
            let right = u64::from(peer / PAIRS_PER_PAGE) == page.number && pair.acked <= pair.sent;
            if !right || bucket.pairs.insert(peer, pair).is_some() {
                return None;
            }
            bucket.sent = bucket.sent.checked_add(pair.sent)?;
            bucket.accepted = bucket.accepted.checked_add(pair.accepted)?;
            let name = PageId::of_bucket(Kind::Pairs, key, 0, u64::from(peer));
            let hash = books.hash(name, |out| pair.encode(out));
            books.digest.exchange(0, hash);
        }
        Some(())
    }

    fn take_floors(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let key = page.bucket_ref();
        if page != PageId::of_bucket(Kind::Floors, key, 0, page.number) {
            return None;
        }
        let Ledger { buckets, books, .. } = &mut self.ledger;
        let bucket = buckets.get_mut(&key)?;
        let mut reader = Reader::new(body);
        while !reader.is_done() {
            let number = u16::try_from(reader.u64()?).ok()?;
            let floor = reader.u64().filter(|floor| *floor > 1)?;
            let slot = bucket.slots.get_mut(usize::from(number))?.get_or_insert_default();
            if u64::from(number / FLOORS_PER_PAGE) != page.number || slot.floor > 1 {
                return None;
            }
            slot.floor = floor;
            slot.next = slot.next.max(floor);
            let name = PageId::of_bucket(Kind::Floors, key, number, 0);
            let hash = floor_hash(name, floor, books);
            books.digest.exchange(0, hash);
        }
        Some(())
    }

    fn take_records(&mut self, page: PageId, body: &[u8]) -> Option<()> {
        let key = page.bucket_ref();
        let Ledger { buckets, books, .. } = &mut self.ledger;
        buckets.get_mut(&key)?.load(page.slot, page.number, body, books)
    }

    fn finish(mut self) -> Result<Ledger, LoadError> {
        let Some(meta) = self.meta else { return error("there is no meta page") };
        let ledger = &mut self.ledger;
        let settings = &ledger.books.settings;
        let ours = (ledger.books.shard, settings.shards, settings.slots);
        if (meta.shard, meta.shards, meta.slots) != ours {
            return error("another shard's, or of other settings");
        }
        ledger.books.now = meta.now;
        ledger.books.index = meta.index;
        ledger.next_item = meta.next_item;
        let hash = ledger.books.hash(PageId::META, |out| item::encode(&meta, out));
        ledger.books.digest.exchange(0, hash);
        ledger.meta_hashed = hash;
        for (key, item) in &ledger.items {
            if key.0 == ledger.books.shard && key.1.0 >= meta.next_item {
                return error(format!("item {} has a number that was not given", key.1));
            }
            if item.record.home.is_some() != (key.0 == ledger.books.shard) {
                return error(format!("item {} is not at home", key.1));
            }
        }
        let driven = ledger.items.iter().filter(|(_, item)| item.is_driven());
        ledger.books.driven = driven.map(|(key, _)| *key).collect();
        earmark(ledger);
        let keys: Vec<BucketRef> = ledger.buckets.keys().copied().collect();
        for key in keys {
            check_bucket(ledger, key)?;
            ledger.schedule_forgetting(key);
        }
        ledger.books.swept = 0;
        Ok(self.ledger)
    }
}

/// Tells each bucket 0 what it keeps for the lowering that its item's record names, and finds the
/// buckets that owe a message.
fn earmark(ledger: &mut Ledger) {
    let Ledger { items, buckets, books, .. } = ledger;
    for (key, bucket) in buckets {
        let Some(item) = items.get(&(key.home, key.item)) else { continue };
        if !item.record.retired && in_transit(bucket) > 0 {
            books.owing.insert(*key);
        }
        let Some(home) = item.record.home.as_ref().filter(|_| key.bucket.0 == 0) else { continue };
        bucket.earmark = home.lowering.as_ref().map_or(0, |lowering| lowering.units);
    }
}

/// Counters against what they count. A broken equation is no damage: the entry that broke it has
/// paused the item, and a ledger always loads its own pages.
fn check_bucket(ledger: &Ledger, key: BucketRef) -> Result<(), LoadError> {
    let Some(bucket) = ledger.buckets.get(&key) else { return Ok(()) };
    if !ledger.items.contains_key(&(key.home, key.item)) {
        return error(format!("the bucket {key:?} belongs to no item"));
    }
    let (mut held, mut sold) = (0_u64, bucket.stock.sold_forgotten);
    let mut order_holds = true;
    for slot in bucket.slots.iter().flatten() {
        let mut placed_at = 0;
        for (_, gist) in slot.gists_from(0) {
            held = held.saturating_add(gist.open());
            sold = sold.saturating_add(gist.sold);
            order_holds &= placed_at <= gist.placed_at;
            placed_at = gist.placed_at;
        }
    }
    if !order_holds {
        return error(format!("holds of {key:?} are not in the order of their placement"));
    }
    let counted = held == bucket.stock.held && sold == bucket.stock.sold && !bucket.fault;
    if !counted {
        return error(format!("the counters of {key:?} are not those of its holds"));
    }
    Ok(())
}
