//! The identity file, the lock and the ballast of a data directory.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use holdfast::codec;
use holdfast::ledger::{NodeId, Settings, ShardId, UnixMs};
use holdfast::storage::data_dir::{Ballast, DataDir, DataDirError};
use holdfast::storage::identity::{FORMAT, IDENTITY_FILE, Identity, IdentityError};
use holdfast::storage::{Disk, Fault, RealDisk, SimDisk};

const DIR: &str = "/data";

fn identity(node: u64) -> Identity {
    Identity {
        cluster_id: [3; 16],
        node: NodeId(node),
        log_uuid: [9; 16],
        settings: Settings {
            shards: 4,
            tag_key: [7; 16],
            slots: 256,
            sweep_max: 512,
            receipt_retention_ms: 86_400_000,
            sold_retention_ms: 7_776_000_000,
        },
        region: "eu".into(),
        created_at: UnixMs(1_767_225_600_000),
    }
}

/// A simulated disk with an empty, durable data directory.
fn sim() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new(DIR)).expect("makes");
    disk.sync_dir(Path::new("/")).expect("syncs");
    disk
}

fn put(disk: &SimDisk, bytes: &[u8]) {
    let path = Path::new(DIR).join(IDENTITY_FILE);
    let file = disk.create(&path).expect("creates");
    file.write_at(0, bytes).expect("writes");
}

#[test]
fn an_identity_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let read = Identity::read(&RealDisk, dir.path());
    assert!(matches!(read, Err(IdentityError::NotInitialised)), "{read:?}");
    identity(2).create(&RealDisk, dir.path()).expect("creates");
    assert_eq!(Identity::read(&RealDisk, dir.path()).expect("reads"), identity(2));
    let names: Vec<_> = fs::read_dir(dir.path()).expect("reads").map(|x| x.expect("x")).collect();
    assert_eq!(names.len(), 1, "nothing is left beside it: {names:?}");
    let of = |identity: Identity| identity.origin(ShardId(1));
    assert_eq!(of(identity(1)), of(identity(2)), "nodes of a cluster exchange pages");
    assert_ne!(of(identity(1)), identity(1).origin(ShardId(2)));
}

#[test]
fn an_identity_is_never_overwritten_by_a_new_one() {
    let disk = sim();
    let dir = Path::new(DIR);
    identity(1).create(&disk, dir).expect("creates");
    let again = identity(2).create(&disk, dir);
    assert!(matches!(again, Err(IdentityError::Exists)), "{again:?}");
    assert_eq!(Identity::read(&disk, dir).expect("reads"), identity(1));
    put(&disk, b"damaged");
    let again = identity(2).create(&disk, dir);
    assert!(matches!(again, Err(IdentityError::Exists)), "nor is a damaged one: {again:?}");
}

#[test]
fn every_flipped_byte_and_every_cut_of_an_identity_is_an_error() {
    let disk = sim();
    let dir = Path::new(DIR);
    identity(1).create(&disk, dir).expect("creates");
    let bytes = disk.contents(&dir.join(IDENTITY_FILE)).expect("is there");
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x04;
        put(&disk, &bad);
        match Identity::read(&disk, dir) {
            Err(IdentityError::Damaged(_) | IdentityError::OtherFormat { .. }) => {}
            other => panic!("flip at {at}: {other:?}"),
        }
        put(&disk, &bytes[..at]);
        let read = Identity::read(&disk, dir);
        assert!(matches!(read, Err(IdentityError::Damaged(_))), "cut at {at}: {read:?}");
    }
    put(&disk, &vec![0; 1 << 20]);
    let read = Identity::read(&disk, dir);
    assert!(matches!(read, Err(IdentityError::Damaged(_))), "{read:?}");
}

#[test]
fn another_format_is_named_and_not_guessed() {
    let disk = sim();
    put(&disk, &codec::seal(0x0313, FORMAT + 1, b"whatever comes later"));
    let read = Identity::read(&disk, Path::new(DIR));
    let Err(IdentityError::OtherFormat { found }) = read else { panic!("{read:?}") };
    assert_eq!(found, FORMAT + 1);
}

#[test]
fn data_without_an_identity_is_not_an_empty_directory() {
    let dir = Path::new(DIR);
    for name in ["log", "shard-3"] {
        let disk = sim();
        disk.create_dir_all(&dir.join(name)).expect("makes");
        disk.create(&dir.join(name).join("segment")).expect("makes");
        let read = Identity::read(&disk, dir);
        assert!(matches!(&read, Err(IdentityError::Lost(what)) if what == name), "{read:?}");
        assert!(read.expect_err("lost").to_string().contains("docs/operations.md"));
    }
    let disk = sim();
    disk.create(&dir.join("lock")).expect("creates");
    let read = Identity::read(&disk, dir);
    assert!(matches!(read, Err(IdentityError::NotInitialised)), "{read:?}");
    let read = Identity::read(&disk, Path::new("/nowhere"));
    assert!(matches!(read, Err(IdentityError::NotInitialised)), "{read:?}");
}

#[test]
fn a_power_cut_at_any_step_leaves_a_whole_identity_or_the_one_before() {
    let dir = Path::new(DIR);
    let mut done = false;
    let mut kept = [0, 0];
    for steps in 0..20 {
        for seed in 0..60 {
            let disk = sim();
            identity(1).create(&disk, dir).expect("creates");
            disk.power_off_after(steps);
            done = identity(2).replace(&disk, dir).is_ok();
            disk.power_cut(seed);
            let found = Identity::read(&disk, dir);
            let found = found.unwrap_or_else(|error| panic!("step {steps} seed {seed}: {error}"));
            assert!(found == identity(2) || (!done && found == identity(1)), "{steps} {seed}");
            kept[usize::from(found == identity(2))] += 1;
        }
    }
    assert!(done && kept[0] > 0 && kept[1] > 0, "both ends were seen: {kept:?}");
}

