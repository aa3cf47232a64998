//! One sleep for many deadlines.
//!
//! The sleep is for the earliest deadline known when it was set. When that one is met early, the
//! sleep stays as it is, fires, finds nothing due and is set anew: so it is set about once per
//! length of a deadline, not once per call.

use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::runtime::{self, Instant};

/// One sleep for many deadlines.
#[derive(Default)]
pub(super) struct Timer {
    armed: Option<(Instant, BoxFuture<'static, ()>)>,
}

impl Timer {
    /// Whether a look at the deadlines is due, given the earliest of them. When not, the task is
    /// woken when it is.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>, earliest: Option<Instant>) -> Poll<()> {
        let Some(earliest) = earliest else {
            return Poll::Pending;
        };
        if self.armed.as_ref().is_none_or(|(at, _)| *at > earliest) {
            self.armed = Some((earliest, runtime::sleep_until(earliest).boxed()));
        }
        let (_, sleep) = self.armed.as_mut().expect("armed just above");
        match sleep.poll_unpin(cx) {
            Poll::Ready(()) => {
                self.armed = None;
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Returns the earlier of two moments that may not be.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, None) => one,
        (None, other) => other,
    }
}
