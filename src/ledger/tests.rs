//! Tests of the whole ledger: random histories, cuts while writes go on, loads, broken laws.

// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

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
    let mut database = Database::new();
    ledger.begin_cut(Turn::A, true);
    loop {
        let pages = ledger.take_cut(64);
        if pages.is_empty() {
            break;
        }
        write(&mut database, pages);
    }
    ledger.end_cut(false);
    database
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

/// Two databases are written in turn while entries go on; each finished cut must load into exactly
/// the ledger that was when it began, and a ledger so loaded must go on as the other does.
#[test]
fn a_cut_taken_while_writes_go_on_is_the_state_at_its_beginning() {
    for seed in 1..=12_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut shard = Shard::new(settings());
        let mut databases = [Database::new(), Database::new()];
        shard.one(1_000, define(20));
        let (mut now, mut holds) = (1_000, Vec::new());
        let mut cut: Option<(Turn, u128, LogIndex)> = None;
        let mut twin: Option<Ledger> = None;
        for step in 0..1_500 {
            now += match random.below(200) {
                0 => random.below(8_000_000),
                _ => random.below(150),
            };
            let count = random.below(4);
            let commands: Vec<_> =
                (0..count).map(|_| random_command(&mut random, &holds)).collect();
            let batch = Batch { stamp: UnixMs(now), commands };
            shard.index += 1;
            let answers = shard.ledger.apply(LogIndex(shard.index), &batch);
            if let Some(twin) = &mut twin {
                assert_eq!(twin.apply(LogIndex(shard.index), &batch), answers, "seed {seed}");
                assert_eq!(twin.digest(), shard.ledger.digest(), "seed {seed} step {step}");
            }
            for answer in batch.shown(answers) {
                if let Answer::Hold { hold, .. } = answer {
                    holds.push(hold.id);
                }
            }
            if holds.len() > 60 {
                holds.drain(..30);
            }
            if let Found::Audit(audit) = shard.ledger.query(&Query::Audit(name())) {
                assert!(audit.buckets.iter().all(|bucket| bucket.holds), "seed {seed}: {audit:?}");
            }
            match cut {
                None if random.below(10) == 0 => {
                    let turn = if random.below(2) == 0 { Turn::A } else { Turn::B };
                    let all = random.below(4) == 0;
                    if all {
                        databases[turn as usize].clear();
                    }
                    shard.ledger.begin_cut(turn, all);
                    cut = Some((turn, shard.ledger.digest(), shard.ledger.applied()));
                }
                Some((turn, digest, applied)) => {
                    let pages = shard.ledger.take_cut(random.below(3) as usize);
                    if !pages.is_empty() {
                        write(&mut databases[turn as usize], pages);
                        continue;
                    }
                    shard.ledger.end_cut(true);
                    cut = None;
                    let back = loaded(&databases[turn as usize], settings()).expect("whole");
                    assert_eq!(back.digest(), digest, "seed {seed} step {step}");
                    assert_eq!(back.applied(), applied);
                }
                None => {}
            }
            if cut.is_none() && random.below(60) == 0 {
                let database = whole(&mut shard.ledger);
                let back = loaded(&database, settings()).expect("whole");
                assert_eq!(back.digest(), shard.ledger.digest(), "seed {seed} step {step}");
                twin = Some(back);
            }
        }
        assert!(shard.ledger.figures().expired > 0, "seed {seed} expired nothing");
    }
}

#[test]
fn what_the_gate_foresees_is_what_the_ledger_answers() {
    for seed in 1..=6_u64 {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut shard = Shard::new(settings());
        shard.one(1_000, define(20));
        let (mut now, mut holds) = (1_000, Vec::new());
        for step in 0..3_000 {
            now += random.below(120);
            shard.apply(now, vec![]);
            let command = random_command(&mut random, &holds);
            let foreseen = shard.ledger.foresee(&command);
            let free = shard.stock_if_any().map(|stock| stock.0);
            let answer = shard.one(now, command.clone());
            match foreseen {
                Foreseen::Answer(said) => assert_eq!(said, answer, "seed {seed} step {step}"),
                Foreseen::Admit(demand) => {
                    assert!(
                        !matches!(answer, Answer::Refused(_)),
                        "seed {seed} step {step}: {command:?} was admitted: {answer:?}"
                    );
                    if demand.bucket.is_some() {
                        assert_eq!(Some(demand.free), free);
                    }
                }
            }
            if let Answer::Hold { hold, .. } = answer {
                holds.push(hold.id);
            }
            if holds.len() > 60 {
                holds.drain(..30);
            }
        }
    }
}

