//! `holdfast node`: the nodes of a running cluster, brought in, drained, and taken out.
//!
//! Each verb begins an operation, which the cluster carries out whoever watches; without
//! `--no-wait` the verb shows its steps until it is done. Stopping the verb stops nothing.

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Table;
use http::Method;
use serde_json::{Value, json};

use super::item::send;
use super::output::{Voice, people_watch, rows, schema_range};
use super::progress::spinner;
use super::{Failure, Reach};
use crate::client::{CallError, Client};
use crate::runtime::{now, sleep};

/// How often an operation is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub(super) enum NodeVerb {
    /// List the nodes and the operations on them.
    #[command(after_help = "Example:
  holdfast node list")]
    List,
    /// Print a token that lets one new machine in, and show how it comes in.
    #[command(after_help = "Examples:
  holdfast node add                 # prints the command to run on the new machine, then waits
  holdfast node add --learner --no-wait --json

On the new, empty machine:
  holdfast serve --config FILE --join URL --token TOKEN")]
    Add {
        /// Let it follow only, without a vote.
        #[arg(long)]
        learner: bool,
        /// Let a machine of this region in, and no other.
        #[arg(long, value_name = "NAME")]
        region: Option<String>,
        #[command(flatten)]
        token: Token,
        #[command(flatten)]
        how: How,
    },
    /// Let a learner vote in every shard, when it has caught up.
    #[command(after_help = "Example:
  holdfast node promote 4")]
    Promote(One),
    /// Take a voter's vote in every shard; it goes on following.
    #[command(after_help = "Example:
  holdfast node demote 4")]
    Demote(Fewer),
    /// Hand a node's leaderships over and give it none, before work on its machine.
    #[command(after_help = "Example:
  holdfast node drain 2")]
    Drain(One),
    /// Let a drained node lead again.
    #[command(after_help = "Example:
  holdfast node undrain 2")]
    Undrain(One),
    /// Take a node out of every shard, for good.
    #[command(after_help = "Examples:
  holdfast node remove 4 --dry-run
  holdfast node remove 4")]
    Remove(Fewer),
    /// Bring a new machine in for a node that is lost, then take the node out.
    #[command(after_help = "Example:
  holdfast node replace 3           # prints the command to run on the new machine, then waits")]
    Replace {
        /// The node that goes.
        node: u64,
        #[command(flatten)]
        token: Token,
        #[command(flatten)]
        how: How,
    },
    /// Show an operation's steps until it is done.
    #[command(after_help = "Example:
  holdfast node wait 7")]
    Wait {
        /// The operation.
        operation: u64,
        /// How long to wait, in ms.
        #[arg(long, default_value_t = 600_000, value_name = "MS")]
        wait_ms: u64,
    },
    /// Give up an operation whose machine has not come; its token lets nobody in any more.
    #[command(after_help = "Example:
  holdfast node cancel 7")]
    Cancel {
        /// The operation.
        operation: u64,
    },
}

/// How a change is made.
#[derive(Debug, Clone, Args)]
pub(super) struct How {
    /// Print what would be done, and what is wrong with it, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Return as soon as the operation has begun.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait until it is done, in ms. It goes on all the same.
    #[arg(long, default_value_t = 600_000, value_name = "MS")]
    wait_ms: u64,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Token {
    /// How long the token lets somebody in, in ms.
    #[arg(long, default_value_t = 3_600_000, value_name = "MS",
        value_parser = clap::value_parser!(u64).range(1_000..=604_800_000))]
    valid_ms: u64,
}

#[derive(Debug, Clone, Args)]
pub(super) struct One {
    /// The node.
    node: u64,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Fewer {
    /// The node.
    node: u64,
    /// Go on also when fewer than three voters are left, which survive no death.
    #[arg(long)]
    allow_fewer: bool,
    #[command(flatten)]
    how: How,
}

/// A change as it goes over HTTP.
struct Change {
    method: Method,
    path: String,
    body: Option<Value>,
    fewer: bool,
    how: How,
}

impl Change {
    fn post(path: String, how: How) -> Change {
        Change { method: Method::POST, path, body: None, fewer: false, how }
    }

    fn url(&self) -> String {
        let mut query = Vec::new();
        if self.how.dry_run {
            query.push("dry_run=true");
        }
        if self.fewer {
            query.push("allow_fewer=true");
        }
        match query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, query.join("&")),
        }
    }
}

