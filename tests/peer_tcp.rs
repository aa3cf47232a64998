//! Links, listeners and frames over the loopback: order, deadlines, bad input, restarts.
#![cfg(not(feature = "sim"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast::ledger::{NodeId, ShardId};
use holdfast::peer::{
    Address, Conversation, HELLO_VERSION, Hello, Lane, LaneBytes, Link, Listener, LocalIdentity,
    Network, Opened, PeerError, PeerId, PeerLimits, ReplyTo, Service, Spawner,
};
use holdfast::runtime::{Instant, now};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const CLUSTER: [u8; 16] = [7; 16];
const ECHO: u16 = 1;
const HOLD: u16 = 2;
const REFUSE: u16 = 3;
const DROP: u16 = 4;
const BLOAT: u16 = 5;

fn peer_id(node: u64) -> PeerId {
    PeerId { node: NodeId(node), log_uuid: [u8::try_from(node).expect("small"); 16] }
}

fn network_of(id: PeerId, limits: PeerLimits) -> Network {
    Network::tcp(LocalIdentity { cluster_id: CLUSTER, id }, limits)
}

fn soon() -> Instant {
    now() + Duration::from_secs(20)
}

/// One call as the service saw it.
struct Seen {
    body: Bytes,
    reply: Option<ReplyTo>,
    thread: Option<String>,
}

/// A service that echoes, holds, refuses or drops by the call's kind, and tells the test.
struct Bench {
    seen: mpsc::UnboundedSender<Seen>,
    closed: mpsc::UnboundedSender<()>,
    spawner: Spawner,
    member: PeerId,
}

struct BenchTalk {
    seen: mpsc::UnboundedSender<Seen>,
    closed: mpsc::UnboundedSender<()>,
}

impl Service for Bench {
    fn open(&self, hello: &Hello) -> Result<Opened, String> {
        if hello.from != self.member {
            return Err(format!("{} is no member", hello.from));
        }
        let talk = BenchTalk { seen: self.seen.clone(), closed: self.closed.clone() };
        Ok(Opened { conversation: Box::new(talk), spawner: Arc::clone(&self.spawner) })
    }
}

impl Conversation for BenchTalk {
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo) {
        let thread = std::thread::current().name().map(str::to_owned);
        let mut seen = Seen { body: body.clone(), reply: None, thread };
        match kind {
            ECHO => reply.send(body),
            HOLD => seen.reply = Some(reply),
            REFUSE => reply.refuse("not today"),
            DROP => drop(reply),
            BLOAT => reply.send(vec![0; 8 << 20].into()),
            other => reply.refuse(format!("kind {other}")),
        }
        let _ = self.seen.send(seen);
    }

    fn closed(&mut self) {
        let _ = self.closed.send(());
    }
}

/// Node 1 listens with a [`Bench`]; node 2 is its one member.
struct Server {
    network: Network,
    listener: Listener,
    seen: mpsc::UnboundedReceiver<Seen>,
    closed: mpsc::UnboundedReceiver<()>,
}

fn spawner_here() -> Spawner {
    let handle = tokio::runtime::Handle::current();
    Arc::new(move |future| drop(handle.spawn(future)))
}

async fn serve(addr: &str, limits: PeerLimits, spawner: Spawner) -> Server {
    let network = network_of(peer_id(1), limits);
    let (seen_to, seen) = mpsc::unbounded_channel();
    let (closed_to, closed) = mpsc::unbounded_channel();
    let bench = Bench { seen: seen_to, closed: closed_to, spawner, member: peer_id(2) };
    let listener = network.listen(addr, Arc::new(bench)).await.expect("the loopback binds");
    Server { network, listener, seen, closed }
}

async fn server() -> Server {
    serve("127.0.0.1:0", PeerLimits::default(), spawner_here()).await
}

impl Server {
    fn address(&self) -> Address {
        address(self.listener.local_addr())
    }

