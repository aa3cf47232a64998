//! Random sequences on an item of several buckets over three shards, against the model of
//! `spread_model.rs`, with a network that delivers any message ever sent at any time.
//!
//! After every command: the answer is the model's, every bucket is the model's, the laws hold over
//! all shards, and floors are where they were granted. Now and then a shard is loaded from its
//! pages. At the end the network heals, and everything settles.

// A test that asks for one answer means every other one by the rest, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use holdfast::ledger::*;
use proptest::collection::vec;
use proptest::prelude::*;

use super::laws;
use super::spread_model::{Bucket, Copy, Life, Region, Spread, State};

#[path = "spread_healing.rs"]
mod healing;

/// One step: what to do, and small numbers to choose with.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    op: u8,
    pick: [u8; 4],
}

/// Returns sequences of up to `steps` steps.
pub(crate) fn sequences(steps: usize) -> impl Strategy<Value = Vec<Turn>> {
    let step = (0..100_u8, any::<[u8; 4]>()).prop_map(|(op, pick)| Turn { op, pick });
    vec(step, 8..steps)
}

const SHARDS: usize = 3;
const TOTAL: u64 = 24;
const BOUND: u64 = 6;

/// A message, with what it means to the model: which life, and where it goes.
#[derive(Clone)]
enum Message {
    Accept { life: usize, from: usize, to: usize, sent: u64, floor: u64 },
    Settle { life: usize, from: usize, to: usize, accepted: u64 },
    Image { shard: usize, configure: Box<Configure>, means: Box<Copy> },
    Answer { life: usize, shard: usize, state: CopyState },
    Erase { life: usize, shard: usize },
}

struct World {
    settings: Settings,
    name: ItemName,
    home: u16,
    shards: Vec<Ledger>,
    model: Spread,
    net: Vec<Message>,
    /// Holds by life, bucket and key.
    holds: BTreeMap<(usize, usize, String), HoldId>,
    index: u64,
    keys: u64,
    view: Option<ItemView>,
    tally: BTreeMap<String, u64>,
}

/// Runs one sequence and returns how often each kind of answer was given.
pub(crate) fn run(steps: &[Turn]) -> BTreeMap<String, u64> {
    let settings = Settings { sweep_max: 4, ..laws::settings(SHARDS as u16) };
    let name = ItemName { tenant: "t".into(), item: "x".into() };
    let home = home_shard(name.borrowed(), SHARDS as u16).0;
    let shard = |at: usize| ShardId((home + at as u16) % SHARDS as u16);
    let shards = (0..SHARDS).map(|at| Ledger::new(shard(at), settings.clone())).collect();
    let mut world = World {
        settings,
        name,
        home,
        shards,
        model: Spread::default(),
        net: Vec::new(),
        holds: BTreeMap::new(),
        index: 0,
        keys: 0,
        view: None,
        tally: BTreeMap::new(),
    };
    world.create();
    for step in steps {
        world.step(step);
        world.check();
    }
    world.heal();
    world.tally
}

impl World {
    fn shard(&self, at: usize) -> ShardId {
        ShardId((self.home + at as u16) % SHARDS as u16)
    }

    fn life(&self) -> usize {
        self.model.lives.len() - 1
    }

    fn now(&mut self) -> &mut Life {
        self.model.lives.last_mut().expect("it was created")
    }

    fn item(&self, life: usize) -> ItemRef {
        ItemRef { home: ShardId(self.home), item: ItemNumber(life as u64 + 1) }
    }

    fn bucket(&self, life: usize, bucket: usize) -> BucketRef {
        let ItemRef { home, item } = self.item(life);
        BucketRef { home, item, bucket: BucketId(bucket as u16) }
    }

    /// Asks a shard, and holds its answer against the model's.
    fn ask(&mut self, shard: usize, command: Command, expected: &str) -> Answer {
        self.index += 1;
        let ledger = &mut self.shards[shard];
        let foreseen = ledger.foresee(&command);
        let batch = Batch { stamp: UnixMs(1), commands: vec![command] };
        let answer = batch.shown(ledger.apply(LogIndex(self.index), &batch)).remove(0);
        if let Foreseen::Answer(known) = foreseen {
            assert_eq!(known, answer, "foreseen otherwise: {batch:?}");
        }
        let said = short(&answer);
        assert_eq!(said, expected, "step {}: {:?}", self.index, batch.commands[0]);
        if let Answer::Item { item, .. } = &answer {
            self.view = Some((**item).clone());
        }
        let verb = format!("{:?}", batch.commands[0]);
        let verb = verb.split('(').next().unwrap_or_default().to_lowercase();
        let kind = match said.strip_prefix("refused ") {
            Some(refusal) => refusal.split(' ').next().unwrap_or_default().to_string(),
            None if said.ends_with("replayed") => "replayed".into(),
            None => "done".into(),
        };
        *self.tally.entry(format!("{verb} {kind}")).or_default() += 1;
        answer
    }

