//! A follower that was away past the purge of the log is rebuilt from a checkpoint, also when it is
//! killed while that is sent, and when only its pages are gone.

mod cluster;

use std::fs;
use std::time::Duration;

use cluster::{Answer, Dice, Fleet, Plan, SOON, pass, rounds, seed, wait_for};
use serde_json::{Value, json};

const INSTALLED: &str = "a checkpoint of a peer was installed";
const FETCHING: &str = "a checkpoint was fetched";

fn plan() -> Plan {
    Plan::new(3, 1)
        .set("checkpoint.commands", 100)
        .set("checkpoint.interval_ms", 200)
        .set("checkpoint.log_bytes", 65_536)
}

/// Places `count` holds in batches, each with a reference that makes its record a long one.
async fn write(fleet: &Fleet, node: usize, from: usize, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let all: Vec<usize> = (from..from + count).collect();
    for part in all.chunks(100) {
        let operations: Vec<Value> = part
            .iter()
            .map(|n| {
                json!({"op": "place", "key": format!("k-{n}"), "item": "ticket", "quantity": 1,
                       "buyer": format!("b-{n}"), "reference": "r".repeat(120)})
            })
            .collect();
        for result in fleet.place_batch(node, &operations).await {
            ids.push(result["hold"]["id"].as_str().expect("an id").to_owned());
        }
    }
    ids
}

/// Waits until the others have purged their logs past everything that node `away` has.
async fn wait_purged_past(fleet: &Fleet, away_has: u64, others: &[usize]) {
    for id in others {
        wait_for(&format!("node {id} has purged its log"), SOON, async || {
            let purged = fleet.metrics(*id).await.sum("holdfast_shard_purged_index", &[]);
            if purged > away_has as f64 { Ok(()) } else { Err(format!("{purged} of {away_has}")) }
        })
        .await;
    }
}

async fn post(fleet: &Fleet, node: usize, path: &str, key: &str, body: Value) -> Answer {
    let answer = fleet.insist(node, path, key, &body).await;
    assert!(answer.status < 300, "{path}: {answer:?}");
    answer
}

fn count(words: &str, what: &str) -> usize {
    words.matches(what).count()
}

/// Cases C12, C13.
#[tokio::test]
async fn follower_behind_the_purge_gets_a_checkpoint_that_replaces_what_it_had() {
    let mut fleet = Fleet::prepare(plan());
    // When node 1 is gone, node 3 leads.
    fleet.set_on(2, "raft.election_min_ms", 6_000);
    fleet.set_on(2, "raft.election_max_ms", 8_000);
    fleet.unite().await;
    let rules = json!({"ttl_ms": 600_000, "max_ttl_ms": 600_000});
    fleet.put_item("ticket", &json!({"total": 1_000_000, "hold": rules})).await;
    fleet.put_item("gone", &json!({"total": 5, "hold": rules})).await;
    let early = write(&fleet, 1, 0, 200).await;
    let brief = json!({"quantity": 1, "buyer": "brief", "ttl_ms": 1_500});
    let brief = post(&fleet, 1, "/v1/items/ticket/holds", "brief", brief).await;
    fleet.settle().await;
    fleet.kill(3);
    let had = fleet.view(1).await.expect("it answers").shards[0].last_log;

    // While it is away: holds end in every way, an item goes, and the log is purged.
    post(&fleet, 1, &format!("/v1/holds/{}/release", early[0]), "end", json!({})).await;
    post(&fleet, 1, &format!("/v1/holds/{}/confirm", early[1]), "end", json!({})).await;
    let headers = [("Idempotency-Key", "retire")];
    let retired = fleet.caller(1).send("DELETE", "/v1/items/gone", &headers, None).await;
    assert!(retired.expect("an answer").status < 300);
    write(&fleet, 1, 1_000, 800).await;
    wait_purged_past(&fleet, had, &[1, 2]).await;

    fleet.start_node(3);
    fleet.wait_ready().await;
    fleet.settle().await;
    let words = fleet.words(3);
    // While one is sent the leader's log may be purged once more; it must end all the same.
    let installed = count(&words, INSTALLED);
    assert!((1..=3).contains(&installed), "sent again and again: {words}");
    let audit = fleet.audit("ticket").await;
    println!("caught up: {}", audit.text);
    let state = async |id: &str| {
        let path = format!("/v1/holds/{id}?consistency=local");
        fleet.read(3, &path).await.text_of("state").to_owned()
    };
    assert_eq!(state(&early[0]).await, "released");
    assert_eq!(state(&early[1]).await, "sold");
    assert_eq!(state(&early[2]).await, "held");
    wait_for("the brief hold has lapsed", SOON, async || {
        let state = state(brief.text_of("id")).await;
        if state == "expired" { Ok(()) } else { Err(state) }
    })
    .await;
    let gone = fleet.read(3, "/v1/items/gone?consistency=local").await;
    assert_eq!(gone.status, 404, "{gone:?}");

    // As leader it goes by what it was sent.
    fleet.kill(1);
    assert_eq!(fleet.leader_of_shard(0).await.0, 3);
    let body = json!({"quantity": 1, "buyer": "b-2", "reference": "r".repeat(120)});
    let again = fleet.insist(3, "/v1/items/ticket/holds", "k-2", &body).await;
    assert_eq!((again.status, again.text_of("id")), (200, early[2].as_str()), "{again:?}");
    write(&fleet, 3, 5_000, 100).await;
    fleet.start_node(1);
    fleet.wait_ready().await;
    fleet.settle().await;
    fleet.audit("ticket").await;
}

