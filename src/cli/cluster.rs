//! `holdfast cluster init`: makes a cluster of running, empty nodes.
//!
//! Two steps, so that nothing votes before everything is known: every node *adopts* an identity
//! and makes its log; then every node *begins* with the whole list of members and their logs.
//! Promises: the offer is on disk before the first node adopts it, so a run that dies can be run
//! again and does the rest; a node that belongs to another cluster is never touched.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::output::members;
use super::progress::spinner;
use super::{Failure, Reach};
use crate::api::{Adopt, Adopted, Begin, ClusterSettings, Member};
use crate::client::{CallError, Client, Problem};
use crate::runtime::{now, sleep};

/// How often the cluster is asked whether its shards have leaders.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long the first elections may take before it is said that they have failed.
const LEADERS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(super) enum Cluster {
    /// Make a cluster of running, empty nodes.
    #[command(after_help = "Example (three terminals run `holdfast serve` with n1 ... n3.toml):
  holdfast cluster init --nodes http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103

Safe to repeat: the plan file remembers the identity that was offered.")]
    Init(Init),
}

#[derive(Debug, Args)]
pub(super) struct Init {
    /// Base URLs of all nodes, in the order of their ids; 3 or 5 survive 1 or 2 deaths.
    #[arg(long, required = true, value_delimiter = ',', value_name = "URL")]
    nodes: Vec<String>,
    /// How many shards; fixed for the life of the cluster.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// Where the offered identity is kept until all nodes have it (it holds a secret).
    #[arg(long, default_value = "holdfast-init.json", value_name = "FILE")]
    plan: PathBuf,
}

impl Cluster {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let Cluster::Init(init) = self;
        let voice = reach.voice();
        let settings = settings(init.shards);
        let founded = found(&reach, &init.nodes, settings, &init.plan).await?;
        voice.data(&founded, || members(&founded));
        voice.say("the cluster is ready");
        Ok(())
    }
}

/// The settings of a new cluster, the defaults of the configuration but for the shards, with a
/// random key for the hold ids' tags.
pub(super) fn settings(shards: u16) -> ClusterSettings {
    let defaults = crate::config::Cluster::default();
    ClusterSettings {
        shards,
        tag_key: format!("{:032x}", rand::random::<u128>()),
        slots: defaults.slots,
        sweep_max: defaults.sweep_max,
        receipt_retention_ms: defaults.receipt_retention_ms,
        sold_retention_ms: defaults.sold_retention_ms,
    }
}

/// What is offered to the nodes, kept until all have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Plan {
    cluster_id: String,
    nodes: Vec<String>,
    settings: ClusterSettings,
}

