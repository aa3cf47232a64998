//! The layout of an item at its home shard: its creation, regions that come, close and reopen,
//! quotas and floors; and the opening of buckets on any shard.
//!
//! Promises: region ordinals and bucket numbers count up and are never used again; a region's
//! buckets and the default region never change; bucket 0 is on the home shard. A floor is granted
//! to the region's first bucket, and what is taken back while it has travelled is owed by that
//! bucket, so the shares of a region, less what is owed, sum to its floor. Never moves stock:
//! quotas are where stock is meant to lie.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{Answer, BucketPlacement, CopyView, Operation, Refusal, RegionInfo};
use super::bounds::{self, Decided, invalid, refuse};
use super::bucket::Counters;
use super::command::{Define, DefineSpread, Mode, RegionPlan, SetLayout};
use super::definition::{DEFAULT_REGION, DefinePlan, first_bucket};
use super::ids::{BucketId, ItemNumber, RegionOrdinal, ShardId, UnixMs};
use super::item::{Home, Item, ItemKey, ItemRecord, Region};
use super::{BucketRef, Ledger};

/// The most regions that an item ever has; an item's record stays within a page.
pub(super) const REGIONS_MAX: usize = 16;
/// The most buckets that an item ever has.
pub(super) const BUCKETS_MAX: usize = 256;

/// A region to be made.
#[derive(Debug, Clone)]
pub(super) struct NewRegion {
    pub(super) name: String,
    pub(super) plan: RegionPlan,
    /// The shards of its buckets.
    pub(super) shards: Vec<ShardId>,
}

/// What a change of the layout will do.
#[derive(Debug, Clone)]
pub(super) struct LayoutPlan {
    item: ItemKey,
    plans: BTreeMap<String, RegionPlan>,
    /// All regions then, and all buckets.
    regions: Vec<RegionInfo>,
    layout: Vec<BucketPlacement>,
}

impl Ledger {
    pub(super) fn judge_define_spread(&self, spread: &DefineSpread) -> Decided<DefinePlan> {
        let regions = &spread.define.regions;
        self.judge_definition(&spread.define, |total| {
            let default = match regions.contains_key(DEFAULT_REGION) {
                true => Some(DEFAULT_REGION),
                false => regions.keys().next().map(String::as_str),
            };
            let Some(default) = default else {
                return invalid("regions", "are needed, with the shards of their buckets");
            };
            let quotas = sum_of_quotas(regions)?;
            if quotas != total {
                return invalid("regions", "the quotas must sum to the total");
            }
            let first = std::iter::once(default);
            let others = regions.keys().map(String::as_str).filter(|name| *name != default);
            let new = first.chain(others).filter_map(|name| Some((name, regions.get(name)?)));
            let made: Vec<NewRegion> = new
                .map(|(name, plan)| self.new_region(name, plan, &spread.shards))
                .collect::<Decided<_>>()?;
            within_bounds(&made, &[], &[])?;
            let home = made.first().and_then(|region| region.shards.first());
            if home != Some(&self.books.shard) {
                return invalid("shards", "bucket 0 must be on the home shard");
            }
            Ok(made)
        })
    }

    pub(super) fn define_spread(&mut self, spread: &DefineSpread) -> Answer {
        let plan = self.judge_define_spread(spread);
        self.carry_out(&spread.define, plan)
    }

    /// Checks a region that is to be made.
    fn new_region(
        &self,
        name: &str,
        plan: &RegionPlan,
        shards: &BTreeMap<String, Vec<ShardId>>,
    ) -> Decided<NewRegion> {
        bounds::name("regions", name)?;
        let field = |part: &str| format!("regions.{name}.{part}");
        let most = self.books.settings.shards.max(1);
        if plan.buckets == 0 || plan.buckets > most {
            return invalid(&field("buckets"), &format!("must be from 1 to {most}"));
        }
        if plan.floor > plan.quota {
            return invalid(&field("floor"), "must be at most the quota");
        }
        let shards = shards.get(name).cloned().unwrap_or_default();
        let distinct: BTreeSet<ShardId> = shards.iter().copied().collect();
        let right = shards.len() == usize::from(plan.buckets)
            && distinct.len() == shards.len()
            && distinct.last().is_some_and(|shard| shard.0 < most);
        if !right {
            return invalid(&field("shards"), "must be as many different shards as buckets");
        }
        Ok(NewRegion { name: name.to_owned(), plan: *plan, shards })
    }

