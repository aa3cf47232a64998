//! Opening a shard on its runtime, and what the steward may ask of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::ask::{Addressed, Delivery, Outgoing};
use super::desk::{Consistency, MemberSpec, Outcome, Question, Reply};
use super::fence::{Bar, Fence};
use super::flight::{FlightBoard, Flights};
use super::gate::Gate;
use super::handover::Abstaining;
use super::home::{Door, reply};
use super::meter::{LaneLimits, Meter};
use super::router::{Place, Router};
use super::status::{DigestStatus, ShardStatus, StockTraffic};
use super::supply::StockPolicy;
use super::thirst::{Thirst, ThirstLimits};
use super::writer::{AgreedClock, Writer, WriterLimits};
use crate::ledger::{Command, NodeId, PauseReason, ShardId, UnixMs};
use crate::raft::{Group, Replica};
use crate::runtime::{self, Instant};

/// The bounds of a shard's gate and batcher.
#[derive(Debug, Clone, Copy)]
pub struct ShardLimits {
    /// How old the last quorum acknowledgement may be before the shard pauses.
    pub pause_after: Duration,
    /// The most bytes of one entry.
    pub entry_bytes_max: usize,
    /// Entries in flight.
    pub entries_in_flight_max: usize,
    /// Questions that may wait, in both lanes together.
    pub queue_max: usize,
    /// Of those, places that placements can never take.
    pub finish_lane: usize,
    /// The longest that a question may wait for its entry.
    pub queue_age_max: Duration,
    /// Questions that may be parked.
    pub park_max: usize,
    /// How long a follower goes by a leader that it does not hear.
    pub lease: Duration,
    /// Time between heartbeats, for judging who could lead.
    pub heartbeat: Duration,
}

/// One shard, opened: the router's way in, and the steward's.
#[derive(Debug, Clone)]
pub struct ShardService {
    pub(crate) place: Place,
    limits: ShardLimits,
    preference: Arc<Preference>,
}

/// Who is meant to lead a shard, and how often this node has handed it over to that one.
#[derive(Debug, Default)]
struct Preference {
    /// The node's id; 0 while nobody has said.
    node: AtomicU64,
    homecomings: AtomicU64,
}

/// Starts a shard's gate and batcher on this thread's runtime.
///
/// `abstaining` is shared with whoever hears from the other members.
pub fn open_shard(
    group: Group,
    limits: ShardLimits,
    clock: AgreedClock,
    abstaining: Abstaining,
) -> ShardService {
    let (service, writer, deliveries) = assemble(group, limits, clock, abstaining);
    runtime::spawn(writer.run(deliveries));
    service
}

/// Puts a shard together; nothing runs yet.
pub(super) fn assemble(
    group: Group,
    limits: ShardLimits,
    clock: AgreedClock,
    abstaining: Abstaining,
) -> (ShardService, Writer, mpsc::Receiver<Delivery>) {
    let shard = group.shard();
    let replica = Arc::clone(group.replica());
    let fence = Arc::new(Fence::new(group.clone(), limits.pause_after, limits.lease));
    let meter = Arc::new(Meter::default());
    let board = Arc::new(FlightBoard::default());
    // Each delivery carries at least one question that has a place in a lane: as many as both lanes
    // hold never fill it, so that places cannot keep the others out here either.
    let (deliveries, receiver) = mpsc::channel(limits.queue_max.saturating_mul(2).max(1));
    let gate = Gate {
        shard,
        replica: Arc::clone(&replica),
        fence: Arc::clone(&fence),
        meter: Arc::clone(&meter),
        board: Arc::clone(&board),
        flights: Flights::default(),
        places: Default::default(),
        finishes: Default::default(),
        parked: Default::default(),
        parked_places: 0,
        park_max: limits.park_max,
        has_released: false,
        out: Outgoing::default(),
        taken: Default::default(),
        left: Default::default(),
    };
    let writer_limits = WriterLimits {
        entry_bytes_max: limits.entry_bytes_max,
        entries_in_flight_max: limits.entries_in_flight_max,
        queue_age_max: limits.queue_age_max,
    };
    let writer = Writer::new(group.clone(), gate, writer_limits, clock);
    let lanes = LaneLimits { all_max: limits.queue_max, kept_for_finishes: limits.finish_lane };
    let door = Door { shard, deliveries, meter: Arc::clone(&meter), lanes };
    let applied = Arc::clone(&meter);
    replica.time_entries(Box::new(move |took| applied.applied(took)));
    let digests = Arc::default();
    let place = Place { group, replica, fence, meter, board, door, abstaining, digests };
    (ShardService { place, limits, preference: Arc::default() }, writer, receiver)
}

