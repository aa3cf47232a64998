//! An independent model of an item of several buckets, written naively from the protocol.
//!
//! Promises: signed numbers, vectors and linear scans; a bucket's share of its floor may be
//! negative (then it owes), which the ledger must show as none. No code of the ledger but the types
//! of its questions. Time stands still: what expiry does is the other models' part. Which bucket
//! owns a key is told by the driver.

use holdfast::ledger::*;

/// What becomes of an answer: its words, in short.
type Said = String;

#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) name: &'static str,
    pub(crate) plan: RegionPlan,
    pub(crate) closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Held,
    Sold,
    Released,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) shard: usize,
    pub(crate) region: usize,
    pub(crate) open: bool,
    pub(crate) available: i64,
    pub(crate) floor: i64,
    pub(crate) holds: Vec<(String, i64, State)>,
    /// By other bucket: S, F, A, R, RF.
    pub(crate) pairs: Vec<[i64; 5]>,
}

/// A shard's copy, or what an image makes of it; the home shard's own is the life itself.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) life: usize,
    pub(crate) revision: i64,
    pub(crate) mode: Mode,
    pub(crate) regions: Vec<Region>,
    pub(crate) buckets: usize,
    pub(crate) erased: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) total: i64,
    pub(crate) mode: Mode,
    pub(crate) revision: i64,
    pub(crate) config: i64,
    pub(crate) regions: Vec<Region>,
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) copies: Vec<Option<Copy>>,
    /// What home knows of each: revision and held units.
    pub(crate) answered: Vec<Option<(i64, i64)>>,
    pub(crate) deleting: Option<Mode>,
    pub(crate) lowering: Option<(String, Change, i64, Option<usize>)>,
    pub(crate) receipts: Vec<(String, Change)>,
    pub(crate) gone: bool,
}

#[derive(Default)]
pub(crate) struct Spread {
    pub(crate) lives: Vec<Life>,
}

fn no(why: &str) -> Said {
    format!("refused {why}")
}

impl Bucket {
    fn sum(&self, state: State) -> i64 {
        self.holds.iter().filter(|hold| hold.2 == state).map(|hold| hold.1).sum()
    }

    pub(crate) fn held(&self) -> i64 {
        self.sum(State::Held)
    }

    pub(crate) fn sold(&self) -> i64 {
        self.sum(State::Sold)
    }

    fn units(&self) -> i64 {
        self.available + self.held() + self.sold()
    }

    fn pair(&mut self, other: usize) -> &mut [i64; 5] {
        if self.pairs.len() <= other {
            self.pairs.resize(other + 1, [0; 5]);
        }
        &mut self.pairs[other]
    }
}

impl Life {
    fn earmarked(&self, bucket: usize) -> i64 {
        let Some((_, _, units, _)) = &self.lowering else { return 0 };
        if bucket > 0 {
            return 0;
        }
        let first = &self.buckets[0];
        (*units).min(first.available).min((first.units() - first.floor.max(0)).max(0))
    }

    pub(crate) fn sellable(&self, bucket: usize) -> i64 {
        self.buckets[bucket].available - self.earmarked(bucket)
    }

    fn item(&self, mark: &str) -> Said {
        let mode = format!("{:?}", self.mode).to_lowercase();
        format!("item total={} {mode}{mark}", self.total)
    }

    fn changed(&mut self, of_copies: bool) -> Said {
        self.revision += 1;
        if of_copies {
            self.config = self.revision;
        }
        self.item("")
    }

    /// Units held in the buckets of a shard.
    fn held_at(&self, shard: usize) -> i64 {
        self.buckets.iter().filter(|b| b.shard == shard).map(Bucket::held).sum()
    }

    /// Whether a bucket can be asked for anything.
    fn trades(&self, bucket: usize) -> bool {
        let Some(b) = self.buckets.get(bucket) else { return false };
        let erased = self.copies[b.shard].as_ref().is_some_and(|copy| copy.erased);
        let gone = self.gone && b.shard == 0;
        b.open && !erased && !gone
    }

    /// Mode and regions as a shard knows them.
    fn known_at(&self, shard: usize) -> (Mode, &[Region], usize) {
        match &self.copies[shard] {
            Some(copy) if shard > 0 => (copy.mode, &copy.regions, copy.buckets),
            Some(_) | None => (self.mode, &self.regions, self.buckets.len()),
        }
    }

