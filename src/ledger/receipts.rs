//! What a slot remembers of keys and buyers, and the keyed hashes that they are found by.
//!
//! Promises: a key is found if and only if its record is kept, also when hashes collide. The hashes
//! are keyed with the cluster's secret, so that a caller cannot make them collide on purpose; two
//! buyers of one slot share a count with a chance of about 2^-64.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ids::{ItemNumber, NameRef, RegionOrdinal, ShardId};

const SEED_HOME: u64 = 0x686f_6d65;
const SEED_PLACE: u64 = 0x706c_6163_6500;
const SEED_SLOT: u64 = 0x736c_6f74;

/// Returns the home shard of an item: the same on every node, for the life of the cluster.
pub(super) fn home_of(name: NameRef<'_>, shards: u16) -> ShardId {
    // Asked for every command, so without an allocation: sound names fit.
    let mut text = SmallVec::<[u8; 264]>::new();
    text.extend_from_slice(name.tenant.as_bytes());
    text.push(b'/');
    text.extend_from_slice(name.item.as_bytes());
    ShardId(remainder(xxh3_64_with_seed(&text, SEED_HOME), shards))
}

/// The place among its region's buckets of the one that owns a buyer (or key).
pub(super) fn place_of(
    item: ItemNumber,
    region: RegionOrdinal,
    buyer_or_key: &str,
    places: u16,
) -> u16 {
    if places <= 1 {
        return 0;
    }
    let seed = SEED_PLACE ^ item.0.rotate_left(24) ^ u64::from(region.0);
    remainder(xxh3_64_with_seed(buyer_or_key.as_bytes(), seed), places)
}

/// The slot of a buyer (or key) within a bucket.
pub(super) fn slot_of(buyer_or_key: &str, slots: u16) -> u16 {
    remainder(xxh3_64_with_seed(buyer_or_key.as_bytes(), SEED_SLOT), slots)
}

fn remainder(hash: u64, of: u16) -> u16 {
    // Less than `of`, so it fits.
    hash.checked_rem(u64::from(of)).unwrap_or(0) as u16
}

/// Hash of (buyer, key) within a slot.
pub(super) fn key_fragment(secret: &[u8; 16], buyer: Option<&str>, key: &str) -> u32 {
    let mut hasher = SipHasher13::new_with_key(secret);
    let buyer = buyer.unwrap_or_default();
    hasher.write(&[u8::try_from(buyer.len()).unwrap_or(u8::MAX)]);
    hasher.write(buyer.as_bytes());
    hasher.write(key.as_bytes());
    hasher.finish() as u32
}

/// Hash of a buyer within a slot.
pub(super) fn buyer_hash(secret: &[u8; 16], buyer: &str) -> u64 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"buyer\0");
    hasher.write(buyer.as_bytes());
    hasher.finish()
}

/// Hash of (item number, region, buyer), for the gate.
pub(super) fn buyer_in_region(
    secret: &[u8; 16],
    item: ItemNumber,
    region: RegionOrdinal,
    buyer: &str,
) -> u64 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"region\0");
    hasher.write(&item.0.to_le_bytes());
    hasher.write(&region.0.to_le_bytes());
    hasher.write(buyer.as_bytes());
    hasher.finish()
}

/// Hash of an operation's key.
pub(super) fn operation_key(secret: &[u8; 16], key: &str) -> u128 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(key.as_bytes());
    let hash = hasher.finish128();
    u128::from(hash.h1) << 64 | u128::from(hash.h2)
}

/// Hash of an optional text; zero stands for none.
pub(super) fn optional_text(secret: &[u8; 16], text: Option<&str>) -> u64 {
    let Some(text) = text else { return 0 };
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"text\0");
    hasher.write(text.as_bytes());
    hasher.finish().max(1)
}

/// A hasher for keys that are hashes already.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Fixed = BuildHasherDefault<Spread>;

/// Records of a slot by the hash of buyer and key. Sequences are kept by their low 32 bits, which
/// the slot's next sequence completes: a slot does not place 2^32 holds within a retention.
#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    first: HashMap<u32, u32, Fixed>,
    /// Further records under the same hash.
    more: BTreeSet<(u32, u32)>,
}

