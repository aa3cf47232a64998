//! The node's desk: it answers for whatever the node is now, empty, adopted or running.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::NodeError;
use super::adoption;
use super::joining;
use super::members;
use super::parts::Parts;
use super::roll;
use super::room::{floor_bytes, log_status, make_room};
use super::running::{Opening, Running, log_options};
use super::schema;
use super::watch::{self as node_watch, WatchRules};
use crate::config::Config;
use crate::ledger::{SchemaVersion, ShardId};
use crate::peer::Spawner;
use crate::runtime::{self, Instant};
use crate::shard::{
    Adopt, Adopted, LogStatus, MemberSpec, Outcome, Rejected, Reply, uuid_bytes, uuid_hex,
};
use crate::storage::{Disk, Identity, IdentityError, NodeLog, ShardLogState, create_dir_durably};

/// What the node is now.
pub(super) enum Phase {
    /// It belongs to no cluster.
    Empty,
    /// It has an identity and a log, and waits for its members.
    Adopted { identity: Identity, log: Option<NodeLog>, is_new: bool },
    /// It takes part.
    Running(Arc<Running>),
    /// It takes no part any more.
    Stopped(Box<Stopped>),
}

/// A part that has ended.
#[derive(Default)]
pub(super) struct Stopped {
    pub(super) why: String,
    /// Whether it belongs to the cluster no more: also after a restart.
    pub(super) for_good: bool,
    pub(super) identity: Option<Identity>,
    /// The log as it was at the end.
    pub(super) log: LogStatus,
}

impl Stopped {
    fn because(why: impl Into<String>) -> Phase {
        Phase::Stopped(Box::new(Stopped { why: why.into(), ..Stopped::default() }))
    }
}

/// Why a node's part in the cluster ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// In words.
    pub why: String,
    /// The process can do nothing any more and should end: its disk hangs.
    pub is_fatal: bool,
}

/// A node's desk. One for all threads.
pub struct Office {
    pub(super) config: Config,
    pub(super) parts: Parts,
    pub(super) front: Spawner,
    pub(super) started: Instant,
    pub(super) phase: Mutex<Phase>,
    /// One change of phase at a time.
    pub(super) changing: AsyncMutex<()>,
    ended: watch::Sender<Option<Ended>>,
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Office")
            .field("data_dir", &self.config.node.data_dir)
            .finish_non_exhaustive()
    }
}

impl Office {
    /// Opens the desk of a node: starts its part in the cluster when it has one. Forwarded
    /// questions are answered on `front`.
    ///
    /// # Errors
    ///
    /// [`NodeError`]; nothing was changed, and the words say what mends it.
    pub async fn open(
        config: Config,
        parts: Parts,
        front: Spawner,
    ) -> Result<Arc<Office>, NodeError> {
        let dir = config.node.data_dir.clone();
        create_dir_durably(parts.disk.as_ref(), &dir)
            .map_err(|error| NodeError::io(dir.display().to_string(), error))?;
        adoption::undo(parts.disk.as_ref(), &dir)
            .map_err(|error| NodeError::io("undoing a `cluster init` cut short", error))?;
        let phase = match Identity::read(parts.disk.as_ref(), &dir) {
            Ok(identity) => Phase::Adopted { identity, log: None, is_new: false },
            Err(IdentityError::NotInitialised) => Phase::Empty,
            Err(error) => return Err(error.into()),
        };
        let active = schema::read(parts.disk.as_ref(), &dir)
            .map_err(|error| NodeError::io("the schema version of this directory", error))?;
        let reads = schema::reads(&config);
        if !reads.has(active) {
            return Err(NodeError::Schema { active, reads });
        }
        let removed = roll::read_removal(parts.disk.as_ref(), &dir)
            .map_err(|error| NodeError::io("the removal of this node", error))?;
        let phase = match (removed, phase) {
            (Some(why), Phase::Adopted { identity, .. }) => {
                tracing::error!(%why, "this node takes no part in the cluster any more");
                let identity = Some(identity);
                let end = Stopped { why, for_good: true, identity, ..Stopped::default() };
                Phase::Stopped(Box::new(end))
            }
            (_, phase) => phase,
        };
        let has_part = matches!(phase, Phase::Empty | Phase::Adopted { .. });
        make_room(&config, &parts);
        let office = Arc::new(Office {
            config,
            parts,
            front,
            started: runtime::now(),
            phase: Mutex::new(phase),
            changing: AsyncMutex::new(()),
            ended: watch::Sender::new(None),
        });
        let members = members::read(office.parts.disk.as_ref(), &office.dir())
            .map_err(|error| NodeError::io("the members", error))?;
        match members.filter(|_| has_part) {
            Some(members) => {
                office.start(members).await?;
            }
            // Adopted and not begun: the log must be sound all the same, and empty.
            None => office.check_log()?,
        }
        Ok(office)
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.config.node.data_dir.clone()
    }

