//! The machine of the tail: the last units are in the wrong buckets, and everybody waits for more
//! than is there.
//!
//! Thirst is ranked by an order that stays while it lasts (here: by bucket). A donor whose own
//! waiters can be served keeps their part; one whose waiters cannot gives all to a better-ranked
//! puller and nothing to a worse one. The best-ranked gathers everything; if that is too little it
//! is told so, and the next one pulls. From every state, rounds in which all leaders act at once
//! serve or answer every waiter.

use crate::search::{Machine, Moves};
use crate::shelf::{BUCKETS, Key, Plan, Said, Shelf, Step};
use crate::traps::Trap;

/// Rounds after which a waiter waits for ever.
const ROUNDS: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    ledgers: [u32; BUCKETS],
    /// Waiters that were told that too little is left.
    told: u8,
}

#[allow(dead_code, reason = "told in the path to a fault")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Move {
    Serve(u8),
    Pull { from: u8, to: u8, units: u8 },
    Tell(u8),
}

pub(crate) struct Tail {
    pub(crate) shelf: Shelf,
    stock: [u8; BUCKETS],
    trap: Option<Trap>,
}

impl Tail {
    /// Three buckets with so many units, and a waiter at each for `wants`.
    pub(crate) fn new(stock: [u8; BUCKETS], wants: [u8; BUCKETS], trap: Option<Trap>) -> Tail {
        let waiters = (0..BUCKETS as u8).map(|at| (at, wants[usize::from(at)]));
        let plan = Plan {
            buckets: BUCKETS,
            regions: false,
            total: stock.iter().sum(),
            floors: [0; BUCKETS],
            keys: waiters.filter(|(_, units)| *units > 0).collect(),
            unswept: false,
            bound: 7,
            charters: Vec::new(),
            lands: [0; BUCKETS],
        };
        Tail { shelf: Shelf::new(plan), stock, trap }
    }

    fn has(&self, state: &State, bucket: usize) -> u8 {
        self.shelf.read(state.ledgers[bucket], 1).sellable
    }

    /// The key that waits at a bucket, and for how many units.
    fn waiter(&self, state: &State, bucket: usize) -> Option<(u8, u8)> {
        let keys = self.shelf.plan.keys.iter().zip(0_u8..);
        let mut here = keys.filter(|((at, _), _)| usize::from(*at) == bucket);
        let ((_, units), key) = here.next()?;
        let unknown =
            self.shelf.read(state.ledgers[bucket], 1).keys[usize::from(key)] == Key::Unknown;
        (unknown && state.told & 1 << key == 0).then_some((key, *units))
    }

    /// What a donor gives to a puller.
    fn gives(&self, state: &State, donor: usize, puller: usize) -> u8 {
        let has = self.has(state, donor);
        let Some((_, own)) = self.waiter(state, donor) else { return has };
        match self.trap {
            Some(Trap::DonorsGiveAll) => has,
            Some(Trap::DonorsKeepForTheirOwn) => has.saturating_sub(own),
            Some(_) | None if own <= has => has - own,
            Some(_) | None if puller < donor => has,
            Some(_) | None => 0,
        }
    }

    /// Whether a thirsty bucket may pull now: nothing is on its way to it.
    fn pull(&mut self, state: &State, from: usize, to: usize, units: u8) -> Option<State> {
        let sent = self.shelf.read(state.ledgers[from], 1).sent[to];
        let step = Step::Send { to: to as u8, units, if_sent: sent, acked: sent };
        let (donor, said) = self.shelf.ask(state.ledgers[from], step);
        let Said::Sent { sent, floor } = said else { return None };
        let mut next = *state;
        next.ledgers[from] = donor;
        let accept = Step::Accept { life: 1, from: from as u8, sent, floor };
        next.ledgers[to] = self.shelf.ask(state.ledgers[to], accept).0;
        Some(next)
    }

    fn serve(&mut self, state: &State, bucket: usize) -> Option<State> {
        let (key, units) = self.waiter(state, bucket)?;
        if self.has(state, bucket) < units {
            return None;
        }
        let mut next = *state;
        next.ledgers[bucket] = self.shelf.ask(state.ledgers[bucket], Step::Place { key }).0;
        Some(next)
    }

    /// The best-ranked waiter that has gathered everything is told if that is too little.
    fn tell(&self, state: &State, bucket: usize) -> Option<State> {
        let (key, units) = self.waiter(state, bucket)?;
        let best = (0..bucket).all(|other| self.waiter(state, other).is_none());
        let all: u8 = (0..BUCKETS).map(|at| self.has(state, at)).sum();
        let gathered = self.has(state, bucket) == all;
        (best && gathered && all < units).then_some(State { told: state.told | 1 << key, ..*state })
    }

    /// One round in which every leader acts on what it saw at its beginning.
    fn round(&mut self, state: &State) -> State {
        let seen = *state;
        let mut now = *state;
        for to in 0..BUCKETS {
            let Some((_, wants)) = self.waiter(&seen, to) else { continue };
            if self.has(&seen, to) >= wants {
                continue;
            }
            for from in (0..BUCKETS).filter(|from| *from != to) {
                let units = self.gives(&seen, from, to).min(self.has(&now, from));
                if units > 0 {
                    now = self.pull(&now, from, to, units).unwrap_or(now);
                }
            }
        }
        for bucket in 0..BUCKETS {
            now = self.serve(&now, bucket).or_else(|| self.tell(&now, bucket)).unwrap_or(now);
        }
        now
    }
}

impl Machine for Tail {
    type State = State;
    type Move = Move;

    fn start(&mut self) -> State {
        let mut state = State { ledgers: [0; BUCKETS], told: 0 };
        for bucket in 0..BUCKETS {
            state.ledgers[bucket] = self.shelf.empty(bucket);
        }
        state.ledgers[0] = self.shelf.ask(state.ledgers[0], Step::Define).0;
        for to in 1..BUCKETS {
            let image = Step::Configure { life: 1, revision: 1, open: true };
            state.ledgers[to] = self.shelf.ask(state.ledgers[to], image).0;
            let units = self.stock[to];
            if units > 0 {
                state = self.pull(&state, 0, to, units).expect("all is in bucket 0");
            }
        }
        state
    }

    fn moves(&mut self, state: &State, out: &mut Moves<Self>) {
        for bucket in 0..BUCKETS {
            let number = bucket as u8;
            out.extend(self.serve(state, bucket).map(|next| (Move::Serve(number), Ok(next))));
            out.extend(self.tell(state, bucket).map(|next| (Move::Tell(number), Ok(next))));
            let Some((_, wants)) = self.waiter(state, bucket) else { continue };
            if self.has(state, bucket) >= wants {
                continue;
            }
            for from in (0..BUCKETS).filter(|from| *from != bucket) {
                let units = self.gives(state, from, bucket);
                let next = if units > 0 { self.pull(state, from, bucket, units) } else { None };
                let pull = Move::Pull { from: from as u8, to: number, units };
                out.extend(next.map(|next| (pull, Ok(next))));
            }
        }
    }

    fn check(&mut self, state: &State) -> Result<(), String> {
        let mut now = *state;
        for _ in 0..ROUNDS {
            if (0..BUCKETS).all(|bucket| self.waiter(&now, bucket).is_none()) {
                return Ok(());
            }
            now = self.round(&now);
        }
        let left: Vec<u8> = (0..BUCKETS).map(|bucket| self.has(&now, bucket)).collect();
        Err(format!("somebody waits for ever, with {left:?} free"))
    }
}