    async fn held(&mut self) -> (Bytes, ReplyTo) {
        loop {
            let seen = self.seen.recv().await.expect("the service lives");
            if let Some(reply) = seen.reply {
                return (seen.body, reply);
            }
        }
    }
}

fn address(addr: &str) -> Address {
    let PeerId { node, log_uuid } = peer_id(1);
    Address { node, log_uuid, addr: addr.to_owned() }
}

fn link_to(address: Address, limits: PeerLimits) -> (Network, Link) {
    let network = network_of(peer_id(2), limits);
    let link = network.link(address, Some(ShardId(3)), Lane::Append);
    (network, link)
}

fn number(value: u64) -> Bytes {
    value.to_le_bytes().to_vec().into()
}

async fn echo(link: &Link, body: &'static [u8]) -> Result<Bytes, PeerError> {
    link.send(ECHO, Bytes::from_static(body), soon()).await
}

// Frames by hand: what is on the wire is written down here a second time, on purpose.

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const CALL: u8 = 4;
const ANSWER: u8 = 5;

fn header(role: u8, kind: u16, correlation: u64, length: u32) -> Vec<u8> {
    let mut bytes = b"HLDP".to_vec();
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&[role, 0]);
    bytes.extend_from_slice(&correlation.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn frame(role: u8, kind: u16, correlation: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = header(role, kind, correlation, u32::try_from(body.len()).expect("small"));
    let checksum = crc32fast::hash(&[&bytes[20..], body].concat());
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn hello() -> Hello {
    Hello {
        version: HELLO_VERSION,
        cluster_id: CLUSTER,
        from: peer_id(2),
        to: NodeId(1),
        shard: Some(ShardId(0)),
        lane: Lane::Vote,
    }
}

fn hello_bytes(hello: &Hello) -> Vec<u8> {
    frame(HELLO, 0, 0, &holdfast::codec::encode(hello).expect("small"))
}

async fn read_frame(socket: &mut TcpStream) -> std::io::Result<(u8, u64, Vec<u8>)> {
    let mut head = [0; 24];
    socket.read_exact(&mut head).await?;
    let length = u32::from_le_bytes([head[16], head[17], head[18], head[19]]) as usize;
    let mut body = vec![0; length + 4];
    socket.read_exact(&mut body).await?;
    body.truncate(length);
    Ok((head[6], u64::from(head[8]), body))
}

/// Whether the other side ended the connection without another byte.
async fn ends(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut rest)).await {
        Ok(Ok(bytes)) => bytes == 0,
        Ok(Err(error)) => error.kind() == std::io::ErrorKind::ConnectionReset,
        Err(_) => false,
    }
}

/// A raw connection that was welcomed.
async fn welcomed(server: &Server) -> TcpStream {
    let mut socket = TcpStream::connect(server.listener.local_addr()).await.expect("connects");
    socket.write_all(&hello_bytes(&hello())).await.expect("writes");
    let (role, _, _) = read_frame(&mut socket).await.expect("a first frame");
    assert_eq!(role, WELCOME);
    socket
}

#[tokio::test]
async fn calls_arrive_in_order_and_are_answered_in_any_order() {
    let mut server = server().await;
    let (_network, link) = link_to(server.address(), PeerLimits::default());
    let pending: Vec<_> = (0..500).map(|n| link.send(HOLD, number(n), soon())).collect();
    let mut held = Vec::new();
    for expected in 0..500 {
        let (body, reply) = server.held().await;
        assert_eq!(body, number(expected));
        held.push((body, reply));
    }
    while let Some((body, reply)) = held.pop() {
        reply.send(body);
    }
    for (n, call) in (0..500).zip(pending) {
        assert_eq!(call.await.expect("answered"), number(n));
    }
}