impl ShardService {
    /// Returns which shard it is.
    pub fn shard(&self) -> ShardId {
        self.place.door.shard
    }

    /// Returns its Raft group.
    pub fn group(&self) -> &Group {
        &self.place.group
    }

    /// Returns its state in memory.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.place.replica
    }

    /// Tells whether this node leads it with a fresh quorum and an open gate.
    pub fn leads(&self) -> bool {
        self.place.fence.may_propose().is_ok()
    }

    /// Bars this node from answering for the shard, or lifts the bar of this cause.
    pub fn bar(&self, cause: Bar, reason: Option<PauseReason>) {
        self.place.fence.bar(cause, reason);
    }

    /// Lets this node stand for the shard's election, or not, as far as this cause is concerned.
    pub fn stand(&self, cause: Bar, stands: bool) {
        self.place.fence.stand(cause, stands);
    }

    /// Sheds new placements from now on, or takes them again.
    pub fn shed_places(&self, sheds: bool) {
        self.place.meter.shed_places(sheds);
    }

    /// Tells whether this node is the leader, with or without a fresh quorum or an open gate.
    pub fn is_leader(&self) -> bool {
        self.place.fence.leadership().is_some()
    }

    /// Tells whether nobody is known to lead it: this node does not, and hears no leader.
    pub fn is_leaderless(&self) -> bool {
        self.place.fence.leader_is_silent()
    }

    /// Changes what is told of the comparison of digests.
    pub fn note_digests(&self, change: impl FnOnce(&mut DigestStatus)) {
        change(&mut self.place.digests.lock());
    }

    /// Hands leadership to `to`, or to whoever can win.
    ///
    /// # Errors
    ///
    /// Words, when nobody can win or it did not happen.
    pub async fn hand_over(&self, own: NodeId, to: Option<NodeId>) -> Result<(), String> {
        self.place.hand_over(own, to, self.limits.heartbeat).await
    }

    /// Hands leadership to `rather` if that one can win, and to whoever else can if it cannot: so
    /// that it is not moved twice.
    ///
    /// # Errors
    ///
    /// Words, when nobody can win or it did not happen.
    pub async fn hand_over_rather(
        &self,
        own: NodeId,
        rather: Option<NodeId>,
    ) -> Result<(), String> {
        let able = self.place.successors(own, self.limits.heartbeat, false);
        if let Some(to) = rather.filter(|to| able.contains(to))
            && self.hand_over(own, Some(to)).await.is_ok()
        {
            return Ok(());
        }
        self.hand_over(own, None).await
    }

    /// Tells whether `to` could take the leadership now: it is a voter that answered within two
    /// heartbeats and lacks nothing.
    pub fn could_lead(&self, own: NodeId, to: NodeId) -> bool {
        self.place.successors(own, self.limits.heartbeat, true).contains(&to)
    }

    /// Says which node is meant to lead this shard when all is well.
    pub fn prefer(&self, node: NodeId) {
        self.preference.node.store(node.0, Ordering::Relaxed);
    }

    /// Counts that this node has handed the shard to the one that is meant to lead it.
    pub fn count_homecoming(&self) {
        self.preference.homecomings.fetch_add(1, Ordering::Relaxed);
    }

    /// Estimates ledger time now, as an entry would be stamped; `None` before anything was applied.
    pub fn ledger_time(&self) -> Option<UnixMs> {
        let state = self.place.replica.read();
        let (base, at) = state.stamped?;
        let now = runtime::now();
        let since = if now > at { (now - at).as_millis() } else { 0 };
        Some(UnixMs(base.0.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))))
    }

    /// Returns how it is.
    pub fn status(&self) -> ShardStatus {
        let state = self.place.group.state();
        let checkpoints = self.place.group.checkpoints();
        let checkpoint = checkpoints.current().and_then(|(_, header)| header.state.position);
        let bytes = checkpoints.bytes_on_disk().map(|[a, b]| a + b).unwrap_or_default();
        let paused = match self.place.fence.may_propose() {
            Ok(_) => None,
            Err(reason) if self.place.fence.leadership().is_some() => Some(reason),
            Err(_) if state.leader.is_none() => Some(PauseReason::QuorumLost),
            Err(_) if self.place.fence.leader_is_silent() => Some(PauseReason::QuorumLost),
            Err(_) => None,
        };
        let (checkpoint_failures, checkpoint_trouble) = self.place.replica.checkpoint_failures();
        let read = self.place.replica.read();
        ShardStatus {
            shard: self.shard(),
            role: state.role,
            leader: state.leader,
            preferred: Some(self.preference.node.load(Ordering::Relaxed))
                .filter(|node| *node > 0)
                .map(NodeId),
            homecomings: self.preference.homecomings.load(Ordering::Relaxed),
            term: state.term,
            voters: state.voters,
            learners: state.learners,
            matched: state.matched.into_iter().collect(),
            last_log: state.last_log,
            applied: read.applied.map(|at| at.index).unwrap_or_default(),
            purged: state.purged,
            quorum_age_ms: state.quorum_age_ms,
            paused,
            ledger_now: read.ledger.now(),
            digest: format!("{:032x}", read.ledger.digest()),
            figures: read.ledger.figures(),
            traffic: self.place.meter.traffic(),
            checkpoint: checkpoint.map(|at| at.index).unwrap_or_default(),
            checkpoint_age_ms: self
                .place
                .replica
                .checkpoint_age()
                .map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            checkpoint_bytes: bytes,
            checkpoint_failures,
            checkpoint_trouble,
            failed: state.failed,
            digests: self.place.digests.lock().clone(),
        }
    }
}

