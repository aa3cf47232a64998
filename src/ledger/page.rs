//! Pages: the pieces in which the ledger's state is written to disk, and which of them are dirty.
//!
//! Promises: a page's name never changes; a cut shows every page as it was when the cut began,
//! because a write to a page of the cut encodes it first ([`Pages::touch`] comes before the
//! change); a page dirtied in one database's turn stays dirty for the other's.

use std::collections::BTreeSet;

use super::ids::{BucketId, ItemNumber, ShardId};
use super::{BucketRef, PageKey, Turn};

/// The most bytes of a page.
#[cfg(test)]
pub(super) const PAGE_BYTES_MAX: usize = 16 << 10;
/// The first byte of every page: the version of its form.
pub(super) const PAGE_VERSION: u8 = 1;

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
const KEY_BYTES: usize = 23;

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
    pub(super) fn bytes(&self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
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
        let bytes: &[u8; KEY_BYTES] = bytes.try_into().ok()?;
        let kinds = [
            Kind::Meta,
            Kind::Item,
            Kind::Adjustments,
            Kind::Bucket,
            Kind::Pairs,
            Kind::Floors,
            Kind::Records,
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

/// A page of a checkpoint: its name, and its bytes or `None` when it is gone.
pub(super) type CutPage = (PageKey, Option<Vec<u8>>);

/// Which pages are dirty for which database, and the cut under way.
#[derive(Debug)]
pub(super) struct Pages {
    /// Changes whenever a mark kept elsewhere ([`super::slot::Chunk::marked`]) stops being true.
    pub(super) epoch: u32,
    dirty: [BTreeSet<PageId>; 2],
    /// Whose next cut is of everything, because the last one of everything did not become durable.
    owed: [bool; 2],
    cut: Option<Cut>,
}

#[derive(Debug)]
struct Cut {
    turn: Turn,
    /// Dirty pages that nobody has encoded. Of a whole cut only those that are gone matter.
    pending: BTreeSet<PageId>,
    /// Pages that were encoded and are dirty again if the cut is not durable.
    encoded: Vec<PageId>,
    ready: Vec<CutPage>,
    /// How far a whole cut has come.
    walk: Option<Walk>,
}

/// A cut of everything finds its pages as it goes: a list of them would be too long to make at once.
#[derive(Debug, Default)]
struct Walk {
    /// The last page that it has come to.
    at: Option<PageId>,
    /// Pages after it that writes have encoded already.
    ahead: BTreeSet<PageId>,
    done: bool,
}

/// Where a whole cut has come to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Walked {
    /// At a page to encode.
    Page(PageId),
    /// At a page that a write has encoded.
    Encoded,
    /// To the end.
    All,
}

impl Cut {
    /// Whether a page that is about to change belongs to the cut as it is now.
    fn claims(&mut self, page: PageId) -> bool {
        match &mut self.walk {
            None => self.pending.remove(&page),
            Some(walk) => {
                let ahead = !walk.done && walk.at.is_none_or(|at| page > at);
                ahead && walk.ahead.insert(page)
            }
        }
    }
}

impl Pages {
    /// Nothing is dirty.
    pub(super) fn new() -> Pages {
        let dirty = [BTreeSet::new(), BTreeSet::new()];
        Pages { epoch: 1, dirty, owed: [false; 2], cut: None }
    }

    /// Says that a page is about to change. `encode` gives it as it still is.
    pub(super) fn touch(&mut self, page: PageId, encode: impl FnOnce() -> Option<Vec<u8>>) {
        if let Some(cut) = &mut self.cut
            && cut.claims(page)
        {
            cut.encoded.push(page);
            cut.ready.push((page.key(), encode()));
        }
        for dirty in &mut self.dirty {
            dirty.insert(page);
        }
    }

    /// Begins a cut of what is dirty for `turn`, or of everything.
    pub(super) fn begin(&mut self, turn: Turn, whole: bool) {
        self.end(false);
        let pending = std::mem::take(&mut self.dirty[turn as usize]);
        let whole = std::mem::take(&mut self.owed[turn as usize]) || whole;
        let walk = whole.then(Walk::default);
        self.cut = Some(Cut { turn, pending, encoded: Vec::new(), ready: Vec::new(), walk });
        self.epoch = self.epoch.wrapping_add(1).max(1);
    }

    /// Takes what writes have encoded meanwhile.
    pub(super) fn take_ready(&mut self) -> Vec<CutPage> {
        self.cut.as_mut().map(|cut| std::mem::take(&mut cut.ready)).unwrap_or_default()
    }

    /// The page after which a whole cut goes on; `None` when the cut is not a whole one, or is done.
    pub(super) fn walking(&self) -> Option<Option<PageId>> {
        let walk = self.cut.as_ref()?.walk.as_ref()?;
        (!walk.done).then_some(walk.at)
    }

    /// Takes a whole cut on to `next`, the next page that exists, or to one before it that is gone.
    pub(super) fn walk_to(&mut self, next: Option<PageId>) -> Walked {
        let Some(Cut { pending, walk: Some(walk), .. }) = &mut self.cut else { return Walked::All };
        let gone = pending.first().copied();
        let Some(page) = next.into_iter().chain(gone).min() else {
            walk.done = true;
            return Walked::All;
        };
        pending.remove(&page);
        walk.at = Some(page);
        if walk.ahead.remove(&page) { Walked::Encoded } else { Walked::Page(page) }
    }

    /// Takes the next page of a cut of dirty pages that nobody has encoded.
    pub(super) fn next_pending(&mut self) -> Option<PageId> {
        self.cut.as_mut()?.pending.pop_first()
    }

    /// Says that a page of the cut was encoded, and whether it exists.
    pub(super) fn encoded(&mut self, page: PageId, exists: bool) {
        // A whole cut that is not durable is followed by a whole one, which finds what exists.
        if let Some(cut) = &mut self.cut
            && (cut.walk.is_none() || !exists)
        {
            cut.encoded.push(page);
        }
    }

    /// Ends the cut. What is not durable is dirty again.
    pub(super) fn end(&mut self, durable: bool) {
        let Some(cut) = self.cut.take() else { return };
        let dirty = &mut self.dirty[cut.turn as usize];
        let finished = cut.walk.as_ref().is_none_or(|walk| walk.done);
        if !(durable && finished) {
            self.owed[cut.turn as usize] |= cut.walk.is_some();
            if !durable {
                dirty.extend(cut.encoded);
            }
        }
        dirty.extend(cut.pending);
    }

    /// How many pages the next checkpoint has to write at most.
    pub(super) fn dirty_count(&self) -> u64 {
        self.dirty.iter().map(BTreeSet::len).max().unwrap_or(0) as u64
    }
}
