//! One shard's replicated state in memory: the ledger and how far it has been applied, in one unit.
//!
//! Apply writes it, under the lock, one entry at a time; the gate, the reads and the checkpoint read
//! it. Whoever reads an answer from here must check afterwards that it may be given (design §5,
//! "When memory may answer").

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::type_config::alias::StoredMembershipOf;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;

use super::entry::{Applied, Member, TypeConfig};
use crate::ledger::{
    Batch, Command, Ledger, LogIndex, NodeId, PageKey, Settings, ShardId, Turn, UnixMs,
};
use crate::runtime::Instant;
use crate::storage::{CheckpointState, LogPosition};

/// How many digest marks are kept for comparison with the other replicas.
const DIGEST_MARKS_KEPT: usize = 16;

/// The ledger and how far it has been applied.
#[derive(Debug)]
pub struct AppliedState {
    /// The ledger.
    pub ledger: Ledger,
    /// The last entry applied.
    pub applied: Option<LogPosition>,
    /// The stamp that was applied last and when that was here: the base of ledger time. Entries that
    /// were in the log before this node started leave none.
    pub stamped: Option<(UnixMs, Instant)>,
    /// Digests at entries that asked for time to advance: those name the index at which replicas
    /// are compared.
    digest_marks: VecDeque<(LogIndex, u128)>,
    membership: StoredMembershipOf<TypeConfig>,
    /// Counts the ledgers that were here: a received checkpoint brings another.
    generation: u64,
}

/// Pages of a cut: `None` says that the page is gone.
pub(super) type CutPages = Vec<(PageKey, Option<Vec<u8>>)>;

/// One shard's state on this node.
#[derive(Debug)]
pub struct Replica {
    shard: ShardId,
    settings: Settings,
    state: RwLock<AppliedState>,
    progress: watch::Sender<Option<LogPosition>>,
    /// Commands applied since the start, for the rule that makes checkpoints due.
    commands: AtomicU64,
    /// Bytes of entries applied since the start, for the same rule.
    bytes: AtomicU64,
    /// The last index that was in the log when this node started.
    replayed_to: Option<LogIndex>,
}

impl Replica {
    pub(super) fn new(
        shard: ShardId,
        settings: Settings,
        ledger: Ledger,
        applied: Option<LogPosition>,
        membership: StoredMembershipOf<TypeConfig>,
    ) -> Replica {
        let state = AppliedState {
            ledger,
            applied,
            stamped: None,
            digest_marks: VecDeque::new(),
            membership,
            generation: 0,
        };
        Replica {
            shard,
            settings,
            state: RwLock::new(state),
            progress: watch::Sender::new(applied),
            commands: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            replayed_to: None,
        }
    }

    /// Says up to where entries are replayed: how long ago they were stamped is not known, so they
    /// are no base of ledger time.
    pub(super) fn replaying_to(self, last: Option<LogIndex>) -> Replica {
        Replica { replayed_to: last, ..self }
    }

