//! What every change of a ledger goes through: ledger time, the digest, the dirty pages, and the
//! orders in which deadlines and receipts fall due.
//!
//! Promises: an entry's changes are settled once, at its end (`settle.rs`), for what it touched.

use std::collections::BTreeSet;

use super::cut::Pages;
use super::digest::{self, Digest};
use super::due::SWEPT_FOR_COMMANDS_MAX;
use super::ids::{LogIndex, ShardId, UnixMs};
use super::item::ItemKey;
use super::lookahead::Seen;
use super::page::{NAME_BYTES, PageId};
use super::{BucketRef, Settings};

/// The ledger's bookkeeping.
#[derive(Debug)]
pub(super) struct Books {
    /// Whose ledger it is.
    pub(super) shard: ShardId,
    /// What all replicas agree on.
    pub(super) settings: Settings,
    /// Ledger time.
    pub(super) now: UnixMs,
    /// The index of the entry applied last, or being applied.
    pub(super) index: LogIndex,
    /// Dirty pages.
    pub(super) pages: Pages,
    /// The digest.
    pub(super) digest: Digest,
    /// Buckets by the earliest deadline of a live hold.
    pub(super) due: BTreeSet<(u64, BucketRef)>,
    /// Buckets by the moment at which something may be forgotten.
    pub(super) forget: BTreeSet<(u64, BucketRef)>,
    /// Buckets that have sent what is not known to be accepted.
    pub(super) owing: BTreeSet<BucketRef>,
    /// Items at home whose copies are behind, or that are being lowered or deleted.
    pub(super) driven: BTreeSet<ItemKey>,
    /// Buckets that this entry has changed.
    pub(super) touched_buckets: Vec<BucketRef>,
    /// Items that this entry has changed.
    pub(super) touched_items: Vec<ItemKey>,
    /// Holds that this entry's commands may still sweep because they need the units.
    pub(super) sweeps_left: u32,
    /// Holds that this entry has swept.
    pub(super) swept: u32,
    /// Holds that expired since the ledger was loaded.
    pub(super) expired: u64,
    /// Nobody reads the answers of the entry being applied.
    pub(super) unanswered: bool,
    /// What was looked at of the entry being applied, a part for each command.
    pub(super) seen: Vec<Seen>,
    scratch: Vec<u8>,
}

impl Books {
    /// The books of an empty ledger.
    pub(super) fn new(shard: ShardId, settings: Settings) -> Books {
        Books {
            shard,
            settings,
            now: UnixMs(0),
            index: LogIndex(0),
            pages: Pages::new(),
            digest: Digest::default(),
            due: BTreeSet::new(),
            forget: BTreeSet::new(),
            owing: BTreeSet::new(),
            driven: BTreeSet::new(),
            touched_buckets: Vec::new(),
            touched_items: Vec::new(),
            sweeps_left: SWEPT_FOR_COMMANDS_MAX,
            swept: 0,
            expired: 0,
            unanswered: false,
            seen: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Hash of one record: its name and what `encode` appends.
    pub(super) fn hash(&mut self, name: PageId, encode: impl FnOnce(&mut Vec<u8>)) -> u128 {
        self.scratch.clear();
        self.scratch.extend_from_slice(&name.bytes());
        encode(&mut self.scratch);
        digest::hash(&self.scratch)
    }

    /// What `encode` appended for the hash that was asked for last.
    pub(super) fn hashed(&self) -> &[u8] {
        self.scratch.get(NAME_BYTES..).unwrap_or_default()
    }
}
