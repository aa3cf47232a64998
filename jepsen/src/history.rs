//! The history of a run: one event a line, in the shape of Jepsen's operations.
//!
//! An operation is an `invoke` and, by the same process, an `ok` (done), a `fail` (definitely not
//! done by this attempt) or an `info` (unknown; the process ends with it and its client goes on
//! under another number). What clients asked and were told, what the observer saw, the faults with
//! their proofs and the final reads are all in here: a verdict can be given from the file alone.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What an event says of its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Invoke,
    Ok,
    Fail,
    Info,
}

/// What is done: Jepsen's `f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Act {
    /// Creates an item.
    Create,
    Place,
    Extend,
    Confirm,
    Release,
    Return,
    Void,
    /// Asks what became of a key.
    Receipt,
    Adjust,
    /// Changes an item's regions.
    Relayout,
    /// Reads where an item's stock lies.
    Layout,
    /// Reads an item's stock.
    Stock,
    /// Reads a hold.
    Hold,
    Audit,
    /// Lists all holds of an item.
    Holds,
    /// The observer saw a replica's digest.
    Digest,
    /// The observer saw another leader.
    Leader,
    /// A fault begins.
    FaultStart,
    /// A fault ends.
    FaultStop,
    /// The nemesis measured how long after healing a shard committed, or a node was ready.
    Recovered,
    /// An operation on the nodes has ended, or not.
    Operation,
    /// Who votes, as a node lists them after an operation.
    Members,
    /// What a drained node leads by its own word, when it is drained and before it may lead again.
    Drained,
    /// A removed node says why it serves nothing.
    Removed,
    /// Something worth knowing that no checker reads.
    Note,
}

impl Act {
    /// Whether it changes stock, holds or keys.
    pub(crate) fn changes(self) -> bool {
        match self {
            Act::Create
            | Act::Place
            | Act::Extend
            | Act::Confirm
            | Act::Release
            | Act::Return
            | Act::Void
            | Act::Adjust
            | Act::Relayout => true,
            Act::Layout
            | Act::Receipt
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

    /// Whether a client asks it of the cluster.
    pub(crate) fn is_call(self) -> bool {
        self.changes()
            || matches!(self, Act::Receipt | Act::Stock | Act::Hold | Act::Audit | Act::Holds)
            || self == Act::Layout
    }
}

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Process {
    Client(u64),
    Named(String),
}

impl Process {
    /// Whoever makes the faults.
    pub(crate) fn nemesis() -> Process {
        Process::Named("nemesis".to_owned())
    }

    /// Whoever watches the nodes.
    pub(crate) fn observer() -> Process {
        Process::Named("observer".to_owned())
    }
}

/// Where a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    Held,
    Sold,
    Released,
    Expired,
    Returned,
}

/// A point of a shard's log: Jepsen knows no such thing, Holdfast tells it with every answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Commit {
    pub(crate) shard: u64,
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) node: u64,
}

impl Commit {
    /// Reads `shard:term.node:index`.
    pub(crate) fn parse(text: &str) -> Option<Commit> {
        let mut parts = text.split(':');
        let shard = parts.next()?.parse().ok()?;
        let (term, node) = parts.next()?.split_once('.')?;
        let index = parts.next()?.parse().ok()?;
        let (term, node) = (term.parse().ok()?, node.parse().ok()?);
        parts.next().is_none().then_some(Commit { shard, index, term, node })
    }
}

/// A hold as a list or an answer shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) state: Standing,
    pub(crate) quantity: u64,
    pub(crate) sold: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) buyer: Option<String>,
    pub(crate) region: String,
    /// The placing key: the suite sends it as the reference of each hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<String>,
    /// Ledger time, in ms.
    pub(crate) placed_at: u64,
    pub(crate) expires_at: u64,
    /// The log index of its last change.
    pub(crate) revision: u64,
}

