//! Reading a log back: what is whole, what is torn, what is damaged, what is lost.
//!
//! [`scan`] only reads; whoever calls it may refuse to open without a byte having changed. See the
//! log's documentation for the argument.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::frame::{ALIGN, HEADER_BYTES, Header, Kind, uuid_tag};
use super::index::ShardIndex;
use super::segment::{Location, SegmentStart, ShardMark, segment_number, segment_path};
use super::synced::{FILE_NAME, SyncedFile, SyncedMark};
use super::{LogEntry, LogError, LogOptions};
use crate::codec;
use crate::ledger::ShardId;
use crate::planted::{Fault, planted};
use crate::storage::disk::{Disk, DiskFile};

/// A segment that frames lie in.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) bytes: u64,
    /// The greatest index of each shard that has entries in it.
    pub(super) greatest: BTreeMap<ShardId, u64>,
}

/// What a scan found.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) segments: BTreeMap<u64, Segment>,
    /// Where the next frame goes: behind the last whole one, in the last of `segments`.
    pub(super) append_at: u64,
    /// The last whole frame.
    pub(super) sequence: u64,
    pub(super) shards: BTreeMap<ShardId, ShardIndex>,
    pub(super) synced_file: SyncedFile,
    pub(super) mark: SyncedMark,
    /// The first whole frame that is not known to be synced.
    pub(super) unsynced_from: Option<(u64, u64)>,
    /// Segments of the right size behind the last one: spares, to be emptied of what a tear left.
    pub(super) spares: BTreeMap<u64, Arc<dyn DiskFile>>,
    /// Files that are of no use any more.
    pub(super) leftovers: Vec<PathBuf>,
    /// Segments behind the last one that cannot be spares, in the order in which they must go.
    pub(super) misfits: Vec<PathBuf>,
}

struct Scan<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    uuid: [u8; 16],
    options: &'a LogOptions,
    /// Whether damage and gaps are refused.
    must_be_whole: bool,
    sequence: u64,
    /// The greatest sequence that anything says was synced.
    known_synced: u64,
    mark: SyncedMark,
    unsynced_from: Option<(u64, u64)>,
    segments: BTreeMap<u64, Segment>,
    shards: BTreeMap<ShardId, ShardIndex>,
}

/// Where the whole frames end, and why.
struct Stop {
    segment: u64,
    offset: u64,
    why: &'static str,
}

/// Reads the log in `dir` without changing anything.
pub(super) fn scan(
    disk: &dyn Disk,
    dir: &Path,
    uuid: [u8; 16],
    options: &LogOptions,
) -> Result<Scanned, LogError> {
    scan_as(disk, dir, uuid, options, true)
}

/// Reads the log in `dir` as far as it is whole, whatever is missing behind that. Only for those
/// who know that what the log promised is gone.
pub(super) fn scan_to_the_damage(
    disk: &dyn Disk,
    dir: &Path,
    uuid: [u8; 16],
    options: &LogOptions,
) -> Result<Scanned, LogError> {
    scan_as(disk, dir, uuid, options, false)
}

fn scan_as(
    disk: &dyn Disk,
    dir: &Path,
    uuid: [u8; 16],
    options: &LogOptions,
    must_be_whole: bool,
) -> Result<Scanned, LogError> {
    let names = match disk.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(LogError::Lost { what: format!("{} is missing", dir.display()) });
        }
        Err(error) => return Err(LogError::io(dir, error)),
    };
    let numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    let Some((leftovers, run)) = newest_run(&numbers) else {
        return Err(LogError::Lost { what: format!("{} has no segment", dir.display()) });
    };
    let (synced_file, mark) = match SyncedFile::open(disk, &dir.join(FILE_NAME), uuid) {
        Err(LogError::Damaged { .. } | LogError::Lost { .. })
            if foreign_start(disk, dir, run[0], &uuid).is_some() =>
        {
            let found = foreign_start(disk, dir, run[0], &uuid).unwrap_or_default();
            return Err(LogError::Foreign { expected: uuid, found });
        }
        outcome => outcome?,
    };
    let mut scan = Scan {
        disk,
        dir,
        uuid,
        options,
        must_be_whole,
        sequence: 0,
        known_synced: if planted(Fault::TailLost) { 0 } else { mark.sequence },
        mark,
        unsynced_from: None,
        segments: BTreeMap::new(),
        shards: BTreeMap::new(),
    };
    let (append_at, behind) = scan.follow(run)?;
    let mut leftovers: Vec<PathBuf> =
        leftovers.iter().map(|number| segment_path(dir, *number)).collect();
    leftovers.extend(names.iter().filter(|name| name.ends_with(".tmp")).map(|name| dir.join(name)));
    let mut spares = BTreeMap::new();
    let mut misfits = Vec::new();
    for (number, file, bytes) in behind {
        // Without the one before it a spare would look like the first of a run.
        if bytes == options.segment_bytes && misfits.is_empty() {
            spares.insert(number, file);
        } else {
            misfits.push(segment_path(dir, number));
        }
    }
    misfits.reverse();
    Ok(Scanned {
        segments: scan.segments,
        append_at,
        sequence: scan.sequence,
        shards: scan.shards,
        synced_file,
        mark,
        unsynced_from: scan.unsynced_from,
        spares,
        leftovers,
        misfits,
    })
}

