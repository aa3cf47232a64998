//! The answering side of a shard's Raft connections. Runs on the shard's own runtime.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult, TransferLeaderRequest,
    VoteRequest,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::entry::TypeConfig;
use super::group::{Group, Raft};
use super::heard::Heard;
use super::network::kind;
use super::replica::Accusation;
use super::snapshot::{CHUNK_BYTES, Incoming, SnapshotHandle, WirePage, header_of, meta_of};
use crate::codec;
use crate::ledger::{LogIndex, PageKey};
use crate::peer::{Conversation, ReplyTo};
use crate::runtime;
use crate::storage::{CheckpointHeader, LogPosition, PageDesk, PinnedCheckpoint};

/// Appends of one connection that wait for the Raft core.
const APPENDS_WAITING_MAX: usize = 256;
/// Messages of one snapshot connection that wait; the sender keeps one under way.
const SNAPSHOT_WAITING_MAX: usize = 4;
/// How long a transfer may rest between two messages before it is given up.
const TRANSFER_IDLE_MAX: Duration = Duration::from_secs(15);

fn answer<T: Serialize>(reply: ReplyTo, value: &T) {
    match codec::encode(value) {
        Ok(bytes) => reply.send(Bytes::from(bytes)),
        Err(error) => reply.refuse(error.to_string()),
    }
}

fn parsed<T: DeserializeOwned>(body: &[u8], reply: ReplyTo) -> Option<(T, ReplyTo)> {
    match codec::decode(body) {
        Ok(value) => Some((value, reply)),
        Err(error) => {
            reply.refuse(error.to_string());
            None
        }
    }
}

/// A peer's votes, heartbeats or appends.
pub struct RaftConversation {
    group: Group,
    raft: Raft,
    heard: Arc<Heard>,
    appends: Option<mpsc::Sender<(AppendEntriesRequest<TypeConfig>, ReplyTo)>>,
}

impl RaftConversation {
    /// Serves a peer of this group.
    pub fn new(group: &Group) -> RaftConversation {
        RaftConversation {
            group: group.clone(),
            raft: group.raft.clone(),
            heard: Arc::clone(&group.heard),
            appends: None,
        }
    }

    fn append(&mut self, request: AppendEntriesRequest<TypeConfig>, reply: ReplyTo) {
        let (raft, heard) = (&self.raft, &self.heard);
        let appends = self.appends.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(APPENDS_WAITING_MAX);
            runtime::spawn(serve_appends(raft.clone(), Arc::clone(heard), receiver));
            sender
        });
        if let Err(error) = appends.try_send((request, reply)) {
            error.into_inner().1.refuse("too many appends wait here");
        }
    }
}

/// Hands appends to the core in order and answers them in order; they are under way together.
async fn serve_appends(
    raft: Raft,
    heard: Arc<Heard>,
    mut requests: mpsc::Receiver<(AppendEntriesRequest<TypeConfig>, ReplyTo)>,
) {
    let mut under_way = FuturesOrdered::new();
    loop {
        tokio::select! {
            biased;
            Some((result, reply)) = under_way.next(), if !under_way.is_empty() => {
                let reply: ReplyTo = reply;
                let result: Result<StreamAppendResult<TypeConfig>, String> = result;
                match result {
                    Ok(result) => answer(reply, &result),
                    Err(error) => reply.refuse(error),
                }
            }
            request = requests.recv() => {
                let Some((request, reply)) = request else { return };
                let (raft, heard, came_at) = (raft.clone(), Arc::clone(&heard), runtime::now());
                under_way.push_back(async move {
                    let previous = request.prev_log_id;
                    let last = request.entries.last().map(|entry| entry.log_id).or(previous);
                    let result = raft.append_entries(request).await;
                    if matches!(&result, Ok(response) if !is_of_the_past(response)) {
                        heard.note(came_at);
                    }
                    let result = result.map(|response| response.into_stream_result(previous, last));
                    (result.map_err(|error| error.to_string()), reply)
                });
            }
        }
    }
}

