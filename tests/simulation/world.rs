//! Three machines, the wire between them, and the way of a client to a node's HTTP.
//!
//! A machine outlives its node: its disk, its page databases and its wall clock. Each life of the
//! node gets a mount of the disk, an end of the wire and tasks of its own; all three die with it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use holdfast::clock::WallClock;
use holdfast::config::Config;
use holdfast::http::{self, Front};
use holdfast::ledger::{NodeId, Turn};
use holdfast::node::{Counter, NodeError, Office, Parts};
use holdfast::peer::{Network, PeerLimits, SimNetwork, Spawner};
use holdfast::raft::Witness;
use holdfast::runtime::life::{self, Life};
use holdfast::runtime::{self, now};
use holdfast::shard::Role;
use holdfast::storage::pages::sim_store::{SimDamage, SimPages};
use holdfast::storage::{LogError, PageDesk, SimDisk};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _};
use tokio::sync::oneshot;
use tower::ServiceExt as _;

use super::cut::Cut;
use super::judge::Judge;
use super::plan::{Kind, NODES, Plan, stream};
use super::stock::Stocks;
use super::trace::Trace;

/// One machine.
pub(crate) struct Machine {
    pub(crate) id: u64,
    pub(crate) disk: SimDisk,
    pub(crate) pages: Vec<SimPages>,
    pub(crate) offset_ms: Arc<AtomicI64>,
    node: Mutex<NodeNow>,
    /// Its log was damaged or lost: whatever runs here is no member any more (law 10).
    lost: AtomicBool,
}

/// The node that runs on a machine now.
#[derive(Default)]
struct NodeNow {
    /// Counts its lives.
    number: u64,
    life: Option<Life>,
    open: Option<(Arc<Office>, axum::Router)>,
    /// It does not come back by itself.
    kept_down: bool,
    /// A bit of its disk was flipped: it may refuse to start.
    flipped: bool,
    /// How often in a row it did not start.
    failures: u32,
}

/// After so many failed starts a node whose disk has a flipped bit is given up.
const FAILURES_MAX: u32 = 12;

/// The whole simulated world of one seed.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) cut: Cut,
    pub(crate) trace: Trace,
    pub(crate) judge: Judge,
    pub(crate) wire: SimNetwork,
    pub(crate) machines: Vec<Machine>,
    pub(crate) stocks: Mutex<Stocks>,
    pub(crate) tally: Tally,
    /// The members, as they were told at the founding.
    pub(crate) members: Mutex<Vec<serde_json::Value>>,
    rng: Mutex<SmallRng>,
    faults_over: AtomicBool,
}

/// What a run did.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) calls: AtomicU64,
    pub(crate) decisions: AtomicU32,
    pub(crate) faults: Mutex<BTreeMap<Kind, u32>>,
    pub(crate) refused_starts: AtomicU32,
}

/// Decisions of a run, at most.
const DECISIONS_MAX: u32 = 5_000;

/// What a client sends.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) body: Option<serde_json::Value>,
    /// The revision that a change stands on.
    pub(crate) if_match: Option<u64>,
    pub(crate) deadline_ms: u64,
}

impl Ask {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Ask {
        let path = path.into();
        Ask { method, path, key: None, body: None, if_match: None, deadline_ms: 2_000 }
    }

    pub(crate) fn get(path: impl Into<String>) -> Ask {
        Ask::new("GET", path)
    }

    pub(crate) fn post(path: impl Into<String>, key: &str, body: serde_json::Value) -> Ask {
        let key = Some(key.to_owned());
        Ask { key, body: Some(body), ..Ask::new("POST", path) }
    }

    pub(crate) fn put(path: impl Into<String>, body: serde_json::Value) -> Ask {
        Ask { body: Some(body), ..Ask::new("PUT", path) }
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) enum Told {
    /// No connection: nothing was sent.
    Refused,
    /// It was sent, and no answer came.
    Lost,
    /// An answer.
    Answer(Answer),
}

/// An answer of a node.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) commit: Option<Commit>,
    pub(crate) replayed: bool,
    pub(crate) body: serde_json::Value,
}

/// What a `Holdfast-Commit` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Commit {
    pub(crate) shard: u16,
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) index: u64,
}

