//! What the ledger can be asked: the commands of one log entry.
//!
//! Commands are numbered by their place in [`CommandOf`]: the list is append-only, a published
//! struct is never edited, and a command that this build does not know stops the node.
//! Names (tenant, item, region, buyer, key) are checked at the edge (`http/`, `client`): in here
//! they are 1–128 bytes of printable ASCII without `/`. The ledger is total all the same: any
//! value of these types is answered, none panics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::hold::HoldId;
use super::ids::{BucketId, ItemName, ItemNumber, NameRef, RegionOrdinal, UnixMs};

/// One log entry: the leader's stamp and the commands in the order in which they are answered.
/// Placements, of which a sale is made, come in more than one form ([`Placement`]).
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
pub type BatchRef<'a> = BatchOf<PlaceRef<'a>>;

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
    /// Over how many buckets it is spread, 1 … shards. One in this version.
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

/// A [`Place`] that borrows its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRef<'a> {
    /// The item.
    #[serde(borrow)]
    pub name: NameRef<'a>,
    /// See [`Place::region`].
    pub region: Option<&'a str>,
    /// See [`Place::buyer`].
    pub buyer: Option<&'a str>,
    /// The idempotency key.
    pub key: &'a str,
    /// Units, 1 … [`super::QUANTITY_MAX`].
    pub quantity: u64,
    /// Lifetime in ms; the item's default when absent.
    pub ttl_ms: Option<u64>,
    /// The caller's own reference, ≤ 128 bytes.
    pub reference: Option<&'a str>,
}

/// A form in which a placement comes.
pub trait Placement {
    /// Returns what was asked.
    fn asked(&self) -> PlaceRef<'_>;
}

impl Placement for Place {
    fn asked(&self) -> PlaceRef<'_> {
        PlaceRef {
            name: self.name.borrowed(),
            region: self.region.as_deref(),
            buyer: self.buyer.as_deref(),
            key: &self.key,
            quantity: self.quantity,
            ttl_ms: self.ttl_ms,
            reference: self.reference.as_deref(),
        }
    }
}

impl Placement for PlaceRef<'_> {
    fn asked(&self) -> PlaceRef<'_> {
        *self
    }
}

/// A [`KeyScope`] that borrows its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeRef<'a> {
    /// The item.
    pub name: NameRef<'a>,
    /// See [`KeyScope::region`].
    pub region: Option<&'a str>,
    /// See [`KeyScope::buyer`].
    pub buyer: Option<&'a str>,
    /// The key.
    pub key: &'a str,
}

impl KeyScope {
    /// Borrows it.
    pub fn borrowed(&self) -> ScopeRef<'_> {
        ScopeRef {
            name: self.name.borrowed(),
            region: self.region.as_deref(),
            buyer: self.buyer.as_deref(),
            key: &self.key,
        }
    }
}

impl ScopeRef<'_> {
    /// Copies it.
    pub fn owned(&self) -> KeyScope {
        KeyScope {
            name: self.name.owned(),
            region: self.region.map(str::to_owned),
            buyer: self.buyer.map(str::to_owned),
            key: self.key.to_owned(),
        }
    }
}

impl<P: Placement> CommandOf<P> {
    /// Returns the scope of its key when that is a placing key: a placement's, or one to be voided.
    pub fn placing_scope(&self) -> Option<ScopeRef<'_>> {
        match self {
            CommandOf::Place(place) => {
                let PlaceRef { name, region, buyer, key, .. } = place.asked();
                Some(ScopeRef { name, region, buyer, key })
            }
            CommandOf::Void(void) => Some(void.scope.borrowed()),
            CommandOf::Define(_)
            | CommandOf::Adjust(_)
            | CommandOf::SetMode(_)
            | CommandOf::Retire(_)
            | CommandOf::Extend(_)
            | CommandOf::Confirm(_)
            | CommandOf::Release(_)
            | CommandOf::Return(_)
            | CommandOf::Advance
            | CommandOf::OpenBucket(_)
            | CommandOf::SendStock(_)
            | CommandOf::AcceptStock(_)
            | CommandOf::SettleStock(_) => None,
        }
    }

    /// Tells whether it places a hold.
    pub fn is_place(&self) -> bool {
        matches!(self, CommandOf::Place(_))
    }

    /// Returns what a placement asks; `None` of any other command.
    pub fn placing(&self) -> Option<PlaceRef<'_>> {
        if let CommandOf::Place(place) = self { Some(place.asked()) } else { None }
    }

    /// Tells whether a second copy of it is answered by what the first has left: it has a key. What
    /// a second copy of any other is told may be the first one's effect.
    pub fn is_keyed(&self) -> bool {
        match self {
            CommandOf::Place(_)
            | CommandOf::Extend(_)
            | CommandOf::Confirm(_)
            | CommandOf::Release(_)
            | CommandOf::Return(_)
            | CommandOf::Void(_)
            | CommandOf::Adjust(_) => true,
            CommandOf::Define(_)
            | CommandOf::SetMode(_)
            | CommandOf::Retire(_)
            | CommandOf::Advance
            | CommandOf::OpenBucket(_)
            | CommandOf::SendStock(_)
            | CommandOf::AcceptStock(_)
            | CommandOf::SettleStock(_) => false,
        }
    }
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
