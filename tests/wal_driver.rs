//! The log with its driver, as the node uses it: order, grouping, failure, a hung disk, segments.
//! Runs on threads, or with the feature `sim` on the simulator's runtime.

mod wal_world;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast::ledger::{LogIndex, ShardId};
use holdfast::runtime::{self, Rt};
use holdfast::storage::log::{LogError, LogOptions, NodeLog, ShardLog};
use holdfast::storage::{Disk, Fault, RealDisk, SimDisk, measure_sync};
use openraft_rt::AsyncRuntime;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use wal_world::{UUID, dir, entry, position, small};

fn run<F: Future>(future: F) -> F::Output {
    Rt::new(1).block_on(future)
}

fn shared(disk: &SimDisk) -> Arc<dyn Disk> {
    disk.mount()
}

fn create(disk: &SimDisk, options: LogOptions) -> NodeLog {
    NodeLog::create(shared(disk), &dir(), UUID, options).expect("a healthy disk")
}

fn reopen(disk: &SimDisk) -> NodeLog {
    NodeLog::open(shared(disk), &dir(), UUID, small()).expect("whole")
}

/// Waits for a condition that another thread or task brings about.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = runtime::now() + Duration::from_secs(60);
    while !condition() {
        assert!(runtime::now() < deadline, "never came: {what}");
        runtime::sleep(Duration::from_micros(200)).await;
    }
}

/// Appends and returns what tells of the sync.
fn append(log: &ShardLog, index: u64, payload: &[u8]) -> oneshot::Receiver<std::io::Result<()>> {
    let (sender, synced) = oneshot::channel();
    let done = Box::new(move |outcome| drop(sender.send(outcome)));
    log.append(vec![entry(1, index, payload)], done).expect("accepted");
    synced
}

async fn synced(done: oneshot::Receiver<std::io::Result<()>>) {
    done.await.expect("told").expect("durable");
}

#[test]
fn s04_entries_are_readable_at_once_and_durable_when_told() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(1));
        let done = append(&log, 0, b"zero");
        assert_eq!(log.read(0..9, 100).expect("in memory"), [entry(1, 0, b"zero")]);
        assert_eq!(log.state().last, Some(position(1, 0)));
        synced(done).await;
        log.save_vote(Bytes::from_static(b"a vote")).await.expect("durable");
        disk.power_cut(0);
        drop(node);
        let node = reopen(&disk);
        let log = node.shard(ShardId(1));
        assert_eq!(log.read(0..9, 100).expect("read"), [entry(1, 0, b"zero")]);
        assert_eq!(log.vote().as_deref(), Some(&b"a vote"[..]));
        node.close().await.expect("healthy");
    });
}

#[test]
fn a_drain_costs_one_sync_and_completes_in_the_order_of_the_calls() {
    run(async {
        let disk = SimDisk::new();
        let options = LogOptions { segment_bytes: 64 << 10, ..small() };
        let node = create(&disk, options);
        until("the spare", || node.health().spares == 1).await;
        disk.set_hung(true);
        let log = node.shard(ShardId(0));
        let first = append(&log, 0, b"first");
        until("the first drain", || node.health().queued == 0).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..60_u64 {
            let log = node.shard(ShardId(u16::try_from(number % 3).expect("small")));
            let index = log.state().last.map_or(0, |last| last.index.0 + 1);
            let order = order.clone();
            let done = Box::new(move |_| order.lock().push(number));
            log.append(vec![entry(1, index, b"x")], done).expect("accepted");
        }
        let before = disk.syncs();
        let health = node.health();
        assert_eq!((health.syncs, health.queued), (0, 60));
        disk.set_hung(false);
        synced(first).await;
        let last = append(&log, log.state().last.map_or(0, |last| last.index.0 + 1), b"last");
        synced(last).await;
        assert_eq!(*order.lock(), (0..60).collect::<Vec<u64>>());
        // One for the first, one for the sixty, and one for the last if it came too late for them.
        let health = node.health();
        assert!((2..=3).contains(&health.syncs), "{health:?}");
        assert!(disk.syncs() - before <= 3, "and nothing else was synced");
        node.close().await.expect("healthy");
    });
}

