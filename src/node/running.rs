//! A node that belongs to a cluster: its log, its shards, its peers.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::NodeError;
use super::clocks::{Clocks, NodeConversation};
use super::parts::Parts;
use crate::config::Config;
use crate::ledger::{NodeId, ShardId};
use crate::peer::{
    Conversation, Hello, Lane, Listener, LocalIdentity, Network, Opened, PeerId, Service, Spawner,
};
use crate::planted::{Fault, planted};
use crate::raft::{
    Group, Member, PeerBook, RaftConversation, SnapshotConversation, StartOptions, start_group,
};
use crate::runtime;
use crate::shard::{
    Abstaining, AgreedClock, Bar, ForwardConversation, Lobby, MemberSpec, Router, ShardLimits,
    ShardService, ThirstLimits, Turns, open_shard, uuid_bytes,
};
use crate::steward::{Balance, Comparison, Delivery, Resize, RunOut, Steward, StewardRules};
use crate::storage::{Ballast, Checkpoints, Identity, LogOptions, NodeLog, PageDesk};

/// A node's part in its cluster.
pub(super) struct Running {
    pub(super) identity: Identity,
    pub(super) router: Arc<Router>,
    pub(super) shards: Vec<ShardService>,
    pub(super) log: NodeLog,
    pub(super) clocks: Arc<Clocks>,
    pub(super) ballast: Arc<Ballast>,
    pub(super) desk: PageDesk,
    /// The disk is full: new places are shed.
    pub(super) disk_full: AtomicBool,
    /// The ballast was given up and is not back.
    pub(super) ballast_released: AtomicBool,
    /// Why this node does not stand for election, when it does not.
    abstains: Mutex<Option<String>>,
    /// Why the roster gives it nothing to lead, when it does not.
    drained: Mutex<Option<String>>,
    /// Whom it lets in.
    pub(super) book: PeerBook,
    /// It stops: it does not stand again.
    stops: AtomicBool,
    network: Network,
    front: Spawner,
    listener: Listener,
    spawners: Vec<Spawner>,
    stop: watch::Sender<bool>,
}

/// How long the end of one shard, or of the log, may take when the node stops.
const STOP_MAX: Duration = Duration::from_millis(500);

/// What the opening of a node's part needs to know.
pub(super) struct Opening {
    pub(super) config: Config,
    pub(super) parts: Parts,
    pub(super) identity: Identity,
    pub(super) members: Vec<MemberSpec>,
    /// Whether the log was made by this process: then it has promised nothing before.
    pub(super) is_new: bool,
    /// The log, when it is open already.
    pub(super) log: Option<NodeLog>,
    /// Where forwarded questions are answered.
    pub(super) front: Spawner,
}

/// What the opening of a shard finds on its node.
#[derive(Clone, Copy)]
struct Around<'a> {
    log: &'a NodeLog,
    network: &'a Network,
    book: &'a PeerBook,
    clocks: &'a Arc<Clocks>,
}

/// How often replicas are compared while anything changes.
const COMPARE_EVERY: Duration = Duration::from_secs(5);

/// How long a start without a checkpoint asks the members for one.
const FETCH_MAX: Duration = Duration::from_secs(20);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs a future where a shard lives and waits for what it returns.
pub(super) async fn run_on<T: Send + 'static>(
    spawner: &Spawner,
    work: impl Future<Output = T> + Send + 'static,
) -> std::io::Result<T> {
    let (done, outcome) = oneshot::channel();
    spawner(Box::pin(async move {
        done.send(work.await).ok();
    }));
    outcome.await.map_err(|_| std::io::Error::other("the shard's thread has gone"))
}

/// Reads a member's record from its wire form.
pub(super) fn member_of(spec: &MemberSpec) -> Option<(NodeId, Member)> {
    let log_uuid = uuid_bytes(&spec.log_uuid)?;
    let member = Member {
        log_uuid,
        peer_addr: spec.peer_addr.clone(),
        http_addr: spec.http_addr.clone(),
        region: spec.region.clone(),
    };
    Some((spec.node, member))
}

