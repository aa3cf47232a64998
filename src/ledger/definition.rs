//! Items at their home shard: define, adjust, pause, resume, close, retire.
//!
//! Promises: defining never resets a counter; the total changes only together with bucket 0's
//! received or written-off count; a retired item's number is never given again.
//!
//! Closing is final: a closed item is not opened or paused again (`ItemClosed`). A closed item that
//! a broken law paused is told `Open` to end that pause, and stays closed. `Open` ends such a pause
//! only when the equations hold again at that entry.

use std::collections::BTreeMap;

use super::answer::{Answer, Operation, Refusal};
use super::bounds::{self, Decided, invalid, refuse};
use super::bucket::{Bucket, Counters};
use super::command::{Adjust, Change, Define, Mode, RegionPlan, Retire, SetMode};
use super::ids::{BucketId, QUANTITY_MAX, ShardId, UnixMs};
use super::item::{self, ADJUSTMENTS_PER_PAGE, Adjustment, Home, Item, ItemKey, ItemRecord};
use super::layout::NewRegion;
use super::page::{Kind, PAGE_VERSION, PageId};
use super::settle::law_holds;
use super::{BucketRef, Demand, Ledger, encoding};

/// The region of an item that names none.
pub(super) const DEFAULT_REGION: &str = "default";
/// Items of a shard, deleted ones until they are forgotten and other shards' spread ones among
/// them. Each is in memory, some kilobytes with its slots.
pub(super) const ITEMS_MAX: usize = 65_536;
/// Old receipts of adjustments that one adjustment forgets.
const ADJUSTMENTS_FORGOTTEN: usize = 4;

/// What a definition will do.
#[derive(Debug, Clone)]
pub(super) enum DefinePlan {
    Create(Vec<NewRegion>),
    Change(ItemKey),
}

/// What an adjustment will do.
#[derive(Debug, Clone)]
pub(super) struct AdjustPlan {
    item: ItemKey,
    raise: u64,
    lower: u64,
    /// The total then.
    total: u64,
    /// The region whose quota changes with it.
    region: Option<String>,
    pub(super) demand: Demand,
}

/// What a change asks for, of an item as it is.
#[derive(Debug, Clone)]
pub(super) struct Shift {
    pub(super) raise: u64,
    pub(super) lower: u64,
    /// The region whose quota changes with the total.
    pub(super) region: Option<String>,
}

/// What a change of mode will do.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModePlan {
    item: ItemKey,
    mode: Mode,
    /// Whether a broken law still pauses the item then.
    broken: bool,
}

fn too_many_items() -> String {
    format!(
        "its shard has {ITEMS_MAX} items: close and delete what is over; what was deleted makes \
         room when its receipts end"
    )
}

/// An item's bucket 0.
pub(super) fn first_bucket(item: ItemKey) -> BucketRef {
    BucketRef { home: item.0, item: item.1, bucket: BucketId(0) }
}

impl Ledger {
    /// The answer that shows an item.
    pub(super) fn answer_item(&self, key: ItemKey, created: bool, replayed: bool) -> Answer {
        match self.items.get(&key).and_then(|item| item.view(key)) {
            Some(item) => Answer::Item { item: Box::new(item), created, replayed },
            None => Answer::Refused(Refusal::ItemNotFound),
        }
    }

    pub(super) fn judge_define(&self, define: &Define) -> Decided<DefinePlan> {
        self.judge_definition(define, |total| {
            Ok(vec![single_region(&define.regions, total, self.books.shard)?])
        })
    }

