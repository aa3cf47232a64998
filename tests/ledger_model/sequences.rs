//! Random sequences of commands against the model, on two ledgers at once.
//!
//! The *first* ledger is checkpointed all the time: copy-before-write cuts in slices, in turns,
//! some given up. The *second* is now and then replaced by one that was loaded from a whole cut.
//! After every entry: both answer what the model says, their digests are equal, the laws hold, the
//! stock is the model's, and a completed cut loads to the digest of the index at which it began.

use std::collections::BTreeMap;

use holdfast::ledger::*;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Model, laws};
use crate::words;

/// One step: what to do, small numbers to choose with, and how long before it.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    op: u8,
    pick: [u8; 5],
    wait: u8,
    joins: bool,
}

/// Returns sequences of up to `steps` steps.
pub(crate) fn sequences(steps: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0..100_u8, any::<[u8; 5]>(), any::<u8>(), prop::bool::weighted(0.3));
    vec(step.prop_map(|(op, pick, wait, joins)| Step { op, pick, wait, joins }), 8..steps)
}

/// How often each kind of answer was given.
pub(crate) type Tally = BTreeMap<String, u64>;

type Store = BTreeMap<PageKey, Vec<u8>>;

struct Cut {
    turn: usize,
    whole: bool,
    digest: u128,
    pages: Vec<(PageKey, Option<Vec<u8>>)>,
}

struct World {
    settings: Settings,
    first: Ledger,
    second: Ledger,
    model: Model,
    past: Vec<Command>,
    made: BTreeMap<(u64, Option<String>, String), HoldId>,
    stores: [Store; 2],
    cut: Option<Cut>,
    index: u64,
    tally: Tally,
    cuts: u64,
}

const SHARD: ShardId = ShardId(0);

fn names() -> [ItemName; 3] {
    [("t", "a"), ("t", "b"), ("u", "a")]
        .map(|(tenant, item)| ItemName { tenant: tenant.into(), item: item.into() })
}

/// Runs one sequence and returns how many answers of each kind were given.
pub(crate) fn run(steps: &[Step]) -> Tally {
    let sweep_max = steps.first().map_or(1, |step| u32::from(step.wait % 4));
    let settings = Settings { sweep_max, slots: 3, ..laws::settings(1) };
    let mut world = World {
        first: Ledger::new(SHARD, settings.clone()),
        second: Ledger::new(SHARD, settings.clone()),
        settings,
        model: Model::default(),
        past: Vec::new(),
        made: BTreeMap::new(),
        stores: [Store::new(), Store::new()],
        cut: None,
        index: 0,
        tally: Tally::new(),
        cuts: 0,
    };
    let mut batch = Batch { stamp: UnixMs(1), commands: Vec::new() };
    for name in names() {
        let define = world.define(&[2, 7, 20, 1, 1], name);
        batch.commands.push(Command::Define(define));
    }
    for step in steps {
        if !step.joins && !batch.commands.is_empty() {
            world.entry(&batch);
            batch.commands.clear();
            world.checkpoint(step);
            batch.stamp = world.stamp(step.wait);
        }
        let command = world.command(step);
        world.past.push(command.clone());
        batch.commands.push(command);
    }
    world.entry(&batch);
    world.compare_all_holds();
    *world.tally.entry("checkpoints loaded".into()).or_default() += world.cuts;
    world.tally
}

impl World {
    fn stamp(&self, wait: u8) -> UnixMs {
        let now = self.first.now().0;
        UnixMs(match wait % 16 {
            0..=8 => now,
            9..=10 => now + 1,
            11..=12 => now + 250,
            13 => now + 1_000,
            14 => now + 20_000,
            _ => now.saturating_sub(5_000),
        })
    }

