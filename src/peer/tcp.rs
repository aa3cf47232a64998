//! The kernel's sockets, with the options that every connection between nodes has: no delay, keep
//! alive, and a bound on how long written bytes may stay unacknowledged.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::limits::PeerLimits;
use crate::ledger::NodeId;

/// Seconds between two keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The options of this node's connections.
pub(super) struct Transport {
    tcp_user_timeout: Duration,
    keepalive_idle: Duration,
}

impl Transport {
    /// Takes the options from the node's limits.
    pub(super) fn new(limits: &PeerLimits) -> Transport {
        Transport {
            tcp_user_timeout: limits.tcp_user_timeout,
            keepalive_idle: limits.keepalive_idle,
        }
    }

    fn dress(&self, stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        let keepalive =
            TcpKeepalive::new().with_time(self.keepalive_idle).with_interval(KEEPALIVE_INTERVAL);
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.tcp_user_timeout))?;
        Ok(Socket { stream })
    }
}

/// Connects to a peer.
///
/// # Errors
///
/// When nobody listens there, the name does not resolve, or the socket refuses an option.
pub(super) async fn dial(transport: &Transport, _to: NodeId, addr: &str) -> io::Result<Socket> {
    transport.dress(TcpStream::connect(addr).await?)
}

/// Binds an address.
///
/// # Errors
///
/// When it cannot be bound.
pub(super) async fn bind(transport: &Transport, addr: &str) -> io::Result<Acceptor> {
    let Transport { tcp_user_timeout, keepalive_idle } = *transport;
    let listener = TcpListener::bind(addr).await?;
    Ok(Acceptor { listener, transport: Transport { tcp_user_timeout, keepalive_idle } })
}

/// A bound address.
pub(super) struct Acceptor {
    listener: TcpListener,
    transport: Transport,
}

impl Acceptor {
    /// Returns the bound address.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn local_addr(&self) -> io::Result<String> {
        Ok(self.listener.local_addr()?.to_string())
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    ///
    /// The system's, for instance when the process has no more descriptors.
    pub(super) async fn accept(&mut self) -> io::Result<Socket> {
        loop {
            let (stream, from) = self.listener.accept().await?;
            match self.transport.dress(stream) {
                Ok(socket) => return Ok(socket),
                // A caller that is gone already is no trouble of the listener's.
                Err(error) => tracing::debug!(%from, %error, "a connection died at the door"),
            }
        }
    }
}

/// A connected socket, registered with one runtime.
pub(super) struct Socket {
    stream: TcpStream,
}

/// A connected socket between two runtimes.
pub(super) struct Parked {
    stream: std::net::TcpStream,
}

impl Socket {
    /// Takes the socket off this thread's runtime.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn park(self) -> io::Result<Parked> {
        Ok(Parked { stream: self.stream.into_std()? })
    }
}

impl Parked {
    /// Registers the socket with this thread's runtime.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn unpark(self) -> io::Result<Socket> {
        Ok(Socket { stream: TcpStream::from_std(self.stream)? })
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_ends_of_a_connection_have_every_option() {
        let limits = PeerLimits::default();
        let transport = Transport::new(&limits);
        let mut acceptor = bind(&transport, "127.0.0.1:0").await.expect("binds");
        let addr = acceptor.local_addr().expect("bound");
        let (dialled, accepted) =
            tokio::join!(dial(&transport, NodeId(1), &addr), acceptor.accept());
        for socket in [dialled.expect("dialled"), accepted.expect("accepted")] {
            let socket = SockRef::from(&socket.stream);
            assert!(socket.tcp_nodelay().expect("readable"));
            assert!(socket.keepalive().expect("readable"));
            assert_eq!(socket.tcp_keepalive_time().expect("readable"), limits.keepalive_idle);
            #[cfg(target_os = "linux")]
            assert_eq!(socket.tcp_user_timeout().expect("readable"), Some(limits.tcp_user_timeout));
        }
    }
}
