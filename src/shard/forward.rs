//! One hop between nodes: a question goes to its shard's leader, once.
//!
//! A forwarder sends an attempt once, and elsewhere only after a definite "not taken": a connection
//! that breaks with the question under way leaves the outcome unknown.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::desk::{Consistency, Outcome, Question, Reply};
use super::home::reply;
use super::nodes::ERRAND_FRAME;
use super::parley::PARLEY_FRAME;
use super::router::Router;
use crate::codec;
use crate::ledger::{PauseReason, ShardId};
use crate::peer::{Conversation, Link, PeerError, ReplyTo};
use crate::runtime::{self, Instant};

/// The frame kind of forwarded questions.
pub const FORWARD_FRAME: u16 = 32;

/// The most questions in one frame.
const QUESTIONS_MAX: usize = 1024;

#[derive(Debug, Serialize, Deserialize)]
struct Forwarded<Q = Vec<(Question, Consistency)>> {
    /// Time that the caller still has when the frame is sent.
    left_ms: u64,
    /// The shard that all of them are for: the sender has found it.
    shard: ShardId,
    questions: Q,
}

/// Sends questions over a link and waits for their answers, densely and in order.
pub(crate) async fn forward(
    link: &Link,
    shard: ShardId,
    questions: &[(Question, Consistency)],
    deadline: Instant,
) -> Vec<Reply> {
    let count = questions.len();
    let all = |outcome: Outcome| vec![reply(outcome); count];
    let now = runtime::now();
    let left = if deadline > now { deadline - now } else { Duration::ZERO };
    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let Ok(body) = codec::encode(&Forwarded { left_ms, shard, questions }) else {
        return all(Outcome::Overloaded);
    };
    match link.send(FORWARD_FRAME, Bytes::from(body), deadline).await {
        Ok(bytes) => match codec::decode::<Vec<Reply>>(&bytes) {
            Ok(replies) if replies.len() == count => replies,
            Ok(_) | Err(_) => all(Outcome::Unknown),
        },
        Err(error) => {
            tracing::debug!(%error, "a forwarded question was not answered");
            all(of_failure(&error))
        }
    }
}

/// What a question is answered that did not come back: "nothing was taken" only where the other
/// node certainly has not got it.
fn of_failure(error: &PeerError) -> Outcome {
    match error {
        PeerError::NotSent(_) | PeerError::Refused(_) | PeerError::Deadline { sent: false } => {
            Outcome::Paused(PauseReason::QuorumLost)
        }
        PeerError::TooLarge { .. } => Outcome::Overloaded,
        PeerError::Unknown(_) | PeerError::Deadline { sent: true } => Outcome::Unknown,
    }
}

/// The serving side of a forwarding connection.
pub struct ForwardConversation {
    router: Arc<Router>,
}

impl ForwardConversation {
    /// Serves questions of another node.
    pub fn new(router: Arc<Router>) -> ForwardConversation {
        ForwardConversation { router }
    }
}

impl Conversation for ForwardConversation {
    fn frame(&mut self, kind: u16, body: Bytes, reply_to: ReplyTo) {
        if kind == PARLEY_FRAME {
            self.router.hear(&body, reply_to);
            return;
        }
        if kind == ERRAND_FRAME {
            self.router.attend(&body, reply_to);
            return;
        }
        if kind != FORWARD_FRAME {
            reply_to.refuse("this connection carries forwarded questions only");
            return;
        }
        let forwarded: Forwarded = match codec::decode(&body) {
            Ok(forwarded) => forwarded,
            Err(error) => {
                reply_to.refuse(error.to_string());
                return;
            }
        };
        if forwarded.questions.len() > QUESTIONS_MAX {
            reply_to.refuse(format!("more than {QUESTIONS_MAX} questions in a frame"));
            return;
        }
        let router = Arc::clone(&self.router);
        runtime::spawn(async move {
            let deadline = runtime::now() + Duration::from_millis(forwarded.left_ms.min(60_000));
            let replies = router.answer_here(forwarded.shard, forwarded.questions, deadline).await;
            match codec::encode(&replies) {
                Ok(bytes) => reply_to.send(Bytes::from(bytes)),
                // Something may have been done: a refusal would say that nothing was.
                Err(error) => {
                    tracing::error!(%error, "answers that cannot be sent");
                    drop(reply_to);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trap "unknown, then refused": an attempt that may have arrived is over for its forwarder.
    #[test]
    fn attempt_that_may_have_arrived_is_unknown_and_never_told_as_not_taken() {
        let lost = || "the connection broke".to_owned();
        for error in [PeerError::Unknown(lost()), PeerError::Deadline { sent: true }] {
            assert_eq!(of_failure(&error), Outcome::Unknown, "{error}");
            assert!(!error.is_definite(), "{error}");
        }
        let large = PeerError::TooLarge { bytes: 2, limit: 1 };
        let unsent = PeerError::Deadline { sent: false };
        for error in [PeerError::NotSent(lost()), PeerError::Refused(lost()), unsent, large] {
            assert_ne!(of_failure(&error), Outcome::Unknown, "{error}");
            assert!(error.is_definite(), "{error}");
        }
    }
}
