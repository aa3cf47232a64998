//! The simulated network as a node's connections see it: dialling, accepting, reading, writing,
//! with the same names as the kernel's side in `tcp.rs`; and the task that carries one stream's
//! packets to their moment of arrival.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::sim::{SimDoor, SimNetwork, SimState, present};
use super::sim_wire::{Connection, Side};
use crate::ledger::NodeId;
use crate::runtime::{self, Instant};

/// Connections that wait to be accepted at one address; further ones are refused.
const BACKLOG: usize = 128;
/// The first and the longest pause before bytes that met a cut are sent again.
const RETRANSMIT_MIN: Duration = Duration::from_millis(50);
const RETRANSMIT_MAX: Duration = Duration::from_millis(800);

/// One node's end of the simulated wire.
pub(super) struct Transport {
    pub(super) network: SimNetwork,
    pub(super) end: u64,
    pub(super) node: NodeId,
    pub(super) user_timeout: Duration,
}

/// Connects to a peer: a round trip, or for ever while the wire is cut.
///
/// # Errors
///
/// When nobody listens there, or this node has crashed.
pub(super) async fn dial(transport: &Transport, to: NodeId, addr: &str) -> io::Result<Socket> {
    let Transport { network, end, node, user_timeout } = transport;
    let mut pause = RETRANSMIT_MIN;
    let mut held = false;
    loop {
        let delay = {
            let mut state = network.lock();
            state.check_alive(*end)?;
            state.draw_delay() + state.draw_delay()
        };
        runtime::sleep(delay).await;
        {
            let mut state = network.lock();
            state.check_alive(*end)?;
            let there = state.node_at(addr).unwrap_or(to);
            if !state.is_cut(*node, there) && !state.is_cut(there, *node) {
                return connect(&mut state, transport, there, addr, *user_timeout);
            }
            if !std::mem::replace(&mut held, true) {
                state.counters.dials_held += 1;
            }
        }
        runtime::sleep(pause).await;
        pause = (pause * 2).min(RETRANSMIT_MAX);
    }
}

fn connect(
    state: &mut SimState,
    transport: &Transport,
    there: NodeId,
    addr: &str,
    user_timeout: Duration,
) -> io::Result<Socket> {
    let number = state.number();
    match state.doors.get_mut(addr) {
        Some(door) if door.waiting.len() < BACKLOG => {
            door.waiting.push_back(number);
            if let Some(waker) = door.waker.take() {
                waker.wake();
            }
        }
        Some(_) | None => {
            state.counters.dials_refused += 1;
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens"));
        }
    }
    state.connections.insert(number, Connection::new(transport.node, there));
    state.counters.connected += 1;
    for side in [Side::Caller, Side::Server] {
        let carrier =
            Carrier { network: transport.network.clone(), number, from: side, user_timeout };
        // The wire goes on carrying what a process sent before it died.
        drop(runtime::life::spawn_in_the_world(carrier.run()));
    }
    Ok(Socket { network: transport.network.clone(), number, side: Side::Caller })
}

/// Binds an address.
///
/// # Errors
///
/// When it is in use, or this node has crashed.
pub(super) async fn bind(transport: &Transport, addr: &str) -> io::Result<Acceptor> {
    let Transport { network, end, .. } = transport;
    let mut state = network.lock();
    state.check_alive(*end)?;
    if state.doors.contains_key(addr) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let door = SimDoor { end: *end, waiting: Default::default(), waker: None };
    state.doors.insert(addr.to_owned(), door);
    Ok(Acceptor { network: network.clone(), end: *end, addr: addr.to_owned() })
}

/// A bound address.
pub(super) struct Acceptor {
    network: SimNetwork,
    end: u64,
    addr: String,
}

impl Acceptor {
    /// Returns the bound address.
    ///
    /// # Errors
    ///
    /// None here.
    pub(super) fn local_addr(&self) -> io::Result<String> {
        Ok(self.addr.clone())
    }