#[test]
fn c17_a_hung_sync_shows_in_the_health_and_answers_nothing() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(0));
        assert_eq!(node.health().oldest_unsynced, None);
        until("the spare", || node.health().spares == 1).await;
        disk.set_hung(true);
        let mut done = append(&log, 0, b"stuck");
        until("age", || {
            node.health().oldest_unsynced.is_some_and(|age| age > Duration::from_millis(20))
        })
        .await;
        assert!(done.try_recv().is_err(), "not told yet");
        assert_eq!(log.read(0..9, 100).expect("from memory").len(), 1);
        assert_eq!(node.health().failed, None);
        disk.set_hung(false);
        synced(done).await;
        until("idle", || node.health().oldest_unsynced.is_none()).await;
        assert!(node.health().sync_max_us >= 15_000, "{:?}", node.health());
        node.close().await.expect("healthy");
    });
}

#[test]
fn s10_a_failed_sync_or_write_ends_the_log_and_is_never_tried_again() {
    for (fault, on_sync) in
        [(Fault::Io, true), (Fault::Io, false), (Fault::Full, true), (Fault::Full, false)]
    {
        run(async {
            let disk = SimDisk::new();
            let node = create(&disk, small());
            let log = node.shard(ShardId(0));
            until("the spare", || node.health().spares == 1).await;
            synced(append(&log, 0, b"good")).await;
            if on_sync {
                disk.fail_sync(1, fault)
            } else {
                disk.fail_write(1, fault)
            }
            let bad = append(&log, 1, b"bad");
            assert!(bad.await.expect("told").is_err(), "the failure is told");
            let operations = disk.operations();
            until("failed", || node.health().failed.is_some()).await;
            let refused = log.append(vec![entry(1, 2, b"more")], Box::new(|_| panic!("not taken")));
            assert!(refused.is_err());
            assert!(log.save_vote(Bytes::new()).await.is_err());
            assert!(log.truncate_after(None).await.is_err());
            assert!(log.purge(position(1, 0)).await.is_err());
            assert!(log.read(0..9, 100).is_err());
            assert!(node.close().await.is_err());
            assert_eq!(disk.operations(), operations, "nothing was tried again");
            disk.power_cut(0);
            let node = reopen(&disk);
            let seen = node.shard(ShardId(0)).read(0..9, 100).expect("read");
            assert_eq!(seen[0], entry(1, 0, b"good"));
        });
    }
}

/// Fills a disk and appends until the log waits for room; returns what was asked and not answered.
async fn until_it_waits_for_room(
    disk: &SimDisk,
    node: &NodeLog,
    log: &ShardLog,
) -> (u64, Vec<oneshot::Receiver<std::io::Result<()>>>) {
    until("the spare", || node.health().spares == 1).await;
    disk.set_capacity(Some(disk.used_bytes()));
    let mut next = 0;
    while node.health().waits_for_room.is_none() {
        assert!(next < 1_000, "it should have been full long ago");
        let mut done = append(log, next, &[7; 100]);
        next += 1;
        while done.try_recv().is_err() && node.health().waits_for_room.is_none() {
            runtime::sleep(Duration::from_micros(200)).await;
        }
    }
    let more = (0..3).map(|ahead| append(log, next + ahead, &[7; 100])).collect();
    (next + 3, more)
}

#[test]
fn s10_a_log_without_room_waits_and_goes_on_by_itself_when_there_is_room() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(0));
        let (asked, mut waiting) = until_it_waits_for_room(&disk, &node, &log).await;
        let health = node.health();
        assert_eq!(health.failed, None);
        assert!(health.housekeeping.is_some(), "{health:?}");
        for done in &mut waiting {
            assert!(done.try_recv().is_err(), "told before it was durable");
        }
        // Half a segment is no room.
        disk.set_capacity(Some(disk.used_bytes() + small().segment_bytes / 2));
        until("it waits on", || {
            node.health().waits_for_room.is_some_and(|time| time > Duration::from_millis(250))
        })
        .await;
        assert!(waiting.iter_mut().all(|done| done.try_recv().is_err()));
        disk.set_capacity(None);
        for done in waiting {
            synced(done).await;
        }
        assert_eq!(node.health().waits_for_room, None);
        node.close().await.expect("healthy");
        disk.power_cut(0);
        let node = reopen(&disk);
        let seen = node.shard(ShardId(0)).read(0..asked + 9, usize::MAX).expect("read");
        assert_eq!(seen.len() as u64, asked, "all of it, once");
        node.close().await.expect("healthy");
    });
}