/// Makes a cluster of these nodes and waits until every shard has a leader.
///
/// # Errors
///
/// [`Failure`] naming the node and what is wrong with it; run again when that is mended.
pub(super) async fn found(
    reach: &Reach,
    nodes: &[String],
    settings: ClusterSettings,
    plan_file: &Path,
) -> Result<Value, Failure> {
    let distinct: BTreeSet<_> = nodes.iter().map(|url| url.trim_end_matches('/')).collect();
    if distinct.len() != nodes.len() {
        return Err(Failure::Usage("a node is named twice".into()));
    }
    let clients = nodes
        .iter()
        .map(|url| Ok((url.as_str(), reach.client_of(std::slice::from_ref(url))?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    let offered = plan_file.exists();
    let bar = spinner("asking the nodes who they are");
    let known = identities(&clients).await?;
    if let Some(cluster) = already_founded(&known, offered)? {
        bar.finish_and_clear();
        return wait_for_leaders(&clients, &cluster).await;
    }
    let plan = plan_of(plan_file, nodes, settings)?;
    let foreign = known.iter().flatten().find(|cluster| **cluster != plan.cluster_id);
    if let Some(cluster) = foreign {
        return Err(Failure::Usage(format!(
            "{} offers cluster {}, but a node belongs to cluster {cluster}",
            plan_file.display(),
            plan.cluster_id
        )));
    }
    bar.set_message("step 1 of 2: every node adopts its identity");
    let members = adopt(&clients, &plan).await?;
    bar.set_message("step 2 of 2: every node begins");
    let begin =
        serde_json::to_value(Begin { members }).map_err(|e| Failure::Usage(e.to_string()))?;
    for (url, client) in &clients {
        post(client, url, "/admin/v1/begin", &begin).await?;
    }
    bar.finish_and_clear();
    let ready = wait_for_leaders(&clients, &plan.cluster_id).await?;
    // All nodes have it: the secret need not lie about. A file that cannot be removed hurts nobody.
    let _ = std::fs::remove_file(plan_file);
    Ok(ready)
}

/// Asks every node for the cluster that it belongs to.
async fn identities(clients: &[(&str, Client)]) -> Result<Vec<Option<String>>, Failure> {
    let mut known = Vec::new();
    for (url, client) in clients {
        let told = client.get("/admin/v1/cluster").await;
        known.push(match told {
            Ok(told) => cluster_id(&told.body),
            // An empty node may have nothing to tell yet.
            Err(CallError::Refused(problem)) if problem.status == 404 => None,
            Err(CallError::Unavailable(last)) if last.contains("not-serving") => None,
            Err(e) => return Err(Failure::Unavailable(format!("{url} cannot be asked: {e}"))),
        });
    }
    Ok(known)
}

fn cluster_id(told: &Value) -> Option<String> {
    told.get("cluster_id")?.as_str().map(str::to_owned)
}

/// Returns the cluster when all nodes belong to one already.
///
/// # Errors
///
/// [`Failure::Usage`] when some belong to a cluster that no plan of ours has offered.
fn already_founded(known: &[Option<String>], offered: bool) -> Result<Option<String>, Failure> {
    let named: BTreeSet<_> = known.iter().flatten().collect();
    let all = known.iter().all(Option::is_some);
    match (named.len(), all) {
        (0, _) => Ok(None),
        (1, true) if !offered => Ok(known.first().cloned().flatten()),
        (1, _) if offered => Ok(None),
        (1, _) => Err(Failure::Usage(
            "some of these nodes belong to a cluster already and others are empty; a new node \
             joins a cluster with `holdfast node add`, and an interrupted `cluster init` goes on \
             with its plan file"
                .into(),
        )),
        (_, _) => Err(Failure::Usage(format!(
            "these nodes belong to different clusters: {}",
            named.into_iter().cloned().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// Reads the plan of an earlier run, or makes one and puts it on disk.
fn plan_of(file: &Path, nodes: &[String], settings: ClusterSettings) -> Result<Plan, Failure> {
    let wrong = |words: String| Failure::Usage(format!("{}: {words}", file.display()));
    if file.exists() {
        let text = std::fs::read_to_string(file).map_err(|e| wrong(e.to_string()))?;
        let plan: Plan = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if plan.nodes != nodes || plan.settings.shards != settings.shards {
            return Err(wrong(format!(
                "an earlier run offered {} with {} shards; run that again, or remove the file if \
                 no node has adopted it",
                plan.nodes.join(","),
                plan.settings.shards
            )));
        }
        return Ok(plan);
    }
    let cluster_id = format!("{:032x}", rand::random::<u128>());
    let plan = Plan { cluster_id, nodes: nodes.to_vec(), settings };
    let text = serde_json::to_vec_pretty(&plan).map_err(|e| wrong(e.to_string()))?;
    let mut open = std::fs::OpenOptions::new();
    let mut written = open
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(|e| wrong(e.to_string()))?;
    written.write_all(&text).and_then(|()| written.sync_all()).map_err(|e| wrong(e.to_string()))?;
    Ok(plan)
}

/// Step 1: every node takes its identity and tells its log and its addresses.
async fn adopt(clients: &[(&str, Client)], plan: &Plan) -> Result<Vec<Member>, Failure> {
    let mut members: Vec<Member> = Vec::new();
    for ((url, client), id) in clients.iter().zip(1_u64..) {
        let offer = Adopt {
            cluster_id: plan.cluster_id.clone(),
            node: id,
            settings: plan.settings.clone(),
        };
        let offer = serde_json::to_value(&offer).map_err(|e| Failure::Usage(e.to_string()))?;
        let answer = post(client, url, "/admin/v1/adopt", &offer).await?;
        let adopted: Adopted = serde_json::from_value(answer)
            .map_err(|e| Failure::Usage(format!("{url} does not answer as a node does: {e}")))?;
        let twin = members.iter().find(|other| {
            other.log_uuid == adopted.log_uuid || other.peer_addr == adopted.peer_addr
        });
        if let Some(twin) = twin {
            return Err(Failure::Usage(format!(
                "{url} is the same node as {} or shares its peer address {}",
                twin.http_addr, adopted.peer_addr
            )));
        }
        members.push(Member {
            node: id,
            log_uuid: adopted.log_uuid,
            peer_addr: adopted.peer_addr,
            http_addr: adopted.http_addr,
            region: adopted.region,
        });
    }
    Ok(members)
}

async fn post(client: &Client, url: &str, path: &str, body: &Value) -> Result<Value, Failure> {
    let key = client.fresh_key();
    match client.send(Method::POST, path, Some(body), Some(&key), client.deadline()).await {
        Ok(answer) => Ok(answer.body),
        Err(CallError::Refused(problem)) => Err(Failure::Refused(Problem {
            detail: format!("{url} says: {}", problem.detail),
            ..problem
        })),
        Err(e) => Err(Failure::Unavailable(format!(
            "{url}{path}: {e}\nBoth steps may be repeated: run the same command again"
        ))),
    }
}

/// Waits until every node knows a leader of every shard.
async fn wait_for_leaders(clients: &[(&str, Client)], cluster: &str) -> Result<Value, Failure> {
    let bar = spinner("the shards elect their leaders");
    let until = now() + LEADERS_WITHIN;
    let mut missing = "nobody answered".to_owned();
    while now() < until {
        let (mut ready, mut shards) = (0, 0);
        for (url, client) in clients {
            let Ok(told) = client.get("/admin/v1/cluster").await else { break };
            shards = told.body.get("shards").and_then(Value::as_array).map_or(0, Vec::len);
            let ill = super::status::ill_shards(&told.body);
            if shards == 0 || !ill.is_empty() {
                missing = format!("{url} knows {shards} shards; {}", ill.join(", "));
                break;
            }
            ready += 1;
        }
        if ready == clients.len() {
            bar.finish_and_clear();
            return Ok(json!({
                "cluster_id": cluster,
                "nodes": clients.iter().map(|(url, _)| *url).collect::<Vec<_>>(),
                "shards": shards,
            }));
        }
        bar.set_message(format!("the shards elect their leaders: {missing}"));
        sleep(ASK_AGAIN).await;
    }
    Err(Failure::Unavailable(format!("the cluster is made, but not serving: {missing}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(id: &str) -> Option<String> {
        Some(id.to_owned())
    }

    #[test]
    fn nodes_of_a_cluster_are_never_made_into_another() {
        assert_eq!(already_founded(&[None, None], false).expect("empty"), None);
        assert_eq!(already_founded(&[some("a"), some("a")], false).expect("one"), some("a"));
        assert!(already_founded(&[some("a"), None], false).is_err());
        assert!(already_founded(&[some("a"), some("b")], false).is_err());
        assert!(already_founded(&[some("a"), some("b")], true).is_err());
    }

    #[test]
    fn an_interrupted_init_goes_on_with_the_offer_that_it_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("plan.json");
        let nodes = ["http://a:1".to_owned()];
        let first = plan_of(&file, &nodes, settings(4)).expect("made");
        let again = plan_of(&file, &nodes, settings(4)).expect("read");
        assert_eq!(first, again);
        assert_eq!(already_founded(&[some(&first.cluster_id), None], true).expect("goes on"), None);
        let other = plan_of(&file, &nodes, settings(8)).expect_err("another number of shards");
        assert!(other.to_string().contains("earlier run"), "{other}");
    }
}
