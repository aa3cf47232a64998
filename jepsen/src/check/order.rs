//! The order of the log against leaders, real time and ledger time.

use std::collections::BTreeMap;

use super::book::Book;
use super::{Property, Report, holds};
use crate::history::{Commit, Op};

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    leaders(book, report);
    real_time(book, report);
    ledger_time(book, report);
}

fn leaders(book: &Book<'_>, report: &mut Report) {
    let mut at_index: BTreeMap<(u64, u64), ((u64, u64), Op<'_>)> = BTreeMap::new();
    let outcome = report.of(Property::OneLeaderPerIndex);
    for op in &book.ops {
        let Some(Commit { shard, index, term, node }) = op.commit() else { continue };
        let leader = (term, node);
        let (known, first) = at_index.entry((shard, index)).or_insert((leader, *op));
        outcome.expect(*known == leader, || {
            format!(
                "index {index} of shard {shard} has two leaders: {}; {}",
                first.show(),
                op.show()
            )
        });
    }
    let outcome = report.of(Property::LeadersInOrder);
    let mut before: Option<((u64, u64), (u64, u64))> = None;
    for ((shard, index), (leader, op)) in &at_index {
        if let Some(((_, last_index), last)) = before.filter(|((on, _), _)| on == shard) {
            outcome.expect(last <= *leader, || {
                format!(
                    "shard {shard}: {last:?} leads at {last_index}, {leader:?} at {index}: {}",
                    op.show()
                )
            });
        }
        before = Some(((*shard, *index), *leader));
    }
}

/// Whoever asks after an answer was given stands on at least what that answer stood on. Reads of a
/// replica's memory are left out: they may be old, and a follower may even be a moment ahead of
/// what its leader has applied, which nobody was told yet.
fn real_time(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::RealTimeOrder);
    // Moments in order: an operation begins (0) or ends (1).
    let mut moments: Vec<(u64, u8, usize)> = Vec::new();
    for (at, op) in book.ops.iter().enumerate() {
        if let (Some(_), Some(done), false) = (op.commit(), op.done, op.is_local()) {
            moments.push((op.invoke.time, 0, at));
            moments.push((done.time, 1, at));
        }
    }
    moments.sort_unstable();
    let mut highest: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut floors: BTreeMap<usize, (u64, usize)> = BTreeMap::new();
    for (_, moment, at) in moments {
        let op = book.ops[at];
        let commit = op.commit().expect("only those were taken");
        if moment == 0 {
            if let Some(floor) = highest.get(&commit.shard) {
                floors.insert(at, *floor);
            }
            continue;
        }
        if let Some((floor, other)) = floors.remove(&at) {
            // Its own entry came after everything that was answered before it began.
            let fresh = op.is_fresh_change();
            let fits = commit.index > floor || (commit.index == floor && !fresh);
            outcome.expect(fits, || {
                let earlier = book.ops[other].show();
                format!("index {floor} was answered before: {earlier}; then: {}", op.show())
            });
        }
        let highest = highest.entry(commit.shard).or_insert((commit.index, at));
        if highest.0 < commit.index {
            *highest = (commit.index, at);
        }
    }
}

fn ledger_time(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::LedgerTime);
    for (shard, times) in holds::ledger_times(book) {
        let mut last = (0, 0);
        for (index, time) in times {
            outcome.expect(time >= last.1, || {
                format!("shard {shard}: {} at {}, then {time} at {index}", last.1, last.0)
            });
            last = (index, time);
        }
    }
}
