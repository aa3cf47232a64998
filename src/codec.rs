//! The one envelope and the one bincode setting for disk and wire.
//!
//! Every record that leaves memory is a little-endian, fixed-width bincode value; unknown lengths
//! are bounded by the slice they come from, trailing bytes are an error. Records that stand alone
//! (identity, checkpoint headers, peer frames) travel in an envelope: magic, kind, schema version,
//! length, CRC32. A published struct is never edited: a new version gets a new struct.

use bincode::Options;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What was wrong with bytes that should have been a record.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The value does not decode, is longer than its limit, or has bytes behind it.
    #[error("not a valid record: {0}")]
    Bincode(#[from] bincode::Error),
    /// The envelope is too short, has the wrong magic or another kind.
    #[error("not a Holdfast envelope: {0}")]
    Envelope(&'static str),
    /// The envelope's kind is right and its schema version is not one this build reads.
    #[error("schema version {found} of kind {kind:#06x} is not known to this build")]
    Version {
        /// The envelope's kind.
        kind: u16,
        /// The version found.
        found: u16,
    },
    /// The checksum does not match the payload.
    #[error("checksum mismatch: the bytes are damaged")]
    Checksum,
}

/// The largest record that [`encode`] writes and [`decode`] reads, in bytes.
pub const RECORD_BYTES_MAX: u64 = 16 << 20;

fn options() -> impl Options {
    bincode::DefaultOptions::new()
        .with_fixint_encoding()
        .with_little_endian()
        .reject_trailing_bytes()
        .with_limit(RECORD_BYTES_MAX)
}

/// Encodes a value.
///
/// # Errors
///
/// [`CodecError::Bincode`] when it is larger than [`RECORD_BYTES_MAX`].
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    Ok(options().serialize(value)?)
}

/// Encodes a value behind the bytes that are there already.
///
/// # Errors
///
/// [`CodecError::Bincode`] when it is larger than [`RECORD_BYTES_MAX`]; `bytes` may then end in a
/// part of it.
pub fn encode_into<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), CodecError> {
    Ok(options().serialize_into(bytes, value)?)
}

/// Decodes a value from exactly these bytes.
///
/// # Errors
///
/// [`CodecError::Bincode`] when the bytes are not one such value and nothing else.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
    Ok(options().deserialize(bytes)?)
}

/// Decodes a value that owns what it has from the front of these bytes, and leaves what is behind
/// it.
///
/// # Errors
///
/// [`CodecError::Bincode`] when the bytes do not begin with such a value.
pub fn decode_front<T: DeserializeOwned>(bytes: &mut &[u8]) -> Result<T, CodecError> {
    Ok(options().allow_trailing_bytes().deserialize_from(bytes)?)
}

/// The first four bytes of every envelope.
pub const MAGIC: [u8; 4] = *b"HLDF";
/// Magic, kind, version, length and CRC32 of the payload.
pub const ENVELOPE_HEADER_BYTES: usize = 4 + 2 + 2 + 4 + 4;

/// Wraps a payload in an envelope.
///
/// # Panics
///
/// When the payload is longer than 4 GiB, which [`RECORD_BYTES_MAX`] excludes.
pub fn seal(kind: u16, version: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload is bounded by RECORD_BYTES_MAX");
    let mut bytes = Vec::with_capacity(ENVELOPE_HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Opens an envelope that must fill `bytes` exactly, and returns its payload.
///
/// # Errors
///
/// [`CodecError`] naming the first thing that is wrong.
pub fn open(kind: u16, version: u16, bytes: &[u8]) -> Result<&[u8], CodecError> {
    let Some((header, payload)) = bytes.split_at_checked(ENVELOPE_HEADER_BYTES) else {
        return Err(CodecError::Envelope("shorter than its header"));
    };
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let u32_at = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if header[..4] != MAGIC {
        return Err(CodecError::Envelope("wrong magic"));
    }
    if u16_at(4) != kind {
        return Err(CodecError::Envelope("another kind of record"));
    }
    if u16_at(6) != version {
        return Err(CodecError::Version { kind, found: u16_at(6) });
    }
    if u32_at(8) as usize != payload.len() {
        return Err(CodecError::Envelope("its length does not match"));
    }
    if u32_at(12) != crc32fast::hash(payload) {
        return Err(CodecError::Checksum);
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_byte_and_every_cut_of_an_envelope_is_found() {
        let sealed = seal(7, 1, b"eighteen units of x");
        assert_eq!(open(7, 1, &sealed).expect("whole"), b"eighteen units of x");
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 0x10;
            assert!(open(7, 1, &bad).is_err(), "flip at {at}");
            assert!(open(7, 1, &sealed[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_record_with_bytes_behind_it_is_refused() {
        let mut bytes = encode(&(1_u64, 2_u64)).expect("small");
        bytes.push(0);
        assert!(decode::<(u64, u64)>(&bytes).is_err());
    }

    #[test]
    fn a_hostile_length_allocates_nothing() {
        let bytes = u64::MAX.to_le_bytes();
        assert!(decode::<Vec<u8>>(&bytes).is_err());
    }
}
