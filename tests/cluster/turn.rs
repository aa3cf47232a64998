//! One cluster for every two cores: the tests measure times, and three nodes need their share.

use std::sync::{Condvar, Mutex, PoisonError};

static TAKEN: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// The right to run a cluster, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(());

impl Turn {
    /// Waits for its turn. Blocks the thread: each test has one of its own, and nothing on it runs
    /// before its cluster does.
    pub(crate) fn wait() -> Turn {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let places = (cores / 2).max(1);
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken >= places {
            taken = FREED.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}