    fn create(&mut self) {
        let plan = |quota, floor, buckets| RegionPlan { quota, floor, buckets };
        let plans = [("eu", plan(16, 4, 2)), ("us", plan(TOTAL - 16, 2, 1))];
        let places = BTreeMap::from([
            ("eu".to_string(), vec![self.shard(0), self.shard(1)]),
            ("us".to_string(), vec![self.shard(2)]),
        ]);
        let definition = Definition {
            rules: HoldRules::default(),
            limit_per_buyer: None,
            opens_at: None,
            closes_at: None,
            metadata: BTreeMap::new(),
        };
        let define = Define {
            name: self.name.clone(),
            total: Some(TOTAL),
            regions: plans.iter().map(|(name, plan)| (name.to_string(), *plan)).collect(),
            definition,
            if_revision: None,
        };
        let region = |(name, plan)| Region { name, plan, closed: false };
        let bucket = |(shard, region)| Bucket { shard, region, ..Bucket::default() };
        let mut buckets: Vec<Bucket> = [(0, 0), (1, 0), (2, 1)].map(bucket).into();
        (buckets[0].open, buckets[0].available, buckets[0].floor) = (true, TOTAL as i64, 4);
        self.model.lives.push(Life {
            total: TOTAL as i64,
            mode: Mode::Open,
            revision: 1,
            config: 1,
            regions: plans.map(region).into(),
            buckets,
            copies: vec![None; SHARDS],
            answered: vec![None, Some((0, 0)), Some((0, 0))],
            deleting: None,
            lowering: None,
            receipts: Vec::new(),
            gone: false,
        });
        let spread = DefineSpread { define, shards: places };
        let created = format!("item total={TOTAL} open created");
        self.ask(0, Command::DefineSpread(spread), &created);
    }

    fn step(&mut self, step: &Turn) {
        let [a, b, c, _] = step.pick;
        if self.now().gone && !step.op.is_multiple_of(8) {
            return self.deliver(step);
        }
        match step.op {
            _ if self.now().gone => self.create(),
            0..=16 => self.place(step),
            17..=27 => self.end(step),
            28..=45 => self.send(step),
            46..=70 => self.deliver(step),
            71..=77 => {
                let shard = 1 + usize::from(a) % (SHARDS - 1);
                self.image(shard);
            }
            78..=80 => {
                let mode = match b % 16 {
                    0 if c % 4 == 0 => Mode::Closed,
                    1..=3 => Mode::Paused,
                    _ => Mode::Open,
                };
                let expected = self.now().set_mode(mode);
                let name = self.name.clone();
                self.ask(0, Command::SetMode(SetMode { name, mode }), &expected);
            }
            81..=86 => self.lay_out(step),
            87..=95 => self.total(step),
            96..=97 => self.delete(if b % 8 == 0 { 0 } else { 1 + c % 2 }),
            98 => {
                // A deletion whose copies all answer.
                for shard in (1..SHARDS).filter(|_| a % 2 == 0) {
                    self.image(shard);
                    self.bring(self.net[self.net.len() - 1].clone());
                    self.bring(self.net[self.net.len() - 1].clone());
                }
                self.delete(2);
            }
            _ => {
                let shard = usize::from(a) % SHARDS;
                let id = self.shard(shard);
                self.shards[shard] = laws::reload(id, &self.settings, &mut self.shards[shard]);
            }
        }
    }

    /// Finds a key that a bucket owns, so that the numbers alone decide which.
    fn key(&mut self, bucket: usize) -> (String, String) {
        let view = self.view.clone().expect("it was created");
        let placement = view.buckets.iter().find(|known| known.bucket.0 == bucket as u16);
        let region = placement.expect("the model's buckets are the ledger's").region;
        let region = view.region_list.iter().find(|known| known.ordinal == region);
        let region = region.expect("a bucket has a region").name.clone();
        loop {
            self.keys += 1;
            let key = format!("k{}", self.keys);
            let owner = view.owner(Some(&region), None, &key).expect("the region is there");
            if owner.bucket.0 == bucket as u16 {
                return (region, key);
            }
        }
    }