#[tokio::test]
async fn what_is_queued_in_one_turn_goes_out_in_one_write() {
    let server = server().await;
    let (network, link) = link_to(server.address(), PeerLimits::default());
    echo(&link, b"warm").await.expect("answered");
    let (before, there) = (network.counters(), server.network.counters());
    let pending: Vec<_> = (0..1000).map(|n| link.send(ECHO, number(n), soon())).collect();
    for (n, call) in (0..1000).zip(pending) {
        assert_eq!(call.await.expect("answered"), number(n));
    }
    let after = network.counters();
    assert_eq!(after.frames_out - before.frames_out, 1000);
    assert_eq!(after.writes - before.writes, 1);
    // The answers too: at most one write for each read of up to 64 KiB (36,000 bytes came).
    let writes_back = server.network.counters().writes - there.writes;
    assert!(writes_back <= 10, "{writes_back} writes");
}

#[tokio::test]
async fn large_bodies_arrive_whole_beside_small_ones() {
    let server = server().await;
    let (_network, link) = link_to(server.address(), PeerLimits::default());
    let body = |n: usize| -> Bytes {
        let bytes = if n.is_multiple_of(2) { 1 << 20 } else { n };
        (0..bytes).map(|at| u8::try_from((at * 31 + n) % 251).expect("below 251")).collect()
    };
    let pending: Vec<_> = (0..12).map(|n| link.send(ECHO, body(n), soon())).collect();
    for (n, call) in pending.into_iter().enumerate() {
        assert!(call.await.expect("answered") == body(n), "body {n}");
    }
}

#[tokio::test]
async fn a_call_past_its_deadline_is_forgotten_and_its_late_answer_dropped() {
    let mut server = server().await;
    let (network, link) = link_to(server.address(), PeerLimits::default());
    echo(&link, b"warm").await.expect("answered");
    let call = link.send(HOLD, number(1), now() + Duration::from_millis(30));
    let (body, reply) = server.held().await;
    assert_eq!(call.await, Err(PeerError::Deadline { sent: true }));
    reply.send(body);
    // In order behind the late answer.
    assert_eq!(echo(&link, b"next").await.expect("answered"), "next");
    let counters = network.counters();
    assert_eq!((counters.deadlines, counters.late_answers, counters.dialled), (1, 1, 1));
    assert_eq!(
        link.send(ECHO, number(2), now()).await,
        Err(PeerError::Deadline { sent: false }),
        "a deadline that has come sends nothing"
    );
}

#[tokio::test]
async fn a_refusal_is_definite_and_a_dropped_call_is_unknown() {
    let server = server().await;
    let (_network, link) = link_to(server.address(), PeerLimits::default());
    let refused = link.send(REFUSE, Bytes::new(), soon()).await.expect_err("refused");
    assert_eq!(refused, PeerError::Refused("not today".to_owned()));
    assert!(refused.is_definite());
    for kind in [DROP, BLOAT] {
        let unknown = link.send(kind, Bytes::new(), soon()).await.expect_err("no answer");
        assert!(matches!(unknown, PeerError::Unknown(_)), "{unknown}");
        assert!(!unknown.is_definite());
    }
    assert_eq!(echo(&link, b"still here").await.expect("answered"), "still here");
}

#[tokio::test]
async fn a_body_above_the_lanes_bound_is_not_sent() {
    let server = server().await;
    let (network, link) = link_to(server.address(), PeerLimits::default());
    let limit = PeerLimits::default().frame_bytes_max.append;
    let error = link.send(ECHO, vec![0; limit + 1].into(), soon()).await.expect_err("too large");
    assert_eq!(error, PeerError::TooLarge { bytes: limit + 1, limit });
    let whole = link.send(ECHO, vec![9; limit].into(), soon()).await.expect("fits");
    assert_eq!(whole.len(), limit);
    assert_eq!(network.counters().frames_out, 1);
}

