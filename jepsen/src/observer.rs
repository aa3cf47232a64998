//! The observer: looks at every node all the time, and notes who leads, and the digests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::client::{Caller, Patience, Request};
use crate::history::{Act, Kind, Process, Value};
use crate::recorder::{Beside, Recorder};
use crate::roll::Roll;

/// Between two looks at all nodes.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two looks at their digests.
const DIGESTS_EVERY: Duration = Duration::from_millis(800);

/// The observer.
#[derive(Debug)]
pub(crate) struct Observer {
    caller: Caller,
    recorder: Arc<Recorder>,
    /// The leadership that was last noted of each shard, as its own leader tells it.
    leaders: BTreeMap<u64, (u64, u64)>,
}

impl Observer {
    pub(crate) fn new(roll: &Roll, recorder: Arc<Recorder>) -> Observer {
        Observer { caller: Caller::new(roll), recorder, leaders: BTreeMap::new() }
    }

    /// Looks until it is dropped.
    pub(crate) async fn watch(mut self) {
        let mut digests = Instant::now();
        loop {
            for node in self.caller.roll().members() {
                self.look(node).await;
            }
            if digests.elapsed() > DIGESTS_EVERY {
                digests = Instant::now();
                self.digests().await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn ask(&mut self, node: u64, path: &str) -> Option<Json> {
        let answer = self.caller.ask(node, &Request::get(path), Patience::of_ms(150)).await.ok()?;
        (answer.status == 200).then_some(answer.body)
    }

    async fn look(&mut self, node: u64) {
        let Some(view) = self.ask(node, "/admin/v1/cluster").await else { return };
        for shard in view["shards"].as_array().into_iter().flatten() {
            let (Some(number), Some(term)) = (shard["shard"].as_u64(), shard["term"].as_u64())
            else {
                continue;
            };
            let leads = shard["role"] == "leader" && shard["paused"].is_null();
            if !leads || self.leaders.get(&number).is_some_and(|known| *known >= (term, node)) {
                continue;
            }
            self.leaders.insert(number, (term, node));
            let value = Value {
                shard: Some(number),
                term: Some(term),
                leader: Some(node),
                ..Value::default()
            };
            self.note(Act::Leader, node, value);
        }
    }

    fn note(&self, act: Act, node: u64, value: Value) {
        let beside = Beside { node: Some(node), ..Beside::default() };
        self.recorder.note(Kind::Info, Process::observer(), act, value, beside);
    }

    /// Notes the digests of every replica; returns them by shard.
    pub(crate) async fn digests(&mut self) -> BTreeMap<u64, Vec<(u64, String)>> {
        let mut found: BTreeMap<u64, Vec<(u64, String)>> = BTreeMap::new();
        for node in self.caller.roll().members() {
            let Some(told) = self.ask(node, "/admin/v1/digest").await else { continue };
            for shard in told["shards"].as_array().into_iter().flatten() {
                let (Some(number), Some(applied), Some(digest)) =
                    (shard["shard"].as_u64(), shard["applied"].as_u64(), shard["digest"].as_str())
                else {
                    continue;
                };
                found.entry(number).or_default().push((applied, digest.to_owned()));
                let value = Value {
                    shard: Some(number),
                    applied: Some(applied),
                    digest: Some(digest.to_owned()),
                    ..Value::default()
                };
                self.note(Act::Digest, node, value);
            }
        }
        found
    }

    /// Looks until all replicas of every shard stand at one index; says whether they do.
    pub(crate) async fn wait_until_level(&mut self, within: Duration) -> bool {
        let began = Instant::now();
        let nodes = self.caller.roll().members().len();
        while began.elapsed() < within {
            let found = self.digests().await;
            let level = |seen: &Vec<(u64, String)>| {
                seen.len() == nodes && seen.windows(2).all(|pair| pair[0].0 == pair[1].0)
            };
            if !found.is_empty() && found.values().all(level) {
                return true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        false
    }
}
