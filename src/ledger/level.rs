//! What the leaders of an item's shards tell each other, and what each has to repeat.
//!
//! Promises: all of one answer is of one applied index. What is to be repeated is found without
//! walking the items that owe nothing. Never changes anything.

use std::ops::Bound;

use super::bucket::Bucket;
use super::command::{AcceptStock, EraseCopy, ItemRef};
use super::escrow::in_transit;
use super::ids::BucketId;
use super::item::{Item, ItemKey};
use super::layout::bucket_ref;
use super::query::{Duty, Found, Level, Levels, PairLevel};
use super::{BucketRef, Ledger};

/// The most buckets and items of one answer about duties.
const DUTIES_MAX: usize = 1_000;

impl Ledger {
    pub(super) fn find_levels(&self, item: ItemRef) -> Found {
        let key: ItemKey = (item.home, item.item);
        let Some(found) = self.items.get(&key).filter(|found| !found.record.retired) else {
            return Found::NotFound;
        };
        let home = found.record.home.as_ref();
        Found::Levels(Levels {
            item,
            revision: found.record.revision,
            layout_version: home.map(|home| home.config),
            total: home.map(|home| home.total),
            mode: found.record.mode,
            invariant_broken: found.record.invariant_broken,
            buckets: self.buckets_of(key).map(|bucket| self.level(bucket)).collect(),
            as_of: self.books.now,
            applied: self.books.index.0,
        })
    }

    fn level(&self, bucket: &Bucket) -> Level {
        let (now, stock) = (self.books.now.0, &bucket.stock);
        let pairs = bucket.pairs.iter().map(|(peer, pair)| PairLevel {
            peer: BucketId(*peer),
            sent: pair.sent,
            floor_sent: pair.floor_sent,
            acked: pair.acked,
            accepted: pair.accepted,
            floor_accepted: pair.floor_accepted,
        });
        let (free, earmarked) = (bucket.sellable(now), bucket.earmarked(now));
        let above = bucket.units().saturating_sub(earmarked).saturating_sub(stock.floor);
        Level {
            bucket: bucket.key.bucket,
            region: stock.region,
            free,
            lendable: free.min(above),
            earmarked,
            held: bucket.live(now),
            sold: stock.sold,
            floor: stock.floor,
            received: stock.received,
            written_off: stock.written_off,
            credits: stock.credits,
            in_transit: in_transit(bucket),
            pairs: pairs.collect(),
        }
    }

    /// What this shard's leader has to repeat, of buckets and items after `after`.
    pub(super) fn find_duties(&self, after: Option<BucketRef>, limit: u32) -> Found {
        let limit = usize::try_from(limit).unwrap_or(DUTIES_MAX).min(DUTIES_MAX);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let owing = self.books.owing.range((from, Bound::Unbounded)).take(limit);
        let mut duties = Vec::new();
        for key in owing {
            let Some(bucket) = self.buckets.get(key) else { continue };
            let item = self.items.get(&(key.home, key.item));
            duties.extend(deliveries(bucket, item));
        }
        let after = after.map(|after| (after.home, after.item));
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for key in self.books.driven.range((from, Bound::Unbounded)).take(limit) {
            self.duties_of(*key, &mut duties);
        }
        Found::Duties(duties)
    }

    fn duties_of(&self, key: ItemKey, duties: &mut Vec<Duty>) {
        let Some(found) = self.items.get(&key) else { return };
        let Some(home) = &found.record.home else { return };
        let item = ItemRef { home: key.0, item: key.1 };
        if found.record.retired {
            let erase = |copy: &super::answer::CopyView| Duty::Erase {
                shard: copy.shard,
                erase: EraseCopy { item },
            };
            return duties.extend(home.copies.iter().map(erase));
        }
        // While a deletion waits for holds to end, copies are asked again although they answered.
        let waits = |copy: &&super::answer::CopyView| {
            copy.revision < home.config || (home.deleting.is_some() && copy.held > 0)
        };
        duties.extend(home.copies.iter().filter(waits).filter_map(|copy| {
            let configure = Box::new(self.image(item, copy.shard)?);
            Some(Duty::Configure { shard: copy.shard, configure })
        }));
        if let Some(lowering) = &home.lowering
            && let Some(bucket) = self.buckets.get(&bucket_ref(key, BucketId(0)))
        {
            let (earmarked, needed) = (bucket.earmarked(self.books.now.0), lowering.units);
            duties.push(Duty::Lower { item, begun: lowering.begin.clone(), earmarked, needed });
        }
        if home.deleting.is_some() {
            let (name, held) = (found.record.name.clone(), self.held_known(key));
            duties.push(Duty::Delete { item, name, held });
        }
    }
}

/// The newest {S, F} of every pair that is not settled.
fn deliveries<'a>(bucket: &'a Bucket, item: Option<&'a Item>) -> impl Iterator<Item = Duty> + 'a {
    let unsettled = bucket.pairs.iter().filter(|(_, pair)| pair.sent > pair.acked);
    unsettled.map(move |(peer, pair)| {
        let to = BucketRef { bucket: BucketId(*peer), ..bucket.key };
        let shard = item.and_then(|item| item.placement(to.bucket)).map(|place| place.shard);
        let accept = AcceptStock {
            to,
            from: bucket.key.bucket,
            sent: pair.sent,
            floor_sent: pair.floor_sent,
        };
        Duty::Deliver { accept, shard }
    })
}
