//! One measured run: set up, warm up, measure, look everything up, tell.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use serde_json::json;

use super::super::demo::leader_of_commit;
use super::super::hold::placed;
use super::super::local_cluster::{LocalCluster, Wanted};
use super::super::progress::spinner;
use super::super::{Failure, Reach, audit};
use super::load::{self, Plan, Shared};
use super::machine::{self, CpuReading, CpuUse};
use super::moments::{Around, Tail};
use super::report::{Report, grouped, words_of};
use super::request::{Crowd, Requests};
use super::routes::Routes;
use super::scrape::{Counters, Moved};
use super::tally::{IDS_MAX, Tally};
use super::wire::address_in;
use super::{Bench, Mode, empty, verdict};
use crate::client::{Client, NewHold, path_segment};
use crate::runtime::{now, sleep};

/// Lifetime of the bench's holds, in ms: none may expire before the audit.
pub(super) const TTL_MS: u64 = 3_600_000;
/// How often the display moves.
const TICK: Duration = Duration::from_millis(250);
/// How long a killed node may take to be told by the others.
const AFTER_RUN_PAUSE: Duration = Duration::from_millis(100);

/// The cluster that is measured.
pub(super) struct Field {
    pub(super) own: Option<LocalCluster>,
    pub(super) urls: Vec<String>,
    pub(super) client: Client,
}

impl Field {
    /// Starts a cluster of its own when that was asked for.
    pub(super) async fn open(bench: &mut Bench, reach: &Reach) -> Result<Field, Failure> {
        let own = match bench.cluster {
            Some(nodes) => {
                let wanted = Wanted {
                    nodes,
                    shards: bench.shards.max(bench.buckets),
                    data: bench.data.clone(),
                    set: std::mem::take(&mut bench.set),
                };
                Some(LocalCluster::start(wanted, reach, reach.voice()).await?)
            }
            None => None,
        };
        let urls = own.as_ref().map_or_else(|| reach.url.clone(), LocalCluster::urls);
        // Reading after the run may take longer than one operation of a service should.
        let patient = Reach { timeout_ms: reach.timeout_ms.max(30_000), ..reach.clone() };
        let client = patient.client_of(&urls)?;
        Ok(Field { own, urls, client })
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.own.as_ref().map(LocalCluster::pids).unwrap_or_default()
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        match self.own {
            Some(own) => own.stop().await,
            None => Ok(()),
        }
    }

    /// The nodes' addresses, as the load generator wants them.
    pub(super) fn addresses(&self) -> Result<Vec<SocketAddr>, Failure> {
        self.urls.iter().map(|url| resolve(url)).collect()
    }
}

fn resolve(url: &str) -> Result<SocketAddr, Failure> {
    if let Some(address) = address_in(url) {
        return Ok(address);
    }
    let host = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
    let mut found = host.to_socket_addrs().map_err(|e| Failure::Usage(format!("{url}: {e}")))?;
    found.next().ok_or_else(|| Failure::Usage(format!("{url} has no address")))
}

/// The item that a run sells.
pub(super) struct Stage {
    pub(super) item: String,
    /// Units held or sold when the load begins.
    pub(super) before: u64,
    /// The node that leads its shard.
    pub(super) leader: Option<u64>,
}

impl Stage {
    /// Creates the item (unless one was named that exists), and empties it for `sold-out`.
    pub(super) async fn set(bench: &Bench, client: &Client) -> Result<Stage, Failure> {
        let item = match &bench.item {
            Some(item) => item.clone(),
            None => format!("bench-{:08x}", rand::random::<u32>()),
        };
        let path = format!("/v1/items/{}", path_segment(&item));
        let total = if bench.mode == Mode::SoldOut { 1 } else { bench.total };
        let mut body = json!({
            "total": total,
            "hold": {
                "ttl_ms": TTL_MS,
                "max_ttl_ms": TTL_MS,
                "max_extends": 1,
                "max_lifetime_ms": 2 * TTL_MS,
            },
        });
        if bench.regions > 1 {
            body["regions"] = regions(total, bench.regions, bench.buckets);
        } else if bench.buckets > 1 {
            body["buckets"] = json!(bench.buckets);
        }
        let key = client.fresh_key();
        let sent = client.send(Method::PUT, &path, Some(&body), Some(&key), client.deadline());
        let mut commit = sent.await?.commit;
        if bench.mode == Mode::SoldOut {
            let last = NewHold { ttl_ms: Some(TTL_MS), ..NewHold::new(1, "the-last-buyer") };
            let key = client.fresh_key();
            let placing = client.place(&item, &last, &key, client.deadline()).await;
            match placed(placing) {
                Ok(_) => {}
                // An item that was named may be sold out already.
                Err(Failure::Refused(problem)) if problem.slug == "sold-out" => {}
                Err(failure) => return Err(failure),
            }
        }
        let found = audit::read(client, &item).await?;
        let before = audit::sum(&found, "held") + audit::sum(&found, "sold");
        let leader = commit.take().as_deref().and_then(leader_of_commit);
        Ok(Stage { item, before, leader })
    }
}

