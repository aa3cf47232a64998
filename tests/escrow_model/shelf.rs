//! Every ledger that a search meets, kept once: real ledgers, driven by [`Ledger::apply`].
//!
//! A ledger is kept as its pages under its digest, and is loaded for each command that it is asked
//! for the first time, so every step is also a restart. Promises: same ledger and same step, same
//! ledger and same answer, by looking it up. Never changes a rule: what a model forges is a step.

// A test that asks for one answer means every other one by the rest, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use holdfast::ledger::*;

use crate::laws;

#[path = "reading.rs"]
mod reading;

pub(crate) use reading::{Key, Reading};

/// The most buckets, each on a shard of its own.
pub(crate) const BUCKETS: usize = 3;
/// Lifetime of the holds.
const TTL_MS: u64 = 1_000;

/// One command to one shard's ledger, as small as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Define,
    /// The image of this revision; whether it is "go".
    Configure {
        life: u8,
        revision: u8,
        open: bool,
    },
    Answered {
        life: u8,
        shard: u8,
        revision: u8,
        held: u8,
    },
    Erase {
        life: u8,
    },
    Erased {
        life: u8,
        shard: u8,
    },
    Place {
        key: u8,
    },
    Void {
        key: u8,
    },
    Release {
        key: u8,
    },
    Confirm {
        key: u8,
    },
    /// Time passes the deadlines of all holds that are live now.
    Expire,
    Send {
        to: u8,
        units: u8,
        if_sent: u8,
        acked: u8,
    },
    Accept {
        life: u8,
        from: u8,
        sent: u8,
        floor: u8,
    },
    Settle {
        life: u8,
        to: u8,
        accepted: u8,
    },
    Raise {
        op: u8,
    },
    LowerBegin {
        units: u8,
    },
    LowerCommit,
    LowerAbort,
    SetMode {
        open: bool,
    },
    DeleteBegin {
        life: u8,
    },
    DeleteAbort {
        life: u8,
    },
    DeleteCommit {
        life: u8,
    },
    /// The regions become those of this charter of the plan.
    SetLayout {
        charter: u8,
    },
    /// An image that home has made ([`Shelf::image_of`]), under this revision.
    Image {
        image: u8,
        revision: u8,
    },
}

/// What was answered, as far as a model asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Done,
    Sent {
        sent: u8,
        floor: u8,
    },
    Accepted(u8),
    Copy {
        revision: u8,
        held: u8,
    },
    Erased,
    Refused,
    /// Refused because nothing, or too little, is left.
    Dry,
}

/// What an item is like.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) buckets: usize,
    /// The region of each bucket: all 0, or each its own.
    pub(crate) regions: bool,
    pub(crate) total: u8,
    /// Each region's floor.
    pub(crate) floors: [u8; BUCKETS],
    /// Keys: the bucket that owns each, and how many units it asks for.
    pub(crate) keys: Vec<(u8, u8)>,
    /// Whether holds that are due wait to be swept by who needs them.
    pub(crate) unswept: bool,
    /// The most units in transit out of a bucket.
    pub(crate) bound: u8,
    /// What the regions may become while the item lives; the first is how it is made, and buckets
    /// belong to regions as `lands` says. None: the regions stay.
    pub(crate) charters: Vec<Charter>,
    /// The region of each bucket where there are charters.
    pub(crate) lands: [u8; BUCKETS],
}

/// Each region's quota and floor; those that are not there are not opened.
pub(crate) type Charter = Vec<(u8, u8)>;

impl Plan {
    /// One bucket with one unit, which two keys ask for.
    pub(crate) fn one_unit_for_two() -> Plan {
        Plan {
            buckets: 1,
            regions: false,
            total: 1,
            floors: [0; BUCKETS],
            keys: vec![(0, 1), (0, 1)],
            unswept: false,
            bound: 1,
            charters: Vec::new(),
            lands: [0; BUCKETS],
        }
    }
}

struct Kept {
    shard: usize,
    pages: Vec<(PageKey, Vec<u8>)>,
    readings: [Rc<Reading>; 2],
}

