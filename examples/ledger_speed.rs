//! How fast the pure ledger is alone: one thread, no log, no network, no disk.
//!
//! ```text
//! cargo run --release --example ledger_speed            # a million holds, some 3 GiB at most
//! cargo run --release --example ledger_speed -- 100000  # fewer
//! cargo run --release --example ledger_speed -- bench   # as `holdfast bench` names its holds
//! ```
//!
//! Prints one line a measurement: the mean of all units, then the median, the 99th percentile and
//! the longest of the calls, as wall time. On a busy machine the longest call is somebody else's
//! turn on the core: read it on a quiet one, and the median otherwise.
//! The load is the design's: one hot item in one bucket of 256 slots, keys of 36 bytes, a buyer of
//! 12 bytes a hold, a limit per buyer. Memory is what the process keeps resident, from
//! `/proc/self/statm`. Panics when an answer is not the expected one, or when a loaded ledger has
//! another digest: a number is printed only for work that was done.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use holdfast::ledger::*;

/// Commands an entry where entries are full.
const ENTRY: u64 = 1_000;
/// Pages a slice of a checkpoint.
const SLICE: usize = 32;
/// Lifetime of every hold in ms: longer than the placements take.
const TTL_MS: u64 = 3_600_000;
/// Ledger time of the beginning: 2026.
const BEGIN_MS: u64 = 1_767_225_600_000;

/// Times of calls.
#[derive(Default)]
struct Clock {
    units: u64,
    calls: Vec<Duration>,
}

impl Clock {
    fn time<T>(&mut self, units: u64, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = call();
        let took = start.elapsed();
        self.units += units;
        self.calls.push(took);
        done
    }

    /// The longest of the fastest tenth of the calls: what a call costs while nobody else has the
    /// core.
    fn tenth(&mut self) -> Duration {
        self.calls.sort();
        self.calls.get(self.calls.len() / 10).copied().unwrap_or_default()
    }

    fn print(mut self, what: &str) {
        self.calls.sort();
        let all: Duration = self.calls.iter().sum();
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        let of = |share: usize| ms(self.calls[(self.calls.len() - 1) * share / 100]);
        println!(
            "{what:<44} {:>9} ns each of {:>7}; {:>6} calls: \
             p50 {:>8.4} p99 {:>8.4} longest {:>8.4} ms",
            all.as_nanos() / u128::from(self.units.max(1)),
            self.units,
            self.calls.len(),
            of(50),
            of(99),
            of(100),
        );
    }
}

fn settings() -> Settings {
    Settings {
        shards: 1,
        tag_key: *b"a key of sixteen",
        slots: 256,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 90 * 86_400_000,
    }
}

fn name(item: &str) -> ItemName {
    ItemName { tenant: "shop".into(), item: item.into() }
}

fn define(item: &str, total: u64) -> Command {
    Command::Define(Define {
        name: name(item),
        total: Some(total),
        regions: BTreeMap::new(),
        definition: Definition {
            rules: HoldRules {
                ttl_ms: TTL_MS,
                ttl_ms_max: TTL_MS,
                extends_max: 1,
                lifetime_ms_max: 2 * TTL_MS,
            },
            limit_per_buyer: Some(4),
            opens_at: None,
            closes_at: None,
            metadata: BTreeMap::new(),
        },
        if_revision: None,
    })
}

/// Scatters numbers so that buyers and keys come in no order.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn place(item: &str, n: u64, quantity: u64) -> Command {
    let (a, b) = (scattered(n), scattered(n ^ 0x5555));
    let key = format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xffff,
        a & 0xfff,
        b >> 48,
        b & 0xffff_ffff_ffff
    );
    Command::Place(Place {
        name: name(item),
        region: None,
        buyer: Some(format!("b{:011}", n)),
        key,
        quantity,
        ttl_ms: None,
        reference: None,
    })
}

/// A ledger and the log it would have.
struct Shard {
    ledger: Ledger,
    index: u64,
    now: u64,
}

impl Shard {
    fn new() -> Shard {
        let ledger = Ledger::new(ShardId(0), settings());
        let mut shard = Shard { ledger, index: 0, now: BEGIN_MS };
        shard.untimed(vec![define("hot", 1 << 40), define("last", 1), place("last", 0, 1)]);
        shard
    }

