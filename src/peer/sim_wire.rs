//! One simulated connection: two one-way streams of packets, what has arrived of them, and who
//! waits for it. State only; time and faults are the network's.

use std::collections::VecDeque;
use std::io;
use std::task::Waker;

use bytes::Bytes;

use crate::ledger::NodeId;
use crate::runtime::Instant;

/// Bytes that may be under way or unread in one direction before a writer waits.
const WINDOW_BYTES: usize = 512 << 10;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The one that dialled.
    Caller,
    /// The one that accepted.
    Server,
}

impl Side {
    /// Returns the end across.
    pub(super) fn other(self) -> Side {
        match self {
            Side::Caller => Side::Server,
            Side::Server => Side::Caller,
        }
    }
}

/// A packet under way.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) due: Instant,
    /// Empty: the end of the stream.
    pub(super) bytes: Bytes,
}

/// What one side sends.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) under_way: VecDeque<Packet>,
    pub(super) arrived: VecDeque<Bytes>,
    /// The end of the stream was sent; has arrived.
    pub(super) ended: bool,
    pub(super) end_arrived: bool,
    unread: usize,
    pub(super) last_due: Option<Instant>,
    /// Since when bytes have arrived whose acknowledgement cannot come back.
    pub(super) unacknowledged_since: Option<Instant>,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// Wakes the task that moves packets.
    pub(super) carrier: Option<Waker>,
    /// Whether the task that moves packets is done.
    pub(super) carried: bool,
}

impl Stream {
    /// Returns how many more bytes may be written.
    pub(super) fn room(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.unread)
    }

    /// Puts bytes on their way.
    pub(super) fn send(&mut self, due: Instant, bytes: Bytes) {
        self.unread += bytes.len();
        self.last_due = Some(due);
        self.under_way.push_back(Packet { due, bytes });
        wake(&mut self.carrier);
    }

    /// Lets the first packet arrive and returns how many bytes it had.
    pub(super) fn arrive(&mut self) -> usize {
        let Some(Packet { bytes, due: _ }) = self.under_way.pop_front() else {
            return 0;
        };
        let length = bytes.len();
        if bytes.is_empty() {
            self.end_arrived = true;
        } else {
            self.arrived.push_back(bytes);
        }
        wake(&mut self.reader);
        length
    }

    /// Takes at most `limit` bytes of what has arrived.
    pub(super) fn read(&mut self, limit: usize) -> Option<Bytes> {
        let front = self.arrived.front_mut()?;
        let bytes = front.split_to(front.len().min(limit));
        if front.is_empty() {
            self.arrived.pop_front();
        }
        self.unread -= bytes.len();
        wake(&mut self.writer);
        Some(bytes)
    }

    /// Throws away everything that was not read; returns how many packets.
    pub(super) fn throw_away(&mut self) -> u64 {
        (self.under_way.drain(..).len() + self.arrived.drain(..).len()) as u64
    }

    fn wake_all(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
        wake(&mut self.carrier);
    }
}

/// Wakes whoever waits, once.
fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// One simulated connection.
#[derive(Debug)]
pub(super) struct Connection {
    caller: NodeId,
    server: NodeId,
    from_caller: Stream,
    from_server: Stream,
    broken: Option<(io::ErrorKind, &'static str)>,
    /// The side whose machine lost its power; the other has not been told.
    dark: Option<Side>,
    /// Whether the caller's, and the server's, socket was dropped.
    let_go: [bool; 2],
}

impl Connection {
    /// Makes a fresh one.
    pub(super) fn new(caller: NodeId, server: NodeId) -> Connection {
        Connection {
            caller,
            server,
            from_caller: Stream::default(),
            from_server: Stream::default(),
            broken: None,
            dark: None,
            let_go: [false; 2],
        }
    }

    /// Returns the node on one side.
    pub(super) fn node(&self, side: Side) -> NodeId {
        match side {
            Side::Caller => self.caller,
            Side::Server => self.server,
        }
    }

    /// Whether a node is on either side.
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.caller == node || self.server == node
    }

    /// Returns what one side sends.
    pub(super) fn stream(&mut self, from: Side) -> &mut Stream {
        match from {
            Side::Caller => &mut self.from_caller,
            Side::Server => &mut self.from_server,
        }
    }

    /// Whether it broke or both sides let go of it.
    pub(super) fn is_over(&self) -> bool {
        self.broken.is_some() || self.let_go == [true; 2]
    }

    /// Whether nobody will ask for it again.
    pub(super) fn is_forgotten(&self) -> bool {
        self.let_go == [true; 2] && self.from_caller.carried && self.from_server.carried
    }

    /// Returns the error that reading and writing give on one side, once there is one.
    pub(super) fn check(&self, side: Side) -> io::Result<()> {
        match self.broken {
            Some((kind, words)) => Err(io::Error::new(kind, words)),
            None if self.dark == Some(side) => {
                Err(io::Error::new(io::ErrorKind::NetworkDown, "this machine is down"))
            }
            None => Ok(()),
        }
    }

    /// Whether it broke.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether one side's machine lost its power.
    pub(super) fn is_dark(&self, side: Side) -> bool {
        self.dark == Some(side)
    }

    /// Takes the power from a node's side; the other side is not told. Returns how many packets
    /// that dropped.
    pub(super) fn darken(&mut self, node: NodeId) -> u64 {
        let side = if self.caller == node { Side::Caller } else { Side::Server };
        self.dark = Some(side);
        // What had left the machine still arrives; what had come to it is lost with it.
        let dropped = self.stream(side.other()).throw_away();
        self.from_caller.wake_all();
        self.from_server.wake_all();
        dropped
    }

    /// Breaks it on both sides; returns how many packets that dropped, `None` when it was broken
    /// or over before.
    pub(super) fn break_off(&mut self, kind: io::ErrorKind, words: &'static str) -> Option<u64> {
        if self.broken.is_some() {
            return None;
        }
        let was_over = self.is_over();
        self.broken = Some((kind, words));
        let mut dropped = 0;
        for stream in [&mut self.from_caller, &mut self.from_server] {
            dropped += stream.under_way.drain(..).len() as u64;
            stream.wake_all();
        }
        (!was_over).then_some(dropped)
    }

    /// Notes that one side's socket is gone: the other side reads to the end and no further, and
    /// what it writes breaks the connection.
    pub(super) fn let_go(&mut self, side: Side) {
        match side {
            Side::Caller => self.let_go[0] = true,
            Side::Server => self.let_go[1] = true,
        }
        self.from_caller.wake_all();
        self.from_server.wake_all();
    }

    /// Whether one side's socket is gone.
    pub(super) fn is_let_go(&self, side: Side) -> bool {
        match side {
            Side::Caller => self.let_go[0],
            Side::Server => self.let_go[1],
        }
    }

    /// Lets everything that one side has sent arrive; returns packets and bytes.
    pub(super) fn arrive_all(&mut self, from: Side) -> (u64, u64) {
        let stream = self.stream(from);
        let (mut packets, mut bytes) = (0, 0);
        while !stream.under_way.is_empty() {
            packets += 1;
            bytes += stream.arrive() as u64;
        }
        (packets, bytes)
    }

    /// Forgets what was unacknowledged where acknowledgements pass.
    pub(super) fn acknowledge(&mut self, passes: impl Fn(NodeId, NodeId) -> bool) {
        for side in [Side::Caller, Side::Server] {
            // The acknowledgement of what one side sent comes from the other.
            if passes(self.node(side.other()), self.node(side)) {
                self.stream(side).unacknowledged_since = None;
            }
        }
    }
}
