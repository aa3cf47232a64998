//! A storm of refusals: two units, many buyers, and now and then one that comes back and must be
//! sold to the next who asks.

use super::{known, newcomer, place, read_stock, upon};
use crate::history::{Act, Value};
use crate::room::Room;
use crate::worker::Worker;

pub(super) async fn turn(room: &Room, worker: &mut Worker, item: &Value) {
    match worker.dice.below(100) {
        0..=84 => {
            let asked = newcomer(worker, item, 1);
            if let Some(row) = place(room, worker, item, asked).await {
                room.remember(item, known(&row));
            }
        }
        85..=94 => {
            if let Some(hold) = room.take_known(item, worker) {
                worker.finish(Act::Release, upon(item, &hold.id, "back")).await;
                // Whoever asks now must get it, unless another was first.
                let asked = newcomer(worker, item, 1);
                if let Some(row) = place(room, worker, item, asked).await {
                    room.remember(item, known(&row));
                }
            }
        }
        _ => read_stock(worker, item).await,
    }
}
