//! How records become bytes: variable-length integers and length-prefixed byte strings.
//!
//! Promises: writing is canonical (one value, one spelling), reading is bounded by the slice and
//! refuses other spellings. Never allocates by a length that it has read.

/// Appends `value`, seven bits a byte, least significant first.
pub(super) fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the length of `bytes`, then `bytes`.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what the functions above wrote. Every method returns `None` when the bytes are not that.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Reads one byte.
    pub(super) fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Reads an integer.
    pub(super) fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.rest.split_first()?;
        if *first < 0x80 {
            self.rest = rest;
            return Some(u64::from(*first));
        }
        self.long()
    }

    fn long(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if (part << shift) >> shift != part {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                let canonical = byte != 0 || shift == 0;
                return canonical.then_some(value);
            }
        }
        None
    }

    /// Reads so many bytes.
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }

    /// Reads a length and that many bytes.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u64()?).ok()?;
        self.take(length)
    }

    /// Reads a little-endian 128-bit number.
    pub(super) fn u128(&mut self) -> Option<u128> {
        Some(u128::from_le_bytes(self.take(16)?.try_into().ok()?))
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything was read.
    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_spelling_and_overlong_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_u64(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.u64(), Some(value));
            assert!(reader.is_done());
        }
        assert_eq!(Reader::new(&[0x80, 0x00]).u64(), None, "zero in two bytes");
        assert_eq!(Reader::new(&[0xff; 10]).u64(), None, "beyond 64 bits");
        assert_eq!(Reader::new(&[0x80]).u64(), None, "cut short");
        let mut hostile = Vec::new();
        put_u64(&mut hostile, u64::MAX);
        assert_eq!(Reader::new(&hostile).bytes(), None);
    }
}
