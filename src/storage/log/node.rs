//! The log as the rest of the node sees it: [`NodeLog`] for its owner, [`ShardLog`] for each shard.
//!
//! Promises what openraft requires: entries are readable when `append` returns, a vote is durable
//! before `save_vote` returns, and completions come in the order of the calls.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::driver::{self, Done, NotTaken, Request, ShardCell, Shared};
use super::index::ShardIndex;
use super::segment::ShardMark;
use super::stream::first_removed;
use super::{
    Log, LogEntry, LogError, LogHealth, LogOptions, LogPosition, Record, ShardLogState,
    VOTE_BYTES_MAX,
};
use crate::ledger::{LogIndex, ShardId};
use crate::planted::{Fault, planted};
use crate::storage::disk::Disk;

/// A node's write-ahead log, with its driver running. Dropping it lets the driver finish what it
/// has, unobserved; a log that shall be opened again must be closed with [`NodeLog::close`].
pub struct NodeLog {
    shared: Arc<Shared>,
    end: oneshot::Receiver<io::Result<()>>,
    options: LogOptions,
}

impl fmt::Debug for NodeLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLog").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl NodeLog {
    /// Makes an empty log in `dir` and opens it. `uuid` is random; the caller lists it in the
    /// node's identity before the first vote. Only `cluster init` and `join` may do this.
    ///
    /// # Errors
    ///
    /// [`LogError::Exists`] when a log was made there already; [`LogError::Options`] and
    /// [`LogError::Io`].
    pub fn create(
        disk: Arc<dyn Disk>,
        dir: &Path,
        uuid: [u8; 16],
        options: LogOptions,
    ) -> Result<NodeLog, LogError> {
        Log::create(&disk, dir, uuid, &options)?;
        NodeLog::open(disk, dir, uuid, options)
    }

    /// Opens the log in `dir`, which must be the one with this uuid, and starts its driver. Reads
    /// the whole log before it returns. In a simulated build it must be called inside the runtime.
    ///
    /// # Errors
    ///
    /// As [`Log::open`].
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        uuid: [u8; 16],
        options: LogOptions,
    ) -> Result<NodeLog, LogError> {
        let (log, shards) = Log::open(&disk, dir, uuid, &options)?;
        let (shared, end) =
            driver::start(log, shards, options.queue_bytes_max, options.queue_requests_max)
                .map_err(|error| LogError::io(dir, error))?;
        Ok(NodeLog { shared, end, options })
    }

    /// Returns one shard's view. A shard that has never said anything is empty.
    pub fn shard(&self, shard: ShardId) -> ShardLog {
        let index = self
            .shared
            .shards
            .lock()
            .entry(shard)
            .or_insert_with(|| {
                let empty = ShardMark::new(shard);
                Arc::new(Mutex::new(ShardIndex::new(&empty, self.options.tail_bytes_max)))
            })
            .clone();
        ShardLog {
            shard,
            shared: self.shared.clone(),
            index,
            payload_bytes_max: self.options.payload_bytes_max,
        }
    }

    /// Returns how the log is. Never waits for the disk.
    pub fn health(&self) -> LogHealth {
        self.shared.health()
    }

    /// Takes nothing more, completes what was asked, and ends the driver. A hung disk hangs it:
    /// give it a deadline.
    ///
    /// # Errors
    ///
    /// Why the log has failed, if it has.
    pub async fn close(mut self) -> io::Result<()> {
        self.shared.queue.close();
        let ended = (&mut self.end).await;
        ended.unwrap_or_else(|_| Err(io::Error::other("the log's driver was gone before its end")))
    }
}

impl Drop for NodeLog {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

/// One shard's log. Clones are views of the same.
#[derive(Clone)]
pub struct ShardLog {
    shard: ShardId,
    shared: Arc<Shared>,
    index: Arc<ShardCell>,
    payload_bytes_max: usize,
}

impl fmt::Debug for ShardLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardLog").field("shard", &self.shard).finish_non_exhaustive()
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

impl ShardLog {
    /// Returns vote, purge mark and last position, as asked for so far; each is durable once the
    /// call that made it so has completed.
    pub fn state(&self) -> ShardLogState {
        self.index.lock().state()
    }

    /// Returns how many frames were written in the life of the node's log, by all shards.
    pub fn frames_of_node(&self) -> u64 {
        self.shared.frames()
    }

    /// Returns the last vote asked to be saved.
    pub fn vote(&self) -> Option<Bytes> {
        self.index.lock().state().vote
    }

    /// Appends entries. They are readable when this returns; `done` is called once they are
    /// durable, or once it is known that they may not be. Never waits.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the entries do not follow the last one or are too long; `WouldBlock`
    /// when the queue is full ([`ShardLog::append_when_room`] waits instead); anything else when
    /// the log has failed or was closed. `done` is not called then, and nothing was appended.
    pub fn append(&self, entries: Vec<LogEntry>, done: Done) -> io::Result<()> {
        match self.try_append(entries, done) {
            Ok(()) => Ok(()),
            Err(NotTaken::Over(error)) => Err(error),
            Err(NotTaken::Full(_)) => {
                Err(io::Error::new(io::ErrorKind::WouldBlock, "the log's queue is full"))
            }
        }
    }

