//! Real nodes that die and come back: all at once, one after the other, in good order and not.

mod cluster;

use std::time::Duration;

use cluster::{Buying, Fleet, Plan, pass, rounds, seed};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Case S04: what was acknowledged is there when every process was killed at once.
#[tokio::test]
async fn all_nodes_killed_at_once_under_load_lose_nothing_acknowledged() {
    let seed = seed();
    let mut fleet = Fleet::start(Plan::new(3, 2)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 12, seed);
    for round in 0..rounds(4) {
        buying.wait_grants(50).await;
        let all = fleet.running();
        fleet.kill_all(&all);
        let from = Instant::now();
        for id in all {
            fleet.start_node(id);
        }
        fleet.wait_ready().await;
        println!("round {round}: ready {:?} after the start", from.elapsed());
        buying.wait_grants(10).await;
    }
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}", books.kept.len(), books.told);
    books.verify(&fleet, "ticket").await;
}

/// Cases C25, H18: each node in turn is told to end, ends in good order within its bound, and comes
/// back; buyers notice nothing that a retry with the same key does not settle.
#[tokio::test]
async fn rolling_restart_under_load_loses_nothing_and_every_node_ends_in_good_order() {
    let seed = seed();
    let mut fleet = Fleet::start(Plan::new(3, 4)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 12, seed);
    let mut ends = Vec::new();
    for _ in 0..rounds(1) {
        for id in fleet.ids() {
            buying.wait_grants(60).await;
            ends.push(Instant::now());
            let from = Instant::now();
            fleet.terminate(id);
            let status = fleet.wait_exit(id, Duration::from_secs(10)).await;
            println!("node {id} ended after {:?}", from.elapsed());
            assert_eq!(status.code(), Some(0), "node {id}: {}", fleet.words(id));
            fleet.start_node(id);
            fleet.wait_ready().await;
        }
    }
    buying.wait_grants(60).await;
    let books = buying.finish().await;
    for end in ends {
        println!("SIGTERM -> next grant: {:?}", books.outage_after(end));
    }
    println!("{} holds; {:?}; longest {:?}", books.kept.len(), books.told, books.longest);
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
}

/// Case H18: half-sent requests and idle connections do not keep a node from ending.
#[tokio::test]
async fn node_ends_in_time_beside_half_sent_requests_and_idle_connections() {
    use tokio::io::AsyncWriteExt;
    let seed = seed();
    let mut fleet = Fleet::start(Plan::new(3, 2).set("http.drain_ms", 2_000)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let leader = fleet.leader_of("ticket").await;
    let mut half = Vec::new();
    for n in 0..100 {
        let mut caller = fleet.caller(leader);
        let stream = caller.connected().await.expect("the node is up");
        if n % 2 == 0 {
            let part = "POST /v1/items/ticket/holds HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n";
            stream.write_all(part.as_bytes()).await.expect("sent");
        }
        half.push(caller);
    }
    let buying = Buying::start("ticket", fleet.all_http(), 8, seed);
    buying.wait_grants(40).await;
    let from = Instant::now();
    fleet.terminate(leader);
    let status = fleet.wait_exit(leader, Duration::from_secs(10)).await;
    println!("ended after {:?}", from.elapsed());
    assert_eq!(status.code(), Some(0), "{}", fleet.words(leader));
    buying.wait_grants(40).await;
    fleet.start_node(leader);
    fleet.wait_ready().await;
    let books = buying.finish().await;
    books.verify(&fleet, "ticket").await;
}

/// A request that waits for frozen followers keeps a node from ending, as long as its deadline and
/// `http.drain_ms` let it. The first SIGTERM answers it; the second does not wait.
#[tokio::test]
async fn first_sigterm_answers_what_is_under_way_and_the_second_stops_at_once() {
    let plan = Plan::new(3, 1)
        .set("http.drain_ms", 25_000)
        .set("raft.heartbeat_ms", 100)
        .set("raft.election_min_ms", 3_000)
        .set("raft.election_max_ms", 4_000)
        .set("raft.pause_after_ms", 3_500);
    let mut fleet = Fleet::start(plan).await;
    fleet.put_units("ticket", 100).await;
    let path = "/v1/items/ticket/holds";
    let body = serde_json::json!({"quantity": 1, "buyer": "b"});
    for (twice, key) in [(false, "once"), (true, "twice")] {
        let leader = fleet.leader_of("ticket").await;
        for follower in fleet.others(leader) {
            fleet.freeze(follower);
        }
        let said = fleet.words(leader).len();
        let mut caller = fleet.caller(leader);
        let headers = [("Idempotency-Key", key), ("Holdfast-Deadline-Ms", "24000")];
        caller.write("POST", path, &headers, Some(&body)).await.expect("sent");
        in_flight(&fleet, leader).await;
        fleet.terminate(leader);
        cluster::wait_for("it says that it stops", cluster::SOON, async || {
            let words = fleet.words(leader)[said..].to_owned();
            if words.contains("stopping") { Ok(()) } else { Err(words) }
        })
        .await;
        if twice {
            let from = Instant::now();
            fleet.terminate(leader);
            let status = fleet.wait_exit(leader, Duration::from_secs(10)).await;
            println!("ended {:?} after the second", from.elapsed());
            assert_eq!(status.code(), Some(130), "{}", fleet.words(leader));
            assert!(fleet.words(leader)[said..].contains("stopping at once"));
            assert!(caller.read().await.is_err(), "nobody was there to answer");
        }
        for follower in fleet.others(leader) {
            fleet.thaw(follower);
        }
        if !twice {
            let answer = caller.read().await.expect("an answer");
            assert_eq!(answer.status, 201, "{answer:?}");
            let status = fleet.wait_exit(leader, Duration::from_secs(10)).await;
            assert_eq!(status.code(), Some(0), "{}", fleet.words(leader));
            assert!(!fleet.words(leader)[said..].contains("stopping at once"));
        }
        fleet.start_node(leader);
        fleet.wait_ready().await;
        let again = fleet.insist(leader, path, key, &body).await;
        assert!(again.status == 201 || again.status == 200, "{key}: {again:?}");
    }
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 2);
}