/// Regions r0, r1, … that share a total.
fn regions(total: u64, count: u16, buckets: u16) -> serde_json::Value {
    let count = u64::from(count);
    let plan = |at: u64| {
        let quota = total / count + u64::from(at < total % count);
        (format!("r{at}"), json!({"quota": quota, "buckets": buckets}))
    };
    (0..count).map(plan).collect::<serde_json::Map<_, _>>().into()
}

/// Measures one of the modes that sell.
pub(super) async fn measure(mut bench: Bench, reach: &Reach) -> Result<(), Failure> {
    let voice = reach.voice();
    let sync_p50 = probe(bench.data.as_deref(), bench.cluster.is_some())?;
    let empty_per_second =
        if bench.compare_empty { Some(measure_empty(&bench).await?) } else { None };
    let mut field = Field::open(&mut bench, reach).await?;
    let stage = Stage::set(&bench, &field.client).await?;
    let mut plan = plan_of(&bench, &stage.item, reach);
    if bench.goes_straight() {
        let regions = usize::from(bench.regions);
        let nodes = field.addresses()?;
        let routes = Routes::read(&field.client, &stage.item, &nodes, regions).await?;
        plan.routes = routes.map(Arc::new);
    }
    let requests = plan.requests.clone();
    let counters = Counters::read(reach, &field.urls).await;
    let ran = drive(&bench, plan, &mut field, stage.leader, reach).await?;
    let proposed = Counters::read(reach, &field.urls).await.since(&counters);
    if let (true, Some(own), Some(leader)) = (bench.kill_leader, &mut field.own, stage.leader) {
        let id = usize::try_from(leader).unwrap_or(usize::MAX).min(*own.ids().end());
        own.start_node(id)?;
        own.wait_until_up(id, reach).await?;
        sleep(AFTER_RUN_PAUSE).await;
    }
    let client = &field.client;
    let verdict =
        verdict::reach(client, &stage.item, bench.mode, stage.before, &requests, &ran.tally)
            .await?;
    let faults = verdict.faults.join("\n");
    let good = verdict.good();
    let report = Report {
        what: words_of(&bench),
        mode: bench.mode,
        item: stage.item,
        seconds: bench.duration.as_secs_f64(),
        tally: ran.tally,
        sync_p50,
        proposed,
        ran_for: ran.ran_for,
        cpu: ran.cpu,
        empty_per_second,
        failover: bench.kill_leader.then_some(ran.failover),
        around: ran.around,
        moved: ran.moved,
        tail: (bench.mode == Mode::Tail).then_some(ran.tail),
        verdict: Some(verdict),
    };
    field.close().await?;
    if !good {
        return Err(Failure::Broken(format!("the run does not count:\n{faults}")));
    }
    voice.data(&report.to_json(), || report.to_table());
    if report.disturbed() {
        voice.say("others used the processors during the run: measure again");
    }
    Ok(())
}

/// Measures the empty handler alone.
pub(super) async fn empty_only(bench: Bench, reach: &Reach) -> Result<(), Failure> {
    let report = empty_report(&bench).await?;
    reach.voice().data(&report.to_json(), || report.to_table());
    Ok(())
}

async fn measure_empty(bench: &Bench) -> Result<f64, Failure> {
    let report = empty_report(bench).await?;
    Ok(report.per_second(report.tally.requests))
}

async fn empty_report(bench: &Bench) -> Result<Report, Failure> {
    let address = empty::serve()?;
    let requests = Requests::new("empty", None, bench.buyers, 1, TTL_MS);
    let plan = Plan { mode: Mode::Empty, requests, ..plan_of_times(bench) };
    let shared = Arc::new(Shared::new(plan, vec![address], address));
    let cpu = CpuReading::take(&[]);
    let tally = watch(&shared, load::start(&shared)?, "an empty handler").await?;
    let cpu = cpu.and_then(|before| Some(CpuReading::take(&[])?.since(&before)));
    if let Some(fault) = tally.faults.first() {
        return Err(Failure::Unavailable(format!("the empty handler: {fault}")));
    }
    Ok(Report {
        what: format!("an empty handler, {} connections", bench.connections),
        mode: Mode::Empty,
        item: String::new(),
        seconds: bench.duration.as_secs_f64(),
        tally,
        sync_p50: None,
        proposed: None,
        ran_for: bench.warm_up + bench.duration,
        cpu,
        empty_per_second: None,
        failover: None,
        around: None,
        moved: None,
        tail: None,
        verdict: None,
    })
}

fn plan_of_times(bench: &Bench) -> Plan {
    Plan {
        mode: bench.mode,
        requests: Requests::new("", None, bench.buyers, bench.batch, TTL_MS),
        connections: bench.connections as usize,
        threads: usize::from(bench.threads),
        warm_up: bench.warm_up,
        duration: bench.duration,
        holds: None,
        ids_max: IDS_MAX,
        round: bench.is_spread(),
        routes: None,
    }
}