    /// Waits for the next connection; for ever once this node has crashed.
    ///
    /// # Errors
    ///
    /// None here.
    pub(super) async fn accept(&mut self) -> io::Result<Socket> {
        let number = poll_fn(|cx| {
            let mut state = self.network.lock();
            match state.doors.get_mut(&self.addr).filter(|door| door.end == self.end) {
                Some(door) => match door.waiting.pop_front() {
                    Some(number) => Poll::Ready(number),
                    None => {
                        door.waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                },
                None => Poll::Pending,
            }
        })
        .await;
        Ok(Socket { network: self.network.clone(), number, side: Side::Server })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        let mut state = self.network.lock();
        if state.doors.get(&self.addr).is_some_and(|door| door.end == self.end)
            && let Some(door) = state.doors.remove(&self.addr)
        {
            for number in door.waiting {
                if let Some(connection) = state.connections.get_mut(&number) {
                    connection.let_go(Side::Server);
                }
                state.break_connection(number, io::ErrorKind::ConnectionReset, "nobody accepted");
            }
        }
    }
}

/// A connected socket.
pub(super) struct Socket {
    network: SimNetwork,
    number: u64,
    side: Side,
}

impl Socket {
    /// Takes the socket off this runtime; there is only one, so it is already off.
    ///
    /// # Errors
    ///
    /// None here.
    pub(super) fn park(self) -> io::Result<Socket> {
        Ok(self)
    }

    /// Puts the socket on this runtime.
    ///
    /// # Errors
    ///
    /// None here.
    pub(super) fn unpark(self) -> io::Result<Socket> {
        Ok(self)
    }

