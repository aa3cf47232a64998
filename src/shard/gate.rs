//! The gate: what may be answered from memory, what waits, and what goes into the log.
//!
//! Receipts come before stock, always. In this order: a key in flight is joined; applied state
//! answers (a replay or a refusal), if the fence lets memory answer; only in-flight units in the
//! way parks the question until those entries are decided, since refusing on units that may yet not
//! commit is not linearizable; otherwise it is admitted. The gate can be wrong, never unsafe: the
//! ledger checks everything again.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ask::{Ask, GateLane, Lanes, Outgoing};
use super::desk::{Consistency, Outcome, Question, Reply};
use super::fence::Fence;
use super::flight::{Claim, FlightBoard, FlightKey, Flights};
use super::home::reply;
use super::meter::Meter;
use crate::ledger::{
    Answer, CommitPoint, Foreseen, Found, LeaderId, Ledger, PauseReason, Query, Receipt, Refusal,
    Scope, Seen, ShardId,
};
use crate::planted::{Fault, planted};
use crate::raft::{AppliedState, PackedCommand, Replica};
use crate::storage::LogPosition;

/// So many questions are judged by the state as it is borrowed once.
const TAKEN_AT_ONCE: usize = 64;

/// A question that was admitted and waits for its entry.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) ask: Ask,
    pub(crate) claim: Claim,
}

/// One shard's gate. Belongs to the shard's single writer.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) shard: ShardId,
    pub(crate) replica: Arc<Replica>,
    pub(crate) fence: Arc<Fence>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) board: Arc<FlightBoard>,
    pub(crate) flights: Flights,
    pub(crate) places: VecDeque<Admitted>,
    pub(crate) finishes: VecDeque<Admitted>,
    pub(crate) parked: VecDeque<Ask>,
    /// How many of the parked are places: they never fill what the others may take.
    pub(crate) parked_places: usize,
    pub(crate) park_max: usize,
    /// A claim was given back since the parked were judged.
    pub(crate) has_released: bool,
    pub(crate) out: Outgoing,
    /// Room for the questions that are taken at once, and for what was looked at of them.
    pub(crate) taken: (Vec<Ask>, Vec<Seen>),
    /// Questions that left each lane since that was last told to the meter.
    pub(crate) left: Lanes<u64>,
}

/// What the gate makes of a question.
enum Judged {
    Reply(Reply),
    Join(FlightKey),
    Park,
    Admit(Claim),
}

impl Gate {
    /// Takes a question in: answers, joins, parks or admits it.
    pub(crate) fn take(&mut self, ask: Ask) {
        self.take_all([ask]);
    }

    /// Takes many in. The state is borrowed for a few at a time: others wait for it.
    pub(crate) fn take_all(&mut self, asks: impl IntoIterator<Item = Ask>) {
        let replica = Arc::clone(&self.replica);
        let mut asks = asks.into_iter();
        let (mut few, mut seen) = std::mem::take(&mut self.taken);
        loop {
            few.extend(asks.by_ref().take(TAKEN_AT_ONCE));
            if few.is_empty() {
                break;
            }
            let (state, may_propose) = (replica.read(), self.fence.may_propose());
            state.ledger.look_at(few.iter().map(Ask::asked), &mut seen);
            for (ask, seen) in few.drain(..).zip(&seen) {
                self.take_by(ask, *seen, &state, may_propose);
            }
        }
        self.taken = (few, seen);
    }

    fn take_by(
        &mut self,
        ask: Ask,
        seen: Seen,
        state: &AppliedState,
        may_propose: Result<LeaderId, PauseReason>,
    ) {
        if !ask.is_wanted() {
            self.leave(ask.lane());
            return;
        }
        match self.judge(&ask, seen, state, may_propose) {
            Judged::Reply(reply) => self.answer(&ask, reply),
            Judged::Join(key) => {
                if ask.join() {
                    self.flights.join(key, ask);
                } else {
                    self.leave(ask.lane());
                }
            }
            Judged::Park => self.park(ask),
            Judged::Admit(claim) => {
                self.flights.take(&claim, &self.board);
                let lane = ask.lane();
                let admitted = Admitted { ask, claim };
                match lane {
                    GateLane::Place => self.places.push_back(admitted),
                    GateLane::Finish => self.finishes.push_back(admitted),
                }
            }
        }
    }

    /// Lets a question wait for the entries whose units stand in its way.
    fn park(&mut self, ask: Ask) {
        let is_place = ask.lane() == GateLane::Place;
        let lane =
            if is_place { self.parked_places } else { self.parked.len() - self.parked_places };
        if lane >= self.park_max {
            return self.answer(&ask, reply(Outcome::Overloaded));
        }
        self.parked_places += usize::from(is_place);
        self.parked.push_back(ask);
    }

    fn take_parked(&mut self) -> VecDeque<Ask> {
        self.parked_places = 0;
        std::mem::take(&mut self.parked)
    }

