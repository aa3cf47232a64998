//! `holdfast status`: how the nodes and shards are.

use clap::Args;
use comfy_table::Table;
use serde_json::Value;

use super::output::{Voice, rows};
use super::{Failure, Reach};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast status
  holdfast status --json | jq '.shards[] | select(.paused)'

Exits 3 when a shard has no leader or is paused.")]
pub(super) struct Status {}

const NODE_COLUMNS: [&str; 6] = ["id", "http_addr", "peer_addr", "region", "leads", "lag"];
const SHARD_COLUMNS: [&str; 7] = ["shard", "role", "leader", "term", "applied", "paused", "voters"];

impl Status {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let client = reach.client()?;
        let voice = reach.voice();
        let cluster = client.get("/admin/v1/cluster").await?.body;
        show(voice, &cluster);
        let ill = ill_shards(&cluster);
        if ill.is_empty() {
            return Ok(());
        }
        Err(Failure::Unavailable(format!("not serving: {}", ill.join(", "))))
    }
}

fn show(voice: Voice, cluster: &Value) {
    if voice.is_json() {
        voice.line(&cluster.to_string());
        return;
    }
    let id = cluster.get("cluster_id").and_then(Value::as_str);
    voice.line(&format!("cluster {}", id.unwrap_or("(none yet: run `holdfast cluster init`)")));
    for table in tables(cluster) {
        voice.line(&table.to_string());
    }
}

fn tables(cluster: &Value) -> Vec<Table> {
    let list = |name: &str| cluster.get(name).and_then(Value::as_array);
    let nodes = list("nodes").map(|nodes| rows(nodes, &NODE_COLUMNS));
    let shards = list("shards").map(|shards| rows(shards, &SHARD_COLUMNS));
    nodes.into_iter().chain(shards).collect()
}

/// The shards that grant nothing now, with what is wrong.
pub(super) fn ill_shards(cluster: &Value) -> Vec<String> {
    let shards = cluster.get("shards").and_then(Value::as_array).map(Vec::as_slice);
    let mut ill = Vec::new();
    for shard in shards.unwrap_or_default() {
        let number = shard.get("shard").map(Value::to_string).unwrap_or_default();
        if is_absent(shard.get("leader")) {
            ill.push(format!("shard {number} has no leader"));
        } else if !is_absent(shard.get("paused")) {
            let reason = shard.get("paused").and_then(Value::as_str).unwrap_or("yes");
            ill.push(format!("shard {number} is paused ({reason})"));
        }
    }
    ill
}

fn is_absent(value: Option<&Value>) -> bool {
    matches!(value, None | Some(Value::Null | Value::Bool(false)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_shard_without_a_leader_or_paused_is_named() {
        let cluster = json!({"shards": [
            {"shard": 0, "leader": 1, "paused": null},
            {"shard": 1, "leader": null},
            {"shard": 2, "leader": 3, "paused": "quorum-lost"},
            {"shard": 3, "leader": 3, "paused": false},
        ]});
        let ill = ill_shards(&cluster);
        assert_eq!(ill, ["shard 1 has no leader", "shard 2 is paused (quorum-lost)"]);
    }
}
