//! Receipts by key: what became of an attempt, and giving up on one for good.

use axum::http::StatusCode;
use axum::response::Response;

use super::call::Call;
use super::fields::{Broken, Fields};
use super::front::Front;
use super::holds::{Verb, judge, sound};
use super::problem::{Failure, Said, Stamp, not_found};
use super::wire;
use crate::api::{self, ReceiptState};
use crate::ledger::{Answer, Command, Found, ItemName, KeyScope, Query, Receipt, Void};
use crate::shard::{Consistency, Question};

/// `GET /v1/receipts/{key}`: by a read index.
pub(crate) async fn read(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["item", "buyer", "region"])?;
    let name = ItemName { tenant: call.tenant()?, item: parameters.required_id("item")? };
    let scope = KeyScope {
        name,
        region: parameters.id("region")?,
        buyer: parameters.id("buyer")?,
        key: call.id_in_path(2, "key")?,
    };
    let question = Question::Query { query: Query::Receipt(scope), shard: None };
    let (state, hold, stamp) = match front.ask(call, question, Consistency::Linearizable).await? {
        (Said::InFlight, stamp) => (ReceiptState::InFlight, None, stamp),
        (Said::Found(Found::Receipt(receipt)), stamp) => match receipt {
            Receipt::Committed(hold) => (ReceiptState::Committed, Some(hold), stamp),
            Receipt::Voided => (ReceiptState::Voided, None, stamp),
            Receipt::Unknown => (ReceiptState::NotFound, None, stamp),
        },
        (Said::Found(Found::NotFound), stamp) => {
            return Err(Failure::from(not_found("item")).stamped(stamp));
        }
        (other, _) => return Err(Failure::mismatch(&other)),
    };
    let receipt = api::Receipt { state, hold: hold.map(|hold| wire::hold(*hold)) };
    Ok(wire::json(StatusCode::OK, &receipt, &stamp))
}

/// Reads the fields that name a key's scope; the caller ends them.
pub(crate) fn void_command(
    fields: &mut Fields<'_>,
    tenant: String,
    key: String,
    broken: &mut Broken,
) -> Option<Command> {
    let item = fields.id("item", broken);
    let item = fields.require("item", item, broken);
    let buyer = fields.id("buyer", broken);
    let region = fields.id("region", broken);
    let scope = KeyScope { name: ItemName { tenant, item: item? }, region, buyer, key };
    Some(Command::Void(Void { scope }))
}

/// `POST /v1/receipts/{key}/void`
pub(crate) async fn void(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let (tenant, key) = (call.tenant()?, call.id_in_path(2, "key")?);
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    let command = void_command(&mut fields, tenant, key, &mut broken);
    fields.end(&mut broken);
    let command = sound(command, broken)?;
    let (answer, stamp) = front.change(call, command).await?;
    let again = matches!(answer, Answer::Voided { replayed: true });
    let mut response = wire::json(StatusCode::OK, &voided(answer, stamp)?, &stamp);
    wire::mark_replayed(&mut response, again);
    Ok(response)
}

fn voided(answer: Answer, stamp: Stamp) -> Result<api::Receipt, Failure> {
    let done = judge(Verb::Void, answer).map_err(|p| Failure::from(p).stamped(stamp))?;
    Ok(match done.hold {
        Some(hold) => {
            api::Receipt { state: ReceiptState::Committed, hold: Some(wire::hold(*hold)) }
        }
        None => api::Receipt { state: ReceiptState::Voided, hold: None },
    })
}