/// Names the node that leads a shard when all is well.
pub(super) fn preferred(members: &[MemberSpec], shard: ShardId) -> NodeId {
    Turns::of(members.iter().map(|member| member.node)).preferred(shard).unwrap_or_default()
}

pub(super) fn log_options(config: &Config) -> LogOptions {
    LogOptions {
        segment_bytes: config.log.segment_bytes,
        payload_bytes_max: usize::try_from(config.log.segment_bytes / 2)
            .unwrap_or(usize::MAX)
            .min(16 << 20),
        tail_bytes_max: usize::try_from(config.log.memory_tail_bytes).unwrap_or(usize::MAX),
        queue_requests_max: config.log.queue_max,
        ..LogOptions::default()
    }
}

impl Opening {
    /// Opens the log, starts every shard and lets the peers in.
    pub(super) async fn open(mut self) -> Result<Running, NodeError> {
        let began = runtime::now();
        let log = match self.log.take() {
            Some(log) => log,
            None => NodeLog::open(
                Arc::clone(&self.parts.disk),
                &self.dir().join("log"),
                self.identity.log_uuid,
                log_options(&self.config),
            )?,
        };
        let local = LocalIdentity {
            cluster_id: self.identity.cluster_id,
            id: PeerId { node: self.identity.node, log_uuid: self.identity.log_uuid },
        };
        let network = (self.parts.network)(local);
        let peers: BTreeMap<NodeId, Member> = self.members.iter().filter_map(member_of).collect();
        let book = PeerBook::new(peers);
        let abstaining = Abstaining::default();
        let (node, wall) = (self.identity.node, self.parts.clock.clone());
        let apart_max = self.config.clock.offset_ms_max;
        let clocks = Clocks::new(node, wall, apart_max, &self.members, abstaining.clone());
        let clocks = Arc::new(clocks);
        let (mut shards, mut spawners) = (Vec::new(), Vec::new());
        for shard in (0..self.identity.settings.shards).map(ShardId) {
            let spawner = (self.parts.place)(shard)
                .map_err(|error| NodeError::io(format!("the thread of shard {shard}"), error))?;
            let around = Around { log: &log, network: &network, book: &book, clocks: &clocks };
            let opened = self.open_shard(shard, &spawner, around, abstaining.clone());
            shards.push(opened.await?);
            spawners.push(spawner);
        }
        let router = Router::open(
            node,
            &shards,
            self.members.clone(),
            network.clone(),
            self.thirst_limits(),
            Arc::new(RunOut),
        );
        let (stop, stopped) = watch::channel(false);
        for (shard, spawner) in shards.iter().zip(&spawners) {
            let rules = self.steward_rules();
            let steward = Steward::new(shard.clone(), Arc::clone(&router), rules, stopped.clone());
            let comparison =
                Comparison::new(shard.clone(), Arc::clone(&router), rules, stopped.clone());
            spawner(Box::pin(steward.run()));
            spawner(Box::pin(comparison.run()));
            let delivery = Delivery::new(shard.clone(), Arc::clone(&router), stopped.clone());
            let balance = Balance::new(shard.clone(), Arc::clone(&router), stopped.clone());
            spawner(Box::pin(delivery.run()));
            spawner(Box::pin(balance.run()));
            let resize = Resize::new(shard.clone(), Arc::clone(&router), stopped.clone());
            spawner(Box::pin(resize.run()));
        }
        if !self.is_new && !planted(Fault::PortAtOnce) {
            // This node has forgotten whom it promised what: it opens its peer port only after
            // every lease that it may have granted before it stopped has run out.
            runtime::sleep_until(began + ms(self.config.raft.election_max_ms)).await;
        }
        let service = PeerService {
            book: book.clone(),
            groups: shards.iter().map(|shard| shard.group().clone()).collect(),
            spawners: spawners.clone(),
            router: Arc::clone(&router),
            front: self.front.clone(),
            desk: self.parts.desk.clone(),
            clocks: Arc::clone(&clocks),
        };
        let addr = self.config.peer.listen.to_string();
        let listener = network
            .listen(&addr, Arc::new(service))
            .await
            .map_err(|error| NodeError::io(format!("listening for peers on {addr}"), error))?;
        Ok(Running {
            ballast: Arc::new(self.ballast()),
            identity: self.identity,
            router,
            shards,
            log,
            clocks,
            desk: self.parts.desk,
            disk_full: AtomicBool::new(false),
            ballast_released: AtomicBool::new(false),
            abstains: Mutex::new(None),
            drained: Mutex::new(None),
            book: book.clone(),
            stops: AtomicBool::new(false),
            network,
            front: self.front,
            listener,
            spawners,
            stop,
        })
    }

