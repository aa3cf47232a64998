//! A shard without a quorum: it says so at once, grants nothing, reads on, and sells again when the
//! others are back.

mod cluster;

use std::time::Duration;

use cluster::{Answer, Fleet, Plan, SOON, pass, rounds, try_again, wait_for};
use serde_json::json;
use tokio::time::Instant;

/// The longest that a shard may take to notice that its quorum has gone: `pause_after` and a lease,
/// with room for a debug build.
const NOTICED: Duration = Duration::from_millis(700);

async fn place(fleet: &Fleet, node: usize, key: &str) -> (Answer, Duration) {
    let asked = Instant::now();
    let body = json!({"quantity": 1, "buyer": key});
    let answer = fleet.caller(node).post("/v1/items/ticket/holds", key, &body).await;
    (answer.expect("a node that runs answers"), asked.elapsed())
}

/// Sells again: a new key, then every key that was unknown, each with one hold.
async fn sells_again(fleet: &Fleet, keys: &[String]) {
    for key in keys {
        let first = wait_for(&format!("{key} is answered"), SOON, async || {
            let body = json!({"quantity": 1, "buyer": key});
            let node = fleet.running()[0];
            let sent = fleet.caller(node).post("/v1/items/ticket/holds", key, &body).await;
            if try_again(&sent) { Err(format!("{sent:?}")) } else { Ok(sent.expect("definite")) }
        })
        .await;
        assert!(first.status == 200 || first.status == 201, "{key}: {first:?}");
        let (again, _) = place(fleet, fleet.running()[1], key).await;
        assert_eq!(again.text_of("id"), first.text_of("id"), "{key}: one key, one hold");
    }
}

/// Case I11.
#[tokio::test]
async fn without_a_quorum_nothing_is_granted_and_every_answer_comes_at_once() {
    let mut fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("ticket", 1_000).await;
    let mut granted = 0;
    for round in 0..rounds(2) {
        let leader = fleet.leader_of("ticket").await;
        let others = fleet.others(leader);
        let (held, _) = place(&fleet, leader, &format!("before-{round}")).await;
        assert_eq!(held.status, 201, "{held:?}");
        granted += 1;
        fleet.kill_all(&others);
        let mut unknown = Vec::new();
        let from = Instant::now();
        for n in 0..40 {
            let key = format!("during-{round}-{n}");
            let (answer, took) = place(&fleet, leader, &key).await;
            match answer.slug() {
                "item-paused" => {
                    assert_eq!(answer.text_of("reason"), "quorum-lost", "{answer:?}");
                    assert!(took < NOTICED, "{key}: said after {took:?}");
                }
                // Proposed in the first moment, before anybody could know.
                "outcome-unknown" => unknown.push(key.clone()),
                _ => panic!("{key}: {answer:?}"),
            }
            let late = from.elapsed() > NOTICED + Duration::from_secs(2);
            assert!(!late || answer.slug() == "item-paused", "{key}: {answer:?}");
        }
        println!("round {round}: {} of 40 unknown", unknown.len());
        assert!(unknown.len() < 40);
        stale_reads_go_on(&fleet, leader, granted).await;
        for id in others {
            fleet.start_node(id);
        }
        fleet.wait_ready().await;
        unknown.push(format!("after-{round}"));
        sells_again(&fleet, &unknown).await;
        granted += unknown.len() as u64;
        fleet.settle().await;
        // Nothing was granted to those who were told that nothing was taken.
        assert_eq!(fleet.audit("ticket").await.number_of("held"), granted);
    }
}

async fn stale_reads_go_on(fleet: &Fleet, node: usize, held: u64) {
    let mut caller = fleet.caller(node);
    let stale = caller.get("/v1/items/ticket/availability").await.expect("an answer");
    assert_eq!((stale.status, stale.number_of("held")), (200, held), "{stale:?}");
    for consistency in ["leader", "linearizable"] {
        let path = format!("/v1/items/ticket/availability?consistency={consistency}");
        let asked = Instant::now();
        let truth = caller.get(&path).await.expect("an answer");
        assert_eq!(truth.slug(), "item-paused", "{consistency}: {truth:?}");
        println!("{consistency} read refused after {:?}", asked.elapsed());
    }
    let ready = caller.get("/readyz").await.expect("an answer");
    assert_eq!(ready.status, 503);
    assert!(ready.text.contains("quorum-lost"), "{}", ready.text);
    let paused = fleet.metrics(node).await.sum("holdfast_shard_paused", &["quorum-lost"]);
    assert_eq!(paused, 1.0);
}

