//! What the ledger can be asked: the commands of one log entry.
//!
//! Commands are numbered by their place in [`CommandOf`]: the list is append-only, a published
//! struct is never edited, and a command that this build does not know stops the node.
//! Names (tenant, item, region, buyer, key) are checked at the edge (`http/`, `client`): in here
//! they are 1–128 bytes of printable ASCII without `/`. The ledger is total all the same: any
//! value of these types is answered, none panics.
//!
//! # Items of several buckets: who proposes what, in which order, and what may be repeated
//!
//! The rules are those of the escrow protocol: running totals, revisions, no message before its
//! entry is applied. *Home* is the leader of the item's home shard, *donor* and *receiver* the
//! leaders of two buckets' shards. What each has to repeat is what [`Query::Duties`] answers of
//! applied state, so a new leader goes on where the old one died.
//!
//! 1. **Create.** Any node that knows the shards proposes [`DefineSpread`] at home. The answer has
//!    the layout. Bucket 0 has the whole total; the home shard's own buckets are open.
//! 2. **Copies.** Home sends each shard of the layout a [`Configure`] (the ledger makes it:
//!    [`Query::Copy`], [`Query::Duties`]) and logs the answer with [`CopyAnswered`], until each
//!    has answered the revision that home wants (`ItemView::config`). A copy applies only a greater
//!    revision and answers the revision, mode and held units it has then; late, repeated and
//!    reordered ones change nothing. `Define`, `SetMode`, [`SetLayout`] and [`Delete`] raise that
//!    revision: each is done everywhere when every copy has answered it (200), and under way until
//!    then (202).
//! 3. **Stock.** Quotas are where stock is meant to lie; it travels by [`SendStock`] at the donor,
//!    [`AcceptStock`] at the receiver, [`SettleStock`] at the donor. A puller names its R as
//!    `if_sent`, so a repeated pull drains nobody twice. The donor repeats the newest {S, F} while
//!    S > A. `AcceptStock` and `SettleStock` may be repeated at will. `MoveStock` is all three in
//!    one entry for two buckets of one shard.
//!    An operator's own move is [`Change::Move`] at the giving bucket, which sends and remembers
//!    the key in one entry; [`Change::Claim`] at home before, when home is another shard.
//! 4. **Totals.** Raising is one [`Adjust`] at home. Lowering: [`LowerBegin`] (its key is the
//!    operation), pulls into bucket 0, then `LowerCommit` when bucket 0 has enough, else
//!    `LowerAbort`. All three are idempotent by key; a committed key answers as done for ever.
//! 5. **Deleting.** `DeleteBegin` pauses the item everywhere by a new revision; `DeleteCommit` is
//!    refused until every copy has answered *that* revision with nothing held; `DeleteAbort` brings
//!    the old mode back by another revision. After the commit home sends [`EraseCopy`] to each
//!    shard until it is answered and logged (`CopyState::Erased`).
//!
//! A placement names no life of an item: do not route to a copy that has never answered
//! (`CopyView::revision` 0), since a copy of an earlier life, paused, may still answer there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Query;
use super::hold::HoldId;
use super::ids::{BucketId, ItemName, ItemNumber, RegionOrdinal, UnixMs};
pub use super::spread_command::*;

/// One log entry: the leader's stamp and the commands in the order in which they are answered.
/// Placements, of which a sale is made, come in more than one form
/// ([`super::Placement`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchOf<P> {
    /// Ledger time that the leader proposes; the ledger takes the greater of it and its own.
    pub stamp: UnixMs,
    /// The commands, answered one for one.
    pub commands: Vec<CommandOf<P>>,
}

/// A batch that owns its texts.
pub type Batch = BatchOf<Place>;

/// A batch that borrows from the bytes of its entry.
pub type BatchRef<'a> = BatchOf<super::PlaceRef<'a>>;