    pub(crate) fn place(&mut self, bucket: usize, key: &str, units: i64) -> Said {
        if !self.trades(bucket) {
            return no("not-owner");
        }
        let (shard, region) = (self.buckets[bucket].shard, self.buckets[bucket].region);
        if let Some((_, known, state)) = self.buckets[bucket].holds.iter().find(|h| h.0 == key) {
            if *known != units {
                return no("key-reused");
            }
            return match state {
                State::Held => "held replayed".into(),
                State::Sold => no("hold-confirmed"),
                State::Released => no("hold-released"),
            };
        }
        let (mode, regions, _) = self.known_at(shard);
        match mode {
            Mode::Paused => return no("item-paused"),
            Mode::Closed => return no("item-closed"),
            Mode::Open if regions[region].closed => return no("item-closed"),
            Mode::Open => {}
        }
        if self.sellable(bucket) < units {
            return no(&format!("insufficient-stock {}", self.sellable(bucket)));
        }
        let b = &mut self.buckets[bucket];
        b.available -= units;
        b.holds.push((key.into(), units, State::Held));
        "held".into()
    }

    pub(crate) fn end(&mut self, bucket: usize, key: &str, to: State) -> Said {
        if !self.trades(bucket) {
            let home = self.buckets[bucket].shard == 0;
            return no(if home { "hold-not-found" } else { "not-owner" });
        }
        let b = &mut self.buckets[bucket];
        let hold = b.holds.iter_mut().find(|hold| hold.0 == key).expect("the driver knows it");
        let word = |state| if state == State::Sold { "sold" } else { "released" };
        if hold.2 == to {
            return format!("{} replayed", word(to));
        }
        match hold.2 {
            State::Sold => no("hold-confirmed"),
            State::Released => no("hold-released"),
            State::Held => {
                hold.2 = to;
                if to == State::Released {
                    b.available += hold.1;
                }
                word(to).into()
            }
        }
    }

    pub(crate) fn send(&mut self, from: usize, to: usize, asked: &SendStock) -> Said {
        if !self.trades(from) {
            return no("not-owner");
        }
        let units = asked.quantity as i64;
        let (_, _, known) = self.known_at(self.buckets[from].shard);
        let region = |bucket: usize| self.buckets.get(bucket).map(|b| b.region);
        let same = region(from) == region(to);
        let knows = to < known && to != from && same == asked.same_region;
        let stays = self.buckets[from].units() - self.earmarked(from) - units;
        let sellable = self.sellable(from);
        let b = &mut self.buckets[from];
        let under_way: i64 = b.pairs.iter().map(|pair| pair[0] - pair[2]).sum();
        let short = (b.floor.max(0) - stays.max(0)).max(0);
        let right = knows
            && b.pair(to)[0] == asked.if_sent as i64
            && under_way + units <= asked.bound as i64
            && sellable >= units
            && (same || short == 0);
        if !right {
            return no("transfer-refused");
        }
        let floor = short.min(units);
        b.available -= units;
        b.floor -= floor;
        let pair = b.pair(to);
        pair[0] += units;
        pair[1] += floor;
        format!("sent S={} F={}", pair[0], pair[1])
    }

    pub(crate) fn accept(&mut self, to: usize, from: usize, sent: i64, floor: i64) -> Said {
        if !self.trades(to) {
            return no("not-owner");
        }
        let b = &mut self.buckets[to];
        let pair = b.pair(from);
        let (units, share) = (sent - pair[3], floor - pair[4]);
        if units <= 0 {
            return format!("accepted R={}", pair[3]);
        }
        (pair[3], pair[4]) = (sent, floor);
        b.available += units;
        b.floor += share;
        format!("accepted R={sent}")
    }

    pub(crate) fn settle(&mut self, from: usize, to: usize, accepted: i64) -> Said {
        if !self.trades(from) {
            return no("not-owner");
        }
        let pair = self.buckets[from].pair(to);
        pair[2] = pair[2].max(accepted);
        "settled".into()
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) -> Said {
        if self.deleting.is_some() {
            return no("under-way operation=deletion");
        }
        if self.mode == mode {
            return self.item(" replayed");
        }
        if self.mode == Mode::Closed {
            return no("item-closed");
        }
        self.mode = mode;
        self.changed(true)
    }