impl Shard {
    fn stock_if_any(&self) -> Option<(u64, u64, u64)> {
        let found = self.ledger.query(&Query::Availability(name()));
        matches!(found, Found::Availability(_)).then(|| self.stock())
    }
}

#[test]
fn an_entry_that_nobody_waits_for_changes_the_ledger_all_the_same() {
    let mut random = Random(11);
    let (mut told, mut silent) =
        (Ledger::new(ShardId(0), settings()), Ledger::new(ShardId(0), settings()));
    let mut holds = Vec::new();
    for index in 1..400 {
        let commands = match index {
            1 => vec![define(500)],
            _ => (0..5).map(|_| random_command(&mut random, &holds)).collect(),
        };
        let batch = Batch { stamp: UnixMs(1_000 + index * 37), commands };
        let answers = batch.shown(told.apply(LogIndex(index), &batch));
        silent.apply_unanswered(LogIndex(index), &batch);
        holds.extend(answers.into_iter().filter_map(|answer| match answer {
            Answer::Hold { hold, .. } => Some(hold.id),
            _ => None,
        }));
        assert_eq!(told.digest(), silent.digest(), "entry {index}");
    }
    assert!(holds.len() > 100, "{} holds", holds.len());
}

#[test]
fn pages_of_garbage_are_refused_and_never_panic() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(100));
    for n in 0..40 {
        let hold = shard.hold(1_000, place(&format!("b{n}"), &format!("k{n}"), 2));
        if n % 2 == 0 {
            shard.hold(1_000, confirm(hold.id, "c", Some(1), false));
        }
    }
    let good = whole(&mut shard.ledger);
    let digest = loaded(&good, settings()).expect("whole").digest();
    assert!(loaded(&Database::new(), settings()).is_err(), "nothing at all");
    let mut random = Random(77);
    for _ in 0..4_000 {
        let mut bad = good.clone();
        let at = random.below(bad.len() as u64) as usize;
        let key = bad.keys().nth(at).expect("in range").clone();
        let page = bad.get_mut(&key).expect("its key");
        match random.below(4) {
            0 => {
                let at = random.below(page.len() as u64) as usize;
                page[at] ^= 1 << random.below(8);
            }
            1 => page.truncate(random.below(page.len() as u64) as usize),
            2 => page.push(random.below(256) as u8),
            _ => {
                let page = bad.remove(&key).expect("its key");
                let mut other = key.0;
                let at = random.below(other.len() as u64) as usize;
                other[at] ^= 1 << random.below(8);
                bad.insert(PageKey(other), page);
            }
        }
        if bad == good {
            continue;
        }
        if let Ok(ledger) = loaded(&bad, settings()) {
            assert_ne!(ledger.digest(), digest, "damage that the digest does not show");
        }
    }
    let two = good.iter().chain(good.iter()).map(|(k, v)| (k.clone(), v.clone()));
    assert!(Ledger::load(ShardId(0), settings(), two).is_err(), "every page twice");
    let other = Settings { slots: 8, ..settings() };
    assert!(loaded(&good, other).is_err(), "other settings");
}

#[test]
fn a_broken_law_pauses_the_item_in_that_entry_and_nothing_stops() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(10));
    let held = shard.hold(1_000, place("a", "k1", 1));
    shard.ledger.corrupt_for_test(&name(), 5);
    shard.apply(1_001, vec![]);
    assert_eq!(shard.ledger.figures().invariant_broken, 1);
    assert!(!shard.audit().buckets[0].holds);
    let reason = PauseReason::Invariant;
    let paused = Answer::Refused(Refusal::ItemPaused { reason });
    assert_eq!(shard.one(1_002, place("b", "k2", 1)), paused);
    assert_eq!(shard.one(1_002, confirm(held.id, "c", None, false)), paused);
    // Release still works, and the state still loads, to the same digest.
    assert_eq!(shard.hold(1_002, release(held.id, "r")).state, HoldState::Released);
    let database = whole(&mut shard.ledger);
    let back = loaded(&database, settings()).expect("a known broken law loads");
    assert_eq!(back.digest(), shard.ledger.digest());
    // Resuming does not end the pause while the equation is broken, here and in the loaded ledger.
    let open = Command::SetMode(SetMode { name: name(), mode: Mode::Open });
    let batch = Batch { stamp: UnixMs(1_003), commands: vec![open, place("b", "k3", 1)] };
    let mut back = back;
    shard.index += 1;
    for ledger in [&mut back, &mut shard.ledger] {
        let answers = ledger.apply(LogIndex(shard.index), &batch);
        let Answer::Item { item, replayed: true, .. } = &answers[0] else { panic!("{answers:?}") };
        assert!(item.invariant_broken);
        assert_eq!(answers[1], paused);
    }
    assert_eq!(back.digest(), shard.ledger.digest());
}

