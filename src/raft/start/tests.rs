//! The start of a shard, branch by branch, before openraft sees anything.

use std::sync::Arc;

use super::*;
use crate::ledger::{LeaderId, Turn};
use crate::raft::replica::Replica;
use crate::raft::trial::{
    Opened, SHARD, Site, apply, checkpoint, entry, options, position, run, settings,
};
use crate::storage::pages::SimPages;
use crate::storage::pages::sim_store::SimDamage;
use crate::storage::{LogError, SimDisk};

const NODE: NodeId = NodeId(1);

/// A replica's models, which survive its "process".
#[derive(Clone)]
struct World {
    disk: SimDisk,
    pages: SimPages,
}

impl World {
    fn new() -> World {
        World { disk: SimDisk::new(), pages: SimPages::new(7) }
    }

    fn site(&self) -> Site {
        Site::simulated(NODE, &self.disk, &self.pages)
    }

    async fn open(&self) -> Opened {
        self.site().open().await.expect("the site opens")
    }

    /// Writes entries 0 to `last` of term 1 and checkpoints at `cuts`, into one database after the
    /// other; returns what is applied at the end.
    async fn history(&self, last: u64, cuts: &[u64]) -> Arc<Replica> {
        let opened = self.open().await;
        let replica = opened.empty_replica();
        for index in 0..=last {
            let entry = entry(1, index);
            opened.append(&entry).await;
            apply(&replica, &entry);
            if cuts.contains(&index) {
                assert_eq!(checkpoint(&opened, &replica).await, position(1, index));
            }
        }
        opened.close().await;
        replica
    }

    async fn purge(&self, upto: u64) {
        let opened = self.open().await;
        opened.shard_log().purge(position(1, upto)).await.expect("purged");
        opened.close().await;
    }

    /// Starts, replays what the log has behind the checkpoint, and returns where it began and the
    /// digest at the end.
    async fn start(&self) -> Result<(Option<LogPosition>, u128), StartError> {
        let opened = self.open().await;
        let loaded = opened.prepare(&options(NODE, PeerBook::default())).await;
        let result = loaded.map(|loaded| {
            let begins = loaded.position;
            if opened.shard_log().state().purged.is_some() {
                assert!(loaded.membership.voter_ids().next().is_some(), "members are known");
            }
            (begins, replay(&opened, loaded).read().ledger.digest())
        });
        opened.close().await;
        result
    }
}

/// Applies what the log has behind the loaded checkpoint.
fn replay(opened: &Opened, loaded: Loaded) -> Arc<Replica> {
    let Loaded { ledger, position, membership } = loaded;
    let from = position.map_or(0, |at| at.index.0 + 1);
    let replica =
        Arc::new(Replica::new(SHARD, settings(), ledger, position, membership, LogIndex(0)));
    let tail = opened.shard_log().read(from..u64::MAX, usize::MAX).expect("readable");
    for (logged, index) in tail.into_iter().zip(from..) {
        assert_eq!(logged.position.index.0, index, "no gap behind the checkpoint");
        apply(&replica, &crate::raft::entry::from_log(logged).expect("an entry"));
    }
    replica
}

fn digest(replica: &Replica) -> u128 {
    replica.read().ledger.digest()
}

#[test]
fn the_newer_checkpoint_is_loaded_and_the_tail_replayed() {
    run(async {
        let world = World::new();
        let whole = world.history(9, &[3, 6]).await;
        assert_eq!(world.start().await.expect("starts"), (Some(position(1, 6)), digest(&whole)));
    });
}

#[test]
fn with_the_newer_database_damaged_the_older_is_loaded_and_made_current() {
    for damage in [SimDamage::Plain, SimDamage::Hidden, SimDamage::Silent, SimDamage::Deleted] {
        run(async {
            let world = World::new();
            let whole = world.history(9, &[3, 6]).await;
            world.purge(3).await;
            world.pages.damage(Turn::B, damage);
            let started = world.start().await.expect("starts");
            assert_eq!(started, (Some(position(1, 3)), digest(&whole)), "{damage:?}");
            // The newer one never comes back, not by another start either.
            let opened = world.open().await;
            opened.prepare(&options(NODE, PeerBook::default())).await.expect("starts");
            let current = opened.checkpoints.current().expect("one is current");
            assert_eq!(current.1.state.position, Some(position(1, 3)), "{damage:?}");
            opened.close().await;
        });
    }
}

