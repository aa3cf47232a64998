//! What the answering side asks of the rooms above: a service that opens conversations, and
//! conversations that take calls in order and answer them in any order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::frame::Role;
use super::hello::{Hello, reason_bytes};

/// Where a connection's I/O runs: spawns a future on the runtime of, say, one shard.
pub type Spawner = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// Decides who may speak to this node.
pub trait Service: Send + Sync + 'static {
    /// Opens a conversation with a peer whose cluster, version and target node fit. The service
    /// checks the pair (node id, log uuid) against its members.
    ///
    /// Runs on the listener's runtime and must not block.
    ///
    /// # Errors
    ///
    /// A reason for the peer, of which the first 512 bytes travel.
    fn open(&self, hello: &Hello) -> Result<Opened, String>;
}

/// A conversation and the place where it is held.
pub struct Opened {
    /// Takes the calls.
    pub conversation: Box<dyn Conversation>,
    /// Where the connection's I/O, and with it the conversation, runs.
    pub spawner: Spawner,
}

/// One connection as its service sees it.
pub trait Conversation: Send {
    /// Takes a call, in order of arrival. Must not block; the answer may come later, from any
    /// thread and in any order.
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo);

    /// Learns that the connection is gone; answers still to come are thrown away.
    fn closed(&mut self) {}
}

/// The way back to one call's caller. Dropping it unused tells the caller that the outcome is
/// unknown.
pub struct ReplyTo {
    replies: Arc<Replies>,
    correlation: u64,
    kind: u16,
    used: bool,
}

impl ReplyTo {
    /// Makes the way back to one call.
    pub(super) fn new(replies: Arc<Replies>, kind: u16, correlation: u64) -> ReplyTo {
        ReplyTo { replies, correlation, kind, used: false }
    }

    /// Answers. A body above the lane's bound reaches the caller as an unknown outcome.
    pub fn send(mut self, body: Bytes) {
        let limit = self.replies.limit;
        if body.len() > limit {
            let words = format!("an answer of {} bytes where {limit} are allowed", body.len());
            self.reply(Role::Lost, reason_bytes(&words).into());
        } else {
            self.reply(Role::Answer, body);
        }
    }

    /// Says that nothing was done, and why (of which the first 512 bytes travel).
    pub fn refuse(mut self, reason: impl AsRef<str>) {
        self.reply(Role::Refusal, reason_bytes(reason.as_ref()).into());
    }

    fn reply(&mut self, role: Role, body: Bytes) {
        self.used = true;
        let reply = Reply { role, kind: self.kind, correlation: self.correlation, body };
        self.replies.push(reply);
    }
}

impl Drop for ReplyTo {
    fn drop(&mut self) {
        if !self.used {
            self.reply(Role::Lost, Bytes::from_static(b"the service dropped the call"));
        }
    }
}

/// An answer that waits to be written.
pub(super) struct Reply {
    pub(super) role: Role,
    pub(super) kind: u16,
    pub(super) correlation: u64,
    pub(super) body: Bytes,
}

/// The answers of one connection, between whoever gives them and the task that writes them. There
/// are never more than the connection's bound on calls in flight.
pub(super) struct Replies {
    /// The largest answer, in bytes.
    limit: usize,
    state: Mutex<RepliesState>,
    pub(super) waker: AtomicWaker,
}

#[derive(Default)]
struct RepliesState {
    waiting: VecDeque<Reply>,
    closed: bool,
}

impl Replies {
    /// Makes an empty one for answers of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Replies {
        Replies { limit, state: Mutex::default(), waker: AtomicWaker::new() }
    }

    fn push(&self, reply: Reply) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        state.waiting.push_back(reply);
        drop(state);
        self.waker.wake();
    }

    /// Takes the answers that wait, oldest first, while `take` wants more.
    pub(super) fn drain(&self, mut take: impl FnMut(Reply) -> bool) {
        let mut state = self.state.lock();
        while let Some(reply) = state.waiting.pop_front() {
            if !take(reply) {
                return;
            }
        }
    }

    /// Ends the connection and throws away what waits.
    pub(super) fn close(&self) {
        let thrown = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        drop(thrown);
        self.waker.wake();
    }

    /// Whether the connection was ended from outside or is over.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}
