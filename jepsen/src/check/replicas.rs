//! Replicas: one digest at one index, one list of holds at the end, and back within time.

use std::collections::BTreeMap;

use super::book::Book;
use super::{Property, Report};
use crate::history::{Act, Row, Standing};

/// The most that a shard may take from healing to its next commit, in ms.
const RECOVERY_MS_MAX: u64 = 10_000;

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    digests(book, report);
    lists(book, report);
    recoveries(book, report);
    damage(book, report);
}

fn digests(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::DigestsEqual);
    let mut known: BTreeMap<(u64, u64), (&str, u64)> = BTreeMap::new();
    for event in book.events.iter().filter(|event| event.f == Act::Digest) {
        let value = &event.value;
        let (Some(shard), Some(applied), Some(digest), Some(node)) =
            (value.shard, value.applied, value.digest.as_deref(), event.node)
        else {
            continue;
        };
        match known.get(&(shard, applied)) {
            // The same node again tells nothing.
            Some((_, first)) if *first == node => {}
            Some((other, first)) => outcome.expect(*other == digest, || {
                format!(
                    "shard {shard} at {applied}: node {first} has {other}, node {node} has {digest}"
                )
            }),
            None => {
                known.insert((shard, applied), (digest, node));
            }
        }
    }
}

/// What must be equal on all replicas. Whether a deadline has passed depends on the moment.
fn shape(row: &Row) -> (&str, Standing, u64, u64, u64) {
    let state = if row.state == Standing::Expired { Standing::Held } else { row.state };
    (&row.id, state, row.quantity, row.sold, row.revision)
}

fn lists(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::ReplicasAgree);
    for (name, item) in &book.items {
        let Some(last) = item.last else { continue };
        let mut wanted: Vec<_> = last.iter().map(shape).collect();
        wanted.sort_unstable();
        for (node, rows) in &item.replicas {
            let mut found: Vec<_> = rows.iter().map(shape).collect();
            found.sort_unstable();
            outcome.expect(found == wanted, || {
                let missing: Vec<_> = wanted.iter().filter(|row| !found.contains(row)).collect();
                let more: Vec<_> = found.iter().filter(|row| !wanted.contains(row)).collect();
                format!("node {node} lists {name} otherwise: lacks {missing:?}, has {more:?}")
            });
        }
    }
}

fn recoveries(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::Recovers);
    for event in book.events.iter().filter(|event| event.f == Act::Recovered) {
        let within = match event.value.shard {
            Some(_) => event.value.recovery_ms.is_some_and(|ms| ms <= RECOVERY_MS_MAX),
            None => event.value.recovery_ms.is_some(),
        };
        outcome.expect(within, || serde_json::to_string(event).expect("plain data"));
    }
}

fn damage(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::DamageStaysOut);
    for event in book.events.iter().filter(|event| event.f == Act::FaultStart) {
        if let Some(out) = event.value.stayed_out {
            outcome.expect(out, || serde_json::to_string(event).expect("plain data"));
        }
    }
}