#[test]
fn with_both_databases_damaged_and_nothing_purged_the_whole_log_is_replayed() {
    run(async {
        let world = World::new();
        let whole = world.history(9, &[3, 6]).await;
        world.pages.damage(Turn::A, SimDamage::Hidden);
        world.pages.damage(Turn::B, SimDamage::Silent);
        assert_eq!(world.start().await.expect("starts"), (None, digest(&whole)));
    });
}

#[test]
fn with_both_databases_deleted_and_nothing_purged_the_whole_log_is_replayed() {
    run(async {
        let world = World::new();
        let whole = world.history(9, &[3, 6]).await;
        world.pages.damage(Turn::A, SimDamage::Deleted);
        world.pages.damage(Turn::B, SimDamage::Deleted);
        assert_eq!(world.start().await.expect("starts"), (None, digest(&whole)));
    });
}

#[test]
fn without_a_checkpoint_behind_a_purged_log_and_without_a_member_the_shard_does_not_start() {
    for damage in [SimDamage::Deleted, SimDamage::Hidden] {
        run(async {
            let world = World::new();
            world.history(9, &[3, 6]).await;
            world.purge(3).await;
            world.pages.damage(Turn::A, damage);
            world.pages.damage(Turn::B, damage);
            let error = world.start().await.expect_err("nothing leads to the log's begin");
            assert!(matches!(&error, StartError::NoCheckpoint { .. }), "{error}");
            assert!(error.to_string().contains("start the others first"), "{error}");
            // And nothing was lost by trying.
            let opened = world.open().await;
            let state = opened.shard_log().state();
            assert_eq!((state.purged, state.last), (Some(position(1, 3)), Some(position(1, 9))));
            opened.close().await;
        });
    }
}

#[test]
fn a_checkpoint_that_ends_before_the_log_begins_is_not_loaded() {
    run(async {
        let world = World::new();
        world.history(9, &[3, 6]).await;
        world.purge(6).await;
        world.pages.damage(Turn::B, SimDamage::Deleted);
        let error = world.start().await.expect_err("entries 4 to 6 are nowhere");
        assert!(matches!(error, StartError::NoCheckpoint { .. }), "{error}");
    });
}

#[test]
fn a_checkpoint_at_the_purge_point_keeps_the_tail() {
    run(async {
        let world = World::new();
        let whole = world.history(9, &[3, 6]).await;
        world.purge(6).await;
        assert_eq!(world.start().await.expect("starts"), (Some(position(1, 6)), digest(&whole)));
        let opened = world.open().await;
        assert_eq!(opened.shard_log().state().last, Some(position(1, 9)));
        opened.close().await;
    });
}

/// Leaves a log that has, from entry `from` on, entries of an older leader than the checkpoints.
async fn with_another_tail(world: &World, from: u64, last: u64) {
    let opened = world.open().await;
    let log = opened.shard_log();
    log.truncate_after(Some(LogIndex(from - 1))).await.expect("truncated");
    for index in from..=last {
        let mut other = entry(1, index);
        let leader = LeaderId { term: 1, node: NodeId(0) };
        let at = LogPosition { leader, index: LogIndex(index) };
        other.log_id = crate::raft::entry::log_id_of(at);
        opened.append(&other).await;
    }
    opened.close().await;
}

#[test]
fn a_log_that_conflicts_at_the_checkpoint_is_dropped_and_begins_behind_it() {
    run(async {
        let world = World::new();
        world.history(6, &[3, 6]).await;
        world.purge(3).await;
        with_another_tail(&world, 5, 9).await;
        let (begins, _) = world.start().await.expect("starts");
        assert_eq!(begins, Some(position(1, 6)));
        let opened = world.open().await;
        let state = opened.shard_log().state();
        assert_eq!((state.purged, state.last), (Some(position(1, 6)), Some(position(1, 6))));
        opened.close().await;
    });
}

