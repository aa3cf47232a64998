//! An item as one shard knows it: its definition, and on the home shard its total, its layout and
//! the receipts of its adjustments.
//!
//! Invariants: `rules` and `keys` say what the record and the adjustments say; a retired item has
//! no name. Never counts units: that is its buckets' part.

use std::collections::BTreeMap;
use std::sync::Arc;

use bincode::Options;
use serde::{Deserialize, Serialize};

use super::answer::{BucketPlacement, CopyView, ItemView, RegionInfo};
use super::command::{Change, Definition, LowerBegin, Mode, RegionPlan};
use super::ids::{BucketId, ItemName, ItemNumber, RegionOrdinal, ShardId, UnixMs};
use super::record::RuleSet;

/// An item as a shard names it: the home shard gave the number.
pub(super) type ItemKey = (ShardId, ItemNumber);

/// Receipts of adjustments a page.
pub(super) const ADJUSTMENTS_PER_PAGE: u64 = 16;

/// What is written of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ItemRecord {
    /// Its name.
    pub(super) name: ItemName,
    /// The definition from now on.
    pub(super) definition: Definition,
    /// At home it changes with every definition, total, mode or layout; a copy's is that of home
    /// when home made its image.
    pub(super) revision: u64,
    /// What its buyers may do.
    pub(super) mode: Mode,
    /// Whether a law was found broken.
    pub(super) invariant_broken: bool,
    /// Deleted: its name is free, and its records are being erased.
    pub(super) retired: bool,
    /// A deleted copy is remembered until then, so that late messages do not bring it back.
    pub(super) erase_after: UnixMs,
    /// The greatest lifetime that any of its holds was ever allowed, in ms.
    pub(super) lifetime_ms_ever: u64,
    /// Its regions, as far as this shard knows them.
    pub(super) regions: Vec<Region>,
    /// Where its buckets live, as far as this shard knows.
    pub(super) layout: Vec<BucketPlacement>,
    /// Ledger time of its creation here.
    pub(super) created_at: UnixMs,
    /// What only the home shard knows.
    pub(super) home: Option<Home>,
}

/// A region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Region {
    pub(super) ordinal: RegionOrdinal,
    pub(super) name: Arc<str>,
    pub(super) default: bool,
    /// It takes no more holds.
    pub(super) closed: bool,
    /// Floor that home has granted to its first bucket in all.
    pub(super) floor: u64,
    /// Floor that home has taken back while it was elsewhere: its first bucket gives it up as it
    /// arrives. Zero unless that bucket is here.
    pub(super) owed: u64,
}

impl Region {
    /// A region as it begins.
    pub(super) fn new(info: &RegionInfo) -> Region {
        let RegionInfo { ordinal, name, default, closed, floor } = info.clone();
        Region { ordinal, name: name.into(), default, closed, floor, owed: 0 }
    }

    /// As callers see it.
    pub(super) fn info(&self) -> RegionInfo {
        let Region { ordinal, name, default, closed, floor, owed: _ } = self.clone();
        RegionInfo { ordinal, name: (*name).to_owned(), default, closed, floor }
    }
}

/// The home shard's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Home {
    /// Units that exist.
    pub(super) total: u64,
    /// Regions as they are planned.
    pub(super) plans: BTreeMap<String, RegionPlan>,
    /// The revision that every copy must have: the last change of definition, mode or layout.
    pub(super) config: u64,
    /// What the copies have answered, by shard; those that are not erased yet.
    pub(super) copies: Vec<CopyView>,
    /// The lowering that is under way.
    pub(super) lowering: Option<Lowering>,
    /// The deletion that is under way: the mode before it.
    pub(super) deleting: Option<Mode>,
    /// The number of the next adjustment's receipt.
    pub(super) next_adjustment: u64,
}

/// A lowering of the total that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lowering {
    pub(super) begin: LowerBegin,
    /// Units that it needs.
    pub(super) units: u64,
    /// The region whose quota falls with them.
    pub(super) region: Option<String>,
}

/// The receipt of an adjustment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Adjustment {
    pub(super) key: String,
    pub(super) change: Change,
    pub(super) reason: String,
    pub(super) at: UnixMs,
}

/// An item with what is derived from it.
#[derive(Debug)]
pub(super) struct Item {
    /// What is written.
    pub(super) record: ItemRecord,
    /// The rules of holds placed from now on.
    pub(super) rules: Arc<RuleSet>,
    /// Receipts of adjustments by number.
    pub(super) adjustments: BTreeMap<u64, Adjustment>,
    /// Receipts of adjustments by key.
    pub(super) keys: BTreeMap<String, u64>,
    /// Hash of the record as the digest has it.
    pub(super) hashed: u128,
    /// Whether this entry has changed it.
    pub(super) touched: bool,
}

