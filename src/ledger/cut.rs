//! Which pages are dirty for which database, and the cut under way.
//!
//! Pages of records are many, so their dirt is bits beside the records (`segment.rs`), and what is
//! known here is in which buckets to look; all other pages, and pages of records that are gone,
//! are listed here. Promises: a cut shows every page as it was when the cut began, because a write
//! to a page of the cut encodes it first ([`Pages::touch`] and its kin come before the change); a
//! page dirtied in one database's turn stays dirty for the other's; beginning a cut costs nothing
//! that grows with the number of pages.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::page::{Kind, PageId};
use super::{BucketRef, PageKey, Turn};

/// A page of a checkpoint: its name, and its bytes or `None` when it is gone.
pub(super) type CutPage = (PageKey, Option<Vec<u8>>);

/// Which pages are dirty for which database, and the cut under way.
#[derive(Debug)]
pub(super) struct Pages {
    /// Counts the cuts: what is marked elsewhere is marked for one of them.
    pub(super) epoch: u32,
    /// Dirty pages, those of records only when they are gone.
    dirty: [BTreeSet<PageId>; 2],
    /// Buckets that may have dirty pages of records.
    buckets: [BTreeSet<BucketRef>; 2],
    /// Pages of records that are dirty, or were counted twice.
    records: [u64; 2],
    /// Cuts that did not become durable and that bits may still be of: epoch and turn.
    failed: Vec<(u32, Turn)>,
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
    /// Pages of records that were gone when the cut began and exist again.
    revived: BTreeSet<PageId>,
    ready: Vec<CutPage>,
    /// How far a whole cut has come.
    walk: Option<Walk>,
    /// Where to look for pages of records, and how many they may be.
    buckets: BTreeSet<BucketRef>,
    records: u64,
    /// The bucket, slot and segment that the cut has come to.
    at: (BucketRef, u16, u64),
    /// Whether all pages of records are encoded.
    records_done: bool,
}

/// A cut of everything finds its pages as it goes: a list would be too long to make at once.
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

/// What bits kept elsewhere follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    /// The cut begun last.
    pub(super) epoch: u32,
    /// Its turn and whether it is of everything, while it is under way.
    pub(super) cut: Option<(Turn, bool)>,
    failed: &'a [(u32, Turn)],
}

