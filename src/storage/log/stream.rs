//! The log itself: one stream of frames for all shards of a node, synchronous and single-handed.
//!
//! [`Log::record`] encodes, [`Log::sync`] writes what was recorded, syncs it, and marks it as
//! synced; only then may anything recorded be acknowledged. After the first error every call fails:
//! what a failed write or sync left behind is unknown, and only a restart may find out.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::frame::{Header, Kind, frame_bytes, push_frame, uuid_tag};
use super::index::ShardIndex;
use super::recovery::{Scanned, Segment, read_whole, scan};
use super::segment::{
    Location, SegmentFiles, SegmentStart, ShardMark, Spares, prepare, segment_number, segment_path,
};
use super::synced::{FILE_NAME, SyncedFile, SyncedMark};
use super::{LogEntry, LogError, LogOptions, LogPosition};
use crate::codec;
use crate::ledger::{LeaderId, LogIndex, ShardId};
use crate::planted::{Fault, planted};
use crate::storage::disk::{Disk, DiskFile, ZERO_CHUNK_BYTES};

/// Something to be remembered of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Entries, in order, without a gap.
    Entries(Vec<LogEntry>),
    /// The vote.
    Vote(Bytes),
    /// Entries behind this index are gone; all of them with `None`.
    TruncateAfter(Option<LogIndex>),
    /// Entries up to this position are gone, it included.
    Purge(LogPosition),
}

/// The first index that a truncation removes.
pub(super) fn first_removed(after: Option<LogIndex>) -> u64 {
    after.map_or(0, |index| index.0.saturating_add(1))
}

/// A node's log, open for appending. One owner; no threads; no clock.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    uuid: [u8; 16],
    spares: Arc<Spares>,
    files: Arc<SegmentFiles>,
    segments: BTreeMap<u64, Segment>,
    /// The number of the segment that frames go to now.
    active: u64,
    /// Where `pending` goes in it.
    append_at: u64,
    /// Frames that are encoded and not written.
    pending: Vec<u8>,
    /// Segments that were written to since their last sync.
    unsynced: Vec<u64>,
    /// The last frame's.
    sequence: u64,
    synced: SyncedMark,
    synced_file: SyncedFile,
    shards: BTreeMap<ShardId, ShardMark>,
    failed: Option<String>,
}

