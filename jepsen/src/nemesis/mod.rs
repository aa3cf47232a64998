//! The nemesis: it makes faults, proves that they did something, and undoes them.
//!
//! A fault without a proof of effect counts as skipped: a partition is shown by a connection that
//! cannot be opened, a kill by a process that is gone, a pause by its state, a clock by what the
//! node reports, a full disk by a write that fails, an injected error by the tracer's own word.

mod clock;
mod disk;
mod kinds;
mod members;
mod partition;
mod process;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use kinds::{Family, Fault};

use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::history::{Act, Process, Value};
use crate::net::Way;
use crate::prober::Prober;
use crate::recorder::Recorder;

/// How to undo a fault.
#[derive(Debug)]
pub(crate) enum Undo {
    /// The ways of this fault's number are cut.
    Cuts,
    /// They are cut and healed all the time by a task.
    Flaps(tokio::task::JoinHandle<()>),
    Loss,
    /// These nodes do not run.
    Start(Vec<u64>),
    /// These stand still.
    Continue(Vec<u64>),
    /// A task stops and continues this one all the time.
    Stutter(u64, tokio::task::JoinHandle<()>),
    /// This one's clock is wrong, perhaps by a task.
    Clock(u64, Option<tokio::task::JoinHandle<()>>),
    /// A tracer sits on this one; afterwards it has to be started anew, or not.
    Trace(disk::Tracer, u64, bool),
    /// This one's disk is full.
    Full(u64),
    /// This one's data was put aside and damaged.
    Damage(u64, rest::Damage),
    /// This one is drained.
    Drained(u64),
    /// This one has no vote.
    Demoted(u64),
    /// So many have come.
    Grown(usize),
    /// These were removed and still run.
    Dismantle(Vec<u64>),
    /// It is over already.
    Nothing,
}

/// A fault that was made.
#[derive(Debug)]
pub(crate) struct Strike {
    pub(crate) nodes: Vec<u64>,
    /// What shows that it did something.
    pub(crate) proof: String,
    pub(crate) effective: bool,
    /// Whether a node that must stay out does; `None` of every other fault.
    pub(crate) stayed_out: Option<bool>,
    pub(crate) undo: Undo,
}

impl Strike {
    fn new(nodes: Vec<u64>, proof: String, effective: bool, undo: Undo) -> Strike {
        Strike { nodes, proof, effective, stayed_out: None, undo }
    }

    fn proven(nodes: Vec<u64>, proof: String, undo: Undo) -> Strike {
        Strike::new(nodes, proof, true, undo)
    }
}

/// A fault that goes on.
#[derive(Debug)]
struct Standing {
    id: u64,
    fault: Fault,
    strike: Strike,
}

/// What has come of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Score {
    pub(crate) effective: u64,
    pub(crate) skipped: u64,
}

/// The nemesis.
#[derive(Debug)]
pub(crate) struct Nemesis {
    pub(crate) dice: Dice,
    recorder: Arc<Recorder>,
    cuts: BTreeMap<u64, BTreeSet<Way>>,
    next: u64,
    pub(crate) scores: BTreeMap<Fault, Score>,
    /// Why kinds were skipped, the last reason of each.
    pub(crate) reasons: BTreeMap<Fault, String>,
    /// What goes on, for the progress display.
    pub(crate) now: Arc<std::sync::Mutex<String>>,
    /// A failure of the suite's own tools: no verdict can be given after it.
    pub(crate) broken: Option<String>,
    /// A shard did not come back: more faults would tell nothing more.
    pub(crate) halted: bool,
}

impl Nemesis {
    pub(crate) fn new(dice: Dice, recorder: Arc<Recorder>) -> Nemesis {
        Nemesis {
            dice,
            recorder,
            cuts: BTreeMap::new(),
            next: 1,
            scores: BTreeMap::new(),
            reasons: BTreeMap::new(),
            now: Arc::default(),
            broken: None,
            halted: false,
        }
    }

    fn tell(&self, text: &str) {
        text.clone_into(&mut self.now.lock().expect("nobody panics with it"));
    }

    /// Any member.
    fn any(&mut self, cluster: &Cluster) -> u64 {
        *self.dice.pick(&cluster.ids()).expect("a cluster has members")
    }

    /// Notes that a kind cannot be had here.
    pub(crate) fn skip(&mut self, fault: Fault, why: &str) {
        self.scores.entry(fault).or_default().skipped += 1;
        self.reasons.insert(fault, why.to_owned());
    }

    /// Makes these faults at once, lets them last, undoes them, and waits for the cluster.
    pub(crate) async fn round(
        &mut self,
        cluster: &mut Cluster,
        prober: &mut Prober,
        faults: &[Fault],
        lasts: Duration,
    ) {
        let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
        self.tell(&names.join(" + "));
        let mut standing = Vec::new();
        for fault in faults {
            if let Some(strike) = self.strike(cluster, *fault).await {
                standing.push(strike);
            }
        }
        if standing.iter().any(|s| s.strike.effective) {
            tokio::time::sleep(lasts).await;
        }
        self.tell("healing");
        for fault in standing.into_iter().rev() {
            self.heal(cluster, fault).await;
        }
        self.tell("waiting for the cluster");
        self.recover(cluster, prober).await;
        self.tell("calm");
    }

