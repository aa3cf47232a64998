//! What the ledger answers. Refusals are data.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::command::{BatchOf, CommandOf, CopyState, Definition, LowerBegin, Mode, RegionPlan};
use super::hold::HoldId;
use super::ids::{BucketId, ItemName, ItemNumber, RegionOrdinal, ShardId, UnixMs};
use super::receipts::place_of;
use super::scope::{PlaceRef, Placement};

/// The answer to one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A hold was placed by this very command, which has the rest of what can be told of it
    /// ([`Placed::view`]).
    Placed(Placed),
    /// A hold was changed, or found as it already was.
    Hold {
        /// The hold as it is now.
        hold: Box<HoldView>,
        /// Whether this command had been answered before and changed nothing now.
        replayed: bool,
    },
    /// An item was created, configured, adjusted, or set to a mode.
    Item {
        /// The item as it is now.
        item: Box<ItemView>,
        /// Whether this command created it.
        created: bool,
        /// Whether this command had been answered before, or changed nothing.
        replayed: bool,
    },
    /// The item was deleted.
    Retired {
        /// The number that will not be used again.
        item: ItemNumber,
    },
    /// The key is void: every later copy of it is refused.
    Voided {
        /// Whether it had been voided before.
        replayed: bool,
    },
    /// Time advanced; `swept` holds expired.
    Advanced {
        /// How many.
        swept: u32,
    },
    /// A bucket is open.
    BucketOpen,
    /// The donor's counters after a send: units and floor ever sent.
    Sent {
        /// Units ever sent.
        sent: u64,
        /// Floor ever sent.
        floor_sent: u64,
    },
    /// The receiver's counter after an accept.
    Accepted {
        /// Units ever accepted from that donor.
        accepted: u64,
    },
    /// The donor has learned.
    Settled,
    /// A definite no about this attempt; nothing changed.
    Refused(Refusal),
    /// What a shard's copy of an item is now, after a `Configure`.
    Copy(CopyState),
    /// Home has learned.
    Noted,
    /// An operator's move was sent.
    Moved {
        /// Units that the pair had sent after this very move.
        sent: u64,
        /// Units that the pair has sent by now.
        sent_in_all: u64,
        /// Floor that the pair has sent by now.
        floor_sent: u64,
        /// Whether this command had been answered before.
        replayed: bool,
    },
}

/// A definite no.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Nothing is left.
    SoldOut {
        /// Whether units are held that may come back.
        may_return: bool,
    },
    /// Fewer are left than were asked for, or stock is on its way.
    InsufficientStock {
        /// What is available now.
        available: u64,
    },
    /// The buyer's limit would be passed.
    BuyerLimit {
        /// The limit.
        limit: u64,
        /// Units the buyer holds.
        held: u64,
        /// Units the buyer has bought.
        sold: u64,
    },
    /// The item grants nothing now.
    ItemPaused {
        /// Why.
        reason: PauseReason,
    },
    /// The item takes no more holds.
    ItemClosed,
    /// The sale has not begun, or is over.
    SaleNotOpen {
        /// When it opens.
        opens_at: Option<UnixMs>,
        /// When it closes.
        closes_at: Option<UnixMs>,
    },
    /// The key was voided.
    KeyVoided,
    /// The key was used before with other content.
    KeyReused {
        /// The first field that differs.
        field: String,
    },
    /// The hold's deadline has passed.
    HoldExpired {
        /// The hold.
        hold: Box<HoldView>,
    },
    /// The hold is sold already.
    HoldConfirmed {
        /// The hold.
        hold: Box<HoldView>,
    },
    /// The hold was given back, or returned.
    HoldReleased {
        /// The hold.
        hold: Box<HoldView>,
    },
    /// The hold is not sold, so nothing can be returned.
    NotSold {
        /// The hold.
        hold: Box<HoldView>,
    },
    /// The extensions or the lifetime of the hold are used up.
    ExtendBudgetSpent {
        /// How many times it was extended.
        extends_used: u32,
        /// The latest deadline that it can ever have.
        latest: UnixMs,
    },
    /// A value breaks a rule of the item.
    Invalid {
        /// The field.
        field: String,
        /// The rule, as a sentence.
        rule: String,
    },
    /// There is no such item, or it is another tenant's.
    ItemNotFound,
    /// There is no such region.
    RegionNotFound,
    /// There is no such hold, or it is another tenant's.
    HoldNotFound,
    /// The change would go below what is held or sold.
    StockCommitted {
        /// Units that would have to be available.
        needed: u64,
        /// Units that are.
        available: u64,
        /// Units held.
        held: u64,
        /// Units sold.
        sold: u64,
    },
    /// The item has open holds.
    OpenHolds {
        /// Units held.
        held: u64,
    },
    /// The total is changed by adjustments, not by PUT.
    UseAdjustments {
        /// The total now.
        total: u64,
    },
    /// The revision read is not the revision now.
    RevisionMismatch {
        /// The revision now.
        revision: u64,
    },
    /// This shard does not own that buyer, bucket or item.
    NotOwner,
    /// A transfer's precondition does not hold.
    TransferRefused {
        /// Which.
        rule: String,
    },
    /// A lowering or a deletion of the item is under way.
    UnderWay {
        /// Which.
        operation: Operation,
    },
    /// No such lowering or deletion is under way.
    NotUnderWay,
    /// These shards have not answered the revision that the deletion waits for.
    NotAnswered {
        /// Which.
        shards: Vec<ShardId>,
    },
    /// The total of an item of several buckets is lowered by `LowerBegin`.
    LowerInSteps,
}

