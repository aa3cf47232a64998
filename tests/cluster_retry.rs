//! Retries with the same key against real nodes: at the same moment, across a leader's death, and
//! while the first attempt is still in flight.

mod cluster;

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::{Buying, Fleet, Plan, SOON, pass, rounds, seed, wait_for};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Case I06.
#[tokio::test]
async fn one_key_sent_at_the_same_moment_to_all_nodes_makes_one_hold() {
    let fleet = Fleet::start(Plan::new(3, 4).calm()).await;
    let keys = rounds(60);
    fleet.put_units("ticket", 1_000).await;
    let mut granted = 0;
    for round in 0..keys {
        let key = format!("key-{round}");
        let mut callers = JoinSet::new();
        for copy in 0..48 {
            let (mut caller, key) = (fleet.caller(1 + copy % 3), key.clone());
            callers.spawn(async move {
                let body = json!({"quantity": 1, "buyer": "one"});
                caller.post("/v1/items/ticket/holds", &key, &body).await.expect("an answer")
            });
        }
        let mut ids: BTreeMap<String, usize> = BTreeMap::new();
        let mut first = 0;
        while let Some(answer) = callers.join_next().await {
            let answer = answer.expect("a caller does not fall over");
            assert!(answer.status == 201 || answer.status == 200, "{key}: {answer:?}");
            let replayed = answer.header("idempotent-replayed") == Some("true");
            assert_eq!(replayed, answer.status == 200, "{key}: {answer:?}");
            first += usize::from(!replayed);
            *ids.entry(answer.text_of("id").to_owned()).or_default() += 1;
        }
        assert_eq!((ids.len(), first), (1, 1), "{key}: {ids:?}");
        granted += 1;
    }
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), granted);
}

/// Cases I06, I07: holds and finishing calls that were acknowledged, cut off or answered by a node
/// that died, are each done once.
#[tokio::test]
async fn leader_killed_under_load_loses_nothing_and_the_next_grant_comes_soon() {
    let seed = seed();
    let mut fleet = Fleet::start(Plan::new(3, 2)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 12, seed);
    let mut kills = Vec::new();
    for _ in 0..rounds(3) {
        buying.wait_grants(60).await;
        let leader = fleet.leader_of("ticket").await;
        fleet.kill(leader);
        kills.push(Instant::now());
        let soon = buying.wait_grants(20).await;
        println!("20 grants {soon:?} after the leader, node {leader}, was killed");
        fleet.start_node(leader);
        fleet.wait_ready().await;
    }
    buying.wait_grants(60).await;
    let books = buying.finish().await;
    for kill in kills {
        let outage = books.outage_after(kill);
        println!("leader killed -> next grant: {outage:?}");
        assert!(outage < Duration::from_secs(2), "an outage of {outage:?}");
    }
    println!("{} holds; {:?}; longest {:?}", books.kept.len(), books.told, books.longest);
    books.verify(&fleet, "ticket").await;
}

