//! `holdfast bench rolling`: restarts every node in turn, in good order, under an even load of
//! single placements, and tells what the buyers noticed.
//!
//! The load is open: requests are due at a fixed rate whatever the answers do, and a latency counts
//! from the moment at which its request was due. Buyers do what services should: they retry with
//! the same key until they have a definite answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use comfy_table::Table;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::local_cluster::LocalCluster;
use super::super::output::table;
use super::super::progress::spinner;
use super::super::{Failure, Reach};
use super::report::grouped;
use super::request::Requests;
use super::run::{Field, Stage, TTL_MS, probe};
use super::tally::{KeyRange, Tally};
use super::{Bench, verdict};
use crate::client::{Client, NewHold, Placing};
use crate::runtime::{Instant, now, sleep, sleep_until, spawn, timeout};

/// How long a buyer goes on for one unit, retries and all.
const BUYER_WITHIN: Duration = Duration::from_secs(10);
/// Buyers at once; when so many wait, the load itself is late, and that counts in the latencies.
const BUYERS_MAX: u64 = 20_000;
/// How often due requests are sent: the grain of the timers.
const TICK: Duration = Duration::from_millis(1);
/// How long a node may take to stop, and to be ready again.
const STEP_WITHIN: Duration = Duration::from_secs(60);
/// How often a stopping or starting node is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What all buyers share.
struct Crowd {
    client: Client,
    item: String,
    requests: Requests,
    begun: Instant,
    tally: Mutex<Tally>,
    unresolved: Mutex<Vec<String>>,
    refused: Mutex<BTreeMap<String, u64>>,
    buying: AtomicU64,
    over: AtomicBool,
    last_grant: Mutex<Instant>,
    longest_gap: Mutex<Duration>,
}

/// One node's restart.
struct Restart {
    node: usize,
    stopped_in: Duration,
    ready_in: Duration,
    gap: Duration,
}

/// Runs the measurement.
pub(super) async fn run(mut bench: Bench, reach: &Reach) -> Result<(), Failure> {
    let voice = reach.voice();
    let sync_p50 = probe(bench.data.as_deref(), true)?;
    let mut field = Field::open(&mut bench, reach).await?;
    let stage = Stage::set(&bench, &field.client).await?;
    let config = crate::client::ClientConfig {
        operation_within: BUYER_WITHIN,
        ..reach.config_of(&field.urls)
    };
    let client = Client::new(config)?;
    client.learn_nodes().await?;
    let requests = Requests::new(&stage.item, reach.tenant.as_deref(), bench.buyers, 1, TTL_MS);
    let crowd = Arc::new(Crowd::new(client, stage.item.clone(), requests));
    let shown = spinner(format!("{} a second, node after node restarted", bench.rate));
    let load = on_a_thread_of_its_own(Arc::clone(&crowd), bench.rate)?;
    sleep(bench.warm_up).await;
    let mut restarts = Vec::new();
    let own = field.own.as_mut().ok_or_else(|| Failure::Usage("needs --cluster N".into()))?;
    for node in own.ids() {
        shown.set_message(format!("restarting node {node}"));
        crowd.forget_gap();
        restarts.push(restart(own, node, reach, &crowd).await?);
    }
    crowd.over.store(true, Ordering::Release);
    load.await.map_err(|_| Failure::Unavailable("the load generator died".into()))?;
    shown.finish_and_clear();
    let ran_for = now() - crowd.begun;
    let tally = crowd.tally.lock().clone();
    let found = verdict::reach(
        &field.client,
        &stage.item,
        bench.mode,
        stage.before,
        &crowd.requests,
        &tally,
    )
    .await?;
    field.close().await?;
    let lost: Vec<&String> = found.faults.iter().collect();
    let unresolved = crowd.unresolved.lock().len();
    let told = told(&bench, &crowd, &tally, &restarts, ran_for, sync_p50, lost.len());
    if !found.good() {
        let faults = found.faults.join("\n");
        return Err(Failure::Broken(format!("the run does not count:\n{faults}")));
    }
    voice.data(&told, || rows(&told));
    if unresolved > 0 {
        return Err(Failure::Broken(format!("{unresolved} outcomes stayed unknown")));
    }
    Ok(())
}

