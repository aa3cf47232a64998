//! Who may take part: wiped, damaged, foreign and doubled nodes do not, and say what helps.

mod cluster;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::{Fleet, Plan, SOON, command, holdfast, pass, wait_for};
use serde_json::json;

async fn place(fleet: &Fleet, node: usize, key: &str) -> cluster::Answer {
    let body = json!({"quantity": 1, "buyer": key});
    let within = Duration::from_millis(500);
    let path = "/v1/items/ticket/holds";
    fleet.caller(node).post_within(path, key, &body, within).await.expect("an answer")
}

async fn sell(fleet: &Fleet, node: usize, count: usize) {
    for n in 0..count {
        let key = format!("sold-by-{node}-{n}");
        wait_for("it sells", SOON, async || {
            let answer = place(fleet, node, &key).await;
            if answer.status < 300 { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
}

/// Nobody votes for anybody here: for well over an election's time nothing is granted.
async fn no_quorum_comes_about(fleet: &Fleet, node: usize) {
    for n in 0..20 {
        let answer = place(fleet, node, &format!("never-{n}")).await;
        assert!(answer.status == 503 || answer.status == 504, "{answer:?}");
        pass(Duration::from_millis(100)).await;
    }
    let view = fleet.view(node).await.expect("it answers");
    assert!(view.shards.iter().all(|shard| shard.paused.is_some()), "{view:?}");
}

/// Case C02: the log was deleted, the rest is there.
#[tokio::test]
async fn node_whose_log_is_gone_does_not_start_and_names_the_page_that_helps() {
    let mut fleet = Fleet::start(Plan::new(3, 2)).await;
    fleet.put_units("ticket", 1_000).await;
    sell(&fleet, 1, 20).await;
    fleet.kill(3);
    fs::remove_dir_all(fleet.data_dir(3).join("log")).expect("the log goes");
    let (status, words) = fleet.start_refused(3).await;
    assert!(!status.success(), "{words}");
    assert!(words.contains("docs/operations.md"), "{words}");
    assert!(!words.contains("panicked"), "{words}");
    // Twice: nothing was made in the first attempt that lets the second one pass.
    let (status, words) = fleet.start_refused(3).await;
    assert!(!status.success() && words.contains("docs/operations.md"), "{words}");
    sell(&fleet, 2, 20).await;
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 40);
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .expect("the log's directory")
        .map(|entry| entry.expect("the log's directory").path())
        .filter(|path| path.metadata().is_ok_and(|m| m.len() >= 1 << 20))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no segment in {}", dir.display());
    found
}

/// Flips a bit in the middle of what was written to a file of frames and zeros.
fn damage(path: &Path) {
    let mut file = fs::File::options().read(true).write(true).open(path).expect("a segment");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("it can be read");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("something was written");
    let at = (used / 2..used).find(|at| bytes[*at] != 0).expect("something stands there");
    file.seek(SeekFrom::Start(at as u64)).expect("within the file");
    file.write_all(&[bytes[at] ^ 0x10]).expect("it can be written");
    file.sync_all().expect("it can be synced");
}

/// A byte of the synced log flipped at rest, and a segment cut short.
#[tokio::test]
async fn node_whose_log_is_damaged_does_not_start_and_the_others_go_on() {
    let mut fleet = Fleet::start(Plan::new(3, 2)).await;
    fleet.put_units("ticket", 1_000).await;
    sell(&fleet, 1, 50).await;
    fleet.settle().await;
    fleet.kill(3);
    let log = fleet.data_dir(3).join("log");
    let first = segments(&log).remove(0);
    let sound = fs::read(&first).expect("a segment");
    damage(&first);
    let (status, words) = fleet.start_refused(3).await;
    assert!(!status.success(), "{words}");
    assert!(words.contains("docs/operations.md"), "{words}");
    assert!(!words.contains("panicked"), "{words}");
    fs::write(&first, &sound[..sound.len() / 64]).expect("cut short");
    let (status, words) = fleet.start_refused(3).await;
    assert!(!status.success() && words.contains("docs/operations.md"), "{words}");
    sell(&fleet, 2, 10).await;
    // As it was: it is let in again.
    fs::write(&first, &sound).expect("put back");
    fleet.start_node(3);
    fleet.wait_ready().await;
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 60);
}

/// Case C02: wiped altogether, started under its old address, and talked into being node 3 again by
/// whoever knows the cluster's id. It gives no vote.
#[tokio::test]
async fn wiped_node_gives_no_vote_whoever_adopts_it() {
    let mut fleet = Fleet::start(Plan::new(3, 2)).await;
    fleet.put_units("ticket", 1_000).await;
    sell(&fleet, 1, 20).await;
    let cluster = fleet.view(1).await.expect("it answers").cluster_id.expect("a cluster");
    fleet.kill(3);
    fs::remove_dir_all(fleet.data_dir(3)).expect("the node is wiped");
    fleet.start_node(3);
    fleet.wait_up(3).await;
    let blank = fleet.caller(3).get("/readyz").await.expect("an answer");
    assert_eq!(blank.status, 503);
    assert!(blank.text.contains("holdfast cluster init"), "{}", blank.text);
    // `cluster init` does not take it for a new cluster's, nor the cluster for a new one.
    let init = fleet.init("second-plan.json");
    assert_eq!(init.code, Some(2), "{}", init.words());
    assert!(init.words().contains("docs/operations.md"), "{}", init.words());
    sell(&fleet, 2, 5).await;

    let settings = json!({"shards": 2, "tag_key": "00".repeat(16), "slots": 256, "sweep_max": 512,
        "receipt_retention_ms": 86_400_000, "sold_retention_ms": 7_776_000_000_u64});
    let offer = json!({"cluster_id": cluster, "node": 3, "settings": settings});
    let adopted = fleet.caller(3).post("/admin/v1/adopt", "k", &offer).await.expect("an answer");
    assert_eq!(adopted.status, 200, "{adopted:?}");
    let address = |id: usize| {
        json!({"node": id, "log_uuid": "0".repeat(31) + &id.to_string(),
        "peer_addr": fleet.peer(id).to_string(), "http_addr": fleet.http(id).to_string(),
        "region": "default"})
    };
    let mut own = address(3);
    own["log_uuid"] = adopted.body["log_uuid"].clone();
    let members = json!({"members": [address(1), address(2), own]});
    let begun = fleet.caller(3).post("/admin/v1/begin", "k", &members).await.expect("an answer");
    println!("begin: {begun:?}");
    // With one true node gone, the other and the wiped one are no quorum.
    fleet.kill(1);
    no_quorum_comes_about(&fleet, 2).await;
    fleet.start_node(1);
    fleet.wait_up(1).await;
    sell(&fleet, 1, 20).await;
    fleet.kill(3);
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 25);
}

/// A node of another cluster stands at a member's address, and a member's data at another's.
#[tokio::test]
async fn node_of_another_cluster_is_not_let_in() {
    let mut fleet = Fleet::start_empty(Plan::new(4, 1)).await;
    let urls = |ids: &[usize]| ids.iter().map(|id| fleet.url(*id)).collect::<Vec<_>>().join(",");
    for (name, nodes) in [("ours", urls(&[1, 2, 3])), ("theirs", urls(&[4]))] {
        let plan = fleet.dir().join(name).display().to_string();
        let made =
            holdfast(&["cluster", "init", "--nodes", &nodes, "--shards", "1", "--plan", &plan]);
        assert_eq!(made.code, Some(0), "{}", made.words());
    }
    fleet.put_units("ticket", 1_000).await;
    sell(&fleet, 1, 10).await;
    fleet.kill_all(&[3, 4]);
    // The stranger takes node 3's place.
    let place = fleet.peer(3);
    fleet.set_on(4, "peer.listen", place);
    fleet.start_node(4);
    fleet.wait_up(4).await;
    sell(&fleet, 2, 10).await;
    let stranger = fleet.read(4, "/v1/items/ticket?consistency=local").await;
    assert_eq!(stranger.status, 404, "it was told nothing: {stranger:?}");
    fleet.kill(1);
    no_quorum_comes_about(&fleet, 2).await;
    fleet.start_node(1);
    fleet.kill(4);
    fleet.start_node(3);
    fleet.wait_ready().await;
    sell(&fleet, 3, 10).await;
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 30);
}

