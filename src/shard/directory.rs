//! Where the buckets of spread items live, as far as this node knows.
//!
//! An item with one bucket needs no entry: it lives on its home shard, which its name tells. What
//! is here may be old, and never decides anything: the ledger that is asked says `not-owner`, and
//! the router learns the layout anew from the item's home.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::ledger::{
    BucketId, BucketPlacement, BucketRef, ItemRef, ItemView, NameRef, RegionOrdinal, ScopeRef,
    ShardId,
};

/// Layouts that are kept at most; beyond it the oldest numbers go, and are learned anew.
const LAYOUTS_MAX: usize = 65_536;

/// The layout of one item that is spread over several buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    view: ItemView,
}

impl Layout {
    /// Takes the layout out of an item; `None` for an item of one bucket, which needs none.
    pub(crate) fn of(view: &ItemView) -> Option<Layout> {
        (view.buckets.len() > 1).then(|| Layout { view: view.clone() })
    }

    /// Names the item by its number.
    pub(crate) fn item(&self) -> ItemRef {
        ItemRef { home: self.view.home, item: self.view.number }
    }

    /// Returns the item as it was read.
    pub(crate) fn view(&self) -> &ItemView {
        &self.view
    }

    /// Finds the bucket that owns a buyer (or key), and its shard; `None` for a region that it does
    /// not know.
    pub(crate) fn owner(&self, scope: ScopeRef<'_>) -> Option<BucketPlacement> {
        self.view.owner(scope.region, scope.buyer, scope.key)
    }

    /// Returns where a bucket lives.
    pub(crate) fn place_of(&self, bucket: BucketId) -> Option<BucketPlacement> {
        self.view.buckets.iter().find(|place| place.bucket == bucket).copied()
    }

    /// Returns a bucket's region.
    pub(crate) fn region_of(&self, bucket: BucketId) -> Option<RegionOrdinal> {
        self.place_of(bucket).map(|place| place.region)
    }

    /// Every bucket.
    pub(crate) fn buckets(&self) -> &[BucketPlacement] {
        &self.view.buckets
    }

    /// Names one of its buckets.
    pub(crate) fn bucket(&self, bucket: BucketId) -> BucketRef {
        BucketRef { home: self.view.home, item: self.view.number, bucket }
    }

    /// The shards on which it has buckets, each once, the home first.
    pub(crate) fn shards(&self) -> Vec<ShardId> {
        let mut shards = vec![self.view.home];
        for place in &self.view.buckets {
            if !shards.contains(&place.shard) {
                shards.push(place.shard);
            }
        }
        shards
    }
}

#[derive(Debug, Default)]
struct Known {
    /// By tenant, then by item.
    by_name: HashMap<String, HashMap<String, ItemRef>>,
    by_number: BTreeMap<ItemRef, Arc<Layout>>,
}

impl Known {
    fn named(&self, name: NameRef<'_>) -> Option<ItemRef> {
        self.by_name.get(name.tenant)?.get(name.item).copied()
    }
}

/// One node's directory of spread items. One for all threads.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    known: RwLock<Known>,
    count: AtomicUsize,
}

impl Directory {
    /// Tells whether no spread item is known: then every item lives at home.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the layout of an item, if it is spread and known here.
    pub(crate) fn named(&self, name: NameRef<'_>) -> Option<Arc<Layout>> {
        if self.is_empty() {
            return None;
        }
        let known = self.known.read();
        known.named(name).and_then(|item| known.by_number.get(&item)).cloned()
    }

    /// Returns the layout of the item with this number, if it is spread and known here.
    pub(crate) fn numbered(&self, item: ItemRef) -> Option<Arc<Layout>> {
        if self.is_empty() {
            return None;
        }
        self.known.read().by_number.get(&item).cloned()
    }

    /// Returns every layout known, one clone of a pointer each.
    pub(crate) fn all(&self) -> Vec<Arc<Layout>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.known.read().by_number.values().cloned().collect()
    }

    /// Learns where an item's buckets live. What is older than what is known is passed over.
    pub(crate) fn learn(&self, view: &ItemView) {
        let name = view.name.borrowed();
        let Some(layout) = Layout::of(view) else { return self.forget(name, view.number.0) };
        let item = layout.item();
        let is_news = |known: &Known| {
            known.by_number.get(&item).is_none_or(|old| old.view.revision < view.revision)
        };
        if !is_news(&self.known.read()) {
            return;
        }
        let mut known = self.known.write();
        if !is_news(&known) {
            return;
        }
        if known.by_number.len() >= LAYOUTS_MAX {
            known.by_number.pop_first();
        }
        // The number of an item that was deleted stays: its holds are looked up by it.
        known.by_number.insert(item, Arc::new(layout));
        if known.named(name).is_none_or(|old| old.item <= view.number) {
            let tenant = known.by_name.entry(view.name.tenant.clone()).or_default();
            tenant.insert(view.name.item.clone(), item);
        }
        self.count.store(known.by_number.len(), Ordering::Release);
    }

    /// Forgets what a name stood for, when an item of that number or a later one is not spread.
    fn forget(&self, name: NameRef<'_>, number: u64) {
        if self.is_empty() {
            return;
        }
        let mut known = self.known.write();
        if known.named(name).is_some_and(|item| item.item.0 <= number)
            && let Some(tenant) = known.by_name.get_mut(name.tenant)
        {
            tenant.remove(name.item);
        }
    }

    /// Forgets what a name stood for: its home knows no such item.
    pub(crate) fn forget_name(&self, name: NameRef<'_>) {
        self.forget(name, u64::MAX);
    }
}
