//! What turns a queue of requests into drains with one sync each.
//!
//! In a real build a thread of its own drains the queue and a second one prepares segments and
//! removes dead ones. In a simulated build one task does both and sleeps the simulated disk's
//! latency. Requests complete in the order in which they were submitted, whatever their shard.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
#[cfg(not(feature = "sim"))]
use parking_lot::Condvar;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::index::ShardIndex;
use super::segment::{Location, SegmentFiles, Spares};
use super::{Log, LogHealth, Record};
use crate::ledger::ShardId;
use crate::runtime::{self, Instant};
use crate::storage::disk::is_full;

/// Told once whether what was asked is durable. Runs on the disk's thread: it must not block.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// How often a full disk is asked for room again.
const ROOM_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long a failed preparation of a segment rests before the next attempt.
const PREPARE_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Request {
    pub(super) shard: ShardId,
    pub(super) record: Record,
    pub(super) done: Done,
    pub(super) bytes: usize,
}

struct Submitted {
    request: Request,
    ticket: u64,
    since: Instant,
}

/// Why a request was not taken.
pub(super) enum NotTaken {
    /// The queue is full; here it is back.
    Full(Request),
    /// The log takes nothing any more.
    Over(io::Error),
}

struct QueueState {
    waiting: VecDeque<Submitted>,
    /// Payload that waits or is being synced.
    bytes: usize,
    /// Requests that wait or are being synced.
    requests: usize,
    next_ticket: u64,
    /// Since when the oldest of those being synced has been here.
    in_flight_since: Option<Instant>,
    closed: bool,
    failed: Option<String>,
}

/// The bounded queue between the shards and the disk.
pub(super) struct Queue {
    state: Mutex<QueueState>,
    #[cfg(not(feature = "sim"))]
    ready: Condvar,
    #[cfg(feature = "sim")]
    ready: Notify,
    /// Wakes those who found it full.
    pub(super) room: Notify,
    bytes_max: usize,
    requests_max: usize,
}

fn over(why: &str) -> io::Error {
    io::Error::other(format!("the log has failed: {why}"))
}

impl Queue {
    fn new(bytes_max: usize, requests_max: usize) -> Queue {
        Queue {
            state: Mutex::new(QueueState {
                waiting: VecDeque::new(),
                bytes: 0,
                requests: 0,
                next_ticket: 1,
                in_flight_since: None,
                closed: false,
                failed: None,
            }),
            #[cfg(not(feature = "sim"))]
            ready: Condvar::new(),
            #[cfg(feature = "sim")]
            ready: Notify::new(),
            room: Notify::new(),
            bytes_max,
            requests_max,
        }
    }

    /// Takes a request and returns its ticket, which grows with every request.
    pub(super) fn submit(&self, request: Request) -> Result<u64, NotTaken> {
        let mut state = self.state.lock();
        if let Some(why) = &state.failed {
            return Err(NotTaken::Over(over(why)));
        }
        if state.closed {
            return Err(NotTaken::Over(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the log was closed",
            )));
        }
        if state.requests >= self.requests_max || state.bytes >= self.bytes_max {
            return Err(NotTaken::Full(request));
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.requests += 1;
        state.bytes += request.bytes;
        state.waiting.push_back(Submitted { request, ticket, since: runtime::now() });
        drop(state);
        self.ready.notify_one();
        Ok(ticket)
    }

    /// Tells whether no more requests are taken.
    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Fails once the log has.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.state.lock().failed {
            Some(why) => Err(over(why)),
            None => Ok(()),
        }
    }

    /// Takes no more requests; the driver ends when those it has are done.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_one();
        self.room.notify_waiters();
    }

    /// Waits for requests and takes all there are; `None` when the queue is closed and empty.
    #[cfg(not(feature = "sim"))]
    fn drain(&self) -> Option<Vec<Submitted>> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.closed {
            self.ready.wait(&mut state);
        }
        state.drain()
    }

    /// Waits for requests and takes all there are; `None` when the queue is closed and empty.
    #[cfg(feature = "sim")]
    async fn drain(&self) -> Option<Vec<Submitted>> {
        loop {
            let ready = self.ready.notified();
            {
                let mut state = self.state.lock();
                if !state.waiting.is_empty() || state.closed {
                    return state.drain();
                }
            }
            ready.await;
        }
    }

    fn completed(&self, requests: usize, bytes: usize) {
        let mut state = self.state.lock();
        state.requests -= requests;
        state.bytes -= bytes;
        state.in_flight_since = None;
        drop(state);
        self.room.notify_waiters();
    }

    /// Takes nothing from now on, and returns what was waiting.
    fn fail(&self, why: &str) -> Vec<Submitted> {
        let mut state = self.state.lock();
        state.failed = Some(why.into());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.room.notify_waiters();
        waiting.into()
    }
}

