//! Memory of live holds, and the time that a cluster full of them takes to serve again.

use std::time::Duration;

use serde_json::json;

use super::super::output::members;
use super::super::progress::spinner;
use super::super::{Failure, Reach, audit};
use super::machine::resident_bytes;
use super::report::words_of;
use super::run::{self, Field, Stage};
use super::{Bench, Mode, verdict};
use crate::client::{Client, NewHold, Placing, path_segment};
use crate::runtime::{now, sleep};

/// The longest time that placing the holds may take.
const PLACING_WITHIN: Duration = Duration::from_secs(3_600);
/// The longest time that a restart may take.
const SERVING_WITHIN: Duration = Duration::from_secs(120);
/// How long nodes that have nothing to do may go on giving memory back.
const RESTING_WITHIN: Duration = Duration::from_secs(60);
/// Nodes that have not given any back for so long are at rest: longer than they keep it.
const RESTED: Duration = Duration::from_secs(15);
/// How often they are looked at meanwhile.
const REST_STEP: Duration = Duration::from_millis(500);
/// How often a restarting cluster is asked.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Places the holds, tells what each costs, and (for `restart`) stops and starts all nodes.
pub(super) async fn run(mut bench: Bench, reach: &Reach) -> Result<(), Failure> {
    let voice = reach.voice();
    let sync_p50 = run::probe(bench.data.as_deref(), true)?;
    let mut field = Field::open(&mut bench, reach).await?;
    let stage = Stage::set(&bench, &field.client).await?;
    let mut plan = run::plan_of(&bench, &stage.item, reach);
    (plan.warm_up, plan.duration) = (Duration::ZERO, PLACING_WITHIN);
    plan.holds = Some(bench.holds);
    let requests = plan.requests.clone();
    let before = resident(&field.pids());
    let ran = run::drive(&bench, plan, &mut field, stage.leader, reach).await?;
    let placed = ran.tally.placed.max(1);
    let at_once = resident(&field.pids());
    let after = at_rest(&field.pids()).await;
    let each = |after: &[u64]| -> Vec<f64> {
        let grown = before.iter().zip(after).map(|(b, a)| a.saturating_sub(*b));
        grown.map(|bytes| bytes as f64 / placed as f64).collect()
    };
    let restarted = match (bench.mode, &mut field.own) {
        (Mode::Restart, Some(own)) => {
            for id in own.ids() {
                own.kill(id)?;
            }
            let begun = now();
            for id in own.ids() {
                own.start_node(id)?;
            }
            Some(until_serving(&field.client, &stage.item, begun).await?)
        }
        (_, _) => None,
    };
    // The hold that proved that it serves again is one more.
    let before_run = stage.before + u64::from(restarted.is_some());
    let client = &field.client;
    let judged =
        verdict::reach(client, &stage.item, bench.mode, before_run, &requests, &ran.tally).await?;
    if !judged.good() {
        return Err(Failure::Broken(format!(
            "the run does not count:\n{}",
            judged.faults.join("\n")
        )));
    }
    let told = json!({
        "what": words_of(&bench),
        "holds": placed,
        "placed_in_s": ran.ran_for.as_secs_f64(),
        "resident_before_bytes": before,
        "resident_after_bytes": after,
        "bytes_a_hold": each(&after),
        "bytes_a_hold_at_once": each(&at_once),
        "kill_9_of_all_to_serving_ms": restarted.map(|time| time.as_secs_f64() * 1e3),
        "fdatasync_p50_ms": sync_p50.map(|time| time.as_secs_f64() * 1e3),
        "audit_holds": audit::holds(&judged.audit),
        "holds_looked_up": judged.looked_up,
    });
    voice.data(&told, || members(&told));
    field.close().await
}

/// The memory of each node once it no longer shrinks: what the requests needed is given back late.
async fn at_rest(pids: &[u32]) -> Vec<u64> {
    let bar = spinner("waiting until the nodes have given back what the requests needed");
    let until = now() + RESTING_WITHIN;
    let (mut least, mut since) = (resident(pids), now());
    while now() < until && now() - since < RESTED {
        sleep(REST_STEP).await;
        let seen = resident(pids);
        if seen.iter().zip(&least).any(|(seen, least)| seen < least) {
            since = now();
        }
        least = seen;
    }
    bar.finish_and_clear();
    least
}

fn resident(pids: &[u32]) -> Vec<u64> {
    pids.iter().map(|pid| resident_bytes(*pid).unwrap_or(0)).collect()
}

/// Waits until the truth can be read and a hold is granted again.
async fn until_serving(
    client: &Client,
    item: &str,
    begun: crate::runtime::Instant,
) -> Result<Duration, Failure> {
    let bar = spinner("waiting until the cluster serves again");
    let path = format!("/v1/items/{}/availability?consistency=linearizable", path_segment(item));
    let until = begun + SERVING_WITHIN;
    while client.get(&path).await.is_err() {
        if now() > until {
            return Err(Failure::Unavailable("the cluster does not serve again".into()));
        }
        sleep(ASK_AGAIN).await;
    }
    let new = NewHold { ttl_ms: Some(run::TTL_MS), ..NewHold::new(1, "after-the-restart") };
    match client.place(item, &new, &client.fresh_key(), until).await {
        Placing::Placed { .. } => {}
        Placing::Refused(problem) => {
            return Err(Failure::Broken(format!("no grant after the restart: {problem}")));
        }
        Placing::GaveUp { last, .. } | Placing::Unresolved { last, .. } => {
            return Err(Failure::Unavailable(format!("no grant after the restart: {last}")));
        }
        Placing::Invalid(words) => return Err(Failure::Usage(words)),
    }
    bar.finish_and_clear();
    Ok(now() - begun)
}
