//! The machine of buckets that trade: leaders that forget, a network that delivers anything ever
//! said at any time and any number of times, buyers, lowerings, modes, deletions, a collector that
//! judges whether all is sold out, and an auditor. Every rule but the trap is the ledger's own.
//!
//! A message says a value that a counter has had. Since every leader may say its counters at any
//! time, the net holds, for each pair, every value that S and R ever had.

use std::collections::HashSet;

use crate::search::{Machine, Moves};
use crate::shelf::{BUCKETS, Key, Plan, Reading, Said, Shelf, Step};
use crate::traps::Trap;

#[path = "moves.rs"]
mod moves;

/// Nobody has read this bucket.
const UNREAD: u32 = u32::MAX;
const PAIRS: usize = BUCKETS * BUCKETS;

/// What may happen in a run.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) called: &'static str,
    pub(crate) plan: Plan,
    /// Units in each bucket at the beginning, brought there by transfers.
    pub(crate) stock: [u8; BUCKETS],
    /// Keys that are placed before the beginning.
    pub(crate) placed: u8,
    /// Ordered pairs that trade, and how much a pull asks for.
    pub(crate) pairs: Vec<(usize, usize)>,
    pub(crate) pulls: Vec<u8>,
    /// The most units that are ever sent from one to another.
    pub(crate) sends: u8,
    pub(crate) release: bool,
    pub(crate) confirm: bool,
    pub(crate) expire: bool,
    pub(crate) raises: u8,
    pub(crate) lower: u8,
    /// The greatest revision that modes and deletions go up to; 1: none.
    pub(crate) revisions: u8,
    pub(crate) deletion: bool,
    /// Whether the name is taken again after a deletion.
    pub(crate) second_life: bool,
    pub(crate) collector: bool,
    pub(crate) auditor: bool,
    pub(crate) trap: Option<Trap>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    ledgers: [u32; BUCKETS],
    /// Per pair, by S: 0, or 1 + what goes with it (F; the quantity where a trap says so).
    said: [[u8; 8]; PAIRS],
    /// Per pair, R that were answered, as bits.
    heard: [u8; PAIRS],
    /// What a trap remembers of a pair.
    extra: [u8; PAIRS],
    /// By revision: 0 none, 1 go, 2 stop.
    images: [u8; 8],
    /// What copies have answered: a bit for each (revision, held).
    answers: [u32; BUCKETS],
    life: u8,
    /// What was said in the first life.
    old: [u8; PAIRS],
    collect: Collect,
    request: Request,
    audit: [u32; BUCKETS],
    /// The total that an operator was told.
    told: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Collect {
    /// 0: none; 1, 2: which round is being read.
    round: u8,
    read: u8,
    credits: [u8; BUCKETS],
    /// Whether it began after the request came.
    fresh: bool,
    /// What the credits were when their leader began, where a trap counts from there.
    began: [u8; BUCKETS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Coming,
    /// Whether at some moment since it came nothing was free.
    Waits {
        empty: bool,
    },
    Answered,
}

#[allow(dead_code, reason = "told in the path to a fault")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Move {
    Ask(u8, Step),
    Deliver { from: u8, to: u8, sent: u8 },
    TakeBack { from: u8, to: u8 },
    Propose { from: u8, to: u8, units: u8 },
    NewLeader(u8),
    Image { shard: u8, revision: u8 },
    Answer { shard: u8, revision: u8, held: u8 },
    SecondLife,
    RequestComes,
    CollectBegins,
    CollectReads(u8),
    Audits(u8),
}

pub(crate) struct Trade {
    scene: Scene,
    pub(crate) shelf: Shelf,
    /// Ledgers from which quiet delivery is known to settle everything.
    settles: HashSet<[u32; BUCKETS]>,
}

impl Trade {
    pub(crate) fn new(scene: Scene) -> Trade {
        let shelf = Shelf::new(scene.plan.clone());
        Trade { scene, shelf, settles: HashSet::new() }
    }

    fn buckets(&self) -> usize {
        self.scene.plan.buckets
    }

    fn is(&self, trap: Trap) -> bool {
        self.scene.trap == Some(trap)
    }

    /// Whether parcels with sequences travel instead of running totals.
    fn parcels(&self) -> bool {
        self.is(Trap::HighestSequenceSeen) || self.is(Trap::SequenceChosenAtProposal)
    }

    /// Whether the receiver's counters may start again.
    fn forgets(&self) -> bool {
        self.is(Trap::CountersStartAgainWithLeader) || self.is(Trap::CountersForgottenAtClose)
    }

    fn read(&self, state: &State, bucket: usize) -> std::rc::Rc<Reading> {
        self.shelf.read(state.ledgers[bucket], state.life)
    }

    fn readings(&self, state: &State) -> Vec<std::rc::Rc<Reading>> {
        (0..self.buckets()).map(|bucket| self.read(state, bucket)).collect()
    }

