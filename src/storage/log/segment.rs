//! Segments: files of one size, numbered without gaps, filled with written zeros before their use.
//!
//! A segment has its name only once its zeros and its name are durable, so a segment of another
//! size than it was made with is damaged, never torn. Preparation happens ahead of need, on another
//! thread than the one that appends; [`Spares::take`] prepares in place only when none is ready.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::LogPosition;
use crate::ledger::ShardId;
use crate::storage::disk::{Disk, DiskFile, create_zeroed};

/// Where a frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// The payload's length, in bytes.
    pub(super) payload_bytes: u32,
}

/// What a shard's log was when a segment began, so that earlier segments can go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardMark {
    pub(super) shard: ShardId,
    pub(super) vote: Option<Bytes>,
    pub(super) purged: Option<LogPosition>,
    /// The first live index; equal to `next` when there is none.
    pub(super) first: u64,
    /// The index behind the last one.
    pub(super) next: u64,
}

impl ShardMark {
    pub(super) fn new(shard: ShardId) -> ShardMark {
        ShardMark { shard, vote: None, purged: None, first: 0, next: 0 }
    }

    /// Tells whether a log can be so: what a forged start says may not be added up.
    pub(super) fn is_sound(&self) -> bool {
        let purged = self.purged.is_none_or(|purged| purged.index.0 < self.first);
        purged && self.first <= self.next && self.next < u64::MAX
    }

    pub(super) fn append(&mut self, index: u64) {
        if self.first == self.next && self.purged.is_none() {
            self.first = index;
        }
        self.next = index + 1;
    }

    pub(super) fn truncate(&mut self, first_removed: u64) {
        self.next = self.next.min(first_removed).max(self.first);
    }

    pub(super) fn purge(&mut self, upto: LogPosition) {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return;
        }
        self.purged = Some(upto);
        self.first = self.first.max(upto.index.0 + 1);
        self.next = self.next.max(self.first);
    }
}

/// The payload of a segment's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentStart {
    /// The log's uuid, whole.
    pub(super) uuid: [u8; 16],
    /// The segment's size, in bytes.
    pub(super) segment_bytes: u64,
    /// Every shard that has said anything so far.
    pub(super) shards: Vec<ShardMark>,
}

/// Returns the path of segment `number`.
pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.seg"))
}

/// Returns the number in a segment's name, or `None` for any other name.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    let well_formed = digits.len() == 16
        && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if well_formed { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// Prepares one segment: zeros, sync, name, sync of the directory. What is left of an attempt that
/// failed is removed, since it may be what fills the disk.
pub(super) fn prepare(
    disk: &dyn Disk,
    dir: &Path,
    number: u64,
    bytes: u64,
    head: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let unnamed = dir.join(format!("{number:016x}.tmp"));
    let made = create_zeroed(disk, &unnamed, bytes).and_then(|file| {
        if !head.is_empty() {
            file.write_at(0, head)?;
            file.sync_data()?;
        }
        Ok(file)
    });
    match made {
        Ok(file) => {
            disk.rename(&unnamed, &segment_path(dir, number))?;
            disk.sync_dir(dir)?;
            Ok(file)
        }
        Err(error) => {
            // The error that matters is the first; the next attempt empties the file anyway.
            let _ = disk.remove(&unnamed);
            Err(error)
        }
    }
}

/// The segments that are ready for use, and the way to make more.
#[derive(Debug)]
pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    state: Mutex<SparesState>,
    settled: Condvar,
    /// How many were prepared on the path of an append.
    in_place: AtomicU64,
}

#[derive(Debug)]
struct SparesState {
    ready: BTreeMap<u64, Arc<dyn DiskFile>>,
    preparing: Option<u64>,
    /// The greatest number in use: never prepared again.
    taken: u64,
    error: Option<String>,
}

impl Spares {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        segment_bytes: u64,
        taken: u64,
        ready: BTreeMap<u64, Arc<dyn DiskFile>>,
    ) -> Spares {
        Spares {
            disk,
            dir,
            segment_bytes,
            state: Mutex::new(SparesState { ready, preparing: None, taken, error: None }),
            settled: Condvar::new(),
            in_place: AtomicU64::new(0),
        }
    }

    /// Takes segment `number` into use, waiting for it when it is being prepared, preparing it in
    /// place when nobody does.
    pub(super) fn take(&self, number: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        while state.preparing == Some(number) {
            self.settled.wait(&mut state);
        }
        state.taken = state.taken.max(number);
        if let Some(file) = state.ready.remove(&number) {
            return Ok(file);
        }
        drop(state);
        self.in_place.fetch_add(1, Ordering::Relaxed);
        prepare(&*self.disk, &self.dir, number, self.segment_bytes, &[])
    }

    /// Prepares the segment behind the last one in use, unless it is there. A failure is kept for
    /// [`Spares::error`]; the next call tries again from the beginning with an empty file.
    pub(super) fn prepare_next(&self) {
        let mut state = self.state.lock();
        let number = state.taken + 1;
        if state.preparing.is_some() || state.ready.contains_key(&number) {
            return;
        }
        state.preparing = Some(number);
        drop(state);
        // Kept for those who ask for it.
        let _ = self.prepare_marked(number);
    }

    /// Sees to it that the next `count` segments are ready, waiting for one that is being prepared.
    /// Nothing that was written is touched: it may be tried again after an error.
    pub(super) fn ensure(&self, count: u64) -> io::Result<()> {
        for ahead in 1..=count {
            let mut state = self.state.lock();
            while state.preparing.is_some() {
                self.settled.wait(&mut state);
            }
            let number = state.taken + ahead;
            if state.ready.contains_key(&number) {
                continue;
            }
            state.preparing = Some(number);
            drop(state);
            self.prepare_marked(number)?;
            self.in_place.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Prepares the segment that is marked as being prepared by this caller.
    fn prepare_marked(&self, number: u64) -> io::Result<()> {
        let made = prepare(&*self.disk, &self.dir, number, self.segment_bytes, &[]);
        let mut state = self.state.lock();
        state.preparing = None;
        let outcome = match made {
            Ok(file) => {
                state.ready.insert(number, file);
                state.error = None;
                Ok(())
            }
            Err(error) => {
                state.error = Some(error.to_string());
                Err(error)
            }
        };
        drop(state);
        self.settled.notify_all();
        outcome
    }

    /// Returns the size of a new segment, in bytes.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Tells whether the next segment is ready.
    pub(super) fn is_ready(&self) -> bool {
        let state = self.state.lock();
        state.ready.contains_key(&(state.taken + 1))
    }

    /// Returns how many are ready.
    pub(super) fn count(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Returns why the last preparation failed, or `None` when it did not.
    pub(super) fn error(&self) -> Option<String> {
        self.state.lock().error.clone()
    }

    /// Returns how many segments had to be prepared on the path of an append.
    pub(super) fn in_place(&self) -> u64 {
        self.in_place.load(Ordering::Relaxed)
    }
}

/// The open segments, for readers. A reader that took a file out of it goes on reading it after
/// the segment has been removed.
#[derive(Debug, Default)]
pub(super) struct SegmentFiles(Mutex<BTreeMap<u64, Arc<dyn DiskFile>>>);

impl SegmentFiles {
    pub(super) fn insert(&self, number: u64, file: Arc<dyn DiskFile>) {
        self.0.lock().insert(number, file);
    }

    pub(super) fn remove(&self, number: u64) {
        self.0.lock().remove(&number);
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<dyn DiskFile>> {
        self.0.lock().get(&number).cloned()
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }
}
