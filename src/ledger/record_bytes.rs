//! A record as bytes: what is kept in memory, written to pages, and hashed for the digest.
//!
//! The form: a byte of standing and marks, the texts' lengths (one byte each; the reference's only
//! under its mark), the texts, quantity, placement, life (deadline less placement), the lifetime
//! asked for unless it is the life, revision, the rules, and unless the record is plain: units sold
//! and confirmed, extensions, and the receipts of operations. Most records are plain and short,
//! which is why the form has marks: it is what memory holds.
//!
//! Promises: one record has one spelling, of at most `RECORD_BYTES_MAX` bytes, and what is read is
//! bounded by what is there. Never decides anything.

use super::bounds::REFERENCE_BYTES_MAX;
use super::encoding::{Reader, put_u64};
use super::record::{Asked, OPERATIONS_MAX, Operation, Record, RuleSet, Standing};

/// The most bytes of a record; eight of them and their headers fit a page.
#[cfg(test)]
pub(super) const RECORD_BYTES_MAX: usize = 2_000;

/// The bits of the first byte that are the standing.
pub(super) const STANDING: u8 = 0x07;
/// Its receipts are forgotten.
pub(super) const COMPACTED: u8 = 0x08;
/// A reference was given.
pub(super) const REFERENCE: u8 = 0x10;
/// Nothing was sold, confirmed, extended, or remembered.
pub(super) const PLAIN: u8 = 0x20;
/// The lifetime asked for is the life it has.
pub(super) const AS_ASKED: u8 = 0x40;
/// Of no meaning.
const UNUSED: u8 = 0x80;

/// The receipts of a record's operations, as they are written, and one that is not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operations<'a> {
    written: &'a [u8],
    count: usize,
    new: Option<Operation>,
}

impl<'a> Operations<'a> {
    /// No receipts.
    pub(super) const NONE: Operations<'static> = Operations { written: &[], count: 0, new: None };

    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.count.saturating_add(usize::from(self.new.is_some()))
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Operation> + use<'a> {
        let mut reader = Reader::new(self.written);
        let written = std::iter::from_fn(move || decode_operation(&mut reader));
        written.take(self.count).chain(self.new)
    }

    /// These and one more.
    pub(super) fn and(self, new: Operation) -> Operations<'a> {
        Operations { new: Some(new), ..self }
    }
}

