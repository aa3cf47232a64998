//! The first tier's sharpest tool: what each entry of the log did to an item, replayed in the order
//! of the log, against every figure and every refusal that was told.
//!
//! Most effects are known to the index. What was never answered is known between two indices, and
//! widens what may be read there. Items whose holds expire within the run, or that have several
//! buckets, are left to the others.

use std::collections::BTreeMap;

use super::book::{Book, Item, Sight};
use super::{Property, Report};
use crate::history::{Act, Kind, Op, Standing};

/// What one change did, and between which indices it was.
#[derive(Debug, Clone, Default)]
struct Effect<'a> {
    lowest: u64,
    highest: u64,
    /// Whether it may not have been at all.
    maybe: bool,
    available: i64,
    held: i64,
    sold: i64,
    total: i64,
    /// Units that it adds to what this buyer has.
    buyer: Option<(&'a str, i64)>,
}

/// Between what and what a figure lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Range {
    least: i64,
    most: i64,
}

impl Range {
    fn holds(self, told: Option<u64>) -> bool {
        let told = told.and_then(|told| i64::try_from(told).ok()).unwrap_or(-1);
        self.least <= told && told <= self.most
    }
}

/// The effects on one item, ready to be summed.
struct Ledger<'a> {
    total: i64,
    effects: Vec<Effect<'a>>,
}

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    for (name, item) in &book.items {
        if item.timed || item.spread || item.last.is_none() {
            continue;
        }
        match Ledger::of(book, item) {
            Ok(ledger) => {
                report.replayed_items += 1;
                ledger.check(book, item, report);
            }
            Err(why) => report.unreplayed.push(format!("{name}: {why}")),
        }
    }
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX / 4)
}

impl<'a> Ledger<'a> {
    fn of(book: &Book<'a>, item: &Item<'a>) -> Result<Ledger<'a>, String> {
        let mut effects = Vec::new();
        for row in item.last.unwrap_or_default() {
            let sights = book.holds.get(row.id.as_str()).map_or(&[][..], Vec::as_slice);
            hold_effects(book, sights, &mut effects)?;
        }
        adjust_effects(book, item, &mut effects);
        Ok(Ledger { total: signed(item.total), effects })
    }

    /// A figure after the whole of the entry at `index`.
    fn after(&self, index: u64, part: impl Fn(&Effect<'a>) -> i64, start: i64) -> Range {
        let mut range = Range { least: start, most: start };
        for effect in &self.effects {
            let units = part(effect);
            if effect.highest <= index && !effect.maybe {
                range.least += units;
                range.most += units;
            } else if effect.lowest <= index {
                range.least += units.min(0);
                range.most += units.max(0);
            }
        }
        range
    }

    /// The least that may have been available at some moment of the entry at `index`, with its
    /// credits or without.
    fn least_within(&self, index: u64) -> i64 {
        let mut least = self.after(index.saturating_sub(1), |e| e.available, self.total).least;
        for effect in &self.effects {
            if effect.lowest <= index && effect.highest >= index && effect.available < 0 {
                let counted = effect.lowest < index;
                least += if counted { 0 } else { effect.available };
            }
        }
        least
    }

    fn check(&self, book: &Book<'a>, item: &Item<'a>, report: &mut Report) {
        for at in &item.ops {
            let op = book.ops[*at];
            let Some(commit) = op.commit() else { continue };
            match (op.f(), op.kind()) {
                (Act::Stock, Kind::Ok) => self.reads(op, commit.index, report),
                (Act::Place, Kind::Ok) if op.is_fresh_change() => {
                    self.grants(op, commit.index, item, report);
                }
                (Act::Place, Kind::Fail) => self.refuses(op, commit.index, report),
                _ => {}
            }
        }
    }

    fn reads(&self, op: Op<'_>, index: u64, report: &mut Report) {
        let Some(told) = op.told() else { return };
        let available = self.after(index, |e| e.available, self.total);
        let held = self.after(index, |e| e.held, 0);
        let sold = self.after(index, |e| e.sold, 0);
        let total = self.after(index, |e| e.total, self.total);
        let fits = available.holds(told.available)
            && held.holds(told.held)
            && sold.holds(told.sold)
            && total.holds(told.total);
        report.of(Property::Replay).expect(fits, || {
            format!(
                "after {index} there are available {available:?}, held {held:?}, sold {sold:?}, \
                 total {total:?}: {}",
                op.show()
            )
        });
    }

    fn grants(&self, op: Op<'a>, index: u64, item: &Item<'a>, report: &mut Report) {
        let most = self.after(index, |e| e.available, self.total).most;
        let outcome = report.of(Property::Replay);
        outcome.expect(most >= 0, || {
            format!("after {index} there are {most} units at most: {}", op.show())
        });
        let (Some(limit), Some(buyer)) = (item.limit, op.asked().buyer.as_deref()) else { return };
        let of_buyer = |effect: &Effect<'a>| match effect.buyer {
            Some((other, units)) if other == buyer => units,
            Some(_) | None => 0,
        };
        let has = self.after(index, of_buyer, 0).least;
        report.of(Property::BuyerLimit).expect(has <= signed(limit), || {
            format!("{buyer} has {has} units after {index}, the limit is {limit}: {}", op.show())
        });
    }

    fn refuses(&self, op: Op<'_>, index: u64, report: &mut Report) {
        let bound = match op.refusal() {
            Some("sold-out") => 0,
            Some("insufficient-stock") => signed(op.asked().quantity.unwrap_or(1)) - 1,
            Some(_) | None => return,
        };
        let least = self.least_within(index);
        report.of(Property::Replay).expect(least <= bound, || {
            format!("at {index} there were {least} units at least: {}", op.show())
        });
    }
}