impl NodeVerb {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let (client, voice) = (reach.client()?, reach.voice());
        let at = |node: u64, verb: &str| format!("/admin/v1/nodes/{node}{verb}");
        let change = match self {
            NodeVerb::List => return list(&client, voice).await,
            NodeVerb::Wait { operation, wait_ms } => {
                return watch(&client, voice, operation, Duration::from_millis(wait_ms)).await;
            }
            NodeVerb::Cancel { operation } => {
                let path = format!("/admin/v1/operations/{operation}/cancel");
                let done = send(&client, Method::POST, &path, None).await?;
                voice.data(&done, || super::output::members(&done));
                return Ok(());
            }
            NodeVerb::Add { learner, region, token: Token { valid_ms }, how } => {
                let mut body = json!({"learner": learner, "valid_ms": valid_ms});
                if let Some(region) = region {
                    body["region"] = json!(region);
                }
                let change = Change::post("/admin/v1/nodes".to_owned(), how);
                Change { body: Some(body), ..change }
            }
            NodeVerb::Replace { node, token: Token { valid_ms }, how } => {
                let body = json!({"valid_ms": valid_ms});
                Change { body: Some(body), ..Change::post(at(node, "/replace"), how) }
            }
            NodeVerb::Promote(One { node, how }) => Change::post(at(node, "/promote"), how),
            NodeVerb::Drain(One { node, how }) => Change::post(at(node, "/drain"), how),
            NodeVerb::Undrain(One { node, how }) => Change::post(at(node, "/undrain"), how),
            NodeVerb::Demote(Fewer { node, allow_fewer, how }) => {
                Change { fewer: allow_fewer, ..Change::post(at(node, "/demote"), how) }
            }
            NodeVerb::Remove(Fewer { node, allow_fewer, how }) => {
                let change = Change::post(at(node, ""), how);
                Change { method: Method::DELETE, fewer: allow_fewer, ..change }
            }
        };
        begin(&client, voice, change, &reach.url).await
    }
}

async fn begin(
    client: &Client,
    voice: Voice,
    change: Change,
    urls: &[String],
) -> Result<(), Failure> {
    let url = change.url();
    let told = send(client, change.method.clone(), &url, change.body.as_ref()).await?;
    for warning in texts(&told, "warnings") {
        voice.say(&format!("note: {warning}"));
    }
    if change.how.dry_run {
        if voice.is_json() {
            voice.line(&told.to_string());
        } else {
            for (at, step) in texts(&told, "steps").iter().enumerate() {
                voice.line(&format!("{}. {step}", at + 1));
            }
            voice.say("nothing was changed: run it again without --dry-run");
        }
        return Ok(());
    }
    let operation = told["operation"]["id"].as_u64().unwrap_or_default();
    if let Some(token) = told["token"].as_str() {
        let url = urls.first().map(String::as_str).unwrap_or_default();
        voice.say(&format!(
            "on the new, empty machine run:\n  holdfast serve --config FILE --join {url} --token \
             {token}"
        ));
    }
    if change.how.no_wait {
        // With its token, which is shown only here.
        voice.data(&told, || super::output::members(&told));
        return Ok(());
    }
    voice.say(&format!("operation {operation} has begun; it goes on when this command is stopped"));
    watch(client, voice, operation, Duration::from_millis(change.how.wait_ms)).await
}

