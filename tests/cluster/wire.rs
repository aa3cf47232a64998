//! A plain HTTP/1.1 client on one kept connection. It shares nothing with the product's client, it
//! never retries, and it tells apart what was certainly not sent.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long an answer may take, beyond any deadline that a test names: later is a hang.
const ANSWER_WITHIN: Duration = Duration::from_secs(35);

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
    pub(crate) text: String,
}

impl Answer {
    /// A problem's slug, or nothing.
    pub(crate) fn slug(&self) -> &str {
        let kind = self.body.get("type").and_then(Value::as_str).unwrap_or_default();
        kind.strip_prefix("/problems/").unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// A member that is text.
    pub(crate) fn text_of(&self, member: &str) -> &str {
        self.body.get(member).and_then(Value::as_str).unwrap_or_default()
    }

    /// A member that is a number.
    pub(crate) fn number_of(&self, member: &str) -> u64 {
        let number = self.body.get(member).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no number {member} in {self:?}"))
    }

    /// Whether the node says that nothing was taken and that it may be asked again.
    pub(crate) fn is_not_taken(&self) -> bool {
        self.status == 503
    }

    /// Whether it may have been done.
    pub(crate) fn is_unknown(&self) -> bool {
        self.status == 504
    }
}

/// No answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It was never sent.
    NotSent(String),
    /// It was sent, and may have been done.
    Unknown(String),
}

/// What came of sending.
pub(crate) type Sent = Result<Answer, Lost>;

/// One caller on one kept connection to one node.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) at: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Caller {
    pub(crate) fn new(at: SocketAddr) -> Caller {
        Caller { at, stream: None }
    }

    /// Turns to another node.
    pub(crate) fn turn_to(&mut self, at: SocketAddr) {
        if self.at != at {
            *self = Caller::new(at);
        }
    }

    /// Asks for something to be read.
    pub(crate) async fn get(&mut self, path: &str) -> Sent {
        self.send("GET", path, &[], None).await
    }

    /// Asks for something to be done, under a key, with the default deadline.
    pub(crate) async fn post(&mut self, path: &str, key: &str, body: &Value) -> Sent {
        self.send("POST", path, &[("Idempotency-Key", key)], Some(body)).await
    }

    /// The same with a deadline.
    pub(crate) async fn post_within(
        &mut self,
        path: &str,
        key: &str,
        body: &Value,
        within: Duration,
    ) -> Sent {
        let within = within.as_millis().to_string();
        let headers = [("Idempotency-Key", key), ("Holdfast-Deadline-Ms", within.as_str())];
        self.send("POST", path, &headers, Some(body)).await
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Sent {
        self.write(method, path, headers, body).await?;
        self.read().await
    }

    /// Sends a request and leaves its answer for [`Caller::read`].
    pub(crate) async fn write(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(), Lost> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.at);
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            let body = body.to_string();
            text.push_str("Content-Type: application/json\r\n");
            text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        } else {
            text.push_str("\r\n");
        }
        let stream = self.connected().await?;
        if let Err(error) = stream.write_all(text.as_bytes()).await {
            self.stream = None;
            return Err(Lost::Unknown(error.to_string()));
        }
        Ok(())
    }

    /// Reads the answer to what was written.
    pub(crate) async fn read(&mut self) -> Sent {
        let Some(mut stream) = self.stream.take() else {
            return Err(Lost::Unknown("the connection has gone".to_owned()));
        };
        let answer = match timeout(ANSWER_WITHIN, read_answer(&mut stream)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(Lost::Unknown(error.to_string())),
            Err(_) => panic!("{} has not answered within {ANSWER_WITHIN:?}: it hangs", self.at),
        };
        let closes = answer.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
        if !closes {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    /// Whether it has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Connects, when it is not connected.
    pub(crate) async fn connected(&mut self) -> Result<&mut BufReader<TcpStream>, Lost> {
        if self.stream.is_none() {
            let dialled = timeout(CONNECT_WITHIN, TcpStream::connect(self.at)).await;
            let stream = match dialled {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return Err(Lost::NotSent(error.to_string())),
                Err(_) => return Err(Lost::NotSent("no connection in time".to_owned())),
            };
            stream.set_nodelay(true).map_err(|error| Lost::NotSent(error.to_string()))?;
            self.stream = Some(BufReader::new(stream));
        }
        Ok(self.stream.as_mut().expect("it was just connected"))
    }
}

async fn read_answer(stream: &mut BufReader<TcpStream>) -> std::io::Result<Answer> {
    let wrong = |what: &str| std::io::Error::other(what.to_owned());
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(wrong("closed before an answer"));
    }
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| wrong("no status line"))?;
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        let value = value.trim().to_owned();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().map_err(|_| wrong("no content length"))?;
        }
        headers.push((name.to_owned(), value));
    }
    if !line.trim_end().is_empty() {
        return Err(wrong("an answer cut off in its head"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let body = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Answer { status, headers, body, text })
}
