//! `/problems/{slug}`: a page on each kind of problem: what it means, what was done, what to do.
//! `/problems/` lists them, and `/` says where to begin.

use std::fmt::Write;

use axum::http::StatusCode;
use axum::response::Response;

use super::call::Call;
use super::problem::{Failure, Stamp, not_found};
use super::wire;
use crate::api::{self, ProblemKind};

/// `GET /`
pub(crate) fn root(call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let index = api::Index {
        name: "holdfast".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: "/openapi.json".to_owned(),
        problems: "/problems/".to_owned(),
        cluster: "/admin/v1/cluster".to_owned(),
        ready: "/readyz?verbose".to_owned(),
        alive: "/livez".to_owned(),
        metrics: "/metrics".to_owned(),
    };
    Ok(wire::json(StatusCode::OK, &index, &Stamp::default()))
}

/// `GET /problems/`
pub(crate) fn index(call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let mut text = "The problems, by status; each has its page.\n\n".to_owned();
    for kind in ProblemKind::ALL {
        let _ = writeln!(text, "{} {:34} {}", kind.status(), kind.uri(), kind.title());
    }
    Ok(wire::text(StatusCode::OK, text))
}

/// `GET /problems/{slug}`
pub(crate) fn answer(call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let slug = call.id_in_path(1, "slug")?;
    match ProblemKind::by_slug(&slug) {
        Some(kind) => Ok(wire::text(StatusCode::OK, page(kind))),
        None => Err(not_found("problem").into()),
    }
}

/// Returns the page on a kind of problem, as text.
pub fn page(kind: ProblemKind) -> String {
    let retry = match (kind.retryable(), kind.retry_same_key()) {
        (true, true) => "yes, with the same idempotency key",
        (true, false) => "yes, with a fresh idempotency key",
        (false, true) => "not now; a later attempt may take the same idempotency key",
        (false, false) => "no",
    };
    let words = WORDS.iter().find(|(of, _)| *of == kind).map_or("", |(_, words)| *words);
    format!(
        "{slug}\n{line}\n\n{title}\n\nStatus: {status}\nRetry:  {retry}\n\n{words}\n",
        slug = kind.slug(),
        line = "=".repeat(kind.slug().len()),
        title = kind.title(),
        status = kind.status(),
        words = lines(words),
    )
}

