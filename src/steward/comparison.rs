//! Comparing replicas, one task for each shard on each node.
//!
//! The leader has an entry name an index (it asks for time to advance: that is a mark, and gives
//! every replica a fresh base of ledger time), collects the voters' digests at that index, and
//! judges. A replica that differs from a majority is told so; it asks the others itself, and if
//! they agree that it is wrong it stops answering, drops memory and pages, and is built anew. A
//! leader that is wrong hands over first. Without a majority nobody knows who is right: the shard
//! pauses and a human is called.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::StewardRules;
use crate::ledger::{Command, LeaderId, LogIndex, NodeId, PauseReason};
use crate::planted::{Fault, planted};
use crate::raft::Accusation;
use crate::runtime::{self, Instant};
use crate::shard::{Bar, Reply, Router, ShardService};

/// How often the task looks whether there is something to do.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long an entry may take that names an index.
const MARK_MAX: Duration = Duration::from_secs(2);
/// How long the others may take to get there.
const COLLECT_MAX: Duration = Duration::from_secs(2);
/// How long a failed attempt to build a replica anew rests.
const REBUILD_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What the digests of the voters at one index say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A majority is alike, and nobody who answered differs.
    Alike,
    /// Nobody differs, and too few answered.
    TooFew,
    /// A majority has this digest; these differ.
    Differ {
        /// What the majority has.
        digest: u128,
        /// Who differs.
        wrong: BTreeSet<NodeId>,
    },
    /// There are different ones and no majority: nobody knows who is right.
    NoMajority,
}

/// Judges the digests of a group of `voters` at one index.
pub(super) fn judge(voters: usize, told: &BTreeMap<NodeId, u128>) -> Verdict {
    if planted(Fault::DigestsAlike) {
        return Verdict::Alike;
    }
    let majority = if planted(Fault::MinorityRules) { voters / 2 } else { voters / 2 + 1 };
    let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
    for digest in told.values() {
        *counts.entry(*digest).or_default() += 1;
    }
    let most = counts.iter().find(|(_, count)| **count >= majority).map(|(digest, _)| *digest);
    match most {
        Some(_) if counts.len() == 1 => Verdict::Alike,
        Some(digest) => {
            let differ = told.iter().filter(|(_, other)| **other != digest);
            Verdict::Differ { digest, wrong: differ.map(|(node, _)| *node).collect() }
        }
        None if counts.len() <= 1 => Verdict::TooFew,
        None => Verdict::NoMajority,
    }
}

/// One shard's comparison on one node.
pub struct Comparison {
    shard: ShardService,
    router: Arc<Router>,
    rules: StewardRules,
    stop: watch::Receiver<bool>,
    /// The leadership that made the last mark, and when.
    marked: Option<(LeaderId, Instant)>,
    /// Commands applied right after the last mark.
    commands: u64,
    /// The index of the last comparison that ended without a majority: this node is barred for it.
    undecided: Option<LogIndex>,
}

impl Comparison {
    /// Makes the task; [`Comparison::run`] must be called on the shard's runtime.
    pub fn new(
        shard: ShardService,
        router: Arc<Router>,
        rules: StewardRules,
        stop: watch::Receiver<bool>,
    ) -> Comparison {
        Comparison { shard, router, rules, stop, marked: None, commands: 0, undecided: None }
    }

