//! `holdfast status`: how the nodes and shards are, on one screen, and what to do about what is
//! wrong.
//!
//! It asks one node who is there, and then every other node for its own view: disks and clocks are
//! known to their own node only, and lag to the leaders.

use std::time::Duration;

use clap::Args;
use comfy_table::Table;
use serde_json::{Value, json};

use super::output::{Voice, schema_range, table};
use super::picture::{bar, size, span, trouble};
use super::{Failure, Reach};
use crate::client::Client;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast status
  holdfast status --json | jq '.shards[] | select(.paused)'
  watch -n 2 holdfast status

Exits 3 when a shard has no leader or is paused, and when the node belongs to no cluster; 4 when all
serve and there is something to act on. `DOWN` is a node that does not answer this command.")]
pub(super) struct Status {}

/// How long each of the other nodes may take for its own view.
const OTHERS_WITHIN: Duration = Duration::from_millis(1_500);
/// Columns of a bar.
const BAR: usize = 8;

impl Status {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let client = reach.impatient_client()?;
        let voice = reach.voice();
        let mut cluster = client.get("/admin/v1/cluster").await?.body;
        // One that takes no part tells less than any other that was named.
        for url in reach.url.iter().filter(|_| reach.url.len() > 1) {
            if takes_part(&cluster) {
                break;
            }
            let mut config = reach.config_of(std::slice::from_ref(url));
            config.unreachable_within = OTHERS_WITHIN;
            if let Ok(answered) = Client::new(config)?.get("/admin/v1/cluster").await {
                cluster = answered.body;
            }
        }
        let views = views_of_all(&reach, &cluster).await;
        let troubles = all_troubles(&cluster, &views);
        if let Some(members) = cluster.as_object_mut() {
            let others = views.iter().skip(1).cloned().collect();
            members.insert("views".to_owned(), Value::Array(others));
        }
        show(voice, &cluster, &views, &troubles);
        if let Some(why) = cluster.get("stopped").and_then(Value::as_str) {
            return Err(Failure::Unavailable(format!("this node takes no part: {why}")));
        }
        if is_absent(cluster.get("cluster_id")) {
            return Err(Failure::Unavailable(uninitialised(&cluster)));
        }
        let ill = ill_shards(&cluster);
        if !ill.is_empty() {
            return Err(Failure::Unavailable(format!("not serving: {}", ill.join(", "))));
        }
        match troubles.len() {
            0 => Ok(()),
            1 => Err(Failure::Attention("one thing to act on".to_owned())),
            more => Err(Failure::Attention(format!("{more} things to act on"))),
        }
    }
}

/// The view of the node that was asked, and those of the others that answer.
async fn views_of_all(reach: &Reach, cluster: &Value) -> Vec<Value> {
    let own = cluster.get("node").and_then(Value::as_u64);
    let nodes = list(cluster, "nodes").iter();
    let others = nodes.filter(|node| number(node, "id") != own);
    let asked = others.filter_map(|node| node.get("http_addr").and_then(Value::as_str)).map(
        |address| async move {
            let mut config = reach.config_of(&[format!("http://{address}")]);
            config.operation_within = OTHERS_WITHIN;
            config.unreachable_within = OTHERS_WITHIN;
            let client = Client::new(config).ok()?;
            client.get("/admin/v1/cluster").await.ok().map(|answered| answered.body)
        },
    );
    let answered = futures_util::future::join_all(asked).await;
    std::iter::once(cluster.clone()).chain(answered.into_iter().flatten()).collect()
}

/// What is wrong by the word of all nodes, each thing once, the worst first. A node that does not
/// answer this command is told of as well, unless another one tells of it already.
fn all_troubles(cluster: &Value, views: &[Value]) -> Vec<Value> {
    let mut told: Vec<Value> = Vec::new();
    for node in list(cluster, "nodes").iter().filter(|node| view_of(views, node).is_none()) {
        let id = node.get("id").map(Value::to_string).unwrap_or_default();
        let address = node.get("http_addr").and_then(Value::as_str).unwrap_or_default();
        told.push(json!({
            "severity": "warning",
            "what": format!("node {id} ({address}) does not answer"),
            "why": "every shard has lost one copy for as long as it is away",
            "act": format!(
                "on its machine: systemctl status holdfast; journalctl -u holdfast -n 50. If the \
                 machine is gone: holdfast node replace {id}"
            ),
        }));
    }
    let down: Vec<String> =
        told.iter().filter_map(|one| Some(format!("{} ", one.get("what")?.as_str()?))).collect();
    for one in views.iter().flat_map(|view| list(view, "troubles")) {
        // "node 2 (…) does not answer node 1" of a node that answers nobody.
        let what = one.get("what").and_then(Value::as_str).unwrap_or_default();
        if down.iter().any(|known| what.starts_with(known.as_str())) {
            continue;
        }
        if !told.iter().any(|known| known.get("what") == one.get("what")) {
            told.push(one.clone());
        }
    }
    told.sort_by_key(|one| one.get("severity").and_then(Value::as_str) != Some("broken"));
    told
}

