//! A call and what can come of it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::runtime::Instant;

/// Why a call has no answer, and whether the peer may have acted on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It certainly never reached the peer's service.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have reached the peer's service, which may have acted.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// The handshake or the service said no; nothing was done.
    #[error("refused: {0}")]
    Refused(String),
    /// The body is larger than the lane allows; it was not sent.
    #[error("a message of {bytes} bytes where {limit} are allowed")]
    TooLarge {
        /// The body's size, in bytes.
        bytes: usize,
        /// The lane's bound, in bytes.
        limit: usize,
    },
    /// Its deadline came first.
    #[error("{}", if *.sent { "no answer by the deadline" } else { "not sent by the deadline" })]
    Deadline {
        /// Whether it was sent before: then the outcome is unknown.
        sent: bool,
    },
}

impl PeerError {
    /// Whether the peer's service certainly did not act on the call.
    pub fn is_definite(&self) -> bool {
        match self {
            PeerError::NotSent(_) | PeerError::Refused(_) | PeerError::TooLarge { .. } => true,
            PeerError::Unknown(_) => false,
            PeerError::Deadline { sent } => !sent,
        }
    }
}

/// What a call comes to.
pub(super) type Outcome = Result<Bytes, PeerError>;

/// A call that waits to be sent.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) kind: u16,
    pub(super) body: Bytes,
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Outcome>,
}

impl Call {
    /// Gives the caller its outcome; a caller that went away does not care.
    pub(super) fn settle(self, outcome: Outcome) {
        let _ = self.answer.send(outcome);
    }
}

/// The answer to a call, to be awaited. Dropping it does not take the call back.
#[derive(Debug)]
#[must_use = "a call without its answer has an unknown outcome"]
pub struct Pending {
    answer: oneshot::Receiver<Outcome>,
}

impl Pending {
    /// Makes the two ends of a call.
    pub(super) fn new() -> (oneshot::Sender<Outcome>, Pending) {
        let (sender, answer) = oneshot::channel();
        (sender, Pending { answer })
    }

    /// Makes a call that has failed already.
    pub(super) fn failed(error: PeerError) -> Pending {
        let (sender, pending) = Pending::new();
        let _ = sender.send(Err(error));
        pending
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.answer).poll(cx).map(|received| {
            received.unwrap_or_else(|_| {
                Err(PeerError::Unknown("the link went away without a word".to_owned()))
            })
        })
    }
}
