//! The queue: what waits, what is parked behind units in flight, what is shed, and how much goes
//! into an entry.

use super::*;

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
        bench.lose_sight();
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