/// A long change of an item, of which there is one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// Its total is being lowered.
    Lowering,
    /// It is being deleted.
    Deletion,
}

/// Why an item or a shard grants nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PauseReason {
    /// The shard has no fresh quorum.
    QuorumLost,
    /// An operator said so.
    Operator,
    /// Leadership is moving.
    Moving,
    /// A law was found broken.
    Invariant,
    /// The state is being rebuilt.
    Restoring,
}

impl PauseReason {
    /// Returns the word of the API and the metrics.
    pub fn word(self) -> &'static str {
        match self {
            PauseReason::QuorumLost => "quorum-lost",
            PauseReason::Operator => "operator",
            PauseReason::Moving => "moving",
            PauseReason::Invariant => "invariant",
            PauseReason::Restoring => "restoring",
        }
    }
}

/// Where a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HoldState {
    /// Units are set aside until the deadline.
    Held,
    /// Units are sold.
    Sold,
    /// Units were given back.
    Released,
    /// The deadline passed.
    Expired,
    /// All sold units came back.
    Returned,
}

impl HoldState {
    /// Returns the word of the API and the metrics.
    pub fn word(self) -> &'static str {
        match self {
            HoldState::Held => "held",
            HoldState::Sold => "sold",
            HoldState::Released => "released",
            HoldState::Expired => "expired",
            HoldState::Returned => "returned",
        }
    }
}

/// A hold as its callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldView {
    /// Its id.
    pub id: HoldId,
    /// The item's name.
    pub name: ItemName,
    /// The region's name.
    pub region: String,
    /// The buyer, when one was named.
    pub buyer: Option<String>,
    /// Where it stands at ledger time: expired from its deadline on, swept or not.
    pub state: HoldState,
    /// Units it was placed for.
    pub quantity: u64,
    /// Units that are sold now (confirmed and not returned).
    pub sold: u64,
    /// Ledger time of its placement.
    pub placed_at: UnixMs,
    /// Its deadline.
    pub expires_at: UnixMs,
    /// Ledger time of this answer.
    pub now: UnixMs,
    /// How many extensions are left.
    pub extends_left: u32,
    /// The log index of its last change.
    pub revision: u64,
    /// The caller's reference.
    pub reference: Option<String>,
}

/// A hold that was just placed: what its placement does not say itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Its id.
    pub id: HoldId,
    /// The region's name.
    pub region: Arc<str>,
    /// Ledger time of its placement, which is that of this answer.
    pub placed_at: UnixMs,
    /// Its deadline.
    pub expires_at: UnixMs,
    /// How many extensions it has.
    pub extends_left: u32,
    /// The log index of its placement.
    pub revision: u64,
}

impl Placed {
    /// Returns the hold as its caller sees it, from the placement that made it.
    pub fn view(&self, place: PlaceRef<'_>) -> HoldView {
        HoldView {
            id: self.id,
            name: place.name.owned(),
            region: (*self.region).to_owned(),
            buyer: place.buyer.map(str::to_owned),
            state: HoldState::Held,
            quantity: place.quantity,
            sold: 0,
            placed_at: self.placed_at,
            expires_at: self.expires_at,
            now: self.placed_at,
            extends_left: self.extends_left,
            revision: self.revision,
            reference: place.reference.map(str::to_owned),
        }
    }
}