/// Splits sorted numbers into those before the last gap and the run behind it. A removal that a
/// power cut undid leaves the former; that nothing needed is missing is checked entry by entry.
fn newest_run(numbers: &[u64]) -> Option<(&[u64], &[u64])> {
    if numbers.is_empty() {
        return None;
    }
    let gap = numbers.windows(2).rposition(|pair| pair[1] != pair[0] + 1);
    Some(numbers.split_at(gap.map_or(0, |at| at + 1)))
}

/// Returns the uuid in the first frame of a segment if it is a whole one of another log.
fn foreign_start(disk: &dyn Disk, dir: &Path, number: u64, uuid: &[u8; 16]) -> Option<[u8; 16]> {
    let file = disk.open(&segment_path(dir, number)).ok()?;
    let bytes = read_whole(&*file).ok()?;
    let (header, payload) = Header::read_frame(&bytes).ok()?;
    let start: SegmentStart = codec::decode(payload).ok()?;
    (header.kind == Kind::Start && start.uuid != *uuid).then_some(start.uuid)
}

pub(super) fn read_whole(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// A segment behind the last one in use: its number, file and size.
type Behind = (u64, Arc<dyn DiskFile>, u64);

impl Scan<'_> {
    /// Follows the frames through the segments to the last whole one, and judges what is behind it.
    fn follow(&mut self, run: &[u64]) -> Result<(u64, Vec<Behind>), LogError> {
        let mut stop: Option<Stop> = None;
        let mut behind = Vec::new();
        for (place, number) in run.iter().copied().enumerate() {
            let path = segment_path(self.dir, number);
            let io_error = |error| LogError::io(&path, error);
            let file = self.disk.open(&path).map_err(io_error)?;
            let bytes = read_whole(&*file).map_err(io_error)?;
            let begun = self.segment_begins(number, &bytes, place == 0)?;
            // A segment that continues the sequence proves that the one before it was finished.
            if begun && behind.is_empty() {
                let segment =
                    Segment { file, bytes: bytes.len() as u64, greatest: BTreeMap::new() };
                self.segments.insert(number, segment);
                stop = Some(self.read_segment(number, &bytes)?);
            } else {
                self.look_for_synced(&bytes, 0);
                behind.push((number, file, bytes.len() as u64));
            }
        }
        let stop = stop.expect("the first segment of the run has begun, or was refused");
        if self.must_be_whole {
            self.judge(&stop)?;
        }
        Ok((stop.offset, behind))
    }

    /// Tells whether segment `number` begins with the frame that is due.
    fn segment_begins(&self, number: u64, bytes: &[u8], first: bool) -> Result<bool, LogError> {
        let path = segment_path(self.dir, number);
        let (header, payload) = match Header::read_frame(bytes) {
            Ok(frame) => frame,
            Err(what) if first => return Err(LogError::damaged(&path, 0, what)),
            Err(_) => return Ok(false),
        };
        let start: Result<SegmentStart, _> = codec::decode(payload);
        let (Kind::Start, Ok(start)) = (header.kind, start) else {
            return Err(LogError::damaged(&path, 0, "the first frame is not a segment's start"));
        };
        if start.uuid != self.uuid {
            return Err(LogError::Foreign { expected: self.uuid, found: start.uuid });
        }
        let due = first || self.is_next(header.sequence);
        if due && (header.segment != number || start.segment_bytes != bytes.len() as u64) {
            let what = "the segment is not what its first frame says: another number or size";
            return Err(LogError::damaged(&path, bytes.len() as u64, what));
        }
        Ok(due)
    }

    /// Tells whether a frame of this sequence comes next, and another may come behind it.
    fn is_next(&self, sequence: u64) -> bool {
        sequence < u64::MAX && self.sequence.checked_add(1) == Some(sequence)
    }

    /// Replays the whole frames of a segment that has begun; returns where they end.
    fn read_segment(&mut self, number: u64, bytes: &[u8]) -> Result<Stop, LogError> {
        let tag = uuid_tag(&self.uuid);
        let mut at = 0_usize;
        let why = loop {
            let (header, payload) = match Header::read_frame(&bytes[at..]) {
                Ok(frame) => frame,
                Err(why) => break why,
            };
            let due = (at == 0 && self.segments.len() == 1) || self.is_next(header.sequence);
            if header.tag != tag || header.segment != number || !due {
                break "a frame of another log, segment or place in the sequence";
            }
            if (header.kind == Kind::Start) != (at == 0) {
                break "a segment's start in the middle of a segment";
            }
            let offset = at as u64;
            self.replay(&header, payload, number, offset)
                .map_err(|what| LogError::damaged(&segment_path(self.dir, number), offset, what))?;
            self.sequence = header.sequence;
            self.learn_synced(&header);
            if header.sequence > self.mark.sequence && self.unsynced_from.is_none() {
                self.unsynced_from = Some((number, offset));
            }
            at += usize::try_from(header.frame_bytes()).expect("the frame lies in memory");
        };
        self.look_for_synced(bytes, at);
        Ok(Stop { segment: number, offset: at as u64, why })
    }

    fn replay(
        &mut self,
        header: &Header,
        payload: &[u8],
        number: u64,
        offset: u64,
    ) -> Result<(), &'static str> {
        let tail_bytes_max = self.options.tail_bytes_max;
        if header.kind == Kind::Start {
            let start: SegmentStart = codec::decode(payload).map_err(|_| "an unreadable start")?;
            if header.sequence == u64::MAX || !start.shards.iter().all(ShardMark::is_sound) {
                return Err("a start that contradicts itself");
            }
            if self.segments.len() == 1 {
                self.shards = start
                    .shards
                    .iter()
                    .map(|mark| (mark.shard, ShardIndex::new(mark, tail_bytes_max)))
                    .collect();
            }
            return Ok(());
        }
        let index = self
            .shards
            .entry(header.shard)
            .or_insert_with(|| ShardIndex::new(&ShardMark::new(header.shard), tail_bytes_max));
        match header.kind {
            Kind::Start => {}
            Kind::Entry => {
                let at = header.position.index.0;
                if !index.may_append(at) {
                    return Err("an entry that does not follow the one before it");
                }
                let payload = Bytes::copy_from_slice(payload);
                let location =
                    Location { segment: number, offset, payload_bytes: header.payload_bytes };
                index.push(LogEntry { position: header.position, payload }, 0, Some(location));
                let segment = self.segments.get_mut(&number).expect("it was just begun");
                let greatest = segment.greatest.entry(header.shard).or_insert(at);
                *greatest = at.max(*greatest);
            }
            Kind::Vote => index.save_vote(Bytes::copy_from_slice(payload)),
            Kind::Truncate => index.truncate(header.position.index.0),
            Kind::Purge if header.position.index.0 == u64::MAX => {
                return Err("a purge that nothing could follow");
            }
            Kind::Purge => index.purge(header.position),
        }
        Ok(())
    }

    fn learn_synced(&mut self, header: &Header) {
        if !planted(Fault::DamageIsTear) {
            self.known_synced = self.known_synced.max(header.synced_upto);
        }
    }

    /// Looks for whole frame headers at and behind `from`: what they say was synced must be there.
    fn look_for_synced(&mut self, bytes: &[u8], from: usize) {
        let tag = uuid_tag(&self.uuid);
        let mut at = from;
        while at + HEADER_BYTES <= bytes.len() {
            if let Ok(header) = Header::read(&bytes[at..])
                && header.tag == tag
            {
                self.learn_synced(&header);
            }
            at += ALIGN;
        }
    }

    /// Decides whether what follows the last whole frame is a torn tail or a damaged log.
    fn judge(&self, stop: &Stop) -> Result<(), LogError> {
        let path = segment_path(self.dir, stop.segment);
        if self.sequence < self.known_synced {
            let missing = self.known_synced - self.sequence;
            let what = format!("{}; {missing} frames from here on were synced", stop.why);
            return Err(LogError::Damaged { file: path, offset: stop.offset, what });
        }
        let absent = self.shards.iter().find(|(_, index)| index.absent() > 0);
        if let Some((shard, index)) = absent {
            let oldest = *self.segments.keys().next().expect("one has begun");
            let what = format!("{} entries of shard {shard} lay before it", index.absent());
            let file = segment_path(self.dir, oldest.saturating_sub(1));
            return Err(LogError::Damaged { file, offset: 0, what });
        }
        Ok(())
    }
}
