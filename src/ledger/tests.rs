//! Tests of the whole ledger, and the shard, the commands and the databases that they share.

// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

#[cfg(test)]
mod cut;
#[cfg(test)]
mod deadline;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod roster;
#[cfg(test)]
mod stock;

use std::collections::BTreeMap;

use super::page::PAGE_BYTES_MAX;
use super::*;

/// xorshift: the same numbers from the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn settings() -> Settings {
    Settings {
        shards: 1,
        tag_key: *b"sixteen bytes of",
        slots: 4,
        sweep_max: 3,
        receipt_retention_ms: 3_600_000,
        sold_retention_ms: 10_800_000,
    }
}

fn name() -> ItemName {
    ItemName { tenant: "t".into(), item: "x".into() }
}

fn definition() -> Definition {
    Definition {
        rules: HoldRules { ttl_ms: 500, ttl_ms_max: 2_000, extends_max: 2, lifetime_ms_max: 3_000 },
        limit_per_buyer: Some(4),
        opens_at: None,
        closes_at: None,
        metadata: BTreeMap::new(),
    }
}

fn define(total: u64) -> Command {
    Command::Define(Define {
        name: name(),
        total: Some(total),
        regions: BTreeMap::new(),
        definition: definition(),
        if_revision: None,
    })
}

fn place(buyer: &str, key: &str, quantity: u64) -> Command {
    Command::Place(Place {
        name: name(),
        region: None,
        buyer: Some(buyer.into()),
        key: key.into(),
        quantity,
        ttl_ms: None,
        reference: None,
    })
}

fn confirm(hold: HoldId, key: &str, quantity: Option<u64>, reacquire: bool) -> Command {
    let (tenant, key) = ("t".into(), key.into());
    Command::Confirm(Confirm { hold, tenant, key, quantity, reacquire, reference: None })
}

fn release(hold: HoldId, key: &str) -> Command {
    Command::Release(Release { hold, tenant: "t".into(), key: key.into(), reason: None })
}

/// A ledger with its log index.
struct Shard {
    ledger: Ledger,
    index: u64,
}

impl Shard {
    fn new(settings: Settings) -> Shard {
        Shard { ledger: Ledger::new(ShardId(0), settings), index: 0 }
    }

    fn apply(&mut self, stamp: u64, commands: Vec<Command>) -> Vec<Answer> {
        self.index += 1;
        let batch = Batch { stamp: UnixMs(stamp), commands };
        batch.shown(self.ledger.apply(LogIndex(self.index), &batch))
    }

    fn one(&mut self, stamp: u64, command: Command) -> Answer {
        self.apply(stamp, vec![command]).remove(0)
    }

    fn hold(&mut self, stamp: u64, command: Command) -> HoldView {
        match self.one(stamp, command) {
            Answer::Hold { hold, .. } => *hold,
            other => panic!("expected a hold, got {other:?}"),
        }
    }

    fn audit(&self) -> Audit {
        match self.ledger.query(&Query::Audit(name())) {
            Found::Audit(audit) => audit,
            other => panic!("expected an audit, got {other:?}"),
        }
    }

    fn stock(&self) -> (u64, u64, u64) {
        match self.ledger.query(&Query::Availability(name())) {
            Found::Availability(found) => {
                let bucket = &found.buckets[0];
                (bucket.available, bucket.held, bucket.sold)
            }
            other => panic!("expected stock, got {other:?}"),
        }
    }
}

type Database = BTreeMap<PageKey, Vec<u8>>;

fn write(database: &mut Database, pages: Vec<(PageKey, Option<Vec<u8>>)>) {
    for (key, page) in pages {
        match page {
            Some(bytes) => {
                assert!(bytes.len() <= PAGE_BYTES_MAX, "{} bytes", bytes.len());
                database.insert(key, bytes);
            }
            None => {
                database.remove(&key);
            }
        }
    }
}

fn whole(ledger: &mut Ledger) -> Database {
    ledger.begin_cut(Turn::A, true);
    let database = taken(ledger, 64);
    ledger.end_cut(false);
    database
}

/// Takes all pages of the cut that has begun, so many at once.
fn taken(ledger: &mut Ledger, at_once: usize) -> Database {
    let mut database = Database::new();
    loop {
        let pages = ledger.take_cut(at_once);
        if pages.is_empty() {
            return database;
        }
        write(&mut database, pages);
    }
}

fn loaded(database: &Database, settings: Settings) -> Result<Ledger, LoadError> {
    let pages = database.iter().map(|(key, bytes)| (key.clone(), bytes.clone()));
    Ledger::load(ShardId(0), settings, pages)
}

fn random_command(random: &mut Random, holds: &[HoldId]) -> Command {
    let key = format!("k{}", random.below(400));
    let tenant = "t".to_owned();
    if holds.is_empty() {
        return place("b0", &key, 1);
    }
    let hold = holds[random.below(holds.len() as u64) as usize];
    let some = |random: &mut Random| (random.below(2) == 0).then(|| 1 + random.below(3));
    match random.below(20) {
        0..=8 => place(&format!("b{}", random.below(12)), &key, 1 + random.below(3)),
        9 => Command::Extend(Extend {
            hold,
            tenant,
            key,
            ttl_ms: some(random).map(|units| units * 700),
        }),
        10..=12 => {
            let (quantity, reacquire) = (some(random), random.below(2) == 0);
            confirm(hold, &key, quantity, reacquire)
        }
        13 | 14 => release(hold, &key),
        15 => Command::Return(Return { hold, tenant, key, quantity: some(random) }),
        16 => Command::Void(Void {
            scope: KeyScope {
                name: name(),
                region: None,
                buyer: Some(format!("b{}", random.below(12))),
                key,
            },
        }),
        17 => Command::Adjust(Adjust {
            name: name(),
            key,
            change: match random.below(2) {
                0 => Change::Raise(1 + random.below(5)),
                _ => Change::Lower(1 + random.below(5)),
            },
            reason: "count".into(),
        }),
        18 => Command::SetMode(SetMode {
            name: name(),
            mode: if random.below(3) == 0 { Mode::Paused } else { Mode::Open },
        }),
        _ => match random.below(6) {
            0 => Command::Retire(Retire { name: name() }),
            1..=3 => define(20),
            _ => Command::Advance,
        },
    }
}