    fn untimed(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        self.entry(&mut Clock::default(), commands)
    }

    fn entry(&mut self, clock: &mut Clock, commands: Vec<Command>) -> Vec<Answer> {
        self.index += 1;
        let (index, units) = (LogIndex(self.index), commands.len() as u64);
        let batch = Batch { stamp: UnixMs(self.now), commands };
        clock.time(units, || self.ledger.apply(index, &batch))
    }
}

fn hold_of(answer: &Answer) -> HoldId {
    if let Answer::Placed(placed) = answer {
        return placed.id;
    }
    let Answer::Hold { hold, replayed: false } = answer else {
        panic!("expected a new or changed hold, not {answer:?}");
    };
    hold.id
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).expect("the second field");
    pages.parse::<u64>().expect("a number") * 4096
}

fn places(holds: u64) -> (Shard, Vec<HoldId>) {
    let mut unary = Shard::new();
    let mut clock = Clock::default();
    for n in 0..(holds / 5) {
        unary.now += u64::from(n % 30 == 0);
        hold_of(&unary.entry(&mut clock, vec![place("hot", n, 1)])[0]);
    }
    clock.print("place, one command an entry");
    drop(unary);

    let mut shard = Shard::new();
    let mut ids: Vec<HoldId> = Vec::with_capacity(holds as usize);
    ids.resize(
        holds as usize,
        HoldId {
            home: ShardId(0),
            item: ItemNumber(0),
            region: RegionOrdinal(0),
            bucket: BucketId(0),
            slot: 0,
            sequence: 0,
            tag: 0,
        },
    );
    ids.clear();
    let before = resident_bytes();
    let mut clock = Clock::default();
    for first in (0..holds).step_by(ENTRY as usize) {
        shard.now += 2;
        let commands = (first..holds.min(first + ENTRY)).map(|n| place("hot", n, 1)).collect();
        ids.extend(shard.entry(&mut clock, commands).iter().map(hold_of));
    }
    clock.print("place, 1,000 commands an entry");
    let grown = resident_bytes().saturating_sub(before);
    println!("{:<44} {:>9} bytes a live hold, {} MiB", "memory", grown / holds, grown >> 20);
    (shard, ids)
}

fn foresee(shard: &Shard, holds: u64) {
    let ask = |what: &str, command: &dyn Fn(u64) -> Command, right: &dyn Fn(&Foreseen) -> bool| {
        let mut clock = Clock::default();
        for first in (0..100_000_u64).step_by(100) {
            let commands: Vec<Command> = (first..first + 100).map(command).collect();
            let foreseen: Vec<Foreseen> = clock.time(100, || {
                commands.iter().map(|command| shard.ledger.foresee(command)).collect()
            });
            assert!(foreseen.iter().all(right), "{what}: {:?}", foreseen[0]);
        }
        clock.print(what);
    };
    ask("foresee, admitted", &|n| place("hot", holds + n, 1), &|foreseen| {
        matches!(foreseen, Foreseen::Admit(_))
    });
    ask("foresee, sold out", &|n| place("last", holds + n, 1), &|foreseen| {
        let Foreseen::Answer(answer) = foreseen else { return false };
        matches!(answer, Answer::Refused(Refusal::SoldOut { .. }))
    });
    ask("foresee, replayed", &|n| place("hot", scattered(n) % holds, 1), &|foreseen| {
        let Foreseen::Answer(answer) = foreseen else { return false };
        matches!(answer, Answer::Hold { replayed: true, .. })
    });
}