macro_rules! value {
    ($( $(#[$doc:meta])* $name:ident: $kind:ty; )*) => {
        /// What was asked and, in the completion, also what was told. Absent members do not apply.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct Value {
            $( $(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) $name: Option<$kind>, )*
        }
    };
}

value! {
    item: String;
    /// The idempotency key; of a void or a receipt, the placing key that it is about.
    key: String;
    buyer: String;
    region: String;
    /// The id of the hold that an operation is about.
    hold: String;
    quantity: u64;
    ttl_ms: u64;
    reacquire: bool;
    /// How an item is created.
    total: u64;
    limit: u64;
    buckets: u64;
    regions: serde_json::Value;
    delta: i64;
    /// The item's revision that a change of its regions rests on.
    revision: u64;
    /// `local`, `leader` or `linearizable`.
    consistency: String;
    /// The workload that it belongs to.
    workload: String;
    /// The HTTP status.
    status: u16;
    /// The hold that was told.
    row: Row;
    rows: Vec<Row>;
    /// `committed`, `voided`, `not_found` or `in_flight`.
    receipt: String;
    replayed: bool;
    available: u64;
    held: u64;
    sold: u64;
    in_transit: u64;
    written_off: u64;
    /// What an audit says of the laws.
    conserved: bool;
    number: u64;
    home_shard: u64;
    /// What the observer saw.
    shard: u64;
    applied: u64;
    digest: String;
    term: u64;
    leader: u64;
    /// A fault: its kind, its number within the run, the nodes that it hits, what proves it.
    fault: String;
    fault_id: u64;
    nodes: Vec<u64>;
    proof: String;
    /// Whether the proof shows that the fault did something.
    effective: bool;
    /// Whether a node whose data was damaged or lost took no part.
    stayed_out: bool;
    /// Ms from healing to the first commit of `shard`, or to the readiness of `node`.
    recovery_ms: u64;
    /// The word of an operation on the nodes; `recovery_ms` is how long it took.
    operation: String;
    /// Who votes by a node's word, and who should.
    voters: Vec<u64>;
    wanted: Vec<u64>;
    /// How many shards a node leads, and whether it stays drained.
    leads: u64;
    drained: bool;
    note: String;
}

/// One line of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Its place in the history.
    pub(crate) index: u64,
    /// Ns since the run began, by the suite's monotonic clock.
    pub(crate) time: u64,
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    pub(crate) process: Process,
    pub(crate) f: Act,
    pub(crate) value: Value,
    /// The node that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<u64>,
    /// What the answer rests on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<Commit>,
    /// The slug of a refusal, or why nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// An operation: its invocation and how it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op<'a> {
    pub(crate) invoke: &'a Event,
    /// `None`: the run ended first.
    pub(crate) done: Option<&'a Event>,
}

impl<'a> Op<'a> {
    pub(crate) fn kind(&self) -> Kind {
        self.done.map_or(Kind::Info, |done| done.kind)
    }

    pub(crate) fn f(&self) -> Act {
        self.invoke.f
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.kind() == Kind::Ok
    }

    /// What was asked.
    pub(crate) fn asked(&self) -> &'a Value {
        &self.invoke.value
    }

    /// What was told, if anything was.
    pub(crate) fn told(&self) -> Option<&'a Value> {
        self.done.filter(|done| done.kind != Kind::Info).map(|done| &done.value)
    }

    /// The slug of its refusal.
    pub(crate) fn refusal(&self) -> Option<&'a str> {
        self.done.filter(|done| done.kind == Kind::Fail).and_then(|done| done.error.as_deref())
    }

    pub(crate) fn commit(&self) -> Option<Commit> {
        self.done.filter(|done| done.kind != Kind::Info).and_then(|done| done.commit)
    }

    /// The hold that was told.
    pub(crate) fn row(&self) -> Option<&'a Row> {
        self.told().and_then(|told| told.row.as_ref())
    }

    /// Whether this answer was given from a replica's memory that may be old.
    pub(crate) fn is_local(&self) -> bool {
        self.asked().consistency.as_deref() == Some("local")
    }

    /// Whether this very attempt has certainly changed the log. A void does not say whether it was
    /// the first of its key.
    pub(crate) fn is_fresh_change(&self) -> bool {
        let replayed = self.told().is_some_and(|told| told.replayed == Some(true));
        self.is_ok() && self.f().changes() && self.f() != Act::Void && !replayed
    }

    /// When it ended; the end of time when that is unknown.
    pub(crate) fn ended(&self) -> u64 {
        self.done.filter(|done| done.kind != Kind::Info).map_or(u64::MAX, |done| done.time)
    }

    /// A line for people.
    pub(crate) fn show(&self) -> String {
        let done = self.done.map(|done| serde_json::to_string(done).expect("plain data"));
        let asked = serde_json::to_string(self.invoke).expect("plain data");
        format!("{asked} -> {}", done.unwrap_or_else(|| "nothing".to_owned()))
    }
}

/// A whole history.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
}

impl History {
    /// Reads JSON lines.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or a line is not an event; names the line.
    pub(crate) fn read(path: &Path) -> Result<History, String> {
        let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let file = std::fs::File::open(path).map_err(|e| wrong(&e))?;
        let mut events = Vec::new();
        for (at, line) in std::io::BufReader::new(file).lines().enumerate() {
            let line = line.map_err(|e| wrong(&e))?;
            let event =
                serde_json::from_str(&line).map_err(|e| wrong(&format!("line {}: {e}", at + 1)))?;
            events.push(event);
        }
        Ok(History { events })
    }

    /// Pairs invocations and completions, in the order of the invocations.
    pub(crate) fn ops(&self) -> Vec<Op<'_>> {
        let mut ops: Vec<Op<'_>> = Vec::new();
        let mut open: HashMap<&Process, usize> = HashMap::new();
        for event in self.events.iter().filter(|event| event.f.is_call()) {
            if event.kind == Kind::Invoke {
                open.insert(&event.process, ops.len());
                ops.push(Op { invoke: event, done: None });
            } else if let Some(at) = open.remove(&event.process) {
                ops[at].done = Some(event);
            }
        }
        ops
    }

    /// The events of one kind that no client asked for.
    pub(crate) fn seen(&self, act: Act) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.f == act)
    }
}
