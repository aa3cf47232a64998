//! The hold's id: its parts, its text, its tag.
//!
//! Promises: one id has one text, and `FromStr` accepts no other. Never says whether the hold
//! exists: a right text with a wrong tag parses, and the ledger answers that there is no such hold.

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

use super::ids::{BucketId, ItemNumber, RegionOrdinal, ShardId};

/// A hold's id. It routes itself (home shard, item number, region, bucket, slot and sequence), and
/// its keyed tag makes it hard to guess. Printed `hld_` and 32 characters of base 32 (47 once a
/// number has outgrown the short form: item or sequence ≥ 2^32, region ≥ 2^8).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct HoldId {
    /// The item's home shard.
    pub home: ShardId,
    /// The item.
    pub item: ItemNumber,
    /// The region.
    pub region: RegionOrdinal,
    /// The bucket.
    pub bucket: BucketId,
    /// The slot within the bucket.
    pub slot: u16,
    /// The sequence within the slot, counted from 1.
    pub sequence: u64,
    /// Forty bits of a keyed hash of all the above.
    pub tag: u64,
}

/// The text is not a hold id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hold id is `hld_` and lower-case base 32 as the server gave it")]
pub struct NotAHoldId;

/// Crockford's base 32, lower case: without i, l, o and u.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const PREFIX: &str = "hld_";
/// home 2, item 4, region 1, bucket 2, slot 2, sequence 4, tag 5 bytes.
const SHORT_BYTES: usize = 20;
const SHORT_CHARS: usize = 32;
/// home 2, item 8, region 2, bucket 2, slot 2, sequence 8, tag 5 bytes.
const LONG_BYTES: usize = 29;
const LONG_CHARS: usize = 47;
const TAG_MASK: u64 = (1 << 40) - 1;

impl HoldId {
    /// Returns the tag that belongs to these numbers under `key`.
    pub(super) fn tag_of(&self, key: &[u8; 16]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&self.home.0.to_le_bytes());
        hasher.write(&self.item.0.to_le_bytes());
        hasher.write(&self.region.0.to_le_bytes());
        hasher.write(&self.bucket.0.to_le_bytes());
        hasher.write(&self.slot.to_le_bytes());
        hasher.write(&self.sequence.to_le_bytes());
        hasher.finish() & TAG_MASK
    }

    fn is_short(&self) -> bool {
        u32::try_from(self.item.0).is_ok()
            && u32::try_from(self.sequence).is_ok()
            && u8::try_from(self.region.0).is_ok()
    }

    /// The numbers in order, each in its width; `short` must be [`HoldId::is_short`] or false.
    fn to_bytes(self, short: bool) -> SmallVec<[u8; LONG_BYTES]> {
        let mut bytes = SmallVec::new();
        let (wide, region_skip) = if short { (4, 1) } else { (0, 0) };
        bytes.extend_from_slice(&self.home.0.to_be_bytes());
        bytes.extend_from_slice(&self.item.0.to_be_bytes()[wide..]);
        bytes.extend_from_slice(&self.region.0.to_be_bytes()[region_skip..]);
        bytes.extend_from_slice(&self.bucket.0.to_be_bytes());
        bytes.extend_from_slice(&self.slot.to_be_bytes());
        bytes.extend_from_slice(&self.sequence.to_be_bytes()[wide..]);
        bytes.extend_from_slice(&(self.tag & TAG_MASK).to_be_bytes()[3..]);
        bytes
    }

    /// Returns its text.
    pub fn text(&self) -> HoldIdText {
        let mut text = SmallVec::new();
        text.extend_from_slice(PREFIX.as_bytes());
        // Five bytes are eight digits; what is left over is filled with zeros from behind.
        for five in self.to_bytes(self.is_short()).chunks(5) {
            let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            let missing = 5_usize.saturating_sub(five.len());
            let bits = bits << missing.saturating_mul(8);
            let digits = five.len().saturating_mul(8).div_ceil(5);
            for at in 0..digits {
                let shift = 35_usize.saturating_sub(at.saturating_mul(5));
                text.push(ALPHABET[(bits >> shift) as usize & 31]);
            }
        }
        HoldIdText(text)
    }

    fn from_bytes(bytes: &[u8], short: bool) -> Option<HoldId> {
        let (wide, region) = if short { (4, 1) } else { (8, 2) };
        let mut rest = bytes;
        let mut next = |width: usize| -> Option<u64> {
            let (head, tail) = rest.split_at_checked(width)?;
            rest = tail;
            Some(head.iter().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
        };
        Some(HoldId {
            home: ShardId(u16::try_from(next(2)?).ok()?),
            item: ItemNumber(next(wide)?),
            region: RegionOrdinal(u16::try_from(next(region)?).ok()?),
            bucket: BucketId(u16::try_from(next(2)?).ok()?),
            slot: u16::try_from(next(2)?).ok()?,
            sequence: next(wide)?,
            tag: next(5)?,
        })
    }
}

