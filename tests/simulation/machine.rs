//! A machine and the node that runs on it: started, stopped, killed, damaged, emptied.
//!
//! A machine outlives its node: its disk, its page databases and its wall clock. Each life of the
//! node gets a mount of the disk, an end of the wire and tasks of its own; all three die with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use holdfast::clock::WallClock;
use holdfast::config::Config;
use holdfast::http::{self, Front};
use holdfast::ledger::{NodeId, Turn};
use holdfast::node::{Counter, NodeError, Office, Parts};
use holdfast::peer::{Network, PeerLimits, Spawner};
use holdfast::runtime;
use holdfast::runtime::life::{self, Life};
use holdfast::shard::Role;
use holdfast::storage::pages::sim_store::{SimDamage, SimPages};
use holdfast::storage::{LogError, PageDesk, SimDisk};
use parking_lot::Mutex;
use rand::Rng as _;
use tokio::sync::oneshot;

use super::call::{Ask, Told};
use super::plan::{NODES, Plan, stream};
use super::world::World;

/// One machine.
pub(crate) struct Machine {
    /// Its number, from 1.
    pub(crate) id: u64,
    /// The id of the node that is here, or was: the machine's number, until its node is replaced.
    node_id: AtomicU64,
    pub(crate) disk: SimDisk,
    pub(crate) pages: Vec<SimPages>,
    pub(crate) offset_ms: Arc<AtomicI64>,
    pub(super) node: Mutex<NodeNow>,
    /// Its log was damaged or lost: whatever runs here is no member any more (law 10).
    pub(super) lost: AtomicBool,
    /// The token with which the empty machine comes in under a new id.
    token: Mutex<Option<String>>,
}

impl Machine {
    /// A machine with an empty disk, of so many from 0.
    pub(super) fn new(at: usize, plan: &Plan, seed: u64) -> Machine {
        let disk = SimDisk::new();
        disk.set_sync_delay(plan.sync);
        let at = at as u64;
        let shards = 0..u64::from(plan.shards);
        Machine {
            id: at + 1,
            node_id: AtomicU64::new(at + 1),
            disk,
            pages: shards.map(|shard| SimPages::new(seed ^ at ^ shard << 8)).collect(),
            offset_ms: Arc::default(),
            node: Mutex::default(),
            lost: AtomicBool::new(false),
            token: Mutex::default(),
        }
    }

    /// Returns the id of the node that is here, or was.
    pub(crate) fn node_id(&self) -> NodeId {
        NodeId(self.node_id.load(Ordering::Relaxed))
    }
}

/// The node that runs on a machine now.
#[derive(Default)]
pub(super) struct NodeNow {
    /// Counts its lives.
    number: u64,
    pub(super) life: Option<Life>,
    pub(super) open: Option<(Arc<Office>, axum::Router)>,
    /// It does not come back by itself.
    kept_down: bool,
    /// A bit of its disk was flipped: it may refuse to start.
    flipped: bool,
    /// How often in a row it did not start.
    failures: u32,
}

/// After so many failed starts a node whose disk has a flipped bit is given up.
const FAILURES_MAX: u32 = 12;

impl World {
    /// Returns the life of the node that runs on a machine now.
    pub(crate) fn life(&self, at: usize) -> Option<Life> {
        self.machines[at].node.lock().life.clone()
    }

    fn config(&self, machine: &Machine) -> Config {
        let mut config = Config::for_test(format!("/n{}", machine.id));
        let id = u16::try_from(machine.id).expect("three nodes");
        config.http.listen.set_port(7_100 + id);
        config.peer.listen.set_port(7_200 + id);
        config.log.segment_bytes = self.plan.segment_bytes;
        if self.plan.segment_bytes < 1 << 20 {
            // Four of the largest appends go into a segment.
            (config.batch.entry_bytes_max, config.peer.append_bytes_max) = (4 << 10, 16 << 10);
        }
        config.log.memory_tail_bytes = 1 << 20;
        config.raft.pause_after_ms = self.plan.pause_after_ms;
        config.checkpoint.commands = self.plan.checkpoint_commands;
        config.checkpoint.interval_ms = self.plan.checkpoint_interval_ms;
        config
    }

    fn parts(&self, machine: &Machine, number: u64) -> Parts {
        let (pages, wire) = (machine.pages.clone(), self.wire.clone());
        let random = Mutex::new(stream(self.plan.seed, 1_000 * machine.id + number));
        Parts {
            disk: machine.disk.mount(),
            pages: Arc::new(move |shard, _| Ok(Arc::new(pages[usize::from(shard.0)].clone()))),
            desk: PageDesk::seeded(self.plan.seed ^ machine.id << 16 ^ number),
            network: Arc::new(move |local| Network::sim(&wire, local, PeerLimits::default())),
            clock: WallClock::with_offset(Arc::clone(&machine.offset_ms)),
            place: Arc::new(|_| Ok(here())),
            random: Arc::new(move || {
                let mut bytes = [0; 16];
                random.lock().fill_bytes(&mut bytes);
                bytes
            }),
        }
    }

