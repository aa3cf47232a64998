//! The prober: an item on each shard, and a client that measures how long after healing each shard
//! commits again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::history::{Act, Kind, Process, Value};
use crate::recorder::Recorder;
use crate::worker::Worker;
use crate::workload::LONG_MS;

/// How long a shard is waited for. More than this is as bad as never.
const GIVEN_UP: Duration = Duration::from_secs(25);
/// Between two placements that failed.
const LOOK_AGAIN: Duration = Duration::from_millis(15);
/// Names that are tried for one item on each shard.
const NAMES_MAX: u64 = 200;
/// Units of a probed item: never too few.
const UNITS: u64 = 1_000_000;
/// Placements on one item before the next is taken.
const GENERATION: u64 = 150;

/// The prober.
#[derive(Debug)]
pub(crate) struct Prober {
    worker: Worker,
    recorder: std::sync::Arc<Recorder>,
    items: BTreeMap<u64, (Value, u64)>,
    all: Vec<Value>,
    shards: u64,
    names: u64,
}

impl Prober {
    /// Makes an item on each shard.
    ///
    /// # Errors
    ///
    /// When some shard gets none: the cluster does not work at all, or names do not spread.
    pub(crate) async fn new(
        worker: Worker,
        recorder: std::sync::Arc<Recorder>,
        shards: u64,
    ) -> Result<Prober, String> {
        let mut prober =
            Prober { worker, recorder, items: BTreeMap::new(), all: Vec::new(), shards, names: 0 };
        while (prober.items.len() as u64) < shards {
            if prober.names >= NAMES_MAX {
                return Err(format!("{NAMES_MAX} items lie on {} shards only", prober.items.len()));
            }
            prober.make().await?;
        }
        Ok(prober)
    }

    /// Makes another item, for whichever shard it falls to.
    async fn make(&mut self) -> Result<(), String> {
        self.names += 1;
        let asked = Value {
            item: Some(format!("probe-{}", self.names)),
            workload: Some("probe".to_owned()),
            total: Some(UNITS),
            ttl_ms: Some(LONG_MS),
            ..Value::default()
        };
        let mut made = self.worker.call(Act::Create, asked.clone()).await;
        for _ in 0..50 {
            if made.kind == Kind::Ok {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            made = self.worker.call(Act::Create, asked.clone()).await;
        }
        let shard = made.value.home_shard.filter(|_| made.kind == Kind::Ok);
        let shard = shard.ok_or(format!("no item can be made: {:?}", made.error))?;
        self.all.push(made.value.clone());
        self.items.insert(shard, (made.value, 0));
        Ok(())
    }

    /// All items that it made.
    pub(crate) fn made(&self) -> Vec<Value> {
        self.all.clone()
    }

    /// Waits until every shard has committed a placement, and notes how long each took.
    /// Says whether all have.
    pub(crate) async fn wait_for_commits(&mut self) -> bool {
        let began = Instant::now();
        let mut waiting: Vec<u64> = (0..self.shards).collect();
        while !waiting.is_empty() && began.elapsed() < GIVEN_UP {
            for shard in waiting.clone() {
                if self.commits(shard).await {
                    waiting.retain(|other| *other != shard);
                    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    self.say(shard, Some(ms));
                } else {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
        for shard in &waiting {
            self.say(*shard, None);
        }
        self.renew().await;
        waiting.is_empty()
    }

    fn say(&self, shard: u64, recovery_ms: Option<u64>) {
        let note = recovery_ms.is_none().then(|| format!("not within {GIVEN_UP:?}"));
        let value = Value { shard: Some(shard), recovery_ms, note, ..Value::default() };
        self.recorder.say(Process::nemesis(), Act::Recovered, value);
    }

    async fn commits(&mut self, shard: u64) -> bool {
        let key = self.worker.fresh_key();
        let Some((item, used)) = self.items.get_mut(&shard) else { return false };
        *used += 1;
        let asked = Value {
            item: item.item.clone(),
            workload: item.workload.clone(),
            buyer: Some(format!("b-{key}")),
            key: Some(key),
            quantity: Some(1),
            ..Value::default()
        };
        let ending = self.worker.call(Act::Place, asked.clone()).await;
        if ending.kind == Kind::Info {
            self.worker.leave_unsettled(&asked);
        }
        ending.kind == Kind::Ok
    }

    /// Takes new items where the old ones are used up, so that their histories stay small.
    async fn renew(&mut self) {
        let spent = |items: &BTreeMap<u64, (Value, u64)>| {
            items.values().any(|(_, used)| *used > GENERATION)
        };
        for _ in 0..8 {
            if !spent(&self.items) || self.make().await.is_err() {
                return;
            }
        }
    }
}
