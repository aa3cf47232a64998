//! Stock between buckets, by running totals (`escrow.md`).
//!
//! Promises: each precondition is asked when the entry is applied; the counters of an ordered pair
//! only grow, so late, repeated and reordered messages change nothing; S ≥ R at any moment, because
//! the receiver accepts only what a donor's applied entry has sent. Never decides how much to send.

use super::answer::{Answer, Refusal, RegionInfo};
use super::bounds::{self, Decided, invalid, refuse};
use super::bucket::{Bucket, Counters, Pair};
use super::bucket_page::PAIRS_PER_PAGE;
use super::command::{AcceptStock, Mode, OpenBucket, SendStock, SettleStock};
use super::ids::{BucketId, QUANTITY_MAX, UnixMs};
use super::item::{ItemKey, ItemRecord, Region};
use super::page::{Kind, PageId};
use super::receipts::home_of;
use super::{BucketRef, Demand, Ledger};
use crate::planted::{Fault, planted};

/// What a send will do.
#[derive(Debug, Clone)]
pub(super) struct SendPlan {
    /// Floor carried along.
    floor: u64,
    acked: u64,
    pub(super) demand: Demand,
}

fn refused<T>(rule: &str) -> Decided<T> {
    refuse(Refusal::TransferRefused { rule: rule.to_owned() })
}

impl Ledger {
    pub(super) fn judge_open(&self, open: &OpenBucket) -> Decided<()> {
        bounds::item_name(open.name.borrowed())?;
        bounds::name("region_name", &open.region_name)?;
        bounds::definition(&open.definition)?;
        bounds::stock("floor", open.floor)?;
        let (place, places) = open.place;
        if place >= places || places > self.books.settings.shards.max(1) {
            return invalid("place", "must be a place among at most as many buckets as shards");
        }
        if home_of(open.name.borrowed(), self.books.settings.shards) != open.bucket.home {
            return refuse(Refusal::NotOwner);
        }
        let item: ItemKey = (open.bucket.home, open.bucket.item);
        match self.items.get(&item) {
            Some(known) if known.record.retired => return refuse(Refusal::ItemNotFound),
            Some(known) if known.record.name != open.name => {
                return refused("that number belongs to another item");
            }
            None if open.bucket.home == self.books.shard => {
                return refuse(Refusal::ItemNotFound);
            }
            Some(known) => {
                let region =
                    known.record.regions.iter().find(|known| {
                        known.ordinal == open.region || *known.name == *open.region_name
                    });
                if region.is_some_and(|r| r.ordinal != open.region || *r.name != *open.region_name)
                {
                    return refused("that region has another name or number");
                }
            }
            None => {
                let bound = self.names.get(&open.name);
                if bound.is_some_and(|bound| bound.1 > open.bucket.item) {
                    return refuse(Refusal::ItemNotFound);
                }
            }
        }
        if self.buckets.contains_key(&open.bucket) {
            return Err(Box::new(Answer::BucketOpen));
        }
        Ok(())
    }

    pub(super) fn open_bucket(&mut self, open: &OpenBucket) -> Answer {
        if let Err(answer) = self.judge_open(open) {
            return *answer;
        }
        let item: ItemKey = (open.bucket.home, open.bucket.item);
        // Its floor is granted to the first bucket, wherever that is.
        let floor = if open.place.0 == 0 { open.floor } else { 0 };
        let region = Region::new(&RegionInfo {
            ordinal: open.region,
            name: open.region_name.as_str().into(),
            default: open.default_region,
            closed: false,
            floor,
        });
        if self.items.contains_key(&item) {
            self.touch_item(item);
        } else {
            let record = ItemRecord {
                name: open.name.clone(),
                definition: open.definition.clone(),
                revision: open.revision,
                mode: Mode::Open,
                invariant_broken: false,
                retired: false,
                erase_after: UnixMs(0),
                lifetime_ms_ever: open.definition.rules.lifetime_ms_max,
                regions: Vec::new(),
                layout: Vec::new(),
                created_at: self.books.now,
                home: None,
            };
            self.add_item(item, record);
        }
        if let Some(known) = self.items.get_mut(&item) {
            if known.region(Some(&region.name)).is_none() {
                known.record.regions.push(region);
            }
            if known.record.home.is_none() && open.revision > known.record.revision {
                known.define(open.definition.clone());
                known.record.revision = open.revision;
            }
        }
        let stock = Counters {
            region: open.region,
            place: open.place,
            floor: open.floor,
            ..Counters::default()
        };
        self.add_bucket(open.bucket, stock);
        Answer::BucketOpen
    }

