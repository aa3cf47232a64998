//! One record of a slot: a hold, which is its own receipt, or a voided key.
//!
//! Promises: small in memory (the texts share one allocation, rules are shared), canonical as
//! bytes, and at most `RECORD_BYTES_MAX` of them. Never decides anything.

use std::sync::Arc;

use super::bounds::REFERENCE_BYTES_MAX;
use super::command::HoldRules;
use super::encoding::{Reader, put_bytes, put_u64};

/// The most bytes of an encoded record; eight of them and their headers fit a page.
#[cfg(test)]
pub(super) const RECORD_BYTES_MAX: usize = 2_000;
/// The most receipts of operations that one hold keeps.
pub(super) const OPERATIONS_MAX: usize = 40;
/// The most of them that extensions may use, so that the other operations find room.
pub(super) const EXTENSIONS_MAX: usize = 32;
/// From so many on, an operation that finds its work done leaves none, for the same reason.
pub(super) const FOUND_DONE_MAX: usize = 36;

/// Where a record stands, apart from time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Units are set aside; past its deadline it counts as expired, swept or not.
    Held,
    /// Units are sold.
    Sold,
    /// Given back, or released after it had expired: final.
    Released,
    /// Swept.
    Expired,
    /// All sold units came back.
    Returned,
    /// No hold: the key is void.
    Voided,
}

/// What a hold got at its placement and keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleSet {
    /// Lifetimes and extensions.
    pub(super) rules: HoldRulesKey,
    /// The buyer's limit.
    pub(super) limit: Option<u64>,
}

/// [`HoldRules`] as a sorted key: ttl, longest ttl, extensions, lifetime.
pub(super) type HoldRulesKey = (u64, u64, u32, u64);

impl RuleSet {
    /// The rules of a definition.
    pub(super) fn new(rules: &HoldRules, limit: Option<u64>) -> RuleSet {
        let rules = (rules.ttl_ms, rules.ttl_ms_max, rules.extends_max, rules.lifetime_ms_max);
        RuleSet { rules, limit }
    }

    /// Default lifetime in ms.
    pub(super) fn ttl_ms(&self) -> u64 {
        self.rules.0
    }

    /// Longest lifetime of one step in ms.
    pub(super) fn ttl_ms_max(&self) -> u64 {
        self.rules.1
    }

    /// Extensions allowed.
    pub(super) fn extends_max(&self) -> u32 {
        self.rules.2
    }

    /// Longest life in ms.
    pub(super) fn lifetime_ms_max(&self) -> u64 {
        self.rules.3
    }
}

/// The receipt of an operation on a hold. Texts are kept as keyed hashes: they are only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    /// Keyed hash of the idempotency key.
    pub(super) key: u128,
    /// What was asked.
    pub(super) asked: Asked,
}

/// What a keyed operation on a hold asked for; zero stands for what the caller left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// A later deadline.
    Extend {
        /// Lifetime in ms.
        ttl_ms: u64,
    },
    /// A sale.
    Confirm {
        /// Units.
        quantity: u64,
        /// Whether an expired hold may take stock again.
        reacquire: bool,
        /// Keyed hash of the reference.
        reference: u64,
    },
    /// An end.
    Release {
        /// Keyed hash of the reason.
        reason: u64,
    },
    /// Sold units back to stock.
    Return {
        /// Units.
        quantity: u64,
    },
}

impl Asked {
    /// The first field in which `self`, asked again, differs from what was asked before.
    pub(super) fn differs(&self, before: &Asked) -> Option<&'static str> {
        match (self, before) {
            (Asked::Extend { ttl_ms }, Asked::Extend { ttl_ms: was }) => {
                (ttl_ms != was).then_some("ttl_ms")
            }
            (
                Asked::Confirm { quantity, reacquire, reference },
                Asked::Confirm { quantity: was, reacquire: did, reference: said },
            ) => {
                if quantity != was {
                    Some("quantity")
                } else if reacquire != did {
                    Some("reacquire")
                } else {
                    (reference != said).then_some("reference")
                }
            }
            (Asked::Release { reason }, Asked::Release { reason: was }) => {
                (reason != was).then_some("reason")
            }
            (Asked::Return { quantity }, Asked::Return { quantity: was }) => {
                (quantity != was).then_some("quantity")
            }
            (
                Asked::Extend { .. }
                | Asked::Confirm { .. }
                | Asked::Release { .. }
                | Asked::Return { .. },
                _,
            ) => Some("operation"),
        }
    }
}

