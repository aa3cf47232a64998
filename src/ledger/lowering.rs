//! Lowering the total of an item in steps, and deleting an item, at its home shard.
//!
//! Promises: while a lowering is under way, bucket 0 keeps what it has and gets, up to the units
//! needed, from placements and from transfers out; one entry writes them off and lowers the total,
//! or none does. A lowering never takes what a floor keeps. An item is deleted only when every copy
//! has answered the very revision that paused it for the deletion, with nothing held.

use super::answer::{Answer, Refusal};
use super::bounds::{self, Decided, invalid, refuse};
use super::bucket::Bucket;
use super::command::{Adjust, Delete, LowerBegin, LowerEnd, Mode};
use super::definition::{Shift, adjustment_differs, first_bucket, shift_of};
use super::ids::{ItemNumber, UnixMs};
use super::item::{Adjustment, Item, ItemKey, Lowering};
use super::{Demand, Ledger};

/// What a step of a lowering will do.
#[derive(Debug, Clone)]
pub(super) struct LowerPlan {
    item: ItemKey,
    lowering: Lowering,
    pub(super) demand: Demand,
}

impl Ledger {
    fn answer_lowered<T>(&self, key: ItemKey) -> Decided<T> {
        Err(Box::new(self.answer_item(key, false, true)))
    }

    pub(super) fn judge_lower_begin(&self, begin: &LowerBegin) -> Decided<LowerPlan> {
        bounds::name("key", &begin.key)?;
        bounds::reason(&begin.reason)?;
        let (key, item, home) = self.item_of_number(&begin.name, begin.item)?;
        self.lowered_before(key, item, &adjust_of(begin))?;
        if let Some(lowering) = &home.lowering
            && lowering.begin.key == begin.key
        {
            let known = receipt_of(&lowering.begin);
            return match adjustment_differs(&adjust_of(begin), &known) {
                Some(field) => refuse(Refusal::KeyReused { field: field.to_owned() }),
                None => self.answer_lowered(key),
            };
        }
        self.not_busy(home)?;
        let Shift { lower, region, .. } = shift_of(begin.change, item, home)?;
        if lower == 0 || lower > home.total {
            return invalid("delta", "must lower the total, and not below zero");
        }
        let lowering = Lowering { begin: begin.clone(), units: lower, region };
        Ok(LowerPlan { item: key, lowering, demand: Demand::default() })
    }

    /// Answers a key that has changed the total already.
    fn lowered_before(&self, key: ItemKey, item: &Item, adjust: &Adjust) -> Decided<()> {
        let known = item.keys.get(&adjust.key).and_then(|number| item.adjustments.get(number));
        match known.map(|known| adjustment_differs(adjust, known)) {
            None => Ok(()),
            Some(Some(field)) => refuse(Refusal::KeyReused { field: field.to_owned() }),
            Some(None) => self.answer_lowered(key),
        }
    }

    pub(super) fn lower_begin(&mut self, begin: &LowerBegin) -> Answer {
        let plan = match self.judge_lower_begin(begin) {
            Ok(plan) => plan,
            Err(answer) => return *answer,
        };
        self.set_lowering(plan.item, Some(plan.lowering));
        self.answer_item(plan.item, false, false)
    }

    /// Notes or forgets the lowering under way, and what bucket 0 keeps for it.
    fn set_lowering(&mut self, key: ItemKey, lowering: Option<Lowering>) {
        let units = lowering.as_ref().map_or(0, |lowering| lowering.units);
        self.touch_item(key);
        if let Some(item) = self.items.get_mut(&key) {
            item.revise();
            if let Some(home) = &mut item.record.home {
                home.lowering = lowering;
            }
        }
        if let Some(bucket) = self.buckets.get_mut(&first_bucket(key)) {
            bucket.earmark = units;
        }
    }

    /// Finds the lowering that is to end; `None` when its key has committed before.
    fn lowering(&self, end: &LowerEnd) -> Decided<(ItemKey, &Lowering)> {
        let (key, item, home) = self.item_of_number(&end.name, end.item)?;
        if item.keys.contains_key(&end.key) {
            return self.answer_lowered(key);
        }
        match &home.lowering {
            Some(lowering) if lowering.begin.key == end.key => Ok((key, lowering)),
            Some(_) | None => refuse(Refusal::NotUnderWay),
        }
    }

    pub(super) fn judge_lower_commit(&self, end: &LowerEnd) -> Decided<LowerPlan> {
        let (key, lowering) = self.lowering(end)?;
        let Some(bucket) = self.buckets.get(&first_bucket(key)) else {
            return refuse(Refusal::NotOwner);
        };
        let (now, units) = (self.books.now.0, lowering.units);
        let earmarked = bucket.earmarked(now);
        let reach = bucket.within_all(now, units, self.books.sweeps_left);
        if earmarked < units || reach < units {
            return refuse(Refusal::StockCommitted {
                needed: units,
                available: earmarked.min(reach),
                held: bucket.live(now),
                sold: bucket.stock.sold,
            });
        }
        let demand = Demand { bucket: Some(bucket.key), quantity: units, free: reach, buyer: None };
        Ok(LowerPlan { item: key, lowering: lowering.clone(), demand })
    }

