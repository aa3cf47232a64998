//! How far a shard's log goes here, for those who send it on.
//!
//! openraft tells a follower each commit as soon as it happens, in a message without entries when
//! none is at hand: for every entry two messages to every follower, and two answers. Whoever sends
//! asks here first whether an entry is at hand: while earlier messages are unanswered, a commit can
//! wait for the next entry or for their answers, whichever comes first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// The last index of a shard's log, and who waits for a greater one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Appended(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    last: AtomicU64,
    /// By the node that they send to.
    waiting: Mutex<BTreeMap<u64, Waker>>,
}

impl Appended {
    /// Takes note of an append and wakes those who wait for it.
    pub(super) fn note(&self, last: u64) {
        self.0.last.store(last, Ordering::Release);
        let waiting = std::mem::take(&mut *self.0.waiting.lock());
        waiting.into_values().for_each(Waker::wake);
    }

    /// Returns how many entries the log has beyond `sent`.
    pub(super) fn beyond(&self, sent: u64) -> u64 {
        self.0.last.load(Ordering::Acquire).saturating_sub(sent)
    }

    /// Tells whether the log goes beyond `sent`; if not, `waker` is woken when it does.
    pub(super) fn is_beyond(&self, sent: u64, target: u64, waker: &Waker) -> bool {
        let is_beyond = || self.0.last.load(Ordering::Acquire) > sent;
        if is_beyond() {
            return true;
        }
        self.0.waiting.lock().insert(target, waker.clone());
        // It may have been appended meanwhile, by another thread.
        is_beyond()
    }
}
