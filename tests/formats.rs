//! What each schema version wrote to disk is read by this build to the very contents that it had.
//!
//! `tests/formats/vN.bin` is the data directory of a node of that version (identity, members, log,
//! both page databases with their seals), zeros left out; `vN.json` is what was in it. They are
//! never made anew: a change of this build that cannot read them is a change that no running
//! cluster can be upgraded to. `HOLDFAST_MAKE_FORMATS=vN` makes those of a new version N, once.

mod cluster;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::{Fleet, Plan, SOON, holdfast, wait_for};
use serde_json::{Value, json};

/// Zeros are left out in blocks of so many bytes.
const BLOCK: usize = 64;

fn formats() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats")
}

/// Every file below a directory, by its path from there.
fn files(dir: &Path) -> Vec<String> {
    fn walk(dir: &Path, under: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let entry = entry.expect("a directory");
            let name = entry.file_name().into_string().expect("plain names");
            let path = if under.is_empty() { name } else { format!("{under}/{name}") };
            if entry.file_type().expect("a file").is_dir() {
                walk(&entry.path(), &path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(dir, "", &mut found);
    found.sort();
    found
}

/// Packs a directory: of each file its path, its length, and its blocks that are not all zeros.
fn pack(dir: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    let number = |value: usize, out: &mut Vec<u8>| {
        out.extend_from_slice(&u64::try_from(value).expect("small").to_le_bytes());
    };
    for path in files(dir) {
        let bytes = fs::read(dir.join(&path)).expect("a file");
        let blocks = || bytes.chunks(BLOCK).enumerate();
        let full = || blocks().filter(|(_, block)| block.iter().any(|byte| *byte != 0));
        number(path.len(), &mut out);
        out.extend_from_slice(path.as_bytes());
        number(bytes.len(), &mut out);
        number(full().count(), &mut out);
        for (at, block) in full() {
            out.extend_from_slice(&u32::try_from(at).expect("small").to_le_bytes());
            let mut padded = [0; BLOCK];
            padded[..block.len()].copy_from_slice(block);
            out.extend_from_slice(&padded);
        }
    }
    out
}

/// Unpacks what [`pack`] made.
fn unpack(mut packed: &[u8], to: &Path) {
    fn take<'a>(packed: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (head, rest) = packed.split_at(count);
        *packed = rest;
        head
    }
    fn number(packed: &mut &[u8]) -> usize {
        let bytes = take(packed, 8).try_into().expect("eight");
        usize::try_from(u64::from_le_bytes(bytes)).expect("small")
    }
    while !packed.is_empty() {
        let length = number(&mut packed);
        let path = String::from_utf8(take(&mut packed, length).to_vec()).expect("text");
        let mut bytes = vec![0; number(&mut packed)];
        for _ in 0..number(&mut packed) {
            let at = take(&mut packed, 4).try_into().expect("four");
            let at = usize::try_from(u32::from_le_bytes(at)).expect("small") * BLOCK;
            let block = take(&mut packed, BLOCK);
            let end = bytes.len().min(at + BLOCK);
            bytes[at..end].copy_from_slice(&block[..end - at]);
        }
        let file = to.join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        fs::write(file, bytes).expect("written");
    }
}

#[test]
fn directory_that_is_packed_and_unpacked_is_the_same() {
    let (from, to) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
    fs::create_dir(from.path().join("log")).expect("a directory");
    let mut bytes = vec![0; 10_007];
    bytes[4_000] = 7;
    bytes[10_006] = 9;
    fs::write(from.path().join("log/a"), &bytes).expect("written");
    fs::write(from.path().join("empty"), b"").expect("written");
    unpack(&pack(from.path()), to.path());
    assert_eq!(files(to.path()), files(from.path()));
    assert_eq!(fs::read(to.path().join("log/a")).expect("read"), bytes);
}

/// What is in a data directory, whatever the time is: by the doctor, and by replaying its log.
fn contents(data: &Path) -> Value {
    let dir = data.display().to_string();
    let doctor = holdfast(&["doctor", "--json", &dir]);
    let doctor: Value = serde_json::from_str(&doctor.stdout).expect("JSON");
    let left = holdfast(&["recover", "--json", &dir]);
    let left: Value = serde_json::from_str(&left.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", left.words()));
    let mut shards = left["left"]["shards"].clone();
    for shard in shards.as_array_mut().expect("shards") {
        shard.as_object_mut().expect("a shard").remove("from");
    }
    let databases = |shard: &Value| {
        let both = shard["databases"].as_array().cloned().unwrap_or_default();
        let one = |one: &Value| {
            json!({"state": one["state"], "digest": one["digest"], "holds": one["digest_holds"],
                   "index": one["index"], "pages": one["pages"], "members": one["voters"]})
        };
        both.iter().map(one).collect::<Vec<_>>()
    };
    let told = doctor["shards"].as_array().expect("shards");
    json!({
        "identity": doctor["identity"],
        "members": doctor["members"],
        "log": {"verdict": doctor["log"]["verdict"], "frames": doctor["log"]["frames"]},
        "votes": told.iter().map(|shard| shard["vote"].clone()).collect::<Vec<_>>(),
        "purged": told.iter().map(|shard| shard["purged"].clone()).collect::<Vec<_>>(),
        "databases": told.iter().map(databases).collect::<Vec<_>>(),
        "replayed": shards,
    })
}

async fn ask(fleet: &Fleet, path: &str, key: &str, body: &Value) -> Value {
    let answer = fleet.insist(1, path, key, body).await;
    assert_eq!(answer.status / 100, 2, "{path}: {answer:?}");
    answer.body
}

/// Runs one node through everything that it writes, and stops it with something of each kind in
/// its log behind the checkpoint.
async fn make(name: &str) {
    let mut fleet = Fleet::start_empty(
        Plan::new(1, 1)
            .set("log.segment_bytes", 1 << 20)
            .set("peer.append_bytes_max", 1 << 18)
            .set("checkpoint.interval_ms", 500),
    )
    .await;
    // Nothing in it is forgotten for years.
    let settings = json!({"shards": 1, "tag_key": "5a".repeat(16), "slots": 16, "sweep_max": 512,
        "receipt_retention_ms": 366 * 86_400_000_u64,
        "sold_retention_ms": 3_660 * 86_400_000_u64});
    let offer = json!({"cluster_id": "f0".repeat(16), "node": 1, "settings": settings});
    let adopted = ask(&fleet, "/admin/v1/adopt", "k", &offer).await;
    let own = json!({"node": 1, "log_uuid": adopted["log_uuid"], "region": "default",
        "peer_addr": "127.0.0.1:7201", "http_addr": "127.0.0.1:7101"});
    ask(&fleet, "/admin/v1/begin", "k", &json!({"members": [own]})).await;
    fleet.wait_ready().await;
    let is_later = name != "v1";
    if is_later {
        ask(&fleet, "/admin/v1/cluster/upgrade", "k", &json!({})).await;
    }
    fleet.put_item("ticket", &json!({"total": 100, "limit_per_buyer": 90})).await;
    let mut sold = Vec::new();
    for round in 0..2 {
        let mut holds = Vec::new();
        for n in 0..10 {
            let key = format!("{round}-{n}");
            let body = json!({"quantity": 1 + n % 3, "buyer": "ann", "reference": key});
            holds.push(ask(&fleet, "/v1/items/ticket/holds", &key, &body).await["id"].clone());
        }
        let path = |at: usize, verb: &str| {
            format!("/v1/holds/{}/{verb}", holds[at].as_str().expect("an id"))
        };
        ask(&fleet, &path(0, "extend"), &format!("e{round}"), &json!({})).await;
        ask(&fleet, &path(1, "confirm"), &format!("c{round}"), &json!({})).await;
        ask(&fleet, &path(2, "release"), &format!("r{round}"), &json!({})).await;
        ask(&fleet, &path(3, "confirm"), &format!("d{round}"), &json!({})).await;
        ask(&fleet, &path(3, "return"), &format!("t{round}"), &json!({})).await;
        sold.push(holds[1].clone());
        let raise = json!({"delta": 5, "reason": "more"});
        ask(&fleet, "/v1/items/ticket/adjustments", &format!("a{round}"), &raise).await;
        if round == 0 {
            wait_for("a purged log", SOON, async || {
                let key = format!("more-{:x}", rand::random::<u32>());
                ask(&fleet, "/v1/items/ticket/holds", &key, &json!({"quantity": 1})).await;
                let purged = fleet.metrics(1).await.sum("holdfast_shard_purged_index", &[]);
                if purged > 0.0 { Ok(()) } else { Err("not yet".to_owned()) }
            })
            .await;
        }
    }
    if is_later {
        let invited = json!({"region": "eu", "valid_ms": 604_800_000});
        ask(&fleet, "/admin/v1/nodes", "k", &invited).await;
    }
    fleet.terminate(1);
    fleet.wait_exit(1, Duration::from_secs(10)).await;
    let data = fleet.data_dir(1);
    let mut told = contents(&data);
    told["sold"] = json!(sold);
    fs::create_dir_all(formats()).expect("a directory");
    fs::write(formats().join(format!("{name}.bin")), pack(&data)).expect("written");
    let text = serde_json::to_string_pretty(&told).expect("JSON") + "\n";
    fs::write(formats().join(format!("{name}.json")), text).expect("written");
}

/// The data of a version, unpacked, and what was in it.
fn kept(name: &str) -> (tempfile::TempDir, Value) {
    let dir = tempfile::tempdir().expect("a directory");
    unpack(
        &fs::read(formats().join(format!("{name}.bin"))).expect("it is kept"),
        &dir.path().join("data"),
    );
    let told = fs::read_to_string(formats().join(format!("{name}.json"))).expect("it is kept");
    (dir, serde_json::from_str(&told).expect("JSON"))
}

#[tokio::test]
async fn data_of_each_version_is_read_to_its_known_contents_and_goes_on_in_this_build() {
    if let Some(name) = std::env::var_os("HOLDFAST_MAKE_FORMATS") {
        make(&name.into_string().expect("a name")).await;
    }
    for (name, schema) in [("v1", 1), ("v2", 2)] {
        goes_on(name, schema).await;
    }
}

async fn goes_on(name: &str, schema: u16) {
    let (dir, mut told) = kept(name);
    let sold = told.as_object_mut().expect("an object").remove("sold").expect("sold holds");
    let data = dir.path().join("data");
    assert_eq!(contents(&data), told, "{name}");
    let doctor = holdfast(&["doctor", "--json", &data.display().to_string()]);
    let doctor: Value = serde_json::from_str(&doctor.stdout).expect("JSON");
    assert_eq!(doctor["schema_version"], json!(schema), "{name}");
    // And a node of this build goes on from it.
    let mut fleet = Fleet::prepare(Plan::new(1, 1));
    fleet.set_on(1, "node.data_dir", data.display());
    if schema > 1 {
        fleet.set_on(1, "node.schema_max", schema - 1);
        let (status, words) = fleet.start_refused(1).await;
        assert!(!status.success(), "{words}");
        assert!(words.contains(&format!("schema version is {schema}")), "{words}");
        fleet.set_on(1, "node.schema_max", schema);
    }
    fleet.start_node(1);
    fleet.wait_ready().await;
    let view = fleet.read(1, "/admin/v1/cluster").await;
    assert_eq!(view.body["schema"]["active"], json!(schema), "{name}");
    for id in sold.as_array().expect("a list") {
        let path = format!("/v1/holds/{}", id.as_str().expect("an id"));
        let hold = fleet.read(1, &path).await;
        assert_eq!(hold.body["state"], "sold", "{hold:?}");
    }
    let audit = fleet.audit("ticket").await;
    assert_eq!(audit.number_of("total"), 110);
    let replayed = &told["replayed"][0];
    assert_eq!(json!(audit.number_of("sold")), replayed["sold"], "{replayed}");
    let placed = ask(&fleet, "/v1/items/ticket/holds", "new", &json!({"quantity": 1})).await;
    assert_eq!(placed["state"], "held");
    // Then its cluster is taken on to the newest version, and keeps what the older one wrote.
    ask(&fleet, "/admin/v1/cluster/upgrade", "up", &json!({})).await;
    fleet.terminate(1);
    fleet.wait_exit(1, Duration::from_secs(10)).await;
    fleet.start_node(1);
    fleet.wait_ready().await;
    let view = fleet.read(1, "/admin/v1/cluster").await;
    assert_eq!(view.body["schema"]["active"], json!(2), "{name}");
    for id in sold.as_array().expect("a list") {
        let path = format!("/v1/holds/{}", id.as_str().expect("an id"));
        assert_eq!(fleet.read(1, &path).await.body["state"], "sold", "{name}");
    }
    assert_eq!(fleet.audit("ticket").await.number_of("total"), 110, "{name}");
}

#[tokio::test]
async fn data_of_a_later_version_is_refused_in_clear_words_and_left_as_it_is() {
    let (dir, _) = kept("v1");
    let data = dir.path().join("data");
    let file = data.join("identity");
    let mut identity = fs::read(&file).expect("it is there");
    // Magic and kind stand before the version.
    assert_eq!(identity[6..8], [1, 0], "the version of the envelope");
    identity[6] = 2;
    fs::write(&file, &identity).expect("written");
    let mut fleet = Fleet::prepare(Plan::new(1, 1));
    fleet.set_on(1, "node.data_dir", data.display());
    let (status, words) = fleet.start_refused(1).await;
    assert!(!status.success(), "{words}");
    assert!(words.contains("has format 2, and this build reads format 1 only"), "{words}");
    assert_eq!(fs::read(&file).expect("it is there"), identity);
    let doctor = holdfast(&["doctor", &data.display().to_string()]);
    assert_eq!(doctor.code, Some(1), "{}", doctor.words());
    assert!(doctor.stdout.contains("another version of holdfast wrote it"), "{}", doctor.words());
}