    /// A bucket that may trade.
    fn trading(&self, key: BucketRef) -> Decided<&Bucket> {
        let Some(bucket) = self.buckets.get(&key) else { return refuse(Refusal::NotOwner) };
        match self.items.get(&(key.home, key.item)) {
            Some(item) if !item.record.retired => Ok(bucket),
            // As when its bucket has been erased.
            Some(_) | None => refuse(Refusal::NotOwner),
        }
    }

    pub(super) fn judge_send(&self, send: &SendStock) -> Decided<SendPlan> {
        bounds::quantity("quantity", send.quantity)?;
        let bucket = self.trading(send.from)?;
        let broken = |item: &super::item::Item| item.record.invariant_broken;
        if self.items.get(&(send.from.home, send.from.item)).is_none_or(broken) {
            return refused("a bucket whose law is broken sends nothing");
        }
        if send.to == send.from.bucket {
            return refused("a bucket does not send to itself");
        }
        self.knows_receiver(bucket, send)?;
        let pair = bucket.pairs.get(&send.to.0).copied().unwrap_or_default();
        let acked = pair.acked.max(send.acked);
        if acked > pair.sent {
            return refused("more was accepted than was sent");
        }
        if send.if_sent != pair.sent {
            return refused("the puller has not accepted all that was sent, or knows of more");
        }
        let Some(sent) = pair.sent.checked_add(send.quantity) else {
            return refused("the counter is at its end");
        };
        // What the whole bucket has under way is bounded, not each pair: that is what a partition
        // can strand.
        if send.quantity > send.bound {
            return refused("that is more than may be in transit at once");
        }
        let others = in_transit(bucket).saturating_sub(pair.sent.saturating_sub(pair.acked));
        if others.saturating_add(sent.saturating_sub(acked)) > send.bound {
            return refused("too much is in transit");
        }
        let (now, sweeps) = (self.books.now.0, self.books.sweeps_left);
        let free = bucket.within_reach(now, send.quantity, sweeps);
        if free < send.quantity {
            return refused("fewer units are available");
        }
        // Floor that would be left without units. What is earmarked for a lower total is gone.
        let stays = bucket.units().saturating_sub(bucket.earmarked(now));
        let short = bucket.stock.floor.saturating_sub(stays.saturating_sub(send.quantity));
        if !send.same_region && short > 0 && !planted(Fault::FloorIgnored) {
            return refused("the region's floor stays");
        }
        // A bucket whose floor was raised above its units hands on as much floor as units, so that
        // no bucket of the region comes to lack more than before.
        let short = short.min(send.quantity);
        if pair.floor_sent.checked_add(short).is_none() {
            return refused("the counter is at its end");
        }
        let demand = Demand { bucket: Some(send.from), quantity: send.quantity, free, buyer: None };
        Ok(SendPlan { floor: short, acked, demand })
    }