    /// Returns which shard it is.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Borrows the state for reading. Hold it shortly: apply waits for it.
    pub fn read(&self) -> RwLockReadGuard<'_, AppliedState> {
        self.state.read()
    }

    /// Borrows the state for reading if nobody is writing it now.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, AppliedState>> {
        self.state.try_read()
    }

    /// Returns the position of the last entry applied, and lets the caller wait for the next.
    pub fn progress(&self) -> watch::Receiver<Option<LogPosition>> {
        self.progress.subscribe()
    }

    /// Returns commands and bytes applied since this node started.
    pub fn volume(&self) -> (u64, u64) {
        (self.commands.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Returns what every replica agrees on.
    pub(super) fn settings(&self) -> Settings {
        self.settings.clone()
    }

    /// Begins a cut and says what it is of, and of which ledger.
    pub(super) fn begin_cut(
        &self,
        turn: Turn,
        whole: bool,
        membership: Vec<u8>,
    ) -> (u64, CheckpointState) {
        let mut state = self.state.write();
        state.ledger.begin_cut(turn, whole);
        let cut = CheckpointState {
            position: state.applied,
            membership,
            ledger_now: state.ledger.now(),
            digest: state.ledger.digest(),
        };
        (state.generation, cut)
    }

    /// Encodes some more pages of the cut; `None` when the ledger it was of is not here any more.
    pub(super) fn take_cut(&self, generation: u64, pages: usize) -> Option<CutPages> {
        let mut state = self.state.write();
        (state.generation == generation).then(|| state.ledger.take_cut(pages))
    }

    /// Ends the cut.
    pub(super) fn end_cut(&self, generation: u64, durable: bool) {
        let mut state = self.state.write();
        if state.generation == generation {
            state.ledger.end_cut(durable);
        }
    }

    pub(super) fn membership(&self) -> StoredMembershipOf<TypeConfig> {
        self.state.read().membership.clone()
    }

    pub(super) fn apply_batch(
        &self,
        position: LogPosition,
        batch: &Batch,
        bytes: usize,
    ) -> Applied {
        let mut state = self.state.write();
        let answers = state.ledger.apply(position.index, batch);
        let now = state.ledger.now();
        state.applied = Some(position);
        if Some(position.index) > self.replayed_to {
            state.stamped = Some((now, crate::runtime::now()));
        }
        if batch.commands.iter().any(|command| matches!(command, Command::Advance)) {
            if state.digest_marks.len() == DIGEST_MARKS_KEPT {
                state.digest_marks.pop_front();
            }
            let digest = state.ledger.digest();
            state.digest_marks.push_back((position.index, digest));
        }
        drop(state);
        self.commands.fetch_add(batch.commands.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Applied { position, now, answers }
    }

    pub(super) fn apply_blank(&self, position: LogPosition) -> Applied {
        let mut state = self.state.write();
        state.applied = Some(position);
        Applied { position, now: state.ledger.now(), answers: Vec::new() }
    }

    pub(super) fn apply_membership(
        &self,
        position: LogPosition,
        membership: StoredMembershipOf<TypeConfig>,
    ) -> Applied {
        let mut state = self.state.write();
        state.applied = Some(position);
        state.membership = membership;
        Applied { position, now: state.ledger.now(), answers: Vec::new() }
    }

    /// Tells those who wait that entries up to here are applied.
    pub(super) fn announce(&self, position: LogPosition) {
        self.progress.send_replace(Some(position));
    }

    /// Puts a received checkpoint in the place of everything.
    pub(super) fn swap(
        &self,
        ledger: Ledger,
        applied: Option<LogPosition>,
        membership: StoredMembershipOf<TypeConfig>,
    ) {
        let mut state = self.state.write();
        state.ledger = ledger;
        state.applied = applied;
        state.membership = membership;
        state.generation += 1;
        state.stamped = None;
        state.digest_marks.clear();
        drop(state);
        self.progress.send_replace(applied);
    }
}

impl AppliedState {
    /// Returns the member's record, if the node is a member.
    pub fn member(&self, node: NodeId) -> Option<Member> {
        self.membership.get_node(&node.0).cloned()
    }

    /// Returns all members, voters or not.
    pub fn members(&self) -> Vec<(NodeId, Member)> {
        self.membership.nodes().map(|(id, member)| (NodeId(*id), member.clone())).collect()
    }

    pub(super) fn membership(&self) -> &StoredMembershipOf<TypeConfig> {
        &self.membership
    }

    /// Returns the digest that was marked at this index, if it is still remembered.
    pub fn digest_at(&self, index: LogIndex) -> Option<u128> {
        self.digest_marks.iter().find(|(at, _)| *at == index).map(|(_, digest)| *digest)
    }

    /// Returns the last index at which a digest was marked.
    pub fn last_digest_mark(&self) -> Option<(LogIndex, u128)> {
        self.digest_marks.back().copied()
    }
}
