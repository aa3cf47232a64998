//! Storage: promises in the log, state in sled.
//!
//! The write-ahead log remembers the order in which the ledger was asked; two page databases a
//! shard, written in turn, keep the ledger's pages; the identity file says whose data this is.
//! `sled::` is named in here and nowhere else.

pub mod checkpoint;
pub mod pages;