    fn hold(&self, pick: &[u8; 5]) -> (HoldId, String) {
        let holds: Vec<HoldId> = self.model.holds().map(|(id, _)| id).collect();
        let recent = holds.len().min(if pick[0].is_multiple_of(4) { 200 } else { 12 });
        if recent == 0 {
            return (nobodys_hold(), "t".into());
        }
        let id = holds[holds.len() - 1 - usize::from(pick[1]) % recent];
        let tenant = if self.tenant_is_u(&id) { "u" } else { "t" };
        (id, tenant.into())
    }

    fn tenant_is_u(&self, id: &HoldId) -> bool {
        let found = self.first.query(&Query::Item(names()[2].clone()));
        matches!(found, Found::Item(item) if item.number == id.item)
    }

    fn define(&self, pick: &[u8; 5], name: ItemName) -> Define {
        let rules = HoldRules {
            ttl_ms: 1_000,
            ttl_ms_max: 60_000,
            extends_max: u32::from(pick[0] % 5),
            lifetime_ms_max: 60_000 + 1_000 * u64::from(pick[0] % 2),
        };
        let stock = self.model.stock(&name);
        let (limit, total) = match stock {
            Some(stock) => {
                let limit = self.model.buyer(&name, (true, "")).0;
                (limit, [None, Some(stock.3), Some(stock.3 + 1)][usize::from(pick[2] % 3)])
            }
            None => {
                let limit = [None, None, Some(3), Some(8)][usize::from(pick[1] % 4)];
                (limit, Some(3 + u64::from(pick[2] % 8)))
            }
        };
        let definition = Definition {
            rules,
            limit_per_buyer: limit,
            opens_at: None,
            closes_at: None,
            metadata: BTreeMap::new(),
        };
        Define { name, total, regions: BTreeMap::new(), definition, if_revision: None }
    }

    fn adjust(&self, pick: &[u8; 5], name: ItemName) -> Adjust {
        let stock = self.model.stock(&name).unwrap_or((0, 0, 0, 10));
        let found = self.first.query(&Query::Item(name.clone()));
        let revision = if let Found::Item(item) = found { item.revision } else { 0 };
        let some = u64::from(pick[1] % 3) + 1;
        let change = match pick[3] % 5 {
            0 | 1 => Change::Raise(some),
            2 | 3 => Change::Lower(some),
            _ => {
                let if_revision =
                    if pick[4].is_multiple_of(4) { revision + 9_999_999 } else { revision };
                Change::Set { total: (stock.3 + some).saturating_sub(2), if_revision }
            }
        };
        Adjust { name, key: format!("a{}", pick[2] % 32), change, reason: String::new() }
    }

    fn command(&self, step: &Step) -> Command {
        let pick = &step.pick;
        let name = names()[[0, 0, 0, 0, 0, 1, 1, 2][usize::from(pick[0] % 8)]].clone();
        let buyer = ["b0", "b1", "b2", "b3"].get(usize::from(pick[1] % 5)).map(|b| b.to_string());
        let key = format!("k{}", pick[2] % 40);
        let ttls = [None, Some(1), Some(500), Some(3_000), Some(60_000), Some(20_000), None];
        let ttl_ms = ttls[usize::from(pick[4] % 7)];
        let (hold, tenant) = self.hold(pick);
        // A key is used with one wish about `reacquire` only: the model does not know that field.
        let few = |verb: char| format!("{verb}{}", pick[2] % 6);
        match step.op {
            0..=31 => {
                let quantity =
                    if pick[3].is_multiple_of(32) { 60 } else { u64::from(pick[3] % 4) + 1 };
                let reference = None;
                let region = None;
                Command::Place(Place { name, region, buyer, key, quantity, ttl_ms, reference })
            }
            32..=42 => {
                Command::Extend(Extend { hold, tenant, key: few('e'), ttl_ms: ttl_ms.or(Some(2)) })
            }
            43..=57 => {
                let quantity = pick[3].is_multiple_of(3).then(|| u64::from(pick[3] % 5) + 1);
                let reacquire = (pick[2] % 6).is_multiple_of(2);
                let key = few('c');
                Command::Confirm(Confirm {
                    hold,
                    tenant,
                    key,
                    quantity,
                    reacquire,
                    reference: None,
                })
            }
            58..=67 => Command::Release(Release { hold, tenant, key: few('r'), reason: None }),
            68..=74 => {
                let quantity = pick[3].is_multiple_of(2).then(|| u64::from(pick[3] % 5) + 1);
                Command::Return(Return { hold, tenant, key: few('b'), quantity })
            }
            75 => Command::Void(Void { scope: KeyScope { name, region: None, buyer, key } }),
            76..=81 => Command::Adjust(self.adjust(pick, name)),
            82..=85 => {
                let mode = match pick[3] {
                    0..=3 => Mode::Closed,
                    4..=80 => Mode::Paused,
                    _ => Mode::Open,
                };
                Command::SetMode(SetMode { name, mode })
            }
            86 => Command::Retire(Retire { name }),
            87..=89 => Command::Define(self.define(pick, name)),
            90..=96 if !self.past.is_empty() => {
                let at = usize::from(pick[0]) * 256 + usize::from(pick[1]);
                self.past[self.past.len() - 1 - at % self.past.len()].clone()
            }
            _ => Command::Advance,
        }
    }

