//! The machine of one client that retries: attempts that sit in some socket until their deadline, a
//! refusal of one while another is on its way, and a void.
//!
//! A refusal ends an operation only if it answers the last attempt, and that was sent after every
//! earlier unanswered attempt of its key was past its deadline, which the leader enforces;
//! otherwise a void does. (The late refusal of an earlier attempt says nothing while a later one is
//! on its way: the search finds that too.)

use crate::search::{Machine, Moves};
use crate::shelf::{Key, Plan, Said, Shelf, Step};
use crate::traps::Trap;

const ATTEMPTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    ledger: u32,
    attempts: [Attempt; ATTEMPTS],
    /// Whether a void is on its way.
    voiding: bool,
    belief: Belief,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Attempt {
    Unsent,
    /// May arrive at any time, any number of times. Whether all earlier ones were over when it was
    /// sent.
    OnItsWay {
        alone: bool,
    },
    /// The client has its refusal.
    Refused,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Belief {
    Open,
    /// The client believes that it has no hold and never will.
    Without,
}

#[allow(dead_code, reason = "told in the path to a fault")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Move {
    Send(u8),
    Arrives(u8),
    DeadlinePasses(u8),
    OtherReleases,
    SendVoid,
    VoidArrives,
}

/// One unit, which another holds, and one client with one key.
pub(crate) struct Client {
    pub(crate) shelf: Shelf,
    trap: Option<Trap>,
}

/// The key of the other buyer, and the client's.
const OTHER: u8 = 0;
const OWN: u8 = 1;

impl Client {
    pub(crate) fn new(trap: Option<Trap>) -> Client {
        Client { shelf: Shelf::new(Plan::one_unit_for_two()), trap }
    }

    /// An attempt arrives; its answer reaches the client or does not.
    fn arrive(&mut self, state: &State, at: usize, alone: bool) -> Vec<State> {
        let (ledger, said) = self.shelf.ask(state.ledger, Step::Place { key: OWN });
        let unheard = State { ledger, ..*state };
        let mut heard = unheard;
        if said == Said::Dry {
            heard.attempts[at] = Attempt::Refused;
            let later = state.attempts[at + 1..].iter();
            let last = later.copied().all(|later| later == Attempt::Unsent);
            if (alone && last) || self.trap == Some(Trap::RefusalEndsTheOperation) {
                heard.belief = Belief::Without;
            }
        }
        vec![unheard, heard]
    }
}

impl Machine for Client {
    type State = State;
    type Move = Move;

    fn start(&mut self) -> State {
        let empty = self.shelf.empty(0);
        let made = self.shelf.ask(empty, Step::Define).0;
        let (ledger, said) = self.shelf.ask(made, Step::Place { key: OTHER });
        assert_eq!(said, Said::Done, "another holds it");
        let attempts = [Attempt::Unsent; ATTEMPTS];
        State { ledger, attempts, voiding: false, belief: Belief::Open }
    }

    fn moves(&mut self, state: &State, out: &mut Moves<Self>) {
        let mut earlier_over = true;
        for at in 0..ATTEMPTS {
            let number = at as u8;
            match state.attempts[at] {
                Attempt::Unsent => {
                    if state.belief == Belief::Open {
                        let mut next = *state;
                        next.attempts[at] = Attempt::OnItsWay { alone: earlier_over };
                        out.push((Move::Send(number), Ok(next)));
                    }
                    break;
                }
                Attempt::OnItsWay { alone } => {
                    for next in self.arrive(state, at, alone) {
                        out.push((Move::Arrives(number), Ok(next)));
                    }
                    let mut next = *state;
                    next.attempts[at] = Attempt::Over;
                    out.push((Move::DeadlinePasses(number), Ok(next)));
                }
                Attempt::Refused | Attempt::Over => {}
            }
            // A refused attempt was delivered once, and a forwarder sends it once.
            earlier_over &= matches!(state.attempts[at], Attempt::Over | Attempt::Refused);
        }
        let (ledger, said) = self.shelf.ask(state.ledger, Step::Release { key: OTHER });
        if said == Said::Done {
            out.push((Move::OtherReleases, Ok(State { ledger, ..*state })));
        }
        if !state.voiding {
            out.push((Move::SendVoid, Ok(State { voiding: true, ..*state })));
        } else {
            let (ledger, _) = self.shelf.ask(state.ledger, Step::Void { key: OWN });
            let unheard = State { ledger, ..*state };
            out.push((Move::VoidArrives, Ok(unheard)));
            // A void returns the hold that there is, or ends the matter.
            let without = self.shelf.read(ledger, 1).keys[usize::from(OWN)] == Key::Ended;
            let belief = if without { Belief::Without } else { state.belief };
            out.push((Move::VoidArrives, Ok(State { belief, ..unheard })));
        }
    }

    fn check(&mut self, state: &State) -> Result<(), String> {
        let reading = self.shelf.read(state.ledger, 1);
        let own = reading.keys[usize::from(OWN)];
        if state.belief == Belief::Without && own == Key::Live {
            return Err("there is a hold, and its client believes that there is none".into());
        }
        if reading.law_holds { Ok(()) } else { Err("the law is broken".into()) }
    }
}
