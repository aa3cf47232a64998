//! Shards of three nodes on the loopback: what leadership, quorum and the way between nodes do to
//! answers.

// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

use std::sync::Arc;
use std::time::Duration;

use super::ask::Addressed;
use super::desk::{Consistency, Hop, MemberSpec, Outcome, Question, Reply, Request};
use super::forward::ForwardConversation;
use super::opening::{ShardLimits, ShardService, open_shard};
use super::router::Router;
use super::supply::NoTransfers;
use super::thirst::ThirstLimits;
use crate::ledger::{Answer, Command, Found, HoldId, PauseReason, Place, Query, Refusal, ShardId};
use crate::raft::trial::{Three, apply_on, define, item, run, until, uuid};
use crate::runtime;

const LONG: Duration = Duration::from_secs(10);

fn limits() -> ShardLimits {
    ShardLimits {
        pause_after: Duration::from_millis(300),
        entry_bytes_max: 64 << 10,
        entries_in_flight_max: 2,
        queue_max: 1024,
        finish_lane: 256,
        queue_age_max: LONG,
        park_max: 64,
        lease: Duration::from_millis(400),
        heartbeat: Duration::from_millis(50),
    }
}

/// Three nodes with one shard, and an item of so many units.
struct Cluster {
    three: Three,
    shards: Vec<ShardService>,
    routers: Vec<Arc<Router>>,
}

impl Cluster {
    async fn open(total: u64) -> Cluster {
        let three = Three::start().await;
        let members: Vec<MemberSpec> = three
            .book
            .members()
            .into_iter()
            .map(|(node, member)| MemberSpec {
                node,
                log_uuid: super::desk::uuid_hex(&uuid(node)),
                peer_addr: member.peer_addr,
                ..MemberSpec::default()
            })
            .collect();
        let (mut shards, mut routers) = (Vec::new(), Vec::new());
        for (seat, forward) in three.seats.iter().zip(&three.forwards) {
            let shard =
                open_shard(seat.group.clone(), limits(), Arc::new(|| None), Default::default());
            let network = seat.network.clone();
            let services = std::slice::from_ref(&shard);
            let policy = Arc::new(NoTransfers);
            let router = Router::open(
                seat.node,
                services,
                members.clone(),
                network,
                ThirstLimits::trial(),
                policy,
            );
            let answering = Arc::downgrade(&router);
            *forward.lock() = Some(Box::new(move || {
                let router = answering.upgrade().expect("the node is up");
                Box::new(ForwardConversation::new(router))
            }));
            shards.push(shard);
            routers.push(router);
        }
        let cluster = Cluster { three, shards, routers };
        let leader = cluster.leader().await;
        apply_on(&cluster.three.seats[leader].group, &define(item(1), total)).await;
        cluster.three.agreed().await;
        cluster
    }

    /// Waits until a node may grant, and returns its place.
    async fn leader(&self) -> usize {
        let place = || {
            self.shards.iter().position(|shard| {
                let applied = shard.replica().read().applied;
                shard.place.fence.may_answer(applied).is_ok()
            })
        };
        until("a leader that grants", || place().is_some()).await;
        place().expect("just seen")
    }

    async fn ask(&self, at: usize, question: Question, time: Duration) -> Reply {
        self.ask_as(at, question, time, Consistency::Leader).await
    }

    async fn ask_as(
        &self,
        at: usize,
        question: Question,
        time: Duration,
        consistency: Consistency,
    ) -> Reply {
        let deadline = runtime::now() + time;
        let request = Request { question, deadline, consistency, hop: Hop::Forward };
        let answer = Arc::clone(&self.routers[at]).answer(request);
        runtime::timeout(time + LONG, answer).await.expect("an answer by its deadline")
    }
}

fn place(key: &str) -> Question {
    Question::from(Command::Place(Place {
        name: item(1),
        region: None,
        buyer: None,
        key: key.to_owned(),
        quantity: 1,
        ttl_ms: None,
        reference: None,
    }))
}

fn availability() -> Question {
    Question::Query { query: Query::Availability(item(1)), shard: None }
}

fn held(reply: Reply) -> HoldId {
    match reply.outcome {
        Outcome::Answered(Answer::Placed(placed)) => placed.id,
        Outcome::Answered(Answer::Hold { hold, .. }) => hold.id,
        other => panic!("no hold: {other:?}"),
    }
}