    fn busy(&self) -> Option<Said> {
        if self.deleting.is_some() {
            return Some(no("under-way operation=deletion"));
        }
        self.lowering.is_some().then(|| no("under-way operation=lowering"))
    }

    /// New plans for the regions that there are, and perhaps a region more, with one bucket.
    pub(crate) fn lay_out(
        &mut self,
        plans: &[RegionPlan],
        more: Option<(&'static str, usize)>,
    ) -> Said {
        if let Some(busy) = self.busy() {
            return busy;
        }
        let quotas: u64 = plans.iter().map(|plan| plan.quota).sum();
        let floors = plans.iter().all(|plan| plan.floor <= plan.quota);
        if quotas as i64 > self.total || !floors {
            return no("invalid");
        }
        for (at, (region, plan)) in self.regions.iter().zip(plans).enumerate() {
            let here = self.buckets.iter().filter(|b| b.region == at && b.shard == 0);
            let used: i64 = here.map(|b| b.held() + b.sold()).sum();
            let falls = plan.quota > 0 && plan.quota < region.plan.quota;
            if falls && (plan.quota as i64) < used {
                return no("stock-committed");
            }
        }
        let before = self.regions.clone();
        if let Some((name, shard)) = more {
            let region = self.regions.len();
            let plan = RegionPlan { quota: 0, floor: 0, buckets: 1 };
            self.regions.push(Region { name, plan, closed: false });
            self.buckets.push(Bucket { shard, region, open: shard == 0, ..Bucket::default() });
            let known = &mut self.answered[shard];
            *known = known.or((shard > 0).then_some((0, 0)));
        }
        for (region, plan) in self.regions.iter_mut().zip(plans) {
            if region.plan.quota != plan.quota {
                region.closed = plan.quota == 0;
            }
            region.plan = *plan;
        }
        let same = before.len() == self.regions.len()
            && before.iter().zip(&self.regions).all(|(a, b)| a.plan == b.plan);
        if same {
            return self.item(" replayed");
        }
        self.grant(0, &before);
        self.changed(true)
    }

    /// The floors of a shard's first buckets change by what is granted more or less.
    fn grant(&mut self, shard: usize, before: &[Region]) {
        let (_, regions, _) = self.known_at(shard);
        let regions: Vec<i64> = regions.iter().map(|region| region.plan.floor as i64).collect();
        for (at, floor) in regions.into_iter().enumerate() {
            let was = before.get(at).map_or(0, |region| region.plan.floor as i64);
            let first = self.buckets.iter_mut().find(|bucket| bucket.region == at);
            let first = first.expect("each region has a bucket");
            if first.shard == shard {
                first.floor += floor - was;
            }
        }
    }

    pub(crate) fn raise(&mut self, key: &str, change: Change) -> Said {
        if let Some(known) = self.receipt(key, change) {
            return known;
        }
        let (units, region) = match change {
            Change::Raise(units) => (units, None),
            Change::RaiseIn { units, region } => (units, Some(usize::from(region.0))),
            Change::Lower(_)
            | Change::LowerIn { .. }
            | Change::Set { .. }
            | Change::Claim(_)
            | Change::Move(_) => {
                return no("lower-in-steps");
            }
        };
        if let Some(region) = region {
            match self.regions.get_mut(region) {
                None => return no("region-not-found"),
                Some(region) if region.closed => return no("invalid"),
                Some(region) => region.plan.quota += units,
            }
        }
        self.total += units as i64;
        self.buckets[0].available += units as i64;
        self.receipts.push((key.into(), change));
        self.changed(false)
    }

    fn receipt(&self, key: &str, change: Change) -> Option<Said> {
        let known = self.receipts.iter().find(|receipt| receipt.0 == key)?;
        Some(if known.1 == change { self.item(" replayed") } else { no("key-reused") })
    }

    pub(crate) fn lower_begin(&mut self, key: &str, change: Change) -> Said {
        if let Some(known) = self.receipt(key, change) {
            return known;
        }
        if let Some((begun, asked, ..)) = &self.lowering
            && begun == key
        {
            return if *asked == change { self.item(" replayed") } else { no("key-reused") };
        }
        if let Some(busy) = self.busy() {
            return busy;
        }
        let quotas: i64 = self.regions.iter().map(|region| region.plan.quota as i64).sum();
        let (units, region, spare) = match change {
            Change::LowerIn { units, region } => {
                let region = usize::from(region.0);
                let Some(known) = self.regions.get(region) else { return no("region-not-found") };
                let spare = known.plan.quota as i64 - known.plan.floor as i64;
                (units as i64, Some(region), if known.closed { -1 } else { spare })
            }
            Change::Lower(units) => (units as i64, None, self.total - quotas),
            Change::Raise(_)
            | Change::RaiseIn { .. }
            | Change::Set { .. }
            | Change::Claim(_)
            | Change::Move(_) => return no("invalid"),
        };
        if units > spare || units == 0 || units > self.total {
            return no("invalid");
        }
        self.lowering = Some((key.into(), change, units, region));
        self.changed(false)
    }

    pub(crate) fn lower_end(&mut self, key: &str, commit: bool) -> Said {
        if self.receipts.iter().any(|receipt| receipt.0 == key) {
            return self.item(" replayed");
        }
        let earmarked = self.earmarked(0);
        let Some((begun, change, units, region)) = self.lowering.clone() else {
            return no("not-under-way");
        };
        if begun != key {
            return no("not-under-way");
        }
        if commit && earmarked < units {
            return no("stock-committed");
        }
        self.lowering = None;
        if commit {
            self.total -= units;
            self.buckets[0].available -= units;
            if let Some(region) = region {
                self.regions[region].plan.quota -= units as u64;
            }
            self.receipts.push((key.into(), change));
        }
        self.changed(false)
    }

    pub(crate) fn delete(&mut self, step: u8) -> Said {
        match (step, self.deleting) {
            (0, Some(_)) => self.item(" replayed"),
            (0, None) => match self.busy() {
                Some(busy) => busy,
                None => {
                    self.deleting = Some(std::mem::replace(&mut self.mode, Mode::Paused));
                    self.changed(true)
                }
            },
            (_, None) => no("not-under-way"),
            (1, Some(mode)) => {
                (self.mode, self.deleting) = (mode, None);
                self.changed(true)
            }
            (_, Some(_)) => {
                let known = self.answered.iter().flatten();
                if known.clone().any(|answer| answer.0 != self.config) {
                    return no("not-answered");
                }
                let held: i64 = self.held_at(0) + known.map(|answer| answer.1).sum::<i64>();
                if held > 0 {
                    return no("open-holds");
                }
                self.gone = true;
                "retired".into()
            }
        }
    }

    /// What home would say of a copy now.
    pub(crate) fn image(&self, life: usize) -> Copy {
        Copy {
            life,
            revision: self.config,
            mode: self.mode,
            regions: self.regions.clone(),
            buckets: self.buckets.len(),
            erased: false,
        }
    }

    fn copy_words(&self, shard: usize) -> Said {
        match &self.copies[shard] {
            Some(copy) if !copy.erased => {
                let mode = format!("{:?}", copy.mode).to_lowercase();
                format!("copy revision={} {mode} held={}", copy.revision, self.held_at(shard))
            }
            Some(_) | None => "copy erased".into(),
        }
    }

    pub(crate) fn configure(&mut self, shard: usize, image: &Copy, later: bool) -> Said {
        let before = match &self.copies[shard] {
            Some(known) if known.erased || image.revision <= known.revision => {
                return self.copy_words(shard);
            }
            None if later => return "copy erased".into(),
            known => known.as_ref().map_or(Vec::new(), |known| known.regions.clone()),
        };
        self.copies[shard] = Some(image.clone());
        for bucket in &mut self.buckets[..image.buckets] {
            bucket.open |= bucket.shard == shard;
        }
        self.grant(shard, &before);
        self.copy_words(shard)
    }

    pub(crate) fn erase(&mut self, shard: usize) -> Said {
        if let Some(copy) = &mut self.copies[shard] {
            copy.erased = true;
        }
        "copy erased".into()
    }

    pub(crate) fn hears(&mut self, shard: usize, revision: i64, held: i64) {
        let (config, gone) = (self.config, self.gone);
        if let Some(known) = &mut self.answered[shard]
            && revision >= known.0
            && revision <= config
            && !gone
        {
            *known = (revision, held);
        }
    }
}
