//! A word to a task that it should end. One task waits for it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// A word to one task that it should end.
#[derive(Debug, Default)]
pub(super) struct Stop {
    said: AtomicBool,
    waker: AtomicWaker,
}

impl Stop {
    /// Says it. Saying it again changes nothing.
    pub(super) fn say(&self) {
        self.said.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether it was said.
    pub(super) fn was_said(&self) -> bool {
        self.said.load(Ordering::Acquire)
    }

    /// Runs `future` until it is done (`Some`) or the word is said (`None`).
    pub(super) async fn or<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.was_said() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}