#[test]
fn a_hold_reads_expired_exactly_when_its_units_read_available() {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    shard.one(1_000, define(1));
    let hold = shard.hold(1_000, place("a", "k1", 1));
    for now in 1_001..1_600 {
        shard.apply(now, vec![]);
        let view = match shard.ledger.query(&Query::Hold { id: hold.id, tenant: "t".into() }) {
            Found::Hold(view) => view,
            other => panic!("{other:?}"),
        };
        let expired = now >= 1_500;
        assert_eq!(view.state == HoldState::Expired, expired, "at {now}");
        assert_eq!(shard.stock().0, u64::from(expired), "at {now}");
    }
    assert_eq!(shard.ledger.next_due(), Some(UnixMs(1_500)), "not swept");
    // A placement sweeps what it needs.
    assert_eq!(shard.hold(1_600, place("b", "k2", 1)).state, HoldState::Held);
    assert_eq!(shard.stock(), (0, 1, 0));
}

#[test]
fn an_entry_sweeps_no_more_than_its_bound() {
    let mut shard = Shard::new(Settings { sweep_max: 10, ..settings() });
    shard.one(1_000, define(1_000));
    for n in 0..100 {
        shard.hold(1_000, place(&format!("b{n}"), "k", 1));
    }
    assert_eq!(shard.one(5_000, Command::Advance), Answer::Advanced { swept: 10 });
    assert_eq!(shard.stock(), (1_000, 0, 0), "due units are available, swept or not");
    for _ in 0..9 {
        assert_eq!(shard.one(5_000, Command::Advance), Answer::Advanced { swept: 10 });
    }
    assert_eq!(shard.one(5_000, Command::Advance), Answer::Advanced { swept: 0 });
    assert_eq!(shard.ledger.next_due(), None);
}

/// An item without a limit whose `holds` holds of `units` units are all due, and none is swept.
fn all_due(holds: u64, units: u64) -> Shard {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    let definition = Definition { limit_per_buyer: None, ..definition() };
    let (regions, if_revision, total) = (BTreeMap::new(), None, Some(holds * units));
    let define = Define { name: name(), total, regions, definition, if_revision };
    let mut commands = vec![Command::Define(define)];
    commands.extend((0..holds).map(|n| place(&format!("b{n}"), "k", units)));
    shard.apply(1_000, commands);
    assert_eq!(shard.stock(), (0, holds * units, 0));
    shard.apply(5_000, vec![]);
    assert_eq!(shard.stock(), (holds * units, 0, 0));
    shard
}

#[test]
fn the_commands_of_one_entry_sweep_a_bounded_number_of_due_holds() {
    let bound = u64::from(due::SWEPT_FOR_COMMANDS_MAX);
    let mut shard = all_due(bound * 2 + 1, 1);
    let (little, held) = (
        |available| Refusal::InsufficientStock { available },
        |answer: &Answer| matches!(answer, Answer::Hold { replayed: false, .. }),
    );
    // Out of reach of one entry, and the gate says so too.
    let foreseen = shard.ledger.foresee(&place("x", "1", bound + 1));
    assert_eq!(foreseen, Foreseen::Answer(Answer::Refused(little(bound))));
    assert_eq!(shard.one(5_000, place("x", "1", bound + 1)), Answer::Refused(little(bound)));
    // Within reach, and then nothing more is, which is not called sold out.
    let answers = shard.apply(5_000, vec![place("x", "2", bound), place("x", "3", 1)]);
    assert!(held(&answers[0]), "{answers:?}");
    assert_eq!(answers[1], Answer::Refused(little(0)));
    let answers = shard.apply(5_000, vec![place("x", "3", bound), place("x", "4", 1)]);
    assert!(held(&answers[0]) && answers[1] == Answer::Refused(little(0)), "{answers:?}");
    assert!(held(&shard.one(5_000, place("x", "4", 1))));
    let sold_out = Answer::Refused(Refusal::SoldOut { may_return: true });
    assert_eq!(shard.one(5_000, place("x", "5", 1)), sold_out);
    assert!(shard.audit().buckets[0].holds);
}

