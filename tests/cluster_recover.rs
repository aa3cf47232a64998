//! A lost quorum, and the way back: two of three data directories are destroyed, and `holdfast
//! recover` makes a new cluster of the third.

mod cluster;

use std::fs;
use std::time::Duration;

use cluster::{Answer, Fleet, Plan, SOON, holdfast, pass, wait_for};
use serde_json::{Value, json};

async fn place(fleet: &Fleet, node: usize, item: &str, key: &str) -> Answer {
    let path = format!("/v1/items/{item}/holds");
    fleet.insist(node, &path, key, &json!({"quantity": 1, "buyer": key})).await
}

/// Puts an item on three buckets, so that copies on other shards have to be paused too.
async fn put_spread(fleet: &Fleet, item: &str) {
    let body = json!({"total": 300, "hold": {"ttl_ms": 600_000}, "buckets": 2});
    fleet.put_item(item, &body).await;
    wait_for("all shards have it", SOON, async || {
        let read = fleet.read(1, &format!("/v1/items/{item}/layout")).await;
        let buckets = read.body["buckets"].as_array().map(Vec::len).unwrap_or_default();
        if buckets == 2 { Ok(()) } else { Err(read.text) }
    })
    .await;
}

/// The holds that were granted, by item: (key, id).
type Granted = Vec<(String, String, String)>;

async fn sell(fleet: &Fleet) -> Granted {
    let mut granted = Granted::new();
    for n in 0..60 {
        let item = ["plain", "spread"][n % 2];
        let key = format!("k-{n}");
        let answer = place(fleet, 1 + n % 3, item, &key).await;
        assert_eq!(answer.status / 100, 2, "{answer:?}");
        let id = answer.body["id"].as_str().expect("an id").to_owned();
        if n % 5 == 0 {
            let path = format!("/v1/holds/{id}/confirm");
            let sold = fleet.insist(1, &path, &format!("c-{n}"), &json!({})).await;
            assert_eq!(sold.status, 200, "{sold:?}");
        }
        granted.push((item.to_owned(), key, id));
    }
    granted
}

