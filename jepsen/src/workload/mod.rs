//! The workloads: what clients do to the items of a room.
//!
//! Each is one file with one function: one turn of one client. A turn may be several operations;
//! every one of them is in the history, whatever came of it.

mod batches;
mod expiry;
mod last_unit;
mod life_cycle;
mod retries;
mod spread;
mod storm;

use serde_json::json;

use crate::history::{Act, Row, Value};
use crate::room::{Known, Room};
use crate::wire::Ending;
use crate::worker::{Placed, Worker};

/// How long a hold lives where none is meant to expire: longer than any run.
pub(crate) const LONG_MS: u64 = 24 * 3_600_000;

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Workload {
    LastUnit,
    LifeCycle,
    Expiry,
    Retries,
    Storm,
    Batches,
    Buckets,
    Regions,
    ReLayout,
}

impl Workload {
    pub(crate) const ALL: [Workload; 9] = [
        Workload::LastUnit,
        Workload::LifeCycle,
        Workload::Expiry,
        Workload::Retries,
        Workload::Storm,
        Workload::Batches,
        Workload::Buckets,
        Workload::Regions,
        Workload::ReLayout,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::LastUnit => "last-unit",
            Workload::LifeCycle => "life-cycle",
            Workload::Expiry => "expiry",
            Workload::Retries => "retries",
            Workload::Storm => "storm",
            Workload::Batches => "batches",
            Workload::Buckets => "buckets",
            Workload::Regions => "regions",
            Workload::ReLayout => "re-layout",
        }
    }

    pub(crate) fn what(self) -> &'static str {
        match self {
            Workload::LastUnit => "many buyers race for few units, pay or walk away",
            Workload::LifeCycle => {
                "place, extend, confirm in part, release, return, adjust, read, with a limit"
            }
            Workload::Expiry => "confirm and release race the deadline; some acquire again",
            Workload::Retries => {
                "one key at several nodes at once, again later, and reused wrongly"
            }
            Workload::Storm => "refusals upon refusals, and the one unit that comes back",
            Workload::Batches => "many placements in one request, each a decision of its own",
            Workload::Buckets => "an item spread over shards, to its dry tail",
            Workload::Regions => "quotas of regions, each sold to its end",
            Workload::ReLayout => "the same while quotas and floors change, regions open and close",
        }
    }

    /// How many clients it has in the usual room.
    pub(crate) fn clients(self) -> u64 {
        match self {
            Workload::LastUnit | Workload::LifeCycle => 4,
            Workload::Expiry | Workload::Retries | Workload::Storm => 3,
            Workload::Batches | Workload::Buckets | Workload::Regions | Workload::ReLayout => 2,
        }
    }

    /// Whether its items have more than one bucket: then the suite's model of one bucket says
    /// nothing of them, and only the invariants of the whole history do.
    pub(crate) fn is_spread(self) -> bool {
        matches!(self, Workload::Buckets | Workload::Regions | Workload::ReLayout)
    }

    /// The path of a call that it needs and an older Holdfast may not have.
    pub(crate) fn needs(self) -> Option<&'static str> {
        (self == Workload::ReLayout).then_some("/v1/items/{item}/layout")
    }

    /// After so many refusals for want of stock the next item is due.
    pub(crate) fn refusals_max(self, generation: u64) -> u64 {
        match self {
            Workload::Storm => generation,
            Workload::LastUnit | Workload::Batches => generation / 3,
            Workload::LifeCycle
            | Workload::Expiry
            | Workload::Retries
            | Workload::Buckets
            | Workload::Regions
            | Workload::ReLayout => generation / 2,
        }
    }

    /// The definition of an item.
    pub(crate) fn definition(self, name: String, generation: u64) -> Value {
        let plain = Value {
            item: Some(name),
            workload: Some(self.name().to_owned()),
            total: Some(12),
            ttl_ms: Some(LONG_MS),
            ..Value::default()
        };
        match self {
            Workload::LastUnit => Value { total: Some(5 + generation % 3 * 10), ..plain },
            Workload::LifeCycle => Value { total: Some(30), limit: Some(4), ..plain },
            Workload::Expiry => {
                Value { total: Some(4), ttl_ms: Some(400 + generation % 4 * 200), ..plain }
            }
            Workload::Retries => Value { total: Some(40), limit: Some(3), ..plain },
            Workload::Storm => Value { total: Some(2), ..plain },
            Workload::Batches => Value { total: Some(60), ..plain },
            Workload::Buckets => Value { total: Some(60), buckets: Some(3), ..plain },
            Workload::Regions | Workload::ReLayout => {
                let regions = json!({
                    "eu": {"quota": 20, "floor": 5, "buckets": 1},
                    "us": {"quota": 10, "floor": 2, "buckets": 1},
                });
                Value { total: Some(30), regions: Some(regions), ..plain }
            }
        }
    }

    /// One turn of one client.
    pub(crate) async fn turn(self, room: &Room, worker: &mut Worker, item: &Value) {
        match self {
            Workload::LastUnit => last_unit::turn(room, worker, item).await,
            Workload::LifeCycle => life_cycle::turn(room, worker, item).await,
            Workload::Expiry => expiry::turn(room, worker, item).await,
            Workload::Retries => retries::turn(room, worker, item).await,
            Workload::Storm => storm::turn(room, worker, item).await,
            Workload::Batches => batches::turn(room, worker, item).await,
            Workload::Buckets => spread::turn(room, worker, item, &[]).await,
            Workload::Regions => spread::turn(room, worker, item, &["eu", "us"]).await,
            Workload::ReLayout => spread::relayout_turn(room, worker, item).await,
        }
    }
}

/// A placement of a new buyer with a new key.
fn newcomer(worker: &mut Worker, item: &Value, quantity: u64) -> Value {
    let key = worker.fresh_key();
    Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        buyer: Some(format!("b-{key}")),
        key: Some(key),
        quantity: Some(quantity),
        ..Value::default()
    }
}

/// An operation on a hold. `word` makes its key: the same word, the same key.
fn upon(item: &Value, id: &str, word: &str) -> Value {
    Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        hold: Some(id.to_owned()),
        key: Some(format!("{word}-{id}")),
        ..Value::default()
    }
}

/// A read of an item.
fn reading(item: &Value, consistency: &str) -> Value {
    Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        consistency: Some(consistency.to_owned()),
        ..Value::default()
    }
}

/// Places, and tells the room what came of it.
async fn place(room: &Room, worker: &mut Worker, item: &Value, asked: Value) -> Option<Row> {
    match worker.place(asked).await {
        Placed::Hold(row) => Some(row),
        Placed::Nothing(ending) => {
            note_refusal(room, item, &ending);
            None
        }
        Placed::Unknown => None,
    }
}

fn note_refusal(room: &Room, item: &Value, ending: &Ending) {
    if ending.is("sold-out") || ending.is("insufficient-stock") {
        room.note_sold_out(item);
    }
}

fn known(row: &Row) -> Known {
    Known {
        id: row.id.clone(),
        key: row.reference.clone().unwrap_or_default(),
        buyer: row.buyer.clone(),
        quantity: row.quantity,
        expires_at: row.expires_at,
    }
}

/// Reads the stock: mostly the truth, sometimes a replica's.
async fn read_stock(worker: &mut Worker, item: &Value) {
    let consistency = if worker.dice.percent(75) { "linearizable" } else { "local" };
    worker.call(Act::Stock, reading(item, consistency)).await;
}