fn show(voice: Voice, cluster: &Value, views: &[Value], troubles: &[Value]) {
    if voice.is_json() {
        voice.line(&cluster.to_string());
        return;
    }
    voice.line(&head(cluster, views));
    if !list(cluster, "nodes").is_empty() {
        voice.line(&nodes(cluster, views).to_string());
    }
    if !list(cluster, "shards").is_empty() {
        voice.line(&shards(cluster, views).to_string());
    }
    for one in troubles {
        let text = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default();
        let mark = if text("severity") == "broken" { "✗" } else { "!" };
        voice.line(&trouble(mark, text("what"), text("why"), text("act")));
    }
    if troubles.is_empty() && !is_absent(cluster.get("cluster_id")) {
        voice.line("all serve; nothing to act on");
    }
}

/// What a node without a cluster is, and which it is.
fn uninitialised(cluster: &Value) -> String {
    let text = |name: &str| cluster.get(name).and_then(Value::as_str).unwrap_or_default();
    let named = [text("name"), text("http_addr")].into_iter().filter(|word| !word.is_empty());
    let named = named.collect::<Vec<_>>().join(", at ");
    format!(
        "the node {named} belongs to no cluster: make one with `holdfast cluster init --nodes \
         URL,URL,URL`, or bring it back into the one that it was wiped under with `holdfast node \
         replace ID` on another node"
    )
}

fn head(cluster: &Value, views: &[Value]) -> String {
    let Some(id) = cluster.get("cluster_id").and_then(Value::as_str) else {
        return "cluster (none)".to_owned();
    };
    if !is_absent(cluster.get("stopped")) {
        return format!("cluster {id}: this node takes no part in it");
    }
    let (nodes, shards) = (list(cluster, "nodes").len(), list(cluster, "shards").len());
    let tolerated = number(cluster, "failures_tolerated").unwrap_or_default();
    let up = list(cluster, "nodes").iter().filter(|node| view_of(views, node).is_some()).count();
    let active = cluster.pointer("/schema/active").and_then(Value::as_u64).unwrap_or(1);
    let down = u64::try_from(nodes.saturating_sub(up)).unwrap_or(u64::MAX);
    format!(
        "cluster {id}   schema version {active}\n{up} of {nodes} nodes answer, {shards} shards; {} \
         more may fail",
        tolerated.saturating_sub(down)
    )
}

/// The view that a node has of itself.
fn view_of<'a>(views: &'a [Value], node: &Value) -> Option<&'a Value> {
    let id = number(node, "id")?;
    views.iter().find(|view| number(view, "node") == Some(id))
}

fn nodes(cluster: &Value, views: &[Value]) -> Table {
    let mut rows = table(&[
        "node",
        "state",
        "version",
        "schema",
        "http",
        "region",
        "leads",
        "lag",
        "clock",
        "disk free",
        "sync",
    ]);
    for node in list(cluster, "nodes") {
        let view = view_of(views, node);
        let state = match view.map(|view| is_absent(view.get("stopped"))) {
            None => "DOWN",
            Some(false) => "STOPPED",
            Some(true) => "up",
        };
        let text = |name: &str| node.get(name).and_then(Value::as_str).unwrap_or_default();
        let version = view.and_then(|view| view.get("version")).and_then(Value::as_str);
        let leads: Vec<String> = list(node, "leads").iter().map(Value::to_string).collect();
        let lag = views.iter().filter_map(|view| {
            let id = number(node, "id");
            let seen = list(view, "nodes").iter().find(|other| number(other, "id") == id)?;
            number(seen, "lag")
        });
        rows.add_row([
            node.get("id").map(Value::to_string).unwrap_or_default(),
            state.to_owned(),
            version.unwrap_or_default().to_owned(),
            schema_range(view.and_then(|view| view.pointer("/schema/reads"))),
            text("http_addr").to_owned(),
            text("region").to_owned(),
            leads.join(" "),
            lag.max().map(|lag| lag.to_string()).unwrap_or_default(),
            clock(cluster, node),
            view.map(free).unwrap_or_default(),
            view.map(sync).unwrap_or_default(),
        ]);
    }
    rows
}

