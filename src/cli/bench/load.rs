//! The closed loop: every connection sends its next request when it has its last answer.
//!
//! Promises: each key is used for one operation; a request that was sent and not answered is
//! counted as unknown with its keys and never repeated, so that the verdict can look each up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::request::{Requests, field, results_of, slug_of};
use super::tally::{KeyRange, Tally};
use super::wire::{Head, Wire, WireError};
use super::{Failure, Mode};
use crate::runtime::{Instant, now, sleep, spawn, timeout};

/// How long an answer may take before its outcome counts as unknown.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The pause after a node could not be reached or could not act.
const PAUSE: Duration = Duration::from_millis(5);

/// What a load is.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) requests: Requests,
    pub(super) connections: usize,
    pub(super) threads: usize,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    /// Ends after so many holds, whatever the time.
    pub(super) holds: Option<u64>,
    /// How many ids all connections keep.
    pub(super) ids_max: usize,
}

/// What all connections share.
pub(super) struct Shared {
    plan: Plan,
    nodes: Vec<SocketAddr>,
    target: Mutex<SocketAddr>,
    turn: AtomicUsize,
    next_key: AtomicU64,
    stop: AtomicBool,
    measure_from: Instant,
    until: Instant,
    /// Decisions so far, for the display.
    pub(super) decided: AtomicU64,
    /// Holds placed so far.
    pub(super) placed: AtomicU64,
    /// When the leader was killed.
    pub(super) killed: OnceLock<Instant>,
    /// The first grant of a request that was sent after that.
    pub(super) granted_again: OnceLock<Instant>,
}

impl Shared {
    pub(super) fn new(plan: Plan, nodes: Vec<SocketAddr>, target: SocketAddr) -> Shared {
        let measure_from = now() + plan.warm_up;
        let until = measure_from + plan.duration;
        Shared {
            plan,
            nodes,
            target: Mutex::new(target),
            turn: AtomicUsize::new(0),
            next_key: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            measure_from,
            until,
            decided: AtomicU64::new(0),
            placed: AtomicU64::new(0),
            killed: OnceLock::new(),
            granted_again: OnceLock::new(),
        }
    }

    fn over(&self) -> bool {
        let enough = |holds| self.placed.load(Ordering::Relaxed) >= holds;
        self.stop.load(Ordering::Relaxed) || self.plan.holds.is_some_and(enough)
    }

    /// Ends the load early.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn target(&self) -> SocketAddr {
        *self.target.lock()
    }

    /// Leaves a node that did not answer, unless another connection already has.
    fn leave(&self, failed: SocketAddr) {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut target = self.target.lock();
        if *target == failed && !self.nodes.is_empty() {
            let others: Vec<_> = self.nodes.iter().filter(|node| **node != failed).collect();
            *target = others.get(turn % others.len().max(1)).map_or(failed, |node| **node);
        }
    }

    fn go_to(&self, leader: SocketAddr) {
        *self.target.lock() = leader;
    }
}

/// Runs the load on threads of its own; the answer comes when all connections have ended.
pub(super) fn start(
    shared: &Arc<Shared>,
) -> Result<tokio::sync::oneshot::Receiver<Tally>, Failure> {
    let (done, heard) = tokio::sync::oneshot::channel();
    let threads = shared.plan.threads.max(1);
    let mut running = Vec::new();
    for thread in 0..threads {
        let connections = (shared.plan.connections + threads - 1 - thread) / threads;
        let shared = shared.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::Unavailable(format!("cannot start an event loop: {e}")))?;
        running
            .push(std::thread::spawn(move || runtime.block_on(connect_all(shared, connections))));
    }
    std::thread::spawn(move || {
        let ids_max = super::tally::IDS_MAX;
        let mut sum = Tally::new(ids_max);
        for thread in running {
            match thread.join() {
                Ok(tally) => sum.add(tally),
                Err(_) => sum.fault("a thread of the load generator panicked".into()),
            }
        }
        // Nobody listens any more when the run was given up.
        let _ = done.send(sum);
    });
    Ok(heard)
}

async fn connect_all(shared: Arc<Shared>, connections: usize) -> Tally {
    let ids_each = shared.plan.ids_max / shared.plan.connections.max(1) + 1;
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let shared = shared.clone();
        tasks.push(spawn(async move {
            let mut lane =
                Lane { shared, wire: None, request: Vec::new(), tally: Tally::new(ids_each) };
            lane.run().await;
            lane.tally
        }));
    }
    let mut sum = Tally::new(shared.plan.ids_max);
    for task in tasks {
        match task.await {
            Ok(tally) => sum.add(tally),
            Err(_) => sum.fault("a connection's task panicked".into()),
        }
    }
    sum
}