impl Commit {
    pub(crate) fn parse(text: &str) -> Option<Commit> {
        let mut parts = text.split(':');
        let (shard, leader, index) = (parts.next()?, parts.next()?, parts.next()?);
        let (term, node) = leader.split_once('.')?;
        Some(Commit {
            shard: shard.parse().ok()?,
            term: term.parse().ok()?,
            node: node.parse().ok()?,
            index: index.parse().ok()?,
        })
    }
}

impl Answer {
    /// Returns the last part of the problem's type.
    pub(crate) fn slug(&self) -> &str {
        let kind = self.body.get("type").and_then(|kind| kind.as_str()).unwrap_or_default();
        kind.strip_prefix("/problems/").unwrap_or(kind)
    }

    /// Whether this says for certain that this attempt changed nothing.
    pub(crate) fn is_definite(&self) -> bool {
        self.status != 504 && self.status != 500
    }
}

impl World {
    pub(crate) fn new(plan: Plan, cut: Cut, trace: Trace) -> Arc<World> {
        let seed = plan.seed ^ plan.salt << 40;
        let wire = SimNetwork::new(seed ^ 0x5157, plan.wire.clone());
        let machines = (0..NODES).map(|at| {
            let disk = SimDisk::new();
            disk.set_sync_delay(plan.sync);
            let at = at as u64;
            Machine {
                id: at + 1,
                disk,
                pages: (0..u64::from(plan.shards))
                    .map(|s| SimPages::new(seed ^ at ^ s << 8))
                    .collect(),
                offset_ms: Arc::new(AtomicI64::new(0)),
                node: Mutex::default(),
                lost: AtomicBool::new(false),
            }
        });
        Arc::new(World {
            machines: machines.collect(),
            stocks: Mutex::new(Stocks::of(&plan.items)),
            rng: Mutex::new(stream(seed, 2)),
            plan,
            cut,
            trace,
            judge: Judge::default(),
            wire,
            tally: Tally::default(),
            members: Mutex::default(),
            faults_over: AtomicBool::new(false),
        })
    }

    /// Returns what shall see every entry that any replica applies.
    pub(crate) fn witness(self: &Arc<World>) -> Witness {
        let world = Arc::downgrade(self);
        Rc::new(move |shard, position, ledger| {
            let Some(world) = world.upgrade() else { return };
            let node = Life::present().map_or(0, |life| life.node());
            let index = position.index.0;
            let commit = Commit {
                shard: shard.0,
                term: position.leader.term,
                node: position.leader.node.0,
                index,
            };
            let seen = world.judge.see_entry(node, commit, ledger.now().0, ledger.digest());
            let seen = seen.and_then(|()| world.stocks.lock().see(shard, index, ledger));
            if let Err(law) = seen {
                world.broken(law);
            }
        })
    }

    /// Notes that a law is broken.
    pub(crate) fn broken(&self, law: impl AsRef<str>) {
        self.trace.say("BROKEN", law.as_ref());
        self.judge.broken(law.as_ref());
    }

