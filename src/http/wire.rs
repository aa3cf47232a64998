//! From the ledger's words to the wire's.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;
use serde::Serialize;

use super::problem::{REPLAYED, Stamp};
use crate::api::{self, Timestamp};
use crate::ledger::{HoldState, HoldView, ItemView, Mode, UnixMs};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Cuts a list to one page, and tells whether more was there.
pub(crate) fn cut_page<T>(list: &mut Vec<T>, limit: u32) -> bool {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = list.len() > limit;
    list.truncate(limit);
    more
}

/// Writes a JSON answer that came from a shard.
pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T, stamp: &Stamp) -> Response {
    let body = serde_json::to_vec(value).expect("our own types serialise");
    json_bytes(status, body, stamp)
}

/// Writes JSON that is written already.
pub(crate) fn json_bytes(status: StatusCode, body: Vec<u8>, stamp: &Stamp) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    stamp.put(&mut response);
    response
}

/// Writes plain text.
pub(crate) fn text(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Marks an answer that had been given before.
pub(crate) fn mark_replayed(response: &mut Response, replayed: bool) {
    if replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
}

/// The entity tag of a revision.
pub(crate) fn etag(revision: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).expect("digits in quotes")
}

/// A moment of ledger time.
pub(crate) fn time(at: UnixMs) -> Timestamp {
    Timestamp(at.0)
}

/// Where a hold stands.
pub(crate) fn hold_state(state: HoldState) -> api::HoldState {
    match state {
        HoldState::Held => api::HoldState::Held,
        HoldState::Sold => api::HoldState::Sold,
        HoldState::Released => api::HoldState::Released,
        HoldState::Expired => api::HoldState::Expired,
        HoldState::Returned => api::HoldState::Returned,
    }
}

/// A hold.
pub(crate) fn hold(view: HoldView) -> api::Hold {
    let expires_in_ms = match view.state {
        HoldState::Held => view.expires_at.0.saturating_sub(view.now.0),
        HoldState::Sold | HoldState::Released | HoldState::Expired | HoldState::Returned => 0,
    };
    api::Hold {
        id: view.id.to_string(),
        item: view.name.item,
        state: hold_state(view.state),
        quantity: view.quantity,
        sold: view.sold,
        buyer: view.buyer,
        region: view.region,
        placed_at: time(view.placed_at),
        expires_at: time(view.expires_at),
        expires_in_ms,
        extends_left: view.extends_left,
        revision: view.revision,
        reference: view.reference,
    }
}

/// An item.
pub(crate) fn item(view: ItemView) -> api::Item {
    let (state, paused_reason) = match (view.invariant_broken, view.mode) {
        (true, Mode::Open | Mode::Paused | Mode::Closed) => {
            (api::ItemState::Paused, Some("invariant".to_owned()))
        }
        (false, Mode::Open) => (api::ItemState::Open, None),
        (false, Mode::Paused) => (api::ItemState::Paused, Some("operator".to_owned())),
        (false, Mode::Closed) => (api::ItemState::Closed, None),
    };
    let definition = view.definition;
    let regions: BTreeMap<String, api::RegionSpec> = view
        .regions
        .into_iter()
        .map(|(name, plan)| {
            let spec =
                api::RegionSpec { quota: plan.quota, floor: plan.floor, buckets: plan.buckets };
            (name, spec)
        })
        .collect();
    let sale = (definition.opens_at.is_some() || definition.closes_at.is_some()).then(|| {
        api::SaleWindow {
            opens_at: definition.opens_at.map(time),
            closes_at: definition.closes_at.map(time),
        }
    });
    api::Item {
        item: view.name.item,
        number: view.number.0,
        state,
        paused_reason,
        total: view.total,
        revision: view.revision,
        default_region: view.default_region,
        regions,
        hold: api::HoldRules {
            ttl_ms: Some(definition.rules.ttl_ms),
            max_ttl_ms: Some(definition.rules.ttl_ms_max),
            max_extends: Some(definition.rules.extends_max),
            max_lifetime_ms: Some(definition.rules.lifetime_ms_max),
        },
        limit_per_buyer: definition.limit_per_buyer,
        sale,
        metadata: definition.metadata,
        layout: api::Layout {
            home_shard: view.home.0,
            buckets: view
                .buckets
                .iter()
                .map(|place| api::BucketPlace {
                    id: place.bucket.0,
                    shard: place.shard.0,
                    region_ordinal: place.region.0,
                })
                .collect(),
        },
        created_at: time(view.created_at),
    }
}
