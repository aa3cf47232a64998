//! A node's own view of the cluster, from `/admin/v1/cluster` and `/admin/v1/digest`.

use serde::Deserialize;

/// `/admin/v1/cluster`, as far as tests look at it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NodeView {
    pub(crate) cluster_id: Option<String>,
    pub(crate) node: u64,
    pub(crate) shards: Vec<ShardView>,
    pub(crate) stopped: Option<String>,
}

/// One shard in it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ShardView {
    pub(crate) shard: u16,
    pub(crate) role: String,
    pub(crate) leader: Option<u64>,
    pub(crate) term: u64,
    pub(crate) voters: Vec<u64>,
    pub(crate) last_log: u64,
    pub(crate) applied: u64,
    pub(crate) paused: Option<String>,
    pub(crate) failed: Option<String>,
}

/// `/admin/v1/digest`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Digests {
    pub(crate) shards: Vec<ShardDigest>,
}

/// One shard in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct ShardDigest {
    pub(crate) shard: u16,
    pub(crate) applied: u64,
    pub(crate) digest: String,
}
