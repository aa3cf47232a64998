//! Items: definition, total, mode, end, and their list.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;

use super::call::{Call, percent_encode};
use super::fields::{Broken, Fields};
use super::front::Front;
use super::holds::sound;
use super::problem::{Failure, Stamp, not_found};
use super::route::Route;
use super::spread::{self, Standing};
use super::steps;
use super::wire;
use crate::api::{self, ProblemKind, TTL_MS_MAX, UNITS_MAX};
use crate::ledger::{
    Adjust, Answer, Change, Command, Define, Definition, Found, HoldRules, ItemView, Mode, Query,
    RegionPlan, SetMode, UnixMs,
};
use crate::shard::Consistency;

/// The caller's own words about an item, in bytes, names included.
const METADATA_BYTES_MAX: usize = 4_096;
/// The longest reason of an adjustment, in bytes.
const REASON_BYTES_MAX: usize = 256;
/// How many extensions a definition may allow.
const EXTENDS_MAX: u64 = 10_000;

/// `PUT /v1/items/{item}`
pub(crate) async fn put(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let name = call.item()?;
    let if_revision = call.if_match()?;
    let mut broken = Broken::default();
    let mut fields = call.fields(true)?;
    if fields.has("units") {
        return Err(unbuilt("Distinct items (`units`) are not built in this version."));
    }
    let total = fields.integer("total", 0, UNITS_MAX, &mut broken);
    let buckets = fields.integer("buckets", 1, u64::from(u16::MAX), &mut broken);
    let mut regions = read_regions(&mut fields, &mut broken);
    if buckets.is_some() && !regions.is_empty() {
        broken.add("buckets", "is given for each region when there are `regions`");
    }
    if let Some(buckets) = buckets.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 1)
        && regions.is_empty()
    {
        let quota = quota_of(total, &mut broken);
        let plan = RegionPlan { quota, floor: 0, buckets };
        regions.insert(spread::DEFAULT_REGION.to_owned(), plan);
    }
    let definition = read_definition(&mut fields, &mut broken);
    fields.end(&mut broken);
    let definition = sound(Some(definition), broken)?;
    let define = Define { name, total, regions, definition, if_revision };
    let (answer, stamp) = front.change(call, spread::define(front, define)?).await?;
    let Answer::Item { item, created, .. } = answer else {
        return Err(Failure::mismatch(&answer));
    };
    let (item, status) = match spread::settled(front, call, item).await? {
        Standing::Everywhere(item) if created => (item, StatusCode::CREATED),
        Standing::Everywhere(item) => (item, StatusCode::OK),
        Standing::UnderWay(item) => (item, StatusCode::ACCEPTED),
    };
    let location = format!("/v1/items/{}", percent_encode(&item.name.item));
    let mut response = item_response(status, *item, &stamp);
    if created {
        let location = HeaderValue::try_from(location);
        let location = location.expect("a percent-encoded name is plain ASCII");
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// The quota of an item's only region.
fn quota_of(total: Option<u64>, broken: &mut Broken) -> u64 {
    if total.is_none() {
        broken.add("total", "is required with `buckets`");
    }
    total.unwrap_or_default()
}

fn unbuilt(words: &str) -> Failure {
    Failure::new(ProblemKind::NotImplemented, words)
}

fn read_regions(fields: &mut Fields<'_>, broken: &mut Broken) -> BTreeMap<String, RegionPlan> {
    let mut regions = BTreeMap::new();
    for (name, mut region) in fields.objects("regions", broken).unwrap_or_default() {
        let quota = region.integer("quota", 0, UNITS_MAX, broken);
        let quota = region.require("quota", quota, broken).unwrap_or_default();
        let floor = region.integer("floor", 0, UNITS_MAX, broken).unwrap_or(0);
        let buckets = region.integer("buckets", 1, u64::from(u16::MAX), broken).unwrap_or(1);
        region.end(broken);
        let buckets = u16::try_from(buckets).expect("the rule bounds it to 16 bits");
        regions.insert(name, RegionPlan { quota, floor, buckets });
    }
    regions
}

fn read_definition(fields: &mut Fields<'_>, broken: &mut Broken) -> Definition {
    let limit_per_buyer = fields.units("limit_per_buyer", broken);
    let mut rules = HoldRules::default();
    if let Some(mut hold) = fields.object("hold", broken) {
        rules = read_rules(&mut hold, broken);
        hold.end(broken);
    }
    let (mut opens_at, mut closes_at) = (None, None);
    if let Some(mut sale) = fields.object("sale", broken) {
        opens_at = sale.time("opens_at", broken);
        closes_at = sale.time("closes_at", broken);
        sale.end(broken);
        if let (Some(from), Some(to)) = (opens_at, closes_at)
            && from >= to
        {
            broken.add("sale.closes_at", "is after `opens_at`");
        }
    }
    let metadata = fields.texts("metadata", METADATA_BYTES_MAX, broken).unwrap_or_default();
    Definition {
        rules,
        limit_per_buyer,
        opens_at: opens_at.map(|at| UnixMs(at.0)),
        closes_at: closes_at.map(|at| UnixMs(at.0)),
        metadata,
    }
}

/// Reads the rules for holds. A default never breaks a rule that the caller did not name.
fn read_rules(hold: &mut Fields<'_>, broken: &mut Broken) -> HoldRules {
    let given = HoldRules::default();
    let ttl = hold.ttl("ttl_ms", broken);
    let ttl_max = hold.ttl("max_ttl_ms", broken);
    let lifetime = hold.ttl("max_lifetime_ms", broken);
    let extends = hold.integer("max_extends", 0, EXTENDS_MAX, broken);
    let ttl_ms_max = ttl_max.unwrap_or(
        given
            .ttl_ms_max
            .max(ttl.unwrap_or(0))
            .min(lifetime.map_or(TTL_MS_MAX, |lifetime| lifetime.max(ttl.unwrap_or(0)))),
    );
    let ttl_ms = ttl.unwrap_or(given.ttl_ms.min(ttl_ms_max));
    let lifetime_ms_max = lifetime.unwrap_or(given.lifetime_ms_max.max(ttl_ms_max));
    if ttl_ms > ttl_ms_max {
        broken.add("hold.ttl_ms", format!("is at most `max_ttl_ms` ({ttl_ms_max})"));
    }
    if ttl_ms_max > lifetime_ms_max {
        broken.add("hold.max_lifetime_ms", format!("is at least `max_ttl_ms` ({ttl_ms_max})"));
    }
    let extends = extends.and_then(|n| u32::try_from(n).ok());
    HoldRules {
        ttl_ms,
        ttl_ms_max,
        extends_max: extends.unwrap_or(given.extends_max),
        lifetime_ms_max,
    }
}

fn item_response(status: StatusCode, item: ItemView, stamp: &Stamp) -> Response {
    let item = wire::item(item);
    let mut response = wire::json(status, &item, stamp);
    response.headers_mut().insert(header::ETAG, wire::etag(item.revision));
    response
}

/// `GET /v1/items/{item}`
pub(crate) async fn read(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["consistency"])?;
    let consistency = parameters.consistency(Consistency::Leader)?;
    match front.find(call, Query::Item(call.item()?), consistency).await? {
        (Found::Item(item), stamp) => {
            let etag = wire::etag(item.revision);
            if call.has_already(etag.as_bytes()) {
                let mut response = Response::new(axum::body::Body::empty());
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                response.headers_mut().insert(header::ETAG, etag);
                stamp.put(&mut response);
                return Ok(response);
            }
            Ok(item_response(StatusCode::OK, *item, &stamp))
        }
        (Found::NotFound, stamp) => Err(Failure::from(not_found("item")).stamped(stamp)),
        (other, _) => Err(Failure::mismatch(&other)),
    }
}

