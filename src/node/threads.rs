//! A real node on its threads: some for the shards, one or more for HTTP, one that keeps the house.
//!
//! Each thread has a single-threaded runtime of its own, so a shard's Raft core, batcher and apply
//! never wait for HTTP, and watchdogs never run on the thread that they watch. Shards share threads
//! when there are fewer cores: then one turn of an event loop does the work of several, instead of
//! several threads that wake each other for it. The log and the pages have threads of their own in
//! `storage/`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use super::NodeError;
use super::announcement::announce;
use super::counter::Counter;
use super::memory::warm;
use super::office::{Ended, Office};
use super::parts::{NetworkOf, Parts, sled_pages};
use crate::clock::WallClock;
use crate::config::Config;
use crate::http;
use crate::ledger::ShardId;
use crate::peer::{LaneBytes, Network, PeerLimits, Spawner};
#[cfg(feature = "sim")]
use crate::peer::{SimDefaults, SimNetwork};
use crate::runtime;
use crate::storage::visit::RETIRED_FILE;
use crate::storage::{Ballast, DataDir, PageDesk, RealDisk};

/// A running node of this process.
pub struct Node {
    office: Arc<Office>,
    /// Says that HTTP ends.
    stop: watch::Sender<bool>,
    http: Vec<std::thread::JoinHandle<()>>,
    drain_max: Duration,
    _data_dir: DataDir,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("office", &self.office).finish_non_exhaustive()
    }
}

/// How long each of the two ends of a shutdown may take: the handing over, and the stop of the
/// shards.
const PART_MAX: Duration = Duration::from_millis(900);
/// How much longer than they promise the HTTP threads may take.
const GRACE: Duration = Duration::from_millis(200);

fn event_loop() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Starts a thread with a runtime of its own, which lives as long as the process.
fn thread(name: String, warm_bytes: u64) -> std::io::Result<Spawner> {
    let (ready, handle) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name(name).spawn(move || {
        let _stays_taken = warm(warm_bytes);
        let made = event_loop();
        let handle = made.as_ref().map(|runtime| runtime.handle().clone());
        let told = ready
            .send(handle.map_err(|error| std::io::Error::new(error.kind(), error.to_string())));
        if let (Ok(()), Ok(runtime)) = (told, made) {
            runtime.block_on(std::future::pending::<()>());
        }
    })?;
    let handle = handle.recv().map_err(std::io::Error::other)??;
    Ok(spawner(handle))
}

/// How many threads carry so many shards: as many as are wanted, or as there are cores, and never
/// more than shards.
fn seats_for(wanted: u16, shards: u16) -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = u16::try_from(cores).unwrap_or(u16::MAX);
    let wanted = if wanted > 0 { wanted } else { cores };
    wanted.min(shards).max(1)
}

/// The threads of the shards, each started when its first shard is.
struct Seats {
    threads: u16,
    /// Memory that each touches at its start.
    warm_bytes: u64,
    taken: Mutex<BTreeMap<u16, Spawner>>,
}

impl Seats {
    fn of(&self, shard: ShardId) -> std::io::Result<Spawner> {
        let at = shard.0 % self.threads;
        let mut taken = self.taken.lock();
        if let Some(thread) = taken.get(&at) {
            return Ok(Arc::clone(thread));
        }
        let thread = thread(format!("shard-{at}"), self.warm_bytes)?;
        taken.insert(at, Arc::clone(&thread));
        Ok(thread)
    }
}

fn spawner(handle: Handle) -> Spawner {
    Arc::new(move |work| {
        handle.spawn(work);
    })
}

impl Node {
    /// Starts a node on threads of its own. Must be called on a tokio runtime, which keeps the
    /// node's house: the peer port, the changes of what the node is.
    ///
    /// # Errors
    ///
    /// [`NodeError`], in words that say what mends it.
    pub async fn start(config: Config) -> Result<Node, NodeError> {
        if cfg!(feature = "sim") {
            let words = "this binary was built for the simulator, which runs no real node";
            return Err(NodeError::Mismatch(words.to_owned()));
        }
        let data_dir = DataDir::lock(config.node.data_dir.clone())?;
        if data_dir.path().join(RETIRED_FILE).exists() {
            return Err(NodeError::Retired { dir: data_dir.path().to_path_buf() });
        }
        let listener = listeners(&config)?;
        let disk: Arc<RealDisk> = Arc::new(RealDisk);
        let ballast = Ballast::new(
            Arc::clone(&disk) as Arc<dyn crate::storage::Disk>,
            config.node.data_dir.clone(),
            config.log.ballast_bytes,
        );
        if let Err(error) = ballast.restore() {
            tracing::warn!(%error, "no ballast: a full disk will have no room for a checkpoint");
        }
        let desk = PageDesk::start().map_err(|e| NodeError::io("the pages' thread", e))?;
        let limits = peer_limits(&config);
        let threads = seats_for(config.node.shard_threads, config.cluster.shards);
        let warm_bytes = config.memory.warm_bytes / u64::from(threads);
        let seats = Seats { threads, warm_bytes, taken: Mutex::default() };
        let parts = Parts {
            disk,
            pages: Arc::new(sled_pages),
            desk,
            network: wire(limits),
            clock: WallClock::system(),
            place: Arc::new(move |shard| seats.of(shard)),
            random: Arc::new(rand::random),
        };
        let (stop, stopped) = watch::channel(false);
        let house = spawner(Handle::current());
        let office = Office::open(config.clone(), parts, Arc::clone(&house)).await?;
        house(Box::pin(announce(Arc::downgrade(&office))));
        let front = http::Front::new(Arc::new(Counter(Arc::clone(&office))), http_limits(&config));
        let mut threads = Vec::new();
        let connections = front.connections();
        for at in 0..config.http.thread_count() {
            let socket = listener.try_clone().map_err(|e| NodeError::io("the HTTP socket", e))?;
            let router = http::router(&front);
            let (limits, connections) = (http_limits(&config), connections.clone());
            let mut stopped = stopped.clone();
            let work = async move {
                let stop = async move {
                    stopped.wait_for(|stop| *stop).await.ok();
                };
                if let Err(error) = http::serve(socket, router, limits, connections, stop).await {
                    tracing::error!(%error, "an HTTP thread ended");
                }
            };
            let spawned = std::thread::Builder::new().name(format!("http-{at}")).spawn(move || {
                match event_loop() {
                    Ok(runtime) => runtime.block_on(work),
                    Err(error) => tracing::error!(%error, "an HTTP thread did not start"),
                }
            });
            threads.push(spawned.map_err(|e| NodeError::io("an HTTP thread", e))?);
        }
        let drain_max = Duration::from_millis(config.http.drain_ms);
        Ok(Node { office, stop, http: threads, drain_max, _data_dir: data_dir })
    }