    /// Starts the node of a machine, again and again until it opens or is kept down.
    pub(crate) fn start(self: &Arc<World>, at: usize) {
        let world = Arc::clone(self);
        drop(life::spawn_in_the_world(async move {
            while !world.try_start(at).await {
                runtime::sleep(Duration::from_millis(300)).await;
            }
        }));
    }

    async fn try_start(self: &Arc<World>, at: usize) -> bool {
        let machine = &self.machines[at];
        let (life, number) = {
            let mut node = machine.node.lock();
            if node.life.is_some() || node.kept_down {
                return true;
            }
            node.number += 1;
            let life = Life::of(machine.id);
            node.life = Some(life.clone());
            (life, node.number)
        };
        let (config, parts) = (self.config(machine), self.parts(machine, number));
        let (done, opened) = oneshot::channel();
        drop(life.spawn(async move {
            done.send(Office::open(config, parts, here()).await).ok();
        }));
        // Dropped unanswered: its life ended while it opened, and another start is on its way.
        let Ok(opened) = opened.await else { return true };
        match opened {
            Ok(office) => {
                self.trace.say_of(machine.id, format!("is open (life {number})"));
                let front =
                    Front::new(Arc::new(Counter(Arc::clone(&office))), http::Limits::default());
                let mut node = machine.node.lock();
                (node.open, node.failures) = (Some((office, http::router(&front))), 0);
                drop(node);
                if machine.token.lock().is_some() {
                    let asking = Arc::clone(self).ask_in(at, number);
                    drop(life::spawn_in_the_world(asking));
                }
                true
            }
            Err(error) => {
                self.trace.say_of(machine.id, format!("does not open: {error}"));
                let (is_flipped, failures) = {
                    let mut node = machine.node.lock();
                    node.failures += 1;
                    (node.flipped, node.failures)
                };
                // A disk that errs for a while lets it open later.
                let is_loss = is_loss(&error) || (is_flipped && failures > FAILURES_MAX);
                if is_loss && !is_flipped && !self.is_lost(at) {
                    self.broken(format!("n{} lost its log to a crash: {error}", machine.id));
                }
                self.end_life(at, false);
                machine.disk.process_kill();
                if is_loss {
                    // It refuses, as it must: nobody but an operator can help.
                    self.tally.refused_starts.fetch_add(1, Ordering::Relaxed);
                    machine.lost.store(true, Ordering::Relaxed);
                    machine.node.lock().kept_down = true;
                }
                is_loss
            }
        }
    }

    /// Ends the life of a node, if one lives; tells whether one did.
    fn end_life(&self, at: usize, dark: bool) -> bool {
        let machine = &self.machines[at];
        let (life, open) = {
            let mut node = machine.node.lock();
            (node.life.take(), node.open.take())
        };
        if dark {
            self.wire.power_off(machine.node_id());
        } else {
            self.wire.crash(machine.node_id());
        }
        let Some(life) = life else { return false };
        life.end();
        life.within(|| drop(open));
        true
    }

    /// Cuts a machine's power; tells whether a process ended by it.
    pub(crate) fn power_cut(&self, at: usize) -> bool {
        let lived = self.end_life(at, true);
        let seed = self.draw(0..u64::MAX);
        self.machines[at].disk.power_cut(seed);
        lived
    }

    /// Kills a node's process; tells whether there was one.
    pub(crate) fn kill(&self, at: usize) -> bool {
        let lived = self.end_life(at, false);
        self.machines[at].disk.process_kill();
        lived
    }

    /// Stops a node's process as an operator does, and as SIGTERM does: leaderships are handed
    /// over, then it ends. Tells whether there was one.
    pub(crate) async fn stop_in_order(&self, at: usize) -> bool {
        /// The longest that an operator waits.
        const PATIENCE: Duration = Duration::from_secs(5);
        let running = {
            let node = self.machines[at].node.lock();
            let office = node.open.as_ref().map(|(office, _)| Arc::clone(office));
            node.life.clone().zip(office)
        };
        if let Some((life, office)) = running {
            let stopping = life.spawn(async move {
                office.drain().await;
                office.stop().await;
            });
            let stopped = runtime::timeout(PATIENCE, stopping).await.is_ok();
            let word = if stopped { "stopped in order" } else { "is killed: it did not stop" };
            self.trace.say_of(self.machines[at].id, word);
        }
        self.kill(at)
    }

