//! A perfect cluster in memory, for histories that are valid by construction: concurrent clients,
//! shards with a log and leaders, unanswered operations that were done or not, expiry, and the
//! final reads. Seeded: the same seed, the same history.

mod drawing;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::check::book::FINAL;
use crate::dice::{Dice, mix};
use crate::history::{Act, Commit, Event, History, Kind, Process, Row, Standing, Value};
use crate::model::{Ask, Item, Reply, Slot, Step};
use crate::recorder::Beside;
use crate::workload::LONG_MS;

const PROCESSES: u64 = 6;
const NODES: u64 = 3;
const SHARDS: u64 = 2;
/// When the world began, in ms since 1970.
const EPOCH_MS: u64 = 1_700_000_000_000;
const MS: u64 = 1_000_000;

/// A shard's log.
#[derive(Debug, Clone)]
struct Log {
    index: u64,
    term: u64,
    node: u64,
    /// When the last entry was decided, and whether an answer rests on it already: then nothing
    /// more may be added to it.
    decided: u64,
    sealed: bool,
}

/// A key of an item.
#[derive(Debug, Clone)]
struct Key {
    name: String,
    buyer: Option<usize>,
    quantity: u64,
    placed_at: u64,
    expires_at: u64,
    revision: u64,
    sold: u64,
}

/// An item.
#[derive(Debug)]
struct Thing {
    name: String,
    shard: u64,
    ttl_ms: u64,
    limit: Option<u64>,
    total: u64,
    model: Item,
    keys: Vec<Key>,
    adjusts: usize,
}

/// What a client does.
#[derive(Debug, Clone)]
struct Task {
    act: Act,
    thing: usize,
    step: Step,
    value: Value,
    invoked: u64,
    /// Whether it reaches the cluster, and whether its answer comes back.
    arrives: bool,
    answers: bool,
    told: Option<(Kind, Value, Option<Commit>, Option<String>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Invoke,
    Effect,
    Complete,
}

/// The world.
#[derive(Debug)]
pub(super) struct World {
    dice: Dice,
    now: u64,
    events: Vec<Event>,
    logs: Vec<Log>,
    things: Vec<Thing>,
    tasks: BTreeMap<u64, Task>,
    process: Vec<u64>,
    /// What a client has to do next: the retry or the void of what was not answered.
    pending: BTreeMap<u64, Task>,
    wanted: u64,
}

const BUYERS: usize = 5;
const KEYS_MAX: usize = 400;

/// Makes a valid history of about so many operations.
pub(super) fn history(seed: u64, operations: u64) -> History {
    let mut world = World::new(seed, operations);
    world.create();
    world.work();
    world.change_members();
    world.settle();
    world.finish();
    History { events: world.events }
}

impl World {
    fn new(seed: u64, wanted: u64) -> World {
        let mut dice = Dice::new(seed, "world");
        let log = |_| Log { index: 1, term: 1, node: 1, decided: 0, sealed: true };
        let mut things = Vec::new();
        for (at, (name, ttl_ms, limit)) in
            [("plain", LONG_MS, None), ("limited", LONG_MS, Some(4)), ("timed", 60, None)]
                .into_iter()
                .enumerate()
        {
            let total = dice.between(6, 14);
            things.push(Thing {
                name: format!("{name}-{seed}"),
                shard: at as u64 % SHARDS,
                ttl_ms,
                limit,
                total,
                model: Item::new(total, limit, KEYS_MAX, BUYERS),
                keys: Vec::new(),
                adjusts: 0,
            });
        }
        World {
            dice,
            now: MS,
            events: Vec::new(),
            logs: (0..SHARDS).map(log).collect(),
            things,
            tasks: BTreeMap::new(),
            process: (0..PROCESSES).collect(),
            pending: BTreeMap::new(),
            wanted,
        }
    }

