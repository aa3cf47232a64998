//! The life of a simulated process: its tasks, and the end of all of them at once.
//!
//! The simulator's executor has one set of tasks. A node that crashes must take its own with it, in
//! the middle of whatever they do, and nobody else's. So each task spawned by a task of a life
//! belongs to that life, openraft's included, and [`Life::end`] drops them all: none of them is
//! polled again, as none runs on after `kill -9`.
//!
//! A life can also be stopped and let go on, as by SIGSTOP and SIGCONT: none of its tasks runs in
//! between, while time and the network go on. And since the executor polls in the order of waking,
//! [`unrest`] sends tasks of lives to the end of that order now and then, by a seed.
//!
//! It promises that a task of a life that is over or stopped never runs. It never ends another
//! life's task.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_sim::SimRuntime;
use parking_lot::Mutex;

thread_local! {
    /// Whose task is running.
    static PRESENT: RefCell<Option<Life>> = const { RefCell::new(None) };
    /// What tasks of this thread panicked with.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// How often a task that could run lets all others go first.
    static UNREST: Cell<Unrest> = const { Cell::new(Unrest { random: 0, per_thousand: 0 }) };
}

/// A seeded disorder of the executor's turns.
#[derive(Clone, Copy)]
struct Unrest {
    random: u64,
    per_thousand: u64,
}

impl Unrest {
    /// Draws whether the next turn is put off.
    fn puts_off(&mut self) -> bool {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % 1_000 < self.per_thousand
    }
}

/// From now on, on this thread, so many of a thousand turns of tasks of lives are put off until
/// every other task that can run has had its turn; `seed` decides which.
pub fn unrest(seed: u64, per_thousand: u32) {
    let per_thousand = u64::from(per_thousand.min(900));
    UNREST.set(Unrest { random: seed, per_thousand });
}

/// Draws whether the turn of the task that runs is put off.
fn is_put_off() -> bool {
    let mut unrest = UNREST.get();
    if unrest.per_thousand == 0 {
        return false;
    }
    let puts_off = unrest.puts_off();
    UNREST.set(unrest);
    puts_off
}

/// One life of a simulated process. Clones are the same life.
#[derive(Clone, Default)]
pub struct Life {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Whose life it is: the node's id, or 0.
    of: u64,
    over: AtomicBool,
    stopped: AtomicBool,
    stops: AtomicU64,
    /// Tasks that were to run while it was stopped.
    held_up: Mutex<Vec<Waker>>,
    next: AtomicU64,
    tasks: Mutex<BTreeMap<u64, Arc<dyn Mortal>>>,
}

/// A task that can be dropped from outside.
trait Mortal: Send + Sync {
    fn perish(&self);
}

struct Body<F> {
    future: Mutex<Option<Pin<Box<F>>>>,
}

impl<F: Send> Mortal for Body<F> {
    fn perish(&self) {
        let future = self.future.lock().take();
        drop(future);
    }
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Life").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

impl Life {
    /// Begins a life.
    pub fn begin() -> Life {
        Life::default()
    }

    /// Begins a life of this node.
    pub fn of(node: u64) -> Life {
        Life { shared: Arc::new(Shared { of: node, ..Shared::default() }) }
    }

    /// Returns the node whose life it is, or 0.
    pub fn node(&self) -> u64 {
        self.shared.of
    }

    /// Stops it: none of its tasks runs until [`Life::go_on`].
    pub fn stop(&self) {
        self.shared.stops.fetch_add(1, Ordering::Relaxed);
        self.shared.stopped.store(true, Ordering::Release);
    }

    /// Tells whether it is stopped now.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }

    /// Counts how often it was stopped.
    pub fn stops(&self) -> u64 {
        self.shared.stops.load(Ordering::Relaxed)
    }

    /// Lets a stopped life go on.
    pub fn go_on(&self) {
        self.shared.stopped.store(false, Ordering::Release);
        let held_up = std::mem::take(&mut *self.shared.held_up.lock());
        held_up.into_iter().for_each(Waker::wake);
    }

