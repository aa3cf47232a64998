//! What memory knows of one shard's log: vote, purge mark, where each entry lies, and the newest
//! payloads (the *tail*).
//!
//! Promises that a payload stays in memory until its frame was synced, and that the tail is within
//! its limit as far as that allows. Never touches a file.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::frame::{Header, Kind, frame_bytes};
use super::segment::{Location, SegmentFiles, ShardMark};
use super::{LogEntry, LogPosition, ShardLogState};
use crate::ledger::{LeaderId, LogIndex, ShardId};
use crate::storage::disk::DiskFile;

/// One shard's log as memory knows it.
///
/// Invariant: the live indexes are `live_from .. first + slots.len()`. After recovery
/// `live_from == first`; during it, entries below `first` may lie in segments that are gone.
#[derive(Debug)]
pub struct ShardIndex {
    vote: Option<Bytes>,
    purged: Option<LogPosition>,
    live_from: u64,
    /// The index of `slots[0]`.
    first: u64,
    slots: VecDeque<Slot>,
    /// Below this index no payload is in memory.
    tail_from: u64,
    tail_bytes: usize,
    tail_bytes_max: usize,
}

#[derive(Debug)]
struct Slot {
    leader: LeaderId,
    /// Which append it came from: an index may be truncated and appended again before the first
    /// one's sync is reported.
    ticket: u64,
    /// `None` until its frame is synced.
    location: Option<Location>,
    payload: Option<Bytes>,
}

/// One entry to read: from memory, or from where it lies.
#[derive(Debug)]
enum Source {
    Memory(Bytes),
    File(Arc<dyn DiskFile>, Location),
}

/// Entries to read, decided under the index's lock and read without it.
#[derive(Debug)]
pub(super) struct ReadPlan {
    shard: ShardId,
    wanted: Vec<(LogPosition, Source)>,
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

impl ShardIndex {
    pub(super) fn new(mark: &ShardMark, tail_bytes_max: usize) -> ShardIndex {
        ShardIndex {
            vote: mark.vote.clone(),
            purged: mark.purged,
            live_from: mark.first,
            first: mark.next,
            slots: VecDeque::new(),
            tail_from: mark.next,
            tail_bytes: 0,
            tail_bytes_max,
        }
    }

    pub(super) fn mark(&self, shard: ShardId) -> ShardMark {
        ShardMark {
            shard,
            vote: self.vote.clone(),
            purged: self.purged,
            first: self.live_from,
            next: self.next(),
        }
    }

    /// Returns vote, purge mark and last position.
    pub fn state(&self) -> ShardLogState {
        let last = self
            .slots
            .back()
            .map(|slot| LogPosition { leader: slot.leader, index: LogIndex(self.next() - 1) });
        ShardLogState { vote: self.vote.clone(), purged: self.purged, last: last.or(self.purged) }
    }

    /// Returns how many live entries lie in segments that are not there; zero but in recovery.
    pub(super) fn absent(&self) -> u64 {
        self.first - self.live_from
    }

    fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Tells whether an entry may come next.
    pub(super) fn may_append(&self, index: u64) -> bool {
        let anew = self.live_from == self.next() && self.purged.is_none();
        index < u64::MAX && (anew || index == self.next())
    }

    /// Checks that these entries continue the log without a gap.
    pub(super) fn check_append(&self, entries: &[LogEntry]) -> io::Result<()> {
        let Some(first) = entries.first() else { return Ok(()) };
        let begin = first.position.index.0;
        if !self.may_append(begin) {
            let next = self.next();
            return Err(invalid(format!("entry {begin} cannot follow: {next} comes next")));
        }
        for (entry, index) in entries.iter().zip(begin..) {
            if entry.position.index.0 != index || index == u64::MAX {
                return Err(invalid(format!("the entries to append have a gap at {index}")));
            }
        }
        Ok(())
    }

    /// Adds an entry that [`ShardIndex::may_append`] allows.
    pub(super) fn push(&mut self, entry: LogEntry, ticket: u64, location: Option<Location>) {
        if self.live_from == self.next() {
            self.live_from = entry.position.index.0;
            self.first = self.live_from;
            self.tail_from = self.live_from;
        }
        self.tail_bytes += entry.payload.len();
        self.slots.push_back(Slot {
            leader: entry.position.leader,
            ticket,
            location,
            payload: Some(entry.payload),
        });
        self.evict();
    }

    /// Learns where an entry lies, now that its frame is synced.
    pub(super) fn settle(&mut self, index: u64, ticket: u64, location: Location) {
        let Some(at) = index.checked_sub(self.first).and_then(|at| usize::try_from(at).ok()) else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(at)
            && slot.ticket == ticket
        {
            slot.location = Some(location);
        }
    }

