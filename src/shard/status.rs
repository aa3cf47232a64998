//! How a node and its shards are, for `/readyz`, `/metrics`, `/admin/v1/cluster` and `status`.

use serde::{Deserialize, Serialize};

use super::desk::MemberSpec;
use crate::ledger::{
    Figures, LeaderId, LogIndex, NodeId, PauseReason, SchemaRange, SchemaVersion, ShardId, UnixMs,
};
pub use crate::raft::Role;

/// One node, as it sees itself and its cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The cluster in hex; `None` before `cluster init`.
    pub cluster_id: Option<String>,
    /// This node.
    pub node: NodeId,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
    /// The members that this node knows, in the order of their ids.
    pub members: Vec<MemberSpec>,
    /// One for each shard, in order.
    pub shards: Vec<ShardStatus>,
    /// The write-ahead log.
    pub log: LogStatus,
    /// Why the node takes no part any more, when it does not.
    pub stopped: Option<String>,
    /// Whether its part has ended for good: it was removed from its cluster, or was wiped.
    pub ended_for_good: bool,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Its wall clock.
    pub wall_clock: UnixMs,
    /// What people call it.
    pub name: Option<String>,
    /// Its wall clock beside those of the others.
    pub clocks: ClockStatus,
    /// Why this node does not stand for election, when it does not.
    pub abstains: Option<String>,
    /// Stock between the buckets of spread items.
    pub stock: StockTraffic,
    /// The schema version.
    pub schema: SchemaStatus,
}

/// The schema version that the cluster writes, and those that a node reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaStatus {
    /// What the cluster writes, as far as it has been applied here.
    pub active: SchemaVersion,
    /// What this node reads.
    pub reads: SchemaRange,
}

impl Default for SchemaStatus {
    fn default() -> SchemaStatus {
        let reads = SchemaRange::up_to(SchemaVersion::NEWEST);
        SchemaStatus { active: SchemaVersion::FIRST, reads }
    }
}

/// Counts of transfers since the start, and of buyers who waited for them, on one node as leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockTraffic {
    /// Sends.
    pub sends: u64,
    /// Units sent.
    pub units_sent: u64,
    /// Accepts that brought something.
    pub accepts: u64,
    /// Units accepted.
    pub units_accepted: u64,
    /// Pulls of which no donor gave anything.
    pub pulls_empty: u64,
    /// Double collects made for those who ask whether an item is sold out.
    pub collects: u64,
    /// Of those, the ones that found it sold out.
    pub sold_out_verdicts: u64,
    /// Placements that waited at a dry bucket.
    pub waited: u64,
    /// Of those, the ones that were refused.
    pub waited_in_vain: u64,
    /// Placements that wait now.
    pub waiting: u64,
    /// Units that buckets led here have sent and do not know to be accepted.
    pub in_transit: u64,
    /// What a bucket may have under way, in percent of its item's total.
    pub transit_percent_max: u64,
}

/// One shard on this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// This replica's part.
    pub role: Role,
    /// The leadership that it knows.
    pub leader: Option<LeaderId>,
    /// The node that is meant to lead it when all is well.
    pub preferred: Option<NodeId>,
    /// How often this node has handed the leadership to that one since its start.
    pub homecomings: u64,
    /// Its Raft term.
    pub term: u64,
    /// Who votes.
    pub voters: Vec<NodeId>,
    /// Who follows without a vote.
    pub learners: Vec<NodeId>,
    /// On the leader: each follower's last acknowledged index.
    pub matched: Vec<(NodeId, LogIndex)>,
    /// The last index in this replica's log.
    pub last_log: LogIndex,
    /// The last index applied here.
    pub applied: LogIndex,
    /// The index up to which the log is purged.
    pub purged: LogIndex,
    /// On the leader: how long ago a quorum last acknowledged it, in ms.
    pub quorum_age_ms: Option<u64>,
    /// Why the shard grants nothing now, as this node sees it.
    pub paused: Option<PauseReason>,
    /// Ledger time.
    pub ledger_now: UnixMs,
    /// The digest at `applied`, in hex.
    pub digest: String,
    /// Counts of the ledger.
    pub figures: Figures,
    /// Counts and times of the gate and the batcher.
    pub traffic: Traffic,
    /// The last checkpoint's index.
    pub checkpoint: LogIndex,
    /// How long ago this node made or received its last checkpoint, in ms; `None` when it has not
    /// since it started.
    pub checkpoint_age_ms: Option<u64>,
    /// Bytes of the two page databases.
    pub checkpoint_bytes: u64,
    /// Checkpoints that could not be made since the start.
    pub checkpoint_failures: u64,
    /// Why the last attempt at a checkpoint failed, when it did.
    pub checkpoint_trouble: Option<String>,
    /// Why this replica failed, when it did.
    pub failed: Option<String>,
    /// The comparison of digests between the replicas.
    pub digests: DigestStatus,
}

