//! Neighbouring records as bytes: what a page of records says behind its version.
//!
//! The form: for each record its place among [`CHUNK_RECORDS`], its length, its bytes, in the order
//! of places. Promises: a chunk in memory is its page on disk, so that to encode a page is to copy
//! it. Never knows what a record says.

use std::ops::Range;

use super::encoding::{Reader, put_bytes, put_u64};

/// Records a chunk, which is also a page.
pub(super) const CHUNK_RECORDS: u64 = 8;
/// Bytes that a chunk which outgrows its memory gets beyond its need.
const SPARE_BYTES: usize = 32;
/// The most bytes of an entry's place and length: a record has less than 2^14 bytes.
const HEAD_BYTES_MAX: usize = 3;

/// The chunk of a sequence.
pub(super) fn chunk_of(sequence: u64) -> u64 {
    sequence / CHUNK_RECORDS
}

/// The place of a sequence in its chunk.
pub(super) fn place_of(sequence: u64) -> u64 {
    sequence % CHUNK_RECORDS
}

/// The entries of a chunk.
pub(super) struct Entries<'a> {
    reader: Reader<'a>,
    broken: bool,
}

/// The entries of these bytes, up to the first that is none.
pub(super) fn entries(chunk: &[u8]) -> Entries<'_> {
    Entries { reader: Reader::new(chunk), broken: false }
}

impl<'a> Entries<'a> {
    /// Whether all of it was entries.
    pub(super) fn is_done(&self) -> bool {
        self.reader.is_done() && !self.broken
    }

    fn read(&mut self) -> Option<(u64, &'a [u8])> {
        let place = self.reader.u64().filter(|place| *place < CHUNK_RECORDS)?;
        Some((place, self.reader.bytes()?))
    }
}

impl<'a> Iterator for Entries<'a> {
    /// Place and record.
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<(u64, &'a [u8])> {
        if self.reader.is_done() {
            return None;
        }
        let entry = self.read();
        self.broken |= entry.is_none();
        entry
    }
}

/// The record at a place.
pub(super) fn record(chunk: &[u8], place: u64) -> Option<&[u8]> {
    entries(chunk).find(|entry| entry.0 == place).map(|entry| entry.1)
}

/// Writes a record to its place, which is behind all others.
pub(super) fn append(chunk: &mut Vec<u8>, place: u64, record: &[u8]) {
    put_u64(chunk, place);
    put_bytes(chunk, record);
}

/// Writes another record to a place.
pub(super) fn replace(chunk: &mut Vec<u8>, place: u64, record: &[u8]) {
    let Some(old) = entry(chunk, place) else { return };
    let mut head = Vec::with_capacity(HEAD_BYTES_MAX);
    put_u64(&mut head, place);
    put_u64(&mut head, record.len() as u64);
    let body = old.start.saturating_add(head.len());
    let end = body.saturating_add(record.len());
    let length = chunk.len();
    let more = end.saturating_sub(old.end);
    if length.saturating_add(more) > chunk.capacity() {
        chunk.reserve_exact(more.saturating_add(SPARE_BYTES));
    }
    chunk.resize(length.saturating_add(more), 0);
    chunk.copy_within(old.end..length, end);
    chunk.truncate(length.saturating_sub(old.end).saturating_add(end));
    chunk[old.start..body].copy_from_slice(&head);
    chunk[body..end].copy_from_slice(record);
}

/// Takes a record out.
pub(super) fn remove(chunk: &mut Vec<u8>, place: u64) {
    if let Some(range) = entry(chunk, place) {
        chunk.drain(range);
        if chunk.is_empty() {
            *chunk = Vec::new();
        }
    }
}

/// Where a place's entry stands, its head included.
fn entry(chunk: &[u8], place: u64) -> Option<Range<usize>> {
    let mut all = entries(chunk);
    loop {
        let start = chunk.len().saturating_sub(all.reader.rest().len());
        if all.next()?.0 == place {
            return Some(start..chunk.len().saturating_sub(all.reader.rest().len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_at_their_places_through_every_change() {
        let mut chunk = Vec::new();
        let long = vec![7; 300];
        for place in 0..CHUNK_RECORDS {
            append(&mut chunk, place, &[place as u8; 5]);
        }
        replace(&mut chunk, 3, &long);
        remove(&mut chunk, 0);
        replace(&mut chunk, 7, b"");
        let places: Vec<u64> = entries(&chunk).map(|entry| entry.0).collect();
        assert_eq!(places, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(record(&chunk, 0), None);
        assert_eq!(record(&chunk, 3), Some(&long[..]));
        assert_eq!(record(&chunk, 4), Some(&[4; 5][..]));
        assert_eq!(record(&chunk, 7), Some(&b""[..]));
        for place in 1..CHUNK_RECORDS {
            remove(&mut chunk, place);
        }
        assert!(chunk.is_empty());
    }
}
