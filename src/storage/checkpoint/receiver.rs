//! Receiving a checkpoint from a peer: written whole in the place that is not current.
//!
//! It replaces and never merges: the database is made anew, pages come in the order of their keys
//! without a repetition, and their number and bytes must be the header's. The caller rebuilds the
//! ledger from what it was sent and compares the digest before [`CheckpointReceiver::finish`].
//! Given up in between it leaves the place empty. It never touches the current database.

use std::sync::Arc;

use super::writer::Open;
use super::{CheckpointError, CheckpointHeader, Checkpoints, Turn, other};
use crate::ledger::PageKey;
use crate::storage::pages::StoredPage;

impl Checkpoints {
    /// Begins to receive a checkpoint into the place that is not current.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`] when nothing was done, [`CheckpointError::Io`].
    pub async fn begin_receive(&self) -> Result<CheckpointReceiver, CheckpointError> {
        let turn = self.current().map_or(Turn::A, |(turn, _)| other(turn));
        let open = Open::begin(&self.shared, turn, true, "received").await?;
        Ok(CheckpointReceiver { checkpoints: self.clone(), open, last: None, pages: 0, bytes: 0 })
    }
}

/// A checkpoint that is being received. Dropped before it is finished it leaves its place empty.
#[derive(Debug)]
pub struct CheckpointReceiver {
    checkpoints: Checkpoints,
    open: Open,
    last: Option<PageKey>,
    pages: u64,
    bytes: u64,
}

impl CheckpointReceiver {
    /// Returns where it is written.
    pub fn turn(&self) -> Turn {
        self.open.turn
    }

    /// Returns the last key received: where a sender goes on.
    pub fn last(&self) -> Option<&PageKey> {
        self.last.as_ref()
    }

    /// Writes the next pages, whose keys must rise, also over the chunks before.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Refused`] when a key does not rise or a page breaks a bound; nothing of
    /// the chunk is written, and what came before still stands. Any other error ends this receiver.
    pub async fn write(&mut self, chunk: Vec<StoredPage>) -> Result<(), CheckpointError> {
        let mut last = self.last.as_ref();
        for (key, _) in &chunk {
            if last.is_some_and(|last| last >= key) {
                return Err(CheckpointError::Refused("its keys do not rise"));
            }
            last = Some(key);
        }
        let last = last.cloned();
        let (pages, bytes) = chunk.iter().fold((0, 0), |(pages, bytes), (key, value)| {
            (pages + 1, bytes + (key.0.len() + value.len()) as u64)
        });
        let changes: Vec<_> = chunk.into_iter().map(|(key, value)| (key, Some(value))).collect();
        self.open.write(changes).await?;
        self.last = last;
        self.pages += pages;
        self.bytes += bytes;
        Ok(())
    }

    /// Closes and syncs the database under the sender's header (with a sequence of our own), and
    /// makes it current. The caller has compared the digest, and replaces its ledger by this one.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Foreign`] or [`CheckpointError::Refused`] when the header is not of this
    /// shard, not of these pages, or behind the current checkpoint. The place is empty then, and
    /// the current one stays current.
    pub async fn finish(
        self,
        header: &CheckpointHeader,
    ) -> Result<Arc<CheckpointHeader>, CheckpointError> {
        let shared = &self.checkpoints.shared;
        if let Some(reason) = shared.origin.differs(&header.origin) {
            let (shard, turn) = (shared.origin.shard.0, self.open.turn);
            return Err(CheckpointError::Foreign { shard, turn, reason });
        }
        if (self.pages, self.bytes) != (header.page_count, header.page_bytes) {
            return Err(CheckpointError::Refused("its pages are not as many as its header says"));
        }
        self.open.finish(header.state.clone(), self.pages, self.bytes, true).await
    }
}
