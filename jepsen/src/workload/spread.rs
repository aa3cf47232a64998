//! Items of several buckets or regions, sold to their dry tail. What is checked of them is what can
//! be said without knowing which bucket a buyer belongs to.

use serde_json::json;

use super::{known, newcomer, place, reading, upon};
use crate::history::{Act, Value};
use crate::room::Room;
use crate::worker::Worker;

pub(super) async fn turn(room: &Room, worker: &mut Worker, item: &Value, regions: &[&str]) {
    match worker.dice.below(100) {
        0..=64 => {
            let quantity = worker.dice.between(1, 2);
            let region = worker.dice.pick(regions).map(|region| (*region).to_owned());
            let asked = Value { region, ..newcomer(worker, item, quantity) };
            if let Some(row) = place(room, worker, item, asked).await {
                room.remember(item, known(&row));
            }
        }
        65..=89 => {
            if let Some(hold) = room.take_known(item, worker) {
                let act = if worker.dice.percent(40) { Act::Confirm } else { Act::Release };
                let word = if act == Act::Confirm { "pay" } else { "back" };
                worker.finish(act, upon(item, &hold.id, word)).await;
            }
        }
        90..=94 => drop(worker.call(Act::Audit, reading(item, "linearizable")).await),
        _ => drop(worker.call(Act::Stock, reading(item, "linearizable")).await),
    }
}

/// A turn of selling, or a change of the regions: new quotas and floors, a third region that opens,
/// one that closes.
pub(super) async fn relayout_turn(room: &Room, worker: &mut Worker, item: &Value) {
    if !worker.dice.percent(6) {
        return turn(room, worker, item, &["eu", "us", "asia"]).await;
    }
    let read = worker.call(Act::Layout, reading(item, "linearizable")).await;
    let Some(revision) = read.value.revision else { return };
    let us = if worker.dice.percent(25) { 0 } else { worker.dice.between(4, 10) };
    let asia = worker.dice.below(6);
    let eu = 30 - us - asia;
    let (eu_floor, us_floor) = (worker.dice.below(6), worker.dice.below(us / 2 + 1));
    let regions = json!({
        "eu": {"quota": eu, "floor": eu_floor},
        "us": {"quota": us, "floor": us_floor},
        "asia": {"quota": asia, "floor": 0},
    });
    let asked = Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        revision: Some(revision),
        regions: Some(regions),
        ..Value::default()
    };
    worker.call(Act::Relayout, asked).await;
}