/// Case C12: killed at many moments of the transfer, and of the start after it.
#[tokio::test]
async fn follower_killed_while_a_checkpoint_is_sent_to_it_catches_up_all_the_same() {
    let mut dice = Dice(seed());
    let mut fleet = Fleet::start(plan()).await;
    fleet.put_units("ticket", 1_000_000).await;
    write(&fleet, 1, 0, 1_500).await;
    fleet.settle().await;
    let mut written = 1_500;
    for round in 0..rounds(8) {
        let had = fleet.view(1).await.expect("it answers").shards[0].last_log;
        if fleet.running().contains(&3) {
            fleet.kill(3);
        }
        write(&fleet, 1, written, 300).await;
        written += 300;
        wait_purged_past(&fleet, had, &[1, 2]).await;
        fleet.start_node(3);
        // Its peer port opens 400 ms after its start; what it lacks is sent from then on.
        let delay = Duration::from_micros(300_000 + dice.below(1_200_000));
        pass(delay).await;
        let installed = count(&fleet.words(3), INSTALLED);
        println!("round {round}: killed {delay:?} after its start; {installed} installed so far");
        fleet.kill(3);
    }
    fleet.start_node(3);
    fleet.wait_ready().await;
    fleet.settle().await;
    let audit = fleet.audit("ticket").await;
    assert_eq!(audit.number_of("held"), written as u64);
}

/// Case C09: the log begins behind the purge point and the pages are gone: they are fetched from a
/// member before the node takes part.
#[tokio::test]
async fn node_whose_pages_are_gone_fetches_them_from_a_member() {
    let mut fleet = Fleet::start(plan()).await;
    fleet.put_units("ticket", 1_000_000).await;
    write(&fleet, 1, 0, 600).await;
    fleet.settle().await;
    wait_purged_past(&fleet, 1, &[1, 2, 3]).await;
    fleet.kill(3);
    for part in fs::read_dir(fleet.data_dir(3)).expect("its directory") {
        let path = part.expect("its directory").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("shard-") {
            fs::remove_dir_all(&path).expect("the pages go");
        }
    }
    write(&fleet, 1, 1_000, 100).await;
    fleet.start_node(3);
    fleet.wait_ready().await;
    fleet.settle().await;
    let words = fleet.words(3);
    assert!(count(&words, FETCHING) >= 1, "{words}");
    let audit = fleet.audit("ticket").await;
    assert_eq!(audit.number_of("held"), 700);
}
