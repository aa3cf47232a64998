//! The bytes of one frame: a header with its own CRC, a payload with its CRC, padding to 8 bytes.
//!
//! The header's CRC is checked before any of its fields is believed, and its length is bounded by
//! what the segment has left before it is used. Never reads or writes a file.

use crate::ledger::{LeaderId, LogIndex, NodeId, ShardId};

use super::LogPosition;

/// The size of a frame's header, in bytes.
pub(super) const HEADER_BYTES: usize = 80;
/// Frames begin at multiples of this many bytes.
pub(super) const ALIGN: usize = 8;
const MAGIC: [u8; 4] = *b"HFWL";
const FORMAT: u8 = 1;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first frame of a segment; its payload is a `SegmentStart`.
    Start,
    /// One entry; its payload is the entry's.
    Entry,
    /// A vote; its payload is the vote.
    Vote,
    /// Entries at and behind the position's index are gone.
    Truncate,
    /// Entries up to the position are gone, it included.
    Purge,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Start => 1,
            Kind::Entry => 2,
            Kind::Vote => 3,
            Kind::Truncate => 4,
            Kind::Purge => 5,
        }
    }

    fn from_code(code: u8) -> Option<Kind> {
        [Kind::Start, Kind::Entry, Kind::Vote, Kind::Truncate, Kind::Purge]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) shard: ShardId,
    /// The payload's length without padding.
    pub(super) payload_bytes: u32,
    /// The first half of the log's uuid.
    pub(super) tag: u64,
    /// Counts the frames of the log from 1; +1 at each frame, across segments.
    pub(super) sequence: u64,
    /// Every frame up to this sequence was synced when this one was written.
    pub(super) synced_upto: u64,
    /// The number of the segment that the frame lies in.
    pub(super) segment: u64,
    pub(super) position: LogPosition,
    /// Of the payload with its padding.
    pub(super) payload_crc: u32,
}

/// Returns the part of a log's uuid that every frame carries.
pub(super) fn uuid_tag(uuid: &[u8; 16]) -> u64 {
    u64::from_le_bytes([uuid[0], uuid[1], uuid[2], uuid[3], uuid[4], uuid[5], uuid[6], uuid[7]])
}

/// Returns the size of a frame with a payload of `payload_bytes`, padding included.
pub(super) fn frame_bytes(payload_bytes: usize) -> usize {
    HEADER_BYTES + payload_bytes.next_multiple_of(ALIGN)
}

impl Header {
    /// Returns the header of a frame that is about to be written with [`push_frame`].
    pub(super) fn new(kind: Kind, shard: ShardId, position: LogPosition) -> Header {
        Header {
            kind,
            shard,
            payload_bytes: 0,
            tag: 0,
            sequence: 0,
            synced_upto: 0,
            segment: 0,
            position,
            payload_crc: 0,
        }
    }

    /// Returns the frame's size, padding included, in bytes.
    pub(super) fn frame_bytes(&self) -> u64 {
        frame_bytes(self.payload_bytes as usize) as u64
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = FORMAT;
        bytes[5] = self.kind.code();
        bytes[6..8].copy_from_slice(&self.shard.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_crc.to_le_bytes());
        let words = [
            self.tag,
            self.sequence,
            self.synced_upto,
            self.segment,
            self.position.index.0,
            self.position.leader.term,
            self.position.leader.node.0,
        ];
        for (word, at) in words.iter().zip((16..).step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        // 72..76 is kept for later, and zero.
        let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header, or tells what is wrong with it. `bytes` may be longer.
    pub(super) fn read(bytes: &[u8]) -> Result<Header, &'static str> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err("no room for a frame header");
        };
        if bytes[..4] != MAGIC {
            return Err("no frame begins here");
        }
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if crc32fast::hash(&bytes[..HEADER_BYTES - 4]) != u32_at(HEADER_BYTES - 4) {
            return Err("the frame header's checksum does not match");
        }
        if bytes[4] != FORMAT {
            return Err("the frame is of a format that this build does not read");
        }
        let Some(kind) = Kind::from_code(bytes[5]) else {
            return Err("the frame is of a kind that this build does not read");
        };
        Ok(Header {
            kind,
            shard: ShardId(u16::from_le_bytes([bytes[6], bytes[7]])),
            payload_bytes: u32_at(8),
            payload_crc: u32_at(12),
            tag: u64_at(16),
            sequence: u64_at(24),
            synced_upto: u64_at(32),
            segment: u64_at(40),
            position: LogPosition {
                leader: LeaderId { term: u64_at(56), node: NodeId(u64_at(64)) },
                index: LogIndex(u64_at(48)),
            },
        })
    }

    /// Reads a whole frame: its header and payload. `bytes` begins with it and may be longer; what
    /// is not there is wrong.
    pub(super) fn read_frame(bytes: &[u8]) -> Result<(Header, &[u8]), &'static str> {
        let header = Header::read(bytes)?;
        let length = header.payload_bytes as usize;
        let padded = length.next_multiple_of(ALIGN);
        let Some(payload) = bytes[HEADER_BYTES..].get(..padded) else {
            return Err("the frame is longer than what holds it");
        };
        if crc32fast::hash(payload) != header.payload_crc {
            return Err("the payload's checksum does not match");
        }
        Ok((header, &payload[..length]))
    }
}

/// Appends a frame to `buffer`.
///
/// # Panics
///
/// When the payload is 4 GiB or more, which the log's limit excludes.
pub(super) fn push_frame(buffer: &mut Vec<u8>, header: Header, payload: &[u8]) {
    let begin = buffer.len();
    buffer.resize(begin + HEADER_BYTES, 0);
    buffer.extend_from_slice(payload);
    buffer.resize(begin + frame_bytes(payload.len()), 0);
    let header = Header {
        payload_bytes: u32::try_from(payload.len()).expect("a payload is bounded by the options"),
        payload_crc: crc32fast::hash(&buffer[begin + HEADER_BYTES..]),
        ..header
    };
    buffer[begin..begin + HEADER_BYTES].copy_from_slice(&header.to_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_frame_is_found() {
        let position = LogPosition {
            leader: LeaderId { term: 3, node: NodeId(2) },
            index: LogIndex(u64::MAX - 1),
        };
        let header = Header {
            tag: 0x0123_4567_89ab_cdef,
            sequence: 77,
            synced_upto: 70,
            segment: 5,
            ..Header::new(Kind::Entry, ShardId(513), position)
        };
        let mut frame = Vec::new();
        push_frame(&mut frame, header, b"eighteen");
        push_frame(&mut frame, header, b"nineteen.");
        let (read, payload) = Header::read_frame(&frame).expect("whole");
        assert_eq!((read.shard, read.position, read.sequence), (ShardId(513), position, 77));
        assert_eq!((read.segment, read.synced_upto, read.tag), (5, 70, header.tag));
        assert_eq!(payload, b"eighteen");
        let second = &frame[frame_bytes(8)..];
        assert_eq!(Header::read_frame(second).expect("whole").1, b"nineteen.");
        for bit in 0..second.len() * 8 {
            let mut bad = second.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::read_frame(&bad).is_err(), "flip of bit {bit}");
        }
        for length in 0..second.len() {
            assert!(Header::read_frame(&second[..length]).is_err(), "cut at {length}");
        }
    }
}