#[test]
fn s10_a_log_that_is_closed_while_it_waits_for_room_answers_no_and_loses_nothing() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(0));
        let (asked, waiting) = until_it_waits_for_room(&disk, &node, &log).await;
        assert!(node.close().await.is_err(), "it could not do what was asked");
        let answered_no = waiting.len() as u64 + 1;
        for done in waiting {
            assert!(done.await.expect("told").is_err());
        }
        disk.set_capacity(None);
        let node = reopen(&disk);
        let seen = node.shard(ShardId(0)).read(0..asked, usize::MAX).expect("read");
        assert_eq!(seen.len() as u64, asked - answered_no, "what was acknowledged is there");
        node.close().await.expect("healthy");
    });
}

#[test]
fn s04_what_a_restart_read_after_a_failed_sync_is_really_durable() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(0));
        until("the spare", || node.health().spares == 1).await;
        synced(append(&log, 0, b"good")).await;
        disk.fail_sync(1, Fault::Io);
        assert!(append(&log, 1, b"shown by the kernel only").await.expect("told").is_err());
        assert!(node.close().await.is_err());
        disk.process_kill();
        let node = reopen(&disk);
        let seen = node.shard(ShardId(0)).read(0..9, 100).expect("read");
        assert_eq!(seen.len(), 2, "the kernel shows it");
        drop(node);
        // The worst power cut: nothing unsynced survives.
        let after = disk.after_power_cut(&mut |_, _| None);
        let node = reopen(&after);
        assert_eq!(node.shard(ShardId(0)).read(0..9, 100).expect("read"), seen);
    });
}

#[test]
fn segments_come_ahead_of_need_and_go_when_every_shard_has_purged_past_them() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let (busy, quiet) = (node.shard(ShardId(0)), node.shard(ShardId(1)));
        quiet.save_vote(Bytes::from_static(b"old vote")).await.expect("durable");
        synced(append(&quiet, 0, b"quiet")).await;
        for index in 0..100 {
            until("the spare", || node.health().spares == 1).await;
            synced(append(&busy, index, &[3; 100])).await;
        }
        assert_eq!(node.health().prepared_in_place, 0, "every segment was ready");
        let before = node.health().segments;
        assert!(before > 5);
        busy.purge(position(1, 99)).await.expect("durable");
        assert_eq!(node.health().segments, before, "the quiet shard still needs the first");
        quiet.purge(position(1, 0)).await.expect("durable");
        until("removal", || node.health().bytes == small().segment_bytes).await;
        assert_eq!(node.health().segments, 1);
        // The spare and the one in use, and the side file.
        until("removal", || disk.used_bytes() == 2 * small().segment_bytes + 8192).await;
        node.close().await.expect("healthy");
        disk.power_cut(1);
        let node = reopen(&disk);
        let quiet = node.shard(ShardId(1));
        assert_eq!(quiet.vote().as_deref(), Some(&b"old vote"[..]));
        assert_eq!(quiet.state().purged, Some(position(1, 0)));
        assert_eq!(node.shard(ShardId(0)).state().last, Some(position(1, 99)));
        synced(append(&node.shard(ShardId(0)), 100, b"on")).await;
        node.close().await.expect("healthy");
    });
}