    fn dir(&self) -> PathBuf {
        self.config.node.data_dir.clone()
    }

    fn ballast(&self) -> Ballast {
        Ballast::new(Arc::clone(&self.parts.disk), self.dir(), self.config.log.ballast_bytes)
    }

    async fn open_shard(
        &self,
        shard: ShardId,
        spawner: &Spawner,
        around: Around<'_>,
        abstaining: Abstaining,
    ) -> Result<ShardService, NodeError> {
        let Around { log, network, book, clocks } = around;
        let dir = self.dir().join(format!("shard-{shard}"));
        let store = (self.parts.pages)(shard, dir)
            .map_err(|error| NodeError::io(format!("the pages of shard {shard}"), error))?;
        let desk = self.parts.desk.clone();
        let checkpoints =
            Checkpoints::open(store, self.identity.origin(shard), desk.clone()).await?;
        let options = self.start_options(shard, book.clone());
        let (log, network) = (log.shard(shard), network.clone());
        let limits = self.shard_limits();
        let clocks = Arc::clone(clocks);
        let agreed: AgreedClock = Arc::new(move || clocks.agreed());
        let opened = run_on(spawner, async move {
            let group = start_group(log, checkpoints, desk, network, options).await?;
            Ok::<_, crate::raft::StartError>(open_shard(group, limits, agreed, abstaining))
        });
        let opened = opened
            .await
            .map_err(|error| NodeError::io(format!("the thread of shard {shard}"), error))?;
        Ok(opened?)
    }

    fn start_options(&self, shard: ShardId, peers: PeerBook) -> StartOptions {
        let raft = &self.config.raft;
        StartOptions {
            node: self.identity.node,
            shard,
            settings: self.identity.settings.clone(),
            peers,
            heartbeat: ms(raft.heartbeat_ms),
            election_min: ms(raft.election_min_ms),
            election_max: ms(raft.election_max_ms),
            append_bytes_max: usize::try_from(self.config.peer.append_bytes_max).unwrap_or(1 << 20),
            cut_pages: self.config.checkpoint.cut_pages,
            chunk_timeout: ms(self.config.peer.chunk_timeout_ms),
            electable: true,
            fetch_max: FETCH_MAX,
            reads: super::schema::reads(&self.config),
        }
    }

    fn shard_limits(&self) -> ShardLimits {
        let batch = &self.config.batch;
        ShardLimits {
            pause_after: ms(self.config.raft.pause_after_ms),
            entry_bytes_max: usize::try_from(batch.entry_bytes_max).unwrap_or(64 << 10),
            entries_in_flight_max: batch.entries_in_flight,
            queue_max: batch.queue_max,
            finish_lane: batch.finish_lane(),
            queue_age_max: ms(batch.queue_age_ms_max),
            park_max: batch.park_max,
            lease: ms(self.config.raft.election_max_ms),
            heartbeat: ms(self.config.raft.heartbeat_ms),
        }
    }

    fn thirst_limits(&self) -> ThirstLimits {
        let stock = &self.config.stock;
        ThirstLimits {
            wait_max: ms(stock.wait_ms_max),
            waiters_max: stock.waiters_max,
            sold_out_age_max: ms(stock.sold_out_age_ms_max),
            collect_every: ms(stock.collect_every_ms),
            transit_percent_max: u64::from(stock.transit_percent_max),
        }
    }

