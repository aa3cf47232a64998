//! A client at work: every attempt is in the history, and what is unknown is resolved the way that
//! the contract tells services to: the same key again, then a void.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::client::{Caller, Patience};
use crate::dice::Dice;
use crate::history::{Act, Kind, Process, Row, Value};
use crate::recorder::{Beside, Recorder};
use crate::roll::Roll;
use crate::wire::{self, Ending};

/// Attempts with the same key before it is given up.
const ATTEMPTS: u32 = 3;
/// Attempts to void a key while faults go on; what is left is voided at the end.
const VOIDS: u32 = 2;
/// The pause after a node turned a call away.
const TURNED_AWAY: Duration = Duration::from_millis(120);

/// So many calls of a hundred go to a node that was removed, while one still runs.
const ASKS_REMOVED_PERCENT: u64 = 8;

/// Operations that one client may have in one batch, each a process of its own.
pub(crate) const LANES: u64 = 6;

/// Keys whose fate is not known yet: the final phase voids them.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(Mutex<Vec<Value>>);

impl Unsettled {
    pub(crate) fn add(&self, asked: Value) {
        self.0.lock().expect("nobody panics with it").push(asked);
    }

    pub(crate) fn take(&self) -> Vec<Value> {
        std::mem::take(&mut self.0.lock().expect("nobody panics with it"))
    }
}

/// What all workers share.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) roll: Roll,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) unsettled: Arc<Unsettled>,
    /// How many processes there are, lanes of batches included: one that ends goes on under its
    /// number plus this.
    pub(crate) processes: u64,
}

/// What became of a placement, all attempts taken together.
#[derive(Debug, Clone)]
pub(crate) enum Placed {
    /// It made this hold, which stands as the row says.
    Hold(Row),
    /// It made nothing and never will.
    Nothing(Box<Ending>),
    /// Nobody knows yet.
    Unknown,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) dice: Dice,
    process: u64,
    shop: Shop,
    caller: Caller,
    patience: Patience,
    keys: u64,
    lanes: Vec<u64>,
}

impl Worker {
    /// Makes client `number`. Its process has that number times [`LANES`] + 1, its lanes the ones
    /// after.
    pub(crate) fn new(shop: &Shop, number: u64, dice: Dice, patience: Patience) -> Worker {
        let caller = Caller::new(&shop.roll);
        let process = number * (LANES + 1);
        let lanes = (1..=LANES).map(|lane| process + lane).collect();
        Worker { dice, process, shop: shop.clone(), caller, patience, keys: 0, lanes }
    }

    /// How many processes so many clients are.
    pub(crate) fn processes(clients: u64) -> u64 {
        clients * (LANES + 1)
    }

    /// A key that nobody has used.
    pub(crate) fn fresh_key(&mut self) -> String {
        self.keys += 1;
        format!("k{}-{}", self.process % self.shop.processes, self.keys)
    }

    /// Any node; now and then one that was removed, as clients do whose list of nodes is old.
    pub(crate) fn any_node(&mut self) -> u64 {
        let removed = self.shop.roll.removed();
        if !removed.is_empty() && self.dice.percent(ASKS_REMOVED_PERCENT) {
            return *self.dice.pick(&removed).expect("there are some");
        }
        let members = self.shop.roll.members();
        *self.dice.pick(&members).expect("a cluster has members")
    }

    /// The text of the OpenAPI document; empty when no node gives it.
    pub(crate) async fn contract(&mut self) -> String {
        let request = crate::client::Request::get("/openapi.json");
        for node in self.shop.roll.members() {
            if let Ok(answer) = self.caller.ask(node, &request, self.patience).await {
                return answer.text;
            }
        }
        String::new()
    }

    /// Pauses between 0 and twice `mean`.
    pub(crate) async fn idle(&mut self, mean: Duration) {
        let ms = u64::try_from(mean.as_millis()).unwrap_or(u64::MAX / 4);
        tokio::time::sleep(Duration::from_millis(self.dice.between(0, 2 * ms))).await;
    }

    fn note(&self, kind: Kind, act: Act, value: Value, beside: Beside) {
        self.shop.recorder.note(kind, Process::Client(self.process), act, value, beside);
    }

    /// One attempt at any node.
    pub(crate) async fn call(&mut self, act: Act, asked: Value) -> Ending {
        let node = self.any_node();
        self.call_at(node, act, asked).await
    }

    /// One attempt at a node.
    pub(crate) async fn call_at(&mut self, node: u64, act: Act, asked: Value) -> Ending {
        let request = wire::request(act, &asked);
        let beside = Beside { node: Some(node), ..Beside::default() };
        self.note(Kind::Invoke, act, asked.clone(), beside);
        let came = self.caller.ask(node, &request, self.patience).await;
        let ending = wire::ending(act, &asked, came);
        self.end(node, act, &ending);
        ending
    }

    fn end(&mut self, node: u64, act: Act, ending: &Ending) {
        let Ending { kind, value, commit, error } = ending.clone();
        self.note(kind, act, value, Beside { node: Some(node), commit, error });
        if kind == Kind::Info {
            self.process += self.shop.processes;
        }
    }