/// What the comparison of digests found on this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DigestStatus {
    /// Comparisons in which this node, as leader, had a majority's word.
    pub compared: u64,
    /// The index of the last of them.
    pub compared_at: LogIndex,
    /// Replicas found that differ from a majority, and comparisons without a majority.
    pub mismatches: u64,
    /// Times that this replica was built anew because it differed.
    pub rebuilt: u64,
    /// What is wrong now, in words.
    pub trouble: Option<String>,
}

/// Counts since the start of one shard on this node, as leader.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Holds granted.
    pub granted: u64,
    /// Replays answered.
    pub replayed: u64,
    /// Refusals by the word of the problem, from gate and ledger.
    pub refused: Vec<(String, u64)>,
    /// Refusals and replays that were answered from memory, with nothing proposed.
    pub from_memory: u64,
    /// Requests answered `outcome-unknown`.
    pub unknown: u64,
    /// Requests refused because the shard was paused.
    pub paused: u64,
    /// Requests shed.
    pub shed: u64,
    /// Requests forwarded to the leader elsewhere.
    pub forwarded: u64,
    /// Commands proposed.
    pub commands: u64,
    /// Entries proposed.
    pub entries: u64,
    /// Requests waiting in the gate now.
    pub queued: u64,
    /// Keys in flight now.
    pub in_flight: u64,
    /// Requests parked now.
    pub parked: u64,
    /// Proposal to answer.
    pub commit_seconds: Histogram,
    /// Time that applying an entry took.
    pub apply_seconds: Histogram,
    /// Commands an entry.
    pub batch_commands: Histogram,
}

/// A histogram with fixed bounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds, rising; an implicit one of infinity follows.
    pub bounds: Vec<f64>,
    /// How many fell at or below each bound and above the one before; one more than bounds.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
}

/// The write-ahead log of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LogStatus {
    /// Segment files.
    pub segments: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Syncs done.
    pub syncs: u64,
    /// Age of the oldest append that is not synced, in ms.
    pub oldest_unsynced_ms: Option<u64>,
    /// Why the log takes nothing any more, when it does not.
    pub failed: Option<String>,
    /// The median time of a sync, in µs.
    pub sync_p50_us: u64,
    /// The 99th percentile of the time of a sync, in µs.
    pub sync_p99_us: u64,
    /// The longest sync, in µs.
    pub sync_max_us: u64,
    /// Why the next segment could not be prepared or a dead one removed, when it could not.
    pub housekeeping: Option<String>,
    /// How long the log has been waiting for room on the disk, in ms; `None` when it does not.
    pub waits_for_room_ms: Option<u64>,
    /// Free bytes on its disk.
    pub disk_free_bytes: u64,
    /// The size of its disk, in bytes; zero when it is not known.
    pub disk_total_bytes: u64,
    /// The free bytes below which new places are shed.
    pub disk_floor_bytes: u64,
    /// The disk is full: new places are shed until there is room again.
    pub disk_full: bool,
    /// The ballast was given up and could not be taken back yet.
    pub ballast_released: bool,
}

/// The wall clocks of the members, as this node sees them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// Of each other member that answered lately: its clock minus this node's, in ms.
    pub offset_ms: Vec<(NodeId, i64)>,
    /// Whether a majority of all members, this node included, agrees within the bound.
    pub agrees: bool,
    /// Whether this node is further than the bound from a majority of all members: then it does not
    /// lead.
    pub wild: bool,
    /// The bound, in ms.
    pub offset_ms_max: u64,
    /// Members that have failed to answer several times in a row.
    pub silent: Vec<NodeId>,
}
