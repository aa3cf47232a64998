//! Items, their stock and their audit on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time::Timestamp;

/// Creates or configures an item (`PUT /v1/items/{item}`). It says the whole definition: what is
/// absent gets its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutItem {
    /// Units that exist. Needed to create; afterwards equal to the total, or absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub total: Option<u64>,
    /// Over how many buckets, on as many shards, the item is spread, each selling a share of it; 1
    /// when absent. Fixed at creation, at most the cluster's shards. Given for each region when
    /// there are `regions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub buckets: Option<u16>,
    /// Regions by name at creation; their quotas sum to the total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub regions: Option<BTreeMap<String, RegionSpec>>,
    /// The rules for holds placed from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hold: Option<HoldRules>,
    /// How many units a buyer may have held and sold at once within a region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub limit_per_buyer: Option<u64>,
    /// When holds are placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub sale: Option<SaleWindow>,
    /// The caller's own words, at most 4 KiB in all, kept as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// A region of an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegionSpec {
    /// Units of the total that the region starts with.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub quota: u64,
    /// Units that other regions may not take; 0 when absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub floor: u64,
    /// Over how many buckets it is spread; 1 when absent.
    #[serde(default = "one")]
    #[schema(minimum = 1)]
    pub buckets: u16,
}

fn one() -> u16 {
    1
}

/// The rules that a hold gets at its placement and keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldRules {
    /// Lifetime of a hold that names none, in ms; 600,000 or the maximum, whichever is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 31_622_400_000_i64)]
    pub ttl_ms: Option<u64>,
    /// The longest lifetime that a placement or an extension may ask for, in ms; 3,600,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 31_622_400_000_i64)]
    pub max_ttl_ms: Option<u64>,
    /// How many times a hold may be extended; 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 10_000)]
    pub max_extends: Option<u32>,
    /// The longest time from placement to the last deadline, in ms; 7,200,000 or `max_ttl_ms`,
    /// whichever is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 31_622_400_000_i64)]
    pub max_lifetime_ms: Option<u64>,
}

/// When holds are placed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaleWindow {
    /// No hold is placed before this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub opens_at: Option<Timestamp>,
    /// No hold is placed from this moment on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub closes_at: Option<Timestamp>,
}

/// Changes a total (`POST /v1/items/{item}/adjustments`): either `delta` and `reason`, or
/// `set_total` with `If-Match`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdjustItem {
    /// Units that came in (positive) or are gone (negative); not 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delta: Option<i64>,
    /// The total itself, by a caller who has read the revision named in `If-Match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub set_total: Option<u64>,
    /// The region whose quota changes with the total; with `delta` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub region: Option<String>,
    /// Why, at most 256 bytes; required with `delta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    pub reason: Option<String>,
}

/// What an item lets its buyers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ItemState {
    /// Holds are placed, extended, confirmed and released.
    Open,
    /// Nothing is granted.
    Paused,
    /// No more holds; those that exist run their course.
    Closed,
}

/// An item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Item {
    /// Its name.
    pub item: String,
    /// Its number, never reused: an item deleted and created again has another.
    pub number: u64,
    /// What its buyers may do.
    pub state: ItemState,
    /// Why it is paused: `operator` or `invariant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused_reason: Option<String>,
    /// Units that exist.
    pub total: u64,
    /// Changes with every definition, total or state; also its `ETag`.
    pub revision: u64,
    /// The region of a hold that names none.
    pub default_region: String,
    /// Its regions by name.
    pub regions: BTreeMap<String, RegionSpec>,
    /// The rules for holds placed from now on.
    pub hold: HoldRules,
    /// How many units a buyer may have held and sold at once within a region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limit_per_buyer: Option<u64>,
    /// When holds are placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub sale: Option<SaleWindow>,
    /// The caller's own words.
    pub metadata: BTreeMap<String, String>,
    /// Where its buckets live.
    pub layout: Layout,
    /// When it was created.
    pub created_at: Timestamp,
}

/// Where an item's buckets live.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Layout {
    /// The shard that owns the definition and bucket 0.
    pub home_shard: u16,
    /// The buckets.
    pub buckets: Vec<BucketPlace>,
}

/// Where a bucket lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketPlace {
    /// The bucket.
    pub id: u16,
    /// Its shard.
    pub shard: u16,
    /// The place of its region in the item's list, counted from 0.
    pub region_ordinal: u16,
}

/// A page of items.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemList {
    /// The items, in the order of their names.
    pub items: Vec<Item>,
    /// Where the next page begins; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next_cursor: Option<String>,
}

