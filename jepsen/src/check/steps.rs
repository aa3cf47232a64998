//! From the operations of one item to steps of the model, with what each was told.

use std::collections::{BTreeMap, BTreeSet};

use super::book::{Book, Item};
use crate::history::{Act, Kind, Op, Row, Standing};
use crate::model::{Ask, Reply, Slot, Step};

/// What an operation was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    Hold {
        state: Standing,
        sold: u64,
    },
    Voided,
    NotFound,
    Stock {
        available: u64,
        held: u64,
        sold: u64,
        total: u64,
    },
    Done,
    Refused(String),
    /// Nothing: it may have been done or not.
    Unknown,
    /// Nobody asked: the deadline passed, certainly or perhaps.
    Lapsed,
}

/// An operation, ready for the search.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) from: u64,
    /// `u64::MAX`: nobody knows.
    pub(super) to: u64,
    pub(super) step: Step,
    pub(super) told: Told,
    /// Whether it has to be somewhere in the order.
    pub(super) must: bool,
    /// The operation; `None` of a lapse.
    pub(super) op: Option<usize>,
}

/// The operations of an item, and how many keys and buyers there are.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) list: Vec<Entry>,
    pub(super) keys: usize,
    pub(super) buyers: usize,
}

/// Numbers for names.
#[derive(Debug, Default)]
struct Numbers<'a>(BTreeMap<&'a str, usize>);

impl<'a> Numbers<'a> {
    fn of(&mut self, name: &'a str) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
}

/// Reads an item's operations.
pub(super) fn entries(book: &Book<'_>, item: &Item<'_>) -> Entries {
    let (mut keys, mut buyers, mut adjusts) =
        (Numbers::default(), Numbers::default(), Numbers::default());
    let key_of_hold = keys_of_holds(book, item);
    let ends = Ends::of(book, item);
    let mut list = Vec::new();
    for at in &item.ops {
        let op = book.ops[*at];
        let asked = op.asked();
        let (Some(told), false) = (told(op), op.is_local()) else { continue };
        if told == Told::Unknown && ends.rule_out(op) {
            continue;
        }
        let step = if op.f() == Act::Adjust {
            let number = adjusts.of(asked.key.as_deref().unwrap_or_default());
            Step::Adjust { number, delta: asked.delta.unwrap_or(0) }
        } else if op.f() == Act::Stock {
            Step::Stock
        } else {
            let of_hold = asked.hold.as_deref().map(|id| key_of_hold.get(id).copied());
            let Some(key) = of_hold.unwrap_or(asked.key.as_deref()) else { continue };
            let buyer = asked.buyer.as_deref().map(|buyer| buyers.of(buyer));
            let quantity = asked.quantity.unwrap_or(0);
            let ask = Ask { key: keys.of(key), buyer, quantity };
            let Some(step) = step(op.f(), ask, &op) else { continue };
            step
        };
        let known = if told == Told::Unknown { ends.done_by(op) } else { Some(op.ended()) };
        let (must, to) = (known.is_some(), known.unwrap_or(u64::MAX));
        list.push(Entry { from: op.invoke.time, to, step, told, must, op: Some(*at) });
    }
    if item.timed {
        lapses(book, item, &mut keys, &mut list);
    }
    Entries { list, keys: keys.0.len(), buyers: buyers.0.len() }
}

fn step(act: Act, ask: Ask, op: &Op<'_>) -> Option<Step> {
    let key = ask.key;
    Some(match act {
        Act::Place => Step::Place(ask),
        Act::Void => Step::Void(ask),
        Act::Receipt => Step::Receipt { key },
        Act::Hold => Step::Look { key },
        Act::Confirm => Step::Confirm {
            key,
            quantity: op.asked().quantity,
            reacquire: op.asked().reacquire == Some(true),
        },
        Act::Release => Step::Release { key },
        Act::Return => Step::Return { key },
        Act::Extend => Step::Extend { key },
        Act::Create
        | Act::Adjust
        | Act::Relayout
        | Act::Layout
        | Act::Stock
        | Act::Audit
        | Act::Holds
        | Act::Digest
        | Act::Leader
        | Act::FaultStart
        | Act::FaultStop
        | Act::Recovered
        | Act::Operation
        | Act::Members
        | Act::Drained
        | Act::Removed
        | Act::Note => return None,
    })
}

/// How everything stood at the end: much of what was never answered is known from it not to have
/// happened, and each such operation halves the search.
struct Ends<'a> {
    /// Whether the end is known at all.
    known: bool,
    by_key: BTreeMap<&'a str, Standing>,
    by_hold: BTreeMap<&'a str, Standing>,
    /// What was certainly done by an attempt that was answered: placements by key, the ends of
    /// holds by id. Each happens once, so the attempts that were not answered did nothing.
    done: BTreeSet<(Act, &'a str)>,
    /// When the hold of a key was first told: its placement was before.
    told: BTreeMap<&'a str, u64>,
    /// How many placements of a key were never answered.
    unanswered: BTreeMap<&'a str, u64>,
}

impl<'a> Ends<'a> {
    fn of(book: &Book<'a>, item: &Item<'a>) -> Ends<'a> {
        let rows = item.last.unwrap_or_default();
        let key = |row: &'a Row| Some((row.reference.as_deref()?, row.state));
        let (mut done, mut told) = (BTreeSet::new(), BTreeMap::new());
        let mut unanswered: BTreeMap<&str, u64> = BTreeMap::new();
        for op in item.ops.iter().map(|at| book.ops[*at]) {
            let key = op.asked().key.as_deref().unwrap_or_default();
            if op.f() == Act::Place && op.kind() == Kind::Info {
                *unanswered.entry(key).or_default() += 1;
            }
            if op.is_fresh_change() {
                let hold = op.asked().hold.as_deref();
                done.insert((op.f(), hold.unwrap_or(key)));
            }
            if let Some(key) = op.row().and_then(|row| row.reference.as_deref()) {
                let first = told.entry(key).or_insert(u64::MAX);
                *first = op.ended().min(*first);
            }
        }
        Ends {
            done,
            told,
            unanswered,
            known: item.last.is_some(),
            by_key: rows.iter().filter_map(key).collect(),
            by_hold: rows.iter().map(|row| (row.id.as_str(), row.state)).collect(),
        }
    }

