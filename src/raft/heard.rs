//! When a follower last heard from its leader. openraft keeps naming the last leader for as long as
//! nobody else was elected; without this a follower that is cut off would send its callers after a
//! leader that is silent, and call itself ready.

use std::time::Duration;

use parking_lot::Mutex;

use crate::runtime::{self, Instant};

/// The moment at which the last append or heartbeat came that was taken.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Option<Instant>>);

impl Heard {
    /// Notes an append that came at this moment.
    pub(crate) fn note(&self, came_at: Instant) {
        let mut last = self.0.lock();
        if last.is_none_or(|known| known < came_at) {
            *last = Some(came_at);
        }
    }

    /// Tells whether something came within this time.
    pub(crate) fn within(&self, time: Duration) -> bool {
        let last = *self.0.lock();
        last.is_some_and(|at| {
            let now = runtime::now();
            now <= at || now - at < time
        })
    }
}
