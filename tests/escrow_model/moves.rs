//! What may happen next to buckets that trade.

use super::*;

impl Machine for Trade {
    type State = State;
    type Move = Move;

    fn start(&mut self) -> State {
        let mut state = State {
            ledgers: [0; BUCKETS],
            said: [[0; 8]; PAIRS],
            heard: [0; PAIRS],
            extra: [0; PAIRS],
            images: [0; 8],
            answers: [0; BUCKETS],
            life: 1,
            old: [0; PAIRS],
            collect: Collect::default(),
            request: if self.scene.collector { Request::Coming } else { Request::Answered },
            audit: [if self.scene.auditor { UNREAD } else { 0 }; BUCKETS],
            told: self.scene.plan.total,
        };
        for bucket in 0..self.buckets() {
            state.ledgers[bucket] = self.shelf.empty(bucket);
        }
        state = self.create(&state);
        for to in 1..self.buckets() {
            let units = self.scene.stock[to];
            for done in 0..units {
                let step = Step::Send { to: to as u8, units: 1, if_sent: done, acked: done };
                let (next, said) = self.ask(&state, 0, step);
                assert!(matches!(said, Said::Sent { .. }), "the bound is for the run: {said:?}");
                let accept = Step::Accept { life: 1, from: 0, sent: done + 1, floor: 0 };
                state = self.ask(&next, to, accept).0;
                let settle = Step::Settle { life: 1, to: to as u8, accepted: done + 1 };
                state = self.ask(&state, 0, settle).0;
            }
        }
        for key in 0..self.scene.placed {
            let bucket = usize::from(self.scene.plan.keys[usize::from(key)].0);
            let (next, said) = self.ask(&state, bucket, Step::Place { key });
            assert_eq!(said, Said::Done, "a key is placed before the beginning");
            state = next;
        }
        state
    }

