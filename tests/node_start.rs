//! A node in this process whose directory is not what it left: it refuses to start, says what
//! helps, changes nothing, and opens no peer port, so that it votes for nobody (design §7).

#![cfg(not(feature = "sim"))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use holdfast::clock::WallClock;
use holdfast::config::Config;
use holdfast::ledger::{Command, Define, Definition, HoldRules, ItemName, NodeId, Settings};
use holdfast::node::{Counter, Office, Parts, sled_pages};
use holdfast::peer::{Network, PeerLimits, Spawner};
use holdfast::shard::{Adopt, Consistency, Desk, Hop, MemberSpec, Outcome, Question, Request};
use holdfast::storage::{PageDesk, RealDisk};
use tempfile::TempDir;

/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn spawner() -> Spawner {
    let handle = tokio::runtime::Handle::current();
    Arc::new(move |work| {
        handle.spawn(work);
    })
}

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
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        config.peer.listen.set_port(listener.local_addr().expect("bound").port());
        config.validate().expect("a valid configuration");
        Place { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn try_open(&self) -> Result<Counter, String> {
        let parts = Parts {
            disk: Arc::new(RealDisk),
            pages: Arc::new(sled_pages),
            desk: PageDesk::start().expect("a thread"),
            network: Arc::new(|local| Network::tcp(local, PeerLimits::default())),
            clock: WallClock::with_offset(Arc::new(AtomicI64::new(0))),
            place: Arc::new(|_| Ok(spawner())),
            random: Arc::new(rand::random),
        };
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
        let members = adopt(&desk, cluster, 1).await;
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
        eventually("it serves", async || {
            let shards = desk.status().shards;
            shards.iter().all(|shard| shard.paused.is_none()).then_some(())
        })
        .await;
        assert!(desk.status().shards[0].figures.items > 0);
        desk.0.stop().await;
    }
}

async fn adopt(desk: &Counter, cluster: &str, node: u64) -> Vec<MemberSpec> {
    let settings = Settings {
        shards: 1,
        tag_key: [7; 16],
        slots: 16,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 86_400_000,
    };
    let offer = Adopt { cluster_id: cluster.repeat(16), node: NodeId(node), settings };
    let adopted = desk.adopt(offer).await.expect("it takes an identity");
    vec![MemberSpec {
        node: NodeId(node),
        log_uuid: adopted.log_uuid,
        peer_addr: adopted.peer_addr,
        http_addr: adopted.http_addr,
        region: adopted.region,
    }]
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

/// Looks again and again until `look` finds something.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it did not happen: {what}");
        holdfast::runtime::sleep(LOOK_EVERY).await;
    }
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
    let members = adopt(&desk, "c1", 1).await;
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
        members.extend(adopt(&desk, "c1", node).await);
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
