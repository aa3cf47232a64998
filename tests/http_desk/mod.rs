//! A desk with a real ledger behind it, for the HTTP tests: one shard, no Raft, a clock that the
//! test moves, and outcomes that the test may force.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{HeaderMap, Request as HttpRequest, StatusCode};
use axum::{Router, http};
use futures_util::future::BoxFuture;
use holdfast::http::{Front, Limits, router};
use holdfast::ledger::{
    Answer, BatchOf, CommandOf, CommitPoint, LeaderId, Ledger, LogIndex, NodeId, Place, Placement,
    SchemaVersion, Settings, ShardId, UnixMs,
};
use holdfast::shard::{
    Adopt, Adopted, Consistency, Desk, Hop, MemberSpec, NodeStatus, Outcome, Question, Reply,
    Request, Role, SchemaStatus, ShardStatus,
};
use http_body_util::BodyExt;
use tower::ServiceExt;

/// 2026-05-01T09:30:00Z
pub const START: UnixMs = UnixMs(1_777_627_800_000);

pub struct LedgerDesk {
    state: Arc<Mutex<State>>,
    /// Whether questions are taken up; those that wait are lost when nobody waits with them.
    taking: tokio::sync::watch::Sender<bool>,
    arrived: AtomicU64,
}

struct State {
    ledger: Ledger,
    index: u64,
    now: UnixMs,
    forced: Option<Outcome>,
    held_back: Option<tokio::sync::oneshot::Receiver<()>>,
    asked: Vec<(Consistency, Hop)>,
    status: NodeStatus,
    begun: Vec<MemberSpec>,
}

pub fn settings() -> Settings {
    Settings {
        shards: 1,
        tag_key: *b"0123456789abcdef",
        slots: 16,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 90 * 86_400_000,
    }
}

impl LedgerDesk {
    pub fn new() -> Arc<LedgerDesk> {
        let leader = LeaderId { term: 7, node: NodeId(2) };
        let shard = ShardStatus {
            role: Role::Leader,
            leader: Some(leader),
            term: 7,
            voters: vec![NodeId(1), NodeId(2), NodeId(3)],
            matched: vec![(NodeId(1), LogIndex(3))],
            last_log: LogIndex(5),
            quorum_age_ms: Some(12),
            digest: "00ff".to_owned(),
            ..ShardStatus::default()
        };
        let member = MemberSpec {
            node: NodeId(1),
            http_addr: "10.0.0.1:7101".to_owned(),
            ..MemberSpec::default()
        };
        let status = NodeStatus {
            cluster_id: Some("c0".repeat(16)),
            node: NodeId(2),
            members: vec![member],
            shards: vec![shard],
            schema: SchemaStatus { active: SchemaVersion::NEWEST, ..SchemaStatus::default() },
            ..NodeStatus::default()
        };
        Arc::new(LedgerDesk {
            taking: tokio::sync::watch::Sender::new(true),
            arrived: AtomicU64::new(0),
            state: Arc::new(Mutex::new(State {
                ledger: Ledger::new(ShardId(0), settings()),
                index: 0,
                now: START,
                forced: None,
                held_back: None,
                asked: Vec::new(),
                status,
                begun: Vec::new(),
            })),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it asks")
    }

    /// Moves the ledger's clock.
    pub fn pass(&self, ms: u64) {
        let mut state = self.state();
        state.now = UnixMs(state.now.0 + ms);
        state.apply(CommandOf::<Place>::Advance);
    }

    /// The next question gets this answer, and nothing is done.
    pub fn force(&self, outcome: Outcome) {
        self.state().forced = Some(outcome);
    }

    /// The next question is answered at once, and its answer is handed out only when the sender
    /// speaks or is dropped.
    pub fn hold_back(&self) -> tokio::sync::oneshot::Sender<()> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.state().held_back = Some(receiver);
        sender
    }

    /// Lets questions wait before anything is done, or takes them up again.
    pub fn take_up(&self, takes: bool) {
        self.taking.send_replace(takes);
    }

    /// How many single questions came.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::SeqCst)
    }

    /// How many log entries there are.
    pub fn entries(&self) -> u64 {
        self.state().index
    }

    /// How the last question was asked.
    pub fn last_asked(&self) -> (Consistency, Hop) {
        *self.state().asked.last().expect("something was asked")
    }

    /// Changes what the node says of itself.
    pub fn set_status(&self, change: impl FnOnce(&mut NodeStatus)) {
        change(&mut self.state().status);
    }

    pub fn begun(&self) -> Vec<MemberSpec> {
        self.state().begun.clone()
    }
}

impl State {
    fn apply<P: Placement>(&mut self, command: CommandOf<P>) -> Answer {
        self.index += 1;
        let batch = BatchOf { stamp: self.now, commands: vec![command] };
        let mut answers = self.ledger.apply(LogIndex(self.index), &batch);
        assert_eq!(answers.len(), 1, "one answer for each command");
        answers.remove(0)
    }

