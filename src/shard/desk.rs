//! The desk: what the HTTP room (and the peers that forward) may ask of this node.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::nodes::{Admission, Claim, Order, Ordered, Rejected, Sight};
use super::status::NodeStatus;
use crate::ledger::{Answer, Command, CommitPoint, Found, NodeId, PauseReason, Query, ShardId};
use crate::raft::{PackedCommand, packed};
use crate::runtime::Instant;

/// One question with the time that its caller still has.
#[derive(Debug, Clone)]
pub struct Request {
    /// The question.
    pub question: Question,
    /// Past this moment nothing is proposed, and the caller gets an answer by it.
    pub deadline: Instant,
    /// How fresh the answer to a query must be.
    pub consistency: Consistency,
    /// What to do when another node leads the shard.
    pub hop: Hop,
}

/// A command or a query; it names its own shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// May change the ledger.
    Command(PackedCommand),
    /// Changes nothing.
    Query {
        /// The query.
        query: Query,
        /// The shard asked; `None` where the query names an item or a hold that routes itself.
        shard: Option<ShardId>,
    },
}

impl From<Command> for Question {
    fn from(command: Command) -> Question {
        Question::Command(packed(command))
    }
}

/// How fresh the answer to a query must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// This node's replica, as it is.
    Local,
    /// The leader's memory, after the freshness check.
    Leader,
    /// A read index: true at some moment between question and answer.
    Linearizable,
}

/// What to do with a question whose shard is led elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// Forward it, once.
    Forward,
    /// Say who leads ([`Outcome::Elsewhere`]).
    Redirect,
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// What came of it.
    pub outcome: Outcome,
    /// The log position that the answer rests on, where a shard's state was asked.
    pub commit: Option<CommitPoint>,
    /// Who leads the shard, as far as this node knows.
    pub leader: Option<NodeId>,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The ledger's (or, for refusals and replays, the gate's) answer.
    Answered(Answer),
    /// The query's answer.
    Found(Found),
    /// The key is in flight: its outcome is not decided yet (receipts only).
    InFlight,
    /// Nothing was taken: the shard grants nothing now. Retry with the same key.
    Paused(PauseReason),
    /// Nothing was taken: too much is queued. Retry with the same key.
    Overloaded,
    /// Nothing was taken: the deadline came before anything was proposed.
    Late,
    /// It was proposed and not answered: it may still commit.
    Unknown,
    /// Another node leads ([`Hop::Redirect`] only).
    Elsewhere {
        /// Its id.
        node: NodeId,
        /// Its HTTP address, `host:port`.
        http: String,
    },
    /// This node belongs to no cluster yet, or was stopped; the words say what to do.
    NotServing(String),
}

/// What a node offers to those who speak for its callers.
pub trait Desk: Send + Sync + 'static {
    /// Answers one question by its deadline, on whichever node it must be asked.
    fn ask(&self, request: Request) -> BoxFuture<'static, Reply>;

    /// Answers many questions of one caller in one go, densely and in order. Each is a decision of
    /// its own.
    fn ask_many(&self, requests: Vec<Request>) -> BoxFuture<'static, Vec<Reply>>;

    /// Tells how the node and its shards are.
    fn status(&self) -> NodeStatus;

    /// Names the node's shards. [`Desk::status`] walks every bucket, under the lock that the ledger
    /// is changed under: who only wants their numbers asks here.
    fn shards(&self) -> Vec<ShardId> {
        self.status().shards.iter().map(|shard| shard.shard).collect()
    }

    /// First step of `cluster init` on an empty node: it takes the identity that it is given, makes
    /// its log, and tells the log's uuid. The same offer again gives the same answer.
    fn adopt(&self, offer: Adopt) -> BoxFuture<'static, Result<Adopted, String>>;

    /// Second step, asked of every node: opens the shards with these members. The node that stands
    /// first in a shard's order of preference founds its Raft group.
    fn begin(&self, members: Vec<MemberSpec>) -> BoxFuture<'static, Result<(), String>>;

    /// Reads the roster of nodes and asks each how its replicas are.
    fn sight(&self, _deadline: Instant) -> BoxFuture<'static, Result<Sight, Rejected>> {
        Box::pin(async { Err(Rejected::Unavailable(NO_NODES.to_owned())) })
    }

    /// Judges an order that changes the nodes and, unless it is a rehearsal, takes it.
    fn order(
        &self,
        _order: Order,
        _rehearsal: bool,
        _deadline: Instant,
    ) -> BoxFuture<'static, Result<Ordered, Rejected>> {
        Box::pin(async { Err(Rejected::Unavailable(NO_NODES.to_owned())) })
    }

    /// Lets a new machine in that has a token.
    fn admit(
        &self,
        _claim: Claim,
        _deadline: Instant,
    ) -> BoxFuture<'static, Result<Admitted, Rejected>> {
        Box::pin(async { Err(Rejected::Unavailable(NO_NODES.to_owned())) })
    }
}

/// What a desk without a cluster says of nodes.
const NO_NODES: &str = "this node belongs to no cluster";

/// What a new machine is told, with what only the node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// What every replica agrees on.
    pub settings: crate::ledger::Settings,
    /// Its id and the members.
    pub admission: Admission,
}

/// The identity that `cluster init` gives to an empty node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopt {
    /// The cluster, 16 random bytes in hex.
    pub cluster_id: String,
    /// The node's id from now on.
    pub node: NodeId,
    /// What every replica agrees on.
    pub settings: crate::ledger::Settings,
}

/// What an empty node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// A member of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberSpec {
    /// Its id.
    pub node: NodeId,
    /// Its log, 16 bytes in hex: peers accept votes and appends from no other pair.
    pub log_uuid: String,
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
}

/// Reads 16 bytes from 32 hexadecimal digits; `None` for anything else.
pub fn uuid_bytes(hex: &str) -> Option<[u8; 16]> {
    let digits = hex.as_bytes();
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}

/// Writes 16 bytes as 32 hexadecimal digits.
pub fn uuid_hex(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
