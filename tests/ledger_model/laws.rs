//! The laws of design §3 as checks on what a ledger says of itself.
//!
//! Promises: reads a ledger only through its public face, adds up again, panics with the figures
//! when a law is broken. Never changes the ledger it looks at, except to cut its pages.

use holdfast::ledger::{
    Audit, BucketAudit, Found, ItemName, ItemView, Ledger, Levels, PageKey, Query, Settings,
    ShardId, Turn,
};

/// Settings that every test ledger shares unless it says otherwise.
pub(crate) fn settings(shards: u16) -> Settings {
    Settings {
        shards,
        tag_key: *b"golden tag key..",
        slots: 4,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 90 * 86_400_000,
    }
}

/// Returns all pages of a whole cut. The cut is left as not durable, so no dirt is lost by looking.
pub(crate) fn pages(ledger: &mut Ledger) -> Vec<(PageKey, Vec<u8>)> {
    ledger.begin_cut(Turn::A, true);
    let mut pages = Vec::new();
    loop {
        let slice = ledger.take_cut(usize::MAX);
        if slice.is_empty() {
            break;
        }
        pages.extend(slice.into_iter().filter_map(|(key, page)| Some((key, page?))));
    }
    ledger.end_cut(false);
    pages
}

/// Loads a second ledger from the pages of a whole cut; its digest must be the same.
pub(crate) fn reload(shard: ShardId, settings: &Settings, ledger: &mut Ledger) -> Ledger {
    let before = ledger.digest();
    let loaded = Ledger::load(shard, settings.clone(), pages(ledger).into_iter());
    let loaded = loaded.expect("the pages of a whole cut make a ledger");
    assert_eq!(ledger.digest(), before, "looking at a ledger must not change it");
    assert_eq!(loaded.digest(), before, "a loaded ledger has the digest that was saved");
    assert_eq!(loaded.now(), ledger.now(), "ledger time is part of the ledger");
    loaded
}

/// Returns an item's audit, after checking laws 1 and 2 on every bucket of this shard.
pub(crate) fn audit(ledger: &Ledger, name: &ItemName) -> Option<Audit> {
    let audit = equations(ledger, name)?;
    for bucket in &audit.buckets {
        assert!(bucket.holds, "the ledger says itself that a law is broken: {audit:?}");
    }
    if let Some(total) = audit.total {
        let taken: u64 = audit.buckets.iter().map(|b| b.held - b.due + b.sold).sum();
        assert!(taken <= total, "law 2: {taken} are held or sold of {total}: {audit:?}");
    }
    availability_agrees(ledger, name, &audit);
    Some(audit)
}

/// Returns an item's audit, after checking each bucket's own sums, whatever the total is.
pub(crate) fn equations(ledger: &Ledger, name: &ItemName) -> Option<Audit> {
    let found = ledger.query(&Query::Audit(name.clone()));
    if found == Found::NotFound {
        return None;
    }
    let Found::Audit(audit) = found else { panic!("an audit answers an audit, not {found:?}") };
    for bucket in &audit.buckets {
        equation_of(bucket);
    }
    let sums = ledger.query(&Query::Sums(name.clone()));
    assert_eq!(sums, Found::Audit(audit.clone()), "what slots keep is what their holds add up to");
    let (mut from, mut more) = (None, true);
    while more {
        let found = ledger.query(&Query::Recount { name: name.clone(), from });
        let Found::Recount(recount) = found else { panic!("a recount, not {found:?}") };
        assert_eq!(recount.astray, [], "a slot's holds add up to its sums");
        (from, more) = (recount.next, recount.next.is_some());
    }
    Some(audit)
}

fn equation_of(b: &BucketAudit) {
    let wide = |pairs: &[(_, u64)]| pairs.iter().map(|(_, units)| u128::from(*units)).sum::<u128>();
    let came = u128::from(b.received) + wide(&b.accepted);
    let went = [b.available, b.held, b.sold, b.written_off].map(u128::from).into_iter();
    assert_eq!(came, went.sum::<u128>() + wide(&b.sent), "law 1 (conservation): {b:?}");
    assert_eq!(b.held, b.held_counted, "held is the sum of the live holds: {b:?}");
    assert_eq!(b.sold, b.sold_counted + b.sold_forgotten, "sold is the sum of the sales: {b:?}");
    assert!(b.due <= b.held, "due units are held units: {b:?}");
}

fn availability_agrees(ledger: &Ledger, name: &ItemName, audit: &Audit) {
    let found = ledger.query(&Query::Availability(name.clone()));
    let Found::Availability(stock) = found else {
        panic!("an item with an audit has an availability, not {found:?}");
    };
    assert!(!stock.invariant_broken, "the ledger paused an item for a broken law: {audit:?}");
    assert_eq!(stock.buckets.len(), audit.buckets.len());
    for (read, told) in stock.buckets.iter().zip(&audit.buckets) {
        assert_eq!(read.bucket, told.bucket);
        let can_be_taken = told.available + told.due - read.earmarked;
        assert_eq!(read.available, can_be_taken, "due units can be taken: {told:?}");
        assert_eq!(read.held, told.held - told.due, "a due hold is not held: {told:?}");
        assert_eq!(read.sold, told.sold);
    }
}

/// Checks law 1 for a whole item, which lies on several shards: what all buckets have and what is
/// between them sums to the total. Reads R from the receiver and S from the donor (`escrow.md`).
pub(crate) fn item_adds_up(audits: &[Audit]) {
    let buckets = || audits.iter().flat_map(|audit| &audit.buckets);
    let mut sum: i128 = buckets().map(|b| i128::from(b.available + b.held + b.sold)).sum();
    for donor in buckets() {
        for (to, sent) in &donor.sent {
            let accepted = buckets()
                .filter(|b| b.bucket == *to)
                .flat_map(|b| &b.accepted)
                .find(|(from, _)| *from == donor.bucket)
                .map_or(0, |(_, units)| *units);
            assert!(accepted <= *sent, "more was accepted than sent: {audits:?}");
            sum += i128::from(*sent) - i128::from(accepted);
        }
    }
    let total = audits.iter().find_map(|audit| audit.total).expect("the home shard was read");
    assert_eq!(sum, i128::from(total), "law 1: the item does not add up: {audits:?}");
}

/// Checks that the floors of an item's regions are where its home shard granted them: the shares of
/// a region's buckets, and what is between them, less what is owed. Says nothing while a copy is
/// behind the home shard.
pub(crate) fn floors_add_up(item: &ItemView, levels: &[Levels]) {
    if levels.iter().any(|levels| levels.revision < item.config) {
        return;
    }
    let buckets = || levels.iter().flat_map(|levels| &levels.buckets);
    if buckets().count() < item.buckets.len() {
        return;
    }
    for region in &item.region_list {
        let mine = || buckets().filter(|bucket| bucket.region == region.ordinal);
        let shares: i128 = mine().map(|b| i128::from(b.floor) - i128::from(b.floor_owed)).sum();
        let pairs = mine().flat_map(|bucket| &bucket.pairs);
        let travels: i128 =
            pairs.map(|pair| i128::from(pair.floor_sent) - i128::from(pair.floor_accepted)).sum();
        let floor = i128::from(region.floor);
        assert_eq!(shares + travels, floor, "the floor of {}: {levels:?}", region.name);
    }
}
