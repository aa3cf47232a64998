//! The log at rest, damaged: every flipped byte, every cut, every lost file, another log's files.
//! Nothing is ever silent, and no refusal changes a byte.

mod wal_world;

use std::path::PathBuf;

use holdfast::ledger::ShardId;
use holdfast::storage::log::{Log, LogError, Record};
use holdfast::storage::{Choice, Disk, SimDisk};
use wal_world::{
    Model, Trace, UUID, create, dir, entry, frames_of, open, position, prefixes, small, trace,
    write,
};

/// A log of several segments and a spare, with everything in it synced and closed.
fn written(seed: u64, groups: usize) -> (SimDisk, Model, Trace) {
    let disk = SimDisk::new();
    create(&disk, &small());
    let mut model = Model::default();
    let trace = trace(seed, groups, &mut model);
    let mut opened = open(&disk, &small()).expect("whole");
    let progress = write(&disk, &mut opened, &trace);
    assert_eq!(progress.acknowledged, frames_of(&trace));
    opened.log.prepare_next();
    opened.log.sync_mark().expect("a healthy disk");
    let segments = disk.files().iter().filter(|path| is_segment(path)).count();
    assert!(segments >= 3, "a small log, but of several segments and a spare: {segments}");
    (disk.after_power_cut(&mut |_, _| None), model, trace)
}

fn is_segment(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|extension| extension == "seg")
}

fn image(disk: &SimDisk) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    disk.files().into_iter().map(|path| (path.clone(), disk.contents(&path))).collect()
}

/// What opening a damaged log came to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Intact,
    Damaged,
    Lost,
    Foreign,
}

/// Opens a log at rest. It must be whole or refused, and a refusal must leave it as it was.
fn judge(disk: &SimDisk, expected: &[Model], what: &str) -> Verdict {
    let before = image(disk);
    let verdict = match open(disk, &small()) {
        Ok(opened) => {
            assert!(expected.contains(&opened.observe()), "{what}: silently another log");
            return Verdict::Intact;
        }
        Err(LogError::Damaged { file, .. }) => {
            assert!(file.starts_with(dir()), "{what}: the refusal names the file");
            Verdict::Damaged
        }
        Err(LogError::Lost { .. }) => Verdict::Lost,
        Err(LogError::Foreign { .. }) => Verdict::Foreign,
        Err(error @ (LogError::Exists { .. } | LogError::Options(_) | LogError::Io { .. })) => {
            panic!("{what}: {error}")
        }
    };
    assert_eq!(image(disk), before, "{what}: a refusal changes nothing");
    verdict
}

#[test]
fn s07_no_flipped_byte_is_silent() {
    let (disk, model, _) = written(1, 12);
    let (mut intact, mut damaged) = (0, 0);
    for path in disk.files() {
        let length = disk.contents(&path).expect("listed").len() as u64;
        for offset in 0..length {
            for mask in [0x01, 0x80, 0xff] {
                let bad = disk.fork();
                bad.flip(&path, offset, mask);
                let what = format!("{} byte {offset} ^ {mask:#04x}", path.display());
                match judge(&bad, std::slice::from_ref(&model), &what) {
                    Verdict::Intact => intact += 1,
                    Verdict::Damaged => damaged += 1,
                    verdict @ (Verdict::Lost | Verdict::Foreign) => panic!("{what}: {verdict:?}"),
                }
            }
        }
    }
    println!("{intact} intact, {damaged} damaged");
    assert!(intact > 0 && damaged > 5_000, "{intact} intact, {damaged} damaged");
}

