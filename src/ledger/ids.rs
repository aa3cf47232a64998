//! The ledger's names for numbers that must not be confused.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// One Raft group: its log, its leader, its ledger. Counted from 0.
    ShardId(u16)
}
number! {
    /// One process of the cluster. Given out by the cluster, never reused. Counted from 1.
    NodeId(u64)
}
number! {
    /// What an item is called in the ledger. Given by the home shard and never reused: an item
    /// that was deleted and created again has another number. Counted from 1.
    ItemNumber(u64)
}
number! {
    /// The number of a bucket within its item, counted from 0 and never reused. Bucket 0 lives on
    /// the home shard for ever.
    BucketId(u16)
}
number! {
    /// The place of a region in its item's list, counted from 0 and never reused.
    RegionOrdinal(u16)
}
number! {
    /// An index of the Raft log.
    LogIndex(u64)
}
number! {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    UnixMs(u64)
}

/// The largest quantity, total, or quota: 2^53 − 1 units, the largest integer that every JSON
/// reader keeps exact.
pub const QUANTITY_MAX: u64 = (1 << 53) - 1;

/// A leadership: two nodes may lead in one term, so it is compared by term *and* node.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LeaderId {
    /// The Raft term.
    pub term: u64,
    /// The leading node.
    pub node: NodeId,
}

impl fmt::Display for LeaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.node)
    }
}

/// Where an answer stands in a shard's log; printed `shard:term.node:index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CommitPoint {
    /// The shard whose log it is.
    pub shard: ShardId,
    /// The leadership that wrote the entry.
    pub leader: LeaderId,
    /// The entry's index.
    pub index: LogIndex,
}

impl fmt::Display for CommitPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.shard, self.leader, self.index)
    }
}

/// An item as its callers name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemName {
    /// The tenant, 1–128 bytes of printable ASCII without `/`.
    pub tenant: String,
    /// The tenant's name for the item, under the same rule.
    pub item: String,
}

/// An [`ItemName`] that borrows its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NameRef<'a> {
    /// See [`ItemName::tenant`].
    pub tenant: &'a str,
    /// See [`ItemName::item`].
    pub item: &'a str,
}

impl ItemName {
    /// Borrows it.
    pub fn borrowed(&self) -> NameRef<'_> {
        NameRef { tenant: &self.tenant, item: &self.item }
    }
}

impl NameRef<'_> {
    /// Copies it.
    pub fn owned(&self) -> ItemName {
        ItemName { tenant: self.tenant.to_owned(), item: self.item.to_owned() }
    }
}

/// A name in either form, so that a map of owned names can be asked by a borrowed one.
pub(super) trait Named {
    fn name(&self) -> NameRef<'_>;
}

impl Named for ItemName {
    fn name(&self) -> NameRef<'_> {
        self.borrowed()
    }
}

impl Named for NameRef<'_> {
    fn name(&self) -> NameRef<'_> {
        *self
    }
}

impl<'a> Borrow<dyn Named + 'a> for ItemName {
    fn borrow(&self) -> &(dyn Named + 'a) {
        self
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Named + '_ {}

impl PartialOrd for dyn Named + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Named + '_ {
    // The order of the owned names: tenant, then item.
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(&other.name())
    }
}

impl fmt::Display for ItemName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.item)
    }
}
