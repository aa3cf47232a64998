//! Placing, changing and voiding: what the attempts add up to.
//!
//! Design law 6 and the last trap of the escrow protocol: attempt 1 times out, attempt 2 is told
//! `sold-out`, a unit returns, attempt 1 arrives. So a refusal ends an operation only when no
//! earlier attempt is unanswered; otherwise the key is voided first, and the void says what is
//! true: it returns the hold that the key made, or makes sure that it never makes one.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::drive::{Ask, Ended};
use super::{CallError, Client, Hold, HoldState, Incoming, NewHold, Problem, path_segment, words};
use crate::planted::{Fault, planted};
use crate::runtime::{Instant, now};

/// The part of an operation's time that is kept for the void, at most.
const VOID_RESERVE_MAX: Duration = Duration::from_secs(1);

/// What became of a placement.
#[derive(Debug, Clone, PartialEq)]
pub enum Placing {
    /// There is a hold.
    Placed {
        /// The hold.
        hold: Hold,
        /// Whether an earlier copy had made it (a retry, or the void found it).
        replayed: bool,
    },
    /// A definite no, and no copy of the key can make a hold any more. (`hold-confirmed`,
    /// `hold-released` and `hold-expired` say that it had made one, which has ended.)
    Refused(Problem),
    /// Time ran out. There is certainly no live hold: nothing was ever taken, or the key is
    /// void, or what it had made has ended.
    GaveUp {
        /// The key.
        key: String,
        /// What the last attempt met.
        last: String,
    },
    /// Time ran out and not even the void was answered: there may be a hold. Retry with this key,
    /// or void it.
    Unresolved {
        /// The key.
        key: String,
        /// What the last attempt met.
        last: String,
    },
    /// The request cannot be sent, or the answer cannot be read.
    Invalid(String),
}

/// What became of a void.
#[derive(Debug, Clone, PartialEq)]
pub enum Voiding {
    /// No copy of the key makes a hold from now on.
    Voided,
    /// The key had made this hold, which stands.
    Made(Hold),
}

/// A change of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Moves its deadline.
    Extend {
        /// Lifetime from now in ms; the hold's own when absent.
        ttl_ms: Option<u64>,
    },
    /// Sells it.
    Confirm {
        /// Fewer units than held (the rest is released).
        quantity: Option<u64>,
        /// Takes stock again when it has expired.
        reacquire: bool,
        /// The caller's reference.
        reference: Option<String>,
    },
    /// Gives it back.
    Release {
        /// Why, for the record.
        reason: Option<String>,
    },
    /// Brings sold units back to stock.
    Return {
        /// How many; all when absent.
        quantity: Option<u64>,
    },
}

impl Step {
    fn verb(&self) -> &'static str {
        match self {
            Step::Extend { .. } => "extend",
            Step::Confirm { .. } => "confirm",
            Step::Release { .. } => "release",
            Step::Return { .. } => "return",
        }
    }

    fn body(&self) -> Value {
        let mut body = match self {
            Step::Extend { ttl_ms } => json!({ "ttl_ms": ttl_ms }),
            Step::Confirm { quantity, reacquire, reference } => json!({
                "quantity": quantity,
                "reacquire": reacquire.then_some(true),
                "reference": reference,
            }),
            Step::Release { reason } => json!({ "reason": reason }),
            Step::Return { quantity } => json!({ "quantity": quantity }),
        };
        if let Some(members) = body.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        body
    }

    /// Whether a refusal of a retry also settles the earlier copies. An expired hold never sells
    /// later without `reacquire`; with it, it may.
    fn settled_by(&self, problem: &Problem) -> bool {
        let expired = problem.slug == "hold-expired";
        problem.settles() || (expired && !matches!(self, Step::Confirm { reacquire: true, .. }))
    }
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed {
    /// The hold as it is now.
    Done {
        /// The hold.
        hold: Hold,
        /// Whether it had been answered before.
        replayed: bool,
    },
    /// A definite no: no copy will change the hold.
    Refused(Problem),
    /// No node could act in time: nothing was changed.
    Unavailable(String),
    /// A copy may still take effect. Retry with this key.
    Unresolved {
        /// The key.
        key: String,
        /// What the last attempt met.
        last: String,
    },
    /// The request cannot be sent, or the answer cannot be read.
    Invalid(String),
}

#[derive(Serialize)]
struct VoidBody<'a> {
    item: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    buyer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<&'a str>,
}

impl Client {
    /// Places a hold under `key`, retrying with the same key and voiding it before giving up. All
    /// of it, the void too, ends by `deadline` (plus what the last answer needs to travel).
    pub async fn place(&self, item: &str, new: &NewHold, key: &str, deadline: Instant) -> Placing {
        let path = format!("/v1/items/{}/holds", path_segment(item));
        let body = match words::to_json(new) {
            Ok(body) => Bytes::from(body),
            Err(e) => return Placing::Invalid(e.to_string()),
        };
        let begun = now();
        let left = if deadline > begun { deadline - begun } else { Duration::ZERO };
        let until = begun + (left - (left / 4).min(VOID_RESERVE_MAX));
        let ask = Ask::new(Method::POST, &path, Some(key), body);
        let driven = self.drive(&ask, until).await;
        match driven.ended {
            Ended::Answered(answer) => match read_hold(&answer) {
                Ok((hold, replayed)) => {
                    let replayed = replayed || answer.status == http::StatusCode::OK;
                    Placing::Placed { hold, replayed }
                }
                Err(e) => Placing::Invalid(e.to_string()),
            },
            Ended::Refused(problem)
                if !driven.unanswered
                    || ended_for_good(&problem)
                    || planted(Fault::ClientForgetsDoubt) =>
            {
                Placing::Refused(problem)
            }
            Ended::Refused(problem) => {
                let last = problem.to_string();
                self.resolve(item, new, key, deadline, last, Placing::Refused(problem)).await
            }
            Ended::OutOfTime(last) if !driven.unanswered => {
                Placing::GaveUp { key: key.to_owned(), last }
            }
            Ended::OutOfTime(last) => {
                let gave_up = Placing::GaveUp { key: key.to_owned(), last: last.clone() };
                self.resolve(item, new, key, deadline, last, gave_up).await
            }
            Ended::Invalid(words) => Placing::Invalid(words),
        }
    }