/// One connection.
struct Lane {
    shared: Arc<Shared>,
    wire: Option<(SocketAddr, Wire)>,
    request: Vec<u8>,
    tally: Tally,
}

/// An answered request.
struct Sent {
    begun: Instant,
    ended: Instant,
    head: Head,
}

impl Lane {
    async fn run(&mut self) {
        while !self.shared.over() && now() < self.shared.until {
            match self.shared.plan.mode {
                Mode::Unary | Mode::SoldOut | Mode::Empty => self.place_one().await,
                Mode::Batch | Mode::Preload | Mode::Restart => self.place_batch().await,
                Mode::LifeCycle => self.live().await,
            }
        }
    }

    /// Sends `self.request`; `None` when there is no answer (then it says whether it was sent).
    async fn send(&mut self) -> Result<Sent, bool> {
        let target = self.shared.target();
        if self.wire.as_ref().is_none_or(|(address, _)| *address != target) {
            match timeout(ANSWER_WITHIN, Wire::connect(target)).await {
                Ok(Ok(wire)) => self.wire = Some((target, wire)),
                Ok(Err(_)) | Err(_) => return Err(self.lost(target, false).await),
            }
        }
        let Some((_, wire)) = self.wire.as_mut() else { return Err(false) };
        let begun = now();
        match timeout(ANSWER_WITHIN, wire.exchange(&self.request)).await {
            Ok(Ok(head)) => Ok(Sent { begun, ended: now(), head }),
            Ok(Err(WireError::NotSent(_))) => Err(self.lost(target, false).await),
            Ok(Err(WireError::Unanswered(_))) | Err(_) => Err(self.lost(target, true).await),
        }
    }

    async fn lost(&mut self, target: SocketAddr, sent: bool) -> bool {
        self.wire = None;
        self.shared.leave(target);
        sleep(PAUSE).await;
        sent
    }

    /// Follows a redirect or a hint; drops a connection that closes. Returns whether the request
    /// must be sent again because it was only redirected.
    fn follow(&mut self, head: &Head) -> bool {
        let Some((address, wire)) = self.wire.as_ref() else { return false };
        let redirected = (300..400).contains(&head.status);
        let leader = if redirected { wire.location(head) } else { wire.leader(head) };
        if let Some(leader) = leader.filter(|leader| leader != address) {
            self.shared.go_to(leader);
        }
        if head.closes() {
            self.wire = None;
        }
        redirected
    }

