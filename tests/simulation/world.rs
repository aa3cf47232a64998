//! The simulated world of one seed: three machines, the wire between them, the judges, and how much
//! was done. What a machine is and does is `machine.rs`; how a client reaches a node is `call.rs`.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use holdfast::peer::SimNetwork;
use holdfast::raft::Witness;
use holdfast::runtime::life::Life;
use parking_lot::Mutex;
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::call::Commit;
use super::cut::Cut;
use super::judge::Judge;
use super::machine::Machine;
use super::plan::{Kind, NODES, Plan, stream};
use super::stock::Stocks;
use super::trace::Trace;

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
    /// Faults that changed something, each by its own proof.
    pub(crate) effects: Mutex<BTreeMap<Kind, u32>>,
    /// Orders of operators by their word: how many were sent, and how many were taken.
    pub(crate) orders: Mutex<BTreeMap<&'static str, (u32, u32)>>,
    pub(crate) refused_starts: AtomicU32,
    /// Empty machines that came in as another node.
    pub(crate) joins: AtomicU32,
}

/// Decisions of a run, at most.
const DECISIONS_MAX: u32 = 5_000;

impl World {
    pub(crate) fn new(plan: Plan, cut: Cut, trace: Trace) -> Arc<World> {
        let seed = plan.seed ^ plan.salt << 40;
        let wire = SimNetwork::new(seed ^ 0x5157, plan.wire.clone());
        let machines = (0..NODES).map(|at| Machine::new(at, &plan, seed));
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

    /// Notes that a fault changed something.
    pub(crate) fn took_effect(&self, kind: Kind) {
        *self.tally.effects.lock().entry(kind).or_default() += 1;
    }

    /// Notes an order of an operator, and whether it was taken.
    pub(crate) fn ordered(&self, word: &'static str, taken: bool) {
        let mut orders = self.tally.orders.lock();
        let (sent, done) = orders.entry(word).or_default();
        *sent += 1;
        *done += u32::from(taken);
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
}
