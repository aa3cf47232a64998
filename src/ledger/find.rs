//! Reads: every answer is of one applied index and of applied ledger time.
//!
//! Promises: a hold reads expired exactly when its units read available. Never changes anything.

use std::ops::Bound;

use super::answer::{HoldState, PauseReason};
use super::bucket::Bucket;
use super::command::{KeyScope, Mode};
use super::escrow::in_transit;
use super::hold::HoldId;
use super::ids::{ItemName, NameRef, Named, UnixMs};
use super::item::{Item, ItemKey};
use super::query::{
    Astray, Audit, Availability, BucketAudit, BucketStock, Found, Query, Receipt, Recount,
    SoldOutItem,
};
use super::receipts::slot_of;
use super::record::{Record, Standing};
use super::settle::law_holds;
use super::{BucketId, Ledger};

/// Holds of one recount, after which it goes on no further than to the end of a slot.
const RECOUNTED: usize = 8_192;

/// How an audit comes by its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// From every record.
    Anew,
    /// From what the slots keep.
    BySlot,
}

/// The most holds or items of one answer.
const ANSWERS_MAX: usize = 1_000;

impl Ledger {
    pub(super) fn find(&self, query: &Query) -> Found {
        match query {
            Query::Hold { id, tenant } => {
                self.hold_view(id, tenant).map_or(Found::NotFound, Found::Hold)
            }
            Query::Receipt(scope) => self.find_receipt(scope),
            Query::Item(name) => self
                .named(name.borrowed())
                .and_then(|(key, item)| item.view(key))
                .map_or(Found::NotFound, |item| Found::Item(Box::new(item))),
            Query::Items { tenant, after, limit } => {
                self.find_items(tenant, after.as_deref(), *limit)
            }
            Query::Availability(name) => self
                .named(name.borrowed())
                .map_or(Found::NotFound, |(key, item)| self.find_availability(key, item)),
            Query::Audit(name) => self
                .named(name.borrowed())
                .map_or(Found::NotFound, |(key, item)| self.find_audit(key, item, Counted::Anew)),
            Query::Sums(name) => self
                .named(name.borrowed())
                .map_or(Found::NotFound, |(key, item)| self.find_audit(key, item, Counted::BySlot)),
            Query::Recount { name, from } => self
                .named(name.borrowed())
                .map_or(Found::NotFound, |(key, _)| Found::Recount(self.recount(key, *from))),
            Query::Holds { name, buyer, state, after, limit } => {
                let wanted = Wanted { buyer: buyer.as_deref(), state: *state };
                self.find_holds(name, &wanted, after.as_ref(), *limit)
            }
            Query::SoldOut { tenant, after, limit } => {
                self.find_sold_out(tenant, after.as_deref(), *limit)
            }
            Query::Levels(item) => self.find_levels(*item),
            Query::Copy { item, shard } => {
                let image = self.image(*item, *shard);
                image.map_or(Found::NotFound, |image| Found::Copy(Box::new(image)))
            }
            Query::Duties { after, limit } => self.find_duties(*after, *limit),
            Query::Roster => {
                Found::Roster { roster: Box::new(self.roster().clone()), now: self.now() }
            }
        }
    }

    /// Returns the name of an item's default region, when the item is known here.
    pub fn default_region(&self, name: NameRef<'_>) -> Option<&str> {
        let (_, item) = self.named(name)?;
        item.region(None).map(|region| &*region.name)
    }

    fn named(&self, name: NameRef<'_>) -> Option<(ItemKey, &Item)> {
        let key = self.names.get(&name as &dyn Named)?;
        Some((*key, self.items.get(key)?))
    }

    fn find_receipt(&self, scope: &KeyScope) -> Found {
        let KeyScope { name, region, buyer, key } = scope;
        let trace = self.trace(buyer.as_deref(), key);
        let Ok((spot, item, bucket)) =
            self.spot(trace, name.borrowed(), region.as_deref(), buyer.as_deref(), key)
        else {
            return Found::NotFound;
        };
        let found = spot
            .sequence
            .and_then(|sequence| Some((sequence, bucket.record(spot.slot, sequence)?)));
        Found::Receipt(match found {
            None => Receipt::Unknown,
            Some((_, record)) if record.standing == Standing::Voided => Receipt::Voided,
            Some((sequence, record)) => {
                Receipt::Committed(self.view(item, bucket, spot.slot, sequence, &record))
            }
        })
    }

