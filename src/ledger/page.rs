//! Pages: the pieces in which the ledger's state is written to disk, and what they are called.
//!
//! Promises: a page's name never changes. Which of them are dirty is said in `cut.rs`.

use super::ids::{BucketId, ItemNumber, ShardId};
use super::{BucketRef, PageKey};

/// The most bytes of a page.
#[cfg(test)]
pub(super) const PAGE_BYTES_MAX: usize = 16 << 10;
/// The first byte of every page: the version of its form. 2: records leave out what most of them
/// do not say (`record_bytes.rs`), because memory holds them in that form.
pub(super) const PAGE_VERSION: u8 = 2;

/// What a page, or a record in one, is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Kind {
    /// Ledger time, applied index, next item number.
    Meta = 0,
    /// An item's definition, and at home its total.
    Item = 1,
    /// Receipts of an item's adjustments.
    Adjustments = 2,
    /// A bucket's counters.
    Bucket = 3,
    /// A bucket's transfer counters by peer.
    Pairs = 4,
    /// The least next sequences of a bucket's slots.
    Floors = 5,
    /// Holds and voids of a slot.
    Records = 6,
    /// The roster of nodes, on shard 0.
    Roster = 7,
    /// The schema version, on shard 0.
    Schema = 8,
}

/// A page's name, ordered by item, so that a walk over all of them finds the next one close by
/// ([`super::walk`]). `number` counts chunks in a page's name and records in a record's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageId {
    pub(super) home: ShardId,
    pub(super) item: ItemNumber,
    pub(super) kind: Kind,
    pub(super) bucket: BucketId,
    pub(super) slot: u16,
    pub(super) number: u64,
}

/// Bytes of a page's name.
pub(super) const NAME_BYTES: usize = 23;

impl PageId {
    /// The one page, or record, of the whole ledger.
    pub(super) const META: PageId = PageId {
        kind: Kind::Meta,
        home: ShardId(0),
        item: ItemNumber(0),
        bucket: BucketId(0),
        slot: 0,
        number: 0,
    };

    /// The page, and the record, of the roster.
    pub(super) const ROSTER: PageId = PageId { kind: Kind::Roster, ..PageId::META };

    /// The page, and the record, of the schema version.
    pub(super) const SCHEMA: PageId = PageId { kind: Kind::Schema, ..PageId::META };

    /// A page, or record, of an item.
    pub(super) fn of_item(kind: Kind, item: (ShardId, ItemNumber), number: u64) -> PageId {
        PageId { kind, home: item.0, item: item.1, bucket: BucketId(0), slot: 0, number }
    }

    /// A page, or record, of a bucket.
    pub(super) fn of_bucket(kind: Kind, bucket: BucketRef, slot: u16, number: u64) -> PageId {
        let BucketRef { home, item, bucket } = bucket;
        PageId { kind, home, item, bucket, slot, number }
    }

    /// The bucket that it names.
    pub(super) fn bucket_ref(&self) -> BucketRef {
        BucketRef { home: self.home, item: self.item, bucket: self.bucket }
    }

    /// Its bytes, in the order of its parts.
    pub(super) fn bytes(&self) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..3].copy_from_slice(&self.home.0.to_be_bytes());
        bytes[3..11].copy_from_slice(&self.item.0.to_be_bytes());
        bytes[11..13].copy_from_slice(&self.bucket.0.to_be_bytes());
        bytes[13..15].copy_from_slice(&self.slot.to_be_bytes());
        bytes[15..23].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// As callers of the ledger carry it.
    pub(super) fn key(&self) -> PageKey {
        PageKey(self.bytes().to_vec())
    }

    /// Reads a name; `None` when the bytes are none.
    pub(super) fn parse(bytes: &[u8]) -> Option<PageId> {
        let bytes: &[u8; NAME_BYTES] = bytes.try_into().ok()?;
        let kinds = [
            Kind::Meta,
            Kind::Item,
            Kind::Adjustments,
            Kind::Bucket,
            Kind::Pairs,
            Kind::Floors,
            Kind::Records,
            Kind::Roster,
            Kind::Schema,
        ];
        let u16_at =
            |at: usize| Some(u16::from_be_bytes(bytes.get(at..)?.get(..2)?.try_into().ok()?));
        let u64_at =
            |at: usize| Some(u64::from_be_bytes(bytes.get(at..)?.get(..8)?.try_into().ok()?));
        Some(PageId {
            kind: *kinds.get(usize::from(bytes[0]))?,
            home: ShardId(u16_at(1)?),
            item: ItemNumber(u64_at(3)?),
            bucket: BucketId(u16_at(11)?),
            slot: u16_at(13)?,
            number: u64_at(15)?,
        })
    }
}
