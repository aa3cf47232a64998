//! Three machines, the wire between them, and the way of a client to a node's HTTP.
//!
//! A machine outlives its node: its disk, its page databases and its wall clock. Each life of the
//! node gets a mount of the disk, an end of the wire and tasks of its own; all three die with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use holdfast::clock::WallClock;
use holdfast::config::Config;
use holdfast::http::{self, Front};
use holdfast::ledger::{NodeId, Turn};
use holdfast::node::{Counter, NodeError, Office, Parts};
use holdfast::peer::{Network, PeerLimits, SimNetwork, Spawner};
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

use super::judge::Judge;
use super::plan::{NODES, Plan, stream};
use super::trace::Trace;

/// One machine.
pub(crate) struct Machine {
    pub(crate) id: u64,
    pub(crate) disk: SimDisk,
    pub(crate) pages: Vec<SimPages>,
    pub(crate) offset_ms: Arc<AtomicI64>,
    node: Mutex<NodeNow>,
}

/// The node that runs on a machine now.
#[derive(Default)]
struct NodeNow {
    /// Counts its lives.
    number: u64,
    life: Option<Life>,
    open: Option<(Arc<Office>, axum::Router)>,
    /// It may not come back by itself now.
    kept_down: bool,
}

/// The whole simulated world of one seed.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) trace: Trace,
    pub(crate) judge: Judge,
    pub(crate) wire: SimNetwork,
    pub(crate) machines: Vec<Machine>,
    rng: Mutex<SmallRng>,
    calls: AtomicU64,
}

/// What a client sends.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) body: Option<serde_json::Value>,
    pub(crate) deadline_ms: u64,
}

impl Ask {
    pub(crate) fn get(path: impl Into<String>) -> Ask {
        Ask { method: "GET", path: path.into(), key: None, body: None, deadline_ms: 2_000 }
    }

    pub(crate) fn post(path: impl Into<String>, key: &str, body: serde_json::Value) -> Ask {
        let key = Some(key.to_owned());
        Ask { method: "POST", path: path.into(), key, body: Some(body), deadline_ms: 2_000 }
    }

    pub(crate) fn put(path: impl Into<String>, body: serde_json::Value) -> Ask {
        let body = Some(body);
        Ask { method: "PUT", path: path.into(), key: None, body, deadline_ms: 2_000 }
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
    pub(crate) fn new(plan: Plan) -> Arc<World> {
        let seed = plan.seed;
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
            }
        });
        let machines = machines.collect();
        let rng = Mutex::new(stream(seed, 2));
        let calls = AtomicU64::new(0);
        let (trace, judge) = (Trace::new(), Judge::default());
        Arc::new(World { plan, trace, judge, wire, machines, rng, calls })
    }

    /// Notes that a law is broken.
    pub(crate) fn broken(&self, law: impl AsRef<str>) {
        self.trace.say(format!("BROKEN: {}", law.as_ref()));
        self.judge.broken(law.as_ref());
    }

    pub(crate) fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.rng.lock().random_range(range)
    }

    /// Returns how many calls were made.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn config(&self, machine: &Machine) -> Config {
        let mut config = Config::for_test(format!("/n{}", machine.id));
        let id = u16::try_from(machine.id).expect("three nodes");
        config.http.listen.set_port(7_100 + id);
        config.peer.listen.set_port(7_200 + id);
        config.log.segment_bytes = 1 << 20;
        config.log.memory_tail_bytes = 1 << 20;
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
            let life = Life::begin();
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
                self.trace.say(format!("n{} is open (life {number})", machine.id));
                let front =
                    Front::new(Arc::new(Counter(Arc::clone(&office))), http::Limits::default());
                machine.node.lock().open = Some((office, http::router(&front)));
                true
            }
            Err(error) => {
                self.trace.say(format!("n{} does not open: {error}", machine.id));
                if is_loss(&error) {
                    self.broken(format!("n{} lost its log to a crash: {error}", machine.id));
                }
                self.end_life(at, false);
                machine.disk.process_kill();
                false
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

    /// Tells why a node takes no part any more.
    pub(crate) fn failure(&self, at: usize) -> Option<String> {
        let status = self.status(at)?;
        let failed = status.shards.iter().find_map(|shard| shard.failed.clone());
        status.stopped.or(status.log.failed).or(failed)
    }

    /// Sends a request to a node and waits for what comes, but no longer than its deadline and a
    /// while.
    pub(crate) async fn call(self: &Arc<World>, at: usize, ask: Ask) -> Told {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let patience = Duration::from_millis(ask.deadline_ms + 200);
        let (there, back) = (self.draw(50..3_000), self.draw(50..3_000));
        let late = self.draw(0..1_000) < u64::from(self.plan.impatience);
        // A late one sits in some socket, and nobody waits for its answer any more.
        let there = if late { self.draw(1_000..6_000_000) } else { there };
        let lost = self.draw(0..1_000) < u64::from(self.plan.impatience) / 4;
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
    async fn carry_out(self: &Arc<World>, at: usize, ask: Ask) -> Told {
        let (life, router) = {
            let node = self.machines[at].node.lock();
            match (&node.life, &node.open) {
                (Some(life), Some((_, router))) => (life.clone(), router.clone()),
                (Some(_) | None, _) => return Told::Refused,
            }
        };
        let request = ask.request();
        let arrived = now();
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
            self.broken(format!(
                "n{} left {} {} unanswered past its deadline",
                at + 1,
                ask.method,
                ask.path
            ));
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
        self.trace.say(format!(
            "n{} {} {} key={} → {} {words} {} took={:?} hash={:016x}",
            at + 1,
            ask.method,
            ask.path,
            ask.key.as_deref().unwrap_or("-"),
            answer.status,
            text("holdfast-commit").unwrap_or("-"),
            now() - arrived,
            xxhash_rust::xxh3::xxh3_64(&body),
        ));
        if now() - arrived > limit {
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
        let body = self.body.as_ref().map(|body| body.to_string());
        let builder = match &body {
            Some(_) => builder.header("content-type", "application/json"),
            None => builder,
        };
        builder.body(body.map_or_else(Body::empty, Body::from)).expect("a request of ours")
    }
}
