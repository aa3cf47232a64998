//! Between the history's words and HTTP: which request an operation is, and what an answer means.
//!
//! The rule that everything rests on: 2xx is `ok`; a refusal (4xx, or 503 which promises that
//! nothing was taken) is `fail`; everything else that may have reached a node is `info`.

use serde_json::{Map, Value as Json, json};

use crate::client::{Lost, Request, Response, encode};
use crate::history::{Act, Commit, Kind, Row, Standing, Value};

/// How an operation ended.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) kind: Kind,
    pub(crate) value: Value,
    pub(crate) commit: Option<Commit>,
    pub(crate) error: Option<String>,
}

impl Ending {
    /// The hold that was told.
    pub(crate) fn row(&self) -> Option<&Row> {
        self.value.row.as_ref()
    }

    /// Whether it was refused for this reason.
    pub(crate) fn is(&self, slug: &str) -> bool {
        self.kind == Kind::Fail && self.error.as_deref() == Some(slug)
    }

    /// Whether the same may be asked again at once, nothing having been done.
    pub(crate) fn was_turned_away(&self) -> bool {
        let status = self.value.status;
        self.kind == Kind::Fail && (status.is_none() || status == Some(503))
    }
}

/// Writes the request of an operation.
///
/// # Panics
///
/// When a member that the operation needs is missing: a defect of the suite.
pub(crate) fn request(act: Act, asked: &Value) -> Request {
    let item = || encode(asked.item.as_deref().expect("names an item"));
    let hold = || encode(asked.hold.as_deref().expect("names a hold"));
    let key = || asked.key.clone().expect("has a key");
    let post = |path: String, key: Option<String>, body: Json| Request {
        method: "POST",
        path,
        key,
        body: Some(body),
        ..Request::default()
    };
    match act {
        Act::Create => Request {
            method: "PUT",
            path: format!("/v1/items/{}", item()),
            body: Some(definition(asked)),
            ..Request::default()
        },
        Act::Relayout => Request {
            method: "PUT",
            path: format!("/v1/items/{}/layout", item()),
            if_match: asked.revision,
            body: Some(json!({"regions": asked.regions})),
            ..Request::default()
        },
        Act::Layout => reading(format!("/v1/items/{}/layout?", item()), asked),
        Act::Place => post(format!("/v1/items/{}/holds", item()), Some(key()), placing(asked)),
        Act::Extend | Act::Confirm | Act::Release | Act::Return => {
            let verb = serde_json::to_value(act).expect("a word");
            let verb = verb.as_str().expect("a word");
            post(format!("/v1/holds/{}/{verb}", hold()), Some(key()), finishing(act, asked))
        }
        Act::Void => {
            let mut body = scope(asked);
            body.insert("item".to_owned(), json!(asked.item));
            post(format!("/v1/receipts/{}/void", encode(&key())), None, Json::Object(body))
        }
        Act::Receipt => {
            let mut path = format!("/v1/receipts/{}?item={}", encode(&key()), item());
            for (name, value) in [("buyer", &asked.buyer), ("region", &asked.region)] {
                if let Some(value) = value {
                    path.push_str(&format!("&{name}={}", encode(value)));
                }
            }
            Request::get(path)
        }
        Act::Adjust => {
            let body = json!({"delta": asked.delta, "reason": "jepsen"});
            post(format!("/v1/items/{}/adjustments", item()), Some(key()), body)
        }
        Act::Stock => reading(format!("/v1/items/{}/availability?", item()), asked),
        Act::Audit => reading(format!("/v1/items/{}/audit?", item()), asked),
        Act::Hold => reading(format!("/v1/holds/{}?", hold()), asked),
        Act::Holds => reading(format!("/v1/holds?item={}&limit=1000&", item()), asked),
        Act::Digest
        | Act::Leader
        | Act::FaultStart
        | Act::FaultStop
        | Act::Recovered
        | Act::Operation
        | Act::Members
        | Act::Drained
        | Act::Removed
        | Act::Note => unreachable!("nobody asks {act:?} of a node through a client"),
    }
}

fn reading(mut path: String, asked: &Value) -> Request {
    if let Some(consistency) = &asked.consistency {
        path.push_str(&format!("consistency={consistency}"));
    }
    let path = path.trim_end_matches(['?', '&']);
    Request::get(path)
}

fn definition(asked: &Value) -> Json {
    let ttl = asked.ttl_ms.expect("an item has a lifetime of holds");
    let hold = json!({
        "ttl_ms": ttl, "max_ttl_ms": ttl * 4, "max_extends": 3, "max_lifetime_ms": ttl * 16,
    });
    let mut body = json!({"total": asked.total, "hold": hold});
    let members = body.as_object_mut().expect("an object");
    if let Some(limit) = asked.limit {
        members.insert("limit_per_buyer".to_owned(), json!(limit));
    }
    if let Some(buckets) = asked.buckets {
        members.insert("buckets".to_owned(), json!(buckets));
    }
    if let Some(regions) = &asked.regions {
        members.insert("regions".to_owned(), regions.clone());
    }
    body
}

fn scope(asked: &Value) -> Map<String, Json> {
    let mut body = Map::new();
    for (name, value) in [("buyer", &asked.buyer), ("region", &asked.region)] {
        if let Some(value) = value {
            body.insert(name.to_owned(), json!(value));
        }
    }
    body
}

/// The body of a placement. The key goes along as the reference, so that lists show it.
pub(crate) fn placing(asked: &Value) -> Json {
    let mut body = scope(asked);
    body.insert("quantity".to_owned(), json!(asked.quantity));
    body.insert("reference".to_owned(), json!(asked.key));
    if let Some(ttl) = asked.ttl_ms {
        body.insert("ttl_ms".to_owned(), json!(ttl));
    }
    Json::Object(body)
}

