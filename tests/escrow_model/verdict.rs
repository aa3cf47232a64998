//! The collector that judges for one region whether anything is left that it may take: the free
//! units of its own buckets, and of the others' what is above their floors.

use super::*;

/// How far a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Collect {
    /// 0: none; 1, 2: which round is being read.
    round: u8,
    read: u8,
    credits: [u8; BUCKETS],
    /// Whether it began after the request came.
    fresh: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Coming,
    /// Whether at some moment since it came there was nothing for it.
    Waits {
        empty: bool,
    },
    Answered,
}

impl Request {
    pub(super) fn new(comes: bool) -> Request {
        if comes { Request::Coming } else { Request::Answered }
    }
}

impl Charter {
    /// What a bucket could give to the region that asks.
    fn gives(&self, of: usize, to: usize, reading: &Reading) -> u8 {
        let own = self.scene.plan.region(of) == self.scene.plan.region(to);
        if own { reading.sellable } else { reading.lendable }
    }

    /// Everything that the region could take now, wherever it is; what travels may arrive.
    fn within_reach(&self, state: &State, to: usize) -> i16 {
        let readings = self.readings(state);
        let lies = readings.iter().enumerate().map(|(of, one)| i16::from(self.gives(of, to, one)));
        let travels = self.scene.pairs.iter().map(|(from, to)| {
            i16::from(readings[*from].sent[*to]) - i16::from(readings[*to].accepted[*from])
        });
        lies.sum::<i16>() + travels.sum::<i16>()
    }

    /// Notes whether there was a moment at which nothing was left for the request that waits.
    pub(super) fn looked_at(&self, mut state: State) -> State {
        if let (Some(to), Request::Waits { empty: false }) = (self.scene.collector, state.request) {
            state.request = Request::Waits { empty: self.within_reach(&state, to) == 0 };
        }
        state
    }

    pub(super) fn collector_moves(&self, state: &State, out: &mut Found) {
        let Some(to) = self.scene.collector else { return };
        if state.request == Request::Answered {
            return;
        }
        if state.request == Request::Coming {
            let mut next = *state;
            next.request = Request::Waits { empty: false };
            next.collect.fresh = false;
            out.push((Move::RequestComes, Ok(next)));
        }
        if state.collect.round == 0 {
            let fresh = state.request != Request::Coming;
            let collect = Collect { round: 1, fresh, ..Collect::default() };
            out.push((Move::CollectBegins, Ok(State { collect, ..*state })));
            return;
        }
        for bucket in (0..self.buckets()).filter(|at| state.collect.read & 1 << at == 0) {
            out.push((Move::CollectReads(bucket as u8), self.collect(state, to, bucket)));
        }
        out.push((Move::NewCollector, Ok(State { collect: Collect::default(), ..*state })));
    }

    /// One bucket is read; two rounds of nothing for the region make a verdict.
    fn collect(&self, state: &State, to: usize, bucket: usize) -> Result<State, String> {
        let mut next = *state;
        let reading = self.read(state, bucket);
        let (mut gives, mut leaves) = (self.gives(bucket, to, &reading), reading.in_transit > 0);
        let mut credits = reading.credits;
        if self.is(Trap::ClosedRegionsLeftOut) && self.is_closed(state, bucket) {
            (gives, leaves, credits) = (0, false, 0);
        }
        if self.is(Trap::LiftedFloorIsNoCredit) {
            // Nothing else is a credit where nothing moves.
            credits = 0;
        }
        let collect = &mut next.collect;
        let differs = collect.round == 2 && credits != collect.credits[bucket];
        if gives > 0 || leaves || differs {
            *collect = Collect::default();
            return Ok(next);
        }
        collect.read |= 1 << bucket;
        collect.credits[bucket] = credits;
        if collect.read.count_ones() < self.buckets() as u32 {
            return Ok(next);
        }
        collect.read = 0;
        if collect.round == 1 {
            collect.round = 2;
            return Ok(next);
        }
        let fresh = collect.fresh;
        *collect = Collect::default();
        match state.request {
            Request::Waits { empty: false } if fresh => {
                Err("sold out for the region, though something was left for it all along".into())
            }
            Request::Waits { .. } if fresh => {
                next.request = Request::Answered;
                Ok(next)
            }
            Request::Waits { .. } | Request::Coming | Request::Answered => Ok(next),
        }
    }
}
