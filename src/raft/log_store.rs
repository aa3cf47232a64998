//! openraft's log store on one shard of the node's write-ahead log.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::{LogState, OptionalSend, RaftLogReader};

use super::appended::Appended;
use super::entry::{TypeConfig, from_log, log_id_of, position_of, to_log};
use crate::codec;
use crate::ledger::LogIndex;
use crate::storage::ShardLog;

/// One shard's log as openraft sees it. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    log: ShardLog,
    appended: Appended,
    /// The most bytes of entries that one read for replication returns.
    read_bytes_max: usize,
}

impl LogStore {
    pub(crate) fn new(log: ShardLog, read_bytes_max: usize) -> LogStore {
        LogStore { log, appended: Appended::default(), read_bytes_max }
    }

    /// Returns how far the log goes, for those who send it on.
    pub(super) fn appended(&self) -> Appended {
        self.appended.clone()
    }

    fn read(&self, from: u64, to: u64, bytes: usize) -> io::Result<Vec<EntryOf<TypeConfig>>> {
        self.log
            .read(from..to, bytes)?
            .into_iter()
            .map(|entry| from_log(entry).map_err(io::Error::other))
            .collect()
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<EntryOf<TypeConfig>>> {
        let from = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => u64::MAX,
        };
        self.read(from, to, usize::MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<TypeConfig>>> {
        match self.log.vote() {
            None => Ok(None),
            Some(bytes) => codec::decode(&bytes).map(Some).map_err(io::Error::other),
        }
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> io::Result<Vec<EntryOf<TypeConfig>>> {
        self.read(start, end, self.read_bytes_max)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let state = self.log.state();
        let purged = state.purged.map(log_id_of);
        Ok(LogState { last_purged_log_id: purged, last_log_id: state.last.map(log_id_of) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<TypeConfig>) -> io::Result<()> {
        let bytes = codec::encode(vote).map_err(io::Error::other)?;
        self.log.save_vote(bytes.into()).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Result<Vec<_>, _> = entries.into_iter().map(|e| to_log(&e)).collect();
        let entries = entries.map_err(io::Error::other)?;
        let done = Box::new(move |result| callback.io_completed(result));
        let last = entries.last().map(|entry| entry.position.index.0);
        self.log.append_when_room(entries, done).await?;
        if let Some(last) = last {
            self.appended.note(last);
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        self.log.truncate_after(last.map(|id| LogIndex(id.index()))).await
    }

    async fn purge(&mut self, upto: LogIdOf<TypeConfig>) -> io::Result<()> {
        self.log.purge(position_of(&upto)).await
    }
}