    /// Opens the log of a node without members. One that has begun had some: it must not be taken
    /// for a new one, and founded again.
    fn check_log(&self) -> Result<(), NodeError> {
        let mut phase = self.phase.lock();
        if let Phase::Adopted { identity, log, .. } = &mut *phase
            && log.is_none()
        {
            let disk = Arc::clone(&self.parts.disk);
            let options = log_options(&self.config);
            let opened = NodeLog::open(disk, &self.dir().join("log"), identity.log_uuid, options)?;
            if has_begun(self.parts.disk.as_ref(), &self.dir(), identity, &opened)? {
                return Err(NodeError::MembersLost { dir: self.dir() });
            }
            *log = Some(opened);
        }
        Ok(())
    }

    /// Returns the node's part in the cluster, when it has one.
    pub(super) fn running(&self) -> Option<Arc<Running>> {
        match &*self.phase.lock() {
            Phase::Running(running) => Some(Arc::clone(running)),
            Phase::Empty | Phase::Adopted { .. } | Phase::Stopped(_) => None,
        }
    }

    pub(super) async fn start(
        self: &Arc<Office>,
        members: Vec<MemberSpec>,
    ) -> Result<Arc<Running>, NodeError> {
        let taken = {
            let mut phase = self.phase.lock();
            std::mem::replace(&mut *phase, Stopped::because("it is starting"))
        };
        let (identity, log, is_new) = match taken {
            Phase::Adopted { identity, log, is_new } => (identity, log, is_new),
            Phase::Running(running) => {
                *self.phase.lock() = Phase::Running(Arc::clone(&running));
                return Ok(running);
            }
            other @ (Phase::Empty | Phase::Stopped(_)) => {
                *self.phase.lock() = other;
                return Err(NodeError::Mismatch("this node has no identity yet".to_owned()));
            }
        };
        let opening = Opening {
            config: self.config.clone(),
            parts: self.parts.clone(),
            identity: identity.clone(),
            members,
            is_new,
            log,
            front: Arc::clone(&self.front),
        };
        match opening.open().await {
            Ok(running) => {
                let running = Arc::new(running);
                *self.phase.lock() = Phase::Running(Arc::clone(&running));
                node_watch::start(self, &running, self.watch_rules());
                roll::start(self, &running);
                Ok(running)
            }
            Err(error) => {
                *self.phase.lock() = Stopped::because(error.to_string());
                Err(error)
            }
        }
    }

    /// Hands leaderships over. What is under way is answered; nothing new is granted here.
    pub async fn drain(&self) {
        if let Some(running) = self.running() {
            running.drain().await;
        }
    }

    fn watch_rules(&self) -> WatchRules {
        let log = &self.config.log;
        WatchRules {
            hung: Duration::from_millis(log.hung_ms),
            dead: Duration::from_millis(log.dead_ms),
            floor_bytes: floor_bytes(&self.config),
            ballast_bytes: log.ballast_bytes,
            lease: Duration::from_millis(self.config.raft.lease_ms()),
        }
    }