    /// Creates an item; the first region is the default one.
    pub(super) fn create(&mut self, define: &Define, made: Vec<NewRegion>) -> ItemKey {
        let shard = self.books.shard;
        let key: ItemKey = (shard, ItemNumber(self.next_item));
        self.next_item = self.next_item.saturating_add(1);
        let (regions, layout) = extended(&made, &[], &[]);
        let total = made.iter().fold(0_u64, |sum, new| sum.saturating_add(new.plan.quota));
        let mut record = ItemRecord {
            name: define.name.clone(),
            definition: define.definition.clone(),
            revision: 1,
            mode: Mode::Open,
            invariant_broken: false,
            retired: false,
            erase_after: UnixMs(0),
            lifetime_ms_ever: define.definition.rules.lifetime_ms_max,
            regions: Vec::new(),
            layout: Vec::new(),
            created_at: self.books.now,
            home: Some(Home {
                total,
                plans: made.into_iter().map(|new| (new.name, new.plan)).collect(),
                config: 1,
                copies: Vec::new(),
                lowering: None,
                deleting: None,
                next_adjustment: 0,
            }),
        };
        record.lifetime_ms_ever = define.definition.rules.lifetime_ms_max;
        self.add_item(key, record);
        self.lay_out(key, &regions, layout);
        if let Some(bucket) = self.buckets.get_mut(&first_bucket(key)) {
            bucket.stock.received = total;
            bucket.stock.available = total;
            bucket.stock.credits = total;
        }
        key
    }

    pub(super) fn judge_layout(&self, set: &SetLayout) -> Decided<LayoutPlan> {
        let (key, item, home) = self.item_of_number(&set.name, set.item)?;
        if set.if_revision != item.record.revision {
            return refuse(Refusal::RevisionMismatch { revision: item.record.revision });
        }
        self.not_busy(home)?;
        if sum_of_quotas(&set.regions)? > home.total {
            return invalid("regions", "the quotas must sum to at most the total");
        }
        let mut regions: Vec<RegionInfo> = item.record.regions.iter().map(Region::info).collect();
        let mut plans = home.plans.clone();
        for region in &mut regions {
            let Some(was) = home.plans.get(&region.name) else { continue };
            let Some(plan) = set.regions.get(&region.name) else {
                if region.closed {
                    continue;
                }
                return invalid("regions", "a region is not removed: close it with quota 0");
            };
            change_region(region, was, plan)?;
            plans.insert(region.name.clone(), *plan);
        }
        let new = set.regions.iter().filter(|(name, _)| !home.plans.contains_key(*name));
        let made: Vec<NewRegion> = new
            .map(|(name, plan)| self.new_region(name, plan, &set.shards))
            .collect::<Decided<_>>()?;
        within_bounds(&made, &regions, &item.record.layout)?;
        let (regions, layout) = extended(&made, &regions, &item.record.layout);
        plans.extend(made.into_iter().map(|new| (new.name, new.plan)));
        let closed_differs =
            item.record.regions.iter().zip(&regions).any(|(a, b)| a.closed != b.closed);
        if plans == home.plans && !closed_differs {
            return Err(Box::new(self.answer_item(key, false, true)));
        }
        Ok(LayoutPlan { item: key, plans, regions, layout })
    }

    pub(super) fn set_layout(&mut self, set: &SetLayout) -> Answer {
        let plan = match self.judge_layout(set) {
            Ok(plan) => plan,
            Err(answer) => return *answer,
        };
        self.touch_item(plan.item);
        if let Some(item) = self.items.get_mut(&plan.item) {
            item.revise_copies();
            if let Some(home) = &mut item.record.home {
                home.plans = plan.plans;
            }
        }
        self.lay_out(plan.item, &plan.regions, plan.layout);
        self.answer_item(plan.item, false, false)
    }

    /// Sets regions and layout of an item here: grants floors, opens the buckets that are this
    /// shard's, and at home notes the copies that are to be made. The item must be touched.
    pub(super) fn lay_out(
        &mut self,
        key: ItemKey,
        regions: &[RegionInfo],
        layout: Vec<BucketPlacement>,
    ) {
        let shard = self.books.shard;
        let Some(item) = self.items.get_mut(&key) else { return };
        item.record.layout = layout;
        if let Some(home) = &mut item.record.home {
            let known: BTreeSet<ShardId> = home.copies.iter().map(|copy| copy.shard).collect();
            let all: BTreeSet<ShardId> =
                item.record.layout.iter().map(|bucket| bucket.shard).collect();
            let new = all.into_iter().filter(|other| *other != shard && !known.contains(other));
            let copy = |shard| CopyView { shard, revision: 0, held: 0, broken: false };
            home.copies.extend(new.map(copy));
        }
        for info in regions {
            self.set_region(key, info);
        }
        let Some(item) = self.items.get(&key) else { return };
        let here = item.record.layout.iter().filter(|bucket| bucket.shard == shard);
        let missing: Vec<(BucketRef, Counters)> = here
            .map(|placement| (bucket_ref(key, placement.bucket), placement))
            .filter(|(bucket, _)| !self.buckets.contains_key(bucket))
            .map(|(bucket, placement)| {
                let place = item.place_in_region(placement);
                let granted = item.region_of(placement.region).filter(|_| place.0 == 0);
                let floor = granted.map_or(0, |region| region.floor);
                (bucket, Counters { region: placement.region, place, floor, ..Counters::default() })
            })
            .collect();
        for (bucket, stock) in missing {
            self.add_bucket(bucket, stock);
        }
    }