    fn note(&mut self, kind: Kind, process: Process, f: Act, value: Value, beside: Beside) {
        self.now += 1;
        let Beside { node, commit, error } = beside;
        let index = self.events.len() as u64;
        let time = self.now;
        self.events.push(Event { index, time, kind, process, f, value, node, commit, error });
    }

    fn say(&mut self, act: Act, value: Value, node: Option<u64>) {
        let beside = Beside { node, ..Beside::default() };
        self.note(Kind::Info, Process::nemesis(), act, value, beside);
    }

    fn create(&mut self) {
        for at in 0..self.things.len() {
            let thing = &self.things[at];
            let value = Value {
                item: Some(thing.name.clone()),
                total: Some(thing.total),
                limit: thing.limit,
                ttl_ms: Some(thing.ttl_ms),
                ..Value::default()
            };
            let told = Value { status: Some(201), home_shard: Some(thing.shard), ..value.clone() };
            let shard = thing.shard;
            let process = Process::Client(0);
            self.note(Kind::Invoke, process.clone(), Act::Create, value, Beside::default());
            let beside = Beside { commit: Some(self.append(shard, self.now)), ..Beside::default() };
            self.note(Kind::Ok, process, Act::Create, told, beside);
        }
    }

    fn ledger_ms(&self) -> u64 {
        EPOCH_MS + self.now / MS
    }

    fn log(&mut self, shard: u64) -> &mut Log {
        &mut self.logs[usize::try_from(shard).expect("few")]
    }

    fn stand(&mut self, shard: u64) -> Commit {
        let log = self.log(shard);
        log.sealed = true;
        Commit { shard, index: log.index, term: log.term, node: log.node }
    }

    /// Adds a change to the log: to the last entry, if it may still grow, else to a new one.
    fn append(&mut self, shard: u64, invoked: u64) -> Commit {
        let (now, joins) = (self.now, self.dice.percent(60));
        let log = self.log(shard);
        if log.sealed || invoked >= log.decided || !joins {
            log.index += 1;
            log.decided = now;
            log.sealed = false;
        }
        Commit { shard, index: log.index, term: log.term, node: log.node }
    }

    fn work(&mut self) {
        let mut queue: BinaryHeap<Reverse<(u64, Moment, u64)>> = BinaryHeap::new();
        for client in 0..PROCESSES {
            queue.push(Reverse((self.now + self.dice.below(MS), Moment::Invoke, client)));
        }
        let mut begun = 0;
        while let Some(Reverse((time, moment, client))) = queue.pop() {
            self.now = self.now.max(time);
            self.elect();
            match moment {
                Moment::Invoke => {
                    if begun >= self.wanted && !self.pending.contains_key(&client) {
                        continue;
                    }
                    begun += 1;
                    self.invoke(client);
                    let at = self.now + self.dice.between(1, 2 * MS);
                    queue.push(Reverse((at, Moment::Effect, client)));
                }
                Moment::Effect => {
                    self.effect(client);
                    let at = self.now + self.dice.between(1, 2 * MS);
                    queue.push(Reverse((at, Moment::Complete, client)));
                }
                Moment::Complete => {
                    self.complete(client);
                    let at = self.now + self.dice.between(1, MS);
                    queue.push(Reverse((at, Moment::Invoke, client)));
                }
            }
        }
    }

    fn elect(&mut self) {
        if self.dice.below(60) > 0 {
            return;
        }
        let (shard, node) = (self.dice.below(SHARDS), self.dice.between(1, NODES));
        let log = self.log(shard);
        log.term += 1;
        log.node = node;
        log.index += 1;
        log.sealed = true;
        let term = log.term;
        let leads =
            Value { shard: Some(shard), term: Some(term), leader: Some(node), ..Value::default() };
        self.say(Act::Leader, leads, Some(node));
        let value = Value { shard: Some(shard), recovery_ms: Some(300), ..Value::default() };
        self.say(Act::Recovered, value, None);
    }