/// A node's clock against that of the node that was asked.
fn clock(cluster: &Value, node: &Value) -> String {
    let bound = cluster.pointer("/clock/offset_ms_max").and_then(Value::as_u64).unwrap_or(2_000);
    match node.get("clock_offset_ms").and_then(Value::as_i64) {
        Some(ms) => format!("{} {ms:+} ms", bar(ms.unsigned_abs(), bound, BAR / 2)),
        None => String::new(),
    }
}

/// How much of a node's disk is taken, and what is left.
fn free(view: &Value) -> String {
    let of = |name: &str| view.pointer(&format!("/disk/{name}")).and_then(Value::as_u64);
    let (Some(free), Some(total)) = (of("free_bytes"), of("total_bytes")) else {
        return String::new();
    };
    let full = view.pointer("/disk/full").and_then(Value::as_bool).unwrap_or(false);
    let word = match (of("waits_for_room_ms"), full) {
        (Some(_), _) => " NO ROOM",
        (None, true) => " FULL",
        (None, false) => "",
    };
    format!("{} {}{word}", bar(total.saturating_sub(free), total, BAR), size(free))
}

/// How long a sync of a node's log takes, or what stands in its way.
fn sync(view: &Value) -> String {
    if !is_absent(view.pointer("/disk/log_failed")) {
        return "FAILED".to_owned();
    }
    let of = |name: &str| view.pointer(&format!("/disk/{name}")).and_then(Value::as_u64);
    let waiting = of("oldest_unsynced_ms").filter(|ms| *ms >= 100);
    match (waiting, of("sync_p50_us")) {
        (Some(ms), _) => format!("waits {}", span(ms)),
        (None, Some(us)) => format!("{}.{:02} ms", us / 1_000, us % 1_000 / 10),
        (None, None) => String::new(),
    }
}

fn shards(cluster: &Value, views: &[Value]) -> Table {
    let mut rows =
        table(&["shard", "leader", "preferred", "quorum age", "applied", "checkpoint", "state"]);
    for shard in list(cluster, "shards") {
        let id = number(shard, "shard");
        let leader = number(shard, "leader");
        // The leader's own word on its quorum, when it answers.
        let seen = views
            .iter()
            .find(|view| leader.is_some() && number(view, "node") == leader)
            .and_then(|view| list(view, "shards").iter().find(|own| number(own, "shard") == id))
            .unwrap_or(shard);
        let age = number(seen, "quorum_age_ms");
        let age = age.map(|ms| format!("{} {}", bar(ms, 300, BAR / 2), span(ms)));
        let checkpoint = number(seen, "checkpoint_age_ms").map(|ms| format!("{} ago", span(ms)));
        rows.add_row([
            id.map(|id| id.to_string()).unwrap_or_default(),
            leader.map_or_else(|| "NONE".to_owned(), |leader| leader.to_string()),
            preferred(leader, number(seen, "preferred")),
            age.unwrap_or_default(),
            shard.get("applied").map(Value::to_string).unwrap_or_default(),
            checkpoint.unwrap_or_default(),
            ill(shard).unwrap_or_else(|| "grants".to_owned()),
        ]);
    }
    rows
}

/// The node that is meant to lead a shard, marked when another does.
fn preferred(leader: Option<u64>, preferred: Option<u64>) -> String {
    match preferred {
        Some(node) if leader == Some(node) => node.to_string(),
        Some(node) => format!("{node} ←"),
        None => String::new(),
    }
}

/// What is wrong with a shard that grants nothing now.
fn ill(shard: &Value) -> Option<String> {
    if is_absent(shard.get("leader")) {
        Some("has no leader".to_owned())
    } else if !is_absent(shard.get("paused")) {
        let reason = shard.get("paused").and_then(Value::as_str).unwrap_or("yes");
        Some(format!("is paused ({reason})"))
    } else {
        None
    }
}

/// The shards that grant nothing now, with what is wrong.
pub(super) fn ill_shards(cluster: &Value) -> Vec<String> {
    let words = |shard: &Value| {
        let number = shard.get("shard").map(Value::to_string).unwrap_or_default();
        ill(shard).map(|what| format!("shard {number} {what}"))
    };
    list(cluster, "shards").iter().filter_map(words).collect()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}

fn takes_part(cluster: &Value) -> bool {
    !is_absent(cluster.get("cluster_id")) && is_absent(cluster.get("stopped"))
}