/// The text of a [`HoldId`]: ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldIdText(SmallVec<[u8; 56]>);

impl HoldIdText {
    /// Returns its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        f.write_str(std::str::from_utf8(text.as_bytes()).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for HoldId {
    type Err = NotAHoldId;

    fn from_str(text: &str) -> Result<HoldId, NotAHoldId> {
        let digits = text.strip_prefix(PREFIX).ok_or(NotAHoldId)?.as_bytes();
        let (short, length) = match digits.len() {
            SHORT_CHARS => (true, SHORT_BYTES),
            LONG_CHARS => (false, LONG_BYTES),
            _ => return Err(NotAHoldId),
        };
        let mut bytes = Vec::with_capacity(length);
        let (mut bits, mut pending) = (0_u32, 0_u32);
        for digit in digits {
            let value = ALPHABET.iter().position(|known| known == digit).ok_or(NotAHoldId)?;
            pending = (pending << 5) | value as u32;
            bits = bits.saturating_add(5);
            if bits >= 8 {
                bits = bits.saturating_sub(8);
                bytes.push((pending >> bits) as u8);
                pending &= !(u32::MAX << bits);
            }
        }
        if pending != 0 || bytes.len() != length {
            return Err(NotAHoldId);
        }
        let id = HoldId::from_bytes(&bytes, short).ok_or(NotAHoldId)?;
        if id.is_short() != short { Err(NotAHoldId) } else { Ok(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(item: u64, region: u16, sequence: u64) -> HoldId {
        let mut id = HoldId {
            home: ShardId(3),
            item: ItemNumber(item),
            region: RegionOrdinal(region),
            bucket: BucketId(0),
            slot: 255,
            sequence,
            tag: 0,
        };
        id.tag = id.tag_of(&[7; 16]);
        id
    }

    #[test]
    fn an_id_survives_its_text_in_both_forms() {
        for id in [id(1, 0, 1), id(u64::MAX, u16::MAX, u64::MAX), id(1 << 32, 0, 1), id(1, 256, 1)]
        {
            let text = id.to_string();
            assert!(text.len() == 36 || text.len() == 51, "{text}");
            assert_eq!(text.parse::<HoldId>(), Ok(id));
        }
    }

    #[test]
    fn only_the_canonical_text_is_an_id() {
        let text = id(9, 0, 17).to_string();
        assert!(text.to_uppercase().parse::<HoldId>().is_err());
        assert!(text[4..].parse::<HoldId>().is_err());
        assert!(format!("{text}0").parse::<HoldId>().is_err());
        assert!(text.replace('0', "o").parse::<HoldId>().is_err());
        assert!("".parse::<HoldId>().is_err());
        assert!("hld_é".parse::<HoldId>().is_err());
        // The long spelling of an id that fits the short one.
        let long = {
            let mut big = id(1 << 40, 0, 17);
            big.tag = 0;
            big.to_string()
        };
        assert!(long.parse::<HoldId>().is_ok());
        let zeroed = format!("hld_{}", "0".repeat(47));
        assert!(zeroed.parse::<HoldId>().is_err(), "every number fits the short form");
    }
}