    fn reply(&mut self, request: Request) -> Reply {
        self.asked.push((request.consistency, request.hop));
        let leader = LeaderId { term: 7, node: NodeId(2) };
        let outcome = match (self.forced.take(), request.question) {
            (Some(forced), _) => forced,
            (None, Question::Command(command)) => Outcome::Answered(self.apply(command)),
            (None, Question::Query { query, .. }) => Outcome::Found(self.ledger.query(&query)),
        };
        let commit = match outcome {
            Outcome::Answered(_) | Outcome::Found(_) => {
                Some(CommitPoint { shard: ShardId(0), leader, index: LogIndex(self.index) })
            }
            Outcome::InFlight
            | Outcome::Paused(_)
            | Outcome::Overloaded
            | Outcome::Late
            | Outcome::Unknown
            | Outcome::Elsewhere { .. }
            | Outcome::NotServing(_) => None,
        };
        Reply { outcome, commit, leader: Some(NodeId(2)) }
    }
}

impl Desk for LedgerDesk {
    fn ask(&self, request: Request) -> BoxFuture<'static, Reply> {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        let (state, mut taking) = (self.state.clone(), self.taking.subscribe());
        Box::pin(async move {
            if taking.wait_for(|takes| *takes).await.is_err() {
                std::future::pending::<()>().await;
            }
            let (reply, held_back) = {
                let mut state = state.lock().expect("no test panics while it asks");
                (state.reply(request), state.held_back.take())
            };
            if let Some(held_back) = held_back {
                let _ = held_back.await;
            }
            reply
        })
    }

    fn ask_many(&self, requests: Vec<Request>) -> BoxFuture<'static, Vec<Reply>> {
        let mut state = self.state();
        let replies = requests.into_iter().map(|request| state.reply(request)).collect();
        Box::pin(std::future::ready(replies))
    }

    fn status(&self) -> NodeStatus {
        self.state().status.clone()
    }

    fn adopt(&self, offer: Adopt) -> BoxFuture<'static, Result<Adopted, String>> {
        let answer = if offer.node == NodeId(9) {
            Err("This node belongs to another cluster.".to_owned())
        } else {
            Ok(Adopted {
                log_uuid: "ab".repeat(16),
                peer_addr: "127.0.0.1:7201".to_owned(),
                http_addr: "127.0.0.1:7101".to_owned(),
                region: offer.cluster_id,
            })
        };
        Box::pin(std::future::ready(answer))
    }

    fn begin(&self, members: Vec<MemberSpec>) -> BoxFuture<'static, Result<(), String>> {
        self.state().begun = members;
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A router on a fresh desk.
pub struct Shop {
    pub desk: Arc<LedgerDesk>,
    pub router: Router,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Read {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Read {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("plain ASCII"))
    }

    /// The slug of a problem, after checking that the body agrees with the status.
    pub fn slug(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: holdfast::api::Problem = serde_json::from_str(&self.text).expect("a problem");
        assert_eq!(problem.status, self.status.as_u16());
        let kind = holdfast::api::ProblemKind::by_slug(problem.slug()).expect("a listed slug");
        assert_eq!(kind.status(), problem.status);
        assert!(problem.detail.len() > 10, "it says what to do next: {problem:?}");
        kind.slug().to_owned()
    }
}

impl Shop {
    pub fn new() -> Shop {
        Shop::with(Limits::default())
    }

    pub fn with(limits: Limits) -> Shop {
        let desk = LedgerDesk::new();
        let router = router(&Front::new(desk.clone(), limits));
        Shop { desk, router }
    }

    /// Opens with one item of `total` units.
    pub async fn selling(item: &str, total: u64) -> Shop {
        let shop = Shop::new();
        let made = shop.put(item, &format!("{{\"total\":{total}}}")).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
        shop
    }

    pub async fn send(&self, request: HttpRequest<Body>) -> Read {
        let response = self.router.clone().oneshot(request).await.expect("routers never fail");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("bodies are in memory").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("all bodies are UTF-8");
        Read { status: parts.status, headers: parts.headers, text }
    }

    pub async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Read {
        let mut request = HttpRequest::builder().method(method).uri(path);
        for (name, value) in headers {
            let value = http::HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
            request = request.header(*name, value);
        }
        self.send(request.body(body.into()).expect("a request")).await
    }

    pub async fn get(&self, path: &str) -> Read {
        self.call("GET", path, &[], "").await
    }

    pub async fn put(&self, item: &str, body: &str) -> Read {
        let path = format!("/v1/items/{item}");
        self.call("PUT", &path, &[JSON], body.to_owned()).await
    }

    /// POSTs JSON with an idempotency key.
    pub async fn post(&self, path: &str, key: &str, body: &str) -> Read {
        self.call("POST", path, &[JSON, ("Idempotency-Key", key)], body.to_owned()).await
    }

    pub async fn place(&self, item: &str, key: &str, body: &str) -> Read {
        self.post(&format!("/v1/items/{item}/holds"), key, body).await
    }

    /// Places a hold that must be granted and returns its id.
    pub async fn placed(&self, item: &str, key: &str, body: &str) -> String {
        let read = self.place(item, key, body).await;
        assert_eq!(read.status, StatusCode::CREATED, "{read:?}");
        read.json()["id"].as_str().expect("a hold has an id").to_owned()
    }

    /// (available, held, sold) of an item, after checking its audit.
    pub async fn stock(&self, item: &str) -> (u64, u64, u64) {
        let audit = self.get(&format!("/v1/items/{item}/audit")).await;
        assert_eq!(audit.json()["conserved"], true, "{audit:?}");
        let stock = self.get(&format!("/v1/items/{item}/availability")).await.json();
        let of = |name: &str| stock[name].as_u64().expect("a number");
        (of("available"), of("held"), of("sold"))
    }
}

pub const JSON: (&str, &str) = ("Content-Type", "application/json");
