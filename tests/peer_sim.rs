//! Links and listeners over the simulated network: the same semantics, faults, and the same run for
//! the same seed. Run with `--features sim`.
#![cfg(feature = "sim")]

use std::collections::BTreeSet;
use std::future::Future;
use std::hash::Hasher as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use holdfast::ledger::{NodeId, ShardId};
use holdfast::peer::{
    Address, Conversation, Hello, Lane, Link, Listener, LocalIdentity, Network, Opened, PeerError,
    PeerId, PeerLimits, ReplyTo, Service, SimDefaults, SimNetwork, Spawner,
};
use holdfast::runtime::{self, Instant, Rt, now};
use openraft_rt::AsyncRuntime;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;

const CLUSTER: [u8; 16] = [7; 16];
const ECHO: u16 = 1;
const HOLD: u16 = 2;
const SEEDS: u64 = 300;

fn run<T>(seed: u64, future: impl Future<Output = T>) -> T {
    println!("seed {seed}");
    Rt::with_seed(seed).block_on(future)
}

fn peer_id(node: u64) -> PeerId {
    PeerId { node: NodeId(node), log_uuid: [u8::try_from(node).expect("small"); 16] }
}

fn network_of(sim: &SimNetwork, node: u64, limits: PeerLimits) -> Network {
    Network::sim(sim, LocalIdentity { cluster_id: CLUSTER, id: peer_id(node) }, limits)
}

fn address_of(node: u64) -> Address {
    let PeerId { node, log_uuid } = peer_id(node);
    Address { node, log_uuid, addr: format!("n{node}") }
}

fn in_ms(ms: u64) -> Instant {
    now() + Duration::from_millis(ms)
}

fn number(value: u64) -> Bytes {
    value.to_le_bytes().to_vec().into()
}

fn value(body: &Bytes) -> u64 {
    u64::from_le_bytes(body[..8].try_into().expect("eight bytes"))
}

/// What a node's service saw, in order: the bodies' numbers.
type Journal = Arc<Mutex<Vec<u64>>>;

/// Notes every call; echoes it, or hands it to the test.
struct Bench {
    journal: Journal,
    held: mpsc::UnboundedSender<(Bytes, ReplyTo)>,
}

struct BenchTalk {
    journal: Journal,
    held: mpsc::UnboundedSender<(Bytes, ReplyTo)>,
}

impl Service for Bench {
    fn open(&self, hello: &Hello) -> Result<Opened, String> {
        if hello.from != peer_id(hello.from.node.0) {
            return Err(format!("{} is no member", hello.from));
        }
        let spawner: Spawner = Arc::new(|future| drop(runtime::spawn(future)));
        let talk = BenchTalk { journal: Arc::clone(&self.journal), held: self.held.clone() };
        Ok(Opened { conversation: Box::new(talk), spawner })
    }
}

impl Conversation for BenchTalk {
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo) {
        self.journal.lock().expect("one thread").push(value(&body));
        match kind {
            ECHO => reply.send(body),
            HOLD => drop(self.held.send((body, reply))),
            other => reply.refuse(format!("kind {other}")),
        }
    }
}

struct Node {
    network: Network,
    listener: Listener,
    journal: Journal,
    held: mpsc::UnboundedReceiver<(Bytes, ReplyTo)>,
}

async fn start(sim: &SimNetwork, node: u64, journal: Journal) -> Node {
    let network = network_of(sim, node, PeerLimits::default());
    let (held_to, held) = mpsc::unbounded_channel();
    let bench = Bench { journal: Arc::clone(&journal), held: held_to };
    let listener = network.listen(&format!("n{node}"), Arc::new(bench)).await.expect("free");
    Node { network, listener, journal, held }
}

async fn pair(seed: u64) -> (SimNetwork, Node, Network, Link) {
    let sim = SimNetwork::new(seed, SimDefaults::default());
    let server = start(&sim, 1, Journal::default()).await;
    let client = network_of(&sim, 2, PeerLimits::default());
    let link = client.link(address_of(1), Some(ShardId(0)), Lane::Append);
    (sim, server, client, link)
}

