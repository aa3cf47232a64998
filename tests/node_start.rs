//! A node in this process whose directory is not what it left: it refuses to start, says what
//! helps, changes nothing, and opens no peer port, so that it votes for nobody (design §7).

#![cfg(not(feature = "sim"))]

mod node_parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use holdfast::config::Config;
use holdfast::ledger::{Command, Define, Definition, HoldRules, ItemName, NodeId, ShardId};
use holdfast::node::{Counter, Office};
use holdfast::peer::{Address, Lane, LocalIdentity, Network, PeerId, PeerLimits};
use holdfast::shard::{Consistency, Desk, Hop, MemberSpec, Outcome, Question, Request};
use holdfast::storage::RealDisk;
use node_parts::{adopt, eventually, free_address, offer, parts, spawner};
use tempfile::TempDir;

/// A node's directory and configuration, which outlive its runs.
struct Place {
    dir: TempDir,
    config: Config,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().expect("a directory");
        let mut config = Config::for_test(PathBuf::from(dir.path()));
        config.cluster.shards = 1;
        config.log.ballast_bytes = 0;
        config.checkpoint.interval_ms = 100;
        config.peer.listen = free_address();
        config.validate().expect("a valid configuration");
        Place { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn try_open(&self) -> Result<Counter, String> {
        let parts = parts(Arc::new(RealDisk), &Arc::new(AtomicI64::new(0)));
        let opened = Office::open(self.config.clone(), parts, spawner()).await;
        opened.map(Counter).map_err(|error| error.to_string())
    }

    async fn open(&self) -> Counter {
        self.try_open().await.expect("it opens")
    }

    /// Makes a node of a cluster of its own that has written, kept and purged something.
    async fn lived(cluster: &str) -> Place {
        let place = Place::new();
        let desk = place.open().await;
        let members = vec![adopt(&desk, cluster, 1).await];
        desk.begin(members).await.expect("it begins");
        let mut number = 0;
        eventually("a purged log", async || {
            number += 1;
            define(&desk, &format!("item-{number}")).await;
            (desk.status().shards[0].purged.0 > 0).then_some(())
        })
        .await;
        desk.0.stop().await;
        place
    }

    /// Starts it: it refuses, in these words, twice, and nothing was changed by it.
    async fn refuses(&self, words: &[&str]) {
        let before = contents(self.dir.path());
        for _ in 0..2 {
            let said = self.try_open().await.map(drop).expect_err("it refuses to start");
            println!("{said}");
            for word in words {
                assert!(said.contains(word), "{word:?} is not in {said:?}");
            }
            let peers = std::net::TcpStream::connect(self.config.peer.listen);
            assert!(peers.is_err(), "nobody can ask it for a vote");
        }
        let after = contents(self.dir.path());
        let changed: BTreeSet<_> =
            before.iter().filter(|(path, bytes)| after.get(*path) != Some(bytes)).collect();
        assert!(
            changed.is_empty(),
            "changed: {:?}",
            changed.iter().map(|c| c.0).collect::<Vec<_>>()
        );
        assert_eq!(before.len(), after.len(), "files came or went");
    }

    /// It starts, leads its shard, and has what it had.
    async fn starts(&self) {
        let desk = self.open().await;
        // One that has just begun to lead has not applied its log yet.
        eventually("it serves what it had", async || {
            let shards = desk.status().shards;
            let all = shards.iter().all(|one| one.paused.is_none() && one.figures.items > 0);
            all.then_some(())
        })
        .await;
        desk.0.stop().await;
    }
}

/// Defines an item, until it is answered.
async fn define(desk: &Counter, item: &str) {
    let definition = Definition {
        rules: HoldRules { ttl_ms: 600_000, ..HoldRules::default() },
        limit_per_buyer: None,
        opens_at: None,
        closes_at: None,
        metadata: BTreeMap::new(),
    };
    let define = Command::Define(Define {
        name: ItemName { tenant: "default".to_owned(), item: item.to_owned() },
        total: Some(100),
        regions: BTreeMap::new(),
        definition,
        if_revision: None,
    });
    eventually("an answer", async || {
        let deadline = holdfast::runtime::now() + Duration::from_secs(5);
        let question = Question::from(define.clone());
        let (consistency, hop) = (Consistency::Leader, Hop::Forward);
        let asked = desk.ask(Request { question, deadline, consistency, hop }).await.outcome;
        matches!(asked, Outcome::Answered(_)).then_some(())
    })
    .await;
}

/// Every file below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).expect("a file");
            found.insert(path, bytes);
        }
    }
    found
}

fn copy_all(from: &Path, to: &Path) {
    for (path, bytes) in contents(from) {
        let to = to.join(path.strip_prefix(from).expect("it is in there"));
        fs::create_dir_all(to.parent().expect("a directory")).expect("it is made");
        fs::write(to, bytes).expect("it is written");
    }
}