    /// Whether an operation that was never answered has certainly changed nothing.
    fn rule_out(&self, op: Op<'a>) -> bool {
        let key = op.asked().key.as_deref().unwrap_or_default();
        let hold = op.asked().hold.as_deref().unwrap_or_default();
        let state = self.by_hold.get(hold);
        let ends_as = |states: &[Standing]| state.is_some_and(|state| states.contains(state));
        let name = if hold.is_empty() { key } else { hold };
        if op.f() != Act::Adjust && op.f() != Act::Extend && self.done.contains(&(op.f(), name)) {
            return true;
        }
        match op.f() {
            Act::Place => self.known && !self.by_key.contains_key(key),
            // A key that has a hold was never voided. One that is void may be so by this attempt.
            Act::Void => self.by_key.contains_key(key),
            Act::Confirm => self.known && !ends_as(&[Standing::Sold, Standing::Returned]),
            Act::Release => self.known && !ends_as(&[Standing::Released]),
            Act::Return => self.known && !ends_as(&[Standing::Returned]),
            Act::Create
            | Act::Extend
            | Act::Receipt
            | Act::Adjust
            | Act::Relayout
            | Act::Layout
            | Act::Stock
            | Act::Hold
            | Act::Audit
            | Act::Holds
            | Act::Digest
            | Act::Leader
            | Act::FaultStart
            | Act::FaultStop
            | Act::Recovered
            | Act::Operation
            | Act::Members
            | Act::Drained
            | Act::Removed
            | Act::Note => false,
        }
    }
}

impl Ends<'_> {
    /// Until when a placement that was never answered was certainly done: its key has a hold, and
    /// no other attempt can have made it.
    fn done_by(&self, op: Op<'_>) -> Option<u64> {
        let key = op.asked().key.as_deref()?;
        let only = op.f() == Act::Place && self.unanswered.get(key) == Some(&1);
        (only && self.by_key.contains_key(key)).then(|| self.told.get(key).copied()).flatten()
    }
}

/// The placing key of each hold that was seen.
fn keys_of_holds<'a>(book: &Book<'a>, item: &Item<'a>) -> BTreeMap<&'a str, &'a str> {
    let mut keys = BTreeMap::new();
    for at in &item.ops {
        let op = book.ops[*at];
        let rows = op.told().and_then(|told| told.rows.as_deref()).unwrap_or_default();
        for row in op.row().into_iter().chain(rows) {
            if let Some(key) = row.reference.as_deref() {
                keys.insert(row.id.as_str(), key);
            }
        }
    }
    keys
}