    fn end_stream(&self) {
        let mut state = self.network.lock();
        let due = present() + state.draw_delay();
        if let Some(connection) = state.connections.get_mut(&self.number)
            && connection.check(self.side).is_ok()
        {
            let stream = connection.stream(self.side);
            if !std::mem::replace(&mut stream.ended, true) {
                let due = stream.last_due.map_or(due, |last| last.max(due));
                stream.send(due, Bytes::new());
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Outside the runtime (it is being torn down) there is no time and nobody to tell.
        if crate::runtime::is_running() {
            self.end_stream();
        }
        let mut state = self.network.lock();
        if let Some(connection) = state.connections.get_mut(&self.number) {
            connection.let_go(self.side);
        }
        state.bury(self.number);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.network.lock();
        let Some(connection) = state.connections.get_mut(&self.number) else {
            return Poll::Ready(Ok(()));
        };
        let stream = connection.stream(self.side.other());
        if let Some(bytes) = stream.read(buffer.remaining()) {
            buffer.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        if stream.end_arrived {
            return Poll::Ready(Ok(()));
        }
        stream.reader = Some(cx.waker().clone());
        connection.check(self.side)?;
        Poll::Pending
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.network.lock();
        let due = present() + state.draw_delay();
        let Some(connection) = state.connections.get_mut(&self.number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        connection.check(self.side)?;
        let stream = connection.stream(self.side);
        if stream.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = stream.room();
        if room == 0 {
            stream.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut packet = BytesMut::new();
        for slice in slices {
            let taken = slice.len().min(room - packet.len());
            packet.extend_from_slice(&slice[..taken]);
        }
        let length = packet.len();
        if length > 0 {
            // In order within the connection, as in TCP.
            let due = stream.last_due.map_or(due, |last| last.max(due));
            stream.send(due, packet.freeze());
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end_stream();
        Poll::Ready(Ok(()))
    }
}

/// Carries one stream's packets, in order, each to its moment.
struct Carrier {
    network: SimNetwork,
    number: u64,
    from: Side,
    user_timeout: Duration,
}

/// What a carrier does next.
enum Step {
    /// Wait until then and look again.
    At(Instant),
    /// A packet arrived; look at the next.
    Again,
    /// Nothing is under way, but acknowledgements are outstanding until then.
    Idle(Option<Instant>),
    /// The stream is over.
    Over,
}

impl Carrier {
    async fn run(self) {
        // Since when, and with which pause next, the first packet has been held by a cut.
        let mut held: Option<(Instant, Duration)> = None;
        loop {
            match self.step(&mut held) {
                Step::At(moment) => runtime::sleep_until(moment).await,
                Step::Again => (),
                Step::Idle(limit) => self.idle(limit).await,
                Step::Over => break,
            }
        }
        let mut state = self.network.lock();
        if let Some(connection) = state.connections.get_mut(&self.number) {
            connection.stream(self.from).carried = true;
        }
        state.bury(self.number);
    }

    /// Waits until something is sent, the connection breaks, or the limit has come.
    async fn idle(&self, limit: Option<Instant>) {
        let mut looked = false;
        let mut wait = Box::pin(async {
            match limit {
                Some(limit) => runtime::sleep_until(limit).await,
                None => std::future::pending().await,
            }
        });
        poll_fn(|cx| {
            let mut state = self.network.lock();
            let Some(connection) = state.connections.get_mut(&self.number) else {
                return Poll::Ready(());
            };
            // Woken: whatever it was, the next step finds out.
            if std::mem::replace(&mut looked, true) {
                return Poll::Ready(());
            }
            connection.stream(self.from).carrier = Some(cx.waker().clone());
            drop(state);
            wait.as_mut().poll(cx)
        })
        .await;
    }

    fn step(&self, held: &mut Option<(Instant, Duration)>) -> Step {
        let now = present();
        let mut state = self.network.lock();
        let state = &mut *state;
        let Some(connection) = state.connections.get_mut(&self.number) else {
            return Step::Over;
        };
        if connection.is_broken() {
            return Step::Over;
        }
        let (from, to) = (connection.node(self.from), connection.node(self.from.other()));
        let reader_dark = connection.is_dark(self.from.other());
        let reader_gone = connection.is_let_go(self.from.other());
        let stream = connection.stream(self.from);
        let limit = stream.unacknowledged_since.map(|since| since + self.user_timeout);
        if limit.is_some_and(|limit| limit <= now) {
            return self.give_up(state, "nothing is acknowledged");
        }
        let Some(packet) = stream.under_way.front() else {
            return if stream.end_arrived { Step::Over } else { Step::Idle(limit) };
        };
        if packet.due > now && held.is_none() {
            return Step::At(limit.map_or(packet.due, |limit| limit.min(packet.due)));
        }
        if reader_dark && state.is_up(to) && !state.is_cut(from, to) {
            // The machine is back and knows nothing of this connection.
            state.break_connection(self.number, io::ErrorKind::ConnectionReset, "reset by peer");
            return Step::Over;
        }
        if reader_dark || state.is_cut(from, to) {
            return self.hold(state, held, now);
        }
        *held = None;
        if state.draw_loss() {
            state.counters.dropped += 1;
            state.break_connection(self.number, io::ErrorKind::ConnectionReset, "lost packets");
            return Step::Over;
        }
        self.arrive(state, now, reader_gone, (from, to))
    }

    /// The packet at the front meets a cut: it is sent again later, or the connection is given up.
    fn hold(
        &self,
        state: &mut SimState,
        held: &mut Option<(Instant, Duration)>,
        now: Instant,
    ) -> Step {
        let (since, pause) = *held.get_or_insert_with(|| {
            state.counters.held += 1;
            (now, RETRANSMIT_MIN)
        });
        let limit = since + self.user_timeout;
        if limit <= now {
            return self.give_up(state, "timed out");
        }
        *held = Some((since, (pause * 2).min(RETRANSMIT_MAX)));
        Step::At((now + pause).min(limit))
    }

    fn give_up(&self, state: &mut SimState, words: &'static str) -> Step {
        state.break_connection(self.number, io::ErrorKind::TimedOut, words);
        Step::Over
    }

    fn arrive(
        &self,
        state: &mut SimState,
        now: Instant,
        reader_gone: bool,
        (from, to): (NodeId, NodeId),
    ) -> Step {
        let acknowledged = !state.is_cut(to, from);
        let connection =
            state.connections.get_mut(&self.number).expect("the step found it just above");
        let stream = connection.stream(self.from);
        let length = stream.arrive();
        if acknowledged {
            stream.unacknowledged_since = None;
        } else {
            stream.unacknowledged_since.get_or_insert(now);
        }
        state.counters.delivered += 1;
        state.counters.bytes += length as u64;
        if reader_gone && length > 0 {
            // Bytes for a socket that is gone are answered with a reset.
            state.break_connection(self.number, io::ErrorKind::ConnectionReset, "reset by peer");
            return Step::Over;
        }
        Step::Again
    }
}
