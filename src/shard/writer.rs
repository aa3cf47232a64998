//! The batcher: one shard's single writer.
//!
//! It gathers everything that arrived while the previous commit was in flight into one log entry
//! and proposes it; two entries may be in flight. Everything it does is decided on one thread, in
//! the order of arrival; it waits for nothing without a limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::ask::{Ask, Delivery, GateLane};
use super::desk::Outcome;
use super::flight::Claim;
use super::gate::{Admitted, Gate, receipt_of, stand_on};
use super::home::reply;
use super::ledger_time::StampSource;
use crate::ledger::{Demand, LeaderId, PauseReason, UnixMs};
use crate::planted::{Fault, planted};
use crate::raft::{Applied, EntryBuilder, Group, Payload, ProposeError};
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

/// An entry on its way to Raft.
#[derive(Debug)]
struct Gathered {
    ticket: u64,
    leader: LeaderId,
    payload: Payload,
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

/// Deliveries taken in before entries are proposed again.
const DELIVERIES_A_LOOP: usize = 1024;
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
                    for _ in 1..DELIVERIES_A_LOOP {
                        let Ok(delivery) = deliveries.try_recv() else { break };
                        self.receive(delivery);
                    }
                }
                _ = progress.changed(), if self.flying.iter().any(|entry| entry.in_limbo) => {}
                () = runtime::sleep(IDLE_LOOK), if self.is_waiting() => {}
            }
            self.work(&mut proposals).await;
        }
    }

    /// Decides, sheds, judges again and proposes whatever can be now.
    async fn work(&mut self, proposals: &mut FuturesUnordered<Decision>) {
        // A result that is here must not be taken for one that went astray.
        while let Some(Some((ticket, result))) = proposals.next().now_or_never() {
            self.decided(ticket, result);
        }
        self.resolve_limbo();
        if planted(Fault::KeyDropped) {
            self.drop_unwanted();
        }
        self.look_at_health();
        let (now, age_max) = (runtime::now(), self.limits.queue_age_max);
        self.gate.shed_old(|ask| now > ask.sent_at() && now - ask.sent_at() > age_max);
        loop {
            self.gate.unpark();
            match self.propose().await {
                Some(decision) => proposals.push(decision),
                // What was dropped on the way may have stood in another's way.
                None if self.gate.has_released => {}
                None => break,
            }
        }
        self.gate.meter.depth(self.gate.flights.len(), self.gate.parked.len());
        self.gate.send_home();
    }

    fn is_waiting(&self) -> bool {
        !self.flying.is_empty()
            || !self.gate.parked.is_empty()
            || !self.gate.places.is_empty()
            || !self.gate.finishes.is_empty()
    }

    fn receive(&mut self, delivery: Delivery) {
        self.gate.take_all(delivery.asks);
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
        let Gathered { ticket, leader, payload } = self.gather()?;
        runtime::work(self.flying.back().map_or(0, |entry| entry.commands.len())).await;
        let proposal = self.group.propose(payload, leader).await;
        Some(Box::pin(async move {
            match proposal {
                Ok(proposal) => (ticket, proposal.await),
                Err(error) => (ticket, Err(error)),
            }
        }))
    }

    /// Gathers what is queued into one entry. From here on it counts as proposed.
    fn gather(&mut self) -> Option<Gathered> {
        let undecided = self.flying.iter().filter(|entry| !entry.in_limbo);
        let (entries, commands) =
            undecided.fold((0, 0), |(count, sum), entry| (count + 1, sum + entry.commands.len()));
        // An entry costs every replica as much as many commands do, so another one goes out beside
        // those under way only when it carries as many: else it gathers until they are decided.
        let waiting = self.gate.places.len() + self.gate.finishes.len();
        if entries >= self.limits.entries_in_flight_max || waiting < commands {
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
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let proposed_at = runtime::now();
        self.gate.meter.proposed(builder.count());
        self.flying.push_back(Flying { ticket, leader, proposed_at, commands, in_limbo: false });
        Some(Gathered { ticket, leader, payload: builder.finish(stamp) })
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
            let queue = self.gate.queue(lane);
            let Some(next) = queue.front() else { return };
            if !builder.push(next.ask.command()) {
                return;
            }
            let Some(next) = queue.pop_front() else { return };
            if next.ask.propose() {
                commands.push(next);
            } else {
                builder.pop();
                self.gate.leave(lane);
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
                    self.gate.answer(&ask, reply(Outcome::Paused(PauseReason::Moving)));
                    self.gate.settle(&claim);
                }
            }
            Err(ProposeError::Unknown(why)) => {
                let shard = self.gate.shard;
                tracing::warn!(%shard, %why, "the outcome of an entry is unknown");
                self.flying[at].in_limbo = true;
            }
        }
    }

    fn answer_all(&mut self, entry: Flying, applied: Applied) {
        let mut answers = applied.answers.into_iter();
        for Admitted { ask, claim } in entry.commands {
            // One answer a command, in order, by the ledger's contract.
            let outcome = match answers.next() {
                Some(answer) => {
                    self.gate.meter.answered(&answer, false);
                    Outcome::Answered(answer)
                }
                None => Outcome::Unknown,
            };
            let reply = stand_on(outcome, self.gate.shard, Some(applied.position));
            self.gate.answer(&ask, reply);
            self.gate.settle(&claim);
        }
    }

    /// Decides what only the log can decide: an entry whose fate did not come back is decided once
    /// an entry of a greater leader id is applied here. Then the receipt speaks.
    fn resolve_limbo(&mut self) {
        let applied = self.group.replica().read().applied;
        let Some(applied) = applied else { return };
        let is_decided = |entry: &Flying| entry.leader < applied.leader;
        while let Some(at) = self.flying.iter().position(is_decided) {
            let Some(entry) = self.flying.remove(at) else { return };
            for Admitted { ask, claim } in entry.commands {
                self.answer_from_receipt(&ask);
                self.gate.settle(&claim);
            }
        }
    }

    /// Ends the claims of proposed commands whose callers gave up, which must never be done.
    fn drop_unwanted(&mut self) {
        for admitted in self.flying.iter_mut().flat_map(|entry| &mut entry.commands) {
            if !admitted.ask.is_wanted() {
                let nothing = Claim { key: None, demand: Demand::default() };
                let claim = std::mem::replace(&mut admitted.claim, nothing);
                self.gate.settle(&claim);
            }
        }
    }

    fn answer_from_receipt(&mut self, ask: &Ask) {
        let command = ask.command();
        match receipt_of(self.group.replica(), command) {
            Some((answer, position)) => {
                self.gate.meter.answered(&answer, false);
                let outcome = Outcome::Answered(answer);
                let reply = stand_on(outcome, self.gate.shard, Some(position));
                self.gate.answer(ask, reply);
            }
            // Its entry is not in the log or changed nothing, and it never will: nothing was taken.
            // Another leadership answers it, this one's successor here or elsewhere.
            None if command.is_keyed() => {
                self.gate.answer(ask, reply(Outcome::Paused(PauseReason::Moving)));
            }
            // Without a key it may still have changed something.
            None => self.gate.answer(ask, reply(Outcome::Unknown)),
        }
    }
}

#[cfg(test)]
mod tests;