/// Whether an item can be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SaleState {
    /// It can.
    OnSale,
    /// Nothing is left.
    SoldOut,
    /// The sale has not begun.
    Scheduled,
    /// The sale is over.
    Over,
    /// It grants nothing now.
    Paused,
    /// It takes no more holds.
    Closed,
}

/// An item's stock (`GET /v1/items/{item}/availability`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Availability {
    /// The item.
    pub item: String,
    /// Whether it can be reserved.
    pub state: SaleState,
    /// Why it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused_reason: Option<String>,
    /// Units that a placement could take.
    pub available: u64,
    /// Units held.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
    /// Units between buckets.
    pub in_transit: u64,
    /// Units set aside for a lower total, which no placement could take.
    pub earmarked: u64,
    /// Units that exist.
    pub total: u64,
    /// The ledger's time in this answer: that of the last entry of the item's shards. Old on a
    /// shard where nothing happens, though the figures are not.
    pub as_of: Timestamp,
    /// Each region's stock, with `?detail=buckets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub regions: Option<BTreeMap<String, Stock>>,
    /// Each bucket's stock, with `?detail=buckets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub buckets: Option<Vec<BucketStock>>,
}

/// The stock of a region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stock {
    /// Units that a placement could take.
    pub available: u64,
    /// Units held.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
}

/// The stock of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketStock {
    /// The bucket.
    pub id: u16,
    /// Its shard.
    pub shard: u16,
    /// Its region.
    pub region: String,
    /// Units that a placement could take.
    pub available: u64,
    /// Units held.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
    /// Units sent and not known to be accepted.
    pub in_transit_out: u64,
    /// Units set aside for a lower total.
    pub earmarked: u64,
}

/// The conservation sums of an item (`GET /v1/items/{item}/audit`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// The item.
    pub item: String,
    /// Its number.
    pub number: u64,
    /// Whether every law holds.
    pub conserved: bool,
    /// The laws that do not hold, in words.
    pub broken: Vec<String>,
    /// Units that exist.
    pub total: u64,
    /// Σ available over the buckets; due units count as held here.
    pub available: u64,
    /// Σ held.
    pub held: u64,
    /// Σ sold.
    pub sold: u64,
    /// Σ written off.
    pub written_off: u64,
    /// Σ sent − accepted over the ordered pairs.
    pub in_transit: i64,
    /// Each bucket's equation.
    pub buckets: Vec<BucketAudit>,
    /// Each ordered pair of buckets that ever traded.
    pub transfers: Vec<PairAudit>,
    /// The ledger's time in this answer: that of the last entry of the item's shards. Old on a
    /// shard where nothing happens, though the sums are not.
    pub as_of: Timestamp,
}

/// received + accepted = available + held + sold + written off + sent, for one bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BucketAudit {
    /// The bucket.
    pub id: u16,
    /// Its shard.
    pub shard: u16,
    /// The log index that it was read at.
    pub applied: u64,
    /// Its region.
    pub region: String,
    /// Units that came in from outside.
    pub received: u64,
    /// Units accepted from other buckets.
    pub accepted: u64,
    /// Units that can be held.
    pub available: u64,
    /// Units held, due ones included.
    pub held: u64,
    /// Units of holds whose deadline has passed and which are not swept.
    pub due: u64,
    /// Units sold.
    pub sold: u64,
    /// Units written off.
    pub written_off: u64,
    /// Units sent to other buckets.
    pub sent: u64,
    /// Σ over its live holds, counted anew.
    pub held_counted: u64,
    /// Σ over its sold holds, counted anew, with those that were forgotten.
    pub sold_counted: u64,
    /// Whether its equations hold.
    pub holds: bool,
}

/// What one bucket sent to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PairAudit {
    /// The donor.
    pub from: u16,
    /// The receiver.
    pub to: u16,
    /// Units ever sent, by the donor's ledger.
    pub sent: u64,
    /// Units ever accepted, by the receiver's.
    pub accepted: u64,
}

/// What cannot be reserved now (`GET /v1/sold-out`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SoldOut {
    /// The items, in the order of their names.
    pub items: Vec<SoldOutItem>,
    /// Where the next page begins; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next_cursor: Option<String>,
}

/// An item that cannot be reserved now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SoldOutItem {
    /// The item.
    pub item: String,
    /// Why it is paused; absent when nothing is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused_reason: Option<String>,
    /// Whether units are held that may come back.
    pub may_return: bool,
}

/// The answer to `DELETE /v1/items/{item}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedItem {
    /// The item.
    pub item: String,
    /// The number that will not be used again.
    pub number: u64,
}
