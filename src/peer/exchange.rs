//! One connection of a link: calls out, answers in.
//!
//! Everything that waits goes into one write. A call counts as sent from the moment its frame is
//! handed to the outbox; when the connection breaks, it is unknown only if the socket took its last
//! byte, for a peer never acts on half a frame.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::call::{Call, Outcome, PeerError};
use super::counters::add;
use super::frame::{Frame, FrameError, FrameReader, Role};
use super::hello::reason_text;
use super::link::LinkShared;
use super::outbox::Outbox;
use super::timer::{Timer, earlier};
use super::transport::Socket;
use crate::runtime::{self, Instant};

/// One connection of a link.
pub(super) struct Exchange<'a> {
    link: &'a LinkShared,
    socket: Socket,
    reader: FrameReader,
    outbox: Outbox,
    in_flight: BTreeMap<u64, Sent>,
    next_correlation: u64,
    timer: Timer,
    /// No later than the earliest deadline in `in_flight`.
    earliest: Option<Instant>,
    /// Since when an answer has been owed without a byte coming back.
    quiet_since: Option<Instant>,
    /// Whether a call timed out since the last byte came.
    timed_out: bool,
    /// Since when a frame has been half here.
    inside_since: Option<Instant>,
    /// Whether the peer ever answered anything.
    answered: bool,
    /// Why the connection ended, for the calls that end with it.
    ending: String,
}

/// A call on the wire.
struct Sent {
    /// The position in the stream of the frame's end.
    end: u64,
    deadline: Instant,
    answer: oneshot::Sender<Outcome>,
}

/// Why a connection ends.
enum Ending {
    /// The link was closed from above.
    Closed,
    /// A call timed out and nothing has come back for too long.
    GivenUp,
    /// The peer or the network ended it, or sent what no peer sends.
    Broken(FrameError),
}

