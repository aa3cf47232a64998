//! From a reply to HTTP: the one place that says which answer has which status.
//!
//! [`said`] maps what the desk replied and [`refusal`] what the ledger refused. Neither ever turns
//! an unknown outcome into a no, nor a no into silence: every problem says what happened and what
//! to do next.

use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::Response;

use super::wire;
use crate::api::{self, Problem, ProblemKind};
use crate::ledger::{Answer, CommitPoint, Found, HoldState, HoldView, NodeId, Refusal, UnixMs};
use crate::shard::{Outcome, Reply};

pub(crate) const COMMIT: HeaderName = HeaderName::from_static(api::HEADER_COMMIT);
pub(crate) const LEADER: HeaderName = HeaderName::from_static(api::HEADER_LEADER);
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static(api::HEADER_REPLAYED);
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Where an answer stands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stamp {
    pub commit: Option<CommitPoint>,
    pub leader: Option<NodeId>,
}

impl Stamp {
    /// Writes the headers of every answer that comes from a shard.
    pub(crate) fn put(&self, response: &mut Response) {
        if let Some(commit) = self.commit {
            let text = HeaderValue::try_from(commit.to_string());
            response.headers_mut().insert(COMMIT, text.expect("digits, dots and colons"));
        }
        if let Some(leader) = self.leader {
            response.headers_mut().insert(LEADER, HeaderValue::from(leader.0));
        }
    }
}

/// What was said, when it was not a problem.
#[derive(Debug)]
pub(crate) enum Said {
    Answer(Answer),
    Found(Found),
    InFlight,
}

/// A call that ends with a problem, or at another node.
#[derive(Debug)]
pub(crate) struct Failure {
    pub problem: Box<Problem>,
    pub stamp: Stamp,
    /// The address of the node that leads, for a 307.
    elsewhere: Option<String>,
    /// Whether the connection is of no more use.
    close: bool,
}

impl Failure {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Failure {
        Failure::from(Problem::new(kind, detail))
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Failure {
        Failure::new(ProblemKind::Malformed, detail)
    }

    /// The answer does not belong to the question: a fault of ours.
    pub(crate) fn mismatch(answer: &impl std::fmt::Debug) -> Failure {
        tracing::error!(?answer, "the answer does not belong to the question");
        Failure::new(
            ProblemKind::Internal,
            "The node answered another question than the one asked. Nothing is known of what was \
             done: retry with the same key, and report it.",
        )
    }

    /// Says of a read what was said of a change: there is no key, and nothing to take.
    pub(crate) fn of_read(mut self) -> Failure {
        let problem = &mut self.problem;
        if problem.slug() == ProblemKind::OutcomeUnknown.slug() {
            // A read does nothing, so nothing may have been done: its answer is only late.
            **problem = Problem::new(ProblemKind::DeadlinePassed, "");
        }
        let words = match ProblemKind::by_slug(problem.slug()) {
            Some(ProblemKind::ItemPaused) => {
                let reason = problem.reason.as_deref().unwrap_or_default();
                format!("{} Read it again later.", why_paused(reason))
            }
            Some(ProblemKind::Overloaded) => {
                "Too much is queued here. Read it again after a pause.".to_owned()
            }
            Some(ProblemKind::DeadlinePassed) => {
                "The deadline came before there was an answer. Read it again, with a longer \
                 Holdfast-Deadline-Ms if this happens often."
                    .to_owned()
            }
            Some(_) | None => problem.detail.clone(),
        };
        problem.detail = words;
        problem.retry_same_key = false;
        self
    }

    pub(crate) fn stamped(mut self, stamp: Stamp) -> Failure {
        self.stamp = stamp;
        self
    }

    pub(crate) fn closing(mut self) -> Failure {
        self.close = true;
        self
    }

