//! The hold: its id and its record.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ids::{BucketId, ItemNumber, RegionOrdinal, ShardId};

/// A hold's id. It routes itself (home shard, item number, region, bucket, slot and sequence), and
/// its keyed tag makes it hard to guess. Printed `hld_` and 26 … 40 characters of base 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HoldId {
    /// The item's home shard.
    pub home: ShardId,
    /// The item.
    pub item: ItemNumber,
    /// The region.
    pub region: RegionOrdinal,
    /// The bucket.
    pub bucket: BucketId,
    /// The slot within the bucket.
    pub slot: u16,
    /// The sequence within the slot, counted from 1.
    pub sequence: u64,
    /// Forty bits of a keyed hash of all the above.
    pub tag: u64,
}

/// The text is not a hold id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hold id is `hld_` and lower-case base 32 as the server gave it")]
pub struct NotAHoldId;

impl fmt::Display for HoldId {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!("ledger helper")
    }
}

impl FromStr for HoldId {
    type Err = NotAHoldId;

    fn from_str(_text: &str) -> Result<HoldId, NotAHoldId> {
        todo!("ledger helper")
    }
}