/// The ledgers.
pub(crate) struct Shelf {
    pub(crate) plan: Plan,
    settings: Settings,
    name: ItemName,
    home: u16,
    regions: BTreeMap<String, RegionPlan>,
    infos: Vec<RegionInfo>,
    layout: Vec<BucketPlacement>,
    images: Vec<Configure>,
    keys: Vec<String>,
    kept: Vec<Kept>,
    known: HashMap<(usize, u128), u32>,
    done: HashMap<(u32, Step), (u32, Said)>,
}

impl Shelf {
    pub(crate) fn new(plan: Plan) -> Shelf {
        let shards = plan.buckets as u16;
        let sweep_max = if plan.unswept { 0 } else { 512 };
        let settings = Settings { slots: 1, sweep_max, ..laws::settings(shards) };
        let name = ItemName { tenant: "t".into(), item: "x".into() };
        let home = home_shard(name.borrowed(), shards).0;
        let (mut regions, mut infos, mut layout) = (BTreeMap::new(), Vec::new(), Vec::new());
        let count = if plan.regions { plan.buckets } else { 1 };
        let first = plan.charters.first().cloned().unwrap_or_default();
        for (region, plan) in plans_of(&first, &plan).into_iter().enumerate() {
            infos.push(region_info(region, plan.floor));
            regions.insert(format!("r{region}"), plan);
        }
        for region in 0..if first.is_empty() { count } else { 0 } {
            let buckets = if plan.regions { 1 } else { shards };
            let quota = if region == 0 { u64::from(plan.total) } else { 0 };
            let floor = u64::from(plan.floors[region]);
            let called = format!("r{region}");
            infos.push(region_info(region, floor));
            regions.insert(called, RegionPlan { quota: quota.max(floor), floor, buckets });
        }
        // Quotas say where stock is meant to lie; here only their sum matters.
        let others: u64 = regions.values().skip(1).map(|plan| plan.quota).sum();
        regions.get_mut("r0").expect("there is one").quota = u64::from(plan.total) - others;
        for bucket in 0..shards {
            let region = RegionOrdinal(plan.region(bucket.into()) as u16);
            if usize::from(region.0) >= infos.len() {
                continue;
            }
            let shard = ShardId((home + bucket) % shards);
            layout.push(BucketPlacement { bucket: BucketId(bucket), shard, region });
        }
        let (kept, known, done) = (Vec::new(), HashMap::new(), HashMap::new());
        let (keys, images) = (Vec::new(), Vec::new());
        let mut shelf = Shelf {
            plan,
            settings,
            name,
            home,
            regions,
            infos,
            layout,
            images,
            keys,
            kept,
            known,
            done,
        };
        shelf.find_keys();
        shelf
    }

    /// Finds texts for the keys that the buckets own; the same in each life.
    fn find_keys(&mut self) {
        let mut home = Ledger::new(self.shard_id(0), self.settings.clone());
        let define = vec![Command::DefineSpread(self.define())];
        let batch = Batch { stamp: UnixMs(0), commands: define };
        let view = match home.apply(LogIndex(1), &batch).remove(0) {
            Answer::Item { item, .. } => *item,
            other => panic!("not created: {other:?}"),
        };
        let later = ItemView { number: ItemNumber(2), ..view.clone() };
        for at in 0..self.plan.keys.len() {
            let bucket = BucketId(self.plan.keys[at].0.into());
            let region = self.region_of(self.plan.keys[at].0);
            let owned = |view: &ItemView, key: &str| {
                view.owner(Some(&region), None, key).is_some_and(|owner| owner.bucket == bucket)
            };
            let opened = self.layout.iter().any(|place| place.bucket == bucket);
            let text = (0..)
                .map(|n| format!("k{at}-{n}"))
                // The only bucket of a region that is opened later owns every key.
                .find(|key| !opened || (owned(&view, key) && owned(&later, key)))
                .expect("hashes reach every bucket");
            self.keys.push(text);
        }
    }

    fn define(&self) -> DefineSpread {
        let mut shards: BTreeMap<String, Vec<ShardId>> = BTreeMap::new();
        for bucket in &self.layout {
            shards.entry(format!("r{}", bucket.region)).or_default().push(bucket.shard);
        }
        let define = Define {
            name: self.name.clone(),
            total: Some(self.plan.total.into()),
            regions: self.regions.clone(),
            definition: definition(),
            if_revision: None,
        };
        DefineSpread { define, shards }
    }

