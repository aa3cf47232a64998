//! The simulated network: what stands in for the kernel's sockets when a whole cluster runs in one
//! thread of virtual time.
//!
//! It carries bytes, not messages, so the shipped framing, handshake and queues run on top of it.
//! Like TCP it keeps the order of one connection and never duplicates; bytes that meet a cut are
//! retransmitted with back-off until the cut heals or the user timeout breaks the connection, and
//! the same happens to bytes that arrive and whose acknowledgement cannot come back. Connections
//! reorder freely against each other. Every choice comes from one seed.
//!
//! It promises the same run for the same seed and the same calls. It never reads a real clock,
//! spawns a thread or iterates a map in random order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::sim_wire::{Connection, Side};
use crate::ledger::NodeId;
use crate::runtime::{self, Instant};

pub(super) use super::sim_socket::{Acceptor, Socket, Transport, bind, dial};

/// How a simulated network behaves when nobody asked for a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimDefaults {
    /// The shortest delay of a packet.
    pub delay_min: Duration,
    /// The longest delay of an ordinary packet.
    pub delay_max: Duration,
    /// How many of a million packets are delayed by up to `spike_max` instead.
    pub spikes_per_million: u32,
    /// The longest delay of such a packet.
    pub spike_max: Duration,
    /// How many of a million packets are lost for good: their connection breaks.
    pub losses_per_million: u32,
}

impl Default for SimDefaults {
    fn default() -> SimDefaults {
        SimDefaults {
            delay_min: Duration::from_micros(100),
            delay_max: Duration::from_millis(2),
            spikes_per_million: 2_000,
            spike_max: Duration::from_millis(60),
            losses_per_million: 0,
        }
    }
}

/// What a simulated network has done: the proof that a fault had an effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Packets that arrived.
    pub delivered: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Packets that met a cut and had to wait, each counted once.
    pub held: u64,
    /// Packets that never arrived: lost, given up behind a cut, or on a connection that broke.
    pub dropped: u64,
    /// Connections that were established.
    pub connected: u64,
    /// Connections that broke: loss, crash, timeout or by request.
    pub broken: u64,
    /// Dials that met a cut, each counted once.
    pub dials_held: u64,
    /// Dials that found nobody.
    pub dials_refused: u64,
}

/// After how long an idle connection finds out that the other machine has no power.
const KEEPALIVE: Duration = Duration::from_secs(7);

/// A network for all the simulated nodes of one run. Clones are the same network.
#[derive(Clone)]
pub struct SimNetwork {
    state: Arc<Mutex<SimState>>,
}

/// Everything that the network knows.
pub(super) struct SimState {
    rng: SmallRng,
    defaults: SimDefaults,
    /// Directions in which nothing passes, by whom it was asked for.
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// The ends of the wire that have not crashed.
    alive: BTreeMap<u64, NodeId>,
    next: u64,
    pub(super) doors: BTreeMap<String, SimDoor>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) counters: SimCounters,
}

/// A bound address.
pub(super) struct SimDoor {
    /// The end of the wire that bound it.
    pub(super) end: u64,
    /// Connections (their server sides) that wait to be accepted.
    pub(super) waiting: VecDeque<u64>,
    pub(super) waker: Option<Waker>,
}

impl SimNetwork {
    /// Makes a network without nodes, whose every choice comes from `seed`.
    pub fn new(seed: u64, defaults: SimDefaults) -> SimNetwork {
        let state = SimState {
            rng: SmallRng::seed_from_u64(seed),
            defaults,
            cuts: BTreeSet::new(),
            alive: BTreeMap::new(),
            next: 0,
            doors: BTreeMap::new(),
            connections: BTreeMap::new(),
            counters: SimCounters::default(),
        };
        SimNetwork { state: Arc::new(Mutex::new(state)) }
    }

    /// Cuts (`on`) or mends the wire in the one direction `from` → `to`. Nothing breaks at once:
    /// what is sent waits, and connections break when the user timeout has passed.
    pub fn partition(&self, from: NodeId, to: NodeId, on: bool) {
        let mut state = self.lock();
        if on {
            state.cuts.insert((from, to));
        } else {
            state.cuts.remove(&(from, to));
            state.forgive();
        }
    }