fn available(reply: Reply) -> u64 {
    match reply.outcome {
        Outcome::Found(Found::Availability(stock)) => stock.buckets[0].available,
        other => panic!("no stock: {other:?}"),
    }
}

#[test]
fn a_question_goes_to_the_leader_in_one_hop_and_a_read_index_shows_its_effect() {
    run(async {
        let cluster = Cluster::open(5).await;
        let leader = cluster.leader().await;
        let other = (leader + 1) % 3;
        let hold = held(cluster.ask(other, place("k"), LONG).await);
        assert_eq!(cluster.shards[other].place.meter.traffic().forwarded, 1);
        assert_eq!(held(cluster.ask(leader, place("k"), LONG).await), hold);
        for at in 0..3 {
            let linearizable = Consistency::Linearizable;
            let read = cluster.ask_as(at, availability(), LONG, linearizable).await;
            assert_eq!(available(read), 4, "asked at {at}");
        }
    });
}

#[test]
fn a_transferred_leadership_answers_nothing_and_its_questions_move_on() {
    run(async {
        let cluster = Cluster::open(1).await;
        let old = cluster.leader().await;
        let hold = held(cluster.ask(old, place("k"), LONG).await);
        let own = cluster.three.seats[old].node;
        let applied = cluster.shards[old].replica().read().applied;
        cluster.shards[old].hand_over(own, None).await.expect("somebody has caught up");
        let fence = &cluster.shards[old].place.fence;
        assert_eq!(fence.may_answer(applied), Err(PauseReason::Moving));
        let new = cluster.leader().await;
        assert_ne!(new, old);
        until("news of the leader", || {
            let place = &cluster.shards[old].place;
            let leader = place.group.leader() == Some(cluster.three.seats[new].node);
            leader && !place.fence.leader_is_silent()
        })
        .await;
        // Through the old one: the receipt and the refusal are the new leader's.
        assert_eq!(held(cluster.ask(old, place("k"), LONG).await), hold);
        let refused = cluster.ask(old, place("other"), LONG).await;
        let commit = refused.commit.expect("it rests on a shard's state");
        assert_eq!(commit.leader.node, cluster.three.seats[new].node);
        let sold_out =
            matches!(refused.outcome, Outcome::Answered(Answer::Refused(Refusal::SoldOut { .. })));
        assert!(sold_out, "{refused:?}");
    });
}

#[test]
fn many_questions_of_a_leadership_that_is_moving_go_to_the_next_leader() {
    run(async {
        let cluster = Cluster::open(5).await;
        let old = cluster.leader().await;
        let own = cluster.three.seats[old].node;
        let keys = ["a", "b", "c"];
        let requests = || {
            let deadline = runtime::now() + LONG;
            let request = |key: &&str| Request {
                question: place(key),
                deadline,
                consistency: Consistency::Leader,
                hop: Hop::Forward,
            };
            keys.iter().map(request).collect::<Vec<_>>()
        };
        let first = Arc::clone(&cluster.routers[old]).answer_all(requests()).await;
        cluster.shards[old].hand_over(own, None).await.expect("somebody has caught up");
        let new = cluster.leader().await;
        assert_ne!(new, old);
        until("news of the leader", || {
            let place = &cluster.shards[old].place;
            let leader = place.group.leader() == Some(cluster.three.seats[new].node);
            leader && !place.fence.leader_is_silent()
        })
        .await;
        let second = Arc::clone(&cluster.routers[old]).answer_all(requests()).await;
        let holds = |replies: Vec<Reply>| replies.into_iter().map(held).collect::<Vec<_>>();
        assert_eq!(holds(first), holds(second));
    });
}