/// Cuts the whole ledger, loads it again, and compares the digests.
fn checkpoint(shard: &mut Shard) {
    let digest = shard.ledger.digest();
    let mut pages = Vec::new();
    let mut begin = Clock::default();
    begin.time(1, || shard.ledger.begin_cut(Turn::A, true));
    begin.print("begin_cut, whole");
    let mut slices = Clock::default();
    loop {
        let slice = slices.time(1, || shard.ledger.take_cut(SLICE));
        if slice.is_empty() {
            break;
        }
        pages.extend(slice);
    }
    slices.print("take_cut, 32 pages a slice");
    let mut end = Clock::default();
    end.time(1, || shard.ledger.end_cut(true));
    end.print("end_cut");
    let bytes: usize =
        pages.iter().map(|(key, page)| key.0.len() + page.as_ref().map_or(0, Vec::len)).sum();
    println!("{:<44} {:>9} pages, {} MiB", "whole cut", pages.len(), bytes >> 20);
    let mut load = Clock::default();
    let loaded = load.time(1, || {
        let pages = pages.into_iter().filter_map(|(key, page)| Some((key, page?)));
        Ledger::load(ShardId(0), settings(), pages).expect("its own pages")
    });
    load.print("load");
    assert_eq!(loaded.digest(), digest, "a loaded ledger has the digest that was cut");
    println!("{:<44} {digest:032x} equal", "digest");
    let mut free = Clock::default();
    free.time(1, || drop(loaded));
    free.print("drop");
}

/// Ends holds, 1,000 an entry, and cuts what that has dirtied.
fn ends(shard: &mut Shard, ids: &[HoldId]) {
    let (confirmed, released) = ids.split_at(ids.len() / 2);
    let (tenant, key) = ("shop".to_string(), "0123456789abcdef".to_string());
    let mut clock = Clock::default();
    for some in confirmed.chunks(ENTRY as usize) {
        let confirm = |hold: &HoldId| {
            let (tenant, key) = (tenant.clone(), key.clone());
            Command::Confirm(Confirm {
                hold: *hold,
                tenant,
                key,
                quantity: None,
                reacquire: false,
                reference: None,
            })
        };
        let answers = shard.entry(&mut clock, some.iter().map(confirm).collect());
        answers.iter().for_each(|answer| {
            hold_of(answer);
        });
    }
    clock.print("confirm, 1,000 commands an entry");
    let mut clock = Clock::default();
    for some in released.chunks(ENTRY as usize) {
        let release = |hold: &HoldId| {
            Command::Release(Release {
                hold: *hold,
                tenant: tenant.clone(),
                key: key.clone(),
                reason: None,
            })
        };
        let answers = shard.entry(&mut clock, some.iter().map(release).collect());
        answers.iter().for_each(|answer| {
            hold_of(answer);
        });
    }
    clock.print("release, 1,000 commands an entry");
    let mut cut = Clock::default();
    cut.time(1, || shard.ledger.begin_cut(Turn::A, false));
    let mut pages = 0;
    loop {
        let slice = cut.time(1, || shard.ledger.take_cut(SLICE)).len();
        if slice == 0 {
            break;
        }
        pages += slice;
    }
    cut.time(1, || shard.ledger.end_cut(true));
    cut.print(&format!("cut of the {pages} pages so dirtied"));
}

/// The audit counts everything anew.
fn audit(shard: &Shard) {
    let mut clock = Clock::default();
    let found = clock.time(1, || shard.ledger.query(&Query::Audit(name("hot"))));
    let Found::Audit(audit) = found else { panic!("an audit, not {found:?}") };
    assert!(audit.buckets.iter().all(|bucket| bucket.holds));
    clock.print("query of an audit");
}

/// Everything falls due at once, and the buyers come back for all of a sold-out item.
fn expiry(shard: &mut Shard) {
    let tight = 100_000;
    shard.untimed(vec![define("tight", tight)]);
    for first in (0..tight).step_by(ENTRY as usize) {
        let commands = (first..first + ENTRY).map(|n| place("tight", n, 1)).collect();
        shard.untimed(commands).iter().for_each(|answer| {
            hold_of(answer);
        });
    }
    shard.now += 2 * TTL_MS;
    let mut clock = Clock::default();
    shard.entry(&mut clock, vec![Command::Advance]);
    clock.print("the entry in which all fall due");
    let mut clock = Clock::default();
    for first in (tight..tight + 20 * ENTRY).step_by(ENTRY as usize) {
        let commands = (first..first + ENTRY).map(|n| {
            // The buyer who held one, under a new key.
            let Command::Place(again) = place("tight", n - tight, 3) else { unreachable!() };
            Command::Place(Place { key: format!("again-{n:030}"), ..again })
        });
        let commands = commands.collect();
        let answers = shard.entry(&mut clock, commands);
        assert!(matches!(answers[0], Answer::Placed(_)), "{:?}", answers[0]);
    }
    clock.print("place of units that are due, 1,000 an entry");
    let mut clock = Clock::default();
    loop {
        let Answer::Advanced { swept } = shard.entry(&mut clock, vec![Command::Advance])[0] else {
            panic!("advance answers that time advanced");
        };
        if swept == 0 {
            break;
        }
    }
    clock.print("sweeping, 512 holds an entry");
    assert!(
        shard.ledger.next_due().is_none_or(|due| due.0 > shard.now),
        "all that is due is swept"
    );
}