impl Item {
    /// An item of this record.
    pub(super) fn new(record: ItemRecord) -> Item {
        let rules = rules_of(&record.definition);
        Item {
            record,
            rules,
            adjustments: BTreeMap::new(),
            keys: BTreeMap::new(),
            hashed: 0,
            touched: false,
        }
    }

    /// The region of this name, or the default one.
    pub(super) fn region(&self, name: Option<&str>) -> Option<&Region> {
        self.record.regions.iter().find(|region| match name {
            Some(name) => *region.name == *name,
            None => region.default,
        })
    }

    /// The name of a region.
    pub(super) fn region_name(&self, ordinal: RegionOrdinal) -> Arc<str> {
        let found = self.region_of(ordinal);
        found.map_or_else(|| Arc::from(""), |region| Arc::clone(&region.name))
    }

    /// Takes a definition.
    pub(super) fn define(&mut self, definition: Definition) {
        self.rules = rules_of(&definition);
        self.record.lifetime_ms_ever =
            self.record.lifetime_ms_ever.max(definition.rules.lifetime_ms_max);
        self.record.definition = definition;
    }

    /// Counts a change.
    pub(super) fn revise(&mut self) {
        self.record.revision = self.record.revision.saturating_add(1);
    }

    /// Counts a change that every copy has to learn.
    pub(super) fn revise_copies(&mut self) {
        self.revise();
        let revision = self.record.revision;
        if let Some(home) = &mut self.record.home {
            home.config = revision;
        }
    }

    /// The region of that ordinal.
    pub(super) fn region_of(&self, ordinal: RegionOrdinal) -> Option<&Region> {
        self.record.regions.iter().find(|region| region.ordinal == ordinal)
    }

    /// Where a bucket lives.
    pub(super) fn placement(&self, bucket: BucketId) -> Option<&BucketPlacement> {
        self.record.layout.iter().find(|placement| placement.bucket == bucket)
    }

    /// A region's first bucket, which its floor is granted to.
    pub(super) fn first_of(&self, region: RegionOrdinal) -> Option<&BucketPlacement> {
        self.record.layout.iter().find(|placement| placement.region == region)
    }

    /// Floor that a bucket owes: only its region's first one does.
    pub(super) fn floor_owed(&self, bucket: BucketId, region: RegionOrdinal) -> u64 {
        let first = self.first_of(region).filter(|first| first.bucket == bucket);
        first.and_then(|_| self.region_of(region)).map_or(0, |region| region.owed)
    }

    /// A bucket's place among its region's, and how many they are.
    pub(super) fn place_in_region(&self, placement: &BucketPlacement) -> (u16, u16) {
        let of_region = self.record.layout.iter().filter(|other| other.region == placement.region);
        of_region.fold((0_u16, 0_u16), |(place, places), other| {
            let before = u16::from(other.bucket < placement.bucket);
            (place.saturating_add(before), places.saturating_add(1))
        })
    }

    /// Whether its home shard's leader has something to repeat for it.
    pub(super) fn is_driven(&self) -> bool {
        let Some(home) = &self.record.home else { return false };
        if self.record.retired {
            return !home.copies.is_empty();
        }
        let behind = home.copies.iter().any(|copy| copy.revision < home.config);
        behind || home.lowering.is_some() || home.deleting.is_some()
    }

    /// As callers see it; `None` away from home.
    pub(super) fn view(&self, key: ItemKey) -> Option<ItemView> {
        let home = self.record.home.as_ref()?;
        Some(ItemView {
            name: self.record.name.clone(),
            number: key.1,
            home: key.0,
            total: home.total,
            revision: self.record.revision,
            mode: self.record.mode,
            invariant_broken: self.record.invariant_broken,
            definition: self.record.definition.clone(),
            default_region: self.region(None).map_or_else(String::new, |r| (*r.name).to_owned()),
            regions: home.plans.clone(),
            buckets: self.record.layout.clone(),
            created_at: self.record.created_at,
            region_list: self.record.regions.iter().map(Region::info).collect(),
            config: home.config,
            copies: home.copies.clone(),
            lowering: home.lowering.as_ref().map(|lowering| lowering.begin.clone()),
            deleting: home.deleting.is_some(),
        })
    }
}

fn rules_of(definition: &Definition) -> Arc<RuleSet> {
    Arc::new(RuleSet::new(&definition.rules, definition.limit_per_buyer))
}

fn options() -> impl Options {
    bincode::DefaultOptions::new()
        .with_varint_encoding()
        .reject_trailing_bytes()
        .with_limit(1 << 16)
}

/// Appends a record's bytes. The bounds of every field keep it below the limit; a record beyond it
/// could not be read back and is written empty, which a load refuses.
pub(super) fn encode<T: Serialize>(record: &T, out: &mut Vec<u8>) {
    if let Ok(bytes) = options().serialize(record) {
        out.extend_from_slice(&bytes);
    }
}

/// Reads a record's bytes.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    options().deserialize(bytes).ok()
}