#[test]
fn few_due_holds_of_many_units_are_within_reach() {
    let bound = u64::from(due::SWEPT_FOR_COMMANDS_MAX);
    let mut shard = all_due(bound, 3);
    let command = place("x", "1", bound * 3);
    assert!(matches!(shard.ledger.foresee(&command), Foreseen::Admit(_)));
    assert_eq!(shard.hold(5_000, command).quantity, bound * 3);
    let mut shard = all_due(bound + 1, 3);
    let command = place("x", "1", bound * 3 + 1);
    let little = Answer::Refused(Refusal::InsufficientStock { available: bound * 3 });
    assert_eq!(shard.ledger.foresee(&command), Foreseen::Answer(little.clone()));
    assert_eq!(shard.one(5_000, command), little);
}

/// Holds of many sizes and deadlines: what the gate counts as within reach is what sweeping gives.
#[test]
fn what_is_within_reach_is_what_the_sweeping_gives_to_the_unit() {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    let definition = Definition { limit_per_buyer: None, ..definition() };
    let (regions, if_revision) = (BTreeMap::new(), None);
    let total = (0..5_000).map(|n| 1 + n % 7).sum();
    let define = Define { name: name(), total: Some(total), regions, definition, if_revision };
    let mut commands = vec![Command::Define(define)];
    commands.extend((0..5_000).map(|n| {
        let Command::Place(place) = place(&format!("b{n}"), "k", 1 + n % 7) else { unreachable!() };
        Command::Place(Place { ttl_ms: Some(500 + n * 37 % 400), ..place })
    }));
    shard.apply(1_000, commands);
    shard.apply(5_000, vec![]);
    let Answer::Refused(Refusal::InsufficientStock { available }) =
        shard.one(5_000, place("x", "1", total))
    else {
        panic!("all of it is out of reach of one entry");
    };
    assert!(available > u64::from(due::SWEPT_FOR_COMMANDS_MAX) && available < total);
    let before = shard.ledger.figures().expired;
    assert_eq!(shard.hold(5_000, place("x", "2", available)).quantity, available);
    let swept = shard.ledger.figures().expired - before;
    assert_eq!(swept, u64::from(due::SWEPT_FOR_COMMANDS_MAX));
    let audit = shard.audit();
    assert!(audit.buckets[0].holds && audit.buckets[0].available == 0, "{audit:?}");
}

#[test]
fn due_holds_do_not_fill_a_buyers_limit() {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    shard.one(1_000, define(100));
    shard.hold(1_000, place("a", "k1", 4));
    let refused = Answer::Refused(Refusal::BuyerLimit { limit: 4, held: 4, sold: 0 });
    assert_eq!(shard.one(1_001, place("a", "k2", 1)), refused);
    shard.hold(1_500, place("a", "k2", 4));
    assert_eq!(shard.stock(), (96, 4, 0));
    assert!(shard.audit().buckets[0].holds);
}

#[test]
fn receipts_are_forgotten_after_their_retention_and_sales_after_theirs() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(100));
    let sold = shard.hold(1_000, place("a", "k1", 1));
    shard.hold(1_001, confirm(sold.id, "c", None, false));
    let lapsed = shard.hold(1_000, place("b", "k2", 1));
    // Hour 0 ends at 3,600,000; lifetime 3,000 and receipts 3,600,000 more.
    let over = 3_600_000 + 3_000 + 3_600_000;
    shard.apply(over - 1, vec![]);
    let query = |id| Query::Hold { id, tenant: "t".into() };
    assert!(matches!(shard.ledger.query(&query(lapsed.id)), Found::Hold(_)));
    shard.apply(over, vec![]);
    assert_eq!(shard.ledger.query(&query(lapsed.id)), Found::NotFound);
    assert!(matches!(shard.ledger.query(&query(sold.id)), Found::Hold(_)));
    let over = 3_600_000 + 3_000 + 10_800_000;
    shard.apply(over, vec![]);
    assert_eq!(shard.ledger.query(&query(sold.id)), Found::NotFound);
    assert_eq!(shard.stock(), (99, 0, 1), "what was sold stays sold");
    let audit = shard.audit();
    assert!(audit.buckets[0].holds && audit.buckets[0].sold_forgotten == 1);
    // Sequences go on, also in a ledger that was loaded from pages without those records.
    let database = whole(&mut shard.ledger);
    shard.ledger = loaded(&database, settings()).expect("whole");
    let again = shard.hold(over, place("a", "k1", 1));
    assert_ne!(again.id, sold.id);
}

