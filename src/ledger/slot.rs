//! One of the partitions of a bucket's holds: small tables, small pages.
//!
//! Invariants: sequences count up from 1 and are never used again, also when the records are
//! forgotten (`floor`); ledger time of placement does not decrease with the sequence; `units`,
//! `index`, `buyers` and `lapse` say of the records what the records say themselves. Segments are
//! in the order of their numbers; none is empty.

use super::buyers::{Buyers, Known, Share};
use super::chunk::{self, place_of};
use super::cut::Plan;
use super::gist::Gist;
use super::lapse::Lapse;
use super::receipts::{KeyIndex, whole};
use super::record::Record;
use super::segment::{Segment, segment_of};

/// The most holds of one buyer that are looked at to find the due ones; further ones count as live.
const BUYERS_HOLDS_MAX: usize = 1_024;

/// A bucket's records whose buyer (or key) hashes here.
#[derive(Debug)]
pub(super) struct Slot {
    /// The next sequence.
    pub(super) next: u64,
    /// The least next sequence after a load: set when the newest record is forgotten.
    pub(super) floor: u64,
    /// Records, in segments of neighbours.
    #[expect(clippy::vec_box, reason = "a segment keeps its place while others come and go")]
    pub(super) segments: Vec<Box<Segment>>,
    /// Memory of the chunk that was filled last, for the one that follows the next.
    spare: Vec<u8>,
    /// Units held (due ones included) and sold by its records.
    pub(super) units: (u64, u64),
    /// Records by buyer and key.
    pub(super) index: KeyIndex,
    /// Units by buyer.
    pub(super) buyers: Buyers,
    /// Live holds, due ones included, by deadline and sequence.
    pub(super) lapse: Lapse,
    /// No record below this sequence waits for its receipt to be forgotten. Only saves steps.
    pub(super) forget_from: u64,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            next: 1,
            floor: 1,
            segments: Vec::new(),
            spare: Vec::new(),
            units: (0, 0),
            index: KeyIndex::default(),
            buyers: Buyers::default(),
            lapse: Lapse::default(),
            forget_from: 1,
        }
    }
}

impl Slot {
    /// The record of a sequence, as bytes.
    pub(super) fn bytes(&self, sequence: u64) -> Option<&[u8]> {
        let segment = self.segments.get(self.find_segment(segment_of(sequence)).ok()?)?;
        chunk::record(segment.chunk(sequence), place_of(sequence))
    }

