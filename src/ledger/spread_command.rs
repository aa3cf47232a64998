//! What is asked of items that lie on several buckets: layouts, copies, totals, deletion.
//!
//! Who proposes what, in which order, is told at the head of `command.rs`. Every command carries
//! the item's number, so one life's message does nothing in another's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::{BucketPlacement, RegionInfo};
use super::command::{Change, Define, Definition, Mode, RegionPlan};
use super::ids::{ItemName, ItemNumber, ShardId, UnixMs};

/// One item, as other shards name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemRef {
    /// The item's home shard, which gave the number.
    pub home: ShardId,
    /// The item.
    pub item: ItemNumber,
}

/// Creates an item over several buckets, or configures the one that has this name (home shard).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefineSpread {
    /// The definition; its `regions` name the buckets of each.
    pub define: Define,
    /// The shard of each bucket of each region, in the order of the buckets: distinct within a
    /// region, and the home shard first in the default region (its first bucket is bucket 0).
    /// Read only when the item is created.
    pub shards: BTreeMap<String, Vec<ShardId>>,
}

/// Changes quotas and floors, adds regions, closes and reopens them (home shard).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetLayout {
    /// The item.
    pub name: ItemName,
    /// The number that its layout was read with.
    pub item: ItemNumber,
    /// The revision that the caller has read.
    pub if_revision: u64,
    /// All regions from now on. A region that exists keeps its buckets; one that is left out must
    /// be closed already. A quota that falls to 0 closes its region, one that rises from 0 reopens
    /// it. Quotas sum to at most the total.
    pub regions: BTreeMap<String, RegionPlan>,
    /// The shards of the new regions' buckets, distinct within a region.
    pub shards: BTreeMap<String, Vec<ShardId>>,
}

/// What a shard's copy of an item must be: definition, mode, regions and layout at one revision.
/// Opens the buckets that the layout puts on that shard and that are not open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configure {
    /// The item.
    pub item: ItemRef,
    /// Its name.
    pub name: ItemName,
    /// The home shard's revision of all this; applied only when it is greater than the copy's.
    pub revision: u64,
    /// What its buyers may do.
    pub mode: Mode,
    /// The definition.
    pub definition: Definition,
    /// All its regions.
    pub regions: Vec<RegionInfo>,
    /// All its buckets.
    pub layout: Vec<BucketPlacement>,
}

/// Tells the home shard what a copy has answered (home shard).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyAnswered {
    /// The item.
    pub item: ItemRef,
    /// Whose copy it is.
    pub shard: ShardId,
    /// What it has answered.
    pub state: CopyState,
}

/// What a shard says of its copy of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyState {
    /// It is at this revision.
    Applied {
        /// The revision.
        revision: u64,
        /// What its buyers may do.
        mode: Mode,
        /// Units held there by holds that are not due, in all the item's buckets.
        held: u64,
        /// Whether a broken law paused it there.
        broken: bool,
    },
    /// The item is deleted and the shard knows it.
    Erased,
}

/// Tells a shard that an item is deleted: its holds and receipts are erased there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EraseCopy {
    /// The item.
    pub item: ItemRef,
}

/// Begins to lower a total: bucket 0 keeps what it has and gets, up to the units needed, from sale
/// and from transfers out (home shard).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowerBegin {
    /// The item.
    pub name: ItemName,
    /// Its number.
    pub item: ItemNumber,
    /// The caller's idempotency key, in one scope with those of `Adjust`.
    pub key: String,
    /// The change, which must lower the total.
    pub change: Change,
    /// Why, in the caller's words, ≤ 256 bytes.
    pub reason: String,
    /// When its proposer means to give up; only remembered.
    pub until: UnixMs,
}

/// Ends a lowering, one way or the other (home shard).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowerEnd {
    /// The item.
    pub name: ItemName,
    /// Its number.
    pub item: ItemNumber,
    /// The key of its beginning.
    pub key: String,
}

/// Begins, gives up or carries out the deletion of an item (home shard).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// The item.
    pub name: ItemName,
    /// Its number.
    pub item: ItemNumber,
}
