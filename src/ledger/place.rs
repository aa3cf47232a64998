//! Placing a hold, and voiding the key of a placement.
//!
//! Promises: receipts come before mode, limit and stock, always; one (item number, region, buyer,
//! key) makes at most one record; a refusal leaves nothing.

use super::answer::{Answer, PauseReason, Placed, Refusal};
use super::bounds::{self, Decided, invalid, refuse};
use super::bucket::Bucket;
use super::command::{KeyScope, Mode, Void};
use super::ids::{ItemName, NameRef, Named, RegionOrdinal, UnixMs};
use super::item::{Item, ItemKey};
use super::receipts::{Trace, buyer_in_region, home_of, place_of};
use super::record::{NewRecord, Record, Standing};
use super::scope::PlaceRef;
use super::{BucketRef, Demand, Ledger};
use crate::planted::{Fault, planted};

/// Where a placing key belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) item: ItemKey,
    pub(super) bucket: BucketRef,
    pub(super) region: RegionOrdinal,
    pub(super) slot: u16,
    /// The record that the key has, if any.
    pub(super) sequence: Option<u64>,
}

/// What a grant of units will do.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) spot: Spot,
    pub(super) demand: Demand,
}

impl Ledger {
    /// The item of this name on this shard.
    pub(super) fn item_named(&self, name: NameRef<'_>) -> Decided<(ItemKey, &Item)> {
        if let Some(key) = self.names.get(&name as &dyn Named)
            && let Some(item) = self.items.get(key)
        {
            return Ok((*key, item));
        }
        if home_of(name, self.books.settings.shards) == self.books.shard {
            refuse(Refusal::ItemNotFound)
        } else {
            refuse(Refusal::NotOwner)
        }
    }

    /// The item of this name on its home shard.
    pub(super) fn item_at_home(&self, name: &ItemName) -> Decided<(ItemKey, &Item)> {
        let name = name.borrowed();
        bounds::item_name(name)?;
        if home_of(name, self.books.settings.shards) != self.books.shard {
            return refuse(Refusal::NotOwner);
        }
        self.item_named(name)
    }

    /// The buckets of an item on this shard.
    pub(super) fn buckets_of(&self, item: ItemKey) -> impl Iterator<Item = &Bucket> {
        let bucket =
            |bucket: u16| BucketRef { home: item.0, item: item.1, bucket: super::BucketId(bucket) };
        self.buckets.range(bucket(0)..=bucket(u16::MAX)).map(|(_, bucket)| bucket)
    }

    /// Finds where a placing key of this trace belongs.
    pub(super) fn spot(
        &self,
        trace: Trace,
        name: NameRef<'_>,
        region: Option<&str>,
        buyer: Option<&str>,
        key: &str,
    ) -> Decided<(Spot, &Item, &Bucket)> {
        bounds::placing(name, region, buyer, key)?;
        let (item_key, item) = self.item_named(name)?;
        let Some(region) = item.region(region) else {
            return refuse(match item.record.home {
                Some(_) => Refusal::RegionNotFound,
                None => Refusal::NotOwner,
            });
        };
        let region = region.ordinal;
        let owner = buyer.unwrap_or(key);
        let bucket = self.buckets_of(item_key).find(|bucket| {
            let (place, places) = bucket.stock.place;
            bucket.stock.region == region
                && (place_of(item_key.1, region, owner, places) == place
                    || planted(Fault::ForeignBuyer))
        });
        let Some(bucket) = bucket else { return refuse(Refusal::NotOwner) };
        let slot = trace.slot;
        let sequence = bucket.slot(slot).and_then(|slot| slot.find(trace.fragment, buyer, key));
        Ok((Spot { item: item_key, bucket: bucket.key, region, slot, sequence }, item, bucket))
    }

    /// Why the item grants nothing now in a region.
    pub(super) fn granting(&self, item: &Item, region: RegionOrdinal) -> Decided<()> {
        if item.record.invariant_broken {
            return refuse(Refusal::ItemPaused { reason: PauseReason::Invariant });
        }
        match item.record.mode {
            Mode::Open if item.region_of(region).is_some_and(|region| region.closed) => {
                refuse(Refusal::ItemClosed)
            }
            Mode::Open => Ok(()),
            Mode::Paused if planted(Fault::PausedSells) => Ok(()),
            Mode::Paused => refuse(Refusal::ItemPaused { reason: PauseReason::Operator }),
            Mode::Closed => refuse(Refusal::ItemClosed),
        }
    }