    fn invoke(&mut self, client: u64) {
        let mut task = self.pending.remove(&client).unwrap_or_else(|| self.draw());
        task.invoked = self.now;
        task.told = None;
        let fate = self.dice.below(100);
        (task.arrives, task.answers) = (fate > 2, fate > 5);
        let process = Process::Client(self.process[usize::try_from(client).expect("few")]);
        self.note(Kind::Invoke, process, task.act, task.value.clone(), asked_of(1));
        self.tasks.insert(client, task);
    }

    /// Deadlines that have passed on a shard.
    fn lapse(&mut self, thing: usize) {
        let now = self.ledger_ms();
        let item = &mut self.things[thing];
        for key in 0..item.keys.len() {
            if item.model.slot(key) == Slot::Held && item.keys[key].expires_at <= now {
                item.model.step(Step::Expire { key });
            }
        }
    }

    fn effect(&mut self, client: u64) {
        let mut task = self.tasks.remove(&client).expect("it was invoked");
        if task.arrives {
            self.lapse(task.thing);
            let item = &mut self.things[task.thing];
            let before = item.model.fingerprint();
            let reply = item.model.step(task.step);
            let changed = item.model.fingerprint() != before
                || (task.act == Act::Extend && reply == Reply::Hold(Slot::Held));
            let shard = item.shard;
            let commit = if changed { self.append(shard, task.invoked) } else { self.stand(shard) };
            self.restate(&task, changed, commit.index);
            task.told = Some(self.tell(&task, reply, changed, commit));
        }
        self.tasks.insert(client, task);
    }

    /// Keeps the rows up to date.
    fn restate(&mut self, task: &Task, changed: bool, index: u64) {
        let now = self.ledger_ms();
        let item = &mut self.things[task.thing];
        let ttl_ms = item.ttl_ms;
        let key = match task.step {
            Step::Place(Ask { key, .. })
            | Step::Confirm { key, .. }
            | Step::Release { key }
            | Step::Return { key }
            | Step::Extend { key } => key,
            Step::Void(_)
            | Step::Receipt { .. }
            | Step::Look { .. }
            | Step::Stock
            | Step::Adjust { .. }
            | Step::Expire { .. } => return,
        };
        if !changed {
            return;
        }
        let slot = item.model.slot(key);
        let row = &mut item.keys[key];
        row.revision = index;
        row.sold = if let Slot::Sold { units } = slot { units } else { 0 };
        if task.act == Act::Place {
            row.placed_at = now;
            row.expires_at = now + ttl_ms;
        }
        if task.act == Act::Extend {
            row.expires_at = row.expires_at.max(now + ttl_ms);
        }
    }

    fn row(&self, thing: usize, key: usize) -> Option<Row> {
        let item = &self.things[thing];
        let state = match item.model.slot(key) {
            Slot::Free | Slot::Voided => return None,
            Slot::Held => Standing::Held,
            Slot::Sold { .. } => Standing::Sold,
            Slot::Released => Standing::Released,
            Slot::Expired => Standing::Expired,
            Slot::Returned => Standing::Returned,
        };
        let known = &item.keys[key];
        Some(Row {
            id: id(thing, key),
            state,
            quantity: known.quantity,
            sold: known.sold,
            buyer: known.buyer.map(|buyer| format!("buyer-{buyer}")),
            region: "default".to_owned(),
            reference: Some(known.name.clone()),
            placed_at: known.placed_at,
            expires_at: known.expires_at,
            revision: known.revision,
        })
    }

