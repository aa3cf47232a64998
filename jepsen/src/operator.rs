//! The operator: orders that change who belongs to the cluster, given over HTTP as `holdfast node`
//! gives them, and what the nodes say came of them.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::client::{Patience, Request, Response};
use crate::cluster::Cluster;

/// How long an order is repeated while the cluster cannot take it.
const ORDER_WITHIN: Duration = Duration::from_secs(25);
/// How long an operation may take. Half a minute is promised for a million holds.
const OPERATION_WITHIN: Duration = Duration::from_secs(45);
/// Between two tries, and two looks at an operation.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What a node may take to answer an operator, in ms.
const PATIENCE_MS: u64 = 2_500;
/// Rules that hold for a moment only, while a cluster comes back from a fault.
const FOR_A_MOMENT: [&str; 5] = [
    "every-shard-has-a-leader",
    "node-answers",
    "one-operation-at-a-time",
    "quorum",
    "somebody-may-lead",
];

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Add,
    AddLearner,
    Promote(u64),
    /// Also when fewer than three voters are left, or not.
    Demote(u64, bool),
    Drain(u64),
    Undrain(u64),
    Remove(u64),
    Replace(u64),
}

/// An operation that has begun.
#[derive(Debug, Clone)]
pub(crate) struct Begun {
    pub(crate) id: u64,
    pub(crate) node: u64,
    pub(crate) token: Option<String>,
}

impl Order {
    /// Its word, as the cluster lists it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Order::Add => "add",
            Order::AddLearner => "add-learner",
            Order::Promote(_) => "promote",
            Order::Demote(..) => "demote",
            Order::Drain(_) => "drain",
            Order::Undrain(_) => "undrain",
            Order::Remove(_) => "remove",
            Order::Replace(_) => "replace",
        }
    }

    fn request(self) -> Request {
        let (method, path, body) = match self {
            Order::Add => ("POST", String::new(), Some(json!({"learner": false}))),
            Order::AddLearner => ("POST", String::new(), Some(json!({"learner": true}))),
            Order::Replace(node) => ("POST", format!("/{node}/replace"), Some(json!({}))),
            Order::Remove(node) => ("DELETE", format!("/{node}"), None),
            Order::Demote(node, true) => ("POST", format!("/{node}/demote?allow_fewer=true"), None),
            Order::Demote(node, false) => ("POST", format!("/{node}/demote"), None),
            Order::Promote(node) | Order::Drain(node) | Order::Undrain(node) => {
                ("POST", format!("/{node}/{}", self.word()), None)
            }
        };
        Request { method, path: format!("/admin/v1/nodes{path}"), body, ..Request::default() }
    }

    /// Whether an operation in the cluster's list is what this order begins.
    fn began(self, operation: &Json) -> bool {
        let about = match self {
            Order::Add | Order::AddLearner => return operation["kind"] == self.word(),
            Order::Replace(node) => return operation["replaces"] == node,
            Order::Promote(node)
            | Order::Demote(node, _)
            | Order::Drain(node)
            | Order::Undrain(node)
            | Order::Remove(node) => node,
        };
        operation["kind"] == self.word() && operation["node"] == about
    }
}

/// The rule that a refusal names.
fn rule(answer: &Response) -> &str {
    answer.body["reason"].as_str().unwrap_or_default()
}

impl Cluster {
    /// Asks any member that answers.
    async fn ask_any(&mut self, request: &Request) -> Option<Response> {
        for node in self.ids() {
            let asked = self.caller.ask(node, request, Patience::of_ms(PATIENCE_MS)).await;
            if let Ok(answer) = asked
                && answer.status == 200
            {
                return Some(answer);
            }
        }
        None
    }

    async fn operations(&mut self) -> Option<Vec<Json>> {
        let answer = self.ask_any(&Request::get("/admin/v1/operations")).await?;
        answer.body["operations"].as_array().cloned()
    }