    /// Several placements in one request: each is an operation of a process of its own, since they
    /// are done at once: at most [`LANES`].
    pub(crate) async fn batch(&mut self, asked: &[Value]) -> Vec<Ending> {
        let node = self.any_node();
        let operations: Vec<serde_json::Value> = asked.iter().map(batched).collect();
        let request = crate::client::Request {
            method: "POST",
            path: "/v1/holds:batch".to_owned(),
            body: Some(serde_json::json!({ "operations": operations })),
            ..crate::client::Request::default()
        };
        let usual = self.process;
        for (at, asked) in asked.iter().enumerate() {
            self.process = self.lanes[at];
            let beside = Beside { node: Some(node), ..Beside::default() };
            self.note(Kind::Invoke, Act::Place, asked.clone(), beside);
        }
        let came = self.caller.ask(node, &request, self.patience).await;
        let mut endings = Vec::with_capacity(asked.len());
        for (at, asked) in asked.iter().enumerate() {
            let ending = match &came {
                Ok(response) if response.status == 200 => {
                    batch_ending(asked, &response.body["results"][at])
                }
                Ok(_) | Err(_) => wire::ending(Act::Place, asked, came.clone()),
            };
            self.process = self.lanes[at];
            self.end(node, Act::Place, &ending);
            self.lanes[at] = self.process;
            endings.push(ending);
        }
        self.process = usual;
        endings
    }

    /// Places a hold and does not give up before its fate is known, or the key is left to the final
    /// phase.
    pub(crate) async fn place(&mut self, asked: Value) -> Placed {
        let first = self.call(Act::Place, asked.clone()).await;
        self.settle(asked, first).await
    }

    /// Goes on with a placement after its first attempt.
    pub(crate) async fn settle(&mut self, asked: Value, first: Ending) -> Placed {
        let (mut ending, mut unknown) = (first, false);
        for attempt in 1..=ATTEMPTS {
            unknown |= ending.kind == Kind::Info;
            if let Some(row) = ending.row() {
                return Placed::Hold(row.clone());
            }
            let again = ending.kind == Kind::Info || ending.was_turned_away();
            if !again || attempt == ATTEMPTS {
                break;
            }
            if ending.was_turned_away() {
                self.idle(TURNED_AWAY).await;
            }
            ending = self.call(Act::Place, asked.clone()).await;
        }
        // A refusal of a retry does not speak for an attempt that was never answered.
        if unknown { self.void(asked).await } else { Placed::Nothing(Box::new(ending)) }
    }

    /// Gives up on a key.
    pub(crate) async fn void(&mut self, asked: Value) -> Placed {
        let scope = scope_of(&asked);
        for _ in 0..VOIDS {
            let ending = self.call(Act::Void, scope.clone()).await;
            if let Some(row) = ending.row() {
                return Placed::Hold(row.clone());
            }
            if ending.kind == Kind::Ok {
                return Placed::Nothing(Box::new(ending));
            }
            self.idle(TURNED_AWAY).await;
        }
        self.shop.unsettled.add(scope);
        Placed::Unknown
    }

    /// Leaves a key to the final phase.
    pub(crate) fn leave_unsettled(&self, asked: &Value) {
        self.shop.unsettled.add(scope_of(asked));
    }

    /// Does something to a hold, with the same key until it is answered.
    pub(crate) async fn finish(&mut self, act: Act, asked: Value) -> Ending {
        let mut ending = self.call(act, asked.clone()).await;
        for _ in 1..ATTEMPTS {
            if ending.kind != Kind::Info && !ending.was_turned_away() {
                break;
            }
            self.idle(TURNED_AWAY).await;
            ending = self.call(act, asked.clone()).await;
        }
        ending
    }
}

/// What names a placing key.
pub(crate) fn scope_of(asked: &Value) -> Value {
    Value {
        item: asked.item.clone(),
        key: asked.key.clone(),
        buyer: asked.buyer.clone(),
        region: asked.region.clone(),
        workload: asked.workload.clone(),
        ..Value::default()
    }
}

fn batched(asked: &Value) -> serde_json::Value {
    let mut body = wire::placing(asked);
    let members = body.as_object_mut().expect("an object");
    members.insert("op".to_owned(), "place".into());
    members.insert("key".to_owned(), asked.key.clone().into());
    members.insert("item".to_owned(), asked.item.clone().into());
    body
}

fn batch_ending(asked: &Value, result: &serde_json::Value) -> Ending {
    let Some(status) = result["status"].as_u64().and_then(|status| u16::try_from(status).ok())
    else {
        let error = Some("a batch without a result for this operation".to_owned());
        return Ending { kind: Kind::Info, value: asked.clone(), commit: None, error };
    };
    let said = if (200..300).contains(&status) { &result["hold"] } else { &result["problem"] };
    let commit = result["commit"].as_str().and_then(crate::history::Commit::parse);
    let replayed = result["replayed"].as_bool().unwrap_or(false);
    wire::judged(Act::Place, asked, status, said, replayed, commit)
}
