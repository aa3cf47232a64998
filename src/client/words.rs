//! The words of placing as the client writes and reads them.

use serde::{Deserialize, Serialize};

use super::CallError;

/// What a buyer asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewHold {
    /// Units, 1 … 2^53 − 1.
    pub quantity: u64,
    /// Who buys; the same on every retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buyer: Option<String>,
    /// The buyer's region; the item's default region when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Lifetime in ms; the item's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The caller's reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

impl NewHold {
    /// Asks for `quantity` units for a buyer.
    pub fn new(quantity: u64, buyer: impl Into<String>) -> NewHold {
        NewHold {
            quantity,
            buyer: Some(buyer.into()),
            region: None,
            ttl_ms: None,
            reference: None,
        }
    }
}

/// A hold as the cluster tells it. Members that a newer server adds are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Its id.
    pub id: String,
    /// The item.
    pub item: String,
    /// `held`, `sold`, `released`, `expired` or `returned`.
    pub state: String,
    /// Units it was placed for.
    pub quantity: u64,
    /// The buyer, when one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buyer: Option<String>,
    /// The region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// When it was placed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed_at: Option<String>,
    /// Its deadline, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Milliseconds that were left when it was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// Percent-encodes one path segment or query value.
pub fn path_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    // A segment that is only dots would be taken for a step in the path.
    if encoded == "." || encoded == ".." { encoded.replace('.', "%2E") } else { encoded }
}

pub(super) fn to_json<T: Serialize + ?Sized>(body: &T) -> Result<Vec<u8>, CallError> {
    serde_json::to_vec(body).map_err(|e| CallError::Invalid(format!("cannot be sent as JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_could_change_a_path_is_encoded_once() {
        assert_eq!(path_segment("a b%2F?#&+"), "a%20b%252F%3F%23%26%2B");
        assert_eq!(path_segment(".."), "%2E%2E");
        assert_eq!(path_segment("v1.2"), "v1.2");
    }
}