    /// Judges a definition; `regions` are asked for when it creates an item.
    pub(super) fn judge_definition(
        &self,
        define: &Define,
        regions: impl FnOnce(u64) -> Decided<Vec<NewRegion>>,
    ) -> Decided<DefinePlan> {
        bounds::definition(&define.definition)?;
        if let Some(total) = define.total {
            bounds::stock("total", total)?;
        }
        let found = match self.item_at_home(&define.name) {
            Ok(found) => Some(found),
            Err(answer) if *answer == Answer::Refused(Refusal::ItemNotFound) => None,
            Err(answer) => return Err(answer),
        };
        let Some((key, item)) = found else {
            if define.if_revision.is_some() {
                return refuse(Refusal::RevisionMismatch { revision: 0 });
            }
            let Some(total) = define.total else {
                return invalid("total", "is needed to create an item");
            };
            if self.items.len() >= ITEMS_MAX {
                return invalid("item", &too_many_items());
            }
            return Ok(DefinePlan::Create(regions(total)?));
        };
        let record = &item.record;
        if define.if_revision.is_some_and(|read| read != record.revision) {
            return refuse(Refusal::RevisionMismatch { revision: record.revision });
        }
        let Some(home) = &record.home else { return refuse(Refusal::NotOwner) };
        if define.total.is_some_and(|total| total != home.total) {
            return refuse(Refusal::UseAdjustments { total: home.total });
        }
        if !define.regions.is_empty() && define.regions != home.plans {
            return invalid("regions", "are changed by the item's layout, not by its definition");
        }
        if define.definition == record.definition {
            return Err(Box::new(self.answer_item(key, false, true)));
        }
        Ok(DefinePlan::Change(key))
    }

    pub(super) fn define(&mut self, define: &Define) -> Answer {
        let plan = self.judge_define(define);
        self.carry_out(define, plan)
    }

    /// Does what was judged of a definition.
    pub(super) fn carry_out(&mut self, define: &Define, plan: Decided<DefinePlan>) -> Answer {
        match plan {
            Err(answer) => *answer,
            Ok(DefinePlan::Change(key)) => {
                self.touch_item(key);
                if let Some(item) = self.items.get_mut(&key) {
                    item.define(define.definition.clone());
                    item.revise_copies();
                }
                self.answer_item(key, false, false)
            }
            Ok(DefinePlan::Create(regions)) => {
                let key = self.create(define, regions);
                self.answer_item(key, true, false)
            }
        }
    }

    /// Adds an item under its name.
    pub(super) fn add_item(&mut self, key: ItemKey, record: ItemRecord) {
        let page = PageId::of_item(Kind::Item, key, 0);
        self.books.pages.touch(page, || None);
        self.names.insert(record.name.clone(), key);
        let mut item = Item::new(record);
        item.touched = true;
        self.books.touched_items.push(key);
        self.items.insert(key, item);
    }

    /// Adds a bucket.
    pub(super) fn add_bucket(&mut self, key: BucketRef, stock: Counters) {
        let page = PageId::of_bucket(Kind::Bucket, key, 0, 0);
        self.books.pages.touch(page, || None);
        let mut bucket = Bucket::new(key, stock, self.books.settings.slots);
        bucket.touched = true;
        self.books.touched_buckets.push(key);
        self.buckets.insert(key, bucket);
    }

    pub(super) fn judge_adjust(&self, adjust: &Adjust) -> Decided<AdjustPlan> {
        bounds::name("key", &adjust.key)?;
        bounds::reason(&adjust.reason)?;
        match adjust.change {
            Change::Raise(units)
            | Change::Lower(units)
            | Change::RaiseIn { units, .. }
            | Change::LowerIn { units, .. } => bounds::quantity("delta", units)?,
            Change::Claim(_) | Change::Move(_) => return no_change_of_the_total(),
            Change::Set { total, .. } => bounds::stock("set_total", total)?,
        }
        let (key, item) = self.item_at_home(&adjust.name)?;
        let Some(home) = &item.record.home else { return refuse(Refusal::NotOwner) };
        let known = item.keys.get(&adjust.key).and_then(|number| item.adjustments.get(number));
        if let Some(known) = known {
            return match adjustment_differs(adjust, known) {
                Some(field) => refuse(Refusal::KeyReused { field: field.to_owned() }),
                None => Err(Box::new(self.answer_item(key, false, true))),
            };
        }
        let Shift { raise, lower, region } = shift_of(adjust.change, item, home)?;
        if lower > 0 && item.record.layout.len() > 1 {
            return refuse(Refusal::LowerInSteps);
        }
        if lower > 0 {
            self.not_busy(home)?;
        }
        let Some(bucket) = self.buckets.get(&first_bucket(key)) else {
            return refuse(Refusal::NotOwner);
        };
        let (now, stock) = (self.books.now.0, &bucket.stock);
        let raised = home.total.checked_add(raise).filter(|total| *total <= QUANTITY_MAX);
        let Some(raised) = raised.filter(|_| stock.received.checked_add(raise).is_some()) else {
            return invalid("delta", "the total must stay at most 9007199254740991");
        };
        // A bucket that accepted what nobody sent has more than the item's total.
        let taken = bucket.live(now).saturating_add(stock.sold);
        let free = bucket.within_reach(now, lower, self.books.sweeps_left);
        let free = free.min(raised.saturating_sub(taken));
        let Some(total) = raised.checked_sub(lower).filter(|_| lower <= free) else {
            return refuse(Refusal::StockCommitted {
                needed: lower,
                available: free,
                held: bucket.live(now),
                sold: stock.sold,
            });
        };
        let demand = Demand {
            bucket: (lower > 0).then_some(bucket.key),
            quantity: lower,
            free: if lower > 0 { free } else { 0 },
            buyer: None,
        };
        Ok(AdjustPlan { item: key, raise, lower, total, region, demand })
    }