/// `GET /v1/items`: every shard is asked, and the pages are merged by name.
pub(crate) async fn list(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["limit", "cursor", "consistency"])?;
    let limit = parameters.limit()?;
    let after = parameters.id("cursor")?;
    let consistency = parameters.consistency(Consistency::Leader)?;
    let shards = front.all_shards()?;
    // One more than asked for tells whether there is a next page.
    let query = Query::Items { tenant: call.tenant()?, after, limit: limit + 1 };
    let mut items: Vec<ItemView> = Vec::new();
    for (_, found, _) in front.find_in(call, &shards, &query, consistency).await? {
        if let Found::Items(some) = found {
            items.extend(some);
        } else if found != Found::NotFound {
            return Err(Failure::mismatch(&found));
        }
    }
    items.sort_by(|a, b| a.name.item.cmp(&b.name.item));
    let more = wire::cut_page(&mut items, limit);
    let next_cursor = items.last().filter(|_| more).map(|item| item.name.item.clone());
    let page = api::ItemList { items: items.into_iter().map(wire::item).collect(), next_cursor };
    Ok(wire::json(StatusCode::OK, &page, &Stamp::default()))
}

/// `POST /v1/items/{item}/adjustments`
pub(crate) async fn adjust(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let name = call.item()?;
    let key = call.key()?;
    let if_match = call.if_match()?;
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    let region = fields.id("region", &mut broken);
    let both = fields.has("delta") == fields.has("set_total");
    if both {
        broken.add("delta", "is given, or `set_total` is; exactly one of them");
    }
    let delta = fields.delta("delta", &mut broken);
    let set_total = fields.integer("set_total", 0, UNITS_MAX, &mut broken);
    let reason = fields.text("reason", REASON_BYTES_MAX, &mut broken);
    if region.is_some() && delta.is_none() {
        broken.add("region", "goes with `delta`");
    }
    if delta.is_some() {
        fields.require("reason", reason.as_ref(), &mut broken);
    }
    fields.end(&mut broken);
    sound(Some(()), broken)?;
    let change = match (delta, set_total, if_match) {
        (Some(_), _, Some(_)) => {
            return Err(Failure::malformed(
                "`delta` is relative and takes no If-Match. Leave the header out, or say \
                 `set_total`.",
            ));
        }
        (Some(units), _, None) if units > 0 => Change::Raise(units.unsigned_abs()),
        (Some(units), _, None) => Change::Lower(units.unsigned_abs()),
        (None, Some(total), Some(if_revision)) => Change::Set { total, if_revision },
        (None, Some(_), None) => {
            return Err(Failure::new(
                ProblemKind::PreconditionRequired,
                "`set_total` needs If-Match with the ETag of the item as you read it, so that a \
                 change in between is not overwritten.",
            ));
        }
        (None, None, _) => return Err(Failure::mismatch(&"neither delta nor set_total")),
    };
    let change = match region {
        Some(region) => steps::in_region(front, call, &name, change, &region).await?,
        None => change,
    };
    let adjust = Adjust { name, key, change, reason: reason.unwrap_or_default().into_owned() };
    let (item, replayed, stamp) = steps::adjust(front, call, adjust).await?;
    let mut response = item_response(StatusCode::OK, *item, &stamp);
    wire::mark_replayed(&mut response, replayed);
    Ok(response)
}

