//! Real nodes, real sockets: what the shards of a spread item owe each other's absence, and who
//! leads them.

mod cluster;

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::{Answer, Fleet, Plan, SOON, Sluices, wait_for};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

async fn layout(fleet: &Fleet, item: &str) -> Answer {
    let id = *fleet.running().first().expect("a node runs");
    fleet.read(id, &format!("/v1/items/{item}/layout")).await
}

/// Waits until the buckets have these units, in whatever order.
async fn wait_spread(fleet: &Fleet, units: &[u64]) -> Answer {
    let mut expected = units.to_vec();
    expected.sort_unstable();
    wait_for("the stock is spread", SOON, async || {
        let seen = layout(fleet, "ticket").await;
        let buckets = seen.body["buckets"].as_array().cloned().unwrap_or_default();
        let available = |bucket: &Value| bucket["available"].as_u64().unwrap_or(0);
        let mut found: Vec<u64> = buckets.iter().map(available).collect();
        found.sort_unstable();
        if found == expected { Ok(seen) } else { Err(seen.text) }
    })
    .await
}

fn shards_of(layout: &Answer, region: &str) -> Vec<u16> {
    let buckets = layout.body["buckets"].as_array().expect("buckets").iter();
    let mine = buckets.filter(|bucket| bucket["region"] == region);
    let shard = |bucket: &Value| u16::try_from(bucket["shard"].as_u64().expect("a shard"));
    mine.map(|bucket| shard(bucket).expect("a small number")).collect()
}

/// The shard of a buyer, by the rule that the layout tells.
fn shard_of_buyer(layout: &Answer, buyer: &str) -> u16 {
    let region = layout.text_of("default_region");
    let shards = shards_of(layout, region);
    let seed = layout.body["regions"][region]["buyers_seed"].as_str().expect("a seed");
    let seed = u64::from_str_radix(seed, 16).expect("in hex");
    let place = xxh3_64_with_seed(buyer.as_bytes(), seed) % shards.len() as u64;
    shards[usize::try_from(place).expect("a small number")]
}

/// One attempt, through node 1 + n % 3.
async fn attempt(fleet: &Fleet, n: usize, within: Duration) -> Answer {
    let body = json!({"quantity": 1, "buyer": format!("b{n}")});
    let mut caller = fleet.caller(1 + n % 3);
    let path = "/v1/items/ticket/holds";
    let sent = caller.post_within(path, &format!("k{n}"), &body, within).await;
    sent.expect("a node that lives answers")
}

/// Timers under which a shard that lost its majority is found out soon, and a busy machine is not
/// taken for one.
fn patient() -> Plan {
    Plan::new(3, 4)
        .set("raft.heartbeat_ms", 100)
        .set("raft.election_min_ms", 2_000)
        .set("raft.election_max_ms", 3_000)
        .set("raft.pause_after_ms", 1_500)
}

/// Issue 3: one shard paused (its majority stopped for that group) while the rest sells.
#[tokio::test]
async fn a_shard_without_its_majority_pauses_its_own_bucket_and_the_others_sell_on() {
    let (fleet, sluices) = Sluices::start(patient()).await;
    let total = 400_u64;
    let body = json!({"total": total, "buckets": 4, "hold": {"ttl_ms": 600_000}});
    fleet.put_item("ticket", &body).await;
    let seen = wait_spread(&fleet, &[total / 4; 4]).await;
    let region = seen.text_of("default_region").to_owned();
    let paused = shards_of(&seen, &region)[2];
    let (mine, others): (Vec<usize>, Vec<usize>) =
        (0..4_000).partition(|n| shard_of_buyer(&seen, &format!("b{n}")) == paused);
    sluices.shut(paused);

    let within = Duration::from_millis(900);
    let mut mine = mine.into_iter();
    wait_for("the shard is paused", SOON, async || {
        let one = attempt(&fleet, mine.next().expect("a buyer"), within).await;
        if one.slug() == "item-paused" { Ok(()) } else { Err(one.text) }
    })
    .await;
    // The others sell all that they have, and none of it is said to be the last.
    let (mut granted, mut told) = (0_u64, BTreeMap::<String, u64>::new());
    for n in others {
        let answer = attempt(&fleet, n, Duration::from_secs(2)).await;
        match (answer.status, answer.slug()) {
            (201, _) => granted += 1,
            (409, "insufficient-stock") if granted >= total * 3 / 4 => break,
            (409 | 503 | 504, slug) => *told.entry(slug.to_owned()).or_default() += 1,
            _ => panic!("{answer:?}"),
        }
    }
    println!("{granted} granted while shard {paused} was paused; besides {told:?}");
    assert_eq!(granted, total * 3 / 4, "all but what the paused bucket has: {told:?}");
    assert_eq!(told.get("sold-out"), None, "a bucket that does not answer may have stock");
    let refused = attempt(&fleet, mine.next().expect("a buyer"), within).await;
    assert_eq!((refused.status, refused.slug()), (503, "item-paused"), "{refused:?}");

    sluices.open(paused);
    let mut rest = 0;
    for n in 10_000.. {
        let answer = attempt(&fleet, n, Duration::from_secs(2)).await;
        match (answer.status, answer.slug()) {
            (201, _) => rest += 1,
            (409, "sold-out") => break,
            (409 | 503 | 504, _) => cluster::pass(Duration::from_millis(20)).await,
            _ => panic!("{answer:?}"),
        }
        assert!(n < 20_000, "it ends");
    }
    let audit = wait_for("an audit with nothing under way", SOON, async || {
        let audit = fleet.read(1, "/v1/items/ticket/audit").await;
        let is_settled = audit.status == 200 && audit.body["in_transit"] == json!(0);
        if is_settled { Ok(audit) } else { Err(audit.text) }
    })
    .await;
    assert_eq!(audit.body["conserved"], json!(true), "{audit:?}");
    // An attempt that was unanswered may have been granted: never one more than there are.
    assert_eq!((audit.number_of("held"), audit.number_of("available")), (total, 0));
    assert!(granted + rest <= total, "{granted} and {rest}");
}