    /// Writes the response; `uri` is what was asked for, for a redirect.
    pub(crate) fn into_response(self, uri: &Uri) -> Response {
        let mut response = match &self.elsewhere {
            Some(address) => redirect(address, uri),
            None => problem_response(&self.problem),
        };
        self.stamp.put(&mut response);
        if self.close {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<Box<Problem>> for Failure {
    fn from(problem: Box<Problem>) -> Failure {
        Failure { problem, stamp: Stamp::default(), elsewhere: None, close: false }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::from(Box::new(problem))
    }
}

/// Writes a problem as `application/problem+json`.
pub(crate) fn problem_response(problem: &Problem) -> Response {
    let body = serde_json::to_vec(problem).expect("our own types serialise");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).expect("the list of problems has HTTP statuses");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, PROBLEM_JSON);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = retry_after(problem) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn redirect(address: &str, uri: &Uri) -> Response {
    let target = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(format!("http://{address}{target}")) {
        headers.insert(header::LOCATION, location);
    }
    headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static("redirect"));
    response
}

/// Seconds after which a retry makes sense, where waiting helps.
fn retry_after(problem: &Problem) -> Option<u64> {
    match ProblemKind::by_slug(problem.slug())? {
        ProblemKind::InsufficientStock
        | ProblemKind::ItemPaused
        | ProblemKind::Overloaded
        | ProblemKind::OutcomeUnknown => Some(1),
        ProblemKind::NotServing => Some(5),
        ProblemKind::Malformed
        | ProblemKind::KeyMissing
        | ProblemKind::NotFound
        | ProblemKind::MethodNotAllowed
        | ProblemKind::BodyTimeout
        | ProblemKind::SoldOut
        | ProblemKind::KeyVoided
        | ProblemKind::UseAdjustments
        | ProblemKind::BuyerLimit
        | ProblemKind::ItemClosed
        | ProblemKind::SaleNotOpen
        | ProblemKind::HoldConfirmed
        | ProblemKind::HoldReleased
        | ProblemKind::HoldNotSold
        | ProblemKind::StockCommitted
        | ProblemKind::ClusterRefused
        | ProblemKind::HoldExpired
        | ProblemKind::RevisionMismatch
        | ProblemKind::TooLarge
        | ProblemKind::Validation
        | ProblemKind::KeyReused
        | ProblemKind::ExtendBudgetSpent
        | ProblemKind::PreconditionRequired
        | ProblemKind::HeadTooLarge
        | ProblemKind::Internal
        | ProblemKind::NotImplemented
        | ProblemKind::DeadlinePassed => None,
    }
}

/// Maps a reply: what was said, or the problem.
pub(crate) fn said(reply: Reply) -> Result<(Said, Stamp), Failure> {
    let stamp = Stamp { commit: reply.commit, leader: reply.leader };
    let problem = match reply.outcome {
        Outcome::Answered(Answer::Refused(refused)) => refusal(refused),
        Outcome::Answered(answer) => return Ok((Said::Answer(answer), stamp)),
        Outcome::Found(found) => return Ok((Said::Found(found), stamp)),
        Outcome::InFlight => return Ok((Said::InFlight, stamp)),
        Outcome::Paused(reason) => paused(reason.word()),
        Outcome::Overloaded => Problem::new(
            ProblemKind::Overloaded,
            "Too much is queued here; nothing was taken. Retry with the same key after a pause.",
        ),
        Outcome::Late => Problem::new(
            ProblemKind::DeadlinePassed,
            "The deadline came before anything was proposed; nothing was taken. Retry with the \
             same key, with a longer Holdfast-Deadline-Ms if this happens often.",
        ),
        Outcome::Unknown => Problem::new(
            ProblemKind::OutcomeUnknown,
            "It was proposed and not answered in time: it may be done. Retry with the same key \
             until you see a hold, or void the key; a refusal of a retry does not speak for this \
             attempt.",
        ),
        Outcome::NotServing(why) => Problem::new(ProblemKind::NotServing, why),
        Outcome::Elsewhere { node, http } => {
            let words = format!("Node {node} leads; ask it at {http}.");
            let mut failure = Failure::new(ProblemKind::NotServing, words).stamped(stamp);
            failure.stamp.leader = Some(node);
            failure.elsewhere = Some(http);
            return Err(failure);
        }
    };
    Err(Failure::from(problem).stamped(stamp))
}

/// Why nothing is granted, and until when.
fn why_paused(reason: &str) -> &'static str {
    match reason {
        "operator" => "An operator paused the item; it grants again after `resume`.",
        "invariant" => {
            "A law was found broken; the item stays paused until an operator resumes it."
        }
        "quorum-lost" => "The shard has no fresh quorum; it grants again by itself when it has.",
        _ => "The shard is moving or restoring; it grants again by itself.",
    }
}

fn paused(reason: &str) -> Problem {
    let why = why_paused(reason);
    Problem {
        reason: Some(reason.to_owned()),
        ..Problem::new(
            ProblemKind::ItemPaused,
            format!("{why} Nothing was taken: retry with the same key."),
        )
    }
}

fn not_open(opens_at: Option<UnixMs>, closes_at: Option<UnixMs>) -> Problem {
    let words = match (opens_at, closes_at) {
        (Some(at), None) => format!("The sale opens at {}.", wire::time(at)),
        (None, Some(at)) => format!("The sale closed at {}.", wire::time(at)),
        (Some(from), Some(to)) => {
            format!("The sale runs from {} to {}.", wire::time(from), wire::time(to))
        }
        (None, None) => "The sale is not open.".to_owned(),
    };
    Problem {
        opens_at: opens_at.map(wire::time),
        closes_at: closes_at.map(wire::time),
        // One that only closes has closed.
        retryable: opens_at.is_some(),
        ..Problem::new(ProblemKind::SaleNotOpen, words)
    }
}

/// Maps a refusal of the ledger, or of the gate.
pub(crate) fn refusal(refused: Refusal) -> Problem {
    use ProblemKind as K;
    match refused {
        Refusal::SoldOut { may_return } => Problem {
            may_return: Some(may_return),
            retryable: may_return,
            ..Problem::new(
                K::SoldOut,
                if may_return {
                    "Nothing is left now; units are held that may come back. The key is not \
                     consumed: a later retry may take it."
                } else {
                    "Nothing is left, and nothing is held that could come back."
                },
            )
        },
        Refusal::InsufficientStock { available } => Problem {
            available_hint: Some(available),
            ..Problem::new(
                K::InsufficientStock,
                units_are(available)
                    + " available now, fewer than asked for, or stock is on its way. Ask for \
                       fewer, or retry with the same key.",
            )
        },
        Refusal::BuyerLimit { limit, held, sold } => Problem {
            limit: Some(limit),
            held: Some(held),
            sold: Some(sold),
            ..Problem::new(
                K::BuyerLimit,
                format!("The buyer holds {held} and has bought {sold} of at most {limit}."),
            )
        },
        Refusal::ItemPaused { reason } => paused(reason.word()),
        Refusal::ItemClosed => Problem::new(
            K::ItemClosed,
            "The item is closed, which is final: no more holds. Holds that exist run their course.",
        ),
        Refusal::SaleNotOpen { opens_at, closes_at } => not_open(opens_at, closes_at),
        Refusal::KeyVoided => Problem::new(
            K::KeyVoided,
            "The key was given up for good and made no hold. Take a fresh key for a new attempt.",
        ),
        Refusal::KeyReused { field } => Problem {
            detail: format!(
                "The key was used before with another `{field}`. Send the first request again as \
                 it was, or take a fresh key for this one."
            ),
            field: Some(field),
            ..Problem::new(K::KeyReused, "")
        },
        Refusal::HoldExpired { hold } => hold_problem(K::HoldExpired, hold),
        Refusal::HoldConfirmed { hold } => hold_problem(K::HoldConfirmed, hold),
        Refusal::HoldReleased { hold } => hold_problem(K::HoldReleased, hold),
        Refusal::NotSold { hold } => hold_problem(K::HoldNotSold, hold),
        Refusal::ExtendBudgetSpent { extends_used, latest } => Problem {
            extends_used: Some(extends_used),
            latest: Some(wire::time(latest)),
            ..Problem::new(
                K::ExtendBudgetSpent,
                format!(
                    "The hold was extended {} and can last until {} at most. Confirm or release \
                     it.",
                    times(extends_used),
                    wire::time(latest)
                ),
            )
        },
        Refusal::Invalid { field, rule } => validation(vec![api::FieldError { field, rule }]),
        Refusal::ItemNotFound
        | Refusal::RegionNotFound
        | Refusal::HoldNotFound
        | Refusal::StockCommitted { .. }
        | Refusal::OpenHolds { .. }
        | Refusal::UseAdjustments { .. }
        | Refusal::RevisionMismatch { .. }
        | Refusal::NotOwner
        | Refusal::TransferRefused { .. }
        | Refusal::UnderWay { .. }
        | Refusal::NotUnderWay
        | Refusal::NotAnswered { .. }
        | Refusal::LowerInSteps => administrative(refused),
    }
}

/// The refusals that speak of items rather than of holds.
fn administrative(refused: Refusal) -> Problem {
    use ProblemKind as K;
    match refused {
        Refusal::ItemNotFound => not_found("item"),
        Refusal::RegionNotFound => not_found("region"),
        Refusal::HoldNotFound => not_found("hold"),
        Refusal::StockCommitted { needed, available, held, sold } => Problem {
            needed: Some(needed),
            available: Some(available),
            held: Some(held),
            sold: Some(sold),
            ..Problem::new(
                K::StockCommitted,
                format!(
                    "Units that would have to be available: {needed}. Available: {available}, \
                     held: {held}, sold: {sold}. Lower it by less, or wait for holds to end."
                ),
            )
        },
        Refusal::OpenHolds { held } => Problem {
            held: Some(held),
            ..Problem::new(
                K::StockCommitted,
                format!(
                    "{} held. Close the item, and delete it when nothing is held any more.",
                    units_are(held)
                ),
            )
        },
        Refusal::UseAdjustments { total } => Problem {
            total: Some(total),
            ..Problem::new(
                K::UseAdjustments,
                format!("The total is {total}. Leave `total` out, or POST to …/adjustments."),
            )
        },
        Refusal::RevisionMismatch { revision } => Problem {
            revision: Some(revision),
            ..Problem::new(
                K::RevisionMismatch,
                format!("The revision is {revision} now. Read the item again and decide anew."),
            )
        },
        Refusal::NotOwner => paused("moving"),
        Refusal::TransferRefused { rule } => {
            Problem::new(K::StockCommitted, format!("Nothing was moved: {rule}."))
        }
        Refusal::UnderWay { .. } | Refusal::NotAnswered { .. } => paused("moving"),
        Refusal::NotUnderWay | Refusal::LowerInSteps => {
            Problem::new(K::Internal, "A step of a long operation came out of its order.")
        }
        Refusal::SoldOut { .. }
        | Refusal::InsufficientStock { .. }
        | Refusal::BuyerLimit { .. }
        | Refusal::ItemPaused { .. }
        | Refusal::ItemClosed
        | Refusal::SaleNotOpen { .. }
        | Refusal::KeyVoided
        | Refusal::KeyReused { .. }
        | Refusal::HoldExpired { .. }
        | Refusal::HoldConfirmed { .. }
        | Refusal::HoldReleased { .. }
        | Refusal::NotSold { .. }
        | Refusal::ExtendBudgetSpent { .. }
        | Refusal::Invalid { .. } => refusal(refused),
    }
}

/// There is no such item, region, hold or page.
pub(crate) fn not_found(what: &str) -> Problem {
    Problem::new(
        ProblemKind::NotFound,
        format!("There is no such {what}, or it belongs to another tenant."),
    )
}

/// Whether a rule is a predicate whose subject is its field.
fn speaks_of_its_field(rule: &str) -> bool {
    let first = rule.split(' ').next().unwrap_or_default();
    matches!(first, "is" | "has" | "must" | "cannot" | "neither")
}

fn units_are(units: u64) -> String {
    if units == 1 { "1 unit is".to_owned() } else { format!("{units} units are") }
}

fn times(n: u32) -> String {
    match n {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        n => format!("{n} times"),
    }
}

/// Fields that break rules.
pub(crate) fn validation(errors: Vec<api::FieldError>) -> Problem {
    let detail = match errors.as_slice() {
        [one] if speaks_of_its_field(&one.rule) => format!("`{}` {}.", one.field, one.rule),
        [one] => format!("`{}`: {}.", one.field, one.rule),
        many => format!("{} fields break a rule; see `errors`.", many.len()),
    };
    Problem { errors, ..Problem::new(ProblemKind::Validation, detail) }
}

/// The problem of a hold that has ended, or has not, when the call needs it otherwise.
pub(crate) fn hold_problem(kind: ProblemKind, hold: Box<HoldView>) -> Problem {
    let expired_at = wire::time(hold.expires_at);
    let detail = match hold.state {
        HoldState::Expired => format!(
            "The hold expired at {expired_at}. Void the payment, or confirm with \
             `\"reacquire\": true` while units are left."
        ),
        HoldState::Sold => {
            "The hold is sold. To bring its units back to stock, POST to …/return.".to_owned()
        }
        HoldState::Released | HoldState::Returned => {
            "The hold's units were given back. Place a new hold with a fresh key.".to_owned()
        }
        HoldState::Held => {
            "The hold is held, not sold: there is nothing to return. POST to …/release.".to_owned()
        }
    };
    let hold = wire::hold(*hold);
    Problem {
        state: Some(hold.state),
        expired_at: (kind == ProblemKind::HoldExpired).then_some(expired_at),
        hold: Some(Box::new(hold)),
        ..Problem::new(kind, detail)
    }
}

/// Passes a hold that is held; the problem tells how any other has ended.
pub(crate) fn ended(hold: Box<HoldView>) -> Result<Box<HoldView>, Box<Problem>> {
    let kind = match hold.state {
        HoldState::Held => return Ok(hold),
        HoldState::Sold => ProblemKind::HoldConfirmed,
        HoldState::Expired => ProblemKind::HoldExpired,
        HoldState::Released | HoldState::Returned => ProblemKind::HoldReleased,
    };
    Err(Box::new(hold_problem(kind, hold)))
}
