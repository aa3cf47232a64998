//! Operations on items: a change that every shard of an item must have, followed to its end.
//!
//! An operation is named by what it brings, the item's number and the version of its layout, and
//! is read from the item's home: nothing of it lives in a node's memory, so it goes on, and can be
//! followed, through any node after any death. The home's leader repeats it until every shard has
//! answered.

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;

use super::call::{Call, percent_encode};
use super::front::Front;
use super::problem::{Failure, Stamp, not_found};
use super::{spread, wire};
use crate::api;
use crate::ledger::ItemView;

/// Names the operation that brings an item's present version to its shards.
fn name_of(item: &ItemView) -> String {
    format!("{}-{}", item.number.0, item.config)
}

/// The number and the version in an operation's name.
fn parts_of(name: &str) -> Option<(u64, u64)> {
    let (number, version) = name.split_once('-')?;
    Some((number.parse().ok()?, version.parse().ok()?))
}

/// Says in an answer where the operation is that it began.
pub(super) fn locate(response: &mut Response, item: &ItemView) {
    let path =
        format!("/v1/items/{}/operations/{}", percent_encode(&item.name.item), name_of(item));
    let location = HeaderValue::try_from(path).expect("a percent-encoded name is plain ASCII");
    response.headers_mut().insert(header::LOCATION, location);
}

/// `GET /v1/items/{item}/operations/{operation}`
pub(crate) async fn read(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let name = call.item()?;
    let unknown = || Failure::from(not_found("operation"));
    let operation = call.id_in_path(4, "operation")?;
    let (number, version) = parts_of(&operation).ok_or_else(unknown)?;
    let item = spread::read(front, call, &name).await?.ok_or_else(unknown)?;
    if item.number.0 != number || item.config < version {
        return Err(unknown());
    }
    let shown = progress(&item, operation, version);
    Ok(wire::json(StatusCode::OK, &shown, &Stamp::default()))
}

fn progress(item: &ItemView, id: String, version: u64) -> api::ItemOperation {
    let home = api::ItemStep { shard: item.home.0, version: item.config, done: true };
    let step = |copy: &crate::ledger::CopyView| api::ItemStep {
        shard: copy.shard.0,
        version: copy.revision,
        done: copy.revision >= version,
    };
    let steps: Vec<api::ItemStep> =
        std::iter::once(home).chain(item.copies.iter().map(step)).collect();
    let is_done = steps.iter().all(|step| step.done);
    api::ItemOperation {
        id,
        item: item.name.item.clone(),
        version,
        state: if is_done { "done" } else { "running" }.to_owned(),
        steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operations_name_is_a_number_and_a_version_and_nothing_else() {
        assert_eq!(parts_of("12-7"), Some((12, 7)));
        for bad in ["", "-", "12", "12-", "-7", "12-7-1", "a-7", "12-b"] {
            assert_eq!(parts_of(bad), None, "{bad}");
        }
    }
}