fn finishing(act: Act, asked: &Value) -> Json {
    let mut body = Map::new();
    if act == Act::Confirm {
        if let Some(quantity) = asked.quantity {
            body.insert("quantity".to_owned(), json!(quantity));
        }
        if asked.reacquire == Some(true) {
            body.insert("reacquire".to_owned(), json!(true));
        }
    }
    Json::Object(body)
}

/// Reads what came of a request.
pub(crate) fn ending(act: Act, asked: &Value, came: Result<Response, Lost>) -> Ending {
    let response = match came {
        Ok(response) => response,
        Err(Lost::NotSent(why)) => return without_answer(Kind::Fail, asked, why),
        // A read that was not answered has certainly told nothing.
        Err(Lost::Unknown(why)) if !act.changes() => {
            return without_answer(Kind::Fail, asked, why);
        }
        Err(Lost::Unknown(why)) => return without_answer(Kind::Info, asked, why),
    };
    let commit = response.commit.as_deref().and_then(Commit::parse);
    judged(act, asked, response.status, &response.body, response.replayed, commit)
}

fn without_answer(kind: Kind, asked: &Value, why: String) -> Ending {
    Ending { kind, value: asked.clone(), commit: None, error: Some(why) }
}

/// Reads one answer: of a call of its own, or one result of a batch.
pub(crate) fn judged(
    act: Act,
    asked: &Value,
    status: u16,
    body: &Json,
    replayed: bool,
    commit: Option<Commit>,
) -> Ending {
    let mut value = asked.clone();
    value.status = Some(status);
    let slug = body["type"].as_str().and_then(|kind| kind.strip_prefix("/problems/"));
    match status {
        200..=299 => match tell(act, body, &mut value) {
            Ok(()) => {
                value.replayed = replayed.then_some(true);
                Ending { kind: Kind::Ok, value, commit, error: None }
            }
            Err(why) => {
                let error = Some(format!("an answer that cannot be read: {why}"));
                Ending { kind: Kind::Info, value, commit: None, error }
            }
        },
        400..=499 | 501 | 503 => {
            value.row = row(&body["hold"]);
            let error = slug.map_or_else(|| format!("status {status}"), str::to_owned);
            Ending { kind: Kind::Fail, value, commit, error: Some(error) }
        }
        _ => {
            let error = slug.map_or_else(|| format!("status {status}"), str::to_owned);
            let kind = if act.changes() { Kind::Info } else { Kind::Fail };
            Ending { kind, value, commit: None, error: Some(error) }
        }
    }
}

fn tell(act: Act, body: &Json, value: &mut Value) -> Result<(), String> {
    let number = |name: &str| body[name].as_u64().ok_or(format!("no number `{name}`"));
    match act {
        Act::Create => {
            value.number = Some(number("number")?);
            value.home_shard = body["layout"]["home_shard"].as_u64();
        }
        Act::Place | Act::Extend | Act::Confirm | Act::Release | Act::Return | Act::Hold => {
            value.row = Some(row(body).ok_or("no hold")?);
        }
        Act::Void | Act::Receipt => {
            value.receipt = Some(body["state"].as_str().ok_or("no state")?.to_owned());
            value.row = row(&body["hold"]);
        }
        Act::Relayout | Act::Layout => value.revision = Some(number("revision")?),
        Act::Adjust => value.total = Some(number("total")?),
        Act::Stock | Act::Audit => {
            value.available = Some(number("available")?);
            value.held = Some(number("held")?);
            value.sold = Some(number("sold")?);
            value.in_transit = Some(number("in_transit")?);
            value.total = Some(number("total")?);
            if act == Act::Audit {
                value.written_off = Some(number("written_off")?);
                value.conserved = Some(body["conserved"].as_bool().ok_or("no `conserved`")?);
                let broken = body["broken"].as_array().filter(|broken| !broken.is_empty());
                value.note = broken.map(|broken| Json::Array(broken.clone()).to_string());
            }
        }
        Act::Holds => {
            let list = body["holds"].as_array().ok_or("no list")?;
            let rows: Option<Vec<Row>> = list.iter().map(row).collect();
            value.rows = Some(rows.ok_or("a hold that cannot be read")?);
            value.note = body["next_cursor"].as_str().map(str::to_owned);
        }
        Act::Digest
        | Act::Leader
        | Act::FaultStart
        | Act::FaultStop
        | Act::Recovered
        | Act::Operation
        | Act::Members
        | Act::Drained
        | Act::Removed
        | Act::Note => {}
    }
    Ok(())
}

/// Reads a hold.
pub(crate) fn row(body: &Json) -> Option<Row> {
    let text = |name: &str| body[name].as_str().map(str::to_owned);
    let state = match body["state"].as_str()? {
        "held" => Standing::Held,
        "sold" => Standing::Sold,
        "released" => Standing::Released,
        "expired" => Standing::Expired,
        "returned" => Standing::Returned,
        _ => return None,
    };
    Some(Row {
        id: text("id")?,
        state,
        quantity: body["quantity"].as_u64()?,
        sold: body["sold"].as_u64()?,
        buyer: text("buyer"),
        region: text("region")?,
        reference: text("reference"),
        placed_at: moment(&body["placed_at"])?,
        expires_at: moment(&body["expires_at"])?,
        revision: body["revision"].as_u64()?,
    })
}

/// Reads an RFC 3339 time as ms since 1970.
pub(crate) fn moment(text: &Json) -> Option<u64> {
    let stamp: jiff::Timestamp = text.as_str()?.parse().ok()?;
    u64::try_from(stamp.as_millisecond()).ok()
}
