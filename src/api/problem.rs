//! Problems on the wire (RFC 9457) and the list of their kinds: slug, status, title, and whether a
//! retry makes sense. The list is the contract; `http/` says which answer is which kind, and serves
//! each kind's page at `/problems/{slug}`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::hold::{Hold, HoldState};
use super::time::Timestamp;

/// `application/problem+json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `/problems/<slug>`, served as documentation.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in a few words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened here and what to do next.
    pub detail: String,
    /// Whether the same request may succeed soon, without anything else being done.
    pub retryable: bool,
    /// Whether a retry, soon or after what is in its way has gone, may take the same idempotency
    /// key: this attempt has not used it up. False where there is no key.
    pub retry_same_key: bool,
    /// The fields that break a rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The field that differs, of a key that was used before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub field: Option<String>,
    /// Why the item or its shard grants nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// Whether units are held that may come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub may_return: Option<bool>,
    /// What was available when it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub available_hint: Option<u64>,
    /// A limit that would be passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limit: Option<u64>,
    /// Units held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub held: Option<u64>,
    /// Units sold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub sold: Option<u64>,
    /// Units available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub available: Option<u64>,
    /// Units that would have to be available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub needed: Option<u64>,
    /// The total now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub total: Option<u64>,
    /// The revision now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub revision: Option<u64>,
    /// Where the hold stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub state: Option<HoldState>,
    /// When the hold expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub expired_at: Option<Timestamp>,
    /// When the sale opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub opens_at: Option<Timestamp>,
    /// When the sale closes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub closes_at: Option<Timestamp>,
    /// How many times the hold was extended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub extends_used: Option<u32>,
    /// The latest deadline that the hold can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub latest: Option<Timestamp>,
    /// The hold as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hold: Option<Box<Hold>>,
}

/// A field and the rule that it breaks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// The field, with dots into nested objects.
    pub field: String,
    /// The rule, as a sentence whose subject is the field.
    pub rule: String,
}

macro_rules! kinds {
    ($(
        $name:ident $slug:literal $status:literal $title:literal $retry:literal $same:literal;
    )*) => {
        /// The kinds of problems.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ProblemKind {
            $(#[doc = $title] $name,)*
        }

        impl ProblemKind {
            /// Every kind, by status.
            pub const ALL: &'static [ProblemKind] = &[$(ProblemKind::$name,)*];

            /// The last part of its type: `/problems/<slug>`.
            pub const fn slug(self) -> &'static str {
                match self { $(ProblemKind::$name => $slug,)* }
            }

            /// Its type, a relative URI.
            pub const fn uri(self) -> &'static str {
                match self { $(ProblemKind::$name => concat!("/problems/", $slug),)* }
            }

            /// Its HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(ProblemKind::$name => $status,)* }
            }

            /// A few words.
            pub const fn title(self) -> &'static str {
                match self { $(ProblemKind::$name => $title,)* }
            }

            /// Whether the same request may succeed soon.
            pub const fn retryable(self) -> bool {
                match self { $(ProblemKind::$name => $retry,)* }
            }

            /// Whether a retry, soon or later, may take the same idempotency key.
            pub const fn retry_same_key(self) -> bool {
                match self { $(ProblemKind::$name => $same,)* }
            }

            /// Finds a kind by its slug.
            pub fn by_slug(slug: &str) -> Option<ProblemKind> {
                ProblemKind::ALL.iter().copied().find(|kind| kind.slug() == slug)
            }
        }
    };
}

kinds! {
    Malformed "malformed" 400 "The request is malformed." false false;
    KeyMissing "idempotency-key-missing" 400 "The idempotency key is missing." false false;
    NotFound "not-found" 404 "There is no such thing here." false false;
    MethodNotAllowed "method-not-allowed" 405 "The path does not take this method." false false;
    BodyTimeout "body-timeout" 408 "The body came too slowly." true true;
    SoldOut "sold-out" 409 "Nothing is left." false true;
    KeyVoided "key-voided" 409 "The key was given up." false false;
    UseAdjustments "use-adjustments" 409 "The total is changed by adjustments." false false;
    InsufficientStock "insufficient-stock" 409 "Fewer units are left than asked for." true true;
    BuyerLimit "buyer-limit" 409 "The buyer's limit would be passed." false true;
    ItemClosed "item-closed" 409 "The item takes no more holds." false false;
    SaleNotOpen "sale-not-open" 409 "The sale is not open." true true;
    HoldConfirmed "hold-confirmed" 409 "The hold is sold." false false;
    HoldReleased "hold-released" 409 "The hold was given back." false false;
    HoldNotSold "hold-not-sold" 409 "The hold is not sold." false false;
    StockCommitted "stock-committed" 409 "The units are held or sold." false true;
    ClusterRefused "cluster-refused" 409 "The node does not take this step." false false;
    HoldExpired "hold-expired" 410 "The hold has expired." false false;
    RevisionMismatch "revision-mismatch" 412 "The revision is another one now." false false;
    TooLarge "too-large" 413 "The body or the batch is above its limit." false false;
    Validation "validation" 422 "A field breaks a rule." false false;
    KeyReused "idempotency-key-reused" 422 "The key was used for another request." false false;
    ExtendBudgetSpent "extend-budget-spent" 422 "The hold cannot be extended further." false false;
    PreconditionRequired "precondition-required" 428 "The call needs If-Match." false false;
    HeadTooLarge "head-too-large" 431 "The head of the request is above its limit." false false;
    Internal "internal" 500 "Holdfast is at fault." true true;
    NotImplemented "not-implemented" 501 "This version does not do that." false false;
    ItemPaused "item-paused" 503 "Nothing is granted now; nothing was taken." true true;
    Overloaded "overloaded" 503 "Too much is queued; nothing was taken." true true;
    DeadlinePassed "deadline-passed" 503 "The deadline came first; nothing was taken." true true;
    NotServing "not-serving" 503 "This node serves no cluster now." true true;
    OutcomeUnknown "outcome-unknown" 504 "It may have been done." true true;
}

impl Problem {
    /// Makes a problem of a kind; `detail` says what happened and what to do next.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Problem {
        Problem {
            kind: kind.uri().to_owned(),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: detail.into(),
            retryable: kind.retryable(),
            retry_same_key: kind.retry_same_key(),
            ..Problem::default()
        }
    }

    /// Returns its slug: the part of its type after `/problems/`.
    pub fn slug(&self) -> &str {
        self.kind.strip_prefix("/problems/").unwrap_or(&self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 500 said "retry with the same key" beside `retryable: false`.
    #[test]
    fn what_decides_nothing_is_retried_with_its_key_or_not_at_all() {
        for kind in ProblemKind::ALL.iter().filter(|kind| kind.status() >= 500) {
            assert_eq!(kind.retryable(), kind.retry_same_key(), "{}", kind.slug());
        }
        // A refusal that leaves the key free for a later attempt, and says so on its page.
        let later = ProblemKind::ALL.iter().filter(|one| one.retry_same_key() && !one.retryable());
        let later: Vec<_> = later.map(|kind| kind.slug()).collect();
        assert_eq!(later, ["sold-out", "buyer-limit", "stock-committed"]);
    }
}