impl<P> Default for BatchOf<P> {
    fn default() -> BatchOf<P> {
        BatchOf { stamp: UnixMs(0), commands: Vec::new() }
    }
}

/// A question to the ledger that may change it.
pub type Command = CommandOf<Place>;

/// A question to the ledger that may change it, with placements in the form `P`. All forms have one
/// encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandOf<P> {
    /// Creates or configures an item (home shard).
    Define(Define),
    /// Changes an item's total (home shard).
    Adjust(Adjust),
    /// Pauses, resumes or closes an item (home shard).
    SetMode(SetMode),
    /// Deletes an item without open holds (home shard).
    Retire(Retire),
    /// Places a hold (the bucket's shard).
    Place(P),
    /// Moves a hold's deadline within its budget.
    Extend(Extend),
    /// Turns a hold into a sale.
    Confirm(Confirm),
    /// Gives a hold's units back.
    Release(Release),
    /// Brings sold units back to stock.
    Return(Return),
    /// Gives up on a placing key for good.
    Void(Void),
    /// Advances ledger time and sweeps what is due; what the steward proposes.
    Advance,
    /// Opens a bucket on its shard, with its copy of the definition (`escrow.md`).
    OpenBucket(OpenBucket),
    /// Sends stock to another bucket (the donor's shard).
    SendStock(SendStock),
    /// Accepts stock from another bucket (the receiver's shard).
    AcceptStock(AcceptStock),
    /// Learns what a receiver has accepted (the donor's shard).
    SettleStock(SettleStock),
    /// Creates an item over several buckets, or configures one (home shard).
    DefineSpread(DefineSpread),
    /// Changes an item's regions (home shard).
    SetLayout(SetLayout),
    /// Sets a shard's copy of an item to a revision (each of the buckets' shards but home).
    Configure(Box<Configure>),
    /// Logs what a copy has answered (home shard).
    CopyAnswered(CopyAnswered),
    /// Erases a deleted item's copy (each of the buckets' shards but home).
    EraseCopy(EraseCopy),
    /// Begins to gather units for a lower total (home shard).
    LowerBegin(LowerBegin),
    /// Writes off what was gathered, if it is enough (home shard).
    LowerCommit(LowerEnd),
    /// Gives the gathered units back to sale (home shard).
    LowerAbort(LowerEnd),
    /// Pauses an item in order to delete it (home shard).
    DeleteBegin(Delete),
    /// Gives a deletion up (home shard).
    DeleteAbort(Delete),
    /// Deletes an item of which nothing is held anywhere (home shard).
    DeleteCommit(Delete),
    /// Sends stock to another bucket of the same shard, which accepts it in the same entry.
    MoveStock(SendStock),
    /// Sets the roster of nodes and the operations on them (shard 0).
    SetRoster(Box<super::SetRoster>),
    /// Raises the schema version (shard 0).
    SetSchema(Box<super::SetSchema>),
}

/// Rules that a hold gets at its placement and keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRules {
    /// Lifetime of a hold that names none, in ms. 1 … `ttl_ms_max`.
    pub ttl_ms: u64,
    /// The longest lifetime that a placement or an extension may ask for, in ms.
    pub ttl_ms_max: u64,
    /// How many times a hold may be extended.
    pub extends_max: u32,
    /// The longest time from placement to the last deadline, in ms; ≥ `ttl_ms_max`.
    pub lifetime_ms_max: u64,
}

impl Default for HoldRules {
    /// Ten minutes, at most an hour a step, one extension, two hours in all.
    fn default() -> HoldRules {
        HoldRules {
            ttl_ms: 600_000,
            ttl_ms_max: 3_600_000,
            extends_max: 1,
            lifetime_ms_max: 7_200_000,
        }
    }
}

/// A region of an item at its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionPlan {
    /// Units of the total that the region starts with; the quotas of all regions sum to the total.
    pub quota: u64,
    /// Units that other regions may not take.
    pub floor: u64,
    /// Over how many buckets it is spread, 1 … shards. `Define` creates one, `DefineSpread` many.
    pub buckets: u16,
}