    fn steward_rules(&self) -> StewardRules {
        let checkpoint = &self.config.checkpoint;
        StewardRules {
            checkpoint_log_bytes: checkpoint.log_bytes,
            checkpoint_commands: checkpoint.commands,
            checkpoint_every: ms(checkpoint.interval_ms),
            compare_every: COMPARE_EVERY,
            prefer_every: ms(self.config.raft.prefer_every_ms),
            own: self.identity.node,
        }
    }
}

impl Running {
    /// Founds the shards whose preferred node this is. Founding them again changes nothing.
    pub(super) async fn found(&self, members: &[MemberSpec]) -> Result<(), String> {
        let voters: BTreeMap<NodeId, Member> = members.iter().filter_map(member_of).collect();
        for shard in &self.shards {
            if preferred(members, shard.shard()) == self.identity.node {
                let (group, voters) = (shard.group().clone(), voters.clone());
                let spawner = &self.spawners[usize::from(shard.shard().0)];
                let founded = run_on(spawner, async move { group.found(voters).await });
                founded.await.map_err(|error| error.to_string())??;
            }
        }
        Ok(())
    }

    /// Returns where this node's own tasks run.
    pub(super) fn front(&self) -> Spawner {
        Arc::clone(&self.front)
    }

    /// Returns where the shards run, in their order.
    pub(super) fn spawners(&self) -> &[Spawner] {
        &self.spawners
    }

    /// Returns what asking the others for their time takes.
    pub(super) fn clock_parts(&self) -> (Arc<Clocks>, Network, Vec<MemberSpec>) {
        (Arc::clone(&self.clocks), self.network.clone(), self.router.members())
    }

    /// Keeps this node from standing for election for this reason, or lets it stand again.
    pub(super) fn abstain(&self, reason: Option<String>) {
        let stops = || "it is stopping".to_owned();
        let reason = if self.stops.load(Ordering::Acquire) { Some(stops()) } else { reason };
        let mut abstains = self.abstains.lock();
        if *abstains == reason {
            return;
        }
        match &reason {
            Some(why) if self.stops.load(Ordering::Acquire) => tracing::debug!(%why, "no election"),
            Some(why) => tracing::warn!(%why, "this node does not stand for election"),
            None => tracing::warn!("this node stands for election again"),
        }
        for shard in &self.shards {
            shard.stand(Bar::Node, reason.is_none());
        }
        *abstains = reason;
        drop(abstains);
        self.tell_stands();
    }

    /// Lets this node stand for one shard although it abstains, or not any more. What it tells
    /// the others stays: leadership is handed to whoever else can have it.
    pub(super) fn fill_in(&self, shard: &ShardService, stands: bool) {
        let abstains = self.abstains.lock();
        if abstains.is_some() && !self.stops.load(Ordering::Acquire) {
            shard.stand(Bar::Node, stands);
        }
    }

    /// Tells the others whether leadership may be handed to this node. One whose disk is full
    /// stands for election, since perhaps nobody else can, but others are better.
    pub(super) fn tell_stands(&self) {
        let stands = self.abstains.lock().is_none() && !self.disk_full.load(Ordering::Relaxed);
        self.clocks.set_stands(stands);
    }

    /// Says why the roster gives this node nothing to lead, or that it may lead again.
    pub(super) fn set_drained(&self, why: Option<String>) {
        *self.drained.lock() = why;
    }

    /// Returns why the roster gives this node nothing to lead.
    pub(super) fn drained(&self) -> Option<String> {
        self.drained.lock().clone()
    }

    /// Tells whether some shard has no leader that this node hears.
    pub(super) fn is_leaderless(&self) -> bool {
        self.shards.iter().any(ShardService::is_leaderless)
    }

    /// Returns why this node does not stand for election, when it does not.
    pub(super) fn abstains(&self) -> Option<String> {
        self.abstains.lock().clone()
    }

    /// Hands every leadership over for good, as far as there is somebody to take it.
    pub(super) async fn drain(&self) {
        self.stops.store(true, Ordering::Release);
        self.abstain(None);
        self.hand_all_over().await;
    }

