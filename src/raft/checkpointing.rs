//! Between the ledger in memory and the page databases: making, showing and installing checkpoints.
//!
//! A checkpoint is a copy-before-write cut at one index: dirty pages are encoded in slices between
//! entries, and an entry that touches a page not yet encoded encodes it first. The writing happens
//! elsewhere; this thread only encodes.

use std::io;

use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};

use super::entry::{TypeConfig, position_of};
use super::replica::Replica;
use super::snapshot::{
    CHUNK_BYTES, Incoming, Received, SnapshotHandle, header_of, membership_of, meta_of,
};
use crate::codec;
use crate::ledger::Turn;
use crate::runtime;
use crate::storage::pages::STEP_PAGES_MAX;
use crate::storage::{
    CheckpointError, CheckpointState, CheckpointWriter, Checkpoints, LogPosition,
};

/// Makes a checkpoint of what is applied now and returns its position, `None` before the first
/// entry.
pub(super) async fn make_checkpoint(
    replica: &Replica,
    checkpoints: &Checkpoints,
    cut_pages: usize,
) -> io::Result<Option<LogPosition>> {
    let made = try_checkpoint(replica, checkpoints, cut_pages).await;
    replica.note_checkpoint(made.as_ref().err().map(ToString::to_string));
    made
}

async fn try_checkpoint(
    replica: &Replica,
    checkpoints: &Checkpoints,
    cut_pages: usize,
) -> io::Result<Option<LogPosition>> {
    if replica.is_suspect() {
        return Err(io::Error::other("the state in memory is being built anew: it is not kept"));
    }
    let (mut writer, whole) = begin(checkpoints).await?;
    let cut = Cut::begin(replica, writer.turn(), whole)?;
    let position = cut.state.position;
    let mut gathered = Vec::new();
    while let Some(mut pages) = cut.take(cut_pages)? {
        gathered.append(&mut pages);
        if gathered.len() >= STEP_PAGES_MAX {
            writer.write(std::mem::take(&mut gathered)).await?;
        }
        runtime::yield_now().await;
    }
    writer.write(gathered).await?;
    let state = cut.state.clone();
    writer.finish(state).await?;
    cut.durable();
    Ok(position)
}

/// Begins to write where the next checkpoint goes; whole when the database there is not what it
/// was.
async fn begin(checkpoints: &Checkpoints) -> io::Result<(CheckpointWriter, bool)> {
    let (turn, whole) = checkpoints.next_turn();
    match checkpoints.begin(turn, whole).await {
        Ok(writer) => Ok((writer, whole)),
        Err(CheckpointError::NeedsWhole(_) | CheckpointError::Damaged { .. }) if !whole => {
            Ok((checkpoints.begin(turn, true).await?, true))
        }
        Err(error) => Err(error.into()),
    }
}

/// A cut under way. Dropped before it is durable, its pages stay dirty.
struct Cut<'a> {
    replica: &'a Replica,
    generation: u64,
    state: CheckpointState,
    is_durable: bool,
}

impl Cut<'_> {
    fn begin(replica: &Replica, turn: Turn, whole: bool) -> io::Result<Cut<'_>> {
        let membership = codec::encode(&replica.membership()).map_err(io::Error::other)?;
        let (generation, state) = replica.begin_cut(turn, whole, membership);
        Ok(Cut { replica, generation, state, is_durable: false })
    }

    /// Encodes some more pages; `None` when the cut is complete.
    fn take(&self, pages: usize) -> io::Result<Option<super::replica::CutPages>> {
        let replaced = || io::Error::other("the ledger was replaced while it was being cut");
        let taken = self.replica.take_cut(self.generation, pages).ok_or_else(replaced)?;
        Ok((!taken.is_empty()).then_some(taken))
    }

    fn durable(mut self) {
        self.is_durable = true;
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        self.replica.end_cut(self.generation, self.is_durable);
    }
}

/// Shows openraft the current checkpoint. Never encodes anything.
pub(super) fn current_snapshot(
    checkpoints: &Checkpoints,
) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotHandle>>> {
    let Some(pinned) = checkpoints.pin_current() else { return Ok(None) };
    let meta = meta_of(&header_of(&pinned))?;
    let snapshot = SnapshotHandle::Current(pinned);
    Ok(Some(SnapshotOf::<TypeConfig, SnapshotHandle> { meta, snapshot }))
}

/// Puts a checkpoint in the place of everything: pages, ledger, membership.
pub(super) async fn install(
    replica: &Replica,
    checkpoints: &Checkpoints,
    meta: &SnapshotMetaOf<TypeConfig>,
    snapshot: SnapshotHandle,
) -> io::Result<()> {
    let received = match snapshot {
        SnapshotHandle::Received(received) => *received,
        SnapshotHandle::Current(pinned) => {
            let header = header_of(&pinned);
            let mut incoming = Incoming::begin(checkpoints, header.as_ref().clone()).await?;
            let mut after = None;
            loop {
                let pages = pinned.read_chunk(after, CHUNK_BYTES).await?;
                let Some((last, _)) = pages.last() else { break };
                after = Some(last.clone());
                incoming
                    .write(pages.into_iter().map(|(key, page)| (key.0, page)).collect())
                    .await?;
            }
            incoming.finish(replica.shard(), replica.settings())?
        }
    };
    let Received { receiver, header, ledger } = received;
    let position = meta.last_log_id.as_ref().map(position_of);
    if header.state.position != position {
        return Err(io::Error::other("the checkpoint received is not the one announced"));
    }
    replica.must_read(ledger.schema())?;
    // Everything that may fail comes before the checkpoint is current: a ledger that is behind the
    // pages that count as its own would write the next ones upon the wrong base.
    let membership = membership_of(&header)?;
    receiver.finish(&header).await?;
    replica.swap(ledger, position, membership);
    tracing::info!(shard = %replica.shard(), ?position, "a checkpoint of a peer was installed");
    Ok(())
}