impl QueueState {
    fn drain(&mut self) -> Option<Vec<Submitted>> {
        let group: Vec<Submitted> = self.waiting.drain(..).collect();
        self.in_flight_since = group.first().map(|oldest| oldest.since);
        (!group.is_empty()).then_some(group)
    }
}

/// One shard's log in memory, shared by its [`super::ShardLog`]s and the driver.
pub(super) type ShardCell = Mutex<ShardIndex>;

/// What the driver and everyone who uses the log share.
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) shards: Mutex<BTreeMap<ShardId, Arc<ShardCell>>>,
    pub(super) files: Arc<SegmentFiles>,
    spares: Arc<Spares>,
    gauges: Mutex<Gauges>,
    #[cfg(not(feature = "sim"))]
    chores: Chores,
}

struct Gauges {
    bytes: u64,
    frames: u64,
    syncs: u64,
    sync_us: Histogram<u64>,
    /// Since when the driver has been waiting for room on the disk.
    roomless_since: Option<Instant>,
    removal_error: Option<String>,
}

impl Shared {
    /// Returns how many frames were written in the log's life.
    pub(super) fn frames(&self) -> u64 {
        self.gauges.lock().frames
    }

    pub(super) fn health(&self) -> LogHealth {
        let (oldest, queued, failed) = {
            let state = self.queue.state.lock();
            let waiting = state.waiting.front().map(|oldest| oldest.since);
            (state.in_flight_since.or(waiting), state.waiting.len(), state.failed.clone())
        };
        let gauges = self.gauges.lock();
        LogHealth {
            oldest_unsynced: oldest.map(|since| runtime::now() - since),
            queued,
            failed,
            waits_for_room: gauges.roomless_since.map(|since| runtime::now() - since),
            housekeeping: self.spares.error().or_else(|| gauges.removal_error.clone()),
            segments: self.files.count(),
            spares: self.spares.count(),
            prepared_in_place: self.spares.in_place(),
            bytes: gauges.bytes,
            syncs: gauges.syncs,
            frames: gauges.frames,
            sync_p50_us: gauges.sync_us.value_at_quantile(0.5),
            sync_p99_us: gauges.sync_us.value_at_quantile(0.99),
            sync_max_us: gauges.sync_us.max(),
        }
    }
}

/// Owns the log while it is open.
struct Driver {
    log: Log,
    shared: Arc<Shared>,
    /// When a segment may be prepared again after a failure.
    prepare_after: Option<Instant>,
}

/// Starts the driver of an opened log. The receiver learns how it ended.
pub(super) fn start(
    log: Log,
    shards: BTreeMap<ShardId, ShardIndex>,
    queue_bytes_max: usize,
    queue_requests_max: usize,
) -> io::Result<(Arc<Shared>, oneshot::Receiver<io::Result<()>>)> {
    /// The longest sync that the histogram tells from longer ones, in µs: a minute.
    const SYNC_US_MAX: u64 = 60_000_000;
    let sync_us = Histogram::new_with_bounds(1, SYNC_US_MAX, 2).map_err(io::Error::other)?;
    let shared = Arc::new(Shared {
        queue: Queue::new(queue_bytes_max, queue_requests_max),
        shards: Mutex::new(
            shards.into_iter().map(|(shard, index)| (shard, Arc::new(Mutex::new(index)))).collect(),
        ),
        files: log.segment_files().clone(),
        spares: log.spares().clone(),
        gauges: Mutex::new(Gauges {
            bytes: log.bytes(),
            frames: log.sequence(),
            syncs: 0,
            sync_us,
            roomless_since: None,
            removal_error: None,
        }),
        #[cfg(not(feature = "sim"))]
        chores: Chores::default(),
    });
    let driver = Driver { log, shared: shared.clone(), prepare_after: None };
    let (ended, end) = oneshot::channel();
    driver.spawn(ended)?;
    Ok((shared, end))
}

impl Driver {
    #[cfg(not(feature = "sim"))]
    fn spawn(self, ended: oneshot::Sender<io::Result<()>>) -> io::Result<()> {
        let shared = self.shared.clone();
        let disk = self.log.disk().clone();
        let dir = self.log.dir().to_path_buf();
        let housekeeper = std::thread::Builder::new()
            .name("log-prepare".into())
            .spawn(move || shared.keep_house(&*disk, &dir))?;
        let shared = self.shared.clone();
        let started = std::thread::Builder::new().name("log-write".into()).spawn(move || {
            let outcome = self.run();
            // Whoever opens the log next must find nobody at work in its directory.
            let kept = housekeeper.join();
            let outcome = outcome.and_then(|()| {
                kept.map_err(|_| io::Error::other("the log's housekeeping panicked"))
            });
            // Nobody may be waiting for the end any more.
            let _ = ended.send(outcome);
        });
        if started.is_err() {
            shared.chores.close();
        }
        started.map(|_| ())
    }

