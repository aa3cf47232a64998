//! The socket under a connection: it tells its pulse, and puts a problem in the place of the bare
//! answers that hyper gives by itself.
//!
//! What hyper cannot read as a request never reaches a handler: hyper answers 400, 414 or 431 with
//! an empty body and closes. Ours always say their content type, so such an answer is known by its
//! head. Afterwards what the client still sends is read and thrown away, up to a bound, so that it
//! can read the answer: to close over unread bytes would reset the connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::serve::{Pulse, last_words};
use crate::api::{Problem, ProblemKind};

/// How much of what a client goes on sending is read after it was told that it cannot be read.
const DRAIN_MAX: usize = 1 << 20;

/// A socket that tells its pulse.
pub(super) struct Watched {
    stream: TcpStream,
    pulse: Arc<Pulse>,
    head_bytes_max: usize,
    /// What goes out in the place of a bare answer, and how much of it has.
    instead: Option<(Vec<u8>, usize)>,
    /// How much is still read and thrown away before it closes; none before a bare answer.
    drain: usize,
    has_ended: bool,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, pulse: Arc<Pulse>, head_bytes_max: usize) -> Watched {
        Watched { stream, pulse, head_bytes_max, instead: None, drain: 0, has_ended: false }
    }

    /// Sends what stands in the place of a bare answer.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((words, sent)) = &mut self.instead {
            let rest = words.get(*sent..).unwrap_or_default();
            if rest.is_empty() {
                self.instead = None;
                break;
            }
            let polled = Pin::new(&mut self.stream).poll_write(cx, rest);
            self.pulse.wrote(polled.is_pending());
            match ready!(polled)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => *sent += n,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The problem that a bare answer of hyper's stands for.
fn of_bare_answer(bytes: &[u8], head_bytes_max: usize) -> Option<Vec<u8>> {
    let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..4)?;
    if ![&b"400 "[..], b"414 ", b"431 "].contains(&status) {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
    let says = |line: &str| head.split("\r\n").any(|one| one.eq_ignore_ascii_case(line));
    if !says("content-length: 0") || head.to_ascii_lowercase().contains("\r\ncontent-type:") {
        return None;
    }
    let (problem, reason) = if status == b"400 " {
        let words = "This cannot be read as an HTTP request: its first line or one of its \
                     headers is broken. Nothing was done.";
        (Problem::new(ProblemKind::Malformed, words), "Bad Request")
    } else {
        let words = format!(
            "The head of the request is larger than {head_bytes_max} bytes, or has more than 100 \
             lines. Nothing was done; send fewer or shorter headers."
        );
        (Problem::new(ProblemKind::HeadTooLarge, words), "Request Header Fields Too Large")
    };
    Some(last_words(&problem, reason, ""))
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let fresh = &buffer.filled()[before..];
        if !fresh.is_empty() {
            self.pulse.read(fresh);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.instead.is_none()
            && let Some(words) = of_bare_answer(bytes, self.head_bytes_max)
        {
            self.instead = Some((words, 0));
            self.drain = DRAIN_MAX;
        }
        if self.instead.is_some() {
            ready!(self.poll_instead(cx))?;
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.pulse.wrote(polled.is_pending());
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A bare answer is one part: it has no body.
        if let [only] = parts {
            return self.poll_write(cx, only);
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.pulse.wrote(polled.is_pending());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_ended {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.has_ended = true;
        }
        let mut space = [0_u8; 4_096];
        while self.drain > 0 {
            let mut buffer = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            match buffer.filled().len() {
                0 => break,
                n => self.drain = self.drain.saturating_sub(n),
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_without_a_body_and_a_content_type_is_a_bare_one() {
        let said = |text: &str| {
            let words = of_bare_answer(text.as_bytes(), 32_768)?;
            String::from_utf8(words).ok()
        };
        let bare = |status: &str| {
            format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\ndate: Tue, 1 Dec 2026\r\n\r\n")
        };
        let broken = said(&bare("400 Bad Request")).expect("bare");
        assert!(broken.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{broken}");
        assert!(broken.contains("/problems/malformed"), "{broken}");
        let large = said(&bare("431 Request Header Fields Too Large")).expect("bare");
        assert!(large.contains("/problems/head-too-large") && large.contains("32768"), "{large}");
        let (_, body) = large.split_once("\r\n\r\n").expect("a head and a body");
        assert!(large.contains(&format!("content-length: {}\r\n", body.len())), "{large}");
        let long = said(&bare("414 URI Too Long")).expect("bare");
        assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
        let own = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
                   content-length: 0\r\n\r\n";
        for other in [bare("404 Not Found"), bare("200 OK"), own.to_owned(), String::new()] {
            assert_eq!(said(&other), None, "{other}");
        }
    }
}