    fn image(&self, life: u8, revision: u8, open: bool) -> Configure {
        Configure {
            item: self.item(life),
            name: self.name.clone(),
            revision: revision.into(),
            mode: if open { Mode::Open } else { Mode::Paused },
            definition: definition(),
            regions: self.infos.clone(),
            layout: self.layout.clone(),
        }
    }

    fn scope(&self, key: u8) -> KeyScope {
        KeyScope {
            name: self.name.clone(),
            region: Some(self.region_of(self.plan.keys[usize::from(key)].0)),
            buyer: None,
            key: self.keys[usize::from(key)].clone(),
        }
    }

    fn region_of(&self, bucket: u8) -> String {
        format!("r{}", self.plan.region(bucket.into()))
    }

    /// What home would send to the shard of that bucket now: an image, and its revision. `None`
    /// when home has no copy there.
    pub(crate) fn image_of(&mut self, home: u32, bucket: usize) -> Option<(u8, u8)> {
        let query = Query::Copy { item: self.item(1), shard: self.shard_id(bucket) };
        let Found::Copy(image) = self.load(home).query(&query) else { return None };
        let revision = image.revision as u8;
        let known = self.images.iter().position(|known| *known == *image);
        let at = known.unwrap_or(self.images.len());
        if known.is_none() {
            self.images.push(*image);
        }
        Some((at as u8, revision))
    }

    /// Whether an image has a bucket, and whether it closes that one's region.
    pub(crate) fn image_has(&self, image: u8, bucket: usize) -> Option<bool> {
        let image = &self.images[usize::from(image)];
        let place = image.layout.iter().find(|place| place.bucket == BucketId(bucket as u16))?;
        let region = image.regions.iter().find(|info| info.ordinal == place.region)?;
        Some(region.closed)
    }

    fn item(&self, life: u8) -> ItemRef {
        ItemRef { home: ShardId(self.home), item: ItemNumber(life.into()) }
    }

    fn bucket(&self, life: u8, bucket: usize) -> BucketRef {
        let ItemRef { home, item } = self.item(life);
        BucketRef { home, item, bucket: BucketId(bucket as u16) }
    }

    /// An empty ledger of the shard of that bucket.
    pub(crate) fn empty(&mut self, shard: usize) -> u32 {
        let ledger = Ledger::new(self.shard_id(shard), self.settings.clone());
        self.keep(shard, ledger)
    }

    fn shard_id(&self, shard: usize) -> ShardId {
        ShardId((self.home + shard as u16) % self.settings.shards)
    }

    fn load(&self, id: u32) -> Ledger {
        let kept = &self.kept[id as usize];
        let pages = kept.pages.iter().cloned();
        Ledger::load(self.shard_id(kept.shard), self.settings.clone(), pages)
            .expect("the pages of a whole cut make a ledger")
    }

    fn keep(&mut self, shard: usize, mut ledger: Ledger) -> u32 {
        let digest = ledger.digest();
        if let Some(known) = self.known.get(&(shard, digest)) {
            return *known;
        }
        let pages = laws::pages(&mut ledger);
        let readings = [1, 2].map(|life| Rc::new(self.read_ledger(shard, &ledger, life)));
        let id = self.kept.len() as u32;
        self.kept.push(Kept { shard, pages, readings });
        self.known.insert((shard, digest), id);
        id
    }