    #[cfg(feature = "sim")]
    fn spawn(self, ended: oneshot::Sender<io::Result<()>>) -> io::Result<()> {
        drop(runtime::spawn(async move {
            let outcome = self.run().await;
            // Nobody may be waiting for the end any more.
            let _ = ended.send(outcome);
        }));
        Ok(())
    }

    #[cfg(not(feature = "sim"))]
    fn run(mut self) -> io::Result<()> {
        self.do_chores(Vec::new());
        let mut outcome = Ok(());
        while outcome.is_ok()
            && let Some(mut group) = self.shared.queue.drain()
        {
            let written = self.write(&mut group);
            let synced = written.and_then(|locations| {
                let begun = runtime::now();
                self.sync(begun).map(|()| locations)
            });
            outcome = self.complete(group, synced);
        }
        let end = outcome.and_then(|()| self.log.sync_mark());
        self.shared.chores.close();
        end
    }

    #[cfg(feature = "sim")]
    async fn run(mut self) -> io::Result<()> {
        /// How often a hung disk is asked again, in virtual time.
        const HUNG_POLL: Duration = Duration::from_millis(1);
        self.do_chores(Vec::new());
        let mut outcome = Ok(());
        while outcome.is_ok()
            && let Some(mut group) = self.shared.queue.drain().await
        {
            let written = self.write(&mut group).await;
            let synced = match written {
                Err(error) => Err(error),
                Ok(locations) => {
                    let begun = runtime::now();
                    runtime::sleep(self.log.disk().sync_delay()).await;
                    while self.log.disk().is_hung() {
                        runtime::sleep(HUNG_POLL).await;
                    }
                    self.sync(begun).map(|()| locations)
                }
            };
            outcome = self.complete(group, synced);
        }
        outcome.and_then(|()| self.log.sync_mark())
    }

    /// Writes a drained group; returns where each request's entries lie.
    #[cfg(not(feature = "sim"))]
    fn write(&mut self, group: &mut [Submitted]) -> io::Result<Vec<Vec<Location>>> {
        let mut locations = Vec::with_capacity(group.len());
        for submitted in group.iter() {
            let request = &submitted.request;
            while !self.finds_room(&request.record)? {
                std::thread::sleep(ROOM_AGAIN_AFTER);
            }
            locations.push(self.log.place(request.shard, &request.record)?);
        }
        self.log.write()?;
        Ok(locations)
    }

    /// Writes a drained group; returns where each request's entries lie.
    #[cfg(feature = "sim")]
    async fn write(&mut self, group: &mut [Submitted]) -> io::Result<Vec<Vec<Location>>> {
        let mut locations = Vec::with_capacity(group.len());
        // A shared borrow of a request cannot be held over an await.
        for submitted in group.iter_mut() {
            while !self.finds_room(&submitted.request.record)? {
                runtime::sleep(ROOM_AGAIN_AFTER).await;
            }
            let request = &submitted.request;
            locations.push(self.log.place(request.shard, &request.record)?);
        }
        self.log.write()?;
        Ok(locations)
    }

    /// Makes the segments ready that a record begins; `false` while the disk has no room for them.
    /// Nothing was written then that would have to be believed, so waiting for room is no second
    /// try: the record goes where it would have gone. A log that is being closed waits no longer.
    fn finds_room(&self, record: &Record) -> io::Result<bool> {
        if self.log.fits(record) {
            return Ok(true);
        }
        let prepared = self.log.prepare_for(record);
        let found = match prepared {
            Ok(()) => true,
            Err(error) if is_full(&error) && !self.shared.queue.is_closed() => false,
            Err(error) => return Err(error),
        };
        let mut gauges = self.shared.gauges.lock();
        match (found, gauges.roomless_since) {
            (false, None) => {
                tracing::error!("the disk is full: the write-ahead log waits for room");
                gauges.roomless_since = Some(runtime::now());
            }
            (true, Some(_)) => {
                tracing::warn!("there is room on the disk again: the write-ahead log goes on");
                gauges.roomless_since = None;
            }
            (false, Some(_)) | (true, None) => {}
        }
        Ok(found)
    }