#[test]
fn calls_keep_their_order_and_large_bodies_arrive_whole() {
    run(1, async {
        let (sim, mut server, _client, link) = pair(1).await;
        let calls: Vec<_> = (0..200).map(|n| link.send(HOLD, number(n), in_ms(5_000))).collect();
        let mut held = Vec::new();
        for _ in 0..200 {
            held.push(server.held.recv().await.expect("lives"));
        }
        assert_eq!(*server.journal.lock().expect("one thread"), (0..200).collect::<Vec<_>>());
        held.into_iter().rev().for_each(|(body, reply)| reply.send(body));
        for (n, call) in (0..200).zip(calls) {
            assert_eq!(call.await.expect("answered"), number(n));
        }
        // Twice the window of a simulated connection.
        let large: Bytes =
            (0..1_u32 << 20).map(|at| u8::try_from(at % 251).expect("small")).collect();
        assert!(link.send(ECHO, large.clone(), in_ms(5_000)).await.expect("answered") == large);
        assert_eq!(sim.counters().broken, 0);
    });
}

#[test]
fn a_deadline_costs_virtual_time_only_and_a_late_answer_is_dropped() {
    run(2, async {
        let (_sim, mut server, client, link) = pair(2).await;
        let begin = now();
        let call = link.send(HOLD, number(1), in_ms(1_000));
        let (body, reply) = server.held.recv().await.expect("lives");
        assert_eq!(call.await, Err(PeerError::Deadline { sent: true }));
        assert_eq!(now() - begin, Duration::from_secs(1));
        reply.send(body);
        link.send(ECHO, number(2), in_ms(1_000)).await.expect("answered");
        assert_eq!(client.counters().late_answers, 1);
        assert_eq!(client.counters().dialled, 1);
    });
}

#[test]
fn a_stranger_is_refused_in_the_simulator_too() {
    run(3, async {
        let (sim, server, _client, _link) = pair(3).await;
        let wiped =
            LocalIdentity { cluster_id: CLUSTER, id: PeerId { log_uuid: [9; 16], ..peer_id(2) } };
        let foreign = LocalIdentity { cluster_id: [8; 16], id: peer_id(2) };
        for (stranger, words) in [(wiped, "no member"), (foreign, "foreign cluster")] {
            let network = Network::sim(&sim, stranger, PeerLimits::default());
            let link = network.link(address_of(1), Some(ShardId(0)), Lane::Vote);
            let error = link.send(ECHO, number(1), in_ms(1_000)).await.expect_err("refused");
            assert!(matches!(&error, PeerError::Refused(why) if why.contains(words)), "{error}");
        }
        assert_eq!(server.network.counters().refused, 2);
        assert!(server.journal.lock().expect("one thread").is_empty());
    });
}

#[test]
fn what_meets_a_one_way_cut_arrives_late_when_it_heals_in_time() {
    run(4, async {
        let (sim, server, client, link) = pair(4).await;
        link.send(ECHO, number(1), in_ms(1_000)).await.expect("answered");
        sim.partition(NodeId(2), NodeId(1), true);
        let call = link.send(ECHO, number(2), in_ms(300));
        assert_eq!(call.await, Err(PeerError::Deadline { sent: true }));
        assert_eq!(*server.journal.lock().expect("one thread"), [1]);
        assert_eq!(sim.counters().held, 1);
        sim.partition(NodeId(2), NodeId(1), false);
        // An unknown outcome did happen after all.
        link.send(ECHO, number(3), in_ms(2_000)).await.expect("answered");
        assert_eq!(*server.journal.lock().expect("one thread"), [1, 2, 3]);
        assert_eq!(client.counters().late_answers, 1);
        assert_eq!((client.counters().dialled, sim.counters().broken), (1, 0));
    });
}

#[test]
fn a_one_way_cut_breaks_the_connection_after_the_user_timeout() {
    run(5, async {
        let (sim, server, client, link) = pair(5).await;
        link.send(ECHO, number(1), in_ms(1_000)).await.expect("answered");
        sim.partition(NodeId(2), NodeId(1), true);
        let begin = now();
        let error = link.send(ECHO, number(2), in_ms(60_000)).await.expect_err("cut");
        assert!(matches!(error, PeerError::Unknown(_)), "{error}");
        let took = now() - begin;
        let limit = PeerLimits::default().tcp_user_timeout;
        assert!(took >= limit && took < limit + Duration::from_millis(100), "{took:?}");
        // Dials are cut as well; nothing of it reaches the service.
        let error = link.send(ECHO, number(3), in_ms(60_000)).await.expect_err("cut");
        assert!(matches!(error, PeerError::NotSent(_)), "{error}");
        assert!(sim.counters().dials_held >= 1 && sim.counters().dropped >= 1);
        sim.heal();
        link.send(ECHO, number(4), in_ms(5_000)).await.expect("answered");
        assert_eq!(*server.journal.lock().expect("one thread"), [1, 4]);
        assert_eq!(client.counters().dialled, 2);
    });
}

