//! `holdfast cluster init`: makes a cluster of running, empty nodes.
//!
//! Two steps, so that nothing votes before everything is known: every node *adopts* an identity
//! and makes its log; then every node *begins* with the whole list of members and their logs.
//! Promises: the offer is on disk before the first node adopts it, so a run that dies can be run
//! again and does the rest; a node that belongs to a cluster is never touched, and of a cluster
//! that is there already it says so, and how it differs from what was asked for.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use self::plan::{Plan, plan_of};
use super::item::send;
use super::output::members;
use super::progress::spinner;
use super::{Failure, Reach};
use crate::api::{Adopt, Adopted, Begin, ClusterSettings, Member};
use crate::client::{CallError, Client, Problem};
use crate::config::{self, Config};
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
    /// Take the cluster to the next schema version, when every node runs a version that reads it.
    /// There is no way back.
    #[command(after_help = "Examples:
  holdfast cluster upgrade --dry-run
  holdfast cluster upgrade")]
    Upgrade {
        /// Print what would be done, or what stands in the way, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Init {
    /// Base URLs of all nodes, in the order of their ids; 3 or 5 survive 1 or 2 deaths.
    #[arg(long, required = true, value_delimiter = ',', value_name = "URL")]
    nodes: Vec<String>,
    /// How many shards, fixed for the life of the cluster; 4 when neither this nor --config says.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: Option<u16>,
    /// Propose the `[cluster]` keys of this file instead of their defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the offered identity is kept until all nodes have it (it holds a secret).
    #[arg(long, default_value = "holdfast-init.json", value_name = "FILE")]
    plan: PathBuf,
}

impl Cluster {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let voice = reach.voice();
        let init = match self {
            Cluster::Init(init) => init,
            Cluster::Upgrade { dry_run } => return upgrade(&reach, dry_run).await,
        };
        let proposed = Config::load(init.config.as_deref(), std::env::vars(), [])
            .map_err(|e| Failure::Usage(e.to_string()))?
            .cluster;
        // Only what was asked for can differ from a cluster that is there already.
        let asked = init.shards.or(init.config.is_some().then_some(proposed.shards));
        let proposed = config::Cluster { shards: asked.unwrap_or(proposed.shards), ..proposed };
        let wanted = Wanted { nodes: &init.nodes, shards: asked, settings: settings(proposed) };
        let founded = found(&reach, wanted, &init.plan).await?;
        voice.data(&founded.shown, || members(&founded.shown));
        if founded.is_new {
            voice.say("the cluster is ready");
        } else {
            let nodes = founded.shown.get("nodes").and_then(Value::as_array);
            let nodes = nodes.into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
            let shards = founded.shown.get("shards").and_then(Value::as_u64).unwrap_or_default();
            let nodes = nodes.join(", ");
            voice.say(&format!("already a cluster: nodes {nodes}, shards {shards}"));
        }
        Ok(())
    }
}

/// Takes a running cluster to the next schema version.
async fn upgrade(reach: &Reach, dry_run: bool) -> Result<(), Failure> {
    let (client, voice) = (reach.client()?, reach.voice());
    let query = if dry_run { "?dry_run=true" } else { "" };
    let path = format!("/admin/v1/cluster/upgrade{query}");
    let told = send(&client, Method::POST, &path, None).await?;
    voice.data(&told, || members(&told));
    Ok(())
}

/// What a cluster is to be.
pub(super) struct Wanted<'a> {
    /// Its nodes' base URLs, in the order of their ids.
    pub(super) nodes: &'a [String],
    /// How many shards, when that was asked for.
    pub(super) shards: Option<u16>,
    /// What is proposed.
    pub(super) settings: ClusterSettings,
}

/// A cluster whose shards have leaders.
pub(super) struct Founded {
    /// Its id, its nodes, its shards.
    shown: Value,
    /// Whether it was made now.
    is_new: bool,
}

