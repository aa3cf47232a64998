//! Conservation across shards, looked at whenever any shard applies an entry for the first time.
//!
//! Each shard's history is one; the witness keeps the newest state of each that any replica has
//! reached. A message about stock leaves a shard only after its entry was applied somewhere, so at
//! every such moment, with what is on its way counted once (S by the donor, R by the receiver):
//!
//! - each bucket: received + accepted = available + held + sold + written off + sent;
//! - each pair: S ≥ R ≥ A, and each of the three only grows;
//! - each item: the buckets and what is on its way sum to the total, and held + sold are no more.

use std::collections::BTreeMap;

use holdfast::ledger::{
    BucketId, Found, ItemName, ItemRef, Ledger, Levels, PairLevel, Query, ShardId,
};

use super::plan::ItemPlan;

/// The newest state of every shard.
#[derive(Default)]
pub(crate) struct Stocks {
    items: Vec<ItemStock>,
    /// The greatest index of each shard that was seen.
    newest: BTreeMap<ShardId, u64>,
    /// Entries seen for the first time.
    pub(crate) entries: u64,
    /// Times at which an item was summed up.
    pub(crate) sums: u64,
}

struct ItemStock {
    name: ItemName,
    number: Option<ItemRef>,
    shards: BTreeMap<ShardId, Levels>,
    pairs: BTreeMap<(BucketId, BucketId), Pair>,
}

/// The counters of an ordered pair, donor first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Pair {
    sent: u64,
    acked: u64,
    accepted: u64,
}

impl Stocks {
    /// Makes the books of a shop.
    pub(crate) fn of(items: &[ItemPlan]) -> Stocks {
        let items = items.iter().map(|item| ItemStock {
            name: ItemName { tenant: "default".to_owned(), item: item.name.clone() },
            number: None,
            shards: BTreeMap::new(),
            pairs: BTreeMap::new(),
        });
        Stocks { items: items.collect(), ..Stocks::default() }
    }

    /// Takes in a shard's state after an entry; only the first sight of it counts.
    ///
    /// # Errors
    ///
    /// The law that is broken.
    pub(crate) fn see(
        &mut self,
        shard: ShardId,
        index: u64,
        ledger: &Ledger,
    ) -> Result<(), String> {
        let newest = self.newest.entry(shard).or_default();
        if *newest >= index {
            return Ok(());
        }
        *newest = index;
        self.entries += 1;
        for item in &mut self.items {
            self.sums += u64::from(item.see(shard, ledger)?);
        }
        Ok(())
    }

    /// Units that ever went from one bucket to another.
    pub(crate) fn moved(&self) -> u64 {
        self.items.iter().flat_map(|item| item.pairs.values()).map(|pair| pair.accepted).sum()
    }
}

impl ItemStock {
    /// Returns whether there was anything to sum up.
    fn see(&mut self, shard: ShardId, ledger: &Ledger) -> Result<bool, String> {
        let Some(number) = self.number.or_else(|| find(ledger, &self.name)) else {
            return Ok(false);
        };
        self.number = Some(number);
        let Found::Levels(levels) = ledger.query(&Query::Levels(number)) else { return Ok(false) };
        let told = levels.clone();
        self.shards.insert(shard, levels);
        self.check(shard, &told).map_err(|law| {
            format!("{} at {shard:?}:{}: {law}: {:?}", self.name.item, told.applied, self.shards)
        })?;
        Ok(true)
    }

    fn check(&mut self, shard: ShardId, now: &Levels) -> Result<(), String> {
        if now.invariant_broken {
            return Err("the ledger itself found a broken law".to_owned());
        }
        for level in &self.shards[&shard].buckets {
            for known in &level.pairs {
                note(&mut self.pairs, level.bucket, known)?;
            }
        }
        let (mut units, mut taken) = (0, 0);
        for level in self.shards.values().flat_map(|one| &one.buckets) {
            let accepted: u64 = level.pairs.iter().map(|pair| pair.accepted).sum();
            let sent: u64 = level.pairs.iter().map(|pair| pair.sent).sum();
            let here = level.free + level.earmarked + level.held + level.sold;
            if level.received + accepted != here + level.written_off + sent {
                return Err(format!("the equation of bucket {} fails", level.bucket));
            }
            units += here;
            taken += level.held + level.sold;
        }
        let mut travelling = 0;
        for (pair, totals) in &self.pairs {
            if totals.sent < totals.accepted || totals.accepted < totals.acked {
                return Err(format!("the totals of {pair:?} are impossible: {totals:?}"));
            }
            travelling += totals.sent - totals.accepted;
        }
        let Some(total) = self.shards.values().find_map(|one| one.total) else { return Ok(()) };
        if units + travelling != total {
            return Err(format!("{units} there and {travelling} on their way are not {total}"));
        }
        if taken > total {
            return Err(format!("{taken} of {total} are held or sold"));
        }
        Ok(())
    }
}

/// Notes what one bucket says of its trade with another.
fn note(
    pairs: &mut BTreeMap<(BucketId, BucketId), Pair>,
    own: BucketId,
    known: &PairLevel,
) -> Result<(), String> {
    if known.sent > 0 {
        let pair = pairs.entry((own, known.peer)).or_default();
        if known.sent < pair.sent || known.acked < pair.acked {
            return Err(format!("what {own} sent to {} goes back from {pair:?}", known.peer));
        }
        (pair.sent, pair.acked) = (known.sent, known.acked);
    }
    if known.accepted > 0 {
        let pair = pairs.entry((known.peer, own)).or_default();
        if known.accepted < pair.accepted {
            return Err(format!("what {own} took of {} goes back from {pair:?}", known.peer));
        }
        pair.accepted = known.accepted;
    }
    Ok(())
}

fn find(ledger: &Ledger, name: &ItemName) -> Option<ItemRef> {
    let Found::Item(item) = ledger.query(&Query::Item(name.clone())) else { return None };
    Some(ItemRef { home: item.home, item: item.number })
}
