//! The path of a reservation through gate and batcher, step by step: the group is real, the writer
//! is driven by hand, so that every interleaving is a line of a test.

// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

use tokio::sync::oneshot;

use super::*;
use crate::ledger::{
    Adjust, Answer, Change, Command, Found, HoldId, KeyScope, Place as PlaceCommand, Query,
    Receipt, Refusal, Release, SetMode,
};
use crate::raft::trial::{Alone, SHARD, define, item, run, until};
use crate::shard::ask::Addressed;
use crate::shard::desk::{Consistency, Question, Reply};
use crate::shard::fence::Bar;
use crate::shard::home::Home;
use crate::shard::opening::{ShardLimits, ShardService, assemble};
use crate::storage::LogPosition;

const LONG: Duration = Duration::from_secs(60);

fn limits() -> ShardLimits {
    ShardLimits {
        pause_after: LONG,
        entry_bytes_max: 64 << 10,
        entries_in_flight_max: 2,
        queue_max: 64,
        finish_lane: 16,
        queue_age_max: LONG,
        park_max: 8,
        lease: Duration::from_millis(400),
        heartbeat: Duration::from_millis(50),
    }
}

type Answers = oneshot::Receiver<Vec<Reply>>;

/// A shard whose writer and whose home take their steps when a test says so.
struct Bench {
    alone: Alone,
    service: ShardService,
    writer: Writer,
    deliveries: mpsc::Receiver<Delivery>,
    proposals: FuturesUnordered<Decision>,
    home: Arc<Home>,
}

impl Bench {
    /// Opens a shard with one item of so many units.
    async fn open(limits: ShardLimits, total: u64) -> Bench {
        let alone = Alone::start().await;
        alone.apply(&[define(item(1), total)]).await;
        let (service, writer, deliveries) =
            assemble(alone.group.clone(), limits, Arc::new(|| None), Default::default());
        let home = Home::open(vec![service.place.door.clone()], Arc::new(|_| false));
        let proposals = FuturesUnordered::new();
        Bench { alone, service, writer, deliveries, proposals, home }
    }

    fn send(&self, questions: Vec<Question>, time: Duration) -> Answers {
        let addressed =
            |question| Addressed { shard: SHARD, question, consistency: Consistency::Leader };
        let questions = questions.into_iter().map(addressed).collect();
        self.home.send(questions, runtime::now() + time).expect("a slot").answers
    }

    /// Sends a command and lets the gate judge it.
    async fn take(&mut self, command: Command) -> Answers {
        self.take_for(command, LONG).await
    }

    async fn take_for(&mut self, command: Command, time: Duration) -> Answers {
        let answers = self.send(vec![Question::from(command)], time);
        self.deliver().await;
        answers
    }

    async fn deliver(&mut self) {
        let delivery = runtime::timeout(LONG, self.deliveries.recv()).await.expect("in time");
        self.writer.receive(delivery.expect("the home is there"));
        self.writer.gate.out.flush();
    }

    /// Gathers an entry and keeps it from Raft.
    fn gather(&mut self) -> Gathered {
        self.writer.gather().expect("something is queued")
    }

    async fn work(&mut self) {
        self.writer.work(&mut self.proposals).await;
    }

    /// Proposes what is queued, for real, and takes in what became of it.
    async fn commit(&mut self) {
        self.work().await;
        while !self.proposals.is_empty() {
            let next = runtime::timeout(LONG, self.proposals.next()).await.expect("in time");
            let (ticket, result) = next.expect("one is under way");
            self.writer.decided(ticket, result);
            self.work().await;
        }
    }

    /// Makes it so that every entry in flight is of an older leadership than what is applied.
    fn pass_leadership(&mut self) {
        for entry in &mut self.writer.flying {
            entry.leader.term = 0;
        }
    }

    fn queued(&self) -> u64 {
        self.service.place.meter.traffic().queued
    }

    fn is_idle(&self) -> bool {
        let gate = &self.writer.gate;
        gate.flights.len() == 0 && gate.parked.is_empty() && self.queued() == 0
    }
}