    /// Words an answer.
    fn tell(
        &self,
        task: &Task,
        reply: Reply,
        changed: bool,
        commit: Commit,
    ) -> (Kind, Value, Option<Commit>, Option<String>) {
        let mut value = task.value.clone();
        let key = match task.step {
            Step::Place(Ask { key, .. })
            | Step::Void(Ask { key, .. })
            | Step::Confirm { key, .. }
            | Step::Release { key }
            | Step::Return { key }
            | Step::Extend { key }
            | Step::Receipt { key }
            | Step::Look { key } => Some(key),
            Step::Stock | Step::Adjust { .. } | Step::Expire { .. } => None,
        };
        value.row = key.and_then(|key| self.row(task.thing, key));
        value.replayed = (task.act.changes() && !changed).then_some(true);
        value.status = Some(200);
        let no = |slug: &str| {
            let mut value = task.value.clone();
            value.status = Some(409);
            (Kind::Fail, value, Some(commit), Some(slug.to_owned()))
        };
        match reply {
            Reply::Hold(_) => {
                value.receipt =
                    matches!(task.act, Act::Receipt | Act::Void).then(|| "committed".to_owned());
            }
            Reply::Voided => value.receipt = Some("voided".to_owned()),
            Reply::NotFound if task.act == Act::Receipt => {
                value.receipt = Some("not_found".to_owned());
            }
            Reply::NotFound => return no("not-found"),
            Reply::Stock { available, held, sold, total } => {
                (value.available, value.held) = (Some(available), Some(held));
                (value.sold, value.total) = (Some(sold), Some(total));
                value.in_transit = Some(0);
            }
            Reply::Done => {}
            Reply::SoldOut => return no("sold-out"),
            Reply::Insufficient => return no("insufficient-stock"),
            Reply::BuyerLimit => return no("buyer-limit"),
            Reply::KeyVoided => return no("key-voided"),
            Reply::KeyReused => return no("idempotency-key-reused"),
            Reply::Ended(Slot::Sold { .. }) => return no("hold-confirmed"),
            Reply::Ended(Slot::Expired) => return no("hold-expired"),
            Reply::Ended(_) => return no("hold-released"),
            Reply::NotSold => return no("hold-not-sold"),
            Reply::Committed => return no("stock-committed"),
            Reply::Invalid | Reply::Impossible => return no("validation"),
        }
        (Kind::Ok, value, Some(commit), None)
    }

    fn complete(&mut self, client: u64) {
        let task = self.tasks.remove(&client).expect("it was invoked");
        let at = usize::try_from(client).expect("few");
        let process = Process::Client(self.process[at]);
        let told = task.told.clone().filter(|_| task.answers);
        if let Some((kind, value, commit, error)) = told {
            return self.note(
                kind,
                process,
                task.act,
                value,
                Beside { commit, error, ..asked_of(1) },
            );
        }
        let lost = Beside { error: Some("no answer in time".to_owned()), ..asked_of(1) };
        if !task.act.changes() {
            return self.note(Kind::Fail, process, task.act, task.value, lost);
        }
        self.note(Kind::Info, process, task.act, task.value.clone(), lost);
        self.process[at] += PROCESSES;
        // The same again, or a void.
        let gives_up = self.dice.percent(50);
        let next = if let (Step::Place(ask), true) = (task.step, gives_up) {
            self.task(task.thing, Act::Void, Step::Void(ask))
        } else {
            self.task(task.thing, task.act, task.step)
        };
        self.pending.insert(client, next);
    }

    /// The members change when clients are done: a node is drained and undrained, another comes,
    /// gets its vote, is removed, and is asked all the same.
    fn change_members(&mut self) {
        let (drained, came) = (self.dice.between(1, NODES), NODES + 1);
        for (word, stays) in [("drain", true), ("undrain", false)] {
            let value = Value {
                nodes: Some(vec![drained]),
                leads: Some(0),
                drained: Some(stays),
                ..Value::default()
            };
            if stays {
                self.operation(word, drained);
                self.say(Act::Drained, value, Some(drained));
                self.now += self.dice.between(1_000, 3_000) * MS;
            } else {
                self.say(Act::Drained, value, Some(drained));
                self.operation(word, drained);
            }
        }
        let rest: Vec<u64> = (1..=NODES).collect();
        let all: Vec<u64> = (1..=came).collect();
        for (word, voters) in [("add", &all), ("remove", &rest)] {
            self.operation(word, came);
            for node in voters {
                let value = Value {
                    voters: Some(voters.clone()),
                    wanted: Some(voters.clone()),
                    ..Value::default()
                };
                self.say(Act::Members, value, Some(*node));
            }
        }
        let value = Value {
            nodes: Some(vec![came]),
            stayed_out: Some(true),
            proof: Some("not ready - node 4 was removed".to_owned()),
            ..Value::default()
        };
        self.say(Act::Removed, value, Some(came));
        for _ in 0..self.dice.between(1, 4) {
            let asked = Value { item: Some(self.things[0].name.clone()), ..Value::default() };
            let told = Value { status: Some(503), ..asked.clone() };
            let process = Process::Client(2_000_000);
            self.note(Kind::Invoke, process.clone(), Act::Stock, asked, asked_of(came));
            let beside = Beside { error: Some("not-serving".to_owned()), ..asked_of(came) };
            self.note(Kind::Fail, process, Act::Stock, told, beside);
        }
    }

