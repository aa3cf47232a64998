//! What a policy of transfers is asked, and what it is told.
//!
//! A policy decides how much moves and who gives; it can be slow, never wrong: the ledgers check
//! every transfer when its entry is applied.

use serde::{Deserialize, Serialize};

use crate::ledger::{BucketId, UnixMs};

/// The order among thirsty buckets of one item. Fixed while the thirst lasts, and the same on every
/// node, since it is told and not measured by whoever is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank {
    /// Ledger time of its shard when the oldest waiter came.
    pub since: UnixMs,
    /// Then the bucket.
    pub bucket: BucketId,
}

/// A bucket that may need stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supply {
    /// Units that it could give to a buyer now.
    pub free: u64,
    /// Units that its waiters ask for.
    pub waiting: u64,
    /// Units that it sells in a second, lately.
    pub per_second: u64,
}

/// What a bucket is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Units that would help.
    pub wanted: u64,
    /// Of those, units that buyers wait for at this moment.
    pub waiting: u64,
    /// Units that the asker has.
    pub free: u64,
    /// The asker's rank, when somebody waits there.
    pub rank: Option<Rank>,
}

/// A bucket that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Donor {
    /// Units that it may send to the asker: its floor stays at home.
    pub lendable: u64,
    /// Units that may still go under way from it.
    pub room: u64,
    /// Units that its own waiters ask for.
    pub waiting: u64,
    /// Of those, units that its own stock can serve, in the order in which they came.
    pub servable: u64,
    /// Units that it sells in a second, lately.
    pub per_second: u64,
    /// Its rank, when somebody waits here.
    pub rank: Option<Rank>,
}

/// Decides how much stock moves between the buckets of an item.
pub trait StockPolicy: Send + Sync + std::fmt::Debug {
    /// Units that a bucket should ask for; 0 for none.
    fn wants(&self, own: &Supply) -> u64;

    /// Units that a donor should send; at most `lendable` and `room`.
    fn gives(&self, donor: &Donor, asked: &Asked) -> u64;
}

/// The policy of tests with one bucket an item: nothing is ever moved.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct NoTransfers;

#[cfg(test)]
impl StockPolicy for NoTransfers {
    fn wants(&self, _: &Supply) -> u64 {
        0
    }

    fn gives(&self, _: &Donor, _: &Asked) -> u64 {
        0
    }
}
