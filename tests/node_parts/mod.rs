//! What the tests of whole nodes in this process share: what a node is made of, how it is adopted,
//! and patience.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use holdfast::clock::WallClock;
use holdfast::ledger::{NodeId, Settings};
use holdfast::node::{Counter, Parts, sled_pages};
use holdfast::peer::{Network, PeerLimits, Spawner};
use holdfast::shard::{Adopt, Desk, MemberSpec};
use holdfast::storage::{Disk, PageDesk};

/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs everything on the test's own thread.
pub(crate) fn spawner() -> Spawner {
    let handle = tokio::runtime::Handle::current();
    Arc::new(move |work| {
        handle.spawn(work);
    })
}

/// A node on this disk, whose wall clock is the machine's plus `offset` ms.
pub(crate) fn parts(disk: Arc<dyn Disk>, offset: &Arc<AtomicI64>) -> Parts {
    Parts {
        disk,
        pages: Arc::new(sled_pages),
        desk: PageDesk::start().expect("a thread"),
        network: Arc::new(|local| Network::tcp(local, PeerLimits::default())),
        clock: WallClock::with_offset(Arc::clone(offset)),
        place: Arc::new(|_| Ok(spawner())),
        random: Arc::new(rand::random),
    }
}

/// A free port of a loopback address that no other test uses. Whoever connects to it there comes
/// from another address, so the kernel never connects a socket to itself while nobody listens.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, b, c, d] = std::process::id().wrapping_mul(64).wrapping_add(next).to_be_bytes();
    let own = TcpListener::bind((Ipv4Addr::new(127, b, c, d.clamp(2, 250)), 0));
    // Where only 127.0.0.1 is the loopback, that has to do.
    let bound = own.or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    bound.expect("a free port").local_addr().expect("bound")
}

/// What an empty node is told to be in a cluster of one shard, whose id is `cluster` 16 times.
pub(crate) fn offer(cluster: &str, node: u64) -> Adopt {
    let settings = Settings {
        shards: 1,
        tag_key: [7; 16],
        slots: 16,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 86_400_000,
    };
    Adopt { cluster_id: cluster.repeat(16), node: NodeId(node), settings }
}

/// Gives an empty node that identity.
pub(crate) async fn adopt(desk: &Counter, cluster: &str, node: u64) -> MemberSpec {
    let adopted = desk.adopt(offer(cluster, node)).await.expect("it takes an identity");
    MemberSpec {
        node: NodeId(node),
        log_uuid: adopted.log_uuid,
        peer_addr: adopted.peer_addr,
        http_addr: adopted.http_addr,
        region: adopted.region,
    }
}

/// Looks again and again until `look` finds something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it did not happen: {what}");
        holdfast::runtime::sleep(LOOK_EVERY).await;
    }
}