impl Plan<'_> {
    /// Whether the pages of that cut are dirty as before.
    pub(super) fn has_failed(&self, epoch: u32) -> bool {
        self.failed.iter().any(|failed| failed.0 == epoch)
    }
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
        Pages {
            epoch: 1,
            dirty: Default::default(),
            buckets: Default::default(),
            records: [0; 2],
            failed: Vec::new(),
            owed: [false; 2],
            cut: None,
        }
    }

    /// Says that a page, not of records, is about to change. `encode` gives it as it still is.
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

    // Pages of records.

    /// What segments follow.
    pub(super) fn plan(&self) -> Plan<'_> {
        let cut = self.cut.as_ref().map(|cut| (cut.turn, cut.walk.is_some()));
        Plan { epoch: self.epoch, cut, failed: &self.failed }
    }

    /// Says that a bucket's pages of records are about to be marked.
    pub(super) fn look_into(&mut self, bucket: BucketRef) {
        for buckets in &mut self.buckets {
            buckets.insert(bucket);
        }
    }

    /// Takes a page of records that was encoded because it is about to change.
    pub(super) fn claimed(&mut self, page: PageId, bytes: Option<Vec<u8>>) {
        if let Some(cut) = &mut self.cut {
            cut.ready.push((page.key(), bytes));
        }
    }

    /// Counts a page that was marked, by turn.
    pub(super) fn count(&mut self, marked: [bool; 2]) {
        for (records, marked) in self.records.iter_mut().zip(marked) {
            *records = records.saturating_add(u64::from(marked));
        }
    }

    /// Says that a page of records comes, or comes back, into existence.
    pub(super) fn revive(&mut self, page: PageId) {
        if let Some(cut) = &mut self.cut
            && !(cut.pending.is_empty() && cut.encoded.is_empty())
        {
            if cut.pending.contains(&page) && cut.claims(page) {
                cut.ready.push((page.key(), None));
            }
            cut.revived.insert(page);
        }
        for dirty in &mut self.dirty {
            dirty.remove(&page);
        }
    }

    /// Says that a page of records is gone.
    pub(super) fn bury(&mut self, page: PageId) {
        for dirty in &mut self.dirty {
            dirty.insert(page);
        }
    }

    /// The bucket in which a cut finds its next pages of records, and the slot and segment from
    /// which on; `next` gives the bucket after another one, of all that there are.
    pub(super) fn bucket_of_cut(
        &mut self,
        next: impl Fn(Bound<BucketRef>) -> Option<BucketRef>,
    ) -> Option<(BucketRef, u16, u64)> {
        let cut = self.cut.as_mut().filter(|cut| !cut.records_done)?;
        let from = Bound::Included(cut.at.0);
        let bucket = match cut.walk {
            Some(_) => next(from),
            None => cut.buckets.range((from, Bound::Unbounded)).next().copied(),
        };
        match bucket {
            Some(bucket) if bucket == cut.at.0 => {}
            Some(bucket) => cut.at = (bucket, 0, 0),
            None => {
                cut.records_done = true;
                return None;
            }
        }
        Some(cut.at)
    }

    /// Says that a cut has found a page in that bucket, at a slot and segment, or no more.
    pub(super) fn found_in(&mut self, bucket: BucketRef, at: Option<(u16, u64)>) {
        let Some(cut) = &mut self.cut else { return };
        match at {
            Some((slot, segment)) => cut.at = (bucket, slot, segment),
            None => match after(bucket) {
                Some(next) => cut.at = (next, 0, 0),
                None => cut.records_done = true,
            },
        }
    }

    // The cut.

    /// Begins a cut of what is dirty for `turn`, or of everything.
    pub(super) fn begin(&mut self, turn: Turn, whole: bool) {
        self.end(false);
        let pending = std::mem::take(&mut self.dirty[turn as usize]);
        let whole = std::mem::take(&mut self.owed[turn as usize]) || whole;
        self.cut = Some(Cut {
            turn,
            pending,
            encoded: Vec::new(),
            revived: BTreeSet::new(),
            ready: Vec::new(),
            walk: whole.then(Walk::default),
            buckets: std::mem::take(&mut self.buckets[turn as usize]),
            records: std::mem::take(&mut self.records[turn as usize]),
            at: (PageId::META.bucket_ref(), 0, 0),
            records_done: false,
        });
        self.epoch = self.epoch.wrapping_add(1).max(1);
    }

    /// Takes what writes have encoded meanwhile.
    pub(super) fn take_ready(&mut self) -> Vec<CutPage> {
        self.cut.as_mut().map(|cut| std::mem::take(&mut cut.ready)).unwrap_or_default()
    }

    /// The page after which a whole cut goes on; `None` when the cut is not a whole one or done.
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
        // Pages of records that exist have bits that tell; a whole cut that is not durable is
        // followed by a whole one, which finds what exists.
        if let Some(cut) = &mut self.cut
            && !(exists && (cut.walk.is_some() || page.kind == Kind::Records))
        {
            cut.encoded.push(page);
        }
    }

    /// Ends the cut. What is not durable is dirty again.
    pub(super) fn end(&mut self, durable: bool) {
        let Some(mut cut) = self.cut.take() else { return };
        let turn = cut.turn as usize;
        let walked = cut.walk.as_ref().is_none_or(|walk| walk.done);
        if durable && walked && cut.records_done {
            // Every segment that had pages in a cut of this turn has followed this one.
            self.failed.retain(|failed| failed.1 != cut.turn);
        } else {
            self.owed[turn] |= cut.walk.is_some();
            self.buckets[turn].append(&mut cut.buckets);
            self.records[turn] = self.records[turn].saturating_add(cut.records);
            if !durable {
                self.failed.push((self.epoch, cut.turn));
                let again = cut.encoded.iter().filter(|page| !cut.revived.contains(page));
                self.dirty[turn].extend(again);
            }
        }
        self.dirty[turn].extend(cut.pending.iter().filter(|page| !cut.revived.contains(page)));
    }

    /// How many pages the next checkpoint has to write at most.
    pub(super) fn dirty_count(&self) -> u64 {
        let dirty = self.dirty.iter().zip(self.records);
        dirty.map(|(pages, records)| records.saturating_add(pages.len() as u64)).max().unwrap_or(0)
    }
}

/// The least bucket after one.
fn after(bucket: BucketRef) -> Option<BucketRef> {
    let BucketRef { home, item, bucket } = bucket;
    let next = bucket.0.checked_add(1).map(|next| (home.0, item.0, next));
    let next = next.or_else(|| item.0.checked_add(1).map(|next| (home.0, next, 0)));
    let (home, item, bucket) = next.or_else(|| Some((home.0.checked_add(1)?, 0, 0)))?;
    Some(BucketRef {
        home: super::ShardId(home),
        item: super::ItemNumber(item),
        bucket: super::BucketId(bucket),
    })
}
