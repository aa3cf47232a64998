//! Nodes that come and go: orders to a cluster, and what becomes of them.

use serde_json::{Value, json};

use super::fleet::Fleet;
use super::wire::Answer;
use super::{SOON, wait_for};

/// An order is taken, or refused with what is wrong; others are asked again.
fn is_definite(answer: &Answer) -> bool {
    answer.status < 500
}

impl Fleet {
    /// Gives an order, to whichever running node takes it.
    pub(crate) async fn order(&self, method: &str, path: &str, body: &Value) -> Answer {
        wait_for(path, SOON, async || {
            for id in self.running() {
                let headers = [("Holdfast-Deadline-Ms", "10000")];
                let body = (method == "POST").then_some(body);
                match self.caller(id).send(method, path, &headers, body).await {
                    Ok(answer) if is_definite(&answer) => return Ok(answer),
                    Ok(_) | Err(_) => {}
                }
            }
            Err("no node takes it".to_owned())
        })
        .await
    }

    /// Gives an order that must be taken, and returns the operation's id and its token.
    pub(crate) async fn begin(&self, method: &str, path: &str) -> (u64, Option<String>) {
        let answer = self.order(method, path, &json!({})).await;
        assert_eq!(answer.status, 202, "{path}: {answer:?}");
        let id = answer.body["operation"]["id"].as_u64().expect("an id");
        (id, answer.body["token"].as_str().map(str::to_owned))
    }

    /// Waits until an operation has ended, and returns it. Says each step when it is first seen.
    pub(crate) async fn ended(&self, operation: u64) -> Value {
        let path = format!("/admin/v1/operations/{operation}");
        let mut said = String::new();
        wait_for(&format!("operation {operation} ends"), SOON * 3, async || {
            for id in self.running() {
                let Ok(answer) = self.caller(id).get(&path).await else { continue };
                if answer.status != 200 {
                    continue;
                }
                let state = answer.text_of("state").to_owned();
                if state == "done" || state == "cancelled" {
                    return Ok(answer.body);
                }
                let steps = answer.body["steps"].as_array().cloned().unwrap_or_default();
                let now = steps.iter().find(|step| step["state"] == "running");
                let now = now.map(|step| format!("{}: {}", step["step"], step["detail"]));
                let now = now.unwrap_or(state);
                if now != said {
                    println!("operation {operation}: {now}");
                    said.clone_from(&now);
                }
                return Err(now);
            }
            Err("nobody says".to_owned())
        })
        .await
    }

    /// Waits until an operation is done.
    pub(crate) async fn done(&self, operation: u64) -> Value {
        let ended = self.ended(operation).await;
        assert_eq!(ended["state"], "done", "{ended}");
        ended
    }

    /// Starts a spare node with a token.
    pub(crate) async fn join(&mut self, id: usize, by: usize, token: &str) {
        let more = ["--join".to_owned(), self.url(by), "--token".to_owned(), token.to_owned()];
        self.start_node_with(id, &more);
        self.wait_up(id).await;
    }

    /// Brings a spare node in, to vote, and returns when it does.
    pub(crate) async fn add(&mut self, id: usize) {
        let (operation, token) = self.begin("POST", "/admin/v1/nodes").await;
        let by = *self.running().first().expect("a node runs");
        self.join(id, by, &token.expect("a token")).await;
        self.done(operation).await;
    }

    /// The nodes as the roster has them.
    pub(crate) async fn nodes(&self) -> Vec<Value> {
        let answer = self.order("GET", "/admin/v1/nodes", &Value::Null).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["nodes"].as_array().cloned().unwrap_or_default()
    }

    /// What a node is.
    pub(crate) async fn state_of(&self, id: usize) -> String {
        let nodes = self.nodes().await;
        let node = nodes.iter().find(|node| node["id"] == json!(id));
        node.and_then(|node| node["state"].as_str()).unwrap_or("absent").to_owned()
    }

    /// Waits until every running node but those sees these voters in every shard.
    pub(crate) async fn wait_voters(&self, voters: &[u64]) {
        wait_for(&format!("the voters are {voters:?}"), SOON, async || {
            for id in self.running() {
                let view = self.view(id).await?;
                if view.stopped.is_some() {
                    continue;
                }
                if let Some(shard) = view.shards.iter().find(|shard| shard.voters != voters) {
                    return Err(format!("node {id}: {shard:?}"));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Waits until every running node is ready that was not removed and is not drained.
    pub(crate) async fn wait_ready_but_removed(&self) {
        for id in self.running() {
            wait_for(&format!("node {id} is ready"), SOON, async || {
                match self.caller(id).get("/readyz").await {
                    Ok(ready) if ready.status == 200 => Ok(()),
                    Ok(ready) if ready.text.contains("was removed") => Ok(()),
                    Ok(ready) if ready.text.contains("it is drained") => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
    }

    /// Waits until a node says that its part has ended, in its readiness and in every answer, and
    /// returns why.
    pub(crate) async fn says_why(&self, id: usize) -> String {
        wait_for(&format!("node {id} says that it takes no part"), SOON, async || {
            let ready = self.caller(id).get("/readyz").await.map_err(|lost| format!("{lost:?}"))?;
            let read = self.caller(id).get("/v1/items/ticket?consistency=local").await;
            let read = read.map_err(|lost| format!("{lost:?}"))?;
            let ended = ready.text.contains("takes no part") || ready.text.contains("has stopped");
            if ready.status == 503 && ended && read.status == 503 && read.slug() == "not-serving" {
                Ok(format!("{} {}", ready.text, read.text))
            } else {
                Err(format!("{} {}", ready.text, read.text))
            }
        })
        .await
    }
}
