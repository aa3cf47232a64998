//! Confirm versus expire: payments that come just before, at and after the deadline, from two
//! clients at once, and late ones that acquire again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{known, newcomer, place, read_stock, upon};
use crate::history::{Act, Value};
use crate::room::{Known, Room};
use crate::worker::Worker;

/// How far from a deadline a client may aim, in ms.
const AIM_MS: u64 = 60;

pub(super) async fn turn(room: &Room, worker: &mut Worker, item: &Value) {
    match worker.dice.below(100) {
        0..=54 => begin(room, worker, item).await,
        55..=89 => {
            if let Some(hold) = room.known(item, worker) {
                end(worker, item, &hold).await;
            }
        }
        _ => read_stock(worker, item).await,
    }
}

async fn begin(room: &Room, worker: &mut Worker, item: &Value) {
    let asked = newcomer(worker, item, 1);
    let Some(row) = place(room, worker, item, asked).await else { return };
    let hold = known(&row);
    room.remember(item, hold.clone());
    if worker.dice.percent(60) {
        await_deadline(worker, &hold).await;
        end(worker, item, &hold).await;
    }
}

/// Waits until about the deadline, at most twice the longest lifetime of these items.
async fn await_deadline(worker: &mut Worker, hold: &Known) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let aim = (hold.expires_at + worker.dice.below(2 * AIM_MS)).saturating_sub(AIM_MS);
    let wait = aim.saturating_sub(now).min(2_500);
    tokio::time::sleep(Duration::from_millis(wait)).await;
}

async fn end(worker: &mut Worker, item: &Value, hold: &Known) {
    match worker.dice.below(100) {
        0..=54 => drop(worker.finish(Act::Confirm, upon(item, &hold.id, "pay")).await),
        55..=69 => {
            let asked = upon(item, &hold.id, "late");
            worker.finish(Act::Confirm, Value { reacquire: Some(true), ..asked }).await;
        }
        70..=84 => drop(worker.finish(Act::Release, upon(item, &hold.id, "back")).await),
        85..=91 => drop(worker.finish(Act::Return, upon(item, &hold.id, "return")).await),
        _ => {
            let asked = upon(item, &hold.id, "look");
            worker.call(Act::Hold, Value { key: None, ..asked }).await;
        }
    }
}
