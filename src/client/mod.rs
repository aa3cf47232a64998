//! The typed client: keys, retry of unknown outcomes, void before giving up, leader hints,
//! deadlines.
//!
//! Promises: every copy of one operation carries one key; a write that was sent and not answered
//! is never reported as "no" (law 6); [`Client::place`] voids a key before it gives up on it, and
//! also when a retry is refused after an unanswered attempt, because that refusal says nothing
//! about the copy that may still sit in some socket. Every call ends by its deadline.
//! Never retries with another key, and never trusts a deadline to have killed an attempt.
//!
//! It runs over a [`Transport`]: TCP ([`Tcp`]), or whatever a test puts in its place.

mod addresses;
mod backoff;
mod drive;
mod place;
mod problem;
mod transport;
mod words;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde_json::Value;

pub use place::{Changed, Placing, Step, Voiding};
pub use problem::Problem;
pub use transport::{Failure, Incoming, Outgoing, Tcp, Transport};
pub use words::path_segment;

pub use crate::api::{Hold, HoldState, PlaceHold as NewHold};

use crate::clock::WallClock;
use crate::runtime::{Instant, now};
use addresses::Addresses;
use backoff::Dice;
use drive::{Ask, Ended};

/// How a client reaches its cluster and how patient it is.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Base URLs of the nodes, `http://host:port`; at least one.
    pub nodes: Vec<String>,
    /// The tenant, sent as `Holdfast-Tenant`; the server's default when absent.
    pub tenant: Option<String>,
    /// How long an operation may take in all when its call names no deadline.
    pub operation_within: Duration,
    /// How long one attempt may take before the next node is asked.
    pub attempt_within: Duration,
    /// How long nodes that cannot even be connected to are tried while none could be; the whole
    /// operation's time when it is longer.
    pub unreachable_within: Duration,
    /// The first pause between attempts goes up to this; it doubles from attempt to attempt.
    pub backoff_first: Duration,
    /// No pause between attempts is longer.
    pub backoff_max: Duration,
    /// Makes keys and pauses repeatable (simulator, tests); random when absent.
    pub seed: Option<u64>,
}

impl ClientConfig {
    /// Returns the defaults for these nodes: 10 s an operation, 2 s an attempt, pauses of up to
    /// 10 ms at first and 500 ms at most.
    pub fn new<I, S>(nodes: I) -> ClientConfig
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        ClientConfig {
            nodes: nodes.into_iter().map(Into::into).collect(),
            tenant: None,
            operation_within: Duration::from_secs(10),
            attempt_within: Duration::from_secs(2),
            unreachable_within: Duration::MAX,
            backoff_first: Duration::from_millis(10),
            backoff_max: Duration::from_millis(500),
            seed: None,
        }
    }
}

/// Why a call did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The cluster said no: definite, nothing of this call will happen.
    #[error("{0}")]
    Refused(Problem),
    /// No attempt reached a node that could act: nothing was taken.
    #[error("no node could act in time: {0}")]
    Unavailable(String),
    /// An attempt was sent and not answered: it may still take effect.
    #[error("the outcome is unknown: {last}")]
    Unknown {
        /// The key to retry with, where the call had one.
        key: Option<String>,
        /// What the last attempt met.
        last: String,
    },
    /// The caller's own input cannot be sent, or the answer cannot be read.
    #[error("{0}")]
    Invalid(String),
}

/// An answer with status 2xx.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The HTTP status.
    pub status: u16,
    /// The JSON body; null when empty.
    pub body: Value,
    /// Whether it is a replay of an answer given before.
    pub replayed: bool,
    /// `shard:term.node:index`, where a shard answered.
    pub commit: Option<String>,
}

