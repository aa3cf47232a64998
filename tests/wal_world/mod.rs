//! What the log's tests share: a model of what a log must hold, and traces to write into one.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use holdfast::ledger::{LeaderId, LogIndex, NodeId, ShardId};
use holdfast::storage::SimDisk;
use holdfast::storage::log::{
    Log, LogEntry, LogError, LogOptions, LogPosition, Record, ShardIndex, ShardLogState,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub const UUID: [u8; 16] = *b"a log of our own";

pub fn dir() -> PathBuf {
    PathBuf::from("/node/log")
}

/// Segments so small that a short trace crosses several.
pub fn small() -> LogOptions {
    LogOptions {
        segment_bytes: 2048,
        payload_bytes_max: 600,
        tail_bytes_max: 300,
        queue_bytes_max: 1 << 20,
        queue_requests_max: 1024,
    }
}

pub fn position(term: u64, index: u64) -> LogPosition {
    LogPosition { leader: LeaderId { term, node: NodeId(1) }, index: LogIndex(index) }
}

pub fn entry(term: u64, index: u64, payload: &[u8]) -> LogEntry {
    LogEntry { position: position(term, index), payload: Bytes::copy_from_slice(payload) }
}

/// What one shard's log must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardModel {
    pub vote: Option<Bytes>,
    pub purged: Option<LogPosition>,
    pub entries: BTreeMap<u64, LogEntry>,
}

impl ShardModel {
    pub fn last(&self) -> Option<LogPosition> {
        self.entries.values().next_back().map(|entry| entry.position).or(self.purged)
    }

    pub fn next(&self) -> u64 {
        self.last().map_or(0, |last| last.index.0 + 1)
    }

    pub fn state(&self) -> ShardLogState {
        ShardLogState { vote: self.vote.clone(), purged: self.purged, last: self.last() }
    }
}

/// What a node's log must hold. Shards that hold nothing are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model(pub BTreeMap<u16, ShardModel>);

impl Model {
    pub fn apply(&mut self, shard: ShardId, record: &Record) {
        let model = self.0.entry(shard.0).or_default();
        match record {
            Record::Entries(entries) => {
                model.entries.extend(entries.iter().map(|e| (e.position.index.0, e.clone())));
            }
            Record::Vote(vote) => model.vote = Some(vote.clone()),
            Record::TruncateAfter(after) => {
                model.entries.retain(|index, _| after.is_some_and(|after| *index <= after.0));
            }
            Record::Purge(upto) => {
                if model.purged.is_none_or(|purged| purged.index < upto.index) {
                    model.purged = Some(*upto);
                    model.entries.retain(|index, _| *index > upto.index.0);
                }
            }
        }
        self.0.retain(|_, model| *model != ShardModel::default());
    }
}

/// An opened log with its shards' indexes.
pub struct Opened {
    pub log: Log,
    pub shards: BTreeMap<ShardId, ShardIndex>,
}

pub fn create(disk: &SimDisk, options: &LogOptions) {
    let disk = disk.mount();
    Log::create(&disk, &dir(), UUID, options).expect("a healthy disk");
}

pub fn open(disk: &SimDisk, options: &LogOptions) -> Result<Opened, LogError> {
    let disk = disk.mount();
    let (log, shards) = Log::open(&disk, &dir(), UUID, options)?;
    Ok(Opened { log, shards })
}

impl Opened {
    /// Reads everything back, partly from memory and partly from the segments.
    pub fn observe(&self) -> Model {
        let mut model = Model::default();
        for (shard, index) in &self.shards {
            let state = index.state();
            let entries = self.log.read(*shard, index, 0..u64::MAX, usize::MAX).expect("readable");
            let seen = ShardModel {
                vote: state.vote.clone(),
                purged: state.purged,
                entries: entries.into_iter().map(|e| (e.position.index.0, e)).collect(),
            };
            let first = seen.purged.map(|purged| purged.index.0 + 1);
            for (place, at) in seen.entries.keys().enumerate() {
                let begin = *seen.entries.keys().next().expect("one at least");
                assert_eq!(*at, begin + place as u64, "no gap, no duplicate in shard {shard}");
            }
            if let (Some(first), Some(begin)) = (first, seen.entries.keys().next()) {
                assert_eq!(first, *begin, "entries begin behind what was purged");
            }
            assert_eq!(seen.state(), state, "state and entries of shard {shard} agree");
            model.0.insert(shard.0, seen);
        }
        model.0.retain(|_, model| *model != ShardModel::default());
        model
    }
}