    /// Compares until the node stops.
    pub async fn run(mut self) {
        while !*self.stop.borrow() {
            if let Some(accusation) = self.shard.replica().take_accusation() {
                self.look_into(accusation).await;
            }
            if let Some(index) = self.next_index().await {
                self.compare(index).await;
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    /// Has an entry name an index when a comparison is due; without a majority the last index is
    /// asked about again.
    async fn next_index(&mut self) -> Option<LogIndex> {
        let leader = self.shard.group().leadership()?.id;
        let is_due = self
            .marked
            .is_none_or(|(by, at)| by != leader || runtime::now() - at >= self.rules.compare_every);
        if !is_due {
            return None;
        }
        if let Some(index) = self.undecided {
            self.marked = Some((leader, runtime::now()));
            return Some(index);
        }
        if !self.shard.leads() || !self.has_changed(leader) {
            return None;
        }
        let deadline = runtime::now() + MARK_MAX;
        let reply = self.router.command_on(self.shard.shard(), Command::Advance, deadline).await;
        let Reply { commit: Some(at), .. } = reply else { return None };
        self.marked = Some((leader, runtime::now()));
        self.commands = self.shard.replica().volume().0;
        Some(at.index)
    }

    /// Tells whether there is something to compare, or a deadline that followers must know the time
    /// for.
    fn has_changed(&self, leader: LeaderId) -> bool {
        let is_new = self.marked.is_none_or(|(by, _)| by != leader);
        let replica = self.shard.replica();
        is_new || replica.volume().0 != self.commands || replica.read().ledger.next_due().is_some()
    }

    async fn compare(&mut self, index: LogIndex) {
        let group = self.shard.group().clone();
        let told = group.digests_at(index, runtime::now() + COLLECT_MAX).await;
        let voters = group.state().voters.len();
        match judge(voters, &told) {
            Verdict::TooFew => {}
            Verdict::Alike => self.note_alike(index),
            Verdict::Differ { digest, wrong } => {
                self.lift();
                for node in wrong {
                    self.accuse(node, Accusation { index, digest }).await;
                }
            }
            Verdict::NoMajority => self.pause(index, &told),
        }
    }

    fn note_alike(&mut self, index: LogIndex) {
        self.lift();
        self.shard.note_digests(|digests| {
            digests.compared += 1;
            digests.compared_at = index;
        });
    }

    /// Lifts the bar that stands for a comparison without a majority.
    fn lift(&mut self) {
        if self.undecided.take().is_some() {
            tracing::warn!(shard = %self.shard.shard(), "a majority of the replicas agrees again");
            self.shard.bar(Bar::Digest, None);
            self.shard.note_digests(|digests| digests.trouble = None);
        }
    }

    fn pause(&mut self, index: LogIndex, told: &BTreeMap<NodeId, u128>) {
        if self.undecided.replace(index) == Some(index) {
            return;
        }
        let digests: Vec<String> =
            told.iter().map(|(node, digest)| format!("node {node}: {digest:032x}")).collect();
        let words = format!(
            "the replicas differ at index {index} and no majority agrees ({}): the shard is paused \
             until a human decides which one is right",
            digests.join(", ")
        );
        tracing::error!(shard = %self.shard.shard(), "{words}");
        self.shard.bar(Bar::Digest, Some(PauseReason::Invariant));
        self.shard.note_digests(|digests| {
            digests.mismatches += 1;
            digests.trouble = Some(words);
        });
    }

    async fn accuse(&mut self, node: NodeId, accusation: Accusation) {
        let index = accusation.index;
        let shard = self.shard.shard();
        tracing::error!(%shard, %node, %index, "a replica differs from a majority");
        self.shard.note_digests(|digests| digests.mismatches += 1);
        let deadline = runtime::now() + COLLECT_MAX;
        if let Err(why) = self.shard.group().accuse(node, accusation, deadline).await {
            tracing::warn!(shard = %self.shard.shard(), %node, %why, "it could not be told");
        }
    }

    /// Asks the others itself whether this replica is wrong, and builds it anew if it is.
    async fn look_into(&mut self, accusation: Accusation) {
        let Accusation { index, .. } = accusation;
        let group = self.shard.group().clone();
        let told = group.digests_at(index, runtime::now() + COLLECT_MAX).await;
        match judge(group.state().voters.len(), &told) {
            Verdict::Differ { digest, wrong } if wrong.contains(&self.rules.own) => {
                let right = told.into_iter().filter(|(_, other)| *other == digest);
                let right: BTreeSet<NodeId> = right.map(|(node, _)| node).collect();
                self.heal(index, digest, &right).await;
            }
            Verdict::Differ { .. } | Verdict::Alike | Verdict::TooFew | Verdict::NoMajority => {
                let shard = self.shard.shard();
                tracing::info!(%shard, %index, "this replica is not known to differ");
            }
        }
    }

    async fn heal(&mut self, index: LogIndex, digest: u128, right: &BTreeSet<NodeId>) {
        let shard = self.shard.shard();
        let words =
            format!("this replica differs from a majority at index {index}: it is built anew");
        tracing::error!(%shard, "{words}");
        // From here on nothing is answered, though leadership may still be here.
        self.shard.bar(Bar::Digest, Some(PauseReason::Restoring));
        self.shard.note_digests(|digests| {
            digests.mismatches += 1;
            digests.trouble = Some(words);
        });
        self.shard.stand(Bar::Digest, false);
        let group = self.shard.group().clone();
        while !*self.stop.borrow() {
            if let Err(why) = self.shard.hand_over(self.rules.own, None).await {
                tracing::warn!(%shard, %why, "a wrong leader could not hand over yet");
            }
            match group.rebuild(right).await {
                Ok(()) if self.is_right(index, digest) => break,
                Ok(()) => tracing::error!(
                    %shard, %index,
                    "built anew from checkpoint and log, this replica still differs: the ledger is \
                     not deterministic, call a human"
                ),
                Err(error) => {
                    tracing::error!(%shard, %error, "the replica could not be built anew")
                }
            }
            runtime::sleep(REBUILD_AGAIN_AFTER).await;
        }
        if *self.stop.borrow() {
            return;
        }
        tracing::warn!(%shard, "the replica was built anew");
        self.shard.note_digests(|digests| {
            digests.rebuilt += 1;
            digests.trouble = None;
        });
        self.shard.bar(Bar::Digest, None);
        self.shard.stand(Bar::Digest, true);
    }

    /// Tells whether the replica that was built anew has the majority's digest, if it still knows
    /// the one at that index. It does not when the checkpoint it began with was made behind it;
    /// then the next comparison decides.
    fn is_right(&self, index: LogIndex, digest: u128) -> bool {
        self.shard.replica().read().digest_at(index).is_none_or(|own| own == digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(digests: &[u128]) -> BTreeMap<NodeId, u128> {
        digests.iter().zip(1..).map(|(digest, node)| (NodeId(node), *digest)).collect()
    }

    #[test]
    fn a_replica_that_differs_from_a_majority_is_named_and_never_the_majority() {
        let nodes = |nodes: &[u64]| nodes.iter().map(|node| NodeId(*node)).collect();
        for (voters, digests, expected) in [
            (1, vec![7], Verdict::Alike),
            (3, vec![7, 7, 7], Verdict::Alike),
            (3, vec![7, 7], Verdict::Alike),
            (3, vec![7], Verdict::TooFew),
            (3, vec![], Verdict::TooFew),
            (5, vec![7, 7], Verdict::TooFew),
            (3, vec![7, 8, 7], Verdict::Differ { digest: 7, wrong: nodes(&[2]) }),
            (5, vec![9, 8, 7, 7, 7], Verdict::Differ { digest: 7, wrong: nodes(&[1, 2]) }),
            (3, vec![7, 8], Verdict::NoMajority),
            (3, vec![7, 8, 9], Verdict::NoMajority),
            (2, vec![7, 8], Verdict::NoMajority),
            (5, vec![7, 7, 8, 8], Verdict::NoMajority),
        ] {
            assert_eq!(judge(voters, &told(&digests)), expected, "{voters} voters, {digests:?}");
        }
    }
}