    /// Asks a ledger and notes what follows for the messages.
    fn ask(&mut self, state: &State, bucket: usize, step: Step) -> (State, Said) {
        let (ledger, said) = self.shelf.ask(state.ledgers[bucket], step);
        let mut next = *state;
        next.ledgers[bucket] = ledger;
        (next, said)
    }

    /// A send by a pull that names `if_sent`.
    fn send(&mut self, state: &State, from: usize, to: usize, units: u8, if_sent: u8) -> State {
        let pair = pair(from, to);
        let reading = self.read(state, from);
        let blind = self.parcels() || self.is(Trap::PullWithoutCounter);
        let if_sent = if blind { reading.sent[to] } else { if_sent };
        if reading.sent[to] + units > self.scene.sends {
            return *state;
        }
        let step = Step::Send { to: to as u8, units, if_sent, acked: 0 };
        let (mut next, said) = self.ask(state, from, step);
        let Said::Sent { sent, floor } = said else { return next };
        let said = &mut next.said[pair];
        if self.parcels() {
            let count = said.iter().filter(|parcel| **parcel > 0).count();
            // Two leaders choose the same number for what both commit.
            let again = self.is(Trap::SequenceChosenAtProposal) && count > 0;
            said[if again { count } else { count + 1 }] = 1 + units;
        } else if self.is(Trap::MessageCarriesDifference) {
            said[usize::from(sent)] = 1 + units;
        } else {
            said[usize::from(sent)] = 1 + floor;
        }
        next
    }

    /// The message of a pair that says `sent`.
    fn deliver(&mut self, state: &State, from: usize, to: usize, sent: u8) -> State {
        let at = pair(from, to);
        let word = state.said[at][usize::from(sent)] - 1;
        let accepted = self.read(state, to).accepted[from];
        let (mut next, mut total, mut floor) = (*state, sent, word);
        if self.parcels() {
            if sent <= state.extra[at] {
                return next;
            }
            next.extra[at] = sent;
            (total, floor) = (accepted + word, 0);
        } else if self.is(Trap::MessageCarriesDifference) {
            (total, floor) = (accepted + word, 0);
        } else if self.forgets() {
            let known = accepted - state.extra[at];
            total = accepted + sent.saturating_sub(known);
        }
        if total > 7 {
            return next;
        }
        let step = Step::Accept { life: state.life, from: from as u8, sent: total, floor };
        let (mut next, said) = self.ask(&next, to, step);
        let heard = if self.parcels() { Said::Accepted(sent) } else { said };
        if let Said::Accepted(accepted) = heard {
            next.heard[at] |= 1 << accepted.min(7);
        }
        next
    }

    /// The donor hears that the receiver has accepted up to `accepted`.
    fn settle(&mut self, state: &State, from: usize, to: usize, accepted: u8) -> State {
        let mut accepted = accepted;
        let sent = self.read(state, from).sent[to];
        if self.is(Trap::SettleWithoutHowMuch) {
            accepted = sent;
        }
        if self.parcels() {
            let said = &state.said[pair(from, to)];
            let newest = said.iter().rposition(|parcel| *parcel > 0).unwrap_or(0);
            let upto = |last: usize| said[1..=last].iter().map(|p| p.saturating_sub(1)).sum();
            accepted = if usize::from(accepted) == newest { sent } else { upto(accepted.into()) };
        }
        let life = state.life;
        self.ask(state, from, Step::Settle { life, to: to as u8, accepted: accepted.min(sent) }).0
    }

    /// Nobody does anything else, and whatever was said is lost: donors say again what they know
    /// not to be accepted, and are answered, until nobody has anything to say.
    fn quiet(&mut self, state: &State) -> State {
        let mut now = *state;
        loop {
            let before = now;
            for (from, to) in self.scene.pairs.clone() {
                let reading = self.read(&now, from);
                let sent = reading.sent[to];
                if sent == reading.acked[to] {
                    continue;
                }
                let said = pair(from, to);
                let mut last = sent;
                if self.parcels() {
                    for parcel in 1..8 {
                        if now.said[said][usize::from(parcel)] > 0 {
                            now = self.deliver(&now, from, to, parcel);
                            last = parcel;
                        }
                    }
                } else {
                    let word = &mut now.said[said][usize::from(sent)];
                    *word = (*word).max(1 + reading.floor_sent[to]);
                    now = self.deliver(&now, from, to, sent);
                    last = self.read(&now, to).accepted[from];
                }
                now = self.settle(&now, from, to, last);
            }
            if now == before {
                return now;
            }
        }
    }

