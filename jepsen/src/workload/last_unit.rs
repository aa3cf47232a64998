//! Last unit: many buyers, few units. Whoever gets a hold pays, gives it back or walks away.

use super::{known, newcomer, place, read_stock, upon};
use crate::history::{Act, Value};
use crate::room::Room;
use crate::worker::Worker;

pub(super) async fn turn(room: &Room, worker: &mut Worker, item: &Value) {
    if worker.dice.percent(8) {
        return read_stock(worker, item).await;
    }
    let asked = newcomer(worker, item, 1);
    let Some(row) = place(room, worker, item, asked).await else { return };
    match worker.dice.below(10) {
        0..=4 => drop(worker.finish(Act::Confirm, upon(item, &row.id, "pay")).await),
        5..=7 => drop(worker.finish(Act::Release, upon(item, &row.id, "back")).await),
        _ => room.remember(item, known(&row)),
    }
}