#[test]
fn a_purge_beyond_the_last_entry_leaves_an_empty_log_that_continues_behind_it() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(0));
        synced(append(&log, 0, b"old")).await;
        log.purge(position(7, 500)).await.expect("durable");
        for _ in 0..2 {
            let state = node.shard(ShardId(0)).state();
            assert_eq!(
                (state.purged, state.last),
                (Some(position(7, 500)), Some(position(7, 500)))
            );
        }
        node.close().await.expect("healthy");
        let node = reopen(&disk);
        let log = node.shard(ShardId(0));
        assert_eq!(log.state().last, Some(position(7, 500)));
        assert!(log.read(0..u64::MAX, 100).expect("empty").is_empty());
        let gap = log.append(vec![entry(7, 502, b"gap")], Box::new(|_| panic!("not taken")));
        assert_eq!(gap.expect_err("a gap").kind(), std::io::ErrorKind::InvalidInput);
        synced(append(&log, 501, b"new")).await;
        assert!(log.truncate_after(Some(LogIndex(499))).await.is_err(), "that was purged");
        log.truncate_after(Some(LogIndex(500))).await.expect("durable");
        assert_eq!(log.state().last, Some(position(7, 500)));
        assert_eq!(node.health().failed, None, "a refused call harms nobody");
        node.close().await.expect("healthy");
    });
}

#[test]
fn an_index_that_was_truncated_and_appended_again_while_both_wait_reads_as_the_second() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, LogOptions { tail_bytes_max: 0, ..small() });
        let log = node.shard(ShardId(0));
        until("the spare", || node.health().spares == 1).await;
        disk.set_hung(true);
        let (sender, done) = oneshot::channel();
        let hang = disk.clone();
        let first = Box::new(move |outcome| {
            // The next drain stands still: only the first append has been told of its place.
            hang.set_hung(true);
            drop(sender.send(outcome));
        });
        log.append(vec![entry(1, 0, b"first")], first).expect("accepted");
        until("the first drain", || node.health().queued == 0).await;
        let cut = log.clone();
        let cut = runtime::spawn(async move { cut.truncate_after(None).await });
        until("the truncation", || log.state().last.is_none()).await;
        let again = append(&log, 0, b"second");
        assert_eq!(log.read(0..1, 100).expect("memory"), [entry(1, 0, b"second")]);
        disk.set_hung(false);
        synced(done).await;
        assert_eq!(log.read(0..1, 100).expect("memory"), [entry(1, 0, b"second")]);
        disk.set_hung(false);
        synced(again).await;
        cut.await.expect("no panic").expect("durable");
        // The tail keeps nothing: this comes from the segment.
        assert_eq!(log.read(0..1, 100).expect("file"), [entry(1, 0, b"second")]);
        node.close().await.expect("healthy");
    });
}

#[test]
fn reads_are_bounded_in_bytes_and_cross_from_the_segments_into_the_tail() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(0));
        for index in 0..60 {
            synced(append(&log, index, &[u8::try_from(index).expect("small"); 100])).await;
        }
        let all = log.read(0..u64::MAX, usize::MAX).expect("all");
        assert_eq!(all.len(), 60);
        for (index, read) in all.iter().enumerate() {
            let index = index as u64;
            let payload = [u8::try_from(index).expect("small"); 100];
            assert_eq!(*read, entry(1, index, &payload));
        }
        assert_eq!(log.read(10..50, 250).expect("two"), all[10..12]);
        assert_eq!(log.read(10..50, 0).expect("at least one"), all[10..11]);
        assert_eq!(log.read(58..99, 1 << 20).expect("to the end"), all[58..]);
        assert!(log.read(60..99, 1 << 20).expect("behind the end").is_empty());
        node.close().await.expect("healthy");
    });
}

