//! The history, looked up: items, keys, holds, and what the final reads found.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::history::{Act, Commit, Event, History, Kind, Op, Row, Standing};
use crate::workload::{LONG_MS, Workload};

/// What the final phase says before it reads.
pub(crate) const FINAL: &str = "final reads";

/// A sight of a hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) row: &'a Row,
    pub(crate) commit: Option<Commit>,
    /// The operation that told it.
    pub(crate) op: usize,
}

/// An item and what was done with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Item<'a> {
    pub(crate) total: u64,
    pub(crate) limit: Option<u64>,
    /// Whether holds may expire within the run.
    pub(crate) timed: bool,
    /// Whether it has several buckets.
    pub(crate) spread: bool,
    pub(crate) ttl_ms: u64,
    /// Its operations, by their place in [`Book::ops`].
    pub(crate) ops: Vec<usize>,
    /// Its holds at the end, as the leader lists them.
    pub(crate) last: Option<&'a [Row]>,
    /// The same of each replica.
    pub(crate) replicas: Vec<(u64, &'a [Row])>,
}

/// What is known of a placing key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Key {
    pub(crate) places: Vec<usize>,
    pub(crate) voids: Vec<usize>,
}

/// The history, looked up.
#[derive(Debug, Default)]
pub(crate) struct Book<'a> {
    pub(crate) events: &'a [Event],
    pub(crate) ops: Vec<Op<'a>>,
    pub(crate) items: BTreeMap<&'a str, Item<'a>>,
    /// By item and key.
    pub(crate) keys: BTreeMap<(&'a str, &'a str), Key>,
    /// By id, in the order of the answers.
    pub(crate) holds: BTreeMap<&'a str, Vec<Sight<'a>>>,
    /// The item of a hold.
    pub(crate) item_of: HashMap<&'a str, &'a str>,
    /// When the final reads began.
    pub(crate) final_from: u64,
}

impl<'a> Book<'a> {
    pub(crate) fn read(history: &'a History) -> Book<'a> {
        let mut book = Book { events: &history.events, ops: history.ops(), ..Book::default() };
        let is_final = |event: &&Event| event.value.note.as_deref() == Some(FINAL);
        book.final_from =
            history.seen(Act::Note).find(is_final).map_or(u64::MAX, |event| event.time);
        for at in 0..book.ops.len() {
            let op = book.ops[at];
            let Some(name) = op.asked().item.as_deref() else { continue };
            if op.f() == Act::Create {
                book.define(name, op);
                continue;
            }
            book.items.entry(name).or_default().ops.push(at);
            let key = op.asked().key.as_deref();
            match (op.f(), key) {
                (Act::Place, Some(key)) => {
                    book.keys.entry((name, key)).or_default().places.push(at);
                }
                (Act::Void, Some(key)) => {
                    book.keys.entry((name, key)).or_default().voids.push(at);
                }
                _ => {}
            }
            book.look(name, at, op);
        }
        book
    }

    fn define(&mut self, name: &'a str, op: Op<'a>) {
        let asked = op.asked();
        let workload = asked.workload.as_deref();
        let spread = Workload::ALL.iter().any(|w| Some(w.name()) == workload && w.is_spread());
        let item = self.items.entry(name).or_default();
        item.total = asked.total.unwrap_or(0);
        item.limit = asked.limit;
        item.ttl_ms = asked.ttl_ms.unwrap_or(LONG_MS);
        item.timed = item.ttl_ms < LONG_MS;
        item.spread = spread || asked.buckets.is_some() || asked.regions.is_some();
    }

    /// Notes every hold that an answer shows.
    fn look(&mut self, name: &'a str, at: usize, op: Op<'a>) {
        let Some(done) = op.done.filter(|done| done.kind != Kind::Info) else { return };
        let local = op.is_local();
        let rows = done.value.rows.as_deref();
        if let (Some(rows), true) = (rows, done.time >= self.final_from && op.is_ok()) {
            let item = self.items.entry(name).or_default();
            if done.value.note.is_none() && !local {
                item.last = Some(rows);
            } else if done.value.note.is_none() {
                item.replicas.push((done.node.unwrap_or(0), rows));
            }
        }
        for row in done.value.row.iter().chain(rows.into_iter().flatten()) {
            let sight = Sight { row, commit: done.commit, op: at };
            self.holds.entry(&row.id).or_default().push(sight);
            self.item_of.insert(&row.id, name);
        }
    }

    /// The item, when there is one.
    pub(crate) fn item(&self, name: &str) -> Option<&Item<'a>> {
        self.items.get(name)
    }

