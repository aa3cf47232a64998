//! The machine of an item whose regions change while it sells: regions open, close and open again,
//! floors rise, fall and travel, the item is deleted, and a collector judges for one region whether
//! anything is left that it may take. The real ledger makes the layouts, the images and the copies;
//! the net delivers every image and every word of stock ever said, at any time, in any order.

use std::collections::HashSet;
use std::rc::Rc;

use crate::search::{Machine, Moves};
use crate::shelf::{BUCKETS, Plan, Reading, Said, Shelf, Step};
use crate::traps::Trap;

#[path = "verdict.rs"]
mod verdict;

use verdict::{Collect, Request};

/// Revisions that are told apart.
const REVISIONS: usize = 8;
/// Units that are ever sent from one bucket to another, at most.
const SENT_MAX: usize = 4;

/// What may happen in a run.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) called: &'static str,
    pub(crate) plan: Plan,
    /// How often the regions may change.
    pub(crate) changes: u8,
    /// Ordered pairs that trade one unit at a time, and how often.
    pub(crate) pairs: Vec<(usize, usize)>,
    pub(crate) sends: u8,
    /// Where the units are at the beginning.
    pub(crate) stock: [u8; BUCKETS],
    pub(crate) release: bool,
    pub(crate) deletion: bool,
    /// The bucket whose region's request is judged by the collector.
    pub(crate) collector: Option<usize>,
    pub(crate) trap: Option<Trap>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    ledgers: [u32; BUCKETS],
    /// Per pair, by S: 0, or 1 + F.
    said: [[u8; SENT_MAX]; BUCKETS * BUCKETS],
    /// Per pair, R that were answered, as bits.
    heard: [u8; BUCKETS * BUCKETS],
    /// By revision, 1 + the image that home made.
    images: [u8; REVISIONS],
    /// By revision, 1 + the charter in force.
    charters: [u8; REVISIONS],
    changes: u8,
    /// What copies have answered: a bit for each (revision, held).
    answers: [u32; BUCKETS],
    deleted: bool,
    collect: Collect,
    request: Request,
}

#[allow(dead_code, reason = "told in the path to a fault")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Move {
    Ask(u8, Step),
    Deliver { from: u8, to: u8, sent: u8 },
    Image { to: u8, revision: u8 },
    Answer { of: u8, revision: u8, held: u8 },
    RequestComes,
    CollectBegins,
    CollectReads(u8),
    NewCollector,
}

/// Buckets of an item whose regions change.
pub(crate) struct Charter {
    scene: Scene,
    pub(crate) shelf: Shelf,
    settles: HashSet<([u32; BUCKETS], u8)>,
}

type Found = Vec<(Move, Result<State, String>)>;

impl Charter {
    pub(crate) fn new(scene: Scene) -> Charter {
        let shelf = Shelf::new(scene.plan.clone());
        Charter { scene, shelf, settles: HashSet::new() }
    }

    fn buckets(&self) -> usize {
        self.scene.plan.buckets
    }

    fn is(&self, trap: Trap) -> bool {
        self.scene.trap == Some(trap)
    }

    fn read(&self, state: &State, bucket: usize) -> Rc<Reading> {
        self.shelf.read(state.ledgers[bucket], 1)
    }

    fn readings(&self, state: &State) -> Vec<Rc<Reading>> {
        (0..self.buckets()).map(|bucket| self.read(state, bucket)).collect()
    }

    fn ask(&mut self, state: &State, bucket: usize, step: Step) -> (State, Said) {
        let (ledger, said) = self.shelf.ask(state.ledgers[bucket], step);
        let mut next = *state;
        next.ledgers[bucket] = ledger;
        (next, said)
    }

    /// Home's ledger has changed: what it tells the copies is in the net from now on.
    fn told(&mut self, before: &State, mut next: State, charter: u8) -> State {
        let home = self.read(&next, 0);
        if !home.present || home.config == self.read(before, 0).config {
            return next;
        }
        let at = usize::from(home.config);
        assert!(at < REVISIONS, "revisions are for the run");
        next.charters[at] = charter;
        for bucket in 1..self.buckets() {
            if let Some((image, revision)) = self.shelf.image_of(next.ledgers[0], bucket) {
                assert_eq!(revision, home.config, "an image is of what home wants");
                next.images[at] = 1 + image;
            }
        }
        next
    }

    /// The charter that was in force at a revision; its last change up to there.
    fn charter_at(state: &State, revision: u8) -> usize {
        let known = state.charters[..=usize::from(revision).min(REVISIONS - 1)].iter();
        usize::from(known.rev().find(|charter| **charter > 0).map_or(1, |charter| *charter)) - 1
    }