#[test]
fn a_checkpoint_beyond_the_logs_end_leaves_an_empty_log_behind_it() {
    run(async {
        let world = World::new();
        let whole = world.history(6, &[3, 6]).await;
        let opened = world.open().await;
        opened.shard_log().truncate_after(Some(LogIndex(4))).await.expect("truncated");
        opened.close().await;
        assert_eq!(world.start().await.expect("starts"), (Some(position(1, 6)), digest(&whole)));
        let opened = world.open().await;
        let state = opened.shard_log().state();
        assert_eq!((state.purged, state.last), (Some(position(1, 6)), Some(position(1, 6))));
        // What comes next continues the log.
        opened.append(&entry(2, 7)).await;
        opened.close().await;
    });
}

#[test]
fn a_checkpoint_without_members_is_damaged() {
    run(async {
        let world = World::new();
        let opened = world.open().await;
        let replica = opened.empty_replica();
        let blank = crate::raft::entry::from_log(crate::storage::LogEntry {
            position: position(1, 0),
            payload: bytes::Bytes::from_static(&[0]),
        });
        apply(&replica, &blank.expect("a blank entry"));
        checkpoint(&opened, &replica).await;
        opened.close().await;
        let (begins, _) = world.start().await.expect("nothing was purged");
        assert_eq!(begins, None, "the log is replayed instead");
    });
}

#[test]
fn a_checkpoint_that_cannot_be_read_for_want_of_means_is_not_passed_over() {
    run(async {
        let world = World::new();
        let whole = world.history(9, &[3, 6]).await;
        world.pages.fail_after(2, io::ErrorKind::StorageFull);
        let opened = world.open().await;
        let failed = opened.prepare(&options(NODE, PeerBook::default())).await;
        let error = failed.map(|loaded| loaded.position).expect_err("there is no room");
        assert!(matches!(error, StartError::DiskFull { .. }), "{error}");
        let words = error.to_string();
        assert!(words.contains("the disk is full: free space and start again"), "{words}");
        assert!(!words.contains("replace"), "{words}");
        opened.close().await;
        // With room again the newer one is loaded: nothing was condemned.
        assert_eq!(world.start().await.expect("starts"), (Some(position(1, 6)), digest(&whole)));
    });
}

#[test]
fn a_lost_log_is_not_made_anew_at_a_start() {
    run(async {
        let world = World::new();
        world.history(3, &[]).await;
        for file in world.disk.files() {
            world.disk.lose(&file);
        }
        let disk = world.disk.mount();
        let dir = std::path::Path::new("/n/log");
        let opened = crate::storage::NodeLog::open(disk, dir, [1; 16], Default::default());
        let error = opened.map(drop).expect_err("it is lost");
        assert!(matches!(error, LogError::Lost { .. }), "{error}");
    });
}

#[test]
fn a_start_may_be_killed_between_any_two_steps_and_done_again() {
    run(async {
        let mut kills = 0;
        for at in 0.. {
            // The log conflicts with the newer checkpoint, the newer checkpoint is silently wrong
            // in one half of the cases: all steps but the fetch are taken.
            let world = World::new();
            let whole = world.history(6, &[3, 6]).await;
            world.purge(3).await;
            with_another_tail(&world, 5, 9).await;
            let opened = world.open().await;
            world.disk.power_off_after(at);
            let first = opened.prepare(&options(NODE, PeerBook::default())).await;
            let failed = first.is_err();
            opened.checkpoints.settle().await.expect("the desk is there");
            drop((first, opened));
            world.disk.power_cut(at);
            if failed {
                kills += 1;
            }
            let again = world.start().await.expect("starts again");
            assert_eq!(again, (Some(position(1, 6)), digest(&whole)), "killed at {at}");
            let (once_more, opened) = (world.start().await.expect("starts"), world.open().await);
            assert_eq!(once_more, again, "killed at {at}");
            let state = opened.shard_log().state();
            assert_eq!((state.purged, state.last), (Some(position(1, 6)), Some(position(1, 6))));
            opened.close().await;
            if !failed {
                break;
            }
        }
        assert!(kills >= 2, "the start was killed {kills} times");
    });
}

