//! One shard's replicated state in memory: the ledger and how far it has been applied, in one unit.
//!
//! Apply writes it, under the lock, one entry at a time; the gate, the reads and the checkpoint
//! read it. Whoever reads an answer from here must check afterwards that it may be given (design
//! §5, "When memory may answer").

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openraft::type_config::alias::StoredMembershipOf;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::entry::{Applied, Member, TypeConfig};
use crate::ledger::{
    BatchOf, CommandOf, Ledger, LogIndex, NodeId, PageKey, Placement, SchemaRange, SchemaVersion,
    Settings, ShardId, Turn, UnixMs,
};
use crate::runtime::{self, Instant};
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
    /// The stamp that was applied last and when that was here: the base of ledger time. Entries
    /// that were in the log before this node started leave none.
    pub stamped: Option<(UnixMs, Instant)>,
    digest_marks: DigestMarks,
    membership: StoredMembershipOf<TypeConfig>,
    /// Counts the ledgers that were here: a received checkpoint brings another.
    generation: u64,
}

/// Digests at entries that asked for time to advance: those name the index at which replicas are
/// compared.
#[derive(Debug, Default)]
pub(super) struct DigestMarks(VecDeque<(LogIndex, u128)>);

impl DigestMarks {
    /// Notes the digest after an entry, if the entry is one of those.
    pub(super) fn note<P>(&mut self, index: LogIndex, batch: &BatchOf<P>, ledger: &Ledger) {
        if batch.commands.iter().any(|command| matches!(command, CommandOf::Advance)) {
            if self.0.len() == DIGEST_MARKS_KEPT {
                self.0.pop_front();
            }
            self.0.push_back((index, ledger.digest()));
        }
    }
}

/// Is told how long the application of each entry took.
pub type EntryTimer = Box<dyn Fn(Duration) + Send + Sync>;

/// A word that this replica's digest at an index is not a majority's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accusation {
    /// The index.
    pub index: LogIndex,
    /// What a majority has there.
    pub digest: u128,
}

/// Pages of a cut: `None` says that the page is gone.
pub(super) type CutPages = Vec<(PageKey, Option<Vec<u8>>)>;

/// One shard's state on this node.
pub struct Replica {
    shard: ShardId,
    settings: Settings,
    state: RwLock<AppliedState>,
    progress: watch::Sender<Option<LogPosition>>,
    /// Commands applied since the start, for the rule that makes checkpoints due.
    commands: AtomicU64,
    /// Bytes of entries applied since the start, for the same rule.
    bytes: AtomicU64,
    /// The log's last index at the start: what is applied up to there was stamped at a moment that
    /// this process does not know, so it is no base of ledger time.
    replayed_to: LogIndex,
    timer: OnceLock<EntryTimer>,
    /// The schema versions that this node reads.
    reads: OnceLock<SchemaRange>,
    /// The version that the cluster went on to, when this node does not read it.
    beyond: OnceLock<SchemaVersion>,
    /// The state in memory is not what the log says: nothing of it is kept in pages.
    suspect: AtomicBool,
    accusation: Mutex<Option<Accusation>>,
    checkpoint_failures: AtomicU64,
    /// When the last checkpoint was made or received.
    checkpoint_made: Mutex<Option<Instant>>,
    /// Why the last checkpoint was not made, when it was not.
    checkpoint_trouble: Mutex<Option<String>>,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl Replica {
    pub(super) fn new(
        shard: ShardId,
        settings: Settings,
        ledger: Ledger,
        applied: Option<LogPosition>,
        membership: StoredMembershipOf<TypeConfig>,
        replayed_to: LogIndex,
    ) -> Replica {
        let state = AppliedState {
            ledger,
            applied,
            stamped: None,
            digest_marks: DigestMarks::default(),
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
            replayed_to,
            timer: OnceLock::new(),
            reads: OnceLock::new(),
            beyond: OnceLock::new(),
            suspect: AtomicBool::new(false),
            accusation: Mutex::new(None),
            checkpoint_failures: AtomicU64::new(0),
            checkpoint_made: Mutex::new(None),
            checkpoint_trouble: Mutex::new(None),
        }
    }

    /// Notes whether the last checkpoint was made.
    pub(super) fn note_checkpoint(&self, failed: Option<String>) {
        if failed.is_some() {
            self.checkpoint_failures.fetch_add(1, Ordering::Relaxed);
        } else {
            *self.checkpoint_made.lock() = Some(runtime::now());
        }
        *self.checkpoint_trouble.lock() = failed;
    }

    /// Returns how many checkpoints failed since the start, and why the last one did, if it did.
    pub fn checkpoint_failures(&self) -> (u64, Option<String>) {
        let count = self.checkpoint_failures.load(Ordering::Relaxed);
        (count, self.checkpoint_trouble.lock().clone())
    }

    /// Returns how long ago this node made or received its last checkpoint; `None` when it has not
    /// since it started.
    pub fn checkpoint_age(&self) -> Option<Duration> {
        let made = *self.checkpoint_made.lock();
        made.map(|at| runtime::now() - at)
    }

    /// Lets `timer` know how long the application of each entry takes. Only the first is heard.
    pub fn time_entries(&self, timer: EntryTimer) {
        self.timer.set(timer).ok();
    }

    /// Says which schema versions this node reads. Only the first is heard.
    pub(super) fn read_only(&self, reads: SchemaRange) {
        self.reads.set(reads).ok();
    }

    /// Returns the schema versions that this node reads.
    pub fn reads(&self) -> SchemaRange {
        let all = SchemaRange::up_to(SchemaVersion::NEWEST);
        self.reads.get().copied().unwrap_or(all)
    }

    /// Returns the version that the cluster went on to, when this node does not read it: then
    /// nothing more is applied here.
    pub fn beyond(&self) -> Option<SchemaVersion> {
        self.beyond.get().copied()
    }

    /// Fails, and remembers it, when this node does not read a version.
    pub(super) fn must_read(&self, active: SchemaVersion) -> std::io::Result<()> {
        if self.reads().has(active) {
            return Ok(());
        }
        self.beyond.set(active).ok();
        Err(std::io::Error::other(self.reads().beyond(active)))
    }

    /// Says that the state in memory is not, or is again, what the log says.
    pub fn set_suspect(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Release);
    }

