//! What the ledger can be asked without changing it. Every answer is of one applied index.

use serde::{Deserialize, Serialize};

use super::answer::{HoldState, HoldView, ItemView, PauseReason};
use super::command::{KeyScope, Mode};
use super::hold::HoldId;
use super::ids::{BucketId, ItemName, ItemNumber, UnixMs};

/// A question that changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// One hold.
    Hold {
        /// The hold.
        id: HoldId,
        /// The tenant who asks.
        tenant: String,
    },
    /// What became of a placing key.
    Receipt(KeyScope),
    /// One item's definition.
    Item(ItemName),
    /// A tenant's items on this shard, by name.
    Items {
        /// The tenant.
        tenant: String,
        /// Only names greater than this.
        after: Option<String>,
        /// At most so many.
        limit: u32,
    },
    /// One item's stock on this shard.
    Availability(ItemName),
    /// One item's sums on this shard, by cause.
    Audit(ItemName),
    /// Holds of one item on this shard, by hold id.
    Holds {
        /// The item.
        name: ItemName,
        /// Only this buyer's.
        buyer: Option<String>,
        /// Only in this state.
        state: Option<HoldState>,
        /// Only after this hold, in the order of the answer.
        after: Option<HoldId>,
        /// At most so many.
        limit: u32,
    },
    /// The items of this shard that cannot be reserved now.
    SoldOut {
        /// The tenant.
        tenant: String,
    },
}

/// The answer to a [`Query`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// The hold.
    Hold(Box<HoldView>),
    /// A receipt.
    Receipt(Receipt),
    /// The item.
    Item(Box<ItemView>),
    /// Items, in the order of their names.
    Items(Vec<ItemView>),
    /// Stock.
    Availability(Availability),
    /// Sums.
    Audit(Audit),
    /// Holds, in the order of their ids, and whether there are more.
    Holds {
        /// The holds.
        holds: Vec<HoldView>,
        /// Whether more follow.
        more: bool,
    },
    /// Names of items that cannot be reserved now.
    SoldOut(Vec<SoldOutItem>),
    /// There is no such item, region or hold.
    NotFound,
}

/// What became of a key.
#[expect(clippy::large_enum_variant, reason = "it lives for one answer")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Receipt {
    /// It made this hold.
    Committed(Box<HoldView>),
    /// It was voided.
    Voided,
    /// The ledger does not know it.
    Unknown,
}

/// Why an item cannot be reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoldOutItem {
    /// The item's name within its tenant.
    pub item: String,
    /// Its number.
    pub number: ItemNumber,
    /// `None`: nothing is left. Otherwise it is paused.
    pub paused: Option<PauseReason>,
    /// Whether units are held that may come back.
    pub may_return: bool,
}

/// One item's stock on one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Availability {
    /// The item's number.
    pub number: ItemNumber,
    /// The total as the home shard has it; `None` on other shards.
    pub total: Option<u64>,
    /// What its buyers may do.
    pub mode: Mode,
    /// Whether a broken law paused it.
    pub invariant_broken: bool,
    /// The sale's opening.
    pub opens_at: Option<UnixMs>,
    /// The sale's end.
    pub closes_at: Option<UnixMs>,
    /// Buckets on this shard.
    pub buckets: Vec<BucketStock>,
    /// Ledger time of this answer.
    pub as_of: UnixMs,
}

/// One bucket's stock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketStock {
    /// The bucket.
    pub bucket: BucketId,
    /// Its region's name.
    pub region: String,
    /// Units that a placement could take now: available and due.
    pub available: u64,
    /// Units held by holds that are not due.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
    /// Units sent and not known to be accepted.
    pub in_transit_out: u64,
}

/// One item's sums on one shard, by cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The item's number.
    pub number: ItemNumber,
    /// The total as the home shard has it; `None` on other shards.
    pub total: Option<u64>,
    /// Each bucket's equation.
    pub buckets: Vec<BucketAudit>,
    /// Ledger time of this answer.
    pub as_of: UnixMs,
    /// The log index that it was computed at.
    pub applied: u64,
}

/// received + accepted = available + held + sold + written off + sent, for one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketAudit {
    /// The bucket.
    pub bucket: BucketId,
    /// Its region's name.
    pub region: String,
    /// Units that came in from outside.
    pub received: u64,
    /// Units accepted, by donor.
    pub accepted: Vec<(BucketId, u64)>,
    /// Units that can be held (due ones still count as held here).
    pub available: u64,
    /// Units held.
    pub held: u64,
    /// Units of those whose deadline has passed and which are not swept.
    pub due: u64,
    /// Units sold.
    pub sold: u64,
    /// Units written off.
    pub written_off: u64,
    /// Units sent, by receiver.
    pub sent: Vec<(BucketId, u64)>,
    /// Σ of the open quantities of its live holds, counted anew from the holds themselves.
    pub held_counted: u64,
    /// Σ of the sold quantities of its holds, counted anew from the holds that are still kept; sold
    /// holds that were forgotten after their retention are in `sold_forgotten`.
    pub sold_counted: u64,
    /// Units sold by holds that were forgotten after their retention.
    pub sold_forgotten: u64,
    /// Whether every equation holds.
    pub holds: bool,
}
