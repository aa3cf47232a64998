//! Log entries and pages: what a ledger is made of.

use std::collections::BTreeMap;

use holdfast::codec;
use holdfast::ledger::{
    Adjust, Answer, Batch, BatchOf, Change, Command, Confirm, Define, Definition, Extend, HoldId,
    HoldRules, ItemName, Ledger, LogIndex, Mode, PageKey, Place, Release, Return, SetMode, ShardId,
    Turn, UnixMs, Void,
};
use holdfast::ledger::{KeyScope, RegionPlan};
use holdfast::raft::PlaceBytes;
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::campaign::{bend, bounded, campaign, place};
use crate::http_desk::{START, settings};

fn name(rng: &mut SmallRng) -> ItemName {
    let item = ["shirt", "seat", "both"][place(rng, 3)];
    ItemName { tenant: "default".into(), item: item.into() }
}

fn define(rng: &mut SmallRng) -> Define {
    let regions = if rng.random_bool(0.3) {
        let plan = |quota| RegionPlan { quota, floor: quota / 4, buckets: 1 };
        BTreeMap::from([("default".to_owned(), plan(60))])
    } else {
        BTreeMap::new()
    };
    let limit_per_buyer = rng.random_bool(0.5).then_some(3);
    let rules = HoldRules::default();
    let metadata = BTreeMap::from([("words".to_owned(), "kept".to_owned())]);
    let definition =
        Definition { rules, limit_per_buyer, opens_at: None, closes_at: None, metadata };
    Define { name: name(rng), total: Some(60), regions, definition, if_revision: None }
}

fn placement(rng: &mut SmallRng) -> Place {
    Place {
        name: name(rng),
        region: rng.random_bool(0.2).then(|| "default".to_owned()),
        buyer: rng.random_bool(0.8).then(|| format!("b{}", rng.random_range(0..9))),
        key: format!("k{}", rng.random_range(0..60)),
        quantity: rng.random_range(1..4),
        ttl_ms: rng.random_bool(0.3).then_some(60_000),
        reference: rng.random_bool(0.3).then(|| "cart".to_owned()),
    }
}

/// A command on one of the holds.
fn step(rng: &mut SmallRng, holds: &[HoldId]) -> Option<Command> {
    let hold = *holds.get(place(rng, holds.len()))?;
    let (tenant, key) = ("default".to_owned(), format!("o{}", rng.random_range(0..40)));
    Some(match rng.random_range(0..4) {
        0 => Command::Extend(Extend { hold, tenant, key, ttl_ms: None }),
        1 => Command::Confirm(Confirm {
            hold,
            tenant,
            key,
            quantity: None,
            reacquire: rng.random_bool(0.5),
            reference: None,
        }),
        2 => Command::Release(Release { hold, tenant, key, reason: None }),
        _ => Command::Return(Return { hold, tenant, key, quantity: Some(1) }),
    })
}

fn command(rng: &mut SmallRng, holds: &[HoldId]) -> Command {
    let other = match rng.random_range(0..20) {
        0 => Some(Command::Define(define(rng))),
        1 => Some(Command::SetMode(SetMode { name: name(rng), mode: Mode::Open })),
        2 => Some(Command::Adjust(Adjust {
            name: name(rng),
            key: format!("a{}", rng.random_range(0..9)),
            change: Change::Raise(rng.random_range(1..30)),
            reason: "more came".to_owned(),
        })),
        3 => {
            let Place { name, region, buyer, key, .. } = placement(rng);
            Some(Command::Void(Void { scope: KeyScope { name, region, buyer, key } }))
        }
        4 => Some(Command::Advance),
        5..10 => step(rng, holds),
        _ => None,
    };
    other.unwrap_or_else(|| Command::Place(placement(rng)))
}