    fn place(&mut self, step: &Turn) {
        let [a, b, c, d] = step.pick;
        let bucket = usize::from(a) % self.now().buckets.len();
        let shard = self.now().buckets[bucket].shard;
        // A placement names no life: until the new copy is made, the old one answers (paused).
        let (now, before) = self.model.lives.split_last().expect("it was created");
        let alive = |life: &Life| life.copies[shard].as_ref().is_some_and(|copy| !copy.erased);
        if now.copies[shard].is_none() && before.iter().any(alive) {
            return;
        }
        let (region, fresh) = self.key(bucket);
        let known = self.now().buckets[bucket].holds.clone();
        let key = match known.len() {
            0 => fresh,
            len if b % 4 == 0 => known[usize::from(c) % len].0.clone(),
            _ => fresh,
        };
        let quantity = u64::from(d % 3) + 1;
        let name = self.name.clone();
        let place = Place {
            name,
            region: Some(region),
            buyer: None,
            key: key.clone(),
            quantity,
            ttl_ms: None,
            reference: None,
        };
        let expected = self.now().place(bucket, &key, quantity as i64);
        let answer = self.ask(shard, Command::Place(place), &expected);
        if let Answer::Hold { hold, .. } = answer {
            let scope = (self.life(), bucket, key);
            let first = *self.holds.entry(scope).or_insert(hold.id);
            assert_eq!(first, hold.id, "law 3: one key made two holds");
        }
    }

    fn end(&mut self, step: &Turn) {
        let [a, b, ..] = step.pick;
        let life = self.life();
        let mine: Vec<_> = self.holds.iter().filter(|((of, ..), _)| *of == life).collect();
        if mine.is_empty() {
            return;
        }
        let ((_, bucket, key), hold) = mine[usize::from(a) % mine.len()];
        let (bucket, key, hold) = (*bucket, key.clone(), *hold);
        self.keys += 1;
        let (tenant, op) = ("t".to_string(), format!("o{}", self.keys));
        let shard = self.now().buckets[bucket].shard;
        if b % 3 == 0 {
            let expected = self.now().end(bucket, &key, State::Sold);
            let (quantity, reference) = (None, None);
            let confirm = Confirm { hold, tenant, key: op, quantity, reacquire: false, reference };
            self.ask(shard, Command::Confirm(confirm), &expected);
        } else {
            let expected = self.now().end(bucket, &key, State::Released);
            let release = Release { hold, tenant, key: op, reason: None };
            self.ask(shard, Command::Release(release), &expected);
        }
    }

    fn send(&mut self, step: &Turn) {
        let [a, b, c, d] = step.pick;
        let (life, count) = (self.life(), self.now().buckets.len());
        let (from, to) = (usize::from(a) % count, usize::from(b) % count);
        let named = self.now().buckets[to].pairs.get(from).map_or(0, |pair| pair[3]);
        let if_sent = if c % 8 == 0 { u64::from(c / 8 % 4) } else { named as u64 };
        let same = self.now().buckets[from].region == self.now().buckets[to].region;
        let send = SendStock {
            from: self.bucket(life, from),
            to: BucketId(to as u16),
            quantity: u64::from(d % 4) + 1,
            acked: 0,
            if_sent,
            same_region: same != (c == 1),
            bound: BOUND,
        };
        let shard = self.now().buckets[from].shard;
        let lendable = match self.shards[shard].query(&Query::Levels(self.item(life))) {
            Found::Levels(levels) => levels.buckets.into_iter().find(|b| b.bucket.0 == from as u16),
            _ => None,
        };
        let expected = self.now().send(from, to, &send);
        let answer = self.ask(shard, Command::SendStock(send), &expected);
        if let Answer::Sent { sent, floor_sent: floor } = answer {
            let lendable = lendable.expect("it was open").lendable;
            assert!(same || send.quantity <= lendable, "more was lent than could be");
            self.net.push(Message::Accept { life, from, to, sent, floor });
        }
    }

    fn image(&mut self, shard: usize) {
        let (life, item) = (self.life(), self.item(self.life()));
        let query = Query::Copy { item, shard: self.shard(shard) };
        let Found::Copy(configure) = self.shards[0].query(&query) else {
            panic!("home makes the images of its copies");
        };
        let means = Box::new(self.now().image(life));
        self.net.push(Message::Image { shard, configure, means });
    }

    fn deliver(&mut self, step: &Turn) {
        let [a, b, ..] = step.pick;
        if self.net.is_empty() {
            return;
        }
        // Mostly what was said lately; sometimes anything ever said.
        let near = if b % 4 == 0 { self.net.len() } else { self.net.len().min(6) };
        let at = self.net.len() - 1 - (usize::from(a) % near);
        self.bring(self.net[at].clone());
    }

