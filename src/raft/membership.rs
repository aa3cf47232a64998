//! The members of a group, and how its leader changes them.
//!
//! A change is guarded twice: it is proposed only while the membership is still the one that was
//! read, and only under the leadership that read it. So a change that was decided long ago, by a
//! leader that slept, is refused by openraft instead of undoing what others did meanwhile. A change
//! of voters goes through a joint membership; one whose leader died in between stays joint until
//! the next leader is asked for the same voters again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, raft::Precondition};

use super::entry::{Member, TypeConfig, log_id_of, position_of, raft_leader};
use super::group::Group;
use crate::ledger::{LeaderId, LogIndex, NodeId};
use crate::runtime;
use crate::storage::LogPosition;

/// Who is in a group, as its last membership entry says, committed or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// Where that entry stands.
    pub at: Option<LogPosition>,
    /// Whether it is committed.
    pub committed: bool,
    /// The sets of voters: two while a change of them is under way.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// Everybody in it, voters or not.
    pub members: BTreeMap<NodeId, Member>,
}

impl Membership {
    /// Tells whether a change of voters is under way, or was left half-way.
    pub fn is_joint(&self) -> bool {
        self.voters.len() > 1
    }

    /// Returns those who vote in either set.
    pub fn all_voters(&self) -> BTreeSet<NodeId> {
        self.voters.iter().flatten().copied().collect()
    }
}

/// A change of a group's members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// Takes nodes in that follow without a vote.
    Learners(BTreeMap<NodeId, Member>),
    /// Gives members other addresses; what they are stays.
    Addresses(BTreeMap<NodeId, Member>),
    /// These vote from now on, all of them members; those who voted before stay as learners.
    Voters(BTreeSet<NodeId>),
    /// Takes nodes out that do not vote.
    Forget(BTreeSet<NodeId>),
}

fn ids(nodes: BTreeSet<NodeId>) -> BTreeSet<u64> {
    nodes.into_iter().map(|node| node.0).collect()
}

impl Group {
    /// Returns the members as the last membership entry says.
    pub fn membership(&self) -> Membership {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let stored = &metrics.membership_config;
        let voters = stored.membership().get_joint_config().iter();
        Membership {
            at: stored.log_id().as_ref().map(position_of),
            committed: stored.log_id() == metrics.committed_membership_config.log_id(),
            voters: voters.map(|set| set.iter().copied().map(NodeId).collect()).collect(),
            members: stored.nodes().map(|(id, member)| (NodeId(*id), member.clone())).collect(),
        }
    }

    /// Keeps the members as they are until it is dropped; `None` while a change of them is under
    /// way or was left half-way. Leadership is handed over under it only: handed to a voter that
    /// is just becoming none, it would be nobody's.
    pub fn keep_members(&self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let turn = Arc::clone(&self.turn).try_lock_owned().ok()?;
        let membership = self.membership();
        (membership.committed && !membership.is_joint()).then_some(turn)
    }

    /// Returns the last index that is known to be committed here.
    pub fn committed(&self) -> LogIndex {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.local_committed.as_ref().map(|id| position_of(id).index).unwrap_or_default()
    }

    /// Returns the time between two heartbeats.
    pub fn heartbeat(&self) -> Duration {
        self.origin.options.heartbeat
    }

    /// Changes the members, under this leadership and if the membership is still the one at `at`.
    /// Done when the change is committed and applied here, within `within`.
    ///
    /// # Errors
    ///
    /// Words. Unless they say that it was refused, it may still come about: look at
    /// [`Group::membership`].
    pub async fn change_members(
        &self,
        change: MemberChange,
        leader: LeaderId,
        at: Option<LogPosition>,
        within: Duration,
    ) -> Result<(), String> {
        let (change, retain) = match change {
            MemberChange::Learners(members) => {
                let members = members.into_iter().map(|(node, member)| (node.0, member));
                (ChangeMembers::AddNodes(members.collect()), true)
            }
            MemberChange::Addresses(members) => {
                let members = members.into_iter().map(|(node, member)| (node.0, member));
                (ChangeMembers::SetNodes(members.collect()), true)
            }
            MemberChange::Voters(voters) => (ChangeMembers::ReplaceAllVoters(ids(voters)), true),
            MemberChange::Forget(nodes) => (ChangeMembers::RemoveNodes(ids(nodes)), true),
        };
        let guards: [Precondition<TypeConfig>; 2] = [
            Precondition::CommittedLeaderId { committed_leader_id: raft_leader(leader) },
            Precondition::LastMembershipLogId { last_membership_log_id: at.map(log_id_of) },
        ];
        let changed = Box::pin(async {
            let _turn = self.turn.lock().await;
            self.raft.change_membership_if(change, retain, guards).await
        });
        match runtime::timeout(within, changed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(
                error @ (ClientWriteError::ForwardToLeader(_)
                | ClientWriteError::ChangeMembershipError(_)
                | ClientWriteError::PreconditionFailed(_)),
            ))) => Err(format!("refused: {error}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("not committed in time".to_owned()),
        }
    }
}
