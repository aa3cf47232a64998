//! The frame: what one message looks like on the wire, and how it is read back.
//!
//! Header (24 bytes, little endian): magic `HLDP`, kind `u16`, role `u8`, zero `u8`, correlation
//! `u64`, length `u32`, CRC32 of those 20 bytes. Then the body, then the CRC32 of header checksum
//! and body together, so that no body passes under another header.
//!
//! A length is used only after the header's checksum held and it is within the lane's bound;
//! nothing is allocated for a frame before that. Bodies are handed out as slices of the read
//! buffer, not copied. A frame with anything wrong ends its connection; nothing is resynchronised.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The first four bytes of every frame.
pub(super) const MAGIC: [u8; 4] = *b"HLDP";
/// Bytes before the body.
pub(super) const HEADER_BYTES: usize = 24;
/// Bytes behind the body.
pub(super) const TRAILER_BYTES: usize = 4;
/// How much room a read is given, in bytes.
const READ_BYTES: usize = 64 << 10;
/// The least room that a read is still started with, in bytes.
const READ_BYTES_MIN: usize = 4 << 10;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The caller's first frame.
    Hello,
    /// The answering side accepts.
    Welcome,
    /// The answering side does not; the body is the reason. The connection ends.
    Refused,
    /// A call.
    Call,
    /// The service's answer to a call.
    Answer,
    /// The service did nothing; the body is the reason.
    Refusal,
    /// The service may have acted and has no answer; the body is the reason.
    Lost,
}

impl Role {
    fn code(self) -> u8 {
        match self {
            Role::Hello => 1,
            Role::Welcome => 2,
            Role::Refused => 3,
            Role::Call => 4,
            Role::Answer => 5,
            Role::Refusal => 6,
            Role::Lost => 7,
        }
    }

    fn from_code(code: u8) -> Option<Role> {
        [
            Role::Hello,
            Role::Welcome,
            Role::Refused,
            Role::Call,
            Role::Answer,
            Role::Refusal,
            Role::Lost,
        ]
        .into_iter()
        .find(|role| role.code() == code)
    }
}

/// What stands before the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) role: Role,
    pub(super) kind: u16,
    pub(super) correlation: u64,
    /// Bytes of the body.
    pub(super) length: u32,
}

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("wrong magic")]
    Magic,
    #[error("the header's checksum does not match")]
    HeaderChecksum,
    #[error("unknown role {0}")]
    Role(u8),
    #[error("a role that has no place here: {0:?}")]
    Misplaced(Role),
    #[error("a body of {bytes} bytes where {limit} are allowed")]
    TooLong { bytes: usize, limit: usize },
    #[error("the body's checksum does not match")]
    Checksum,
    #[error("a frame that was not finished in time")]
    Stalled,
    #[error("the connection ended inside a frame")]
    Cut,
    #[error("the connection ended")]
    Ended,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl FrameError {
    /// Whether the peer sent something that no peer sends, rather than going away.
    pub(super) fn is_bad_input(&self) -> bool {
        match self {
            FrameError::Magic
            | FrameError::HeaderChecksum
            | FrameError::Role(_)
            | FrameError::Misplaced(_)
            | FrameError::TooLong { .. }
            | FrameError::Checksum
            | FrameError::Stalled => true,
            FrameError::Cut | FrameError::Ended | FrameError::Io(_) => false,
        }
    }
}

impl Header {
    /// Returns the header's bytes, its checksum last.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[6] = self.role.code();
        bytes[8..16].copy_from_slice(&self.correlation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header and checks everything in it, the length last.
    ///
    /// # Errors
    ///
    /// [`FrameError`] naming the first thing that is wrong.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES], limit: usize) -> Result<Header, FrameError> {
        let (fields, checksum) = bytes.split_at(HEADER_BYTES - 4);
        if fields[..4] != MAGIC {
            return Err(FrameError::Magic);
        }
        let mut checksum = checksum;
        if checksum.get_u32_le() != crc32fast::hash(fields) {
            return Err(FrameError::HeaderChecksum);
        }
        let mut fields = &fields[4..];
        let kind = fields.get_u16_le();
        let (role, zero) = (fields.get_u8(), fields.get_u8());
        let role = Role::from_code(role).filter(|_| zero == 0).ok_or(FrameError::Role(role))?;
        let header =
            Header { role, kind, correlation: fields.get_u64_le(), length: fields.get_u32_le() };
        if header.length as usize > limit {
            return Err(FrameError::TooLong { bytes: header.length as usize, limit });
        }
        Ok(header)
    }

    /// Returns the frame's length on the wire, in bytes.
    fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.length as usize + TRAILER_BYTES
    }
}

/// Returns the checksum that stands behind a body.
pub(super) fn body_checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[HEADER_BYTES - 4..]);
    hasher.update(body);
    hasher.finalize()
}

/// One message.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) role: Role,
    pub(super) kind: u16,
    pub(super) correlation: u64,
    pub(super) body: Bytes,
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub(super) struct FrameReader {
    buffer: BytesMut,
    limit: usize,
    /// The header of the frame at the front, once it is known to be good.
    header: Option<Header>,
}

