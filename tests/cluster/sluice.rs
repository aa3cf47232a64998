//! A sluice in front of each node's peer port: it lets connections between nodes through, or cuts
//! those of one shard, while the nodes and their other shards go on.
//!
//! The nodes know each other by the sluices' addresses. Each connection says in its first frame
//! which shard it is for.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast::peer::Hello;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Fleet, Plan};

/// Bytes of a frame's header, and where in it the length of the body stands.
const HEADER_BYTES: usize = 24;
const LENGTH_AT: std::ops::Range<usize> = 16..20;
/// Bytes behind a frame's body.
const TRAILER_BYTES: usize = 4;

/// The sluices of a cluster. Dropped, they cut everything.
///
/// They have a thread of their own: a test blocks its own while a command runs.
#[derive(Debug)]
pub(crate) struct Sluices {
    shut: watch::Sender<BTreeSet<u16>>,
}

impl Sluices {
    /// Starts a cluster whose nodes talk through sluices.
    pub(crate) async fn start(plan: Plan) -> (Fleet, Sluices) {
        let mut fleet = Fleet::prepare(plan);
        let (shut, seen) = watch::channel(BTreeSet::new());
        let mut ports = Vec::new();
        for id in fleet.ids() {
            let peer = fleet.peer(id);
            let listener = std::net::TcpListener::bind((peer.ip(), 0)).expect("a free port");
            listener.set_nonblocking(true).expect("a socket of ours");
            let address = listener.local_addr().expect("it is bound");
            fleet.set_on(id, "peer.advertise", address);
            ports.push((listener, peer));
        }
        std::thread::spawn(move || serve_all(ports, seen));
        fleet.unite().await;
        (fleet, Sluices { shut })
    }

    /// Cuts all connections of a shard, those to come too.
    pub(crate) fn shut(&self, shard: u16) {
        self.shut.send_modify(|shut| {
            shut.insert(shard);
        });
    }

    /// Lets a shard's connections through again.
    pub(crate) fn open(&self, shard: u16) {
        self.shut.send_modify(|shut| {
            shut.remove(&shard);
        });
    }
}

/// Serves until the test has ended.
fn serve_all(
    ports: Vec<(std::net::TcpListener, SocketAddr)>,
    mut shut: watch::Receiver<BTreeSet<u16>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("an event loop").block_on(async {
        let mut serving = JoinSet::new();
        for (listener, peer) in ports {
            let listener = TcpListener::from_std(listener).expect("it does not block");
            serving.spawn(serve(listener, peer, shut.clone()));
        }
        // It never holds: the wait ends with the sluices.
        let _ = shut.wait_for(|_| false).await;
    });
}

async fn serve(listener: TcpListener, node: SocketAddr, shut: watch::Receiver<BTreeSet<u16>>) {
    let mut connections = JoinSet::new();
    while let Ok((caller, _)) = listener.accept().await {
        let shut = shut.clone();
        connections.spawn(async move {
            // However it ends, both ends are closed: that is all that a sluice tells.
            let _ = carry(caller, node, shut).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(
    mut caller: TcpStream,
    node: SocketAddr,
    mut shut: watch::Receiver<BTreeSet<u16>>,
) -> std::io::Result<()> {
    let mut hello = vec![0; HEADER_BYTES];
    caller.read_exact(&mut hello).await?;
    let length = hello[LENGTH_AT].try_into().map(u32::from_le_bytes).expect("four bytes");
    let body = HEADER_BYTES..HEADER_BYTES + usize::try_from(length).expect("a small frame");
    hello.resize(body.end + TRAILER_BYTES, 0);
    caller.read_exact(&mut hello[HEADER_BYTES..]).await?;
    let said: Hello = holdfast::codec::decode(&hello[body]).expect("a hello");
    let mut callee = TcpStream::connect(node).await?;
    caller.set_nodelay(true)?;
    callee.set_nodelay(true)?;
    let cut = async {
        let is_shut = |shut: &BTreeSet<u16>| said.shard.is_some_and(|one| shut.contains(&one.0));
        // The sluices are gone: so is this.
        let _ = shut.wait_for(is_shut).await;
    };
    tokio::select! {
        biased;
        () = cut => Ok(()),
        done = async {
            callee.write_all(&hello).await?;
            tokio::io::copy_bidirectional(&mut caller, &mut callee).await.map(|_| ())
        } => done,
    }
}