/// What an operation was told; `None` when that says nothing about the item.
fn told(op: Op<'_>) -> Option<Told> {
    match op.kind() {
        Kind::Invoke | Kind::Info => op.f().changes().then_some(Told::Unknown),
        Kind::Fail => {
            let slug = op.refusal()?;
            if slug == "not-found" {
                return Some(Told::NotFound);
            }
            // Of other operations it may be about what is not in the model.
            if slug == "validation" && op.f() == Act::Confirm {
                return Some(Told::Refused(slug.to_owned()));
            }
            let speaks = [
                "sold-out",
                "insufficient-stock",
                "buyer-limit",
                "key-voided",
                "idempotency-key-reused",
                "hold-confirmed",
                "hold-released",
                "hold-expired",
                "hold-not-sold",
                "stock-committed",
                "extend-budget-spent",
            ];
            speaks.contains(&slug).then(|| Told::Refused(slug.to_owned()))
        }
        Kind::Ok => {
            let value = op.told()?;
            let hold = |row: &Row| Told::Hold { state: row.state, sold: row.sold };
            match (op.f(), value.receipt.as_deref()) {
                (Act::Void | Act::Receipt, Some("voided")) => Some(Told::Voided),
                (Act::Receipt, Some("not_found")) => Some(Told::NotFound),
                (Act::Receipt, Some("in_flight")) => None,
                (Act::Adjust, _) => Some(Told::Done),
                (Act::Stock, _) => Some(Told::Stock {
                    available: value.available?,
                    held: value.held?,
                    sold: value.sold?,
                    total: value.total?,
                }),
                _ => value.row.as_ref().map(hold),
            }
        }
    }
}

/// Adds the passing of each deadline: certain for holds that end expired, possible for those that
/// ended in another way after it. Ledger time may differ from the suite's: half of the lifetime is
/// granted.
fn lapses<'a>(book: &Book<'a>, item: &Item<'a>, keys: &mut Numbers<'a>, list: &mut Vec<Entry>) {
    // The last sight of each hold; lists at the end come last.
    let mut seen: BTreeMap<&str, &Row> = BTreeMap::new();
    let mut first_asked: BTreeMap<&str, u64> = BTreeMap::new();
    for at in &item.ops {
        let op = book.ops[*at];
        let rows = op.told().and_then(|told| told.rows.as_deref()).unwrap_or_default();
        for row in op.row().into_iter().chain(rows) {
            let Some(key) = row.reference.as_deref() else { continue };
            let known = seen.entry(key).or_insert(row);
            if row.revision >= known.revision {
                *known = row;
            }
        }
        if let (Act::Place, Some(key)) = (op.f(), op.asked().key.as_deref()) {
            first_asked.entry(key).or_insert(op.invoke.time);
        }
    }
    for (key, row) in seen {
        let Some(first) = first_asked.get(key) else { continue };
        let must = row.state == Standing::Expired;
        if row.state == Standing::Held && item.last.is_some() {
            continue;
        }
        list.push(Entry {
            from: first + item.ttl_ms * 1_000_000 / 2,
            to: u64::MAX,
            step: Step::Expire { key: keys.of(key) },
            told: if must { Told::Lapsed } else { Told::Unknown },
            must,
            op: None,
        });
    }
}

/// Whether what the model answers is what was told.
pub(super) fn fits(reply: Reply, step: Step, told: &Told) -> bool {
    match told {
        Told::Unknown => true,
        Told::Lapsed | Told::Done => reply == Reply::Done,
        Told::Voided => reply == Reply::Voided,
        Told::NotFound => reply == Reply::NotFound,
        Told::Stock { available, held, sold, total } => {
            let told =
                Reply::Stock { available: *available, held: *held, sold: *sold, total: *total };
            reply == told
        }
        Told::Hold { state, sold } => {
            matches!(reply, Reply::Hold(slot) if stands(slot, *state, *sold))
        }
        Told::Refused(slug) => refuses(reply, step, slug),
    }
}

fn stands(slot: Slot, state: Standing, units: u64) -> bool {
    match slot {
        Slot::Free | Slot::Voided => false,
        Slot::Held => state == Standing::Held,
        Slot::Sold { units: sold } => state == Standing::Sold && sold == units,
        Slot::Released => state == Standing::Released,
        Slot::Expired => state == Standing::Expired,
        Slot::Returned => state == Standing::Returned,
    }
}

fn refuses(reply: Reply, step: Step, slug: &str) -> bool {
    match slug {
        "sold-out" => reply == Reply::SoldOut,
        "insufficient-stock" => reply == Reply::Insufficient,
        "buyer-limit" => reply == Reply::BuyerLimit,
        "key-voided" => reply == Reply::KeyVoided,
        "idempotency-key-reused" => reply == Reply::KeyReused,
        "hold-confirmed" => matches!(reply, Reply::Ended(Slot::Sold { .. })),
        "hold-released" => matches!(reply, Reply::Ended(Slot::Released | Slot::Returned)),
        "hold-expired" => reply == Reply::Ended(Slot::Expired),
        "hold-not-sold" => reply == Reply::NotSold,
        "stock-committed" => reply == Reply::Committed,
        "validation" => reply == Reply::Invalid,
        // How often a hold may be extended is not in the model: only that it has not ended.
        "extend-budget-spent" => {
            matches!((step, reply), (Step::Extend { .. }, Reply::Hold(Slot::Held)))
        }
        _ => false,
    }
}