    pub(super) fn adjust(&mut self, adjust: &Adjust) -> Answer {
        match &adjust.change {
            Change::Claim(send) => self.claim_move(adjust, send),
            Change::Move(send) => self.move_by_hand(adjust, send),
            Change::Raise(_)
            | Change::Lower(_)
            | Change::Set { .. }
            | Change::RaiseIn { .. }
            | Change::LowerIn { .. } => self.adjust_total(adjust),
        }
    }

    fn adjust_total(&mut self, adjust: &Adjust) -> Answer {
        let AdjustPlan { item: key, raise, lower, total, region, .. } =
            match self.judge_adjust(adjust) {
                Ok(plan) => plan,
                Err(answer) => return *answer,
            };
        let nothing = raise == 0 && lower == 0;
        if let Some(bucket) = self.buckets.get_mut(&first_bucket(key)).filter(|_| !nothing) {
            bucket.make_room(lower, &mut self.books);
            bucket.touch(&mut self.books);
            let super::bucket::Bucket { stock, fault, .. } = bucket;
            super::bucket::shift(&mut stock.available, raise, lower, fault);
            stock.received = stock.received.saturating_add(raise);
            stock.credits = stock.credits.saturating_add(raise);
            stock.written_off = stock.written_off.saturating_add(lower);
        }
        self.touch_item(key);
        if let Some(item) = self.items.get_mut(&key) {
            if !nothing {
                item.revise();
            }
            if let Some(home) = &mut item.record.home {
                home.total = total;
                if let Some(plan) = region.and_then(|region| home.plans.get_mut(&region)) {
                    plan.quota = plan.quota.saturating_add(raise).saturating_sub(lower);
                }
            }
        }
        self.remember_adjustment(key, adjust);
        self.answer_item(key, false, nothing)
    }

    /// Leaves the receipt of a change of the total, or of a move by hand.
    pub(super) fn remember_adjustment(&mut self, key: ItemKey, adjust: &Adjust) {
        let (now, retention) = (self.books.now, self.books.settings.receipt_retention_ms);
        let Some(item) = self.items.get_mut(&key) else { return };
        let keep_ms = item.record.lifetime_ms_ever.saturating_add(retention);
        let over = |old: &&u64| {
            let at = item.adjustments.get(old).map_or(0, |adjustment| adjustment.at.0);
            at.saturating_add(keep_ms) <= now.0
        };
        let old: Vec<u64> =
            item.adjustments.keys().take(ADJUSTMENTS_FORGOTTEN).filter(over).copied().collect();
        for number in old {
            self.set_adjustment(key, number, None);
        }
        let Some(item) = self.items.get_mut(&key) else { return };
        let number = match &mut item.record.home {
            Some(home) => {
                let number = home.next_adjustment;
                home.next_adjustment = number.saturating_add(1);
                number
            }
            // A copy counts on from what it remembers.
            None => item.adjustments.keys().next_back().map_or(0, |last| last.saturating_add(1)),
        };
        let Adjust { key: adjust_key, change, reason, .. } = adjust.clone();
        let receipt = Adjustment { key: adjust_key, change, reason, at: now };
        self.set_adjustment(key, number, Some(receipt));
    }