impl<'a> Record<'a> {
    /// Appends its bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let operations = self.operations();
        let plain =
            (self.sold, self.confirmed, self.extends_used) == (0, 0, 0) && operations.len() == 0;
        let life = self.expires_at.wrapping_sub(self.placed_at);
        let as_asked = self.ttl_asked == life;
        let mark = |mark: u8, is: bool| if is { mark } else { 0 };
        out.push(
            self.standing as u8
                | mark(COMPACTED, self.compacted)
                | mark(REFERENCE, self.reference().is_some())
                | mark(PLAIN, plain)
                | mark(AS_ASKED, as_asked),
        );
        let (key, buyer) = (self.key(), self.buyer().unwrap_or_default());
        out.push(length(key));
        out.push(length(buyer));
        if let Some(reference) = self.reference() {
            out.push(length(reference));
        }
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(buyer.as_bytes());
        out.extend_from_slice(self.reference().unwrap_or_default().as_bytes());
        put_u64(out, self.quantity);
        put_u64(out, self.placed_at);
        put_u64(out, life);
        if !as_asked {
            put_u64(out, self.ttl_asked);
        }
        put_u64(out, self.revision);
        for value in [
            self.rules.ttl_ms(),
            self.rules.ttl_ms_max(),
            u64::from(self.rules.extends_max()),
            self.rules.lifetime_ms_max(),
            self.rules.limit.unwrap_or(0),
        ] {
            put_u64(out, value);
        }
        if !plain {
            put_u64(out, self.sold);
            put_u64(out, self.confirmed);
            put_u64(out, u64::from(self.extends_used));
            put_u64(out, operations.len() as u64);
            out.extend_from_slice(operations.written);
            if let Some(new) = &operations.new {
                encode_operation(new, out);
            }
        }
    }

    /// Reads its bytes; `None` when they are not the spelling of a record.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Record<'a>> {
        let mut reader = Reader::new(bytes);
        let head = reader.u8()?;
        let standing = standing(head & STANDING)?;
        let (key_length, buyer_length) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
        let has_reference = head & REFERENCE != 0;
        let reference_length = if has_reference { usize::from(reader.u8()?) } else { 0 };
        if head & UNUSED != 0 || key_length == 0 || reference_length > REFERENCE_BYTES_MAX {
            return None;
        }
        let length = key_length.saturating_add(buyer_length).saturating_add(reference_length);
        let text = std::str::from_utf8(reader.take(length)?).ok()?;
        let (key, text) = text.split_at_checked(key_length)?;
        let (buyer, reference) = text.split_at_checked(buyer_length)?;
        let (quantity, placed_at, life) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let ttl_asked =
            if head & AS_ASKED == 0 { reader.u64().filter(|asked| *asked != life)? } else { life };
        let revision = reader.u64()?;
        let (ttl, ttl_max) = (reader.u64()?, reader.u64()?);
        let extends_max = u32::try_from(reader.u64()?).ok()?;
        let (lifetime, limit) = (reader.u64()?, reader.u64()?);
        let rules = RuleSet {
            rules: (ttl, ttl_max, extends_max, lifetime),
            limit: (limit != 0).then_some(limit),
        };
        let buyer = Some(buyer).filter(|buyer| !buyer.is_empty());
        let reference = has_reference.then_some(reference);
        let mut record = Record::of(key, buyer, reference, rules, standing);
        record.quantity = quantity;
        record.placed_at = placed_at;
        record.expires_at = placed_at.wrapping_add(life);
        record.ttl_asked = ttl_asked;
        record.revision = revision;
        record.compacted = head & COMPACTED != 0;
        if head & PLAIN == 0 {
            record = record.decode_more(&mut reader)?;
        }
        reader.is_done().then_some(record)
    }

    /// Reads what a plain record does not have.
    fn decode_more(mut self, reader: &mut Reader<'a>) -> Option<Record<'a>> {
        self.sold = reader.u64()?;
        self.confirmed = reader.u64()?;
        self.extends_used = u16::try_from(reader.u64()?).ok()?;
        let count = usize::try_from(reader.u64()?).ok().filter(|count| *count <= OPERATIONS_MAX)?;
        if (self.sold, self.confirmed, self.extends_used, count) == (0, 0, 0, 0) {
            return None;
        }
        let written = reader.rest();
        for _ in 0..count {
            decode_operation(reader)?;
        }
        Some(self.with(Operations { written, count, new: None }))
    }
}

/// A text's length; a record's texts are cut to what a byte can tell.
fn length(text: &str) -> u8 {
    u8::try_from(text.len()).unwrap_or(u8::MAX)
}

/// The standing of a number.
pub(super) fn standing(number: u8) -> Option<Standing> {
    [
        Standing::Held,
        Standing::Sold,
        Standing::Released,
        Standing::Expired,
        Standing::Returned,
        Standing::Voided,
    ]
    .get(usize::from(number))
    .copied()
}

fn encode_operation(operation: &Operation, out: &mut Vec<u8>) {
    out.extend_from_slice(&operation.key.to_le_bytes());
    match operation.asked {
        Asked::Extend { ttl_ms } => {
            out.push(0);
            put_u64(out, ttl_ms);
        }
        Asked::Confirm { quantity, reacquire, reference } => {
            out.push(if reacquire { 2 } else { 1 });
            put_u64(out, quantity);
            put_u64(out, reference);
        }
        Asked::Release { reason } => {
            out.push(3);
            put_u64(out, reason);
        }
        Asked::Return { quantity } => {
            out.push(4);
            put_u64(out, quantity);
        }
    }
}

fn decode_operation(reader: &mut Reader<'_>) -> Option<Operation> {
    let key = reader.u128()?;
    let asked = match reader.u8()? {
        0 => Asked::Extend { ttl_ms: reader.u64()? },
        kind @ (1 | 2) => Asked::Confirm {
            quantity: reader.u64()?,
            reacquire: kind == 2,
            reference: reader.u64()?,
        },
        3 => Asked::Release { reason: reader.u64()? },
        4 => Asked::Return { quantity: reader.u64()? },
        _ => return None,
    };
    Some(Operation { key, asked })
}