/// Case I07: the answer to the first attempt is thrown away, its leader dies, and the retry goes to
/// the next one. The same for confirm and release.
#[tokio::test]
async fn retry_after_the_leader_died_with_the_answer_finds_the_same_effect() {
    let mut fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("ticket", 100).await;
    let mut holds = Vec::new();
    for n in 0..3 {
        let body = json!({"quantity": 2, "buyer": format!("b-{n}")});
        let key = format!("k-{n}");
        let placed = fleet.insist(1, "/v1/items/ticket/holds", &key, &body).await;
        holds.push(placed.text_of("id").to_owned());
    }
    let confirm = format!("/v1/holds/{}/confirm", holds[1]);
    let release = format!("/v1/holds/{}/release", holds[2]);
    let leader = fleet.leader_of("ticket").await;
    for path in [&confirm, &release] {
        let answer = fleet.insist(leader, path, "end", &json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    fleet.kill(leader);
    let next = fleet.running()[0];
    let retry = async |path: &str, key: &str, body: serde_json::Value| {
        fleet.insist(next, path, key, &body).await
    };
    let placing = "/v1/items/ticket/holds";
    let again = retry(placing, "k-0", json!({"quantity": 2, "buyer": "b-0"})).await;
    assert_eq!((again.status, again.text_of("id")), (200, holds[0].as_str()), "{again:?}");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    let sold = retry(&confirm, "end", json!({})).await;
    assert_eq!((sold.status, sold.text_of("state")), (200, "sold"), "{sold:?}");
    let freed = retry(&release, "end", json!({})).await;
    assert_eq!((freed.status, freed.text_of("state")), (200, "released"), "{freed:?}");
    // The key of a hold that has ended tells the truth of now.
    let ended = retry(placing, "k-2", json!({"quantity": 2, "buyer": "b-2"})).await;
    assert_eq!(ended.slug(), "hold-released", "{ended:?}");
    let other = retry(placing, "k-0", json!({"quantity": 3, "buyer": "b-0"})).await;
    assert_eq!(other.slug(), "idempotency-key-reused", "{other:?}");
    let audit = fleet.audit("ticket").await;
    assert_eq!((audit.number_of("held"), audit.number_of("sold")), (2, 2));
}

/// How the first caller of a key stops waiting while its entry is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Deadline,
    Gone,
}

/// The trap: a key must not leave the in-flight table because its first caller's deadline passed,
/// or the retry is proposed a second time.
#[tokio::test]
async fn retry_joins_the_entry_in_flight_after_its_first_callers_deadline() {
    retry_joins_after(Leaving::Deadline).await;
}

/// The same trap: nor because its first caller went away.
#[tokio::test]
async fn retry_joins_the_entry_in_flight_after_its_first_caller_went_away() {
    retry_joins_after(Leaving::Gone).await;
}

async fn retry_joins_after(leaving: Leaving) {
    // A lease that outlives the pause of both followers: the entry stays this leader's to decide.
    let plan = Plan::new(3, 1)
        .set("raft.heartbeat_ms", 100)
        .set("raft.election_min_ms", 6_000)
        .set("raft.election_max_ms", 8_000)
        .set("raft.pause_after_ms", 5_000);
    let fleet = Fleet::start(plan).await;
    fleet.put_units("ticket", 10).await;
    let leader = fleet.leader_of("ticket").await;
    for follower in fleet.others(leader) {
        fleet.freeze(follower);
    }
    let path = "/v1/items/ticket/holds";
    let body = json!({"quantity": 1, "buyer": "b"});
    let within = Duration::from_millis(150);
    match leaving {
        Leaving::Deadline => {
            let first = fleet.caller(leader).post_within(path, "k", &body, within).await;
            let first = first.expect("an answer");
            assert_eq!(first.slug(), "outcome-unknown", "{first:?}");
        }
        Leaving::Gone => {
            let mut first = fleet.caller(leader);
            let headers = [("Idempotency-Key", "k"), ("Holdfast-Deadline-Ms", "20000")];
            first.write("POST", path, &headers, Some(&body)).await.expect("sent");
            wait_for("it is proposed", SOON, async || {
                let keys = fleet.metrics(leader).await.sum("holdfast_keys_in_flight", &[]);
                if keys >= 1.0 { Ok(()) } else { Err(format!("{keys} keys")) }
            })
            .await;
            drop(first);
            // The node has seen many times that nobody waits there any more.
            pass(within).await;
        }
    }
    let commands = fleet.metrics(leader).await.sum("holdfast_commands_total", &[]);
    let in_flight = fleet.metrics(leader).await.sum("holdfast_keys_in_flight", &[]);
    assert!(in_flight >= 1.0, "the key left the table with its caller");
    let mut retry = fleet.caller(leader);
    let headers = [("Idempotency-Key", "k"), ("Holdfast-Deadline-Ms", "20000")];
    retry.write("POST", path, &headers, Some(&body)).await.expect("sent");
    // Another body under the same key waits for the outcome, and is then refused by it.
    let mut other = fleet.caller(leader);
    let reused = json!({"quantity": 2, "buyer": "b"});
    other.write("POST", path, &headers, Some(&reused)).await.expect("sent");
    // A third one gives up on it in turn: still unknown, never a no.
    let third = fleet.caller(leader).post_within(path, "k", &body, within).await;
    assert_eq!(third.expect("an answer").slug(), "outcome-unknown");
    for follower in fleet.others(leader) {
        fleet.thaw(follower);
    }
    let joined = retry.read().await.expect("an answer");
    assert!(joined.status == 200 || joined.status == 201, "{joined:?}");
    let refused = other.read().await.expect("an answer");
    assert_eq!(refused.slug(), "idempotency-key-reused", "{refused:?}");
    let again = fleet.caller(leader).post(path, "k", &body).await.expect("an answer");
    assert_eq!(again.text_of("id"), joined.text_of("id"));
    let proposed = fleet.metrics(leader).await.sum("holdfast_commands_total", &[]) - commands;
    assert_eq!(proposed, 0.0, "no copy of the key went into the log a second time");
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 1);
}