#[test]
fn a_disk_that_fails_at_any_step_leaves_a_whole_identity_or_the_one_before() {
    let dir = Path::new(DIR);
    for fault in [Fault::Io, Fault::Full] {
        let disk = sim();
        identity(1).create(&disk, dir).expect("creates");
        disk.fail_write(1, fault);
        let failed = identity(2).replace(&disk, dir);
        assert!(matches!(failed, Err(IdentityError::Io(_))), "{failed:?}");
        disk.fail_sync(1, fault);
        let failed = identity(2).replace(&disk, dir);
        assert!(matches!(failed, Err(IdentityError::Io(_))), "{failed:?}");
        assert_eq!(Identity::read(&disk, dir).expect("reads"), identity(1));
        identity(2).replace(&disk, dir).expect("the disk is well again");
        assert_eq!(Identity::read(&disk, dir).expect("reads"), identity(2));
    }
}

#[test]
fn two_processes_never_share_a_data_directory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("made/here");
    let first = DataDir::lock(&path).expect("locks");
    assert_eq!(first.shard(ShardId(3)), path.join("shard-3"));
    assert_eq!((first.path(), first.log()), (path.as_path(), path.join("log")));
    let error = DataDir::lock(&path).expect_err("is in use");
    assert!(matches!(error, DataDirError::InUse { .. }), "{error}");
    let pid = format!("(pid {})", std::process::id());
    assert!(error.to_string().contains(&pid), "it says by whom: {error}");
    drop(first);
    DataDir::lock(&path).expect("a lock file left behind locks nobody out");
    let file = dir.path().join("file");
    fs::write(&file, b"x").expect("writes");
    let error = DataDir::lock(&file).expect_err("not a directory");
    assert!(matches!(error, DataDirError::Io { .. }), "{error}");
}

#[test]
fn a_start_gives_the_ballast_up_when_a_copy_of_the_largest_database_may_not_fit() {
    let slack = 16 << 20;
    for (database, free, given) in [
        (0, slack, false),
        (0, slack - 1, true),
        (5 << 20, slack + (5 << 20), false),
        (5 << 20, slack + (5 << 20) - 1, true),
    ] {
        let disk = sim();
        let ballast = Ballast::new(Arc::new(disk.clone()), DIR, 3 << 20);
        assert!(ballast.restore().expect("writes"));
        for (dir, bytes) in [("shard-0/a", database / 2), ("shard-1/b", database)] {
            let dir = Path::new(DIR).join(dir);
            disk.create_dir_all(&dir).expect("makes");
            let file = disk.create(&dir.join("db")).expect("creates");
            file.set_len(bytes).expect("writes");
        }
        disk.set_capacity(Some(disk.used_bytes() + free));
        let did = ballast.release_for_start().expect("looks");
        assert_eq!((did, ballast.is_there()), (given, !given), "{database}, {free}");
    }
    // As small as the databases are, the room of a ballast is kept free for them.
    let disk = sim();
    let ballast = Ballast::new(Arc::new(disk.clone()), DIR, 40 << 20);
    assert!(ballast.restore().expect("writes"));
    disk.set_capacity(Some(disk.used_bytes() + (40 << 20) - 1));
    assert!(ballast.release_for_start().expect("looks"));
    assert!(!ballast.release_for_start().expect("looks"), "it is gone already");
}

#[test]
fn the_ballast_is_written_given_up_once_and_taken_again_when_there_is_room() {
    let disk = sim();
    let ballast = Ballast::new(Arc::new(disk.clone()), DIR, 3 << 20);
    assert!(!ballast.is_there());
    assert!(ballast.restore().expect("writes"));
    assert!(ballast.restore().expect("is there"), "twice is once");
    disk.power_cut(1);
    assert!(ballast.is_there(), "durable");
    let bytes = disk.contents(&Path::new(DIR).join("ballast")).expect("is there");
    assert_eq!(bytes, vec![0; 3 << 20]);
    disk.set_capacity(Some(disk.used_bytes()));
    assert!(ballast.release().expect("gives"));
    assert!(!ballast.release().expect("has none"), "nothing more to give");
    assert_eq!(disk.free_bytes(Path::new(DIR)).expect("looks"), 3 << 20, "room for a checkpoint");
    assert!(!ballast.restore().expect("waits"), "it is not what fills the disk");
    assert_eq!(disk.used_bytes(), 0);
    disk.set_capacity(Some(6 << 20));
    assert!(ballast.restore().expect("writes"));
}

#[test]
fn a_ballast_that_cannot_be_written_leaves_nothing_behind() {
    let disk = sim();
    let ballast = Ballast::new(Arc::new(disk.clone()), DIR, 3 << 20);
    disk.fail_write(2, Fault::Full);
    ballast.restore().expect_err("the disk is full all the same");
    assert_eq!((disk.used_bytes(), ballast.is_there()), (0, false));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let none = Ballast::new(Arc::new(RealDisk), dir.path(), 0);
    assert!(!none.restore().expect("does nothing"), "none is kept");
    assert!(fs::read_dir(dir.path()).expect("reads").next().is_none());
}