    fn bring(&mut self, message: Message) {
        match message {
            Message::Accept { life, from, to, sent, floor } => {
                let expected = self.model.lives[life].accept(to, from, sent as i64, floor as i64);
                let accept = AcceptStock {
                    to: self.bucket(life, to),
                    from: BucketId(from as u16),
                    sent,
                    floor_sent: floor,
                };
                let shard = self.model.lives[life].buckets[to].shard;
                let answer = self.ask(shard, Command::AcceptStock(accept), &expected);
                if let Answer::Accepted { accepted } = answer {
                    self.net.push(Message::Settle { life, from, to, accepted });
                }
            }
            Message::Settle { life, from, to, accepted } => {
                let expected = self.model.lives[life].settle(from, to, accepted as i64);
                let (from_ref, to) = (self.bucket(life, from), BucketId(to as u16));
                let settle = SettleStock { from: from_ref, to, accepted };
                let shard = self.model.lives[life].buckets[from].shard;
                self.ask(shard, Command::SettleStock(settle), &expected);
            }
            Message::Image { shard, configure, means } => {
                let life = means.life;
                let later = self.model.lives[life + 1..].iter().any(|l| l.copies[shard].is_some());
                let expected = self.model.lives[life].configure(shard, &means, later);
                let answer = self.ask(shard, Command::Configure(configure), &expected);
                if let Answer::Copy(state) = answer {
                    self.net.push(Message::Answer { life, shard, state });
                }
            }
            Message::Answer { life, shard, state } => {
                if let CopyState::Applied { revision, held, .. } = state {
                    self.model.lives[life].hears(shard, revision as i64, held as i64);
                }
                let answered =
                    CopyAnswered { item: self.item(life), shard: self.shard(shard), state };
                self.ask(0, Command::CopyAnswered(answered), "noted");
            }
            Message::Erase { life, shard } => {
                let expected = self.model.lives[life].erase(shard);
                let erase = EraseCopy { item: self.item(life) };
                let answer = self.ask(shard, Command::EraseCopy(erase), &expected);
                if let Answer::Copy(state) = answer {
                    self.net.push(Message::Answer { life, shard, state });
                }
            }
        }
    }

    fn lay_out(&mut self, step: &Turn) {
        let [a, b, c, d] = step.pick;
        let mut regions = self.now().regions.clone();
        let at = usize::from(a) % regions.len();
        let plan = &mut regions[at].plan;
        match b % 8 {
            0 => (plan.quota, plan.floor) = (0, 0),
            1..=3 => plan.floor = u64::from(c % 8),
            4 | 5 => plan.quota = u64::from(c % 20),
            _ => (plan.quota, plan.floor) = (u64::from(c % 16), u64::from(d % 6)),
        }
        let more = (d % 4 == 0 && regions.len() == 2).then_some(("ap", 1 + usize::from(c) % 2));
        let mut plans: Vec<RegionPlan> = regions.iter().map(|region| region.plan).collect();
        let mut named: BTreeMap<String, RegionPlan> =
            regions.iter().map(|region| (region.name.to_string(), region.plan)).collect();
        let mut shards = BTreeMap::new();
        if let Some((name, shard)) = more {
            let plan = RegionPlan { quota: 0, floor: 0, buckets: 1 };
            named.insert(name.into(), plan);
            plans.push(plan);
            shards.insert(name.to_string(), vec![self.shard(shard)]);
        }
        let (name, item) = (self.name.clone(), self.item(self.life()).item);
        let if_revision = self.now().revision as u64;
        let expected = self.now().lay_out(&plans, more);
        let set = SetLayout { name, item, if_revision, regions: named, shards };
        self.ask(0, Command::SetLayout(set), &expected);
    }