/// `POST /v1/items/{item}/pause`, `/resume`, `/close`
pub(crate) async fn set_mode(
    front: &Front,
    call: &Call,
    route: Route,
) -> Result<Response, Failure> {
    call.query(&[])?;
    nothing_in_the_body(call)?;
    let mode = if route == Route::PauseItem {
        Mode::Paused
    } else if route == Route::CloseItem {
        Mode::Closed
    } else {
        Mode::Open
    };
    let command = Command::SetMode(SetMode { name: call.item()?, mode });
    match front.change(call, command).await? {
        (Answer::Item { item, .. }, stamp) => {
            let (item, status) = match spread::settled(front, call, item).await? {
                Standing::Everywhere(item) => (item, StatusCode::OK),
                Standing::UnderWay(item) => (item, StatusCode::ACCEPTED),
            };
            Ok(item_response(status, *item, &stamp))
        }
        (other, _) => Err(Failure::mismatch(&other)),
    }
}

/// `DELETE /v1/items/{item}`
pub(crate) async fn delete(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    nothing_in_the_body(call)?;
    let name = call.item()?;
    let item = name.item.clone();
    let (number, stamp) = steps::delete(front, call, name).await?;
    let gone = api::DeletedItem { item, number: number.0 };
    Ok(wire::json(StatusCode::OK, &gone, &stamp))
}

fn nothing_in_the_body(call: &Call) -> Result<(), Failure> {
    let mut broken = Broken::default();
    call.fields(true)?.end(&mut broken);
    sound(Some(()), broken)
}