#[cfg(test)]
mod tests {
    use super::super::command::HoldRules;
    use super::super::gist::Gist;
    use super::super::record::NewRecord;
    use super::*;

    fn written(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(&bytes), Some(*record));
        assert_eq!(Gist::read(&bytes), Some(Gist::of(record)));
        bytes
    }

    #[test]
    fn the_largest_record_keeps_within_its_share_of_a_page() {
        let text = "k".repeat(128);
        let rules = HoldRules {
            ttl_ms: u64::MAX,
            ttl_ms_max: u64::MAX,
            extends_max: u32::MAX,
            lifetime_ms_max: u64::MAX,
        };
        let rules = RuleSet::new(&rules, Some(u64::MAX));
        let mut record = Record::new(NewRecord {
            key: &text,
            buyer: Some(&text),
            reference: Some(&text),
            rules: &rules,
            quantity: u64::MAX,
            placed_at: u64::MAX,
            expires_at: u64::MAX - 1,
            ttl_asked: u64::MAX - 1,
            revision: u64::MAX,
            standing: Standing::Held,
        });
        record.sold = u64::MAX;
        record.confirmed = u64::MAX;
        record.extends_used = u16::MAX;
        let quantity = u64::MAX;
        let confirm = Asked::Confirm { quantity, reacquire: true, reference: u64::MAX };
        let mut bytes = Vec::new();
        for _ in 0..100 {
            let mut next = Record::decode(&bytes).unwrap_or(record);
            next.remember(Operation { key: u128::MAX, asked: confirm });
            let mut more = Vec::new();
            next.encode(&mut more);
            bytes = more;
        }
        let decoded = Record::decode(&bytes).expect("its own bytes");
        assert_eq!(decoded.operations().len(), OPERATIONS_MAX);
        assert_eq!(Gist::read(&bytes), Some(Gist::of(&decoded)));
        assert!(decoded.operations().iter().all(|operation| operation.asked == confirm));
        assert_eq!(decoded.with(Operations::NONE), record);
        assert!(bytes.len() <= RECORD_BYTES_MAX, "{}", bytes.len());
        for cut in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..cut]), None);
        }
    }

    #[test]
    fn every_mark_has_one_spelling_and_the_other_is_refused() {
        let rules = RuleSet { rules: (1, 2, 3, 4), limit: None };
        let mut record = Record::new(NewRecord {
            key: "k",
            buyer: None,
            reference: None,
            rules: &rules,
            quantity: 1,
            placed_at: 1_000,
            expires_at: 1_060,
            ttl_asked: 60,
            revision: 7,
            standing: Standing::Held,
        });
        let bytes = written(&record);
        assert_eq!(bytes[0], PLAIN | AS_ASKED);
        let mut plain_by_words = bytes.clone();
        plain_by_words[0] &= !PLAIN;
        plain_by_words.extend([0; 4]);
        assert_eq!(Record::decode(&plain_by_words), None);
        let mut asked_by_words = bytes.clone();
        asked_by_words[0] &= !AS_ASKED;
        // Behind head, two lengths, key, quantity, a placement of two bytes and the life.
        asked_by_words.insert(8, 60);
        assert_eq!(Record::decode(&asked_by_words), None);
        asked_by_words[8] = 61;
        let asked = Record::decode(&asked_by_words).expect("another lifetime was asked for");
        assert_eq!(asked.ttl_asked, 61);
        assert_eq!(written(&asked), asked_by_words);
        record.standing = Standing::Sold;
        record.sold = 1;
        assert_eq!(written(&record)[0] & PLAIN, 0);
        let unused = [&[bytes[0] | UNUSED], &bytes[1..]].concat();
        assert_eq!(Record::decode(&unused), None);
    }

    #[test]
    fn a_live_hold_is_small() {
        let rules = RuleSet { rules: (900_000, 900_000, 1, 1_800_000), limit: Some(4) };
        let (key, buyer) = ("bench-0123abcd-1234567", Some("b1234567"));
        let mut record = Record::of(key, buyer, None, rules, Standing::Held);
        record.quantity = 1;
        record.placed_at = 1_767_225_600_000;
        record.expires_at = record.placed_at + 900_000;
        record.revision = 1 << 20;
        assert!(written(&record).len() <= 64, "{}", written(&record).len());
    }
}