async fn one(answers: Answers) -> Outcome {
    let replies = runtime::timeout(Duration::from_secs(10), answers).await.expect("in time");
    let mut replies = replies.expect("the home answers");
    assert_eq!(replies.len(), 1);
    replies.pop().expect("one reply").outcome
}

fn place_of(key: &str, quantity: u64) -> PlaceCommand {
    PlaceCommand {
        name: item(1),
        region: None,
        buyer: None,
        key: key.to_owned(),
        quantity,
        ttl_ms: None,
        reference: None,
    }
}

fn place(key: &str, quantity: u64) -> Command {
    Command::Place(place_of(key, quantity))
}

/// A hold's id, and whether it was there before.
fn held(outcome: Outcome) -> (HoldId, bool) {
    match outcome {
        Outcome::Answered(Answer::Placed(placed)) => (placed.id, false),
        Outcome::Answered(Answer::Hold { hold, replayed }) => (hold.id, replayed),
        other => panic!("no hold: {other:?}"),
    }
}

fn is_sold_out(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered(Answer::Refused(Refusal::SoldOut { .. })))
}

fn release(hold: HoldId, key: &str) -> Command {
    let (tenant, key) = ("t".to_owned(), key.to_owned());
    Command::Release(Release { hold, tenant, key, reason: None })
}

fn lower(key: &str, units: u64) -> Command {
    let change = Change::Lower(units);
    Command::Adjust(Adjust { name: item(1), key: key.to_owned(), change, reason: String::new() })
}

#[test]
fn receipts_come_before_stock() {
    run(async {
        let mut bench = Bench::open(limits(), 1).await;
        let first = bench.take(place("k", 1)).await;
        bench.commit().await;
        let (hold, _) = held(one(first).await);
        let entries = bench.service.place.meter.traffic().entries;
        let other = bench.take(place("other", 1)).await;
        assert!(is_sold_out(&one(other).await));
        let again = bench.take(place("k", 1)).await;
        let (same, replayed) = held(one(again).await);
        assert_eq!((same, replayed), (hold, true));
        assert_eq!(bench.service.place.meter.traffic().entries, entries, "nothing was proposed");
        assert!(bench.is_idle());
    });
}

#[test]
fn a_key_in_flight_is_joined_and_proposed_once() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let first = bench.take(place("k", 1)).await;
        let second = bench.take(place("k", 1)).await;
        bench.commit().await;
        let ((one_hold, _), (same, _)) = (held(one(first).await), held(one(second).await));
        assert_eq!(one_hold, same);
        assert_eq!(bench.service.place.meter.traffic().commands, 1);
        assert!(bench.is_idle());
    });
}

#[test]
fn a_different_body_waits_for_the_outcome_of_its_key_and_is_then_refused_as_reused() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let first = bench.take(place("k", 1)).await;
        let mut other = bench.take(place("k", 2)).await;
        assert!(other.try_recv().is_err(), "it waits");
        bench.commit().await;
        held(one(first).await);
        let refused = one(other).await;
        let reused =
            matches!(refused, Outcome::Answered(Answer::Refused(Refusal::KeyReused { .. })));
        assert!(reused, "{refused:?}");
    });
}

#[test]
fn only_units_in_flight_in_the_way_park_a_question_until_they_are_decided() {
    run(async {
        let mut bench = Bench::open(limits(), 1).await;
        let first = bench.take(place("a", 1)).await;
        let mut second = bench.take(place("b", 1)).await;
        assert_eq!(bench.writer.gate.parked.len(), 1);
        assert!(second.try_recv().is_err(), "neither granted nor refused yet");
        bench.commit().await;
        held(one(first).await);
        assert!(is_sold_out(&one(second).await));
        assert!(bench.is_idle());
    });
}

