//! One record of a slot: a hold, which is its own receipt, or a voided key.
//!
//! A record is kept as its bytes (`record_bytes.rs`), in the chunk that is its page
//! (`chunk.rs`): what is here is those bytes read, a view that borrows the texts, or what a
//! placement is about to write. Never decides anything.

use super::command::HoldRules;
use super::record_bytes::Operations;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record<'a> {
    key: &'a str,
    buyer: Option<&'a str>,
    reference: Option<&'a str>,
    /// The rules it got.
    pub(super) rules: RuleSet,
    /// Receipts of operations.
    operations: Operations<'a>,
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
    /// Where it stands.
    pub(super) standing: Standing,
    /// Whether its receipts are forgotten and only the sale is kept.
    pub(super) compacted: bool,
}

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
    pub(super) rules: &'a RuleSet,
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

impl<'a> Record<'a> {
    /// Makes a record. Texts longer than their bounds (which the ledger has checked) are cut off.
    pub(super) fn new(new: NewRecord<'a>) -> Record<'a> {
        Record {
            quantity: new.quantity,
            placed_at: new.placed_at,
            expires_at: new.expires_at,
            ttl_asked: new.ttl_asked,
            revision: new.revision,
            ..Record::of(new.key, new.buyer, new.reference, *new.rules, new.standing)
        }
    }

    /// A record of these texts that says nothing else.
    pub(super) fn of(
        key: &'a str,
        buyer: Option<&'a str>,
        reference: Option<&'a str>,
        rules: RuleSet,
        standing: Standing,
    ) -> Record<'a> {
        Record {
            key: cut(key),
            buyer: buyer.map(cut).filter(|buyer| !buyer.is_empty()),
            reference: reference.map(cut),
            rules,
            operations: Operations::NONE,
            quantity: 0,
            sold: 0,
            confirmed: 0,
            placed_at: 0,
            expires_at: 0,
            ttl_asked: 0,
            revision: 0,
            extends_used: 0,
            standing,
            compacted: false,
        }
    }

    /// The idempotency key.
    pub(super) fn key(&self) -> &'a str {
        self.key
    }

    /// The buyer, when one was named.
    pub(super) fn buyer(&self) -> Option<&'a str> {
        self.buyer
    }

    /// The caller's reference.
    pub(super) fn reference(&self) -> Option<&'a str> {
        self.reference
    }

    /// Whether it is the receipt of that buyer and key.
    pub(super) fn answers(&self, buyer: Option<&str>, key: &str) -> bool {
        self.key == key && self.buyer == buyer
    }

    /// Receipts of operations, oldest first.
    pub(super) fn operations(&self) -> Operations<'a> {
        self.operations
    }

    /// The same record with these receipts.
    pub(super) fn with(self, operations: Operations<'a>) -> Record<'a> {
        Record { operations, ..self }
    }

    /// Remembers an operation if there is room. One at a time: what was remembered before must
    /// have been written.
    pub(super) fn remember(&mut self, operation: Operation) {
        if self.operations.len() < OPERATIONS_MAX {
            self.operations = self.operations.and(operation);
        }
    }

    /// Forgets receipts, keeps the sale.
    pub(super) fn compact(&mut self) {
        self.operations = Operations::NONE;
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
}

/// As much of a text as its one byte of length can tell.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// The most bytes of a text, whatever its own bound is.
const TEXT_BYTES_MAX: usize = 255;
