//! The closed loop: every connection sends its next request when it has its last answer.
//!
//! Promises: each key is used for one operation; a request that was sent and not answered is
//! counted as unknown with its keys and never repeated, so that the verdict can look each up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::moments::{Tail, Timeline};
use super::request::{Requests, field, results_of, slug_of};
use super::routes::Routes;
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
    /// Connections go round all nodes instead of to one leader.
    pub(super) round: bool,
    /// Single placements go straight to the leaders of their buyers' buckets.
    pub(super) routes: Option<Arc<Routes>>,
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
    /// How the last units go, in `tail`.
    pub(super) tail: Tail,
    /// Grants in each tenth of a second.
    pub(super) timeline: Timeline,
}

impl Shared {
    pub(super) fn new(plan: Plan, nodes: Vec<SocketAddr>, target: SocketAddr) -> Shared {
        let measure_from = now() + plan.warm_up;
        let until = measure_from + plan.duration;
        let timeline = Timeline::of(plan.warm_up + plan.duration);
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
            tail: Tail::default(),
            timeline,
        }
    }

    /// When measuring begins.
    pub(super) fn measure_from(&self) -> Instant {
        self.measure_from
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
    for number in 0..connections {
        let shared = shared.clone();
        tasks.push(spawn(async move {
            let round = shared.plan.round.then_some(number);
            let tally = Tally::new(ids_each);
            let (wire, parked, request, shard) = (None, Vec::new(), Vec::new(), None);
            let mut lane = Lane { shared, wire, parked, request, tally, round, shard };
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
    /// Open connections to other nodes.
    parked: Vec<(SocketAddr, Wire)>,
    request: Vec<u8>,
    tally: Tally,
    /// Its turn among the nodes, when connections go round them.
    round: Option<usize>,
    /// The shard that the request belongs to, when that is known.
    shard: Option<usize>,
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
                Mode::Unary | Mode::SoldOut | Mode::Tail | Mode::Empty | Mode::Rolling => {
                    self.place_one().await;
                }
                Mode::Batch | Mode::Preload | Mode::Restart => self.place_batch().await,
                Mode::LifeCycle => self.live().await,
            }
        }
    }

    /// Sends `self.request`; `None` when there is no answer (then it says whether it was sent).
    async fn send(&mut self) -> Result<Sent, bool> {
        let target = self.target();
        self.take_wire(target);
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

    /// Goes on with the connection to this node that was opened before, if any.
    fn take_wire(&mut self, target: SocketAddr) {
        if self.wire.as_ref().is_some_and(|(address, _)| *address == target) {
            return;
        }
        let known = self.parked.iter().position(|(address, _)| *address == target);
        let known = known.map(|at| self.parked.swap_remove(at));
        if let Some(left) = std::mem::replace(&mut self.wire, known)
            && self.shared.plan.routes.is_some()
        {
            self.parked.push(left);
        }
    }

    /// Where the request goes straight to.
    fn route(&self) -> Option<(&Routes, usize)> {
        self.shared.plan.routes.as_deref().zip(self.shard)
    }

    fn target(&self) -> SocketAddr {
        if let Some(leader) = self.route().and_then(|(routes, shard)| routes.leader(shard)) {
            return leader;
        }
        let nodes = &self.shared.nodes;
        let own = self.round.and_then(|turn| nodes.get(turn % nodes.len().max(1)));
        own.copied().unwrap_or_else(|| self.shared.target())
    }

    async fn lost(&mut self, target: SocketAddr, sent: bool) -> bool {
        self.wire = None;
        if let Some((routes, shard)) = self.route() {
            routes.leave(shard, target);
        }
        match &mut self.round {
            Some(turn) => *turn += 1,
            None => self.shared.leave(target),
        }
        sleep(PAUSE).await;
        sent
    }

    /// Follows a redirect or a hint; drops a connection that closes. Returns whether the request
    /// must be sent again because it was only redirected.
    fn follow(&mut self, head: &Head) -> bool {
        let Some((address, wire)) = self.wire.as_ref() else { return false };
        let redirected = (300..400).contains(&head.status);
        let leader = if redirected { wire.location(head) } else { wire.leader(head) };
        let stays = self.round.is_some();
        if let (Some((routes, shard)), Some(leader)) = (self.route(), leader) {
            routes.learn(shard, leader);
        }
        if let Some(leader) = leader.filter(|leader| leader != address && !stays) {
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
        self.shared.timeline.granted(units, sent.ended);
        let placed = self.shared.placed.fetch_add(units, Ordering::Relaxed) + units;
        if self.shared.plan.mode == Mode::Tail {
            self.shared.tail.granted(placed, sent.ended);
        }
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
        let plan = &self.shared.plan;
        plan.requests.place(key, &mut self.request);
        self.shard = plan
            .routes
            .as_ref()
            .map(|routes| routes.shard_of(plan.requests.region_at(key), &plan.requests.buyer(key)));
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
                sleep(PAUSE).await;
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
        self.shard = None;
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
                    sleep(PAUSE).await;
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
        let sells = !self.tally.placed.is_multiple_of(3);
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
                sleep(PAUSE).await;
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::super::run::TTL_MS;
    use super::*;

    /// Answers each request by `answer(turn)`; `None` closes the connection without an answer.
    /// Returns the address and the count of requests.
    fn server(
        answer: impl Fn(u64) -> Option<String> + Send + Sync + 'static,
    ) -> (SocketAddr, Arc<AtomicU64>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (count, answer) = (Arc::new(AtomicU64::new(0)), Arc::new(answer));
        let counted = count.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (count, answer) = (counted.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &count, &*answer));
            }
        });
        (address, count)
    }

    fn serve(mut stream: TcpStream, count: &AtomicU64, answer: &dyn Fn(u64) -> Option<String>) {
        let mut bytes = Vec::new();
        let mut part = [0; 64 << 10];
        loop {
            match stream.read(&mut part) {
                Ok(read) if read > 0 => bytes.extend_from_slice(&part[..read]),
                Ok(_) | Err(_) => return,
            }
            // The bench sends one request at a time, and its bodies end so.
            let whole = bytes.ends_with(b"}") && bytes.windows(4).any(|four| four == b"\r\n\r\n");
            if !whole {
                continue;
            }
            bytes.clear();
            let Some(text) = answer(count.fetch_add(1, Ordering::SeqCst)) else { return };
            if stream.write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn http(status: u16, headers: &str, body: &str) -> String {
        format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
    }

    fn granted(turn: u64) -> String {
        http(201, "", &format!(r#"{{"id":"hld_{turn}","item":"x","state":"held"}}"#))
    }

    fn run(mode: Mode, connections: usize, holds: u64, target: SocketAddr) -> Tally {
        let plan = Plan {
            mode,
            requests: Requests::new("x", None, 100, 10, TTL_MS),
            connections,
            threads: 1,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(60),
            holds: Some(holds),
            ids_max: 1_000,
            round: false,
            routes: None,
        };
        let shared = Arc::new(Shared::new(plan, vec![target], target));
        let ended = start(&shared).expect("it starts");
        ended.blocking_recv().expect("it ends")
    }

    #[test]
    fn every_request_is_answered_for_or_unknown_and_none_is_sent_twice() {
        let (address, count) = server(|turn| (turn % 10 != 3).then(|| granted(turn)));
        let tally = run(Mode::Unary, 4, 200, address);
        assert!(tally.faults.is_empty(), "{:?}", tally.faults);
        assert!(tally.placed >= 200);
        assert!(tally.unknown_keys() >= 20, "{}", tally.unknown_keys());
        assert_eq!(tally.placed + tally.unknown_keys(), count.load(Ordering::SeqCst));
        assert_eq!(tally.ids.len() as u64, tally.placed);
        let mut keys: Vec<_> = tally.unknown.iter().map(|range| range.first).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len() as u64, tally.unknown_keys(), "each unknown key is another");
    }

    #[test]
    fn a_redirect_moves_all_connections_to_the_leader() {
        let (leader, led) = server(|turn| Some(granted(turn)));
        let (follower, asked) = server(move |_| {
            Some(http(307, &format!("location: http://{leader}/v1/items/x/holds\r\n"), ""))
        });
        let tally = run(Mode::Unary, 1, 50, follower);
        assert!(tally.faults.is_empty(), "{:?}", tally.faults);
        assert_eq!((tally.placed, tally.unknown_keys()), (50, 0));
        assert_eq!((asked.load(Ordering::SeqCst), led.load(Ordering::SeqCst)), (1, 50));
    }

    #[test]
    fn a_batch_that_is_not_answered_leaves_all_its_keys_unknown() {
        let (address, _) = server(|turn| {
            let result = |n: u64| format!(r#"{{"status":201,"hold":{{"id":"hld_{turn}_{n}"}}}}"#);
            let results = (0..10).map(result).collect::<Vec<_>>().join(",");
            (turn != 1).then(|| http(200, "", &format!(r#"{{"results":[{results}]}}"#)))
        });
        let tally = run(Mode::Batch, 1, 40, address);
        assert!(tally.faults.is_empty(), "{:?}", tally.faults);
        assert_eq!((tally.placed, tally.unknown_keys()), (40, 10));
        assert_eq!(tally.unknown, [KeyRange { first: 10, count: 10 }]);
        assert_eq!(tally.decisions, 40);
    }

    #[test]
    fn a_batch_with_too_few_results_is_a_fault() {
        let short = r#"{"results":[{"status":201,"hold":{"id":"hld_1"}}]}"#;
        let (address, _) = server(move |_| Some(http(200, "", short)));
        let tally = run(Mode::Batch, 1, 1, address);
        assert_eq!(tally.faults, ["1 results for 10 operations"]);
    }
}
