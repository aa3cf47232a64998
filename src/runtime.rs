//! The one alias that picks the async runtime: tokio, or the simulator with the feature `sim`.
//!
//! Code of a node spawns, sleeps and reads the monotonic clock only through this file. In a
//! simulated build that makes the whole node deterministic in virtual time; in a real build each
//! call is the tokio call of the same name. Channels are `tokio::sync` ones in both: they need no
//! tokio runtime and wake in order of arrival.

use std::future::Future;
use std::time::Duration;

use openraft_rt::{AsyncRuntime, Instant as _};

#[cfg(feature = "sim")]
pub mod life;

/// The runtime that every task of a node runs on.
#[cfg(not(feature = "sim"))]
pub type Rt = openraft_rt_tokio::TokioRuntime;
/// The runtime that every task of a node runs on.
#[cfg(feature = "sim")]
pub type Rt = life::SimRt;

/// A moment of the monotonic clock (virtual in the simulator).
pub type Instant = <Rt as AsyncRuntime>::Instant;
/// A handle to a spawned task; dropping it detaches the task.
pub type JoinHandle<T> = <Rt as AsyncRuntime>::JoinHandle<T>;

/// Returned by [`timeout_at`] when the deadline came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the deadline has passed")]
pub struct Elapsed;

/// Returns the present moment of the monotonic clock.
pub fn now() -> Instant {
    Instant::now()
}

/// Spawns a task on this thread's runtime.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    <Rt as AsyncRuntime>::spawn(future)
}

/// Sleeps for `duration`.
pub async fn sleep(duration: Duration) {
    <Rt as AsyncRuntime>::sleep(duration).await;
}

/// Sleeps until `deadline`.
pub async fn sleep_until(deadline: Instant) {
    <Rt as AsyncRuntime>::sleep_until(deadline).await;
}

/// Runs `future` until it is done or `deadline` has come.
///
/// # Errors
///
/// [`Elapsed`] when the deadline came first; the future is dropped then.
pub async fn timeout_at<F>(deadline: Instant, future: F) -> Result<F::Output, Elapsed>
where
    F: Future + Send,
{
    <Rt as AsyncRuntime>::timeout_at(deadline, future).await.map_err(|_| Elapsed)
}

/// Runs `future` for at most `limit`.
///
/// # Errors
///
/// [`Elapsed`] when the limit came first; the future is dropped then.
pub async fn timeout<F>(limit: Duration, future: F) -> Result<F::Output, Elapsed>
where
    F: Future + Send,
{
    timeout_at(now() + limit, future).await
}

/// Lets every other runnable task of this thread take its turn once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return std::task::Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Milliseconds of virtual time since the simulation began.
#[cfg(feature = "sim")]
pub fn since_start_ms() -> u64 {
    u64::try_from(now().elapsed_since_start().as_millis()).unwrap_or(u64::MAX)
}

/// Tells whether this thread is inside the simulation; outside of it there is no time.
#[cfg(feature = "sim")]
pub fn is_running() -> bool {
    openraft_rt_sim::SimInstant::try_now().is_some()
}

#[cfg(feature = "sim")]
thread_local! {
    /// What a command costs the thread of its shard, in ns of virtual time.
    static COMMAND_COST_NS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// From now on, on this thread, every command keeps its shard's single writer busy for so long. A
/// model for measurements: without it the simulator's threads do everything in no time.
#[cfg(feature = "sim")]
pub fn cost_of_a_command(cost: Duration) {
    COMMAND_COST_NS.set(u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX));
}

/// Takes the time that so many commands take the thread of their shard: in the simulator what
/// `cost_of_a_command` said, nothing otherwise, since there the work itself takes it.
pub async fn work(commands: usize) {
    #[cfg(feature = "sim")]
    {
        let cost = COMMAND_COST_NS.get().saturating_mul(commands as u64);
        if cost > 0 {
            sleep(Duration::from_nanos(cost)).await;
        }
    }
    #[cfg(not(feature = "sim"))]
    let _ = commands;
}