#[test]
fn behind_a_cut_way_back_the_call_arrives_and_its_answer_does_not() {
    run(6, async {
        let (sim, server, _client, link) = pair(6).await;
        link.send(ECHO, number(1), in_ms(1_000)).await.expect("answered");
        sim.partition(NodeId(1), NodeId(2), true);
        let begin = now();
        let error = link.send(ECHO, number(2), in_ms(60_000)).await.expect_err("no way back");
        assert!(matches!(error, PeerError::Unknown(_)), "{error}");
        assert_eq!(*server.journal.lock().expect("one thread"), [1, 2]);
        assert!(now() - begin < Duration::from_secs(3));
        assert_eq!(server.listener.connections(), 0);
    });
}

#[test]
fn a_crashed_node_is_gone_until_it_starts_again() {
    run(7, async {
        let (sim, mut server, client, link) = pair(7).await;
        let call = link.send(HOLD, number(1), in_ms(5_000));
        let (body, reply) = server.held.recv().await.expect("lives");
        let back = server.network.link(address_of(2), Some(ShardId(0)), Lane::Vote);
        sim.crash(NodeId(1));
        assert_eq!(sim.connections(), 0);
        // Its process may still turn for a moment; nothing leaves the machine any more.
        reply.send(body);
        assert!(matches!(call.await, Err(PeerError::Unknown(_))));
        let error = back.send(ECHO, number(2), in_ms(500)).await.expect_err("down");
        assert!(matches!(error, PeerError::NotSent(_)), "{error}");
        let error = link.send(ECHO, number(3), in_ms(5_000)).await.expect_err("down");
        assert!(matches!(error, PeerError::NotSent(_)), "{error}");
        assert!(sim.counters().dials_refused >= 1 && sim.counters().broken == 1);
        let again = start(&sim, 1, Journal::default()).await;
        link.send(ECHO, number(4), in_ms(5_000)).await.expect("answered");
        assert_eq!(*again.journal.lock().expect("one thread"), [4]);
        assert_eq!(client.counters().dialled, 2);
    });
}

#[test]
fn a_power_cut_tells_nobody_until_the_user_timeout() {
    run(9, async {
        let (sim, mut server, _client, link) = pair(9).await;
        let call = link.send(HOLD, number(1), in_ms(60_000));
        let (body, reply) = server.held.recv().await.expect("lives");
        sim.power_off(NodeId(1));
        reply.send(body);
        let short = link.send(ECHO, number(2), in_ms(500));
        assert_eq!(short.await, Err(PeerError::Deadline { sent: true }));
        assert_eq!(sim.counters().broken, 0, "nobody was told");
        let begin = now();
        assert!(matches!(call.await, Err(PeerError::Unknown(_))));
        let took = now() - begin;
        assert!(took > Duration::from_secs(1) && took < Duration::from_secs(2), "{took:?}");
        assert_eq!(*server.journal.lock().expect("one thread"), [1]);
        // A machine that is back answers what it does not know with a reset, well before that.
        let second = start(&sim, 1, Journal::default()).await;
        link.send(ECHO, number(3), in_ms(5_000)).await.expect("answered");
        sim.power_off(NodeId(1));
        let third = start(&sim, 1, Journal::default()).await;
        let begin = now();
        let error = link.send(ECHO, number(4), in_ms(5_000)).await.expect_err("reset");
        assert!(matches!(error, PeerError::Unknown(_)), "{error}");
        assert!(now() - begin < Duration::from_millis(200));
        link.send(ECHO, number(5), in_ms(5_000)).await.expect("answered");
        assert_eq!(*second.journal.lock().expect("one thread"), [3]);
        assert_eq!(*third.journal.lock().expect("one thread"), [5]);
    });
}

#[test]
fn a_lost_packet_breaks_its_connection_and_the_link_dials_again() {
    run(8, async {
        let (sim, _server, client, link) = pair(8).await;
        link.send(ECHO, number(1), in_ms(1_000)).await.expect("answered");
        sim.lose(1_000_000);
        let error = link.send(ECHO, number(2), in_ms(1_000)).await.expect_err("lost");
        assert!(matches!(error, PeerError::Unknown(_)), "{error}");
        sim.heal();
        link.send(ECHO, number(3), in_ms(1_000)).await.expect("answered");
        assert_eq!((sim.counters().broken, client.counters().dialled), (1, 2));
    });
}

/// What a random run came to.
struct Story {
    trace: u64,
    answered: usize,
    definite: usize,
    unknown: usize,
    broken: u64,
    held: u64,
}

