//! One HTTP exchange with one node, and what can be known when it fails.
//!
//! Promises: a [`Failure`] is `NotSent` only when no byte of the request can have reached a node;
//! everything else is `Unanswered`. Never repeats a request that may have been sent.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::CallError;
use crate::runtime::{Instant, timeout_at};

/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How long a connection may take to open; below an attempt's time, so that it fails as `NotSent`.
const CONNECT_WITHIN: Duration = Duration::from_millis(1_000);
/// How long an unused connection is kept.
const IDLE_WITHIN: Duration = Duration::from_secs(30);

/// A request for one node.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// The node's base URL.
    pub node: String,
    /// Path and query, beginning with `/`.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, JSON or empty.
    pub body: Bytes,
}

/// A node's answer.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Incoming {
    /// Returns a header when it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No byte of the request reached a node.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The request may have arrived.
    #[error("sent and not answered: {0}")]
    Unanswered(String),
}

/// Carries one request to one node.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request, once, and returns its answer or what is known, by the deadline.
    fn send(
        &self,
        request: Outgoing,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Incoming, Failure>>;
}

/// HTTP/1.1 over TCP with kept connections.
#[derive(Debug, Clone)]
pub struct Tcp {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Default for Tcp {
    fn default() -> Tcp {
        Tcp::new()
    }
}

impl Tcp {
    /// Makes a transport without connections.
    pub fn new() -> Tcp {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_WITHIN)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Tcp { pool }
    }
}

impl Transport for Tcp {
    fn send(
        &self,
        request: Outgoing,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Incoming, Failure>> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let built = build(request)?;
            match timeout_at(deadline, exchange(pool, built)).await {
                Ok(done) => done,
                Err(elapsed) => Err(Failure::Unanswered(elapsed.to_string())),
            }
        })
    }
}

fn build(request: Outgoing) -> Result<http::Request<Full<Bytes>>, Failure> {
    let mut built = http::Request::builder()
        .method(request.method)
        .uri(format!("{}{}", request.node, request.path))
        .body(Full::new(request.body))
        .map_err(|e| Failure::NotSent(e.to_string()))?;
    *built.headers_mut() = request.headers;
    Ok(built)
}

async fn exchange(
    pool: Pool<HttpConnector, Full<Bytes>>,
    request: http::Request<Full<Bytes>>,
) -> Result<Incoming, Failure> {
    let answer = match pool.request(request).await {
        Ok(answer) => answer,
        Err(e) if e.is_connect() => return Err(Failure::NotSent(chain(&e))),
        Err(e) => return Err(Failure::Unanswered(chain(&e))),
    };
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|e| Failure::Unanswered(format!("the answer broke off: {e}")))?
        .to_bytes();
    Ok(Incoming { status: head.status, headers: head.headers, body })
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        words.push_str(": ");
        words.push_str(&inner.to_string());
        cause = inner.source();
    }
    words
}

/// Makes a header value of a caller's string.
pub(super) fn header(text: &str) -> Result<HeaderValue, CallError> {
    HeaderValue::from_str(text)
        .map_err(|_| CallError::Invalid(format!("{text:?} cannot stand in an HTTP header")))
}