#[tokio::test]
async fn a_flipped_byte_at_any_position_closes_that_connection_only() {
    let mut server = server().await;
    let (_network, link) = link_to(server.address(), PeerLimits::default());
    echo(&link, b"before").await.expect("answered");
    let good = frame(CALL, HOLD, 1, b"one unit");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x41;
        let mut socket = welcomed(&server).await;
        socket.write_all(&bad).await.expect("writes");
        assert!(ends(&mut socket).await, "byte {at}");
    }
    assert_eq!(server.network.counters().bad_frames, good.len() as u64);
    echo(&link, b"after").await.expect("unaffected");
    let counters = server.network.counters();
    assert_eq!(counters.accepted, 1 + good.len() as u64, "the link was never redialled");
    // None of the damaged calls reached the service; the good one does.
    let mut socket = welcomed(&server).await;
    socket.write_all(&good).await.expect("writes");
    let (body, reply) = server.held().await;
    assert_eq!(body, "one unit");
    reply.send(body);
    let (role, correlation, body) = read_frame(&mut socket).await.expect("an answer");
    assert_eq!((role, correlation, &body[..]), (ANSWER, 1, &b"one unit"[..]));
}

#[tokio::test]
async fn a_hostile_length_or_role_closes_the_connection_before_its_body() {
    let server = server().await;
    let vote_limit = PeerLimits::default().frame_bytes_max.vote;
    let over = u32::try_from(vote_limit + 1).expect("small");
    let hostile = [
        header(CALL, ECHO, 1, u32::MAX),
        header(CALL, ECHO, 1, over),
        frame(ANSWER, ECHO, 1, b"an answer to nothing"),
        frame(HELLO, 0, 0, b"twice"),
        frame(99, ECHO, 1, b"no such role"),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    for (case, bytes) in hostile.iter().enumerate() {
        let mut socket = welcomed(&server).await;
        socket.write_all(bytes).await.expect("writes");
        assert!(ends(&mut socket).await, "case {case}");
    }
    assert_eq!(server.network.counters().bad_frames, hostile.len() as u64);
}

#[tokio::test]
async fn a_stranger_is_told_why_and_turned_away() {
    let server = server().await;
    let strangers = [
        (Hello { version: 2, ..hello() }, "peer protocol 2 is not known"),
        (Hello { cluster_id: [8; 16], ..hello() }, "foreign cluster 0808"),
        (Hello { to: NodeId(9), ..hello() }, "this is node 1, not node 9"),
        (Hello { from: peer_id(3), ..hello() }, "node 3 with log 0303"),
        (
            Hello { from: PeerId { log_uuid: [9; 16], ..peer_id(2) }, ..hello() },
            "node 2 with log 0909",
        ),
        (Hello { shard: None, ..hello() }, "does not exist"),
    ];
    for (stranger, words) in &strangers {
        let mut socket = TcpStream::connect(server.listener.local_addr()).await.expect("connects");
        socket.write_all(&hello_bytes(stranger)).await.expect("writes");
        let (role, _, reason) = read_frame(&mut socket).await.expect("a refusal");
        let reason = String::from_utf8(reason).expect("words");
        assert_eq!(role, REFUSED);
        assert!(reason.contains(words), "{reason:?} does not say {words:?}");
        assert!(ends(&mut socket).await);
    }
    let counters = server.network.counters();
    assert_eq!((counters.refused, counters.accepted), (strangers.len() as u64, 0));
}

#[tokio::test]
async fn a_damaged_hello_is_never_welcomed() {
    let server = server().await;
    let good = hello_bytes(&hello());
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x41;
        let mut socket = TcpStream::connect(server.listener.local_addr()).await.expect("connects");
        socket.write_all(&bad).await.expect("writes");
        assert!(ends(&mut socket).await, "byte {at}");
    }
    let counters = server.network.counters();
    assert_eq!((counters.bad_frames, counters.accepted), (good.len() as u64, 0));
}