    fn body<'a>(wire: &'a Option<(SocketAddr, Wire)>, head: &Head) -> &'a str {
        wire.as_ref().map(|(_, wire)| wire.body(head)).unwrap_or_default()
    }

    fn measure(&mut self, sent: &Sent, decisions: u64) -> bool {
        self.shared.decided.fetch_add(decisions, Ordering::Relaxed);
        let within = sent.begun >= self.shared.measure_from && sent.ended <= self.shared.until;
        if within {
            self.tally.measured(sent.ended - sent.begun, decisions);
        }
        within
    }

    fn granted(&mut self, sent: &Sent, units: u64, within: bool) {
        self.tally.placed += units;
        self.shared.placed.fetch_add(units, Ordering::Relaxed);
        if within {
            self.tally.granted += units;
        }
        if let Some(killed) = self.shared.killed.get()
            && sent.begun > *killed
        {
            self.shared.granted_again.get_or_init(|| sent.ended);
        }
    }

    async fn place_one(&mut self) {
        if let Some(id) = self.place().await {
            self.tally.keep(&id);
        }
    }

    /// Places one unit; returns the hold's id when it was granted.
    async fn place(&mut self) -> Option<String> {
        let key = self.shared.next_key.fetch_add(1, Ordering::Relaxed);
        self.shared.plan.requests.place(key, &mut self.request);
        loop {
            let sent = match self.send().await {
                Ok(sent) => sent,
                Err(true) => {
                    self.tally.unknown.push(KeyRange { first: key, count: 1 });
                    return None;
                }
                Err(false) if self.shared.over() || now() >= self.shared.until => return None,
                Err(false) => continue,
            };
            let status = sent.head.status;
            let body = Self::body(&self.wire, &sent.head);
            let id = field(body, "id").map(str::to_owned);
            let slug = if status >= 400 { slug_of(body).to_owned() } else { String::new() };
            if self.follow(&sent.head) {
                continue;
            }
            return self.judge_place(key, &sent, id, &slug).await;
        }
    }

    async fn judge_place(
        &mut self,
        key: u64,
        sent: &Sent,
        id: Option<String>,
        slug: &str,
    ) -> Option<String> {
        match sent.head.status {
            200 if self.shared.plan.mode == Mode::Empty => {
                self.measure(sent, 1);
                None
            }
            200 | 201 => {
                let within = self.measure(sent, 1);
                self.granted(sent, 1, within);
                if id.is_none() {
                    self.tally.fault("a granted hold without an id".into());
                }
                id
            }
            503 | 429 if !slug.is_empty() => {
                self.tally.refused(slug, 1);
                sleep(PAUSE).await;
                None
            }
            status if status >= 500 => {
                self.tally.unknown.push(KeyRange { first: key, count: 1 });
                sleep(PAUSE).await;
                None
            }
            409 => {
                if self.measure(sent, 1) {
                    self.tally.refused(slug, 1);
                }
                None
            }
            status => {
                self.tally.fault(format!("a placement was answered {status} {slug}"));
                sleep(PAUSE).await;
                None
            }
        }
    }

    async fn place_batch(&mut self) {
        let count = self.shared.plan.requests.batch();
        let first = self.shared.next_key.fetch_add(count, Ordering::Relaxed);
        self.shared.plan.requests.place_batch(first, &mut self.request);
        loop {
            let sent = match self.send().await {
                Ok(sent) => sent,
                Err(true) => {
                    self.tally.unknown.push(KeyRange { first, count });
                    return;
                }
                Err(false) if self.shared.over() || now() >= self.shared.until => return,
                Err(false) => continue,
            };
            let (head, body) = (&sent.head, Self::body(&self.wire, &sent.head));
            if head.status != 200 {
                let slug = slug_of(body).to_owned();
                if self.follow(&sent.head) {
                    continue;
                }
                self.judge_whole(first, count, sent.head.status, &slug).await;
                return;
            }
            let keep = self.tally.ids.len() < self.shared.plan.ids_max;
            let results = results_of(body, first, keep);
            self.follow(&sent.head);
            if results.count != count {
                let words = format!("{} results for {count} operations", results.count);
                self.tally.fault(words);
            }
            let within = self.measure(&sent, results.count - results.unknown_count());
            self.granted(&sent, results.granted, within);
            for (reason, times) in &results.refused {
                self.tally.refused(reason, *times);
            }
            self.tally.unknown.extend(results.unknown);
            for id in results.ids {
                self.tally.keep(&id);
            }
            return;
        }
    }

    /// A batch that was answered as a whole.
    async fn judge_whole(&mut self, first: u64, count: u64, status: u16, slug: &str) {
        if matches!(status, 503 | 429) && !slug.is_empty() {
            self.tally.refused(slug, count);
        } else if status >= 500 {
            self.tally.unknown.push(KeyRange { first, count });
        } else {
            self.tally.fault(format!("a batch was answered {status} {slug}"));
        }
        sleep(PAUSE).await;
    }

    /// One hold's life: placed, extended, then sold (two of three) or given back.
    async fn live(&mut self) {
        let Some(id) = self.place().await else { return };
        self.change(&id, "extend").await;
        let sells = self.tally.placed % 3 != 0;
        let done = self.change(&id, if sells { "confirm" } else { "release" }).await;
        match (done, sells) {
            (true, true) => {
                self.tally.confirmed += 1;
                self.tally.keep(&id);
            }
            (true, false) => self.tally.released += 1,
            (false, _) => {}
        }
    }

    /// Changes a hold; returns whether that was acknowledged.
    async fn change(&mut self, id: &str, verb: &str) -> bool {
        let key = self.shared.next_key.fetch_add(1, Ordering::Relaxed);
        self.shared.plan.requests.change(id, verb, key, &mut self.request);
        loop {
            let sent = match self.send().await {
                Ok(sent) => sent,
                Err(true) => {
                    self.tally.unknown_changes += 1;
                    return false;
                }
                Err(false) if self.shared.over() || now() >= self.shared.until => return false,
                Err(false) => continue,
            };
            let slug = slug_of(Self::body(&self.wire, &sent.head)).to_owned();
            if self.follow(&sent.head) {
                continue;
            }
            match sent.head.status {
                200 | 201 => {
                    self.measure(&sent, 1);
                    return true;
                }
                503 | 429 if !slug.is_empty() => {
                    self.tally.refused(&slug, 1);
                    sleep(PAUSE).await;
                }
                status if status >= 500 => {
                    self.tally.unknown_changes += 1;
                    return false;
                }
                409 | 410 | 422 => {
                    if self.measure(&sent, 1) {
                        self.tally.refused(&slug, 1);
                    }
                    return false;
                }
                status => {
                    self.tally.fault(format!("{verb} was answered {status} {slug}"));
                    return false;
                }
            }
            if self.shared.over() || now() >= self.shared.until {
                return false;
            }
        }
    }
}
