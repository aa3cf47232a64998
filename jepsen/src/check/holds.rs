//! Holds: nothing acknowledged is lost, each ends once, none is confirmed past its deadline.

use std::collections::BTreeMap;

use super::book::{Book, Sight, may_become};
use super::{Property, Report};
use crate::history::{Act, Commit, Standing};

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    nothing_lost(book, report);
    ends_once(book, report);
    no_confirm_after_expiry(book, report);
}

fn nothing_lost(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::NothingLost);
    for (id, sights) in &book.holds {
        let Some(item) = book.item_of.get(id).and_then(|name| book.item(name)) else { continue };
        let Some(last) = item.last else { continue };
        let told = sights.iter().filter(|sight| book.ops[sight.op].f() != Act::Holds);
        let Some(newest) = told.max_by_key(|sight| sight.rank()) else { continue };
        let found = last.iter().find(|row| row.id == **id);
        let Some(found) = found else {
            outcome.expect(false, || {
                format!("hold {id} is gone at the end: {}", book.ops[newest.op].show())
            });
            continue;
        };
        let on = found.revision >= newest.row.revision
            && may_become(newest.row.state, found.state)
            && found.quantity == newest.row.quantity;
        outcome.expect(on, || {
            let seen = book.ops[newest.op].show();
            format!("hold {id} has fallen back to {found:?} from what was told: {seen}")
        });
    }
}

fn ends_once(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::HoldEndsOnce);
    for (id, sights) in &book.holds {
        let mut by_revision: Vec<&Sight<'_>> = sights.iter().collect();
        by_revision.sort_by_key(|sight| sight.rank());
        for pair in by_revision.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let fits = may_become(a.row.state, b.row.state);
            outcome.expect(fits, || {
                let (first, second) = (book.ops[a.op].show(), book.ops[b.op].show());
                format!(
                    "hold {id} was {:?}, then {:?}: {first}; {second}",
                    a.row.state, b.row.state
                )
            });
        }
    }
}

/// Ledger time at the indices where a placement told it, by shard.
pub(super) fn ledger_times(book: &Book<'_>) -> BTreeMap<u64, BTreeMap<u64, u64>> {
    let mut times: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
    for op in book.ops.iter().filter(|op| op.f() == Act::Place && op.is_fresh_change()) {
        if let (Some(row), Some(commit)) = (op.row(), op.commit()) {
            times.entry(commit.shard).or_default().insert(commit.index, row.placed_at);
        }
    }
    times
}

fn no_confirm_after_expiry(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::NoConfirmAfterExpiry);
    let times = ledger_times(book);
    // The greatest ledger time known at or below an index: running, as time must not go back.
    let known_at = |commit: Commit| -> u64 {
        let below = times.get(&commit.shard).map(|times| times.range(..=commit.index));
        below.into_iter().flatten().map(|(_, time)| *time).max().unwrap_or(0)
    };
    for (id, sights) in &book.holds {
        let dead = |sight: &&Sight<'_>| sight.row.state == Standing::Expired;
        let died = sights.iter().filter(dead).filter_map(|sight| sight.commit);
        let died = died.min_by_key(|commit| commit.index);
        for sight in sights {
            let op = book.ops[sight.op];
            let plain = op.f() == Act::Confirm && op.asked().reacquire != Some(true);
            let (Some(commit), true) = (sight.commit, plain && op.is_fresh_change()) else {
                continue;
            };
            let time = known_at(commit);
            let late = time >= sight.row.expires_at;
            outcome.expect(!late, || {
                format!("hold {id} was confirmed at ledger time {time} or later: {}", op.show())
            });
            let dead_before = died.is_some_and(|died| died.index <= commit.index);
            outcome.expect(!dead_before, || {
                format!("hold {id} was seen expired at {died:?} and confirmed then: {}", op.show())
            });
        }
    }
}
