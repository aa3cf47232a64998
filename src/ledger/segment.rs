//! Some neighbouring chunks of a slot, and what is marked of them: which holds stand in the rows
//! that fall due in order, and which pages are dirty for which database.
//!
//! Invariants: a page that exists is dirty for a turn when its bit says so, a page that is gone
//! when `Pages` lists it, so marking a page is setting a bit; the bits are those of `epoch`, and
//! are brought up to a later cut by [`Segment::follow`] before they are read or set, so that
//! beginning a cut touches no segment.

use super::chunk::{self, CHUNK_RECORDS};
use super::cut::Plan;
use super::lapse::ROWS;

/// Chunks a segment.
const SEGMENT_CHUNKS: u64 = 16;
/// Records a segment: the bits of its mark.
const SEGMENT_RECORDS: u64 = SEGMENT_CHUNKS * CHUNK_RECORDS;

/// The segment of a sequence.
pub(super) fn segment_of(sequence: u64) -> u64 {
    sequence / SEGMENT_RECORDS
}

/// Neighbouring chunks.
#[derive(Debug)]
pub(super) struct Segment {
    /// Its number: the sequence / [`SEGMENT_RECORDS`] of all its records.
    pub(super) number: u64,
    chunks: [Vec<u8>; SEGMENT_CHUNKS as usize],
    /// The live holds of each row (`lapse.rs`).
    rows: [u128; ROWS],
    epoch: u32,
    /// Pages that are dirty for the next cut of each turn.
    dirty: [u16; 2],
    /// Pages of the cut under way that nobody has encoded.
    pending: [u16; 2],
    /// All pages of it.
    cut: [u16; 2],
}

impl Segment {
    /// A segment without records.
    pub(super) fn new(number: u64, plan: Plan<'_>) -> Segment {
        Segment {
            number,
            chunks: Default::default(),
            rows: [0; ROWS],
            epoch: plan.epoch,
            dirty: [0; 2],
            pending: [0; 2],
            cut: [0; 2],
        }
    }

    /// The bytes of a chunk.
    pub(super) fn chunk(&self, sequence: u64) -> &[u8] {
        &self.chunks[chunk_place(sequence)]
    }

    /// The bytes of a chunk, to change.
    pub(super) fn chunk_mut(&mut self, sequence: u64) -> &mut Vec<u8> {
        &mut self.chunks[chunk_place(sequence)]
    }

    /// Whether no record is left.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.iter().all(Vec::is_empty)
    }

    /// Its records from a sequence on: sequence and bytes.
    pub(super) fn records(&self, from: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let first = self.number.saturating_mul(SEGMENT_RECORDS);
        let skip = chunk::chunk_of(from.saturating_sub(first));
        let chunks =
            self.chunks.iter().zip(0_u64..).skip(usize::try_from(skip).unwrap_or(usize::MAX));
        chunks.flat_map(move |(bytes, number)| {
            let first = first.saturating_add(number.saturating_mul(CHUNK_RECORDS));
            chunk::entries(bytes).map(move |(place, record)| (first.saturating_add(place), record))
        })
    }

    // Rows of holds.

    /// The row in which a hold stands.
    pub(super) fn row_of(&self, sequence: u64) -> Option<usize> {
        self.rows.iter().position(|row| row & record_bit(sequence) != 0)
    }

    /// Puts a hold in a row.
    pub(super) fn enter_row(&mut self, row: usize, sequence: u64) {
        self.rows[row] |= record_bit(sequence);
    }

    /// Takes a hold out of a row.
    pub(super) fn leave_row(&mut self, row: usize, sequence: u64) {
        self.rows[row] &= !record_bit(sequence);
    }

    /// The first hold of a row after a sequence.
    pub(super) fn next_in_row(&self, row: usize, after: u64) -> Option<u64> {
        let first = self.number.saturating_mul(SEGMENT_RECORDS);
        let left = match after.checked_sub(first) {
            None => self.rows[row],
            Some(place) if place < SEGMENT_RECORDS - 1 => {
                self.rows[row] & u128::MAX << place.saturating_add(1)
            }
            Some(_) => 0,
        };
        (left != 0).then(|| first.saturating_add(u64::from(left.trailing_zeros())))
    }

    // Dirty pages.

    /// Brings the bits up to the cut that was begun last.
    pub(super) fn follow(&mut self, plan: Plan<'_>) {
        if self.epoch == plan.epoch {
            return;
        }
        let failed = plan.has_failed(self.epoch);
        for turn in 0..2 {
            // What a cut did not write, or wrote in vain, is dirty as before.
            self.dirty[turn] |= if failed { self.cut[turn] } else { self.pending[turn] };
            self.pending[turn] = 0;
            self.cut[turn] = 0;
        }
        if let Some((turn, whole)) = plan.cut {
            let turn = turn as usize;
            let pages = if whole { self.existing() } else { self.dirty[turn] };
            self.pending[turn] = pages;
            self.cut[turn] = pages;
            self.dirty[turn] = 0;
        }
        self.epoch = plan.epoch;
    }

    fn existing(&self) -> u16 {
        let exists = self.chunks.iter().zip(0_u32..).filter(|(bytes, _)| !bytes.is_empty());
        exists.fold(0, |bits, (_, place)| bits | 1 << place)
    }

    /// Whether a page is marked dirty already, since the last cut began.
    pub(super) fn is_marked(&self, sequence: u64, epoch: u32) -> bool {
        let bit = chunk_bit(sequence);
        self.epoch == epoch && self.dirty[0] & self.dirty[1] & bit != 0
    }

    /// Marks a page dirty for both turns; tells of each whether it was not.
    pub(super) fn mark(&mut self, sequence: u64) -> [bool; 2] {
        let bit = chunk_bit(sequence);
        self.dirty.each_mut().map(|dirty| {
            let was = *dirty & bit != 0;
            *dirty |= bit;
            !was
        })
    }

    /// Takes a page out of the cut under way because it is about to change; tells whether it was
    /// still to be encoded.
    pub(super) fn claim(&mut self, sequence: u64) -> bool {
        let bit = chunk_bit(sequence);
        let pending = (self.pending[0] | self.pending[1]) & bit != 0;
        self.pending = self.pending.map(|pages| pages & !bit);
        pending
    }

    /// Takes the number of the next page of the cut under way that nobody has encoded.
    pub(super) fn take_pending(&mut self) -> Option<u64> {
        let turn = usize::from(self.pending[0] == 0);
        let place = self.pending[turn].trailing_zeros();
        let bit = 1_u16.checked_shl(place)?;
        self.pending[turn] &= !bit;
        Some(self.number.saturating_mul(SEGMENT_CHUNKS).saturating_add(u64::from(place)))
    }

    /// Forgets all marks of a page that is gone.
    pub(super) fn bury(&mut self, sequence: u64) {
        let bit = chunk_bit(sequence);
        for marks in [&mut self.dirty, &mut self.pending, &mut self.cut] {
            *marks = marks.map(|pages| pages & !bit);
        }
    }
}

fn chunk_place(sequence: u64) -> usize {
    (chunk::chunk_of(sequence) % SEGMENT_CHUNKS) as usize
}

fn chunk_bit(sequence: u64) -> u16 {
    1 << chunk_place(sequence)
}

fn record_bit(sequence: u64) -> u128 {
    1 << (sequence % SEGMENT_RECORDS)
}