    /// The record of a sequence.
    pub(super) fn record(&self, sequence: u64) -> Option<Record<'_>> {
        Record::decode(self.bytes(sequence)?)
    }

    /// The sequence that remembers this buyer and key.
    pub(super) fn find(&self, fragment: u32, buyer: Option<&str>, key: &str) -> Option<u64> {
        self.index.find(fragment, self.next, |sequence| {
            self.record(sequence).is_some_and(|record| record.answers(buyer, key))
        })
    }

    /// The gist of a sequence's record.
    pub(super) fn gist(&self, sequence: u64) -> Option<Gist> {
        Gist::read(self.bytes(sequence)?)
    }

    /// Records from `from` on, in sequence.
    pub(super) fn records_from(&self, from: u64) -> impl Iterator<Item = (u64, Record<'_>)> {
        let all = self.bytes_from(from);
        all.filter_map(|(sequence, bytes)| Some((sequence, Record::decode(bytes)?)))
    }

    /// Gists of the records from `from` on, in sequence.
    pub(super) fn gists_from(&self, from: u64) -> impl Iterator<Item = (u64, Gist)> {
        let all = self.bytes_from(from);
        all.filter_map(|(sequence, bytes)| Some((sequence, Gist::read(bytes)?)))
    }

    fn bytes_from(&self, from: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let first = self.find_segment(segment_of(from)).unwrap_or_else(|place| place);
        let segments = self.segments.iter().skip(first);
        let records = segments.flat_map(move |segment| segment.records(from));
        records.filter(move |(sequence, _)| *sequence >= from)
    }

    /// A page of records: the bytes of its chunk, when it exists.
    pub(super) fn chunk(&self, number: u64) -> Option<&[u8]> {
        let sequence = number.saturating_mul(chunk::CHUNK_RECORDS);
        let segment = self.segments.get(self.find_segment(segment_of(sequence)).ok()?)?;
        Some(segment.chunk(sequence)).filter(|bytes| !bytes.is_empty())
    }

    /// The segment of a number, to change.
    pub(super) fn segment_mut(&mut self, number: u64) -> Option<&mut Segment> {
        let place = self.find_segment(number).ok()?;
        self.segments.get_mut(place).map(Box::as_mut)
    }

    /// The segment of a number, made when there is none.
    pub(super) fn segment_or_new(&mut self, number: u64, plan: Plan<'_>) -> &mut Segment {
        let place = match self.find_segment(number) {
            Ok(place) => place,
            Err(place) => {
                self.segments.insert(place, Box::new(Segment::new(number, plan)));
                place
            }
        };
        &mut self.segments[place]
    }

    /// The place of a segment, or where it would be. The last is asked for most, and numbers have
    /// few gaps.
    pub(super) fn find_segment(&self, number: u64) -> Result<usize, usize> {
        let Some(last) = self.segments.last() else { return Err(0) };
        let behind = usize::try_from(last.number.wrapping_sub(number)).unwrap_or(usize::MAX);
        let guess = self.segments.len().wrapping_sub(1).wrapping_sub(behind);
        if self.segments.get(guess).is_some_and(|segment| segment.number == number) {
            return Ok(guess);
        }
        self.segments.binary_search_by_key(&number, |segment| segment.number)
    }

    /// Looks at where the next record will be written.
    pub(super) fn glance_behind(&self) -> usize {
        let Some(last) = self.segments.last() else { return 0 };
        usize::from(last.chunk(self.next).last().copied().unwrap_or(0))
    }

    /// Writes a record behind all others. Its segment exists.
    pub(super) fn append(&mut self, sequence: u64, record: &[u8]) {
        if place_of(sequence) == 0 {
            self.seal(sequence);
        }
        self.next = self.next.max(sequence.saturating_add(1));
        if let Some(segment) = self.segment_mut(segment_of(sequence)) {
            chunk::append(segment.chunk_mut(sequence), place_of(sequence), record);
        }
    }

    /// Gives the chunk before `sequence`, which is full, memory of its own size, and what it had to
    /// the chunk that begins.
    fn seal(&mut self, sequence: u64) {
        let mut room = std::mem::take(&mut self.spare);
        let full = sequence.saturating_sub(1);
        if let Some(segment) = self.segment_mut(segment_of(full)) {
            let chunk = segment.chunk_mut(full);
            if chunk.capacity() > chunk.len() {
                let exact = chunk.as_slice().to_vec();
                let had = std::mem::replace(chunk, exact);
                if room.capacity() < had.capacity() {
                    room = had;
                }
            }
        }
        room.clear();
        if let Some(segment) = self.segment_mut(segment_of(sequence)) {
            *segment.chunk_mut(sequence) = room;
        }
    }

    /// Takes a chunk as it came from a page. Its place is free.
    pub(super) fn take_chunk(&mut self, number: u64, bytes: &[u8], plan: Plan<'_>) {
        let sequence = number.saturating_mul(chunk::CHUNK_RECORDS);
        let segment = self.segment_or_new(segment_of(sequence), plan);
        *segment.chunk_mut(sequence) = bytes.to_vec();
    }

    /// Writes another record to a sequence.
    pub(super) fn rewrite(&mut self, sequence: u64, record: &[u8]) {
        if let Some(segment) = self.segment_mut(segment_of(sequence)) {
            chunk::replace(segment.chunk_mut(sequence), place_of(sequence), record);
        }
    }

    /// Takes a record out, and tells whether its chunk is gone with it.
    pub(super) fn remove(&mut self, sequence: u64) -> bool {
        let Ok(place) = self.find_segment(segment_of(sequence)) else { return false };
        let Some(segment) = self.segments.get_mut(place) else { return false };
        chunk::remove(segment.chunk_mut(sequence), place_of(sequence));
        let gone = segment.chunk(sequence).is_empty();
        if gone {
            segment.bury(sequence);
            if segment.is_empty() {
                self.segments.remove(place);
            }
        }
        gone
    }

    /// The number of the first chunk that waits to be encoded, from a segment on, with its segment.
    pub(super) fn take_pending(&mut self, from: u64, plan: Plan<'_>) -> Option<(u64, u64)> {
        let first = self.find_segment(from).unwrap_or_else(|place| place);
        self.segments.iter_mut().skip(first).find_map(|segment| {
            segment.follow(plan);
            Some((segment.number, segment.take_pending()?))
        })
    }

    /// Follows a change of a buyer's record: (before, after).
    pub(super) fn count(
        &mut self,
        buyer: u64,
        low: u32,
        (before, after): (Share, Share),
        fault: &mut bool,
    ) {
        if before == Share::default() && self.buyers.begin(buyer, low, after) {
            return;
        }
        // The buyers are lent out so that the records can be asked meanwhile.
        let mut buyers = std::mem::take(&mut self.buyers);
        buyers.follow(buyer, low, (before, after), |low| self.units(low), fault);
        self.buyers = buyers;
    }

    /// A buyer's units at `now`: (held by holds that are not due, sold).
    pub(super) fn usage(&self, hash: u64, buyer: &str, now: u64) -> (u64, u64) {
        let due = |low: u32| {
            let record = self.record(whole(low, self.next));
            let record = record.filter(|it| it.is_due(now) && it.buyer() == Some(buyer));
            record.map_or(0, |record| record.open())
        };
        match self.buyers.of(hash) {
            Known::Nothing => (0, 0),
            Known::One(low) => (self.units(low).saturating_sub(due(low)), 0),
            Known::Units(0, sold) => (0, sold),
            Known::Units(held, sold) => {
                let his = self.buyers.live(hash, BUYERS_HOLDS_MAX).into_iter();
                let due = his.fold(0_u64, |sum, low| sum.saturating_add(due(low)));
                (held.saturating_sub(due), sold)
            }
        }
    }

    /// Units held by the hold with these low bits of its sequence.
    fn units(&self, low: u32) -> u64 {
        self.gist(whole(low, self.next)).map_or(0, |gist| gist.open())
    }
}
