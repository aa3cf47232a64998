//! Holdfast sells the last unit exactly once: a Raft-replicated, bucketed-counter inventory store.
//!
//! A node is a ledger with adapters around it. Raft decides the order in which the ledger is
//! asked; the write-ahead log remembers that order; sled keeps the ledger's pages; HTTP carries
//! questions in and answers out; the steward, on the leader only, asks for what has fallen due.
//!
//! The rooms, from the top floor down (imports point down only; `tests/tidy.rs` enforces it):
//! [`cli`] · [`node`] · [`http`], [`steward`] · [`shard`] · [`raft`] · [`storage`], [`peer`],
//! [`client`] · [`ledger`], [`api`], [`codec`], [`config`], [`clock`], [`runtime`] · [`planted`].

pub mod api;
pub mod cli;
pub mod client;
pub mod clock;
pub mod codec;
pub mod config;
pub mod http;
pub mod ledger;
pub mod node;
pub mod peer;
pub mod planted;
pub mod raft;
pub mod runtime;
pub mod shard;
pub mod steward;
pub mod storage;
