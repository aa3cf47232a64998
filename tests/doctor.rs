//! `holdfast doctor` on the data directories of real nodes that were stopped and harmed: what it
//! says, what it exits with, and that it changes nothing.

mod cluster;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster::{Finished, Fleet, Plan, SOON, holdfast, wait_for};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Data directories of a cluster of three nodes that was stopped in good order after its logs were
/// purged, and of another cluster's node.
struct Prepared {
    dir: tempfile::TempDir,
    cluster_id: String,
    /// Where node 1 could be reached.
    first: String,
}

/// Numbers the batches: a key is never used twice.
static ROUND: AtomicU64 = AtomicU64::new(0);

static PREPARED: OnceCell<Prepared> = OnceCell::const_new();

async fn prepared() -> &'static Prepared {
    PREPARED.get_or_init(prepare).await
}

async fn purged_everywhere(fleet: &Fleet) {
    wait_for("purged logs", SOON + SOON, async || {
        let round = ROUND.fetch_add(1, Ordering::Relaxed);
        let operations: Vec<Value> = (0..50)
            .map(|n| {
                json!({"op": "place", "key": format!("k-{round}-{n}"), "quantity": 1,
                       "item": format!("ticket-{}", n % 4)})
            })
            .collect();
        fleet.place_batch(1, &operations).await;
        for id in fleet.ids() {
            let metrics = fleet.metrics(id).await;
            for shard in ["shard=\"0\"", "shard=\"1\""] {
                let purged = metrics.sum("holdfast_shard_purged_index", &[shard]);
                if purged == 0.0 {
                    return Err(format!("node {id}, {shard}: nothing purged"));
                }
            }
        }
        Ok(())
    })
    .await;
}

/// Ends all nodes at once and copies their directories; again, if one was in the middle of a
/// checkpoint.
async fn end_all(mut fleet: Fleet, to: &Path, names: &[&str]) {
    let finished = |data: &Path| {
        let told = holdfast(&["doctor", "--quick", "--json", &data.display().to_string()]);
        let told: Value = serde_json::from_str(&told.stdout).expect("it is told");
        let shards = told["shards"].as_array().expect("shards").iter();
        let databases = shards.flat_map(|shard| shard["databases"].as_array().expect("two"));
        databases.into_iter().all(|database| database["state"] == "good")
    };
    for _ in 0..20 {
        for id in fleet.ids() {
            fleet.terminate(id);
        }
        for id in fleet.ids() {
            fleet.wait_exit(id, Duration::from_secs(10)).await;
        }
        if fleet.ids().all(|id| finished(&fleet.data_dir(id))) {
            for (id, name) in fleet.ids().zip(names) {
                copy(&fleet.data_dir(id), &to.join(name));
            }
            return;
        }
        for id in fleet.ids() {
            fleet.start_node(id);
        }
        fleet.wait_ready().await;
        purged_everywhere(&fleet).await;
    }
    panic!("twenty times a checkpoint was under way");
}

async fn prepare() -> Prepared {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = Plan::new(3, 2).set("checkpoint.interval_ms", 1_000).calm();
    let fleet = Fleet::start(plan).await;
    for n in 0..4 {
        fleet.put_units(&format!("ticket-{n}"), 1_000_000).await;
    }
    purged_everywhere(&fleet).await;
    let cluster_id = fleet.view(1).await.expect("it answers").cluster_id.expect("a cluster");
    let first = fleet.http(1).to_string();
    end_all(fleet, dir.path(), &["n1", "n2", "n3"]).await;
    let other = Fleet::start(Plan::new(1, 2).set("checkpoint.interval_ms", 1_000)).await;
    for n in 0..4 {
        other.put_units(&format!("ticket-{n}"), 1_000_000).await;
    }
    purged_everywhere(&other).await;
    end_all(other, dir.path(), &["other"]).await;
    Prepared { dir, cluster_id, first }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("a directory");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a file").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// A copy of a prepared directory, to be harmed.
fn patient(prepared: &Prepared, which: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    copy(&prepared.dir.path().join(which), &data);
    (dir, data)
}

/// Every name below a directory with what a change would change: kind, bytes, times, rights.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, u32, Vec<u8>)> {
    fn walk(dir: &Path, seen: &mut BTreeMap<PathBuf, (u64, i64, i64, u32, Vec<u8>)>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("a directory").path();
            let meta = fs::symlink_metadata(&path).expect("it is there");
            let bytes = if meta.is_dir() { Vec::new() } else { fs::read(&path).expect("read") };
            let times = (meta.mtime(), meta.mtime_nsec());
            seen.insert(path.clone(), (meta.ino(), times.0, times.1, meta.mode(), bytes));
            if meta.is_dir() {
                walk(&path, seen);
            }
        }
    }
    let mut seen = BTreeMap::new();
    let meta = fs::metadata(dir).expect("it is there");
    seen.insert(dir.into(), (meta.ino(), meta.mtime(), meta.mtime_nsec(), 0, Vec::new()));
    walk(dir, &mut seen);
    seen
}

