//! Layouts and transfers on the wire: items over several buckets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time::Timestamp;

/// Changes an item's regions (`PUT /v1/items/{item}/layout`): all regions from now on. A region
/// that exists keeps its buckets; quota 0 closes it, a quota above 0 reopens it; one that is left
/// out must be closed already. What is absent of a region that exists stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutLayout {
    /// The regions by name; their quotas sum to at most the total.
    pub regions: BTreeMap<String, RegionChange>,
}

/// A region from now on. What is absent of one that exists stays as the caller read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegionChange {
    /// Units of the total that are meant to lie there; when absent, as it has. Required for a new
    /// region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub quota: Option<u64>,
    /// Units that other regions may not take; when absent, as it has but at most the new quota, 0
    /// for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub floor: Option<u64>,
    /// Over how many buckets it is spread. A region that exists keeps them: absent, or as it has;
    /// 1 for a new one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub buckets: Option<u16>,
}

/// Moves stock from one bucket to another (`POST /v1/items/{item}/transfers`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveStock {
    /// The bucket that gives.
    pub from: u16,
    /// The bucket that gets.
    pub to: u16,
    /// Units, in one step: more than may be under way at once are refused.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub quantity: u64,
}

/// Stock that was moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedStock {
    /// The bucket that gave.
    pub from: u16,
    /// The bucket that gets.
    pub to: u16,
    /// Units that the one had ever sent to the other right after this move.
    pub sent: u64,
    /// Units ever accepted; while it is less than `sent` some are on their way, and arrive by
    /// themselves.
    pub accepted: u64,
}

/// Where an item's stock lies (`GET /v1/items/{item}/layout`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemLayout {
    /// The item.
    pub item: String,
    /// Its number.
    pub number: u64,
    /// Changes with every definition, mode, region or bucket.
    pub version: u64,
    /// The item's revision, for `If-Match`; also the `ETag`.
    pub revision: u64,
    /// The region of a hold that names none.
    pub default_region: String,
    /// Units that exist.
    pub total: u64,
    /// Units between buckets.
    pub in_transit: u64,
    /// Its regions by name.
    pub regions: BTreeMap<String, RegionStock>,
    /// Its buckets.
    pub buckets: Vec<BucketLevel>,
    /// Shards that have not answered the last version yet.
    pub behind: Vec<u16>,
    /// What is under way: `lowering` or `deletion`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub operation: Option<String>,
    /// The ledger's time in this answer.
    pub as_of: Timestamp,
}

/// A region and its stock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegionStock {
    /// Units that are meant to lie there.
    pub quota: u64,
    /// Units that other regions may not take.
    pub floor: u64,
    /// Over how many buckets it is spread.
    pub buckets: u16,
    /// Which of them serves a buyer, so that a caller can go straight to its leader: the one at
    /// place XXH3-64(bytes of the buyer, or of the key when none is named; this seed, in hex)
    /// modulo `buckets` among the region's buckets as listed. Never changes.
    pub buyers_seed: String,
    /// Whether it takes no more holds.
    pub closed: bool,
    /// Units that a placement could take.
    pub available: u64,
    /// Units held.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
}

/// A bucket and its stock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BucketLevel {
    /// The bucket.
    pub id: u16,
    /// Its shard.
    pub shard: u16,
    /// Its region.
    pub region: String,
    /// The part of its region's buyers that it serves.
    pub share_of_buyers: f64,
    /// Units that a placement could take.
    pub available: u64,
    /// Units held.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
    /// Units sent and not known to be accepted.
    pub in_transit: u64,
    /// Its share of its region's floor.
    pub floor: u64,
    /// Units set aside for a lower total.
    pub earmarked: u64,
}

/// A change of an item on its way to all its shards
/// (`GET /v1/items/{item}/operations/{operation}`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemOperation {
    /// Its name.
    pub id: String,
    /// The item.
    pub item: String,
    /// The version of the layout that it brings.
    pub version: u64,
    /// `running` or `done`. It goes on by itself.
    pub state: String,
    /// Every shard with buckets of the item, the home first.
    pub steps: Vec<ItemStep>,
}

/// How a change of an item stands on one shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemStep {
    /// The shard.
    pub shard: u16,
    /// The version that it has answered.
    pub version: u64,
    /// Whether that is the change, or a later one.
    pub done: bool,
}

/// What ever moved between the buckets of an item (`GET /v1/items/{item}/transfers`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transfers {
    /// The item.
    pub item: String,
    /// The most units that one bucket may have under way.
    pub bound: u64,
    /// Each ordered pair of buckets that ever traded.
    pub transfers: Vec<Transfer>,
}

/// What one bucket sent to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transfer {
    /// The bucket that gives.
    pub from: u16,
    /// The bucket that gets.
    pub to: u16,
    /// Units ever sent.
    pub sent: u64,
    /// Units ever accepted, by the receiver's own word.
    pub accepted: u64,
}

/// What a change of the layout would do (`PUT …/layout?dry_run=true`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayoutPlan {
    /// The revision that it is planned from.
    pub revision: u64,
    /// What would change, one sentence each; empty when nothing would.
    pub changes: Vec<String>,
    /// The buckets that would be opened.
    pub new_buckets: Vec<NewBucket>,
}

/// A bucket that would be opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewBucket {
    /// Its region.
    pub region: String,
    /// Its shard.
    pub shard: u16,
}
