//! The final phase: what is unsettled is settled, everything is read back, from the leaders and
//! from each replica.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::check::book::FINAL;
use crate::history::{Act, Kind, Process, Value};
use crate::observer::Observer;
use crate::recorder::Recorder;
use crate::worker::{Placed, Shop, Worker};

/// How often a read or a void is tried before it is left.
const TRIES: u32 = 12;
/// The pause between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(250);
/// How long everything may take, and how much longer for each item.
const PHASE_WITHIN: Duration = Duration::from_secs(60);
const PER_ITEM: Duration = Duration::from_millis(60);
/// How long the replicas may take to stand at one index.
const LEVEL_WITHIN: Duration = Duration::from_secs(15);

/// Settles and reads, within a time that a cluster that works never needs. Returns what could not
/// be done, in words.
pub(crate) async fn phase(
    worker: &mut Worker,
    shop: &Shop,
    observer: &mut Observer,
    items: &[Value],
    now: &Arc<Mutex<String>>,
) -> Option<String> {
    // A thousand items take half a minute.
    let within = PHASE_WITHIN + PER_ITEM * u32::try_from(items.len()).unwrap_or(u32::MAX);
    let phase = everything(worker, shop, observer, items, now);
    match tokio::time::timeout(within, phase).await {
        Ok(done) => done,
        Err(_) => Some(format!("the final reads were not done within {within:?}")),
    }
}

async fn everything(
    worker: &mut Worker,
    shop: &Shop,
    observer: &mut Observer,
    items: &[Value],
    now: &Arc<Mutex<String>>,
) -> Option<String> {
    let tell = |text: &str| text.clone_into(&mut now.lock().expect("nobody panics with it"));
    tell("settling what is unknown");
    settle(worker, shop).await;
    note(&shop.recorder);
    for (at, item) in items.iter().enumerate() {
        tell(&format!("final reads, {} of {}", at + 1, items.len()));
        for act in [Act::Holds, Act::Audit, Act::Stock] {
            read(worker, act, item).await;
        }
    }
    tell("waiting until the replicas are level");
    let level = observer.wait_until_level(LEVEL_WITHIN).await;
    for node in shop.roll.members() {
        tell(&format!("reading replica {node}"));
        if !read_replica(worker, node, items).await {
            break;
        }
    }
    observer.digests().await;
    (!level).then(|| format!("the replicas did not stand at one index within {LEVEL_WITHIN:?}"))
}

/// Reads every item from one replica; `false` when it does not answer.
async fn read_replica(worker: &mut Worker, node: u64, items: &[Value]) -> bool {
    for item in items {
        let mut tries = 0;
        loop {
            let read = worker.call_at(node, Act::Holds, asked(item, "local")).await;
            if read.kind == Kind::Ok {
                break;
            }
            tries += 1;
            if tries == TRIES {
                return false;
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }
    true
}

fn asked(item: &Value, consistency: &str) -> Value {
    Value {
        item: item.item.clone(),
        workload: item.workload.clone(),
        consistency: Some(consistency.to_owned()),
        ..Value::default()
    }
}

fn note(recorder: &Recorder) {
    let value = Value { note: Some(FINAL.to_owned()), ..Value::default() };
    recorder.say(Process::nemesis(), Act::Note, value);
}

async fn read(worker: &mut Worker, act: Act, item: &Value) {
    for _ in 0..TRIES {
        if worker.call(act, asked(item, "linearizable")).await.kind == Kind::Ok {
            return;
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

async fn settle(worker: &mut Worker, shop: &Shop) {
    for _ in 0..TRIES {
        let open = shop.unsettled.take();
        if open.is_empty() {
            return;
        }
        for asked in open {
            // A void that is not answered puts the key back.
            if let Placed::Unknown = worker.void(asked).await {
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}