impl KeyIndex {
    /// The sequence under `fragment` of which `is_it` is true.
    pub(super) fn find(
        &self,
        fragment: u32,
        next: u64,
        is_it: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let first = whole(*self.first.get(&fragment)?, next);
        if is_it(first) {
            return Some(first);
        }
        self.more
            .range((fragment, 0)..=(fragment, u32::MAX))
            .map(|(_, low)| whole(*low, next))
            .find(|sequence| is_it(*sequence))
    }

    /// Remembers a record.
    pub(super) fn insert(&mut self, fragment: u32, sequence: u64) {
        let low = sequence as u32;
        if let Some(taken) = self.first.get(&fragment)
            && *taken != low
        {
            self.more.insert((fragment, low));
        } else {
            self.first.insert(fragment, low);
        }
    }

    /// Forgets a record.
    pub(super) fn remove(&mut self, fragment: u32, sequence: u64) {
        let low = sequence as u32;
        if self.more.remove(&(fragment, low)) || self.first.get(&fragment) != Some(&low) {
            return;
        }
        self.first.remove(&fragment);
        let heir = self.more.range((fragment, 0)..=(fragment, u32::MAX)).next().copied();
        if let Some(heir) = heir {
            self.more.remove(&heir);
            self.first.insert(fragment, heir.1);
        }
        // Tables are given back after a crowd has been forgotten.
        if self.first.len() < self.first.capacity() / 8 {
            self.first.shrink_to(self.first.len().saturating_mul(2));
        }
    }
}

/// The greatest sequence below `next` with these low bits.
pub(super) fn whole(low: u32, next: u64) -> u64 {
    let newest = next.saturating_sub(1);
    newest.saturating_sub(u64::from((newest as u32).wrapping_sub(low)))
}

/// Units held (due ones included) and sold, by buyer hash.
#[derive(Debug, Default)]
pub(super) struct BuyerCounts {
    small: HashMap<u64, (u32, u32), Fixed>,
    large: BTreeMap<u64, (u64, u64)>,
}

impl BuyerCounts {
    /// A buyer's units: (held, sold).
    pub(super) fn of(&self, buyer: u64) -> (u64, u64) {
        match self.small.get(&buyer) {
            Some((held, sold)) => (u64::from(*held), u64::from(*sold)),
            None => self.large.get(&buyer).copied().unwrap_or_default(),
        }
    }

    /// Sets a buyer's units.
    pub(super) fn set(&mut self, buyer: u64, held: u64, sold: u64) {
        let small = u32::try_from(held).ok().zip(u32::try_from(sold).ok());
        match small {
            Some((0, 0)) => {
                self.small.remove(&buyer);
                self.large.remove(&buyer);
                if self.small.len() < self.small.capacity() / 8 {
                    self.small.shrink_to(self.small.len().saturating_mul(2));
                }
            }
            Some(counts) => {
                self.small.insert(buyer, counts);
                self.large.remove(&buyer);
            }
            None => {
                self.small.remove(&buyer);
                self.large.insert(buyer, (held, sold));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_whose_hashes_collide_are_told_apart_and_outlive_each_other() {
        let mut index = KeyIndex::default();
        let next = (1 << 33) + 10;
        let base = 1 << 33;
        for sequence in [base, base + 1, base + 2] {
            index.insert(7, sequence);
        }
        for sequence in [base, base + 1, base + 2] {
            assert_eq!(index.find(7, next, |found| found == sequence), Some(sequence));
        }
        index.remove(7, base);
        assert_eq!(index.find(7, next, |found| found == base), None);
        assert_eq!(index.find(7, next, |found| found == base + 1), Some(base + 1));
        index.remove(7, base + 2);
        index.remove(7, base + 1);
        assert_eq!(index.find(7, next, |_| true), None);
        assert!(index.first.is_empty() && index.more.is_empty());
    }

    #[test]
    fn a_buyers_counts_move_between_small_and_large() {
        let mut counts = BuyerCounts::default();
        counts.set(1, 5, 6);
        assert_eq!(counts.of(1), (5, 6));
        counts.set(1, 1 << 40, 6);
        assert_eq!(counts.of(1), (1 << 40, 6));
        counts.set(1, 0, 7);
        assert_eq!(counts.of(1), (0, 7));
        counts.set(1, 0, 0);
        assert_eq!(counts.of(1), (0, 0));
        assert!(counts.small.is_empty() && counts.large.is_empty());
    }
}