    /// Notes that a question has left its lane.
    pub(crate) fn leave(&mut self, lane: GateLane) {
        *self.left.of_mut(lane) += 1;
    }

    /// Sends the answers that are ready, and tells the meter who has left.
    pub(crate) fn send_home(&mut self) {
        for lane in [GateLane::Place, GateLane::Finish] {
            self.meter.leave(lane, std::mem::take(self.left.of_mut(lane)));
        }
        self.out.flush();
    }

    /// Makes an answer ready to go home.
    pub(crate) fn answer(&mut self, ask: &Ask, reply: Reply) {
        self.leave(ask.lane());
        if ask.is_wanted() {
            // Else its home has answered, and counted.
            self.meter.gave_up(&reply.outcome);
        }
        self.out.push(ask, reply);
    }

    fn judge(
        &self,
        ask: &Ask,
        seen: Seen,
        state: &AppliedState,
        may_propose: Result<LeaderId, PauseReason>,
    ) -> Judged {
        match ask.question() {
            Question::Query { query, .. } => {
                Judged::Reply(self.query(query, ask.consistency(), state))
            }
            Question::Command(command) => self.judge_command(command, seen, state, may_propose),
        }
    }

    fn judge_command(
        &self,
        command: &PackedCommand,
        seen: Seen,
        state: &AppliedState,
        may_propose: Result<LeaderId, PauseReason>,
    ) -> Judged {
        let key = flight_key(&state.ledger, command.scope());
        if let Some(key) = key
            && self.flights.holds(key)
            && !planted(Fault::KeyNotJoined)
        {
            return Judged::Join(key);
        }
        let applied = state.applied;
        match state.ledger.foresee_seen(command, seen) {
            Foreseen::Answer(answer) => match self.fence.may_answer(applied) {
                Ok(_) => {
                    self.meter.answered(&answer, true);
                    Judged::Reply(self.stand_on(Outcome::Answered(answer), applied))
                }
                Err(reason) => Judged::Reply(reply(Outcome::Paused(reason))),
            },
            Foreseen::Admit(demand) => match self.flights.weigh(&demand) {
                Err(_) if refuses_in_flight(key.is_some_and(|key| self.flights.holds(key))) => {
                    let sold_out = Refusal::SoldOut { may_return: false };
                    let answer = Outcome::Answered(Answer::Refused(sold_out));
                    Judged::Reply(self.stand_on(answer, applied))
                }
                Err(_) => Judged::Park,
                Ok(()) => match may_propose {
                    Ok(_) => Judged::Admit(Claim { key, demand }),
                    Err(reason) => Judged::Reply(reply(Outcome::Paused(reason))),
                },
            },
        }
    }

    /// Answers what must know the keys in flight: receipts.
    fn query(&self, query: &Query, consistency: Consistency, state: &AppliedState) -> Reply {
        if let Query::Receipt(scope) = query
            && flight_key(&state.ledger, Scope::Placing(scope.borrowed()))
                .is_some_and(|key| self.flights.holds(key))
        {
            return reply(Outcome::InFlight);
        }
        read_from(state, &self.fence, self.shard, query, consistency)
    }

    /// Judges again everything that was parked, in the order in which it came, once something that
    /// may have been in its way is decided: else it would wait for entries that are not there.
    pub(crate) fn unpark(&mut self) {
        if std::mem::take(&mut self.has_released) {
            let parked = self.take_parked();
            self.take_all(parked);
        }
    }

    /// Sheds what has waited too long and is not proposed.
    pub(crate) fn shed_old(&mut self, is_old: impl Fn(&Ask) -> bool) {
        for lane in [GateLane::Place, GateLane::Finish] {
            while let Some(old) = self.queue(lane).pop_front_if(|next| is_old(&next.ask)) {
                self.settle(&old.claim);
                self.answer(&old.ask, reply(Outcome::Overloaded));
            }
        }
        while let Some(old) = self.parked.pop_front_if(|next| is_old(next)) {
            let is_place = old.lane() == GateLane::Place;
            self.parked_places -= usize::from(is_place);
            self.answer(&old, reply(Outcome::Overloaded));
        }
    }

    pub(crate) fn queue(&mut self, lane: GateLane) -> &mut VecDeque<Admitted> {
        match lane {
            GateLane::Place => &mut self.places,
            GateLane::Finish => &mut self.finishes,
        }
    }

    /// Ends a claim, and judges again those who waited for its key.
    pub(crate) fn settle(&mut self, claim: &Claim) {
        self.has_released = true;
        for ask in self.flights.give_back(claim, &self.board) {
            self.take_again(ask);
        }
    }

    /// Judges a question again whose outcome was tied to an entry that is now decided.
    pub(crate) fn take_again(&mut self, ask: Ask) {
        if ask.requeue() {
            self.take(ask);
        } else {
            self.leave(ask.lane());
        }
    }

