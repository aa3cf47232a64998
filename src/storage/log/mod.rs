//! The write-ahead log: one per node for all its shards, so that shards share each fdatasync.
//!
//! [`NodeLog`] owns the log and its driver; [`ShardLog`] is one shard's view; [`Log`] is the
//! synchronous stream of frames underneath, which tests crash at every step. Appends are readable
//! when [`ShardLog::append`] returns and acknowledged, in the order of the calls, after their sync.
//! Nothing is ever acknowledged before; nothing is retried after a failed write or sync.
//!
//! # Files
//!
//! `NNNNNNNNNNNNNNNN.seg`: segments of one size, numbered without gaps, filled with written zeros
//! and synced, name included, before their use. A segment begins with a start frame: the log's
//! uuid, the segment's size, and every shard's vote, purge mark and bounds, so that segments before
//! it can go. Frames follow; their sequence counts +1 across the whole log. `synced`: see below.
//!
//! # A full disk
//!
//! Frames go to places that were written before, so only a new segment needs room. It is made ready
//! before any frame for it is encoded; when there is no room for that, the log waits and takes no
//! further step until there is. That is the one thing that is tried again: a preparation begins
//! with an empty file and leaves nothing that anybody believed.
//!
//! # Torn is not damaged is not lost
//!
//! Reading stops at the first frame that is not whole or not the next of the sequence. What was
//! *synced* beyond that point decides: if any, the log is damaged and this node must not vote; if
//! none, the tail is torn and is cut. How far the log was synced is learnt from
//!
//! 1. each frame's `synced_upto`, known when it was written, also of frames behind the stop;
//! 2. the side file `synced`: two slots in turn, written after each sync and before its
//!    acknowledgement.
//!
//! *No false alarm.* Both speak only of syncs that had returned, so what they vouch for was on the
//! disk before they were written. A power cut takes only unsynced bytes; it can therefore never
//! leave a mark that says more than what is whole. A slot lies within one sector, so it is its old
//! self or its new one.
//!
//! *No silent loss.* The side file itself is not synced after each sync (that would double the cost
//! of an acknowledgement). It need not be: after a *process kill* the kernel still has the slot.
//! After a *power cut* the slot may be an older one, but then every acknowledged frame was synced
//! and is whole, unless the disk damaged it too. The one thing that reads as torn is thus damage to
//! the frames of the very last sync before a power cut that also took its slot: two independent
//! faults, and any later frame, or the 30 s after which the kernel writes the slot back, or a close
//! ([`Log::sync_mark`]) ends that window. Damage to anything earlier is proven by (1).
//!
//! *Nothing shrinks.* Segments and side file are made at their full length and synced before use,
//! so a shorter one is damaged whatever it held. A missing newest segment is proven by the marks, a
//! missing older one by a gap in some shard's live entries; a missing one that nobody needs does no
//! harm. A missing directory or side file is a lost log; another uuid is a foreign one.
//!
//! *The next crash.* Before the log opens, the torn tail is overwritten with zeros, also in the
//! spare behind it, and what was whole but not known to be synced is written again and synced: it
//! may be shown by the kernel only (a failed sync marks pages clean), and it is about to be
//! believed. All of that happens in place and needs no room; no refusal changes a byte.

mod driver;
mod frame;
mod index;
mod look;
mod node;
mod recovery;
mod segment;
mod stream;
mod synced;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use driver::Done;
pub use index::ShardIndex;
pub use look::ReadLog;
pub use node::{NodeLog, ShardLog};
pub use stream::{Log, Record};

use crate::ledger::{LeaderId, LogIndex};

/// Where an entry stands in a shard's log.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogPosition {
    /// The leadership that wrote the entry.
    pub leader: LeaderId,
    /// The entry's index.
    pub index: LogIndex,
}

/// One entry of a shard's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Where it stands.
    pub position: LogPosition,
    /// What it carries; at most [`LogOptions::payload_bytes_max`].
    pub payload: Bytes,
}

/// What a shard's log begins and ends with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardLogState {
    /// The last vote saved.
    pub vote: Option<Bytes>,
    /// Everything up to here, it included, was purged.
    pub purged: Option<LogPosition>,
    /// The last entry; what was purged when there is none behind it.
    pub last: Option<LogPosition>,
}

/// The longest vote, in bytes. Votes are repeated in every segment's start.
pub const VOTE_BYTES_MAX: usize = 512;

