//! Copies of an item on the other shards of its layout: how home makes them, how a shard takes
//! them, what home knows of their answers, and how they are erased.
//!
//! Promises: a copy takes only a greater revision than its own, so late and repeated images change
//! nothing; home counts only answers for the revision that it wants; a copy that was deleted is
//! remembered for a while, so that a late image does not bring it back.

use std::collections::BTreeSet;

use super::answer::{Answer, Refusal, RegionInfo};
use super::bounds::{self, Decided, invalid, refuse};
use super::command::{Configure, CopyAnswered, CopyState, EraseCopy, ItemRef, Mode};
use super::ids::{ShardId, UnixMs};
use super::item::{Item, ItemKey, ItemRecord, Region};
use super::layout::{BUCKETS_MAX, REGIONS_MAX};
use super::receipts::home_of;
use super::settle::law_holds;
use super::{BucketRef, Ledger};

impl Ledger {
    /// What another shard's copy must be now. `None` unless the item is at home here and has a
    /// bucket there.
    pub(super) fn image(&self, item: ItemRef, shard: ShardId) -> Option<Configure> {
        let key = (item.home, item.item);
        let found = self.items.get(&key).filter(|item| !item.record.retired)?;
        let home = found.record.home.as_ref()?;
        home.copies.iter().find(|copy| copy.shard == shard)?;
        Some(Configure {
            item,
            name: found.record.name.clone(),
            revision: home.config,
            mode: found.record.mode,
            definition: found.record.definition.clone(),
            regions: found.record.regions.iter().map(Region::info).collect(),
            layout: found.record.layout.clone(),
        })
    }

    /// What this shard's copy of an item is.
    pub(super) fn copy_state(&self, key: ItemKey, item: &Item) -> CopyState {
        if item.record.retired {
            return CopyState::Erased;
        }
        let now = self.books.now.0;
        let held = self.buckets_of(key).fold(0_u64, |sum, b| sum.saturating_add(b.live(now)));
        let ItemRecord { revision, mode, invariant_broken: broken, .. } = item.record;
        CopyState::Applied { revision, mode, held, broken }
    }

    pub(super) fn judge_configure(&self, configure: &Configure) -> Decided<()> {
        bounds::item_name(configure.name.borrowed())?;
        bounds::definition(&configure.definition)?;
        bounds_of_layout(configure, self.books.settings.shards)?;
        let ItemRef { home, item } = configure.item;
        if home == self.books.shard
            || home_of(configure.name.borrowed(), self.books.settings.shards) != home
        {
            return refuse(Refusal::NotOwner);
        }
        let key: ItemKey = (home, item);
        let Some(known) = self.items.get(&key) else {
            let later = self.names.get(&configure.name).is_some_and(|bound| bound.1 > item);
            return if later { Err(Box::new(Answer::Copy(CopyState::Erased))) } else { Ok(()) };
        };
        if known.record.name != configure.name {
            return invalid("name", "that number belongs to another item");
        }
        if known.record.retired || configure.revision <= known.record.revision {
            return Err(Box::new(Answer::Copy(self.copy_state(key, known))));
        }
        let goes_on = known.record.layout.iter().zip(&configure.layout).all(|(a, b)| a == b)
            && known.record.layout.len() <= configure.layout.len()
            && known.record.regions.iter().all(|was| {
                let same = |is: &&RegionInfo| is.ordinal == was.ordinal;
                configure.regions.iter().find(same).is_some_and(|is| *is.name == *was.name)
            });
        if !goes_on {
            return invalid("layout", "regions and buckets are only added");
        }
        Ok(())
    }

    pub(super) fn configure(&mut self, configure: &Configure) -> Answer {
        if let Err(answer) = self.judge_configure(configure) {
            return *answer;
        }
        let key: ItemKey = (configure.item.home, configure.item.item);
        if self.items.contains_key(&key) {
            self.touch_item(key);
        } else {
            self.add_item(
                key,
                ItemRecord {
                    name: configure.name.clone(),
                    definition: configure.definition.clone(),
                    revision: 0,
                    mode: Mode::Paused,
                    invariant_broken: false,
                    retired: false,
                    erase_after: UnixMs(0),
                    lifetime_ms_ever: 0,
                    regions: Vec::new(),
                    layout: Vec::new(),
                    created_at: self.books.now,
                    home: None,
                },
            );
        }
        let buckets: Vec<BucketRef> = self.buckets_of(key).map(|bucket| bucket.key).collect();
        if let Some(item) = self.items.get_mut(&key) {
            item.define(configure.definition.clone());
            item.record.revision = configure.revision;
            item.record.mode = configure.mode;
            // As at home: resuming ends a pause for a broken law once the equations hold.
            let holds = buckets.iter().filter_map(|key| self.buckets.get(key));
            if configure.mode == Mode::Open && holds.into_iter().all(|b| law_holds(b, item)) {
                item.record.invariant_broken = false;
            }
        }
        self.lay_out(key, &configure.regions, configure.layout.clone());
        match self.items.get(&key) {
            Some(item) => Answer::Copy(self.copy_state(key, item)),
            None => Answer::Refused(Refusal::NotOwner),
        }
    }

