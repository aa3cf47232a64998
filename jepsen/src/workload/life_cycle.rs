//! The life of a hold, with few buyers, a limit, and everything that can be done to a hold.

use super::{known, place, read_stock, reading, upon};
use crate::history::{Act, Value};
use crate::room::Room;
use crate::worker::Worker;

/// Few, so that limits are met.
const BUYERS: u64 = 12;

pub(super) async fn turn(room: &Room, worker: &mut Worker, item: &Value) {
    match worker.dice.below(100) {
        0..=44 => begin(room, worker, item).await,
        45..=79 => go_on(room, worker, item).await,
        80..=84 => adjust(worker, item).await,
        85..=87 => drop(worker.call(Act::Audit, reading(item, "linearizable")).await),
        _ => read_stock(worker, item).await,
    }
}

async fn begin(room: &Room, worker: &mut Worker, item: &Value) {
    let (buyer, quantity) = (worker.dice.below(BUYERS), worker.dice.between(1, 3));
    let asked = Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        key: Some(worker.fresh_key()),
        buyer: Some(format!("buyer-{buyer}")),
        quantity: Some(quantity),
        ..Value::default()
    };
    if let Some(row) = place(room, worker, item, asked).await {
        room.remember(item, known(&row));
    }
}

async fn go_on(room: &Room, worker: &mut Worker, item: &Value) {
    let Some(hold) = room.known(item, worker) else { return };
    match worker.dice.below(100) {
        0..=29 => drop(worker.finish(Act::Confirm, upon(item, &hold.id, "pay")).await),
        30..=39 => {
            let units = worker.dice.between(1, hold.quantity);
            let asked = upon(item, &hold.id, &format!("pay{units}"));
            worker.finish(Act::Confirm, Value { quantity: Some(units), ..asked }).await;
        }
        40..=64 => drop(worker.finish(Act::Release, upon(item, &hold.id, "back")).await),
        65..=79 => drop(worker.finish(Act::Return, upon(item, &hold.id, "return")).await),
        80..=89 => {
            let turn = worker.dice.below(3);
            let asked = upon(item, &hold.id, &format!("longer{turn}"));
            worker.finish(Act::Extend, asked).await;
        }
        _ => {
            let asked = upon(item, &hold.id, "look");
            worker.call(Act::Hold, Value { key: None, ..asked }).await;
        }
    }
}

/// Units come and go, but never what is promised.
async fn adjust(worker: &mut Worker, item: &Value) {
    let size = i64::try_from(worker.dice.between(1, 4)).expect("small");
    let delta = if worker.dice.percent(50) { size } else { -size };
    let asked = Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        key: Some(worker.fresh_key()),
        delta: Some(delta),
        ..Value::default()
    };
    worker.finish(Act::Adjust, asked).await;
}
