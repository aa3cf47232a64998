//! The machine of one bucket's leaders: what is in flight, what is committed and not yet applied
//! here, and when a gate may say that all is sold out.
//!
//! Two replicas apply one log at their own pace. A leader admits, entries commit or die with it,
//! and it refuses from what it has applied. A refusal is right if at some moment of its request
//! nothing was free, in some order of what was concurrent: of a committed entry nobody has an
//! answer yet either may be so.

use crate::search::{Machine, Moves};
use crate::shelf::{Plan, Said, Shelf, Step};
use crate::traps::Trap;

const LOG: usize = 5;
const NOTHING: u8 = u8::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The ledger after each committed entry.
    log: [u32; LOG],
    length: u8,
    /// How far each replica has applied.
    applied: [u8; 2],
    leader: u8,
    /// The leader's first own entry.
    first: u8,
    /// The furthest entry that a leader has answered.
    answered: u8,
    /// The key of a placement that is proposed and not committed.
    in_flight: u8,
    request: Request,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Coming,
    Waits { empty: bool },
    Refused,
}

#[allow(dead_code, reason = "told in the path to a fault")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Move {
    Propose(u8),
    Commit,
    Commits(Step),
    Apply(u8),
    NewLeader,
    RequestComes,
    Refuse,
}

/// One bucket with one unit.
pub(crate) struct Gate {
    pub(crate) shelf: Shelf,
    trap: Option<Trap>,
}

impl Gate {
    pub(crate) fn new(trap: Option<Trap>) -> Gate {
        Gate { shelf: Shelf::new(Plan::one_unit_for_two()), trap }
    }

    fn free(&self, state: &State, at: u8) -> u8 {
        self.shelf.read(state.log[usize::from(at)], 1).sellable
    }

    /// Whether nothing may be free now.
    fn may_be_empty(&self, state: &State) -> bool {
        (state.answered..state.length).any(|at| self.free(state, at) == 0)
    }

    /// The log with one more entry; `None` when it is full.
    fn commit(&mut self, state: &State, step: Option<Step>) -> Option<State> {
        let mut next = *state;
        let at = usize::from(state.length);
        if at == LOG {
            return None;
        }
        let last = state.log[at - 1];
        next.log[at] = step.map_or(last, |step| self.shelf.ask(last, step).0);
        next.length += 1;
        Some(next)
    }

    /// The gate's word to the request that waits.
    fn refuse(&self, state: &State) -> Option<Result<State, String>> {
        let Request::Waits { empty } = state.request else { return None };
        let own = state.applied[usize::from(state.leader)];
        if own < state.first && self.trap != Some(Trap::RefusalBeforeOwnEntry) {
            return None;
        }
        let mut free = self.free(state, own);
        if self.trap == Some(Trap::RefusalOnInFlight) && state.in_flight != NOTHING {
            free = free.saturating_sub(1);
        }
        if free > 0 {
            return None;
        }
        Some(match empty {
            true => Ok(State { request: Request::Refused, ..*state }),
            false => Err("refused, though the unit was free all along".into()),
        })
    }
}

impl Machine for Gate {
    type State = State;
    type Move = Move;

    fn start(&mut self) -> State {
        let empty = self.shelf.empty(0);
        let (made, said) = self.shelf.ask(empty, Step::Define);
        assert_eq!(said, Said::Done, "created");
        // The unit is held when the run begins.
        let (held, said) = self.shelf.ask(made, Step::Place { key: 0 });
        assert_eq!(said, Said::Done, "held");
        let mut log = [0; LOG];
        log[0] = held;
        State {
            log,
            length: 1,
            applied: [0, 0],
            leader: 0,
            first: 0,
            answered: 0,
            in_flight: NOTHING,
            request: Request::Coming,
        }
    }

    fn moves(&mut self, state: &State, out: &mut Moves<Self>) {
        let mut found = Vec::new();
        let last = state.log[usize::from(state.length) - 1];
        if state.in_flight == NOTHING {
            for key in 0..2 {
                found.push((Move::Propose(key), Some(State { in_flight: key, ..*state })));
            }
        } else {
            let step = Step::Place { key: state.in_flight };
            let next = self.commit(&State { in_flight: NOTHING, ..*state }, Some(step));
            found.push((Move::Commit, next));
        }
        for step in [Step::Release { key: 0 }, Step::Release { key: 1 }] {
            if self.shelf.ask(last, step).0 != last {
                found.push((Move::Commits(step), self.commit(state, Some(step))));
            }
        }
        for replica in 0..2_u8 {
            let at = usize::from(replica);
            if state.applied[at] + 1 < state.length {
                let mut next = *state;
                next.applied[at] += 1;
                if replica == state.leader {
                    next.answered = next.answered.max(next.applied[at]);
                }
                found.push((Move::Apply(replica), Some(next)));
            }
        }
        // What was in flight dies; what is committed is not lost.
        let changed = State { leader: 1 - state.leader, in_flight: NOTHING, ..*state };
        let changed = self.commit(&changed, None);
        found.push((Move::NewLeader, changed.map(|next| State { first: state.length, ..next })));
        if state.request == Request::Coming {
            let request = Request::Waits { empty: false };
            found.push((Move::RequestComes, Some(State { request, ..*state })));
        }
        for (step, next) in found {
            let Some(mut next) = next else { continue };
            if next.request == (Request::Waits { empty: false }) {
                next.request = Request::Waits { empty: self.may_be_empty(&next) };
            }
            out.push((step, Ok(next)));
        }
        out.extend(self.refuse(state).map(|outcome| (Move::Refuse, outcome)));
    }

    fn check(&mut self, state: &State) -> Result<(), String> {
        let last = self.shelf.read(state.log[usize::from(state.length) - 1], 1);
        if last.law_holds && last.held + last.sold <= 1 { Ok(()) } else { Err("oversold".into()) }
    }
}