impl<P: Placement> BatchOf<P> {
    /// Returns the answers to these commands with whole holds in them.
    pub fn shown(&self, answers: Vec<Answer>) -> Vec<Answer> {
        self.commands.iter().zip(answers).map(|(asked, answer)| answer.shown_to(asked)).collect()
    }
}

impl Answer {
    /// Returns the answer to a command with the whole hold in it, if it placed one.
    pub fn shown_to<P: Placement>(self, command: &CommandOf<P>) -> Answer {
        match command.placing() {
            Some(place) => self.shown(place),
            None => self,
        }
    }

    /// Returns the answer to a placement with the whole hold in it.
    pub fn shown(self, place: PlaceRef<'_>) -> Answer {
        if let Answer::Placed(placed) = self {
            return Answer::Hold { hold: Box::new(placed.view(place)), replayed: false };
        }
        self
    }
}

/// An item as its callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemView {
    /// Its name.
    pub name: ItemName,
    /// Its number.
    pub number: ItemNumber,
    /// Its home shard.
    pub home: ShardId,
    /// Units that exist.
    pub total: u64,
    /// Changes with every definition, total or mode.
    pub revision: u64,
    /// What its buyers may do.
    pub mode: Mode,
    /// Whether a broken law paused it.
    pub invariant_broken: bool,
    /// Its definition.
    pub definition: Definition,
    /// The default region's name.
    pub default_region: String,
    /// Its regions by name.
    pub regions: BTreeMap<String, RegionPlan>,
    /// Its buckets.
    pub buckets: Vec<BucketPlacement>,
    /// Ledger time of its creation.
    pub created_at: UnixMs,
    /// Its regions in the order of their ordinals.
    pub region_list: Vec<RegionInfo>,
    /// The revision that every copy must have answered: the last change of definition, mode,
    /// regions or layout. It is also the version of the layout.
    pub config: u64,
    /// What the other shards of its layout have answered last.
    pub copies: Vec<CopyView>,
    /// The lowering of its total that is under way.
    pub lowering: Option<LowerBegin>,
    /// Whether its deletion is under way; `mode` reads paused then.
    pub deleting: bool,
}

impl ItemView {
    /// Returns the bucket that owns a buyer (or the key that stands for one) in a region; the
    /// default region when none is named. `None` when there is no such region.
    pub fn owner(
        &self,
        region: Option<&str>,
        buyer: Option<&str>,
        key: &str,
    ) -> Option<BucketPlacement> {
        let info = self.region_list.iter().find(|info| match region {
            Some(name) => info.name == name,
            None => info.default,
        })?;
        let of_region = || self.buckets.iter().filter(|bucket| bucket.region == info.ordinal);
        let places = u16::try_from(of_region().count()).unwrap_or(u16::MAX);
        let place = place_of(self.number, info.ordinal, buyer.unwrap_or(key), places);
        of_region().nth(usize::from(place)).copied()
    }

    /// Returns the seed with which a region's buyers are hashed: a buyer (or key) belongs to the
    /// region's bucket at XXH3-64 of its bytes, modulo the number of its buckets.
    pub fn buyers_seed(&self, region: RegionOrdinal) -> u64 {
        super::receipts::seed_of(self.number, region)
    }

    /// Returns the shards whose copies have not answered [`ItemView::config`].
    pub fn behind(&self) -> impl Iterator<Item = ShardId> {
        self.copies.iter().filter(|copy| copy.revision < self.config).map(|copy| copy.shard)
    }
}

/// A region of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Its place in the list, never reused.
    pub ordinal: RegionOrdinal,
    /// Its name.
    pub name: String,
    /// Whether requests that name no region belong to it.
    pub default: bool,
    /// Whether it takes no more holds; its keys and holds go on answering.
    pub closed: bool,
    /// Units that other regions may not take, granted to its first bucket and travelling from
    /// there.
    pub floor: u64,
}

/// What the home shard knows of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyView {
    /// Whose copy.
    pub shard: ShardId,
    /// The revision that it has answered; 0 before its first answer.
    pub revision: u64,
    /// Units that were held there then.
    pub held: u64,
    /// Whether a broken law paused it there then.
    pub broken: bool,
}

/// Where a bucket lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketPlacement {
    /// The bucket.
    pub bucket: BucketId,
    /// Its shard.
    pub shard: ShardId,
    /// Its region.
    pub region: RegionOrdinal,
}
