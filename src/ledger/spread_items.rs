//! Glances at items for those who route and trade: reads of applied state that no caller of the API
//! asks for. Never changes anything.

use std::ops::Bound;

use super::answer::ItemView;
use super::ids::{ItemNumber, ShardId};
use super::item::ItemKey;
use super::{ItemRef, Ledger};

/// A place in the order of a shard's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemCursor(Option<ItemKey>);

impl Ledger {
    /// Returns an item at its home, by its number; also one that was deleted, while it is known.
    pub fn item_numbered(&self, home: ShardId, item: ItemNumber) -> Option<ItemView> {
        self.items.get(&(home, item))?.view((home, item))
    }

    /// Looks at `steps` more items and returns those whose home is here and that lie on several
    /// buckets, each with its revision, and where to go on: at the beginning again when all were
    /// looked at.
    pub fn spread_from(&self, from: ItemCursor, steps: usize) -> (Vec<(ItemRef, u64)>, ItemCursor) {
        let after = from.0.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        let mut found = Vec::new();
        for (looked, (key, item)) in self.items.range((after, Bound::Unbounded)).enumerate() {
            if looked >= steps {
                return (found, ItemCursor(last));
            }
            last = Some(*key);
            let is_home = item.record.home.is_some();
            if is_home && item.record.layout.len() > 1 && !item.record.retired {
                found.push((ItemRef { home: key.0, item: key.1 }, item.record.revision));
            }
        }
        (found, ItemCursor(None))
    }
}
