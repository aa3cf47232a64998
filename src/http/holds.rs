//! Holds: placing, reading, the four transitions, the list.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;

use super::call::Call;
use super::fields::{Broken, Fields};
use super::front::Front;
use super::problem::{Failure, Said, Stamp, ended, not_found, validation};
use super::wire;
use crate::api::{self, Problem};
use crate::ledger::{
    Answer, Command, CommandOf, Confirm, Extend, Found, HoldId, HoldState, HoldView, ItemName,
    NameRef, PlaceRef, Query, Release, Return, ShardId,
};
use crate::raft::PlaceBytes;
use crate::shard::{Consistency, Question};

/// The longest `reference` and `reason` of a hold, in bytes.
const WORDS_BYTES_MAX: usize = 128;

/// What a command asked of a hold, to judge whether the answer is a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Place,
    Extend,
    Confirm,
    Release,
    Return,
    Void,
}

/// A success.
#[derive(Debug)]
pub(crate) struct Done {
    pub status: StatusCode,
    /// Absent for a key that was voided before it made a hold.
    pub hold: Option<Box<HoldView>>,
    pub replayed: bool,
}

/// Judges an answer: a replay tells the truth of now, so one whose hold has ended is a problem.
pub(crate) fn judge(verb: Verb, answer: Answer) -> Result<Done, Box<Problem>> {
    let (hold, replayed) = match answer {
        Answer::Hold { hold, replayed } => (hold, replayed),
        Answer::Voided { replayed } if verb == Verb::Void => {
            return Ok(Done { status: StatusCode::OK, hold: None, replayed });
        }
        other @ (Answer::Placed(_)
        | Answer::Item { .. }
        | Answer::Retired { .. }
        | Answer::Voided { .. }
        | Answer::Advanced { .. }
        | Answer::BucketOpen
        | Answer::Sent { .. }
        | Answer::Accepted { .. }
        | Answer::Settled
        | Answer::Copy(_)
        | Answer::Noted
        | Answer::Moved { .. }
        | Answer::Refused(_)) => return Err(Failure::mismatch(&other).problem),
    };
    let hold = match (verb, hold.state) {
        (Verb::Place | Verb::Extend, _) => ended(hold)?,
        (Verb::Confirm, HoldState::Sold) => hold,
        (Verb::Confirm, HoldState::Expired | HoldState::Released | HoldState::Returned) => {
            ended(hold)?
        }
        (Verb::Confirm, HoldState::Held) => return Err(Failure::mismatch(&hold).problem),
        (Verb::Release | Verb::Return | Verb::Void, _) => hold,
    };
    let status = match verb {
        Verb::Place if !replayed => StatusCode::CREATED,
        Verb::Place | Verb::Extend | Verb::Confirm | Verb::Release | Verb::Return | Verb::Void => {
            StatusCode::OK
        }
    };
    Ok(Done { status, hold: Some(hold), replayed })
}

/// What a body says of a placement; its texts stand in the body.
pub(crate) struct Placing<'a> {
    quantity: u64,
    buyer: Option<Cow<'a, str>>,
    region: Option<Cow<'a, str>>,
    ttl_ms: Option<u64>,
    reference: Option<Cow<'a, str>>,
}

impl<'a> Placing<'a> {
    /// Reads the fields of a placement; the caller ends them.
    pub(crate) fn read(fields: &mut Fields<'a>, broken: &mut Broken) -> Option<Placing<'a>> {
        let quantity = fields.units("quantity", broken);
        let quantity = fields.require("quantity", quantity, broken);
        let buyer = fields.id_text("buyer", broken);
        let region = fields.id_text("region", broken);
        let ttl_ms = fields.ttl("ttl_ms", broken);
        let reference = fields.text("reference", WORDS_BYTES_MAX, broken);
        Some(Placing { quantity: quantity?, buyer, region, ttl_ms, reference })
    }

    /// The placement of this, on an item under a key.
    pub(crate) fn of<'b>(&'b self, name: NameRef<'b>, key: &'b str) -> PlaceRef<'b> {
        PlaceRef {
            name,
            region: self.region.as_deref(),
            buyer: self.buyer.as_deref(),
            key,
            quantity: self.quantity,
            ttl_ms: self.ttl_ms,
            reference: self.reference.as_deref(),
        }
    }
}