#[test]
fn a_full_queue_refuses_or_waits_and_then_goes_on() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, LogOptions { queue_requests_max: 4, ..small() });
        let log = node.shard(ShardId(0));
        until("the spare", || node.health().spares == 1).await;
        disk.set_hung(true);
        let waiting: Vec<_> = (0..4).map(|index| append(&log, index, b"w")).collect();
        let refused = log.append(vec![entry(1, 4, b"no room")], Box::new(|_| {}));
        assert_eq!(refused.expect_err("full").kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(log.state().last, Some(position(1, 3)), "nothing was appended");
        let (sender, late) = oneshot::channel();
        let waiter = log.clone();
        let waiter = runtime::spawn(async move {
            let done = Box::new(move |outcome| drop(sender.send(outcome)));
            waiter.append_when_room(vec![entry(1, 4, b"patient")], done).await
        });
        runtime::yield_now().await;
        disk.set_hung(false);
        for done in waiting {
            synced(done).await;
        }
        waiter.await.expect("no panic").expect("taken in the end");
        synced(late).await;
        assert_eq!(log.state().last, Some(position(1, 4)));
        node.close().await.expect("healthy");
    });
}

#[test]
fn a_closed_log_completes_what_it_took_and_takes_nothing_more() {
    run(async {
        let disk = SimDisk::new();
        let node = create(&disk, small());
        let log = node.shard(ShardId(0));
        let waiting: Vec<_> = (0..20).map(|index| append(&log, index, b"w")).collect();
        node.close().await.expect("healthy");
        for done in waiting {
            synced(done).await;
        }
        let refused = log.append(vec![entry(1, 20, b"late")], Box::new(|_| panic!("not taken")));
        assert_eq!(refused.expect_err("closed").kind(), std::io::ErrorKind::BrokenPipe);
        assert_eq!(reopen(&disk).shard(ShardId(0)).state().last, Some(position(1, 19)));
    });
}

#[test]
fn s07_the_log_lives_on_real_files_that_are_written_zeros_and_refuses_a_flipped_byte() {
    use std::os::unix::fs::MetadataExt;
    run(async {
        let place = tempfile::tempdir().expect("a temporary directory");
        let dir = place.path().join("node").join("log");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        assert!(disk.free_bytes(place.path()).expect("a real disk") > 0);
        let options =
            LogOptions { segment_bytes: 256 << 10, tail_bytes_max: 1000, ..LogOptions::default() };
        let options = LogOptions { payload_bytes_max: 64 << 10, ..options };
        let node = NodeLog::create(disk.clone(), &dir, UUID, options.clone()).expect("made");
        let log = node.shard(ShardId(3));
        for index in 0..40_u64 {
            synced(append(&log, index, &[0xab; 20_000])).await;
        }
        log.save_vote(Bytes::from_static(b"vote")).await.expect("durable");
        log.purge(position(1, 29)).await.expect("durable");
        until("chores", || node.health().spares == 1 && node.health().segments < 3).await;
        node.close().await.expect("healthy");
        let segments: Vec<_> = segments(&dir);
        for path in &segments {
            let meta = std::fs::metadata(path).expect("there");
            assert_eq!(meta.len(), options.segment_bytes);
            assert!(meta.blocks() * 512 >= meta.len(), "written, not a hole: {}", path.display());
        }
        let node = NodeLog::open(disk.clone(), &dir, UUID, options.clone()).expect("whole");
        let log = node.shard(ShardId(3));
        assert_eq!(log.read(0..99, usize::MAX).expect("read").len(), 10);
        assert_eq!(log.vote().as_deref(), Some(&b"vote"[..]));
        node.close().await.expect("healthy");
        flip(&segments[0], 1000);
        match NodeLog::open(disk, &dir, UUID, options) {
            Err(LogError::Damaged { file, .. }) => assert_eq!(file, segments[0]),
            outcome => panic!("{outcome:?}"),
        }
    });
}

fn segments(dir: &Path) -> Vec<std::path::PathBuf> {
    let names = RealDisk.list(dir).expect("there");
    names.iter().filter(|name| name.ends_with(".seg")).map(|name| dir.join(name)).collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("there");
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("writable");
}

#[test]
fn a_measurement_of_the_disk_counts_its_syncs_and_leaves_nothing_behind() {
    run(async {
        let place = tempfile::tempdir().expect("a temporary directory");
        let took = measure_sync(&RealDisk, place.path(), 5).expect("a real disk");
        assert_eq!(took.len(), 5);
        assert!(RealDisk.list(place.path()).expect("there").is_empty());
    });
}