    /// A tenant's items on this shard from `after` on, by name.
    fn tenants_items<'a>(
        &'a self,
        tenant: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (ItemKey, &'a Item)> {
        let name = |item: &str| ItemName { tenant: tenant.to_owned(), item: item.to_owned() };
        let from = match after {
            Some(after) => Bound::Excluded(name(after)),
            None => Bound::Included(name("")),
        };
        self.names
            .range((from, Bound::Unbounded))
            .take_while(move |(name, _)| name.tenant == tenant)
            .filter_map(|(_, key)| Some((*key, self.items.get(key)?)))
    }

    fn find_items(&self, tenant: &str, after: Option<&str>, limit: u32) -> Found {
        let items = self.tenants_items(tenant, after).filter_map(|(key, item)| item.view(key));
        Found::Items(items.take(bounded(limit)).collect())
    }

    fn find_availability(&self, key: ItemKey, item: &Item) -> Found {
        let now = self.books.now.0;
        let buckets = self.buckets_of(key).map(|bucket| BucketStock {
            bucket: bucket.key.bucket,
            region: (*item.region_name(bucket.stock.region)).to_owned(),
            available: bucket.sellable(now),
            held: bucket.live(now),
            sold: bucket.stock.sold,
            in_transit_out: in_transit(bucket),
            earmarked: bucket.earmarked(now),
        });
        Found::Availability(Availability {
            number: key.1,
            total: item.record.home.as_ref().map(|home| home.total),
            mode: item.record.mode,
            invariant_broken: item.record.invariant_broken,
            opens_at: item.record.definition.opens_at,
            closes_at: item.record.definition.closes_at,
            buckets: buckets.collect(),
            as_of: self.books.now,
        })
    }

    fn find_audit(&self, key: ItemKey, item: &Item, counted: Counted) -> Found {
        Found::Audit(Audit {
            number: key.1,
            total: item.record.home.as_ref().map(|home| home.total),
            buckets: self.buckets_of(key).map(|bucket| self.audit(item, bucket, counted)).collect(),
            as_of: self.books.now,
            applied: self.books.index.0,
        })
    }

    /// Counts an item's holds anew, from a slot on, some thousands of them.
    fn recount(&self, key: ItemKey, from: Option<(BucketId, u16)>) -> Recount {
        let from = from.unwrap_or((BucketId(0), 0));
        let mut recount = Recount { number: key.1, astray: Vec::new(), next: None };
        let mut holds = 0_usize;
        let mut buckets: Vec<&Bucket> = self.buckets_of(key).collect();
        buckets.sort_by_key(|bucket| bucket.key.bucket);
        for bucket in buckets {
            let at = bucket.key.bucket;
            for (number, slot) in (0_u16..).zip(&bucket.slots) {
                let Some(slot) = slot.as_ref().filter(|_| (at, number) >= from) else { continue };
                if holds >= RECOUNTED {
                    recount.next = Some((at, number));
                    return recount;
                }
                let (mut held, mut sold) = (0_u64, 0_u64);
                for (_, gist) in slot.gists_from(0) {
                    holds = holds.saturating_add(1);
                    held = held.saturating_add(gist.open());
                    sold = sold.saturating_add(gist.sold);
                }
                if (held, sold) != slot.units {
                    let less = |counted: u64, kept: u64| counted.wrapping_sub(kept) as i64;
                    let (held, sold) = (less(held, slot.units.0), less(sold, slot.units.1));
                    recount.astray.push(Astray { bucket: at, held, sold });
                }
            }
        }
        recount
    }

    /// One bucket's sums.
    fn audit(&self, item: &Item, bucket: &Bucket, counted: Counted) -> BucketAudit {
        let UnixMs(now) = self.books.now;
        let (mut held, mut due, mut sold) = (0_u64, 0_u64, 0_u64);
        match counted {
            Counted::Anew => {
                for (_, gist) in bucket.slots.iter().flatten().flat_map(|slot| slot.gists_from(0)) {
                    let open = gist.open();
                    held = held.saturating_add(open);
                    due = due.saturating_add(if gist.is_due(now) { open } else { 0 });
                    sold = sold.saturating_add(gist.sold);
                }
            }
            Counted::BySlot => {
                due = bucket.due(now);
                for slot in bucket.slots.iter().flatten() {
                    held = held.saturating_add(slot.units.0);
                    sold = sold.saturating_add(slot.units.1);
                }
            }
        }
        let stock = &bucket.stock;
        let counted = held == stock.held
            && due == bucket.due(now)
            && sold.saturating_add(stock.sold_forgotten) == stock.sold;
        let pairs = |units: fn(&super::bucket::Pair) -> u64| {
            bucket
                .pairs
                .iter()
                .map(move |(peer, pair)| (BucketId(*peer), units(pair)))
                .filter(|(_, units)| *units > 0)
                .collect()
        };
        BucketAudit {
            bucket: bucket.key.bucket,
            region: (*item.region_name(stock.region)).to_owned(),
            received: stock.received,
            accepted: pairs(|pair| pair.accepted),
            available: stock.available,
            held: stock.held,
            due: bucket.due(now),
            sold: stock.sold,
            written_off: stock.written_off,
            sent: pairs(|pair| pair.sent),
            held_counted: held,
            sold_counted: sold,
            sold_forgotten: stock.sold_forgotten,
            holds: counted && law_holds(bucket, item),
        }
    }