    fn sync(&mut self, begun: Instant) -> io::Result<()> {
        self.log.sync()?;
        let took = u64::try_from((runtime::now() - begun).as_micros()).unwrap_or(u64::MAX);
        let mut gauges = self.shared.gauges.lock();
        gauges.syncs += 1;
        gauges.sync_us.saturating_record(took.max(1));
        gauges.frames = self.log.sequence();
        Ok(())
    }

    /// Tells everyone in the group, in order, how it went. After a failure everyone behind, too.
    fn complete(
        &mut self,
        group: Vec<Submitted>,
        synced: io::Result<Vec<Vec<Location>>>,
    ) -> io::Result<()> {
        let requests = group.len();
        let bytes = group.iter().map(|submitted| submitted.request.bytes).sum();
        match synced {
            Ok(locations) => {
                for (submitted, locations) in group.iter().zip(&locations) {
                    self.settle(submitted, locations);
                }
                self.shared.queue.completed(requests, bytes);
                for submitted in group {
                    (submitted.request.done)(Ok(()));
                }
                let dead = self.log.take_dead_segments();
                self.shared.gauges.lock().bytes = self.log.bytes();
                self.do_chores(dead);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the write-ahead log has failed and takes nothing more");
                let why = error.to_string();
                let waiting = self.shared.queue.fail(&why);
                self.shared.queue.completed(requests, bytes);
                for submitted in group.into_iter().chain(waiting) {
                    (submitted.request.done)(Err(over(&why)));
                }
                Err(error)
            }
        }
    }

    fn settle(&self, submitted: &Submitted, locations: &[Location]) {
        let Record::Entries(entries) = &submitted.request.record else { return };
        let cell = self.shared.shards.lock().get(&submitted.request.shard).cloned();
        let Some(cell) = cell else { return };
        let mut index = cell.lock();
        for (entry, location) in entries.iter().zip(locations) {
            index.settle(entry.position.index.0, submitted.ticket, *location);
        }
        index.evict();
    }

    /// Sees to it that the next segment is prepared and dead ones are removed.
    fn do_chores(&mut self, dead: Vec<PathBuf>) {
        let failed = self.shared.spares.error().is_some();
        if failed && self.prepare_after.is_none() {
            self.prepare_after = Some(runtime::now() + PREPARE_AGAIN_AFTER);
        }
        let resting = self.prepare_after.is_some_and(|again| runtime::now() < again);
        let prepare = !self.shared.spares.is_ready() && (!failed || !resting || !dead.is_empty());
        if prepare {
            self.prepare_after = None;
        }
        if !prepare && dead.is_empty() {
            return;
        }
        #[cfg(not(feature = "sim"))]
        self.shared.chores.give(dead, prepare);
        #[cfg(feature = "sim")]
        {
            let removed = Log::remove(&**self.log.disk(), self.log.dir(), &dead);
            self.shared.note_removal(removed);
            if prepare {
                self.log.prepare_next();
            }
        }
    }
}

impl Shared {
    fn note_removal(&self, removed: io::Result<()>) {
        if let Err(error) = removed {
            tracing::warn!(%error, "a dead segment of the log could not be removed");
            self.gauges.lock().removal_error = Some(error.to_string());
        }
    }

    /// The second thread: removes dead segments, which may make room, then prepares the next one.
    #[cfg(not(feature = "sim"))]
    fn keep_house(&self, disk: &dyn crate::storage::Disk, dir: &std::path::Path) {
        while let Some((dead, prepare)) = self.chores.take() {
            if !dead.is_empty() {
                self.note_removal(Log::remove(disk, dir, &dead));
            }
            if prepare {
                self.spares.prepare_next();
            }
        }
    }
}

/// What the second thread has to do.
#[cfg(not(feature = "sim"))]
#[derive(Default)]
struct Chores {
    state: Mutex<ChoresState>,
    ready: Condvar,
}

#[cfg(not(feature = "sim"))]
#[derive(Default)]
struct ChoresState {
    dead: Vec<PathBuf>,
    prepare: bool,
    closed: bool,
}

#[cfg(not(feature = "sim"))]
impl Chores {
    fn give(&self, dead: Vec<PathBuf>, prepare: bool) {
        let mut state = self.state.lock();
        state.dead.extend(dead);
        state.prepare |= prepare;
        drop(state);
        self.ready.notify_one();
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_one();
    }

    fn take(&self) -> Option<(Vec<PathBuf>, bool)> {
        let mut state = self.state.lock();
        loop {
            if state.prepare || !state.dead.is_empty() {
                return Some((std::mem::take(&mut state.dead), std::mem::take(&mut state.prepare)));
            }
            if state.closed {
                return None;
            }
            self.ready.wait(&mut state);
        }
    }
}