    /// How many different ledgers there are, and how many commands they were asked.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.kept.len(), self.done.len())
    }

    /// What a ledger says of a life of the item.
    pub(crate) fn read(&self, id: u32, life: u8) -> Rc<Reading> {
        Rc::clone(&self.kept[id as usize].readings[usize::from(life) - 1])
    }

    /// Asks a ledger. What cannot be asked of it (the end of a hold that is not there) is refused.
    pub(crate) fn ask(&mut self, id: u32, step: Step) -> (u32, Said) {
        if let Some(known) = self.done.get(&(id, step)) {
            return *known;
        }
        let shard = self.kept[id as usize].shard;
        let mut ledger = self.load(id);
        let stamp = match step {
            Step::Expire => UnixMs(ledger.now().0 + TTL_MS),
            _ => UnixMs(0),
        };
        let result = match self.command(shard, &ledger, step) {
            None => (id, Said::Refused),
            Some(command) => {
                let batch = Batch { stamp, commands: vec![command] };
                let mut follower = self.load(id);
                let answers = ledger.apply(LogIndex(1), &batch);
                follower.apply_unanswered(LogIndex(1), &batch);
                assert_eq!(follower.digest(), ledger.digest(), "a follower differs: {step:?}");
                (self.keep(shard, ledger), said(&answers[0]))
            }
        };
        self.done.insert((id, step), result);
        result
    }

    fn command(&self, shard: usize, ledger: &Ledger, step: Step) -> Option<Command> {
        let (name, tenant) = (self.name.clone(), self.name.tenant.clone());
        Some(match step {
            Step::Place { key } => {
                let KeyScope { name, region, buyer, key: text } = self.scope(key);
                let quantity = self.plan.keys[usize::from(key)].1.into();
                let (ttl_ms, reference) = (None, None);
                Command::Place(Place {
                    name,
                    region,
                    buyer,
                    key: text,
                    quantity,
                    ttl_ms,
                    reference,
                })
            }
            Step::Void { key } => Command::Void(Void { scope: self.scope(key) }),
            Step::Release { key } => {
                let (hold, reason) = (self.hold(ledger, key)?, None);
                Command::Release(Release { hold, tenant, key: "release".into(), reason })
            }
            Step::Confirm { key } => Command::Confirm(Confirm {
                hold: self.hold(ledger, key)?,
                tenant,
                key: "confirm".into(),
                quantity: None,
                reacquire: false,
                reference: None,
            }),
            Step::Expire => Command::Advance,
            Step::Send { to, units, if_sent, acked } => Command::SendStock(SendStock {
                from: self.bucket(1, shard),
                to: BucketId(to.into()),
                quantity: units.into(),
                acked: acked.into(),
                if_sent: if_sent.into(),
                same_region: self.plan.region(shard) == self.plan.region(to.into()),
                bound: self.plan.bound.into(),
            }),
            Step::Accept { life, from, sent, floor } => Command::AcceptStock(AcceptStock {
                to: self.bucket(life, shard),
                from: BucketId(from.into()),
                sent: sent.into(),
                floor_sent: floor.into(),
            }),
            Step::Settle { life, to, accepted } => Command::SettleStock(SettleStock {
                from: self.bucket(life, shard),
                to: BucketId(to.into()),
                accepted: accepted.into(),
            }),
            Step::Raise { op } => {
                let (key, reason) = (format!("raise-{op}"), String::new());
                Command::Adjust(Adjust { name, key, change: Change::Raise(1), reason })
            }
            Step::Define
            | Step::Configure { .. }
            | Step::Answered { .. }
            | Step::Erase { .. }
            | Step::Erased { .. }
            | Step::LowerBegin { .. }
            | Step::LowerCommit
            | Step::LowerAbort
            | Step::SetMode { .. }
            | Step::DeleteBegin { .. }
            | Step::DeleteAbort { .. }
            | Step::DeleteCommit { .. }
            | Step::Image { .. } => self.command_of_item(step),
            Step::SetLayout { charter } => self.set_layout(ledger, charter)?,
        })
    }

    /// The steps that are about the item as a whole.
    fn command_of_item(&self, step: Step) -> Command {
        let name = || self.name.clone();
        let delete = |life: u8| Delete { name: name(), item: self.item(life).item };
        let end = || LowerEnd { name: name(), item: self.item(1).item, key: "lower".into() };
        match step {
            Step::Configure { life, revision, open } => {
                Command::Configure(Box::new(self.image(life, revision, open)))
            }
            Step::Answered { life, shard, revision, held } => {
                let (revision, held) = (revision.into(), held.into());
                let state = CopyState::Applied { revision, mode: Mode::Open, held, broken: false };
                let shard = self.shard_id(shard.into());
                Command::CopyAnswered(CopyAnswered { item: self.item(life), shard, state })
            }
            Step::Erase { life } => Command::EraseCopy(EraseCopy { item: self.item(life) }),
            Step::Erased { life, shard } => {
                let (shard, state) = (self.shard_id(shard.into()), CopyState::Erased);
                Command::CopyAnswered(CopyAnswered { item: self.item(life), shard, state })
            }
            Step::LowerBegin { units } => Command::LowerBegin(LowerBegin {
                name: name(),
                item: self.item(1).item,
                key: "lower".into(),
                change: Change::Lower(units.into()),
                reason: String::new(),
                until: UnixMs(0),
            }),
            Step::LowerCommit => Command::LowerCommit(end()),
            Step::LowerAbort => Command::LowerAbort(end()),
            Step::SetMode { open } => {
                let mode = if open { Mode::Open } else { Mode::Paused };
                Command::SetMode(SetMode { name: name(), mode })
            }
            Step::DeleteBegin { life } => Command::DeleteBegin(delete(life)),
            Step::DeleteAbort { life } => Command::DeleteAbort(delete(life)),
            Step::DeleteCommit { life } => Command::DeleteCommit(delete(life)),
            Step::Image { image, revision } => {
                let image = self.images[usize::from(image)].clone();
                Command::Configure(Box::new(Configure { revision: revision.into(), ..image }))
            }
            _ => Command::DefineSpread(self.define()),
        }
    }

    fn set_layout(&self, ledger: &Ledger, charter: u8) -> Option<Command> {
        let Found::Item(item) = ledger.query(&Query::Item(self.name.clone())) else { return None };
        let mut regions = BTreeMap::new();
        let mut shards = BTreeMap::new();
        let charter = &self.plan.charters[usize::from(charter)];
        for (region, plan) in plans_of(charter, &self.plan).into_iter().enumerate() {
            let called = format!("r{region}");
            if !item.regions.contains_key(&called) {
                let mine = (0..self.plan.buckets).filter(|at| self.plan.region(*at) == region);
                shards.insert(called.clone(), mine.map(|at| self.shard_id(at)).collect());
            }
            regions.insert(called, plan);
        }
        let (name, if_revision) = (self.name.clone(), item.revision);
        let item = item.number;
        Some(Command::SetLayout(SetLayout { name, item, if_revision, regions, shards }))
    }

    fn hold(&self, ledger: &Ledger, key: u8) -> Option<HoldId> {
        match ledger.query(&Query::Receipt(self.scope(key))) {
            Found::Receipt(Receipt::Committed(hold)) => Some(hold.id),
            _ => None,
        }
    }
}