impl FrameReader {
    /// Makes a reader of frames with bodies of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> FrameReader {
        FrameReader { buffer: BytesMut::new(), limit, header: None }
    }

    /// Whether the first bytes of a frame are here and its last are not.
    pub(super) fn is_inside_frame(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Returns the next frame that is here as a whole.
    ///
    /// # Errors
    ///
    /// [`FrameError`]: the stream is of no use from here on.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.buffer.first_chunk::<HEADER_BYTES>() else {
                    return self.check_magic();
                };
                *self.header.insert(Header::decode(bytes, self.limit)?)
            }
        };
        if self.buffer.len() < header.frame_bytes() {
            return Ok(None);
        }
        self.header = None;
        let frame = self.buffer.split_to(header.frame_bytes()).freeze();
        let end = HEADER_BYTES + header.length as usize;
        let mut trailer = &frame[end..];
        if trailer.get_u32_le() != body_checksum(&frame[..HEADER_BYTES], &frame[HEADER_BYTES..end])
        {
            return Err(FrameError::Checksum);
        }
        let Header { role, kind, correlation, length: _ } = header;
        Ok(Some(Frame { role, kind, correlation, body: frame.slice(HEADER_BYTES..end) }))
    }

    /// Refuses a stranger at its first wrong byte instead of waiting for a whole header.
    fn check_magic(&self) -> Result<Option<Frame>, FrameError> {
        let known = self.buffer.len().min(MAGIC.len());
        if self.buffer[..known] == MAGIC[..known] { Ok(None) } else { Err(FrameError::Magic) }
    }

    /// Reads once from `socket` and returns how many bytes came, at least one.
    ///
    /// # Errors
    ///
    /// [`FrameError::Ended`] or [`FrameError::Cut`] at the end of the stream, [`FrameError::Io`].
    pub(super) fn poll_fill<S>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
    ) -> Poll<Result<usize, FrameError>>
    where
        S: AsyncRead + Unpin,
    {
        let missing = match &self.header {
            Some(header) => header.frame_bytes().saturating_sub(self.buffer.len()),
            None => 0,
        };
        if self.buffer.capacity() - self.buffer.len() < missing.max(READ_BYTES_MIN) {
            self.buffer.reserve(missing.max(READ_BYTES));
        }
        let read = {
            let mut reading = pin!(socket.read_buf(&mut self.buffer));
            Pin::as_mut(&mut reading).poll(cx)
        };
        match read {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(FrameError::Io(error))),
            Poll::Ready(Ok(0)) if self.is_inside_frame() => Poll::Ready(Err(FrameError::Cut)),
            Poll::Ready(Ok(0)) => Poll::Ready(Err(FrameError::Ended)),
            Poll::Ready(Ok(bytes)) => Poll::Ready(Ok(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outbox::Outbox;
    use super::*;

    fn reader_of(bytes: &[u8], limit: usize) -> FrameReader {
        let mut reader = FrameReader::new(limit);
        reader.buffer.extend_from_slice(bytes);
        reader
    }

    fn bytes_of(role: Role, kind: u16, correlation: u64, body: &'static [u8]) -> Vec<u8> {
        let mut outbox = Outbox::new();
        outbox.push(role, kind, correlation, Bytes::from_static(body));
        outbox.into_bytes()
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_found_and_no_prefix_is_a_frame() {
        let whole = bytes_of(Role::Call, 7, 42, b"eighteen units of x");
        let frame = reader_of(&whole, 64).next_frame().expect("good").expect("whole");
        assert_eq!((frame.role, frame.kind, frame.correlation), (Role::Call, 7, 42));
        assert_eq!(&frame.body[..], b"eighteen units of x");
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bad = whole.clone();
                bad[at] ^= 1 << bit;
                assert!(reader_of(&bad, 64).next_frame().is_err(), "byte {at} bit {bit}");
            }
            assert!(reader_of(&whole[..at], 64).next_frame().expect("prefix").is_none(), "{at}");
        }
    }

    #[test]
    fn a_length_above_the_bound_is_refused_before_a_byte_of_the_body_is_awaited() {
        let header = Header { role: Role::Call, kind: 1, correlation: 1, length: u32::MAX };
        let mut reader = reader_of(&header.encode(), 1 << 20);
        let before = reader.buffer.capacity();
        let error = reader.next_frame().expect_err("too long");
        assert!(matches!(error, FrameError::TooLong { limit: 1_048_576, .. }), "{error}");
        assert_eq!(reader.buffer.capacity(), before);
    }

    #[test]
    fn a_body_does_not_pass_under_another_header() {
        let one = bytes_of(Role::Call, 7, 1, b"two units");
        let two = bytes_of(Role::Call, 7, 2, b"six units");
        let mut mixed = one[..HEADER_BYTES].to_vec();
        mixed.extend_from_slice(&two[HEADER_BYTES..]);
        let error = reader_of(&mixed, 64).next_frame().expect_err("mixed");
        assert!(matches!(error, FrameError::Checksum), "{error}");
    }

    #[test]
    fn a_stranger_is_known_by_its_first_byte() {
        let error = reader_of(b"G", 64).next_frame().expect_err("http");
        assert!(matches!(error, FrameError::Magic), "{error}");
    }
}
