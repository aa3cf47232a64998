//! Deadlines: what reads expired, what is due, what an entry sweeps.

use super::*;

#[test]
fn a_hold_reads_expired_exactly_when_its_units_read_available() {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    shard.one(1_000, define(1));
    let hold = shard.hold(1_000, place("a", "k1", 1));
    for now in 1_001..1_600 {
        shard.apply(now, vec![]);
        let view = match shard.ledger.query(&Query::Hold { id: hold.id, tenant: "t".into() }) {
            Found::Hold(view) => view,
            other => panic!("{other:?}"),
        };
        let expired = now >= 1_500;
        assert_eq!(view.state == HoldState::Expired, expired, "at {now}");
        assert_eq!(shard.stock().0, u64::from(expired), "at {now}");
    }
    assert_eq!(shard.ledger.next_due(), Some(UnixMs(1_500)), "not swept");
    // A placement sweeps what it needs.
    assert_eq!(shard.hold(1_600, place("b", "k2", 1)).state, HoldState::Held);
    assert_eq!(shard.stock(), (0, 1, 0));
}

#[test]
fn an_entry_sweeps_no_more_than_its_bound() {
    let mut shard = Shard::new(Settings { sweep_max: 10, ..settings() });
    shard.one(1_000, define(1_000));
    for n in 0..100 {
        shard.hold(1_000, place(&format!("b{n}"), "k", 1));
    }
    assert_eq!(shard.one(5_000, Command::Advance), Answer::Advanced { swept: 10 });
    assert_eq!(shard.stock(), (1_000, 0, 0), "due units are available, swept or not");
    for _ in 0..9 {
        assert_eq!(shard.one(5_000, Command::Advance), Answer::Advanced { swept: 10 });
    }
    assert_eq!(shard.one(5_000, Command::Advance), Answer::Advanced { swept: 0 });
    assert_eq!(shard.ledger.next_due(), None);
}

/// An item without a limit whose `holds` holds of `units` units are all due, and none is swept.
fn all_due(holds: u64, units: u64) -> Shard {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    let definition = Definition { limit_per_buyer: None, ..definition() };
    let (regions, if_revision, total) = (BTreeMap::new(), None, Some(holds * units));
    let define = Define { name: name(), total, regions, definition, if_revision };
    let mut commands = vec![Command::Define(define)];
    commands.extend((0..holds).map(|n| place(&format!("b{n}"), "k", units)));
    shard.apply(1_000, commands);
    assert_eq!(shard.stock(), (0, holds * units, 0));
    shard.apply(5_000, vec![]);
    assert_eq!(shard.stock(), (holds * units, 0, 0));
    shard
}

#[test]
fn the_commands_of_one_entry_sweep_a_bounded_number_of_due_holds() {
    let bound = u64::from(due::SWEPT_FOR_COMMANDS_MAX);
    let mut shard = all_due(bound * 2 + 1, 1);
    let (little, held) = (
        |available| Refusal::InsufficientStock { available },
        |answer: &Answer| matches!(answer, Answer::Hold { replayed: false, .. }),
    );
    // Out of reach of one entry, and the gate says so too.
    let foreseen = shard.ledger.foresee(&place("x", "1", bound + 1));
    assert_eq!(foreseen, Foreseen::Answer(Answer::Refused(little(bound))));
    assert_eq!(shard.one(5_000, place("x", "1", bound + 1)), Answer::Refused(little(bound)));
    // Within reach, and then nothing more is, which is not called sold out.
    let answers = shard.apply(5_000, vec![place("x", "2", bound), place("x", "3", 1)]);
    assert!(held(&answers[0]), "{answers:?}");
    assert_eq!(answers[1], Answer::Refused(little(0)));
    let answers = shard.apply(5_000, vec![place("x", "3", bound), place("x", "4", 1)]);
    assert!(held(&answers[0]) && answers[1] == Answer::Refused(little(0)), "{answers:?}");
    assert!(held(&shard.one(5_000, place("x", "4", 1))));
    let sold_out = Answer::Refused(Refusal::SoldOut { may_return: true });
    assert_eq!(shard.one(5_000, place("x", "5", 1)), sold_out);
    assert!(shard.audit().buckets[0].holds);
}

#[test]
fn few_due_holds_of_many_units_are_within_reach() {
    let bound = u64::from(due::SWEPT_FOR_COMMANDS_MAX);
    let mut shard = all_due(bound, 3);
    let command = place("x", "1", bound * 3);
    assert!(matches!(shard.ledger.foresee(&command), Foreseen::Admit(_)));
    assert_eq!(shard.hold(5_000, command).quantity, bound * 3);
    let mut shard = all_due(bound + 1, 3);
    let command = place("x", "1", bound * 3 + 1);
    let little = Answer::Refused(Refusal::InsufficientStock { available: bound * 3 });
    assert_eq!(shard.ledger.foresee(&command), Foreseen::Answer(little.clone()));
    assert_eq!(shard.one(5_000, command), little);
}

/// Holds of many sizes and deadlines: what the gate counts as within reach is what sweeping gives.
#[test]
fn what_is_within_reach_is_what_the_sweeping_gives_to_the_unit() {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    let definition = Definition { limit_per_buyer: None, ..definition() };
    let (regions, if_revision) = (BTreeMap::new(), None);
    let total = (0..5_000).map(|n| 1 + n % 7).sum();
    let define = Define { name: name(), total: Some(total), regions, definition, if_revision };
    let mut commands = vec![Command::Define(define)];
    commands.extend((0..5_000).map(|n| {
        let Command::Place(place) = place(&format!("b{n}"), "k", 1 + n % 7) else { unreachable!() };
        Command::Place(Place { ttl_ms: Some(500 + n * 37 % 400), ..place })
    }));
    shard.apply(1_000, commands);
    shard.apply(5_000, vec![]);
    let Answer::Refused(Refusal::InsufficientStock { available }) =
        shard.one(5_000, place("x", "1", total))
    else {
        panic!("all of it is out of reach of one entry");
    };
    assert!(available > u64::from(due::SWEPT_FOR_COMMANDS_MAX) && available < total);
    let before = shard.ledger.figures().expired;
    assert_eq!(shard.hold(5_000, place("x", "2", available)).quantity, available);
    let swept = shard.ledger.figures().expired - before;
    assert_eq!(swept, u64::from(due::SWEPT_FOR_COMMANDS_MAX));
    let audit = shard.audit();
    assert!(audit.buckets[0].holds && audit.buckets[0].available == 0, "{audit:?}");
}

#[test]
fn due_holds_do_not_fill_a_buyers_limit() {
    let mut shard = Shard::new(Settings { sweep_max: 0, ..settings() });
    shard.one(1_000, define(100));
    shard.hold(1_000, place("a", "k1", 4));
    let refused = Answer::Refused(Refusal::BuyerLimit { limit: 4, held: 4, sold: 0 });
    assert_eq!(shard.one(1_001, place("a", "k2", 1)), refused);
    shard.hold(1_500, place("a", "k2", 4));
    assert_eq!(shard.stock(), (96, 4, 0));
    assert!(shard.audit().buckets[0].holds);
}
