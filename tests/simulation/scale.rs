//! How one item sells on one bucket and on eight, by a model of what costs time.
//!
//! What is modelled: a command keeps the thread of its shard busy for [`COMMAND`], and a sync of a
//! node's log takes [`SYNC`]; the shards of a node share its log and its syncs, as they do. The
//! code is the shipped one, from the HTTP handlers to the ledger, on three nodes.
//!
//! What is not: the work of HTTP threads, JSON and routing, the bandwidth of networks and disks,
//! and that cores are shared. All of these take no time here. So the figure says whether anything
//! in the *design* (a lock, a queue, the shared log, the travel of stock) keeps buckets from
//! selling side by side; it does not say how many a second real machines sell.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast::runtime::{self, Rt, life, now};
use openraft_rt::AsyncRuntime as _;
use serde_json::json;

use super::call::{Ask, Told};
use super::cut::Cut;
use super::finale;
use super::plan::{ItemPlan, NODES, Plan};
use super::trace::Trace;
use super::world::World;

/// What a command costs the thread of its shard.
const COMMAND: Duration = Duration::from_micros(2);
/// What a sync of a node's log takes.
const SYNC: Duration = Duration::from_micros(300);
/// Shards of the cluster, and buckets of the spread item.
const SHARDS: u16 = 8;
/// Placements of a request.
const BATCH: usize = 1_000;
/// Requests under way for each bucket.
const REQUESTS_A_BUCKET: u64 = 8;
/// The time that is measured.
const WINDOW: Duration = Duration::from_millis(100);
/// What the spread item must sell, in multiples of the other.
const RATIO_MIN: f64 = 6.0;
/// Transfers that a sold unit may cost.
const TRANSFERS_MAX: f64 = 0.05;

/// What was measured.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Figures {
    /// Units a second of virtual time that the item on one bucket sold.
    pub(crate) one_bucket: f64,
    /// Units a second that the item on eight buckets of eight shards sold.
    pub(crate) eight_buckets: f64,
    /// The second in multiples of the first.
    pub(crate) ratio: f64,
    /// Units of an item on eight buckets that was sold from the first to the last.
    pub(crate) sold_out_units: u64,
    /// Transfers that it took, the first spreading and the last units included.
    pub(crate) transfers: u64,
    /// Transfers for each unit.
    pub(crate) transfers_a_unit: f64,
}

impl Figures {
    /// Tells whether the goals are met.
    pub(crate) fn is_good(&self) -> bool {
        self.ratio >= RATIO_MIN && self.transfers_a_unit <= TRANSFERS_MAX
    }

    /// Says it, and what it is.
    pub(crate) fn words(&self) -> String {
        format!(
            "one bucket:    {:>9.0} units/s\n\
             eight buckets: {:>9.0} units/s on eight shards: {:.2} times as many \
             (goal ≥ {RATIO_MIN})\n\
             transfers:     {} for {} units sold to the last: {:.4} a unit \
             (goal ≤ {TRANSFERS_MAX})\n\
             A model: a command keeps its shard's thread busy for {COMMAND:?}, a sync of a node's \
             log takes {SYNC:?} and is shared by its shards; three nodes, batches of {BATCH}, the \
             shipped code in virtual time. HTTP, JSON, bandwidth and shared cores cost nothing \
             here: this shows what the design allows, not what a machine sells.",
            self.one_bucket,
            self.eight_buckets,
            self.ratio,
            self.transfers,
            self.sold_out_units,
            self.transfers_a_unit,
        )
    }
}

fn item(buckets: u16, total: u64) -> ItemPlan {
    ItemPlan {
        name: "hot".to_owned(),
        total,
        limit_per_buyer: None,
        ttl_ms: 3_600_000,
        max_extends: 0,
        buckets,
        regions: Vec::new(),
    }
}

