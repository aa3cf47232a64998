//! The nodes of a cluster, the operations that change them, and the shards, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cluster::{ClusterSettings, Member, SchemaRange};
use super::time::Timestamp;

/// The nodes of the cluster (`GET /admin/v1/nodes`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// The schema version that the cluster writes.
    #[serde(default)]
    pub schema_version: u16,
    /// The nodes, the removed ones included.
    pub nodes: Vec<NodeSeat>,
    /// Operations that have not ended, and the last that have.
    pub operations: Vec<NodeOperation>,
}

/// A node in the roster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeSeat {
    /// Its id, never given to another.
    pub id: u64,
    /// `invited`, `joining` (taken in by some shards), `learner`, `promoting`, `voter`,
    /// `draining`, `drained`, `leaving` or `removed`.
    pub state: String,
    /// Where services reach it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub http_addr: String,
    /// Where its peers reach it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub peer_addr: String,
    /// Its region.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// Whether it answered just now.
    pub answers: bool,
    /// The shards that it leads.
    pub leads: Vec<u16>,
    /// The shards in which it votes.
    pub votes: Vec<u16>,
    /// The most entries that one of its replicas lacks of what is committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lag: Option<u64>,
    /// Since when it is what it is.
    pub since: Timestamp,
    /// The schema versions that it reads, when it answered just now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reads_schema: Option<SchemaRange>,
}

/// An operation on the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeOperation {
    /// Its id.
    pub id: u64,
    /// `add`, `add-learner`, `promote`, `demote`, `drain`, `undrain`, `remove` or `replace`.
    pub kind: String,
    /// The node that it is about; of a replacement the new one.
    pub node: u64,
    /// The node that a replacement takes out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub replaces: Option<u64>,
    /// `waiting` (for its machine), `queued`, `running`, `done` or `cancelled`.
    pub state: String,
    /// Its steps, in order.
    pub steps: Vec<OperationStep>,
    /// How it ended, or what was said last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When it began.
    pub begun_at: Timestamp,
    /// When its last step began.
    pub changed_at: Timestamp,
    /// From when on its token lets nobody in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub token_expires_at: Option<Timestamp>,
}

/// A step of an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationStep {
    /// `await-machine`, `learn`, `catch-up`, `promote`, `hand-over`, `demote`, `forget` or `tell`.
    pub step: String,
    /// What it does.
    pub title: String,
    /// `done`, `running` or `to-come`.
    pub state: String,
    /// How far it has come, or what holds it up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Operations (`GET /admin/v1/operations`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationList {
    /// Those that have not ended, and the last that have.
    pub operations: Vec<NodeOperation>,
}

/// A change of the nodes that was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeChange {
    /// The operation.
    pub operation: NodeOperation,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// The token of the machine that is awaited. It is shown once, and lets one machine in, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub token: Option<String>,
}

/// What a change would do (`?dry_run=true`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodePlan {
    /// Its steps.
    pub steps: Vec<String>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// Something that is done already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDone {
    /// What was done.
    pub done: String,
}

/// A token for a new machine (`POST /admin/v1/nodes`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNode {
    /// Whether it is to follow only, without a vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub learner: Option<bool>,
    /// How long the token lets somebody in, in ms; an hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1_000, maximum = 604_800_000)]
    pub valid_ms: Option<u64>,
    /// The one region that it lets a machine of in; any when absent. Needs schema version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    pub region: Option<String>,
}

/// A token for a machine that takes a node's place (`POST /admin/v1/nodes/{id}/replace`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceNode {
    /// How long the token lets somebody in, in ms; an hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1_000, maximum = 604_800_000)]
    pub valid_ms: Option<u64>,
}

/// Where a leadership is to go (`POST /admin/v1/shards/{shard}/leader`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveLeader {
    /// The node; whoever can win when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub node: Option<u64>,
}

/// What a new machine says (`POST /admin/v1/join`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The token of `holdfast node add`.
    pub token: String,
    /// The log that it has drawn, 16 bytes in hex.
    #[schema(min_length = 32, max_length = 32)]
    pub log_uuid: String,
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
    /// The newest schema version that it reads; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub schema_newest: Option<u16>,
}

/// What a new machine is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Joined {
    /// The cluster.
    pub cluster_id: String,
    /// Its id.
    pub node: u64,
    /// The operation that brings it in.
    pub operation: u64,
    /// What every replica agrees on.
    pub settings: ClusterSettings,
    /// The members, itself included.
    pub members: Vec<Member>,
}

/// The shards by the words of their leaders (`GET /admin/v1/shards`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardList {
    /// The shards.
    pub shards: Vec<ShardMembers>,
}

/// A shard and its replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardMembers {
    /// The shard.
    pub shard: u16,
    /// The node that leads it with a fresh quorum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub leader: Option<u64>,
    /// The node that leads it when all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub preferred: Option<u64>,
    /// Who votes.
    pub voters: Vec<u64>,
    /// Who follows without a vote.
    pub learners: Vec<u64>,
    /// Whether a change of the voters is under way.
    pub changing: bool,
    /// The last index that is committed.
    pub committed: u64,
    /// The replicas that answered.
    pub replicas: Vec<ReplicaOf>,
}

/// One replica of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaOf {
    /// The node.
    pub node: u64,
    /// The last index applied.
    pub applied: u64,
    /// The index of its newest checkpoint.
    pub checkpoint: u64,
}