/// The followers stand still with their connections open, as in a partition: what was proposed is
/// unknown at its deadline, what comes later is refused at once.
#[tokio::test]
async fn leader_cut_off_from_silent_followers_answers_at_once_and_unknown_keys_resolve() {
    let fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("ticket", 1_000).await;
    let leader = fleet.leader_of("ticket").await;
    let others = fleet.others(leader);
    let mut unknown = Vec::new();
    for round in 0..rounds(3) {
        let leader = fleet.leader_of("ticket").await;
        let others = fleet.others(leader);
        for id in &others {
            fleet.freeze(*id);
        }
        let body = json!({"quantity": 1, "buyer": "b"});
        let mut early = Vec::new();
        for n in 0..8 {
            let key = format!("early-{round}-{n}");
            let headers = [("Idempotency-Key", key.as_str()), ("Holdfast-Deadline-Ms", "600")];
            let mut caller = fleet.caller(leader);
            let path = "/v1/items/ticket/holds";
            caller.write("POST", path, &headers, Some(&body)).await.expect("sent");
            early.push((caller, key, Instant::now()));
        }
        for (mut caller, key, sent_at) in early {
            let answer = caller.read().await.expect("an answer");
            assert!(sent_at.elapsed() < NOTICED + NOTICED, "{key}: {:?}", sent_at.elapsed());
            match answer.slug() {
                "outcome-unknown" => unknown.push((key, body.clone())),
                "item-paused" => {}
                _ => panic!("{key}: {answer:?}"),
            }
        }
        for n in 0..10 {
            let (answer, took) = place(&fleet, leader, &format!("late-{round}-{n}")).await;
            assert_eq!(answer.slug(), "item-paused", "{answer:?}");
            assert!(took < Duration::from_millis(250), "said after {took:?}");
        }
        for id in &others {
            fleet.thaw(*id);
        }
        wait_for("it sells again", SOON, async || {
            let (answer, _) = place(&fleet, leader, &format!("again-{round}")).await;
            if answer.status == 201 || answer.status == 200 {
                return Ok(());
            }
            Err(format!("{answer:?}"))
        })
        .await;
    }
    println!("{} unknown; first leader {leader}, others {others:?}", unknown.len());
    assert!(!unknown.is_empty(), "nothing was in flight: this proved nothing");
    for (key, body) in &unknown {
        let retried = wait_for("the unknown key is answered", SOON, async || {
            let sent = fleet.caller(1).post("/v1/items/ticket/holds", key, body).await;
            if try_again(&sent) { Err(format!("{sent:?}")) } else { Ok(sent.expect("definite")) }
        })
        .await;
        assert!(retried.status == 200 || retried.status == 201, "{retried:?}");
    }
    fleet.settle().await;
    let held = fleet.audit("ticket").await.number_of("held");
    assert_eq!(held, (unknown.len() + rounds(3)) as u64, "one key, one hold");
}

/// A follower that hears nobody does not send its callers into the void until their deadline.
#[tokio::test]
async fn lone_follower_says_paused_rather_than_waiting_for_a_silent_leader() {
    let fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("ticket", 10).await;
    let leader = fleet.leader_of("ticket").await;
    let others = fleet.others(leader);
    let lone = others[0];
    fleet.freeze(leader);
    fleet.freeze(others[1]);
    pass(NOTICED).await;
    for n in 0..5 {
        let (answer, took) = place(&fleet, lone, &format!("lone-{n}")).await;
        println!("{} after {took:?}", answer.slug());
        assert_eq!(answer.slug(), "item-paused", "{answer:?}");
        assert!(took < NOTICED, "said after {took:?}");
    }
    let stale = fleet.caller(lone).get("/v1/items/ticket/availability").await;
    assert_eq!(stale.expect("an answer").number_of("available"), 10);
    fleet.thaw(leader);
    fleet.thaw(others[1]);
    sells_again(&fleet, &["after".to_owned()]).await;
}