    async fn strike(&mut self, cluster: &mut Cluster, fault: Fault) -> Option<Standing> {
        let id = self.next;
        self.next += 1;
        let struck = self.make(cluster, fault, id).await;
        let value =
            Value { fault: Some(fault.name().to_owned()), fault_id: Some(id), ..Value::default() };
        let score = self.scores.entry(fault).or_default();
        match struck {
            Ok(strike) => {
                if strike.effective {
                    score.effective += 1;
                } else {
                    score.skipped += 1;
                    self.reasons.insert(fault, strike.proof.clone());
                }
                let value = Value {
                    nodes: Some(strike.nodes.clone()),
                    proof: Some(strike.proof.clone()),
                    effective: Some(strike.effective),
                    stayed_out: strike.stayed_out,
                    ..value
                };
                self.recorder.say(Process::nemesis(), Act::FaultStart, value);
                Some(Standing { id, fault, strike })
            }
            Err(why) => {
                score.skipped += 1;
                self.reasons.insert(fault, why.clone());
                let value = Value { note: Some(why), effective: Some(false), ..value };
                self.recorder.say(Process::nemesis(), Act::FaultStart, value);
                self.cuts.remove(&id);
                None
            }
        }
    }

    async fn make(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
        id: u64,
    ) -> Result<Strike, String> {
        match fault.family() {
            Family::Network => self.partition(cluster, fault, id).await,
            Family::Process => self.process(cluster, fault).await,
            Family::Clock => self.clock(cluster, fault).await,
            Family::Disk => self.disk(cluster, fault).await,
            Family::Rest => self.damage(cluster, fault).await,
            Family::Members => self.members(cluster, fault).await,
        }
    }

    async fn heal(&mut self, cluster: &mut Cluster, standing: Standing) {
        let Standing { id, fault, strike } = standing;
        let healed = match strike.undo {
            Undo::Cuts => self.mend(cluster, id).await,
            Undo::Flaps(task) => {
                task.abort();
                let _ = task.await;
                self.mend(cluster, id).await
            }
            Undo::Loss => match &cluster.net {
                Some(net) => net.lose(0).await.map(|()| String::new()),
                None => Ok(String::new()),
            },
            Undo::Start(nodes) => process::start(cluster, &nodes),
            Undo::Continue(nodes) => process::wake(cluster, &nodes),
            Undo::Stutter(node, task) => {
                task.abort();
                let _ = task.await;
                process::wake(cluster, &[node])
            }
            Undo::Clock(node, task) => {
                if let Some(task) = task {
                    task.abort();
                    let _ = task.await;
                }
                cluster.node(node).set_clock(0).map(|()| String::new())
            }
            Undo::Trace(tracer, node, restart) => {
                disk::untrace(cluster, tracer, node, restart).await
            }
            Undo::Full(node) => disk::make_room(cluster, node).await,
            Undo::Damage(node, damage) => rest::mend(cluster, node, damage).await,
            Undo::Drained(node) => self.undrain(cluster, node).await,
            Undo::Demoted(node) => self.promote(cluster, node).await,
            Undo::Grown(count) => self.shrink(cluster, count).await,
            Undo::Dismantle(nodes) => members::dismantle(cluster, &nodes).await,
            Undo::Nothing => Ok(String::new()),
        };
        let value = Value {
            fault: Some(fault.name().to_owned()),
            fault_id: Some(id),
            nodes: Some(strike.nodes),
            ..Value::default()
        };
        let value = match healed {
            Ok(words) => Value { proof: (!words.is_empty()).then_some(words), ..value },
            // An operation that does not end is a violation, which the history shows.
            Err(why) if self.halted => Value { note: Some(why), ..value },
            Err(why) => {
                self.broken.get_or_insert(format!("{} could not be undone: {why}", fault.name()));
                Value { note: Some(why), ..value }
            }
        };
        self.recorder.say(Process::nemesis(), Act::FaultStop, value);
    }

    /// Starts what does not run, and waits until every shard commits and every node is ready.
    pub(crate) async fn recover(&mut self, cluster: &mut Cluster, prober: &mut Prober) {
        for id in cluster.ids() {
            let node = cluster.node_mut(id);
            if !node.is_running() {
                let words = node.last_words(3);
                let note = Some(format!("node {id} had ended; its last words: {words}"));
                let value = Value { note, ..Value::default() };
                self.recorder.say(Process::nemesis(), Act::Note, value);
                if let Err(why) = cluster.start(id) {
                    self.broken.get_or_insert(why);
                }
            }
        }
        self.halted |= !prober.wait_for_commits().await;
        for id in cluster.ids() {
            let ready = cluster.wait_until_ready(id).await;
            let mut value = Value { nodes: Some(vec![id]), ..Value::default() };
            match ready {
                Ok(took) => {
                    value.recovery_ms = Some(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
                }
                Err(why) => {
                    let words = cluster.node(id).last_words(4);
                    value.note = Some(format!("{why}; its last words: {words}"));
                }
            }
            self.recorder.say(Process::nemesis(), Act::Recovered, value);
        }
    }
}