    /// An item that is known to have several buckets trades between those only, and knows their
    /// regions. (A layout of one bucket says nothing of others that were opened by hand.)
    fn knows_receiver(&self, bucket: &Bucket, send: &SendStock) -> Decided<()> {
        let item = self.items.get(&(send.from.home, send.from.item));
        let Some(item) = item.filter(|item| item.record.layout.len() > 1) else { return Ok(()) };
        match item.placement(send.to) {
            None => refused("the item has no such bucket"),
            Some(to) if (to.region == bucket.stock.region) != send.same_region => {
                refused("the receiver's region is another")
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn send_stock(&mut self, send: &SendStock) -> Answer {
        let plan = match self.judge_send(send) {
            Ok(plan) => plan,
            Err(answer) => return *answer,
        };
        let Some(bucket) = self.buckets.get_mut(&send.from) else {
            return Answer::Refused(Refusal::NotOwner);
        };
        bucket.make_room(send.quantity, &mut self.books);
        bucket.touch(&mut self.books);
        let Bucket { stock, fault, .. } = bucket;
        super::bucket::shift(&mut stock.available, 0, send.quantity, fault);
        super::bucket::shift(&mut stock.floor, 0, plan.floor, fault);
        bucket.sent = bucket.sent.saturating_add(send.quantity);
        let pair = self.set_pair(send.from, send.to, |pair| {
            pair.sent = pair.sent.saturating_add(send.quantity);
            pair.floor_sent = pair.floor_sent.saturating_add(plan.floor);
            pair.acked = plan.acked;
        });
        Answer::Sent { sent: pair.sent, floor_sent: pair.floor_sent }
    }

    pub(super) fn judge_accept(&self, accept: &AcceptStock) -> Decided<(u64, u64)> {
        let bucket = self.trading(accept.to)?;
        if accept.from == accept.to.bucket {
            return refused("a bucket does not accept from itself");
        }
        let pair = bucket.pairs.get(&accept.from.0).copied().unwrap_or_default();
        let known = if planted(Fault::AcceptedTwice) { 0 } else { pair.accepted };
        let Some(units) = accept.sent.checked_sub(known).filter(|units| *units > 0) else {
            return Err(Box::new(Answer::Accepted { accepted: pair.accepted }));
        };
        let Some(floor) = accept.floor_sent.checked_sub(pair.floor_accepted) else {
            return refused("the floor's counter went back");
        };
        let too_much = bucket.units().saturating_add(units) > QUANTITY_MAX
            || bucket.accepted.checked_add(units).is_none()
            || bucket.stock.floor.saturating_add(floor) > QUANTITY_MAX;
        if too_much {
            return refused("more units than any item has");
        }
        Ok((units, floor))
    }

    pub(super) fn accept_stock(&mut self, accept: &AcceptStock) -> Answer {
        let (units, floor) = match self.judge_accept(accept) {
            Ok(plan) => plan,
            Err(answer) => return *answer,
        };
        let owed = self.pay_owed(accept.to, floor);
        let floor = floor.saturating_sub(owed);
        let Some(bucket) = self.buckets.get_mut(&accept.to) else {
            return Answer::Refused(Refusal::NotOwner);
        };
        bucket.touch(&mut self.books);
        let units = if planted(Fault::StockLost) { 0 } else { units };
        bucket.stock.available = bucket.stock.available.saturating_add(units);
        bucket.stock.credits = bucket.stock.credits.saturating_add(units);
        bucket.stock.floor = bucket.stock.floor.saturating_add(floor);
        bucket.accepted = bucket.accepted.saturating_add(units);
        let pair = self.set_pair(accept.to, accept.from, |pair| {
            pair.accepted = accept.sent;
            pair.floor_accepted = accept.floor_sent;
        });
        Answer::Accepted { accepted: pair.accepted }
    }

    /// Gives up floor that home has taken back as it arrives at the region's first bucket; returns
    /// how much.
    fn pay_owed(&mut self, key: BucketRef, floor: u64) -> u64 {
        let item_key: ItemKey = (key.home, key.item);
        let Some(region) = self.buckets.get(&key).map(|bucket| bucket.stock.region) else {
            return 0;
        };
        let item = self.items.get(&item_key);
        let paid = item.map_or(0, |item| item.floor_owed(key.bucket, region)).min(floor);
        if paid > 0 {
            self.touch_item(item_key);
            let item = self.items.get_mut(&item_key);
            let regions = item.map(|item| item.record.regions.iter_mut()).into_iter().flatten();
            for known in regions.filter(|known| known.ordinal == region) {
                known.owed = known.owed.saturating_sub(paid);
            }
        }
        paid
    }

    pub(super) fn judge_move(&self, send: &SendStock) -> Decided<SendPlan> {
        let plan = self.judge_send(send)?;
        let to = BucketRef { bucket: send.to, ..send.from };
        let pair = self.pair(send.from, send.to);
        self.judge_accept(&AcceptStock {
            to,
            from: send.from.bucket,
            sent: pair.sent.saturating_add(send.quantity),
            floor_sent: pair.floor_sent.saturating_add(plan.floor),
        })?;
        Ok(plan)
    }

    /// All three steps in one entry.
    pub(super) fn move_stock(&mut self, send: &SendStock) -> Answer {
        if let Err(answer) = self.judge_move(send) {
            return *answer;
        }
        let answer = self.send_stock(send);
        let pair = self.pair(send.from, send.to);
        let to = BucketRef { bucket: send.to, ..send.from };
        let (from, sent, floor_sent) = (send.from.bucket, pair.sent, pair.floor_sent);
        self.accept_stock(&AcceptStock { to, from, sent, floor_sent });
        self.settle_stock(&SettleStock { from: send.from, to: send.to, accepted: sent });
        answer
    }

    fn pair(&self, bucket: BucketRef, peer: BucketId) -> Pair {
        let bucket = self.buckets.get(&bucket);
        bucket.and_then(|bucket| bucket.pairs.get(&peer.0).copied()).unwrap_or_default()
    }

    pub(super) fn judge_settle(&self, settle: &SettleStock) -> Decided<()> {
        let bucket = self.trading(settle.from)?;
        let pair = bucket.pairs.get(&settle.to.0).copied().unwrap_or_default();
        if settle.accepted > pair.sent {
            return refused("more was accepted than was sent");
        }
        if settle.accepted <= pair.acked {
            return Err(Box::new(Answer::Settled));
        }
        Ok(())
    }

    pub(super) fn settle_stock(&mut self, settle: &SettleStock) -> Answer {
        if let Err(answer) = self.judge_settle(settle) {
            return *answer;
        }
        self.set_pair(settle.from, settle.to, |pair| pair.acked = settle.accepted);
        Answer::Settled
    }

    /// Changes the counters with a peer, and their record.
    fn set_pair(&mut self, key: BucketRef, peer: BucketId, change: impl FnOnce(&mut Pair)) -> Pair {
        let Ledger { buckets, books, .. } = self;
        let Some(bucket) = buckets.get_mut(&key) else { return Pair::default() };
        bucket.touch(books);
        let page = peer.0 / PAIRS_PER_PAGE;
        let name = PageId::of_bucket(Kind::Pairs, key, 0, u64::from(page));
        books.pages.touch(name, || bucket.encode_pairs(page));
        let name = PageId::of_bucket(Kind::Pairs, key, 0, u64::from(peer.0));
        let known = bucket.pairs.get(&peer.0).copied();
        let old = known.map_or(0, |pair| books.hash(name, |out| pair.encode(out)));
        let mut pair = known.unwrap_or_default();
        change(&mut pair);
        let new = books.hash(name, |out| pair.encode(out));
        books.digest.exchange(old, new);
        bucket.pairs.insert(peer.0, pair);
        if in_transit(bucket) > 0 {
            books.owing.insert(key);
        } else {
            books.owing.remove(&key);
        }
        pair
    }
}

/// Units that a bucket has sent and does not know to be accepted.
pub(super) fn in_transit(bucket: &Bucket) -> u64 {
    bucket
        .pairs
        .values()
        .fold(0, |sum: u64, pair| sum.saturating_add(pair.sent.saturating_sub(pair.acked)))
}