/// The settings of a new cluster, with a random key for the hold ids' tags.
pub(super) fn settings(proposed: config::Cluster) -> ClusterSettings {
    ClusterSettings {
        shards: proposed.shards,
        tag_key: format!("{:032x}", rand::random::<u128>()),
        slots: proposed.slots,
        sweep_max: proposed.sweep_max,
        receipt_retention_ms: proposed.receipt_retention_ms,
        sold_retention_ms: proposed.sold_retention_ms,
    }
}

/// Makes a cluster of these nodes and waits until every shard has a leader.
///
/// # Errors
///
/// [`Failure`] naming the node and what is wrong with it; run again when that is mended.
pub(super) async fn found(
    reach: &Reach,
    wanted: Wanted<'_>,
    plan_file: &Path,
) -> Result<Founded, Failure> {
    let Wanted { nodes, shards, settings } = wanted;
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
    let views = views(&clients).await?;
    let known: Vec<_> = views.iter().map(|view| view.as_ref()?.cluster_id.clone()).collect();
    if let Some(cluster) = already_founded(&known, offered)? {
        bar.finish_and_clear();
        let views: Vec<&View> = views.iter().flatten().collect();
        same_cluster(&views, shards)?;
        return wait_for_leaders(&clients, &cluster, false).await;
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
    let ready = wait_for_leaders(&clients, &plan.cluster_id, true).await?;
    write_newest(&clients).await?;
    // All nodes have it: the secret need not lie about. A file that cannot be removed hurts nobody.
    let _ = std::fs::remove_file(plan_file);
    Ok(ready)
}

/// What a node tells of its cluster, as far as `init` goes by it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct View {
    cluster_id: Option<String>,
    node: u64,
    nodes: Vec<Seen>,
    shards: Vec<Value>,
    stopped: Option<String>,
}

/// A member in it.
#[derive(Debug, Clone, Deserialize)]
struct Seen {
    id: u64,
    http_addr: String,
}

/// Asks every node how it sees the cluster that it belongs to.
async fn views(clients: &[(&str, Client)]) -> Result<Vec<Option<View>>, Failure> {
    let mut views = Vec::new();
    for (url, client) in clients {
        views.push(match client.get("/admin/v1/cluster").await {
            Ok(told) => Some(serde_json::from_value(told.body).map_err(|e| {
                Failure::Usage(format!("{url} does not answer as a node does: {e}"))
            })?),
            // An empty node may have nothing to tell yet.
            Err(CallError::Refused(problem)) if problem.status == 404 => None,
            Err(CallError::Unavailable(last)) if last.contains("not-serving") => None,
            Err(e) => return Err(Failure::Unavailable(format!("{url} cannot be asked: {e}"))),
        });
    }
    Ok(views)
}

/// Makes sure that the nodes that were named are a cluster's members, all of them, and that it has
/// as many shards as were asked for.
///
/// # Errors
///
/// [`Failure::Usage`] naming the difference, [`Failure::Unavailable`] when no node takes part.
fn same_cluster(views: &[&View], shards: Option<u16>) -> Result<(), Failure> {
    let named: BTreeSet<u64> = views.iter().map(|view| view.node).collect();
    let Some(view) = views.iter().find(|view| view.stopped.is_none() && !view.nodes.is_empty())
    else {
        let why = views.iter().find_map(|view| view.stopped.clone()).unwrap_or_default();
        let words = format!("these nodes belong to a cluster and take no part in it now: {why}");
        return Err(Failure::Unavailable(words));
    };
    let members: BTreeMap<u64, &str> =
        view.nodes.iter().map(|node| (node.id, node.http_addr.as_str())).collect();
    let mut differences: Vec<String> = members
        .iter()
        .filter(|(id, _)| !named.contains(id))
        .map(|(id, at)| format!("node {id} at {at} belongs to it and was not named"))
        .collect();
    let strangers = named.iter().filter(|id| !members.contains_key(id));
    differences.extend(strangers.map(|id| format!("node {id} was named and is no member of it")));
    let has = view.shards.len();
    if let Some(shards) = shards.filter(|shards| usize::from(*shards) != has) {
        differences.push(format!("it has {has} shards, for its whole life, and not {shards}"));
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "already a cluster, another one than asked for; nothing was changed: {}",
        differences.join("; ")
    )))
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
            "some of these nodes belong to a cluster already and others are empty. `holdfast node \
             add` brings a node in, and `holdfast node replace ID` one for a node that lost its \
             disk (docs/operations.md); an interrupted `cluster init` goes on when it is run again \
             with its plan file"
                .into(),
        )),
        (_, _) => Err(Failure::Usage(format!(
            "these nodes belong to different clusters: {}",
            named.into_iter().cloned().collect::<Vec<_>>().join(", ")
        ))),
    }
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
async fn wait_for_leaders(
    clients: &[(&str, Client)],
    cluster: &str,
    is_new: bool,
) -> Result<Founded, Failure> {
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
            let shown = json!({
                "cluster_id": cluster,
                "nodes": clients.iter().map(|(url, _)| *url).collect::<Vec<_>>(),
                "shards": shards,
            });
            return Ok(Founded { shown, is_new });
        }
        bar.set_message(format!("the shards elect their leaders: {missing}"));
        sleep(ASK_AGAIN).await;
    }
    Err(Failure::Unavailable(format!("the cluster is made, but not serving: {missing}")))
}

