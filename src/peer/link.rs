//! The calling side of one (peer, shard, lane): a queue of calls, and the driver that dials, keeps
//! one connection, and settles every call by its deadline.
//!
//! Invariants of the queue: calls leave it in the order in which they came; each is settled exactly
//! once; a call that is still in it was never sent.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::Inner;
use super::call::{Call, PeerError, Pending};
use super::counters::add;
use super::exchange::Exchange;
use super::greeting::{self, DialError};
use super::hello::{Address, Lane};
use super::timer::{Timer, earlier};
use super::transport::Socket;
use crate::ledger::ShardId;
use crate::runtime::{self, Instant};

/// The calling side of one (peer, shard, lane). Clones share one connection; when the last is
/// dropped, the link closes.
#[derive(Clone)]
pub struct Link {
    handle: Arc<Handle>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkShared { to, shard, lane, .. } = &*self.handle.shared;
        f.debug_struct("Link").field("to", to).field("shard", shard).field("lane", lane).finish()
    }
}

struct Handle {
    shared: Arc<LinkShared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// What a link and its driver share.
pub(super) struct LinkShared {
    pub(super) network: Arc<Inner>,
    pub(super) to: Address,
    pub(super) shard: Option<ShardId>,
    pub(super) lane: Lane,
    queue: Mutex<CallQueue>,
    pub(super) waker: AtomicWaker,
}

#[derive(Default)]
struct CallQueue {
    calls: VecDeque<Call>,
    bytes: usize,
    /// No later than the earliest deadline in `calls`.
    earliest: Option<Instant>,
    /// Whether a driver runs.
    driven: bool,
    closed: bool,
    /// Until when the driver rests after a dial that failed.
    down_until: Option<Instant>,
}

impl Link {
    /// Makes a link that has not dialled yet.
    pub(super) fn new(
        network: Arc<Inner>,
        to: Address,
        shard: Option<ShardId>,
        lane: Lane,
    ) -> Link {
        let shared = LinkShared {
            network,
            to,
            shard,
            lane,
            queue: Mutex::default(),
            waker: AtomicWaker::new(),
        };
        Link { handle: Arc::new(Handle { shared: Arc::new(shared) }) }
    }

    /// Queues a call at once, behind those queued before, and returns its answer to be awaited.
    ///
    /// The first call starts the link's I/O on the runtime of the thread that makes it; all later
    /// I/O stays there. Everything that is queued in one turn of that runtime goes out in one
    /// write. While the peer cannot be dialled, a call fails with the next failing dial, at the
    /// latest by its deadline.
    ///
    /// # Errors
    ///
    /// The answer's: [`PeerError`] says which are definite.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub fn send(&self, kind: u16, body: Bytes, deadline: Instant) -> Pending {
        let shared = &self.handle.shared;
        let limits = &shared.network.limits;
        let limit = limits.frame_bytes_max.of(shared.lane);
        if body.len() > limit {
            return Pending::failed(PeerError::TooLarge { bytes: body.len(), limit });
        }
        if deadline <= runtime::now() {
            add(&shared.network.counters.deadlines, 1);
            return Pending::failed(PeerError::Deadline { sent: false });
        }
        let (answer, pending) = Pending::new();
        let start = {
            let mut queue = shared.queue.lock();
            if queue.closed {
                return Pending::failed(PeerError::NotSent("the link is closed".to_owned()));
            }
            if queue.calls.len() >= limits.queue_max
                || queue.bytes.saturating_add(body.len()) > limits.queue_bytes_max
            {
                return Pending::failed(PeerError::NotSent("the link's queue is full".to_owned()));
            }
            queue.bytes += body.len();
            queue.earliest = earlier(queue.earliest, Some(deadline));
            queue.calls.push_back(Call { kind, body, deadline, answer });
            !std::mem::replace(&mut queue.driven, true)
        };
        if start {
            let driver = Driver::new(Arc::clone(shared));
            drop(runtime::spawn(driver.run()));
        } else {
            shared.waker.wake();
        }
        pending
    }

    /// Closes the link and its connection. Calls that were not sent fail as such, those that were
    /// become unknown.
    pub fn close(&self) {
        self.handle.shared.close();
    }

    /// Tells whether the last dial failed and the next one is not due: a call that is made now
    /// would wait for that one, most likely in vain.
    pub fn is_down(&self) -> bool {
        let down_until = self.handle.shared.queue.lock().down_until;
        down_until.is_some_and(|until| runtime::now() < until)
    }

    /// Returns the peer that this link is for.
    pub fn to(&self) -> &Address {
        &self.handle.shared.to
    }
}

impl LinkShared {
    fn close(&self) {
        self.queue.lock().closed = true;
        self.fail_queue(&PeerError::NotSent("the link is closed".to_owned()));
        self.waker.wake();
    }

    /// Whether the link was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    /// Fails every call that was not sent.
    pub(super) fn fail_queue(&self, error: &PeerError) {
        let calls = {
            let mut queue = self.queue.lock();
            queue.bytes = 0;
            queue.earliest = None;
            std::mem::take(&mut queue.calls)
        };
        for call in calls {
            call.settle(Err(error.clone()));
        }
    }

    /// Takes the calls that wait, oldest first, while `take` wants more.
    pub(super) fn take_calls(&self, mut take: impl FnMut(Call) -> bool) {
        let mut queue = self.queue.lock();
        while let Some(call) = queue.calls.pop_front() {
            queue.bytes -= call.body.len();
            if !take(call) {
                break;
            }
        }
        if queue.calls.is_empty() {
            queue.earliest = None;
        }
    }