impl Crowd {
    fn new(client: Client, item: String, requests: Requests) -> Crowd {
        Crowd {
            client,
            item,
            requests,
            begun: now(),
            tally: Mutex::new(Tally::new(super::tally::IDS_MAX)),
            unresolved: Mutex::default(),
            refused: Mutex::default(),
            buying: AtomicU64::new(0),
            over: AtomicBool::new(false),
            last_grant: Mutex::new(now()),
            longest_gap: Mutex::default(),
        }
    }

    fn forget_gap(&self) {
        *self.last_grant.lock() = now();
        *self.longest_gap.lock() = Duration::ZERO;
    }

    fn granted(&self, id: &str, due: Instant) {
        let at = now();
        let gap = {
            let mut last = self.last_grant.lock();
            let gap = if at > *last { at - *last } else { Duration::ZERO };
            *last = at;
            gap
        };
        let mut longest = self.longest_gap.lock();
        *longest = gap.max(*longest);
        drop(longest);
        let mut tally = self.tally.lock();
        tally.measured(at - due, 1);
        tally.placed += 1;
        tally.granted += 1;
        tally.keep(id);
    }

    /// Buys one unit, retries and all.
    async fn buy(&self, number: u64, due: Instant) {
        let new = NewHold { ttl_ms: Some(TTL_MS), ..NewHold::new(1, self.requests.buyer(number)) };
        let key = self.requests.key(number);
        match self.client.place(&self.item, &new, &key, self.client.deadline()).await {
            Placing::Placed { hold, .. } => self.granted(&hold.id, due),
            Placing::Refused(problem) => {
                *self.refused.lock().entry(problem.slug).or_default() += 1;
            }
            Placing::GaveUp { last, .. } => {
                *self.refused.lock().entry(format!("gave up: {last}")).or_default() += 1;
            }
            Placing::Unresolved { last, .. } => {
                self.tally.lock().unknown.push(KeyRange { first: number, count: 1 });
                self.unresolved.lock().push(last);
            }
            Placing::Invalid(words) => self.tally.lock().fault(words),
        }
        self.buying.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs the load on an event loop of its own; the answer comes when every buyer has one.
fn on_a_thread_of_its_own(
    crowd: Arc<Crowd>,
    rate: u64,
) -> Result<tokio::sync::oneshot::Receiver<()>, Failure> {
    let (done, heard) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::Unavailable(format!("cannot start an event loop: {e}")))?;
    std::thread::spawn(move || {
        runtime.block_on(load(crowd, rate));
        // Nobody listens any more when the run was given up.
        let _ = done.send(());
    });
    Ok(heard)
}

/// Sends what is due, tick after tick.
async fn load(crowd: Arc<Crowd>, rate: u64) {
    let begun = now();
    let mut number = 0;
    while !crowd.over.load(Ordering::Acquire) {
        let passed = now() - begun;
        let due = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX).saturating_mul(rate);
        while number < due / 1_000_000 && crowd.buying.load(Ordering::Acquire) < BUYERS_MAX {
            let at = begun + Duration::from_micros(number.saturating_mul(1_000_000) / rate.max(1));
            crowd.buying.fetch_add(1, Ordering::AcqRel);
            let buyer = Arc::clone(&crowd);
            drop(spawn(async move { buyer.buy(number, at).await }));
            number += 1;
        }
        sleep(TICK).await;
    }
    let until = now() + BUYER_WITHIN * 2;
    while crowd.buying.load(Ordering::Acquire) > 0 && now() < until {
        sleep_until(now() + LOOK_AGAIN).await;
    }
}