#[test]
fn a_parked_question_is_granted_when_the_units_in_its_way_fail_to_commit() {
    run(async {
        let mut bench = Bench::open(limits(), 1).await;
        let first = bench.take(place("a", 1)).await;
        let second = bench.take(place("b", 1)).await;
        // The entry's fate does not come back, and then another leadership's entry is applied.
        let ticket = bench.gather().ticket;
        bench.writer.decided(ticket, Err(ProposeError::Unknown("gone".to_owned())));
        bench.work().await;
        assert_eq!(bench.writer.gate.parked.len(), 1, "nothing is decided");
        bench.pass_leadership();
        bench.commit().await;
        assert_eq!(one(first).await, Outcome::Paused(PauseReason::Moving), "nothing was taken");
        held(one(second).await);
        assert!(bench.is_idle());
    });
}

#[test]
fn a_parked_question_is_judged_again_when_what_was_queued_before_it_is_given_up() {
    run(async {
        let mut bench = Bench::open(limits(), 1).await;
        let first = bench.take_for(place("a", 1), Duration::ZERO).await;
        let second = bench.take(place("b", 1)).await;
        assert_eq!(bench.writer.gate.parked.len(), 1);
        assert_eq!(one(first).await, Outcome::Late, "nothing was taken");
        // Nothing is in flight that could be decided.
        bench.commit().await;
        held(one(second).await);
        assert!(bench.is_idle());
    });
}

#[test]
fn a_key_stays_in_flight_when_its_caller_s_deadline_passes_and_a_retry_joins_it() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let first = bench.take_for(place("k", 1), Duration::ZERO).await;
        let gathered = bench.writer.gather();
        // The home may have given up before the writer came: then nothing was proposed.
        let Some(Gathered { ticket, leader, payload }) = gathered else {
            assert_eq!(one(first).await, Outcome::Late);
            return;
        };
        assert_eq!(one(first).await, Outcome::Unknown);
        let mut retry = bench.take(place("k", 1)).await;
        bench.work().await;
        assert!(retry.try_recv().is_err(), "it waits for the first copy");
        assert_eq!(bench.writer.gate.flights.len(), 1);
        let proposal = bench.alone.group.propose(payload, leader).await.expect("proposed");
        let applied = proposal.await;
        bench.writer.decided(ticket, applied);
        bench.work().await;
        let (_, replayed) = held(one(retry).await);
        assert!(replayed);
        assert!(bench.is_idle());
    });
}

#[test]
fn a_client_that_went_away_does_not_cancel_its_write_and_its_key_still_answers() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        drop(bench.take(place("k", 1)).await);
        bench.commit().await;
        let again = bench.take(place("k", 1)).await;
        let (_, replayed) = held(one(again).await);
        assert!(replayed);
        assert!(bench.is_idle());
    });
}

#[test]
fn an_entry_that_was_not_appended_took_nothing_and_those_who_joined_it_are_judged_again() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let first = bench.take(place("k", 1)).await;
        let second = bench.take(place("k", 1)).await;
        let ticket = bench.gather().ticket;
        bench.writer.decided(ticket, Err(ProposeError::NotAppended { leader: None }));
        bench.commit().await;
        // Not asked again here: openraft may refuse while this node still leads.
        let refused = one(first).await;
        assert!(matches!(refused, Outcome::Paused(PauseReason::Moving)), "{refused:?}");
        let (_, replayed) = held(one(second).await);
        assert!(!replayed);
        assert!(bench.is_idle());
    });
}

#[test]
fn an_entry_whose_fate_went_astray_is_answered_by_its_receipt() {
    run(async {
        let mut bench = Bench::open(limits(), 1).await;
        let first = bench.take(place("k", 1)).await;
        let ticket = bench.gather().ticket;
        bench.writer.decided(ticket, Err(ProposeError::Unknown("gone".to_owned())));
        // It was committed all the same, and is applied by way of the next leader.
        bench.alone.apply(&[place("k", 1)]).await;
        bench.pass_leadership();
        bench.work().await;
        let (hold, replayed) = held(one(first).await);
        let again = bench.take(place("k", 1)).await;
        assert_eq!((held(one(again).await), replayed), ((hold, true), true));
        assert!(bench.is_idle());
    });
}