/// Whether an append was refused because its leader is not the leader any more.
fn is_of_the_past(response: &AppendEntriesResponse<TypeConfig>) -> bool {
    matches!(response, AppendEntriesResponse::HigherVote(_))
}

impl Conversation for RaftConversation {
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo) {
        let raft = self.raft.clone();
        match kind {
            kind::APPEND => {
                if let Some((request, reply)) = parsed(&body, reply) {
                    self.append(request, reply);
                }
            }
            kind::VOTE | kind::PRE_VOTE => {
                let Some((request, reply)) = parsed::<VoteRequest<TypeConfig>>(&body, reply) else {
                    return;
                };
                runtime::spawn(async move {
                    let response = match kind {
                        kind::VOTE => raft.vote(request).await,
                        _ => raft.pre_vote(request).await,
                    };
                    match response {
                        Ok(response) => answer(reply, &response),
                        Err(error) => reply.refuse(error.to_string()),
                    }
                });
            }
            kind::TRANSFER => {
                let parsed = parsed::<TransferLeaderRequest<TypeConfig>>(&body, reply);
                let Some((request, reply)) = parsed else { return };
                // openraft would stand at once, whatever it was told about elections.
                if request.to_node_id() == &self.group.origin.options.node.0
                    && !self.group.is_electable()
                {
                    reply.refuse("this node does not stand for election now");
                    return;
                }
                runtime::spawn(async move {
                    match raft.handle_transfer_leader(request).await {
                        Ok(response) => answer(reply, &response),
                        Err(error) => reply.refuse(error.to_string()),
                    }
                });
            }
            kind::DIGEST => {
                if let Some((index, reply)) = parsed::<LogIndex>(&body, reply) {
                    answer(reply, &self.group.tell_digest(index));
                }
            }
            kind::ACCUSE => {
                if let Some((accusation, reply)) = parsed::<Accusation>(&body, reply) {
                    self.group.replica().accuse(accusation);
                    answer(reply, &());
                }
            }
            unknown => reply.refuse(format!("frame kind {unknown} has no place on this lane")),
        }
    }
}

type Message = (u16, Bytes, ReplyTo);

/// A peer that sends its checkpoint, or fetches ours. Messages are served one after another.
pub struct SnapshotConversation {
    group: Group,
    desk: PageDesk,
    messages: Option<mpsc::Sender<Message>>,
}

impl SnapshotConversation {
    /// Serves a peer of this group.
    pub fn new(group: &Group, desk: PageDesk) -> SnapshotConversation {
        SnapshotConversation { group: group.clone(), desk, messages: None }
    }
}

impl Conversation for SnapshotConversation {
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo) {
        let messages = self.messages.get_or_insert_with(|| {
            let (messages, receiver) = mpsc::channel(SNAPSHOT_WAITING_MAX);
            let (group, desk) = (self.group.clone(), self.desk.clone());
            runtime::spawn(Serving { group, desk, incoming: None, lent: None }.run(receiver));
            messages
        });
        if let Err(error) = messages.try_send((kind, body, reply)) {
            error.into_inner().2.refuse("one message of a checkpoint at a time");
        }
    }
}

struct Serving {
    group: Group,
    desk: PageDesk,
    incoming: Option<(VoteOf<TypeConfig>, Incoming)>,
    lent: Option<Arc<PinnedCheckpoint>>,
}

