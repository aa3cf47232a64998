//! Who belongs to the cluster: operations end, nodes list the same, a drained node leads nothing,
//! and a removed one serves nothing.

use std::collections::BTreeMap;

use super::book::Book;
use super::{Property, Report};
use crate::history::{Act, Event, Kind};

/// The most that an operation may take, in ms.
const OPERATION_MS_MAX: u64 = 30_000;
/// What a node said of its leadership may have been on its way for so long, in ns.
const ON_ITS_WAY: u64 = 600_000_000;

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    operations(book, report);
    lists(book, report);
    drained(book, report);
    removed(book, report);
}

fn show(event: &Event) -> String {
    serde_json::to_string(event).expect("plain data")
}

fn seen<'a>(book: &Book<'a>, act: Act) -> impl Iterator<Item = &'a Event> {
    book.events.iter().filter(move |event| event.f == act)
}

fn operations(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::OperationsEnd);
    for event in seen(book, Act::Operation) {
        let ended = event.value.recovery_ms.is_some_and(|ms| ms <= OPERATION_MS_MAX);
        outcome.expect(ended, || show(event));
    }
}

fn lists(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::MembersAgree);
    for event in seen(book, Act::Members) {
        let same = event.value.voters.is_some() && event.value.voters == event.value.wanted;
        outcome.expect(same, || show(event));
    }
}

/// The node's own word at both ends of the time that it is drained, and everybody's between.
fn drained(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::DrainedLeadsNothing);
    let mut since: BTreeMap<u64, u64> = BTreeMap::new();
    for event in book.events {
        let Some(node) = event.node else { continue };
        if event.f == Act::Drained {
            outcome.expect(event.value.leads == Some(0), || show(event));
            match event.value.drained {
                Some(true) => since.insert(node, event.time),
                Some(false) | None => since.remove(&node),
            };
        }
        if event.f == Act::Leader && !since.is_empty() {
            let leader = event.value.leader.unwrap_or(node);
            let from = since.get(&leader).map_or(u64::MAX, |from| from + ON_ITS_WAY);
            outcome.expect(event.time < from, || {
                format!("it was drained {} ns before: {}", event.time - from, show(event))
            });
        }
    }
}

/// After a node has said that it was removed, it answers nothing but that it does not serve.
fn removed(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::RemovedServesNothing);
    let mut since: BTreeMap<u64, u64> = BTreeMap::new();
    for event in seen(book, Act::Removed) {
        outcome.expect(event.value.stayed_out == Some(true), || show(event));
        if let (Some(node), Some(true)) = (event.node, event.value.stayed_out) {
            since.entry(node).or_insert(event.time);
        }
    }
    for op in &book.ops {
        let from = op.invoke.node.and_then(|node| since.get(&node)).copied();
        if from.is_none_or(|from| op.invoke.time < from) {
            continue;
        }
        let refused = op.kind() == Kind::Fail
            && op.commit().is_none()
            && op.told().is_none_or(|told| told.status.is_none_or(|status| status == 503));
        outcome.expect(refused || op.kind() == Kind::Info, || op.show());
    }
}
