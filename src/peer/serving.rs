//! One accepted connection: calls in, answers out, on the runtime that the service chose.
//!
//! Calls reach the conversation in order of arrival. While as many of them are unanswered as the
//! bound allows, or the caller does not take its answers, nothing more is read.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Inner;
use super::counters::add;
use super::frame::{Frame, FrameError, FrameReader, Role};
use super::greeting;
use super::hello::Hello;
use super::listener::Seat;
use super::outbox::Outbox;
use super::service::{Conversation, Replies, ReplyTo};
use super::timer::Timer;
use super::transport::Socket;
use crate::runtime::{self, Instant};

/// One accepted connection.
pub(super) struct Serving {
    network: Arc<Inner>,
    hello: Hello,
    /// Its place among the listener's connections, given back when this is dropped.
    seat: Seat,
    talk: Box<dyn Conversation>,
    reader: FrameReader,
    outbox: Outbox,
    /// Calls handed to the conversation whose answers are not in the outbox yet.
    in_flight: usize,
    /// Since when a frame has been half here.
    inside_since: Option<Instant>,
    timer: Timer,
}

impl Serving {
    /// Makes the serving side of a connection whose hello was accepted.
    pub(super) fn new(
        network: Arc<Inner>,
        hello: Hello,
        seat: Seat,
        talk: Box<dyn Conversation>,
    ) -> Serving {
        let limit = network.limits.frame_bytes_max.of(hello.lane);
        Serving {
            network,
            hello,
            seat,
            talk,
            reader: FrameReader::new(limit),
            outbox: Outbox::new(),
            in_flight: 0,
            inside_since: None,
            timer: Timer::default(),
        }
    }

    /// Serves until the connection ends or the listener closes.
    pub(super) async fn run(mut self, mut socket: Socket) {
        add(&self.network.counters.accepted, 1);
        self.outbox.push(Role::Welcome, 0, 0, greeting::welcome(&self.network));
        let ended = poll_fn(|cx| self.poll(cx, &mut socket)).await;
        let Hello { from, shard, lane, .. } = &self.hello;
        match ended {
            Ok(()) => (),
            Err(error) if error.is_bad_input() => {
                add(&self.network.counters.bad_frames, 1);
                tracing::warn!(peer = %from.node, ?shard, ?lane, %error, "a bad frame from a peer");
            }
            Err(error) => {
                tracing::debug!(peer = %from.node, ?shard, ?lane, %error, "a connection ended");
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, socket: &mut Socket) -> Poll<Result<(), FrameError>> {
        let replies = Arc::clone(self.seat.replies());
        replies.waker.register(cx.waker());
        loop {
            if replies.is_closed() {
                return Poll::Ready(Ok(()));
            }
            self.load(&replies);
            let counters = &self.network.counters;
            if !self.outbox.is_empty()
                && let Poll::Ready(wrote) = self.outbox.poll_write(cx, socket, counters)
            {
                wrote?;
                // Room again: there may be more to load.
                continue;
            }
            // Calls that came before the bound was reached are still in the buffer.
            let taken = self.take_calls(&replies)?;
            if self.has_room() {
                match self.reader.poll_fill(cx, socket) {
                    Poll::Ready(filled) => {
                        add(&self.network.counters.bytes_in, filled? as u64);
                        continue;
                    }
                    Poll::Pending if taken == 0 => (),
                    Poll::Pending => continue,
                }
            } else if taken > 0 {
                continue;
            }
            return self.poll_frame_limit(cx);
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight < self.network.limits.in_flight_max && !self.outbox.is_full()
    }

    /// Moves answers to the outbox.
    fn load(&mut self, replies: &Replies) {
        if self.outbox.is_full() {
            return;
        }
        let mut loaded = 0;
        replies.drain(|reply| {
            self.outbox.push(reply.role, reply.kind, reply.correlation, reply.body);
            loaded += 1;
            !self.outbox.is_full()
        });
        self.in_flight -= loaded;
        add(&self.network.counters.frames_out, loaded as u64);
    }

    /// Hands the calls that are here as a whole to the conversation, within the bound; returns how
    /// many.
    fn take_calls(&mut self, replies: &Arc<Replies>) -> Result<usize, FrameError> {
        let mut taken = 0;
        while self.has_room() {
            let Some(Frame { role, kind, correlation, body }) = self.reader.next_frame()? else {
                break;
            };
            if role != Role::Call {
                return Err(FrameError::Misplaced(role));
            }
            taken += 1;
            self.in_flight += 1;
            self.talk.frame(kind, body, ReplyTo::new(Arc::clone(replies), kind, correlation));
        }
        add(&self.network.counters.frames_in, taken as u64);
        // A frame that waits because this side does not read is not the caller's fault.
        self.inside_since = match self.inside_since {
            _ if !self.reader.is_inside_frame() || !self.has_room() => None,
            Some(since) if taken == 0 => Some(since),
            Some(_) | None => Some(runtime::now()),
        };
        Ok(taken)
    }

    /// Ends the connection when a frame has been half here for too long.
    fn poll_frame_limit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), FrameError>> {
        loop {
            let limit = self.inside_since.map(|since| since + self.network.limits.frame_timeout);
            if self.timer.poll_due(cx, limit).is_pending() {
                return Poll::Pending;
            }
            if limit.is_some_and(|limit| limit <= runtime::now()) {
                return Poll::Ready(Err(FrameError::Stalled));
            }
        }
    }
}

impl Drop for Serving {
    /// Also when the chosen runtime is torn down or never took the connection.
    fn drop(&mut self) {
        self.seat.replies().close();
        self.talk.closed();
    }
}