    /// Why nothing is sold at this moment.
    pub(super) fn selling(&self, item: &Item) -> Decided<()> {
        let (opens_at, closes_at) =
            (item.record.definition.opens_at, item.record.definition.closes_at);
        let now = self.books.now;
        if opens_at.is_some_and(|opens| now < opens) || closes_at.is_some_and(|end| now >= end) {
            return refuse(Refusal::SaleNotOpen { opens_at, closes_at });
        }
        Ok(())
    }

    /// Whether a bucket may give `quantity` units to a buyer now, under `limit`.
    pub(super) fn grant(
        &self,
        spot: Spot,
        bucket: &Bucket,
        buyer: Option<&str>,
        limit: Option<u64>,
        quantity: u64,
    ) -> Decided<Grant> {
        let now = self.books.now.0;
        let secret = &self.books.settings.tag_key;
        let mut allowance = None;
        if let Some(limit) = limit {
            let (held, sold) = match buyer {
                Some(buyer) => bucket.usage(spot.slot, buyer, now, secret),
                None => (0, 0),
            };
            let sold = if planted(Fault::LimitForgetsSales) { 0 } else { sold };
            let left = limit.saturating_sub(held.saturating_add(sold));
            if quantity > left {
                return refuse(Refusal::BuyerLimit { limit, held, sold });
            }
            allowance = buyer.map(|b| (buyer_in_region(secret, spot.item.1, spot.region, b), left));
        }
        let free = bucket.within_reach(now, quantity, self.books.sweeps_left);
        if free < quantity && !planted(Fault::StockUnchecked) {
            return refuse(self.dry(spot.item, bucket, free));
        }
        let demand = Demand { bucket: Some(spot.bucket), quantity, free, buyer: allowance };
        Ok(Grant { spot, demand })
    }

    /// The refusal of a bucket that has too little. Only the one bucket of an item that never
    /// traded stock knows that the item is sold out.
    fn dry(&self, item: ItemKey, bucket: &Bucket, free: u64) -> Refusal {
        let known = self.items.get(&item).map(|item| &item.record);
        let alone = known.is_some_and(|record| record.home.is_some() && record.layout.len() == 1)
            && bucket.pairs.is_empty();
        if bucket.sellable(self.books.now.0) == 0 && alone {
            Refusal::SoldOut { may_return: bucket.live(self.books.now.0) > 0 }
        } else {
            Refusal::InsufficientStock { available: free }
        }
    }

    pub(super) fn judge_place(&self, place: PlaceRef<'_>, trace: Trace) -> Decided<Grant> {
        bounds::quantity("quantity", place.quantity)?;
        bounds::reference("reference", place.reference)?;
        if place.ttl_ms == Some(0) {
            return invalid("ttl_ms", "must be at least 1");
        }
        let buyer = place.buyer;
        let (spot, item, bucket) = self.spot(trace, place.name, place.region, buyer, place.key)?;
        if planted(Fault::LimitBeforeKey) {
            self.grant(spot, bucket, buyer, item.rules.limit, place.quantity)?;
        }
        if let Some(sequence) = spot.sequence
            && let Some(record) = bucket.record(spot.slot, sequence)
        {
            return Err(Box::new(self.replay(place, spot, item, bucket, sequence, &record)));
        }
        let ttl_ms_max = item.rules.ttl_ms_max();
        if place.ttl_ms.is_some_and(|ttl| ttl > ttl_ms_max) {
            return invalid("ttl_ms", &format!("must be at most {ttl_ms_max}"));
        }
        self.granting(item, spot.region)?;
        self.selling(item)?;
        self.grant(spot, bucket, buyer, item.rules.limit, place.quantity)
    }

    /// The answer to a known key: the truth of now.
    fn replay(
        &self,
        place: PlaceRef<'_>,
        spot: Spot,
        item: &Item,
        bucket: &Bucket,
        sequence: u64,
        record: &Record<'_>,
    ) -> Answer {
        let standing = record.standing_at(self.books.now.0);
        if standing == Standing::Voided {
            return Answer::Refused(Refusal::KeyVoided);
        }
        let differs = if place.quantity != record.quantity {
            Some("quantity")
        } else if place.ttl_ms.unwrap_or(0) != record.ttl_asked {
            Some("ttl_ms")
        } else {
            (place.reference != record.reference()).then_some("reference")
        };
        if let Some(field) = differs {
            return Answer::Refused(Refusal::KeyReused { field: field.to_owned() });
        }
        let hold = self.view(item, bucket, spot.slot, sequence, record);
        match standing {
            Standing::Held => Answer::Hold { hold, replayed: true },
            Standing::Sold => Answer::Refused(Refusal::HoldConfirmed { hold }),
            Standing::Expired => Answer::Refused(Refusal::HoldExpired { hold }),
            Standing::Released | Standing::Returned | Standing::Voided => {
                Answer::Refused(Refusal::HoldReleased { hold })
            }
        }
    }