#[tokio::test]
async fn a_call_through_a_refused_link_is_refused() {
    let server = server().await;
    let stranger = network_of(PeerId { log_uuid: [9; 16], ..peer_id(2) }, PeerLimits::default());
    let link = stranger.link(server.address(), Some(ShardId(0)), Lane::Vote);
    let error = echo(&link, b"vote for me").await.expect_err("refused");
    assert!(matches!(&error, PeerError::Refused(why) if why.contains("no member")), "{error}");
    assert_eq!(stranger.counters().dial_refusals, 1);
}

#[tokio::test]
async fn a_node_with_another_log_than_the_members_is_not_talked_to() {
    let mut server = server().await;
    let wiped = Address { log_uuid: [99; 16], ..server.address() };
    let (_network, link) = link_to(wiped, PeerLimits::default());
    let error = link.send(HOLD, number(1), soon()).await.expect_err("not the log meant");
    assert!(matches!(&error, PeerError::Refused(why) if why.contains("was meant")), "{error}");
    server.closed.recv().await.expect("its connection ends");
    assert!(server.seen.try_recv().is_err(), "no call reached it");
}

#[tokio::test]
async fn a_restarted_peer_is_dialled_again() {
    let first = server().await;
    let addr = first.listener.local_addr().to_owned();
    let (network, link) = link_to(first.address(), PeerLimits::default());
    echo(&link, b"one").await.expect("answered");
    first.listener.close();
    first.listener.released().await;
    let error = echo(&link, b"two").await.expect_err("nobody there");
    assert!(matches!(error, PeerError::NotSent(_) | PeerError::Unknown(_)), "{error}");
    let _second = serve(&addr, PeerLimits::default(), spawner_here()).await;
    // The link may dial once more into the gap; after that it must get through.
    let mut answered = false;
    for _ in 0..3 {
        answered |= echo(&link, b"three").await.is_ok();
    }
    assert!(answered);
    assert_eq!(network.counters().dialled, 2);
}

#[tokio::test]
async fn calls_are_unknown_or_not_sent_as_the_peer_dies() {
    let mut server = server().await;
    let limits = PeerLimits { in_flight_max: 2, ..PeerLimits::default() };
    let (_network, link) = link_to(server.address(), limits);
    let calls: Vec<_> = (0..5).map(|n| link.send(HOLD, number(n), soon())).collect();
    let _one = server.held().await;
    let _two = server.held().await;
    server.listener.close();
    for (n, call) in calls.into_iter().enumerate() {
        let error = call.await.expect_err("the peer died");
        if n < 2 {
            assert!(matches!(error, PeerError::Unknown(_)), "call {n}: {error}");
        } else {
            assert!(matches!(error, PeerError::NotSent(_)), "call {n}: {error}");
        }
    }
    server.closed.recv().await.expect("the conversation learns of it");
}

#[tokio::test]
async fn a_frame_that_was_not_written_whole_is_not_sent() {
    // The peer welcomes and reads no further: so large a body fills the sockets' buffers and
    // cannot have left as a whole.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let addr = listener.local_addr().expect("bound").to_string();
    let defaults = PeerLimits::default();
    let limits = PeerLimits {
        frame_bytes_max: LaneBytes { forward: 64 << 20, ..defaults.frame_bytes_max },
        queue_bytes_max: 128 << 20,
        ..defaults
    };
    let network = network_of(peer_id(2), limits);
    let link = network.link(address(&addr), None, Lane::Forward);
    let small = link.send(HOLD, number(1), soon());
    let large = link.send(HOLD, vec![1; 64 << 20].into(), soon());
    let mut socket = welcome_by_hand(&listener).await;
    read_frame(&mut socket).await.expect("the small call");
    // One byte more proves that the large one is being written.
    socket.read_exact(&mut [0]).await.expect("a first byte");
    drop(socket);
    let error = small.await.expect_err("the peer went away");
    assert!(matches!(error, PeerError::Unknown(_)), "{error}");
    let error = large.await.expect_err("the peer went away");
    assert!(matches!(error, PeerError::NotSent(_)), "{error}");
}