/// CPU time that this thread has had, in ns, up to the last tick of the scheduler.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|first| first.parse().ok()).expect("a number")
}

/// The placement of one unit that `holdfast bench` sends with this number: its lengths of keys and
/// buyers, no limit, a lifetime asked for.
fn bench_place(number: u64) -> Command {
    Command::Place(Place {
        name: name("bench-0123abcd"),
        region: None,
        buyer: Some(format!("b{number}")),
        key: format!("bench-0123abcd-{number}"),
        quantity: 1,
        ttl_ms: Some(TTL_MS),
        reference: None,
    })
}

/// Holds up to `most`, in entries of 100 as `holdfast bench` makes them, with answers or without.
/// Prints the cost of the placements from each of a few sizes on.
fn bench_places(most: u64, answered: bool) {
    const BATCH: u64 = 100;
    let ledger = Ledger::new(ShardId(0), settings());
    let mut shard = Shard { ledger, index: 0, now: BEGIN_MS };
    let Command::Define(define) = define("bench-0123abcd", 1 << 40) else { unreachable!() };
    let definition = Definition { limit_per_buyer: None, ..define.definition };
    shard.untimed(vec![Command::Define(Define { definition, ..define })]);
    let how = if answered { "apply" } else { "apply_unanswered" };
    let before = resident_bytes();
    let mut placed = 0;
    for from in [10_000, 1_000_000, 3_000_000] {
        if from > most {
            break;
        }
        // Growing is part of the way, and of the cost: it is timed up to the size, and then the
        // next tenth is timed alone.
        for until in [from, from + from / 10] {
            let mut clock = Clock::default();
            let (mut cpu, first) = (0, placed);
            while placed < until {
                // What is applied is made first, some entries at a time.
                let entries = (until - placed).div_ceil(BATCH).min(20);
                let batches: Vec<Batch> = (0..entries)
                    .map(|entry| Batch {
                        stamp: UnixMs(shard.now + entry),
                        commands: (placed + entry * BATCH..placed + (entry + 1) * BATCH)
                            .map(bench_place)
                            .collect(),
                    })
                    .collect();
                shard.now += entries;
                let start = cpu_ns();
                for batch in &batches {
                    shard.index += 1;
                    let index = LogIndex(shard.index);
                    if answered {
                        drop(clock.time(BATCH, || shard.ledger.apply(index, batch)));
                    } else {
                        clock.time(BATCH, || shard.ledger.apply_unanswered(index, batch));
                    }
                }
                cpu += cpu_ns() - start;
                placed += entries * BATCH;
            }
            let fast = clock.tenth().as_nanos() / u128::from(BATCH);
            clock.print(&format!("{how}, {first} to {placed} live"));
            let each = cpu / (placed - first);
            println!("{:<44} {each:>9} ns of CPU each; {fast} ns in the fastest tenth", "");
        }
        let grown = resident_bytes().saturating_sub(before);
        println!("{:<44} {:>9} bytes a live hold", format!("{how}, memory"), grown / placed);
    }
    assert_eq!(shard.ledger.figures().holds_held, placed, "every placement was granted");
}

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("bench") {
        let most = std::env::args().nth(2);
        let most = most.map_or(3_000_000, |text| text.parse().expect("how many holds"));
        bench_places(most, false);
        bench_places(most, true);
        return;
    }
    let holds = argument.map_or(1_000_000, |text| text.parse().expect("how many holds"));
    let (mut shard, ids) = places(holds);
    foresee(&shard, holds);
    checkpoint(&mut shard);
    let some = (holds / 5) as usize;
    audit(&shard);
    ends(&mut shard, &ids[..some]);
    drop(ids);
    expiry(&mut shard);
}