/// What an item is, apart from its total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The rules for holds placed from now on.
    pub rules: HoldRules,
    /// How many units a buyer may have held and sold at once within a region; none when absent.
    pub limit_per_buyer: Option<u64>,
    /// No hold is placed before this moment.
    pub opens_at: Option<UnixMs>,
    /// No hold is placed from this moment on.
    pub closes_at: Option<UnixMs>,
    /// The caller's own words, at most 4 KiB in all, kept as they are.
    pub metadata: BTreeMap<String, String>,
}

/// Creates an item, or configures the one that has this name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Define {
    /// The item.
    pub name: ItemName,
    /// Units that exist; needed to create. With an existing item it must be absent or equal to the
    /// total, else the answer is `UseAdjustments`.
    pub total: Option<u64>,
    /// Regions at creation; empty means one region `default` with the whole total in one bucket.
    /// More than one bucket in all needs [`DefineSpread`].
    /// The first by name is the default region unless one is called `default`.
    pub regions: BTreeMap<String, RegionPlan>,
    /// The definition from now on.
    pub definition: Definition,
    /// The revision that the caller has read, when it said `If-Match`.
    pub if_revision: Option<u64>,
}

/// Changes an item's total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjust {
    /// The item.
    pub name: ItemName,
    /// The caller's idempotency key, scope (tenant, item, key).
    pub key: String,
    /// The change.
    pub change: Change,
    /// Why, in the caller's words, ≤ 256 bytes.
    pub reason: String,
}

/// How a total changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Units that came in.
    Raise(u64),
    /// Units that are gone; refused with the figures when fewer are available.
    Lower(u64),
    /// The total itself, by a caller who has read this revision.
    Set {
        /// The new total.
        total: u64,
        /// The revision that the caller has read.
        if_revision: u64,
    },
    /// Units that came in for one region: its quota grows with the total.
    RaiseIn {
        /// How many.
        units: u64,
        /// The region.
        region: RegionOrdinal,
    },
    /// Units of one region that are gone: its quota falls with the total.
    LowerIn {
        /// How many.
        units: u64,
        /// The region.
        region: RegionOrdinal,
    },
    /// Says at home which move the key stands for, before the bucket that gives is asked elsewhere.
    Claim(SendStock),
    /// Moves units at an operator's word (the giving bucket's shard): the total stays. What the
    /// pair has sent is filled in when the entry is applied.
    Move(SendStock),
}

/// What an item lets its buyers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// Holds are placed, extended, confirmed and released.
    Open,
    /// An operator paused it: nothing is granted, so place, extend and re-acquire are refused. What
    /// was granted goes on: confirm (it takes nothing from stock, and its buyer has paid), release,
    /// return and void work, and holds expire.
    Paused,
    /// No more holds; those that exist run their course.
    Closed,
}

/// Pauses, resumes or closes an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetMode {
    /// The item.
    pub name: ItemName,
    /// The mode from now on. Resuming is `Open`; it also ends a pause for a broken law, if the
    /// equations of the item's buckets hold again at that entry.
    pub mode: Mode,
}

/// Deletes an item that has no open hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retire {
    /// The item.
    pub name: ItemName,
}

/// Places a hold. The hold is its own receipt under (tenant, item number, region, buyer, key).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The item.
    pub name: ItemName,
    /// The region, a property of the buyer; the item's default region when absent.
    pub region: Option<String>,
    /// The buyer, who is counted against the limit; the key stands for the buyer when absent.
    pub buyer: Option<String>,
    /// The idempotency key.
    pub key: String,
    /// Units, 1 … [`super::QUANTITY_MAX`].
    pub quantity: u64,
    /// Lifetime in ms; the item's default when absent.
    pub ttl_ms: Option<u64>,
    /// The caller's own reference, ≤ 128 bytes.
    pub reference: Option<String>,
}

