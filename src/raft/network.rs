//! openraft's way to the peers: votes and heartbeats, appends and checkpoints on lanes of their
//! own.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::network::v2::RaftNetworkV2;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use openraft::{OptionalSend, RaftNetworkFactory};
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::appended::Appended;
use super::entry::{Member, TypeConfig};
use super::snapshot::{CHUNK_BYTES, SnapshotHandle, WirePage, header_of};
use crate::codec;
use crate::ledger::{NodeId, ShardId};
use crate::peer::{Address, Lane, Link, Network, PeerError, PeerId, Pending};
use crate::runtime;

/// Frame kinds of a Raft connection.
pub(super) mod kind {
    pub(in crate::raft) const VOTE: u16 = 1;
    pub(in crate::raft) const PRE_VOTE: u16 = 2;
    pub(in crate::raft) const APPEND: u16 = 3;
    pub(in crate::raft) const TRANSFER: u16 = 4;
    pub(in crate::raft) const SNAPSHOT_BEGIN: u16 = 5;
    pub(in crate::raft) const SNAPSHOT_PAGES: u16 = 6;
    pub(in crate::raft) const SNAPSHOT_END: u16 = 7;
    pub(in crate::raft) const FETCH_HEADER: u16 = 8;
    pub(in crate::raft) const FETCH_PAGES: u16 = 9;
    pub(in crate::raft) const DIGEST: u16 = 10;
    pub(in crate::raft) const ACCUSE: u16 = 11;
}

/// Appends under way on one connection.
const APPENDS_IN_FLIGHT: usize = 16;

/// Who the members are and where: (node id, log uuid) pairs from which votes and appends are taken.
#[derive(Debug, Clone, Default)]
pub struct PeerBook {
    members: Arc<RwLock<BTreeMap<NodeId, Member>>>,
}

impl PeerBook {
    /// Returns a book of these members.
    pub fn new(members: BTreeMap<NodeId, Member>) -> PeerBook {
        PeerBook { members: Arc::new(RwLock::new(members)) }
    }

    /// Puts these members in the place of all others.
    pub fn replace(&self, members: BTreeMap<NodeId, Member>) {
        *self.members.write() = members;
    }

    /// Tells whether this pair is a member's.
    pub fn knows(&self, peer: &PeerId) -> bool {
        let members = self.members.read();
        members.get(&peer.node).is_some_and(|member| member.log_uuid == peer.log_uuid)
    }

    /// Returns everybody's addresses but this node's.
    pub fn others(&self, own: NodeId) -> Vec<Address> {
        let members = self.members.read();
        let others = members.iter().filter(|(node, _)| **node != own);
        others.map(|(node, member)| address(*node, member)).collect()
    }

    /// Returns the members.
    pub fn members(&self) -> BTreeMap<NodeId, Member> {
        self.members.read().clone()
    }
}

fn address(node: NodeId, member: &Member) -> Address {
    Address { node, log_uuid: member.log_uuid, addr: member.peer_addr.clone() }
}

/// Makes connections for one shard.
#[derive(Clone)]
pub(crate) struct Peers {
    network: Network,
    shard: ShardId,
    appended: Appended,
}

impl Peers {
    pub(super) fn new(network: Network, shard: ShardId, appended: Appended) -> Peers {
        Peers { network, shard, appended }
    }

