//! Keeping stock where it sells: the first spreading of an item over its buckets, and refills ahead
//! of need. What it does is policy: it can be slow or foolish, never wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ledger::{BucketRef, ShardId};
use crate::runtime::{self, Instant};
use crate::shard::{Router, ShardService, Spreading};

/// How often a leader looks at the buckets of its shard.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Quotas that nobody has units for are looked at again after so long.
const QUOTAS_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Spread items that one look takes on.
const ITEMS_A_LOOK: usize = 128;

/// One shard's balancing on one node.
pub struct Balance {
    shard: ShardService,
    router: Arc<Router>,
    stop: watch::Receiver<bool>,
    /// Buckets for which something is on its way to be done.
    busy: Arc<Mutex<BTreeSet<BucketRef>>>,
    /// Items whose quotas could not be met, and when that is tried again.
    resting: Arc<Mutex<BTreeMap<BucketRef, Instant>>>,
    /// Where the next look begins among the spread items.
    next: usize,
}

impl Balance {
    /// Makes the task; [`Balance::run`] must be called on the shard's runtime.
    pub fn new(shard: ShardService, router: Arc<Router>, stop: watch::Receiver<bool>) -> Balance {
        let (busy, resting) = (Arc::default(), Arc::default());
        Balance { shard, router, stop, busy, resting, next: 0 }
    }

    /// Balances until the node stops.
    pub async fn run(mut self) {
        while !*self.stop.borrow() {
            if self.shard.leads() {
                self.look();
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    fn look(&mut self) {
        let shard = self.shard.shard();
        let items = self.router.spread_items(shard, self.next, ITEMS_A_LOOK);
        self.next = if items.len() < ITEMS_A_LOOK { 0 } else { self.next + ITEMS_A_LOOK };
        for bucket in items {
            if !self.busy.lock().insert(bucket) {
                continue;
            }
            let done = Busy { busy: Arc::clone(&self.busy), bucket };
            let (router, resting) = (Arc::clone(&self.router), Arc::clone(&self.resting));
            let work = async move {
                if router.spread_out(shard, bucket).await == Spreading::Lacks {
                    meet_quotas(&router, &resting, shard, bucket).await;
                }
                router.refill(shard, bucket).await;
                drop(done);
            };
            runtime::spawn(work);
        }
    }
}

/// Brings what buckets lack of their quotas from those that have more than theirs; not often when
/// there is nothing to bring.
async fn meet_quotas(
    router: &Arc<Router>,
    resting: &Mutex<BTreeMap<BucketRef, Instant>>,
    shard: ShardId,
    bucket: BucketRef,
) {
    let now = runtime::now();
    if resting.lock().get(&bucket).is_some_and(|until| now < *until) {
        return;
    }
    if router.collect_surplus(shard, bucket).await {
        router.spread_out(shard, bucket).await;
        return;
    }
    let mut resting = resting.lock();
    resting.retain(|_, until| now < *until);
    resting.insert(bucket, now + QUOTAS_AGAIN_AFTER);
}

/// A bucket that is being looked after.
struct Busy {
    busy: Arc<Mutex<BTreeSet<BucketRef>>>,
    bucket: BucketRef,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.bucket);
    }
}