/// Runs the doctor for people and for programs; nothing in the directory may change.
fn examine(data: &Path) -> (Finished, Value) {
    let before = picture(data);
    let dir = data.display().to_string();
    let people = holdfast(&["doctor", &dir]);
    let programs = holdfast(&["doctor", "--json", &dir]);
    assert!(picture(data) == before, "something in {dir} has changed");
    assert_eq!(people.code, programs.code);
    println!("{}", people.words());
    let told = serde_json::from_str(&programs.stdout);
    (people, told.unwrap_or_else(|error| panic!("{error}: {}", programs.words())))
}

fn finding<'a>(told: &'a Value, severity: &str) -> &'a Value {
    let findings = told["findings"].as_array().expect("findings");
    let found = findings.iter().find(|finding| finding["severity"] == severity);
    found.unwrap_or_else(|| panic!("no {severity} finding in {told}"))
}

fn act(told: &Value, severity: &str) -> String {
    finding(told, severity)["act"].as_str().expect("what to do").to_owned()
}

/// The name of the database of a shard that is newer, or older.
fn database(told: &Value, shard: usize, newer: bool) -> String {
    let both = told["shards"][shard]["databases"].as_array().expect("two databases");
    let sequence = |at: usize| both[at]["sequence"].as_u64().expect("a good database");
    let at = usize::from((sequence(1) > sequence(0)) == newer);
    both[at]["name"].as_str().expect("a name").to_owned()
}

/// Flips a bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("a file");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("something was written");
    let at = (used / 2..used).find(|at| bytes[*at] != 0).expect("something stands there");
    bytes[at] ^= 0x10;
    fs::write(path, bytes).expect("written");
}

#[tokio::test]
async fn sound_directory_is_told_in_full_and_exits_0() {
    let prepared = prepared().await;
    let (_dir, data) = patient(prepared, "n2");
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(0), "{}", people.words());
    assert!(people.stdout.contains("sound: the node starts"), "{}", people.stdout);
    assert_eq!(told["identity"]["cluster_id"], json!(prepared.cluster_id));
    assert_eq!(told["identity"]["node"], 2);
    assert_eq!(told["log"]["verdict"], "whole");
    assert_eq!(told["log"]["frames"], told["log"]["synced"], "closed in good order");
    assert_eq!(told["members"].as_array().map(Vec::len), Some(3));
    assert_eq!(told["worst"], Value::Null, "{told}");
    for shard in told["shards"].as_array().expect("shards") {
        assert!(shard["vote"]["term"].as_u64().is_some_and(|term| term > 0), "{shard}");
        assert!(shard["last"].as_u64() >= shard["purged"].as_u64(), "{shard}");
        for database in shard["databases"].as_array().expect("databases") {
            assert_eq!(database["state"], "good", "{database}");
            assert_eq!(database["digest_holds"], true, "{database}");
            assert!(database["index"].as_u64() >= shard["purged"].as_u64(), "{shard}");
            assert_eq!(database["voters"], json!([1, 2, 3]));
        }
    }
}

#[tokio::test]
async fn damaged_log_is_told_with_the_command_that_replaces_the_node() {
    let prepared = prepared().await;
    let (_dir, data) = patient(prepared, "n3");
    let log = data.join("log");
    let mut segments: Vec<_> = fs::read_dir(&log)
        .expect("the log")
        .map(|entry| entry.expect("the log").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "seg"))
        .filter(|path| fs::read(path).is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0)))
        .collect();
    segments.sort();
    flip(segments.last().expect("a segment in use"));
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(1), "{}", people.words());
    assert_eq!(told["log"]["verdict"], "damaged");
    let command = format!("holdfast --url http://{} node replace 3", prepared.first);
    assert!(act(&told, "broken").contains(&command), "{told}");
}

#[tokio::test]
async fn lost_log_and_lost_identity_are_told_with_the_command_that_replaces_the_node() {
    let prepared = prepared().await;
    let command = format!("holdfast --url http://{} node replace 2", prepared.first);
    let (_dir, data) = patient(prepared, "n2");
    fs::remove_dir_all(data.join("log")).expect("the log goes");
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(1), "{}", people.words());
    assert_eq!(told["log"]["verdict"], "lost");
    assert!(act(&told, "broken").contains(&command), "{told}");

    let (_dir, data) = patient(prepared, "n2");
    fs::remove_file(data.join("identity")).expect("the identity goes");
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(1), "{}", people.words());
    // Whose it was is read from the log's own uuid.
    assert!(act(&told, "broken").contains(&command), "{told}");
}

