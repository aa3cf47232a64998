//! One of the partitions of a bucket's holds: small maps, small pages.
//!
//! Invariants: sequences count up from 1 and are never used again, also when the records are
//! forgotten (`floor`); ledger time of placement does not decrease with the sequence; `index`,
//! `buyers`, `held` and `due` say of the records what the records say themselves.

use std::collections::{BTreeMap, BTreeSet};

use super::receipts::{BuyerCounts, KeyIndex};
use super::record::Record;

/// Records a chunk, which is also a page.
pub(super) const CHUNK_RECORDS: u64 = 8;

/// A bucket's records whose buyer (or key) hashes here.
#[derive(Debug)]
pub(super) struct Slot {
    /// The next sequence.
    pub(super) next: u64,
    /// The least next sequence after a load: set when the newest record is forgotten.
    pub(super) floor: u64,
    /// Records by sequence / [`CHUNK_RECORDS`].
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// Records by buyer and key.
    pub(super) index: KeyIndex,
    /// Units by buyer.
    pub(super) buyers: BuyerCounts,
    /// Live holds that name a buyer, due ones included, by the low bits of the buyer's hash and of
    /// the sequence.
    pub(super) held: BTreeSet<(u32, u32)>,
    /// Live holds, due ones included, by deadline and sequence.
    pub(super) due: BTreeSet<(u64, u64)>,
    /// No record below this sequence waits for its receipt to be forgotten. Only saves steps.
    pub(super) forget_from: u64,
}

/// Neighbouring records.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// By sequence % [`CHUNK_RECORDS`].
    records: Vec<Option<Record>>,
    /// The checkpoint epoch in which this page was last marked dirty. Only saves steps.
    pub(super) marked: u32,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            next: 1,
            floor: 1,
            chunks: BTreeMap::new(),
            index: KeyIndex::default(),
            buyers: BuyerCounts::default(),
            held: BTreeSet::new(),
            due: BTreeSet::new(),
            forget_from: 1,
        }
    }
}

impl Slot {
    /// The record of a sequence.
    pub(super) fn record(&self, sequence: u64) -> Option<&Record> {
        self.chunks.get(&chunk_of(sequence))?.record(sequence)
    }

    /// The record of a sequence, to change.
    pub(super) fn record_mut(&mut self, sequence: u64) -> Option<&mut Record> {
        self.chunks.get_mut(&chunk_of(sequence))?.records.get_mut(place_of(sequence))?.as_mut()
    }

    /// The sequence that remembers this buyer and key.
    pub(super) fn find(&self, fragment: u32, buyer: Option<&str>, key: &str) -> Option<u64> {
        self.index.find(fragment, self.next, |sequence| {
            self.record(sequence).is_some_and(|record| record.answers(buyer, key))
        })
    }

    /// Records from `from` on, in sequence.
    pub(super) fn records_from(&self, from: u64) -> impl Iterator<Item = (u64, &Record)> {
        self.chunks
            .range(chunk_of(from)..)
            .flat_map(|(number, chunk)| chunk.records(*number))
            .filter(move |(sequence, _)| *sequence >= from)
    }
}

impl Chunk {
    fn record(&self, sequence: u64) -> Option<&Record> {
        self.records.get(place_of(sequence))?.as_ref()
    }

    /// Its records in sequence; `number` is its own.
    pub(super) fn records(&self, number: u64) -> impl Iterator<Item = (u64, &Record)> {
        let first = number.saturating_mul(CHUNK_RECORDS);
        self.records.iter().enumerate().filter_map(move |(place, record)| {
            Some((first.saturating_add(place as u64), record.as_ref()?))
        })
    }

    /// Puts a record in its place.
    pub(super) fn put(&mut self, sequence: u64, record: Record) {
        let place = place_of(sequence);
        while self.records.len() <= place {
            self.records.push(None);
        }
        self.records[place] = Some(record);
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<Record> {
        self.records.get_mut(place_of(sequence))?.take()
    }

    /// Whether no record is left.
    pub(super) fn is_empty(&self) -> bool {
        self.records.iter().all(Option::is_none)
    }
}

/// The chunk of a sequence.
pub(super) fn chunk_of(sequence: u64) -> u64 {
    sequence / CHUNK_RECORDS
}

fn place_of(sequence: u64) -> usize {
    (sequence % CHUNK_RECORDS) as usize
}
