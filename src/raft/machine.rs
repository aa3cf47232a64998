//! openraft's state machine: it carries entries to the ledger and answers back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};

use super::checkpointing::{current_snapshot, install, make_checkpoint};
use super::entry::{TypeConfig, log_id_of, position_of};
use super::replica::Replica;
use super::snapshot::SnapshotHandle;
use crate::runtime::{self, Instant};
use crate::storage::Checkpoints;

/// The longest that apply keeps its thread before others get a turn.
const TURN_MAX: Duration = Duration::from_micros(500);

/// The state machine of one shard. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    replica: Arc<Replica>,
    checkpoints: Arc<Checkpoints>,
    cut_pages: usize,
}

impl Machine {
    pub(crate) fn new(
        replica: Arc<Replica>,
        checkpoints: Arc<Checkpoints>,
        cut_pages: usize,
    ) -> Machine {
        Machine { replica, checkpoints, cut_pages }
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotHandle;
    type SnapshotBuilder = Machine;

    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogIdOf<TypeConfig>>, StoredMembershipOf<TypeConfig>)> {
        let state = self.replica.read();
        Ok((state.applied.map(log_id_of), state.membership().clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut turn_began: Instant = runtime::now();
        while let Some((entry, responder)) = entries.try_next().await? {
            let position = position_of(&entry.log_id);
            let applied = match &entry.payload {
                EntryPayload::Blank => self.replica.apply_blank(position),
                EntryPayload::Normal(payload) => {
                    let batch = payload.batch().map_err(io::Error::other)?;
                    let (bytes, answered) = (payload.0.len(), responder.is_some());
                    self.replica.apply_batch(position, &batch, bytes, answered)
                }
                EntryPayload::Membership(membership) => {
                    let stored = StoredMembershipOf::<TypeConfig>::new(
                        Some(entry.log_id),
                        membership.clone(),
                    );
                    self.replica.apply_membership(position, stored)
                }
            };
            if let Some(responder) = responder {
                responder.send(applied);
            }
            self.replica.announce(position);
            if runtime::now() - turn_began > TURN_MAX {
                runtime::yield_now().await;
                turn_began = runtime::now();
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: SnapshotHandle,
    ) -> io::Result<()> {
        install(&self.replica, &self.checkpoints, meta, snapshot).await
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotHandle>>> {
        current_snapshot(&self.checkpoints)
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = SnapshotHandle;

    /// Tells openraft of the checkpoint that the steward has made; makes the first one if there is
    /// none.
    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotHandle>> {
        if let Some(snapshot) = current_snapshot(&self.checkpoints)? {
            return Ok(snapshot);
        }
        make_checkpoint(&self.replica, &self.checkpoints, self.cut_pages).await?;
        current_snapshot(&self.checkpoints)?
            .ok_or_else(|| io::Error::other("the checkpoint just made is not current"))
    }
}