#[tokio::test]
async fn second_process_on_a_data_directory_is_turned_away() {
    let fleet = Fleet::start(Plan::new(1, 1)).await;
    let data = format!("node.data_dir={}", fleet.data_dir(1).display());
    let set =
        ["--set", &data, "--set", "http.listen=127.0.0.1:0", "--set", "peer.listen=127.0.0.1:0"];
    let mut line = vec!["serve"];
    line.extend(set);
    let second = command(&line).output().expect("the binary runs");
    let words = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success(), "{words}");
    assert!(words.contains("another process"), "{words}");
    fleet.put_units("ticket", 5).await;
    sell(&fleet, 1, 5).await;
}

/// Case C02: the same command again changes nothing.
#[tokio::test]
async fn cluster_init_on_a_living_cluster_changes_nothing() {
    let fleet = Fleet::start(Plan::new(3, 2)).await;
    fleet.put_units("ticket", 100).await;
    sell(&fleet, 1, 10).await;
    let before = fleet.view(1).await.expect("it answers").cluster_id;
    let again = fleet.init("another-plan.json");
    assert_eq!(again.code, Some(0), "{}", again.words());
    assert!(again.words().contains(before.as_deref().expect("a cluster")), "{}", again.words());
    // Two of the three, and another number of shards: still no second cluster.
    let plan = fleet.dir().join("third").display().to_string();
    let some = [fleet.url(1), fleet.url(2)].join(",");
    holdfast(&["cluster", "init", "--nodes", &some, "--shards", "1", "--plan", &plan]);
    for id in fleet.running() {
        let view = fleet.view(id).await.expect("it answers");
        assert_eq!((view.cluster_id.clone(), view.shards.len()), (before.clone(), 2), "{view:?}");
    }
    sell(&fleet, 3, 10).await;
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 20);
}