    /// Tells whether it was ended.
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire)
    }

    /// Returns the life whose task is running, if any.
    pub fn present() -> Option<Life> {
        PRESENT.with_borrow(Clone::clone)
    }

    /// Spawns a task that belongs to this life, and so does what it spawns.
    pub fn spawn<F>(&self, future: F) -> <SimRuntime as AsyncRuntime>::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let body = Arc::new(Body { future: Mutex::new(Some(Box::pin(future))) });
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        if self.is_over() {
            body.perish();
        } else {
            self.shared.tasks.lock().insert(number, Arc::clone(&body) as Arc<dyn Mortal>);
        }
        SimRuntime::spawn(Living { life: self.clone(), number, body })
    }

    /// Does something as this life would: what it spawns or drops belongs to it.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _present = Present::enter(Some(self.clone()));
        work()
    }

    /// Ends it: every task of it is dropped now and never polled again. Must not be called from a
    /// task of it.
    pub fn end(&self) {
        self.shared.over.store(true, Ordering::Release);
        let tasks = std::mem::take(&mut *self.shared.tasks.lock());
        self.within(|| {
            for task in tasks.values() {
                task.perish();
            }
        });
    }
}

/// Spawns a task that belongs to no life: the world's own.
pub fn spawn_in_the_world<F>(future: F) -> <SimRuntime as AsyncRuntime>::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let _nobody = Present::enter(None);
    SimRuntime::spawn(future)
}

/// Takes what tasks of lives on this thread have panicked with: a panic in a node is a fault, even
/// where its runtime would have swallowed it.
pub fn take_panics() -> Vec<String> {
    PANICS.take()
}

/// Restores who was present before.
struct Present(Option<Life>);

impl Present {
    fn enter(life: Option<Life>) -> Present {
        Present(PRESENT.with_borrow_mut(|present| std::mem::replace(present, life)))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let before = self.0.take();
        let own = PRESENT.with_borrow_mut(|present| std::mem::replace(present, before));
        drop(own);
    }
}

/// A task of a life, as the executor polls it.
struct Living<F: Future> {
    life: Life,
    number: u64,
    body: Arc<Body<F>>,
}

impl<F: Future + Send> Future for Living<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.life.shared.stopped.load(Ordering::Acquire) {
            self.life.shared.held_up.lock().push(cx.waker().clone());
            return Poll::Pending;
        }
        if is_put_off() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let taken = self.body.future.lock().take();
        // Its life is over: it neither goes on nor ends.
        let Some(mut future) = taken else { return Poll::Pending };
        let _present = Present::enter(Some(self.life.clone()));
        let work = std::panic::AssertUnwindSafe(|| future.as_mut().poll(cx));
        match std::panic::catch_unwind(work) {
            Ok(Poll::Ready(output)) => {
                self.life.shared.tasks.lock().remove(&self.number);
                Poll::Ready(output)
            }
            Ok(Poll::Pending) => {
                *self.body.future.lock() = Some(future);
                Poll::Pending
            }
            Err(panic) => {
                self.life.shared.tasks.lock().remove(&self.number);
                let words = panic.downcast_ref::<String>().cloned();
                let words = words.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
                PANICS.with_borrow_mut(|all| all.push(words.unwrap_or_default()));
                std::panic::resume_unwind(panic)
            }
        }
    }
}

/// The simulator's runtime, with lives.
#[derive(Debug)]
pub struct SimRt(SimRuntime);

impl SimRt {
    /// A runtime whose random streams derive from `seed`.
    pub fn with_seed(seed: u64) -> SimRt {
        SimRt(SimRuntime::with_seed(seed))
    }
}

impl AsyncRuntime for SimRt {
    type JoinError = <SimRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <SimRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <SimRuntime as AsyncRuntime>::Sleep;
    type Instant = <SimRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <SimRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <SimRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <SimRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <SimRuntime as AsyncRuntime>::Mpsc;
    type Watch = <SimRuntime as AsyncRuntime>::Watch;
    type Oneshot = <SimRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <SimRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match Life::present() {
            Some(life) => life.spawn(future),
            None => SimRuntime::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        SimRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        SimRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        SimRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        SimRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        SimRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        SimRuntime::thread_rng()
    }

    fn new(threads: usize) -> Self {
        SimRt(SimRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, std::io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        SimRuntime::spawn_blocking(f)
    }
}