    /// Flips a bit of a machine's log or of what else its node keeps, at rest; tells whether there
    /// was one of a member.
    pub(crate) fn flip_a_bit(&self, at: usize) -> bool {
        let machine = &self.machines[at];
        if machine.lost.load(Ordering::Relaxed) {
            return false;
        }
        let files = machine.disk.files();
        // A machine on its way in has nothing of a member's. It says so when what it notes of its
        // way is damaged, and waits for an operator to empty it.
        if !files.iter().any(|path| path.ends_with("identity")) {
            return false;
        }
        let files: Vec<_> = files
            .into_iter()
            .map(|path| (machine.disk.contents(&path).unwrap_or_default().len(), path))
            .filter(|(length, _)| *length > 0)
            .collect();
        if files.is_empty() {
            return false;
        }
        let (length, path) = &files[self.pick(files.len())];
        // Logs are mostly zeros that are not written yet: most flips hit what is.
        let used = machine.disk.contents(path).unwrap_or_default();
        let used = used.iter().rposition(|byte| *byte != 0).map_or(*length, |last| last + 1);
        let offset = self.pick(if self.draw(0..8) == 0 { *length } else { used });
        let bit = u32::try_from(self.draw(0..8)).unwrap_or(0);
        machine.node.lock().flipped = true;
        machine.disk.flip(path, offset as u64, 1_u8 << bit);
        self.trace.say_of(machine.id, format!("bit {bit} of {}:{offset} flips", path.display()));
        true
    }

    fn pick(&self, of: usize) -> usize {
        usize::try_from(self.draw(0..of as u64)).expect("less than a usize")
    }

    /// Empties a machine whose node is down.
    pub(crate) fn wipe(&self, at: usize) {
        let machine = &self.machines[at];
        machine.lost.store(true, Ordering::Relaxed);
        *machine.token.lock() = None;
        {
            let mut node = machine.node.lock();
            (node.kept_down, node.flipped, node.failures) = (false, false, 0);
        }
        machine.disk.wipe();
        for pages in &machine.pages {
            pages.damage(Turn::A, SimDamage::Deleted);
            pages.damage(Turn::B, SimDamage::Deleted);
        }
        self.trace.say_of(machine.id, "lost everything");
    }

    /// Tells the empty node of a wiped machine that it is its old self, as somebody may who knows
    /// the cluster's id. The others must not believe it.
    pub(crate) async fn adopt_again(self: &Arc<World>, at: usize) {
        // One with a token is told by the cluster who it is.
        if self.is_coming(at) {
            return;
        }
        let adopt = Ask::post("/admin/v1/adopt", "adopt", self.adoption(at));
        let Told::Answer(answer) = self.call(at, adopt).await else { return };
        let Some(log_uuid) = answer.body.get("log_uuid").cloned() else { return };
        let mut members = self.members.lock().clone();
        members[at]["log_uuid"] = log_uuid;
        members[at]["node"] = self.machines[at].node_id().0.into();
        let begin = Ask::post("/admin/v1/begin", "begin", serde_json::json!({"members": members}));
        self.call(at, begin).await;
    }

    /// Brings a machine that has lost everything in as another node, with a token that an operator
    /// was given: it is emptied, started, and asks until it is let in.
    pub(crate) fn bring_in(self: &Arc<World>, at: usize, token: &str) {
        self.kill(at);
        self.wipe(at);
        *self.machines[at].token.lock() = Some(token.to_owned());
        self.start(at);
    }

