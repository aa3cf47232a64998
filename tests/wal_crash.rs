//! The log under power cuts: at every operation of a trace, with every subset of what was unsynced.

mod wal_world;

use holdfast::ledger::ShardId;
use holdfast::storage::log::Record;
use holdfast::storage::{Choice, SimDisk};
use wal_world::{
    Model, Progress, Trace, assert_prefix, create, entry, frames_of, open, prefixes, small, trace,
    write,
};

/// As many subsets are tried exhaustively for one crash point; above it a seeded sample.
const SUBSETS_MAX: usize = 256;

/// Calls `each` with every disk that a power cut may leave, or with a sample of them.
fn each_power_cut(disk: &SimDisk, seed: u64, mut each: impl FnMut(SimDisk, String)) {
    let versions: Vec<usize> = disk.pending().iter().map(|(_, versions)| *versions).collect();
    let all = versions.iter().try_fold(1_usize, |all, n| all.checked_mul(n + 1));
    match all {
        Some(all) if all <= SUBSETS_MAX => {
            for subset in 0..all {
                let mut rest = subset;
                let after = disk.after_power_cut(&mut |_, versions| {
                    let picked = rest % (versions + 1);
                    rest /= versions + 1;
                    picked.checked_sub(1)
                });
                each(after, format!("subset {subset} of {all}"));
            }
        }
        Some(_) | None => {
            for draw in 0..SUBSETS_MAX as u64 / 4 {
                let after = disk.fork();
                after.power_cut(seed.wrapping_mul(1_000_003).wrapping_add(draw));
                each(after, format!("draw {draw} of seed {seed}"));
            }
        }
    }
}

/// Counts the operations that a trace takes on a disk with an empty log.
fn operations(fresh: &SimDisk, trace: &Trace) -> u64 {
    let disk = fresh.fork();
    let before = disk.operations();
    let mut opened = open(&disk, &small()).expect("whole");
    let progress = write(&disk, &mut opened, trace);
    assert_eq!(progress.acknowledged, frames_of(trace));
    disk.operations() - before
}

#[test]
fn s04_s07_everything_acknowledged_survives_every_power_cut_at_every_step() {
    let mut torn = 0;
    for seed in 0..6 {
        let mut whole = Model::default();
        let trace = trace(seed, 14, &mut whole);
        let prefixes = prefixes(&Model::default(), &trace);
        let fresh = SimDisk::new();
        create(&fresh, &small());
        for step in 0..=operations(&fresh, &trace) {
            let disk = fresh.fork();
            disk.power_off_after(step);
            let progress = match open(&disk, &small()) {
                Ok(mut opened) => write(&disk, &mut opened, &trace),
                Err(_) => Progress { acknowledged: 0, handed: 0 },
            };
            each_power_cut(&disk, seed * 1000 + step, |after, how| {
                let what = format!("seed {seed}, step {step}, {how}");
                let opened = open(&after, &small()).unwrap_or_else(|e| panic!("{what}: {e}"));
                let seen = assert_prefix(&opened.observe(), &prefixes, progress, &what);
                torn += usize::from(seen != prefixes[progress.acknowledged]);
            });
        }
    }
    assert!(torn > 0, "some unsynced records did survive, so the cuts were no formality");
}

