//! A real node whose wall clock lies, by libfaketime. Without that library the tests say loudly
//! that they prove nothing.

mod cluster;

use std::fs;
use std::path::{Path, PathBuf};

use cluster::{Buying, Fleet, Plan, SOON, holdfast, seed, wait_for};
use serde_json::Value;

/// Finds libfaketime where Debian puts it.
fn faketime() -> Option<PathBuf> {
    let dirs = [
        "/usr/lib/x86_64-linux-gnu/faketime",
        "/usr/lib/aarch64-linux-gnu/faketime",
        "/usr/lib/faketime",
        "/usr/local/lib/faketime",
    ];
    let paths = dirs.iter().map(|dir| Path::new(dir).join("libfaketimeMT.so.1"));
    paths.into_iter().find(|path| path.is_file())
}

/// The wall clock of a node, as a file that libfaketime reads at every look.
struct Clock(PathBuf);

impl Clock {
    fn set(&self, offset_s: i64) {
        let next = self.0.with_extension("next");
        fs::write(&next, format!("{offset_s:+}\n")).expect("a file for a clock");
        fs::rename(&next, &self.0).expect("a file for a clock");
    }
}

/// Three nodes whose clocks can be set; `None` without libfaketime.
async fn fleet_with_clocks(plan: Plan) -> Option<(Fleet, Vec<Clock>)> {
    let Some(library) = faketime() else {
        println!("SKIPPED, NOTHING WAS PROVED: libfaketime is not there");
        return None;
    };
    let mut fleet = Fleet::prepare(plan);
    let mut clocks = Vec::new();
    for id in fleet.ids() {
        let clock = Clock(fleet.dir().join(format!("clock-{id}")));
        clock.set(0);
        fleet.environment_on(id, "LD_PRELOAD", library.display());
        fleet.environment_on(id, "FAKETIME_TIMESTAMP_FILE", clock.0.display());
        fleet.environment_on(id, "FAKETIME_NO_CACHE", 1);
        fleet.environment_on(id, "FAKETIME_DONT_FAKE_MONOTONIC", 1);
        fleet.environment_on(id, "DONT_FAKE_MONOTONIC", 1);
        clocks.push(clock);
    }
    fleet.unite().await;
    Some((fleet, clocks))
}

async fn leads_anything(fleet: &Fleet, node: usize) -> bool {
    for shard in 0..2 {
        if fleet.leader_of_shard(shard).await.0 == node {
            return true;
        }
    }
    false
}

/// Case C20 on real processes. Everywhere an operator looks it is said.
#[tokio::test]
async fn node_with_a_wild_clock_does_not_lead_and_says_so_in_readyz_status_metrics_and_log() {
    let seed = seed();
    let plan = Plan::new(3, 2).set("clock.offset_ms_max", 1_500);
    let Some((fleet, clocks)) = fleet_with_clocks(plan).await else { return };
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 8, seed);
    buying.wait_grants(30).await;
    let leader = fleet.leader_of("ticket").await;
    // Within the bound nothing happens; then it is set behind by an hour.
    clocks[leader - 1].set(1);
    buying.wait_grants(30).await;
    assert!(!fleet.words(leader).contains("its clock is"), "{}", fleet.words(leader));
    clocks[leader - 1].set(-3_600);
    let told = wait_for("it says so in /readyz", SOON, async || {
        match fleet.caller(leader).get("/readyz?verbose").await {
            Ok(ready) if ready.status == 503 && ready.text.contains("its clock is") => Ok(ready),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    println!("{}", told.text);
    assert!(told.text.contains("more than 1500 ms") && told.text.contains("chronyc tracking"));
    wait_for("it leads nothing", SOON, async || {
        if leads_anything(&fleet, leader).await { Err("it leads".to_owned()) } else { Ok(()) }
    })
    .await;
    let metrics = fleet.metrics(leader).await;
    assert_eq!(metrics.sum("holdfast_clock_wild", &[]), 1.0);
    assert_eq!(metrics.sum("holdfast_abstains", &[]), 1.0);
    assert!(metrics.sum("holdfast_clock_offset_seconds", &["peer="]) > 3_600.0);
    assert!(fleet.words(leader).contains("set the clock right"), "{}", fleet.words(leader));
    buying.wait_grants(30).await;

    // Of all nodes, by the word of another one.
    let other = fleet.others(leader)[0];
    let people = holdfast(&["status", "--url", &fleet.url(other)]);
    println!("{}", people.words());
    assert_eq!(people.code, Some(4), "{}", people.words());
    let said = format!("node {leader}: its clock is more than 1500 ms");
    assert!(people.stdout.contains(&said), "{}", people.stdout);
    let programs = holdfast(&["status", "--json", "--url", &fleet.url(other)]);
    let view: Value = serde_json::from_str(&programs.stdout).expect("JSON");
    let node = &view["nodes"][leader - 1];
    let offset = node["clock_offset_ms"].as_i64().expect("an offset");
    assert!((-3_610_000..=-3_590_000).contains(&offset), "{offset}");

    clocks[leader - 1].set(0);
    wait_for("it stands again", SOON, async || {
        let status = holdfast(&["status", "--url", &fleet.url(other)]);
        if status.code == Some(0) { Ok(()) } else { Err(status.words()) }
    })
    .await;
    let books = buying.finish().await;
    println!("{} holds; {:?}", books.kept.len(), books.told);
    books.verify(&fleet, "ticket").await;
}
