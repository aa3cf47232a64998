//! `holds:batch`: up to 1,000 operations, each a decision of its own, answered densely in order.
//!
//! A batch as a whole fails only when its body is not a list of operations, or too long. An
//! operation that breaks a rule is answered 400 or 422 in its place, and the others go on.

use axum::http::StatusCode;
use axum::response::Response;

use super::call::Call;
use super::fields::{Broken, Fields};
use super::front::Front;
use super::grants::GrantWriter;
use super::holds::{Placing, Verb, judge, transition_command};
use super::json::Json;
use super::problem::{Failure, Said, Stamp, not_found, said, validation};
use super::{receipts, wire};
use crate::api::{BATCH_OPERATIONS_MAX, OperationResult, Problem, ProblemKind};
use crate::ledger::{Answer, Command, CommandOf, NameRef, Placement};
use crate::raft::{Packer, PlaceBytes, packed};
use crate::shard::{Consistency, Hop, Outcome, Question, Reply, Request};

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

    let mut packer = Packer::default();
    let slots: Vec<Slot> = operations
        .into_iter()
        .map(|operation| match read(operation, &tenant, &mut packer) {
            Ok(read) => read,
            Err(problem) => Slot::Broken(problem),
        })
        .collect();
    let mut places = packer.finish().into_iter();
    let (mut asks, mut asked) = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
    for slot in slots {
        let (command, what) = match slot {
            Slot::Place => {
                let place = places.next().expect("one was packed for each place");
                (CommandOf::Place(place.clone()), Asked::Place(place))
            }
            Slot::Other(verb, command) => (packed(*command), Asked::Other(verb)),
            Slot::Broken(problem) => {
                asked.push(Asked::Broken(problem));
                continue;
            }
        };
        let question = Question::Command(command);
        let consistency = Consistency::Leader;
        asks.push(Request { question, deadline, consistency, hop: Hop::Forward });
        asked.push(what);
    }
    let count = asks.len();
    let replies: Vec<Reply> =
        if asks.is_empty() { Vec::new() } else { front.desk.ask_many(asks).await };
    if replies.len() != count {
        return Err(Failure::mismatch(&replies.len()));
    }
    Ok(wire::json_bytes(StatusCode::OK, results(asked, replies), &Stamp::default()))
}

/// What an operation was read as.
enum Slot {
    /// A placement, which was packed.
    Place,
    Other(Verb, Box<Command>),
    Broken(Box<Problem>),
}

/// What is answered in an operation's place.
enum Asked {
    Place(PlaceBytes),
    Other(Verb),
    Broken(Box<Problem>),
}

/// Writes [`crate::api::BatchResults`].
fn results(asked: Vec<Asked>, replies: Vec<Reply>) -> Vec<u8> {
    /// About what a grant takes.
    const GRANT_BYTES: usize = 384;
    let mut out = Vec::with_capacity(asked.len().saturating_mul(GRANT_BYTES).saturating_add(32));
    let (mut grants, mut replies) = (GrantWriter::default(), replies.into_iter());
    out.extend_from_slice(b"{\"results\":[");
    for (at, asked) in asked.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let mut reply = || replies.next().expect("one reply for each question, counted");
        let result = match asked {
            Asked::Place(place) => {
                let reply = reply();
                if let Outcome::Answered(Answer::Placed(placed)) = &reply.outcome {
                    grants.write(place.asked(), placed, reply.commit, &mut out);
                    continue;
                }
                settle(Verb::Place, reply)
            }
            Asked::Other(verb) => settle(verb, reply()),
            Asked::Broken(problem) => refused(problem, None),
        };
        serde_json::to_writer(&mut out, &result).expect("our own types serialise");
    }
    out.extend_from_slice(b"]}");
    out
}

/// Reads one operation; a placement is packed at once, where it stands.
fn read(operation: Json<'_>, tenant: &str, packer: &mut Packer) -> Result<Slot, Box<Problem>> {
    let mut broken = Broken::default();
    let Some(mut fields) = Fields::of(operation, String::new(), &mut broken) else {
        broken.0.clear();
        broken.add("operation", "is an object");
        return Err(Box::new(validation(broken.0)));
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
            return Err(Box::new(validation(broken.0)));
        }
    };
    let keyless = !fields.has("key");
    let key = fields.id_text("key", &mut broken).unwrap_or_default();
    if verb == Verb::Place {
        let item = fields.id_text("item", &mut broken);
        let item = fields.require("item", item, &mut broken).unwrap_or_default();
        let placing = Placing::read(&mut fields, &mut broken);
        fields.end(&mut broken);
        let placing = whole(placing, keyless, broken)?;
        packer.add(placing.of(NameRef { tenant, item: &item }, &key));
        return Ok(Slot::Place);
    }
    let (tenant, key) = (tenant.to_owned(), key.into_owned());
    let command = match verb {
        Verb::Void => receipts::void_command(&mut fields, tenant, key, &mut broken),
        Verb::Place | Verb::Extend | Verb::Confirm | Verb::Release | Verb::Return => {
            // A text that is no hold id names no hold, as in the path of the single call.
            let text = fields.text("hold", 256, &mut broken);
            let text = fields.require("hold", text, &mut broken);
            match text.map(|text| text.parse()) {
                Some(Ok(hold)) => {
                    Some(transition_command(verb, &mut fields, hold, tenant, key, &mut broken))
                }
                Some(Err(_)) if broken.0.is_empty() && !keyless => {
                    return Err(Box::new(not_found("hold")));
                }
                Some(Err(_)) | None => None,
            }
        }
    };
    // A transition without its hold was not read to its end: what is left is not known to be wrong.
    if command.is_some() || verb == Verb::Void {
        fields.end(&mut broken);
    }
    Ok(Slot::Other(verb, Box::new(whole(command, keyless, broken)?)))
}

/// Passes what was read of an operation when it has its key and no rule was broken.
fn whole<T>(read: Option<T>, keyless: bool, mut broken: Broken) -> Result<T, Box<Problem>> {
    if keyless && broken.0.is_empty() {
        return Err(Box::new(keyless_operation()));
    }
    if keyless {
        broken.add("key", "is required");
    }
    match read {
        Some(read) if broken.0.is_empty() => Ok(read),
        Some(_) | None => Err(Box::new(validation(broken.0))),
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
                hold: done.hold.map(|hold| wire::hold(*hold)),
                problem: None,
                commit: stamp.commit.map(|commit| commit.to_string()),
                replayed: done.replayed,
            },
            Err(problem) => refused(problem, Some(stamp)),
        },
        Ok((other @ (Said::Found(_) | Said::InFlight), _)) => {
            refused(Failure::mismatch(&other).problem, Some(stamp))
        }
        Err(failure) => refused(failure.problem, Some(failure.stamp)),
    }
}

fn refused(problem: Box<Problem>, stamp: Option<Stamp>) -> OperationResult {
    OperationResult {
        status: problem.status,
        hold: None,
        problem: Some(problem),
        commit: stamp.and_then(|s| s.commit).map(|commit| commit.to_string()),
        replayed: false,
    }
}
