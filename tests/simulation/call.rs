//! A client's way to a node: what it sends over HTTP, how that may be late or lost, and what comes
//! back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use holdfast::runtime::life;
use holdfast::runtime::{self, now};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tower::ServiceExt as _;

use super::world::World;

/// What a client sends.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) body: Option<serde_json::Value>,
    /// The revision that a change stands on.
    pub(crate) if_match: Option<u64>,
    pub(crate) deadline_ms: u64,
}

impl Ask {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Ask {
        let path = path.into();
        Ask { method, path, key: None, body: None, if_match: None, deadline_ms: 2_000 }
    }

    pub(crate) fn get(path: impl Into<String>) -> Ask {
        Ask::new("GET", path)
    }

    pub(crate) fn post(path: impl Into<String>, key: &str, body: serde_json::Value) -> Ask {
        let key = Some(key.to_owned());
        Ask { key, body: Some(body), ..Ask::new("POST", path) }
    }

    pub(crate) fn put(path: impl Into<String>, body: serde_json::Value) -> Ask {
        Ask { body: Some(body), ..Ask::new("PUT", path) }
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) enum Told {
    /// No connection: nothing was sent.
    Refused,
    /// It was sent, and no answer came.
    Lost,
    /// An answer.
    Answer(Answer),
}

/// An answer of a node.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) commit: Option<Commit>,
    pub(crate) replayed: bool,
    pub(crate) body: serde_json::Value,
}

/// What a `Holdfast-Commit` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Commit {
    pub(crate) shard: u16,
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) index: u64,
}

impl Commit {
    /// The leader id of the entry: term and node.
    pub(crate) fn leader(&self) -> (u64, u64) {
        (self.term, self.node)
    }

    pub(crate) fn parse(text: &str) -> Option<Commit> {
        let mut parts = text.split(':');
        let (shard, leader, index) = (parts.next()?, parts.next()?, parts.next()?);
        let (term, node) = leader.split_once('.')?;
        Some(Commit {
            shard: shard.parse().ok()?,
            term: term.parse().ok()?,
            node: node.parse().ok()?,
            index: index.parse().ok()?,
        })
    }
}

impl Answer {
    /// Returns the last part of the problem's type.
    pub(crate) fn slug(&self) -> &str {
        let kind = self.body.get("type").and_then(|kind| kind.as_str()).unwrap_or_default();
        kind.strip_prefix("/problems/").unwrap_or(kind)
    }

    /// Whether this says for certain that this attempt changed nothing.
    pub(crate) fn is_definite(&self) -> bool {
        self.status != 504 && self.status != 500
    }
}

impl World {
    /// Sends a request to a node and waits for what comes, but no longer than its deadline and a
    /// while.
    pub(crate) async fn call(self: &Arc<World>, at: usize, ask: Ask) -> Told {
        self.tally.calls.fetch_add(1, Ordering::Relaxed);
        let patience = Duration::from_millis(ask.deadline_ms + 200);
        let (there, back) = (self.draw(50..3_000), self.draw(50..3_000));
        let late = self.draw(0..1_000) < self.plan.impatience;
        // A late one sits in some socket, and nobody waits for its answer any more.
        let there = if late { self.draw(1_000..6_000_000) } else { there };
        let lost = self.draw(0..1_000) < self.plan.impatience / 4;
        let (world, asked) = (Arc::clone(self), ask);
        let (done, told) = oneshot::channel();
        drop(life::spawn_in_the_world(async move {
            runtime::sleep(Duration::from_micros(there)).await;
            let told = world.carry_out(at, asked).await;
            runtime::sleep(Duration::from_micros(back)).await;
            done.send(if lost { Told::Lost } else { told }).ok();
        }));
        match runtime::timeout(patience, told).await {
            Ok(Ok(told)) => told,
            Ok(Err(_)) | Err(runtime::Elapsed) => Told::Lost,
        }
    }

    /// Lets a node answer a request that has arrived.
    pub(crate) async fn carry_out(self: &Arc<World>, at: usize, ask: Ask) -> Told {
        let (life, router) = {
            let node = self.machines[at].node.lock();
            match (&node.life, &node.open) {
                (Some(life), Some((_, router))) => (life.clone(), router.clone()),
                (Some(_) | None, _) => return Told::Refused,
            }
        };
        let request = ask.request();
        let arrived = now();
        // A stopped process keeps no deadline.
        let (stops, was_stopped) = (life.stops(), life.is_stopped());
        let is_undisturbed = || !was_stopped && life.stops() == stops && !life.is_stopped();
        let (done, answered) = oneshot::channel();
        drop(life.spawn(async move {
            let response = router.oneshot(request).await.expect("the router cannot fail");
            let (head, body) = response.into_parts();
            let body = body.collect().await.expect("a body in memory").to_bytes();
            done.send((head, body)).ok();
        }));
        // No call hangs: it is answered by its deadline.
        let limit = Duration::from_millis(ask.deadline_ms);
        let Ok(answered) = runtime::timeout_at(arrived + limit + GRACE, answered).await else {
            if is_undisturbed() {
                let (at, method, path) = (at + 1, ask.method, &ask.path);
                self.broken(format!("n{at} left {method} {path} unanswered past its deadline"));
            }
            return Told::Lost;
        };
        let Ok((head, body)) = answered else { return Told::Lost };
        let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let commit = text("holdfast-commit").and_then(Commit::parse);
        let answer = Answer {
            status: head.status.as_u16(),
            commit,
            replayed: text("idempotent-replayed") == Some("true"),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let words = if answer.status < 400 { "" } else { answer.slug() };
        let took = now() - arrived;
        self.trace.say_of(
            at as u64 + 1,
            format!(
                "{} {} key={} → {} {words} {} took={took:?} hash={:016x}",
                ask.method,
                ask.path,
                ask.key.as_deref().unwrap_or("-"),
                answer.status,
                text("holdfast-commit").unwrap_or("-"),
                xxhash_rust::xxh3::xxh3_64(&body),
            ),
        );
        if took > limit && is_undisturbed() {
            self.broken(format!("an answer of n{} came past its deadline: {ask:?}", at + 1));
        }
        if let Err(why) = self.judge.hear(&ask, &answer) {
            self.broken(why);
        }
        Told::Answer(answer)
    }
}

/// How long after its deadline an answer is waited for before it counts as missing.
const GRACE: Duration = Duration::from_millis(100);

impl Ask {
    fn request(&self) -> axum::http::Request<Body> {
        let builder = axum::http::Request::builder()
            .method(self.method)
            .uri(&self.path)
            .header("holdfast-deadline-ms", self.deadline_ms);
        let builder = match &self.key {
            Some(key) => builder.header("idempotency-key", key),
            None => builder,
        };
        let builder = match self.if_match {
            Some(revision) => builder.header("if-match", format!("\"{revision}\"")),
            None => builder,
        };
        let body = self.body.as_ref().map(|body| body.to_string());
        let builder = match &body {
            Some(_) => builder.header("content-type", "application/json"),
            None => builder,
        };
        builder.body(body.map_or_else(Body::empty, Body::from)).expect("a request of ours")
    }
}