/// Tells one node to stop, starts it again, and waits until every node is ready.
async fn restart(
    own: &mut LocalCluster,
    node: usize,
    reach: &Reach,
    crowd: &Crowd,
) -> Result<Restart, Failure> {
    let begun = now();
    own.terminate(node)?;
    let late = |what: &str| Failure::Unavailable(format!("node {node} did not {what} in time"));
    while own.is_running(node)? {
        if now() - begun > STEP_WITHIN {
            return Err(late("stop"));
        }
        sleep(LOOK_AGAIN).await;
    }
    let stopped_in = now() - begun;
    let again = now();
    own.start_node(node)?;
    own.wait_until_up(node, reach).await?;
    for url in own.urls() {
        let client = Reach { timeout_ms: 1_000, ..reach.clone() }.client_of(&[url])?;
        let ready = async {
            while client.get_text("/readyz").await.is_err() {
                sleep(LOOK_AGAIN).await;
            }
        };
        timeout(STEP_WITHIN, ready).await.map_err(|_| late("become ready"))?;
    }
    let ready_in = now() - again;
    // What was late on account of this restart is told with it.
    sleep(Duration::from_millis(500)).await;
    let gap = *crowd.longest_gap.lock();
    Ok(Restart { node, stopped_in, ready_in, gap })
}

fn told(
    bench: &Bench,
    crowd: &Crowd,
    tally: &Tally,
    restarts: &[Restart],
    ran_for: Duration,
    sync_p50: Option<Duration>,
    lost: usize,
) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let restarts: Vec<Value> = restarts
        .iter()
        .map(|one| {
            json!({
                "node": one.node,
                "stopped_in_ms": ms(one.stopped_in),
                "ready_again_in_ms": ms(one.ready_in),
                "longest_without_a_grant_ms": ms(one.gap),
            })
        })
        .collect();
    json!({
        "what": format!("rolling restart under {} unary requests/s", bench.rate),
        "item": crowd.item,
        "measured_s": ran_for.as_secs_f64(),
        "granted": tally.granted,
        "granted_per_s": tally.granted as f64 / ran_for.as_secs_f64().max(1e-9),
        "latency_ms": tally.latency_json(),
        "refused": *crowd.refused.lock(),
        "lost": lost,
        "unresolved": crowd.unresolved.lock().len(),
        "restarts": restarts,
        "fdatasync_p50_ms": sync_p50.map(ms),
    })
}

fn rows(told: &Value) -> Table {
    let mut shown = table(&[]);
    let number = |path: &str| told.pointer(path).and_then(Value::as_f64).unwrap_or_default();
    let mut row = |name: &str, value: String| {
        shown.add_row(vec![name.to_owned(), value]);
    };
    row("run", told["what"].as_str().unwrap_or_default().to_owned());
    row("measured", format!("{:.1} s", number("/measured_s")));
    row("granted", format!("{}/s", grouped(number("/granted_per_s"))));
    row(
        "latency of what was granted",
        format!(
            "p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms, max {:.1} ms",
            number("/latency_ms/p50"),
            number("/latency_ms/p99"),
            number("/latency_ms/p99_9"),
            number("/latency_ms/max")
        ),
    );
    for (reason, times) in told["refused"].as_object().into_iter().flatten() {
        row(&format!("refused: {reason}"), times.to_string());
    }
    row("lost", told["lost"].to_string());
    row("unresolved", told["unresolved"].to_string());
    for one in told["restarts"].as_array().into_iter().flatten() {
        let of = |name: &str| one[name].as_f64().unwrap_or_default();
        row(
            &format!("node {}", one["node"]),
            format!(
                "stopped in {:.0} ms, ready again in {:.0} ms, longest without a grant {:.0} ms",
                of("stopped_in_ms"),
                of("ready_again_in_ms"),
                of("longest_without_a_grant_ms")
            ),
        );
    }
    shown
}