/// Reads the fields of a transition; the caller ends them.
pub(crate) fn transition_command(
    verb: Verb,
    fields: &mut Fields<'_>,
    hold: HoldId,
    tenant: String,
    key: String,
    broken: &mut Broken,
) -> Command {
    match verb {
        Verb::Extend => {
            Command::Extend(Extend { hold, tenant, key, ttl_ms: fields.ttl("ttl_ms", broken) })
        }
        Verb::Confirm => Command::Confirm(Confirm {
            hold,
            tenant,
            key,
            quantity: fields.units("quantity", broken),
            reacquire: fields.flag("reacquire", broken).unwrap_or(false),
            reference: fields.text("reference", WORDS_BYTES_MAX, broken).map(Cow::into_owned),
        }),
        Verb::Release => Command::Release(Release {
            hold,
            tenant,
            key,
            reason: fields.text("reason", WORDS_BYTES_MAX, broken).map(Cow::into_owned),
        }),
        Verb::Return => Command::Return(Return {
            hold,
            tenant,
            key,
            quantity: fields.units("quantity", broken),
        }),
        Verb::Place | Verb::Void => {
            unreachable!("placing and voiding are no transitions of a hold")
        }
    }
}

/// `POST /v1/items/{item}/holds`
pub(crate) async fn place(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let name = call.item()?;
    let key = call.key()?;
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    let placing = Placing::read(&mut fields, &mut broken);
    fields.end(&mut broken);
    let placing = sound(placing, broken)?;
    let place = placing.of(name.borrowed(), &key);
    let question = Question::Command(CommandOf::Place(PlaceBytes::of(place)));
    let (answer, stamp) = front.decide(call, question).await?;
    respond(Verb::Place, answer.shown(place), &stamp)
}

/// `POST /v1/holds/{id}/extend`
pub(crate) async fn extend(front: &Front, call: &Call) -> Result<Response, Failure> {
    transition(front, call, Verb::Extend).await
}

/// `POST /v1/holds/{id}/confirm`
pub(crate) async fn confirm(front: &Front, call: &Call) -> Result<Response, Failure> {
    transition(front, call, Verb::Confirm).await
}

/// `POST /v1/holds/{id}/release`
pub(crate) async fn release(front: &Front, call: &Call) -> Result<Response, Failure> {
    transition(front, call, Verb::Release).await
}

/// `POST /v1/holds/{id}/return`
pub(crate) async fn bring_back(front: &Front, call: &Call) -> Result<Response, Failure> {
    transition(front, call, Verb::Return).await
}

async fn transition(front: &Front, call: &Call, verb: Verb) -> Result<Response, Failure> {
    call.query(&[])?;
    let tenant = call.tenant()?;
    let key = call.key()?;
    let mut broken = Broken::default();
    let mut fields = call.fields(true)?;
    let hold = call.hold()?;
    let command = transition_command(verb, &mut fields, hold, tenant, key, &mut broken);
    fields.end(&mut broken);
    let command = sound(Some(command), broken)?;
    let (answer, stamp) = front.change(call, command).await?;
    respond(verb, answer, &stamp)
}

/// Passes what was read when no rule was broken.
pub(crate) fn sound<T>(read: Option<T>, broken: Broken) -> Result<T, Failure> {
    match read {
        Some(read) if broken.0.is_empty() => Ok(read),
        Some(_) | None => Err(validation(broken.0).into()),
    }
}

fn respond(verb: Verb, answer: Answer, stamp: &Stamp) -> Result<Response, Failure> {
    let done = judge(verb, answer).map_err(|p| Failure::from(p).stamped(*stamp))?;
    let Some(hold) = done.hold else { return Err(Failure::mismatch(&done)) };
    let hold = wire::hold(*hold);
    let mut response = wire::json(done.status, &hold, stamp);
    if done.status == StatusCode::CREATED {
        let location = HeaderValue::try_from(format!("/v1/holds/{}", hold.id));
        let location = location.expect("hold ids are plain ASCII");
        response.headers_mut().insert(header::LOCATION, location);
    }
    wire::mark_replayed(&mut response, done.replayed);
    Ok(response)
}