    /// Whether the shard of a bucket knows its region to be closed.
    fn is_closed(&self, state: &State, bucket: usize) -> bool {
        let revision = usize::from(self.read(state, bucket).revision);
        let image = state.images[..=revision.min(REVISIONS - 1)].iter().rev().find(|at| **at > 0);
        image.is_some_and(|image| self.shelf.image_has(image - 1, bucket) == Some(true))
    }

    fn image(&mut self, state: &State, to: usize, revision: u8) -> Option<State> {
        let image = state.images[usize::from(revision)].checked_sub(1)?;
        let closed = self.shelf.image_has(image, to)?;
        let mut asked = revision;
        if self.is(Trap::FloorGrantedByAnOldImage) {
            asked = self.read(state, to).revision.max(revision) + 1;
            if usize::from(asked) >= REVISIONS {
                return None;
            }
        }
        let (mut next, said) = self.ask(state, to, Step::Image { image, revision: asked });
        if let Said::Copy { revision, held } = said {
            next.answers[to] |= 1 << (revision * 4 + held.min(3));
        }
        if self.is(Trap::StockOfClosedRegionLost) && closed {
            next = self.ask(&next, to, Step::Erase { life: 1 }).0;
        }
        Some(next)
    }

    fn send(
        &mut self,
        state: &State,
        from: usize,
        to: usize,
        if_sent: u8,
    ) -> Result<State, String> {
        let before = self.read(state, from);
        if before.sent[to] >= self.scene.sends {
            return Ok(*state);
        }
        let step = Step::Send { to: to as u8, units: 1, if_sent, acked: 0 };
        let (mut next, said) = self.ask(state, from, step);
        let Said::Sent { sent, floor } = said else { return Ok(next) };
        next.said[pair(from, to)][usize::from(sent)] = 1 + floor;
        if self.scene.plan.region(from) != self.scene.plan.region(to) {
            self.lent(&next, from)?;
        }
        Ok(next)
    }

    /// What a region keeps after it has lent: each bucket its share of the floor, and all of them
    /// together theirs, unless one had less than its share before.
    fn lent(&self, state: &State, from: usize) -> Result<(), String> {
        let readings = self.readings(state);
        let donor = &readings[from];
        if donor.units() - donor.earmarked < donor.floor {
            return Err(format!("bucket {from} lent below its floor: {donor:?}"));
        }
        let region = self.scene.plan.region(from);
        let mine = |at: &usize| self.scene.plan.region(*at) == region;
        let here: Vec<usize> = (0..self.buckets()).filter(mine).collect();
        if here.iter().any(|at| readings[*at].units() < readings[*at].floor) {
            return Ok(());
        }
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
        if units < shares {
            return Err(format!("region {region} keeps {units} of a floor of {shares}"));
        }
        Ok(())
    }

    fn deliver(&mut self, state: &State, from: usize, to: usize, sent: u8) -> State {
        let mut floor = state.said[pair(from, to)][usize::from(sent)] - 1;
        if self.is(Trap::FloorLentTwice) {
            floor = self.read(state, to).floor_accepted[from];
        }
        let step = Step::Accept { life: 1, from: from as u8, sent, floor };
        if self.is(Trap::LateTransferToClosedRegion) && self.is_closed(state, to) {
            let mut next = *state;
            next.heard[pair(from, to)] |= 1 << sent;
            return next;
        }
        let (mut next, said) = self.ask(state, to, step);
        if let Said::Accepted(accepted) = said {
            next.heard[pair(from, to)] |= 1 << accepted;
        }
        next
    }

    fn settle(&mut self, state: &State, from: usize, to: usize, accepted: u8) -> State {
        self.ask(state, from, Step::Settle { life: 1, to: to as u8, accepted }).0
    }

    /// Nobody does anything else: home's newest image and what donors know not to be accepted are
    /// repeated until nobody has anything to say.
    fn quiet(&mut self, state: &State) -> State {
        let mut now = *state;
        loop {
            let before = now;
            let config = self.read(&now, 0).config;
            for to in 1..self.buckets() {
                now = self.image(&now, to, config).unwrap_or(now);
            }
            for (from, to) in self.scene.pairs.clone() {
                let reading = self.read(&now, from);
                let sent = reading.sent[to];
                if sent == reading.acked[to] {
                    continue;
                }
                now.said[pair(from, to)][usize::from(sent)] = 1 + reading.floor_sent[to];
                now = self.deliver(&now, from, to, sent);
                let heard = now.heard[pair(from, to)];
                let newest = (0..SENT_MAX as u8).rev().find(|r| heard & 1 << r != 0).unwrap_or(0);
                now = self.settle(&now, from, to, newest);
            }
            if now == before {
                return now;
            }
        }
    }

