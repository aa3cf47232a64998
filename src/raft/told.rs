//! What the records of a stopped node say, for those who look at them: its vote, and the members
//! that a checkpoint names.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use openraft::type_config::alias::VoteOf;
use serde::Serialize;

use super::entry::{Member, TypeConfig};
use super::snapshot::membership_of;
use crate::codec::{self, CodecError};
use crate::ledger::{LeaderId, NodeId};
use crate::storage::CheckpointHeader;

/// A vote as the log has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VoteTold {
    /// For whom, in which term.
    pub leader: LeaderId,
    /// Whether a quorum granted it.
    pub committed: bool,
}

impl VoteTold {
    /// Reads a vote.
    ///
    /// # Errors
    ///
    /// [`CodecError`] when it is not one that this build knows.
    pub fn read(bytes: &[u8]) -> Result<VoteTold, CodecError> {
        let vote: VoteOf<TypeConfig> = codec::decode(bytes)?;
        let node = NodeId(vote.leader_id.node_id);
        let leader = LeaderId { term: vote.leader_id.term, node };
        Ok(VoteTold { leader, committed: vote.committed })
    }
}

/// The members of a shard's group as a checkpoint has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MembersTold {
    /// Who votes.
    pub voters: BTreeSet<NodeId>,
    /// Everybody, with what is recorded of each.
    pub members: BTreeMap<NodeId, Member>,
}

impl MembersTold {
    /// Reads the members that a checkpoint names.
    ///
    /// # Errors
    ///
    /// When they are not in a form that this build knows.
    pub fn read(header: &CheckpointHeader) -> io::Result<MembersTold> {
        let membership = membership_of(header)?;
        let members = membership.nodes().map(|(id, member)| (NodeId(*id), member.clone()));
        Ok(MembersTold {
            voters: membership.voter_ids().map(NodeId).collect(),
            members: members.collect(),
        })
    }
}
