//! An empty handler in this process: the same HTTP stack, the same client, no ledger.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::super::Failure;
use crate::http;

/// Serves the empty handler on a thread of its own and returns its address. It lives as long as
/// the process.
pub(super) fn serve() -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::Unavailable(format!("cannot start an event loop: {e}")))?;
    std::thread::Builder::new().name("empty-handler".into()).spawn(move || {
        let (router, limits) = (http::empty_handler_router(), http::Limits::default());
        let connections = http::Connections::default();
        let served = http::serve(listener, router, limits, connections, std::future::pending());
        // It ends only when the listener cannot be used; the load then finds nobody, and says so.
        runtime.block_on(served)
    })?;
    Ok(address)
}