/// A client of one cluster; clones share connections and hints.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    transport: Arc<dyn Transport>,
    addresses: Addresses,
    config: ClientConfig,
    dice: Dice,
    wall: WallClock,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client that talks TCP. No connection is opened before the first call.
    ///
    /// # Errors
    ///
    /// [`CallError::Invalid`] when there is no node or one is not `http://host:port`.
    pub fn new(config: ClientConfig) -> Result<Client, CallError> {
        Client::over(Arc::new(Tcp::new()), config)
    }

    /// Makes a client over any transport.
    ///
    /// # Errors
    ///
    /// [`CallError::Invalid`] as [`Client::new`].
    pub fn over(transport: Arc<dyn Transport>, config: ClientConfig) -> Result<Client, CallError> {
        let addresses = Addresses::new(&config.nodes)?;
        if let Some(tenant) = &config.tenant {
            transport::header(tenant)?;
        }
        let dice = Dice::new(config.seed);
        let wall = WallClock::system();
        Ok(Client { shared: Arc::new(Shared { transport, addresses, config, dice, wall }) })
    }

    /// Returns a new idempotency key: 128 random bits in hex.
    pub fn fresh_key(&self) -> String {
        self.shared.dice.key()
    }

    /// Returns the moment by which an operation that begins now must end.
    pub fn deadline(&self) -> Instant {
        now() + self.shared.config.operation_within
    }

    /// Learns where the nodes of the cluster are, so that the leader hints in answers, which name
    /// nodes by their ids, lead straight to the leader. Without it, nodes forward.
    ///
    /// # Errors
    ///
    /// [`CallError`] as [`Client::get`]; what was known before stays known.
    pub async fn learn_nodes(&self) -> Result<(), CallError> {
        let told = self.get("/admin/v1/cluster").await?.body;
        let cluster: crate::api::Cluster = serde_json::from_value(told)
            .map_err(|e| CallError::Invalid(format!("the answer is not a cluster: {e}")))?;
        let nodes = cluster.nodes.into_iter().map(|node| (node.id, node.http_addr));
        self.shared.addresses.learn_nodes(nodes);
        Ok(())
    }

    /// Reads one resource from any node; `path` begins with `/`.
    ///
    /// # Errors
    ///
    /// [`CallError`]; a read that is not answered is `Unavailable`.
    pub async fn get(&self, path: &str) -> Result<Answered, CallError> {
        let ask = Ask::new(Method::GET, path, None, Bytes::new());
        self.finish(ask, self.deadline()).await
    }

    /// Reads one resource as text (`/metrics`).
    ///
    /// # Errors
    ///
    /// [`CallError`] as [`Client::get`].
    pub async fn get_text(&self, path: &str) -> Result<String, CallError> {
        let ask = Ask::new(Method::GET, path, None, Bytes::new());
        match self.drive(&ask, self.deadline()).await.ended {
            Ended::Answered(answer) => Ok(String::from_utf8_lossy(&answer.body).into_owned()),
            Ended::Refused(problem) => Err(CallError::Refused(problem)),
            Ended::OutOfTime(last) => Err(CallError::Unavailable(last)),
            Ended::Invalid(words) => Err(CallError::Invalid(words)),
        }
    }

    /// Sends a change with its key, retrying with the same key until the deadline.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A refusal that follows an unanswered attempt is `Unknown`.
    pub async fn send<T: Serialize + ?Sized>(
        &self,
        method: Method,
        path: &str,
        body: Option<&T>,
        key: Option<&str>,
        deadline: Instant,
    ) -> Result<Answered, CallError> {
        let body = match body {
            Some(body) => Bytes::from(words::to_json(body)?),
            None => Bytes::new(),
        };
        self.finish(Ask::new(method, path, key, body), deadline).await
    }

    /// Sends a change that holds only for one revision of its resource (`If-Match`).
    ///
    /// # Errors
    ///
    /// [`CallError`] as [`Client::send`].
    pub async fn send_if_match<T: Serialize + ?Sized>(
        &self,
        path: &str,
        body: &T,
        key: &str,
        revision: u64,
        deadline: Instant,
    ) -> Result<Answered, CallError> {
        let mut ask = Ask::new(Method::POST, path, Some(key), Bytes::from(words::to_json(body)?));
        ask.if_match = Some(revision);
        self.finish(ask, deadline).await
    }

    /// Puts something in the place of what the caller has read at this revision.
    ///
    /// # Errors
    ///
    /// [`CallError`] as [`Client::send`].
    pub async fn put_if_match<T: Serialize + ?Sized>(
        &self,
        path: &str,
        body: &T,
        revision: u64,
        deadline: Instant,
    ) -> Result<Answered, CallError> {
        let mut ask = Ask::new(Method::PUT, path, None, Bytes::from(words::to_json(body)?));
        ask.if_match = Some(revision);
        self.finish(ask, deadline).await
    }

    async fn finish(&self, ask: Ask, deadline: Instant) -> Result<Answered, CallError> {
        let safe = ask.method == Method::GET;
        let driven = self.drive(&ask, deadline).await;
        match driven.ended {
            Ended::Answered(answer) => answered(&answer),
            Ended::Refused(problem) if safe || !driven.unanswered || problem.settles() => {
                Err(CallError::Refused(problem))
            }
            Ended::Refused(problem) => {
                Err(CallError::Unknown { key: ask.key, last: problem.to_string() })
            }
            Ended::OutOfTime(last) if safe || !driven.unanswered => {
                Err(CallError::Unavailable(last))
            }
            Ended::OutOfTime(last) => Err(CallError::Unknown { key: ask.key, last }),
            Ended::Invalid(words) => Err(CallError::Invalid(words)),
        }
    }
}

/// Reads a 2xx answer.
fn answered(answer: &Incoming) -> Result<Answered, CallError> {
    let body = if answer.body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&answer.body)
            .map_err(|e| CallError::Invalid(format!("the answer is not JSON: {e}")))?
    };
    Ok(Answered {
        status: answer.status.as_u16(),
        body,
        replayed: answer.header(crate::api::HEADER_REPLAYED) == Some("true"),
        commit: answer.header(crate::api::HEADER_COMMIT).map(str::to_owned),
    })
}
