//! Hostile bytes: whatever arrives from a disk, a peer, a client or an operator's file is answered
//! or refused, without a panic and within bounded memory. Valid bytes are bent, cut, mixed and,
//! where a checksum would stop them at the door, sealed again.
//!
//! A few seconds each in an ordinary run. `FUZZ_SECONDS=600 cargo test --test fuzz` gives each so
//! many; a failure prints its seed, and `FUZZ_SEED=n cargo test --test fuzz NAME` runs that one.
#![cfg(not(feature = "sim"))]
#![allow(missing_docs)]

#[path = "fuzz/campaign.rs"]
mod campaign;
#[path = "fuzz/files.rs"]
mod files;
#[path = "fuzz/http.rs"]
mod http_bodies;
mod http_desk;
#[path = "fuzz/ledger.rs"]
mod ledger;
#[path = "fuzz/text.rs"]
mod text;
mod wal_world;
#[path = "fuzz/wire.rs"]
mod wire;
