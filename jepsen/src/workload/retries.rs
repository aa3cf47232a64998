//! Retries: one key at several nodes, at once and later; the same key for something else; keys that
//! are asked after and given up.

use super::{known, newcomer, note_refusal, read_stock, upon};
use crate::history::{Act, Value};
use crate::room::{Known, Room};
use crate::worker::{Placed, Worker, scope_of};

pub(super) async fn turn(room: &Room, worker: &mut Worker, item: &Value) {
    match worker.dice.below(100) {
        0..=39 => everywhere(room, worker, item).await,
        40..=64 => {
            if let Some(hold) = room.known(item, worker) {
                again(worker, item, &hold).await;
            }
        }
        65..=74 => {
            if let Some(hold) = room.known(item, worker) {
                worker.finish(Act::Confirm, upon(item, &hold.id, "pay")).await;
            }
        }
        75..=82 => {
            if let Some(hold) = room.known(item, worker) {
                worker.finish(Act::Release, upon(item, &hold.id, "back")).await;
            }
        }
        83..=91 => give_up(room, worker, item).await,
        _ => read_stock(worker, item).await,
    }
}

/// The same attempt at every node, one after the other, as an impatient client does.
async fn everywhere(room: &Room, worker: &mut Worker, item: &Value) {
    let quantity = worker.dice.between(1, 2);
    let asked = newcomer(worker, item, quantity);
    let first = worker.call(Act::Place, asked.clone()).await;
    let second = worker.call(Act::Place, asked.clone()).await;
    if first.kind != second.kind && worker.dice.percent(50) {
        worker.call(Act::Receipt, scope_of(&asked)).await;
    }
    // What one of them left unknown stays unknown whatever the other was told.
    let first = if first.kind == crate::history::Kind::Info { first } else { second };
    match worker.settle(asked, first).await {
        Placed::Hold(row) => room.remember(item, known(&row)),
        Placed::Nothing(ending) => note_refusal(room, item, &ending),
        Placed::Unknown => {}
    }
}

/// A replay, some of them with another quantity.
async fn again(worker: &mut Worker, item: &Value, hold: &Known) {
    let wrong = worker.dice.percent(20);
    let asked = Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        key: Some(hold.key.clone()),
        buyer: hold.buyer.clone(),
        quantity: Some(if wrong { hold.quantity + 1 } else { hold.quantity }),
        ..Value::default()
    };
    if worker.dice.percent(30) {
        worker.call(Act::Receipt, scope_of(&asked)).await;
    } else {
        worker.call(Act::Place, asked).await;
    }
}

/// A key that is voided before or after its placement; then it is tried all the same.
async fn give_up(room: &Room, worker: &mut Worker, item: &Value) {
    let asked = newcomer(worker, item, 1);
    let placed_first = worker.dice.percent(50);
    if placed_first {
        let first = worker.call(Act::Place, asked.clone()).await;
        if first.kind == crate::history::Kind::Fail {
            note_refusal(room, item, &first);
        }
    }
    if let Placed::Hold(row) = worker.void(asked.clone()).await {
        return drop(worker.finish(Act::Release, upon(item, &row.id, "back")).await);
    }
    let late = worker.call(Act::Place, asked.clone()).await;
    worker.settle(asked, late).await;
}
