//! The quorum: what may be granted and answered under which leadership, and how fresh it must be.

use super::*;
use crate::ledger::NodeId;
use crate::raft::trial::network;
use crate::shard::desk::{Hop, Request};
use crate::shard::router::Router;
use crate::shard::supply::NoTransfers;
use crate::shard::thirst::ThirstLimits;

#[test]
fn without_a_fresh_quorum_what_is_queued_is_paused_at_once_and_nothing_is_taken() {
    run(async {
        let mut bench = Bench::open(limits(), 1).await;
        let first = bench.take(place("a", 1)).await;
        let joined = bench.take(place("a", 1)).await;
        let parked = bench.take(place("b", 1)).await;
        bench.service.bar(Bar::Node, Some(PauseReason::QuorumLost));
        bench.work().await;
        for answers in [first, joined, parked] {
            assert_eq!(one(answers).await, Outcome::Paused(PauseReason::QuorumLost));
        }
        let new = bench.take(place("c", 1)).await;
        assert_eq!(one(new).await, Outcome::Paused(PauseReason::QuorumLost), "at once");
        assert!(bench.is_idle());
        let paused = bench.service.place.meter.traffic().paused;
        assert_eq!(paused, 4);
    });
}

#[test]
fn a_quorum_older_than_pause_after_grants_nothing_and_lets_no_answer_out() {
    run(async {
        let none = ShardLimits { pause_after: Duration::ZERO, ..limits() };
        let bench = Bench::open(none, 1).await;
        let fence = &bench.service.place.fence;
        let applied = bench.alone.group.replica().read().applied;
        // A voter alone is acknowledged now, and each look after it is later.
        until("a stale quorum", || fence.is_stale()).await;
        until("no grant", || fence.may_propose() == Err(PauseReason::QuorumLost)).await;
        until("no answer", || fence.may_answer(applied) == Err(PauseReason::QuorumLost)).await;
    });
}

#[test]
fn memory_answers_nothing_before_an_entry_of_this_leadership_is_applied() {
    run(async {
        let bench = Bench::open(limits(), 1).await;
        let fence = &bench.service.place.fence;
        let applied = bench.alone.group.replica().read().applied.expect("applied");
        assert!(fence.may_answer(Some(applied)).is_ok());
        let older = LogPosition {
            leader: LeaderId { term: applied.leader.term, node: crate::ledger::NodeId(0) },
            ..applied
        };
        assert_eq!(fence.may_answer(Some(older)), Err(PauseReason::Restoring), "the same term");
        assert_eq!(fence.may_answer(None), Err(PauseReason::Restoring));
    });
}

#[test]
fn a_leadership_marked_for_transfer_answers_nothing_and_proposes_nothing() {
    run(async {
        let mut bench = Bench::open(limits(), 3).await;
        let placed = bench.take(place("k", 1)).await;
        bench.commit().await;
        held(one(placed).await);
        let queued = bench.take(place("waits", 1)).await;
        let closed = bench.service.place.fence.close().expect("it leads");
        for command in [place("k", 1), place("other", 1)] {
            let answers = bench.take(command).await;
            assert_eq!(one(answers).await, Outcome::Paused(PauseReason::Moving));
        }
        assert!(bench.writer.gather().is_none(), "what is queued is not proposed");
        bench.work().await;
        assert_eq!(one(queued).await, Outcome::Paused(PauseReason::Moving), "nothing was taken");
        bench.service.place.fence.reopen(closed);
        let fence = &bench.service.place.fence;
        until("a later acknowledgement", || fence.may_propose().is_ok()).await;
        let again = bench.take(place("k", 1)).await;
        assert!(held(one(again).await).1);
    });
}

#[test]
fn a_voter_alone_is_its_own_fresh_quorum() {
    run(async {
        let bench = Bench::open(limits(), 1).await;
        let begun = runtime::now();
        let group = &bench.alone.group;
        until("a second", || runtime::now() - begun > Duration::from_millis(500)).await;
        let acked = group.leadership().and_then(|leadership| leadership.acked);
        assert!(acked.is_some_and(|acked| acked > begun));
    });
}

/// Nobody drives the writer here, as if the shard's thread were stuck.
#[test]
fn what_waits_for_a_shard_that_is_stuck_and_without_a_quorum_is_told_so_by_the_watchdog() {
    run(async {
        let none = ShardLimits { pause_after: Duration::ZERO, ..limits() };
        let bench = Bench::open(none, 1).await;
        let shards = [bench.service.clone()];
        let network = network(NodeId(1));
        let (limits, policy) = (ThirstLimits::trial(), Arc::new(NoTransfers));
        let router = Router::open(NodeId(1), &shards, Vec::new(), network, limits, policy);
        let deadline = runtime::now() + LONG;
        let (question, consistency) = (Question::from(place("k", 1)), Consistency::Leader);
        let request = Request { question, deadline, consistency, hop: Hop::Forward };
        let told = runtime::timeout(LONG / 2, router.answer(request)).await;
        let told = told.expect("long before its deadline").outcome;
        assert_eq!(told, Outcome::Paused(PauseReason::QuorumLost));
    });
}
