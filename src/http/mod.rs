//! HTTP v1: the router, the calls, the mapping to problems, metrics and the server.
//!
//! The room turns requests into [`crate::shard::Request`]s for a [`Desk`], and replies into
//! answers. It checks everything that comes from outside and decides nothing about stock. Handlers
//! use no timers or sockets but [`crate::runtime`]'s, so the [`router`] also runs in the simulator
//! through `Router::oneshot`; only `serve` knows tokio's.

mod admin;
mod batch;
mod call;
mod count;
mod fields;
mod front;
mod grants;
mod health;
mod holds;
mod items;
mod json;
mod layout;
mod listen;
mod metrics;
mod nodes;
mod openapi;
mod operation;
mod pages;
mod problem;
mod receipts;
mod region_change;
mod route;
mod serve;
mod spread;
mod steps;
mod stock;
mod trouble;
mod watched;
mod wire;

pub use front::{Front, empty_handler_router, router};
pub(crate) use health::reasons as unready;
pub use listen::listen;
pub use openapi::{document, document_json};
pub use pages::page;
pub use route::Route;
pub use serve::{Connections, serve};

use std::time::Duration;

#[allow(unused_imports)]
use crate::shard::Desk;

/// The bounds of the HTTP room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest body, in bytes. Up to four times as much is read and thrown away, so that the
    /// caller can read the 413.
    pub body_bytes_max: usize,
    /// How long a body may take from the head of its request to its last byte.
    pub body_timeout: Duration,
    /// How long a head may take from its first byte to its last, and a new connection to its first.
    pub header_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub idle_timeout: Duration,
    /// How long a response may wait for a client that does not read it.
    pub write_timeout: Duration,
    /// The most connections at once, over all threads; one more is told 503 and closed.
    pub connections_max: usize,
    /// The largest head of a request, in bytes; a larger one is answered 431. At least 8,192. (More
    /// than 100 header lines are answered 431 as well: hyper's own bound.)
    pub head_bytes_max: usize,
    /// How long a stop waits for requests that are under way.
    pub drain_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes_max: 1 << 20,
            body_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(10),
            connections_max: 10_000,
            head_bytes_max: 32 << 10,
            drain_max: Duration::from_secs(5),
        }
    }
}