    /// The newest operation; 0 when there was none.
    async fn newest(&mut self) -> Result<u64, String> {
        let began = Instant::now();
        loop {
            if let Some(all) = self.operations().await {
                return Ok(all.iter().filter_map(|one| one["id"].as_u64()).max().unwrap_or(0));
            }
            if began.elapsed() > ORDER_WITHIN {
                return Err(format!("no node lists the operations within {ORDER_WITHIN:?}"));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Gives an order at one node after the other until it is taken, exactly once.
    ///
    /// # Errors
    ///
    /// With the rule and its words when it is refused for good; with the last answer when nobody
    /// takes it in time.
    pub(crate) async fn order(&mut self, order: Order) -> Result<Begun, String> {
        let before = self.newest().await?;
        let began = Instant::now();
        let (mut unknown, mut said) = (false, String::new());
        while began.elapsed() < ORDER_WITHIN {
            for node in self.ids() {
                if unknown && let Some(begun) = self.adopt(order, before).await {
                    return Ok(begun);
                }
                let patience = Patience::of_ms(PATIENCE_MS);
                match self.caller.ask(node, &order.request(), patience).await {
                    Ok(answer) if answer.status == 202 => {
                        let operation = &answer.body["operation"];
                        let number = |name: &str| operation[name].as_u64().unwrap_or_default();
                        let token = answer.body["token"].as_str().map(str::to_owned);
                        return Ok(Begun { id: number("id"), node: number("node"), token });
                    }
                    Ok(answer) if (400..500).contains(&answer.status) => {
                        said = format!("{} {}", rule(&answer), answer.body["detail"]);
                        if !unknown && !FOR_A_MOMENT.contains(&rule(&answer)) {
                            return Err(format!("refused: {said}"));
                        }
                    }
                    Ok(answer) => {
                        unknown |= answer.status != 503;
                        said = format!("{} {}", answer.status, answer.text);
                    }
                    Err(lost) => {
                        unknown |= matches!(lost, crate::client::Lost::Unknown(_));
                        lost.why().clone_into(&mut said);
                    }
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        Err(format!("{} was not taken within {ORDER_WITHIN:?}: {said}", order.word()))
    }

    /// Finds the operation that an order began which was not answered. One whose token was lost
    /// with the answer is given up.
    async fn adopt(&mut self, order: Order, before: u64) -> Option<Begun> {
        let all = self.operations().await?;
        let newer = |one: &&Json| one["id"].as_u64().is_some_and(|id| id > before);
        let found =
            all.iter().filter(newer).find(|one| order.began(one) && one["state"] != "cancelled")?;
        let (id, node) = (found["id"].as_u64()?, found["node"].as_u64()?);
        if found["state"] != "waiting" {
            return Some(Begun { id, node, token: None });
        }
        let path = format!("/admin/v1/operations/{id}/cancel");
        let cancel = Request { method: "POST", path, ..Request::default() };
        let _ = self.ask_any(&cancel).await;
        None
    }

    /// Gives an order that must be refused; returns the rule that it would break.
    ///
    /// # Errors
    ///
    /// With what was said instead.
    pub(crate) async fn refused(&mut self, order: Order) -> Result<String, String> {
        let mut said = String::new();
        for node in self.ids() {
            let patience = Patience::of_ms(PATIENCE_MS);
            match self.caller.ask(node, &order.request(), patience).await {
                Ok(answer) if answer.status == 409 => return Ok(rule(&answer).to_owned()),
                Ok(answer) => said = format!("{} {}", answer.status, answer.text),
                Err(lost) => lost.why().clone_into(&mut said),
            }
        }
        Err(said)
    }

    /// Waits until an operation is done; returns how long that took and what it notes.
    ///
    /// # Errors
    ///
    /// When it is given up or not done in time; with the step that it has come to.
    pub(crate) async fn done(&mut self, id: u64) -> Result<(Duration, String), String> {
        let began = Instant::now();
        let request = Request::get(format!("/admin/v1/operations/{id}"));
        let mut last = String::new();
        while began.elapsed() < OPERATION_WITHIN {
            if let Some(answer) = self.ask_any(&request).await {
                let note = answer.body["note"].as_str().unwrap_or_default().to_owned();
                match answer.body["state"].as_str() {
                    Some("done") => return Ok((began.elapsed(), note)),
                    Some("cancelled") => return Err(format!("it was given up: {note}")),
                    Some(_) | None => {
                        let steps = answer.body["steps"].as_array().cloned().unwrap_or_default();
                        let running = steps.into_iter().find(|step| step["state"] == "running");
                        last = running.map_or(note, |step| step.to_string());
                    }
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Err(format!("not done within {OPERATION_WITHIN:?}: {last}"))
    }

    /// The nodes as one of them lists them, with their states.
    pub(crate) async fn seats(&mut self, asked: u64) -> Option<Vec<(u64, String)>> {
        let request = Request::get("/admin/v1/nodes");
        let patience = Patience::of_ms(PATIENCE_MS);
        let answer = self.caller.ask(asked, &request, patience).await.ok()?;
        let seat = |seat: &Json| Some((seat["id"].as_u64()?, seat["state"].as_str()?.to_owned()));
        answer.body["nodes"].as_array()?.iter().map(seat).collect()
    }

    /// How many shards a node leads, by its own word.
    pub(crate) async fn leads(&mut self, node: u64) -> Option<u64> {
        let view = self.view(node).await?;
        let shards = view["shards"].as_array()?;
        let leads = shards.iter().filter(|s| s["role"] == "leader" && s["paused"].is_null());
        Some(leads.count() as u64)
    }

    /// Asks for a leadership to go to a node; says what the cluster said.
    pub(crate) async fn hand_over(&mut self, shard: u64, to: u64) -> String {
        let path = format!("/admin/v1/shards/{shard}/leader");
        let body = Some(json!({"node": to}));
        let request = Request { method: "POST", path, body, ..Request::default() };
        match self.caller.ask(to, &request, Patience::of_ms(PATIENCE_MS)).await {
            Ok(answer) if answer.status == 200 => "done".to_owned(),
            Ok(answer) => format!("{} {}", rule(&answer), answer.body["detail"]),
            Err(lost) => lost.why().to_owned(),
        }
    }
}
