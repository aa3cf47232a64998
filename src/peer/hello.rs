//! Who speaks to whom about what: the first frame each way of every connection.
//!
//! A hello names the cluster, the (node id, log uuid) pair that speaks, the node that it means, and
//! the shard and lane that the connection belongs to. The welcome names the pair that answers, and
//! the caller checks it: a vote granted by a node with another log than the member's is no vote.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::ledger::{NodeId, ShardId};

/// The version of the peer protocol that this build speaks.
pub const HELLO_VERSION: u16 = 1;
/// The largest body of a handshake frame, in bytes.
pub(super) const HELLO_BYTES_MAX: usize = 1024;
/// The longest reason of a refusal that travels, in bytes.
const REASON_BYTES_MAX: usize = 512;

/// What a connection carries. Lanes never share a connection, so that a long append or a snapshot
/// cannot stand in front of a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// Votes and heartbeats.
    Vote,
    /// Appends.
    Append,
    /// Pieces of a checkpoint.
    Snapshot,
    /// Questions that another node answers; the only lane that belongs to no shard.
    Forward,
}

/// A node together with the log that it keeps its promises in. A node id with another log is
/// somebody else (law 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId {
    /// The node.
    pub node: NodeId,
    /// Its log.
    pub log_uuid: [u8; 16],
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} with log {:032x}", self.node, u128::from_be_bytes(self.log_uuid))
    }
}

/// Who this node says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalIdentity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The node and its log.
    pub id: PeerId,
}

/// Where a peer is, and which one is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The node meant.
    pub node: NodeId,
    /// The log that it must have.
    pub log_uuid: [u8; 16],
    /// `host:port`; in the simulator any string.
    pub addr: String,
}

impl Address {
    /// Returns the pair that must answer there.
    pub fn id(&self) -> PeerId {
        PeerId { node: self.node, log_uuid: self.log_uuid }
    }
}

/// The caller's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol version. Always the first two bytes, whatever follows.
    pub version: u16,
    /// The cluster that the caller belongs to.
    pub cluster_id: [u8; 16],
    /// The caller.
    pub from: PeerId,
    /// The node that the caller means to reach.
    pub to: NodeId,
    /// The shard that the connection belongs to; `None` on the forward lane only.
    pub shard: Option<ShardId>,
    /// What the connection carries.
    pub lane: Lane,
}

impl Hello {
    /// Returns the bytes of the frame's body.
    pub(super) fn encode(&self) -> Vec<u8> {
        codec::encode(self).expect("a hello is far below the record limit")
    }

    /// Reads a hello, its version first.
    ///
    /// # Errors
    ///
    /// In words, when the version is another or the bytes are no hello.
    pub(super) fn decode(body: &[u8]) -> Result<Hello, String> {
        check_version(body)?;
        codec::decode(body).map_err(|error| format!("not a hello: {error}"))
    }

    /// Decides whether the caller belongs to this cluster and means this node.
    ///
    /// # Errors
    ///
    /// In words, naming the first thing that does not fit.
    pub(super) fn check(&self, local: &LocalIdentity) -> Result<(), String> {
        if self.cluster_id != local.cluster_id {
            return Err(foreign(local.cluster_id, self.cluster_id));
        }
        if self.to != local.id.node {
            return Err(format!("this is node {}, not node {}", local.id.node, self.to));
        }
        if self.shard.is_none() != (self.lane == Lane::Forward) {
            return Err(format!("lane {:?} with shard {:?} does not exist", self.lane, self.shard));
        }
        Ok(())
    }
}

/// The answering side's first frame when it accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// The protocol version. Always the first two bytes.
    pub(super) version: u16,
    /// The cluster that the answering node belongs to.
    pub(super) cluster_id: [u8; 16],
    /// The node that answers.
    pub(super) from: PeerId,
}

impl Welcome {
    /// Returns the bytes of the frame's body.
    pub(super) fn encode(&self) -> Vec<u8> {
        codec::encode(self).expect("a welcome is far below the record limit")
    }

    /// Reads a welcome, its version first.
    ///
    /// # Errors
    ///
    /// In words, when the version is another or the bytes are no welcome.
    pub(super) fn decode(body: &[u8]) -> Result<Welcome, String> {
        check_version(body)?;
        codec::decode(body).map_err(|error| format!("not a welcome: {error}"))
    }

    /// Decides whether the right node, with the right log, answered.
    ///
    /// # Errors
    ///
    /// In words, naming the first thing that does not fit.
    pub(super) fn check(&self, local: &LocalIdentity, meant: PeerId) -> Result<(), String> {
        if self.cluster_id != local.cluster_id {
            return Err(foreign(local.cluster_id, self.cluster_id));
        }
        if self.from != meant {
            return Err(format!("{} answered where {meant} was meant", self.from));
        }
        Ok(())
    }
}

fn check_version(body: &[u8]) -> Result<(), String> {
    let Some(found) = body.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes)) else {
        return Err("a first frame without a version".to_owned());
    };
    if found != HELLO_VERSION {
        return Err(format!(
            "peer protocol {found} is not known; this build speaks {HELLO_VERSION}"
        ));
    }
    Ok(())
}

fn foreign(ours: [u8; 16], theirs: [u8; 16]) -> String {
    let (ours, theirs) = (u128::from_be_bytes(ours), u128::from_be_bytes(theirs));
    format!("foreign cluster {theirs:032x}; this is cluster {ours:032x}")
}

/// Cuts a reason to what travels, at a character's edge.
pub(super) fn reason_bytes(reason: &str) -> Vec<u8> {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason.as_bytes()[..end].to_vec()
}

/// Reads a reason that travelled.
pub(super) fn reason_text(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(REASON_BYTES_MAX)]).into_owned()
}