/// A hold or a voided key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Key, buyer and reference, one behind the other.
    text: Box<str>,
    /// The rules it got.
    pub(super) rules: Arc<RuleSet>,
    /// Receipts of operations; boxed twice so that a hold without any pays eight bytes.
    #[expect(clippy::box_collection, reason = "a thin pointer: most live holds have none")]
    operations: Option<Box<Vec<Operation>>>,
    /// Units it was placed for; zero for a void.
    pub(super) quantity: u64,
    /// Units that are sold now.
    pub(super) sold: u64,
    /// Units that were confirmed.
    pub(super) confirmed: u64,
    /// Ledger time of the placement or void.
    pub(super) placed_at: u64,
    /// The deadline.
    pub(super) expires_at: u64,
    /// The lifetime that the caller asked for, in ms; zero when none.
    pub(super) ttl_asked: u64,
    /// Log index of the last change by a command.
    pub(super) revision: u64,
    /// Extensions used.
    pub(super) extends_used: u16,
    key_length: u8,
    /// Zero: no buyer.
    buyer_length: u8,
    /// [`NO_REFERENCE`]: no reference.
    reference_length: u8,
    /// Where it stands.
    pub(super) standing: Standing,
    /// Whether its receipts are forgotten and only the sale is kept.
    pub(super) compacted: bool,
}

const NO_REFERENCE: u8 = u8::MAX;

/// What a placement, or a void, writes.
#[derive(Debug, Clone)]
pub(super) struct NewRecord<'a> {
    /// The idempotency key.
    pub(super) key: &'a str,
    /// The buyer.
    pub(super) buyer: Option<&'a str>,
    /// The reference.
    pub(super) reference: Option<&'a str>,
    /// The rules.
    pub(super) rules: Arc<RuleSet>,
    /// Units.
    pub(super) quantity: u64,
    /// Ledger time.
    pub(super) placed_at: u64,
    /// The deadline.
    pub(super) expires_at: u64,
    /// Lifetime asked for, or zero.
    pub(super) ttl_asked: u64,
    /// The log index.
    pub(super) revision: u64,
    /// Held or voided.
    pub(super) standing: Standing,
}

impl Record {
    /// Makes a record. Texts longer than their bounds (which the ledger has checked) are cut off.
    pub(super) fn new(new: NewRecord<'_>) -> Record {
        let buyer = new.buyer.unwrap_or_default();
        let reference = new.reference.unwrap_or_default();
        let mut text = String::with_capacity(
            new.key.len().saturating_add(buyer.len()).saturating_add(reference.len()),
        );
        text.push_str(new.key);
        text.push_str(buyer);
        text.push_str(reference);
        let length = |text: &str| u8::try_from(text.len()).unwrap_or(u8::MAX);
        Record {
            text: text.into_boxed_str(),
            rules: new.rules,
            operations: None,
            quantity: new.quantity,
            sold: 0,
            confirmed: 0,
            placed_at: new.placed_at,
            expires_at: new.expires_at,
            ttl_asked: new.ttl_asked,
            revision: new.revision,
            extends_used: 0,
            key_length: length(new.key),
            buyer_length: length(buyer),
            reference_length: new.reference.map_or(NO_REFERENCE, length),
            standing: new.standing,
            compacted: false,
        }
    }

    /// The idempotency key.
    pub(super) fn key(&self) -> &str {
        self.text.get(..usize::from(self.key_length)).unwrap_or_default()
    }

    /// The buyer, when one was named.
    pub(super) fn buyer(&self) -> Option<&str> {
        let start = usize::from(self.key_length);
        let end = start.saturating_add(usize::from(self.buyer_length));
        self.text.get(start..end).filter(|buyer| !buyer.is_empty())
    }

    /// The caller's reference.
    pub(super) fn reference(&self) -> Option<&str> {
        let start = usize::from(self.key_length).saturating_add(usize::from(self.buyer_length));
        (self.reference_length != NO_REFERENCE).then(|| self.text.get(start..).unwrap_or_default())
    }

    /// Whether it is the receipt of that buyer and key.
    pub(super) fn answers(&self, buyer: Option<&str>, key: &str) -> bool {
        self.key() == key && self.buyer() == buyer
    }

    /// Receipts of operations, oldest first.
    pub(super) fn operations(&self) -> &[Operation] {
        self.operations.as_ref().map_or(&[], |operations| operations.as_slice())
    }

    /// Remembers an operation if there is room.
    pub(super) fn remember(&mut self, operation: Operation) {
        let operations = self.operations.get_or_insert_default();
        if operations.len() < OPERATIONS_MAX {
            operations.push(operation);
        }
    }

    /// Forgets receipts, keeps the sale.
    pub(super) fn compact(&mut self) {
        self.operations = None;
        self.compacted = true;
    }

    /// Units that are set aside, due or not.
    pub(super) fn open(&self) -> u64 {
        match self.standing {
            Standing::Held => self.quantity,
            Standing::Sold
            | Standing::Released
            | Standing::Expired
            | Standing::Returned
            | Standing::Voided => 0,
        }
    }