/// Found on a busy machine: `cluster init` timed out while a node began, and that node said "it is
/// starting" for ever, since its start went away with the caller.
#[tokio::test]
async fn node_begins_though_its_caller_goes_away() {
    let mut fleet = Fleet::start_empty(Plan::new(1, 4)).await;
    let settings = json!({"shards": 4, "tag_key": "0f".repeat(16), "slots": 256, "sweep_max": 512,
        "receipt_retention_ms": 86_400_000, "sold_retention_ms": 7_776_000_000_u64});
    let offer = json!({"cluster_id": "ab".repeat(16), "node": 1, "settings": settings});
    let adopted = fleet.caller(1).post("/admin/v1/adopt", "k", &offer).await.expect("an answer");
    assert_eq!(adopted.status, 200, "{adopted:?}");
    let own = json!({"node": 1, "log_uuid": adopted.body["log_uuid"], "region": "default",
        "peer_addr": fleet.peer(1).to_string(), "http_addr": fleet.http(1).to_string()});
    let members = json!({"members": [own]});
    let mut caller = fleet.caller(1);
    caller.write("POST", "/admin/v1/begin", &[], Some(&members)).await.expect("sent");
    // It has the request by the time it answers another one.
    assert_eq!(fleet.caller(1).get("/livez").await.expect("an answer").status, 200);
    drop(caller);
    fleet.wait_ready().await;
    fleet.put_units("ticket", 5).await;
    sell(&fleet, 1, 5).await;
}