/// `GET /v1/holds/{id}`
pub(crate) async fn read(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["consistency"])?;
    let consistency = parameters.consistency(Consistency::Leader)?;
    let tenant = call.tenant()?;
    let query = Query::Hold { id: call.hold()?, tenant };
    match front.find(call, query, consistency).await? {
        (Found::Hold(hold), stamp) => Ok(wire::json(StatusCode::OK, &wire::hold(*hold), &stamp)),
        (Found::NotFound, stamp) => Err(Failure::from(not_found("hold")).stamped(stamp)),
        (other, _) => Err(Failure::mismatch(&other)),
    }
}

/// `GET /v1/holds?item=…`
pub(crate) async fn list(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["item", "buyer", "state", "limit", "cursor", "consistency"])?;
    let name = ItemName { tenant: call.tenant()?, item: parameters.required_id("item")? };
    let limit = parameters.limit()?;
    let state = parameters.text("state").map(state_of).transpose()?;
    let after: Option<HoldId> = parameters
        .text("cursor")
        .map(|text| text.parse())
        .transpose()
        .map_err(|_| Failure::malformed("`cursor` is the `next_cursor` of the page before."))?;
    let consistency = parameters.consistency(Consistency::Leader)?;
    let buyer = parameters.id("buyer")?;
    let (shards, _) = layout(front, call, &name, consistency).await?;
    let query = Query::Holds { name, buyer, state, after, limit };
    let mut all: Vec<HoldView> = Vec::new();
    let mut any_more = false;
    let mut last_stamp = Stamp::default();
    for (_, found, stamp) in front.find_in(call, &shards, &query, consistency).await? {
        last_stamp = stamp;
        if let Found::Holds { holds, more } = found {
            all.extend(holds);
            any_more |= more;
        } else if found != Found::NotFound {
            return Err(Failure::mismatch(&found));
        }
    }
    all.sort_by_key(|hold| hold.id);
    any_more |= wire::cut_page(&mut all, limit);
    let next_cursor = all.last().filter(|_| any_more).map(|hold| hold.id.to_string());
    let page = api::HoldList { holds: all.into_iter().map(wire::hold).collect(), next_cursor };
    if shards.len() > 1 {
        last_stamp = Stamp::default();
    }
    Ok(wire::json(StatusCode::OK, &page, &last_stamp))
}

fn state_of(word: &str) -> Result<HoldState, Failure> {
    const STATES: [HoldState; 5] = [
        HoldState::Held,
        HoldState::Sold,
        HoldState::Released,
        HoldState::Expired,
        HoldState::Returned,
    ];
    STATES
        .into_iter()
        .find(|state| state.word() == word)
        .ok_or_else(|| Failure::malformed("`state` is held, sold, released, expired or returned."))
}

/// Returns the shards on which an item has buckets, the home shard first, and its home shard.
pub(crate) async fn layout(
    front: &Front,
    call: &Call,
    name: &ItemName,
    consistency: Consistency,
) -> Result<(Vec<ShardId>, ShardId), Failure> {
    let question = Question::Query { query: Query::Item(name.clone()), shard: None };
    let (found, stamp) = match front.ask(call, question, consistency).await? {
        (Said::Found(found), stamp) => (found, stamp),
        (other, _) => return Err(Failure::mismatch(&other)),
    };
    let Found::Item(item) = found else {
        return Err(match found == Found::NotFound {
            true => Failure::from(not_found("item")).stamped(stamp),
            false => Failure::mismatch(&found),
        });
    };
    let mut shards = vec![item.home];
    for place in &item.buckets {
        if !shards.contains(&place.shard) {
            shards.push(place.shard);
        }
    }
    Ok((shards, item.home))
}
