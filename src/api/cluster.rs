//! The cluster as operators see it, and the two steps of `cluster init`, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time::Timestamp;

/// The cluster as one node sees it (`GET /admin/v1/cluster`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// The cluster's id in hex; absent before `cluster init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cluster_id: Option<String>,
    /// The node that answers; 0 when it has no id.
    pub node: u64,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// Where services reach it.
    #[serde(default)]
    pub http_addr: String,
    /// The members that it knows.
    pub nodes: Vec<Node>,
    /// Its shards.
    pub shards: Vec<Shard>,
    /// How many more nodes may fail before some shard has no quorum, as far as this node sees.
    pub failures_tolerated: u64,
    /// The version that the answering node runs.
    #[serde(default)]
    pub version: String,
    /// The schema version that the cluster writes, and those that the answering node reads.
    #[serde(default)]
    pub schema: Schema,
    /// The answering node's log and the disk under it.
    #[serde(default)]
    pub disk: NodeDisk,
    /// The answering node's clock beside those of the others.
    #[serde(default)]
    pub clock: NodeClock,
    /// What is wrong, as far as the answering node sees; the worst first.
    #[serde(default)]
    pub troubles: Vec<Trouble>,
    /// The answering node's wall clock.
    pub wall_clock: Timestamp,
    /// Ms since it started.
    pub uptime_ms: u64,
    /// Why it takes no part any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stopped: Option<String>,
}

/// The schema version: which kinds of entries and records the cluster writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schema {
    /// The version that the cluster writes, as far as the answering node has applied it.
    pub active: u16,
    /// The versions that the answering node reads.
    pub reads: SchemaRange,
}

/// Schema versions that a node reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchemaRange {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// All serve; somebody should act.
    Warning,
    /// Something does not serve.
    Broken,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trouble {
    /// How bad it is.
    pub severity: Severity,
    /// What was seen.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do: a command where there is one.
    pub act: String,
}

/// A node's log and the disk under it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDisk {
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// The size of the disk; 0 when it is not known.
    pub total_bytes: u64,
    /// Below so many free bytes new holds are shed.
    pub floor_bytes: u64,
    /// Whether new holds are shed for want of room.
    pub full: bool,
    /// Whether the ballast file was given up.
    pub ballast_released: bool,
    /// How long the log has been waiting for room, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waits_for_room_ms: Option<u64>,
    /// Why the log takes nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub log_failed: Option<String>,
    /// The age of the oldest append that is not synced, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub oldest_unsynced_ms: Option<u64>,
    /// The median time of a sync of the log, in µs.
    pub sync_p50_us: u64,
    /// The 99th percentile of that time, in µs.
    pub sync_p99_us: u64,
}

/// A node's clock beside those of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeClock {
    /// Whether a majority of all members, the node included, agrees with it.
    pub agrees: bool,
    /// Whether it is further than the bound from a majority: then the node does not lead.
    pub wild: bool,
    /// The bound, in ms.
    pub offset_ms_max: u64,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id.
    pub id: u64,
    /// Where services reach it, `host:port`.
    pub http_addr: String,
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Its region.
    pub region: String,
    /// Whether it has answered the answering node within the last seconds; true of that node
    /// itself.
    #[serde(default)]
    pub answers: bool,
    /// Its clock minus the answering node's, in ms, when it has answered lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub clock_offset_ms: Option<i64>,
    /// The shards that it leads, as far as the answering node knows.
    pub leads: Vec<u16>,
    /// Its worst lag in log entries over the shards that the answering node leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lag: Option<u64>,
}

/// A shard on the answering node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Shard {
    /// The shard.
    pub shard: u16,
    /// This replica's part: leader, follower, candidate, learner or stopped.
    pub role: String,
    /// The node that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub leader: Option<u64>,
    /// The node that is meant to lead: leadership goes back to it when it lacks nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub preferred: Option<u64>,
    /// The Raft term.
    pub term: u64,
    /// Who votes.
    pub voters: Vec<u64>,
    /// Who follows without a vote.
    pub learners: Vec<u64>,
    /// The last index in this replica's log.
    pub last_log: u64,
    /// The last index applied here.
    pub applied: u64,
    /// On the leader: how long ago a quorum last acknowledged it, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub quorum_age_ms: Option<u64>,
    /// How long ago this replica made or received its last checkpoint, in ms; absent when it has
    /// not since it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub checkpoint_age_ms: Option<u64>,
    /// Why it grants nothing now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused: Option<String>,
    /// Why this replica failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub failed: Option<String>,
}

/// Digests of one node's replicas (`GET /admin/v1/digest`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Digests {
    /// The node.
    pub node: u64,
    /// Its shards.
    pub shards: Vec<Digest>,
}

/// The digest of one replica: equal on every replica at the same index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Digest {
    /// The shard.
    pub shard: u16,
    /// The index applied.
    pub applied: u64,
    /// The digest in hex.
    pub digest: String,
    /// Ledger time.
    pub ledger_now: Timestamp,
}

/// First step of `cluster init`: the identity that an empty node takes
/// (`POST /admin/v1/adopt`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Adopt {
    /// The cluster, 16 random bytes in hex.
    #[schema(min_length = 32, max_length = 32)]
    pub cluster_id: String,
    /// The node's id from now on.
    #[schema(minimum = 1)]
    pub node: u64,
    /// What every replica agrees on.
    pub settings: ClusterSettings,
}

/// What every replica of every shard agrees on for the life of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSettings {
    /// How many shards the cluster has.
    #[schema(minimum = 1, maximum = 256)]
    pub shards: u16,
    /// The key of the hold ids' tags, 16 random bytes in hex.
    #[schema(min_length = 32, max_length = 32)]
    pub tag_key: String,
    /// Slots a bucket.
    #[schema(minimum = 1, maximum = 4_096)]
    pub slots: u16,
    /// The most due holds that one entry sweeps, beyond what its own commands need.
    #[schema(minimum = 1, maximum = 100_000)]
    pub sweep_max: u32,
    /// How long a receipt outlives the greatest lifetime of its hold, in ms.
    #[schema(minimum = 1)]
    pub receipt_retention_ms: u64,
    /// How long a sold hold keeps its record, in ms.
    #[schema(minimum = 1)]
    pub sold_retention_ms: u64,
}

/// What an empty node answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Adopted {
    /// Its new log, 16 random bytes in hex.
    pub log_uuid: String,
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
}

/// Second step of `cluster init`: the members (`POST /admin/v1/begin`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The members.
    #[schema(min_items = 1, max_items = 64)]
    pub members: Vec<Member>,
}

/// A member of a new cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its id.
    #[schema(minimum = 1)]
    pub node: u64,
    /// Its log, 16 bytes in hex.
    #[schema(min_length = 32, max_length = 32)]
    pub log_uuid: String,
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
}

/// What `begin` answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Begun {
    /// How many members the node was told.
    pub members: u64,
}