#[test]
fn a_key_that_another_leadership_gave_to_another_body_is_not_answered_with_that_hold() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let first = bench.take(place("k", 1)).await;
        let ticket = bench.gather().ticket;
        bench.writer.decided(ticket, Err(ProposeError::Unknown("gone".to_owned())));
        bench.alone.apply(&[place("k", 2)]).await;
        bench.pass_leadership();
        bench.work().await;
        let refused = one(first).await;
        let reused =
            matches!(refused, Outcome::Answered(Answer::Refused(Refusal::KeyReused { .. })));
        assert!(reused, "{refused:?}");
    });
}

#[test]
fn what_leaves_no_receipt_is_unknown_when_its_fate_went_astray() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let pause = SetMode { name: item(1), mode: crate::ledger::Mode::Paused };
        let first = bench.take(Command::SetMode(pause)).await;
        let ticket = bench.gather().ticket;
        bench.writer.decided(ticket, Err(ProposeError::Unknown("gone".to_owned())));
        bench.pass_leadership();
        bench.work().await;
        assert_eq!(one(first).await, Outcome::Unknown);
        assert!(bench.is_idle());
    });
}

#[test]
fn a_receipt_that_is_asked_for_while_its_key_is_in_flight_says_so() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let placed = bench.take(place("k", 1)).await;
        let scope = KeyScope { name: item(1), region: None, buyer: None, key: "k".to_owned() };
        let ask = || Question::Query { query: Query::Receipt(scope.clone()), shard: None };
        let early = bench.send(vec![ask()], LONG);
        bench.deliver().await;
        assert_eq!(one(early).await, Outcome::InFlight);
        bench.commit().await;
        let (hold, _) = held(one(placed).await);
        let late = bench.send(vec![ask()], LONG);
        bench.deliver().await;
        match one(late).await {
            Outcome::Found(Found::Receipt(Receipt::Committed(found))) => {
                assert_eq!(found.id, hold);
            }
            other => panic!("no receipt: {other:?}"),
        }
        assert!(bench.is_idle());
    });
}

#[test]
fn an_entry_is_capped_in_bytes() {
    run(async {
        let mut bench =
            Bench::open(ShardLimits { entry_bytes_max: 1 << 10, ..limits() }, 100).await;
        for number in 0..40 {
            drop(bench.take(place(&format!("a-key-of-some-length-{number:020}"), 1)).await);
        }
        let first = bench.gather();
        let commands = first.payload.batch().expect("a batch").commands.len();
        assert!(first.payload.0.len() <= 1 << 10, "{} bytes", first.payload.0.len());
        assert!((2..40).contains(&commands), "{commands} commands");
        assert_eq!(bench.writer.gate.places.len(), 40 - commands, "the others wait for the next");
    });
}

#[test]
fn two_entries_are_in_flight_and_not_a_third() {
    run(async {
        let mut bench = Bench::open(limits(), 100).await;
        for number in 0..3 {
            drop(bench.take(place(&format!("k{number}"), 1)).await);
            assert_eq!(bench.writer.gather().is_some(), number < 2, "entry {number}");
        }
        // One whose fate is unknown is no reason to stop.
        bench.writer.decided(0, Err(ProposeError::Unknown("gone".to_owned())));
        assert!(bench.writer.gather().is_some());
    });
}

#[test]
fn places_never_fill_the_lane_of_what_ends_or_keeps_a_hold() {
    run(async {
        let mut bench =
            Bench::open(ShardLimits { queue_max: 4, finish_lane: 2, ..limits() }, 100).await;
        let placed = bench.take(place("k", 1)).await;
        bench.commit().await;
        let (hold, _) = held(one(placed).await);
        // Each in a message of its own: the way in must not fill either.
        let mut waiting = Vec::new();
        for number in 0..2 {
            waiting.push(bench.take(place(&format!("w{number}"), 1)).await);
        }
        let shed = bench.send(vec![Question::from(place("shed", 1))], LONG);
        assert_eq!(one(shed).await, Outcome::Overloaded);
        let ended = bench.take(release(hold, "r")).await;
        bench.commit().await;
        assert!(matches!(one(ended).await, Outcome::Answered(Answer::Hold { .. })));
        for answers in waiting {
            held(one(answers).await);
        }
        assert!(bench.is_idle());
    });
}