    /// Appends as [`ShardLog::append`] does, waiting until the queue has room.
    ///
    /// # Errors
    ///
    /// As [`ShardLog::append`], but for `WouldBlock`.
    pub async fn append_when_room(&self, entries: Vec<LogEntry>, done: Done) -> io::Result<()> {
        let (mut entries, mut done) = (entries, done);
        loop {
            let room = self.shared.queue.room.notified();
            match self.try_append(entries, done) {
                Ok(()) => return Ok(()),
                Err(NotTaken::Over(error)) => return Err(error),
                Err(NotTaken::Full(request)) => {
                    let Record::Entries(again) = request.record else {
                        unreachable!("what was submitted comes back")
                    };
                    (entries, done) = (again, request.done);
                }
            }
            room.await;
        }
    }

    fn try_append(&self, entries: Vec<LogEntry>, done: Done) -> Result<(), NotTaken> {
        let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
        if let Some(long) = entries.iter().find(|e| e.payload.len() > self.payload_bytes_max) {
            let (has, max) = (long.payload.len(), self.payload_bytes_max);
            return Err(NotTaken::Over(invalid(format!("an entry of {has} bytes; {max} at most"))));
        }
        let mut index = self.index.lock();
        index.check_append(&entries).map_err(NotTaken::Over)?;
        let kept = entries.clone();
        let record = Record::Entries(entries);
        let request = Request { shard: self.shard, record, done, bytes };
        let ticket = self.shared.queue.submit(request)?;
        for entry in kept {
            index.push(entry, ticket, None);
        }
        Ok(())
    }

    /// Saves the vote; returns once it is durable.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when it is longer than [`VOTE_BYTES_MAX`]; anything else when the log has
    /// failed or was closed: it may or may not be saved then.
    pub async fn save_vote(&self, vote: Bytes) -> io::Result<()> {
        if vote.len() > VOTE_BYTES_MAX {
            return Err(invalid(format!("a vote of {} bytes", vote.len())));
        }
        self.perform(Record::Vote(vote.clone()), |_| Ok(()), |index| index.save_vote(vote)).await
    }

    /// Drops the entries behind `last` (all of them with `None`); returns once that is durable.
    /// They are gone for readers at once.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when `last` lies below what was purged; anything else when the log has
    /// failed or was closed.
    pub async fn truncate_after(&self, last: Option<LogIndex>) -> io::Result<()> {
        let from = first_removed(last);
        self.perform(
            Record::TruncateAfter(last),
            |index| index.check_truncate(from),
            |index| index.truncate(from),
        )
        .await
    }

    /// Drops the entries up to `upto`, it included; returns once that is durable. They are gone for
    /// readers at once. Beyond the last entry it leaves an empty log that continues behind `upto`.
    ///
    /// # Errors
    ///
    /// When the log has failed or was closed.
    pub async fn purge(&self, upto: LogPosition) -> io::Result<()> {
        if upto.index.0 == u64::MAX {
            return Err(invalid("nothing could follow this purge".into()));
        }
        self.perform(Record::Purge(upto), |_| Ok(()), |index| index.purge(upto)).await
    }

    /// Submits a record and changes memory in the same moment, then waits for the sync.
    async fn perform(
        &self,
        record: Record,
        check: impl Fn(&ShardIndex) -> io::Result<()>,
        change: impl FnOnce(&mut ShardIndex),
    ) -> io::Result<()> {
        let is_vote = matches!(record, Record::Vote(_));
        let (sender, synced) = oneshot::channel();
        let done: Done = Box::new(move |outcome| {
            // The caller may have been dropped; the record counts all the same.
            let _ = sender.send(outcome);
        });
        let mut request = Request { shard: self.shard, record, done, bytes: VOTE_BYTES_MAX };
        loop {
            let room = self.shared.queue.room.notified();
            {
                let mut index = self.index.lock();
                check(&index)?;
                match self.shared.queue.submit(request) {
                    Ok(_) => {
                        change(&mut index);
                        break;
                    }
                    Err(NotTaken::Over(error)) => return Err(error),
                    Err(NotTaken::Full(again)) => request = again,
                }
            }
            room.await;
        }
        if is_vote && planted(Fault::VoteNotSynced) {
            return Ok(());
        }
        let outcome = synced.await;
        outcome.unwrap_or_else(|_| Err(io::Error::other("the log's driver is gone")))
    }

    /// Reads the entries with an index in `range`, in order and without a gap, up to
    /// `payload_bytes_max` bytes of payload but at least one if there is any. From memory, or from
    /// the segments: then it waits for the disk.
    ///
    /// # Errors
    ///
    /// When the log has failed, the disk does, or a frame is damaged (`InvalidData`).
    pub fn read(&self, range: Range<u64>, payload_bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        self.shared.queue.check()?;
        let plan =
            self.index.lock().plan(self.shard, range, payload_bytes_max, &self.shared.files)?;
        plan.execute()
    }
}