impl Log {
    /// Makes an empty log in `dir`. What an attempt that was cut off left there is made anew.
    ///
    /// # Errors
    ///
    /// [`LogError::Exists`] when a log was made there already, whole or damaged;
    /// [`LogError::Options`], [`LogError::Io`].
    pub fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        uuid: [u8; 16],
        options: &LogOptions,
    ) -> Result<(), LogError> {
        options.check()?;
        let io_error = |error| LogError::io(dir, error);
        let missing: Vec<&Path> = dir
            .ancestors()
            .take_while(|dir| !dir.as_os_str().is_empty() && disk.list(dir).is_err())
            .collect();
        disk.create_dir_all(dir).map_err(io_error)?;
        for parent in missing.iter().rev().filter_map(|dir| dir.parent()) {
            disk.sync_dir(parent).map_err(io_error)?;
        }
        if is_in_use(&**disk, dir).map_err(io_error)? {
            return Err(LogError::Exists { dir: dir.into() });
        }
        let mut head = Vec::new();
        let start = SegmentStart { uuid, segment_bytes: options.segment_bytes, shards: Vec::new() };
        push_start(&mut head, &start, 1, 1, 0).map_err(io_error)?;
        prepare(&**disk, dir, 1, options.segment_bytes, &head).map_err(io_error)?;
        // The side file comes last, by a rename: once it is there, so is everything else.
        let unnamed = dir.join("synced.tmp");
        SyncedFile::create(&**disk, &unnamed, uuid, SyncedMark { sequence: 1, segment: 1 })
            .and_then(|_| disk.rename(&unnamed, &dir.join(FILE_NAME)))
            .and_then(|()| disk.sync_dir(dir))
            .map_err(io_error)
    }

    /// Opens the log in `dir` and returns it with what each shard's log holds. A torn tail is cut
    /// and overwritten with zeros; everything that is returned is durable.
    ///
    /// # Errors
    ///
    /// [`LogError::Lost`], [`LogError::Foreign`] and [`LogError::Damaged`] before anything was
    /// changed; [`LogError::Io`] when a read fails, or when a torn tail cannot be cut. Nothing that
    /// was ever acknowledged is changed in any case, and none of it needs room on the disk.
    pub fn open(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        uuid: [u8; 16],
        options: &LogOptions,
    ) -> Result<(Log, BTreeMap<ShardId, ShardIndex>), LogError> {
        options.check()?;
        let mut scanned = scan(&**disk, dir, uuid, options)?;
        repair(&**disk, dir, &mut scanned)?;
        let active = *scanned.segments.keys().next_back().expect("a scan finds a segment");
        let files = SegmentFiles::default();
        for (number, segment) in &scanned.segments {
            files.insert(*number, segment.file.clone());
        }
        let shards =
            scanned.shards.iter().map(|(shard, index)| (*shard, index.mark(*shard))).collect();
        let spares =
            Spares::new(disk.clone(), dir.into(), options.segment_bytes, active, scanned.spares);
        let log = Log {
            disk: disk.clone(),
            dir: dir.into(),
            uuid,
            spares: Arc::new(spares),
            files: Arc::new(files),
            segments: scanned.segments,
            active,
            append_at: scanned.append_at,
            pending: Vec::new(),
            unsynced: Vec::new(),
            sequence: scanned.sequence,
            synced: SyncedMark { sequence: scanned.sequence, segment: active },
            synced_file: scanned.synced_file,
            shards,
            failed: None,
        };
        Ok((log, scanned.shards))
    }

    /// Encodes a record behind the earlier ones. Nothing is durable before [`Log::sync`].
    ///
    /// # Errors
    ///
    /// When the log has failed, or fails now because a segment cannot be finished or begun.
    pub fn record(&mut self, shard: ShardId, record: &Record) -> io::Result<()> {
        self.place(shard, record).map(|_| ())
    }

    /// Does what [`Log::record`] does and tells where each entry will lie.
    pub(super) fn place(&mut self, shard: ShardId, record: &Record) -> io::Result<Vec<Location>> {
        self.guarded(|log| {
            let nowhere = LogPosition { leader: LeaderId::default(), index: LogIndex(0) };
            let mut locations = Vec::new();
            match record {
                Record::Entries(entries) => {
                    for entry in entries {
                        let index = entry.position.index.0;
                        let header = Header::new(Kind::Entry, shard, entry.position);
                        locations.push(log.push(header, &entry.payload)?);
                        log.mark(shard).append(index);
                        let active = log.segments.get_mut(&log.active).expect("it is in use");
                        let greatest = active.greatest.entry(shard).or_insert(index);
                        *greatest = index.max(*greatest);
                    }
                }
                Record::Vote(vote) => {
                    log.push(Header::new(Kind::Vote, shard, nowhere), vote)?;
                    log.mark(shard).vote = Some(vote.clone());
                }
                Record::TruncateAfter(after) => {
                    let first_removed = first_removed(*after);
                    let position = LogPosition { index: LogIndex(first_removed), ..nowhere };
                    log.push(Header::new(Kind::Truncate, shard, position), &[])?;
                    log.mark(shard).truncate(first_removed);
                }
                Record::Purge(upto) => {
                    log.push(Header::new(Kind::Purge, shard, *upto), &[])?;
                    log.mark(shard).purge(*upto);
                }
            }
            Ok(locations)
        })
    }

    /// Makes ready the segments that this record begins, before any of it is encoded. Never fails
    /// the log: on a full disk it may be tried again when there is room.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn prepare_for(&self, record: &Record) -> io::Result<()> {
        let begun = self.segments_begun_by(record)?;
        if begun == 0 { Ok(()) } else { self.spares.ensure(begun) }
    }

    /// Counts the segments that a record begins.
    fn segments_begun_by(&self, record: &Record) -> io::Result<u64> {
        let payloads: Vec<usize> = match record {
            Record::Entries(entries) => entries.iter().map(|entry| entry.payload.len()).collect(),
            Record::Vote(vote) => vec![vote.len()],
            Record::TruncateAfter(_) | Record::Purge(_) => vec![0],
        };
        let room = self.segments.get(&self.active).map_or(0, |segment| segment.bytes);
        let left = room.saturating_sub(self.append_at + self.pending.len() as u64);
        let frames = payloads.iter().map(|payload| frame_bytes(*payload) as u64);
        if frames.clone().sum::<u64>() <= left {
            return Ok(0);
        }
        let size = self.spares.segment_bytes();
        let start = codec::encode(&self.start_of(size)).map_err(io::Error::other)?;
        let start = frame_bytes(start.len()) as u64;
        let (mut begun, mut left) = (0, left);
        for frame in frames {
            if frame > left {
                begun += 1;
                left = size.saturating_sub(start);
            }
            left = left.saturating_sub(frame);
        }
        Ok(begun)
    }

    /// What the start of a segment of this size says now.
    fn start_of(&self, segment_bytes: u64) -> SegmentStart {
        SegmentStart {
            uuid: self.uuid,
            segment_bytes,
            shards: self.shards.values().cloned().collect(),
        }
    }

    /// Writes what was recorded.
    ///
    /// # Errors
    ///
    /// When the log has failed or the write does: the log has failed then.
    pub fn write(&mut self) -> io::Result<()> {
        self.guarded(Log::flush)
    }

    /// Writes what was recorded, syncs it and marks it as synced. Then it may be acknowledged.
    /// Costs one fdatasync (two when a segment was finished); none when there is nothing new.
    ///
    /// # Errors
    ///
    /// When the log has failed or the write or sync does: the log has failed then.
    pub fn sync(&mut self) -> io::Result<()> {
        self.guarded(|log| {
            log.flush()?;
            if log.unsynced.is_empty() {
                return Ok(());
            }
            for number in std::mem::take(&mut log.unsynced) {
                let segment = log.segments.get(&number).expect("an unsynced segment is in use");
                if planted(Fault::NoSync) {
                    continue;
                }
                match segment.file.sync_data() {
                    Err(_) if planted(Fault::SyncRetried) => segment.file.sync_data()?,
                    synced => synced?,
                }
            }
            let mark = SyncedMark { sequence: log.sequence, segment: log.active };
            log.synced_file.write(mark)?;
            log.synced = mark;
            Ok(())
        })
    }

    /// Makes the mark of the last sync durable too, so that damage done while the node is down
    /// is told from a torn tail.
    ///
    /// # Errors
    ///
    /// When the log has failed or the sync does: the log has failed then.
    pub fn sync_mark(&mut self) -> io::Result<()> {
        self.guarded(|log| log.synced_file.sync())
    }

    /// Takes the segments that nobody needs any more out of use, oldest first, and returns their
    /// paths for [`Log::remove`]. A segment goes when every shard has durably purged past what it
    /// has in it; votes and purge marks live on in the start of the next one.
    pub fn take_dead_segments(&mut self) -> Vec<PathBuf> {
        let mut dead = Vec::new();
        // Only what was synced counts: a purge, and the start of the segment behind.
        if self.synced.sequence != self.sequence || self.failed.is_some() {
            return dead;
        }
        while let Some((number, segment)) = self.segments.first_key_value() {
            let number = *number;
            let needed = segment.greatest.iter().any(|(shard, greatest)| {
                let purged = self.shards.get(shard).and_then(|mark| mark.purged);
                purged.is_none_or(|purged| purged.index.0 < *greatest)
            });
            if needed || number == self.active {
                break;
            }
            self.segments.remove(&number);
            self.files.remove(number);
            dead.push(segment_path(&self.dir, number));
        }
        dead
    }

    /// Removes dead segments. May run on another thread than the log's.
    ///
    /// # Errors
    ///
    /// What the disk says. They are removed at the next open then.
    pub fn remove(disk: &dyn Disk, dir: &Path, dead: &[PathBuf]) -> io::Result<()> {
        for path in dead {
            disk.remove(path)?;
        }
        if dead.is_empty() { Ok(()) } else { disk.sync_dir(dir) }
    }

    /// Prepares the segment that is needed next, unless it is ready. Never fails the log.
    pub fn prepare_next(&self) {
        self.spares.prepare_next();
    }

    /// Reads entries as [`super::ShardLog::read`] does.
    ///
    /// # Errors
    ///
    /// What the disk says, and `InvalidData` when a frame is damaged.
    pub fn read(
        &self,
        shard: ShardId,
        index: &ShardIndex,
        range: std::ops::Range<u64>,
        payload_bytes_max: usize,
    ) -> io::Result<Vec<LogEntry>> {
        index.plan(shard, range, payload_bytes_max, &self.files)?.execute()
    }

    /// Returns how many frames the log has ever had.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns why the log has failed, or `None`.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    pub(super) fn spares(&self) -> &Arc<Spares> {
        &self.spares
    }

    pub(super) fn segment_files(&self) -> &Arc<SegmentFiles> {
        &self.files
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn mark(&mut self, shard: ShardId) -> &mut ShardMark {
        self.shards.entry(shard).or_insert_with(|| ShardMark::new(shard))
    }

    /// Runs a step that poisons the log when it fails.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Log) -> io::Result<T>) -> io::Result<T> {
        if let Some(why) = &self.failed {
            return Err(io::Error::other(format!("the log has failed: {why}")));
        }
        step(self).inspect_err(|error| self.failed = Some(error.to_string()))
    }

    /// Encodes one frame, in the next segment when it does not fit into this one.
    fn push(&mut self, header: Header, payload: &[u8]) -> io::Result<Location> {
        let bytes = frame_bytes(payload.len()) as u64;
        let room = self.segments.get(&self.active).map_or(0, |segment| segment.bytes);
        if self.append_at + self.pending.len() as u64 + bytes > room {
            self.roll(bytes)?;
        }
        let location = Location {
            segment: self.active,
            offset: self.append_at + self.pending.len() as u64,
            payload_bytes: u32::try_from(payload.len()).map_err(io::Error::other)?,
        };
        self.sequence += 1;
        let header = Header {
            tag: uuid_tag(&self.uuid),
            sequence: self.sequence,
            synced_upto: self.synced.sequence,
            segment: self.active,
            ..header
        };
        push_frame(&mut self.pending, header, payload);
        Ok(location)
    }

    /// Finishes the active segment and begins the next, which must hold a frame of `bytes`.
    fn roll(&mut self, bytes: u64) -> io::Result<()> {
        self.flush()?;
        let number = self.active + 1;
        let file = self.spares.take(number)?;
        let size = file.length()?;
        let start = self.start_of(size);
        let begin = self.sequence + 1;
        push_start(&mut self.pending, &start, number, begin, self.synced.sequence)?;
        if self.pending.len() as u64 + bytes > size {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a frame of {bytes} bytes does not fit into a segment of {size}"),
            ));
        }
        self.sequence = begin;
        self.files.insert(number, file.clone());
        self.segments.insert(number, Segment { file, bytes: size, greatest: BTreeMap::new() });
        self.active = number;
        self.append_at = 0;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.unsynced.last() != Some(&self.active) {
            self.unsynced.push(self.active);
        }
        let segment = self.segments.get(&self.active).expect("the active segment is in use");
        match segment.file.write_at(self.append_at, &self.pending) {
            Err(error)
                if planted(Fault::SpaceSwallowed) && error.kind() == io::ErrorKind::StorageFull => {
            }
            written => written?,
        }
        self.append_at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

