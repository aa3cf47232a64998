//! The first frame each way: reading and writing it, on both sides, before a connection is one.
//!
//! A greeting is read to its exact last byte and never further, so that the connection can move to
//! another runtime behind it. Deadlines are the caller's.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame::{FrameError, HEADER_BYTES, Header, Role, TRAILER_BYTES, body_checksum};
use super::hello::{HELLO_BYTES_MAX, HELLO_VERSION, Hello, Welcome, reason_bytes, reason_text};
use super::link::LinkShared;
use super::transport::Socket;
use super::{Inner, transport};

/// Why a dial came to nothing.
pub(super) enum DialError {
    /// The peer said no, or it is not the peer that was meant. A definite answer.
    Refused(String),
    /// Nobody there, or nobody who speaks this protocol.
    Failed(String),
}

impl From<FrameError> for DialError {
    fn from(error: FrameError) -> DialError {
        DialError::Failed(error.to_string())
    }
}

/// Dials a peer, says hello and waits for the welcome.
///
/// # Errors
///
/// [`DialError`]; no call was sent in either case.
pub(super) async fn dial(link: &LinkShared) -> Result<Socket, DialError> {
    let network = &link.network;
    let mut socket = transport::dial(&network.transport, link.to.node, &link.to.addr)
        .await
        .map_err(|error| DialError::Failed(format!("{}: {error}", link.to.addr)))?;
    let hello = Hello {
        version: HELLO_VERSION,
        cluster_id: network.local.cluster_id,
        from: network.local.id,
        to: link.to.node,
        shard: link.shard,
        lane: link.lane,
    };
    write_greeting(&mut socket, Role::Hello, hello.encode()).await?;
    let (role, body) = read_greeting(&mut socket).await?;
    match role {
        Role::Welcome => {
            let welcome = Welcome::decode(&body).map_err(DialError::Failed)?;
            welcome.check(&network.local, link.to.id()).map_err(DialError::Refused)?;
            Ok(socket)
        }
        Role::Refused => Err(DialError::Refused(reason_text(&body))),
        Role::Hello | Role::Call | Role::Answer | Role::Refusal | Role::Lost => {
            Err(FrameError::Misplaced(role).into())
        }
    }
}

/// What a stranger's first bytes came to.
pub(super) enum Greeted {
    /// A hello that belongs here.
    Hello(Hello),
    /// A frame, but not one that belongs here; the words are for the peer.
    Stranger(String),
}

/// Reads the hello of an accepted connection and decides whether it belongs here.
///
/// # Errors
///
/// [`FrameError`] when the bytes are no frame.
pub(super) async fn receive(socket: &mut Socket, network: &Inner) -> Result<Greeted, FrameError> {
    let (role, body) = read_greeting(socket).await?;
    if role != Role::Hello {
        return Err(FrameError::Misplaced(role));
    }
    let checked = Hello::decode(&body).and_then(|hello| {
        hello.check(&network.local)?;
        Ok(hello)
    });
    Ok(match checked {
        Ok(hello) => Greeted::Hello(hello),
        Err(reason) => Greeted::Stranger(reason),
    })
}

/// Tells an accepted connection that it is not wanted, and ends it.
///
/// # Errors
///
/// The socket's.
pub(super) async fn turn_away(socket: &mut Socket, reason: &str) -> Result<(), FrameError> {
    write_greeting(socket, Role::Refused, reason_bytes(reason)).await?;
    Ok(socket.shutdown().await?)
}

/// Returns the body of this node's welcome.
pub(super) fn welcome(network: &Inner) -> Bytes {
    let welcome = Welcome {
        version: HELLO_VERSION,
        cluster_id: network.local.cluster_id,
        from: network.local.id,
    };
    welcome.encode().into()
}

async fn write_greeting(socket: &mut Socket, role: Role, body: Vec<u8>) -> Result<(), FrameError> {
    let length = u32::try_from(body.len()).expect("a greeting is far below 4 GiB");
    let header = Header { role, kind: 0, correlation: 0, length }.encode();
    let checksum = body_checksum(&header, &body);
    let bytes = [&header[..], &body[..], &checksum.to_le_bytes()].concat();
    socket.write_all(&bytes).await?;
    Ok(socket.flush().await?)
}

async fn read_greeting(socket: &mut Socket) -> Result<(Role, Vec<u8>), FrameError> {
    let mut bytes = [0; HEADER_BYTES];
    // The magic first: a stranger that speaks another protocol may never send a whole header.
    socket.read_exact(&mut bytes[..4]).await?;
    if bytes[..4] != super::frame::MAGIC {
        return Err(FrameError::Magic);
    }
    socket.read_exact(&mut bytes[4..]).await?;
    let header = Header::decode(&bytes, HELLO_BYTES_MAX)?;
    let mut body = vec![0; header.length as usize];
    socket.read_exact(&mut body).await?;
    let mut checksum = [0; TRAILER_BYTES];
    socket.read_exact(&mut checksum).await?;
    if u32::from_le_bytes(checksum) != body_checksum(&bytes, &body) {
        return Err(FrameError::Checksum);
    }
    Ok((header.role, body))
}