    fn check_settles(&mut self, state: &State) -> Result<(), String> {
        let home = self.read(state, 0);
        let newest = state.images[usize::from(home.config)];
        let known = (state.ledgers, newest);
        if !home.present || (self.scene.trap.is_none() && self.settles.contains(&known)) {
            return Ok(());
        }
        // From here on, whoever goes on by itself brings every copy up and settles every pair.
        let forged = self.is(Trap::FloorGrantedByAnOldImage);
        let end = if forged { *state } else { self.quiet(state) };
        let readings = self.readings(&end);
        for (from, to) in self.scene.pairs.clone().into_iter().filter(|_| !forged) {
            let (s, a) = (readings[from].sent[to], readings[from].acked[to]);
            let r = readings[to].accepted[from];
            if s != a || s != r {
                return Err(format!("{from} to {to} never settles: S={s} A={a} R={r}"));
            }
        }
        self.settles.insert(known);
        Ok(())
    }

    fn laws(&self, state: &State) -> Result<(), String> {
        let readings = self.readings(state);
        if let Some(at) = readings.iter().position(|reading| !reading.law_holds) {
            return Err(format!("the law of bucket {at} is broken: {:?}", readings[at]));
        }
        let held: u8 = readings.iter().map(|reading| reading.held).sum();
        let Some(total) = readings[0].total else {
            let open = readings.iter().any(|reading| reading.present && reading.open);
            return match held {
                0 if open => Err("a copy of an item that is deleted is open".into()),
                0 => Ok(()),
                held => Err(format!("{held} units are held of an item that is deleted")),
            };
        };
        let mut sum: i16 = readings.iter().map(|reading| i16::from(reading.units())).sum();
        for (from, to) in &self.scene.pairs {
            let between =
                i16::from(readings[*from].sent[*to]) - i16::from(readings[*to].accepted[*from]);
            if between < 0 {
                return Err(format!("{to} accepted more than {from} sent"));
            }
            sum += between;
        }
        if sum != i16::from(total) {
            return Err(format!("{sum} units are there of {total}"));
        }
        self.floors(state, &readings)
    }

    /// Each region's floor is where it was granted, or travels: what its buckets keep of it, less
    /// what its first one owes, is the floor of the revision which that one knows.
    fn floors(&self, state: &State, readings: &[Rc<Reading>]) -> Result<(), String> {
        for region in 0..self.buckets() {
            let mine = |at: &usize| self.scene.plan.region(*at) == region;
            let here: Vec<usize> = (0..self.buckets()).filter(mine).collect();
            let Some(first) = here.first().map(|first| &readings[*first]) else { continue };
            if !first.present {
                continue;
            }
            let charter = &self.scene.plan.charters[Charter::charter_at(state, first.revision)];
            let granted = charter.get(region).map_or(0, |(_, floor)| i16::from(*floor));
            let mut shares = -i16::from(first.floor_owed);
            for at in &here {
                shares += i16::from(readings[*at].floor);
                for to in &here {
                    shares += i16::from(readings[*at].floor_sent[*to]);
                    shares -= i16::from(readings[*to].floor_accepted[*at]);
                }
            }
            if shares != granted {
                return Err(format!("the floor of region {region} is {shares}, not {granted}"));
            }
        }
        Ok(())
    }

    fn stock_moves(&mut self, state: &State, out: &mut Found) {
        for (from, to) in self.scene.pairs.clone() {
            let (at, f, t) = (pair(from, to), from as u8, to as u8);
            let first = if from == 0 { self.scene.stock[to] } else { 0 };
            for if_sent in 0..SENT_MAX as u8 {
                if if_sent == first || state.heard[at] & 1 << if_sent != 0 {
                    let step = Step::Send { to: t, units: 1, if_sent, acked: 0 };
                    out.push((Move::Ask(f, step), self.send(state, from, to, if_sent)));
                }
            }
            for sent in (1..SENT_MAX).filter(|sent| state.said[at][*sent] > 0) {
                let next = self.deliver(state, from, to, sent as u8);
                out.push((Move::Deliver { from: f, to: t, sent: sent as u8 }, Ok(next)));
            }
            for accepted in (1..SENT_MAX as u8).filter(|r| state.heard[at] & 1 << r != 0) {
                let step = Step::Settle { life: 1, to: t, accepted };
                out.push((Move::Ask(f, step), Ok(self.settle(state, from, to, accepted))));
            }
        }
    }

    fn buyers_moves(&mut self, state: &State, out: &mut Found) {
        for key in 0..self.scene.plan.keys.len() as u8 {
            let bucket = usize::from(self.scene.plan.keys[usize::from(key)].0);
            let releases = self.scene.release.then_some(Step::Release { key });
            for step in [Some(Step::Place { key }), releases].into_iter().flatten() {
                out.push((Move::Ask(bucket as u8, step), Ok(self.ask(state, bucket, step).0)));
            }
        }
    }

