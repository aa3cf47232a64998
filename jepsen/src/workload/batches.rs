//! Batches: several placements in one request. Each is a decision and an operation of its own.

use super::{known, newcomer, note_refusal, read_stock, upon};
use crate::history::{Act, Value};
use crate::room::Room;
use crate::worker::{LANES, Placed, Worker};

pub(super) async fn turn(room: &Room, worker: &mut Worker, item: &Value) {
    match worker.dice.below(100) {
        0..=39 => {
            let size = worker.dice.between(2, LANES);
            let mut asked = Vec::new();
            for _ in 0..size {
                let quantity = worker.dice.between(1, 2);
                asked.push(newcomer(worker, item, quantity));
            }
            for (asked, ending) in asked.clone().into_iter().zip(worker.batch(&asked).await) {
                match worker.settle(asked, ending).await {
                    Placed::Hold(row) => room.remember(item, known(&row)),
                    Placed::Nothing(ending) => note_refusal(room, item, &ending),
                    Placed::Unknown => {}
                }
            }
        }
        40..=84 => {
            if let Some(hold) = room.take_known(item, worker) {
                let act = if worker.dice.percent(30) { Act::Confirm } else { Act::Release };
                let word = if act == Act::Confirm { "pay" } else { "back" };
                worker.finish(act, upon(item, &hold.id, word)).await;
            }
        }
        _ => read_stock(worker, item).await,
    }
}