    /// Applies one entry to both ledgers and to the model, and compares everything.
    fn entry(&mut self, batch: &Batch) {
        for name in names() {
            if let Found::Item(item) = self.first.query(&Query::Item(name.clone())) {
                self.model.learn_revision(&name, item.revision);
            }
        }
        let lone = (batch.commands.len() == 1 && batch.stamp <= self.first.now())
            .then(|| self.first.foresee(&batch.commands[0]));
        self.index += 1;
        let answers = self.first.apply(LogIndex(self.index), batch);
        let again = self.second.apply(LogIndex(self.index), batch);
        assert_eq!(answers, again, "two ledgers answer one entry alike");
        assert_eq!(self.first.digest(), self.second.digest(), "and have one digest");
        assert_eq!(answers.len(), batch.commands.len());
        let answers = batch.shown(answers);
        match lone {
            Some(Foreseen::Answer(known)) => assert_eq!(known, answers[0], "foreseen otherwise"),
            Some(Foreseen::Admit(_)) => {
                assert!(!words::is_about_stock(&answers[0]), "admitted, then {:?}", answers[0]);
            }
            None => {}
        }
        self.model.advance(batch.stamp.0);
        for (command, answer) in batch.commands.iter().zip(&answers) {
            self.compare(command, answer);
        }
        for name in names() {
            self.compare_stock(&name);
        }
        if self.index.is_multiple_of(16) {
            self.compare_all_holds();
            self.compare_buyers();
        }
    }

    fn compare(&mut self, command: &Command, answer: &Answer) {
        let expected = self.model.answer(command);
        if let Answer::Hold { hold, .. } = answer {
            self.model.learn_hold(hold.id);
            if let Command::Place(place) = command {
                let scope = (hold.id.item.0, place.buyer.clone(), place.key.clone());
                let first = *self.made.entry(scope).or_insert(hold.id);
                assert_eq!(first, hold.id, "law 3: one key made two holds");
            }
        }
        let naming = |id: &HoldId| self.model.name_of(id);
        let mut got = words::answer(answer, &naming);
        if matches!(command, Command::Advance) {
            got.truncate("advanced".len());
        }
        assert_eq!(got, expected, "entry {}: {command:?}", self.index);
        *self.tally.entry(kind(command, &got)).or_default() += 1;
    }

    fn compare_stock(&self, name: &ItemName) {
        let audit = laws::audit(&self.first, name);
        let stock = audit.as_ref().map(|audit| {
            laws::item_adds_up(std::slice::from_ref(audit));
            let b = &audit.buckets[0];
            (b.available + b.due, b.held - b.due, b.sold, audit.total.expect("the home shard"))
        });
        assert_eq!(stock, self.model.stock(name), "entry {}: stock of {name}", self.index);
    }

