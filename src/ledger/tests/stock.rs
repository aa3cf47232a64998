//! The law of the units, broken, and between two ledgers.

use super::*;

#[test]
fn a_broken_law_pauses_the_item_in_that_entry_and_nothing_stops() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(10));
    let held = shard.hold(1_000, place("a", "k1", 1));
    shard.ledger.corrupt_for_test(&name(), 5);
    shard.apply(1_001, vec![]);
    assert_eq!(shard.ledger.figures().invariant_broken, 1);
    assert!(!shard.audit().buckets[0].holds);
    let reason = PauseReason::Invariant;
    let paused = Answer::Refused(Refusal::ItemPaused { reason });
    assert_eq!(shard.one(1_002, place("b", "k2", 1)), paused);
    assert_eq!(shard.one(1_002, confirm(held.id, "c", None, false)), paused);
    // Release still works, and the state still loads, to the same digest.
    assert_eq!(shard.hold(1_002, release(held.id, "r")).state, HoldState::Released);
    let database = whole(&mut shard.ledger);
    let back = loaded(&database, settings()).expect("a known broken law loads");
    assert_eq!(back.digest(), shard.ledger.digest());
    // Resuming does not end the pause while the equation is broken, here and in the loaded ledger.
    let open = Command::SetMode(SetMode { name: name(), mode: Mode::Open });
    let batch = Batch { stamp: UnixMs(1_003), commands: vec![open, place("b", "k3", 1)] };
    let mut back = back;
    shard.index += 1;
    for ledger in [&mut back, &mut shard.ledger] {
        let answers = ledger.apply(LogIndex(shard.index), &batch);
        let Answer::Item { item, replayed: true, .. } = &answers[0] else { panic!("{answers:?}") };
        assert!(item.invariant_broken);
        assert_eq!(answers[1], paused);
    }
    assert_eq!(back.digest(), shard.ledger.digest());
}

#[test]
fn stock_travels_between_ledgers_and_nothing_is_lost() {
    let settings = Settings { shards: 2, ..settings() };
    let home = home_shard(name().borrowed(), 2);
    let mut donor = Ledger::new(home, settings.clone());
    let mut receiver = Ledger::new(ShardId(1 - home.0), settings);
    let one = |ledger: &mut Ledger, command: Command| {
        let index = LogIndex(ledger.applied().0 + 1);
        ledger.apply(index, &Batch { stamp: UnixMs(1_000), commands: vec![command] }).remove(0)
    };
    one(&mut donor, define(10));
    let from = BucketRef { home, item: ItemNumber(1), bucket: BucketId(0) };
    let to = BucketRef { bucket: BucketId(1), ..from };
    let open = OpenBucket {
        bucket: to,
        name: name(),
        region: RegionOrdinal(0),
        region_name: "default".into(),
        default_region: true,
        place: (0, 1),
        floor: 0,
        definition: definition(),
        revision: 1,
    };
    let accept =
        |sent| Command::AcceptStock(AcceptStock { to, from: BucketId(0), sent, floor_sent: 0 });
    assert_eq!(one(&mut receiver, accept(3)), Answer::Refused(Refusal::NotOwner));
    assert_eq!(one(&mut receiver, Command::OpenBucket(open)), Answer::BucketOpen);
    let send = |quantity, acked, if_sent| {
        let (to, same_region, bound) = (BucketId(1), true, 4);
        Command::SendStock(SendStock { from, to, quantity, acked, if_sent, same_region, bound })
    };
    let sent = |sent| Answer::Sent { sent, floor_sent: 0 };
    assert_eq!(one(&mut donor, send(3, 0, 0)), sent(3));
    let refused = |answer| matches!(answer, Answer::Refused(Refusal::TransferRefused { .. }));
    assert!(refused(one(&mut donor, send(3, 0, 0))), "the same pull again");
    assert!(refused(one(&mut donor, send(3, 0, 3))), "beyond the bound while nothing is acked");
    assert_eq!(one(&mut donor, send(3, 3, 3)), sent(6));
    for sent in [6, 3, 6] {
        assert_eq!(one(&mut receiver, accept(sent)), Answer::Accepted { accepted: 6 });
    }
    let settle = |accepted| Command::SettleStock(SettleStock { from, to: BucketId(1), accepted });
    assert_eq!(one(&mut donor, settle(6)), Answer::Settled);
    assert!(refused(one(&mut donor, settle(7))));
    let answer = one(&mut receiver, place("b", "k", 4));
    assert!(matches!(answer, Answer::Placed(_)), "{answer:?}");
    for ledger in [&mut donor, &mut receiver] {
        let Found::Audit(audit) = ledger.query(&Query::Audit(name())) else { panic!("audit") };
        assert!(audit.buckets[0].holds, "{audit:?}");
        let pages = whole(ledger).into_iter();
        let settings = ledger.books.settings.clone();
        let back = Ledger::load(ledger.books.shard, settings, pages).expect("whole");
        assert_eq!(back.digest(), ledger.digest());
    }
}

#[test]
fn a_recount_goes_on_where_it_stopped_and_tells_which_bucket_is_astray() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(100_000));
    for entry in 0..20_u64 {
        let places = (0..1_000).map(|n| place(&format!("b{entry}-{n}"), "k", 1)).collect();
        shard.apply(2_000 + entry, places);
    }
    let count = |ledger: &Ledger, from| match ledger.query(&Query::Recount { name: name(), from }) {
        Found::Recount(recount) => recount,
        other => panic!("expected a recount, got {other:?}"),
    };
    let first = count(&shard.ledger, None);
    assert!(first.next.is_some(), "20,000 holds are more than one step");
    assert_eq!(count(&shard.ledger, first.next).next, None);
    let bucket = shard.ledger.buckets.values_mut().next().expect("it has one");
    let slots = bucket.slots.iter_mut().flatten();
    slots.last().expect("some slot is used").units.1 += 7;
    assert_eq!(count(&shard.ledger, None).astray, []);
    let astray = count(&shard.ledger, first.next).astray;
    assert_eq!(astray, [Astray { bucket: BucketId(0), held: 0, sold: -7 }]);
}

#[test]
fn a_shard_takes_no_more_items_than_it_has_room_for() {
    let mut shard = Shard::new(Settings { slots: 1, ..settings() });
    let named = |number: usize| {
        let name = ItemName { tenant: "t".into(), item: format!("i{number}") };
        let (total, definition) = (Some(1), definition());
        Command::Define(Define {
            name,
            total,
            regions: BTreeMap::new(),
            definition,
            if_revision: None,
        })
    };
    for first in (0..definition::ITEMS_MAX).step_by(4_096) {
        let answers = shard.apply(1_000, (first..first + 4_096).map(named).collect());
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Item { created: true, .. })));
    }
    let refused = shard.one(1_001, named(definition::ITEMS_MAX));
    let Answer::Refused(Refusal::Invalid { field, rule }) = refused else { panic!("{refused:?}") };
    assert_eq!(field, "item");
    assert!(rule.contains("65536 items"), "{rule}");
    // What is there goes on, and may be defined again.
    assert!(matches!(shard.one(1_002, named(7)), Answer::Item { replayed: true, .. }));
}