#[test]
fn s04_everything_acknowledged_survives_a_process_kill_at_every_step() {
    for seed in 20..30 {
        let mut whole = Model::default();
        let trace = trace(seed, 14, &mut whole);
        let prefixes = prefixes(&Model::default(), &trace);
        let fresh = SimDisk::new();
        create(&fresh, &small());
        for step in 0..=operations(&fresh, &trace) {
            let disk = fresh.fork();
            disk.power_off_after(step);
            let progress = match open(&disk, &small()) {
                Ok(mut opened) => write(&disk, &mut opened, &trace),
                Err(_) => Progress { acknowledged: 0, handed: 0 },
            };
            disk.process_kill();
            let what = format!("seed {seed}, step {step}");
            let opened = open(&disk, &small()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let seen = assert_prefix(&opened.observe(), &prefixes, progress, &what);
            drop(opened);
            // What the first open believed is durable: a power cut right after it changes nothing.
            each_power_cut(&disk, seed, |after, how| {
                let again = open(&after, &small()).expect("whole");
                assert_eq!(again.observe(), seen, "{what}, then {how}");
            });
        }
    }
}

#[test]
fn s13_a_second_and_third_crash_after_a_torn_tail_lose_nothing() {
    for seed in 100..220 {
        let disk = SimDisk::new();
        create(&disk, &small());
        let mut model = Model::default();
        for round in 0..6 {
            let what = format!("seed {seed}, round {round}");
            let mut opened = open(&disk, &small()).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(opened.observe(), model, "{what}");
            let mut unused = model.clone();
            let trace = trace(seed * 10 + round, 8, &mut unused);
            let prefixes = prefixes(&model, &trace);
            let before = disk.operations();
            // How far this round comes is drawn from the seed.
            disk.power_off_after((seed * 7919 + round * 104_729) % 40);
            let progress = write(&disk, &mut opened, &trace);
            assert!(disk.operations() > before);
            drop(opened);
            disk.power_cut(seed * 100 + round);
            let opened = open(&disk, &small()).unwrap_or_else(|e| panic!("{what}: {e}"));
            model = assert_prefix(&opened.observe(), &prefixes, progress, &what);
        }
    }
}

#[test]
fn s13_a_crash_in_the_middle_of_cutting_a_torn_tail_changes_nothing() {
    let mut interrupted = 0;
    for seed in 300..340 {
        let mut whole = Model::default();
        let trace = trace(seed, 10, &mut whole);
        let prefixes = prefixes(&Model::default(), &trace);
        let disk = SimDisk::new();
        create(&disk, &small());
        let total = operations(&disk, &trace);
        disk.power_off_after(total * (seed % 10 + 1) / 11);
        let progress = match open(&disk, &small()) {
            Ok(mut opened) => write(&disk, &mut opened, &trace),
            Err(_) => Progress { acknowledged: 0, handed: 0 },
        };
        disk.power_cut(seed);
        let reference = disk.fork();
        let expected = open(&reference, &small()).expect("torn, not damaged").observe();
        assert_prefix(&expected, &prefixes, progress, "uninterrupted");
        for step in 0.. {
            let cut = disk.fork();
            cut.power_off_after(step);
            let done = open(&cut, &small()).is_ok();
            interrupted += usize::from(!done);
            each_power_cut(&cut, seed, |after, how| {
                let what = format!("seed {seed}, step {step} of the repair, {how}");
                let opened = open(&after, &small()).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(opened.observe(), expected, "{what}");
            });
            if done {
                break;
            }
        }
    }
    assert!(interrupted > 0, "some repairs were cut short");
}

/// neo4j #8726: a later append that ends where an old, unacknowledged frame begins would bring that
/// frame back, with the right sequence, if the tear were skipped and not overwritten.
#[test]
fn s13_what_a_tear_left_behind_never_comes_back_behind_later_appends() {
    let disk = SimDisk::new();
    create(&disk, &small());
    let mut opened = open(&disk, &small()).expect("whole");
    // Two of these fill a segment, so the group reaches into a third one.
    let group = |from: u64, upto: u64, fill: u8| {
        Record::Entries((from..upto).map(|index| entry(1, index, &[fill; 600])).collect())
    };
    opened.log.record(ShardId(0), &group(0, 5, 1)).expect("a healthy disk");
    opened.log.write().expect("a healthy disk");
    let in_segments = |choice: &Choice| match choice {
        Choice::Sector(path, _) => path.extension().is_some_and(|is| is == "seg"),
        Choice::Name(_) | Choice::Length(_) => false,
    };
    let sectors = disk.pending().iter().filter(|(choice, _)| in_segments(choice)).count();
    assert!(sectors >= 8, "{sectors} unsynced sectors");
    for lost in 0..sectors {
        for again in 1..=5 {
            let what = format!("without sector {lost}, then {again} more");
            let mut place = 0;
            let after = disk.after_power_cut(&mut |choice, versions| {
                place += usize::from(in_segments(choice));
                (!in_segments(choice) || place != lost + 1).then(|| versions - 1)
            });
            let mut opened = open(&after, &small()).expect("torn, not damaged");
            let mut model = opened.observe();
            let next = model.0.get(&0).map_or(0, wal_world::ShardModel::next);
            let record = group(next, next + again, 2);
            opened.log.record(ShardId(0), &record).expect("a healthy disk");
            opened.log.sync().expect("a healthy disk");
            model.apply(ShardId(0), &record);
            after.process_kill();
            let opened = open(&after, &small()).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(opened.observe(), model, "{what}");
        }
    }
}

#[test]
fn c02_creation_is_whole_or_not_there_whenever_the_power_goes() {
    let dry = SimDisk::new();
    create(&dry, &small());
    for step in 0..dry.operations() {
        let disk = SimDisk::new();
        disk.power_off_after(step);
        let shared = disk.mount();
        let made = holdfast::storage::log::Log::create(
            &shared,
            &wal_world::dir(),
            wal_world::UUID,
            &small(),
        );
        assert!(made.is_err());
        each_power_cut(&disk, step, |after, how| {
            if let Ok(opened) = open(&after, &small()) {
                assert_eq!(opened.observe(), Model::default());
            } else {
                create(&after, &small());
                open(&after, &small()).unwrap_or_else(|e| panic!("step {step}, {how}: {e}"));
            }
        });
    }
}