/// Waits until a node answers for every shard by itself.
async fn serve_recovered(fleet: &mut Fleet, id: usize) {
    fleet.start_node(id);
    fleet.wait_up(id).await;
    wait_for("the new cluster is ready", SOON, async || {
        match fleet.caller(id).get("/readyz").await {
            Ok(ready) if ready.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn new_cluster_of_the_last_directory_has_every_hold_and_sells_when_it_is_resumed() {
    let mut fleet = Fleet::start(Plan::new(3, 2).set("checkpoint.interval_ms", 500)).await;
    fleet.put_units("plain", 200).await;
    put_spread(&fleet, "spread").await;
    let granted = sell(&fleet).await;
    fleet.settle().await;
    // What the old cluster wanted of its nodes is nothing to the new one.
    let drained = holdfast(&["node", "drain", "2", "--url", &fleet.url(1)]);
    assert_eq!(drained.code, Some(0), "{}", drained.words());
    fleet.settle().await;
    let old = fleet.view(1).await.expect("it answers").cluster_id.expect("a cluster");
    let all = fleet.running();
    let dir = fleet.data_dir(3).display().to_string();
    // While it runs nobody touches it.
    let refused = holdfast(&["recover", &dir]);
    assert_eq!(refused.code, Some(3), "{}", refused.words());
    fleet.kill_all(&all);
    for id in [1, 2] {
        fs::remove_dir_all(fleet.data_dir(id)).expect("destroyed");
    }

    let shown = holdfast(&["recover", "--json", &dir]);
    println!("{}", shown.words());
    assert_eq!(shown.code, Some(4), "it writes nothing by itself: {}", shown.words());
    let left: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(left["left"]["paused"], 2, "{left}");
    let new = fleet.dir().join("new").display().to_string();
    let without = holdfast(&["recover", &dir, "--to", &new]);
    assert_eq!(without.code, Some(2), "the loss has to be accepted: {}", without.words());
    let made = holdfast(&["recover", "--json", &dir, "--to", &new, "--accept-loss"]);
    assert_eq!(made.code, Some(0), "{}", made.words());
    let made: Value = serde_json::from_str(&made.stdout).expect("JSON");
    assert_ne!(made["made"]["cluster_id"], json!(old));
    let doctor = holdfast(&["doctor", &new]);
    println!("{}", doctor.words());
    assert_eq!(doctor.code, Some(0), "{}", doctor.words());

    // The old directory is given up.
    let (status, words) = fleet.start_refused(3).await;
    assert!(!status.success() && words.contains("is given up"), "{words}");

    fleet.set_on(3, "node.data_dir", &new);
    serve_recovered(&mut fleet, 3).await;
    pass(Duration::from_millis(1_500)).await;
    for shard in fleet.view(3).await.expect("it answers").shards {
        assert_eq!(shard.voters, [4], "the old nodes stay out: {shard:?}");
    }
    for item in ["plain", "spread"] {
        let path = format!("/v1/items/{item}/holds");
        let refused = fleet.caller(3).post(&path, "new", &json!({"quantity": 1})).await;
        let refused = refused.expect("an answer");
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(refused.body["reason"], "operator", "{refused:?}");
    }
    for (item, _, id) in &granted {
        let hold = fleet.read(3, &format!("/v1/holds/{id}")).await;
        assert_eq!(hold.status, 200, "{item}: {hold:?}");
        assert!(["held", "sold"].contains(&hold.body["state"].as_str().unwrap_or("")), "{hold:?}");
    }
    let audit = holdfast(&["audit", "--url", &fleet.url(3)]);
    assert_eq!(audit.code, Some(0), "{}", audit.words());
    for item in ["plain", "spread"] {
        let resumed = holdfast(&["item", "resume", item, "--url", &fleet.url(3)]);
        assert_eq!(resumed.code, Some(0), "{}", resumed.words());
        let again = granted.iter().find(|(of, ..)| of == item).expect("one was granted");
        let replay = place(&fleet, 3, item, &again.1).await;
        assert!(replay.status == 200 || replay.status == 409, "{replay:?}");
        if replay.status == 200 {
            assert_eq!(replay.body["id"], json!(again.2), "one key, one effect");
        }
        let fresh = place(&fleet, 3, item, &format!("fresh-{item}")).await;
        assert_eq!(fresh.status, 201, "{fresh:?}");
    }
    // And it starts again as any node does.
    fleet.terminate(3);
    let status = fleet.wait_exit(3, Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{}", fleet.words(3));
    serve_recovered(&mut fleet, 3).await;
    let held: u64 = fleet.audit("plain").await.number_of("held");
    let sold: u64 = fleet.audit("plain").await.number_of("sold");
    assert_eq!(held + sold, 31, "30 before and one after");
}

/// The only log that is left is damaged: it is taken up to the damage when the operator says so,
/// and what was written before it is there.
#[tokio::test]
async fn damaged_log_is_taken_up_to_the_damage_when_the_operator_says_so() {
    let mut fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("plain", 200).await;
    let mut before = Vec::new();
    for n in 0..20 {
        before.push(place(&fleet, 1, "plain", &format!("before-{n}")).await);
    }
    fleet.settle().await;
    let segment = fleet.data_dir(3).join("log/0000000000000001.seg");
    let written = || {
        let bytes = fs::read(&segment).expect("its first segment");
        bytes.iter().rposition(|byte| *byte != 0).expect("something was written")
    };
    let end = written();
    for n in 0..20 {
        place(&fleet, 1, "plain", &format!("behind-{n}")).await;
    }
    fleet.settle().await;
    assert!(written() > end + 1_000, "the damage is in the middle of what was synced");
    let all = fleet.running();
    fleet.kill_all(&all);
    let mut bytes = fs::read(&segment).expect("its first segment");
    bytes[end + 500] ^= 0x55;
    fs::write(&segment, bytes).expect("written");
    let dir = fleet.data_dir(3).display().to_string();
    let new = fleet.dir().join("new").display().to_string();
    let refused = holdfast(&["recover", &dir]);
    assert_eq!(refused.code, Some(2), "{}", refused.words());
    assert!(refused.words().contains("--damaged-log"), "{}", refused.words());
    let made = holdfast(&["recover", &dir, "--damaged-log", "--to", &new, "--accept-loss"]);
    assert_eq!(made.code, Some(0), "{}", made.words());
    fleet.set_on(3, "node.data_dir", &new);
    serve_recovered(&mut fleet, 3).await;
    for hold in before {
        let id = hold.body["id"].as_str().expect("an id");
        let found = fleet.read(3, &format!("/v1/holds/{id}")).await;
        assert_eq!((found.status, found.text_of("state")), (200, "held"), "{found:?}");
    }
    let audit = holdfast(&["audit", "--url", &fleet.url(3)]);
    assert_eq!(audit.code, Some(0), "{}", audit.words());
}