impl Serving {
    async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        while let Some((kind, body, reply)) = self.next(&mut messages).await {
            match self.serve(kind, &body).await {
                Ok(bytes) => reply.send(bytes),
                Err(error) => {
                    tracing::warn!(shard = %self.group.shard(), %error, "checkpoint transfer");
                    reply.refuse(error.to_string());
                }
            }
        }
    }

    /// Waits for the next message. What a sender began and left lying is given up, or its place
    /// would be taken for ever: the next leader, and this node's own checkpoints, need it.
    async fn next(&mut self, messages: &mut mpsc::Receiver<Message>) -> Option<Message> {
        if let Ok(message) = runtime::timeout(TRANSFER_IDLE_MAX, messages.recv()).await {
            return message;
        }
        if self.incoming.take().is_some() {
            tracing::warn!(shard = %self.group.shard(), "a checkpoint's sender fell silent");
        }
        self.lent = None;
        messages.recv().await
    }

    async fn serve(&mut self, kind: u16, body: &[u8]) -> std::io::Result<Bytes> {
        let invalid = |error: codec::CodecError| std::io::Error::other(error);
        let encoded = match kind {
            kind::SNAPSHOT_BEGIN => {
                let (vote, header) = codec::decode::<(VoteOf<TypeConfig>, CheckpointHeader)>(body)
                    .map_err(invalid)?;
                self.incoming = None;
                let incoming = Incoming::begin(&self.group.checkpoints, header).await?;
                self.incoming = Some((vote, incoming));
                codec::encode(&())
            }
            kind::SNAPSHOT_PAGES => {
                let pages: Vec<WirePage> = codec::decode(body).map_err(invalid)?;
                let (_, incoming) = self.incoming.as_mut().ok_or_else(out_of_order)?;
                incoming.write(pages).await?;
                codec::encode(&())
            }
            kind::SNAPSHOT_END => codec::encode(&self.install().await?),
            kind::FETCH_HEADER => {
                let reach: LogIndex = codec::decode(body).map_err(invalid)?;
                reach_to(&self.group, reach).await;
                self.lent = self.group.checkpoints.pin_current().map(Arc::new);
                let header = self.lent.as_ref().map(|pinned| header_of(pinned));
                codec::encode(&header.as_deref())
            }
            kind::FETCH_PAGES => {
                let after: Option<Vec<u8>> = codec::decode(body).map_err(invalid)?;
                let lent = self.lent.clone().ok_or_else(out_of_order)?;
                let pages = lent.read_chunk(after.map(PageKey), CHUNK_BYTES).await?;
                let wire: Vec<WirePage> =
                    pages.into_iter().map(|(key, page)| (key.0, page)).collect();
                codec::encode(&wire)
            }
            unknown => {
                let words = format!("frame kind {unknown} has no place on this lane");
                return Err(std::io::Error::other(words));
            }
        };
        encoded.map(Bytes::from).map_err(invalid)
    }

    async fn install(&mut self) -> std::io::Result<openraft::raft::SnapshotResponse<TypeConfig>> {
        let (vote, incoming) = self.incoming.take().ok_or_else(out_of_order)?;
        let (shard, settings) = (self.group.shard(), self.group.replica.settings());
        let received = self.desk.run(move || incoming.finish(shard, settings)).await??;
        let meta = meta_of(&received.header)?;
        let snapshot = SnapshotHandle::Received(Box::new(received));
        let snapshot = SnapshotOf::<TypeConfig, SnapshotHandle> { meta, snapshot };
        let installed = self.group.raft.install_full_snapshot(vote, snapshot).await;
        installed.map_err(std::io::Error::other)
    }
}

/// Makes a checkpoint for a member that lost its own, when ours ends before its log begins and more
/// than that is applied here.
async fn reach_to(group: &Group, wanted: LogIndex) {
    let current = group.checkpoints.current().and_then(|(_, header)| header.state.position);
    let applied = group.replica.read().applied;
    let reaches = |at: Option<LogPosition>| at.is_some_and(|at| at.index >= wanted);
    if reaches(current) || !reaches(applied) {
        return;
    }
    if let Err(error) = group.checkpoint().await {
        tracing::warn!(shard = %group.shard(), %error, "no checkpoint for a member");
    }
}

fn out_of_order() -> std::io::Error {
    std::io::Error::other("a checkpoint's message came out of order: begin again")
}