    /// Lets the caller wait until the node's part ends by itself.
    pub fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }

    /// Ends the node's part, since it cannot keep its promises: nothing is answered any more, and
    /// `/readyz` says why. Nothing that was acknowledged is lost by it.
    pub(super) async fn end(&self, why: String, is_fatal: bool) {
        self.end_part(why, is_fatal, false).await;
    }

    async fn end_part(&self, why: String, is_fatal: bool, for_good: bool) {
        let running = {
            let mut phase = self.phase.lock();
            let Phase::Running(running) = &*phase else { return };
            let running = Arc::clone(running);
            node_watch::bar_all(&running);
            *phase = Phase::Stopped(Box::new(Stopped {
                why: why.clone(),
                for_good,
                identity: Some(running.identity.clone()),
                log: log_status(&running),
            }));
            running
        };
        tracing::error!(%why, "this node takes no part in the cluster any more");
        running.end_shards().await;
        // The log stays as it is until the process ends: closing a log that failed says nothing
        // new.
        self.ended.send_replace(Some(Ended { why, is_fatal }));
    }

    /// Ends the node's part because it belongs to the cluster no more: also after a restart.
    pub(super) async fn end_for_good(&self, why: String) {
        if let Err(error) = roll::write_removal(self.parts.disk.as_ref(), &self.dir(), &why) {
            tracing::error!(%error, "the removal could not be written down");
        }
        self.end_part(why, false, true).await;
    }

    /// Keeps the schema version for the next start.
    pub(super) fn keep_schema(&self, active: SchemaVersion) {
        if let Err(error) = schema::write(self.parts.disk.as_ref(), &self.dir(), active) {
            tracing::error!(%error, %active, "the schema version could not be written down");
        }
    }

    /// Keeps the members for the next start.
    pub(super) fn keep_members(&self, members: &[MemberSpec]) -> std::io::Result<()> {
        members::write(self.parts.disk.as_ref(), &self.dir(), members)
    }

    /// Stops the node's part in the cluster.
    pub async fn stop(&self) {
        let _one = self.changing.lock().await;
        let phase = {
            let mut phase = self.phase.lock();
            std::mem::replace(&mut *phase, Stopped::because("it was told to stop"))
        };
        match phase {
            Phase::Running(running) => {
                // Requests under way hold the node's part for a moment; they end by their
                // deadlines.
                if let Some(running) = unshared(running).await {
                    running.stop().await;
                }
            }
            Phase::Adopted { log: Some(log), .. } => {
                if let Err(error) = log.close().await {
                    tracing::error!(%error, "the log did not close in order");
                }
            }
            Phase::Adopted { log: None, .. } | Phase::Empty | Phase::Stopped(_) => {}
        }
    }

    pub(super) async fn take_identity(&self, offer: Adopt) -> Result<Adopted, String> {
        let _one = self.changing.lock().await;
        let cluster_id = uuid_bytes(&offer.cluster_id)
            .ok_or("cluster_id must be 32 lower-case hexadecimal digits")?;
        if offer.node.0 == 0 {
            return Err("node ids begin at 1".to_owned());
        }
        let known = match &*self.phase.lock() {
            Phase::Empty => None,
            Phase::Adopted { identity, .. } => Some(identity.clone()),
            Phase::Running(running) => Some(running.identity.clone()),
            Phase::Stopped(end) => return Err(format!("this node takes no part: {}", end.why)),
        };
        if let Some(identity) = known {
            let same = identity.cluster_id == cluster_id
                && identity.node == offer.node
                && identity.settings == offer.settings;
            return if same {
                Ok(self.adopted(&identity))
            } else {
                Err(format!(
                    "this node is node {} of cluster {} already",
                    identity.node,
                    uuid_hex(&identity.cluster_id)
                ))
            };
        }
        if joining::is_under_way(self.parts.disk.as_ref(), &self.dir()) {
            let words = "this machine was started with --join: the cluster that lets it in says \
                         which node it is. To make it a node of a new cluster, stop it, empty its \
                         data directory, and start it without --join";
            return Err(words.to_owned());
        }
        self.make_identity(cluster_id, offer, (self.parts.random)())
    }

    pub(super) fn make_identity(
        &self,
        cluster_id: [u8; 16],
        offer: Adopt,
        log_uuid: [u8; 16],
    ) -> Result<Adopted, String> {
        let (disk, dir) = (Arc::clone(&self.parts.disk), self.dir());
        let identity = Identity {
            cluster_id,
            node: offer.node,
            log_uuid,
            settings: offer.settings,
            region: self.config.node.region.clone(),
            created_at: self.parts.clock.now(),
        };
        let kept = |error: std::io::Error| format!("the identity cannot be kept: {error}");
        adoption::begin(disk.as_ref(), &dir).map_err(kept)?;
        // The log first: an identity never lists a log that was not there.
        let options = log_options(&self.config);
        let log = NodeLog::create(Arc::clone(&disk), &dir.join("log"), identity.log_uuid, options)
            .map_err(|error| error.to_string())?;
        identity.create(disk.as_ref(), &dir).map_err(|error| error.to_string())?;
        adoption::end(disk.as_ref(), &dir).map_err(kept)?;
        let adopted = self.adopted(&identity);
        *self.phase.lock() = Phase::Adopted { identity, log: Some(log), is_new: true };
        Ok(adopted)
    }

    fn adopted(&self, identity: &Identity) -> Adopted {
        Adopted {
            log_uuid: uuid_hex(&identity.log_uuid),
            peer_addr: self.config.peer.advertised(),
            http_addr: self.config.http.advertised(),
            region: identity.region.clone(),
        }
    }

    pub(super) async fn take_members(
        self: &Arc<Office>,
        mut members: Vec<MemberSpec>,
    ) -> Result<(), String> {
        let _one = self.changing.lock().await;
        members.sort();
        members.dedup_by_key(|member| member.node);
        let identity = match &*self.phase.lock() {
            Phase::Adopted { identity, .. } => identity.clone(),
            Phase::Running(running) => running.identity.clone(),
            Phase::Empty => return Err("this node was not adopted: ask /admin/v1/adopt".to_owned()),
            Phase::Stopped(end) => return Err(format!("this node takes no part: {}", end.why)),
        };
        let own = uuid_hex(&identity.log_uuid);
        if !members.iter().any(|member| member.node == identity.node && member.log_uuid == own) {
            return Err(format!("node {} with log {own} is not among the members", identity.node));
        }
        if let Some(wrong) = members.iter().find(|one| uuid_bytes(&one.log_uuid).is_none()) {
            return Err(format!("node {}: log_uuid is 32 hexadecimal digits", wrong.node));
        }
        if let Some(running) = self.running() {
            return if running.router.members() == members {
                running.found(&members).await
            } else {
                Err("this node runs with other members".to_owned())
            };
        }
        members::write(self.parts.disk.as_ref(), &self.dir(), &members)
            .map_err(|error| format!("the members cannot be kept: {error}"))?;
        let running = self.start(members.clone()).await.map_err(|error| error.to_string())?;
        running.found(&members).await
    }

    /// Changes a shard's ledger in memory as no entry does. For tests of what follows.
    #[doc(hidden)]
    pub fn corrupt_for_test(&self, shard: usize, change: impl FnOnce(&mut crate::ledger::Ledger)) {
        if let Some(running) = self.running() {
            running.shards[shard].replica().corrupt_for_test(change);
        }
    }

    pub(super) fn no_part(&self) -> Rejected {
        Rejected::Unavailable(self.no_part_words())
    }

    pub(super) fn not_serving(&self) -> Reply {
        let words = self.no_part_words();
        Reply { outcome: Outcome::NotServing(words), commit: None, leader: None }
    }

    fn no_part_words(&self) -> String {
        match &*self.phase.lock() {
            Phase::Empty | Phase::Adopted { .. } => {
                "this node belongs to no cluster yet: `holdfast cluster init` makes one".to_owned()
            }
            Phase::Running(_) => "the node has just started: try again".to_owned(),
            Phase::Stopped(end) => {
                format!("this node takes no part: {}. Ask another node of its cluster", end.why)
            }
        }
    }
}

/// Tells whether a node has taken part in its cluster: it has voted, or kept something.
fn has_begun(
    disk: &dyn Disk,
    dir: &Path,
    identity: &Identity,
    log: &NodeLog,
) -> Result<bool, NodeError> {
    let names = disk.list(dir).map_err(|error| NodeError::io("the data directory", error))?;
    if names.iter().any(|name| name.starts_with("shard-")) {
        return Ok(true);
    }
    let mut shards = (0..identity.settings.shards).map(ShardId);
    Ok(shards.any(|shard| log.shard(shard).state() != ShardLogState::default()))
}

/// Waits, for a bounded time, until nobody else holds the node's part.
async fn unshared(mut running: Arc<Running>) -> Option<Running> {
    const TRIES: u32 = 400;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    for _ in 0..TRIES {
        match Arc::try_unwrap(running) {
            Ok(alone) => return Some(alone),
            Err(shared) => running = shared,
        }
        runtime::sleep(PAUSE).await;
    }
    tracing::error!("requests are still under way: the node stops without waiting for them");
    None
}