    /// Sets what is known of a region, and grants the change of its floor to its first bucket, if
    /// that is open here.
    fn set_region(&mut self, key: ItemKey, info: &RegionInfo) {
        let Ledger { items, buckets, books, .. } = self;
        let Some(item) = items.get_mut(&key) else { return };
        let first = item.first_of(info.ordinal).map(|first| bucket_ref(key, first.bucket));
        let known = item.record.regions.iter_mut().find(|known| known.ordinal == info.ordinal);
        let Some(region) = known else {
            item.record.regions.push(Region::new(info));
            return;
        };
        let was = std::mem::replace(&mut region.floor, info.floor);
        region.closed = info.closed;
        let Some(bucket) = first.and_then(|first| buckets.get_mut(&first)) else { return };
        let (more, less) = (info.floor.saturating_sub(was), was.saturating_sub(info.floor));
        if more == 0 && less == 0 {
            return;
        }
        bucket.touch(books);
        let stock = &mut bucket.stock;
        let paid = more.min(region.owed);
        region.owed = region.owed.saturating_sub(paid);
        stock.floor = stock.floor.saturating_add(more.saturating_sub(paid));
        let lifted = less.min(stock.floor);
        stock.floor = stock.floor.saturating_sub(lifted);
        region.owed = region.owed.saturating_add(less.saturating_sub(lifted));
        // A floor that is lifted raises what other regions may take.
        stock.credits = stock.credits.saturating_add(lifted);
    }

    /// The item of this name and number at home.
    pub(super) fn item_of_number(
        &self,
        name: &super::ids::ItemName,
        number: ItemNumber,
    ) -> Decided<(ItemKey, &Item, &Home)> {
        let (key, item) = self.item_at_home(name)?;
        let Some(home) = &item.record.home else { return refuse(Refusal::NotOwner) };
        if key.1 != number {
            return refuse(Refusal::ItemNotFound);
        }
        Ok((key, item, home))
    }

    /// Refuses while a lowering or a deletion is under way.
    pub(super) fn not_busy(&self, home: &Home) -> Decided<()> {
        if home.deleting.is_some() {
            return refuse(Refusal::UnderWay { operation: Operation::Deletion });
        }
        if home.lowering.is_some() {
            return refuse(Refusal::UnderWay { operation: Operation::Lowering });
        }
        Ok(())
    }
}

/// A bucket of an item.
pub(super) fn bucket_ref(key: ItemKey, bucket: BucketId) -> BucketRef {
    BucketRef { home: key.0, item: key.1, bucket }
}

/// What becomes of a region that exists.
fn change_region(region: &mut RegionInfo, was: &RegionPlan, plan: &RegionPlan) -> Decided<()> {
    let field = |part: &str| format!("regions.{}.{part}", region.name);
    if plan.buckets != was.buckets {
        return invalid(&field("buckets"), "cannot be changed: buyers never move between buckets");
    }
    if plan.floor > plan.quota {
        return invalid(&field("floor"), "must be at most the quota");
    }
    region.floor = plan.floor;
    if plan.quota != was.quota {
        region.closed = plan.quota == 0;
    }
    Ok(())
}

fn sum_of_quotas(regions: &BTreeMap<String, RegionPlan>) -> Decided<u64> {
    let mut sum = 0_u64;
    for (name, plan) in regions {
        bounds::stock(&format!("regions.{name}.quota"), plan.quota)?;
        sum = sum.saturating_add(plan.quota);
    }
    Ok(sum)
}

fn within_bounds(
    made: &[NewRegion],
    regions: &[RegionInfo],
    layout: &[BucketPlacement],
) -> Decided<()> {
    if made.len().saturating_add(regions.len()) > REGIONS_MAX {
        return invalid("regions", "an item has at most 16 regions in its life");
    }
    let new = made.iter().fold(0_usize, |sum, new| sum.saturating_add(new.shards.len()));
    if new.saturating_add(layout.len()) > BUCKETS_MAX {
        return invalid("regions", "an item has at most 256 buckets in its life");
    }
    Ok(())
}

/// Regions and layout with new regions behind those that are.
fn extended(
    made: &[NewRegion],
    regions: &[RegionInfo],
    layout: &[BucketPlacement],
) -> (Vec<RegionInfo>, Vec<BucketPlacement>) {
    let (mut regions, mut layout) = (regions.to_vec(), layout.to_vec());
    for new in made {
        let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let ordinal = RegionOrdinal(count(regions.len()));
        regions.push(RegionInfo {
            ordinal,
            name: new.name.clone(),
            default: ordinal == RegionOrdinal(0),
            closed: false,
            floor: new.plan.floor,
        });
        for shard in &new.shards {
            let bucket = BucketId(count(layout.len()));
            layout.push(BucketPlacement { bucket, shard: *shard, region: ordinal });
        }
    }
    (regions, layout)
}