    fn operation(&mut self, word: &str, node: u64) {
        let ms = self.dice.between(40, 4_000);
        self.now += ms * MS;
        let value = Value {
            operation: Some(word.to_owned()),
            nodes: Some(vec![node]),
            recovery_ms: Some(ms),
            ..Value::default()
        };
        self.say(Act::Operation, value, Some(node));
    }

    /// Begins the final phase: clients have settled what was not answered.
    fn settle(&mut self) {
        let value = Value { note: Some(FINAL.to_owned()), ..Value::default() };
        self.say(Act::Note, value, None);
    }

    fn finish(&mut self) {
        for thing in 0..self.things.len() {
            self.lapse(thing);
            for act in [Act::Holds, Act::Stock, Act::Audit] {
                self.read(thing, act, "linearizable", 1);
            }
            for node in 1..=NODES {
                self.read(thing, Act::Holds, "local", node);
            }
        }
        for shard in 0..SHARDS {
            let index = self.log(shard).index;
            for node in 1..=NODES {
                let value = Value {
                    shard: Some(shard),
                    applied: Some(index),
                    digest: Some(format!("{:016x}", mix(shard ^ mix(index)))),
                    ..Value::default()
                };
                self.say(Act::Digest, value, Some(node));
            }
        }
        let value = Value {
            fault: Some("wipe".to_owned()),
            effective: Some(true),
            stayed_out: Some(true),
            ..Value::default()
        };
        self.say(Act::FaultStart, value, None);
        for node in 1..=NODES {
            let value =
                Value { nodes: Some(vec![node]), recovery_ms: Some(40), ..Value::default() };
            self.say(Act::Recovered, value, None);
        }
    }

    fn read(&mut self, thing: usize, act: Act, consistency: &str, node: u64) {
        let item = &self.things[thing];
        let asked = Value {
            item: Some(item.name.clone()),
            consistency: Some(consistency.to_owned()),
            ..Value::default()
        };
        let mut told = Value { status: Some(200), ..asked.clone() };
        if act == Act::Holds {
            let rows = (0..item.keys.len()).filter_map(|key| self.row(thing, key));
            told.rows = Some(rows.collect());
        } else {
            let model = &item.model;
            (told.available, told.held) = (Some(model.available), Some(model.held));
            (told.sold, told.total) = (Some(model.sold), Some(model.total));
            (told.in_transit, told.written_off) = (Some(0), Some(0));
            told.conserved = (act == Act::Audit).then_some(true);
        }
        let commit = Some(self.stand(self.things[thing].shard));
        let process = Process::Client(1_000_000);
        self.note(Kind::Invoke, process.clone(), act, asked, asked_of(node));
        self.note(Kind::Ok, process, act, told, Beside { commit, ..asked_of(node) });
    }
}

fn asked_of(node: u64) -> Beside {
    Beside { node: Some(node), ..Beside::default() }
}

fn id(thing: usize, key: usize) -> String {
    format!("hld_{thing}_{key}")
}
