//! A Raft group as the rooms above see it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::raft::{ClientWriteResult, VoteRequest};
use openraft::type_config::alias::{OneshotReceiverOf, VoteOf};
use openraft::{Instant as _, ReadPolicy, ServerState};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::checkpointing::make_checkpoint;
use super::entry::{Applied, Member, Payload, TypeConfig, position_of, raft_leader};
use super::heard::Heard;
use super::machine::Machine;
use super::pace::Pace;
use super::replica::Replica;
use super::start::StartOptions;
use crate::ledger::{LeaderId, LogIndex, NodeId, ShardId};
use crate::peer::{Link, Network};
use crate::runtime::{self, Instant};
use crate::storage::{Checkpoints, LogPosition, PageDesk, ShardLog};

pub(crate) type Raft = openraft::Raft<TypeConfig, Machine>;

/// One shard's Raft group on this node. Clones share it.
#[derive(Clone)]
pub struct Group {
    pub(super) raft: Raft,
    pub(super) replica: Arc<Replica>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) cut_pages: usize,
    pub(super) heard: Arc<Heard>,
    pub(super) origin: Arc<Origin>,
    pub(super) pace: Pace,
    /// Whoever changes the members, or hands leadership to one of them.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

/// What a group was started from, and needs again to compare and rebuild its state.
pub(super) struct Origin {
    pub(super) log: ShardLog,
    pub(super) desk: PageDesk,
    pub(super) network: Network,
    pub(super) options: StartOptions,
    /// Connections on which replicas compare digests, by node.
    pub(super) links: Mutex<BTreeMap<NodeId, Link>>,
    pub(super) electable: AtomicBool,
}

/// This node leads, as far as it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leadership {
    /// Term and node.
    pub id: LeaderId,
    /// When a quorum last acknowledged it: the moment at which the acknowledged messages were sent.
    pub acked: Option<Instant>,
}

/// Why a proposal was not applied here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It was certainly not appended.
    #[error("not appended: this node does not lead (the leader is {leader:?})")]
    NotAppended {
        /// Who leads, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// It may still commit.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// A proposal under way. Resolves when its entry is applied here or its fate is known not to come
/// this way; without a quorum it may never resolve.
pub struct Proposal {
    answer: OneshotReceiverOf<TypeConfig, ClientWriteResult<TypeConfig>>,
}

impl Future for Proposal {
    type Output = Result<Applied, ProposeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(cx) else {
            return Poll::Pending;
        };
        Poll::Ready(match answer {
            Ok(Ok(response)) => Ok(response.data),
            Ok(Err(ClientWriteError::ForwardToLeader(to))) => {
                Err(ProposeError::NotAppended { leader: to.leader_id.map(NodeId) })
            }
            Ok(Err(error)) => Err(ProposeError::Unknown(error.to_string())),
            Err(_) => Err(ProposeError::Unknown("the Raft core has gone".to_owned())),
        })
    }
}

/// What part a replica plays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows and votes.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It follows and does not vote.
    #[default]
    Learner,
    /// It is stopped.
    Stopped,
}

/// What a group's state is, for those who watch it.
#[derive(Debug, Clone, Default)]
pub struct GroupState {
    /// The Raft term.
    pub term: u64,
    /// Leader, follower, candidate, learner or shut down.
    pub role: Role,
    /// The leadership that this node follows or holds.
    pub leader: Option<LeaderId>,
    /// Voters.
    pub voters: Vec<NodeId>,
    /// Learners.
    pub learners: Vec<NodeId>,
    /// On the leader: how far each member has acknowledged.
    pub matched: BTreeMap<NodeId, LogIndex>,
    /// On the leader: ms since each member last answered a heartbeat.
    pub heard_ms: BTreeMap<NodeId, u64>,
    /// The last index in the log.
    pub last_log: LogIndex,
    /// The last index applied.
    pub applied: LogIndex,
    /// The index purged up to.
    pub purged: LogIndex,
    /// On the leader: ms since a quorum last acknowledged it.
    pub quorum_age_ms: Option<u64>,
    /// Why the group stopped, when it did.
    pub failed: Option<String>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("shard", &self.shard()).finish_non_exhaustive()
    }
}

