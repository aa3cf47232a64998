//! Holds, batches and receipts on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;
use super::time::Timestamp;

/// Asks for units (`POST /v1/items/{item}/holds`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceHold {
    /// Units.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub quantity: u64,
    /// Who buys; counted against the item's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub buyer: Option<String>,
    /// The buyer's region, the same on every retry; the item's default region when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub region: Option<String>,
    /// Lifetime in ms; the item's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 31_622_400_000_i64)]
    pub ttl_ms: Option<u64>,
    /// The caller's own reference, at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub reference: Option<String>,
}

/// Moves a hold's deadline (`POST /v1/holds/{id}/extend`), never to an earlier moment. An
/// extension that ends no later than the hold does already is granted without changing it, and
/// uses nothing of the budget up, also when that is spent: `expires_at` in the answer is the
/// deadline that counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendHold {
    /// Lifetime from now in ms; the hold's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 31_622_400_000_i64)]
    pub ttl_ms: Option<u64>,
}

/// Sells what a hold holds (`POST /v1/holds/{id}/confirm`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmHold {
    /// Fewer units than held: the rest is released. All when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub quantity: Option<u64>,
    /// Whether an expired hold may take stock again in the same step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reacquire: Option<bool>,
    /// The caller's own reference, at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub reference: Option<String>,
}

/// Gives a hold's units back (`POST /v1/holds/{id}/release`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseHold {
    /// Why, at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub reason: Option<String>,
}

/// Brings sold units back to stock (`POST /v1/holds/{id}/return`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReturnHold {
    /// Units; all that are still sold when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub quantity: Option<u64>,
}

/// Where a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HoldState {
    /// Units are set aside until the deadline.
    Held,
    /// Units are sold.
    Sold,
    /// Units were given back.
    Released,
    /// The deadline passed.
    Expired,
    /// All sold units came back.
    Returned,
}

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// Its id: opaque, routes itself.
    pub id: String,
    /// The item.
    pub item: String,
    /// Where it stands: `expired` from its deadline on.
    pub state: HoldState,
    /// Units it was placed for.
    pub quantity: u64,
    /// Units sold now: confirmed and not returned.
    pub sold: u64,
    /// The buyer, when one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub buyer: Option<String>,
    /// The region.
    pub region: String,
    /// When it was placed.
    pub placed_at: Timestamp,
    /// Its deadline.
    pub expires_at: Timestamp,
    /// Ms until the deadline, by the clock that decides it; 0 when it is not held.
    pub expires_in_ms: u64,
    /// How many extensions are left.
    pub extends_left: u32,
    /// The log index of its last change.
    pub revision: u64,
    /// The caller's reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reference: Option<String>,
}

/// A page of holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HoldList {
    /// The holds, in the order of their ids.
    pub holds: Vec<Hold>,
    /// Where the next page begins; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next_cursor: Option<String>,
}

/// Up to 1,000 operations, each a decision of its own (`POST /v1/holds:batch`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The operations.
    #[schema(max_items = 1_000)]
    pub operations: Vec<Operation>,
}

/// One operation of a batch. Each carries its idempotency key; the other fields are those of the
/// single call of that name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    /// Places a hold.
    Place {
        /// The idempotency key.
        key: String,
        /// The item.
        item: String,
        /// Units.
        quantity: u64,
        /// Who buys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        buyer: Option<String>,
        /// The buyer's region.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        region: Option<String>,
        /// Lifetime in ms.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        ttl_ms: Option<u64>,
        /// The caller's own reference.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        reference: Option<String>,
    },
    /// Moves a hold's deadline.
    Extend {
        /// The idempotency key.
        key: String,
        /// The hold's id.
        hold: String,
        /// Lifetime from now in ms.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        ttl_ms: Option<u64>,
    },
    /// Sells what a hold holds.
    Confirm {
        /// The idempotency key.
        key: String,
        /// The hold's id.
        hold: String,
        /// Fewer units than held.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        quantity: Option<u64>,
        /// Whether an expired hold may take stock again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        reacquire: Option<bool>,
        /// The caller's own reference.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        reference: Option<String>,
    },
    /// Gives a hold's units back.
    Release {
        /// The idempotency key.
        key: String,
        /// The hold's id.
        hold: String,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        reason: Option<String>,
    },
    /// Brings sold units back to stock.
    Return {
        /// The idempotency key.
        key: String,
        /// The hold's id.
        hold: String,
        /// Units.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        quantity: Option<u64>,
    },
    /// Gives up on a placing key for good.
    Void {
        /// The key that is given up.
        key: String,
        /// The item.
        item: String,
        /// The buyer that the placement named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        buyer: Option<String>,
        /// The region that the placement named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        region: Option<String>,
    },
}

/// The results of a batch, one for each operation, in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchResults {
    /// The results.
    pub results: Vec<OperationResult>,
}

/// What came of one operation: a hold, or a problem (neither for a key that was voided).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperationResult {
    /// The status that the single call would have had.
    pub status: u16,
    /// The hold as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hold: Option<Hold>,
    /// The problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<Box<Problem>>,
    /// Where the answer stands in a shard's log: `shard:term.node:index`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub commit: Option<String>,
    /// Whether this operation had been answered before and changed nothing now.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replayed: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What became of a placing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptState {
    /// It made a hold.
    Committed,
    /// It was proposed and is not decided yet: ask again.
    InFlight,
    /// It was voided: no copy of it will ever make a hold.
    Voided,
    /// No attempt with it has been decided here. One may still be on its way: void it to be sure.
    NotFound,
}

/// The receipt of a placing key (`GET /v1/receipts/{key}`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    /// What became of the key.
    pub state: ReceiptState,
    /// The hold that it made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hold: Option<Hold>,
}

/// Gives up on a placing key for good (`POST /v1/receipts/{key}/void`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VoidKey {
    /// The item.
    pub item: String,
    /// The buyer that the placement named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub buyer: Option<String>,
    /// The region that the placement named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub region: Option<String>,
}