    /// Items that were worked on and have no complete list at the end.
    pub(crate) fn unread(&self) -> Vec<String> {
        let unread =
            self.items.iter().filter(|(_, item)| !item.ops.is_empty() && item.last.is_none());
        unread.map(|(name, _)| (*name).to_owned()).collect()
    }

    /// Attempts to change something whose fate is not known at the end: a placement whose key has
    /// neither a hold nor a void nor a final list that shows its absence, or an operation on a
    /// hold, or an adjustment, that was never answered.
    pub(crate) fn unresolved(&self) -> u64 {
        let mut count = 0;
        for ((name, key), known) in &self.keys {
            let unknown = |at: &&usize| self.ops[**at].kind() == Kind::Info;
            let attempts = known.places.iter().filter(unknown).count() as u64;
            if attempts > 0 && !self.is_settled(name, key, known) {
                count += attempts;
            }
        }
        let answered: BTreeSet<(Act, &str)> = self.answered_keys();
        for op in self.ops.iter().filter(|op| op.kind() == Kind::Info) {
            let key = op.asked().key.as_deref().unwrap_or_default();
            // A void changes nothing but its key, which was counted above.
            let on_hold = matches!(op.f(), Act::Extend | Act::Confirm | Act::Release | Act::Return);
            let counts = on_hold || op.f() == Act::Adjust;
            let known = answered.contains(&(op.f(), key)) || (on_hold && self.has_last_sight(op));
            count += u64::from(counts && !known);
        }
        count
    }

    fn is_settled(&self, name: &str, key: &str, known: &Key) -> bool {
        let voided = known.voids.iter().any(|at| self.ops[*at].is_ok());
        let placed = known.places.iter().any(|at| self.ops[*at].row().is_some());
        let last = self.item(name).and_then(|item| item.last).unwrap_or_default();
        voided || placed || last.iter().any(|row| row.reference.as_deref() == Some(key))
    }

    fn answered_keys(&self) -> BTreeSet<(Act, &'a str)> {
        let answered = self.ops.iter().filter(|op| op.is_ok());
        answered.filter_map(|op| Some((op.f(), op.asked().key.as_deref()?))).collect()
    }

    /// Whether the end shows what became of the hold that an operation is about.
    fn has_last_sight(&self, op: &Op<'_>) -> bool {
        let (Some(name), Some(id)) = (op.asked().item.as_deref(), op.asked().hold.as_deref())
        else {
            return false;
        };
        let last = self.item(name).and_then(|item| item.last).unwrap_or_default();
        last.iter().any(|row| row.id == id)
    }
}

impl Sight<'_> {
    /// Sorts sights by the log. One entry may change a hold twice: then the later state counts.
    pub(crate) fn rank(&self) -> (u64, u8) {
        let rank = match self.row.state {
            Standing::Held => 0,
            Standing::Expired => 1,
            Standing::Sold => 2,
            Standing::Released | Standing::Returned => 3,
        };
        (self.row.revision, rank)
    }
}

/// Whether a hold that stood so may stand so later.
pub(crate) fn may_become(before: Standing, after: Standing) -> bool {
    match before {
        Standing::Held => true,
        Standing::Expired => after != Standing::Held,
        Standing::Sold => matches!(after, Standing::Sold | Standing::Returned),
        Standing::Released => after == Standing::Released,
        Standing::Returned => after == Standing::Returned,
    }
}