impl Plan {
    /// A bucket's region.
    pub(crate) fn region(&self, bucket: usize) -> usize {
        match (self.charters.is_empty(), self.regions) {
            (false, _) => self.lands[bucket].into(),
            (true, true) => bucket,
            (true, false) => 0,
        }
    }
}

/// A charter as it is asked for.
fn plans_of(charter: &Charter, plan: &Plan) -> Vec<RegionPlan> {
    let regions = charter.iter().enumerate().map(|(region, (quota, floor))| {
        let mine = (0..plan.buckets).filter(|at| plan.region(*at) == region);
        RegionPlan { quota: (*quota).into(), floor: (*floor).into(), buckets: mine.count() as u16 }
    });
    regions.collect()
}

fn region_info(region: usize, floor: u64) -> RegionInfo {
    RegionInfo {
        ordinal: RegionOrdinal(region as u16),
        name: format!("r{region}"),
        default: region == 0,
        closed: false,
        floor,
    }
}

fn definition() -> Definition {
    Definition {
        rules: HoldRules { ttl_ms: TTL_MS, ..HoldRules::default() },
        limit_per_buyer: None,
        opens_at: None,
        closes_at: None,
        metadata: BTreeMap::new(),
    }
}

fn said(answer: &Answer) -> Said {
    let small = |units: u64| u8::try_from(units).expect("a small model");
    match answer {
        Answer::Sent { sent, floor_sent } => {
            Said::Sent { sent: small(*sent), floor: small(*floor_sent) }
        }
        Answer::Accepted { accepted } => Said::Accepted(small(*accepted)),
        Answer::Copy(CopyState::Applied { revision, held, .. }) => {
            Said::Copy { revision: small(*revision), held: small(*held) }
        }
        Answer::Copy(CopyState::Erased) => Said::Erased,
        Answer::Refused(Refusal::SoldOut { .. } | Refusal::InsufficientStock { .. }) => Said::Dry,
        Answer::Refused(_) => Said::Refused,
        _ => Said::Done,
    }
}