    fn client(&self, target: u64, member: &Member, appends: Lane) -> Client {
        let link =
            |lane| self.network.link(address(NodeId(target), member), Some(self.shard), lane);
        Client {
            votes: link(Lane::Vote),
            appends: link(appends),
            snapshots: link(Lane::Snapshot),
            appended: self.appended.clone(),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &Member) -> Client {
        self.client(target, node, Lane::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Member) -> Client {
        self.client(target, node, Lane::Vote)
    }
}

/// One peer of one shard. Its connections are dialled on first use.
pub(crate) struct Client {
    votes: Link,
    appends: Link,
    snapshots: Link,
    appended: Appended,
}

type RpcResult<T> = Result<T, RPCError<TypeConfig>>;

fn rpc_error(error: PeerError) -> RPCError<TypeConfig> {
    match error {
        PeerError::NotSent(_) | PeerError::Refused(_) => {
            RPCError::Unreachable(Unreachable::from_string(error))
        }
        PeerError::Unknown(_) | PeerError::TooLarge { .. } | PeerError::Deadline { .. } => {
            RPCError::Network(NetworkError::from_string(error))
        }
    }
}

fn invalid(error: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(error))
}

fn encode<T: Serialize>(value: &T) -> RpcResult<Bytes> {
    codec::encode(value).map(Bytes::from).map_err(invalid)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> RpcResult<T> {
    codec::decode(bytes).map_err(invalid)
}

async fn call<Q: Serialize, A: DeserializeOwned>(
    link: &Link,
    kind: u16,
    question: &Q,
    option: &RPCOption,
) -> RpcResult<A> {
    let deadline = runtime::now() + option.hard_ttl();
    let answer = link.send(kind, encode(question)?, deadline).await.map_err(rpc_error)?;
    decode(&answer)
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        let result: StreamAppendResult<TypeConfig> =
            call(&self.appends, kind::APPEND, &rpc, &option).await?;
        Ok(result.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, RpcResult<BoxStream<'s, RpcResult<StreamAppendResult<TypeConfig>>>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let appends = Appends {
            link: self.appends.clone(),
            appended: self.appended.clone(),
            option,
            input: Some(input),
            sent: VecDeque::new(),
            sent_to: 0,
            ended: false,
        };
        Box::pin(async move {
            let stream: BoxStream<'s, _> = Box::pin(appends);
            Ok(stream)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        call(&self.votes, kind::VOTE, &rpc, &option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        call(&self.votes, kind::PRE_VOTE, &rpc, &option).await
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        call(&self.votes, kind::TRANSFER, &req, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, SnapshotHandle>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let send = send_checkpoint(&self.snapshots, vote, snapshot.snapshot, option);
        let (mut send, mut cancel) = (std::pin::pin!(send), std::pin::pin!(cancel));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(closed) = cancel.as_mut().poll(cx) {
                return Poll::Ready(Err(StreamingError::Closed(closed)));
            }
            send.as_mut().poll(cx)
        })
        .await
    }
}

/// Sends a checkpoint page by page, each message within the lane's bound, while it is pinned.
async fn send_checkpoint(
    link: &Link,
    vote: VoteOf<TypeConfig>,
    snapshot: SnapshotHandle,
    option: RPCOption,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    let SnapshotHandle::Current(pinned) = snapshot else {
        return Err(StreamingError::Network(NetworkError::from_string(
            "a received checkpoint is not sent on",
        )));
    };
    let streaming = |error: RPCError<TypeConfig>| match error {
        RPCError::Unreachable(error) => StreamingError::Unreachable(error),
        RPCError::Timeout(error) => StreamingError::Timeout(error),
        other @ (RPCError::Network(_) | RPCError::RemoteError(_)) => {
            StreamingError::Network(NetworkError::from_string(other))
        }
    };
    let header = header_of(&pinned);
    let () = call(link, kind::SNAPSHOT_BEGIN, &(vote, header.as_ref()), &option)
        .await
        .map_err(streaming)?;
    let mut after = None;
    loop {
        let pages = pinned.read_chunk(after, CHUNK_BYTES).await;
        let pages = pages.map_err(|e| StreamingError::Network(NetworkError::from_string(e)))?;
        let Some((last, _)) = pages.last() else { break };
        after = Some(last.clone());
        let wire: Vec<WirePage> = pages.into_iter().map(|(key, page)| (key.0, page)).collect();
        let () = call(link, kind::SNAPSHOT_PAGES, &wire, &option).await.map_err(streaming)?;
    }
    call(link, kind::SNAPSHOT_END, &(), &option).await.map_err(streaming)
}

/// The pipelined stream of appends to one peer: requests go out in order as they come, and results
/// come back in the same order. While some are unanswered the next one is asked for only when it
/// brings entries: what else it would tell, a commit, can wait for them.
struct Appends<S> {
    link: Link,
    appended: Appended,
    option: RPCOption,
    input: Option<S>,
    sent: VecDeque<Pending>,
    /// The index that the last request went up to.
    sent_to: u64,
    ended: bool,
}

impl<S> Appends<S> {
    fn send(&mut self, request: &AppendEntriesRequest<TypeConfig>) -> RpcResult<()> {
        let deadline = runtime::now() + self.option.hard_ttl();
        let body = encode(request)?;
        let pending = self.link.send(kind::APPEND, body, deadline);
        self.sent.push_back(pending);
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        self.sent_to = last.map_or(0, |last| last.index());
        Ok(())
    }
}

impl<S> Stream for Appends<S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
{
    type Item = RpcResult<StreamAppendResult<TypeConfig>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        while this.sent.len() < APPENDS_IN_FLIGHT {
            let Some(input) = &mut this.input else { break };
            let (sent_to, target) = (this.sent_to, this.link.to().node.0);
            if !this.sent.is_empty() && !this.appended.is_beyond(sent_to, target, cx.waker()) {
                break;
            }
            match Pin::new(input).poll_next(cx) {
                Poll::Ready(Some(request)) => {
                    if let Err(error) = this.send(&request) {
                        this.ended = true;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                Poll::Ready(None) => this.input = None,
                Poll::Pending => break,
            }
        }
        let Some(pending) = this.sent.front_mut() else {
            // Nothing is under way, so the input was asked.
            return if this.input.is_none() { Poll::Ready(None) } else { Poll::Pending };
        };
        let Poll::Ready(answer) = Pin::new(pending).poll(cx) else { return Poll::Pending };
        this.sent.pop_front();
        let result = answer
            .map_err(rpc_error)
            .and_then(|bytes| decode::<StreamAppendResult<TypeConfig>>(&bytes));
        this.ended = !matches!(result, Ok(Ok(_)));
        Poll::Ready(Some(result))
    }
}