/// Three nodes call each other while the network is cut, loses, breaks and crashes at random. Each
/// call has a number of its own.
async fn random_story(seed: u64) -> Story {
    let sim = SimNetwork::new(seed, SimDefaults::default());
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
    let journals: Vec<Journal> = (0..3).map(|_| Journal::default()).collect();
    let mut nodes = Vec::new();
    for node in 1..=3 {
        nodes.push(start(&sim, node, Arc::clone(&journals[node as usize - 1])).await);
    }
    let (mut calls, mut next) = (Vec::new(), 0);
    let mut links = links_of(&nodes);
    for step in 0..120 {
        let (from, to) = (rng.random_range(0..3_usize), rng.random_range(0..3_usize));
        let (one, other) = (NodeId(from as u64 + 1), NodeId(to as u64 + 1));
        match rng.random_range(0..40_u32) {
            0..=2 => sim.partition(one, other, true),
            3..=4 => sim.heal(),
            5 => sim.lose(20_000),
            6 => sim.break_connections(one, other),
            7 if step % 3 == 0 => {
                if rng.random_range(0..2_u32) == 0 {
                    sim.crash(one);
                } else {
                    sim.power_off(one);
                }
                nodes[from] = start(&sim, one.0, Arc::clone(&journals[from])).await;
                links = links_of(&nodes);
            }
            _ => (),
        }
        for _ in 0..rng.random_range(0..6_u32) {
            let deadline = in_ms(rng.random_range(5..1_500_u64));
            next += 1;
            calls.push((to, next, links[from][to].send(ECHO, number(next), deadline)));
        }
        runtime::sleep(Duration::from_millis(rng.random_range(0..120_u64))).await;
    }
    let mut trace = xxhash_rust::xxh3::Xxh3::new();
    let mut story = Story { trace: 0, answered: 0, definite: 0, unknown: 0, broken: 0, held: 0 };
    let seen: Vec<BTreeSet<u64>> = journals.iter().map(journal_of).collect();
    for (to, value, call) in calls {
        let outcome = call.await;
        trace.write(format!("{value} {outcome:?} {:?}", now()).as_bytes());
        match outcome {
            Ok(body) => {
                assert_eq!(body, number(value));
                assert!(journal_of(&journals[to]).contains(&value), "answered, never seen");
                story.answered += 1;
            }
            Err(error) if error.is_definite() => {
                assert!(!seen[to].contains(&value), "{value} {error}, and yet it was seen");
                assert!(!journal_of(&journals[to]).contains(&value), "{value} {error}");
                story.definite += 1;
            }
            Err(_) => story.unknown += 1,
        }
    }
    let counters = sim.counters();
    trace.write(format!("{counters:?}").as_bytes());
    for journal in &journals {
        trace.write(format!("{journal:?}").as_bytes());
    }
    story.trace = trace.finish();
    (story.broken, story.held) = (counters.broken, counters.held);
    story
}

fn links_of(nodes: &[Node]) -> Vec<Vec<Link>> {
    let link =
        |from: &Node, to: u64| from.network.link(address_of(to), Some(ShardId(0)), Lane::Append);
    nodes.iter().map(|from| (1..=3).map(|to| link(from, to)).collect()).collect()
}

/// Returns what a service saw, which must be no call twice.
fn journal_of(journal: &Journal) -> BTreeSet<u64> {
    let journal = journal.lock().expect("one thread");
    let seen: BTreeSet<u64> = journal.iter().copied().collect();
    assert_eq!(seen.len(), journal.len(), "a call was seen twice");
    seen
}

#[test]
fn whatever_fails_no_call_is_seen_twice_and_no_definite_no_was_seen_at_all() {
    let (mut answered, mut definite, mut unknown, mut broken, mut held) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        let story = run(seed, random_story(seed));
        answered += story.answered;
        definite += story.definite;
        unknown += story.unknown;
        broken += story.broken;
        held += story.held;
    }
    println!("{answered} answered, {definite} definite, {unknown} unknown, {broken} broken");
    let floor = SEEDS as usize;
    assert!(answered > floor * 20 && definite > floor && unknown > floor, "the faults did little");
    assert!(broken > SEEDS && held > SEEDS, "the faults did little");
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let traces: Vec<u64> = (0..20).map(|seed| run(seed, random_story(seed)).trace).collect();
    for (seed, trace) in (0..20).zip(&traces) {
        assert_eq!(run(seed, random_story(seed)).trace, *trace, "seed {seed}");
    }
    assert_eq!(traces.iter().collect::<BTreeSet<_>>().len(), traces.len());
}
