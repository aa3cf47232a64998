//! What the ledger can be asked without changing it. Every answer is of one applied index.

use serde::{Deserialize, Serialize};

use super::answer::{HoldState, HoldView, ItemView, PauseReason};
use super::command::{
    AcceptStock, BucketRef, Configure, EraseCopy, ItemRef, KeyScope, LowerBegin, Mode,
};
use super::hold::HoldId;
use super::ids::{BucketId, ItemName, ItemNumber, RegionOrdinal, ShardId, UnixMs};

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
    /// One item's sums on this shard, by cause, its holds counted anew: a step for each of them.
    Audit(ItemName),
    /// The same without counting holds: each slot of a bucket keeps its sums, and these are added.
    /// [`Query::Recount`] asks slot by slot whether they are right.
    Sums(ItemName),
    /// Counts some of an item's holds anew, slot by slot.
    Recount {
        /// The item.
        name: ItemName,
        /// The bucket and its slot at which to go on.
        from: Option<(BucketId, u16)>,
    },
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
        /// Only names greater than this.
        after: Option<String>,
        /// At most so many.
        limit: u32,
    },
    /// The levels and counters of an item's buckets on this shard, in one read.
    Levels(ItemRef),
    /// What another shard's copy of an item must be (home shard).
    Copy {
        /// The item.
        item: ItemRef,
        /// The other shard.
        shard: ShardId,
    },
    /// What this shard's leader has to repeat until it is answered.
    Duties {
        /// Only buckets after this one, and items after this one's.
        after: Option<BucketRef>,
        /// At most so many buckets and as many items.
        limit: u32,
    },
    /// The roster of nodes (shard 0).
    Roster,
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
    /// What a recount found.
    Recount(Recount),
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
    /// Levels.
    Levels(Levels),
    /// What the copy must be.
    Copy(Box<Configure>),
    /// Duties.
    Duties(Vec<Duty>),
    /// The roster.
    Roster {
        /// The roster.
        roster: Box<super::Roster>,
        /// Ledger time.
        now: UnixMs,
    },
}

/// What a shard's leader repeats until it is answered; see the head of `command.rs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Duty {
    /// Propose `accept` at the receiver's shard; its answer makes a `SettleStock` here.
    Deliver {
        /// The newest {S, F}.
        accept: AcceptStock,
        /// The receiver's shard, as far as this shard's copy of the layout knows it.
        shard: Option<ShardId>,
    },
    /// Propose `configure` at `shard`; its answer makes a `CopyAnswered` here.
    Configure {
        /// The copy's shard.
        shard: ShardId,
        /// What the copy must be.
        configure: Box<Configure>,
    },
    /// Propose `erase` at `shard`; its answer makes a `CopyAnswered` here.
    Erase {
        /// The copy's shard.
        shard: ShardId,
        /// What to propose.
        erase: EraseCopy,
    },
    /// A lowering is under way: pull into bucket 0, then commit or abort.
    Lower {
        /// The item.
        item: ItemRef,
        /// How it began.
        begun: LowerBegin,
        /// Units that bucket 0 keeps for it now.
        earmarked: u64,
        /// Units that it needs.
        needed: u64,
    },
    /// A deletion is under way: commit it, or abort it.
    Delete {
        /// The item.
        item: ItemRef,
        /// Its name.
        name: ItemName,
        /// Units held that are known of, here and in the answers of copies.
        held: u64,
    },
}

/// An item's buckets on one shard, read at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// The item.
    pub item: ItemRef,
    /// The revision of this shard's copy, or the item's own at home.
    pub revision: u64,
    /// The version of the layout at home; `None` on other shards.
    pub layout_version: Option<u64>,
    /// The total as the home shard has it; `None` on other shards.
    pub total: Option<u64>,
    /// What its buyers may do here.
    pub mode: Mode,
    /// Whether a broken law paused it here.
    pub invariant_broken: bool,
    /// The buckets here.
    pub buckets: Vec<Level>,
    /// Ledger time of this answer.
    pub as_of: UnixMs,
    /// The log index that it was read at.
    pub applied: u64,
}

/// What a bucket can give, and its counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// The bucket.
    pub bucket: BucketId,
    /// Its region.
    pub region: RegionOrdinal,
    /// Units that a placement, or its own region, could take now: available and due, less what is
    /// earmarked for a lower total.
    pub free: u64,
    /// Units of those that other regions may take.
    pub lendable: u64,
    /// Units that are earmarked.
    pub earmarked: u64,
    /// Units held by holds that are not due.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
    /// Its share of its region's floor.
    pub floor: u64,
    /// Floor that home has taken back while it had travelled: given up as it arrives here.
    pub floor_owed: u64,
    /// Units that came in from outside.
    pub received: u64,
    /// Units written off.
    pub written_off: u64,
    /// Grows by whatever raises what it could give: accept, release, expiry, return, raise, and an
    /// earmark or a floor that is lifted.
    pub credits: u64,
    /// Units sent and not known to be accepted, to all receivers.
    pub in_transit: u64,
    /// Its counters with each other bucket that it has traded with.
    pub pairs: Vec<PairLevel>,
}

impl Level {
    /// Whether it knows of nothing on its way out: S = A for every receiver.
    pub fn is_settled(&self) -> bool {
        self.in_transit == 0
    }
}

/// The running totals of a bucket with one other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairLevel {
    /// The other.
    pub peer: BucketId,
    /// S: units ever sent to it.
    pub sent: u64,
    /// F: floor ever sent to it.
    pub floor_sent: u64,
    /// A: units that it is known to have accepted.
    pub acked: u64,
    /// R: units ever accepted from it.
    pub accepted: u64,
    /// Floor ever accepted from it.
    pub floor_accepted: u64,
}

/// What became of a key.
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
    /// Units set aside for a lower total, which no placement could take.
    pub earmarked: u64,
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

/// Some slots' holds, counted anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recount {
    /// The item's number.
    pub number: ItemNumber,
    /// Buckets in which a slot's holds do not add up to its sums.
    pub astray: Vec<Astray>,
    /// Where to go on; `None` when all are counted.
    pub next: Option<(BucketId, u16)>,
}

/// Holds of a bucket that do not add up to what is kept of their sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Astray {
    /// The bucket.
    pub bucket: BucketId,
    /// Units held, counted less kept.
    pub held: i64,
    /// Units sold, counted less kept.
    pub sold: i64,
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