pub(super) fn plan_of(bench: &Bench, item: &str, reach: &Reach) -> Plan {
    let tenant = reach.tenant.as_deref();
    let mut requests = Requests::new(item, tenant, bench.buyers, bench.batch, TTL_MS);
    if bench.is_spread() {
        let crowd = Crowd { regions: bench.regions.into(), skew: bench.skew.into() };
        requests = requests.spread(crowd);
    }
    Plan { requests, ..plan_of_times(bench) }
}

/// What the load came to.
pub(super) struct Ran {
    pub(super) tally: Tally,
    pub(super) cpu: Option<CpuUse>,
    pub(super) ran_for: Duration,
    pub(super) failover: Option<Duration>,
    /// The grants around the kill.
    pub(super) around: Option<Around>,
    /// What moved between buckets while it was measured.
    pub(super) moved: Option<Moved>,
    /// How long the last hundredth of the units took, in `tail`.
    pub(super) tail: Option<Duration>,
}

/// Runs the load against the leader and, when asked for, kills that half-way.
pub(super) async fn drive(
    bench: &Bench,
    plan: Plan,
    field: &mut Field,
    leader: Option<u64>,
    reach: &Reach,
) -> Result<Ran, Failure> {
    let nodes = field.addresses()?;
    let first = leader.and_then(|id| nodes.get(usize::try_from(id).ok()?.checked_sub(1)?).copied());
    let first = first.filter(|_| field.own.is_some()).or(nodes.first().copied());
    let target = first.ok_or_else(|| Failure::Usage("there is no node to measure".into()))?;
    let (warm_up, half) = (plan.warm_up, plan.warm_up + plan.duration / 2);
    let urls = field.urls.clone();
    let words = words_of(bench);
    let pids = field.pids();
    let begun = now();
    let cpu = CpuReading::take(&pids);
    let mut shared = Shared::new(plan, nodes, target);
    if bench.mode == Mode::Tail {
        shared.tail = Tail::of(bench.total);
    }
    let shared = Arc::new(shared);
    let running = load::start(&shared)?;
    let killing = async {
        if let (true, Some(own), Some(id)) = (bench.kill_leader, &mut field.own, leader) {
            sleep(half).await;
            let id = usize::try_from(id).unwrap_or(usize::MAX).min(*own.ids().end());
            own.kill(id)?;
            // Nothing else sets it.
            let _ = shared.killed.set(now());
        }
        Ok::<(), Failure>(())
    };
    // The first spreading of the stock is over by then.
    let settled = async {
        if !bench.is_spread() {
            return None;
        }
        sleep(warm_up).await;
        Some(Counters::read(reach, &urls).await)
    };
    let (tally, killed, settled) = tokio::join!(watch(&shared, running, &words), killing, settled);
    killed?;
    let moved = match settled.filter(|_| !bench.kill_leader) {
        Some(settled) => Counters::read(reach, &urls).await.moved_since(&settled),
        None => None,
    };
    let own = field.own.is_some();
    let cpu = cpu.filter(|_| own).and_then(|before| Some(CpuReading::take(&pids)?.since(&before)));
    let failover = shared.killed.get().and_then(|at| Some(*shared.granted_again.get()? - *at));
    // A killed node's processor time is gone with it, and would count as others'.
    let cpu = cpu.filter(|_| !bench.kill_leader);
    let tail = shared.tail.took();
    let killed = shared.killed.get();
    let around = killed.and_then(|at| shared.timeline.around(shared.measure_from(), *at));
    let ran_for = now() - begun;
    Ok(Ran { tally: tally?, cpu, ran_for, failover, around, moved, tail })
}

/// Shows how the load goes until it has ended. Dropped (Ctrl-C), it stops the load.
pub(super) async fn watch(
    shared: &Arc<Shared>,
    mut running: tokio::sync::oneshot::Receiver<Tally>,
    words: &str,
) -> Result<Tally, Failure> {
    struct StopOnDrop(Arc<Shared>);
    impl Drop for StopOnDrop {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    let _stop = StopOnDrop(shared.clone());
    let shown = spinner(words.to_owned());
    let mut last = (now(), 0);
    loop {
        tokio::select! {
            ended = &mut running => {
                shown.finish_and_clear();
                let gone = || Failure::Unavailable("the load generator died".into());
                return ended.map_err(|_| gone());
            }
            () = sleep(TICK) => {
                let decided = shared.decided.load(Ordering::Relaxed);
                let seconds = (now() - last.0).as_secs_f64();
                let rate = (decided - last.1) as f64 / seconds.max(1e-9);
                shown.set_message(format!("{words}: {}/s", grouped(rate)));
                last = (now(), decided);
            }
        }
    }
}

/// Measures the disk: where the cluster's data goes, or will go.
pub(super) fn probe(data: Option<&Path>, own: bool) -> Result<Option<Duration>, Failure> {
    let dir = match data {
        Some(dir) => {
            std::fs::create_dir_all(dir)?;
            dir.to_owned()
        }
        None if own => std::env::temp_dir(),
        // The disk of somebody else's nodes is not here.
        None => return Ok(None),
    };
    Ok(Some(machine::fdatasync_p50(&dir)?))
}