fn push_start(
    buffer: &mut Vec<u8>,
    start: &SegmentStart,
    number: u64,
    sequence: u64,
    synced_upto: u64,
) -> io::Result<()> {
    let payload = codec::encode(start).map_err(io::Error::other)?;
    let nowhere = LogPosition { leader: LeaderId::default(), index: LogIndex(0) };
    let header = Header {
        tag: uuid_tag(&start.uuid),
        sequence,
        synced_upto,
        segment: number,
        ..Header::new(Kind::Start, ShardId(0), nowhere)
    };
    push_frame(buffer, header, &payload);
    Ok(())
}

/// Tells whether `dir` holds more than what a creation that was cut off leaves: at most a first
/// segment with nothing behind its start.
fn is_in_use(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    for name in disk.list(dir)? {
        match segment_number(&name) {
            None if name == FILE_NAME => return Ok(true),
            None => {}
            Some(1) => {
                let bytes = read_whole(&*disk.open(&segment_path(dir, 1))?)?;
                let used = match Header::read_frame(&bytes) {
                    Ok((header, _)) => usize::try_from(header.frame_bytes()).unwrap_or(usize::MAX),
                    Err(_) => 0,
                };
                if bytes.iter().skip(used).any(|byte| *byte != 0) {
                    return Ok(true);
                }
            }
            Some(_) => return Ok(true),
        }
    }
    Ok(false)
}

