//! A room: one workload at work on one item after the other.
//!
//! An item is used for a bounded number of operations, a *generation*, and then left alone: the
//! search for a linearization grows with the operations of an item, and a thousand small questions
//! can be decided where one large one cannot.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::history::{Act, Kind, Value};
use crate::profile::Pace;
use crate::worker::Worker;
use crate::workload::Workload;

/// Holds that a room remembers for others to work on.
const KNOWN_MAX: usize = 64;

/// A hold that somebody in the room has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) buyer: Option<String>,
    pub(crate) quantity: u64,
    /// When its deadline was said to be, in ms since 1970; for who wants to be late.
    pub(crate) expires_at: u64,
}

#[derive(Debug, Default)]
struct State {
    item: Option<Value>,
    generation: u64,
    used: u64,
    known: Vec<Known>,
    sold_out: u64,
}

/// A room.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) workload: Workload,
    /// Its place among the rooms of this workload.
    number: u64,
    pub(crate) pace: Pace,
    state: Mutex<State>,
    made: Arc<Mutex<Vec<Value>>>,
}

impl Room {
    /// Opens a room; the items that it makes are noted in `made`.
    pub(crate) fn new(
        workload: Workload,
        number: u64,
        pace: Pace,
        made: Arc<Mutex<Vec<Value>>>,
    ) -> Room {
        Room { workload, number, pace, state: Mutex::default(), made }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// The item of this moment; makes the next one when it is used up. `None`: it could not be
    /// made now.
    pub(crate) async fn item(&self, worker: &mut Worker) -> Option<Value> {
        let plan = {
            let mut state = self.state();
            let spent = state.used >= self.pace.generation
                || state.sold_out >= self.workload.refusals_max(self.pace.generation);
            let current = state.item.clone().filter(|_| !spent);
            if current.is_some() {
                state.used += 1;
                return current;
            }
            // One makes it, the others come back.
            if state.used == u64::MAX {
                return None;
            }
            state.used = u64::MAX;
            state.item = None;
            state.generation += 1;
            let name = format!("{}-{}-{}", self.workload.name(), self.number, state.generation);
            self.workload.definition(name, state.generation)
        };
        let made = worker.call(Act::Create, plan.clone()).await;
        let mut state = self.state();
        state.used = self.pace.generation;
        if made.kind != Kind::Ok {
            return None;
        }
        *state = State {
            item: Some(made.value.clone()),
            generation: state.generation,
            used: 1,
            ..State::default()
        };
        self.made.lock().expect("nobody panics with it").push(made.value.clone());
        Some(made.value)
    }

    /// Remembers a hold for others.
    pub(crate) fn remember(&self, item: &Value, hold: Known) {
        let mut state = self.state();
        if state.item.as_ref().is_some_and(|now| now.item == item.item) {
            if state.known.len() == KNOWN_MAX {
                state.known.remove(0);
            }
            state.known.push(hold);
        }
    }

    /// One of the holds that were remembered.
    pub(crate) fn known(&self, item: &Value, worker: &mut Worker) -> Option<Known> {
        let state = self.state();
        let current = state.item.as_ref().is_some_and(|now| now.item == item.item);
        current.then(|| worker.dice.pick(&state.known).cloned()).flatten()
    }

    /// Takes one of them away, so that nobody else works on it.
    pub(crate) fn take_known(&self, item: &Value, worker: &mut Worker) -> Option<Known> {
        let mut state = self.state();
        let current = state.item.as_ref().is_some_and(|now| now.item == item.item);
        if !current || state.known.is_empty() {
            return None;
        }
        let at = worker.dice.index(state.known.len());
        Some(state.known.swap_remove(at))
    }

    /// Notes that the item had nothing left for somebody.
    pub(crate) fn note_sold_out(&self, item: &Value) {
        let mut state = self.state();
        if state.item.as_ref().is_some_and(|now| now.item == item.item) {
            state.sold_out += 1;
        }
    }
}
