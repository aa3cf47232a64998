//! What openraft carries for us: the entry's payload, the member's record, the answer of an entry.
//!
//! A payload is opaque bytes from the batcher to the ledger: they are encoded once on the leader
//! and decoded once on each replica, when the entry is applied. The log and the network copy them.

use std::fmt;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::type_config::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf};
use serde::{Deserialize, Serialize};

use super::packing;
use crate::codec::{self, CodecError};
use crate::ledger::{Answer, BatchRef, LeaderId, LogIndex, NodeId, UnixMs};
use crate::storage::{LogEntry, LogPosition};

openraft::declare_raft_types!(
    /// The types of every Raft group. Leader ids are (term, node).
    pub(crate) TypeConfig:
        D = Payload,
        R = Applied,
        NodeId = u64,
        Node = Member,
        AsyncRuntime = crate::runtime::Rt,
);

/// An entry's command batch, encoded: one tag byte, then the bincode of a [`crate::ledger::Batch`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Payload {
    /// Decodes the batch; placements, of which there may be many, borrow from the bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError`] when the bytes are not a batch that this build knows; the node must stop
    /// then.
    pub fn batch(&self) -> Result<BatchRef<'_>, CodecError> {
        match self.0.split_first() {
            Some((&TAG_BATCH, bytes)) => packing::read_batch(bytes),
            Some(_) | None => Err(CodecError::Envelope("not a command batch")),
        }
    }
}

/// A member of a group as its membership entries record it. Peers accept votes and appends from no
/// other pair of (node id, log uuid).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The member's log.
    pub log_uuid: [u8; 16],
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
}

/// What applying an entry answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Where the entry stands.
    pub position: LogPosition,
    /// Ledger time after it.
    pub now: UnixMs,
    /// One answer a command.
    pub answers: Vec<Answer>,
}

const TAG_BLANK: u8 = 0;
pub(super) const TAG_BATCH: u8 = 1;
const TAG_MEMBERSHIP: u8 = 2;

pub(crate) fn position_of(id: &LogIdOf<TypeConfig>) -> LogPosition {
    let leader = id.committed_leader_id();
    LogPosition {
        leader: LeaderId { term: leader.term, node: NodeId(leader.node_id) },
        index: LogIndex(id.index()),
    }
}

pub(crate) fn raft_leader(leader: LeaderId) -> CommittedLeaderIdOf<TypeConfig> {
    openraft::impls::leader_id_adv::LeaderId { term: leader.term, node_id: leader.node.0 }
}

pub(crate) fn log_id_of(position: LogPosition) -> LogIdOf<TypeConfig> {
    LogIdOf::<TypeConfig>::new(raft_leader(position.leader), position.index.0)
}

/// Turns openraft's entry into the log's.
pub(crate) fn to_log(entry: &EntryOf<TypeConfig>) -> Result<LogEntry, CodecError> {
    let payload = match &entry.payload {
        EntryPayload::Blank => Bytes::from_static(&[TAG_BLANK]),
        EntryPayload::Normal(payload) => payload.0.clone(),
        EntryPayload::Membership(membership) => {
            let mut bytes = vec![TAG_MEMBERSHIP];
            codec::encode_into(&mut bytes, membership)?;
            Bytes::from(bytes)
        }
    };
    Ok(LogEntry { position: position_of(&entry.log_id), payload })
}

/// Turns the log's entry into openraft's.
pub(crate) fn from_log(entry: LogEntry) -> Result<EntryOf<TypeConfig>, CodecError> {
    let payload = match entry.payload.first() {
        Some(&TAG_BLANK) if entry.payload.len() == 1 => EntryPayload::Blank,
        Some(&TAG_BATCH) => EntryPayload::Normal(Payload(entry.payload)),
        Some(&TAG_MEMBERSHIP) => EntryPayload::Membership(codec::decode(&entry.payload[1..])?),
        Some(_) | None => return Err(CodecError::Envelope("not a kind of entry this build knows")),
    };
    Ok(EntryOf::<TypeConfig> { log_id: log_id_of(entry.position), payload })
}