#[test]
fn s07_a_flipped_byte_before_the_last_sync_is_found_without_the_side_file() {
    let seed = 3;
    let disk = SimDisk::new();
    create(&disk, &small());
    let mut model = Model::default();
    let trace = trace(seed, 12, &mut model);
    let mut opened = open(&disk, &small()).expect("whole");
    write(&disk, &mut opened, &trace);
    // The power goes before the kernel has written any slot: only the frames know.
    let bare = disk.after_power_cut(&mut |choice, versions| match choice {
        Choice::Sector(path, _) if path.ends_with("synced") => None,
        Choice::Sector(..) | Choice::Length(_) | Choice::Name(_) => Some(versions - 1),
    });
    let all = prefixes(&Model::default(), &trace);
    let last_group = frames_of(&vec![trace.last().expect("groups").clone()]);
    // The frames of the very last sync have nobody to vouch for them but the slot that was lost.
    let expected = &all[all.len() - 1 - last_group..];
    let mut damaged = 0;
    for path in bare.files().iter().filter(|path| is_segment(path)) {
        for offset in 0..small().segment_bytes {
            let bad = bare.fork();
            bad.flip(path, offset, 0x40);
            let what = format!("{} byte {offset}", path.display());
            damaged += usize::from(judge(&bad, expected, &what) == Verdict::Damaged);
        }
    }
    assert!(damaged > 1_000, "{damaged} found");
}

#[test]
fn s07_no_cut_of_any_length_is_silent() {
    let (disk, model, _) = written(2, 12);
    let spare = disk.files().into_iter().rfind(|path| is_segment(path)).expect("segments");
    for path in disk.files() {
        let length = disk.contents(&path).expect("listed").len() as u64;
        for kept in 0..length {
            let bad = disk.fork();
            bad.cut(&path, kept);
            let what = format!("{} cut to {kept}", path.display());
            let verdict = judge(&bad, std::slice::from_ref(&model), &what);
            let right = if path == spare { Verdict::Intact } else { Verdict::Damaged };
            assert_eq!(verdict, right, "{what}");
            if verdict == Verdict::Intact {
                assert_eq!(open(&bad, &small()).expect("mended").observe(), model);
            }
        }
    }
}

#[test]
fn c02_lost_files_are_never_taken_for_an_empty_log() {
    let (disk, model, _) = written(4, 12);
    let segments: Vec<PathBuf> = disk.files().into_iter().filter(|path| is_segment(path)).collect();
    for (place, path) in segments.iter().enumerate() {
        let bad = disk.fork();
        bad.lose(path);
        let verdict = judge(&bad, std::slice::from_ref(&model), &path.display().to_string());
        // The last is a spare, which nobody misses.
        let right = if place == segments.len() - 1 { Verdict::Intact } else { Verdict::Damaged };
        assert_eq!(verdict, right, "without {}", path.display());
    }
    let bad = disk.fork();
    bad.lose(&dir().join("synced"));
    assert_eq!(judge(&bad, &[], "without the side file"), Verdict::Lost);
    for path in disk.files() {
        bad.lose(&path);
    }
    assert_eq!(judge(&bad, &[], "an empty directory"), Verdict::Lost);
    assert_eq!(judge(&SimDisk::new(), &[], "no directory"), Verdict::Lost);
    let bad = disk.fork();
    for path in &segments {
        bad.lose(path);
    }
    assert_eq!(judge(&bad, &[], "the side file alone"), Verdict::Lost);
}

#[test]
fn c02_a_log_is_never_made_over_another_one() {
    let (disk, model, _) = written(5, 12);
    for lost in disk.files() {
        let bad = disk.fork();
        bad.lose(&lost);
        let shared = bad.mount();
        let before = image(&bad);
        let made = Log::create(&shared, &dir(), UUID, &small());
        assert!(matches!(made, Err(LogError::Exists { .. })), "without {}", lost.display());
        assert_eq!(image(&bad), before);
    }
    assert_eq!(open(&disk, &small()).expect("whole").observe(), model);
}