async fn leader_of(fleet: &Fleet, shard: u16) -> usize {
    fleet.leader_of_shard(shard).await.0
}

/// Design §8: a region's buckets lie on shards led by its nodes, and leadership comes home.
#[tokio::test]
async fn regions_buckets_lie_with_its_nodes_and_leadership_comes_home() {
    let mut fleet = Fleet::prepare(patient().set("raft.prefer_every_ms", 300));
    for (id, region) in [(1, "eu"), (2, "us"), (3, "asia")] {
        fleet.set_on(id, "node.region", region);
    }
    fleet.unite().await;
    // The meant leaders: shards in turn over the nodes.
    for shard in 0..4_u16 {
        let meant = 1 + usize::from(shard) % 3;
        wait_for(&format!("shard {shard} is led by node {meant}"), SOON, async || {
            let leader = leader_of(&fleet, shard).await;
            if leader == meant { Ok(()) } else { Err(format!("node {leader} leads")) }
        })
        .await;
    }
    let view = fleet.read(1, "/admin/v1/cluster").await;
    assert_eq!(view.body["shards"][1]["preferred"], json!(2), "{view:?}");
    let regions = json!({
        "asia": {"quota": 100, "buckets": 1},
        "default": {"quota": 100, "buckets": 1},
        "eu": {"quota": 100, "buckets": 2},
        "us": {"quota": 100, "buckets": 1},
    });
    let body = json!({"total": 400, "regions": regions, "hold": {"ttl_ms": 600_000}});
    fleet.put_item("ticket", &body).await;
    let seen = wait_spread(&fleet, &[100, 100, 50, 50, 100]).await;
    let mut eu = shards_of(&seen, "eu");
    eu.sort_unstable();
    assert_eq!(eu, [0, 3], "both shards that node 1 leads");
    assert_eq!(shards_of(&seen, "us"), [1]);
    assert_eq!(shards_of(&seen, "asia"), [2]);

    // Its leader dies; another leads; back again, it gets its shards when it lacks nothing.
    fleet.kill(1);
    for shard in [0, 3] {
        wait_for(&format!("another leads shard {shard}"), SOON, async || {
            let leader = leader_of(&fleet, shard).await;
            if leader == 1 { Err("node 1".to_owned()) } else { Ok(()) }
        })
        .await;
    }
    let body = json!({"quantity": 1, "buyer": "b", "region": "eu"});
    let sold = fleet.insist(2, "/v1/items/ticket/holds", "meanwhile", &body).await;
    assert_eq!(sold.status, 201, "{sold:?}");
    fleet.start_node(1);
    fleet.wait_ready().await;
    for shard in [0, 3] {
        wait_for(&format!("shard {shard} comes home"), SOON, async || {
            let leader = leader_of(&fleet, shard).await;
            if leader == 1 { Ok(()) } else { Err(format!("node {leader} leads")) }
        })
        .await;
    }
    // It is counted when whoever handed over has seen it happen.
    wait_for("a homecoming is counted", SOON, async || {
        let mut counted = 0.0;
        for id in [2, 3] {
            counted += fleet.metrics(id).await.sum("holdfast_shard_homecomings_total", &[]);
        }
        if counted >= 1.0 { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
    let again = fleet.insist(3, "/v1/items/ticket/holds", "meanwhile", &body).await;
    assert_eq!((again.status, again.text_of("id")), (200, sold.text_of("id")), "{again:?}");
}