async fn welcome_by_hand(listener: &TcpListener) -> TcpStream {
    let (mut socket, _) = listener.accept().await.expect("a connection");
    let (role, _, body) = read_frame(&mut socket).await.expect("a hello");
    assert_eq!(role, HELLO);
    assert_eq!(&body[..2], &HELLO_VERSION.to_le_bytes());
    let welcome = (HELLO_VERSION, CLUSTER, peer_id(1));
    let welcome = holdfast::codec::encode(&welcome).expect("small");
    socket.write_all(&frame(WELCOME, 0, 0, &welcome)).await.expect("writes");
    socket
}

#[tokio::test]
async fn a_silent_connection_is_given_up_and_dialled_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let addr = listener.local_addr().expect("bound").to_string();
    let limits =
        PeerLimits { tcp_user_timeout: Duration::from_millis(60), ..PeerLimits::default() };
    let (network, link) = link_to(address(&addr), limits);
    let long = link.send(HOLD, number(1), soon());
    let mut socket = welcome_by_hand(&listener).await;
    read_frame(&mut socket).await.expect("the long call");
    let short = link.send(HOLD, number(2), now() + Duration::from_millis(20));
    assert_eq!(short.await, Err(PeerError::Deadline { sent: true }));
    let error = long.await.expect_err("given up");
    assert!(matches!(&error, PeerError::Unknown(why) if why.contains("silent")), "{error}");
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.expect("the link closed the connection");
    assert_eq!(rest, frame(CALL, HOLD, 2, &number(2)));
    assert_eq!(network.counters().given_up, 1);
    let call = link.send(HOLD, number(3), soon());
    let mut socket = welcome_by_hand(&listener).await;
    let (_, correlation, body) = read_frame(&mut socket).await.expect("the call");
    socket.write_all(&frame(ANSWER, HOLD, correlation, &body)).await.expect("writes");
    assert_eq!(call.await.expect("answered"), number(3));
}

#[tokio::test]
async fn a_bad_answer_ends_the_connection_with_its_calls_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let addr = listener.local_addr().expect("bound").to_string();
    let (network, link) = link_to(address(&addr), PeerLimits::default());
    let call = link.send(HOLD, number(1), soon());
    let mut socket = welcome_by_hand(&listener).await;
    read_frame(&mut socket).await.expect("the call");
    let mut answer = frame(ANSWER, HOLD, 1, b"granted");
    let last = answer.len() - 6;
    answer[last] ^= 1;
    socket.write_all(&answer).await.expect("writes");
    let error = call.await.expect_err("damaged");
    assert!(matches!(&error, PeerError::Unknown(why) if why.contains("checksum")), "{error}");
    assert_eq!(network.counters().bad_frames, 1);
}

#[tokio::test]
async fn silent_callers_do_not_stand_in_the_door() {
    let limits = PeerLimits {
        handshakes_max: 4,
        handshake_timeout: Duration::from_secs(3600),
        ..PeerLimits::default()
    };
    let server = serve("127.0.0.1:0", limits, spawner_here()).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(server.listener.local_addr()).await.expect("connects"));
    }
    let (_network, link) = link_to(server.address(), PeerLimits::default());
    assert_eq!(echo(&link, b"let me in").await.expect("answered"), "let me in");
    assert!(ends(&mut silent[0]).await, "the oldest went first");
}

#[tokio::test]
async fn a_caller_that_never_says_hello_is_dropped() {
    let limits =
        PeerLimits { handshake_timeout: Duration::from_millis(30), ..PeerLimits::default() };
    let server = serve("127.0.0.1:0", limits, spawner_here()).await;
    let mut socket = TcpStream::connect(server.listener.local_addr()).await.expect("connects");
    socket.write_all(&hello_bytes(&hello())[..30]).await.expect("half a hello");
    assert!(ends(&mut socket).await);
    assert_eq!(server.network.counters().silent, 1);
}

