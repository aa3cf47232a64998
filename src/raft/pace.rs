//! The pace at which members are brought up to date.
//!
//! Reading, sending and writing a checkpoint, or a learner's way through the log, take from the
//! machine what buyers need of it, and nobody waits for them as buyers do. So the sender rests
//! between its messages while its node is busy, in lengths of what the message took: that gives
//! them a share of a busy machine, whatever that machine can do. A node with nothing to do makes no
//! rests, and a voter that is behind is sent the log without any: a quorum may need it.
//!
//! What takes longer must not miss its goal: the log behind a checkpoint on its way to a member is
//! not purged, and a learner's sender rests only as often as it comes nearer to the end of the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::replica::Replica;
use crate::ledger::LogIndex;
use crate::runtime::{self, Instant};
use crate::storage::ShardLog;

/// The length of a rest, in lengths of what the message before it took.
const RESTS: u32 = 6;
/// The longest rest: well below what a receiver waits for the next message.
const REST_MAX: Duration = Duration::from_secs(1);

/// A node that writes a frame of its log less often than this is not busy.
const FRAME_EVERY: Duration = Duration::from_millis(20);

/// What the senders of one shard share. Clones are the same.
#[derive(Clone)]
pub(super) struct Pace {
    replica: Arc<Replica>,
    log: ShardLog,
    /// The checkpoints on their way, by the node that they go to.
    under_way: Arc<Mutex<BTreeMap<u64, LogIndex>>>,
}

/// A message that is being prepared, sent and answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stride {
    began: Instant,
    /// Frames in the node's log when it began.
    frames: u64,
}

/// Keeps the log behind a checkpoint that is on its way, until it is dropped.
#[derive(Debug)]
pub(super) struct Kept {
    under_way: Arc<Mutex<BTreeMap<u64, LogIndex>>>,
    target: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.under_way.lock().remove(&self.target);
    }
}

impl Pace {
    pub(super) fn new(replica: Arc<Replica>, log: ShardLog) -> Pace {
        Pace { replica, log, under_way: Arc::default() }
    }

    /// Begins a message.
    pub(super) fn begin(&self) -> Stride {
        Stride { began: runtime::now(), frames: self.log.frames_of_node() }
    }

    /// Returns how long to rest after a message that has been answered: not at all when the node
    /// had hardly anything else to do meanwhile.
    pub(super) fn rest_after(&self, stride: Stride) -> Duration {
        let frames = self.log.frames_of_node().saturating_sub(stride.frames);
        rest(runtime::now() - stride.began, frames)
    }

    /// Tells whether this node follows without a vote.
    pub(super) fn is_learner(&self, target: u64) -> bool {
        let stored = self.replica.membership();
        !stored.membership().voter_ids().any(|voter| voter == target)
    }

    /// Keeps the log behind `index`, where a checkpoint ends that is sent to `target`.
    pub(super) fn keep(&self, target: u64, index: LogIndex) -> Kept {
        self.under_way.lock().insert(target, index);
        Kept { under_way: Arc::clone(&self.under_way), target }
    }

    /// Returns the lowest index behind which the log is needed by a member that is sent a
    /// checkpoint now.
    pub(super) fn kept_from(&self) -> Option<LogIndex> {
        self.under_way.lock().values().min().copied()
    }

    /// Gives that log up: the disk has no room for it. The members will need another checkpoint.
    pub(super) fn give_up(&self) {
        self.under_way.lock().clear();
    }
}

fn rest(took: Duration, frames: u64) -> Duration {
    let idle = took.as_millis() / FRAME_EVERY.as_millis();
    if u128::from(frames) <= idle.max(1) { Duration::ZERO } else { (took * RESTS).min(REST_MAX) }
}

/// Rests of one stream of appends: as many as bring it nearer to the end of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Approach {
    nearest: u64,
}

impl Default for Approach {
    fn default() -> Approach {
        Approach { nearest: u64::MAX }
    }
}

impl Approach {
    /// Takes note of how many entries are missing; true when it has never been so near.
    pub(super) fn comes_nearer(&mut self, missing: u64) -> bool {
        let nearer = missing < self.nearest;
        self.nearest = self.nearest.min(missing);
        nearer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{NodeId, ShardId};
    use crate::raft::trial::{Alone, Site, define, entry, item, run, until};
    use crate::storage::SimDisk;
    use crate::storage::pages::SimPages;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_sender_rests_in_lengths_of_its_message_while_its_node_is_busy() {
        assert_eq!(rest(ms(30), 0), Duration::ZERO);
        assert_eq!(rest(ms(30), 1), Duration::ZERO, "a frame now and then is no sale");
        assert_eq!(rest(ms(30), 9), ms(180));
        assert_eq!(rest(ms(2_000), 99), Duration::ZERO);
        assert_eq!(rest(ms(2_000), 900), REST_MAX);
    }

    #[test]
    fn frames_of_any_shard_of_the_node_are_what_makes_it_busy() {
        run(async {
            let site = Site::simulated(NodeId(1), &SimDisk::new(), &SimPages::new(3));
            let opened = site.open().await.expect("the site opens");
            let pace = Pace::new(opened.empty_replica(), opened.log.shard(ShardId(77)));
            let stride = pace.begin();
            assert_eq!(pace.rest_after(stride), Duration::ZERO);
            for index in 0..=5 {
                opened.append(&entry(1, index)).await;
            }
            assert!(pace.log.frames_of_node() >= stride.frames + 6);
            opened.close().await;
        });
    }

    #[test]
    fn the_log_behind_the_oldest_checkpoint_on_its_way_is_kept_until_it_has_arrived() {
        run(async {
            let site = Site::simulated(NodeId(1), &SimDisk::new(), &SimPages::new(3));
            let opened = site.open().await.expect("the site opens");
            let pace = Pace::new(opened.empty_replica(), opened.log.shard(ShardId(77)));
            assert_eq!(pace.kept_from(), None);
            let older = pace.keep(4, LogIndex(7));
            let newer = pace.keep(5, LogIndex(9));
            assert_eq!(pace.kept_from(), Some(LogIndex(7)));
            drop(older);
            assert_eq!(pace.kept_from(), Some(LogIndex(9)));
            pace.give_up();
            assert_eq!(pace.kept_from(), None, "the disk is full");
            drop(newer);
            opened.close().await;
        });
    }

    #[test]
    fn a_group_purges_no_further_than_a_checkpoint_on_its_way_unless_the_disk_is_full() {
        run(async {
            let alone = Alone::start().await;
            let add = async |number: u64| {
                alone.apply(&[define(item(number), 10)]).await;
                alone.group.checkpoint().await.expect("a checkpoint").index
            };
            let (sent, _) = (add(1).await, add(2).await);
            let kept = alone.group.pace.keep(4, sent);
            for number in 3..6 {
                add(number).await;
            }
            let purged = || alone.group.state().purged;
            until("a purge", || purged() >= sent).await;
            // Whatever was asked of the core before this entry is done when it is applied.
            alone.apply(&[define(item(6), 10)]).await;
            assert_eq!(purged(), sent, "its receiver needs what follows");
            alone.group.checkpoint_to_make_room().await.expect("a checkpoint");
            until("a purge that makes room", || purged() > sent).await;
            drop(kept);
        });
    }

    #[test]
    fn a_learner_s_sender_rests_only_when_it_has_come_nearer_than_ever() {
        let mut approach = Approach::default();
        let rests = [900, 700, 750, 700, 699, 0, 1].map(|missing| approach.comes_nearer(missing));
        assert_eq!(rests, [true, true, false, false, true, true, false]);
    }
}