    /// Mends every cut and stops losing packets.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.cuts.clear();
        state.defaults.losses_per_million = 0;
        state.forgive();
    }

    /// Loses so many of a million packets from now on; each loss breaks its connection.
    pub fn lose(&self, losses_per_million: u32) {
        self.lock().defaults.losses_per_million = losses_per_million;
    }

    /// Delays and loses as `defaults` say from now on.
    pub fn behave(&self, defaults: SimDefaults) {
        self.lock().defaults = defaults;
    }

    /// Ends a node's part in the network: its addresses are free, its connections break, and its
    /// [`Network`](super::Network)s never send again. Of what it had sent, some still arrives.
    pub fn crash(&self, node: NodeId) {
        let mut state = self.lock();
        state.alive.retain(|_, of| *of != node);
        let SimState { alive, doors, .. } = &mut *state;
        doors.retain(|_, door| alive.contains_key(&door.end));
        let words = "the machine went down";
        state.break_where(words, |connection| connection.has(node), Some(node));
    }

    /// Ends a node's part in the network like [`crash`](SimNetwork::crash), but tells nobody, as a
    /// power cut does: the other ends of its connections find out when what they send is not
    /// acknowledged within the user timeout, when the machine is back and knows nothing of them, or
    /// by keepalive.
    pub fn power_off(&self, node: NodeId) {
        let mut state = self.lock();
        state.alive.retain(|_, of| *of != node);
        let SimState { alive, doors, connections, counters, .. } = &mut *state;
        doors.retain(|_, door| alive.contains_key(&door.end));
        let mut dark = Vec::new();
        for (number, connection) in connections.iter_mut() {
            if connection.has(node) && !connection.is_over() {
                counters.dropped += connection.darken(node);
                dark.push(*number);
            }
        }
        drop(state);
        let network = self.clone();
        drop(runtime::life::spawn_in_the_world(async move {
            runtime::sleep(KEEPALIVE).await;
            for number in dark {
                network.lock().break_connection(number, io::ErrorKind::TimedOut, "keepalive");
            }
        }));
    }

    /// Breaks every connection between two nodes, as a router that forgets them does.
    pub fn break_connections(&self, one: NodeId, other: NodeId) {
        let chosen = |connection: &Connection| connection.has(one) && connection.has(other);
        self.lock().break_where("connection reset", chosen, None);
    }

    /// Returns what the network has done so far.
    pub fn counters(&self) -> SimCounters {
        self.lock().counters
    }

    /// Returns how many connections are established now.
    pub fn connections(&self) -> usize {
        self.lock().connections.values().filter(|connection| !connection.is_over()).count()
    }

    /// Adds an end of the wire.
    pub(super) fn join(&self, node: NodeId, user_timeout: Duration) -> Transport {
        let mut state = self.lock();
        let end = state.number();
        state.alive.insert(end, node);
        drop(state);
        Transport { network: self.clone(), end, node, user_timeout }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SimState> {
        self.state.lock()
    }
}

impl SimState {
    /// Returns a number never returned before.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Fails for an end of the wire whose node has crashed.
    pub(super) fn check_alive(&self, end: u64) -> io::Result<()> {
        if self.alive.contains_key(&end) {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::NetworkDown, "this machine is down"))
        }
    }

    /// Whether nothing passes from one node to another now.
    pub(super) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Draws the delay of one packet.
    pub(super) fn draw_delay(&mut self) -> Duration {
        let SimDefaults { delay_min, delay_max, spikes_per_million, spike_max, .. } = self.defaults;
        let longest =
            if self.chance(spikes_per_million) { spike_max.max(delay_max) } else { delay_max };
        let (from, to) = (micros(delay_min), micros(longest));
        Duration::from_micros(self.rng.random_range(from..=to.max(from)))
    }

    /// Draws whether a packet is lost.
    pub(super) fn draw_loss(&mut self) -> bool {
        let losses = self.defaults.losses_per_million;
        losses > 0 && self.chance(losses)
    }

    fn chance(&mut self, per_million: u32) -> bool {
        self.rng.random_range(0..1_000_000_u32) < per_million
    }

    /// Whether a node has an end of the wire that is alive.
    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.alive.values().any(|of| *of == node)
    }

    /// Returns the node that listens at an address.
    pub(super) fn node_at(&self, addr: &str) -> Option<NodeId> {
        self.alive.get(&self.doors.get(addr)?.end).copied()
    }

    /// Breaks every connection that `chosen` picks. What was under way arrives or not, by lot;
    /// nothing arrives at, or is still read by, the node that is `down`.
    fn break_where(
        &mut self,
        words: &'static str,
        chosen: impl Fn(&Connection) -> bool,
        down: Option<NodeId>,
    ) {
        let numbers: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| chosen(connection))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            for side in [Side::Caller, Side::Server] {
                let arrives = self.rng.random_range(0..2_u32) == 0;
                let Some(connection) = self.connections.get_mut(&number) else {
                    continue;
                };
                if Some(connection.node(side.other())) == down {
                    self.counters.dropped += connection.stream(side).throw_away();
                } else if arrives {
                    self.flush_now(number, side);
                }
            }
            self.break_connection(number, io::ErrorKind::ConnectionReset, words);
        }
    }

    /// Lets everything that one side has sent arrive at once, if it can arrive at all.
    fn flush_now(&mut self, number: u64, side: Side) {
        let cuts = &self.cuts;
        if let Some(connection) = self.connections.get_mut(&number) {
            let (from, to) = (connection.node(side), connection.node(side.other()));
            if !cuts.contains(&(from, to)) {
                let (packets, bytes) = connection.arrive_all(side);
                self.counters.delivered += packets;
                self.counters.bytes += bytes;
            }
        }
    }

    /// Breaks one connection on both sides. What has arrived can still be read.
    pub(super) fn break_connection(
        &mut self,
        number: u64,
        kind: io::ErrorKind,
        words: &'static str,
    ) {
        if let Some(connection) = self.connections.get_mut(&number)
            && let Some(dropped) = connection.break_off(kind, words)
        {
            self.counters.broken += 1;
            self.counters.dropped += dropped;
        }
        self.bury(number);
    }

    /// Forgets a connection that both sides have let go of and nothing is under way on.
    pub(super) fn bury(&mut self, number: u64) {
        if self.connections.get(&number).is_some_and(Connection::is_forgotten) {
            self.connections.remove(&number);
        }
    }

    /// Acknowledgements pass again in every direction that is not cut.
    fn forgive(&mut self) {
        let cuts = &self.cuts;
        for connection in self.connections.values_mut() {
            connection.acknowledge(|from, to| !cuts.contains(&(from, to)));
        }
    }
}

/// Returns the present moment.
pub(super) fn present() -> Instant {
    runtime::now()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