/// Law 10, seen from the others: whoever comes back under a member's id with another log, wiped or
/// made anew, is let in on no lane, so that it votes and is appended to nowhere.
/// Whoever had no part in a cluster, or had one no more, told of a disk of 0 bytes.
#[tokio::test]
async fn the_figures_of_the_disk_are_real_before_during_and_after_a_nodes_part() {
    let place = Place::new();
    let desk = place.open().await;
    let is_real = |when: &str| {
        let log = desk.status().log;
        let figures = (log.disk_total_bytes, log.disk_free_bytes, log.disk_floor_bytes);
        assert!(figures.0 > 0 && figures.1 > 0 && figures.2 > 0, "{when}: {figures:?}");
    };
    is_real("empty");
    let members = vec![adopt(&desk, "c1", 1).await];
    is_real("adopted");
    desk.begin(members).await.expect("it begins");
    is_real("running");
    desk.0.stop().await;
    is_real("stopped");
}

/// Simulator seed 140179: an old word to adopt reached a machine that asked to be let in, which
/// then entered as one node and went on as another.
#[tokio::test]
async fn machine_that_asks_to_be_let_in_takes_no_other_word_of_who_it_is() {
    let place = Place::new();
    let desk = place.open().await;
    assert!(desk.0.claim("hfj-1-00").expect("an empty machine may ask").is_some());
    let refused = desk.adopt(offer("c1", 4)).await.expect_err("the cluster says which node it is");
    assert!(
        refused.contains("--join") && refused.contains("empty its data directory"),
        "{refused}"
    );
    assert!(!place.path("identity").exists());
    desk.0.stop().await;
}

#[tokio::test]
async fn peers_accept_votes_and_appends_from_no_other_pair_of_node_and_log() {
    let place = Place::new();
    let desk = place.open().await;
    let own = adopt(&desk, "c1", 1).await;
    let log_uuid = u128::from_str_radix(&own.log_uuid, 16).expect("hexadecimal").to_be_bytes();
    let second = MemberSpec {
        node: NodeId(2),
        log_uuid: "02".repeat(16),
        peer_addr: free_address().to_string(),
        ..own.clone()
    };
    desk.begin(vec![own.clone(), second]).await.expect("it begins");
    let lanes = [Lane::Vote, Lane::Append, Lane::Snapshot, Lane::Forward];
    let ask = async |cluster: u8, node: u64, log: u8, lane: Lane| {
        let id = PeerId { node: NodeId(node), log_uuid: [log; 16] };
        let caller =
            Network::tcp(LocalIdentity { cluster_id: [cluster; 16], id }, PeerLimits::default());
        let to = Address { node: NodeId(1), log_uuid, addr: own.peer_addr.clone() };
        let shard = (lane != Lane::Forward).then_some(ShardId(0));
        let link = caller.link(to, shard, lane);
        let deadline = holdfast::runtime::now() + Duration::from_secs(20);
        // No lane knows this kind of call: whoever is let in is told so, or hung up on.
        let answer = link.send(u16::MAX, Vec::new().into(), deadline).await;
        println!("cluster {cluster:x}, node {node}, log {log:x}, {lane:?}: {answer:?}");
        (caller.counters().dial_refusals, answer.err().map(|error| error.to_string()))
    };
    for lane in lanes {
        assert_eq!(ask(0xc1, 2, 2, lane).await.0, 0, "the member itself is let in: {lane:?}");
        for (cluster, node, log) in [(0xc1, 2, 3), (0xc1, 3, 2), (0xc1, 2, 0), (0xc2, 2, 2)] {
            let (refusals, words) = ask(cluster, node, log, lane).await;
            let words = words.expect("nobody answers a stranger");
            // A stranger may ask how it stands, over a connection that is no member's.
            let is_heard = cluster == 0xc1 && lane == Lane::Forward;
            let at_the_door = u64::from(!is_heard);
            assert_eq!(refusals, at_the_door, "node {node} with log {log} on {lane:?}: {words}");
            assert!(words.contains("no member") || words.contains("foreign cluster"), "{words}");
        }
    }
    desk.0.stop().await;
}

/// Knocks at a peer port until it opens, and tells how often it was refused before.
async fn refusals_before_it_opens(place: &Place) -> usize {
    let mut refused = 0;
    eventually("the peer port opens", async || {
        match tokio::net::TcpStream::connect(place.config.peer.listen).await {
            Ok(_) => Some(refused),
            Err(_) => {
                refused += 1;
                None
            }
        }
    })
    .await
}

/// It has forgotten whom it promised what, so it waits until every lease has run out that it may
/// have granted before it stopped.
#[tokio::test]
async fn the_peer_port_of_a_node_with_a_log_opens_no_sooner_than_the_longest_election_timeout() {
    let mut place = Place::lived("c1").await;
    place.config.raft.election_max_ms = 1_500;
    let started = Instant::now();
    let (desk, refused) = tokio::join!(place.open(), refusals_before_it_opens(&place));
    let waited = started.elapsed();
    println!("open after {waited:?}, {refused} refused");
    assert!(waited >= Duration::from_millis(1_500), "open after {waited:?}");
    assert!(refused > 0, "nobody knocked before");
    desk.0.stop().await;
}