/// A ledger with some life behind it, and its entries.
fn lived(rng: &mut SmallRng, entries: u64) -> (Ledger, Vec<Batch>) {
    let mut ledger = Ledger::new(ShardId(0), settings());
    let (mut now, mut holds, mut batches) = (START.0, Vec::new(), Vec::new());
    for index in 1..=entries {
        now += rng.random_range(0..400_000);
        let commands = match index {
            1 => ["shirt", "seat", "both"]
                .map(|item| {
                    let name = ItemName { tenant: "default".into(), item: item.into() };
                    Command::Define(Define { name, ..define(rng) })
                })
                .to_vec(),
            _ => (0..rng.random_range(1..12)).map(|_| command(rng, &holds)).collect(),
        };
        let batch = Batch { stamp: UnixMs(now), commands };
        for answer in ledger.apply(LogIndex(index), &batch) {
            if let Answer::Placed(placed) = answer {
                holds.push(placed.id);
            }
        }
        batches.push(batch);
    }
    (ledger, batches)
}

fn pages_of(ledger: &mut Ledger) -> Vec<(PageKey, Vec<u8>)> {
    ledger.begin_cut(Turn::A, true);
    let mut pages = Vec::new();
    loop {
        let taken = ledger.take_cut(64);
        if taken.is_empty() {
            break;
        }
        pages.extend(taken.into_iter().filter_map(|(key, bytes)| Some((key, bytes?))));
    }
    ledger.end_cut(true);
    pages
}

/// Both readings of an entry, the plain and the packed one, say the same of any bytes, and what
/// they read is applied alike.
#[test]
fn log_entries_are_read_alike_in_both_forms_or_refused() {
    campaign("log_entries", |rng| {
        let (mut plain, batches) = lived(rng, 12);
        let (mut packed, index) =
            (Ledger::new(ShardId(0), settings()), LogIndex(batches.len() as u64));
        for (batch, index) in batches.iter().zip(1..) {
            packed.apply_unanswered(LogIndex(index), batch);
        }
        assert_eq!(plain.digest(), packed.digest());
        let all: Vec<Vec<u8>> =
            batches.iter().map(|batch| codec::encode(batch).expect("small")).collect();
        for turn in 0..60 {
            let mut bytes = all[place(rng, all.len())].clone();
            bend(rng, &mut bytes, &all);
            let bound = bytes.len() * 64 + (4 << 20);
            let one = bounded(bound, || codec::decode::<Batch>(&bytes).ok());
            let two = bounded(bound, || codec::decode::<BatchOf<PlaceBytes>>(&bytes).ok());
            assert_eq!(one.is_some(), two.is_some(), "one form reads what the other refuses");
            let (Some(one), Some(two)) = (one, two) else { continue };
            let index = LogIndex(index.0 + 1 + turn);
            // A leader's stamp is within reason: a hostile one only sweeps everything at once.
            let stamp = UnixMs(one.stamp.0.min(START.0 + (1 << 40)));
            plain.apply(index, &Batch { stamp, ..one });
            packed.apply(index, &BatchOf { stamp, ..two });
            assert_eq!(plain.digest(), packed.digest(), "the two forms are applied alike");
        }
    });
}

/// A ledger is made of any pages or none is; what was made writes pages that make it again.
#[test]
fn pages_make_a_ledger_or_are_refused() {
    campaign("pages_make", |rng| {
        let (mut ledger, _) = lived(rng, 10);
        let pages = pages_of(&mut ledger);
        let bytes: Vec<Vec<u8>> = pages.iter().map(|(_, bytes)| bytes.clone()).collect();
        let size: usize = bytes.iter().map(Vec::len).sum();
        let load = |pages: Vec<(PageKey, Vec<u8>)>| {
            Ledger::load(ShardId(0), settings(), pages.into_iter())
        };
        let whole = load(pages.clone()).expect("its own pages");
        assert_eq!(whole.digest(), ledger.digest());
        for _ in 0..40 {
            let mut bad = pages.clone();
            let at = place(rng, bad.len());
            match rng.random_range(0..10) {
                0 => drop(bad.remove(at)),
                1 => {
                    let again = bad[at].clone();
                    bad.push(again);
                }
                2 => bend(rng, &mut bad[at].0.0, &[]),
                3 => {
                    let other = place(rng, bad.len());
                    bad[at].1 = pages[other].1.clone();
                }
                _ => bend(rng, &mut bad[at].1, &bytes),
            }
            let loaded = bounded(size * 64 + (8 << 20), || load(bad));
            let Ok(mut loaded) = loaded else { continue };
            let again = load(pages_of(&mut loaded)).expect("what was loaded can be written");
            assert_eq!(again.digest(), loaded.digest());
        }
    });
}
