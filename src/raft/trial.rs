//! What the tests of this room and of the shard stand on: a replica's storage at a site that survives
//! the "process", and histories to put there.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::type_config::alias::{EntryOf, StoredMembershipOf};
use openraft::{EntryPayload, Membership};
use openraft_rt::AsyncRuntime;

use super::checkpointing::make_checkpoint;
use super::entry::{EntryBuilder, Member, TypeConfig, log_id_of, to_log};
use super::machine::Machine;
use super::network::PeerBook;
use super::replica::Replica;
use super::start::{Loaded, StartError, StartOptions, prepare};
use crate::ledger::{
    Command, Define, Definition, ItemName, LeaderId, Ledger, LogIndex, NodeId, Settings, ShardId,
    UnixMs,
};
use crate::peer::{LocalIdentity, Network, PeerId, PeerLimits};
use crate::runtime::Rt;
use crate::storage::pages::{PageStore, SimPages};
use crate::storage::{
    Checkpoints, Disk, LogError, LogOptions, LogPosition, NodeLog, Origin, PageDesk, ShardLog,
    SimDisk,
};

pub(crate) const CLUSTER: [u8; 16] = [3; 16];
pub(crate) const SHARD: ShardId = ShardId(0);

/// Runs a test's future on the runtime that this build's nodes run on.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    Rt::new(1).block_on(future)
}

pub(crate) fn settings() -> Settings {
    Settings {
        shards: 1,
        tag_key: [9; 16],
        slots: 4,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 7_776_000_000,
    }
}

pub(crate) fn uuid(node: NodeId) -> [u8; 16] {
    [u8::try_from(node.0).expect("a small node id"); 16]
}

pub(crate) fn options(node: NodeId, peers: PeerBook) -> StartOptions {
    StartOptions {
        node,
        shard: SHARD,
        settings: settings(),
        peers,
        heartbeat: Duration::from_millis(50),
        election_min: Duration::from_millis(200),
        election_max: Duration::from_millis(400),
        append_bytes_max: 1 << 20,
        cut_pages: 2,
        electable: true,
        fetch_max: Duration::ZERO,
    }
}

fn log_options() -> LogOptions {
    LogOptions { segment_bytes: 256 << 10, payload_bytes_max: 128 << 10, ..LogOptions::default() }
}

/// Where a replica's files are.
pub(crate) struct Site {
    pub(crate) node: NodeId,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) pages: Arc<dyn PageStore>,
    dir: PathBuf,
    _files: Option<tempfile::TempDir>,
}

impl Site {
    /// Makes a site on models that can be damaged.
    pub(crate) fn simulated(node: NodeId, disk: &SimDisk, pages: &SimPages) -> Site {
        let (disk, pages) = (disk.mount(), Arc::new(pages.clone()));
        Site { node, disk, pages, dir: PathBuf::from("/n"), _files: None }
    }

    /// Makes a site on the real disk and sled.
    #[cfg(not(feature = "sim"))]
    pub(crate) fn real(node: NodeId) -> Site {
        let files = tempfile::tempdir().expect("a temporary directory");
        let dir = files.path().to_owned();
        let pages = crate::storage::pages::SledPages::new(dir.join("shard-0")).expect("sled");
        let disk = Arc::new(crate::storage::RealDisk);
        Site { node, disk, pages: Arc::new(pages), dir, _files: Some(files) }
    }

    /// Makes a site on what this build's nodes stand on.
    pub(crate) fn shipped() -> Site {
        #[cfg(not(feature = "sim"))]
        return Site::real(NodeId(1));
        #[cfg(feature = "sim")]
        return Site::simulated(NodeId(1), &SimDisk::new(), &SimPages::new(1));
    }

    fn log_dir(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Opens the site as a new process would; makes the log when there is none.
    pub(crate) async fn open(&self) -> Result<Opened, LogError> {
        let (disk, uuid) = (Arc::clone(&self.disk), uuid(self.node));
        let made = NodeLog::create(Arc::clone(&disk), &self.log_dir(), uuid, log_options());
        let log = match made {
            Ok(log) => log,
            Err(LogError::Exists { .. }) => {
                NodeLog::open(disk, &self.log_dir(), uuid, log_options())?
            }
            Err(error) => return Err(error),
        };
        let desk = PageDesk::start().expect("a desk");
        let origin = Origin::new(CLUSTER, &settings(), SHARD);
        let checkpoints = Checkpoints::open(Arc::clone(&self.pages), origin, desk.clone()).await;
        let checkpoints = checkpoints.expect("the databases open");
        Ok(Opened { node: self.node, log, checkpoints, desk })
    }
}

/// A site that is open.
pub(crate) struct Opened {
    pub(crate) node: NodeId,
    pub(crate) log: NodeLog,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) desk: PageDesk,
}

