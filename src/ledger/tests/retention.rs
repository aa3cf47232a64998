//! What is forgotten, and when.

use super::*;

#[test]
fn receipts_are_forgotten_after_their_retention_and_sales_after_theirs() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(100));
    let sold = shard.hold(1_000, place("a", "k1", 1));
    shard.hold(1_001, confirm(sold.id, "c", None, false));
    let lapsed = shard.hold(1_000, place("b", "k2", 1));
    // Hour 0 ends at 3,600,000; lifetime 3,000 and receipts 3,600,000 more.
    let over = 3_600_000 + 3_000 + 3_600_000;
    shard.apply(over - 1, vec![]);
    let query = |id| Query::Hold { id, tenant: "t".into() };
    assert!(matches!(shard.ledger.query(&query(lapsed.id)), Found::Hold(_)));
    shard.apply(over, vec![]);
    assert_eq!(shard.ledger.query(&query(lapsed.id)), Found::NotFound);
    assert!(matches!(shard.ledger.query(&query(sold.id)), Found::Hold(_)));
    let over = 3_600_000 + 3_000 + 10_800_000;
    shard.apply(over, vec![]);
    assert_eq!(shard.ledger.query(&query(sold.id)), Found::NotFound);
    assert_eq!(shard.stock(), (99, 0, 1), "what was sold stays sold");
    let audit = shard.audit();
    assert!(audit.buckets[0].holds && audit.buckets[0].sold_forgotten == 1);
    // Sequences go on, also in a ledger that was loaded from pages without those records.
    let database = whole(&mut shard.ledger);
    shard.ledger = loaded(&database, settings()).expect("whole");
    let again = shard.hold(over, place("a", "k1", 1));
    assert_ne!(again.id, sold.id);
}

#[test]
fn a_retired_items_name_is_free_and_its_holds_are_gone() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(10));
    let held = shard.hold(1_000, place("a", "k1", 1));
    let retire = || Command::Retire(Retire { name: name() });
    let open = Answer::Refused(Refusal::OpenHolds { held: 1 });
    assert_eq!(shard.one(1_001, retire()), open);
    shard.hold(1_002, confirm(held.id, "c", None, false));
    let item = ItemNumber(1);
    assert_eq!(shard.one(1_003, retire()), Answer::Retired { item });
    assert_eq!(shard.one(1_003, retire()), Answer::Refused(Refusal::ItemNotFound));
    shard.one(1_004, define(5));
    let gone = Answer::Refused(Refusal::HoldNotFound);
    assert_eq!(shard.one(1_004, release(held.id, "r")), gone);
    let again = shard.hold(1_004, place("a", "k1", 1));
    assert_eq!(again.id.item, ItemNumber(2));
    assert_eq!(shard.ledger.items.len(), 1, "the old item is erased");
    let database = whole(&mut shard.ledger);
    let back = loaded(&database, settings()).expect("whole");
    assert_eq!(back.digest(), shard.ledger.digest());
}