/// What each kind means, what was done, and what to do next; [`page`] breaks the lines.
const WORDS: [(ProblemKind, &str); 32] = [
    (
        ProblemKind::Malformed,
        "The request cannot be read: a header, the path, the query or the body breaks a rule \
         that `detail` names. Nothing was done. Ids are 1 to 128 bytes of printable ASCII \
         without `/`, with no space at either end. Bodies are JSON in UTF-8 (`Content-Type: \
         application/json`, not compressed), with each member once and nesting of at most 16; \
         query parameters are given once.",
    ),
    (
        ProblemKind::KeyMissing,
        "A call that changes holds or stock carries the header `Idempotency-Key` (in a batch, \
         the member `key`; of a void, the path). What its own words make safe to repeat takes \
         none and does not read one: PUT and DELETE, and pause, resume and close. Take a fresh \
         key for each decision and send the same one on every retry of it: then a retry never \
         takes a second unit. Nothing was done.",
    ),
    (
        ProblemKind::NotFound,
        "There is no such path, item, region, hold or page, or it belongs to another tenant. A \
         hold is found for the retention time after its end.",
    ),
    (
        ProblemKind::MethodNotAllowed,
        "The path exists and does not take this method. The header `Allow` lists those it \
         takes.",
    ),
    (
        ProblemKind::BodyTimeout,
        "The body did not come in time. Nothing was done, and the connection is closed.",
    ),
    (
        ProblemKind::SoldOut,
        "Nothing was left when this attempt was judged. It says nothing about an earlier \
         attempt that was not answered: resolve that one by retrying or voiding its key. The \
         key of this attempt is not consumed. `may_return` tells whether units are held that \
         may come back.",
    ),
    (
        ProblemKind::KeyVoided,
        "The key was given up with `POST /v1/receipts/{key}/void` before it made a hold. No \
         copy of it will ever make one.",
    ),
    (
        ProblemKind::UseAdjustments,
        "A PUT that repeats a definition with another total would overwrite what moved \
         meanwhile. Leave `total` out, or change it with `POST /v1/items/{item}/adjustments`.",
    ),
    (
        ProblemKind::InsufficientStock,
        "Fewer units are left than were asked for (`available_hint`), or stock is on its way. \
         Nothing was taken.",
    ),
    (
        ProblemKind::BuyerLimit,
        "The buyer would hold and have bought more than the item allows (`limit`, `held`, \
         `sold`; counted within a region). Nothing was taken and the key is not used up: a retry \
         now meets the same limit (`retryable` is false), and one after a hold of the buyer has \
         ended may take the same key (`retry_same_key` is true).",
    ),
    (
        ProblemKind::ItemClosed,
        "The item takes no more holds, for good: closing is final. Holds that exist can be \
         confirmed, extended and released.",
    ),
    (
        ProblemKind::SaleNotOpen,
        "Holds are placed from `opens_at` until `closes_at`. Nothing was taken.",
    ),
    (
        ProblemKind::HoldConfirmed,
        "The hold is sold, so it cannot be released, extended or placed again. Sold units come \
         back to stock with `POST /v1/holds/{id}/return`. `hold` has its state.",
    ),
    (
        ProblemKind::HoldReleased,
        "The hold's units were given back, which is final. `hold` has its state.",
    ),
    (
        ProblemKind::HoldNotSold,
        "Only sold units can be returned. A live hold is given back with `release`.",
    ),
    (
        ProblemKind::StockCommitted,
        "The change would go below what is held or sold, or delete an item with open holds. The \
         figures are attached; nothing was changed and no key is used up: a retry now meets the \
         same figures, and one after holds have ended may take the same key.",
    ),
    (
        ProblemKind::ClusterRefused,
        "The cluster, or the node, does not take this step in its present state; `detail` says \
         why, and `reason` names the rule. A node that belongs to a cluster never joins another; \
         what needs a newer schema version waits for `holdfast cluster upgrade`.",
    ),
    (
        ProblemKind::HoldExpired,
        "The hold's deadline has passed (`expired_at`). This is the trigger to void the \
         payment; or confirm with `\"reacquire\": true`, which takes stock again in the same \
         step, when there is some, and the hold was not released.",
    ),
    (
        ProblemKind::RevisionMismatch,
        "The item has changed since it was read (`revision`). Nothing was changed: read it \
         again.",
    ),
    (
        ProblemKind::TooLarge,
        "The body, or the list of operations of a batch (at most 1,000), is above its limit. \
         Nothing was done.",
    ),
    (
        ProblemKind::Validation,
        "Fields break rules; `errors` names each field and its rule. Unknown fields are \
         refused, and `null` never means absent. Numbers are JSON integers in their plain \
         spelling: `1.0`, `1e0`, `\"1\"`, negative ones and those above 2^53 - 1 are refused, \
         everywhere alike. Nothing was done.",
    ),
    (
        ProblemKind::KeyReused,
        "The key was used before for another request (`field` differs). The first request \
         stands and can be replayed as it was; nothing was done for this one.",
    ),
    (
        ProblemKind::ExtendBudgetSpent,
        "The hold was extended as often, or lasts as long, as its rules allow.",
    ),
    (
        ProblemKind::PreconditionRequired,
        "An absolute change needs `If-Match` with the `ETag` of the item as it was read.",
    ),
    (
        ProblemKind::HeadTooLarge,
        "The request line and its headers are together at most 32 KiB, in at most 100 lines. \
         Nothing was done, and the connection is closed.",
    ),
    (
        ProblemKind::Internal,
        "Holdfast broke a rule of its own. What was done is not known: retry with the same key. \
         Please report it with the node's log.",
    ),
    (
        ProblemKind::NotImplemented,
        "The contract names it and this version does not do it. Nothing was done.",
    ),
    (
        ProblemKind::ItemPaused,
        "The item, or every item of its shard, grants nothing now. Nothing was taken: retry a \
         change with the same key. `reason` is quorum-lost (the shard has no fresh quorum and \
         resumes by itself), operator (until `resume`), moving (leadership is on its way), \
         invariant (a law was found broken; until an operator resumes it) or restoring (state is \
         being rebuilt).",
    ),
    (
        ProblemKind::Overloaded,
        "Too much is queued on the shard or too many connections are open. Nothing was taken: \
         retry with the same key after `Retry-After`.",
    ),
    (
        ProblemKind::DeadlinePassed,
        "The caller's deadline (`Holdfast-Deadline-Ms`, default 2,000) came before anything was \
         proposed. Nothing was taken: retry with the same key.",
    ),
    (
        ProblemKind::NotServing,
        "The node belongs to no cluster yet, was stopped, or was removed; `detail` says which \
         and what to do. Nothing was taken: ask another node.",
    ),
    (
        ProblemKind::OutcomeUnknown,
        "The change was proposed and its outcome did not come in time: it may be committed. \
         Retry with the same key until a hold or a void answers. A refusal of a retry does not \
         speak for the first attempt, which may still be on its way.",
    ),
];

/// Breaks a text into lines of at most 80 characters.
fn lines(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        if width > 0 && width + 1 + word.len() > 80 {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += word.len();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_words_once() {
        for kind in ProblemKind::ALL {
            assert_eq!(WORDS.iter().filter(|(of, _)| of == kind).count(), 1, "{}", kind.slug());
        }
    }
}