impl Opened {
    pub(crate) fn shard_log(&self) -> ShardLog {
        self.log.shard(SHARD)
    }

    pub(crate) fn empty_replica(&self) -> Arc<Replica> {
        let ledger = Ledger::new(SHARD, settings());
        let membership = StoredMembershipOf::<TypeConfig>::default();
        Arc::new(Replica::new(SHARD, settings(), ledger, None, membership))
    }

    pub(crate) fn machine(&self, replica: Arc<Replica>) -> Machine {
        Machine::new(replica, Arc::new(self.checkpoints.clone()), 2)
    }

    /// Appends an entry and waits until it is durable.
    pub(crate) async fn append(&self, entry: &EntryOf<TypeConfig>) {
        let (done, durable) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        let entry = to_log(entry).expect("it encodes");
        self.shard_log().append_when_room(vec![entry], done).await.expect("it is taken");
        durable.await.expect("the log answers").expect("it is durable");
    }

    /// Does what a start does before openraft sees anything.
    pub(super) async fn prepare(&self, options: &StartOptions) -> Result<Loaded, StartError> {
        let network = network(self.node);
        prepare(&self.shard_log(), &self.checkpoints, &self.desk, &network, options).await
    }

    /// Ends the "process" in order.
    pub(crate) async fn close(self) {
        self.checkpoints.settle().await.expect("the desk is there");
        self.log.close().await.expect("the log closes");
    }
}

#[cfg(not(feature = "sim"))]
pub(crate) fn network(node: NodeId) -> Network {
    let id = PeerId { node, log_uuid: uuid(node) };
    Network::tcp(LocalIdentity { cluster_id: CLUSTER, id }, PeerLimits::default())
}

#[cfg(feature = "sim")]
pub(crate) fn network(node: NodeId) -> Network {
    let id = PeerId { node, log_uuid: uuid(node) };
    let wire = crate::peer::SimNetwork::new(1, crate::peer::SimDefaults::default());
    Network::sim(&wire, LocalIdentity { cluster_id: CLUSTER, id }, PeerLimits::default())
}

pub(crate) fn member(node: NodeId, peer_addr: &str) -> Member {
    Member {
        log_uuid: uuid(node),
        peer_addr: peer_addr.to_owned(),
        http_addr: String::new(),
        region: String::new(),
    }
}

pub(crate) fn position(term: u64, index: u64) -> LogPosition {
    LogPosition { leader: LeaderId { term, node: NodeId(1) }, index: LogIndex(index) }
}

pub(crate) fn item(number: u64) -> ItemName {
    ItemName { tenant: "t".to_owned(), item: format!("i{number}") }
}

pub(crate) fn define(name: ItemName, total: u64) -> Command {
    Command::Define(Define {
        name,
        total: Some(total),
        regions: BTreeMap::new(),
        definition: Definition {
            rules: Default::default(),
            limit_per_buyer: None,
            opens_at: None,
            closes_at: None,
            metadata: BTreeMap::new(),
        },
        if_revision: None,
    })
}

/// Makes the entry of a history at `index`: the members first, then an item an entry.
pub(crate) fn entry(term: u64, index: u64) -> EntryOf<TypeConfig> {
    let payload = if index == 0 {
        let voters = BTreeSet::from([1, 2, 3]);
        let members: BTreeMap<u64, Member> =
            voters.iter().map(|node| (*node, member(NodeId(*node), "127.0.0.1:1"))).collect();
        EntryPayload::Membership(Membership::new(vec![voters], members).expect("voters"))
    } else {
        let mut builder = EntryBuilder::new(64 << 10);
        assert!(builder.push(&define(item(index), 10 + term)));
        EntryPayload::Normal(builder.finish(UnixMs(1_000 * index)))
    };
    EntryOf::<TypeConfig> { log_id: log_id_of(position(term, index)), payload }
}

/// Applies an entry as the state machine does.
pub(crate) fn apply(replica: &Replica, entry: &EntryOf<TypeConfig>) {
    let at = super::entry::position_of(&entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => replica.apply_blank(at),
        EntryPayload::Normal(payload) => {
            replica.apply_batch(at, &payload.batch().expect("a batch"), payload.0.len())
        }
        EntryPayload::Membership(membership) => {
            let id = Some(entry.log_id);
            let stored = StoredMembershipOf::<TypeConfig>::new(id, membership.clone());
            replica.apply_membership(at, stored)
        }
    };
    replica.announce(at);
}

/// Writes the checkpoint of `replica` into the site's next database.
pub(crate) async fn checkpoint(opened: &Opened, replica: &Replica) -> LogPosition {
    let made = make_checkpoint(replica, &opened.checkpoints, 2).await.expect("a checkpoint");
    made.expect("something is applied")
}
