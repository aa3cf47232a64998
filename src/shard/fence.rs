//! When memory may answer.
//!
//! A refusal, a replay or a `not_found` leaves a leader only if, *checked after the memory was
//! read*: an entry of this very leadership has been applied here; this leadership was not marked
//! for transfer; and the last quorum acknowledgement is younger than `pause_after`, which is
//! shorter than the lease. Then no other leadership can have granted anything that the memory does
//! not show: a later one is elected only by a quorum that has not heard this one for the length of
//! a lease, and the acknowledgement is dated by when its message was *sent*. A process that was
//! stopped for three seconds reads its memory, looks at the clock, and finds the acknowledgement
//! too old.

use std::time::Duration;

use parking_lot::Mutex;

use crate::ledger::{LeaderId, PauseReason};
use crate::raft::{Group, Leadership};
use crate::runtime;
use crate::storage::LogPosition;

/// One shard's fence.
#[derive(Debug)]
pub(crate) struct Fence {
    group: Group,
    pause_after: Duration,
    /// The leadership that was marked for transfer or for the node's stop: its gate is closed.
    closed: Mutex<Option<LeaderId>>,
    /// Why this node may not answer at all, by who says so.
    barred: Mutex<[Option<PauseReason>; 2]>,
    /// Who says that this node does not stand for election.
    abstains: Mutex<[bool; 2]>,
}

/// Who bars a node from answering for a shard. A bar holds until its own cause lifts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bar {
    /// The node's part in the cluster ends: its log failed or hangs.
    Node,
    /// The comparison of digests: the state in memory is not, or may not be, what the log says.
    Digest,
}

impl Bar {
    fn at(self) -> usize {
        match self {
            Bar::Node => 0,
            Bar::Digest => 1,
        }
    }
}

impl Fence {
    pub(crate) fn new(group: Group, pause_after: Duration) -> Fence {
        Fence {
            group,
            pause_after,
            closed: Mutex::new(None),
            barred: Mutex::new([None; 2]),
            abstains: Mutex::default(),
        }
    }

    /// Returns this node's leadership, fresh or not.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        self.group.leadership()
    }

    /// Closes the gate of the present leadership for good: what comes after openraft was asked to
    /// transfer it is for another. Returns the leadership closed.
    pub(crate) fn close(&self) -> Option<LeaderId> {
        let leadership = self.leadership()?;
        *self.closed.lock() = Some(leadership.id);
        Some(leadership.id)
    }

    /// Opens the gate again when a transfer that was asked for did not happen.
    pub(crate) fn reopen(&self, leadership: LeaderId) {
        let mut closed = self.closed.lock();
        if *closed == Some(leadership) {
            *closed = None;
        }
    }

    /// Bars this node from answering anything, or lifts the bar of this cause.
    pub(crate) fn bar(&self, cause: Bar, reason: Option<PauseReason>) {
        self.barred.lock()[cause.at()] = reason;
    }

    /// Lets this node stand for election, or not, as far as this cause is concerned.
    pub(crate) fn stand(&self, cause: Bar, stands: bool) {
        let mut abstains = self.abstains.lock();
        abstains[cause.at()] = !stands;
        self.group.set_electable(!abstains.contains(&true));
    }

    fn barred(&self) -> Option<PauseReason> {
        self.barred.lock().iter().flatten().next().copied()
    }

    /// Tells whether this leadership may propose: it leads, its gate is open, its quorum is fresh.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) fn may_propose(&self) -> Result<LeaderId, PauseReason> {
        if let Some(reason) = self.barred() {
            return Err(reason);
        }
        let Some(leadership) = self.leadership() else { return Err(PauseReason::Moving) };
        if *self.closed.lock() == Some(leadership.id) {
            return Err(PauseReason::Moving);
        }
        if !self.is_fresh(&leadership) {
            return Err(PauseReason::QuorumLost);
        }
        Ok(leadership.id)
    }

    /// Tells whether an answer may leave that was read from memory *before this call*, at a state
    /// whose last applied entry is `applied`.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) fn may_answer(&self, applied: Option<LogPosition>) -> Result<LeaderId, PauseReason> {
        let leader = self.may_propose()?;
        if applied.map(|position| position.leader) == Some(leader) {
            Ok(leader)
        } else {
            Err(PauseReason::Restoring)
        }
    }

    /// Tells whether this node leads and its quorum is not fresh.
    pub(crate) fn is_stale(&self) -> bool {
        self.leadership().is_some_and(|leadership| !self.is_fresh(&leadership))
    }

    fn is_fresh(&self, leadership: &Leadership) -> bool {
        leadership.acked.is_some_and(|acked| {
            let now = runtime::now();
            now <= acked || now - acked < self.pause_after
        })
    }
}
