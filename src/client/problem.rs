//! A problem as a client reads it (RFC 9457), and what it says about the attempt.

use std::fmt;

use serde_json::{Map, Value};

use super::Incoming;

/// The cluster's words for "no", "not now" or "not known".
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The last part of `type`: `sold-out`, `outcome-unknown`, …; `about:blank` when the answer
    /// was not one of Holdfast's (a proxy's page).
    pub slug: String,
    /// What went wrong, in words.
    pub detail: String,
    /// Seconds after which to come again, where the answer says so.
    pub retry_after_s: Option<u64>,
    /// All members, with the numbers that explain it.
    pub members: Map<String, Value>,
}

impl Problem {
    /// Reads an answer that is not 2xx.
    pub fn read(answer: &Incoming) -> Problem {
        let members = match serde_json::from_slice::<Value>(&answer.body) {
            Ok(Value::Object(members)) => members,
            Ok(_) | Err(_) => Map::new(),
        };
        let retry_after_s = answer.header("retry-after").and_then(|text| text.parse().ok());
        Problem::from_members(answer.status.as_u16(), members, retry_after_s)
    }

    /// Makes a problem of its members (one result of a batch).
    pub fn from_members(
        status: u16,
        members: Map<String, Value>,
        retry_after_s: Option<u64>,
    ) -> Problem {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        let slug = text("type")
            .and_then(|uri| uri.rsplit_once("/problems/"))
            .map_or("about:blank", |(_, slug)| slug)
            .to_owned();
        let detail = text("detail").or_else(|| text("title")).unwrap_or_default().to_owned();
        Problem { status, slug, detail, retry_after_s, members }
    }

    /// Whether the attempt that it answers may still take effect. Only Holdfast's own words can
    /// say that nothing was taken: a proxy's 502 or 503 says nothing about what lies behind it.
    pub fn outcome_unknown(&self) -> bool {
        self.slug == "outcome-unknown"
            || (self.status >= 500 && !matches!(self.status, 501 | 503))
            || (self.status == 503 && self.slug == "about:blank")
    }

    /// Whether nothing was taken and the same request may succeed soon under the same key.
    pub fn nothing_taken_yet(&self) -> bool {
        let soon = matches!(self.status, 425 | 429 | 503) && !self.waits_for_an_operator();
        soon && !self.outcome_unknown()
    }

    /// Whether the item stays paused until an operator resumes it: waiting does not help.
    pub fn waits_for_an_operator(&self) -> bool {
        let reason = self.members.get("reason").and_then(Value::as_str);
        self.slug == "item-paused" && matches!(reason, Some("operator" | "invariant"))
    }

    /// Whether it settles the fate of *every* copy of the key, not only of this attempt: the key
    /// is void, it belongs to another request, or it made a hold that has ended for good.
    pub fn settles(&self) -> bool {
        matches!(
            self.slug.as_str(),
            "key-voided" | "idempotency-key-reused" | "hold-confirmed" | "hold-released"
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.slug)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}
