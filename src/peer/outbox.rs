//! What waits to be written on one connection. Everything that is here goes out together: small
//! frames are joined into one buffer, large bodies travel beside it without being copied.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use super::counters::{Counters, add};
use super::frame::{HEADER_BYTES, Header, Role, TRAILER_BYTES, body_checksum};

/// A body above this many bytes is not copied into the common buffer.
const COPY_BYTES_MAX: usize = 8 << 10;
/// Slices handed to one write.
const SLICES_MAX: usize = 32;
/// Above this many waiting bytes nothing more is added.
const FULL_BYTES: usize = 256 << 10;

/// The frames that wait to be written on one connection.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    tail: BytesMut,
    segments: VecDeque<Bytes>,
    waiting: usize,
    /// Bytes ever put in, and bytes ever taken by the socket.
    pushed: u64,
    written: u64,
}

impl Outbox {
    /// Makes an empty one.
    pub(super) fn new() -> Outbox {
        Outbox::default()
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether so much waits that nothing should be added.
    pub(super) fn is_full(&self) -> bool {
        self.waiting >= FULL_BYTES
    }

    /// Returns how many bytes the socket has taken since the connection began.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Adds a frame and returns the position in the stream of its end: the peer can have the frame
    /// only when [`written`](Outbox::written) has reached it.
    ///
    /// # Panics
    ///
    /// When the body is 4 GiB or longer, which every lane's bound excludes.
    pub(super) fn push(&mut self, role: Role, kind: u16, correlation: u64, body: Bytes) -> u64 {
        let length = u32::try_from(body.len()).expect("a lane's bound is below 4 GiB");
        let bytes = HEADER_BYTES + body.len() + TRAILER_BYTES;
        let header = Header { role, kind, correlation, length }.encode();
        let checksum = body_checksum(&header, &body);
        self.tail.put_slice(&header);
        if body.len() <= COPY_BYTES_MAX {
            self.tail.put_slice(&body);
        } else {
            self.seal();
            self.segments.push_back(body);
        }
        self.tail.put_u32_le(checksum);
        self.waiting += bytes;
        self.pushed += bytes as u64;
        self.pushed
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.segments.push_back(self.tail.split().freeze());
        }
    }

    /// Writes until nothing waits.
    ///
    /// # Errors
    ///
    /// The socket's.
    pub(super) fn poll_write<S>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
        counters: &Counters,
    ) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        self.seal();
        while !self.segments.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slot, segment) in slices.iter_mut().zip(&self.segments) {
                *slot = IoSlice::new(segment);
                count += 1;
            }
            let taken = ready!(Pin::new(&mut *socket).poll_write_vectored(cx, &slices[..count]))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            add(&counters.writes, 1);
            add(&counters.bytes_out, taken as u64);
            self.advance(taken);
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, taken: usize) {
        self.written += taken as u64;
        self.waiting -= taken;
        let mut rest = taken;
        while rest > 0 {
            let front = self.segments.front_mut().expect("no more is taken than was waiting");
            if front.len() > rest {
                front.advance(rest);
                return;
            }
            rest -= front.len();
            self.segments.pop_front();
        }
    }

    /// Returns everything that waits as bytes.
    #[cfg(test)]
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.seal();
        self.segments.iter().flatten().copied().collect()
    }
}
