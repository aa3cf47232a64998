//! Two shards and three buckets that trade stock over a network that loses, repeats, delays and
//! reorders every message (`escrow.md`). No unit is ever created or lost.
//!
//! A message is a fact about a counter at one moment; the net keeps every message ever sent
//! and delivers any of them at any time, any number of times.

use std::collections::BTreeMap;

use holdfast::ledger::*;
use proptest::collection::vec;
use proptest::prelude::*;

use super::laws;

/// One step: what happens, to which pair of buckets, and how much of it.
#[derive(Debug, Clone)]
pub(crate) struct Turnover {
    op: u8,
    pair: u8,
    amount: u8,
    which: u16,
}

/// Returns sequences of up to `steps` steps.
pub(crate) fn sequences(steps: usize) -> impl Strategy<Value = Vec<Turnover>> {
    let step = (0..100_u8, any::<u8>(), any::<u8>(), any::<u16>());
    let step = step.prop_map(|(op, pair, amount, which)| Turnover { op, pair, amount, which });
    vec(step, 8..steps)
}

const PAIRS: [(u16, u16); 6] = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];
const REGIONS: [&str; 3] = ["default", "eu", "us"];
const TOTAL: u64 = 40;

/// Pages, and whether the next checkpoint writes all of them.
type Store = (BTreeMap<PageKey, Vec<u8>>, bool);

struct Exchange {
    settings: Settings,
    /// The home shard with buckets 0 and 2, and the away shard with bucket 1.
    shards: [(ShardId, Ledger); 2],
    name: ItemName,
    number: ItemNumber,
    said: Vec<(usize, AcceptStock)>,
    heard: Vec<(usize, SettleStock)>,
    pulls: Vec<(usize, u64)>,
    holds: Vec<(usize, HoldId)>,
    /// Two databases a shard, and whether the next checkpoint into it writes everything.
    stores: [[Store; 2]; 2],
    /// S, R as the answers told them, by pair.
    sent: [u64; 6],
    accepted: [u64; 6],
    now: u64,
    index: u64,
    keys: u64,
}

/// Runs one sequence, heals the network at its end, and returns how many commands were answered.
pub(crate) fn run(steps: &[Turnover]) -> u64 {
    let mut exchange = Exchange::open();
    for step in steps {
        exchange.step(step);
        exchange.check();
    }
    exchange.heal();
    exchange.index
}

impl Exchange {
    fn open() -> Exchange {
        let settings = Settings { sweep_max: 1, ..laws::settings(2) };
        let name = ItemName { tenant: "t".into(), item: "x".into() };
        let home = home_shard(name.borrowed(), 2);
        let ids = [home, ShardId(1 - home.0)];
        let shards = ids.map(|id| (id, Ledger::new(id, settings.clone())));
        let mut exchange = Exchange {
            settings,
            shards,
            name,
            number: ItemNumber(0),
            said: Vec::new(),
            heard: Vec::new(),
            pulls: Vec::new(),
            holds: Vec::new(),
            stores: Default::default(),
            sent: [0; 6],
            accepted: [0; 6],
            now: 1_000,
            index: 0,
            keys: 0,
        };
        let definition = Definition {
            rules: HoldRules { ttl_ms: 1_000, ..HoldRules::default() },
            limit_per_buyer: None,
            opens_at: None,
            closes_at: None,
            metadata: BTreeMap::new(),
        };
        let created = exchange.ask(
            0,
            Command::Define(Define {
                name: exchange.name.clone(),
                total: Some(TOTAL),
                regions: BTreeMap::new(),
                definition: definition.clone(),
                if_revision: None,
            }),
        );
        let Answer::Item { item, .. } = created else { panic!("not created: {created:?}") };
        exchange.number = item.number;
        for (shard, bucket) in [(1, 1), (0, 2)] {
            let open = Command::OpenBucket(OpenBucket {
                bucket: exchange.bucket(bucket),
                name: exchange.name.clone(),
                region: RegionOrdinal(bucket),
                region_name: REGIONS[usize::from(bucket)].into(),
                default_region: false,
                place: (0, 1),
                floor: 0,
                definition: definition.clone(),
                revision: 1,
            });
            let answer = exchange.ask(shard, open);
            assert_eq!(answer, Answer::BucketOpen);
        }
        exchange
    }