fn is_absent(value: Option<&Value>) -> bool {
    matches!(value, None | Some(Value::Null | Value::Bool(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Value {
        json!({
            "cluster_id": "c", "node": 1, "failures_tolerated": 1,
            "nodes": [
                {"id": 1, "answers": true, "http_addr": "h:1", "leads": [0], "lag": 0},
                {"id": 2, "answers": false, "http_addr": "h:2", "leads": []}],
            "shards": [
                {"shard": 0, "leader": 1, "quorum_age_ms": 20, "applied": 7},
                {"shard": 1, "leader": null},
                {"shard": 2, "leader": 3, "paused": "quorum-lost"}],
            "disk": {"free_bytes": 1_u64 << 30, "total_bytes": 4_u64 << 30, "full": false,
                     "sync_p50_us": 310},
            "troubles": [{"severity": "warning", "what": "w", "why": "y", "act": "a"}]
        })
    }

    #[test]
    fn node_that_was_removed_or_is_empty_tells_less_than_another_that_was_named() {
        let serving = json!({"cluster_id": "cb63", "stopped": null});
        let removed = json!({"cluster_id": "cb63", "stopped": "node 4 was removed"});
        let empty = json!({"cluster_id": null, "stopped": null});
        assert_eq!([serving, removed, empty].map(|one| takes_part(&one)), [true, false, false]);
    }

    #[test]
    fn a_shard_without_a_leader_or_paused_is_ill() {
        assert_eq!(
            ill_shards(&cluster()),
            ["shard 1 has no leader", "shard 2 is paused (quorum-lost)"]
        );
    }

    #[test]
    fn a_dead_node_a_full_disk_and_a_lost_leader_stand_out_in_the_tables() {
        let mut view = cluster();
        let text = nodes(&view, &[view.clone()]).to_string();
        assert!(text.contains("DOWN") && text.contains("1.0 GiB") && text.contains("0.31 ms"));
        view["disk"]["waits_for_room_ms"] = json!(900);
        view["disk"]["log_failed"] = json!("it broke");
        let text = nodes(&view, &[view.clone()]).to_string();
        assert!(text.contains("NO ROOM") && text.contains("FAILED"), "{text}");
        let text = shards(&view, &[view.clone()]).to_string();
        assert!(text.contains("NONE") && text.contains("20 ms"), "{text}");
        assert!(head(&view, &[view.clone()]).contains("0 more may fail"));
    }

    #[test]
    fn a_node_without_a_cluster_is_named_by_what_it_has_a_name_and_an_address() {
        let told = json!({"node": 0, "name": "n2", "http_addr": "h:7102"});
        let words = uninitialised(&told);
        assert!(words.starts_with("the node n2, at h:7102 belongs to no cluster"), "{words}");
        let words = uninitialised(&json!({"node": 0, "http_addr": "h:7102"}));
        assert!(words.starts_with("the node h:7102 belongs to no cluster"), "{words}");
    }

    #[test]
    fn a_node_that_takes_no_part_tells_no_figures_of_its_cluster() {
        let told = json!({"cluster_id": "c", "node": 3, "stopped": "removed", "nodes": []});
        assert_eq!(
            head(&told, std::slice::from_ref(&told)),
            "cluster c: this node takes no part in it"
        );
    }

    #[test]
    fn who_leads_a_shard_stands_beside_who_is_meant_to() {
        let mut view = cluster();
        for (at, node) in [1, 1, 1].into_iter().enumerate() {
            view["shards"][at]["preferred"] = json!(node);
        }
        let text = shards(&view, &[view.clone()]).to_string();
        assert!(text.contains("preferred"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("1 ←")).count(), 2, "{text}");
        assert_eq!(
            (preferred(Some(1), Some(1)), preferred(Some(3), None)),
            ("1".into(), "".into())
        );
    }

    #[test]
    fn what_several_nodes_tell_is_told_once_and_the_worst_first() {
        let mut other = cluster();
        let broken = json!({"severity": "broken", "what": "b", "why": "", "act": ""});
        other["troubles"].as_array_mut().expect("a list").push(broken);
        let seen = json!({"severity": "warning", "what": "node 2 (h:2) does not answer node 1",
            "why": "", "act": ""});
        other["troubles"].as_array_mut().expect("a list").push(seen);
        let told = all_troubles(&cluster(), &[cluster(), other]);
        let what: Vec<_> = told.iter().map(|one| one["what"].as_str().expect("text")).collect();
        assert_eq!(what, ["b", "node 2 (h:2) does not answer", "w"]);
    }
}