/// Takes a new cluster to the newest schema version that all of its nodes read: it has nothing that
/// an older build wrote. A node that is held back holds it back.
async fn write_newest(clients: &[(&str, Client)]) -> Result<(), Failure> {
    let Some((_, first)) = clients.first() else { return Ok(()) };
    let version = |told: &Value, at: &str| told.pointer(at).and_then(Value::as_u64).unwrap_or(1);
    let told = first.get("/admin/v1/cluster").await?.body;
    let (active, newest) =
        (version(&told, "/schema/active"), version(&told, "/schema/reads/newest"));
    if active >= newest {
        return Ok(());
    }
    for _ in active..newest {
        match send(first, Method::POST, "/admin/v1/cluster/upgrade", None).await {
            Ok(_) => {}
            Err(Failure::Refused(problem)) if is_held_back(&problem) => return Ok(()),
            Err(failure) => return Err(failure),
        }
    }
    // Each node goes by what it has applied.
    let until = now() + LEADERS_WITHIN;
    for (url, client) in clients {
        while version(&client.get("/admin/v1/cluster").await?.body, "/schema/active") < newest {
            if now() >= until {
                let words = format!("{url} has not come to schema version {newest}");
                return Err(Failure::Unavailable(words));
            }
            sleep(ASK_AGAIN).await;
        }
    }
    Ok(())
}

/// Tells whether some node does not read the next schema version.
fn is_held_back(problem: &Problem) -> bool {
    problem.members.get("reason").and_then(Value::as_str) == Some("every-node-reads-it")
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
    fn a_cluster_that_is_there_is_only_taken_for_the_same_when_nodes_and_shards_are() {
        let view = |node: u64| -> View {
            let nodes = (1..=3).map(|id| Seen { id, http_addr: format!("h:{id}") }).collect();
            View { node, nodes, shards: vec![json!({})], ..View::default() }
        };
        let (one, two, three) = (view(1), view(2), view(3));
        assert!(same_cluster(&[&three, &two, &one], Some(1)).is_ok());
        assert!(same_cluster(&[&one, &two, &three], None).is_ok());
        let fewer = same_cluster(&[&one, &two], None).expect_err("two of three");
        assert!(fewer.to_string().contains("node 3 at h:3"), "{fewer}");
        let shards = same_cluster(&[&one, &two, &three], Some(8)).expect_err("other shards");
        assert!(shards.to_string().contains("1 shards") && shards.exit_code() == 2, "{shards}");
        let stopped = View { stopped: Some("its log".into()), nodes: vec![], ..view(1) };
        let stopped = same_cluster(&[&stopped], None).expect_err("no part");
        assert!(stopped.to_string().contains("its log"), "{stopped}");
    }
}
