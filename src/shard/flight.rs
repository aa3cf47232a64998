//! What is in flight: keys whose outcome is not decided, and the units that they would take.
//!
//! A key leaves only when its entry is applied here, or an entry of a greater leader id is (then
//! the receipt decides); never because a deadline passed or a client went away.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_128;

use super::ask::Ask;
use crate::ledger::{BucketRef, Demand, HoldId, NameRef, Scope, ScopeRef};

/// Names a command's idempotency scope. Two commands with one name are one operation, so that only
/// one of them may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlightKey(u128);

/// Passes through a number that is a hash already, and spreads small ones.
#[derive(Debug, Default)]
pub(crate) struct Through(u64);

impl Hasher for Through {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }
}

type Fast = BuildHasherDefault<Through>;

/// The parts of a scope in a row, to be hashed in one go. Sound scopes fit without an allocation.
struct Parts(SmallVec<[u8; 704]>);

impl Parts {
    fn new(kind: u8) -> Parts {
        let mut bytes = SmallVec::new();
        bytes.push(kind);
        Parts(bytes)
    }

    /// Adds a part with its length, so that parts cannot run into each other.
    fn part(mut self, part: &str) -> Parts {
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(part.as_bytes());
        self
    }

    fn optional(mut self, part: Option<&str>) -> Parts {
        self.0.push(u8::from(part.is_some()));
        match part {
            Some(part) => self.part(part),
            None => self,
        }
    }

    fn item(self, name: NameRef<'_>) -> Parts {
        self.part(name.tenant).part(name.item)
    }

    fn hold(mut self, hold: &HoldId) -> Parts {
        for number in [hold.item.0, hold.sequence, hold.tag] {
            self.0.extend_from_slice(&number.to_le_bytes());
        }
        for number in [hold.home.0, hold.region.0, hold.bucket.0, hold.slot] {
            self.0.extend_from_slice(&number.to_le_bytes());
        }
        self
    }

    fn key(self) -> FlightKey {
        FlightKey(xxh3_128(&self.0))
    }
}

impl FlightKey {
    /// Names a scope in which only one command may be in flight; `None` for those that need none,
    /// because the ledger answers a second copy by state. A placing key needs a region:
    /// `default_region` tells the item's.
    pub(crate) fn of<'a>(
        scope: Scope<'_>,
        default_region: impl FnOnce(NameRef<'_>) -> Option<&'a str>,
    ) -> Option<FlightKey> {
        let parts = match scope {
            Scope::Placing(ScopeRef { name, region, buyer, key }) => {
                let parts = Parts::new(0).item(name);
                match region {
                    Some(region) => parts.part(region),
                    None => parts.part(default_region(name).unwrap_or_default()),
                }
                .optional(buyer)
                .part(key)
            }
            Scope::Hold { hold, key } => Parts::new(1).hold(hold).part(key),
            Scope::Adjustment { name, key } => Parts::new(2).item(name).part(key),
            Scope::Item(name) => Parts::new(3).item(name),
            Scope::State => return None,
        };
        Some(parts.key())
    }
}

/// Lets a thread that is not the shard's ask whether a key may be in flight: counts by hash, so a
/// `false` is certain and a `true` is a maybe.
#[derive(Debug)]
pub(crate) struct FlightBoard {
    cells: Box<[AtomicU32]>,
}

impl Default for FlightBoard {
    fn default() -> FlightBoard {
        FlightBoard { cells: (0..4096).map(|_| AtomicU32::new(0)).collect() }
    }
}

impl FlightBoard {
    fn cell(&self, key: FlightKey) -> &AtomicU32 {
        &self.cells[(key.0 >> 64) as usize % self.cells.len()]
    }

    /// Tells whether the key may be in flight.
    pub(crate) fn may_hold(&self, key: FlightKey) -> bool {
        self.cell(key).load(Ordering::Acquire) > 0
    }
}

/// What one admitted command keeps in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) key: Option<FlightKey>,
    pub(crate) demand: Demand,
}

/// Why a command cannot be admitted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// Units, or a buyer's count, that are in flight and may yet not commit.
    Units,
}

/// The in-flight table of one shard.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    keys: HashSet<FlightKey, Fast>,
    /// Those who wait for the outcome of a key, if any do.
    joined: HashMap<FlightKey, Vec<Ask>, Fast>,
    units: HashMap<BucketRef, u64, Fast>,
    buyers: HashMap<u64, u64, Fast>,
}

impl Flights {
    /// Tells whether a key is in flight.
    pub(crate) fn holds(&self, key: FlightKey) -> bool {
        self.keys.contains(&key)
    }

    /// Returns how many keys are in flight.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Lets a question wait for the outcome of the key that is in flight.
    pub(crate) fn join(&mut self, key: FlightKey, ask: Ask) {
        self.joined.entry(key).or_default().push(ask);
    }

    /// Weighs a demand against what is in flight.
    pub(crate) fn weigh(&self, demand: &Demand) -> Result<(), InTheWay> {
        if let Some(bucket) = &demand.bucket {
            let claimed = self.units.get(bucket).copied().unwrap_or(0);
            if demand.free.saturating_sub(claimed) < demand.quantity {
                return Err(InTheWay::Units);
            }
        }
        if let Some((buyer, left)) = demand.buyer {
            let claimed = self.buyers.get(&buyer).copied().unwrap_or(0);
            if left.saturating_sub(claimed) < demand.quantity {
                return Err(InTheWay::Units);
            }
        }
        Ok(())
    }

    /// Takes what an admitted command claims.
    pub(crate) fn take(&mut self, claim: &Claim, board: &FlightBoard) {
        if let Some(key) = claim.key {
            board.cell(key).fetch_add(1, Ordering::AcqRel);
            self.keys.insert(key);
        }
        if let Some(bucket) = claim.demand.bucket {
            *self.units.entry(bucket).or_default() += claim.demand.quantity;
        }
        if let Some((buyer, _)) = claim.demand.buyer {
            *self.buyers.entry(buyer).or_default() += claim.demand.quantity;
        }
    }

    /// Gives a claim back, since its command is decided, and returns those who waited for it.
    pub(crate) fn give_back(&mut self, claim: &Claim, board: &FlightBoard) -> Vec<Ask> {
        if let Some(bucket) = claim.demand.bucket
            && let Some(units) = self.units.get_mut(&bucket)
        {
            *units = units.saturating_sub(claim.demand.quantity);
            if *units == 0 {
                self.units.remove(&bucket);
            }
        }
        if let Some((buyer, _)) = claim.demand.buyer
            && let Some(units) = self.buyers.get_mut(&buyer)
        {
            *units = units.saturating_sub(claim.demand.quantity);
            if *units == 0 {
                self.buyers.remove(&buyer);
            }
        }
        let Some(key) = claim.key else { return Vec::new() };
        board.cell(key).fetch_sub(1, Ordering::AcqRel);
        self.keys.remove(&key);
        if self.joined.is_empty() {
            Vec::new()
        } else {
            self.joined.remove(&key).unwrap_or_default()
        }
    }
}
