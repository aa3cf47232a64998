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
use super::pace::{Approach, Pace, Stride};
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

/// The most entries of one append. One with so many, or with so many bytes, is one of many that a
/// peer is behind.
pub(super) const APPEND_ENTRIES_MAX: u16 = 300;
const FULL_BYTES: usize = 512 << 10;

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
    pace: Pace,
}

impl Peers {
    pub(super) fn new(network: Network, shard: ShardId, appended: Appended, pace: Pace) -> Peers {
        Peers { network, shard, appended, pace }
    }

    fn client(&self, target: u64, member: &Member, appends: Lane) -> Client {
        let link =
            |lane| self.network.link(address(NodeId(target), member), Some(self.shard), lane);
        Client {
            votes: link(Lane::Vote),
            appends: link(appends),
            snapshots: link(Lane::Snapshot),
            appended: self.appended.clone(),
            pace: self.pace.clone(),
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
    pace: Pace,
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
            pace: self.pace.clone(),
            stride: None,
            approach: Approach::default(),
            rest: None,
            option,
            input: Some(input),
            sent: VecDeque::new(),
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
        let send = send_checkpoint(&self.snapshots, &self.pace, vote, snapshot.snapshot, option);
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

/// Sends a checkpoint page by page, each message within the lane's bound, while it is pinned, and
/// rests in between.
async fn send_checkpoint(
    link: &Link,
    pace: &Pace,
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
    let end = header.state.position.map(|at| at.index).unwrap_or_default();
    let _kept = pace.keep(link.to().node.0, end);
    let () = call(link, kind::SNAPSHOT_BEGIN, &(vote, header.as_ref()), &option)
        .await
        .map_err(streaming)?;
    let mut after = None;
    loop {
        let stride = pace.begin();
        let pages = pinned.read_chunk(after, CHUNK_BYTES).await;
        let pages = pages.map_err(|e| StreamingError::Network(NetworkError::from_string(e)))?;
        let Some((last, _)) = pages.last() else { break };
        after = Some(last.clone());
        let wire: Vec<WirePage> = pages.into_iter().map(|(key, page)| (key.0, page)).collect();
        let () = call(link, kind::SNAPSHOT_PAGES, &wire, &option).await.map_err(streaming)?;
        runtime::sleep(pace.rest_after(stride)).await;
    }
    call(link, kind::SNAPSHOT_END, &(), &option).await.map_err(streaming)
}

/// The pipelined stream of appends to one peer: requests go out in order as they come, and results
/// come back in the same order. While some are unanswered the next one is asked for only when it
/// brings entries: what else it would tell, a commit, can wait for them.
///
/// A result waits until every request up to the same index is answered. openraft dates an
/// acknowledgement by the last such request that it made, also when an earlier one was answered,
/// and trusts that date when it answers from memory: it must be a date that the peer has seen.
///
/// A learner that is far behind is sent one full request at a time, at the shard's pace.
struct Appends<S> {
    link: Link,
    appended: Appended,
    pace: Pace,
    /// The full request to a learner that is under way, and the index that it goes up to.
    stride: Option<(Stride, u64)>,
    approach: Approach,
    rest: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    option: RPCOption,
    input: Option<S>,
    sent: VecDeque<Sent<Pending>>,
    ended: bool,
}

/// A request under way, or answered and waiting for those up to the same index.
struct Sent<A> {
    /// The index that the request went up to.
    last: u64,
    answer: A,
    result: Option<StreamAppendResult<TypeConfig>>,
}

/// Takes the answers that have come, in order, and returns the first result that may be given out.
/// After an error nothing is: what was answered before it is known again by the next stream.
fn poll_sent<A>(
    sent: &mut VecDeque<Sent<A>>,
    cx: &mut Context<'_>,
) -> Poll<RpcResult<StreamAppendResult<TypeConfig>>>
where
    A: Future<Output = Result<Bytes, PeerError>> + Unpin,
{
    let first = sent.front().map_or(0, |sent| sent.last);
    for request in sent.iter_mut().take_while(|request| request.last <= first) {
        if matches!(request.result, Some(Ok(_))) {
            continue;
        }
        let Poll::Ready(answer) = Pin::new(&mut request.answer).poll(cx) else {
            return Poll::Pending;
        };
        match answer.map_err(rpc_error).and_then(|bytes| decode(&bytes)) {
            Ok(Ok(matching)) => request.result = Some(Ok(matching)),
            ended => return Poll::Ready(ended),
        }
    }
    let result = sent.pop_front().and_then(|sent| sent.result);
    result.map_or(Poll::Pending, |result| Poll::Ready(Ok(result)))
}

impl<S> Appends<S> {
    fn send(&mut self, request: &AppendEntriesRequest<TypeConfig>) -> RpcResult<()> {
        let deadline = runtime::now() + self.option.hard_ttl();
        let body = encode(request)?;
        let is_full =
            request.entries.len() >= usize::from(APPEND_ENTRIES_MAX) || body.len() >= FULL_BYTES;
        let is_paced = is_full && self.pace.is_learner(self.link.to().node.0);
        let stride = is_paced.then(|| self.pace.begin());
        let answer = self.link.send(kind::APPEND, body, deadline);
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        let last = last.map_or(0, |last| last.index());
        self.stride = stride.map(|stride| (stride, last));
        self.sent.push_back(Sent { last, answer, result: None });
        Ok(())
    }

    /// Tells whether the next request may be asked for; if not, `cx` is woken when it may.
    fn takes_more(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_resting(cx) {
            return false;
        }
        let Some(newest) = self.sent.back() else { return true };
        let is_held = self.sent.front().is_some_and(|first| first.result.is_some());
        self.sent.len() < APPENDS_IN_FLIGHT
            && !is_held
            && self.appended.is_beyond(newest.last, self.link.to().node.0, cx.waker())
    }

    /// Tells whether a learner's full request is under way or its rest not over; if it rests, `cx`
    /// is woken when that is over.
    fn is_resting(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some((stride, reached)) = self.stride {
            if !self.sent.is_empty() {
                return true;
            }
            self.stride = None;
            let rest = self.pace.rest_after(stride);
            if self.approach.comes_nearer(self.appended.beyond(reached)) && !rest.is_zero() {
                self.rest = Some(Box::pin(runtime::sleep(rest)));
            }
        }
        if self.rest.as_mut().is_some_and(|rest| rest.as_mut().poll(cx).is_pending()) {
            return true;
        }
        self.rest = None;
        false
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
        while this.takes_more(cx) {
            let Some(input) = &mut this.input else { break };
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
        if this.sent.is_empty() {
            // Nothing is under way, so the input was asked.
            return if this.input.is_none() { Poll::Ready(None) } else { Poll::Pending };
        }
        let Poll::Ready(result) = poll_sent(&mut this.sent, cx) else { return Poll::Pending };
        this.ended = !matches!(result, Ok(Ok(_)));
        Poll::Ready(Some(result))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker;
    use openraft::raft::StreamAppendError;
    use tokio::sync::oneshot;

    use super::*;
    use crate::ledger::{LeaderId, LogIndex};
    use crate::raft::entry::log_id_of;
    use crate::storage::LogPosition;

    type Answer = Result<Bytes, PeerError>;
    type Under = Pin<Box<dyn Future<Output = Answer>>>;

    /// Requests up to these indices, and who answers them.
    fn under_way(to: &[u64]) -> (VecDeque<Sent<Under>>, Vec<Option<oneshot::Sender<Answer>>>) {
        let mut answers = Vec::new();
        let sent = to.iter().map(|last| {
            let (sender, receiver) = oneshot::channel::<Answer>();
            answers.push(Some(sender));
            let answer = Box::pin(async { receiver.await.expect("the test answers") });
            Sent { last: *last, answer: answer as Under, result: None }
        });
        (sent.collect(), answers)
    }

    fn answer(answers: &mut [Option<oneshot::Sender<Answer>>], which: usize, answer: Answer) {
        let sender = answers[which].take().expect("answered once");
        sender.send(answer).expect("somebody waits for it");
    }

    fn accepted(index: u64) -> Answer {
        let leader = LeaderId { term: 1, node: NodeId(1) };
        let matching = log_id_of(LogPosition { leader, index: LogIndex(index) });
        let result: StreamAppendResult<TypeConfig> = Ok(Some(matching));
        Ok(encode(&result).expect("a result"))
    }

    /// The index of the result that may be given out now.
    fn given(sent: &mut VecDeque<Sent<Under>>) -> Option<u64> {
        let waker = noop_waker();
        match poll_sent(sent, &mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready(result) => {
                let matching = result.expect("an answer").expect("accepted");
                Some(matching.expect("an index").index())
            }
        }
    }

    #[test]
    fn a_result_is_given_out_when_all_requests_up_to_its_index_are_answered() {
        // Entries up to 7, then a commit told without entries, then entries up to 9.
        let (mut sent, mut answers) = under_way(&[7, 7, 9]);
        assert_eq!(given(&mut sent), None);
        answer(&mut answers, 0, accepted(7));
        assert_eq!(given(&mut sent), None, "the request that openraft dates it by is unanswered");
        answer(&mut answers, 1, accepted(7));
        assert_eq!(given(&mut sent), Some(7));
        assert_eq!(given(&mut sent), Some(7));
        assert_eq!(given(&mut sent), None);
        answer(&mut answers, 2, accepted(9));
        assert_eq!(given(&mut sent), Some(9));
        assert!(sent.is_empty());
    }

    #[test]
    fn a_result_does_not_wait_for_requests_beyond_its_index() {
        let (mut sent, mut answers) = under_way(&[7, 9]);
        answer(&mut answers, 0, accepted(7));
        assert_eq!(given(&mut sent), Some(7));
    }

    #[test]
    fn a_failed_request_ends_the_stream_before_the_result_that_waited_for_it() {
        let (mut sent, mut answers) = under_way(&[7, 7]);
        answer(&mut answers, 0, accepted(7));
        assert_eq!(given(&mut sent), None);
        answer(&mut answers, 1, Err(PeerError::Unknown("cut".to_owned())));
        let waker = noop_waker();
        let ended = poll_sent(&mut sent, &mut Context::from_waker(&waker));
        assert!(matches!(ended, Poll::Ready(Err(RPCError::Network(_)))), "{ended:?}");
    }

    #[test]
    fn a_refusal_is_given_out_in_its_turn() {
        let (mut sent, mut answers) = under_way(&[7, 9]);
        let refusal: StreamAppendResult<TypeConfig> =
            Err(StreamAppendError::HigherVote(VoteOf::<TypeConfig>::new(2, 3)));
        answer(&mut answers, 1, Ok(encode(&refusal).expect("a refusal")));
        assert_eq!(given(&mut sent), None, "the first is unanswered");
        answer(&mut answers, 0, accepted(7));
        assert_eq!(given(&mut sent), Some(7));
        let waker = noop_waker();
        let ended = poll_sent(&mut sent, &mut Context::from_waker(&waker));
        assert!(matches!(ended, Poll::Ready(Ok(Err(StreamAppendError::HigherVote(_))))));
    }
}
