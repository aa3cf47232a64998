//! The digest: the wrapping sum of 128-bit hashes of all records.
//!
//! Promises: it depends on the set of records alone, not on the order in which they were written.
//! Each write takes the old record's hash out and puts the new one's in.

use xxhash_rust::xxh3::xxh3_128;

/// The running sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Digest(u128);

impl Digest {
    /// Exchanges one record's hash; 0 stands for no record.
    pub(super) fn exchange(&mut self, old: u128, new: u128) {
        self.0 = self.0.wrapping_sub(old).wrapping_add(new);
    }

    /// The sum.
    pub(super) fn sum(self) -> u128 {
        self.0
    }
}

/// Hashes a record: the bytes of its key and its value, laid one behind the other.
pub(super) fn hash(key_and_value: &[u8]) -> u128 {
    xxh3_128(key_and_value)
}