#[tokio::test]
async fn one_damaged_database_exits_4_and_the_other_is_what_the_node_starts_from() {
    let prepared = prepared().await;
    let (_dir, data) = patient(prepared, "n1");
    let (_, sound) = examine(&data);
    let (newer, older) = (database(&sound, 1, true), database(&sound, 1, false));
    flip(&data.join("shard-1").join(&newer).join("db"));
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(4), "{}", people.words());
    assert_eq!(told["shards"][1]["starts_from"], json!(older), "{told}");
    assert!(act(&told, "warning").starts_with("nothing"), "{told}");
    // Without reading every byte that is not seen.
    let quick = holdfast(&["doctor", "--quick", &data.display().to_string()]);
    assert_eq!(quick.code, Some(0), "{}", quick.words());
}

/// A checkpoint cut short is no damage: nobody is woken for it.
#[tokio::test]
async fn unfinished_checkpoint_is_a_note_and_exits_0() {
    let prepared = prepared().await;
    let (_dir, data) = patient(prepared, "n1");
    let (_, sound) = examine(&data);
    let (newer, older) = (database(&sound, 0, true), database(&sound, 0, false));
    fs::remove_file(data.join(format!("shard-0/{newer}.seal"))).expect("it was closed");
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(0), "{}", people.words());
    assert_eq!(told["shards"][0]["starts_from"], json!(older), "{told}");
    assert!(finding(&told, "note")["what"].as_str().is_some_and(|w| w.contains("not finished")));
}

#[tokio::test]
async fn two_damaged_databases_are_fetched_from_a_member_when_there_is_one() {
    let prepared = prepared().await;
    for (which, code, severity) in [("n2", 4, "warning"), ("other", 1, "broken")] {
        let (_dir, data) = patient(prepared, which);
        for database in ["a", "b"] {
            flip(&data.join("shard-0").join(database).join("db"));
        }
        let (people, told) = examine(&data);
        assert_eq!(people.code, Some(code), "{}", people.words());
        assert_eq!(told["shards"][0]["starts_from"], Value::Null);
        let findings = told["findings"].as_array().expect("findings");
        let start = findings
            .iter()
            .find(|one| one["what"].as_str().is_some_and(|what| what.contains("neither")));
        let start = start.unwrap_or_else(|| panic!("{told}"));
        assert_eq!(start["severity"], severity);
        let act = start["act"].as_str().expect("what to do");
        let helps = if which == "n2" { prepared.first.as_str() } else { "holdfast recover" };
        assert!(act.contains(helps), "{act}");
    }
}

#[tokio::test]
async fn data_of_another_cluster_is_told_apart_from_damage() {
    let prepared = prepared().await;
    let (_dir, data) = patient(prepared, "n1");
    fs::remove_dir_all(data.join("shard-0")).expect("its own goes");
    copy(&prepared.dir.path().join("other/shard-0"), &data.join("shard-0"));
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(1), "{}", people.words());
    assert_eq!(told["shards"][0]["databases"][0]["state"], "foreign");
    assert!(act(&told, "broken").contains("put this node's own shard-0 back"), "{told}");

    let (_dir, data) = patient(prepared, "n1");
    fs::remove_dir_all(data.join("log")).expect("its own goes");
    copy(&prepared.dir.path().join("other/log"), &data.join("log"));
    let (people, told) = examine(&data);
    assert_eq!(people.code, Some(1), "{}", people.words());
    assert_eq!(told["log"]["verdict"], "foreign");
}

#[tokio::test]
async fn directory_without_a_nodes_data_exits_2_and_says_what_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().display().to_string();
    let empty = holdfast(&["doctor", &path]);
    assert_eq!(empty.code, Some(2), "{}", empty.words());
    assert!(empty.stderr.contains("Is its disk mounted?"), "{}", empty.words());
    fs::write(dir.path().join("notes.txt"), "nothing of ours").expect("a file");
    let (people, told) = examine(dir.path());
    assert_eq!(people.code, Some(2));
    assert_eq!(told["kind"], "not-ours");
    let missing = holdfast(&["doctor", &format!("{path}/nowhere")]);
    assert_eq!(missing.code, Some(2), "{}", missing.words());
    assert!(!dir.path().join("nowhere").exists());
}

#[tokio::test]
async fn directory_of_a_running_node_is_refused_in_clear_words() {
    let fleet = Fleet::start(Plan::new(1, 1)).await;
    let dir = fleet.data_dir(1).display().to_string();
    let refused = holdfast(&["doctor", &dir]);
    assert_eq!(refused.code, Some(3), "{}", refused.words());
    assert!(refused.stderr.contains("another process (pid "), "{}", refused.words());
    assert!(refused.stderr.contains("holdfast status"), "{}", refused.words());
}
