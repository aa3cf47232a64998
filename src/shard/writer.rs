//! The batcher: one shard's single writer.
//!
//! It gathers everything that arrived while the previous commit was in flight into one log entry and
//! proposes it; two entries may be in flight. Everything it does is decided on one thread, in the
//! order of arrival; it waits for nothing without a limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::ask::{Delivery, GateLane};
use super::desk::{Outcome, Question};
use super::gate::{Admitted, Gate, receipt_of, stand_on};
use super::home::reply;
use super::ledger_time::StampSource;
use crate::ledger::{Command, LeaderId, PauseReason, UnixMs};
use crate::raft::{Applied, EntryBuilder, Group, ProposeError};
use crate::runtime::{self, Instant};

/// The wall clock as this node may use it: `None` while no majority of the members' clocks agrees.
pub type AgreedClock = Arc<dyn Fn() -> Option<UnixMs> + Send + Sync>;

/// Bounds of the batcher.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterLimits {
    /// The most bytes of one entry.
    pub(crate) entry_bytes_max: usize,
    /// Entries in flight.
    pub(crate) entries_in_flight_max: usize,
    /// The longest that a question may wait in the queue before it is shed.
    pub(crate) queue_age_max: Duration,
}

/// An entry that was handed to Raft and is not decided.
#[derive(Debug)]
struct Flying {
    ticket: u64,
    leader: LeaderId,
    proposed_at: Instant,
    commands: Vec<Admitted>,
    /// Its failure was reported as unknown; only the log decides now.
    in_limbo: bool,
}

/// One shard's single writer.
pub(crate) struct Writer {
    group: Group,
    gate: Gate,
    limits: WriterLimits,
    clock: AgreedClock,
    stamps: StampSource,
    flying: VecDeque<Flying>,
    next_ticket: u64,
    proposals: Mutex<FuturesUnordered<Decision>>,
}

type Decision = futures_util::future::BoxFuture<'static, (u64, Result<Applied, ProposeError>)>;

/// How long the writer sleeps at most: it looks at the gate's health this often.
const IDLE_LOOK: Duration = Duration::from_millis(10);

impl Writer {
    pub(crate) fn new(
        group: Group,
        gate: Gate,
        limits: WriterLimits,
        clock: AgreedClock,
    ) -> Writer {
        Writer {
            group,
            gate,
            limits,
            clock,
            stamps: StampSource::default(),
            flying: VecDeque::new(),
            next_ticket: 0,
            proposals: Mutex::new(FuturesUnordered::new()),
        }
    }

    /// Runs until every home has gone.
    pub(crate) async fn run(mut self, mut deliveries: mpsc::Receiver<Delivery>) {
        let mut progress = self.group.replica().progress();
        let mut proposals = std::mem::take(&mut *self.proposals.lock());
        loop {
            tokio::select! {
                biased;
                Some((ticket, result)) = proposals.next(), if !proposals.is_empty() => {
                    self.decided(ticket, result);
                    while let Some(Some((ticket, result))) = proposals.next().now_or_never() {
                        self.decided(ticket, result);
                    }
                }
                delivery = deliveries.recv() => {
                    let Some(delivery) = delivery else { return };
                    self.receive(delivery);
                    while let Ok(delivery) = deliveries.try_recv() {
                        self.receive(delivery);
                    }
                }
                _ = progress.changed(), if self.flying.iter().any(|entry| entry.in_limbo) => {}
                () = runtime::sleep(IDLE_LOOK), if self.is_waiting() => {}
            }
            self.resolve_limbo();
            self.look_at_health();
            while let Some(decision) = self.propose().await {
                proposals.push(decision);
            }
            self.gate.meter.depth(self.gate.flights.len(), self.gate.parked.len());
            self.gate.out.flush();
        }
    }

    fn is_waiting(&self) -> bool {
        !self.flying.is_empty()
            || !self.gate.parked.is_empty()
            || !self.gate.places.is_empty()
            || !self.gate.finishes.is_empty()
    }

    fn receive(&mut self, delivery: Delivery) {
        for ask in delivery.asks {
            self.gate.take(ask);
        }
    }

    /// Turns away what is queued when nothing can be granted here.
    fn look_at_health(&mut self) {
        if self.gate.places.is_empty()
            && self.gate.finishes.is_empty()
            && self.gate.parked.is_empty()
        {
            return;
        }
        if let Err(reason) = self.gate.fence.may_propose() {
            self.gate.turn_away(reason);
        }
    }

    /// Proposes one entry if there is something to propose and room in flight.
    async fn propose(&mut self) -> Option<Decision> {
        let undecided = self.flying.iter().filter(|entry| !entry.in_limbo).count();
        if undecided >= self.limits.entries_in_flight_max {
            return None;
        }
        let leader = self.gate.fence.may_propose().ok()?;
        if self.gate.places.is_empty() && self.gate.finishes.is_empty() {
            return None;
        }
        // Without a stamp they wait on: their age is bounded.
        let stamp = self.stamp(leader)?;
        let mut builder = EntryBuilder::new(self.limits.entry_bytes_max);
        let mut commands = Vec::new();
        // Those that end or keep a hold go first; when both wait, places keep half of the entry.
        let half = self.limits.entry_bytes_max / 2;
        let share = if self.gate.places.is_empty() { usize::MAX } else { half };
        self.fill(GateLane::Finish, share, &mut builder, &mut commands);
        self.fill(GateLane::Place, usize::MAX, &mut builder, &mut commands);
        self.fill(GateLane::Finish, usize::MAX, &mut builder, &mut commands);
        if commands.is_empty() {
            return None;
        }
        let count = builder.count();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let proposed_at = runtime::now();
        self.flying.push_back(Flying { ticket, leader, proposed_at, commands, in_limbo: false });
        self.gate.meter.proposed(count);
        let proposal = self.group.propose(builder.finish(stamp)).await;
        Some(Box::pin(async move {
            match proposal {
                Ok(proposal) => (ticket, proposal.await),
                Err(error) => (ticket, Err(error)),
            }
        }))
    }