    /// Where the copy that has answered stands in the item's list.
    pub(super) fn judge_answered(&self, answered: &CopyAnswered) -> Decided<(ItemKey, usize)> {
        let key: ItemKey = (answered.item.home, answered.item.item);
        if key.0 != self.books.shard {
            return refuse(Refusal::NotOwner);
        }
        let noted = || Err(Box::new(Answer::Noted));
        let Some(item) = self.items.get(&key) else { return noted() };
        let Some(home) = &item.record.home else { return refuse(Refusal::NotOwner) };
        let found = home.copies.iter().position(|copy| copy.shard == answered.shard);
        let Some((at, copy)) = found.and_then(|at| Some((at, home.copies.get(at)?))) else {
            return noted();
        };
        let news = match answered.state {
            CopyState::Erased => item.record.retired,
            CopyState::Applied { revision, held, broken, .. } => {
                let differs = (held, broken) != (copy.held, copy.broken);
                let newer = revision > copy.revision || (revision == copy.revision && differs);
                newer && revision <= home.config && !item.record.retired
            }
        };
        if news { Ok((key, at)) } else { noted() }
    }

    pub(super) fn copy_answered(&mut self, answered: &CopyAnswered) -> Answer {
        let (key, at) = match self.judge_answered(answered) {
            Ok(found) => found,
            Err(answer) => return *answer,
        };
        self.touch_item(key);
        let Some(item) = self.items.get_mut(&key) else { return Answer::Noted };
        let Some(home) = &mut item.record.home else { return Answer::Noted };
        match answered.state {
            CopyState::Erased => drop(home.copies.remove(at)),
            CopyState::Applied { revision, held, broken, .. } => {
                if let Some(copy) = home.copies.get_mut(at) {
                    (copy.revision, copy.held, copy.broken) = (revision, held, broken);
                }
            }
        }
        let gone = item.record.retired && home.copies.is_empty();
        if gone && self.buckets_of(key).next().is_none() {
            self.erase_item(key);
        }
        Answer::Noted
    }

    pub(super) fn judge_erase(&self, erase: &EraseCopy) -> Decided<ItemKey> {
        let key: ItemKey = (erase.item.home, erase.item.item);
        if key.0 == self.books.shard {
            return refuse(Refusal::NotOwner);
        }
        match self.items.get(&key) {
            Some(item) if !item.record.retired => Ok(key),
            Some(_) | None => Err(Box::new(Answer::Copy(CopyState::Erased))),
        }
    }

    pub(super) fn erase_copy(&mut self, erase: &EraseCopy) -> Answer {
        match self.judge_erase(erase) {
            Err(answer) => *answer,
            Ok(key) => {
                let late = self.books.settings.sold_retention_ms;
                let erase_after = UnixMs(self.books.now.0.saturating_add(late));
                self.retire_item(key, erase_after);
                Answer::Copy(CopyState::Erased)
            }
        }
    }

    /// Deletes an item here: its name is free, its records are erased from now on, and what is left
    /// of it after `erase_after`.
    pub(super) fn retire_item(&mut self, key: ItemKey, erase_after: UnixMs) {
        self.touch_item(key);
        let Some(item) = self.items.get_mut(&key) else { return };
        item.record.retired = true;
        item.record.erase_after = erase_after;
        // A bucket of a later creation may have taken the name over.
        if self.names.get(&item.record.name) == Some(&key) {
            self.names.remove(&item.record.name);
        }
        let buckets: Vec<BucketRef> = self.buckets_of(key).map(|bucket| bucket.key).collect();
        for bucket in buckets {
            self.books.owing.remove(&bucket);
            self.schedule_forgetting(bucket);
        }
    }

    /// Takes an item without buckets out of the ledger.
    pub(super) fn erase_item(&mut self, key: ItemKey) {
        self.touch_item(key);
        self.books.driven.remove(&key);
        if let Some(item) = self.items.remove(&key) {
            self.books.digest.exchange(item.hashed, 0);
        }
    }
}

/// Whether an image makes sense by itself.
fn bounds_of_layout(configure: &Configure, shards: u16) -> Decided<()> {
    let (regions, layout) = (&configure.regions, &configure.layout);
    if regions.len() > REGIONS_MAX || layout.len() > BUCKETS_MAX {
        return invalid("layout", "has at most 16 regions and 256 buckets");
    }
    for region in regions {
        bounds::name("region", &region.name)?;
        bounds::stock("floor", region.floor)?;
    }
    let ordinals: BTreeSet<_> = regions.iter().map(|region| region.ordinal).collect();
    let names: BTreeSet<_> = regions.iter().map(|region| &region.name).collect();
    let buckets: BTreeSet<_> = layout.iter().map(|placement| placement.bucket).collect();
    let mut places = std::collections::BTreeMap::new();
    for placement in layout {
        let count: &mut u16 = places.entry(placement.region).or_default();
        *count = count.saturating_add(1);
    }
    let right = ordinals.len() == regions.len()
        && names.len() == regions.len()
        && buckets.len() == layout.len()
        && places.keys().all(|region| ordinals.contains(region))
        && places.values().all(|count| *count <= shards.max(1))
        && layout.iter().all(|placement| placement.shard.0 < shards.max(1));
    if right { Ok(()) } else { invalid("layout", "names a region, a bucket or a shard wrongly") }
}