    pub(crate) fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.rng.lock().random_range(range)
    }

    /// Notes that a fault begins.
    pub(crate) fn begin_fault(&self, kind: Kind) {
        *self.tally.faults.lock().entry(kind).or_default() += 1;
    }

    /// Notes that no more faults come.
    pub(crate) fn faults_are_over(&self) {
        self.faults_over.store(true, Ordering::Relaxed);
    }

    /// Tells whether the clients have made as many calls as the plan wants.
    pub(crate) fn has_calls(&self) -> bool {
        self.tally.calls.load(Ordering::Relaxed) >= self.plan.calls
    }

    /// Returns the number of the next decision that a client is to make, or `None` when the run has
    /// had enough calls and faults.
    pub(crate) fn next_decision(&self) -> Option<u32> {
        loop {
            let number = self.tally.decisions.load(Ordering::Relaxed);
            let kept = &self.cut.decisions;
            let is_over = match &kept.0 {
                Some(_) => kept.is_over(number),
                None => {
                    let calls = self.tally.calls.load(Ordering::Relaxed);
                    let faults: u32 = self.tally.faults.lock().values().sum();
                    let hurt =
                        faults >= self.plan.faults || self.faults_over.load(Ordering::Relaxed);
                    calls >= self.plan.calls && hurt
                }
            };
            if is_over || number >= DECISIONS_MAX || self.judge.is_broken() {
                return None;
            }
            self.tally.decisions.store(number + 1, Ordering::Relaxed);
            if kept.has(number) {
                return Some(number);
            }
        }
    }

    /// Tells whether what runs on a machine is no member any more.
    pub(crate) fn is_lost(&self, at: usize) -> bool {
        self.machines[at].lost.load(Ordering::Relaxed)
    }

    /// Returns the machines whose nodes are members.
    pub(crate) fn members_at(&self) -> Vec<usize> {
        (0..NODES).filter(|at| !self.is_lost(*at)).collect()
    }

    /// Returns the life of the node that runs on a machine now.
    pub(crate) fn life(&self, at: usize) -> Option<Life> {
        self.machines[at].node.lock().life.clone()
    }

    fn config(&self, machine: &Machine) -> Config {
        let mut config = Config::for_test(format!("/n{}", machine.id));
        let id = u16::try_from(machine.id).expect("three nodes");
        config.http.listen.set_port(7_100 + id);
        config.peer.listen.set_port(7_200 + id);
        config.log.segment_bytes = 1 << 20;
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

    fn end_life(&self, at: usize, dark: bool) {
        let machine = &self.machines[at];
        let (life, open) = {
            let mut node = machine.node.lock();
            (node.life.take(), node.open.take())
        };
        if dark {
            self.wire.power_off(NodeId(machine.id));
        } else {
            self.wire.crash(NodeId(machine.id));
        }
        let Some(life) = life else { return };
        life.end();
        life.within(|| drop(open));
    }

    /// Cuts a machine's power.
    pub(crate) fn power_cut(&self, at: usize) {
        self.end_life(at, true);
        let seed = self.draw(0..u64::MAX);
        self.machines[at].disk.power_cut(seed);
    }

    /// Kills a node's process.
    pub(crate) fn kill(&self, at: usize) {
        self.end_life(at, false);
        self.machines[at].disk.process_kill();
    }

    /// Stops a node's process as an operator does, and as SIGTERM does: leaderships are handed
    /// over, then it ends.
    pub(crate) async fn stop_in_order(&self, at: usize) {
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
        self.kill(at);
    }

    /// Flips a bit of a machine's log or of what else its node keeps, at rest.
    pub(crate) fn flip_a_bit(&self, at: usize) {
        let machine = &self.machines[at];
        if machine.lost.load(Ordering::Relaxed) {
            return;
        }
        let files: Vec<_> = machine
            .disk
            .files()
            .into_iter()
            .map(|path| (machine.disk.contents(&path).unwrap_or_default().len(), path))
            .filter(|(length, _)| *length > 0)
            .collect();
        if files.is_empty() {
            return;
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
    }

    fn pick(&self, of: usize) -> usize {
        usize::try_from(self.draw(0..of as u64)).expect("less than a usize")
    }

    /// Empties a machine whose node is down.
    pub(crate) fn wipe(&self, at: usize) {
        let machine = &self.machines[at];
        machine.lost.store(true, Ordering::Relaxed);
        machine.node.lock().kept_down = false;
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
        let adopt = Ask::post("/admin/v1/adopt", "adopt", self.adoption(at));
        let Told::Answer(answer) = self.call(at, adopt).await else { return };
        let Some(log_uuid) = answer.body.get("log_uuid").cloned() else { return };
        let mut members = self.members.lock().clone();
        members[at]["log_uuid"] = log_uuid;
        let begin = Ask::post("/admin/v1/begin", "begin", serde_json::json!({"members": members}));
        self.call(at, begin).await;
    }

    /// What tells a node which it is.
    pub(crate) fn adoption(&self, at: usize) -> serde_json::Value {
        let hex = |n: u64| format!("{n:032x}");
        serde_json::json!({
            "cluster_id": hex(self.plan.seed + 1),
            "node": at + 1,
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
        (0..NODES).for_each(|at| self.kill(at));
    }

    fn status(&self, at: usize) -> Option<holdfast::shard::NodeStatus> {
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

    /// Sends a request to a node and waits for what comes, but no longer than its deadline and a
    /// while.
    pub(crate) async fn call(self: &Arc<World>, at: usize, ask: Ask) -> Told {
        self.tally.calls.fetch_add(1, Ordering::Relaxed);
        let patience = Duration::from_millis(ask.deadline_ms + 200);
        let (there, back) = (self.draw(50..3_000), self.draw(50..3_000));
        let late = self.draw(0..1_000) < self.plan.impatience;
        // A late one sits in some socket, and nobody waits for its answer any more.
        let there = if late { self.draw(1_000..6_000_000) } else { there };
        let lost = self.draw(0..1_000) < self.plan.impatience / 4;
        let (world, asked) = (Arc::clone(self), ask);
        let (done, told) = oneshot::channel();
        drop(life::spawn_in_the_world(async move {
            runtime::sleep(Duration::from_micros(there)).await;
            let told = world.carry_out(at, asked).await;
            runtime::sleep(Duration::from_micros(back)).await;
            done.send(if lost { Told::Lost } else { told }).ok();
        }));
        match runtime::timeout(patience, told).await {
            Ok(Ok(told)) => told,
            Ok(Err(_)) | Err(runtime::Elapsed) => Told::Lost,
        }
    }

    /// Lets a node answer a request that has arrived.
    pub(crate) async fn carry_out(self: &Arc<World>, at: usize, ask: Ask) -> Told {
        let (life, router) = {
            let node = self.machines[at].node.lock();
            match (&node.life, &node.open) {
                (Some(life), Some((_, router))) => (life.clone(), router.clone()),
                (Some(_) | None, _) => return Told::Refused,
            }
        };
        let request = ask.request();
        let arrived = now();
        // A stopped process keeps no deadline.
        let (stops, was_stopped) = (life.stops(), life.is_stopped());
        let is_undisturbed = || !was_stopped && life.stops() == stops && !life.is_stopped();
        let (done, answered) = oneshot::channel();
        drop(life.spawn(async move {
            let response = router.oneshot(request).await.expect("the router cannot fail");
            let (head, body) = response.into_parts();
            let body = body.collect().await.expect("a body in memory").to_bytes();
            done.send((head, body)).ok();
        }));
        // No call hangs: it is answered by its deadline.
        let limit = Duration::from_millis(ask.deadline_ms);
        let Ok(answered) = runtime::timeout_at(arrived + limit + GRACE, answered).await else {
            if is_undisturbed() {
                let (at, method, path) = (at + 1, ask.method, &ask.path);
                self.broken(format!("n{at} left {method} {path} unanswered past its deadline"));
            }
            return Told::Lost;
        };
        let Ok((head, body)) = answered else { return Told::Lost };
        let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let commit = text("holdfast-commit").and_then(Commit::parse);
        let answer = Answer {
            status: head.status.as_u16(),
            commit,
            replayed: text("idempotent-replayed") == Some("true"),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let words = if answer.status < 400 { "" } else { answer.slug() };
        let took = now() - arrived;
        self.trace.say_of(
            at as u64 + 1,
            format!(
                "{} {} key={} → {} {words} {} took={took:?} hash={:016x}",
                ask.method,
                ask.path,
                ask.key.as_deref().unwrap_or("-"),
                answer.status,
                text("holdfast-commit").unwrap_or("-"),
                xxhash_rust::xxh3::xxh3_64(&body),
            ),
        );
        if took > limit && is_undisturbed() {
            self.broken(format!("an answer of n{} came past its deadline: {ask:?}", at + 1));
        }
        if let Err(why) = self.judge.hear(&ask, &answer) {
            self.broken(why);
        }
        Told::Answer(answer)
    }
}

/// How long after its deadline an answer is waited for before it counts as missing.
const GRACE: Duration = Duration::from_millis(100);

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

impl Ask {
    fn request(&self) -> axum::http::Request<Body> {
        let builder = axum::http::Request::builder()
            .method(self.method)
            .uri(&self.path)
            .header("holdfast-deadline-ms", self.deadline_ms);
        let builder = match &self.key {
            Some(key) => builder.header("idempotency-key", key),
            None => builder,
        };
        let builder = match self.if_match {
            Some(revision) => builder.header("if-match", format!("\"{revision}\"")),
            None => builder,
        };
        let body = self.body.as_ref().map(|body| body.to_string());
        let builder = match &body {
            Some(_) => builder.header("content-type", "application/json"),
            None => builder,
        };
        builder.body(body.map_or_else(Body::empty, Body::from)).expect("a request of ours")
    }
}