#[test]
fn without_its_quorum_a_shard_says_so_at_once_and_what_was_proposed_is_unknown_at_its_deadline() {
    run(async {
        let mut cluster = Cluster::open(5).await;
        let leader = cluster.leader().await;
        let hold = held(cluster.ask(leader, place("before"), LONG).await);
        let last = cluster.three.seats.split_off(leader + 1);
        let first = cluster.three.seats.drain(..leader).collect::<Vec<_>>();
        for seat in first.into_iter().chain(last) {
            seat.stop().await;
        }
        let shard = &cluster.shards[leader];
        let begun = runtime::now();
        // Proposed while the quorum seems fresh, or refused at once: never left hanging.
        let time = Duration::from_millis(600);
        let proposed = cluster.ask(leader, place("proposed"), time).await;
        assert!(runtime::now() - begun < time + Duration::from_millis(400));
        let known = matches!(
            proposed.outcome,
            Outcome::Unknown | Outcome::Paused(PauseReason::QuorumLost | PauseReason::Moving)
        );
        assert!(known, "{proposed:?}");
        until("a stale quorum", || {
            shard.place.fence.leadership().is_none() || shard.place.fence.is_stale()
        })
        .await;
        for question in [place("before"), place("new"), availability()] {
            let asked_at = runtime::now();
            let reply = cluster.ask(leader, question, LONG).await;
            let paused = matches!(reply.outcome, Outcome::Paused(_));
            assert!(paused, "{reply:?}");
            assert!(runtime::now() - asked_at < LONG / 2, "at once");
        }
        let linearizable = Consistency::Linearizable;
        let short = Duration::from_millis(300);
        let read = cluster.ask_as(leader, availability(), short, linearizable).await;
        assert!(matches!(read.outcome, Outcome::Paused(_)), "{read:?}");
        // Stale reads still work.
        let stale = cluster.ask_as(leader, availability(), LONG, Consistency::Local).await;
        assert_eq!(available(stale), 4);
        let query = Query::Hold { id: hold, tenant: "t".to_owned() };
        let query = Question::Query { query, shard: None };
        let stale = cluster.ask_as(leader, query, LONG, Consistency::Local).await;
        assert!(matches!(stale.outcome, Outcome::Found(Found::Hold(_))));
    });
}

#[test]
fn a_retry_of_a_key_that_is_in_flight_without_a_quorum_waits_for_it_and_is_unknown_too() {
    run(async {
        let mut cluster = Cluster::open(1).await;
        let leader = cluster.leader().await;
        let last = cluster.three.seats.split_off(leader + 1);
        let first = cluster.three.seats.drain(..leader).collect::<Vec<_>>();
        for seat in first.into_iter().chain(last) {
            // Not in order: the leader learns nothing of it.
            drop(seat);
        }
        let short = Duration::from_millis(150);
        let proposed = cluster.ask(leader, place("k"), short).await;
        if proposed.outcome != Outcome::Unknown {
            assert!(matches!(proposed.outcome, Outcome::Paused(_)), "{proposed:?}");
            return;
        }
        let in_flight = cluster.shards[leader].place.meter.traffic().in_flight;
        assert_eq!(in_flight, 1, "a deadline does not decide");
        let retry = cluster.ask(leader, place("k"), short).await;
        assert_eq!(retry.outcome, Outcome::Unknown, "it joined the first");
    });
}

#[test]
fn a_router_that_goes_takes_the_homes_of_all_threads_with_it() {
    run(async {
        let mut cluster = Cluster::open(1).await;
        let leader = cluster.leader().await;
        held(cluster.ask(leader, place("k"), LONG).await);
        let router = cluster.routers.remove(leader);
        let home = Arc::downgrade(&router.home());
        assert!(Arc::ptr_eq(&home.upgrade().expect("open"), &router.home()), "one a thread");
        drop(router);
        until("its end", || home.upgrade().is_none()).await;
    });
}

#[test]
fn a_thread_whose_runtime_ended_gets_a_home_that_is_heard() {
    let alone = run(async {
        let cluster = Cluster::open(1).await;
        let router = Arc::clone(&cluster.routers[0]);
        router.home();
        router
    });
    assert!(alone.home_is_gone());
    run(async {
        let command = Question::from(Command::Advance);
        let consistency = Consistency::Leader;
        let asked = Addressed { shard: ShardId(0), question: command, consistency };
        let sent = alone.home().send(vec![asked], runtime::now() + LONG).expect("a slot");
        // The shard's own runtime has ended too, so that is all there is to say.
        let replies =
            runtime::timeout(LONG, sent.answers).await.expect("in time").expect("an answer");
        assert_eq!(replies[0].outcome, Outcome::Paused(PauseReason::Restoring));
    });
}