#[test]
fn c02_another_nodes_log_is_foreign() {
    let (disk, _, _) = written(6, 12);
    let shared = disk.mount();
    let other = *b"some other log's";
    let before = image(&disk);
    match Log::open(&shared, &dir(), other, &small()) {
        Err(LogError::Foreign { expected, found }) => {
            assert_eq!((expected, found), (other, UUID));
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(image(&disk), before);
    // A wiped node that was given a fresh log under the listed uuid's directory.
    let fresh = SimDisk::new();
    let shared = fresh.mount();
    Log::create(&shared, &dir(), other, &small()).expect("a healthy disk");
    assert_eq!(judge(&fresh, &[], "a fresh log"), Verdict::Foreign);
}

#[test]
fn s07_another_logs_file_in_the_place_of_ours_is_never_silent() {
    let (disk, model, _) = written(7, 12);
    let other = SimDisk::new();
    let shared = other.mount();
    Log::create(&shared, &dir(), *b"some other log's", &small()).expect("a healthy disk");
    let (mut log, _) = Log::open(&shared, &dir(), *b"some other log's", &small()).expect("whole");
    for index in 0..40 {
        let record = Record::Entries(vec![entry(1, index, &[7; 100])]);
        log.record(ShardId(0), &record).expect("a healthy disk");
        log.sync().expect("a healthy disk");
    }
    for path in other.files() {
        let Some(bytes) = other.contents(&path) else { continue };
        let bad = disk.fork();
        if bad.contents(&path).is_none() {
            continue;
        }
        let file = bad.create(&path).expect("healthy");
        file.write_at(0, &bytes).expect("healthy");
        file.sync_data().expect("healthy");
        let verdict = judge(&bad, std::slice::from_ref(&model), &path.display().to_string());
        assert_eq!(verdict, Verdict::Foreign, "{}", path.display());
    }
}

#[test]
fn s07_a_segment_in_the_place_of_another_is_never_silent() {
    let (disk, model, _) = written(8, 12);
    let segments: Vec<PathBuf> = disk.files().into_iter().filter(|path| is_segment(path)).collect();
    for from in &segments {
        for to in segments.iter().filter(|to| *to != from) {
            let bad = disk.fork();
            let bytes = disk.contents(from).expect("listed");
            let file = bad.open(to).expect("listed");
            file.write_at(0, &bytes).expect("healthy");
            file.sync_data().expect("healthy");
            let what = format!("{} over {}", from.display(), to.display());
            judge(&bad, std::slice::from_ref(&model), &what);
        }
    }
}

#[test]
fn s11_a_full_disk_opens_without_a_free_byte_and_loses_nothing() {
    for seed in 0..30 {
        let disk = SimDisk::new();
        create(&disk, &small());
        let mut model = Model::default();
        let trace = trace(seed, 10, &mut model);
        let all = prefixes(&Model::default(), &trace);
        let mut opened = open(&disk, &small()).expect("whole");
        disk.power_off_after(20 + seed);
        let progress = write(&disk, &mut opened, &trace);
        drop(opened);
        disk.power_cut(seed);
        disk.set_capacity(Some(disk.used_bytes()));
        let opened = open(&disk, &small()).expect("recovery writes in place only");
        let seen = opened.observe();
        wal_world::assert_prefix(&seen, &all, progress, &format!("seed {seed}"));
        drop(opened);
        disk.set_capacity(None);
        assert_eq!(open(&disk, &small()).expect("whole").observe(), seen);
    }
}

#[test]
fn s10_a_disk_that_fills_up_fails_the_log_and_nothing_acknowledged_is_lost() {
    let disk = SimDisk::new();
    create(&disk, &small());
    let mut opened = open(&disk, &small()).expect("whole");
    disk.set_capacity(Some(disk.used_bytes() + small().segment_bytes));
    let mut model = Model::default();
    let mut acknowledged = model.clone();
    for index in 0.. {
        let record = Record::Entries(vec![entry(1, index, &[9; 150])]);
        model.apply(ShardId(1), &record);
        let outcome = opened.log.record(ShardId(1), &record).and_then(|()| opened.log.sync());
        if outcome.is_err() {
            break;
        }
        acknowledged = model.clone();
        assert!(index < 1000, "the disk does fill up");
    }
    assert!(opened.log.failed().is_some());
    assert!(opened.log.sync().is_err(), "a failed log stays failed");
    disk.set_capacity(None);
    assert!(opened.log.record(ShardId(1), &Record::Purge(position(1, 1))).is_err());
    let mut opened = open(&disk, &small()).expect("whole");
    assert_eq!(opened.observe(), acknowledged);
    let more = Record::Entries(vec![entry(2, acknowledged.0[&1].next(), b"after")]);
    opened.log.record(ShardId(1), &more).expect("there is room again");
    opened.log.sync().expect("there is room again");
    acknowledged.apply(ShardId(1), &more);
    assert_eq!(open(&disk, &small()).expect("whole").observe(), acknowledged);
}

#[test]
fn c09_votes_and_purge_marks_outlive_the_segments_they_were_written_in() {
    let disk = SimDisk::new();
    create(&disk, &small());
    let mut opened = open(&disk, &small()).expect("whole");
    let mut model = Model::default();
    let mut step = |opened: &mut wal_world::Opened, shard: u16, record: Record| {
        opened.log.record(ShardId(shard), &record).expect("a healthy disk");
        opened.log.sync().expect("a healthy disk");
        model.apply(ShardId(shard), &record);
        let dead = opened.log.take_dead_segments();
        Log::remove(&disk, &dir(), &dead).expect("a healthy disk");
        opened.log.prepare_next();
        dead.len()
    };
    step(&mut opened, 2, Record::Vote("the only vote of shard 2".into()));
    step(&mut opened, 1, Record::Entries(vec![entry(1, 0, b"x")]));
    step(&mut opened, 1, Record::Purge(position(1, 0)));
    let mut removed = 0;
    for index in 0..200 {
        removed += step(&mut opened, 0, Record::Entries(vec![entry(1, index, &[1; 90])]));
        if index % 10 == 9 {
            removed += step(&mut opened, 0, Record::Purge(position(1, index - 3)));
        }
    }
    assert!(removed > 10, "{removed} segments were removed");
    let used = disk.used_bytes();
    assert!(used < 8 * small().segment_bytes + 8192, "the log does not grow: {used} bytes");
    let again = open(&disk, &small()).expect("whole");
    assert_eq!(again.observe(), model);
    assert_eq!(model.0[&2].vote.as_deref(), Some(&b"the only vote of shard 2"[..]));
    assert_eq!(model.0[&1].purged, Some(position(1, 0)));
}

#[test]
fn c09_a_removal_that_a_power_cut_undid_does_no_harm() {
    for seed in 0..40 {
        let disk = SimDisk::new();
        create(&disk, &small());
        let mut opened = open(&disk, &small()).expect("whole");
        let mut model = Model::default();
        let mut dead = Vec::new();
        for index in 0..120 {
            let mut records = vec![Record::Entries(vec![entry(1, index, &[1; 90])])];
            if index == 110 {
                records.push(Record::Purge(position(1, 105)));
            }
            for record in records {
                opened.log.record(ShardId(0), &record).expect("a healthy disk");
                opened.log.sync().expect("a healthy disk");
                model.apply(ShardId(0), &record);
            }
            dead.extend(opened.log.take_dead_segments());
        }
        assert!(dead.len() > 4);
        // The directory is never synced: any subset of the removals may be undone.
        for path in &dead {
            disk.remove(path).expect("a healthy disk");
        }
        drop(opened);
        disk.power_cut(seed);
        let opened = open(&disk, &small()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(opened.observe(), model, "seed {seed}");
        drop(opened);
        assert_eq!(open(&disk, &small()).expect("whole").observe(), model, "seed {seed}");
    }
}
