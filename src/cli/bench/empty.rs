//! An empty handler in this process: the same HTTP stack, the same client, no ledger.

use std::net::{Ipv4Addr, SocketAddr};

use super::super::Failure;

/// Serves the empty handler on a thread of its own and returns its address. It lives as long as
/// the process.
///
/// WIRING: `crate::http::empty_handler_router()` comes with the HTTP room. In its place: a thread
/// with a single-threaded runtime that runs the room's own `serve` on a listener of this address.
pub(super) fn serve() -> Result<SocketAddr, Failure> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    drop(listener);
    Err(Failure::Unavailable("this build cannot serve the empty handler yet".into()))
}