#[tokio::test]
async fn the_peer_port_of_a_node_without_a_log_opens_at_once() {
    let mut place = Place::new();
    place.config.raft.election_max_ms = 30_000;
    let desk = place.open().await;
    let members = vec![adopt(&desk, "c1", 1).await];
    let begun = Instant::now();
    desk.begin(members).await.expect("it begins");
    assert_eq!(refusals_before_it_opens(&place).await, 0, "it opens before it says that it began");
    let waited = begun.elapsed();
    assert!(waited < Duration::from_millis(30_000), "it has nothing to wait for: {waited:?}");
    desk.0.stop().await;
}

const NEVER_VOTES: [&str; 2] = ["it must not vote under this id", "docs/operations.md"];

#[tokio::test]
async fn a_byte_flipped_in_the_synced_log_keeps_the_node_from_starting() {
    let place = Place::lived("c1").await;
    let log = contents(&place.path("log"));
    // The middle of what was written: synced, and acknowledged.
    let used = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let mut segments = log.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "seg"));
    let (path, sound) = segments.find(|(_, bytes)| used(bytes) > 0).expect("a segment");
    let mut bytes = sound.clone();
    let middle = used(sound) / 2;
    let at = (middle..bytes.len()).find(|at| bytes[*at] != 0).expect("something stands there");
    bytes[at] ^= 0x10;
    fs::write(path, &bytes).expect("it is written");
    place.refuses(&NEVER_VOTES).await;
    fs::write(path, sound).expect("it is written");
    place.starts().await;
}

#[tokio::test]
async fn a_lost_log_keeps_the_node_from_starting() {
    let place = Place::lived("c1").await;
    fs::rename(place.path("log"), place.path("elsewhere")).expect("it is moved");
    place.refuses(&NEVER_VOTES).await;
    fs::create_dir(place.path("log")).expect("it is made");
    place.refuses(&NEVER_VOTES).await;
    fs::remove_dir(place.path("log")).expect("it is empty still");
    fs::rename(place.path("elsewhere"), place.path("log")).expect("it is moved back");
    place.starts().await;
}

#[tokio::test]
async fn a_log_of_another_node_keeps_the_node_from_starting() {
    let (place, other) = (Place::lived("c1").await, Place::lived("c1").await);
    fs::rename(place.path("log"), place.path("elsewhere")).expect("it is moved");
    copy_all(&other.path("log"), &place.path("log"));
    place.refuses(&NEVER_VOTES).await;
}

#[tokio::test]
async fn page_databases_of_another_cluster_keep_the_node_from_starting() {
    let (place, other) = (Place::lived("c1").await, Place::lived("c2").await);
    fs::rename(place.path("shard-0"), place.path("elsewhere")).expect("it is moved");
    copy_all(&other.path("shard-0"), &place.path("shard-0"));
    place.refuses(&["belongs elsewhere", "mixed up data directories"]).await;
    fs::remove_dir_all(place.path("shard-0")).expect("it goes");
    fs::rename(place.path("elsewhere"), place.path("shard-0")).expect("it is moved back");
    place.starts().await;
}

/// Found by an attack: such a node called itself empty, and let itself be founded anew, alone.
#[tokio::test]
async fn a_node_that_lost_its_members_is_not_taken_for_a_new_one() {
    let place = Place::lived("c1").await;
    fs::rename(place.path("members"), place.path("elsewhere")).expect("it is moved");
    place.refuses(&["`members` is missing", "copy `members` from", "any other node"]).await;
    // The log alone says it, too.
    fs::rename(place.path("shard-0"), place.path("pages")).expect("it is moved");
    place.refuses(&["`members` is missing"]).await;
    fs::rename(place.path("pages"), place.path("shard-0")).expect("it is moved back");
    fs::rename(place.path("elsewhere"), place.path("members")).expect("it is moved back");
    place.starts().await;
}

#[tokio::test]
async fn a_node_that_was_adopted_and_never_began_starts_and_may_begin() {
    let place = Place::new();
    let desk = place.open().await;
    let members = vec![adopt(&desk, "c1", 1).await];
    desk.0.stop().await;
    let desk = place.open().await;
    desk.begin(members).await.expect("it begins");
    define(&desk, "shirt").await;
    desk.0.stop().await;
    place.starts().await;
}

/// The words of the refusal rely on it.
#[tokio::test]
async fn the_members_file_is_the_same_on_every_node() {
    let places = [Place::new(), Place::new(), Place::new()];
    let (mut desks, mut members) = (Vec::new(), Vec::new());
    for (place, node) in places.iter().zip(1..) {
        let desk = place.open().await;
        members.push(adopt(&desk, "c1", node).await);
        desks.push(desk);
    }
    for (desk, turns) in desks.iter().zip(0..) {
        let mut members = members.clone();
        members.rotate_left(turns);
        desk.begin(members).await.expect("it begins");
    }
    let files: BTreeSet<_> =
        places.iter().map(|place| fs::read(place.path("members")).expect("a file")).collect();
    assert_eq!(files.len(), 1);
    for desk in desks {
        desk.0.stop().await;
    }
}
