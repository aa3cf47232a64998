//! Real nodes, real sockets: many buyers race for few units.

mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cluster::{Caller, Dice, Fleet, Plan, holdfast, rounds, seed};
use serde_json::json;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Lets `buyers` place one unit each, `at_once` at a time on connections of their own, and counts
/// the answers by status and problem.
async fn race(fleet: &Fleet, item: &str, buyers: usize, at_once: usize) -> BTreeMap<String, usize> {
    let next = Arc::new(AtomicUsize::new(0));
    let barrier = Arc::new(Barrier::new(at_once));
    let nodes = fleet.all_http();
    let mut tasks = JoinSet::new();
    for task in 0..at_once {
        let (next, barrier) = (Arc::clone(&next), Arc::clone(&barrier));
        let path = format!("/v1/items/{item}/holds");
        let mut caller = Caller::new(nodes[task % nodes.len()]);
        tasks.spawn(async move {
            caller.connected().await.expect("the nodes are up");
            barrier.wait().await;
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

fn expected(granted: usize, buyers: usize) -> BTreeMap<String, usize> {
    BTreeMap::from([("201 ".to_owned(), granted), ("409 sold-out".to_owned(), buyers - granted)])
}

/// Case L01.
#[tokio::test]
async fn ten_thousand_buyers_for_a_hundred_units_get_exactly_a_hundred() {
    let fleet = Fleet::start(Plan::new(3, 4).calm()).await;
    fleet.put_units("ticket", 100).await;
    let buyers = rounds(10_000);
    let from = std::time::Instant::now();
    let told = race(&fleet, "ticket", buyers, 96).await;
    println!("{buyers} buyers in {:?}: {told:?}", from.elapsed());
    assert_eq!(told, expected(100, buyers));
    fleet.settle().await;
    let audit = fleet.audit("ticket").await;
    assert_eq!((audit.number_of("held"), audit.number_of("available")), (100, 0));
    let verdict = holdfast(&["audit", "--item", "ticket", "--url", &fleet.url(2)]);
    assert_eq!(verdict.code, Some(0), "{}", verdict.words());
}

/// Case L01.
#[tokio::test]
async fn last_unit_is_granted_once_to_two_hundred_who_ask_at_the_same_moment() {
    let fleet = Fleet::start(Plan::new(3, 4).calm()).await;
    for round in 0..rounds(10) {
        let item = format!("last-{round}");
        fleet.put_units(&item, 1).await;
        let told = race(&fleet, &item, 200, 200).await;
        assert_eq!(told, expected(1, 200), "round {round}");
    }
    fleet.settle().await;
    for round in 0..rounds(10) {
        let audit = fleet.audit(&format!("last-{round}")).await;
        assert_eq!(audit.number_of("held"), 1, "round {round}");
    }
}

/// Case L03.
#[tokio::test]
async fn figures_are_the_sums_of_what_was_acknowledged_under_any_interleaving() {
    let fleet = Fleet::start(Plan::new(3, 2).calm()).await;
    fleet.put_units("ticket", 1_000).await;
    let seed = seed();
    let mut tasks = JoinSet::new();
    for task in 0..40_usize {
        let mut caller = fleet.caller(1 + task % 3);
        let mut dice = Dice(seed ^ ((task as u64) << 32));
        tasks.spawn(async move {
            let (mut held, mut sold) = (0_u64, 0_u64);
            for n in 0..10 {
                let key = format!("k-{task}-{n}");
                let body = json!({"quantity": 1, "buyer": key});
                let placed = caller.post("/v1/items/ticket/holds", &key, &body).await;
                let placed = placed.expect("an answer");
                assert_eq!(placed.status, 201, "{placed:?}");
                held += 1;
                let verb = match dice.below(4) {
                    0 => "confirm",
                    1 | 2 => "release",
                    _ => continue,
                };
                let path = format!("/v1/holds/{}/{verb}", placed.text_of("id"));
                let ended = caller.post(&path, &key, &json!({})).await.expect("an answer");
                assert_eq!(ended.status, 200, "{ended:?}");
                held -= 1;
                sold += u64::from(verb == "confirm");
            }
            (held, sold)
        });
    }
    let (mut held, mut sold) = (0, 0);
    while let Some(sums) = tasks.join_next().await {
        let sums = sums.expect("a buyer does not fall over");
        held += sums.0;
        sold += sums.1;
    }
    fleet.settle().await;
    let audit = fleet.audit("ticket").await;
    assert_eq!((audit.number_of("held"), audit.number_of("sold")), (held, sold));
    let states = cluster::all_holds(&fleet, 3, "ticket").await;
    let count = |word: &str| states.iter().filter(|hold| hold["state"] == word).count() as u64;
    assert_eq!((count("held"), count("sold")), (held, sold));
}

/// Case L41.
#[tokio::test]
async fn sold_out_ends_with_the_first_credit_on_every_node() {
    let fleet = Fleet::start(Plan::new(3, 4).calm()).await;
    fleet.put_units("ticket", 1).await;
    let mut seen = BTreeSet::new();
    let mut caller = fleet.caller(1);
    let body = json!({"quantity": 1, "buyer": "first"});
    let mut hold = caller.post("/v1/items/ticket/holds", "k", &body).await.expect("an answer");
    for round in 0..rounds(60) {
        assert_eq!(hold.status, 201, "round {round}: {hold:?}");
        assert!(seen.insert(hold.text_of("id").to_owned()), "a new hold each time");
        let (refused_at, granted_at) = (1 + round % 3, 1 + (round / 3) % 3);
        let body = json!({"quantity": 1, "buyer": "other"});
        let key = format!("refused-{round}");
        let refused = fleet.caller(refused_at).post("/v1/items/ticket/holds", &key, &body).await;
        assert_eq!(refused.expect("an answer").slug(), "sold-out", "round {round}");
        let path = format!("/v1/holds/{}/release", hold.text_of("id"));
        let freed = caller.post(&path, &key, &json!({})).await.expect("an answer");
        assert_eq!(freed.status, 200, "round {round}: {freed:?}");
        // The refused buyer's own key, too: it was not consumed.
        let mut other = fleet.caller(granted_at);
        hold = other.post("/v1/items/ticket/holds", &key, &body).await.expect("an answer");
    }
}