/// Cuts the torn tail that a scan found and makes what it read durable. Writes in place only.
fn repair(disk: &dyn Disk, dir: &Path, scanned: &mut Scanned) -> Result<(), LogError> {
    let io_error = |error| LogError::io(dir, error);
    for file in scanned.spares.values() {
        if write_zeros_from(&**file, 0).map_err(io_error)? {
            file.sync_data().map_err(io_error)?;
        }
    }
    let active = *scanned.segments.keys().next_back().expect("a scan finds a segment");
    let tail = &scanned.segments.get(&active).expect("it is there").file;
    let cut = write_zeros_from(&**tail, scanned.append_at).map_err(io_error)?;
    let unsynced_from = scanned.unsynced_from.take();
    if let Some((number, offset)) = unsynced_from {
        for (other, segment) in scanned.segments.range(number..) {
            let from = if *other == number { offset } else { 0 };
            let upto = if *other == active { scanned.append_at } else { segment.bytes };
            rewrite(&*segment.file, from, upto).map_err(io_error)?;
            segment.file.sync_data().map_err(io_error)?;
        }
    } else if cut {
        tail.sync_data().map_err(io_error)?;
    }
    let mark = SyncedMark { sequence: scanned.sequence, segment: active };
    if mark != scanned.mark {
        scanned.synced_file.write(mark).map_err(io_error)?;
    }
    scanned.synced_file.sync().map_err(io_error)?;
    for misfit in &scanned.misfits {
        Log::remove(disk, dir, std::slice::from_ref(misfit)).map_err(io_error)?;
    }
    Log::remove(disk, dir, &scanned.leftovers).map_err(io_error)
}