/// The log's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// The size of a new segment, in bytes: a multiple of 512.
    pub segment_bytes: u64,
    /// The longest payload of one entry, in bytes: at most half a segment.
    pub payload_bytes_max: usize,
    /// How much payload each shard keeps in memory once it is synced, in bytes.
    pub tail_bytes_max: usize,
    /// How much payload may wait for its sync, in bytes; one request of each caller may exceed it.
    pub queue_bytes_max: usize,
    /// How many requests may wait for their sync.
    pub queue_requests_max: usize,
}

impl Default for LogOptions {
    /// 64 MiB segments (a preparation is a fraction of a second, a purge frees something), 64 MiB
    /// tails (a follower that was away for seconds is served from memory), and queues that only a
    /// hung disk fills.
    fn default() -> LogOptions {
        LogOptions {
            segment_bytes: 64 << 20,
            payload_bytes_max: 16 << 20,
            tail_bytes_max: 64 << 20,
            queue_bytes_max: 64 << 20,
            queue_requests_max: 4096,
        }
    }
}

impl LogOptions {
    fn check(&self) -> Result<(), LogError> {
        let wrong = if self.segment_bytes < 2048 || !self.segment_bytes.is_multiple_of(512) {
            "segment_bytes is a multiple of 512, and at least 2,048"
        } else if self.payload_bytes_max as u64 > self.segment_bytes / 2
            || self.payload_bytes_max as u64 > crate::codec::RECORD_BYTES_MAX
        {
            "payload_bytes_max is at most half of segment_bytes, and at most 16 MiB"
        } else if self.queue_requests_max == 0 || self.queue_bytes_max == 0 {
            "the queue holds at least one request of one byte"
        } else {
            return Ok(());
        };
        Err(LogError::Options(wrong))
    }
}

/// Why a log cannot be made or opened. Only [`LogError::Io`] may go away by itself.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is no log where one was promised. The node must come back as a new one.
    #[error("the log is lost: {what}")]
    Lost {
        /// What is missing.
        what: String,
    },
    /// There is a log, of another node.
    #[error("this is another log: expected uuid {}, found {}", hex(expected), hex(found))]
    Foreign {
        /// The uuid that the node's identity lists.
        expected: [u8; 16],
        /// The uuid found.
        found: [u8; 16],
    },
    /// Something that was synced is not there. The node must not vote.
    #[error("the log is damaged: {}, byte {offset}: {what}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A log was made here already.
    #[error("there is a log in {} already", dir.display())]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// The options contradict each other.
    #[error("the log's options do not fit: {0}")]
    Options(&'static str),
    /// The disk failed an operation, or is full.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the disk said.
        source: io::Error,
    },
}

impl LogError {
    fn damaged(file: &Path, offset: u64, what: &str) -> LogError {
        LogError::Damaged { file: file.into(), offset, what: what.into() }
    }

    fn io(path: &Path, source: io::Error) -> LogError {
        LogError::Io { path: path.into(), source }
    }
}

fn hex(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the log is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogHealth {
    /// How long the oldest request has been waiting for its sync; `None` when none does.
    pub oldest_unsynced: Option<Duration>,
    /// Requests that wait for the next drain; those being synced are not among them.
    pub queued: usize,
    /// Why the log accepts nothing any more; `None` while it does.
    pub failed: Option<String>,
    /// How long it has been waiting for room on a full disk to begin its next segment; `None` when
    /// it does not. It goes on by itself when there is room.
    pub waits_for_room: Option<Duration>,
    /// Why the next segment could not be prepared, or a dead one removed; `None` when all is well.
    /// The log fails when it needs that segment.
    pub housekeeping: Option<String>,
    /// Segments in use.
    pub segments: usize,
    /// Segments that are ready for use.
    pub spares: usize,
    /// Segments that were not ready when they were needed.
    pub prepared_in_place: u64,
    /// The size of the segments in use, in bytes.
    pub bytes: u64,
    /// Syncs since the log was opened: one for each drain of the queue.
    pub syncs: u64,
    /// Frames written in the log's whole life.
    pub frames: u64,
    /// The median time of a sync, in µs.
    pub sync_p50_us: u64,
    /// The 99th percentile of the time of a sync, in µs.
    pub sync_p99_us: u64,
    /// The longest sync, in µs.
    pub sync_max_us: u64,
}