    /// Whether it is held and its deadline has come.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.standing == Standing::Held && now >= self.expires_at
    }

    /// Where it stands at `now`: a due hold is an expired one.
    pub(super) fn standing_at(&self, now: u64) -> Standing {
        if self.is_due(now) { Standing::Expired } else { self.standing }
    }

    /// Appends its bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.standing as u8 | u8::from(self.compacted) << 7);
        out.push(self.key_length);
        out.push(self.buyer_length);
        out.push(self.reference_length);
        put_bytes(out, self.text.as_bytes());
        for value in [
            self.quantity,
            self.sold,
            self.confirmed,
            self.placed_at,
            self.expires_at,
            self.ttl_asked,
            self.revision,
            u64::from(self.extends_used),
            self.rules.ttl_ms(),
            self.rules.ttl_ms_max(),
            u64::from(self.rules.extends_max()),
            self.rules.lifetime_ms_max(),
            self.rules.limit.unwrap_or(0),
            self.operations().len() as u64,
        ] {
            put_u64(out, value);
        }
        for operation in self.operations() {
            encode_operation(operation, out);
        }
    }

    /// Reads its bytes; `intern` shares equal rules.
    pub(super) fn decode(
        bytes: &[u8],
        intern: &mut impl FnMut(RuleSet) -> Arc<RuleSet>,
    ) -> Option<Record> {
        let mut reader = Reader::new(bytes);
        let head = reader.u8()?;
        let standing = standing(head & 0x7f)?;
        let (key_length, buyer_length, reference_length) =
            (reader.u8()?, reader.u8()?, reader.u8()?);
        let text = std::str::from_utf8(reader.bytes()?).ok()?;
        let reference_bytes =
            if reference_length == NO_REFERENCE { 0 } else { usize::from(reference_length) };
        let before = usize::from(key_length).saturating_add(usize::from(buyer_length));
        if key_length == 0
            || text.len() != before.saturating_add(reference_bytes)
            || reference_bytes > REFERENCE_BYTES_MAX
            || !text.is_char_boundary(usize::from(key_length))
            || !text.is_char_boundary(before)
        {
            return None;
        }
        let mut values = [0_u64; 14];
        for value in &mut values {
            *value = reader.u64()?;
        }
        let [quantity, sold, confirmed, placed_at, expires_at, ttl_asked, revision, ..] = values;
        let [.., extends_used, ttl, ttl_max, extends_max, lifetime, limit, count] = values;
        let count = usize::try_from(count).ok().filter(|count| *count <= OPERATIONS_MAX)?;
        let mut operations = Vec::with_capacity(count);
        for _ in 0..count {
            operations.push(decode_operation(&mut reader)?);
        }
        if !reader.is_done() {
            return None;
        }
        Some(Record {
            text: text.into(),
            rules: intern(RuleSet {
                rules: (ttl, ttl_max, u32::try_from(extends_max).ok()?, lifetime),
                limit: (limit != 0).then_some(limit),
            }),
            operations: (count != 0).then(|| Box::new(operations)),
            quantity,
            sold,
            confirmed,
            placed_at,
            expires_at,
            ttl_asked,
            revision,
            extends_used: u16::try_from(extends_used).ok()?,
            key_length,
            buyer_length,
            reference_length,
            standing,
            compacted: head & 0x80 != 0,
        })
    }
}

fn standing(number: u8) -> Option<Standing> {
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
    use super::*;

    fn largest() -> Record {
        let text = "k".repeat(128);
        let rules = HoldRules {
            ttl_ms: u64::MAX,
            ttl_ms_max: u64::MAX,
            extends_max: u32::MAX,
            lifetime_ms_max: u64::MAX,
        };
        let mut record = Record::new(NewRecord {
            key: &text,
            buyer: Some(&text),
            reference: Some(&text),
            rules: Arc::new(RuleSet::new(&rules, Some(u64::MAX))),
            quantity: u64::MAX,
            placed_at: u64::MAX,
            expires_at: u64::MAX,
            ttl_asked: u64::MAX,
            revision: u64::MAX,
            standing: Standing::Held,
        });
        record.sold = u64::MAX;
        record.confirmed = u64::MAX;
        record.extends_used = u16::MAX;
        let (quantity, reference) = (u64::MAX, u64::MAX);
        let confirm = Asked::Confirm { quantity, reacquire: true, reference };
        record.remember(Operation { key: u128::MAX, asked: confirm });
        for _ in 0..100 {
            record.remember(Operation { key: u128::MAX, asked: Asked::Return { quantity } });
        }
        record
    }

    #[test]
    fn the_largest_record_keeps_within_its_share_of_a_page() {
        let record = largest();
        assert_eq!(record.operations().len(), OPERATIONS_MAX);
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert!(bytes.len() <= RECORD_BYTES_MAX, "{}", bytes.len());
        let decoded = Record::decode(&bytes, &mut Arc::new).expect("its own bytes");
        assert_eq!(decoded, record);
        for cut in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..cut], &mut Arc::new), None);
        }
    }

    #[test]
    fn a_live_hold_is_small() {
        assert!(size_of::<Option<Record>>() <= 96, "{}", size_of::<Option<Record>>());
    }
}