    /// Asks one member after the other to let an empty machine in, as `serve --join` does, for as
    /// long as this life of it lasts.
    async fn ask_in(self: Arc<World>, at: usize, number: u64) {
        let machine = &self.machines[at];
        loop {
            let (life, office) = {
                let node = machine.node.lock();
                let office = node.open.as_ref().map(|(office, _)| Arc::clone(office));
                match (node.number == number, node.life.clone().zip(office)) {
                    (true, Some(both)) => both,
                    (true | false, _) => return,
                }
            };
            let Some(token) = machine.token.lock().clone() else { return };
            let claim = match office.claim(&token) {
                Ok(Some(claim)) => claim,
                Ok(None) => return,
                Err(why) => return self.trace.say_of(machine.id, format!("cannot join: {why}")),
            };
            let asked = self.pick(NODES);
            let key = format!("join-{token}");
            let told = self.call(asked, Ask::post("/admin/v1/join", &key, claim)).await;
            if let Told::Answer(answer) = told {
                let node = answer.body.get("node").and_then(serde_json::Value::as_u64);
                if !self.is_coming(at) {
                    return;
                }
                if let Some(node) = node.filter(|_| answer.status == 200) {
                    machine.node_id.store(node, Ordering::Relaxed);
                    let (done, entered) = oneshot::channel();
                    drop(life.spawn(async move {
                        done.send(office.enter(answer.body).await).ok();
                    }));
                    let Ok(entered) = entered.await else { return };
                    let words = match entered {
                        Ok(()) => format!("comes in as node {node}"),
                        Err(why) => format!("does not come in: {why}"),
                    };
                    self.trace.say_of(machine.id, words);
                    machine.lost.store(false, Ordering::Relaxed);
                    self.tally.joins.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                if (400..429).contains(&answer.status) {
                    // The token was given up: an operator may get another.
                    return *machine.token.lock() = None;
                }
            }
            runtime::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Lets nobody in any more who is not in yet.
    pub(crate) fn close_the_door(&self) {
        for machine in self.machines.iter().filter(|one| one.lost.load(Ordering::Relaxed)) {
            *machine.token.lock() = None;
        }
    }

    /// Tells whether a machine without a member waits to be let in, or is about to.
    pub(crate) fn is_coming(&self, at: usize) -> bool {
        self.machines[at].token.lock().is_some()
    }

    /// What tells a node which it is.
    pub(crate) fn adoption(&self, at: usize) -> serde_json::Value {
        let hex = |n: u64| format!("{n:032x}");
        serde_json::json!({
            "cluster_id": hex(self.plan.seed + 1),
            "node": self.machines[at].node_id().0,
            "settings": {
                "shards": self.plan.shards, "tag_key": hex(self.plan.seed + 2), "slots": 16,
                "sweep_max": 8, "receipt_retention_ms": 86_400_000_u64,
                "sold_retention_ms": 7_776_000_000_u64,
            },
        })
    }

    /// Damages page databases of a machine whose node is down.
    pub(crate) fn damage_pages(&self, at: usize) {
        for pages in &self.machines[at].pages {
            let damage = match self.draw(0..4) {
                0 => SimDamage::Deleted,
                1 => SimDamage::Plain,
                2 => SimDamage::Hidden,
                _ => SimDamage::Silent,
            };
            match self.draw(0..3) {
                0 => pages.damage(Turn::A, damage),
                1 => pages.damage(Turn::B, damage),
                _ => {
                    pages.damage(Turn::A, damage);
                    pages.damage(Turn::B, damage);
                }
            }
        }
    }

    /// Tells whether a node answers HTTP now.
    pub(crate) fn is_up(&self, at: usize) -> bool {
        self.machines[at].node.lock().open.is_some()
    }

    /// Ends every node.
    pub(crate) fn end(&self) {
        for at in 0..NODES {
            self.kill(at);
        }
    }

    /// What a node says of itself, if it answers.
    pub(crate) fn status(&self, at: usize) -> Option<holdfast::shard::NodeStatus> {
        use holdfast::shard::Desk as _;
        let office = {
            let node = self.machines[at].node.lock();
            node.open.as_ref().map(|(office, _)| Arc::clone(office))?
        };
        Some(Counter(office).status())
    }

    /// Returns how many shards a node leads, as it sees it.
    pub(crate) fn leads(&self, at: usize) -> usize {
        let is_leader = |shard: &&holdfast::shard::ShardStatus| shard.role == Role::Leader;
        self.status(at).map_or(0, |status| status.shards.iter().filter(is_leader).count())
    }

    /// Returns how many transfers of stock were sent by the shards that a node led.
    pub(crate) fn transfers(&self, at: usize) -> u64 {
        self.status(at).map_or(0, |status| status.stock.sends)
    }

    /// Puts units from nowhere into a node's memory, as no entry does: the judges must see it.
    #[cfg(test)]
    pub(crate) fn conjure(&self, at: usize, shard: usize, item: &str, units: u64) {
        let office = self.machines[at].node.lock().open.as_ref().map(|(one, _)| Arc::clone(one));
        let name =
            holdfast::ledger::ItemName { tenant: "default".to_owned(), item: item.to_owned() };
        if let Some(office) = office {
            office.corrupt_for_test(shard, |ledger| ledger.corrupt_for_test(&name, units));
        }
    }

    /// Tells why a node takes no part any more.
    pub(crate) fn failure(&self, at: usize) -> Option<String> {
        let status = self.status(at)?;
        let failed = status.shards.iter().find_map(|shard| shard.failed.clone());
        status.stopped.or(status.log.failed).or(failed)
    }
}

/// Whether a node found less on its disk than it had synced. (A disk that errs or is full lets it
/// open later.)
fn is_loss(error: &NodeError) -> bool {
    let NodeError::Log { error } = error else { return matches!(error, NodeError::Identity(_)) };
    matches!(error, LogError::Damaged { .. } | LogError::Lost { .. } | LogError::Foreign { .. })
}

/// Everything runs on this thread.
pub(crate) fn here() -> Spawner {
    Arc::new(|work| drop(runtime::spawn(work)))
}
