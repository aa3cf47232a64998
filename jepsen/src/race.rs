//! The great race: thousands of buyers for a hundred units, all at once, at every node, while the
//! leader of the item is killed in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::history::{Act, Kind, Value};
use crate::worker::{Placed, Worker};
use crate::workload::LONG_MS;

/// Units of the item.
const UNITS: u64 = 100;
/// Clients that run at once.
pub(crate) const RUNNERS: u64 = 24;

/// Makes the item.
pub(crate) async fn prepare(worker: &mut Worker) -> Option<Value> {
    let asked = Value {
        item: Some("great-race".to_owned()),
        workload: Some("great-race".to_owned()),
        total: Some(UNITS),
        ttl_ms: Some(LONG_MS),
        ..Value::default()
    };
    let made = worker.call(Act::Create, asked).await;
    (made.kind == Kind::Ok).then_some(made.value)
}

/// Runs until so many buyers have come; every third who got a unit pays, every third gives it back.
pub(crate) async fn run(mut runners: Vec<Worker>, item: Value, buyers: u64) {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    while let Some(mut runner) = runners.pop() {
        let (item, next) = (item.clone(), Arc::clone(&next));
        tasks.push(tokio::spawn(async move {
            while next.fetch_add(1, Ordering::Relaxed) < buyers {
                buy(&mut runner, &item).await;
            }
        }));
    }
    for task in tasks {
        let _ = task.await;
    }
}

async fn buy(runner: &mut Worker, item: &Value) {
    let key = runner.fresh_key();
    let asked = Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        buyer: Some(format!("b-{key}")),
        key: Some(key),
        quantity: Some(1),
        ..Value::default()
    };
    let Placed::Hold(row) = runner.place(asked.clone()).await else { return };
    let then = |word: &str| Value {
        hold: Some(row.id.clone()),
        key: Some(format!("{word}-{}", row.id)),
        buyer: None,
        quantity: None,
        ..asked.clone()
    };
    match runner.dice.below(3) {
        0 => drop(runner.finish(Act::Confirm, then("pay")).await),
        1 => drop(runner.finish(Act::Release, then("back")).await),
        _ => {}
    }
}