    fn fill(
        &mut self,
        lane: GateLane,
        bytes_share: usize,
        builder: &mut EntryBuilder,
        commands: &mut Vec<Admitted>,
    ) {
        loop {
            if builder.bytes() >= bytes_share {
                return;
            }
            let queue = match lane {
                GateLane::Place => &mut self.gate.places,
                GateLane::Finish => &mut self.gate.finishes,
            };
            let Some(next) = queue.front() else { return };
            let Question::Command(command) = &next.ask.question else {
                unreachable!("only commands are admitted");
            };
            if !builder.push(command) {
                return;
            }
            let Some(next) = queue.pop_front() else { return };
            let is_old = runtime::now() - next.ask.sent_at > self.limits.queue_age_max;
            if is_old {
                builder.pop();
                self.gate.settle(&next.claim);
                self.gate.answer(next.ask, reply(Outcome::Overloaded));
            } else if next.ask.propose() {
                commands.push(next);
            } else {
                builder.pop();
                self.gate.meter.leave(lane);
                self.gate.settle(&next.claim);
            }
        }
    }

    fn stamp(&mut self, leader: LeaderId) -> Option<UnixMs> {
        let state = self.group.replica().read();
        let (applied, stamped) = (state.ledger.now(), state.stamped);
        drop(state);
        self.stamps.stamp(leader, runtime::now(), applied, stamped, (self.clock)())
    }

    fn decided(&mut self, ticket: u64, result: Result<Applied, ProposeError>) {
        let Some(at) = self.flying.iter().position(|entry| entry.ticket == ticket) else { return };
        match result {
            Ok(applied) => {
                let Some(entry) = self.flying.remove(at) else { return };
                self.gate.meter.committed(runtime::now() - entry.proposed_at);
                self.answer_all(entry, applied);
            }
            Err(ProposeError::NotAppended { .. }) => {
                let Some(entry) = self.flying.remove(at) else { return };
                for Admitted { ask, claim } in entry.commands {
                    // Definitely not taken, and not asked again here: openraft can refuse entries
                    // while this node still leads and its quorum is fresh (seed 1097 of
                    // tests/simulation.rs spun between the gate and openraft).
                    self.gate.answer(ask, reply(Outcome::Paused(PauseReason::Moving)));
                    self.gate.settle(&claim);
                }
            }
            Err(ProposeError::Unknown(why)) => {
                tracing::warn!(shard = %self.gate.shard, %why, "the outcome of an entry is unknown");
                self.flying[at].in_limbo = true;
            }
        }
        self.gate.unpark();
    }

    fn answer_all(&mut self, entry: Flying, applied: Applied) {
        let mut answers = applied.answers.into_iter();
        for Admitted { ask, claim } in entry.commands {
            // One answer a command, in order, by the ledger's contract.
            let outcome = match answers.next() {
                Some(answer) => {
                    let placed = matches!(&ask.question, Question::Command(Command::Place(_)));
                    self.gate.meter.answered(&answer, false, placed);
                    Outcome::Answered(answer)
                }
                None => Outcome::Unknown,
            };
            let reply = stand_on(outcome, self.gate.shard, Some(applied.position));
            self.gate.answer(ask, reply);
            self.gate.settle(&claim);
        }
    }

    /// Decides what only the log can decide: an entry whose fate did not come back is decided once an
    /// entry of a greater leader id is applied here. Then the receipt speaks.
    fn resolve_limbo(&mut self) {
        let applied = self.group.replica().read().applied;
        let Some(applied) = applied else { return };
        while let Some(at) = self.flying.iter().position(|entry| entry.leader < applied.leader) {
            let Some(entry) = self.flying.remove(at) else { return };
            for Admitted { ask, claim } in entry.commands {
                let Question::Command(command) = &ask.question else { continue };
                match receipt_of(self.group.replica(), command) {
                    Some((answer, position)) => {
                        let outcome = Outcome::Answered(answer);
                        let reply = stand_on(outcome, self.gate.shard, Some(position));
                        self.gate.answer(ask, reply);
                    }
                    // Without a receipt the command may still have changed something (a PUT has
                    // none): it is unknown unless it was a placement, which is its own receipt.
                    None if matches!(command, Command::Place(_)) => {
                        self.gate.answer(ask, reply(Outcome::Paused(PauseReason::Moving)));
                    }
                    None => {
                        self.gate.meter.unknown();
                        self.gate.answer(ask, reply(Outcome::Unknown));
                    }
                }
                self.gate.settle(&claim);
            }
        }
    }
}