    fn compare_all_holds(&self) {
        for (id, expected) in self.model.holds() {
            let tenant = if self.tenant_is_u(&id) { "u" } else { "t" };
            let naming = |id: &HoldId| self.model.name_of(id);
            let found = self.second.query(&Query::Hold { id, tenant: tenant.into() });
            let got = words::found(&found, &naming).join("; ");
            let expected = expected.unwrap_or("not-found".into());
            assert_eq!(got, expected, "entry {}: {id:?}", self.index);
        }
    }

    /// Asks the gate what is left to each buyer.
    fn compare_buyers(&self) {
        for name in names() {
            for buyer in ["b0", "b1", "b2", "b3"] {
                let foreseen = self.first.foresee(&Command::Place(Place {
                    name: name.clone(),
                    region: None,
                    buyer: Some(buyer.into()),
                    key: "a key that nobody used".into(),
                    quantity: 1,
                    ttl_ms: None,
                    reference: None,
                }));
                let Foreseen::Admit(demand) = foreseen else { continue };
                let (limit, held, sold) = self.model.buyer(&name, (true, buyer));
                assert_eq!(demand.buyer.map(|(_, left)| left), limit.map(|l| l - held - sold));
                assert_eq!(Some(demand.free), self.model.stock(&name).map(|stock| stock.0));
            }
        }
    }

    /// Moves the first ledger's checkpoint on, and sometimes reloads the second ledger.
    fn checkpoint(&mut self, step: &Step) {
        let pick = step.pick[4];
        if pick % 64 == 1 {
            self.second = laws::reload(SHARD, &self.settings, &mut self.second);
        }
        if let Some(mut cut) = self.cut.take() {
            let slice = self.first.take_cut(usize::from(pick % 3) + 1);
            if slice.is_empty() {
                return self.complete(cut, !pick.is_multiple_of(8));
            }
            cut.pages.extend(slice);
            self.cut = Some(cut);
            if pick % 32 != 2 {
                return;
            }
            // Falls through: the cut under way is given up for a new one.
        }
        let turn = usize::from(self.index.is_multiple_of(2));
        let whole = pick % 16 == 3;
        self.first.begin_cut([Turn::A, Turn::B][turn], whole);
        let digest = self.first.digest();
        self.cut = Some(Cut { turn, whole, digest, pages: Vec::new() });
    }

    fn complete(&mut self, cut: Cut, durable: bool) {
        self.first.end_cut(durable);
        if !durable {
            return;
        }
        let store = &mut self.stores[cut.turn];
        if cut.whole {
            store.clear();
        }
        for (key, page) in cut.pages {
            assert!(key.0.len() <= 64, "a page's name is at most 64 bytes");
            match page {
                Some(page) => {
                    assert!(page.len() <= 16_384, "a page is at most 16 KiB, not {}", page.len());
                    store.insert(key, page);
                }
                None => {
                    store.remove(&key);
                }
            }
        }
        let pages = store.clone().into_iter();
        let loaded = Ledger::load(SHARD, self.settings.clone(), pages).expect("a store loads");
        assert_eq!(loaded.digest(), cut.digest, "a cut is the state at the index it began at");
        self.cuts += 1;
    }
}

/// Names a kind of answer: the verb, and granted, replayed or the refusal.
fn kind(command: &Command, said: &str) -> String {
    let debug = format!("{command:?}");
    let verb = debug.split('(').next().unwrap_or_default().to_lowercase();
    let what = match said.strip_prefix("refused ") {
        Some(refusal) => refusal.split([' ', ':']).next().unwrap_or_default(),
        None if said.ends_with("replayed") => "replayed",
        None => "done",
    };
    format!("{verb} {what}")
}

/// Returns the id of a hold that nobody has.
pub(crate) fn nobodys_hold() -> HoldId {
    HoldId {
        home: SHARD,
        item: ItemNumber(77),
        region: RegionOrdinal(0),
        bucket: BucketId(0),
        slot: 0,
        sequence: 1,
        tag: 1,
    }
}
