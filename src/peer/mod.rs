//! Connections between nodes: framing, deadlines, the handshake, and the simulated network.
//!
//! A [`Network`] is one node's end of the wire. It gives out [`Link`]s (calls go out in order and
//! each is answered, refused, or failed by its deadline) and it listens for the links of others,
//! whose calls it hands to a [`Conversation`] in order of arrival. One connection belongs to one
//! (shard, lane), so that its I/O runs on that shard's own runtime without a hop between threads.
//!
//! It promises that a call's outcome is never flattered: only [`PeerError::NotSent`],
//! [`PeerError::Refused`], [`PeerError::TooLarge`] and [`PeerError::Deadline`] with `sent: false`
//! mean that the peer did nothing (law 6). It never retries a call, never looks into a body, and
//! lets nobody above this room see a socket.
//!
//! In a simulated build the same frames, handshakes, queues and deadlines run over `SimNetwork`'s
//! sockets instead of the kernel's; nothing else differs.

mod call;
mod counters;
mod exchange;
mod frame;
mod greeting;
mod hello;
mod limits;
mod link;
mod listener;
mod outbox;
mod service;
mod serving;
#[cfg(feature = "sim")]
mod sim;
#[cfg(feature = "sim")]
mod sim_socket;
#[cfg(feature = "sim")]
mod sim_wire;
mod stop;
#[cfg(not(feature = "sim"))]
mod tcp;
mod timer;

#[cfg(feature = "sim")]
use sim as transport;
#[cfg(not(feature = "sim"))]
use tcp as transport;

use std::io;
use std::sync::Arc;

pub use call::{PeerError, Pending};
pub use counters::PeerCounters;
pub use hello::{Address, HELLO_VERSION, Hello, Lane, LocalIdentity, PeerId};
pub use limits::{LaneBytes, PeerLimits};
pub use link::Link;
pub use listener::Listener;
pub use service::{Conversation, Opened, ReplyTo, Service, Spawner};
#[cfg(feature = "sim")]
pub use sim::{SimCounters, SimDefaults, SimNetwork};

use crate::ledger::ShardId;
use counters::Counters;

/// One node's end of the wire. Clones share their counters.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

/// What every link, listener and connection of one node shares.
struct Inner {
    transport: transport::Transport,
    local: LocalIdentity,
    limits: PeerLimits,
    counters: Counters,
}

impl Network {
    /// Makes the end of the wire of a node that talks TCP.
    #[cfg(not(feature = "sim"))]
    pub fn tcp(local: LocalIdentity, limits: PeerLimits) -> Network {
        Network::new(tcp::Transport::new(&limits), local, limits)
    }

    /// Makes the end of the wire of a simulated node. After [`SimNetwork::crash`] it is dead for
    /// ever; the node that starts again makes another one.
    #[cfg(feature = "sim")]
    pub fn sim(network: &SimNetwork, local: LocalIdentity, limits: PeerLimits) -> Network {
        let transport = network.join(local.id.node, limits.tcp_user_timeout);
        Network::new(transport, local, limits)
    }

    fn new(transport: transport::Transport, local: LocalIdentity, limits: PeerLimits) -> Network {
        let inner = Inner { transport, local, limits, counters: Counters::default() };
        Network { inner: Arc::new(inner) }
    }

    /// Returns a link to a peer. Nothing is dialled before its first call.
    ///
    /// `shard` is `None` on the forward lane only.
    pub fn link(&self, to: Address, shard: Option<ShardId>, lane: Lane) -> Link {
        Link::new(Arc::clone(&self.inner), to, shard, lane)
    }

    /// Listens on `addr` (`host:port`; in the simulator any string) and opens a conversation with
    /// the service for each connection whose hello passes.
    ///
    /// Connections are accepted, and greeted, on the runtime of the thread that calls this.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound.
    pub async fn listen(&self, addr: &str, service: Arc<dyn Service>) -> io::Result<Listener> {
        Listener::bind(Arc::clone(&self.inner), addr, service).await
    }

    /// Returns who this node says it is.
    pub fn local(&self) -> &LocalIdentity {
        &self.inner.local
    }

    /// Returns the bounds that this node keeps.
    pub fn limits(&self) -> &PeerLimits {
        &self.inner.limits
    }

    /// Returns what this node's connections have counted since it was made.
    pub fn counters(&self) -> PeerCounters {
        self.inner.counters.read()
    }
}