    pub(super) fn lower_commit(&mut self, end: &LowerEnd) -> Answer {
        let LowerPlan { item: key, lowering, .. } = match self.judge_lower_commit(end) {
            Ok(plan) => plan,
            Err(answer) => return *answer,
        };
        let Lowering { begin, units, region } = lowering;
        self.set_lowering(key, None);
        if let Some(bucket) = self.buckets.get_mut(&first_bucket(key)) {
            bucket.make_room(units, &mut self.books);
            bucket.touch(&mut self.books);
            let Bucket { stock, fault, .. } = bucket;
            super::bucket::shift(&mut stock.available, 0, units, fault);
            stock.written_off = stock.written_off.saturating_add(units);
        }
        if let Some(home) = self.items.get_mut(&key).and_then(|item| item.record.home.as_mut()) {
            home.total = home.total.saturating_sub(units);
            if let Some(plan) = region.and_then(|region| home.plans.get_mut(&region)) {
                plan.quota = plan.quota.saturating_sub(units);
            }
        }
        self.remember_adjustment(key, &adjust_of(&begin));
        self.answer_item(key, false, false)
    }

    pub(super) fn judge_lower_abort(&self, end: &LowerEnd) -> Decided<ItemKey> {
        self.lowering(end).map(|(key, _)| key)
    }

    pub(super) fn lower_abort(&mut self, end: &LowerEnd) -> Answer {
        let key = match self.judge_lower_abort(end) {
            Ok(key) => key,
            Err(answer) => return *answer,
        };
        let now = self.books.now.0;
        if let Some(bucket) = self.buckets.get_mut(&first_bucket(key)) {
            // What was kept can be sold again.
            let earmarked = bucket.earmarked(now);
            bucket.touch(&mut self.books);
            bucket.stock.credits = bucket.stock.credits.saturating_add(earmarked);
        }
        self.set_lowering(key, None);
        self.answer_item(key, false, false)
    }

    pub(super) fn judge_delete_begin(&self, delete: &Delete) -> Decided<ItemKey> {
        let (key, _, home) = self.item_of_number(&delete.name, delete.item)?;
        if home.deleting.is_some() {
            return self.answer_lowered(key);
        }
        self.not_busy(home)?;
        Ok(key)
    }

    pub(super) fn delete_begin(&mut self, delete: &Delete) -> Answer {
        let key = match self.judge_delete_begin(delete) {
            Ok(key) => key,
            Err(answer) => return *answer,
        };
        self.touch_item(key);
        if let Some(item) = self.items.get_mut(&key) {
            let mode = std::mem::replace(&mut item.record.mode, Mode::Paused);
            item.revise_copies();
            if let Some(home) = &mut item.record.home {
                home.deleting = Some(mode);
            }
        }
        self.answer_item(key, false, false)
    }

    /// The deletion under way, and the mode before it.
    fn deletion(&self, delete: &Delete) -> Decided<(ItemKey, Mode)> {
        let (key, _, home) = self.item_of_number(&delete.name, delete.item)?;
        match home.deleting {
            Some(mode) => Ok((key, mode)),
            None => refuse(Refusal::NotUnderWay),
        }
    }

    pub(super) fn judge_delete_abort(&self, delete: &Delete) -> Decided<(ItemKey, Mode)> {
        self.deletion(delete)
    }

    pub(super) fn delete_abort(&mut self, delete: &Delete) -> Answer {
        let (key, mode) = match self.judge_delete_abort(delete) {
            Ok(found) => found,
            Err(answer) => return *answer,
        };
        self.touch_item(key);
        if let Some(item) = self.items.get_mut(&key) {
            item.record.mode = mode;
            item.revise_copies();
            if let Some(home) = &mut item.record.home {
                home.deleting = None;
            }
        }
        self.answer_item(key, false, false)
    }

    pub(super) fn judge_delete_commit(&self, delete: &Delete) -> Decided<ItemKey> {
        let (key, _) = self.deletion(delete)?;
        let (_, _, home) = self.item_of_number(&delete.name, delete.item)?;
        let behind = home.copies.iter().filter(|copy| copy.revision != home.config);
        let shards: Vec<_> = behind.map(|copy| copy.shard).collect();
        if !shards.is_empty() {
            return refuse(Refusal::NotAnswered { shards });
        }
        let held = self.held_known(key);
        if held > 0 {
            return refuse(Refusal::OpenHolds { held });
        }
        Ok(key)
    }

    /// Units held by holds that are not due, here and as the copies answered last.
    pub(super) fn held_known(&self, key: ItemKey) -> u64 {
        let now = self.books.now.0;
        let here = self.buckets_of(key).fold(0_u64, |sum, b| sum.saturating_add(b.live(now)));
        let home = self.items.get(&key).and_then(|item| item.record.home.as_ref());
        let copies = home.map(|home| home.copies.as_slice()).unwrap_or_default();
        copies.iter().fold(here, |sum, copy| sum.saturating_add(copy.held))
    }

    pub(super) fn delete_commit(&mut self, delete: &Delete) -> Answer {
        let key = match self.judge_delete_commit(delete) {
            Ok(key) => key,
            Err(answer) => return *answer,
        };
        self.retire_item(key, UnixMs(0));
        Answer::Retired { item: ItemNumber(key.1.0) }
    }
}

/// A lowering as the adjustment that it is.
fn adjust_of(begin: &LowerBegin) -> Adjust {
    let LowerBegin { name, key, change, reason, .. } = begin.clone();
    Adjust { name, key, change, reason }
}

/// A lowering as the receipt that it will leave.
fn receipt_of(begin: &LowerBegin) -> Adjustment {
    let LowerBegin { key, change, reason, .. } = begin.clone();
    Adjustment { key, change, reason, at: UnixMs(0) }
}
