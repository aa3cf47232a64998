//! The second tier: a search for an order of one item's operations that explains every answer
//! (Wing and Gong, with Lowe's list and a memory of states seen). It knows nothing of indices.

use std::collections::HashSet;

use super::book::{Book, Item};
use super::steps::{self, Entries, Entry};
use super::{Property, Report};
use crate::dice::mix;
use crate::model;

/// Steps of the search before an item is left undecided.
const STEPS_MAX: u64 = 3_000_000;

/// Operations of an item that may still be searched; the first tier alone judges larger ones.
const SEARCHED_MAX: usize = 3_000;

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// There is such an order.
    Order,
    /// There is none. The furthest that it came, and the operation that no order explains there.
    NoOrder { explained: usize, stuck: Option<usize> },
    /// It would take too long.
    Undecided,
}

pub(super) fn check(book: &Book<'_>, report: &mut Report) {
    for (name, item) in &book.items {
        if item.spread || item.ops.is_empty() {
            continue;
        }
        let entries = steps::entries(book, item);
        if entries.list.len() > SEARCHED_MAX {
            report.too_large.push(format!("{name}: {} operations", entries.list.len()));
            continue;
        }
        report.searched_items += 1;
        report.searched_operations += entries.list.len() as u64;
        match search(item, &entries) {
            Found::Order => report.of(Property::Linearizable).expect(true, String::new),
            Found::Undecided => {
                report.undecided.push(format!("{name}: {} operations", entries.list.len()));
            }
            Found::NoOrder { explained, stuck } => {
                report.of(Property::Linearizable).expect(false, || {
                    let stuck = stuck.map(|at| match entries.list[at].op {
                        Some(op) => book.ops[op].show(),
                        None => format!("{:?}", entries.list[at]),
                    });
                    format!(
                        "{name}: no order explains its {} operations; {explained} can be \
                         explained, then not: {stuck:?}",
                        entries.list.len()
                    )
                });
            }
        }
    }
}

/// An end of an operation in the list of moments.
#[derive(Debug, Clone, Copy)]
struct Moment {
    entry: usize,
    /// Whether it begins here.
    begins: bool,
    next: usize,
    before: usize,
}

/// The moments of all operations, in a list from which an operation can be lifted and put back.
struct Moments {
    list: Vec<Moment>,
    begin: Vec<usize>,
    end: Vec<Option<usize>>,
}

/// Stands for the end of the list.
const NONE: usize = usize::MAX;

impl Moments {
    fn of(entries: &[Entry]) -> Moments {
        let mut order: Vec<(u64, bool, usize)> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            order.push((entry.from, false, at));
            if entry.must {
                order.push((entry.to, true, at));
            }
        }
        order.sort_unstable();
        let mut moments =
            Moments { list: vec![], begin: vec![0; entries.len()], end: vec![None; entries.len()] };
        // Place 0 is the head.
        let head = Moment { entry: NONE, begins: false, next: NONE, before: NONE };
        moments.list.push(head);
        for (_, ends, entry) in order {
            let at = moments.list.len();
            moments.list[at - 1].next = at;
            moments.list.push(Moment { entry, begins: !ends, next: NONE, before: at - 1 });
            if ends {
                moments.end[entry] = Some(at);
            } else {
                moments.begin[entry] = at;
            }
        }
        moments
    }

    fn unlink(&mut self, at: usize) {
        let Moment { next, before, .. } = self.list[at];
        self.list[before].next = next;
        if next != NONE {
            self.list[next].before = before;
        }
    }

    fn relink(&mut self, at: usize) {
        let Moment { next, before, .. } = self.list[at];
        self.list[before].next = at;
        if next != NONE {
            self.list[next].before = at;
        }
    }

    fn lift(&mut self, entry: usize) {
        self.unlink(self.begin[entry]);
        if let Some(end) = self.end[entry] {
            self.unlink(end);
        }
    }

    fn put_back(&mut self, entry: usize) {
        if let Some(end) = self.end[entry] {
            self.relink(end);
        }
        self.relink(self.begin[entry]);
    }
}

fn place_hash(entry: usize) -> u128 {
    let low = mix(entry as u64 ^ 0x71a3);
    (u128::from(mix(low)) << 64) | u128::from(low)
}

/// Searches for an order.
pub(super) fn search(item: &Item<'_>, entries: &Entries) -> Found {
    let list = &entries.list;
    let mut moments = Moments::of(list);
    let mut state = model::Item::new(item.total, item.limit, entries.keys, entries.buyers);
    let mut left = list.iter().filter(|entry| entry.must).count();
    let mut seen: HashSet<u128> = HashSet::new();
    let mut stack: Vec<(usize, model::Item)> = Vec::new();
    let mut done = 0_u128;
    let (mut best, mut stuck, mut explained) = (usize::MAX, None, 0);
    let mut at = moments.list[0].next;
    let mut steps = 0_u64;
    while left > 0 {
        steps += 1;
        if steps > STEPS_MAX {
            return Found::Undecided;
        }
        let moment = moments.list.get(at).copied();
        if let Some(moment) = moment.filter(|moment| moment.begins) {
            let entry = &list[moment.entry];
            let mut next = state.clone();
            let reply = next.step(entry.step);
            let moves = entry.must || next.fingerprint() != state.fingerprint();
            let now = done ^ place_hash(moment.entry);
            if moves
                && steps::fits(reply, entry.step, &entry.told)
                && seen.insert(now ^ next.fingerprint())
            {
                stack.push((moment.entry, std::mem::replace(&mut state, next)));
                moments.lift(moment.entry);
                done = now;
                left -= usize::from(entry.must);
                at = moments.list[0].next;
            } else {
                at = moment.next;
            }
            continue;
        }
        // An operation ended that has no place yet: the last choice was wrong.
        if left < best {
            best = left;
            explained = stack.len();
            stuck = moment.map(|moment| moment.entry);
        }
        let Some((entry, before)) = stack.pop() else {
            return Found::NoOrder { explained, stuck };
        };
        state = before;
        done ^= place_hash(entry);
        left += usize::from(list[entry].must);
        moments.put_back(entry);
        at = moments.list[moments.begin[entry]].next;
    }
    Found::Order
}
