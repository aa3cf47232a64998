//! The words of placing as the client writes and reads them.

use serde::Serialize;

use super::{CallError, NewHold};

impl NewHold {
    /// Asks for `quantity` units for a buyer.
    pub fn new(quantity: u64, buyer: impl Into<String>) -> NewHold {
        NewHold { quantity, buyer: Some(buyer.into()), ..NewHold::default() }
    }
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
