//! What the tests of this room and of the shard stand on: a replica's storage at a site that
//! survives the "process", and histories to put there.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::type_config::alias::{EntryOf, StoredMembershipOf};
use openraft::{EntryPayload, Membership};

use super::checkpointing::make_checkpoint;
use super::entry::{Applied, Member, TypeConfig, log_id_of, to_log};
use super::group::Group;
use super::machine::Machine;
use super::network::PeerBook;
use super::packing::{EntryBuilder, packed};
use super::replica::Replica;
use super::start::{Loaded, StartError, StartOptions, prepare, start_group};
use crate::ledger::{
    Command, Define, Definition, ItemName, LeaderId, Ledger, LogIndex, NodeId, SchemaRange,
    SchemaVersion, Settings, ShardId, UnixMs,
};
use crate::peer::{LocalIdentity, Network, PeerId, PeerLimits};
use crate::runtime;
use crate::storage::pages::{PageStore, SimPages};
use crate::storage::{
    Checkpoints, Disk, LogError, LogOptions, LogPosition, NodeLog, Origin, PageDesk, ShardLog,
    SimDisk,
};

pub(crate) const CLUSTER: [u8; 16] = [3; 16];
pub(crate) const SHARD: ShardId = ShardId(0);

/// Runs a test's future on a thread of the runtime that this build's shards run on.
#[cfg(not(feature = "sim"))]
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Runs a test's future on a thread of the runtime that this build's shards run on.
#[cfg(feature = "sim")]
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    use openraft_rt::AsyncRuntime;
    crate::runtime::Rt::new(1).block_on(future)
}

/// Waits until something is so, for at most ten seconds.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = runtime::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(runtime::now() < deadline, "{what} did not come about in time");
        runtime::yield_now().await;
    }
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
        chunk_timeout: Duration::from_secs(10),
        electable: true,
        fetch_max: Duration::ZERO,
        reads: SchemaRange::up_to(SchemaVersion::NEWEST),
    }
}

fn log_options() -> LogOptions {
    LogOptions { segment_bytes: 256 << 10, payload_bytes_max: 128 << 10, ..LogOptions::default() }
}

/// Where a replica's files are.
pub(crate) struct Site {
    pub(crate) node: NodeId,
    disk: Arc<dyn Disk>,
    pages: Arc<dyn PageStore>,
    #[cfg_attr(feature = "sim", allow(dead_code))]
    model: Option<SimPages>,
    dir: PathBuf,
    _files: Option<tempfile::TempDir>,
}

impl Site {
    /// Makes a site on models that can be damaged.
    pub(crate) fn simulated(node: NodeId, disk: &SimDisk, pages: &SimPages) -> Site {
        let (disk, model) = (disk.mount(), Some(pages.clone()));
        let pages = Arc::new(pages.clone());
        Site { node, disk, pages, model, dir: PathBuf::from("/n"), _files: None }
    }

    /// Damages both databases of a site on models.
    #[cfg(not(feature = "sim"))]
    pub(crate) fn damage(&self, damage: crate::storage::pages::sim_store::SimDamage) {
        let model = self.model.as_ref().expect("a site on models");
        model.damage(crate::ledger::Turn::A, damage);
        model.damage(crate::ledger::Turn::B, damage);
    }