/// What became of one hold, from every sight of it.
fn hold_effects<'a>(
    book: &Book<'a>,
    sights: &[Sight<'a>],
    effects: &mut Vec<Effect<'a>>,
) -> Result<(), String> {
    let mut by_revision: Vec<&Sight<'a>> = sights.iter().collect();
    by_revision.sort_by_key(|sight| sight.rank());
    let Some(first) = by_revision.first() else { return Ok(()) };
    let row = first.row;
    let (units, buyer) = (signed(row.quantity), row.buyer.as_deref());
    let placed = sights.iter().find_map(|sight| {
        let op = book.ops[sight.op];
        let fresh = op.f() == Act::Place && op.is_fresh_change();
        sight.commit.filter(|_| fresh).map(|commit| commit.index)
    });
    let of_buyer = |units: i64| buyer.map(|buyer| (buyer, units));
    effects.push(Effect {
        lowest: placed.unwrap_or(0),
        highest: placed.unwrap_or(row.revision),
        available: -units,
        held: units,
        buyer: of_buyer(units),
        ..Effect::default()
    });
    let (mut state, mut sold) = (Standing::Held, 0);
    for sight in by_revision {
        let (now, index) = (sight.row.state, sight.row.revision);
        if now == state {
            continue;
        }
        let exactly = Effect { lowest: index, highest: index, ..Effect::default() };
        let effect = match (state, now) {
            (Standing::Held, Standing::Sold) => {
                sold = signed(sight.row.sold);
                Effect {
                    held: -units,
                    sold,
                    available: units - sold,
                    buyer: of_buyer(sold - units),
                    ..exactly
                }
            }
            (Standing::Held, Standing::Released) => {
                Effect { held: -units, available: units, buyer: of_buyer(-units), ..exactly }
            }
            (Standing::Sold, Standing::Returned) => {
                Effect { sold: -sold, available: sold, buyer: of_buyer(-sold), ..exactly }
            }
            _ => return Err(format!("hold {} went from {state:?} to {now:?}", row.id)),
        };
        effects.push(effect);
        state = now;
    }
    Ok(())
}

/// Adjustments: one effect for each key.
fn adjust_effects<'a>(book: &Book<'a>, item: &Item<'a>, effects: &mut Vec<Effect<'a>>) {
    let mut by_key: BTreeMap<&str, Vec<Op<'a>>> = BTreeMap::new();
    for op in item.ops.iter().map(|at| book.ops[*at]).filter(|op| op.f() == Act::Adjust) {
        by_key.entry(op.asked().key.as_deref().unwrap_or_default()).or_default().push(op);
    }
    for ops in by_key.values() {
        let delta = ops[0].asked().delta.unwrap_or(0);
        let whole = Effect { available: delta, total: delta, ..Effect::default() };
        let fresh = ops.iter().find(|op| op.is_fresh_change()).and_then(|op| op.commit());
        let told = ops.iter().find(|op| op.is_ok()).and_then(|op| op.commit());
        let unknown = ops.iter().any(|op| op.kind() == Kind::Info);
        if let Some(commit) = fresh {
            effects.push(Effect { lowest: commit.index, highest: commit.index, ..whole });
        } else if let Some(commit) = told {
            effects.push(Effect { highest: commit.index, ..whole });
        } else if unknown {
            effects.push(Effect { highest: u64::MAX, maybe: true, ..whole });
        }
    }
}