/// Overwrites with zeros whatever is not zero at and behind `from`; tells whether anything was.
fn write_zeros_from(file: &dyn DiskFile, from: u64) -> io::Result<bool> {
    let length = file.length()?;
    let mut chunk = vec![0; ZERO_CHUNK_BYTES];
    let zeros = vec![0; ZERO_CHUNK_BYTES];
    let mut at = from;
    let mut wrote = false;
    while at < length {
        let step = usize::try_from((length - at).min(ZERO_CHUNK_BYTES as u64)).expect("a chunk");
        file.read_exact_at(at, &mut chunk[..step])?;
        if chunk[..step] != zeros[..step] {
            file.write_at(at, &zeros[..step])?;
            wrote = true;
        }
        at += step as u64;
    }
    Ok(wrote)
}

/// Writes what the file holds once more. After a failed sync the kernel may show pages that never
/// reached the disk and call them clean; a sync alone would not write them.
fn rewrite(file: &dyn DiskFile, from: u64, upto: u64) -> io::Result<()> {
    let mut chunk = vec![0; ZERO_CHUNK_BYTES];
    let mut at = from;
    while at < upto {
        let step = usize::try_from((upto - at).min(ZERO_CHUNK_BYTES as u64)).expect("a chunk");
        file.read_exact_at(at, &mut chunk[..step])?;
        file.write_at(at, &chunk[..step])?;
        at += step as u64;
    }
    Ok(())
}
