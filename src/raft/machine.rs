//! openraft's state machine: it carries entries to the ledger and answers back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;

use super::checkpointing::{current_snapshot, install, make_checkpoint};
use super::entry::{TypeConfig, log_id_of, position_of};
use super::replica::Replica;
use super::snapshot::SnapshotHandle;
use crate::ledger::{BatchOf, CommandOf, ROSTER_SHARD};
use crate::runtime::{self, Instant};
use crate::storage::{Checkpoints, LogPosition};

/// The longest that apply keeps its thread before others get a turn.
const TURN_MAX: Duration = Duration::from_micros(500);

/// The state machine of one shard. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    replica: Arc<Replica>,
    checkpoints: Arc<Checkpoints>,
    cut_pages: usize,
    /// The last checkpoint that openraft was shown.
    shown: Arc<Mutex<Option<LogPosition>>>,
}

impl Machine {
    pub(crate) fn new(
        replica: Arc<Replica>,
        checkpoints: Arc<Checkpoints>,
        cut_pages: usize,
    ) -> Machine {
        Machine { replica, checkpoints, cut_pages, shown: Arc::default() }
    }

    /// Fails before an entry that takes the cluster to a schema version that this node does not
    /// read: what comes after it may mean something else here than it does elsewhere.
    fn must_read<P>(&self, batch: &BatchOf<P>) -> io::Result<()> {
        if self.replica.shard() != ROSTER_SHARD {
            return Ok(());
        }
        for command in &batch.commands {
            if let CommandOf::SetSchema(set) = command {
                self.replica.must_read(set.to)?;
            }
        }
        Ok(())
    }

    fn show(&self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotHandle>>> {
        let snapshot = current_snapshot(&self.checkpoints)?;
        if let Some(snapshot) = &snapshot {
            *self.shown.lock() = snapshot.meta.last_log_id.as_ref().map(position_of);
        }
        Ok(snapshot)
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
                    self.must_read(&batch)?;
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
        install(&self.replica, &self.checkpoints, meta, snapshot).await?;
        *self.shown.lock() = meta.last_log_id.as_ref().map(position_of);
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotHandle>>> {
        self.show()
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = SnapshotHandle;

    /// Tells openraft of the checkpoint that the steward has made. When there is none that openraft
    /// does not know, and more is applied, it makes one; that it cannot is no reason to stop while
    /// an older one stands.
    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotHandle>> {
        let index = |at: Option<LogPosition>| at.map(|at| at.index);
        let current = self.checkpoints.current().and_then(|(_, header)| header.state.position);
        let (shown, applied) = (*self.shown.lock(), self.replica.read().applied);
        let is_behind = index(current) <= index(shown) && index(applied) > index(current);
        if current.is_none() || is_behind {
            let made = make_checkpoint(&self.replica, &self.checkpoints, self.cut_pages).await;
            match made {
                Err(error) if current.is_some() => {
                    tracing::warn!(shard = %self.replica.shard(), %error, "no new checkpoint");
                }
                made @ (Ok(_) | Err(_)) => {
                    made?;
                }
            }
        }
        self.show()?.ok_or_else(|| io::Error::other("there is no checkpoint to show"))
    }
}