    fn total(&mut self, step: &Turn) {
        let [a, b, c, d] = step.pick;
        let (name, item) = (self.name.clone(), self.item(self.life()).item);
        let key = format!("a{}", c % 12);
        let most = if step.op < 89 { 3 } else { 12 };
        let (units, region) = (u64::from(d % most) + 1, RegionOrdinal(u16::from(b % 4)));
        let reason = String::new();
        match step.op {
            87..=88 => {
                let change = if a % 2 == 0 {
                    Change::Raise(units)
                } else {
                    Change::RaiseIn { units, region }
                };
                let expected = self.now().raise(&key, change);
                self.ask(0, Command::Adjust(Adjust { name, key, change, reason }), &expected);
            }
            89..=91 => {
                let change = if a % 2 == 0 {
                    Change::Lower(units)
                } else {
                    Change::LowerIn { units, region }
                };
                let expected = self.now().lower_begin(&key, change);
                let until = UnixMs(0);
                let begin = LowerBegin { name, item, key, change, reason, until };
                self.ask(0, Command::LowerBegin(begin), &expected);
            }
            _ => {
                let begun = self.now().lowering.as_ref().map(|lowering| lowering.0.clone());
                let key = begun.filter(|_| a % 8 > 0).unwrap_or(key);
                let commit = b % 4 > 0;
                let expected = self.now().lower_end(&key, commit);
                let end = LowerEnd { name, item, key };
                let command =
                    if commit { Command::LowerCommit(end) } else { Command::LowerAbort(end) };
                self.ask(0, command, &expected);
            }
        }
    }

    fn delete(&mut self, step: u8) {
        let expected = self.now().delete(step);
        let delete = Delete { name: self.name.clone(), item: self.item(self.life()).item };
        let command = match step {
            0 => Command::DeleteBegin(delete),
            1 => Command::DeleteAbort(delete),
            _ => Command::DeleteCommit(delete),
        };
        self.ask(0, command, &expected);
        if self.now().gone {
            let life = self.life();
            self.net.extend((1..SHARDS).map(|shard| Message::Erase { life, shard }));
        }
    }

    /// Every bucket is the model's, and the laws hold over all shards.
    fn check(&mut self) {
        let life = self.life();
        if self.now().gone {
            return;
        }
        let item = self.item(life);
        let levels: Vec<Levels> = self
            .shards
            .iter()
            .filter_map(|ledger| match ledger.query(&Query::Levels(item)) {
                Found::Levels(levels) => Some(levels),
                _ => None,
            })
            .collect();
        let model = self.model.lives.last().expect("it was created");
        for level in levels.iter().flat_map(|levels| &levels.buckets) {
            let at = usize::from(level.bucket.0);
            let b = &model.buckets[at];
            let got = (level.free as i64, level.held as i64, level.sold as i64);
            assert_eq!(got, (model.sellable(at), b.held(), b.sold()), "bucket {at}");
            let share = level.floor as i64 - level.floor_owed as i64;
            assert_eq!(share, b.floor, "the share of bucket {at}");
            for pair in &level.pairs {
                let [s, f, a, r, rf] = b.pairs[usize::from(pair.peer.0)];
                let known = [pair.sent, pair.floor_sent, pair.acked, pair.accepted];
                assert_eq!(known.map(|n| n as i64), [s, f, a, r], "bucket {at}: {pair:?}");
                assert_eq!(pair.floor_accepted as i64, rf);
            }
        }
        let audits = self.shards.iter().filter_map(|ledger| laws::audit(ledger, &self.name));
        let audits: Vec<Audit> = audits.filter(|audit| audit.number == item.item).collect();
        laws::item_adds_up(&audits);
        let taken: u64 = levels.iter().flat_map(|l| &l.buckets).map(|b| b.held + b.sold).sum();
        assert!(taken as i64 <= model.total, "law 2: {taken} of {}", model.total);
        let Found::Item(view) = self.shards[0].query(&Query::Item(self.name.clone())) else {
            panic!("the item is there");
        };
        laws::floors_add_up(&view, &levels);
    }
}

/// An answer in the words of the model.
fn short(answer: &Answer) -> String {
    match answer {
        Answer::Hold { hold, replayed } => {
            hold.state.word().to_string() + if *replayed { " replayed" } else { "" }
        }
        Answer::Refused(Refusal::Invalid { .. }) => "refused invalid".into(),
        Answer::Refused(Refusal::InsufficientStock { available }) => {
            format!("refused insufficient-stock {available}")
        }
        Answer::Refused(Refusal::UnderWay { operation }) => {
            format!("refused under-way operation={operation:?}").to_lowercase()
        }
        Answer::Retired { .. } => "retired".into(),
        Answer::Item { item, created, replayed } => {
            let mark = if *created { " created" } else { "" };
            let again = if *replayed { " replayed" } else { "" };
            let mode = format!("{:?}", item.mode).to_lowercase();
            format!("item total={} {mode}{mark}{again}", item.total)
        }
        other => {
            let said = crate::words::answer(other, &|_| String::new());
            match said.strip_prefix("refused ") {
                Some(why) => {
                    format!("refused {}", why.split([' ', ':']).next().unwrap_or_default())
                }
                None => said,
            }
        }
    }
}