impl Group {
    /// Returns the shard.
    pub fn shard(&self) -> ShardId {
        self.replica.shard()
    }

    /// Returns the state in memory.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Returns the page databases.
    pub fn checkpoints(&self) -> &Arc<Checkpoints> {
        &self.checkpoints
    }

    /// Tells whether this node leads and when a quorum last acknowledged it.
    pub fn leadership(&self) -> Option<Leadership> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.vote.is_committed().then(|| metrics.vote.leader_id())?;
        // A leader that was restarted finds its vote as it was, and leads nobody.
        if id.node_id != metrics.id || metrics.state != ServerState::Leader {
            return None;
        }
        let voters = metrics.membership_config.membership();
        // A voter alone is its own quorum; nobody sends it acknowledgements.
        let is_alone = voters.voter_ids().all(|voter| voter == metrics.id);
        let acked = metrics.last_quorum_acked.map(|at| at.into_inner());
        Some(Leadership {
            id: LeaderId { term: id.term, node: NodeId(id.node_id) },
            acked: if is_alone { Some(runtime::now()) } else { acked },
        })
    }

    /// Tells who leads, as far as this node knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.raft.server_metrics().borrow_watched().current_leader.map(NodeId)
    }

    /// Tells whether the leader that this node follows was heard within this time.
    pub fn heard_leader_within(&self, time: Duration) -> bool {
        self.heard.within(time)
    }

    /// Hands an entry to the log under this very leadership and no other: one that came between
    /// would make "decided" mean something else to the caller. From the moment of the call its
    /// failure is unknown, unless the error says that it was not appended.
    ///
    /// # Errors
    ///
    /// [`ProposeError::Unknown`] when the Raft core has stopped.
    pub async fn propose(
        &self,
        payload: Payload,
        leader: LeaderId,
    ) -> Result<Proposal, ProposeError> {
        let (responder, answer) = ProgressResponder::complete_only();
        let leader = raft_leader(leader);
        match self.raft.write(payload).responder(responder).with_leader(leader).await {
            Ok(()) => Ok(Proposal { answer }),
            Err(fatal) => Err(ProposeError::Unknown(fatal.to_string())),
        }
    }

    /// Waits until this replica has applied everything that was committed before the call, having
    /// asked a quorum whether this node still leads.
    ///
    /// # Errors
    ///
    /// Words, when it does not lead, or no quorum answered by the deadline.
    pub async fn read_index(&self, deadline: Instant) -> Result<(), String> {
        // Boxed: it is large, and a part of the future of every question, which seldom asks for it.
        let asked = Box::pin(self.raft.ensure_linearizable(ReadPolicy::ReadIndex));
        match runtime::timeout_at(deadline, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(elapsed) => Err(elapsed.to_string()),
        }
    }

    /// Asks openraft to hand leadership to `node`. The caller has closed the gate before.
    ///
    /// # Errors
    ///
    /// Words, when the Raft core has stopped.
    pub async fn transfer_to(&self, node: NodeId) -> Result<(), String> {
        self.raft.trigger().transfer_leader(node.0).await.map_err(|fatal| fatal.to_string())
    }

    /// Ends this node's leadership of `term`, for whoever is elected next, also this node: gives
    /// its vote in the next term to `to`, as if that stood for it. A leader that was asked to hand
    /// over takes no entry any more, and cannot be elected again while it leads: if nobody else may
    /// stand it would lead for ever and grant nothing.
    ///
    /// # Errors
    ///
    /// Words, when the Raft core has stopped.
    pub async fn step_down(&self, term: u64, to: NodeId) -> Result<(), String> {
        let known = self.raft.with_raft_state(|state| state.log_ids.last().cloned()).await;
        let last_log_id = known.map_err(|fatal| fatal.to_string())?;
        let vote = VoteOf::<TypeConfig>::new(term + 1, to.0);
        let request = VoteRequest { vote, last_log_id, leadership_transfer: true };
        self.raft.vote(request).await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Lets this node stand for election, or not.
    pub fn set_electable(&self, electable: bool) {
        self.origin.electable.store(electable, Ordering::Release);
        self.raft.runtime_config().elect(electable);
    }

    /// Tells whether this node may stand for election.
    pub fn is_electable(&self) -> bool {
        self.origin.electable.load(Ordering::Acquire)
    }

    /// Founds the group with these voters. Founding it again with the same is no error.
    ///
    /// # Errors
    ///
    /// Words, when the members do not make a group or the core has stopped.
    pub async fn found(&self, members: BTreeMap<NodeId, Member>) -> Result<(), String> {
        let members: BTreeMap<u64, Member> =
            members.into_iter().map(|(node, member)| (node.0, member)).collect();
        match self.raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes a checkpoint, tells openraft of it, and purges the log behind the older one.
    ///
    /// # Errors
    ///
    /// What the page store said; the checkpoint that was current stays current.
    pub async fn checkpoint(&self) -> std::io::Result<LogPosition> {
        let nothing = || std::io::Error::other("nothing is applied yet that could be kept");
        let position = make_checkpoint(&self.replica, &self.checkpoints, self.cut_pages)
            .await?
            .ok_or_else(nothing)?;
        let gone = |fatal: openraft::errors::Fatal<TypeConfig>| std::io::Error::other(fatal);
        self.raft.trigger().snapshot().await.map_err(gone)?;
        self.purge().await.map_err(std::io::Error::other)?;
        Ok(position)
    }

    /// Purges the log up to the older of the two checkpoints, and not beyond one that is on its way
    /// to a member: it needs what follows.
    ///
    /// # Errors
    ///
    /// Words, when the core has stopped.
    pub async fn purge(&self) -> Result<(), String> {
        if let Some(limit) = self.checkpoints.purge_limit() {
            let kept = self.pace.kept_from();
            let upto = kept.map_or(limit.index, |kept| kept.min(limit.index));
            let purge = self.raft.trigger().purge_log(upto.0).await;
            purge.map_err(|fatal| fatal.to_string())?;
        }
        Ok(())
    }

    /// Makes a checkpoint and purges the log behind the older one, also when a member that is sent
    /// a checkpoint needs that log: it will be sent another.
    ///
    /// # Errors
    ///
    /// As [`Group::checkpoint`].
    pub async fn checkpoint_to_make_room(&self) -> std::io::Result<LogPosition> {
        self.pace.give_up();
        self.checkpoint().await
    }

    /// Stops the group.
    pub async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(shard = %self.shard(), %error, "the Raft core ended badly");
        }
    }

    /// Returns the group's state for those who watch it.
    pub fn state(&self) -> GroupState {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let vote = &metrics.vote;
        let role = match metrics.state {
            ServerState::Leader => Role::Leader,
            ServerState::Follower => Role::Follower,
            ServerState::Candidate => Role::Candidate,
            ServerState::Learner => Role::Learner,
            ServerState::Shutdown => Role::Stopped,
        };
        let leader = vote.is_committed().then(|| LeaderId {
            term: vote.leader_id().term,
            node: NodeId(vote.leader_id().node_id),
        });
        let index = |id: &Option<openraft::type_config::alias::LogIdOf<TypeConfig>>| {
            id.as_ref().map(|id| position_of(id).index).unwrap_or_default()
        };
        let matched = metrics.replication.iter().flatten();
        let heard = metrics.heartbeat.iter().flatten();
        GroupState {
            term: metrics.current_term,
            role,
            leader,
            voters: membership.voter_ids().map(NodeId).collect(),
            learners: membership.learner_ids().map(NodeId).collect(),
            matched: matched.map(|(node, id)| (NodeId(*node), index(id))).collect(),
            heard_ms: heard
                .filter_map(|(node, at)| {
                    let age = at.as_ref()?.elapsed();
                    Some((NodeId(*node), u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
                })
                .collect(),
            last_log: LogIndex(metrics.last_log_index.unwrap_or_default()),
            applied: index(&metrics.last_applied),
            purged: index(&metrics.purged),
            quorum_age_ms: metrics
                .last_quorum_acked
                .map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)),
            failed: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }
}
