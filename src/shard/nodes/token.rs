//! The token that lets one machine in, and its print in the roster.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::shard::uuid_bytes;

/// Returns the print of a token under the cluster's secret.
pub(crate) fn print_of(secret: &[u8; 16], operation: u64, token: &[u8; 16]) -> u128 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(b"holdfast join token");
    hasher.write(&operation.to_le_bytes());
    hasher.write(token);
    hasher.finish128().as_u128()
}

/// Writes a token.
pub fn token_of(operation: u64, secret: &[u8; 16]) -> String {
    format!("hfj-{operation}-{}", crate::shard::uuid_hex(secret))
}

/// Reads a token.
pub(crate) fn read_token(token: &str) -> Option<(u64, [u8; 16])> {
    let (operation, secret) = token.trim().strip_prefix("hfj-")?.split_once('-')?;
    Some((operation.parse().ok()?, uuid_bytes(secret)?))
}
