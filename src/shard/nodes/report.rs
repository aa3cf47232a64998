//! What each node tells of its replicas to whoever changes the membership, and what all of it
//! together shows.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ledger::{
    LeaderId, LogIndex, NodeId, Roster, SchemaRange, SchemaVersion, SeatRole, ShardId,
};

/// One node's word on its replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Whether it stands for election.
    pub stands: bool,
    /// Its replicas, in the order of the shards.
    pub shards: Vec<ReplicaReport>,
}

/// One replica.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// The shard.
    pub shard: ShardId,
    /// The leadership that this node holds, its quorum fresh.
    pub leads: Option<LeaderId>,
    /// The sets of voters that it knows: two while a change of them is under way.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// Everybody in the group, voters or not.
    pub members: BTreeSet<NodeId>,
    /// Whether that membership is committed.
    pub settled: bool,
    /// The last index in its log.
    pub last_log: LogIndex,
    /// The last index that it knows to be committed.
    pub committed: LogIndex,
    /// The last index applied. It comes from a whole log or an installed checkpoint, never from
    /// what a leader believes of this node.
    pub applied: LogIndex,
    /// The index of its newest checkpoint.
    pub checkpoint: LogIndex,
}

/// What a change of the membership goes by: the roster, and who said what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sight {
    /// The roster.
    pub roster: Roster,
    /// How many shards the cluster has.
    pub shards: u16,
    /// The nodes that answered, and what they said.
    pub told: BTreeMap<NodeId, NodeReport>,
    /// The schema version that the cluster writes.
    pub schema: SchemaVersion,
    /// The schema versions that each node reads, of those that were asked.
    pub reads: BTreeMap<NodeId, SchemaRange>,
}

impl Sight {
    /// Returns the word of a shard's leader.
    pub fn leader(&self, shard: ShardId) -> Option<(NodeId, &ReplicaReport)> {
        let all = self.told.iter().filter_map(|(node, told)| Some((*node, told.replica(shard)?)));
        all.filter(|(_, replica)| replica.leads.is_some()).max_by_key(|(_, one)| one.leads)
    }

    /// Returns the numbers of all shards.
    pub fn all_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.shards).map(ShardId)
    }

    /// Tells whether a node answered.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.told.contains_key(&node)
    }

    /// Returns the schema versions that a node reads; `None` when it does not answer. A build from
    /// before there were several answers, and does not say.
    pub fn reads_of(&self, node: NodeId) -> Option<SchemaRange> {
        let first = || SchemaRange::up_to(SchemaVersion::FIRST);
        let says = self.reads.get(&node).copied();
        says.or_else(|| self.is_alive(node).then(first))
    }

    /// Returns the nodes that are to vote.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.roster.seated(SeatRole::Voter).collect()
    }

    /// Returns how many entries a node's replica lacks of what its leader had committed; `None`
    /// when either did not answer.
    pub fn lag(&self, shard: ShardId, node: NodeId) -> Option<u64> {
        let (_, leader) = self.leader(shard)?;
        let replica = self.told.get(&node)?.replica(shard)?;
        Some(leader.committed.0.saturating_sub(replica.applied.0))
    }
}

impl NodeReport {
    /// Returns its word on one shard.
    pub fn replica(&self, shard: ShardId) -> Option<&ReplicaReport> {
        self.shards.iter().find(|replica| replica.shard == shard)
    }
}

/// How many of so many voters make a quorum.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}