#[test]
fn a_retired_items_name_is_free_and_its_holds_are_gone() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(10));
    let held = shard.hold(1_000, place("a", "k1", 1));
    let retire = || Command::Retire(Retire { name: name() });
    let open = Answer::Refused(Refusal::OpenHolds { held: 1 });
    assert_eq!(shard.one(1_001, retire()), open);
    shard.hold(1_002, confirm(held.id, "c", None, false));
    let item = ItemNumber(1);
    assert_eq!(shard.one(1_003, retire()), Answer::Retired { item });
    assert_eq!(shard.one(1_003, retire()), Answer::Refused(Refusal::ItemNotFound));
    shard.one(1_004, define(5));
    let gone = Answer::Refused(Refusal::HoldNotFound);
    assert_eq!(shard.one(1_004, release(held.id, "r")), gone);
    let again = shard.hold(1_004, place("a", "k1", 1));
    assert_eq!(again.id.item, ItemNumber(2));
    assert_eq!(shard.ledger.items.len(), 1, "the old item is erased");
    let database = whole(&mut shard.ledger);
    let back = loaded(&database, settings()).expect("whole");
    assert_eq!(back.digest(), shard.ledger.digest());
}

#[test]
fn stock_travels_between_ledgers_and_nothing_is_lost() {
    let settings = Settings { shards: 2, ..settings() };
    let home = home_shard(name().borrowed(), 2);
    let mut donor = Ledger::new(home, settings.clone());
    let mut receiver = Ledger::new(ShardId(1 - home.0), settings);
    let one = |ledger: &mut Ledger, command: Command| {
        let index = LogIndex(ledger.applied().0 + 1);
        ledger.apply(index, &Batch { stamp: UnixMs(1_000), commands: vec![command] }).remove(0)
    };
    one(&mut donor, define(10));
    let from = BucketRef { home, item: ItemNumber(1), bucket: BucketId(0) };
    let to = BucketRef { bucket: BucketId(1), ..from };
    let open = OpenBucket {
        bucket: to,
        name: name(),
        region: RegionOrdinal(0),
        region_name: "default".into(),
        default_region: true,
        place: (0, 1),
        floor: 0,
        definition: definition(),
        revision: 1,
    };
    let accept =
        |sent| Command::AcceptStock(AcceptStock { to, from: BucketId(0), sent, floor_sent: 0 });
    assert_eq!(one(&mut receiver, accept(3)), Answer::Refused(Refusal::NotOwner));
    assert_eq!(one(&mut receiver, Command::OpenBucket(open)), Answer::BucketOpen);
    let send = |quantity, acked, if_sent| {
        let (to, same_region, bound) = (BucketId(1), true, 4);
        Command::SendStock(SendStock { from, to, quantity, acked, if_sent, same_region, bound })
    };
    let sent = |sent| Answer::Sent { sent, floor_sent: 0 };
    assert_eq!(one(&mut donor, send(3, 0, 0)), sent(3));
    let refused = |answer| matches!(answer, Answer::Refused(Refusal::TransferRefused { .. }));
    assert!(refused(one(&mut donor, send(3, 0, 0))), "the same pull again");
    assert!(refused(one(&mut donor, send(3, 0, 3))), "beyond the bound while nothing is acked");
    assert_eq!(one(&mut donor, send(3, 3, 3)), sent(6));
    for sent in [6, 3, 6] {
        assert_eq!(one(&mut receiver, accept(sent)), Answer::Accepted { accepted: 6 });
    }
    let settle = |accepted| Command::SettleStock(SettleStock { from, to: BucketId(1), accepted });
    assert_eq!(one(&mut donor, settle(6)), Answer::Settled);
    assert!(refused(one(&mut donor, settle(7))));
    let answer = one(&mut receiver, place("b", "k", 4));
    assert!(matches!(answer, Answer::Placed(_)), "{answer:?}");
    for ledger in [&mut donor, &mut receiver] {
        let Found::Audit(audit) = ledger.query(&Query::Audit(name())) else { panic!("audit") };
        assert!(audit.buckets[0].holds, "{audit:?}");
        let pages = whole(ledger).into_iter();
        let settings = ledger.books.settings.clone();
        let back = Ledger::load(ledger.books.shard, settings, pages).expect("whole");
        assert_eq!(back.digest(), ledger.digest());
    }
}