    /// Lets the oldest synced payloads go until the tail is within its limit.
    pub(super) fn evict(&mut self) {
        while self.tail_bytes > self.tail_bytes_max && self.tail_from < self.next() {
            let at = usize::try_from(self.tail_from - self.first).expect("a slot's place");
            let slot = &mut self.slots[at];
            if slot.location.is_none() {
                return;
            }
            let payload = slot.payload.take();
            self.tail_bytes -= payload.map_or(0, |payload| payload.len());
            self.tail_from += 1;
        }
    }

    pub(super) fn save_vote(&mut self, vote: Bytes) {
        self.vote = Some(vote);
    }

    /// Refuses a truncation that would reach into what was purged.
    pub(super) fn check_truncate(&self, first_removed: u64) -> io::Result<()> {
        match self.purged {
            Some(purged) if first_removed <= purged.index.0 && first_removed > 0 => {
                Err(invalid(format!("cannot truncate from {first_removed}: purged to {purged:?}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Drops the entries at and behind `first_removed`.
    pub(super) fn truncate(&mut self, first_removed: u64) {
        if first_removed >= self.next() {
            return;
        }
        let kept = first_removed.max(self.live_from);
        let keep =
            usize::try_from(kept.saturating_sub(self.first)).expect("below the slots' count");
        for slot in self.slots.drain(keep..) {
            self.tail_bytes -= slot.payload.map_or(0, |payload| payload.len());
        }
        self.first = self.first.min(kept);
        self.tail_from = self.tail_from.min(self.next());
    }

    /// Drops the entries up to `upto`, it included. It may lie beyond the last one: then the log is
    /// empty and continues behind it.
    pub(super) fn purge(&mut self, upto: LogPosition) {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return;
        }
        self.purged = Some(upto);
        let begin = upto.index.0.saturating_add(1);
        while self.first < begin && !self.slots.is_empty() {
            let slot = self.slots.pop_front();
            self.tail_bytes -= slot.and_then(|slot| slot.payload).map_or(0, |bytes| bytes.len());
            self.first += 1;
        }
        self.live_from = self.live_from.max(begin);
        self.first = self.first.max(begin);
        self.tail_from = self.tail_from.max(self.first);
        if self.slots.capacity() > 1024 && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }

    /// Plans the read of the entries in `range` that there are, in order, without a gap, up to
    /// `payload_bytes_max` of payload but at least one.
    pub(super) fn plan(
        &self,
        shard: ShardId,
        range: Range<u64>,
        payload_bytes_max: usize,
        files: &SegmentFiles,
    ) -> io::Result<ReadPlan> {
        let mut wanted = Vec::new();
        let mut bytes = 0_usize;
        for index in range.start.max(self.first)..range.end.min(self.next()) {
            let at = usize::try_from(index - self.first).expect("a slot's place");
            let slot = &self.slots[at];
            let (length, source) = match (&slot.payload, slot.location) {
                (Some(payload), _) => (payload.len(), Source::Memory(payload.clone())),
                (None, Some(location)) => {
                    let Some(file) = files.find(location.segment) else {
                        return Err(io::Error::other(format!("entry {index} lost its segment")));
                    };
                    (location.payload_bytes as usize, Source::File(file, location))
                }
                (None, None) => unreachable!("a payload is evicted only once its frame is synced"),
            };
            if !wanted.is_empty() && bytes + length > payload_bytes_max {
                break;
            }
            bytes += length;
            let position = LogPosition { leader: slot.leader, index: LogIndex(index) };
            wanted.push((position, source));
        }
        Ok(ReadPlan { shard, wanted })
    }
}

impl ReadPlan {
    /// Reads what was planned, checking each frame that comes from a file.
    pub(super) fn execute(self) -> io::Result<Vec<LogEntry>> {
        let shard = self.shard;
        self.wanted
            .into_iter()
            .map(|(position, source)| {
                let payload = match source {
                    Source::Memory(payload) => payload,
                    Source::File(file, location) => read_entry(&*file, shard, position, location)?,
                };
                Ok(LogEntry { position, payload })
            })
            .collect()
    }
}

fn read_entry(
    file: &dyn DiskFile,
    shard: ShardId,
    position: LogPosition,
    location: Location,
) -> io::Result<Bytes> {
    let mut frame = vec![0; frame_bytes(location.payload_bytes as usize)];
    file.read_exact_at(location.offset, &mut frame)?;
    let bad = |what: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("segment {} at byte {}: {what}", location.segment, location.offset),
        )
    };
    let (header, payload) = Header::read_frame(&frame).map_err(bad)?;
    let same = header.kind == Kind::Entry && header.shard == shard && header.position == position;
    if !same {
        return Err(bad("another frame than the one that was written there"));
    }
    Ok(Bytes::copy_from_slice(payload))
}
