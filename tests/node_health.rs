//! Whole nodes in one process, with clocks that lie, disks that fail and a ledger that was tampered
//! with: what a node does about itself (design §6 Time, §7, §9).

#![cfg(not(feature = "sim"))]
// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

mod node_parts;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use holdfast::config::Config;
use holdfast::ledger::{
    Answer, Command, Define, Definition, Found, HoldId, HoldRules, HoldState, HoldView, ItemName,
    Place, Query,
};
use holdfast::node::{Counter, Office};
use holdfast::shard::{Consistency, Desk, Hop, NodeStatus, Outcome, Question, Request, Role};
use holdfast::storage::{Disk, Fault, RealDisk, SimDisk};
use node_parts::{adopt, eventually, free_address, parts, spawner};
use tempfile::TempDir;

struct TestNode {
    desk: Counter,
    /// Its wall clock minus the machine's, in ms.
    clock: Arc<AtomicI64>,
    disk: SimDisk,
}

struct Cluster {
    nodes: Vec<TestNode>,
    _dirs: Vec<TempDir>,
}

#[derive(Clone, Copy)]
struct Plan {
    nodes: u64,
    /// The logs are on simulated disks.
    simulated_disks: bool,
    tune: fn(&mut Config),
}

impl Plan {
    async fn start(self) -> Cluster {
        let (mut nodes, mut dirs, mut members) = (Vec::new(), Vec::new(), Vec::new());
        for node in 1..=self.nodes {
            let dir = TempDir::new().expect("a directory");
            let (clock, disk) = (Arc::new(AtomicI64::new(0)), SimDisk::new());
            let real: Arc<dyn Disk> = Arc::new(RealDisk);
            let parts = parts(if self.simulated_disks { disk.mount() } else { real }, &clock);
            let mut config = Config::for_test(PathBuf::from(dir.path()));
            config.cluster.shards = 1;
            config.peer.listen = free_address();
            // Every node of this test runs on one thread, and other tests run beside it.
            config.raft.heartbeat_ms = 50;
            config.raft.election_min_ms = 600;
            config.raft.election_max_ms = 1_200;
            config.raft.pause_after_ms = 1_000;
            (self.tune)(&mut config);
            config.validate().expect("a valid configuration");
            let office = Office::open(config, parts, spawner()).await.expect("it opens");
            let desk = Counter(office);
            members.push(adopt(&desk, "c0", node).await);
            nodes.push(TestNode { desk, clock, disk });
            dirs.push(dir);
        }
        let begun = nodes.iter().map(|node| node.desk.begin(members.clone()));
        for begun in futures_util::future::join_all(begun).await {
            begun.expect("it begins");
        }
        let cluster = Cluster { nodes, _dirs: dirs };
        cluster.leader().await;
        cluster
    }
}

fn show() -> ItemName {
    ItemName { tenant: "default".to_owned(), item: "show".to_owned() }
}

impl Cluster {
    fn status(&self, node: usize) -> NodeStatus {
        self.nodes[node].desk.status()
    }

    /// Returns which node leads and may answer.
    fn leader_now(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|node| {
            let status = self.status(*node);
            let shard = status.shards.first();
            shard.is_some_and(|shard| shard.role == Role::Leader && shard.paused.is_none())
        })
    }

    async fn leader(&self) -> usize {
        eventually("a leader", async || self.leader_now()).await
    }

    async fn ask(&self, node: usize, question: Question) -> Outcome {
        let deadline = holdfast::runtime::now() + Duration::from_secs(5);
        let (consistency, hop) = (Consistency::Leader, Hop::Forward);
        self.nodes[node].desk.ask(Request { question, deadline, consistency, hop }).await.outcome
    }

    /// Asks until it is answered: pauses are retried with the same key.
    async fn answer(&self, node: usize, command: Command) -> Answer {
        eventually("an answer", async || {
            match self.ask(node, Question::from(command.clone())).await {
                Outcome::Answered(answer) => Some(answer),
                other => {
                    let status = self.status(node);
                    println!("{other:?}, stopped: {:?}, {:?}", status.stopped, status.log);
                    None
                }
            }
        })
        .await
    }

    async fn open_item(&self) {
        let definition = Definition {
            rules: HoldRules { ttl_ms: 600_000, ..HoldRules::default() },
            limit_per_buyer: None,
            opens_at: None,
            closes_at: None,
            metadata: BTreeMap::new(),
        };
        let define = Command::Define(Define {
            name: show(),
            total: Some(100),
            regions: BTreeMap::new(),
            definition,
            if_revision: None,
        });
        let answer = self.answer(0, define).await;
        assert!(matches!(answer, Answer::Item { .. }), "{answer:?}");
    }

    async fn place(&self, node: usize, key: &str, ttl_ms: u64) -> HoldView {
        let command = placing(key, ttl_ms);
        match self.answer(node, command.clone()).await.shown_to(&command) {
            Answer::Hold { hold, .. } => *hold,
            other => panic!("{key}: {other:?}"),
        }
    }

    async fn hold(&self, node: usize, id: HoldId) -> HoldView {
        eventually("a read of the hold", async || {
            let query = Query::Hold { id, tenant: "default".to_owned() };
            match self.ask(node, Question::Query { query, shard: None }).await {
                Outcome::Found(Found::Hold(hold)) => Some(*hold),
                _ => None,
            }
        })
        .await
    }
}

