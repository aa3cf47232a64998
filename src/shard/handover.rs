//! Handing leadership over without a pause in the sale.
//!
//! The gate closes before openraft is asked: from that moment the old leadership answers nothing
//! from memory, since the new one may grant. Leadership goes only to a voter that can win: one that
//! answered within two heartbeats and lacks nothing of the log; a transfer to another stops
//! heartbeats and proposals for most of a second.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::router::Place;
use crate::ledger::{LeaderId, LogIndex, NodeId};
use crate::raft::GroupState;
use crate::runtime;

/// How long a transfer may take before the gate opens again.
const TRANSFER_MAX: Duration = Duration::from_secs(1);
/// How long it may take until the next leader lacks nothing.
const CATCH_UP_MAX: Duration = Duration::from_millis(250);
/// How often it is looked whether the transfer happened.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Chooses who could lead instead of `own`: voters that answered within two heartbeats, least lag
/// first. With `exact` only those that lack nothing.
pub(crate) fn candidates(
    state: &GroupState,
    own: NodeId,
    heartbeat: Duration,
    exact: bool,
) -> Vec<NodeId> {
    let fresh_ms = u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX).saturating_mul(2);
    let mut candidates: Vec<(LogIndex, NodeId)> = state
        .voters
        .iter()
        .filter(|voter| **voter != own)
        .filter(|voter| state.heard_ms.get(voter).is_some_and(|age| *age <= fresh_ms))
        .map(|voter| (state.matched.get(voter).copied().unwrap_or_default(), *voter))
        .filter(|(matched, _)| !exact || *matched >= state.last_log)
        .collect();
    candidates.sort_by(|a, b| b.cmp(a));
    candidates.into_iter().map(|(_, voter)| voter).collect()
}

/// Members that do not stand for election, as they say themselves: their clock is wild, their disk
/// hangs, or they are about to stop. Leadership is never handed to one of them.
#[derive(Debug, Clone, Default)]
pub struct Abstaining(Arc<RwLock<BTreeSet<NodeId>>>);

impl Abstaining {
    /// Notes whether a member stands.
    pub fn note(&self, node: NodeId, stands: bool) {
        if self.0.read().contains(&node) == stands {
            let mut nodes = self.0.write();
            if stands {
                nodes.remove(&node);
            } else {
                nodes.insert(node);
            }
        }
    }

    /// Tells whether a member abstains.
    pub fn has(&self, node: NodeId) -> bool {
        self.0.read().contains(&node)
    }
}

impl Place {
    /// Returns who could lead instead of `own`, least lag first.
    pub(crate) fn successors(&self, own: NodeId, heartbeat: Duration, exact: bool) -> Vec<NodeId> {
        let mut found = candidates(&self.group.state(), own, heartbeat, exact);
        found.retain(|node| !self.abstaining.has(*node));
        found
    }

    /// Hands leadership of this shard to `to`, or to whoever can win; does nothing when this node
    /// does not lead.
    ///
    /// # Errors
    ///
    /// Words, when nobody can win (the gate is open again then) or the transfer did not happen (the
    /// gate stays closed for this leadership, which openraft has ended).
    pub(crate) async fn hand_over(
        &self,
        own: NodeId,
        to: Option<NodeId>,
        heartbeat: Duration,
    ) -> Result<(), String> {
        if self.fence.leadership().is_none() {
            return Ok(());
        }
        if self.successors(own, heartbeat, false).is_empty() {
            return Err("no voter that stands has answered within two heartbeats".to_owned());
        }
        let kept = self.group.keep_members();
        let _kept = kept.ok_or_else(|| "a change of the members is under way".to_owned())?;
        let Some(closed) = self.fence.close() else { return Ok(()) };
        let mut gate = Reopening { place: self, leadership: closed, is_armed: true };
        let Some(to) = self.caught_up(own, to, heartbeat).await else {
            return Err(match to {
                Some(to) => format!(
                    "node {to} cannot take it: it has not answered within two heartbeats, or lacks \
                     entries still after {} ms",
                    CATCH_UP_MAX.as_millis()
                ),
                None => "no voter has caught up in time".to_owned(),
            });
        };
        let asked = self.group.transfer_to(to).await;
        // Once asked, openraft takes no entry of this leadership any more, whatever comes of the
        // transfer: the gate stays closed for it, and opens for whoever leads next.
        gate.is_armed = asked.is_err();
        let deadline = runtime::now() + TRANSFER_MAX;
        while asked.is_ok() && runtime::now() < deadline {
            if self.fence.leadership().map(|leadership| leadership.id) != Some(closed) {
                tracing::info!(shard = %self.door.shard, %to, "leadership was handed over");
                return Ok(());
            }
            runtime::sleep(LOOK_EVERY).await;
        }
        asked?;
        tracing::warn!(shard = %self.door.shard, %to, "leadership was not taken: it is given up");
        self.group.step_down(closed.term, to).await?;
        Err(format!("node {to} did not take the leadership"))
    }

    /// Waits, with the gate closed, until somebody (`to`, if named) lacks nothing of the log:
    /// nothing new is appended, so that is soon or not at all.
    async fn caught_up(
        &self,
        own: NodeId,
        to: Option<NodeId>,
        heartbeat: Duration,
    ) -> Option<NodeId> {
        let deadline = runtime::now() + CATCH_UP_MAX;
        loop {
            let exact = self.successors(own, heartbeat, true);
            let chosen = match to {
                Some(to) => exact.contains(&to).then_some(to),
                None => exact.first().copied(),
            };
            if chosen.is_some() || runtime::now() >= deadline {
                return chosen;
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }
}

/// Opens a gate again that was closed for a transfer which was never asked for, also when whoever
/// wanted it went away.
struct Reopening<'a> {
    place: &'a Place,
    leadership: LeaderId,
    is_armed: bool,
}

impl Drop for Reopening<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            self.place.fence.reopen(self.leadership);
        }
    }
}