    /// Makes a site on the real disk and sled.
    #[cfg(not(feature = "sim"))]
    pub(crate) fn real(node: NodeId) -> Site {
        let files = tempfile::tempdir().expect("a temporary directory");
        let dir = files.path().to_owned();
        let pages = crate::storage::pages::SledPages::new(dir.join("shard-0")).expect("sled");
        let disk = Arc::new(crate::storage::RealDisk);
        let pages = Arc::new(pages);
        Site { node, disk, pages, model: None, dir, _files: Some(files) }
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
        Arc::new(Replica::new(SHARD, settings(), ledger, None, membership, LogIndex(0)))
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
        assert!(builder.push(&packed(define(item(index), 10 + term))));
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
            replica.apply_batch(at, &payload.batch().expect("a batch"), payload.0.len(), true)
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

/// A group with one replica, on models.
pub(crate) struct Alone {
    pub(crate) group: Group,
    _log: NodeLog,
}

impl Alone {
    /// Starts and founds it, and waits until it leads.
    pub(crate) async fn start() -> Alone {
        let node = NodeId(1);
        let site = Site::simulated(node, &SimDisk::new(), &SimPages::new(1));
        let opened = site.open().await.expect("a new site opens");
        let voters = BTreeMap::from([(node, member(node, "127.0.0.1:1"))]);
        let options = options(node, PeerBook::new(voters.clone()));
        let (log, desk) = (opened.shard_log(), opened.desk.clone());
        let started = start_group(log, opened.checkpoints, desk, network(node), options);
        let group = started.await.expect("it starts");
        group.found(voters).await.expect("it is founded");
        let is_led = || {
            let applied = group.replica().read().applied.map(|at| at.leader);
            group.leadership().is_some_and(|own| own.acked.is_some() && applied == Some(own.id))
        };
        until("leadership", is_led).await;
        Alone { group, _log: opened.log }
    }

    /// Puts commands into the log past every gate.
    pub(crate) async fn apply(&self, commands: &[Command]) -> Applied {
        let mut builder = EntryBuilder::new(64 << 10);
        for command in commands {
            assert!(builder.push(&packed(command.clone())));
        }
        let leader = self.group.leadership().expect("it leads").id;
        let now = self.group.replica().read().ledger.now();
        let proposal = self.group.propose(builder.finish(UnixMs(now.0 + 1)), leader).await;
        proposal.expect("it is proposed").await.expect("it is applied")
    }
}

/// A member of a group of three that speak over the loopback.
#[cfg(not(feature = "sim"))]
pub(crate) struct Seat {
    pub(crate) node: NodeId,
    pub(crate) group: Group,
    pub(crate) network: Network,
    listener: crate::peer::Listener,
    log: NodeLog,
    site: Site,
}

#[cfg(not(feature = "sim"))]
struct Peers {
    group: Group,
    desk: PageDesk,
    forward: Forward,
}

/// Opens conversations of the forward lane, for the room above.
#[cfg(not(feature = "sim"))]
pub(crate) type ForwardsOf = Box<dyn Fn() -> Box<dyn crate::peer::Conversation> + Send + Sync>;
/// Where a seat finds how to answer forwarded questions.
#[cfg(not(feature = "sim"))]
pub(crate) type Forward = Arc<parking_lot::Mutex<Option<ForwardsOf>>>;

#[cfg(not(feature = "sim"))]
impl crate::peer::Service for Peers {
    fn open(&self, hello: &crate::peer::Hello) -> Result<crate::peer::Opened, String> {
        use super::serving::{RaftConversation, SnapshotConversation};
        use crate::peer::Lane;
        let conversation: Box<dyn crate::peer::Conversation> = match hello.lane {
            Lane::Forward => match &*self.forward.lock() {
                Some(open) => open(),
                None => return Err("nobody answers here yet".to_owned()),
            },
            Lane::Snapshot => Box::new(SnapshotConversation::new(&self.group, self.desk.clone())),
            Lane::Vote | Lane::Append => Box::new(RaftConversation::new(&self.group)),
        };
        let spawner: crate::peer::Spawner = Arc::new(|work| drop(runtime::spawn(work)));
        Ok(crate::peer::Opened { conversation, spawner })
    }
}

/// A group of three on the loopback, on one thread.
#[cfg(not(feature = "sim"))]
pub(crate) struct Three {
    pub(crate) seats: Vec<Seat>,
    /// How each seat answers forwarded questions, by its place.
    pub(crate) forwards: Vec<Forward>,
    pub(crate) book: PeerBook,
}

#[cfg(not(feature = "sim"))]
impl Three {
    /// Starts three replicas; the first founds the group.
    pub(crate) async fn start() -> Three {
        let nodes = [1, 2, 3].map(NodeId);
        let mut three =
            Three { seats: Vec::new(), forwards: Vec::new(), book: PeerBook::default() };
        let mut members = BTreeMap::new();
        for node in nodes {
            let site = Site::simulated(node, &SimDisk::new(), &SimPages::new(node.0));
            let forward = Arc::default();
            let seat = Seat::open(site, "127.0.0.1:0", PeerBook::default(), &forward).await;
            members.insert(node, member(node, seat.listener.local_addr()));
            three.seats.push(seat);
            three.forwards.push(forward);
        }
        three.book = PeerBook::new(members.clone());
        three.seats[0].group.found(members).await.expect("it is founded");
        three.led().await;
        three
    }

    /// Stops the replica at this place, lets `change` see to its files, and starts it again.
    pub(crate) async fn restart(&mut self, place: usize, change: impl AsyncFnOnce(&Three, &Site)) {
        let seat = self.seats.remove(place);
        let addr = seat.listener.local_addr().to_owned();
        let site = seat.stop().await;
        change(self, &site).await;
        let forward = Arc::clone(&self.forwards[place]);
        let seat = Seat::open(site, &addr, self.book.clone(), &forward).await;
        self.seats.insert(place, seat);
    }

    /// Waits until one leads with a fresh quorum and an entry of its own, and returns its place.
    pub(crate) async fn led(&self) -> usize {
        let place = || {
            self.seats.iter().position(|seat| {
                let applied = seat.group.replica().read().applied.map(|at| at.leader);
                let leads = seat.group.leadership();
                leads.is_some_and(|own| own.acked.is_some() && applied == Some(own.id))
            })
        };
        until("a leader", || place().is_some()).await;
        place().expect("just seen")
    }

    /// Waits until everybody has applied what the leader has.
    pub(crate) async fn agreed(&self) {
        let applied = |seat: &Seat| seat.group.replica().read().applied;
        until("agreement", || {
            let first = applied(&self.seats[0]);
            self.seats.iter().all(|seat| applied(seat) == first)
        })
        .await;
    }
}

#[cfg(not(feature = "sim"))]
impl Seat {
    /// Starts a replica at a site.
    async fn open(site: Site, addr: &str, book: PeerBook, forward: &Forward) -> Seat {
        let node = site.node;
        let opened = site.open().await.expect("the site opens");
        let network = network(node);
        let mut options = options(node, book);
        options.fetch_max = Duration::from_secs(10);
        let (log, desk) = (opened.shard_log(), opened.desk.clone());
        let started = start_group(log, opened.checkpoints, desk.clone(), network.clone(), options);
        let group = started.await.expect("it starts");
        let service = Peers { group: group.clone(), desk, forward: Arc::clone(forward) };
        let listener = network.listen(addr, Arc::new(service)).await.expect("the port is free");
        Seat { node, group, network, listener, log: opened.log, site }
    }

    /// Stops the replica and returns where its files are.
    pub(crate) async fn stop(self) -> Site {
        self.listener.close();
        self.listener.released().await;
        self.group.shutdown().await;
        self.group.checkpoints().settle().await.expect("the desk is there");
        self.log.close().await.expect("the log closes");
        self.site
    }
}

/// Puts a command into the log through the leader.
#[cfg(not(feature = "sim"))]
pub(crate) async fn apply_on(group: &Group, command: &Command) -> Applied {
    let mut builder = EntryBuilder::new(64 << 10);
    assert!(builder.push(&packed(command.clone())));
    let leader = group.leadership().expect("it leads").id;
    let now = group.replica().read().ledger.now();
    let proposal = group.propose(builder.finish(UnixMs(now.0 + 1)), leader).await;
    proposal.expect("it is proposed").await.expect("it is applied")
}