/// Waits until a node has a key in flight.
async fn in_flight(fleet: &Fleet, id: usize) {
    cluster::wait_for("the request is proposed", cluster::SOON, async || {
        let keys = fleet.metrics(id).await.sum("holdfast_keys_in_flight", &[]);
        if keys >= 1.0 { Ok(()) } else { Err(format!("{keys} keys")) }
    })
    .await;
}

/// Case C09: the log was purged three times over; one after the other and then all start again.
#[tokio::test]
async fn nodes_start_again_after_their_logs_were_purged() {
    let seed = seed();
    let plan = Plan::new(3, 1)
        .set("checkpoint.commands", 100)
        .set("checkpoint.interval_ms", 200)
        .set("checkpoint.log_bytes", 65_536);
    let mut fleet = Fleet::start(plan).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 12, seed);
    buying.wait_grants(400).await;
    for id in fleet.ids() {
        let purged = cluster::wait_for("the log is purged", cluster::SOON, async || {
            let purged = fleet.metrics(id).await.sum("holdfast_shard_purged_index", &[]);
            if purged > 0.0 { Ok(purged) } else { Err(format!("{purged}")) }
        })
        .await;
        println!("node {id}: purged up to {purged}");
        fleet.kill(id);
        fleet.start_node(id);
        fleet.wait_ready().await;
        buying.wait_grants(100).await;
    }
    let all = fleet.running();
    fleet.kill_all(&all);
    let from = Instant::now();
    for id in all {
        fleet.start_node(id);
    }
    fleet.wait_ready().await;
    println!("ready {:?} after the start", from.elapsed());
    assert!(from.elapsed() < Duration::from_secs(10));
    let books = buying.finish().await;
    pass(Duration::from_millis(300)).await;
    books.verify(&fleet, "ticket").await;
}

/// Knocks at a node's peer port until it opens, and tells how often it was refused before.
async fn refusals_before_it_opens(fleet: &Fleet, id: usize) -> usize {
    let mut refused = 0;
    cluster::wait_for("the peer port opens", cluster::SOON, async || {
        TcpStream::connect(fleet.peer(id)).await.map_err(|error| {
            refused += 1;
            error.to_string()
        })
    })
    .await;
    refused
}

/// Design §5: a node with a log has forgotten whom it promised what. It opens its peer port only
/// when every lease has run out that it may have granted before it died.
#[tokio::test]
async fn peer_port_of_a_node_with_a_log_opens_no_sooner_than_the_longest_election_timeout() {
    let longest = Duration::from_millis(1_500);
    let plan = Plan::new(3, 2).set("raft.election_max_ms", longest.as_millis());
    let mut fleet = Fleet::start(plan).await;
    fleet.put_units("ticket", 1_000_000).await;
    let (mut orderly, mut refused) = (false, 0);
    for id in [1, 2, 3, 1] {
        if orderly {
            fleet.terminate(id);
            fleet.wait_exit(id, Duration::from_secs(10)).await;
        } else {
            fleet.kill(id);
        }
        orderly = !orderly;
        let started = Instant::now();
        fleet.start_node(id);
        refused += refusals_before_it_opens(&fleet, id).await;
        let waited = started.elapsed();
        println!("node {id}: open after {waited:?}, {refused} refused so far");
        assert!(waited >= longest, "node {id} let peers in after {waited:?}");
        fleet.wait_ready().await;
    }
    assert!(refused > 0, "nobody knocked before");
    fleet.settle().await;
}

/// It has promised nobody anything.
#[tokio::test]
async fn peer_port_of_a_node_without_a_log_opens_at_once() {
    let longest = Duration::from_millis(20_000);
    let fleet = Fleet::start_empty(Plan::new(1, 2).set("raft.election_max_ms", 20_000)).await;
    assert!(TcpStream::connect(fleet.peer(1)).await.is_err(), "it belongs to no cluster yet");
    let begun = Instant::now();
    fleet.found().await;
    refusals_before_it_opens(&fleet, 1).await;
    let waited = begun.elapsed();
    assert!(waited < longest, "it has nothing to wait for: {waited:?}");
}
