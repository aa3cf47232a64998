//! Real nodes, real sockets: one item over several buckets on several shards.

mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cluster::{Answer, Caller, Fleet, Plan, SOON, rounds, try_again, wait_for};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Makes an item of four buckets on four shards.
async fn put_spread(fleet: &Fleet, item: &str, total: u64, buckets: u64) {
    let body = json!({"total": total, "buckets": buckets, "hold": {"ttl_ms": 600_000}});
    fleet.put_item(item, &body).await;
}

/// Waits until the quotas have travelled to the buckets: every bucket has something.
async fn wait_spread(fleet: &Fleet, item: &str) {
    let path = format!("/v1/items/{item}/availability?consistency=leader&detail=buckets");
    wait_for("the stock is spread", SOON, async || {
        let answer = fleet.read(1, &path).await;
        let buckets = answer.body["buckets"].as_array().cloned().unwrap_or_default();
        let empty = buckets.iter().any(|bucket| bucket["available"] == json!(0));
        if empty || buckets.is_empty() { Err(answer.text) } else { Ok(()) }
    })
    .await;
}

/// An item's audit by its leaders, once nothing is under way.
async fn settled_audit(fleet: &Fleet, item: &str) -> Answer {
    let path = format!("/v1/items/{item}/audit");
    wait_for("an audit with nothing under way", SOON, async || {
        let id = *fleet.running().first().expect("a node runs");
        let audit = fleet.read(id, &path).await;
        if audit.status != 200 {
            return Err(audit.text);
        }
        assert_eq!(audit.body["conserved"], json!(true), "{}", audit.text);
        if audit.body["in_transit"] == json!(0) { Ok(audit) } else { Err(audit.text) }
    })
    .await
}

/// Lets `buyers` place one unit each, `at_once` at a time, and counts the answers.
async fn race(fleet: &Fleet, item: &str, buyers: usize, at_once: usize) -> BTreeMap<String, usize> {
    let next = Arc::new(AtomicUsize::new(0));
    let nodes = fleet.all_http();
    let mut tasks = JoinSet::new();
    for task in 0..at_once {
        let next = Arc::clone(&next);
        let path = format!("/v1/items/{item}/holds");
        let mut caller = Caller::new(nodes[task % nodes.len()]);
        tasks.spawn(async move {
            let mut told: BTreeMap<String, usize> = BTreeMap::new();
            loop {
                let buyer = next.fetch_add(1, Ordering::AcqRel);
                if buyer >= buyers {
                    return told;
                }
                let body = json!({"quantity": 1, "buyer": format!("buyer-{buyer}")});
                let key = format!("key-{buyer}");
                let answer = caller.post(&path, &key, &body).await.expect("an answer");
                *told.entry(format!("{} {}", answer.status, answer.slug())).or_default() += 1;
            }
        });
    }
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    while let Some(one) = tasks.join_next().await {
        for (what, count) in one.expect("a buyer does not fall over") {
            *told.entry(what).or_default() += count;
        }
    }
    told
}

#[tokio::test]
async fn ten_thousand_buyers_race_for_a_hundred_spread_units_and_none_is_left_behind() {
    let fleet = Fleet::start(Plan::new(3, 4).calm()).await;
    put_spread(&fleet, "ticket", 100, 4).await;
    let buyers = rounds(10_000);
    let from = std::time::Instant::now();
    let told = race(&fleet, "ticket", buyers, 96).await;
    println!("{buyers} buyers in {:?}: {told:?}", from.elapsed());
    assert_eq!(told.get("201 "), Some(&100), "{told:?}");
    let refused = |slug: &str| told.get(&format!("409 {slug}")).copied().unwrap_or(0);
    let (sold_out, insufficient) = (refused("sold-out"), refused("insufficient-stock"));
    assert_eq!(100 + sold_out + insufficient, buyers, "{told:?}");
    assert!(insufficient * 100 < buyers, "less than one in a hundred is told to retry: {told:?}");
    let audit = settled_audit(&fleet, "ticket").await;
    assert_eq!((audit.number_of("held"), audit.number_of("available")), (100, 0));
}