    fn bucket(&self, bucket: u16) -> BucketRef {
        BucketRef { home: self.shards[0].0, item: self.number, bucket: BucketId(bucket) }
    }

    fn ask(&mut self, shard: usize, command: Command) -> Answer {
        self.index += 1;
        let batch = Batch { stamp: UnixMs(self.now), commands: vec![command] };
        let mut answers = self.shards[shard].1.apply(LogIndex(self.index), &batch);
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    fn shard_of(bucket: u16) -> usize {
        usize::from(bucket == 1)
    }

    fn step(&mut self, step: &Turnover) {
        let pair = usize::from(step.pair % 6);
        let amount = u64::from(step.amount % 8) + 1;
        let any = |len: usize| usize::from(step.which) % len.max(1);
        match step.op {
            0..=9 => self.pulls.push((pair, self.accepted[pair])),
            10..=29 if !self.pulls.is_empty() => {
                let (pair, if_sent) = self.pulls[any(self.pulls.len())];
                self.send(pair, if_sent, amount);
            }
            10..=29 => self.send(pair, 0, amount),
            30..=49 if !self.said.is_empty() => {
                let (pair, message) = self.said[any(self.said.len())];
                self.deliver(pair, message);
            }
            50..=59 if !self.heard.is_empty() => {
                let (pair, message) = self.heard[any(self.heard.len())];
                let answer =
                    self.ask(Exchange::shard_of(PAIRS[pair].0), Command::SettleStock(message));
                assert_eq!(answer, Answer::Settled, "what was accepted once was sent");
            }
            60..=74 => self.place((step.pair % 3).into(), amount),
            75..=89 if !self.holds.is_empty() => {
                let (shard, hold) = self.holds[any(self.holds.len())];
                self.end_hold(shard, hold, step.pair);
            }
            90 => {
                let shard = usize::from(step.pair % 2);
                let (id, ledger) = &mut self.shards[shard];
                *ledger = laws::reload(*id, &self.settings, ledger);
                // What is loaded does not know what its databases have.
                self.stores[shard].iter_mut().for_each(|store| store.1 = true);
            }
            91..=93 => self.checkpoint(usize::from(step.pair % 2), usize::from(step.amount % 2)),
            94..=96 => self.adjust(amount, step.pair.is_multiple_of(2)),
            _ => self.now += 400,
        }
    }

    fn send(&mut self, pair: usize, if_sent: u64, quantity: u64) {
        let (from, to) = PAIRS[pair];
        let before = self.sent[pair];
        let known = self.heard.iter().filter(|(p, _)| *p == pair).map(|(_, m)| m.accepted).max();
        let answer = self.ask(
            Exchange::shard_of(from),
            Command::SendStock(SendStock {
                from: self.bucket(from),
                to: BucketId(to),
                quantity,
                acked: known.filter(|_| quantity.is_multiple_of(2)).unwrap_or(0),
                if_sent,
                same_region: false,
                bound: 6,
            }),
        );
        let Answer::Sent { sent, floor_sent } = answer else {
            let refused = matches!(answer, Answer::Refused(Refusal::TransferRefused { .. }));
            return assert!(refused, "a send is answered by a send, not {answer:?}");
        };
        assert_eq!(if_sent, before, "a stale pull drained the donor again");
        assert_eq!(sent, before + quantity);
        assert!(sent - self.accepted[pair] <= 6, "beyond the bound");
        self.sent[pair] = sent;
        let (to, from) = (self.bucket(to), BucketId(from));
        self.said.push((pair, AcceptStock { to, from, sent, floor_sent }));
    }

    fn deliver(&mut self, pair: usize, message: AcceptStock) {
        let (from, to) = PAIRS[pair];
        let answer = self.ask(Exchange::shard_of(to), Command::AcceptStock(message));
        let accepted = self.accepted[pair].max(message.sent);
        assert_eq!(answer, Answer::Accepted { accepted }, "R is the greatest S that was heard");
        self.accepted[pair] = accepted;
        let (from, to) = (self.bucket(from), BucketId(to));
        self.heard.push((pair, SettleStock { from, to, accepted }));
    }

    fn place(&mut self, bucket: u16, quantity: u64) {
        self.keys += 1;
        let shard = Exchange::shard_of(bucket);
        let answer = self.ask(
            shard,
            Command::Place(Place {
                name: self.name.clone(),
                region: Some(REGIONS[usize::from(bucket)].into()),
                buyer: None,
                key: format!("k{}", self.keys),
                quantity,
                ttl_ms: None,
                reference: None,
            }),
        );
        if let Answer::Placed(placed) = answer {
            return self.holds.push((shard, placed.id));
        }
        let short = matches!(
            answer,
            Answer::Refused(Refusal::SoldOut { .. } | Refusal::InsufficientStock { .. })
        );
        assert!(short, "neither a hold nor a lack of stock: {answer:?}");
    }

    fn end_hold(&mut self, shard: usize, hold: HoldId, how: u8) {
        self.keys += 1;
        let (tenant, key) = ("t".to_string(), format!("o{}", self.keys));
        let command = match how % 4 {
            0 | 1 => {
                let (quantity, reacquire, reference) = (None, how.is_multiple_of(8), None);
                Command::Confirm(Confirm { hold, tenant, key, quantity, reacquire, reference })
            }
            2 => Command::Release(Release { hold, tenant, key, reason: None }),
            _ => Command::Return(Return { hold, tenant, key, quantity: None }),
        };
        self.ask(shard, command);
    }

    fn adjust(&mut self, units: u64, raise: bool) {
        self.keys += 1;
        let change = if raise { Change::Raise(units) } else { Change::Lower(units) };
        let key = format!("a{}", self.keys);
        let (name, reason) = (self.name.clone(), String::new());
        let answer = self.ask(0, Command::Adjust(Adjust { name, key, change, reason }));
        let known =
            matches!(answer, Answer::Item { .. } | Answer::Refused(Refusal::StockCommitted { .. }));
        assert!(known, "{answer:?}");
    }

    /// Writes what is dirty for one database, which then loads to the same digest.
    fn checkpoint(&mut self, shard: usize, turn: usize) {
        let (id, ledger) = &mut self.shards[shard];
        let (store, whole) = &mut self.stores[shard][turn];
        if std::mem::take(whole) {
            store.clear();
            ledger.begin_cut([Turn::A, Turn::B][turn], true);
        } else {
            ledger.begin_cut([Turn::A, Turn::B][turn], false);
        }
        loop {
            let slice = ledger.take_cut(2);
            if slice.is_empty() {
                break;
            }
            for (key, page) in slice {
                if let Some(page) = page {
                    store.insert(key, page)
                } else {
                    store.remove(&key)
                };
            }
        }
        ledger.end_cut(true);
        let loaded = Ledger::load(*id, self.settings.clone(), store.clone().into_iter());
        let loaded = loaded.expect("a database loads").digest();
        assert_eq!(loaded, ledger.digest(), "what is dirty is all that has changed");
    }

    fn check(&self) -> Vec<Audit> {
        let audits: Vec<Audit> =
            self.shards.iter().filter_map(|(_, ledger)| laws::audit(ledger, &self.name)).collect();
        assert_eq!(audits.len(), 2, "both shards know the item");
        laws::item_adds_up(&audits);
        audits
    }

    /// Delivers the newest word of every pair: nothing is in transit any more.
    fn heal(&mut self) {
        for (pair, (donor, _)) in PAIRS.into_iter().enumerate() {
            let newest = self.said.iter().rfind(|(p, _)| *p == pair).copied();
            if let Some((_, message)) = newest {
                self.deliver(pair, message);
                let (_, settled) = self.heard.last().copied().expect("delivered just now");
                let answer = self.ask(Exchange::shard_of(donor), Command::SettleStock(settled));
                assert_eq!(answer, Answer::Settled);
            }
        }
        let audits = self.check();
        let units: u64 =
            audits.iter().flat_map(|a| &a.buckets).map(|b| b.available + b.held + b.sold).sum();
        assert_eq!(Some(units), audits.iter().find_map(|a| a.total), "all is where it can be seen");
        for (_, ledger) in &self.shards {
            let Found::Availability(stock) = ledger.query(&Query::Availability(self.name.clone()))
            else {
                panic!("the item is there");
            };
            assert!(stock.buckets.iter().all(|b| b.in_transit_out == 0), "{stock:?}");
        }
    }
}