    /// Tells whether the state in memory is known not to be what the log says.
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Acquire)
    }

    /// Takes note that another node found this replica different from a majority.
    pub fn accuse(&self, accusation: Accusation) {
        *self.accusation.lock() = Some(accusation);
    }

    /// Takes the last accusation, to be looked into.
    pub fn take_accusation(&self) -> Option<Accusation> {
        self.accusation.lock().take()
    }

    /// Changes the ledger in memory as no entry does. For tests of what follows.
    #[doc(hidden)]
    pub fn corrupt_for_test(&self, change: impl FnOnce(&mut Ledger)) {
        change(&mut self.state.write().ledger);
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
    pub(crate) fn settings(&self) -> Settings {
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

    pub(super) fn apply_batch<P: Placement>(
        &self,
        position: LogPosition,
        batch: &BatchOf<P>,
        bytes: usize,
        answered: bool,
    ) -> Applied {
        let began = runtime::now();
        let mut guard = self.state.write();
        let state = &mut *guard;
        let answers = if answered {
            state.ledger.apply(position.index, batch)
        } else {
            state.ledger.apply_unanswered(position.index, batch);
            Vec::new()
        };
        let now = state.ledger.now();
        let at = runtime::now();
        state.applied = Some(position);
        if position.index > self.replayed_to {
            state.stamped = Some((now, at));
        }
        state.digest_marks.note(position.index, batch, &state.ledger);
        #[cfg(feature = "sim")]
        super::witness::show(self.shard, position, &state.ledger);
        drop(guard);
        if let Some(timer) = self.timer.get() {
            timer(at - began);
        }
        self.commands.fetch_add(batch.commands.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Applied { position, now, answers }
    }

    pub(super) fn apply_blank(&self, position: LogPosition) -> Applied {
        let mut state = self.state.write();
        state.applied = Some(position);
        #[cfg(feature = "sim")]
        super::witness::show(self.shard, position, &state.ledger);
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
        #[cfg(feature = "sim")]
        super::witness::show(self.shard, position, &state.ledger);
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
        state.digest_marks = DigestMarks::default();
        #[cfg(feature = "sim")]
        if let Some(position) = applied {
            super::witness::show(self.shard, position, &state.ledger);
        }
        drop(state);
        *self.checkpoint_made.lock() = Some(runtime::now());
        self.set_suspect(false);
        self.progress.send_replace(applied);
    }

    /// Puts a ledger that was built anew in the place of this one, if it stands at the same entry;
    /// gives it back if another was applied meanwhile.
    pub(super) fn swap_rebuilt(
        &self,
        ledger: Ledger,
        position: Option<LogPosition>,
        marks: DigestMarks,
    ) -> Result<(), Box<(Ledger, DigestMarks)>> {
        let mut state = self.state.write();
        if state.applied != position {
            return Err(Box::new((ledger, marks)));
        }
        state.ledger = ledger;
        state.digest_marks = marks;
        state.generation += 1;
        Ok(())
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
        self.digest_marks.0.iter().find(|(at, _)| *at == index).map(|(_, digest)| *digest)
    }

    /// Returns the last index at which a digest was marked.
    pub fn last_digest_mark(&self) -> Option<(LogIndex, u128)> {
        self.digest_marks.0.back().copied()
    }
}
