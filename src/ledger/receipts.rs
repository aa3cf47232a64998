//! The keyed hashes that keys and buyers are found by, and a slot's records by key.
//!
//! Promises: a key is found if and only if its record is kept, also when hashes collide. The hashes
//! are keyed with the cluster's secret, so that a caller cannot make them collide on purpose.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Settings;
use super::ids::{ItemNumber, NameRef, RegionOrdinal, ShardId};
use super::table::{Entry, Table};

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
    remainder(xxh3_64_with_seed(buyer_or_key.as_bytes(), seed_of(item, region)), places)
}

/// The seed of the hash that gives a region's buyers to its buckets.
pub(super) fn seed_of(item: ItemNumber, region: RegionOrdinal) -> u64 {
    SEED_PLACE ^ item.0.rotate_left(24) ^ u64::from(region.0)
}

/// The slot of a buyer (or key) within a bucket.
pub(super) fn slot_of(buyer_or_key: &str, slots: u16) -> u16 {
    remainder(xxh3_64_with_seed(buyer_or_key.as_bytes(), SEED_SLOT), slots)
}

fn remainder(hash: u64, of: u16) -> u16 {
    // Less than `of`, so it fits.
    hash.checked_rem(u64::from(of)).unwrap_or(0) as u16
}

/// What a buyer and a key hash to within a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trace {
    /// The slot of the buyer, or of the key when there is none.
    pub(super) slot: u16,
    /// Hash of buyer and key within the slot.
    pub(super) fragment: u32,
    /// Hash of the buyer within the slot.
    pub(super) buyer: Option<u64>,
}

impl Trace {
    /// The trace of a buyer and a key.
    pub(super) fn of(settings: &Settings, buyer: Option<&str>, key: &str) -> Trace {
        let slot = slot_of(buyer.unwrap_or(key), settings.slots);
        let mut hasher = buyers(&settings.tag_key, buyer.unwrap_or_default());
        let buyer = buyer.map(|_| hasher.finish());
        hasher.write(key.as_bytes());
        Trace { slot, fragment: hasher.finish() as u32, buyer }
    }
}

/// Hash of a buyer within a slot.
pub(super) fn buyer_hash(secret: &[u8; 16], buyer: &str) -> u64 {
    buyers(secret, buyer).finish()
}

fn buyers(secret: &[u8; 16], buyer: &str) -> SipHasher13 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(&[u8::try_from(buyer.len()).unwrap_or(u8::MAX)]);
    hasher.write(buyer.as_bytes());
    hasher
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

/// A record by its key's hash.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Never zero.
    fragment: u32,
    low: u32,
}

impl Known {
    fn new(fragment: u32, sequence: u64) -> Known {
        Known { fragment: fragment.max(1), low: sequence as u32 }
    }
}

impl Entry for Known {
    const NOTHING: Known = Known { fragment: 0, low: 0 };

    fn is_nothing(&self) -> bool {
        self.fragment == 0
    }

    fn hash(&self) -> u32 {
        self.fragment
    }
}

/// Records of a slot by the hash of buyer and key. Sequences are kept by their low 32 bits, which
/// the slot's next sequence completes: a slot does not place 2^32 holds within a retention.
#[derive(Debug, Default)]
pub(super) struct KeyIndex(Table<Known>);

impl KeyIndex {
    /// The sequence under `fragment` of which `is_it` is true.
    pub(super) fn find(
        &self,
        fragment: u32,
        next: u64,
        is_it: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let fragment = fragment.max(1);
        let right = |known: &Known| known.fragment == fragment && is_it(whole(known.low, next));
        let place = self.0.find(fragment, right)?;
        Some(whole(self.0.at(place).low, next))
    }

    /// Looks at where the records of a hash are kept.
    pub(super) fn glance(&self, fragment: u32) -> bool {
        self.0.glance(fragment.max(1))
    }

    /// Remembers a record, which is not remembered yet.
    pub(super) fn insert(&mut self, fragment: u32, sequence: u64) {
        self.0.insert(Known::new(fragment, sequence));
    }

    /// Forgets a record.
    pub(super) fn remove(&mut self, fragment: u32, sequence: u64) {
        let gone = Known::new(fragment, sequence);
        let is_it = |known: &Known| (known.fragment, known.low) == (gone.fragment, gone.low);
        if let Some(place) = self.0.find(gone.fragment, is_it) {
            self.0.remove(place);
        }
    }
}

/// The greatest sequence below `next` with these low bits.
pub(super) fn whole(low: u32, next: u64) -> u64 {
    let newest = next.saturating_sub(1);
    newest.saturating_sub(u64::from((newest as u32).wrapping_sub(low)))
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
        assert!(index.0.is_empty());
    }

    #[test]
    fn buyers_spread_evenly_over_a_regions_buckets() {
        let names: [fn(u32) -> String; 4] = [
            |n| format!("b{n}"),
            |n| format!("buyer-{n:06}"),
            |n| n.to_string(),
            |n| format!("{:08x}", n.wrapping_mul(2_654_435_761)),
        ];
        for (item, places) in [(1, 2), (2, 2), (1, 3), (7, 4), (1, 8)] {
            for name in names {
                let mut owned = vec![0_u32; usize::from(places)];
                for n in 0..8_000 {
                    let place = place_of(ItemNumber(item), RegionOrdinal(0), &name(n), places);
                    owned[usize::from(place)] += 1;
                }
                let fair = 8_000 / u32::from(places);
                let even = owned.iter().all(|n| n.abs_diff(fair) < fair / 5);
                assert!(even, "{} … over {places} places: {owned:?}", name(1));
            }
        }
    }
}