fn texts(value: &Value, name: &str) -> Vec<String> {
    let list = value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Shows an operation's steps as they are done, until it has ended.
async fn watch(
    client: &Client,
    voice: Voice,
    operation: u64,
    within: Duration,
) -> Result<(), Failure> {
    let (until, path) = (now() + within, format!("/admin/v1/operations/{operation}"));
    let bar = spinner("waiting for the cluster");
    let mut said = 0;
    loop {
        let told = match client.get(&path).await {
            Ok(told) => told.body,
            // The cluster may have no leader for a moment, and the operation goes on.
            Err(CallError::Unavailable(why)) if now() < until => {
                bar.set_message(format!("no node could say how it stands: {why}"));
                sleep(LOOK_EVERY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let steps = told["steps"].as_array().cloned().unwrap_or_default();
        let done = steps.iter().take_while(|step| step["state"] == "done").count();
        for step in steps.iter().take(done).skip(said) {
            let title = step["title"].as_str().unwrap_or_default();
            bar.suspend(|| voice.say(&format!("done: {title}")));
        }
        said = said.max(done);
        if let Some(running) = steps.iter().find(|step| step["state"] == "running") {
            let text = |name: &str| running[name].as_str().unwrap_or_default().to_owned();
            bar.set_message(format!("{}: {}", text("title"), text("detail")));
        }
        let state = told["state"].as_str().unwrap_or_default().to_owned();
        let note = told["note"].as_str().unwrap_or_default().to_owned();
        match state.as_str() {
            "done" => {
                bar.finish_and_clear();
                if !note.is_empty() {
                    voice.say(&note);
                }
                voice.data(&told, || shown_steps(&told, &steps));
                return Ok(());
            }
            "cancelled" => {
                bar.finish_and_clear();
                return Err(Failure::Broken(format!("operation {operation} was given up: {note}")));
            }
            _ => {}
        }
        if now() >= until {
            bar.finish_and_clear();
            let last = steps.iter().find(|step| step["state"] == "running");
            let last = last.and_then(|step| step["detail"].as_str()).unwrap_or("it has not begun");
            return Err(Failure::Unavailable(format!(
                "operation {operation} is not done yet ({last}); it goes on: `holdfast node wait \
                 {operation}`"
            )));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The steps of an operation that is done; what it was, when it had none.
fn shown_steps(told: &Value, steps: &[Value]) -> Table {
    if !steps.is_empty() {
        return rows(steps, &["step", "state", "title"]);
    }
    let kind = told["kind"].as_str().unwrap_or_default();
    super::output::members(&json!({"done": format!("{kind} of node {}", told["node"])}))
}

async fn list(client: &Client, voice: Voice) -> Result<(), Failure> {
    let told = client.get("/admin/v1/nodes").await?.body;
    if voice.is_json() {
        voice.line(&told.to_string());
        return Ok(());
    }
    let nodes = told["nodes"].as_array().cloned().unwrap_or_default();
    let shown: Vec<Value> = nodes.iter().map(with_schema).collect();
    let columns =
        ["id", "state", "answers", "http_addr", "peer_addr", "region", "leads", "lag", "schema"];
    voice.line(&rows(&shown, &columns).to_string());
    let newest = nodes.iter().filter_map(|node| node["reads_schema"]["newest"].as_u64()).min();
    let active = told["schema_version"].as_u64().unwrap_or(1);
    voice.line(&match newest.filter(|newest| *newest > active) {
        Some(newest) => format!(
            "schema version {active}; all nodes that answer read {newest}: `holdfast cluster \
             upgrade`"
        ),
        None => format!("schema version {active}"),
    });
    let operations = told["operations"].as_array().cloned().unwrap_or_default();
    if !operations.is_empty() {
        let shown: Vec<Value> = operations.iter().map(with_step).collect();
        let columns = ["id", "kind", "node", "replaces", "state", "step", "note"];
        voice.line(&rows(&shown, &columns).to_string());
    }
    if people_watch() && nodes.iter().any(|node| node["answers"] == json!(false)) {
        voice.say("a node that does not answer and will not come back: `holdfast node replace ID`");
    }
    Ok(())
}

/// A node with the schema versions that it reads, in words.
fn with_schema(node: &Value) -> Value {
    let mut node = node.clone();
    node["schema"] = json!(schema_range(node.get("reads_schema")));
    node
}

/// An operation with the step that it has come to.
fn with_step(operation: &Value) -> Value {
    let mut operation = operation.clone();
    let steps = operation["steps"].as_array();
    let running = steps.into_iter().flatten().find(|step| step["state"] == "running").cloned();
    if let (Some(step), Some(members)) = (running, operation.as_object_mut()) {
        members.insert("step".to_owned(), step["step"].clone());
        if members.get("note").is_none() {
            members.insert("note".to_owned(), step["detail"].clone());
        }
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_listed_with_the_step_that_runs() {
        let steps = json!([{"step": "learn", "state": "done"},
            {"step": "catch-up", "state": "running", "detail": "1 of 4 shards"}]);
        let shown = with_step(&json!({"id": 1, "steps": steps}));
        assert_eq!(
            (shown["step"].as_str(), shown["note"].as_str()),
            (Some("catch-up"), Some("1 of 4 shards"))
        );
    }

    #[test]
    fn an_operation_without_steps_is_shown_as_done_and_not_as_an_empty_table() {
        let told = json!({"kind": "undrain", "node": 2, "steps": []});
        let shown = shown_steps(&told, &[]).to_string();
        assert!(shown.contains("undrain of node 2"), "{shown}");
    }

    #[test]
    fn what_was_asked_for_stands_in_the_query() {
        let how = How { dry_run: true, no_wait: false, wait_ms: 1 };
        let change = Change { fewer: true, ..Change::post("/x".to_owned(), how) };
        assert_eq!(change.url(), "/x?dry_run=true&allow_fewer=true");
    }
}
