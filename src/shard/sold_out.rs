//! The home's verdict: whether nothing of an item is free, for all who ask.
//!
//! It reads every bucket twice (`double_collect.rs`) and lets everybody have the verdict for whom
//! it is true: who asked before its first round began, and, of a sold-out one, who asks while it is
//! young. At most one collect of an item runs, and those who may not use it wait for the next one,
//! which they share.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::double_collect::{Finding, Reading, Round, after_first, judge};
use super::parley::{Parley, Told};
use super::router::Router;
use crate::ledger::{BucketId, ItemRef, ItemView, RegionOrdinal, ShardId};
use crate::runtime::{self, Instant};

/// Items whose collects are remembered; beyond it the memory begins anew.
const ITEMS_MAX: usize = 4_096;

/// A verdict and its moment.
#[derive(Debug, Clone)]
struct Judged {
    began: Instant,
    /// The end of the first round: nothing was free a moment later at the latest.
    first_ended: Instant,
    finding: Finding,
    credits: Vec<(BucketId, u64)>,
}

/// What is asked: an item, for the buyers of a region.
type Asked = (ItemRef, RegionOrdinal);
type Cell = Arc<AsyncMutex<Option<Judged>>>;

/// The collects of the items whose home is led here.
#[derive(Debug, Default)]
pub(crate) struct Collects {
    cells: Mutex<HashMap<Asked, Cell>>,
}

impl Collects {
    fn cell(&self, asked: Asked) -> Cell {
        let mut cells = self.cells.lock();
        if cells.len() >= ITEMS_MAX && !cells.contains_key(&asked) {
            cells.clear();
        }
        Arc::clone(cells.entry(asked).or_default())
    }
}

impl Judged {
    fn told(&self, now: Instant) -> Told {
        let age = if now > self.first_ended { now - self.first_ended } else { Duration::ZERO };
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        Told::Verdict { finding: self.finding, age_us, credits: self.credits.clone() }
    }

    /// Whether somebody who asked at this moment may have it now.
    fn serves(&self, asked_at: Instant, now: Instant, age_max: Duration, every: Duration) -> bool {
        if self.began >= asked_at {
            return true;
        }
        match self.finding {
            Finding::SoldOut { .. } => now - self.first_ended <= age_max / 2,
            // It claims nothing; it only keeps collects apart.
            Finding::SomeLeft { .. } | Finding::Unclear => now - self.began < every,
        }
    }
}

impl Router {
    /// Tells whether nothing of an item whose home is led here is free for a region.
    pub(super) async fn sold_out_verdict(
        self: &Arc<Router>,
        item: ItemRef,
        region: RegionOrdinal,
        deadline: Instant,
    ) -> Told {
        let asked_at = runtime::now();
        let cell = self.collects.cell((item, region));
        let Ok(mut last) = runtime::timeout_at(deadline, cell.lock()).await else {
            return Told::NotHere;
        };
        let limits = self.thirst.limits;
        let now = runtime::now();
        if let Some(judged) = last.as_ref()
            && judged.serves(asked_at, now, limits.sold_out_age_max, limits.collect_every)
        {
            return judged.told(now);
        }
        let Some(view) = self.home_view(item) else { return Told::NotHere };
        let judged = self.collect(&view, region, deadline).await;
        self.stock.collected(matches!(judged.finding, Finding::SoldOut { .. }));
        let told = judged.told(runtime::now());
        *last = Some(judged);
        told
    }

    fn home_view(&self, item: ItemRef) -> Option<ItemView> {
        let place = self.place(item.home)?;
        let state = place.replica.read();
        state.ledger.item_numbered(item.home, item.item)
    }

    async fn collect(
        self: &Arc<Router>,
        view: &ItemView,
        region: RegionOrdinal,
        deadline: Instant,
    ) -> Judged {
        let began = runtime::now();
        let buckets: Vec<BucketId> = view.buckets.iter().map(|place| place.bucket).collect();
        let first = self.round(view, region, deadline).await;
        let first_ended = runtime::now();
        let mut finding = after_first(&first, &buckets);
        let mut credits = Vec::new();
        if first.version != view.config {
            finding = Finding::Unclear;
        } else if let Finding::SoldOut { .. } = finding {
            let second = self.round(view, region, deadline).await;
            finding = judge(&first, &second, &buckets);
            credits = second.buckets.iter().map(|(bucket, one)| (*bucket, one.credits)).collect();
        }
        Judged { began, first_ended, finding, credits }
    }

    /// Reads every bucket once.
    async fn round(
        self: &Arc<Router>,
        view: &ItemView,
        region: RegionOrdinal,
        deadline: Instant,
    ) -> Round {
        let item = ItemRef { home: view.home, item: view.number };
        let mut shards: Vec<ShardId> = view.buckets.iter().map(|place| place.shard).collect();
        shards.push(view.home);
        shards.sort_unstable();
        shards.dedup();
        let asks = shards.into_iter().map(|shard| {
            let router = Arc::clone(self);
            async move { router.parley(shard, Parley::Levels(item), deadline).await }
        });
        let mut round = Round { version: u64::MAX, buckets: BTreeMap::new() };
        for told in futures_util::future::join_all(asks).await {
            let Some(Told::Levels(levels, _)) = told else { continue };
            if let Some(version) = levels.layout_version {
                round.version = version;
            }
            for level in &levels.buckets {
                let free = if level.region == region { level.free } else { level.lendable };
                // What is set aside for a lower total comes back if that is given up.
                let (held, credits) = (level.held.saturating_add(level.earmarked), level.credits);
                let unsettled = !level.is_settled();
                let reading = Reading { free, held, unsettled, credits };
                round.buckets.insert(level.bucket, reading);
            }
        }
        round
    }
}