    /// Hands every leadership over, as far as there is somebody to take it.
    pub(super) async fn hand_all_over(&self) {
        let own = self.identity.node;
        if self.router.members().iter().all(|member| member.node == own) {
            return;
        }
        let handovers = self.shards.iter().map(|shard| async move {
            let rather = self.router.preferred(shard.shard());
            match shard.hand_over_rather(own, rather).await {
                Ok(()) => {}
                // The last of a cluster that stops has nobody left.
                Err(why) if self.stops.load(Ordering::Acquire) => {
                    tracing::info!(shard = %shard.shard(), %why, "leadership was not handed over");
                }
                Err(why) => {
                    tracing::warn!(shard = %shard.shard(), %why, "leadership was not handed over");
                }
            }
        });
        futures_util::future::join_all(handovers).await;
    }

    /// Stops every shard and closes the log.
    pub(super) async fn stop(self) {
        self.end_shards().await;
        match runtime::timeout(STOP_MAX, self.log.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the log did not close in order"),
            Err(_) => tracing::error!("the log did not close in time: its disk hangs"),
        }
    }

    /// Stops every shard, all at once, within bounds: a hung disk hangs nobody here.
    pub(super) async fn end_shards(&self) {
        self.stop.send_replace(true);
        self.listener.close();
        let ends = self.shards.iter().zip(&self.spawners).map(|(shard, spawner)| async move {
            let group: Group = shard.group().clone();
            let ended = run_on(spawner, async move { group.shutdown().await });
            match runtime::timeout(STOP_MAX, ended).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(shard = %shard.shard(), %error, "it did not stop in order");
                }
                Err(_) => tracing::warn!(shard = %shard.shard(), "it did not stop in time"),
            }
        });
        futures_util::future::join_all(ends).await;
    }
}

fn node_conversation(clocks: &Arc<Clocks>, router: &Arc<Router>) -> Box<dyn Conversation> {
    let forward = ForwardConversation::new(Arc::clone(router));
    Box::new(NodeConversation::new(Arc::clone(clocks), forward))
}

/// Lets the members in, and nobody else.
struct PeerService {
    book: PeerBook,
    groups: Vec<Group>,
    spawners: Vec<Spawner>,
    router: Arc<Router>,
    front: Spawner,
    desk: PageDesk,
    clocks: Arc<Clocks>,
}

impl Service for PeerService {
    fn open(&self, hello: &Hello) -> Result<Opened, String> {
        if !self.book.knows(&hello.from) && !planted(Fault::ForeignLog) {
            // A stranger may ask how it stands, and nothing else, until it is none.
            let (router, peer) = (Arc::clone(&self.router), hello.from);
            if hello.lane != Lane::Forward {
                return Err(router.stranger_words(&peer));
            }
            let (book, clocks) = (self.book.clone(), Arc::clone(&self.clocks));
            let (inside, from) = (Arc::clone(&router), peer);
            let let_in = move || book.knows(&from).then(|| node_conversation(&clocks, &inside));
            return Ok(Opened {
                conversation: Box::new(Lobby::new(router, peer, let_in)),
                spawner: Arc::clone(&self.front),
            });
        }
        let shard = hello.shard.map(|shard| usize::from(shard.0));
        match (hello.lane, shard) {
            (Lane::Forward, None) => Ok(Opened {
                conversation: node_conversation(&self.clocks, &self.router),
                spawner: Arc::clone(&self.front),
            }),
            (Lane::Vote | Lane::Append | Lane::Snapshot, Some(shard)) => {
                let missing = || format!("there is no shard {shard} here");
                let group = self.groups.get(shard).ok_or_else(missing)?;
                let spawner = self.spawners.get(shard).ok_or_else(missing)?;
                let conversation: Box<dyn Conversation> = if hello.lane == Lane::Snapshot {
                    Box::new(SnapshotConversation::new(group, self.desk.clone()))
                } else {
                    Box::new(RaftConversation::new(group))
                };
                Ok(Opened { conversation, spawner: Arc::clone(spawner) })
            }
            (Lane::Forward, Some(_)) => Err("the forward lane belongs to no shard".to_owned()),
            (Lane::Vote | Lane::Append | Lane::Snapshot, None) => {
                Err("this lane belongs to a shard; none is named".to_owned())
            }
        }
    }
}
