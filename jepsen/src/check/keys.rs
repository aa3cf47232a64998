//! Keys: one makes at most one hold, a refused one makes none, a voided one never.

use std::collections::{BTreeMap, BTreeSet};

use super::book::{Book, Key};
use super::{Property, Report};
use crate::history::{Act, Kind};

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    one_key_one_hold(book, report);
    refused_left_nothing(book, report);
    void_is_final(book, report);
}

/// The ids that every answer ties to a key, by item and key.
fn ids_by_key<'a>(book: &Book<'a>) -> BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>> {
    let mut ids: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (id, sights) in &book.holds {
        for sight in sights {
            let Some(item) = book.item_of.get(id) else { continue };
            if let Some(key) = sight.row.reference.as_deref() {
                ids.entry((item, key)).or_default().insert(id);
            }
            // The answer to a placement, a void or a receipt is about the key that was asked.
            let op = book.ops[sight.op];
            let about_key = matches!(op.f(), Act::Place | Act::Void | Act::Receipt);
            if let (Some(key), true) = (op.asked().key.as_deref(), about_key) {
                ids.entry((item, key)).or_default().insert(id);
            }
        }
    }
    ids
}

fn one_key_one_hold(book: &Book<'_>, report: &mut Report) {
    let ids = ids_by_key(book);
    let mut keys_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let outcome = report.of(Property::OneKeyOneHold);
    for ((item, key), ids) in &ids {
        outcome.expect(ids.len() == 1, || format!("key {key} of {item} has the holds {ids:?}"));
        for id in ids {
            keys_of.entry(id).or_default().insert(key);
        }
    }
    for (id, keys) in &keys_of {
        outcome.expect(keys.len() == 1, || format!("hold {id} answers to the keys {keys:?}"));
    }
    for (id, sights) in &book.holds {
        let first = sights[0].row;
        let same = |row: &crate::history::Row| {
            row.quantity == first.quantity
                && row.buyer == first.buyer
                && row.region == first.region
                && row.placed_at == first.placed_at
        };
        let other = sights.iter().find(|sight| !same(sight.row));
        outcome.expect(other.is_none(), || {
            format!("hold {id} is once {first:?} and once {:?}", other.map(|sight| sight.row))
        });
    }
}

/// Refusals that say that the key has a hold.
fn speaks_of_a_hold(slug: &str) -> bool {
    let slugs = ["hold-confirmed", "hold-released", "hold-expired", "idempotency-key-reused"];
    slugs.contains(&slug)
}

/// Whether every attempt was definitely refused, for want of something else than a hold.
fn is_refused(book: &Book<'_>, key: &Key) -> bool {
    !key.places.is_empty()
        && key.places.iter().all(|at| {
            let op = book.ops[*at];
            op.kind() == Kind::Fail && !op.refusal().is_some_and(speaks_of_a_hold)
        })
}

fn refused_left_nothing(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::RefusedLeftNothing);
    let ids = ids_by_key(book);
    for ((item, key), known) in &book.keys {
        if is_refused(book, known) && book.item(item).is_some_and(|item| item.last.is_some()) {
            let hold = ids.get(&(*item, *key));
            outcome.expect(hold.is_none(), || {
                let first = book.ops[known.places[0]].show();
                format!("key {key} of {item} was only ever refused and has {hold:?}: {first}")
            });
        }
    }
    for (name, item) in &book.items {
        for row in item.last.unwrap_or_default() {
            let key = row.reference.as_deref().unwrap_or_default();
            let asked = book.keys.get(&(*name, key)).is_some_and(|key| !key.places.is_empty());
            outcome.expect(asked, || format!("nobody ever placed {row:?} of {name}"));
        }
    }
}

fn void_is_final(book: &Book<'_>, report: &mut Report) {
    let outcome = report.of(Property::VoidIsFinal);
    let ids = ids_by_key(book);
    for ((item, key), known) in &book.keys {
        let void = known.voids.iter().map(|at| book.ops[*at]).find(|op| {
            op.is_ok() && op.told().and_then(|told| told.receipt.as_deref()) == Some("voided")
        });
        let Some(void) = void else { continue };
        let hold = ids.get(&(*item, *key));
        outcome.expect(hold.is_none(), || {
            format!("key {key} of {item} was voided and has {hold:?}: {}", void.show())
        });
    }
}
