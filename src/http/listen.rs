//! The listening socket of one HTTP thread.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// How many connections the kernel keeps for us until they are accepted.
const BACKLOG: i32 = 4_096;

/// Opens a listening socket that others on the same address share (SO_REUSEPORT): one for each HTTP
/// thread, and the kernel spreads the connections.
///
/// # Errors
///
/// The socket's: the address is not ours, or another process listens there without sharing.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    #[cfg(unix)]
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
