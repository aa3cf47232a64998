//! The listening socket of a node's HTTP.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// How many connections the kernel keeps for us until they are accepted.
const BACKLOG: i32 = 4_096;

/// Opens the listening socket that the HTTP threads share: each accepts on a clone of it. No other
/// socket can listen on the same address meanwhile; a restart need not wait for connections of the
/// process before it (SO_REUSEADDR).
///
/// # Errors
///
/// The socket's: the address is not ours, or somebody listens there already.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