    /// Returns the node's desk.
    pub fn office(&self) -> &Arc<Office> {
        &self.office
    }

    /// Waits until the node can do nothing any more for its cluster and its process should end.
    pub async fn failed(&self) -> Ended {
        let mut ended = self.office.ended();
        let fatal = ended.wait_for(|end| end.as_ref().is_some_and(|end| end.is_fatal)).await;
        match fatal.ok().and_then(|end| end.clone()) {
            Some(end) => end,
            // The office lives as long as this node.
            None => std::future::pending().await,
        }
    }

    /// Stops the node: hands leaderships over, answers what is under way, within `http.drain_ms`
    /// and two seconds.
    pub async fn shutdown(self) {
        if runtime::timeout(PART_MAX, self.office.drain()).await.is_err() {
            tracing::warn!("a leadership was not handed over in time");
        }
        self.stop.send_replace(true);
        let threads = self.http;
        let (done, joined) = tokio::sync::oneshot::channel();
        // Ends with the process when a thread does not end in time.
        std::thread::spawn(move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("an HTTP thread had panicked");
                }
            }
            done.send(()).ok();
        });
        if runtime::timeout(self.drain_max + GRACE, joined).await.is_err() {
            tracing::warn!("requests were still under way when the node stopped");
        }
        if runtime::timeout(PART_MAX, self.office.stop()).await.is_err() {
            tracing::warn!("the node's part did not stop in time");
        }
    }
}

/// The kernel's sockets.
#[cfg(not(feature = "sim"))]
fn wire(limits: PeerLimits) -> NetworkOf {
    Arc::new(move |local| Network::tcp(local, limits.clone()))
}

/// A wire with nobody on it: [`Node::start`] refuses to run in a simulated build.
#[cfg(feature = "sim")]
fn wire(limits: PeerLimits) -> NetworkOf {
    let nobody = SimNetwork::new(0, SimDefaults::default());
    Arc::new(move |local| Network::sim(&nobody, local, limits.clone()))
}

/// Opens the HTTP port and makes sure that the peer port can be opened, which an empty node does
/// only when it belongs to a cluster.
fn listeners(config: &Config) -> Result<TcpListener, NodeError> {
    let unusable = |key: &str, address: SocketAddr, error| {
        let words = format!(
            "cannot listen on {address}: stop what listens there, or change the key `{key}`"
        );
        NodeError::io(words, error)
    };
    let (peer, http) = (config.peer.listen, config.http.listen);
    let tried = bind_only(peer).map_err(|error| unusable("peer.listen", peer, error))?;
    let listener = http::listen(http).map_err(|error| unusable("http.listen", http, error))?;
    if let Ok(bound) = listener.local_addr() {
        tracing::info!("HTTP on {bound}, told to others as {}", config.http.advertised());
    }
    tracing::info!("peers on {peer}, told to others as {}", config.peer.advertised());
    drop(tried);
    Ok(listener)
}

/// Takes an address and does not listen there: a peer that came now would be let in and dropped.
fn bind_only(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn peer_limits(config: &Config) -> PeerLimits {
    let ms = Duration::from_millis;
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let peer = &config.peer;
    /// Room for what stands around the entries or pages of a message.
    const AROUND: u64 = 64 << 10;
    PeerLimits {
        frame_bytes_max: LaneBytes {
            append: bytes(peer.append_bytes_max + config.batch.entry_bytes_max + AROUND),
            snapshot: bytes(peer.chunk_bytes_max + AROUND),
            forward: bytes(peer.frame_bytes_max),
            ..PeerLimits::default().frame_bytes_max
        },
        connect_timeout: ms(peer.connect_timeout_ms),
        handshake_timeout: ms(peer.handshake_timeout_ms),
        tcp_user_timeout: ms(peer.tcp_user_timeout_ms),
        in_flight_max: peer.in_flight_max,
        queue_max: peer.queue_max,
        queue_bytes_max: bytes(peer.queue_bytes_max),
        accepted_max: peer.connections_max,
        ..PeerLimits::default()
    }
}

fn http_limits(config: &Config) -> http::Limits {
    let ms = Duration::from_millis;
    let http = &config.http;
    http::Limits {
        body_bytes_max: usize::try_from(http.body_bytes_max).unwrap_or(usize::MAX),
        body_timeout: ms(http.body_timeout_ms),
        header_timeout: ms(http.header_timeout_ms),
        idle_timeout: ms(http.idle_timeout_ms),
        connections_max: http.connections_max,
        drain_max: ms(http.drain_ms),
        ..http::Limits::default()
    }
}
