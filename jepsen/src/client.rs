//! The suite's own HTTP/1.1 client: one kept connection to each node, a deadline on every call.
//!
//! It never retries: a failure says whether the request may have reached the node, and what to make
//! of it is the caller's decision.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::roll::Roll;

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// One request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    /// Path and query, percent-encoded.
    pub(crate) path: String,
    /// The idempotency key.
    pub(crate) key: Option<String>,
    /// The revision that it rests on: `If-Match`.
    pub(crate) if_match: Option<u64>,
    pub(crate) body: Option<Value>,
}

impl Request {
    /// A read.
    pub(crate) fn get(path: impl Into<String>) -> Request {
        Request { method: "GET", path: path.into(), ..Request::default() }
    }
}

/// One answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The header `Holdfast-Commit`.
    pub(crate) commit: Option<String>,
    /// The header `Idempotent-Replayed`.
    pub(crate) replayed: bool,
    /// `null` when it is not JSON.
    pub(crate) body: Value,
    pub(crate) text: String,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum Lost {
    /// The request was never sent.
    NotSent(String),
    /// It may have arrived.
    Unknown(String),
}

impl Lost {
    pub(crate) fn why(&self) -> &str {
        match self {
            Lost::NotSent(why) | Lost::Unknown(why) => why,
        }
    }
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// What the node is told: `Holdfast-Deadline-Ms`.
    pub(crate) told: Duration,
    /// When the client itself gives up.
    pub(crate) own: Duration,
}

impl Patience {
    /// The usual one: nodes get so long, the client waits a little longer.
    pub(crate) fn of_ms(told: u64) -> Patience {
        let told = Duration::from_millis(told);
        Patience { told, own: told + Duration::from_millis(400) }
    }
}

/// A client with a connection to each node that it has asked.
#[derive(Debug)]
pub(crate) struct Caller {
    roll: Roll,
    kept: BTreeMap<u64, TcpStream>,
}

impl Caller {
    /// Makes one for the nodes of a roll.
    pub(crate) fn new(roll: &Roll) -> Caller {
        Caller { roll: roll.clone(), kept: BTreeMap::new() }
    }

    /// The nodes that it knows.
    pub(crate) fn roll(&self) -> &Roll {
        &self.roll
    }

    /// Asks a node.
    ///
    /// # Errors
    ///
    /// [`Lost::NotSent`] is definite; after [`Lost::Unknown`] anything may have happened.
    pub(crate) async fn ask(
        &mut self,
        node: u64,
        request: &Request,
        patience: Patience,
    ) -> Result<Response, Lost> {
        let Some(address) = self.roll.address(node) else {
            return Err(Lost::NotSent(format!("node {node} is nowhere")));
        };
        let kept = self.kept.remove(&node).filter(is_open);
        let deadline = tokio::time::Instant::now() + patience.own;
        let mut stream = match kept {
            Some(stream) => stream,
            None => connect(address, deadline).await?,
        };
        let text = compose(request, address, patience);
        let answered = tokio::time::timeout_at(deadline, exchange(&mut stream, &text)).await;
        match answered {
            Ok(Ok((response, keep))) => {
                if keep {
                    self.kept.insert(node, stream);
                }
                Ok(response)
            }
            Ok(Err(why)) => Err(Lost::Unknown(why)),
            Err(_) => Err(Lost::Unknown("no answer in time".to_owned())),
        }
    }
}

/// Whether a kept connection is still of use: the other side has neither closed it nor spoken.
fn is_open(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let read = stream.try_read(&mut byte);
    matches!(read, Err(ref why) if why.kind() == std::io::ErrorKind::WouldBlock)
}

async fn connect(to: SocketAddr, deadline: tokio::time::Instant) -> Result<TcpStream, Lost> {
    match tokio::time::timeout_at(deadline, TcpStream::connect(to)).await {
        Ok(Ok(stream)) => {
            let _ = stream.set_nodelay(true);
            Ok(stream)
        }
        Ok(Err(why)) => Err(Lost::NotSent(format!("connecting: {why}"))),
        Err(_) => Err(Lost::NotSent("connecting: no answer in time".to_owned())),
    }
}

fn compose(request: &Request, to: SocketAddr, patience: Patience) -> Vec<u8> {
    use std::fmt::Write;
    let mut head = String::with_capacity(256);
    let told = patience.told.as_millis();
    let _ = write!(head, "{} {} HTTP/1.1\r\nHost: {to}\r\n", request.method, request.path);
    let _ = write!(head, "Holdfast-Deadline-Ms: {told}\r\n");
    if let Some(key) = &request.key {
        let _ = write!(head, "Idempotency-Key: {key}\r\n");
    }
    if let Some(revision) = request.if_match {
        let _ = write!(head, "If-Match: \"{revision}\"\r\n");
    }
    let body = request.body.as_ref().map(Value::to_string).unwrap_or_default();
    if request.body.is_some() {
        head.push_str("Content-Type: application/json\r\n");
    }
    if request.method != "GET" {
        let _ = write!(head, "Content-Length: {}\r\n", body.len());
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body.as_bytes());
    bytes
}

/// Sends and reads one answer; says whether the connection may be kept.
async fn exchange(stream: &mut TcpStream, request: &[u8]) -> Result<(Response, bool), String> {
    stream.write_all(request).await.map_err(|e| format!("sending: {e}"))?;
    let mut read = Vec::with_capacity(1024);
    let head_end = loop {
        if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        more(stream, &mut read).await?;
    };
    let head = std::str::from_utf8(&read[..head_end]).map_err(|e| e.to_string())?.to_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.and_then(|status| status.parse().ok()).ok_or("no status line")?;
    let mut response = Response { status, ..Response::default() };
    let (mut length, mut keep) = (None, true);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse::<usize>().ok(),
            "connection" => keep = !value.eq_ignore_ascii_case("close"),
            "holdfast-commit" => response.commit = Some(value.to_owned()),
            "idempotent-replayed" => response.replayed = value == "true",
            _ => {}
        }
    }
    let length = length.ok_or("an answer without a length")?;
    if length > ANSWER_BYTES_MAX {
        return Err(format!("an answer of {length} bytes"));
    }
    while read.len() < head_end + length {
        more(stream, &mut read).await?;
    }
    let body = &read[head_end..head_end + length];
    response.body = serde_json::from_slice(body).unwrap_or(Value::Null);
    response.text = String::from_utf8_lossy(body).into_owned();
    Ok((response, keep))
}

async fn more(stream: &mut TcpStream, read: &mut Vec<u8>) -> Result<(), String> {
    read.reserve(4 << 10);
    match stream.read_buf(read).await {
        Ok(0) => Err("the connection was closed before the answer".to_owned()),
        Ok(_) => Ok(()),
        Err(why) => Err(format!("reading: {why}")),
    }
}

/// Percent-encodes a part of a path or a query.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