    fn moves(&mut self, state: &State, out: &mut Moves<Self>) {
        let mut found = Vec::new();
        self.stock_moves(state, &mut found);
        self.buyers_moves(state, &mut found);
        self.item_moves(state, &mut found);
        self.copy_moves(state, &mut found);
        self.collector_moves(state, &mut found);
        self.auditor_moves(state, &mut found);
        for (step, next) in found {
            let next = next.map(|mut next| {
                if next.request == (Request::Waits { empty: false }) {
                    next.request = Request::Waits { empty: self.free(&next) == 0 };
                }
                next
            });
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

/// The greatest revision at which a lowering begins.
const REVISIONS_MAX: u8 = 4;

type Found = Vec<(Move, Result<State, String>)>;

impl Trade {
    /// Creates the item, with all its copies.
    pub(super) fn create(&mut self, state: &State) -> State {
        let (mut state, said) = self.ask(state, 0, Step::Define);
        assert_eq!(said, Said::Done, "created");
        let life = state.life;
        state.images = [0; 8];
        state.images[1] = 1;
        state.answers = [0; BUCKETS];
        for shard in 1..self.buckets() {
            let image = Step::Configure { life, revision: 1, open: true };
            let (next, said) = self.ask(&state, shard, image);
            assert_eq!(said, Said::Copy { revision: 1, held: 0 }, "configured");
            let answered = Step::Answered { life, shard: shard as u8, revision: 1, held: 0 };
            state = self.ask(&next, 0, answered).0;
            // The answer is said, so it may come again.
            state.answers[shard] |= 1 << 4;
        }
        state
    }

    fn stock_moves(&mut self, state: &State, out: &mut Found) {
        for (from, to) in self.scene.pairs.clone() {
            let at = pair(from, to);
            let (f, t) = (from as u8, to as u8);
            for if_sent in 0..8_u8 {
                let named =
                    if_sent == self.first_named(from, to) || state.heard[at] & 1 << if_sent != 0;
                for units in self.scene.pulls.clone().into_iter().filter(|_| named) {
                    let next = self.send(state, from, to, units, if_sent);
                    let step = Step::Send { to: t, units, if_sent, acked: 0 };
                    out.push((Move::Ask(f, step), Ok(next)));
                }
            }
            for sent in (1..8).filter(|sent| state.said[at][*sent] > 0) {
                let next = self.deliver(state, from, to, sent as u8);
                out.push((Move::Deliver { from: f, to: t, sent: sent as u8 }, Ok(next)));
                if self.is(Trap::BucketNumberUsedAgain) {
                    // Bucket 2 is called as bucket 1 was.
                    let floor = state.said[at][sent] - 1;
                    let step = Step::Accept { life: 1, from: f, sent: sent as u8, floor };
                    let other = if to == 1 { 2 } else { to };
                    out.push((Move::Ask(other as u8, step), Ok(self.ask(state, other, step).0)));
                }
            }
            for accepted in (1..8).filter(|accepted| state.heard[at] & 1 << accepted != 0) {
                let next = self.settle(state, from, to, accepted);
                let step = Step::Settle { life: state.life, to: t, accepted };
                out.push((Move::Ask(f, step), Ok(next)));
            }
            self.trapped_stock_moves(state, (from, to), out);
        }
        self.old_moves(state, out);
    }

    /// R of a pair at the beginning, which a pull may name too.
    fn first_named(&self, from: usize, to: usize) -> u8 {
        if from == 0 { self.scene.stock[to] } else { 0 }
    }

    fn trapped_stock_moves(&mut self, state: &State, (from, to): (usize, usize), out: &mut Found) {
        let at = pair(from, to);
        let reading = self.read(state, from);
        let open = reading.sent[to] - reading.acked[to];
        let refused = self.is(Trap::RefusalNotLogged) && self.read(state, to).sellable > 0;
        if open > 0 && (refused || self.is(Trap::TakeBackByTimeout)) {
            let back = Step::Accept {
                life: 1,
                from: to as u8,
                sent: reading.accepted[to] + open,
                floor: reading.floor_accepted[to],
            };
            let (mut next, _) = self.ask(state, from, back);
            next.extra[at] += open;
            let sent = reading.sent[to];
            let step = Step::Settle { life: 1, to: to as u8, accepted: sent };
            next = self.ask(&next, from, step).0;
            out.push((Move::TakeBack { from: from as u8, to: to as u8 }, Ok(next)));
        }
        let may = reading.sellable > 0 && reading.sent[to] == reading.acked[to];
        if self.is(Trap::SentAtProposal) && may {
            let mut next = *state;
            next.said[at][usize::from(reading.sent[to] + 1)] = 1 + reading.floor_sent[to];
            let step = Move::Propose { from: from as u8, to: to as u8, units: 1 };
            out.push((step, Ok(next)));
        }
        if self.is(Trap::CountersStartAgainWithLeader) {
            out.push((Move::NewLeader(to as u8), Ok(self.forget(state, to))));
        }
    }

    /// A receiver's counters start again.
    fn forget(&self, state: &State, to: usize) -> State {
        let mut next = *state;
        for (from, _) in self.scene.pairs.iter().filter(|(_, other)| *other == to) {
            next.extra[pair(*from, to)] = self.read(state, to).accepted[*from];
        }
        next
    }

    /// What was said in the first life comes in the second.
    fn old_moves(&mut self, state: &State, out: &mut Found) {
        let life = if self.is(Trap::MessageWithoutItemNumber) { 2 } else { 1 };
        for (from, to) in self.scene.pairs.clone() {
            for sent in (1..8_u8).filter(|sent| state.old[pair(from, to)] & 1 << sent != 0) {
                let step = Step::Accept { life, from: from as u8, sent, floor: 0 };
                out.push((Move::Ask(to as u8, step), Ok(self.ask(state, to, step).0)));
            }
        }
    }

    fn buyers_moves(&mut self, state: &State, out: &mut Found) {
        for key in 0..self.scene.plan.keys.len() as u8 {
            let bucket = usize::from(self.scene.plan.keys[usize::from(key)].0);
            let mut steps = vec![Step::Place { key }];
            steps.extend(self.scene.release.then_some(Step::Release { key }));
            steps.extend(self.scene.confirm.then_some(Step::Confirm { key }));
            for step in steps {
                let next = self.ask(state, bucket, step).0;
                out.push((Move::Ask(bucket as u8, step), Ok(next)));
            }
        }
        let expiring = if self.scene.expire { self.buckets() } else { 0 };
        for bucket in 0..expiring {
            let live = self.read(state, bucket).keys.contains(&Key::Live);
            if live {
                let next = self.ask(state, bucket, Step::Expire).0;
                out.push((Move::Ask(bucket as u8, Step::Expire), Ok(next)));
            }
        }
    }

    fn item_moves(&mut self, state: &State, out: &mut Found) {
        let home = self.read(state, 0);
        let mut steps: Vec<Step> = (0..self.scene.raises).map(|op| Step::Raise { op }).collect();
        if self.scene.lower > 0 {
            let units = self.scene.lower;
            // What is begun and given up for ever has no end.
            let begin = Step::LowerBegin { units };
            steps.extend((home.revision < REVISIONS_MAX).then_some(begin));
            steps.extend([Step::LowerCommit, Step::LowerAbort]);
        }
        let life = state.life;
        if home.present && home.config < self.scene.revisions {
            steps.extend([Step::SetMode { open: true }, Step::SetMode { open: false }]);
            if self.scene.deletion {
                steps.extend([Step::DeleteBegin { life }, Step::DeleteAbort { life }]);
            }
        }
        if self.scene.deletion {
            steps.push(Step::DeleteCommit { life });
        }
        for step in steps {
            let (mut next, _) = self.ask(state, 0, step);
            let now = self.read(&next, 0);
            if let Some(total) = now.total {
                next.told = total;
            }
            if self.is(Trap::TotalLoweredFirst) && now.lowering {
                next.told = self.scene.plan.total - self.scene.lower;
            }
            if now.config > home.config && now.present {
                next.images[usize::from(now.config)] = if now.open { 1 } else { 2 };
            }
            out.push((Move::Ask(0, step), Ok(next)));
        }
        if self.scene.second_life && !home.present && life == 1 {
            out.push((Move::SecondLife, Ok(self.second_life(state))));
        }
    }

    fn second_life(&mut self, state: &State) -> State {
        let mut next = *state;
        next.life = 2;
        next.told = self.scene.plan.total;
        for at in 0..PAIRS {
            let said = (0..8).filter(|sent| state.said[at][*sent] > 0);
            next.old[at] = said.fold(0, |bits, sent| bits | 1 << sent);
            (next.said[at], next.heard[at]) = ([0; 8], 0);
        }
        self.create(&next)
    }

    fn copy_moves(&mut self, state: &State, out: &mut Found) {
        let life = state.life;
        for shard in 1..self.buckets() {
            for image in (2..8_u8).filter(|revision| state.images[usize::from(*revision)] > 0) {
                let open = state.images[usize::from(image)] == 1;
                let mut revision = image;
                if self.is(Trap::ModeWithoutRevision) {
                    revision = self.read(state, shard).revision.max(image) + 1;
                }
                if revision > 7 {
                    continue;
                }
                let step = Step::Configure { life, revision, open };
                let (mut next, said) = self.ask(state, shard, step);
                if let Said::Copy { revision, held } = said {
                    let known = if self.is(Trap::ModeWithoutRevision) { image } else { revision };
                    next.answers[shard] |= 1 << (known * 4 + held.min(3));
                }
                if self.is(Trap::CountersForgottenAtClose) && !open {
                    next = self.forget(&next, shard);
                }
                out.push((Move::Image { shard: shard as u8, revision: image }, Ok(next)));
            }
            for bit in (0..32_u8).filter(|bit| state.answers[shard] & 1 << bit != 0) {
                let (mut revision, held) = (bit / 4, bit % 4);
                if self.is(Trap::AnswerForAnotherRevision) {
                    revision = self.read(state, 0).config;
                }
                let step = Step::Answered { life, shard: shard as u8, revision, held };
                let next = self.ask(state, 0, step).0;
                let said = Move::Answer { shard: shard as u8, revision: bit / 4, held };
                out.push((said, Ok(next)));
            }
            let deleted = self.shelf.read(state.ledgers[0], 1).total.is_none();
            if self.scene.deletion && deleted {
                let next = self.ask(state, shard, Step::Erase { life: 1 }).0;
                out.push((Move::Ask(shard as u8, Step::Erase { life: 1 }), Ok(next)));
                if !self.shelf.read(state.ledgers[shard], 1).present {
                    let erased = Step::Erased { life: 1, shard: shard as u8 };
                    let next = self.ask(state, 0, erased).0;
                    out.push((Move::Ask(0, erased), Ok(next)));
                }
            }
        }
    }

    fn collector_moves(&mut self, state: &State, out: &mut Found) {
        if !self.scene.collector || state.request == Request::Answered {
            return;
        }
        if state.request == Request::Coming {
            let mut next = *state;
            next.request = Request::Waits { empty: false };
            next.collect.fresh = false;
            out.push((Move::RequestComes, Ok(next)));
        }
        if state.collect.round == 0 {
            let mut next = *state;
            next.collect.round = 1;
            next.collect.fresh = state.request != Request::Coming;
            out.push((Move::CollectBegins, Ok(next)));
            return;
        }
        for bucket in (0..self.buckets()).filter(|at| state.collect.read & 1 << at == 0) {
            out.push((Move::CollectReads(bucket as u8), self.collect(state, bucket)));
        }
        let mut next = *state;
        next.collect = Collect { began: next.collect.began, ..Collect::default() };
        out.push((Move::NewLeader(0), Ok(next)));
        for bucket in (0..self.buckets()).filter(|_| self.is(Trap::CreditsInMemory)) {
            let mut next = *state;
            next.collect.began[bucket] = self.read(state, bucket).credits;
            out.push((Move::NewLeader(bucket as u8), Ok(next)));
        }
    }

    /// The collector reads one bucket; two rounds of nothing make a verdict.
    fn collect(&self, state: &State, bucket: usize) -> Result<State, String> {
        let mut next = *state;
        let reading = self.read(state, bucket);
        let collect = &mut next.collect;
        let given_up = Collect { began: collect.began, ..Collect::default() };
        let mut free = reading.sellable;
        if self.is(Trap::DueHoldsLeftOut) {
            free -= reading.due.min(free);
        }
        let leaves = reading.in_transit > 0 && !self.is(Trap::InTransitLeftOut);
        let mut credits = reading.credits - collect.began[bucket].min(reading.credits);
        if self.is(Trap::CollectOverTransferCounters) {
            credits = reading.sent.iter().chain(&reading.accepted).sum();
        }
        let late = self.is(Trap::AnswerOfAnotherRound) && collect.round == 2;
        let out = self.is(Trap::BucketZeroLeftOut) && bucket == 0;
        if late || out {
            (free, credits) = (0, collect.credits[bucket]);
        }
        let nothing = free == 0 && (!leaves || late || out);
        if !nothing || (collect.round == 2 && credits != collect.credits[bucket]) {
            *collect = given_up;
            return Ok(next);
        }
        collect.read |= 1 << bucket;
        collect.credits[bucket] = credits;
        if collect.read.count_ones() < self.buckets() as u32 {
            return Ok(next);
        }
        collect.read = 0;
        let last = if self.is(Trap::OneRoundOfZeros) { 1 } else { 2 };
        if collect.round < last {
            collect.round += 1;
            return Ok(next);
        }
        let fresh = collect.fresh || self.is(Trap::JoiningARunningCollect);
        *collect = given_up;
        match state.request {
            Request::Waits { empty: false } if fresh => {
                Err("sold out, though something was free all along".into())
            }
            Request::Waits { .. } if fresh => {
                next.request = Request::Answered;
                Ok(next)
            }
            Request::Waits { .. } | Request::Coming | Request::Answered => Ok(next),
        }
    }

    /// The auditor reads each bucket once, at any time, and adds up.
    fn auditor_moves(&mut self, state: &State, out: &mut Found) {
        for bucket in (0..self.buckets()).filter(|at| state.audit[*at] == UNREAD) {
            let mut next = *state;
            next.audit[bucket] = state.ledgers[bucket];
            let audited = if next.audit[..self.buckets()].contains(&UNREAD) {
                Ok(())
            } else {
                self.audit(&next)
            };
            out.push((Move::Audits(bucket as u8), audited.map(|()| next)));
        }
    }

    fn audit(&self, state: &State) -> Result<(), String> {
        let reads: Vec<_> =
            (0..self.buckets()).map(|at| self.shelf.read(state.audit[at], 1)).collect();
        let mut sum: i16 = reads.iter().map(|read| i16::from(read.units())).sum();
        for (from, to) in (0..PAIRS).map(|pair| (pair / BUCKETS, pair % BUCKETS)) {
            if from == to || from.max(to) >= reads.len() {
                continue;
            }
            let accepted = if self.is(Trap::AuditByDonorsCounters) {
                reads[from].acked[to]
            } else {
                reads[to].accepted[from]
            };
            sum += i16::from(reads[from].sent[to]) - i16::from(accepted);
        }
        let total = reads[0].total.map_or(0, i16::from);
        if sum == total { Ok(()) } else { Err(format!("the audit finds {sum} units of {total}")) }
    }
}