    /// Voids the key of a placement with an unanswered attempt; `voided` is what is then true.
    async fn resolve(
        &self,
        item: &str,
        new: &NewHold,
        key: &str,
        deadline: Instant,
        last: String,
        voided: Placing,
    ) -> Placing {
        let (buyer, region) = (new.buyer.as_deref(), new.region.as_deref());
        match self.void(item, buyer, region, key, deadline).await {
            Ok(Voiding::Voided) => voided,
            Ok(Voiding::Made(hold)) => match hold.state {
                HoldState::Held | HoldState::Sold => Placing::Placed { hold, replayed: true },
                HoldState::Released | HoldState::Expired | HoldState::Returned => {
                    let last = format!("{last}; the key had made {}, which has ended", hold.id);
                    Placing::GaveUp { key: key.to_owned(), last }
                }
            },
            Err(CallError::Refused(problem)) if ended_for_good(&problem) => {
                Placing::Refused(problem)
            }
            Err(e) => Placing::Unresolved {
                key: key.to_owned(),
                last: format!("{last}; and the void failed: {e}"),
            },
        }
    }

    /// Gives up on a key for good, retrying until the deadline.
    ///
    /// # Errors
    ///
    /// [`CallError`]; while it is `Unavailable` or `Unknown` the key may still make a hold.
    pub async fn void(
        &self,
        item: &str,
        buyer: Option<&str>,
        region: Option<&str>,
        key: &str,
        deadline: Instant,
    ) -> Result<Voiding, CallError> {
        let path = format!("/v1/receipts/{}/void", path_segment(key));
        let body = VoidBody { item, buyer, region };
        let ask = Ask::new(Method::POST, &path, Some(key), Bytes::from(words::to_json(&body)?));
        // A void is the same whichever copy of it arrives: the first answer is the truth.
        match self.drive(&ask, deadline).await.ended {
            Ended::Answered(answer) => read_void(&answer),
            Ended::Refused(problem) if problem.slug == "key-voided" => Ok(Voiding::Voided),
            Ended::Refused(problem) => Err(CallError::Refused(problem)),
            Ended::OutOfTime(last) => Err(CallError::Unknown { key: Some(key.to_owned()), last }),
            Ended::Invalid(words) => Err(CallError::Invalid(words)),
        }
    }

    /// Changes a hold under `key`, retrying with the same key until the deadline.
    pub async fn change(&self, hold: &str, step: &Step, key: &str, deadline: Instant) -> Changed {
        let path = format!("/v1/holds/{}/{}", path_segment(hold), step.verb());
        let body = match words::to_json(&step.body()) {
            Ok(body) => Bytes::from(body),
            Err(e) => return Changed::Invalid(e.to_string()),
        };
        let driven = self.drive(&Ask::new(Method::POST, &path, Some(key), body), deadline).await;
        let unresolved = |last: String| Changed::Unresolved { key: key.to_owned(), last };
        match driven.ended {
            Ended::Answered(answer) => match read_hold(&answer) {
                Ok((hold, replayed)) => Changed::Done { hold, replayed },
                Err(e) => Changed::Invalid(e.to_string()),
            },
            Ended::Refused(problem) if !driven.unanswered || step.settled_by(&problem) => {
                Changed::Refused(problem)
            }
            Ended::Refused(problem) => unresolved(problem.to_string()),
            Ended::OutOfTime(last) if !driven.unanswered => Changed::Unavailable(last),
            Ended::OutOfTime(last) => unresolved(last),
            Ended::Invalid(words) => Changed::Invalid(words),
        }
    }
}

/// Whether a refusal of a *placing* key settles every copy of it: the key is void, another
/// request's, or its hold has ended.
fn ended_for_good(problem: &Problem) -> bool {
    problem.settles() || problem.slug == "hold-expired"
}

fn read_hold(answer: &Incoming) -> Result<(Hold, bool), CallError> {
    let hold = serde_json::from_slice(&answer.body)
        .map_err(|e| CallError::Invalid(format!("the answer is not a hold: {e}")))?;
    Ok((hold, answer.header(crate::api::HEADER_REPLAYED) == Some("true")))
}

fn read_void(answer: &Incoming) -> Result<Voiding, CallError> {
    let invalid = || CallError::Invalid("the answer to a void is neither a hold nor void".into());
    let body: Value = serde_json::from_slice(&answer.body).map_err(|_| invalid())?;
    if let Some(hold) = body.get("hold").filter(|hold| !hold.is_null()) {
        return serde_json::from_value(hold.clone()).map(Voiding::Made).map_err(|_| invalid());
    }
    match body.get("state").and_then(Value::as_str) {
        Some("voided") => Ok(Voiding::Voided),
        Some(_) | None => Err(invalid()),
    }
}
