//! A key: receipts before stock, joined while it is in flight, kept until its entry is decided,
//! answered by its receipt when its entry went astray.

use super::*;
use crate::ledger::NodeId;
use crate::shard::home::WATCH_EVERY;

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

/// Lets the home look after those who wait there, more than once.
async fn home_has_looked() {
    let from = runtime::now();
    until("time", || runtime::now() - from > 5 * WATCH_EVERY).await;
}

#[test]
fn a_client_that_went_away_does_not_cancel_its_write_and_its_key_still_answers() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        drop(bench.take(place("k", 1)).await);
        home_has_looked().await;
        bench.commit().await;
        assert_eq!(bench.service.place.meter.traffic().commands, 1, "it was proposed");
        let again = bench.take(place("k", 1)).await;
        let (_, replayed) = held(one(again).await);
        assert!(replayed);
        assert!(bench.is_idle());
    });
}

#[test]
fn a_key_stays_in_flight_when_its_client_goes_away_and_a_retry_joins_it() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let first = bench.take(place("k", 1)).await;
        let Gathered { ticket, leader, payload } = bench.gather();
        drop(first);
        home_has_looked().await;
        bench.work().await;
        assert_eq!(bench.writer.gate.flights.len(), 1, "its entry is not decided");
        let mut retry = bench.take(place("k", 1)).await;
        bench.work().await;
        assert!(retry.try_recv().is_err(), "it waits for the first copy");
        let proposal = bench.alone.group.propose(payload, leader).await.expect("proposed");
        let applied = proposal.await;
        bench.writer.decided(ticket, applied);
        bench.work().await;
        let (_, replayed) = held(one(retry).await);
        assert!(replayed);
        assert_eq!(bench.service.place.meter.traffic().commands, 1, "proposed once");
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
        bench.lose_sight();
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

/// Two nodes may lead in one term: only the whole leader id says that another has taken over.
#[test]
fn an_entry_in_doubt_is_decided_by_a_greater_leader_of_its_term_and_not_by_its_own() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let mut first = bench.take(place("k", 1)).await;
        bench.lose_sight();
        bench.alone.apply(&[place("of-its-own-leadership", 1)]).await;
        bench.work().await;
        assert!(first.try_recv().is_err(), "it may still commit");
        assert_eq!(bench.writer.gate.flights.len(), 1);
        for entry in &mut bench.writer.flying {
            assert!(entry.leader.node > NodeId(0));
            entry.leader.node = NodeId(0);
        }
        bench.work().await;
        assert_eq!(one(first).await, Outcome::Paused(PauseReason::Moving), "nothing was taken");
        assert!(bench.is_idle());
    });
}

#[test]
fn a_key_that_another_leadership_gave_to_another_body_is_not_answered_with_that_hold() {
    run(async {
        let mut bench = Bench::open(limits(), 5).await;
        let first = bench.take(place("k", 1)).await;
        bench.lose_sight();
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
        bench.lose_sight();
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
