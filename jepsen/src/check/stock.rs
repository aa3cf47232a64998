//! Stock: never oversold, every unit accounted for, no buyer beyond the limit, at every read and at
//! the end.

use std::collections::BTreeMap;

use super::book::{Book, Item};
use super::{Property, Report};
use crate::history::{Act, Op, Standing, Value};

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    for op in &book.ops {
        let reads = matches!(op.f(), Act::Stock | Act::Audit);
        let (Some(told), true) = (op.told(), reads && op.is_ok()) else { continue };
        let item = op.asked().item.as_deref().and_then(|name| book.item(name));
        let Some(item) = item else { continue };
        // What lies on several shards is read there one after the other: its sums hold when nothing
        // moves.
        let still = op.invoke.time >= book.final_from;
        if !item.spread || still {
            read(*op, told, report);
        }
    }
    for (name, item) in &book.items {
        last(book, name, item, report);
    }
}

fn read(op: Op<'_>, told: &Value, report: &mut Report) {
    let figure = |value: Option<u64>| value.unwrap_or(0);
    let (held, sold) = (figure(told.held), figure(told.sold));
    let (total, transit) = (figure(told.total), figure(told.in_transit));
    let fits = held + sold + transit <= total;
    report
        .of(Property::NeverOversold)
        .expect(fits, || format!("{held} held + {sold} sold of {total}: {}", op.show()));
    let sum = figure(told.available) + held + sold + transit;
    let outcome = report.of(Property::Conservation);
    outcome.expect(sum == total, || format!("{sum} units of {total}: {}", op.show()));
    if op.f() == Act::Audit {
        let sound = told.conserved == Some(true);
        outcome.expect(sound, || format!("the audit itself says so: {}", op.show()));
    }
}

/// The last read of the item's figures.
fn last_figures<'a>(book: &Book<'a>, item: &Item<'a>) -> Option<&'a Value> {
    let reads = |op: &&Op<'_>| {
        let is_read = matches!(op.f(), Act::Stock | Act::Audit) && !op.is_local();
        is_read && op.is_ok() && op.invoke.time >= book.final_from
    };
    let ops = item.ops.iter().map(|at| &book.ops[*at]);
    ops.filter(reads).filter_map(|op| op.told()).next_back()
}

fn last(book: &Book<'_>, name: &str, item: &Item<'_>, report: &mut Report) {
    let (Some(rows), Some(told)) = (item.last, last_figures(book, item)) else { return };
    let held: u64 = rows.iter().filter(|r| r.state == Standing::Held).map(|r| r.quantity).sum();
    let sold: u64 = rows.iter().map(|row| row.sold).sum();
    let total = told.total.unwrap_or(0);
    report.of(Property::NeverOversold).expect(held + sold <= total, || {
        format!("the holds of {name} at the end are {held} held and {sold} sold of {total}")
    });
    let outcome = report.of(Property::Conservation);
    outcome.expect(Some(sold) == told.sold, || {
        format!("the holds of {name} say {sold} sold, its stock says {:?}", told.sold)
    });
    if !item.timed {
        outcome.expect(Some(held) == told.held, || {
            format!("the holds of {name} say {held} held, its stock says {:?}", told.held)
        });
    }
    let Some(limit) = item.limit else { return };
    let mut has: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in rows {
        let held = if row.state == Standing::Held { row.quantity } else { 0 };
        let buyer = row.buyer.as_deref().unwrap_or_default();
        *has.entry((buyer, &row.region)).or_default() += held + row.sold;
    }
    for ((buyer, region), units) in has {
        report.of(Property::BuyerLimit).expect(units <= limit, || {
            format!("{buyer} has {units} units of {name} in {region}, the limit is {limit}")
        });
    }
}