    /// From here on everything settles, if nobody does anything else.
    fn check_settles(&mut self, state: &State) -> Result<(), String> {
        let trapped = self.scene.trap.is_some();
        let alive = self.readings(state).iter().all(|reading| reading.present);
        if !alive || (!trapped && self.settles.contains(&state.ledgers)) {
            return Ok(());
        }
        let end = self.quiet(state);
        let readings = self.readings(&end);
        for (from, to) in &self.scene.pairs {
            let (donor, receiver) = (&readings[*from], &readings[*to]);
            let back = i16::from(self.taken_back(&end, *from, *to));
            let (s, a, r) = (donor.sent[*to], donor.acked[*to], receiver.accepted[*from]);
            let settled = i16::from(s) - back <= i16::from(r) && s == a;
            if !settled {
                return Err(format!("{from} to {to} never settles: S={s} A={a} R={r}"));
            }
        }
        self.settles.insert(state.ledgers);
        Ok(())
    }

    fn taken_back(&self, state: &State, from: usize, to: usize) -> u8 {
        let takes = self.is(Trap::RefusalNotLogged) || self.is(Trap::TakeBackByTimeout);
        if takes { state.extra[pair(from, to)] } else { 0 }
    }

    /// Units that are between two buckets: S − R, less what was taken back.
    fn between(
        &self,
        state: &State,
        readings: &[std::rc::Rc<Reading>],
        from: usize,
        to: usize,
    ) -> i16 {
        let (s, r) = (readings[from].sent[to], readings[to].accepted[from]);
        i16::from(s) - i16::from(r) - i16::from(self.taken_back(state, from, to))
            + i16::from(self.taken_back(state, to, from))
    }

    /// Units that nobody holds or has bought, wherever they are.
    fn free(&self, state: &State) -> i16 {
        let readings = self.readings(state);
        let pairs = self.scene.pairs.iter();
        let travels: i16 = pairs.map(|(a, b)| self.between(state, &readings, *a, *b)).sum();
        readings.iter().map(|reading| i16::from(reading.sellable)).sum::<i16>() + travels
    }

    fn laws(&self, state: &State) -> Result<(), String> {
        let readings = self.readings(state);
        if let Some(at) = readings.iter().position(|reading| !reading.law_holds) {
            return Err(format!("the law of bucket {at} is broken: {:?}", readings[at]));
        }
        let held: u8 = readings.iter().map(|reading| reading.held).sum();
        if state.life == 2 {
            let mut before = (0..self.buckets()).map(|at| self.shelf.read(state.ledgers[at], 1));
            if before.any(|reading| reading.held > 0) {
                return Err("something is held of an item that is deleted".into());
            }
        }
        let Some(total) = readings[0].total else {
            // Deleted: nothing may be held anywhere.
            return match held {
                0 => Ok(()),
                held => Err(format!("{held} units are held of an item that is deleted")),
            };
        };
        let sold: u8 = readings.iter().map(|reading| reading.sold).sum();
        if held + sold > total.min(state.told) {
            return Err(format!("oversold: {held} held, {sold} sold of {total}"));
        }
        let mut sum: i16 = readings.iter().map(|reading| i16::from(reading.units())).sum();
        for from in 0..self.buckets() {
            for to in (0..self.buckets()).filter(|to| *to != from) {
                let between = self.between(state, &readings, from, to);
                if between < 0 {
                    return Err(format!("{to} accepted more than {from} sent"));
                }
                let most = self.scene.pulls.iter().max().copied().unwrap_or(0);
                if between > most.into() && !self.parcels() && state.life == 1 {
                    return Err(format!("one pull of {to} drained {from} of {between}"));
                }
                sum += between;
            }
        }
        if sum != i16::from(total) {
            return Err(format!("{sum} units are there of {total}"));
        }
        self.floors(&readings)
    }

    /// No region comes below its floor by lending, and the floors are where they were granted.
    fn floors(&self, readings: &[std::rc::Rc<Reading>]) -> Result<(), String> {
        let count = if self.scene.plan.regions { self.buckets() } else { 1 };
        for region in 0..count {
            let floor = i16::from(self.scene.plan.floors[region]);
            let mine = |at: &usize| !self.scene.plan.regions || *at == region;
            let here: Vec<usize> = (0..self.buckets()).filter(mine).collect();
            let (mut units, mut shares) = (0_i16, 0_i16);
            for at in &here {
                units += i16::from(readings[*at].units());
                shares += i16::from(readings[*at].floor);
                for to in &here {
                    units += i16::from(readings[*at].sent[*to]);
                    units -= i16::from(readings[*to].accepted[*at]);
                    shares += i16::from(readings[*at].floor_sent[*to]);
                    shares -= i16::from(readings[*to].floor_accepted[*at]);
                }
            }
            if shares != floor {
                return Err(format!("the floor of region {region} is {shares}, not {floor}"));
            }
            if units < floor {
                return Err(format!("region {region} keeps {units} of a floor of {floor}"));
            }
        }
        Ok(())
    }
}

/// The place of an ordered pair.
pub(crate) fn pair(from: usize, to: usize) -> usize {
    from * BUCKETS + to
}
