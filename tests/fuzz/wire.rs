//! Frames from peers: a listener outlives whatever is sent to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast::ledger::{NodeId, ShardId};
use holdfast::peer::{
    Conversation, HELLO_VERSION, Hello, Lane, LocalIdentity, Network, Opened, PeerId, PeerLimits,
    ReplyTo, Service,
};
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::campaign::{bend, bounded, campaign, place};

const CLUSTER: [u8; 16] = [7; 16];
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes before a frame's body.
const HEADER: usize = 24;

fn id(node: u64) -> PeerId {
    PeerId { node: NodeId(node), log_uuid: [node as u8; 16] }
}

struct Echo(tokio::runtime::Handle);
struct EchoTalk;

impl Service for Echo {
    fn open(&self, _: &Hello) -> Result<Opened, String> {
        let handle = self.0.clone();
        let spawner = Arc::new(move |future| drop(handle.spawn(future)));
        Ok(Opened { conversation: Box::new(EchoTalk), spawner })
    }
}

impl Conversation for EchoTalk {
    fn frame(&mut self, kind: u16, body: Bytes, reply: ReplyTo) {
        if kind.is_multiple_of(3) { reply.refuse("not this") } else { reply.send(body) }
    }

    fn closed(&mut self) {}
}

fn frame(role: u8, kind: u16, correlation: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"HLDP".to_vec();
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&[role, 0]);
    bytes.extend_from_slice(&correlation.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&[0; 4]);
    sealed(&mut bytes);
    bytes
}

/// Gives a frame the checksums that its bytes need; a length that lies goes on lying.
fn sealed(frame: &mut [u8]) {
    if frame.len() < HEADER + 4 {
        return;
    }
    let crc = crc32fast::hash(&frame[..HEADER - 4]).to_le_bytes();
    frame[HEADER - 4..HEADER].copy_from_slice(&crc);
    let end = frame.len() - 4;
    let crc = crc32fast::hash(&frame[HEADER - 4..end]).to_le_bytes();
    frame[end..].copy_from_slice(&crc);
}

fn hello(lane: Lane) -> Hello {
    Hello {
        version: HELLO_VERSION,
        cluster_id: CLUSTER,
        from: id(2),
        to: NodeId(1),
        shard: (lane != Lane::Forward).then_some(ShardId(0)),
        lane,
    }
}

/// What a peer might say: a hello and some calls, of which something is wrong.
fn said(rng: &mut SmallRng) -> Vec<u8> {
    let lane = [Lane::Vote, Lane::Append, Lane::Snapshot, Lane::Forward][place(rng, 4)];
    let hello = holdfast::codec::encode(&hello(lane)).expect("small");
    let mut frames = vec![frame(1, 0, 0, &hello)];
    for call in 0..rng.random_range(0..6) {
        let body: Vec<u8> = (0..rng.random_range(0..300)).map(|_| rng.random()).collect();
        frames.push(frame(4, rng.random_range(0..9), call, &body));
    }
    // Mostly a call: a hello that is wrong is soon out.
    let at = if rng.random_bool(0.2) { 0 } else { place(rng, frames.len()) };
    let others = frames.clone();
    bend(rng, &mut frames[at], &others);
    if rng.random_bool(0.6) {
        sealed(&mut frames[at]);
    }
    frames.concat()
}

/// A listener on a thread of its own, for as long as the process lives.
fn listening() -> String {
    let (sender, address) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let local = LocalIdentity { cluster_id: CLUSTER, id: id(1) };
            let network = Network::tcp(local, PeerLimits::default());
            let service = Arc::new(Echo(tokio::runtime::Handle::current()));
            let listener = network.listen("127.0.0.1:0", service).await;
            let listener = listener.expect("the loopback binds");
            sender.send(listener.local_addr().to_owned()).expect("the test waits for it");
            std::future::pending::<()>().await;
        });
    });
    address.recv().expect("it listens")
}

/// Says all of it and returns what comes back until the other side closes.
fn answered(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    socket.set_write_timeout(Some(PATIENCE)).expect("a socket option");
    let mut heard = Vec::new();
    // It may close before it has heard everything.
    let _ = socket.write_all(bytes).and_then(|()| socket.shutdown(Shutdown::Write));
    match socket.read_to_end(&mut heard) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            panic!("it neither answers nor closes")
        }
        Ok(_) | Err(_) => heard,
    }
}

/// Says all of it and returns what comes back until that ends in the frame of the echo.
fn echoed(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    socket.write_all(bytes).expect("a listener that lives");
    let (mut heard, mut some) = (Vec::new(), [0; 256]);
    while !heard.windows(12).any(|words| words == b"still there?") {
        match socket.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(more) => heard.extend_from_slice(&some[..more]),
        }
    }
    heard
}

#[test]
fn frames_from_peers_end_at_most_their_own_connection() {
    let address = listening();
    campaign("frames_from_peers", |rng| {
        let bytes = said(rng);
        let most = 2 * PeerLimits::default().frame_bytes_max.forward + (2 << 20);
        bounded(most, || answered(&address, &bytes));
        let hello = frame(1, 0, 0, &holdfast::codec::encode(&hello(Lane::Vote)).expect("small"));
        let heard = echoed(&address, &[hello, frame(4, 1, 7, b"still there?")].concat());
        assert!(heard.windows(12).any(|words| words == b"still there?"), "{heard:?}");
    });
}