/// Requests in groups; each group is one drain of the queue.
pub type Trace = Vec<Vec<(ShardId, Record)>>;

/// Makes a trace of mixed records over three shards that `model` allows, and leaves in `model` what
/// it makes of it.
pub fn trace(seed: u64, groups: usize, model: &mut Model) -> Trace {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..groups)
        .map(|_| {
            (0..rng.random_range(1..=4))
                .map(|_| {
                    let shard = ShardId(rng.random_range(0..3));
                    let record = any_record(&mut rng, model.0.get(&shard.0));
                    model.apply(shard, &record);
                    (shard, record)
                })
                .collect()
        })
        .collect()
}

fn any_record(rng: &mut SmallRng, model: Option<&ShardModel>) -> Record {
    let empty = ShardModel::default();
    let model = model.unwrap_or(&empty);
    let next = model.next();
    let first = model.purged.map_or(0, |purged| purged.index.0 + 1);
    match rng.random_range(0..10) {
        0 => Record::Vote(Bytes::from(format!("vote {}", rng.random::<u16>()))),
        1 if next > first => {
            let after = rng.random_range(first..=next);
            Record::TruncateAfter(after.checked_sub(1).map(LogIndex))
        }
        2 | 3 if next > first => {
            let index = rng.random_range(first..next);
            let leader = model.entries.get(&index).expect("it is live").position.leader;
            Record::Purge(LogPosition { leader, index: LogIndex(index) })
        }
        4 if rng.random_bool(0.2) => Record::Purge(position(9, next + rng.random_range(0..5))),
        _ => Record::Entries(
            (next..next + rng.random_range(1..=3))
                .map(|index| {
                    let length = rng.random_range(0..200);
                    let mut payload = format!("{index}:").into_bytes();
                    payload.resize_with(length, || rng.random());
                    entry(rng.random_range(1..9), index, &payload)
                })
                .collect(),
        ),
    }
}

/// How far a trace came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Frames whose sync returned.
    pub acknowledged: usize,
    /// Frames that were handed to the log.
    pub handed: usize,
}

/// Writes a trace as the driver does: a group, one sync, then the housekeeping. Stops at the first
/// error.
pub fn write(disk: &SimDisk, opened: &mut Opened, trace: &Trace) -> Progress {
    let mut progress = Progress { acknowledged: 0, handed: 0 };
    for (turn, group) in trace.iter().enumerate() {
        for (shard, record) in group {
            progress.handed += frames(record).len();
            if opened.log.record(*shard, record).is_err() {
                return progress;
            }
        }
        if opened.log.sync().is_err() {
            return progress;
        }
        progress.acknowledged = progress.handed;
        let dead = opened.log.take_dead_segments();
        // Housekeeping that fails does not fail the log.
        let _ = Log::remove(disk, Path::new(&dir()), &dead);
        if turn % 3 != 2 {
            opened.log.prepare_next();
        }
    }
    progress
}

/// Splits a record into what survives a power cut whole or not at all: single entries.
fn frames(record: &Record) -> Vec<Record> {
    match record {
        Record::Entries(entries) => {
            entries.iter().map(|entry| Record::Entries(vec![entry.clone()])).collect()
        }
        Record::Vote(_) | Record::TruncateAfter(_) | Record::Purge(_) => vec![record.clone()],
    }
}

/// Returns how many frames a trace makes.
pub fn frames_of(trace: &Trace) -> usize {
    trace.iter().flatten().map(|(_, record)| frames(record).len()).sum()
}

/// Returns what a log holds after each number of frames of a trace, beginning with none.
pub fn prefixes(begin: &Model, trace: &Trace) -> Vec<Model> {
    let mut model = begin.clone();
    let mut all = vec![model.clone()];
    for (shard, record) in trace.iter().flatten() {
        for frame in frames(record) {
            model.apply(*shard, &frame);
            all.push(model.clone());
        }
    }
    all
}

/// Asserts that `seen` is what some number of frames makes, between those acknowledged and those
/// handed over; returns that model.
pub fn assert_prefix(seen: &Model, prefixes: &[Model], progress: Progress, what: &str) -> Model {
    let allowed = &prefixes[progress.acknowledged..=progress.handed];
    assert!(allowed.contains(seen), "{what}: {progress:?}\nfound {seen:?}\nof {allowed:?}");
    seen.clone()
}