fn placing(key: &str, ttl_ms: u64) -> Command {
    Command::Place(Place {
        name: show(),
        region: None,
        buyer: None,
        key: key.to_owned(),
        quantity: 1,
        ttl_ms: Some(ttl_ms),
        reference: None,
    })
}

/// C20.
#[tokio::test]
async fn a_wild_clock_on_the_leader_neither_expires_nor_freezes_holds() {
    let cluster = Plan { nodes: 3, simulated_disks: false, tune: |_| {} }.start().await;
    cluster.open_item().await;
    let hour = 3_600_000;
    for wild in [hour, -hour] {
        let leader = cluster.leader().await;
        let long = cluster.place(leader, &format!("long {wild}"), 600_000).await;
        let short = cluster.place(leader, &format!("short {wild}"), 2_000).await;
        cluster.nodes[leader].clock.store(wild, Ordering::Relaxed);
        let heir = eventually("another leader", async || {
            cluster.leader_now().filter(|other| *other != leader)
        })
        .await;
        let status = cluster.status(leader);
        assert!(status.clocks.wild, "{:?}", status.clocks);
        assert!(status.abstains.is_some());
        assert_eq!(cluster.hold(heir, long.id).await.state, HoldState::Held);
        eventually("the short hold's end", async || {
            let hold = cluster.hold(heir, short.id).await;
            (hold.state == HoldState::Expired).then_some(())
        })
        .await;
        let long = cluster.hold(heir, long.id).await;
        assert_eq!(long.state, HoldState::Held);
        let passed = long.now.0 - long.placed_at.0;
        assert!(passed < 120_000, "{passed} ms of ledger time");
        cluster.nodes[leader].clock.store(0, Ordering::Relaxed);
        eventually("it stands again", async || {
            let status = cluster.status(leader);
            (!status.clocks.wild && status.abstains.is_none()).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_tampered_follower_is_found_and_built_anew() {
    tampered(false).await;
}

#[tokio::test]
async fn a_tampered_leader_hands_over_and_is_built_anew() {
    tampered(true).await;
}

async fn tampered(leads: bool) {
    // Checkpoints in quick turn, so that the log is purged and a peer's checkpoint is needed.
    let tune = |config: &mut Config| config.checkpoint.interval_ms = 200;
    let cluster = Plan { nodes: 3, simulated_disks: false, tune }.start().await;
    cluster.open_item().await;
    let leader = cluster.leader().await;
    for key in 0..5 {
        cluster.place(leader, &format!("before {key}"), 600_000).await;
    }
    let mut key = 0;
    eventually("a purged log on every node", async || {
        key += 1;
        cluster.place(leader, &format!("more {key}"), 600_000).await;
        (0..3).all(|node| cluster.status(node).shards[0].purged.0 > 0).then_some(())
    })
    .await;
    let victim = if leads { cluster.leader().await } else { (cluster.leader().await + 1) % 3 };
    cluster.nodes[victim].desk.0.corrupt_for_test(0, |ledger| ledger.corrupt_for_test(&show(), 9));
    let mut key = 0;
    eventually("it is built anew", async || {
        key += 1;
        // What a tampered leader answers is not to be trusted: its ledger may have noticed itself.
        let question = Question::from(placing(&format!("after {key}"), 600_000));
        drop(cluster.ask((victim + 1) % 3, question).await);
        let digests = &cluster.status(victim).shards[0].digests;
        (digests.rebuilt == 1 && digests.trouble.is_none()).then_some(())
    })
    .await;
    let alike = eventually("all replicas alike at one index", async || {
        let shards: Vec<_> = (0..3).map(|node| cluster.status(node).shards[0].clone()).collect();
        let same = shards
            .iter()
            .all(|shard| shard.applied == shards[0].applied && shard.digest == shards[0].digest);
        same.then_some(shards)
    })
    .await;
    assert!(
        alike.iter().all(|shard| shard.figures.units_available == alike[0].figures.units_available)
    );
    assert!(alike.iter().map(|shard| shard.digests.mismatches).sum::<u64>() > 0);
}

#[tokio::test]
async fn replicas_of_which_no_majority_is_alike_pause_their_shard() {
    let cluster = Plan { nodes: 3, simulated_disks: false, tune: |_| {} }.start().await;
    cluster.open_item().await;
    cluster.place(0, "one that will be due", 600_000).await;
    for (node, units) in [(0, 1), (1, 2)] {
        let desk = &cluster.nodes[node].desk;
        desk.0.corrupt_for_test(0, |ledger| ledger.corrupt_for_test(&show(), units));
    }
    eventually("the pause", async || {
        (0..3).find(|node| {
            let shard = &cluster.status(*node).shards[0];
            let paused = shard.paused.map(|reason| reason.word());
            shard.digests.trouble.is_some() && paused == Some("invariant")
        })
    })
    .await;
}

/// C17.
#[tokio::test]
async fn a_leader_with_a_hung_disk_hands_over_and_in_the_end_stops() {
    let tune = |config: &mut Config| {
        config.log.hung_ms = 200;
        config.log.dead_ms = 8_000;
    };
    let cluster = Plan { nodes: 3, simulated_disks: true, tune }.start().await;
    cluster.open_item().await;
    let leader = cluster.leader().await;
    cluster.nodes[leader].disk.set_hung(true);
    let other = (leader + 1) % 3;
    let mut key = 0;
    let heir = eventually("another leader", async || {
        key += 1;
        let asked = cluster.ask(other, Question::from(placing(&format!("{key}"), 600_000)));
        drop(asked.await);
        cluster.leader_now().filter(|heir| *heir != leader)
    })
    .await;
    cluster.place(heir, "after", 600_000).await;
    let ended = cluster.nodes[leader].desk.0.ended();
    let end = eventually("its end", async || ended.borrow().clone()).await;
    assert!(end.is_fatal, "{end:?}");
    assert!(cluster.status(leader).stopped.is_some());
    cluster.place(heir, "after its end", 600_000).await;
    // The disk's thread must end before the process can.
    cluster.nodes[leader].disk.set_hung(false);
}

#[tokio::test]
async fn a_failed_sync_ends_the_nodes_part_and_loses_nothing_that_was_acknowledged() {
    let cluster = Plan { nodes: 3, simulated_disks: true, tune: |_| {} }.start().await;
    cluster.open_item().await;
    let leader = cluster.leader().await;
    let mut granted = Vec::new();
    for key in 0..20 {
        granted.push(cluster.place(leader, &format!("before {key}"), 600_000).await.id);
    }
    cluster.nodes[leader].disk.fail_sync(1, Fault::Io);
    let other = (leader + 1) % 3;
    let mut key = 0;
    let why = eventually("the end of its part", async || {
        key += 1;
        let question = Question::from(placing(&format!("during {key}"), 600_000));
        if let Outcome::Answered(Answer::Placed(placed)) = cluster.ask(other, question).await {
            granted.push(placed.id);
        }
        cluster.status(leader).stopped
    })
    .await;
    assert!(why.contains("log"), "{why}");
    let status = cluster.status(leader);
    assert!(status.log.failed.is_some());
    let ended = cluster.nodes[leader].desk.0.ended();
    let end = eventually("its end is told", async || ended.borrow().clone()).await;
    assert!(!end.is_fatal, "the process goes on to say why");
    for hold in granted {
        assert_eq!(cluster.hold(other, hold).await.state, HoldState::Held);
    }
    cluster.place(other, "after", 600_000).await;
}

#[tokio::test]
async fn a_full_disk_sheds_placements_until_there_is_room_again() {
    let tune = |config: &mut Config| config.log.ballast_bytes = 2 << 20;
    let cluster = Plan { nodes: 1, simulated_disks: true, tune }.start().await;
    cluster.open_item().await;
    let hold = cluster.place(0, "before", 600_000).await;
    let disk = &cluster.nodes[0].disk;
    eventually("the ballast", async || {
        disk.files().iter().any(|file| file.ends_with("ballast")).then_some(())
    })
    .await;
    disk.set_capacity(Some(disk.used_bytes() + (3 << 20)));
    eventually("it is full", async || cluster.status(0).log.disk_full.then_some(())).await;
    let shed = cluster.ask(0, Question::from(placing("during", 600_000))).await;
    assert_eq!(shed, Outcome::Overloaded);
    let confirm = Command::Confirm(holdfast::ledger::Confirm {
        hold: hold.id,
        tenant: "default".to_owned(),
        key: "paid".to_owned(),
        quantity: None,
        reacquire: false,
        reference: None,
    });
    let sold = cluster.answer(0, confirm).await;
    assert!(matches!(sold, Answer::Hold { .. }), "what is held can be paid for: {sold:?}");
    eventually("the ballast is given up", async || {
        cluster.status(0).log.ballast_released.then_some(())
    })
    .await;
    disk.set_capacity(None);
    cluster.place(0, "after", 600_000).await;
    eventually("the ballast is back", async || {
        (!cluster.status(0).log.ballast_released).then_some(())
    })
    .await;
    assert!(!cluster.status(0).log.disk_full);
}