    /// Answers everything that is not proposed with the reason why nothing is granted here.
    pub(crate) fn turn_away(&mut self, reason: PauseReason) {
        let queued = self.finishes.drain(..).chain(self.places.drain(..)).collect::<Vec<_>>();
        for Admitted { ask, claim } in queued {
            for waiting in self.flights.give_back(&claim, &self.board) {
                self.answer(&waiting, reply(Outcome::Paused(reason)));
            }
            self.answer(&ask, reply(Outcome::Paused(reason)));
        }
        for ask in self.take_parked() {
            self.answer(&ask, reply(Outcome::Paused(reason)));
        }
        self.has_released = false;
    }

    fn stand_on(&self, outcome: Outcome, applied: Option<LogPosition>) -> Reply {
        stand_on(outcome, self.shard, applied)
    }
}

/// Whether a fault is planted that refuses what units in flight stand in the way of.
fn refuses_in_flight(own_key_is_in_flight: bool) -> bool {
    planted(Fault::RefusesInFlight) || own_key_is_in_flight && planted(Fault::KeyNotJoined)
}

/// Names the scope of a command's key.
pub(crate) fn flight_key(ledger: &Ledger, scope: Scope<'_>) -> Option<FlightKey> {
    FlightKey::of(scope, |name| ledger.default_region(name))
}

/// Makes an answer that rests on applied state.
pub(crate) fn stand_on(outcome: Outcome, shard: ShardId, applied: Option<LogPosition>) -> Reply {
    let commit = applied.map(|at| CommitPoint { shard, leader: at.leader, index: at.index });
    Reply { outcome, commit, leader: applied.map(|at| at.leader.node) }
}

/// Reads memory, then checks that the answer may leave. For [`Consistency::Linearizable`] the
/// caller has waited for a read index before.
pub(crate) fn read(
    replica: &Replica,
    fence: &Fence,
    shard: ShardId,
    query: &Query,
    consistency: Consistency,
) -> Reply {
    let state = replica.read();
    let (found, applied) = (state.ledger.query(query), state.applied);
    drop(state);
    checked(found, applied, fence, shard, consistency)
}

/// As [`read`], from state that is borrowed already.
fn read_from(
    state: &AppliedState,
    fence: &Fence,
    shard: ShardId,
    query: &Query,
    consistency: Consistency,
) -> Reply {
    checked(state.ledger.query(query), state.applied, fence, shard, consistency)
}

fn checked(
    found: Found,
    applied: Option<LogPosition>,
    fence: &Fence,
    shard: ShardId,
    consistency: Consistency,
) -> Reply {
    let allowed = match consistency {
        Consistency::Local | Consistency::Linearizable => Ok(()),
        Consistency::Leader => fence.may_answer(applied).map(|_| ()),
    };
    match allowed {
        Ok(()) => stand_on(Outcome::Found(found), shard, applied),
        Err(reason) => reply(Outcome::Paused(reason)),
    }
}

/// Tells, of a command whose entry is decided without an answer, what applied state shows of its
/// key: what it made, or that the key is void or another's. `None`: the key left no trace.
pub(crate) fn receipt_of(
    replica: &Replica,
    command: &PackedCommand,
) -> Option<(Answer, LogPosition)> {
    let state = replica.read();
    let applied = state.applied?;
    let foreseen = match state.ledger.foresee(command) {
        Foreseen::Answer(answer) => answer,
        Foreseen::Admit(_) => return None,
    };
    if shows_receipt(&foreseen) {
        return Some((foreseen, applied));
    }
    // A hold that has ended since is refused by its end; what the caller asked for was granted.
    let Scope::Placing(scope) = command.scope() else { return None };
    if !command.is_place() {
        return None;
    }
    match state.ledger.query(&Query::Receipt(scope.owned())) {
        Found::Receipt(Receipt::Committed(hold)) => {
            Some((Answer::Hold { hold, replayed: true }, applied))
        }
        Found::Receipt(Receipt::Voided | Receipt::Unknown)
        | Found::Hold(_)
        | Found::Item(_)
        | Found::Items(_)
        | Found::Availability(_)
        | Found::Audit(_)
        | Found::Recount(_)
        | Found::Holds { .. }
        | Found::SoldOut(_)
        | Found::Levels(_)
        | Found::Copy(_)
        | Found::Duties(_)
        | Found::Roster { .. }
        | Found::NotFound => None,
    }
}

/// Tells whether an answer foreseen from applied state rests on a receipt of the command's own key.
fn shows_receipt(answer: &Answer) -> bool {
    match answer {
        Answer::Placed(_) | Answer::Hold { .. } | Answer::Voided { .. } => true,
        Answer::Item { replayed, .. } | Answer::Moved { replayed, .. } => *replayed,
        Answer::Refused(refusal) => {
            matches!(refusal, Refusal::KeyReused { .. } | Refusal::KeyVoided)
        }
        Answer::Retired { .. }
        | Answer::Advanced { .. }
        | Answer::BucketOpen
        | Answer::Sent { .. }
        | Answer::Accepted { .. }
        | Answer::Settled
        | Answer::Copy(_)
        | Answer::Noted => false,
    }
}