#[test]
fn a_kill_while_a_damaged_database_is_condemned_loses_nothing() {
    run(async {
        for calls in 0..8 {
            let world = World::new();
            let whole = world.history(9, &[3, 6]).await;
            world.purge(3).await;
            world.pages.damage(Turn::B, SimDamage::Silent);
            let opened = world.open().await;
            world.pages.fail_after(calls, io::ErrorKind::Other);
            drop(opened.prepare(&options(NODE, PeerBook::default())).await);
            opened.close().await;
            world.pages.fail_after(u32::MAX, io::ErrorKind::Other);
            let started = world.start().await.expect("starts again");
            assert_eq!(started, (Some(position(1, 3)), digest(&whole)), "after {calls} calls");
        }
    });
}

#[test]
fn a_database_of_another_cluster_stops_the_start() {
    run(async {
        let world = World::new();
        world.history(3, &[3]).await;
        let store = Arc::new(world.pages.clone());
        let origin = crate::storage::Origin::new([4; 16], &settings(), SHARD);
        let desk = PageDesk::start().expect("a desk");
        let error = Checkpoints::open(store, origin, desk).await.expect_err("it is foreign");
        assert!(matches!(error, CheckpointError::Foreign { .. }), "{error}");
    });
}

#[test]
fn entries_that_were_in_the_log_at_the_start_are_no_base_of_ledger_time() {
    run(async {
        let opened = World::new().open().await;
        let ledger = Ledger::new(SHARD, settings());
        let members = Default::default();
        let replica = Replica::new(SHARD, settings(), ledger, None, members, LogIndex(1));
        for index in 0..=1 {
            apply(&replica, &entry(1, index));
        }
        assert_eq!(replica.read().stamped, None, "how long ago that was stamped nobody knows");
        apply(&replica, &entry(1, 2));
        assert!(replica.read().stamped.is_some());
        opened.close().await;
    });
}

#[cfg(not(feature = "sim"))]
mod with_members {
    use super::*;
    use crate::raft::trial::{Three, apply_on, define, item, until};

    /// Two checkpoints everywhere, and a log that is purged behind the older.
    async fn purged() -> Three {
        let three = Three::start().await;
        let leader = three.led().await;
        for number in 0..4 {
            apply_on(&three.seats[leader].group, &define(item(number), 10)).await;
            three.agreed().await;
            for seat in &three.seats {
                seat.group.checkpoint().await.expect("a checkpoint");
            }
        }
        for seat in &three.seats {
            until("a purge", || seat.group.state().purged.0 > 1).await;
        }
        three
    }

    fn follower(three: &Three, leader: usize) -> usize {
        (0..three.seats.len()).find(|place| *place != leader).expect("there are three")
    }

    #[test]
    fn with_both_databases_gone_and_a_purged_log_a_checkpoint_is_fetched_and_the_node_catches_up() {
        for damage in [SimDamage::Deleted, SimDamage::Silent] {
            run(async {
                let mut three = purged().await;
                let leader = three.led().await;
                let place = follower(&three, leader);
                let meanwhile = async |three: &Three, site: &Site| {
                    let leader = three.led().await;
                    apply_on(&three.seats[leader].group, &define(item(100), 10)).await;
                    site.damage(damage);
                };
                three.restart(place, meanwhile).await;
                three.agreed().await;
                let digests: Vec<u128> =
                    three.seats.iter().map(|seat| digest(seat.group.replica())).collect();
                assert!(digests.iter().all(|one| *one == digests[0]), "{damage:?}");
                assert!(three.seats[place].group.checkpoints().current().is_some());
            });
        }
    }

    #[test]
    fn a_member_makes_the_checkpoint_that_is_asked_for_when_its_own_ends_before_the_log_begins() {
        run(async {
            let mut three = purged().await;
            let leader = three.led().await;
            let place = follower(&three, leader);
            // Only this one keeps and purges what comes now.
            for number in 200..203 {
                apply_on(&three.seats[leader].group, &define(item(number), 10)).await;
                three.agreed().await;
                three.seats[place].group.checkpoint().await.expect("a checkpoint");
            }
            let purged_here = three.seats[place].group.checkpoints().purge_limit();
            let purged_here = purged_here.expect("both are good").index;
            let group = &three.seats[place].group;
            until("a purge", || group.state().purged >= purged_here).await;
            let lose = async |_: &Three, site: &Site| site.damage(SimDamage::Deleted);
            three.restart(place, lose).await;
            three.agreed().await;
        });
    }
}