#[tokio::test]
async fn a_frame_that_is_never_finished_closes_its_connection() {
    let limits = PeerLimits { frame_timeout: Duration::from_millis(30), ..PeerLimits::default() };
    let server = serve("127.0.0.1:0", limits, spawner_here()).await;
    let mut socket = welcomed(&server).await;
    socket.write_all(&frame(CALL, ECHO, 1, b"whole")).await.expect("writes");
    let (role, _, _) = read_frame(&mut socket).await.expect("an answer");
    assert_eq!(role, ANSWER);
    socket.write_all(&frame(CALL, ECHO, 2, b"half")[..25]).await.expect("writes");
    assert!(ends(&mut socket).await);
    assert_eq!(server.network.counters().bad_frames, 1);
}

#[tokio::test]
async fn a_full_house_turns_the_next_caller_away() {
    let limits = PeerLimits { accepted_max: 1, ..PeerLimits::default() };
    let mut server = serve("127.0.0.1:0", limits, spawner_here()).await;
    let (_network, first) = link_to(server.address(), PeerLimits::default());
    echo(&first, b"first").await.expect("answered");
    let (_network, second) = link_to(server.address(), PeerLimits::default());
    let error = echo(&second, b"second").await.expect_err("no seat");
    assert!(matches!(error, PeerError::NotSent(_)), "{error}");
    assert_eq!(server.network.counters().crowded_out, 1);
    drop(first);
    server.closed.recv().await.expect("the seat is free again");
    let mut answered = false;
    for _ in 0..3 {
        answered |= echo(&second, b"second").await.is_ok();
    }
    assert!(answered);
}

#[tokio::test]
async fn no_more_calls_are_read_than_may_be_in_flight() {
    let limits = PeerLimits { in_flight_max: 3, ..PeerLimits::default() };
    let mut server = serve("127.0.0.1:0", limits, spawner_here()).await;
    let (_network, link) = link_to(server.address(), PeerLimits::default());
    let outstanding = AtomicUsize::new(0);
    let calls: Vec<_> = (0..40).map(|n| link.send(HOLD, number(n), soon())).collect();
    let mut held = Vec::new();
    let mut most = 0;
    for n in 0..40 {
        let (body, reply) = server.held().await;
        assert_eq!(body, number(n));
        held.push((body, reply));
        most = most.max(outstanding.fetch_add(1, Ordering::Relaxed) + 1);
        if held.len() == 3 {
            assert!(server.seen.try_recv().is_err(), "a fourth came");
            for (body, reply) in held.drain(..) {
                outstanding.fetch_sub(1, Ordering::Relaxed);
                reply.send(body);
            }
        }
    }
    held.drain(..).for_each(|(body, reply)| reply.send(body));
    for (n, call) in (0..40).zip(calls) {
        assert_eq!(call.await.expect("answered"), number(n));
    }
    assert_eq!(most, 3);
}

#[tokio::test]
async fn nobody_there_fails_at_once_and_the_pause_keeps_deadlines() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let addr = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let limits = PeerLimits {
        redial_pause_min: Duration::from_secs(60),
        redial_pause_max: Duration::from_secs(60),
        ..PeerLimits::default()
    };
    let (network, link) = link_to(address(&addr), limits);
    let error = echo(&link, b"anybody?").await.expect_err("nobody");
    assert!(matches!(error, PeerError::NotSent(_)), "{error}");
    let call = link.send(ECHO, number(1), now() + Duration::from_millis(20));
    assert_eq!(call.await, Err(PeerError::Deadline { sent: false }));
    assert_eq!(network.counters().dial_failures, 1);
}

#[tokio::test]
async fn a_peer_that_never_welcomes_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let addr = listener.local_addr().expect("bound").to_string();
    let limits = PeerLimits { connect_timeout: Duration::from_millis(60), ..PeerLimits::default() };
    let (_network, link) = link_to(address(&addr), limits);
    let short = link.send(ECHO, number(1), now() + Duration::from_millis(10));
    let long = link.send(ECHO, number(2), soon());
    assert_eq!(short.await, Err(PeerError::Deadline { sent: false }));
    let error = long.await.expect_err("never welcomed");
    assert!(matches!(&error, PeerError::NotSent(why) if why.contains("no welcome")), "{error}");
}

