//! The ledger: pure. Same ledger + same entry = same ledger and same answers, on every replica, in
//! every replay. No I/O, clock, randomness, async, logging, floats, or iteration over a randomly
//! seeded map.

mod answer;
mod command;
mod hold;
mod ids;
mod query;

pub use answer::*;
pub use command::*;
pub use hold::{HoldId, NotAHoldId};
pub use ids::*;
pub use query::*;

use serde::{Deserialize, Serialize};

/// What every replica of every shard agrees on for the life of the cluster; part of its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How many shards the cluster has.
    pub shards: u16,
    /// The key of the hold ids' tags.
    pub tag_key: [u8; 16],
    /// Slots a bucket.
    pub slots: u16,
    /// The most due holds that one entry sweeps, beyond what its own commands need.
    pub sweep_max: u32,
    /// How long a receipt outlives the greatest lifetime that its hold could have had, in ms.
    pub receipt_retention_ms: u64,
    /// How long a sold hold keeps its record, in ms.
    pub sold_retention_ms: u64,
}

/// One shard's ledger.
#[derive(Debug)]
pub struct Ledger {
    _todo: (),
}

/// What the gate learns from applied state before anything is proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreseen {
    /// Applied state alone decides: a replay or a refusal. Nothing needs to be proposed.
    Answer(Answer),
    /// The ledger would grant it now if nothing else were in flight.
    Admit(Demand),
}

/// What an admitted command would take, for the gate to weigh against what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// The item and bucket whose units it takes; `None` for commands that take none.
    pub bucket: Option<BucketRef>,
    /// Units it would take.
    pub quantity: u64,
    /// Units that the bucket could give now (available and due).
    pub free: u64,
    /// A stable hash of (item number, region, buyer) whose count is limited, and how many units are
    /// left to that buyer; `None` without a limit.
    pub buyer: Option<(u64, u64)>,
}

/// A page's stable name. Ordered, opaque, ≤ 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey(pub Vec<u8>);

/// One of the two databases that checkpoints are written to in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Turn {
    /// The first.
    A,
    /// The second.
    B,
}

/// The pages do not make a ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pages do not make a ledger: {0}")]
pub struct LoadError(pub String);

impl Ledger {
    /// Returns an empty ledger of one shard.
    pub fn new(_shard: ShardId, _settings: Settings) -> Ledger {
        todo!("ledger helper")
    }

    /// Applies one entry and answers its commands one for one, in order.
    pub fn apply(&mut self, _index: LogIndex, _batch: &Batch) -> Vec<Answer> {
        todo!("ledger helper")
    }

    /// Tells what applied state says of a command, without changing anything. Receipts come before
    /// stock, always.
    pub fn foresee(&self, _command: &Command) -> Foreseen {
        todo!("ledger helper")
    }

    /// Answers a question from applied state, at applied ledger time.
    pub fn query(&self, _query: &Query) -> Found {
        todo!("ledger helper")
    }

    /// Returns ledger time: the greatest stamp applied.
    pub fn now(&self) -> UnixMs {
        todo!("ledger helper")
    }

    /// Returns the earliest deadline of a live hold (coarse: up to one time cell late), or `None`.
    /// Returns the name of an item's default region.
    pub fn default_region(&self, _name: &ItemName) -> Option<&str> {
        todo!("ledger helper")
    }

    pub fn next_due(&self) -> Option<UnixMs> {
        todo!("ledger helper")
    }

    /// Returns the digest: the wrapping sum of the 128-bit hashes of all records.
    pub fn digest(&self) -> u128 {
        todo!("ledger helper")
    }

    /// Begins a checkpoint into database `turn`: everything dirty since that database's last turn
    /// (or everything, when `whole`) is cut as it is now. From here on a write to a page of the cut
    /// that is not yet encoded encodes it first. A cut that was under way is given up, and its pages
    /// stay dirty.
    pub fn begin_cut(&mut self, _turn: Turn, _whole: bool) {
        todo!("ledger helper")
    }

    /// Encodes up to `pages` more pages of the cut and returns them with those that writes encoded
    /// meanwhile: `None` says that the page is gone. Empty when the cut is complete.
    pub fn take_cut(&mut self, _pages: usize) -> Vec<(PageKey, Option<Vec<u8>>)> {
        todo!("ledger helper")
    }

    /// Says that the cut's pages are durable (their dirt of that turn is over), or that they are not
    /// (it comes back).
    pub fn end_cut(&mut self, _durable: bool) {
        todo!("ledger helper")
    }

    /// Rebuilds a ledger from all its pages, in any order. Its digest is computed from the records;
    /// the caller compares it with the header's.
    ///
    /// # Errors
    ///
    /// [`LoadError`] when a page does not decode, is named wrongly, or contradicts another.
    pub fn load(
        _shard: ShardId,
        _settings: Settings,
        _pages: impl Iterator<Item = (PageKey, Vec<u8>)>,
    ) -> Result<Ledger, LoadError> {
        todo!("ledger helper")
    }

    /// Returns counts for metrics, at a cost that does not grow with the number of holds.
    pub fn figures(&self) -> Figures {
        todo!("ledger helper")
    }
}

/// Counts for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Items that exist.
    pub items: u64,
    /// Live holds, due ones included.
    pub holds_held: u64,
    /// Holds that are sold.
    pub holds_sold: u64,
    /// Holds that ended otherwise and are still remembered.
    pub holds_ended: u64,
    /// Units held, due ones included.
    pub units_held: u64,
    /// Units sold.
    pub units_sold: u64,
    /// Units available.
    pub units_available: u64,
    /// Holds expired since this ledger was loaded.
    pub expired: u64,
    /// Pages dirty for the next checkpoint.
    pub pages_dirty: u64,
    /// Items paused by a broken law.
    pub invariant_broken: u64,
}

/// Returns the home shard of an item.
pub fn home_shard(_name: &ItemName, _shards: u16) -> ShardId {
    todo!("ledger helper")
}
