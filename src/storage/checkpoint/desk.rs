//! The desk: where the blocking work on page databases is done, one job at a time.
//!
//! In a real build it is a thread of its own, so that no runtime ever waits for sled; the waiting
//! side has a deadline, and a thread that is stuck in sled is replaced. In a simulated build a job
//! runs where it was asked for, before or after a delay in virtual time, so that a crash can come
//! on either side of it.
//!
//! It never runs two jobs at once (unless the first is stuck for good), and runs them in the order
//! in which they were handed in.

use std::io;

/// Jobs that may wait.
const WAITING_MAX: usize = 256;

#[cfg(not(feature = "sim"))]
mod real {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::sync::{mpsc, oneshot};

    use super::{WAITING_MAX, io};
    use crate::runtime;

    type Job = Box<dyn FnOnce() + Send>;

    /// How long one job may take, with those before it, until its thread counts as stuck.
    const JOB_WAIT: Duration = Duration::from_secs(300);
    /// How many stuck threads are replaced before the desk gives up.
    const STUCK_MAX: u32 = 4;

    /// A thread for blocking work on page databases. Clones share it.
    #[derive(Debug, Clone)]
    pub struct PageDesk {
        seat: Arc<Mutex<Seat>>,
    }

    #[derive(Debug)]
    struct Seat {
        jobs: mpsc::Sender<Job>,
        stuck: u32,
    }

    impl PageDesk {
        /// Starts the thread. It ends when the last clone is gone and its jobs are done.
        ///
        /// # Errors
        ///
        /// When the machine gives no more threads.
        pub fn start() -> io::Result<PageDesk> {
            let seat = Seat { jobs: start_thread()?, stuck: 0 };
            Ok(PageDesk { seat: Arc::new(Mutex::new(seat)) })
        }

        /// Does `job` in its turn and returns what it returned. A caller that stops waiting does
        /// not stop the job.
        ///
        /// # Errors
        ///
        /// [`io::ErrorKind::TimedOut`] when the thread is stuck; other kinds when the job panicked
        /// or the thread could not be replaced.
        pub async fn run<T: Send + 'static>(
            &self,
            job: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<T> {
            let (answer, answered) = oneshot::channel();
            let jobs = self.seat.lock().jobs.clone();
            let job: Job = Box::new(move || {
                // A caller that does not wait any more does not want it.
                let _ = answer.send(job());
            });
            let work = async {
                let gone = |_| io::Error::other("the thread of the page databases is gone");
                jobs.send(job).await.map_err(gone)?;
                answered.await.map_err(|_| io::Error::other("work on a page database panicked"))
            };
            match runtime::timeout(JOB_WAIT, work).await {
                Ok(done) => done,
                Err(runtime::Elapsed) => {
                    self.replace(&jobs)?;
                    Err(io::ErrorKind::TimedOut.into())
                }
            }
        }

        /// Does `job` in its turn; nobody waits for it.
        pub fn post(&self, job: impl FnOnce() + Send + 'static) {
            let jobs = self.seat.lock().jobs.clone();
            if let Err(
                mpsc::error::TrySendError::Full(job) | mpsc::error::TrySendError::Closed(job),
            ) = jobs.try_send(Box::new(job))
            {
                // What is posted is clean-up: it may come out of turn, but not be lost.
                let spawned = std::thread::Builder::new().name("pages-late".into()).spawn(job);
                if let Err(error) = spawned {
                    tracing::warn!(%error, "clean-up of a page database is left to the next start");
                }
            }
        }

        /// Leaves the stuck thread behind (it ends with its job, if ever) and starts another.
        fn replace(&self, stuck: &mpsc::Sender<Job>) -> io::Result<()> {
            let mut seat = self.seat.lock();
            if !seat.jobs.same_channel(stuck) {
                return Ok(());
            }
            if seat.stuck == STUCK_MAX {
                return Err(io::Error::other("the page databases are stuck again and again"));
            }
            tracing::error!("work on a page database is stuck: its thread is replaced");
            seat.stuck += 1;
            seat.jobs = start_thread()?;
            Ok(())
        }
    }

    fn start_thread() -> io::Result<mpsc::Sender<Job>> {
        let (jobs, mut next) = mpsc::channel::<Job>(WAITING_MAX);
        std::thread::Builder::new().name("pages".into()).spawn(move || {
            while let Some(job) = next.blocking_recv() {
                // Whoever waits for a job that panicked learns it from its dropped answer.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        })?;
        Ok(jobs)
    }
}

#[cfg(feature = "sim")]
mod sim {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use tokio::sync::Semaphore;

    use super::{WAITING_MAX, io};
    use crate::runtime;

    /// The longest that one job takes, in microseconds of virtual time.
    const JOB_US_MAX: u64 = 4_000;

    /// The simulator's desk: jobs run where they are asked for, in virtual time. Clones share it.
    #[derive(Debug, Clone)]
    pub struct PageDesk {
        turn: Arc<Semaphore>,
        waiting: Arc<Semaphore>,
        random: Arc<AtomicU64>,
    }

    impl PageDesk {
        /// Returns a desk with a fixed seed.
        ///
        /// # Errors
        ///
        /// Never; the real one may.
        pub fn start() -> io::Result<PageDesk> {
            Ok(PageDesk::seeded(0))
        }

        /// Returns a desk whose delays follow from `seed`.
        pub fn seeded(seed: u64) -> PageDesk {
            PageDesk {
                turn: Arc::new(Semaphore::new(1)),
                waiting: Arc::new(Semaphore::new(WAITING_MAX)),
                random: Arc::new(AtomicU64::new(seed)),
            }
        }

        /// Does `job` in its turn, before or after a delay, and returns what it returned.
        ///
        /// # Errors
        ///
        /// Never; the real one may.
        pub async fn run<T: Send + 'static>(
            &self,
            job: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<T> {
            let closed = |_| io::Error::other("the desk is closed");
            let _waiting = self.waiting.acquire().await.map_err(closed)?;
            let _turn = self.turn.acquire().await.map_err(closed)?;
            let random = self.next_random();
            let delay = Duration::from_micros((random >> 1) % JOB_US_MAX);
            if random & 1 == 0 {
                runtime::sleep(delay).await;
                return Ok(job());
            }
            let done = job();
            runtime::sleep(delay).await;
            Ok(done)
        }

        /// Does `job` at once.
        pub fn post(&self, job: impl FnOnce() + Send + 'static) {
            job();
        }

        /// SplitMix64.
        fn next_random(&self) -> u64 {
            const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
            let mut z = self.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }
    }
}

#[cfg(not(feature = "sim"))]
pub use real::PageDesk;
#[cfg(feature = "sim")]
pub use sim::PageDesk;