#[tokio::test]
async fn a_full_queue_sheds_instead_of_growing() {
    let server = server().await;
    let limits = PeerLimits { queue_max: 3, ..PeerLimits::default() };
    let (_network, link) = link_to(server.address(), limits);
    let calls: Vec<_> = (0..4).map(|n| link.send(ECHO, number(n), soon())).collect();
    for (n, call) in calls.into_iter().enumerate() {
        let outcome = call.await;
        if n < 3 {
            outcome.expect("answered");
        } else {
            assert_eq!(outcome, Err(PeerError::NotSent("the link's queue is full".to_owned())));
        }
    }
}

#[tokio::test]
async fn a_closed_link_settles_everything() {
    let mut server = server().await;
    let limits = PeerLimits { in_flight_max: 1, ..PeerLimits::default() };
    let (_network, link) = link_to(server.address(), limits);
    let sent = link.send(HOLD, number(1), soon());
    let queued = link.send(HOLD, number(2), soon());
    let _held = server.held().await;
    link.close();
    assert!(matches!(queued.await, Err(PeerError::NotSent(_))));
    assert!(matches!(sent.await, Err(PeerError::Unknown(_))));
    assert!(matches!(echo(&link, b"late").await, Err(PeerError::NotSent(_))));
    server.closed.recv().await.expect("its connection ends");
}

#[tokio::test]
async fn a_runtime_that_ends_leaves_no_call_waiting() {
    let mut server = server().await;
    let limits = PeerLimits { in_flight_max: 1, ..PeerLimits::default() };
    let (_network, link) = link_to(server.address(), limits);
    let (begun_to, begun) = tokio::sync::oneshot::channel();
    let (end_to, end) = tokio::sync::oneshot::channel::<()>();
    let theirs = link.clone();
    let shard = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("builds");
        runtime.block_on(async {
            let calls = [1, 2].map(|n| theirs.send(HOLD, number(n), soon()));
            begun_to.send(calls).expect("the test waits");
            let _ = end.await;
        });
    });
    let [sent, queued] = begun.await.expect("begun");
    let _held = server.held().await;
    end_to.send(()).expect("the shard waits");
    assert!(matches!(sent.await, Err(PeerError::Unknown(_))));
    assert!(matches!(queued.await, Err(PeerError::NotSent(_))));
    shard.join().expect("ends");
    // Another runtime takes the link up again.
    echo(&link, b"again").await.expect("answered");
}

#[tokio::test]
async fn a_conversation_is_held_where_its_service_says() {
    let (handle_to, handle) = std::sync::mpsc::channel();
    let (end_to, end) = tokio::sync::oneshot::channel::<()>();
    let shard = std::thread::Builder::new().name("shard-3".to_owned());
    let shard = shard
        .spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("builds");
            handle_to.send(runtime.handle().clone()).expect("the test waits");
            let _ = runtime.block_on(end);
        })
        .expect("spawns");
    let handle = handle.recv().expect("the shard runs");
    let spawner: Spawner = Arc::new(move |future| drop(handle.spawn(future)));
    let mut server = serve("127.0.0.1:0", PeerLimits::default(), spawner).await;
    let (_network, link) = link_to(server.address(), PeerLimits::default());
    echo(&link, b"where are you?").await.expect("answered");
    let seen = server.seen.recv().await.expect("seen");
    assert_eq!(seen.thread.as_deref(), Some("shard-3"));
    // The shard's runtime ends: its connections end with it, and the conversation learns of it.
    end_to.send(()).expect("the shard waits");
    shard.join().expect("ends");
    server.closed.recv().await.expect("told");
}
