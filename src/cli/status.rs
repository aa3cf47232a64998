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

Exits 3 when a shard has no leader or is paused, and when the node belongs to no cluster. `DOWN` is
a node that has not answered the asked one for some seconds.")]
pub(super) struct Status {}

/// What a node without a cluster is.
const UNINITIALISED: &str = "this node belongs to no cluster yet: make one with \
     `holdfast cluster init --nodes URL,URL,URL`";

const NODE_COLUMNS: [&str; 7] = ["id", "state", "http_addr", "peer_addr", "region", "leads", "lag"];
const SHARD_COLUMNS: [&str; 8] =
    ["shard", "role", "leader", "preferred", "term", "applied", "paused", "voters"];

impl Status {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let client = reach.impatient_client()?;
        let voice = reach.voice();
        let cluster = client.get("/admin/v1/cluster").await?.body;
        show(voice, &cluster);
        if let Some(why) = cluster.get("stopped").and_then(Value::as_str) {
            return Err(Failure::Unavailable(format!("this node takes no part: {why}")));
        }
        if is_absent(cluster.get("cluster_id")) {
            return Err(Failure::Unavailable(UNINITIALISED.to_owned()));
        }
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
    let list =
        |name: &str| cluster.get(name).and_then(Value::as_array).filter(|list| !list.is_empty());
    let nodes = list("nodes").map(|nodes| {
        let nodes: Vec<Value> = nodes.iter().map(with_state).collect();
        rows(&nodes, &NODE_COLUMNS)
    });
    let shards = list("shards").map(|shards| rows(shards, &SHARD_COLUMNS));
    nodes.into_iter().chain(shards).collect()
}

/// A node with the word for whether it answers; of an older server that is not known.
fn with_state(node: &Value) -> Value {
    let mut node = node.clone();
    let answers = node.get("answers").and_then(Value::as_bool);
    if let (Some(answers), Some(members)) = (answers, node.as_object_mut()) {
        let word = if answers { "up" } else { "DOWN" };
        members.insert("state".to_owned(), Value::from(word));
    }
    node
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
    fn a_node_that_does_not_answer_is_marked() {
        let cluster = json!({"nodes": [{"id": 1, "answers": true}, {"id": 2, "answers": false}]});
        let text = tables(&cluster)[0].to_string();
        assert!(text.contains("up") && text.contains("DOWN"), "{text}");
    }

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