    /// Returns a moment no later than the earliest deadline of a call that waits.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.queue.lock().earliest
    }

    /// Fails every waiting call whose deadline has come.
    pub(super) fn expire_queue(&self, now: Instant) {
        let mut due = Vec::new();
        {
            let mut queue = self.queue.lock();
            if queue.earliest.is_none_or(|earliest| earliest > now) {
                return;
            }
            let mut kept = VecDeque::with_capacity(queue.calls.len());
            for call in std::mem::take(&mut queue.calls) {
                if call.deadline <= now {
                    queue.bytes -= call.body.len();
                    due.push(call);
                } else {
                    kept.push_back(call);
                }
            }
            queue.earliest = kept.iter().map(|call| call.deadline).min();
            queue.calls = kept;
        }
        add(&self.network.counters.deadlines, due.len() as u64);
        for call in due {
            call.settle(Err(PeerError::Deadline { sent: false }));
        }
    }
}

/// Dials when there is something to send, and runs one connection after another.
struct Driver {
    shared: Arc<LinkShared>,
    timer: Timer,
    /// The pause after the last dial, if it failed; zero otherwise.
    pause: Duration,
    /// When the next dial may be made, if the last one failed.
    not_before: Option<Instant>,
    /// What the peer said when it last refused this node: said once, not at every attempt.
    refused: Option<String>,
}

impl Drop for Driver {
    /// Also when the runtime is torn down under it: nobody may wait for ever.
    fn drop(&mut self) {
        self.shared.queue.lock().driven = false;
        self.shared.fail_queue(&PeerError::NotSent("the link's runtime has ended".to_owned()));
    }
}

impl Driver {
    fn new(shared: Arc<LinkShared>) -> Driver {
        Driver {
            shared,
            timer: Timer::default(),
            pause: Duration::ZERO,
            not_before: None,
            refused: None,
        }
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while self.wait_for_call().await {
            if let Some(moment) = self.not_before.take() {
                if self.attend(runtime::sleep_until(moment)).await.is_none() {
                    return;
                }
                // Those that waited may have run out of time meanwhile.
                continue;
            }
            let begun = runtime::now();
            let limit = shared.network.limits.connect_timeout;
            let dialling = runtime::timeout(limit, greeting::dial(&shared));
            let Some(dialled) = self.attend(Box::pin(dialling)).await else {
                return;
            };
            let outcome = dialled.unwrap_or_else(|_| {
                Err(DialError::Failed(format!("{}: no welcome in {limit:?}", shared.to.addr)))
            });
            match outcome {
                Ok(socket) => self.converse(socket).await,
                Err(error) => self.fail_dial(begun, error),
            }
        }
    }

    async fn converse(&mut self, socket: Socket) {
        add(&self.shared.network.counters.dialled, 1);
        let exchange = Exchange::new(&self.shared, socket);
        if exchange.run().await {
            self.pause = Duration::ZERO;
            self.refused = None;
        } else {
            // Welcomed and dropped at once: as good as a failed dial.
            self.lengthen_pause(runtime::now());
        }
    }

    fn fail_dial(&mut self, begun: Instant, error: DialError) {
        let LinkShared { network, to, shard, lane, .. } = &*self.shared;
        let error = match error {
            DialError::Failed(words) => {
                add(&network.counters.dial_failures, 1);
                tracing::debug!(peer = %to.node, ?shard, ?lane, %words, "a dial failed");
                PeerError::NotSent(words)
            }
            DialError::Refused(words) => {
                add(&network.counters.dial_refusals, 1);
                if self.refused.as_ref() != Some(&words) {
                    let peer = to.node;
                    tracing::warn!(%peer, ?shard, ?lane, %words, "a peer refused this node");
                    self.refused = Some(words.clone());
                }
                PeerError::Refused(words)
            }
        };
        // From the dial's beginning: one that ran into its own timeout has paused enough.
        self.lengthen_pause(begun);
        self.shared.fail_queue(&error);
    }

    fn lengthen_pause(&mut self, begun: Instant) {
        let limits = &self.shared.network.limits;
        let longer = (self.pause * 2).max(limits.redial_pause_min);
        self.pause = longer.min(limits.redial_pause_max);
        let next = begun + self.pause;
        self.not_before = Some(next);
        self.shared.queue.lock().down_until = Some(next);
    }

    /// Waits until a call waits; `false` when the link was closed.
    async fn wait_for_call(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        poll_fn(|cx| {
            shared.waker.register(cx.waker());
            let queue = shared.queue.lock();
            if queue.closed {
                return Poll::Ready(false);
            }
            if queue.calls.is_empty() { Poll::Pending } else { Poll::Ready(true) }
        })
        .await
    }

    /// Runs `future` while the deadlines of waiting calls are kept; `None` when the link was
    /// closed first.
    async fn attend<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            self.shared.waker.register(cx.waker());
            if self.shared.is_closed() {
                return Poll::Ready(None);
            }
            self.keep_deadlines(cx);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    fn keep_deadlines(&mut self, cx: &mut Context<'_>) {
        while self.timer.poll_due(cx, self.shared.earliest()).is_ready() {
            self.shared.expire_queue(runtime::now());
        }
    }
}