impl<'a> Exchange<'a> {
    /// Makes an exchange over a welcomed connection.
    pub(super) fn new(link: &'a LinkShared, socket: Socket) -> Exchange<'a> {
        let limit = link.network.limits.frame_bytes_max.of(link.lane);
        Exchange {
            link,
            socket,
            reader: FrameReader::new(limit),
            outbox: Outbox::new(),
            in_flight: BTreeMap::new(),
            next_correlation: 1,
            timer: Timer::default(),
            earliest: None,
            quiet_since: None,
            timed_out: false,
            inside_since: None,
            answered: false,
            ending: "the link's runtime has ended".to_owned(),
        }
    }

    /// Exchanges calls and answers until the connection ends, and settles every call that ends with
    /// it. Returns whether the peer ever answered.
    pub(super) async fn run(mut self) -> bool {
        let ending = poll_fn(|cx| self.poll(cx)).await;
        let LinkShared { network, to, shard, lane, .. } = self.link;
        self.ending = match ending {
            Ending::Closed => "the link was closed".to_owned(),
            Ending::GivenUp => {
                add(&network.counters.given_up, 1);
                tracing::debug!(peer = %to.node, ?shard, ?lane, "a silent connection is given up");
                "the peer has gone silent".to_owned()
            }
            Ending::Broken(error) if error.is_bad_input() => {
                add(&network.counters.bad_frames, 1);
                tracing::warn!(peer = %to.node, ?shard, ?lane, %error, "a bad frame from a peer");
                format!("a bad frame: {error}")
            }
            Ending::Broken(error) => {
                tracing::debug!(peer = %to.node, ?shard, ?lane, %error, "a connection broke");
                format!("the connection broke: {error}")
            }
        };
        self.link.fail_queue(&PeerError::NotSent(self.ending.clone()));
        self.answered
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        self.link.waker.register(cx.waker());
        if self.link.is_closed() {
            return Poll::Ready(Ending::Closed);
        }
        loop {
            if let Err(error) = self.poll_io(cx) {
                return Poll::Ready(Ending::Broken(error));
            }
            if let Some(ending) = ready!(self.poll_deadlines(cx)) {
                return Poll::Ready(ending);
            }
            // Calls were forgotten: there may be room for those that wait.
        }
    }

    /// Reads and writes until neither can go on. Reads first, so that the end of a connection is
    /// found before another call is given to it.
    fn poll_io(&mut self, cx: &mut Context<'_>) -> Result<(), FrameError> {
        loop {
            let mut progressed = false;
            let counters = &self.link.network.counters;
            if let Poll::Ready(filled) = self.reader.poll_fill(cx, &mut self.socket) {
                add(&counters.bytes_in, filled? as u64);
                self.take_answers()?;
                progressed = true;
            }
            self.load();
            if !self.outbox.is_empty()
                && let Poll::Ready(wrote) = self.outbox.poll_write(cx, &mut self.socket, counters)
            {
                wrote?;
                progressed = true;
            }
            if !progressed {
                return Ok(());
            }
        }
    }

    /// Moves calls from the queue to the outbox, within the bound on calls in flight.
    fn load(&mut self) {
        let Exchange { link, outbox, in_flight, next_correlation, earliest, .. } = self;
        let room = |outbox: &Outbox, in_flight: &BTreeMap<u64, Sent>| {
            !outbox.is_full() && in_flight.len() < link.network.limits.in_flight_max
        };
        if !room(outbox, in_flight) {
            return;
        }
        let mut loaded = 0;
        link.take_calls(|Call { kind, body, deadline, answer }| {
            let correlation = *next_correlation;
            *next_correlation += 1;
            let end = outbox.push(Role::Call, kind, correlation, body);
            *earliest = earlier(*earliest, Some(deadline));
            in_flight.insert(correlation, Sent { end, deadline, answer });
            loaded += 1;
            room(outbox, in_flight)
        });
        if loaded > 0 {
            add(&link.network.counters.frames_out, loaded);
            if self.quiet_since.is_none() {
                self.quiet_since = Some(runtime::now());
            }
        }
    }

    /// Settles the calls whose answers are here as a whole.
    fn take_answers(&mut self) -> Result<(), FrameError> {
        let counters = &self.link.network.counters;
        let mut frames = 0;
        while let Some(frame) = self.reader.next_frame()? {
            let Frame { role, kind: _, correlation, body } = frame;
            let outcome = match role {
                Role::Answer => Ok(body),
                Role::Refusal => Err(PeerError::Refused(reason_text(&body))),
                Role::Lost => Err(PeerError::Unknown(reason_text(&body))),
                Role::Hello | Role::Welcome | Role::Refused | Role::Call => {
                    return Err(FrameError::Misplaced(role));
                }
            };
            frames += 1;
            match self.in_flight.remove(&correlation) {
                // A caller that went away does not care.
                Some(sent) => drop(sent.answer.send(outcome)),
                None => add(&counters.late_answers, 1),
            }
        }
        add(&counters.frames_in, frames);
        let now = runtime::now();
        self.answered |= frames > 0;
        self.timed_out = false;
        self.quiet_since = if self.in_flight.is_empty() { None } else { Some(now) };
        self.inside_since = match self.inside_since {
            _ if !self.reader.is_inside_frame() => None,
            Some(since) if frames == 0 => Some(since),
            Some(_) | None => Some(now),
        };
        Ok(())
    }

    /// Keeps the deadlines of calls and of this connection; ready when some had come.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ending>> {
        let calls = earlier(self.earliest, self.link.earliest());
        let next = earlier(calls, earlier(self.quiet_limit(), self.frame_limit()));
        ready!(self.timer.poll_due(cx, next));
        let now = runtime::now();
        self.link.expire_queue(now);
        self.expire(now);
        Poll::Ready(if self.quiet_limit().is_some_and(|limit| limit <= now) {
            Some(Ending::GivenUp)
        } else if self.frame_limit().is_some_and(|limit| limit <= now) {
            Some(Ending::Broken(FrameError::Stalled))
        } else {
            None
        })
    }

    /// When this connection is given up unless something comes back.
    fn quiet_limit(&self) -> Option<Instant> {
        let since = self.quiet_since.filter(|_| self.timed_out)?;
        Some(since + self.link.network.limits.tcp_user_timeout)
    }

    /// When the frame that is half here must be whole.
    fn frame_limit(&self) -> Option<Instant> {
        Some(self.inside_since? + self.link.network.limits.frame_timeout)
    }

    /// Forgets the calls whose deadline has come.
    fn expire(&mut self, now: Instant) {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        let mut due = 0;
        for (_, sent) in self.in_flight.extract_if(.., |_, sent| sent.deadline <= now) {
            due += 1;
            let _ = sent.answer.send(Err(PeerError::Deadline { sent: true }));
        }
        self.timed_out |= due > 0;
        self.earliest = self.in_flight.values().map(|sent| sent.deadline).min();
        add(&self.link.network.counters.deadlines, due);
    }
}

impl Drop for Exchange<'_> {
    /// Also when the runtime is torn down: every call on the wire gets its word.
    fn drop(&mut self) {
        let written = self.outbox.written();
        for (_, sent) in std::mem::take(&mut self.in_flight) {
            let words = self.ending.clone();
            let error = if sent.end <= written {
                PeerError::Unknown(words)
            } else {
                PeerError::NotSent(words)
            };
            let _ = sent.answer.send(Err(error));
        }
    }
}
