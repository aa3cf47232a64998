//! `holds:batch`: up to 1,000 operations, each a decision of its own, answered densely in order.
//!
//! A batch as a whole fails only when its body is not a list of operations, or too long. An
//! operation that breaks a rule is answered 400 or 422 in its place, and the others go on.

use axum::http::StatusCode;
use axum::response::Response;

use super::call::Call;
use super::fields::{Broken, Fields};
use super::front::Front;
use super::holds::{Verb, judge, place_command, transition_command};
use super::json::Json;
use super::problem::{Failure, Said, Stamp, not_found, said, validation};
use super::{receipts, wire};
use crate::api::{self, BATCH_OPERATIONS_MAX, OperationResult, Problem, ProblemKind};
use crate::ledger::{Command, ItemName};
use crate::shard::{Consistency, Hop, Question, Reply, Request};

/// `POST /v1/holds:batch`
pub(crate) async fn run(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let tenant = call.tenant()?;
    let deadline = call.deadline()?;
    let mut broken = Broken::default();
    if call.body.trim_ascii_start().first() == Some(&b'[') {
        broken.add("body", "is an object, as in {\"operations\": [...]}");
        return Err(validation(broken.0).into());
    }
    let mut fields = call.fields(false)?;
    let operations = fields.list("operations", &mut broken);
    let operations = fields.require("operations", operations, &mut broken);
    fields.end(&mut broken);
    let operations = super::holds::sound(operations, broken)?;
    if operations.len() > BATCH_OPERATIONS_MAX {
        let words = format!(
            "The batch has {} operations, at most {BATCH_OPERATIONS_MAX} are taken. Send several.",
            operations.len()
        );
        return Err(Failure::new(ProblemKind::TooLarge, words));
    }

    // One slot for each operation: the verb that was asked, or the problem that it met already.
    let mut slots: Vec<Result<Verb, Problem>> = Vec::with_capacity(operations.len());
    let mut asks = Vec::with_capacity(operations.len());
    for operation in operations {
        slots.push(match read(operation, &tenant) {
            Ok((verb, command)) => {
                asks.push(Request {
                    question: Question::Command(command),
                    deadline,
                    consistency: Consistency::Leader,
                    hop: Hop::Forward,
                });
                Ok(verb)
            }
            Err(problem) => Err(problem),
        });
    }
    let asked = asks.len();
    let replies: Vec<Reply> =
        if asks.is_empty() { Vec::new() } else { front.desk.ask_many(asks).await };
    if replies.len() != asked {
        return Err(Failure::mismatch(&replies.len()));
    }
    let mut replies = replies.into_iter();
    let results = slots
        .into_iter()
        .map(|slot| match slot {
            Ok(verb) => settle(verb, replies.next().expect("one reply for each question, counted")),
            Err(problem) => refused(problem, None),
        })
        .collect();
    Ok(wire::json(StatusCode::OK, &api::BatchResults { results }, &Stamp::default()))
}

/// Reads one operation.
fn read(operation: Json<'_>, tenant: &str) -> Result<(Verb, Command), Problem> {
    let mut broken = Broken::default();
    let Some(mut fields) = Fields::of(operation, String::new(), &mut broken) else {
        broken.0.clear();
        broken.add("operation", "is an object");
        return Err(validation(broken.0));
    };
    let verb = match fields.text("op", 16, &mut broken).as_deref() {
        Some("place") => Verb::Place,
        Some("extend") => Verb::Extend,
        Some("confirm") => Verb::Confirm,
        Some("release") => Verb::Release,
        Some("return") => Verb::Return,
        Some("void") => Verb::Void,
        Some(_) | None => {
            broken.0.clear();
            broken.add("op", "is place, extend, confirm, release, return or void");
            return Err(validation(broken.0));
        }
    };
    let keyless = !fields.has("key");
    let key = fields.id("key", &mut broken);
    let command = match verb {
        Verb::Place => {
            let item = fields.id("item", &mut broken);
            let item = fields.require("item", item, &mut broken).unwrap_or_default();
            let name = ItemName { tenant: tenant.to_owned(), item };
            place_command(&mut fields, name, key.unwrap_or_default(), &mut broken)
        }
        Verb::Void => receipts::void_command(
            &mut fields,
            tenant.to_owned(),
            key.unwrap_or_default(),
            &mut broken,
        ),
        Verb::Extend | Verb::Confirm | Verb::Release | Verb::Return => {
            // A text that is no hold id names no hold, as in the path of the single call.
            let text = fields.text("hold", 256, &mut broken);
            let text = fields.require("hold", text, &mut broken);
            match text.map(|text| text.parse()) {
                Some(Ok(hold)) => {
                    let key = key.unwrap_or_default();
                    let tenant = tenant.to_owned();
                    Some(transition_command(verb, &mut fields, hold, tenant, key, &mut broken))
                }
                Some(Err(_)) if broken.0.is_empty() && !keyless => return Err(not_found("hold")),
                Some(Err(_)) | None => None,
            }
        }
    };
    // A transition without its hold was not read to its end: what is left is not known to be wrong.
    if command.is_some() || matches!(verb, Verb::Place | Verb::Void) {
        fields.end(&mut broken);
    }
    if keyless && broken.0.is_empty() {
        return Err(keyless_operation());
    }
    if keyless {
        broken.add("key", "is required");
    }
    match command {
        Some(command) if broken.0.is_empty() => Ok((verb, command)),
        Some(_) | None => Err(validation(broken.0)),
    }
}

fn keyless_operation() -> Problem {
    Problem::new(
        ProblemKind::KeyMissing,
        "The operation needs `key`: a fresh one for each decision, the same one on every retry of \
         it.",
    )
}

fn settle(verb: Verb, reply: Reply) -> OperationResult {
    let stamp = Stamp { commit: reply.commit, leader: reply.leader };
    match said(reply) {
        Ok((Said::Answer(answer), _)) => match judge(verb, answer) {
            Ok(done) => OperationResult {
                status: done.status.as_u16(),
                hold: done.hold.map(wire::hold),
                problem: None,
                commit: stamp.commit.map(|commit| commit.to_string()),
                replayed: done.replayed,
            },
            Err(problem) => refused(problem, Some(stamp)),
        },
        Ok((other @ (Said::Found(_) | Said::InFlight), _)) => {
            refused(*Failure::mismatch(&other).problem, Some(stamp))
        }
        Err(failure) => refused(*failure.problem, Some(failure.stamp)),
    }
}

fn refused(problem: Problem, stamp: Option<Stamp>) -> OperationResult {
    OperationResult {
        status: problem.status,
        hold: None,
        problem: Some(Box::new(problem)),
        commit: stamp.and_then(|s| s.commit).map(|commit| commit.to_string()),
        replayed: false,
    }
}