/// Measures.
pub(crate) fn measure() -> Figures {
    let one_bucket = units_a_second(1);
    let eight_buckets = units_a_second(SHARDS);
    let (sold_out_units, transfers) = sell_all();
    #[expect(clippy::cast_precision_loss, reason = "both are far below 2^53")]
    let transfers_a_unit = transfers as f64 / sold_out_units as f64;
    Figures {
        one_bucket,
        eight_buckets,
        ratio: eight_buckets / one_bucket,
        sold_out_units,
        transfers,
        transfers_a_unit,
    }
}

/// Runs something in a world with one item.
fn in_a_world<T, F>(item: ItemPlan, play: impl FnOnce(Arc<World>) -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let mut plan = Plan::bare(1, SHARDS, vec![item]);
    plan.sync = SYNC;
    let mut runtime = Rt::with_seed(1);
    runtime::cost_of_a_command(COMMAND);
    let played = runtime.block_on(async {
        let world = World::new(plan, Cut::default(), Trace::new(false));
        finale::found(&world).await?;
        let played = play(Arc::clone(&world)).await;
        world.end();
        let broken = world.judge.verdict();
        if broken.is_empty() { played } else { Err(broken.join("; ")) }
    });
    runtime::cost_of_a_command(Duration::ZERO);
    played.expect("a world without faults does what it is asked")
}

fn units_a_second(buckets: u16) -> f64 {
    /// More than is sold: nothing runs out.
    const TOTAL: u64 = 40_000_000;
    in_a_world(item(buckets, TOTAL), async |world| {
        // The stock is spread before anybody comes.
        runtime::sleep(Duration::from_secs(8)).await;
        let stop = Arc::new(AtomicBool::new(false));
        let sold = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..REQUESTS_A_BUCKET * u64::from(buckets))
            .map(|number| {
                let (world, stop, sold) =
                    (Arc::clone(&world), Arc::clone(&stop), Arc::clone(&sold));
                life::spawn_in_the_world(async move {
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        round += 1;
                        let granted = buy(&world, number, round).await;
                        sold.fetch_add(granted, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        runtime::sleep(Duration::from_millis(100)).await;
        let (from, before) = (now(), sold.load(Ordering::Relaxed));
        runtime::sleep(WINDOW).await;
        let (took, after) = (now() - from, sold.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.map_err(|error| error.to_string())?;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        Ok((after - before) as f64 / took.as_secs_f64())
    })
}

/// Sends one batch; returns how many were granted.
async fn buy(world: &Arc<World>, client: u64, round: u64) -> u64 {
    let operations: Vec<_> = (0..BATCH)
        .map(|at| {
            let key = format!("{client}-{round}-{at}");
            json!({"op": "place", "key": key, "item": "hot", "quantity": 1, "buyer": key})
        })
        .collect();
    let ask = Ask {
        body: Some(json!({ "operations": operations })),
        ..Ask::new("POST", "/v1/holds:batch")
    };
    let at = usize::try_from(client).unwrap_or(0) % NODES;
    let Told::Answer(answer) = world.call(at, ask).await else { return 0 };
    let results = answer.body.get("results").and_then(|results| results.as_array());
    let granted = results.into_iter().flatten().filter(|one| one["status"] == 201);
    granted.count() as u64
}

/// Sells a whole item on eight buckets; returns its units and the transfers that it took.
fn sell_all() -> (u64, u64) {
    const TOTAL: u64 = 100_000;
    in_a_world(item(SHARDS, TOTAL), async |world| {
        let sold = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..REQUESTS_A_BUCKET)
            .map(|number| {
                let (world, sold) = (Arc::clone(&world), Arc::clone(&sold));
                life::spawn_in_the_world(async move {
                    for round in 0..10_000 {
                        if sold.load(Ordering::Relaxed) >= TOTAL {
                            return;
                        }
                        let granted = buy(&world, number, round).await;
                        sold.fetch_add(granted, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.map_err(|error| error.to_string())?;
        }
        let sold = sold.load(Ordering::Relaxed);
        if sold != TOTAL {
            return Err(format!("{sold} of {TOTAL} were sold"));
        }
        Ok((sold, (0..NODES).map(|at| world.transfers(at)).sum()))
    })
}