#[test]
fn parked_places_never_keep_others_from_parking() {
    run(async {
        let mut bench = Bench::open(ShardLimits { park_max: 1, ..limits() }, 1).await;
        let first = bench.take(place("a", 1)).await;
        let parked = bench.take(place("b", 1)).await;
        let shed = bench.take(place("c", 1)).await;
        assert_eq!(one(shed).await, Outcome::Overloaded);
        let mut adjust = bench.take(lower("d", 1)).await;
        assert!(adjust.try_recv().is_err(), "it is parked, not shed");
        bench.commit().await;
        held(one(first).await);
        assert!(is_sold_out(&one(parked).await));
        let refused = one(adjust).await;
        let committed =
            matches!(refused, Outcome::Answered(Answer::Refused(Refusal::StockCommitted { .. })));
        assert!(committed, "{refused:?}");
        assert!(bench.is_idle());
    });
}

#[test]
fn what_waited_too_long_is_shed_with_nothing_taken() {
    run(async {
        let old = ShardLimits { queue_age_max: Duration::ZERO, ..limits() };
        let mut bench = Bench::open(old, 1).await;
        let first = bench.take(place("a", 1)).await;
        let parked = bench.take(place("b", 1)).await;
        let sent = runtime::now();
        until("time", || runtime::now() > sent).await;
        bench.work().await;
        assert_eq!(one(first).await, Outcome::Overloaded);
        assert_eq!(one(parked).await, Outcome::Overloaded);
        assert!(bench.proposals.is_empty() && bench.is_idle());
        assert_eq!(bench.service.place.meter.traffic().shed, 2);
    });
}

#[test]
fn what_one_turn_produced_goes_over_as_one_message() {
    run(async {
        let mut bench = Bench::open(limits(), 100).await;
        let answers: Vec<Answers> = (0..10)
            .map(|number| bench.send(vec![Question::from(place(&format!("k{number}"), 1))], LONG))
            .collect();
        let delivery = bench.deliveries.recv().await.expect("a message");
        assert_eq!(delivery.asks.len(), 10);
        assert!(bench.deliveries.try_recv().is_err(), "and no other");
        bench.writer.receive(delivery);
        bench.commit().await;
        for answer in answers {
            held(one(answer).await);
        }
    });
}

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
        let mut bench = Bench::open(limits(), 1).await;
        let placed = bench.take(place("k", 1)).await;
        bench.commit().await;
        held(one(placed).await);
        let queued = bench.take(lower("waits", 0)).await;
        drop(queued);
        let closed = bench.service.place.fence.close().expect("it leads");
        for command in [place("k", 1), place("other", 1)] {
            let answers = bench.take(command).await;
            assert_eq!(one(answers).await, Outcome::Paused(PauseReason::Moving));
        }
        assert!(bench.writer.gather().is_none());
        bench.service.place.fence.reopen(closed);
        let fence = &bench.service.place.fence;
        until("a later acknowledgement", || fence.may_propose().is_ok()).await;
        let again = bench.take(place("k", 1)).await;
        assert!(held(one(again).await).1);
    });
}

#[test]
fn units_of_one_bucket_are_weighed_together_and_given_back_once() {
    run(async {
        let mut bench = Bench::open(limits(), 10).await;
        for number in 0..10 {
            drop(bench.take(place(&format!("k{number}"), 1)).await);
        }
        assert!(bench.writer.gate.parked.is_empty());
        drop(bench.take(place("one-more", 1)).await);
        assert_eq!(bench.writer.gate.parked.len(), 1);
        bench.commit().await;
        assert!(bench.is_idle());
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
