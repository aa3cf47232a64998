//! Counts of the calls: by route and status, in flight, and how long they took. Plain atomics in
//! fixed tables: counting costs no lock and no memory, and the labels are bounded by construction.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use axum::http::StatusCode;

use super::route::Route;
use crate::runtime::Instant;

/// The statuses that are told apart; any other counts as 0.
pub(crate) const STATUSES: [u16; 21] = [
    0, 200, 201, 202, 304, 307, 400, 404, 405, 408, 409, 410, 412, 413, 422, 428, 429, 500, 501,
    503, 504,
];

/// Upper bounds of the durations, in microseconds.
pub(crate) const MICROS: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000,
];

const ROUTES: usize = Route::ALL.len();

/// The counts of one node.
pub(crate) struct Counts {
    pub answered: [[AtomicU64; STATUSES.len()]; ROUTES],
    pub took: [[AtomicU64; MICROS.len() + 1]; ROUTES],
    pub took_micros: [AtomicU64; ROUTES],
    pub unrouted: [AtomicU64; STATUSES.len()],
    pub in_flight: AtomicI64,
    pub connections: Connections,
}

impl Default for Counts {
    fn default() -> Counts {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Counts {
            answered: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            took: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            took_micros: std::array::from_fn(|_| AtomicU64::new(0)),
            unrouted: zeros(),
            in_flight: AtomicI64::new(0),
            connections: Connections::default(),
        }
    }
}

fn place_of(status: u16) -> usize {
    STATUSES.iter().position(|known| *known == status).unwrap_or(0)
}

impl Counts {
    /// Begins to count a call; dropping what it returns ends it without an answer.
    pub(crate) fn begin(&self, route: Route, arrived: Instant) -> Counted<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Counted { counts: self, route, arrived }
    }

    /// Counts a call that no route took.
    pub(crate) fn unrouted(&self, status: u16) {
        self.unrouted[place_of(status)].fetch_add(1, Ordering::Relaxed);
    }
}

/// A call that is being answered.
pub(crate) struct Counted<'c> {
    counts: &'c Counts,
    route: Route,
    arrived: Instant,
}

impl Counted<'_> {
    /// Ends it with its status.
    pub(crate) fn end(self, status: StatusCode) {
        let route = self.route as usize;
        self.counts.answered[route][place_of(status.as_u16())].fetch_add(1, Ordering::Relaxed);
        let took = crate::runtime::now() - self.arrived;
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = MICROS.iter().position(|bound| micros <= *bound).unwrap_or(MICROS.len());
        self.counts.took[route][place].fetch_add(1, Ordering::Relaxed);
        self.counts.took_micros[route].fetch_add(micros, Ordering::Relaxed);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections that are open, over all HTTP threads of a node. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    inner: Arc<Open>,
}

#[derive(Debug, Default)]
struct Open {
    now: AtomicUsize,
    refused: AtomicU64,
}

impl Connections {
    /// Returns how many are open.
    pub fn open(&self) -> usize {
        self.inner.now.load(Ordering::Relaxed)
    }

    /// Returns how many were turned away since the start.
    pub fn refused(&self) -> u64 {
        self.inner.refused.load(Ordering::Relaxed)
    }

    /// Takes a place among at most `max`; `None` when all are taken.
    pub(crate) fn enter(&self, max: usize) -> Option<Place> {
        let taken = self.inner.now.fetch_add(1, Ordering::Relaxed);
        let place = Place { connections: self.clone() };
        if taken >= max {
            self.inner.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(place)
    }
}

/// A connection's place; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    connections: Connections,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.inner.now.fetch_sub(1, Ordering::Relaxed);
    }
}