/// Moves a hold's deadline to now + ttl (never earlier than it was), within its budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extend {
    /// The hold.
    pub hold: HoldId,
    /// The tenant who asks; another's hold is not found.
    pub tenant: String,
    /// The idempotency key, scope (tenant, hold, key).
    pub key: String,
    /// Lifetime from now in ms; the hold's default when absent.
    pub ttl_ms: Option<u64>,
}

/// Turns held units into sold ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirm {
    /// The hold.
    pub hold: HoldId,
    /// The tenant who asks.
    pub tenant: String,
    /// The idempotency key, scope (tenant, hold, key).
    pub key: String,
    /// Fewer units than held: the rest is released. All when absent.
    pub quantity: Option<u64>,
    /// Whether an expired, never released hold may take stock again in this same entry.
    pub reacquire: bool,
    /// The caller's own reference, ≤ 128 bytes.
    pub reference: Option<String>,
}

/// Gives a hold's units back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The hold.
    pub hold: HoldId,
    /// The tenant who asks.
    pub tenant: String,
    /// The idempotency key, scope (tenant, hold, key).
    pub key: String,
    /// Why, ≤ 128 bytes.
    pub reason: Option<String>,
}

/// Brings sold units back to stock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// The hold.
    pub hold: HoldId,
    /// The tenant who asks.
    pub tenant: String,
    /// The idempotency key, scope (tenant, hold, key).
    pub key: String,
    /// Units; all that are still sold when absent.
    pub quantity: Option<u64>,
}

/// Gives up on a placing key for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Void {
    /// The key's scope.
    pub scope: KeyScope,
}

/// Where a placing key counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyScope {
    /// The item.
    pub name: ItemName,
    /// The region; the item's default region when absent.
    pub region: Option<String>,
    /// The buyer, when the placement named one.
    pub buyer: Option<String>,
    /// The key.
    pub key: String,
}

/// One bucket of one item, as other shards name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BucketRef {
    /// The item's home shard, which gave the number.
    pub home: super::ids::ShardId,
    /// The item.
    pub item: ItemNumber,
    /// The bucket.
    pub bucket: BucketId,
}

/// Opens an empty bucket. Its definition is a copy of the home shard's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBucket {
    /// Which bucket.
    pub bucket: BucketRef,
    /// The item's name.
    pub name: ItemName,
    /// Its region.
    pub region: RegionOrdinal,
    /// The region's name.
    pub region_name: String,
    /// Whether it is the item's default region.
    pub default_region: bool,
    /// The place of this bucket among its region's, and how many they are: it owns the buyers whose
    /// hash is that place.
    pub place: (u16, u16),
    /// Its share of the region's floor.
    pub floor: u64,
    /// The definition and its revision.
    pub definition: Definition,
    /// The definition's revision at the home shard.
    pub revision: u64,
}

/// Sends stock; see `escrow.md` for the preconditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendStock {
    /// The donor.
    pub from: BucketRef,
    /// The receiver.
    pub to: BucketId,
    /// Units.
    pub quantity: u64,
    /// Units that the donor is known to have had accepted: A := max(A, acked).
    pub acked: u64,
    /// The R that the puller named; the donor sends only if S equals it.
    pub if_sent: u64,
    /// Whether the receiver belongs to the donor's region.
    pub same_region: bool,
    /// The most units that may be in transit out of the donor.
    pub bound: u64,
}

/// Accepts stock: "S is now …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptStock {
    /// The receiver.
    pub to: BucketRef,
    /// The donor.
    pub from: BucketId,
    /// Units ever sent.
    pub sent: u64,
    /// Floor ever carried.
    pub floor_sent: u64,
}

/// Learns that the receiver has accepted up to R.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleStock {
    /// The donor.
    pub from: BucketRef,
    /// The receiver.
    pub to: BucketId,
    /// Units ever accepted.
    pub accepted: u64,
}
