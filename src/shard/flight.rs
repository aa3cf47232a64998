//! What is in flight: keys whose outcome is not decided, and the units that they would take.
//!
//! A key leaves only when its entry is applied here, or an entry of a greater leader id is (then
//! the receipt decides); never because a deadline passed or a client went away.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

use xxhash_rust::xxh3::Xxh3;

use super::ask::Ask;
use crate::ledger::{BucketRef, Command, Demand, ItemName};

/// Names a command's idempotency scope. Two commands with one name are one operation, so that only
/// one of them may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlightKey(u128);

/// Passes through a number that is a hash already.
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
        self.0 = number;
    }
}

type Fast = BuildHasherDefault<Through>;

struct KeyHasher(Xxh3);

impl KeyHasher {
    fn new(kind: u8) -> KeyHasher {
        let mut hasher = Xxh3::new();
        hasher.update(&[kind]);
        KeyHasher(hasher)
    }

    /// Adds a part with its length, so that parts cannot run into each other.
    fn part(mut self, part: &str) -> KeyHasher {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part.as_bytes());
        self
    }

    fn optional(self, part: Option<&str>) -> KeyHasher {
        match part {
            Some(part) => self.part("+").part(part),
            None => self.part("-"),
        }
    }

    fn item(self, name: &ItemName) -> KeyHasher {
        self.part(&name.tenant).part(&name.item)
    }

    fn key(self) -> FlightKey {
        FlightKey(self.0.digest128())
    }
}

impl FlightKey {
    /// Names the scope of a placement key. `region` is the region's name, never absent.
    pub(crate) fn place(
        name: &ItemName,
        region: &str,
        buyer: Option<&str>,
        key: &str,
    ) -> FlightKey {
        KeyHasher::new(0).item(name).part(region).optional(buyer).part(key).key()
    }

    /// Names a command's scope; `None` for those that need none, because the ledger answers a
    /// second copy by state.
    pub(crate) fn of(command: &Command, default_region: &str) -> Option<FlightKey> {
        let hold = |kind: u8, hold: &crate::ledger::HoldId, key: &str| {
            Some(KeyHasher::new(kind).part(&hold.to_string()).part(key).key())
        };
        match command {
            Command::Place(place) => {
                let region = place.region.as_deref().unwrap_or(default_region);
                Some(FlightKey::place(&place.name, region, place.buyer.as_deref(), &place.key))
            }
            Command::Void(void) => {
                let scope = &void.scope;
                let region = scope.region.as_deref().unwrap_or(default_region);
                Some(FlightKey::place(&scope.name, region, scope.buyer.as_deref(), &scope.key))
            }
            Command::Extend(op) => hold(1, &op.hold, &op.key),
            Command::Confirm(op) => hold(1, &op.hold, &op.key),
            Command::Release(op) => hold(1, &op.hold, &op.key),
            Command::Return(op) => hold(1, &op.hold, &op.key),
            Command::Adjust(adjust) => {
                Some(KeyHasher::new(2).item(&adjust.name).part(&adjust.key).key())
            }
            Command::Define(define) => Some(KeyHasher::new(3).item(&define.name).key()),
            Command::SetMode(mode) => Some(KeyHasher::new(3).item(&mode.name).key()),
            Command::Retire(retire) => Some(KeyHasher::new(3).item(&retire.name).key()),
            Command::Advance
            | Command::OpenBucket(_)
            | Command::SendStock(_)
            | Command::AcceptStock(_)
            | Command::SettleStock(_)
            | Command::DefineSpread(_)
            | Command::SetLayout(_)
            | Command::Configure(_)
            | Command::CopyAnswered(_)
            | Command::EraseCopy(_)
            | Command::LowerBegin(_)
            | Command::LowerCommit(_)
            | Command::LowerAbort(_)
            | Command::DeleteBegin(_)
            | Command::DeleteAbort(_)
            | Command::DeleteCommit(_)
            | Command::MoveStock(_) => None,
        }
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
    keys: HashMap<FlightKey, Vec<Ask>, Fast>,
    units: HashMap<BucketRef, u64, BuildHasherDefault<std::hash::DefaultHasher>>,
    buyers: HashMap<u64, u64, Fast>,
}

impl Flights {
    /// Tells whether a key is in flight.
    pub(crate) fn holds(&self, key: FlightKey) -> bool {
        self.keys.contains_key(&key)
    }

    /// Returns how many keys are in flight.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Lets a question wait for the outcome of the key that is in flight.
    pub(crate) fn join(&mut self, key: FlightKey, ask: Ask) {
        self.keys.entry(key).or_default().push(ask);
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
            self.keys.entry(key).or_default();
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
        self.keys.remove(&key).unwrap_or_default()
    }
}
