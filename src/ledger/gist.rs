//! What counting, sweeping and forgetting ask of a record, read without the rest.
//!
//! Promises: says the same as the record whole (`Record::decode`), of bytes that are one.

use super::encoding::Reader;
#[cfg(test)]
use super::record::Record;
use super::record::Standing;
use super::record_bytes::{AS_ASKED, COMPACTED, PLAIN, REFERENCE, STANDING, standing};

/// Numbers of the rules, behind the revision.
const RULES: usize = 5;

/// The gist of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gist {
    /// Where it stands.
    pub(super) standing: Standing,
    /// Whether only its sale is kept.
    pub(super) compacted: bool,
    /// Ledger time of the placement or void.
    pub(super) placed_at: u64,
    /// The deadline.
    pub(super) expires_at: u64,
    /// Units that are sold now.
    pub(super) sold: u64,
    quantity: u64,
}

impl Gist {
    /// Reads it from a record's bytes.
    pub(super) fn read(bytes: &[u8]) -> Option<Gist> {
        let mut reader = Reader::new(bytes);
        let head = reader.u8()?;
        let (key, buyer) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
        let reference = if head & REFERENCE == 0 { 0 } else { usize::from(reader.u8()?) };
        reader.take(key.saturating_add(buyer).saturating_add(reference))?;
        let (quantity, placed_at, life) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let mut sold = 0;
        if head & PLAIN == 0 {
            let asked = usize::from(head & AS_ASKED == 0);
            // The lifetime asked for, the revision, the rules.
            for _ in 0..asked.saturating_add(1).saturating_add(RULES) {
                reader.u64()?;
            }
            sold = reader.u64()?;
        }
        Some(Gist {
            standing: standing(head & STANDING)?,
            compacted: head & COMPACTED != 0,
            placed_at,
            expires_at: placed_at.wrapping_add(life),
            sold,
            quantity,
        })
    }

    /// Units that are set aside, due or not.
    pub(super) fn open(&self) -> u64 {
        if self.standing == Standing::Held { self.quantity } else { 0 }
    }

    /// Whether it is held and its deadline has come.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.standing == Standing::Held && now >= self.expires_at
    }

    /// The gist of a whole record.
    #[cfg(test)]
    pub(super) fn of(record: &Record<'_>) -> Gist {
        Gist {
            standing: record.standing,
            compacted: record.compacted,
            placed_at: record.placed_at,
            expires_at: record.expires_at,
            sold: record.sold,
            quantity: record.quantity,
        }
    }
}