    fn home_moves(&mut self, state: &State, out: &mut Found) {
        let home = self.read(state, 0);
        if !home.present {
            return;
        }
        for charter in 0..self.scene.plan.charters.len() as u8 {
            if state.changes < self.scene.changes {
                let step = Step::SetLayout { charter };
                let mut next = self.ask(state, 0, step).0;
                if self.read(&next, 0).config > home.config {
                    next.changes += 1;
                    next = self.told(state, next, 1 + charter);
                }
                out.push((Move::Ask(0, step), Ok(next)));
            }
        }
        if self.scene.deletion {
            // What is begun and given up for ever has no end.
            let left = self.scene.changes - state.changes;
            let begins = (!home.deleting && usize::from(home.config + left) + 2 < REVISIONS)
                .then_some(Step::DeleteBegin { life: 1 });
            let ends = [Step::DeleteAbort { life: 1 }, Step::DeleteCommit { life: 1 }];
            for step in begins.into_iter().chain(ends) {
                let next = self.ask(state, 0, step).0;
                let mut next = self.told(state, next, 0);
                next.deleted |= !self.read(&next, 0).present;
                out.push((Move::Ask(0, step), Ok(next)));
            }
        }
    }

    fn copy_moves(&mut self, state: &State, out: &mut Found) {
        for to in 1..self.buckets() {
            for revision in 1..REVISIONS as u8 {
                if let Some(next) = self.image(state, to, revision) {
                    out.push((Move::Image { to: to as u8, revision }, Ok(next)));
                }
            }
            let mut answered: Vec<(u8, u8)> = (0..32_u8)
                .filter(|bit| state.answers[to] & 1 << bit != 0)
                .map(|bit| (bit / 4, bit % 4))
                .collect();
            if self.is(Trap::CopyThatNeverAnsweredPassedOver) && state.answers[to] == 0 {
                answered.push((self.read(state, 0).config, 0));
            }
            for (revision, held) in answered {
                let step = Step::Answered { life: 1, shard: to as u8, revision, held };
                let next = self.ask(state, 0, step).0;
                out.push((Move::Answer { of: to as u8, revision, held }, Ok(next)));
            }
            if state.deleted {
                let erase = Step::Erase { life: 1 };
                out.push((Move::Ask(to as u8, erase), Ok(self.ask(state, to, erase).0)));
            }
        }
    }
}

impl Machine for Charter {
    type State = State;
    type Move = Move;

    fn start(&mut self) -> State {
        let mut state = State {
            ledgers: [0; BUCKETS],
            said: [[0; SENT_MAX]; BUCKETS * BUCKETS],
            heard: [0; BUCKETS * BUCKETS],
            images: [0; REVISIONS],
            charters: [0; REVISIONS],
            changes: 0,
            answers: [0; BUCKETS],
            deleted: false,
            collect: Collect::default(),
            request: Request::new(self.scene.collector.is_some()),
        };
        for bucket in 0..self.buckets() {
            state.ledgers[bucket] = self.shelf.empty(bucket);
        }
        let before = state;
        let (next, said) = self.ask(&state, 0, Step::Define);
        assert_eq!(said, Said::Done, "created");
        state = self.told(&before, next, 1);
        for to in 1..self.buckets() {
            state = self.image(&state, to, 1).unwrap_or(state);
            for done in 0..self.scene.stock[to] {
                let step = Step::Send { to: to as u8, units: 1, if_sent: done, acked: done };
                let (next, said) = self.ask(&state, 0, step);
                let Said::Sent { sent, floor } = said else { panic!("{said:?}") };
                let accept = Step::Accept { life: 1, from: 0, sent, floor };
                state = self.ask(&next, to, accept).0;
                state = self.settle(&state, 0, to, sent);
            }
        }
        state
    }

    fn moves(&mut self, state: &State, out: &mut Moves<Self>) {
        let mut found = Vec::new();
        self.stock_moves(state, &mut found);
        self.buyers_moves(state, &mut found);
        self.home_moves(state, &mut found);
        self.copy_moves(state, &mut found);
        self.collector_moves(state, &mut found);
        for (step, next) in found {
            let next = next.map(|next| self.looked_at(next));
            if next.as_ref().is_err() || next.as_ref().is_ok_and(|next| next != state) {
                out.push((step, next));
            }
        }
    }

    fn check(&mut self, state: &State) -> Result<(), String> {
        self.laws(state)?;
        self.check_settles(state)
    }
}

/// The place of an ordered pair.
fn pair(from: usize, to: usize) -> usize {
    from * BUCKETS + to
}
