//! A log that is only read: for `holdfast doctor` and `recover`.
//!
//! It goes by the very scan that an open goes by, and stops where that would begin to change
//! anything. So its verdict (whole, torn, damaged, lost, foreign) is the one that a start comes to.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::frame::{Header, Kind};
use super::recovery::{Scanned, scan, scan_to_the_damage};
use super::segment::{SegmentFiles, SegmentStart, segment_number, segment_path};
use super::{LogEntry, LogError, LogOptions, ShardLogState};
use crate::codec;
use crate::ledger::ShardId;
use crate::storage::disk::{Disk, DiskFile, ZERO_CHUNK_BYTES};

/// A log at rest, read to its end.
#[derive(Debug)]
pub struct ReadLog {
    scanned: Scanned,
    files: SegmentFiles,
    torn_bytes: u64,
}

/// What a log is read with: nothing of it is kept in memory, and nothing is written.
const LOOKING: LogOptions = LogOptions {
    segment_bytes: 64 << 20,
    payload_bytes_max: 16 << 20,
    tail_bytes_max: 0,
    queue_bytes_max: 1,
    queue_requests_max: 1,
};

impl ReadLog {
    /// Reads the log in `dir`, which must be the one with this uuid.
    ///
    /// # Errors
    ///
    /// [`LogError::Lost`], [`LogError::Foreign`], [`LogError::Damaged`] as an open would, and
    /// [`LogError::Io`].
    pub fn open(disk: &dyn Disk, dir: &Path, uuid: [u8; 16]) -> Result<ReadLog, LogError> {
        ReadLog::of(dir, scan(disk, dir, uuid, &LOOKING)?)
    }

    /// Reads a log as far as it is whole, though more was synced: for those who know that what it
    /// promised is gone.
    ///
    /// # Errors
    ///
    /// As [`ReadLog::open`], but for damage behind its first frames.
    pub fn open_to_the_damage(
        disk: &dyn Disk,
        dir: &Path,
        uuid: [u8; 16],
    ) -> Result<ReadLog, LogError> {
        ReadLog::of(dir, scan_to_the_damage(disk, dir, uuid, &LOOKING)?)
    }

    fn of(dir: &Path, scanned: Scanned) -> Result<ReadLog, LogError> {
        let files = SegmentFiles::default();
        for (number, segment) in &scanned.segments {
            files.insert(*number, segment.file.clone());
        }
        let torn_bytes = torn(&scanned).map_err(|error| LogError::io(dir, error))?;
        Ok(ReadLog { scanned, files, torn_bytes })
    }

    /// Returns the uuid that the oldest readable segment in `dir` names, if there is one.
    pub fn uuid_in(disk: &dyn Disk, dir: &Path) -> Option<[u8; 16]> {
        let names = disk.list(dir).ok()?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
        numbers.sort_unstable();
        numbers.into_iter().find_map(|number| {
            let file = disk.open(&segment_path(dir, number)).ok()?;
            let head = usize::try_from(file.length().ok()?.min(ZERO_CHUNK_BYTES as u64)).ok()?;
            let mut bytes = vec![0; head];
            file.read_exact_at(0, &mut bytes).ok()?;
            let (header, payload) = Header::read_frame(&bytes).ok()?;
            let start: SegmentStart = codec::decode(payload).ok()?;
            (header.kind == Kind::Start).then_some(start.uuid)
        })
    }

    /// Returns how many segments frames lie in.
    pub fn segments(&self) -> usize {
        self.scanned.segments.len()
    }

    /// Returns how many segments are ready behind them.
    pub fn spares(&self) -> usize {
        self.scanned.spares.len() + self.scanned.misfits.len()
    }

    /// Returns the size of the newest segment in use, in bytes.
    pub fn segment_bytes(&self) -> u64 {
        self.scanned.segments.last_key_value().map_or(0, |(_, segment)| segment.bytes)
    }

    /// Returns how many frames were written in the log's whole life.
    pub fn frames(&self) -> u64 {
        self.scanned.sequence
    }

    /// Returns up to which frame the side file says that the log was synced.
    pub fn synced(&self) -> u64 {
        self.scanned.mark.sequence
    }

    /// Returns how many bytes behind the last whole frame are not zero: a tail that a power cut
    /// tore, which was never acknowledged and is cut at the next start.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// Returns each shard's vote, purge mark and last entry.
    pub fn shards(&self) -> BTreeMap<ShardId, ShardLogState> {
        self.scanned.shards.iter().map(|(shard, index)| (*shard, index.state())).collect()
    }

    /// Reads entries of one shard, in order and without a gap, at least one if there is any.
    ///
    /// # Errors
    ///
    /// What the disk says, and `InvalidData` when a frame is damaged.
    pub fn read(
        &self,
        shard: ShardId,
        range: Range<u64>,
        payload_bytes_max: usize,
    ) -> io::Result<Vec<LogEntry>> {
        match self.scanned.shards.get(&shard) {
            Some(index) => index.plan(shard, range, payload_bytes_max, &self.files)?.execute(),
            None => Ok(Vec::new()),
        }
    }
}

/// Counts the bytes behind the last whole frame that are not zero.
fn torn(scanned: &Scanned) -> io::Result<u64> {
    let mut bytes = 0;
    if let Some((_, segment)) = scanned.segments.last_key_value() {
        bytes += written_from(&*segment.file, scanned.append_at)?;
    }
    for spare in scanned.spares.values() {
        bytes += written_from(&**spare, 0)?;
    }
    Ok(bytes)
}

fn written_from(file: &dyn DiskFile, from: u64) -> io::Result<u64> {
    let length = file.length()?;
    let mut chunk = vec![0; ZERO_CHUNK_BYTES];
    let (mut at, mut bytes) = (from, 0);
    while at < length {
        let step = usize::try_from((length - at).min(ZERO_CHUNK_BYTES as u64)).expect("a chunk");
        file.read_exact_at(at, &mut chunk[..step])?;
        bytes += chunk[..step].iter().filter(|byte| **byte != 0).count() as u64;
        at += step as u64;
    }
    Ok(bytes)
}