    pub(super) fn place(&mut self, place: PlaceRef<'_>, trace: Trace) -> Answer {
        let grant = match self.judge_place(place, trace) {
            Ok(grant) => grant,
            Err(answer) => return *answer,
        };
        let Ledger { buckets, items, books, .. } = self;
        let spot = grant.spot;
        let (Some(bucket), Some(item)) = (buckets.get_mut(&spot.bucket), items.get(&spot.item))
        else {
            return Answer::Refused(Refusal::NotOwner);
        };
        bucket.make_room(place.quantity, books);
        let ttl = place.ttl_ms.unwrap_or(item.rules.ttl_ms());
        let expires_at = books.now.0.saturating_add(ttl);
        let extends_left = item.rules.extends_max();
        let record = Record::new(NewRecord {
            key: place.key,
            buyer: place.buyer,
            reference: place.reference,
            rules: &item.rules,
            quantity: place.quantity,
            placed_at: books.now.0,
            expires_at,
            ttl_asked: place.ttl_ms.unwrap_or(0),
            revision: books.index.0,
            standing: Standing::Held,
        });
        let sequence = bucket.insert(trace, record, books);
        if bucket.forget_at.is_none() {
            self.schedule_forgetting(spot.bucket);
        }
        self.placed(spot, sequence, expires_at, extends_left)
    }

    /// The answer to a placement that made a hold.
    fn placed(&self, spot: Spot, sequence: u64, expires_at: u64, extends_left: u32) -> Answer {
        if self.books.unanswered {
            return Answer::Settled;
        }
        let found = self.items.get(&spot.item).zip(self.buckets.get(&spot.bucket));
        let Some((item, bucket)) = found else { return Answer::Settled };
        Answer::Placed(Placed {
            id: self.id_of(bucket, spot.slot, sequence),
            region: item.region_name(spot.region),
            placed_at: self.books.now,
            expires_at: UnixMs(expires_at),
            extends_left,
            revision: self.books.index.0,
        })
    }

    pub(super) fn judge_void(&self, void: &Void) -> Decided<Spot> {
        let KeyScope { name, region, buyer, key } = &void.scope;
        bounds::scope(&void.scope)?;
        let trace = self.trace(buyer.as_deref(), key);
        let (spot, item, bucket) =
            self.spot(trace, name.borrowed(), region.as_deref(), buyer.as_deref(), key)?;
        let Some(sequence) = spot.sequence else { return Ok(spot) };
        let Some(record) = bucket.record(spot.slot, sequence) else { return Ok(spot) };
        if record.standing == Standing::Voided {
            return Err(Box::new(Answer::Voided { replayed: true }));
        }
        let hold = self.view(item, bucket, spot.slot, sequence, &record);
        Err(Box::new(Answer::Hold { hold, replayed: true }))
    }

    pub(super) fn void(&mut self, void: &Void) -> Answer {
        let spot = match self.judge_void(void) {
            Ok(spot) => spot,
            Err(answer) => return *answer,
        };
        if planted(Fault::VoidForgets) {
            return Answer::Voided { replayed: false };
        }
        let Ledger { buckets, items, books, .. } = self;
        let (Some(bucket), Some(item)) = (buckets.get_mut(&spot.bucket), items.get(&spot.item))
        else {
            return Answer::Refused(Refusal::NotOwner);
        };
        let UnixMs(now) = books.now;
        let record = Record::new(NewRecord {
            key: &void.scope.key,
            buyer: void.scope.buyer.as_deref(),
            reference: None,
            rules: &item.rules,
            quantity: 0,
            placed_at: now,
            expires_at: now,
            ttl_asked: 0,
            revision: books.index.0,
            standing: Standing::Voided,
        });
        let trace = Trace::of(&books.settings, record.buyer(), record.key());
        bucket.insert(trace, record, books);
        if bucket.forget_at.is_none() {
            self.schedule_forgetting(spot.bucket);
        }
        Answer::Voided { replayed: false }
    }
}