impl Router {
    /// Makes the router of a node from its opened shards, in the order of their numbers.
    pub fn open(
        node: NodeId,
        shards: &[ShardService],
        members: Vec<MemberSpec>,
        network: crate::peer::Network,
        thirst: ThirstLimits,
        policy: Arc<dyn StockPolicy>,
    ) -> Arc<Router> {
        let places = shards.iter().map(|shard| shard.place.clone()).collect();
        let thirst = Thirst::new(thirst);
        Arc::new(Router::new(node, places, members, network, thirst, policy))
    }

    /// Returns the counts of transfers between buckets on this node.
    pub fn stock_traffic(&self) -> StockTraffic {
        StockTraffic {
            waiting: self.thirst.waiting() as u64,
            in_transit: self.in_transit(),
            transit_percent_max: self.thirst.limits.transit_percent_max,
            ..self.stock.traffic()
        }
    }

    /// Asks a shard on this node to apply a command of its own (the steward's): no hop, no memory.
    pub async fn command_on(
        self: &Arc<Router>,
        shard: ShardId,
        command: Command,
        deadline: Instant,
    ) -> Reply {
        let question = Question::from(command);
        let consistency = Consistency::Leader;
        let addressed = vec![Addressed { shard, question, consistency }];
        let Some(sent) = self.home().send(addressed, deadline) else {
            return reply(Outcome::Overloaded);
        };
        let mut replies = sent.answers.await.unwrap_or_default();
        replies.pop().unwrap_or_else(|| reply(Outcome::Unknown))
    }
}