    fn find_holds(
        &self,
        name: &ItemName,
        wanted: &Wanted<'_>,
        after: Option<&HoldId>,
        limit: u32,
    ) -> Found {
        let Some((key, item)) = self.named(name.borrowed()) else { return Found::NotFound };
        let limit = bounded(limit);
        let mut buckets: Vec<&Bucket> = self.buckets_of(key).collect();
        buckets.sort_by_key(|bucket| (bucket.stock.region, bucket.key.bucket));
        let mut holds = Vec::new();
        for bucket in buckets {
            let place = (bucket.key.home, bucket.key.item, bucket.stock.region, bucket.key.bucket);
            let (slot, sequence) = match after {
                Some(after) => {
                    let gone = (after.home, after.item, after.region, after.bucket);
                    match gone.cmp(&place) {
                        std::cmp::Ordering::Greater => continue,
                        std::cmp::Ordering::Equal => (after.slot, after.sequence.saturating_add(1)),
                        std::cmp::Ordering::Less => (0, 0),
                    }
                }
                None => (0, 0),
            };
            for (slot, sequence, record) in wanted.records(bucket, slot, sequence, self) {
                if holds.len() == limit {
                    return Found::Holds { holds, more: true };
                }
                holds.push(*self.view(item, bucket, slot, sequence, &record));
            }
        }
        Found::Holds { holds, more: false }
    }

    fn find_sold_out(&self, tenant: &str, after: Option<&str>, limit: u32) -> Found {
        let now = self.books.now.0;
        // A copy's item is listed at its home, which cannot tell by itself whether an item of
        // several buckets has nothing left.
        let at_home =
            self.tenants_items(tenant, after).filter(|(_, item)| item.record.home.is_some());
        let sold_out = at_home.filter_map(|(key, item)| {
            let (mut free, mut live) = (0_u64, 0_u64);
            for bucket in self.buckets_of(key) {
                free = free.saturating_add(bucket.sellable(now));
                live = live.saturating_add(bucket.live(now));
            }
            let closed = item.record.mode == Mode::Closed;
            let paused = if item.record.invariant_broken {
                Some(PauseReason::Invariant)
            } else {
                (item.record.mode == Mode::Paused).then_some(PauseReason::Operator)
            };
            let empty = free == 0 && item.record.layout.len() == 1;
            (empty || closed || paused.is_some()).then(|| SoldOutItem {
                item: item.record.name.item.clone(),
                number: key.1,
                paused,
                may_return: !closed && live > 0,
            })
        });
        Found::SoldOut(sold_out.take(bounded(limit)).collect())
    }
}

/// Which holds a list is about.
struct Wanted<'a> {
    buyer: Option<&'a str>,
    state: Option<HoldState>,
}

impl Wanted<'_> {
    /// The records that it names, from one on, in order. A buyer's are all in one slot.
    fn records<'b>(
        &'b self,
        bucket: &'b Bucket,
        from: u16,
        sequence: u64,
        ledger: &'b Ledger,
    ) -> impl Iterator<Item = (u16, u64, Record<'b>)> {
        let slots = ledger.books.settings.slots;
        let only = self.buyer.map(|buyer| slot_of(buyer, slots));
        (from..slots)
            .filter(move |slot| only.is_none_or(|only| only == *slot))
            .filter_map(move |number| Some((number, bucket.slot(number)?)))
            .flat_map(move |(number, slot)| {
                let first = if number == from { sequence } else { 0 };
                slot.records_from(first).map(move |(sequence, record)| (number, sequence, record))
            })
            .filter(move |(_, _, record)| self.names(record, ledger.books.now.0))
    }

    fn names(&self, record: &Record<'_>, now: u64) -> bool {
        let state = match record.standing_at(now) {
            Standing::Held => HoldState::Held,
            Standing::Sold => HoldState::Sold,
            Standing::Released => HoldState::Released,
            Standing::Expired => HoldState::Expired,
            Standing::Returned => HoldState::Returned,
            Standing::Voided => return false,
        };
        self.state.is_none_or(|wanted| wanted == state)
            && self.buyer.is_none_or(|buyer| record.buyer() == Some(buyer))
    }
}

fn bounded(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(ANSWERS_MAX).min(ANSWERS_MAX)
}
