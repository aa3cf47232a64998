//! Building a replica's state anew, from a peer's checkpoint and this node's own log.
//!
//! The log is the authority: the state is a checkpoint that another replica made plus the entries
//! behind it. Nothing of what is in memory or in the pages here is used. openraft notices nothing:
//! the new ledger takes the old one's place at the very entry that is applied then.
//!
//! Safe against a crash at any step: the pages are condemned durably before anything else, so that
//! the next start fetches a checkpoint as well, or replays a log that was never purged.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use openraft::EntryPayload;

use super::entry::from_log;
use super::fetch::fetch_from;
use super::group::Group;
use super::replica::DigestMarks;
use crate::ledger::Turn;
use crate::ledger::{Ledger, LogIndex, NodeId};
use crate::peer::Lane;
use crate::runtime;
use crate::storage::checkpoint::Place;
use crate::storage::{CheckpointError, LogPosition};

/// The most bytes of log that are read in one go.
const READ_BYTES: usize = 1 << 20;
/// Entries that are applied before others get a turn.
const SLICE: usize = 64;
/// How long a checkpoint that is being written is waited for before it is condemned.
const WAIT_FOR_WRITER: Duration = Duration::from_millis(50);
/// How often that is done: thirty seconds.
const WAITS_MAX: u32 = 600;

impl Group {
    /// Builds the state anew: drops memory and pages, takes a checkpoint of one of `from` (or
    /// begins with an empty ledger when the log has everything), and applies the log behind it.
    /// While it runs nothing is kept in pages; the caller has barred this node from answering.
    ///
    /// # Errors
    ///
    /// What could not be read, fetched or written; the state is suspect still, try again.
    pub async fn rebuild(&self, from: &BTreeSet<NodeId>) -> io::Result<()> {
        self.replica.set_suspect(true);
        self.condemn_pages().await?;
        let (ledger, position) = match self.origin.log.state().purged {
            None => {
                let settings = self.origin.options.settings.clone();
                (Ledger::new(self.shard(), settings), None)
            }
            Some(purged) => self.fetch_base(from, purged).await?,
        };
        self.replay_and_swap(ledger, position).await?;
        self.replica.set_suspect(false);
        Ok(())
    }

    async fn condemn_pages(&self) -> io::Result<()> {
        for turn in [Turn::A, Turn::B] {
            let mut waits = 0;
            while matches!(self.checkpoints.place(turn), Place::Good(_)) {
                let why = "its replica differs from a majority of the others";
                match self.checkpoints.mark_damaged(turn, why).await {
                    Ok(()) => {}
                    Err(CheckpointError::Busy(_)) if waits < WAITS_MAX => {
                        waits += 1;
                        runtime::sleep(WAIT_FOR_WRITER).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    async fn fetch_base(
        &self,
        from: &BTreeSet<NodeId>,
        purged: LogPosition,
    ) -> io::Result<(Ledger, Option<LogPosition>)> {
        let options = &self.origin.options;
        let mut last = io::Error::other("no member that agrees with a majority is known");
        for peer in options.peers.others(options.node) {
            if !from.contains(&peer.node) {
                continue;
            }
            let link = self.origin.network.link(peer, Some(self.shard()), Lane::Snapshot);
            let desk = &self.origin.desk;
            match fetch_from(&link, &self.checkpoints, desk, options, purged.index).await {
                Ok(loaded) => return Ok((loaded.ledger, loaded.position)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Applies the log behind `position` until it stands where the replica does, and swaps.
    async fn replay_and_swap(
        &self,
        mut ledger: Ledger,
        mut position: Option<LogPosition>,
    ) -> io::Result<()> {
        let mut marks = DigestMarks::default();
        let mut progress = self.replica.progress();
        loop {
            let applied = self.replica.read().applied;
            let (at, target) = (index(position), index(applied));
            if position.is_some() && at > target {
                // The checkpoint is ahead of this replica, which goes on applying.
                let gone = |_| io::Error::other("the replica has gone");
                progress.changed().await.map_err(gone)?;
                continue;
            }
            if position == applied {
                match self.replica.swap_rebuilt(ledger, position, marks) {
                    Ok(()) => return Ok(()),
                    Err(back) => (ledger, marks) = *back,
                }
                continue;
            }
            let begin = if position.is_some() { at.0 + 1 } else { 0 };
            let entries = self.origin.log.read(begin..target.0 + 1, READ_BYTES)?;
            if entries.is_empty() {
                let words = format!("the log has no entry between {begin} and {target}");
                return Err(io::Error::other(words));
            }
            for (done, entry) in entries.into_iter().enumerate() {
                position = Some(entry.position);
                let entry = from_log(entry).map_err(io::Error::other)?;
                if let EntryPayload::Normal(payload) = &entry.payload {
                    let batch = payload.batch().map_err(io::Error::other)?;
                    let index = index(position);
                    ledger.apply(index, &batch);
                    marks.note(index, &batch, &ledger);
                }
                if done % SLICE == SLICE - 1 {
                    runtime::yield_now().await;
                }
            }
        }
    }
}

fn index(position: Option<LogPosition>) -> LogIndex {
    position.map(|at| at.index).unwrap_or_default()
}