    /// Writes or forgets the receipt of an adjustment.
    pub(super) fn set_adjustment(
        &mut self,
        key: ItemKey,
        number: u64,
        receipt: Option<Adjustment>,
    ) {
        let Ledger { items, books, .. } = self;
        let Some(item) = items.get_mut(&key) else { return };
        let page = number / ADJUSTMENTS_PER_PAGE;
        let name = PageId::of_item(Kind::Adjustments, key, page);
        books.pages.touch(name, || item.encode_adjustments(page));
        let name = PageId::of_item(Kind::Adjustments, key, number);
        let new = match &receipt {
            Some(receipt) => books.hash(name, |out| item::encode(receipt, out)),
            None => 0,
        };
        let was = item.adjustments.remove(&number);
        if let Some(was) = was {
            item.keys.remove(&was.key);
            let old = books.hash(name, |out| item::encode(&was, out));
            books.digest.exchange(old, 0);
        }
        books.digest.exchange(0, new);
        if let Some(receipt) = receipt {
            item.keys.insert(receipt.key.clone(), number);
            item.adjustments.insert(number, receipt);
        }
    }

    pub(super) fn judge_mode(&self, set: &SetMode) -> Decided<ModePlan> {
        let (key, item) = self.item_at_home(&set.name)?;
        let record = &item.record;
        let deleting = record.home.as_ref().is_some_and(|home| home.deleting.is_some());
        if deleting {
            return refuse(Refusal::UnderWay { operation: Operation::Deletion });
        }
        let (opens, closed) = (set.mode == Mode::Open, record.mode == Mode::Closed);
        let broken = record.invariant_broken
            && !(opens && self.buckets_of(key).all(|bucket| law_holds(bucket, item)));
        let copy_broken = |home: &Home| home.copies.iter().any(|copy| copy.broken);
        let mends = broken != record.invariant_broken
            || (opens && record.home.as_ref().is_some_and(copy_broken));
        let known = record.mode == set.mode || (opens && record.invariant_broken && closed);
        if known && !mends {
            return Err(Box::new(self.answer_item(key, false, true)));
        }
        if closed && !mends {
            return refuse(Refusal::ItemClosed);
        }
        let mode = if closed { Mode::Closed } else { set.mode };
        Ok(ModePlan { item: key, mode, broken })
    }

    pub(super) fn set_mode(&mut self, set: &SetMode) -> Answer {
        let plan = match self.judge_mode(set) {
            Ok(plan) => plan,
            Err(answer) => return *answer,
        };
        self.touch_item(plan.item);
        if let Some(item) = self.items.get_mut(&plan.item) {
            item.record.invariant_broken = plan.broken;
            item.record.mode = plan.mode;
            item.revise_copies();
        }
        self.answer_item(plan.item, false, false)
    }

    pub(super) fn judge_retire(&self, retire: &Retire) -> Decided<ItemKey> {
        let (key, item) = self.item_at_home(&retire.name)?;
        let now = self.books.now.0;
        let held = self.buckets_of(key).fold(0_u64, |sum, b| sum.saturating_add(b.live(now)));
        if held > 0 {
            return refuse(Refusal::OpenHolds { held });
        }
        let elsewhere = item.record.layout.len() != 1
            || self.buckets_of(key).any(|bucket| !bucket.pairs.is_empty());
        if elsewhere {
            return invalid("item", "an item of several buckets is deleted in steps");
        }
        if let Some(home) = &item.record.home {
            self.not_busy(home)?;
        }
        Ok(key)
    }

    pub(super) fn retire(&mut self, retire: &Retire) -> Answer {
        let key = match self.judge_retire(retire) {
            Ok(key) => key,
            Err(answer) => return *answer,
        };
        self.retire_item(key, UnixMs(0));
        Answer::Retired { item: key.1 }
    }
}

impl Item {
    /// One page of receipts: (number in the page, length, bytes) of each.
    pub(super) fn encode_adjustments(&self, page: u64) -> Option<Vec<u8>> {
        let first = page.saturating_mul(ADJUSTMENTS_PER_PAGE);
        let last = first.saturating_add(ADJUSTMENTS_PER_PAGE.saturating_sub(1));
        let mut out = vec![PAGE_VERSION];
        let mut bytes = Vec::new();
        for (number, receipt) in self.adjustments.range(first..=last) {
            bytes.clear();
            item::encode(receipt, &mut bytes);
            encoding::put_u64(&mut out, number % ADJUSTMENTS_PER_PAGE);
            encoding::put_bytes(&mut out, &bytes);
        }
        (out.len() > 1).then_some(out)
    }
}

