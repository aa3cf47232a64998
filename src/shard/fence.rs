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
use crate::planted::{Fault, planted};
use crate::raft::{Group, Leadership};
use crate::runtime::{self, Instant};
use crate::storage::LogPosition;

/// One shard's fence.
#[derive(Debug)]
pub(crate) struct Fence {
    group: Group,
    pause_after: Duration,
    lease: Duration,
    /// The leadership that was marked for transfer or for the node's stop.
    closed: Mutex<Option<Closed>>,
    /// The pause after a quorum that was not fresh.
    pause: Mutex<Option<Pause>>,
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

/// A leadership whose gate is closed.
#[derive(Debug, Clone, Copy)]
struct Closed {
    leadership: LeaderId,
    /// Its transfer did not happen: it opens with the first acknowledgement of something that was
    /// sent after this moment. That followed the request of the transfer on the same connections,
    /// so a quorum keeps the lease again which the request had lifted.
    opens_after: Option<Instant>,
}

impl Closed {
    fn is_open(&self, leadership: &Leadership) -> bool {
        self.leadership != leadership.id
            || self.opens_after.is_some_and(|after| leadership.acked.is_some_and(|at| at > after))
    }
}

/// A pause, which ends with the second fresh acknowledgement: one may be the last echo of a quorum
/// that is going.
#[derive(Debug, Clone, Copy)]
struct Pause {
    leadership: LeaderId,
    seen: Instant,
    fresh: u32,
}

/// Acknowledgements that end a pause.
const FRESH_TO_RESUME: u32 = 2;

impl Pause {
    /// Takes note of the last acknowledgement and tells whether the pause is over.
    fn is_over(&mut self, leadership: LeaderId, acked: Instant) -> bool {
        if self.leadership != leadership {
            return true;
        }
        if acked > self.seen {
            self.seen = acked;
            self.fresh += 1;
        }
        self.fresh >= FRESH_TO_RESUME
    }
}

impl Fence {
    pub(crate) fn new(group: Group, pause_after: Duration, lease: Duration) -> Fence {
        Fence {
            group,
            pause_after,
            lease,
            closed: Mutex::new(None),
            pause: Mutex::new(None),
            barred: Mutex::new([None; 2]),
            abstains: Mutex::default(),
        }
    }

    /// Returns this node's leadership, fresh or not.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        self.group.leadership()
    }

    /// Closes the gate of the present leadership: what comes after openraft was asked to
    /// transfer it is for another. Returns the leadership closed.
    pub(crate) fn close(&self) -> Option<LeaderId> {
        let leadership = self.leadership()?;
        let closed = Closed { leadership: leadership.id, opens_after: None };
        if !planted(Fault::OpenInTransfer) {
            *self.closed.lock() = Some(closed);
        }
        Some(leadership.id)
    }

    /// Opens the gate again when a transfer that was asked for did not happen, as soon as a quorum
    /// has acknowledged something that is sent from now on.
    pub(crate) fn reopen(&self, leadership: LeaderId) {
        if let Some(closed) = &mut *self.closed.lock()
            && closed.leadership == leadership
        {
            closed.opens_after = Some(runtime::now());
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
        if self.closed.lock().is_some_and(|closed| !closed.is_open(&leadership)) {
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
        let leader = match self.may_propose() {
            Err(PauseReason::QuorumLost) if planted(Fault::StoppedMemory) => {
                self.leadership().ok_or(PauseReason::QuorumLost)?.id
            }
            may => may?,
        };
        let is_own = applied.map(|position| position.leader) == Some(leader);
        if is_own || planted(Fault::DeposedMemory) {
            Ok(leader)
        } else {
            Err(PauseReason::Restoring)
        }
    }

    /// Tells whether this node leads and its quorum is not fresh.
    pub(crate) fn is_stale(&self) -> bool {
        self.leadership().is_some_and(|leadership| !self.is_fresh(&leadership))
    }

    /// Tells whether this node follows a leader that it has not heard for the length of a lease:
    /// who leads now, or whether anybody does, is not known here.
    pub(crate) fn leader_is_silent(&self) -> bool {
        self.leadership().is_none() && !self.group.heard_leader_within(self.lease)
    }

    fn is_fresh(&self, leadership: &Leadership) -> bool {
        // A leadership that no quorum has acknowledged yet grants nothing, and is not paused.
        let Some(acked) = leadership.acked else { return false };
        if planted(Fault::NeverStale) {
            return true;
        }
        let now = runtime::now();
        let mut pause = self.pause.lock();
        if now > acked && now - acked >= self.pause_after {
            *pause = Some(Pause { leadership: leadership.id, seen: acked, fresh: 0 });
            return false;
        }
        let is_over = pause.as_mut().is_none_or(|pause| pause.is_over(leadership.id, acked));
        if is_over {
            *pause = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::NodeId;

    const OWN: LeaderId = LeaderId { term: 3, node: NodeId(1) };
    const NEXT: LeaderId = LeaderId { term: 4, node: NodeId(1) };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_pause_ends_with_the_second_fresh_acknowledgement() {
        crate::raft::trial::run(async {
            let at = runtime::now();
            let mut pause = Pause { leadership: OWN, seen: at, fresh: 0 };
            assert!(!pause.is_over(OWN, at), "the one that grew old");
            assert!(!pause.is_over(OWN, at + ms(1)), "the first");
            assert!(!pause.is_over(OWN, at + ms(1)), "the first, looked at again");
            assert!(pause.is_over(OWN, at + ms(2)), "the second");
            let mut pause = Pause { leadership: OWN, seen: at, fresh: 0 };
            assert!(pause.is_over(NEXT, at), "another leadership was not paused");
        });
    }

    #[test]
    fn a_gate_opens_after_a_failed_transfer_only_with_an_acknowledgement_of_something_later() {
        crate::raft::trial::run(async {
            let at = runtime::now();
            let leads = |id, acked| Leadership { id, acked: Some(acked) };
            let mut closed = Closed { leadership: OWN, opens_after: None };
            assert!(!closed.is_open(&leads(OWN, at + ms(9_000))), "the transfer is under way");
            assert!(closed.is_open(&leads(NEXT, at)), "only that leadership was marked");
            closed.opens_after = Some(at + ms(5));
            assert!(!closed.is_open(&leads(OWN, at + ms(5))), "sent before");
            assert!(closed.is_open(&leads(OWN, at + ms(6))));
        });
    }
}
