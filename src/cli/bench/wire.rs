//! A lean HTTP/1.1 connection: one request at a time, hand-written, kept alive.
//!
//! The load generator shares two cores with the cluster that it measures, so it must cost little:
//! no header map, no allocation a request, only the status, the length and two headers are read.
//! Promises: an error before any byte was written is [`WireError::NotSent`]; every later one is
//! [`WireError::Unanswered`].

use std::net::SocketAddr;
use std::ops::Range;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("not sent: {0}")]
    NotSent(std::io::Error),
    #[error("sent and not answered: {0}")]
    Unanswered(String),
}

/// An answer; its texts are borrowed from the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    body: Range<usize>,
    location: Option<Range<usize>>,
    leader: Option<Range<usize>>,
    close: bool,
}

/// One connection.
pub(super) struct Wire {
    stream: TcpStream,
    inbox: Vec<u8>,
    filled: usize,
}

impl Wire {
    pub(super) async fn connect(address: SocketAddr) -> Result<Wire, WireError> {
        let stream = TcpStream::connect(address).await.map_err(WireError::NotSent)?;
        stream.set_nodelay(true).map_err(WireError::NotSent)?;
        Ok(Wire { stream, inbox: vec![0; 8 << 10], filled: 0 })
    }

    /// Sends a whole request and reads its answer.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<Head, WireError> {
        let broken = |e: std::io::Error| WireError::Unanswered(e.to_string());
        self.filled = 0;
        self.stream.write_all(request).await.map_err(broken)?;
        let mut seen = 0;
        let head_end = loop {
            self.read_more().await?;
            if let Some(end) = end_of_head(&self.inbox[..self.filled], seen) {
                break end;
            }
            seen = self.filled.saturating_sub(3);
        };
        let (mut head, length) = read_head(&self.inbox[..head_end])?;
        let end = head_end + length;
        if end > ANSWER_BYTES_MAX {
            return Err(WireError::Unanswered(format!("an answer of {length} bytes")));
        }
        while self.filled < end {
            self.read_more().await?;
        }
        head.body = head_end..end;
        Ok(head)
    }

    async fn read_more(&mut self) -> Result<(), WireError> {
        if self.filled == self.inbox.len() {
            let grown = (self.inbox.len() * 2).min(ANSWER_BYTES_MAX);
            if grown == self.inbox.len() {
                return Err(WireError::Unanswered("the answer is too long".into()));
            }
            self.inbox.resize(grown, 0);
        }
        match self.stream.read(&mut self.inbox[self.filled..]).await {
            Ok(0) => Err(WireError::Unanswered("the connection was closed".into())),
            Ok(read) => {
                self.filled += read;
                Ok(())
            }
            Err(e) => Err(WireError::Unanswered(e.to_string())),
        }
    }

    /// The answer's body; empty when it is not text.
    pub(super) fn body(&self, head: &Head) -> &str {
        self.text(&head.body)
    }

    /// Where a redirect points to.
    pub(super) fn location(&self, head: &Head) -> Option<SocketAddr> {
        address_in(self.text(head.location.as_ref()?))
    }

    /// Who leads, when the answer tells an address.
    pub(super) fn leader(&self, head: &Head) -> Option<SocketAddr> {
        address_in(self.text(head.leader.as_ref()?))
    }

    fn text(&self, range: &Range<usize>) -> &str {
        std::str::from_utf8(&self.inbox[range.clone()]).unwrap_or_default()
    }
}

impl Head {
    /// Whether the connection ends with this answer.
    pub(super) fn closes(&self) -> bool {
        self.close
    }
}

/// Finds the end of the head (just behind the empty line), looking from `from` on.
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    bytes[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|at| from + at + 4)
}

/// Reads a head that ends with its empty line; returns it with the length of the body.
fn read_head(bytes: &[u8]) -> Result<(Head, usize), WireError> {
    let wrong = |words: &str| WireError::Unanswered(format!("not an HTTP/1.1 answer: {words}"));
    if !bytes.starts_with(b"HTTP/1.1 ") || bytes.len() < 12 {
        return Err(wrong("its first line"));
    }
    let digits = &bytes[9..12];
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(wrong("its status"));
    }
    let status = digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    let mut head = Head { status, body: 0..0, location: None, leader: None, close: false };
    let mut length = None;
    let mut at = 0;
    while let Some(line_end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = at..at + line_end;
        at += line_end + 1;
        let Some(colon) = bytes[line.clone()].iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = &bytes[line.start..line.start + colon];
        let value = trimmed(bytes, line.start + colon + 1..line.end);
        if name.eq_ignore_ascii_case(b"content-length") {
            let text = std::str::from_utf8(&bytes[value]).map_err(|_| wrong("its length"))?;
            length = Some(text.parse::<usize>().map_err(|_| wrong("its length"))?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(wrong("it comes in chunks, which this reader does not take"));
        } else if name.eq_ignore_ascii_case(b"location") {
            head.location = Some(value);
        } else if name.eq_ignore_ascii_case(b"holdfast-leader") {
            head.leader = Some(value);
        } else if name.eq_ignore_ascii_case(b"connection") {
            head.close = bytes[value].eq_ignore_ascii_case(b"close");
        }
    }
    match length {
        Some(length) => Ok((head, length)),
        None if matches!(status, 204 | 304) => Ok((head, 0)),
        None => Err(wrong("it tells no length")),
    }
}

fn trimmed(bytes: &[u8], range: Range<usize>) -> Range<usize> {
    let value = &bytes[range.clone()];
    let lead = value.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let tail = value.iter().rev().take_while(|byte| byte.is_ascii_whitespace()).count();
    if lead + tail >= value.len() {
        return range.start..range.start;
    }
    range.start + lead..range.end - tail
}

/// The address in `http://host:port/…` or `host:port`.
pub(super) fn address_in(text: &str) -> Option<SocketAddr> {
    let rest = text.strip_prefix("http://").unwrap_or(text);
    rest.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_status_length_and_where_to_go() {
        let bytes =
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation:  http://127.0.0.1:7102/v1/x \r\n\
            content-Length: 12\r\nconnection: close\r\n\r\n";
        let (head, length) = read_head(bytes).expect("a right head");
        assert_eq!((head.status, length, head.close), (307, 12, true));
        let location = std::str::from_utf8(&bytes[head.location.expect("there")]).expect("text");
        assert_eq!(address_in(location), "127.0.0.1:7102".parse().ok());
    }

    #[test]
    fn what_is_not_an_answer_is_an_error_and_never_a_status() {
        for bad in [
            &b"HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            assert!(read_head(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_across_reads() {
        let bytes = b"HTTP/1.1 200 OK\r\n\r\nbody";
        for cut in 0..bytes.len() {
            let first = end_of_head(&bytes[..cut], 0);
            let found = first.or_else(|| end_of_head(bytes, cut.saturating_sub(3)));
            assert_eq!(found, Some(19), "cut at {cut}");
        }
    }
}