/// An item that is defined without shards has one region of one bucket.
fn single_region(
    regions: &BTreeMap<String, RegionPlan>,
    total: u64,
    home: ShardId,
) -> Decided<NewRegion> {
    let Some((region, plan)) = regions.first_key_value() else {
        let plan = RegionPlan { quota: total, floor: 0, buckets: 1 };
        return Ok(NewRegion { name: DEFAULT_REGION.to_owned(), plan, shards: vec![home] });
    };
    if regions.len() > 1 {
        return invalid("regions", "more than one needs the shards of its buckets");
    }
    bounds::name("regions", region)?;
    let field = |part: &str| format!("regions.{region}.{part}");
    if plan.buckets != 1 {
        return invalid(&field("buckets"), "more than one needs the shards of each");
    }
    if plan.quota != total {
        return invalid(&field("quota"), "the quotas must sum to the total");
    }
    if plan.floor > plan.quota {
        return invalid(&field("floor"), "must be at most the quota");
    }
    Ok(NewRegion { name: region.clone(), plan: *plan, shards: vec![home] })
}

/// What a change of the total asks for. The quota of an item's only region is its total; of several
/// regions only a named one changes, and quotas never sum to more than the total.
pub(super) fn shift_of(change: Change, item: &Item, home: &Home) -> Decided<Shift> {
    let only = (home.plans.len() == 1).then(|| home.plans.keys().next().cloned()).flatten();
    let (raise, lower, ordinal) = match change {
        Change::Raise(units) => (units, 0, None),
        Change::Lower(units) => (0, units, None),
        Change::RaiseIn { units, region } => (units, 0, Some(region)),
        Change::LowerIn { units, region } => (0, units, Some(region)),
        Change::Claim(_) | Change::Move(_) => return no_change_of_the_total(),
        Change::Set { if_revision, .. } if if_revision != item.record.revision => {
            return refuse(Refusal::RevisionMismatch { revision: item.record.revision });
        }
        Change::Set { total, .. } => {
            (total.saturating_sub(home.total), home.total.saturating_sub(total), None)
        }
    };
    let region = match ordinal {
        None => only,
        Some(ordinal) => {
            let Some(region) = item.region_of(ordinal) else {
                return refuse(Refusal::RegionNotFound);
            };
            if region.closed {
                return invalid("region", "is closed");
            }
            Some((*region.name).to_owned())
        }
    };
    let quotas = home.plans.values().fold(0_u64, |sum, plan| sum.saturating_add(plan.quota));
    let of_region = region.as_ref().and_then(|region| home.plans.get(region));
    // What a lowering leaves must still cover the quotas, and its region's its floor.
    let spare = match of_region {
        Some(plan) if ordinal.is_some() => plan.quota.saturating_sub(plan.floor),
        Some(_) => u64::MAX,
        None => home.total.saturating_sub(quotas),
    };
    if lower > spare {
        return invalid("delta", "the quotas, and their floors, would be more than the total");
    }
    Ok(Shift { raise, lower, region })
}

/// The answer to a move by hand where a total changes.
fn no_change_of_the_total<T>() -> Decided<T> {
    invalid("delta", "is a change of the total")
}

/// The first field in which an adjustment, asked again, differs from its receipt.
pub(super) fn adjustment_differs(adjust: &Adjust, known: &Adjustment) -> Option<&'static str> {
    let differing = |field| (adjust.change != known.change).then_some(field);
    let change = match (adjust.change, known.change) {
        (Change::Set { total, .. }, Change::Set { total: was, .. }) if total == was => {
            differing("if_revision")
        }
        (Change::Set { .. }, _) => differing("set_total"),
        (Change::RaiseIn { units, region }, Change::RaiseIn { units: was, region: before })
        | (Change::LowerIn { units, region }, Change::LowerIn { units: was, region: before })
            if units == was && region != before =>
        {
            differing("region")
        }
        (
            Change::Raise(_)
            | Change::Lower(_)
            | Change::RaiseIn { .. }
            | Change::LowerIn { .. }
            | Change::Claim(_)
            | Change::Move(_),
            _,
        ) => differing("delta"),
    };
    change.or((adjust.reason != known.reason).then_some("reason"))
}
