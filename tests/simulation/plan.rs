//! What a seed decides before the run begins: the shop, the crowd, and which faults come how hard.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast::peer::SimDefaults;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt, SeedableRng};

use super::cut::{Cut, Unease};

/// Nodes of the cluster.
pub(crate) const NODES: usize = 3;

macro_rules! kinds {
    ($($(#[doc = $words:literal])* $name:ident,)*) => {
        /// One kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $($(#[doc = $words])* $name,)*
        }

        impl Kind {
            /// Every kind.
            pub(crate) const ALL: &'static [Kind] = &[$(Kind::$name,)*];
        }
    };
}

kinds! {
    /// A machine loses its power, and what it had not synced as the disk's seed decides.
    PowerCut,
    /// A process is killed; what it wrote stays written.
    Kill,
    /// The process that leads the most shards is killed.
    KillLeader,
    /// Every machine loses its power.
    PowerCutAll,
    /// The disk stops in the middle of what it does, and the power goes a little later.
    PowerCutMidway,
    /// A process is asked to stop: it hands its leaderships over, stops, and is started again.
    Restart,
    /// A process stops for a while, as by SIGSTOP, and goes on as if no time had passed.
    Stop,
    /// The process that leads the most shards stops for a while.
    StopLeader,
    /// A process stops and goes on many times, for some ms each: a starved machine.
    Stutter,
    /// A node hears and reaches nobody.
    Isolate,
    /// A node hears everybody and reaches nobody, or the other way round.
    OneWay,
    /// Two nodes do not reach each other.
    Pair,
    /// Nodes lose and find each other several times a second.
    Flap,
    /// Packets are lost, and their connections break.
    Loss,
    /// Packets are late, some very late.
    Spikes,
    /// Every connection between two nodes breaks.
    Reset,
    /// Syncs take long.
    SlowSync,
    /// Syncs do not return.
    HungSync,
    /// The disk has no room.
    DiskFull,
    /// One write or sync fails.
    DiskError,
    /// The wall clock jumps by hours.
    ClockJump,
    /// The wall clock runs at another speed.
    ClockDrift,
    /// The node restarts, and one or both of its page databases are damaged or gone.
    PagesLost,
    /// A page database fails while a checkpoint is written or read.
    PagesError,
    /// The node's log has a flipped bit when it starts again: it must refuse, or lose nothing.
    BitFlip,
    /// The node loses everything and is started on an empty disk: it must take no part.
    Wipe,
}

/// A region of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionPlan {
    pub(crate) name: String,
    pub(crate) quota: u64,
    pub(crate) floor: u64,
    pub(crate) buckets: u16,
    /// It is not there at the creation; an operator may open it.
    pub(crate) late: bool,
}

/// An item of the shop.
#[derive(Debug, Clone)]
pub(crate) struct ItemPlan {
    pub(crate) name: String,
    pub(crate) total: u64,
    pub(crate) limit_per_buyer: Option<u64>,
    pub(crate) ttl_ms: u64,
    pub(crate) max_extends: u32,
    /// Over how many shards it is spread, without regions.
    pub(crate) buckets: u16,
    /// Its regions; none when it has the default one only.
    pub(crate) regions: Vec<RegionPlan>,
}

impl ItemPlan {
    /// Tells whether it has several buckets, or may get them.
    pub(crate) fn is_spread(&self) -> bool {
        self.buckets > 1 || !self.regions.is_empty()
    }

    /// The region of a buyer, for the life of the item.
    pub(crate) fn region_of(&self, buyer: &str) -> Option<&str> {
        if self.regions.is_empty() {
            return None;
        }
        let number = xxhash_rust::xxh3::xxh3_64(buyer.as_bytes()) % self.regions.len() as u64;
        let at = usize::try_from(number).expect("less than the number of regions");
        Some(&self.regions[at].name)
    }
}

/// One fault, as drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultPlan {
    /// How long after the last one it comes.
    pub(crate) pause: Duration,
    pub(crate) kind: Kind,
    pub(crate) at: usize,
    /// Which other node, counted from the first.
    pub(crate) other: usize,
    /// How hard, of a thousand.
    pub(crate) hard: u64,
    pub(crate) length: Duration,
    /// The next one does not wait for its end.
    pub(crate) overlaps: bool,
}

/// Everything that a seed decides before the run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) salt: u64,
    pub(crate) shards: u16,
    pub(crate) items: Vec<ItemPlan>,
    pub(crate) buyers: u32,
    pub(crate) clients: u64,
    /// Calls that all clients make together, at least.
    pub(crate) calls: u64,
    /// The longest pause of a client between two decisions.
    pub(crate) think: Duration,
    /// The swarm: the kinds of this seed.
    pub(crate) kinds: Vec<Kind>,
    /// Faults, at least.
    pub(crate) faults: u32,
    /// The longest pause between two faults.
    pub(crate) fault_gap: Duration,
    /// The longest that a fault stays.
    pub(crate) fault_length: Duration,
    pub(crate) wire: SimDefaults,
    pub(crate) sync: Duration,
    pub(crate) checkpoint_commands: u64,
    pub(crate) checkpoint_interval_ms: u64,
    /// How many of a thousand calls are sent by a client that does not wait for the answer.
    pub(crate) impatience: u64,
    /// How many of a thousand turns of a node's tasks are put off.
    pub(crate) unrest_per_thousand: u32,
    /// Of a hundred decisions, how many are an operator's.
    pub(crate) operators: u32,
    /// The age of the last acknowledgement at which a leader pauses, less than the lease.
    pub(crate) pause_after_ms: u64,
    /// The size of a segment of the log. In small ones some runs need a second, and a full disk has
    /// no room for it.
    pub(crate) segment_bytes: u64,
    /// The only machine whose pages, log or disk are lost: somebody must have good ones.
    pub(crate) victim: usize,
}

/// Returns a stream of randomness of its own for a purpose.
pub(crate) fn stream(seed: u64, purpose: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (purpose << 32 | purpose))
}

/// Streams of faults and decisions are numbered from here on.
const FAULT_STREAMS: u64 = 1 << 16;
const DECISION_STREAMS: u64 = 1 << 17;

/// Returns the randomness of one decision.
pub(crate) fn decision_stream(seed: u64, number: u32) -> SmallRng {
    stream(seed, DECISION_STREAMS + u64::from(number))
}

fn one_of<T: Copy>(rng: &mut SmallRng, choices: &[T]) -> T {
    *choices.choose(rng).expect("there is something to choose from")
}

impl Plan {
    /// Draws the plan of a seed.
    pub(crate) fn draw(seed: u64, cut: &Cut) -> Plan {
        let mut rng = stream(seed, 1);
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        let rng = &mut rng;
        let shards = rng.random_range(1..=3);
        let count = rng.random_range(1..=4);
        let items = (0..count).map(|at| draw_item(seed, at, shards)).collect();
        let mut kinds = Kind::ALL.to_vec();
        kinds.shuffle(rng);
        // One seed in twelve has no fault at all; the others have some kinds, seldom most.
        let many = if rng.random_ratio(1, 12) { 0 } else { rng.random_range(1..=8) };
        kinds.truncate(many);
        kinds.sort_unstable();
        let faults = if many == 0 { 0 } else { rng.random_range(10..=16) };
        let mut plan = Plan {
            seed,
            salt: cut.salt,
            shards,
            items,
            buyers: one_of(rng, &[3, 10, 40]),
            clients: rng.random_range(3..=8),
            calls: rng.random_range(300..=450),
            think: ms(one_of(rng, &[5, 40, 200])),
            kinds,
            faults,
            fault_gap: ms(one_of(rng, &[200, 600, 1_500])),
            fault_length: ms(one_of(rng, &[100, 500, 2_000])),
            wire: SimDefaults {
                delay_max: us(one_of(rng, &[300, 2_000, 10_000])),
                spikes_per_million: one_of(rng, &[0, 2_000, 20_000]),
                ..SimDefaults::default()
            },
            sync: us(one_of(rng, &[0, 200, 2_000])),
            checkpoint_commands: one_of(rng, &[100, 1_000_000]),
            checkpoint_interval_ms: one_of(rng, &[500, 2_000, 30_000]),
            impatience: one_of(rng, &[0, 20, 100]),
            unrest_per_thousand: one_of(rng, &[0, 0, 20, 200, 600]),
            operators: one_of(rng, &[0, 6, 20]),
            victim: rng.random_range(0..NODES),
            pause_after_ms: one_of(rng, &[300, 300, 150, 399]),
            segment_bytes: one_of(rng, &[1 << 20, 64 << 10]),
        };
        plan.leave_out(cut);
        plan
    }

    /// A plan without clients or faults on a good network, for a scene that is written by hand.
    pub(crate) fn bare(seed: u64, shards: u16, items: Vec<ItemPlan>) -> Plan {
        Plan {
            seed,
            salt: 0,
            shards,
            items,
            buyers: 0,
            clients: 0,
            calls: 0,
            think: Duration::ZERO,
            kinds: Vec::new(),
            faults: 0,
            fault_gap: Duration::ZERO,
            fault_length: Duration::ZERO,
            wire: calm_wire(),
            sync: Duration::from_micros(200),
            checkpoint_commands: 1_000_000,
            checkpoint_interval_ms: 30_000,
            impatience: 0,
            unrest_per_thousand: 0,
            operators: 0,
            victim: 0,
            pause_after_ms: 300,
            segment_bytes: 1 << 20,
        }
    }

    fn leave_out(&mut self, cut: &Cut) {
        if let Some(clients) = cut.clients {
            self.clients = self.clients.min(clients.max(1));
        }
        for calm in &cut.calm {
            match calm {
                Unease::Impatience => self.impatience = 0,
                Unease::Wire => self.wire = calm_wire(),
                Unease::Unrest => self.unrest_per_thousand = 0,
                Unease::Sync => self.sync = Duration::ZERO,
                Unease::Checkpoints => {
                    (self.checkpoint_commands, self.checkpoint_interval_ms) = (1_000_000, 30_000);
                }
            }
        }
    }

    /// Draws one of the seed's faults; none when it has none.
    pub(crate) fn fault(&self, number: u32) -> Option<FaultPlan> {
        let mut rng = stream(self.seed, FAULT_STREAMS + u64::from(number));
        let millis = |longest: Duration| u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        Some(FaultPlan {
            kind: self.kinds.choose(&mut rng).copied()?,
            pause: Duration::from_millis(rng.random_range(30..=millis(self.fault_gap))),
            at: rng.random_range(0..NODES),
            other: rng.random_range(1..NODES),
            hard: rng.random_range(0..1_000),
            length: Duration::from_millis(rng.random_range(20..=millis(self.fault_length))),
            overlaps: rng.random_ratio(1, 4),
        })
    }

    /// Says it in lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "seed {}: {} shards, {} clients, {} buyers, ≥ {} calls, thinking ≤ {:?}, {} % of \
                 them operators",
                self.seed,
                self.shards,
                self.clients,
                self.buyers,
                self.calls,
                self.think,
                self.operators
            ),
            format!(
                "faults: ≥ {} of {:?}, gaps ≤ {:?}, lengths ≤ {:?}, victim n{}",
                self.faults,
                self.kinds,
                self.fault_gap,
                self.fault_length,
                self.victim + 1
            ),
            format!(
                "all the time: wire ≤ {:?} with {} spikes a million, syncs of {:?}, impatience \
                 {} ‰, unrest {} ‰, checkpoints after {} commands or {} ms, a pause after {} ms",
                self.wire.delay_max,
                self.wire.spikes_per_million,
                self.sync,
                self.impatience,
                self.unrest_per_thousand,
                self.checkpoint_commands,
                self.checkpoint_interval_ms,
                self.pause_after_ms
            ),
        ];
        lines.extend(self.items.iter().map(ItemPlan::line));
        lines
    }
}

fn calm_wire() -> SimDefaults {
    SimDefaults {
        delay_max: Duration::from_micros(300),
        spikes_per_million: 0,
        ..SimDefaults::default()
    }
}

impl ItemPlan {
    fn line(&self) -> String {
        let regions: BTreeMap<&str, String> = self
            .regions
            .iter()
            .map(|one| {
                let late = if one.late { " later" } else { "" };
                let words = format!("{} ≥ {} in {}{late}", one.quota, one.floor, one.buckets);
                (one.name.as_str(), words)
            })
            .collect();
        format!(
            "item {}: {} units in {} buckets, ttl {} ms, limit {:?}, {} extends, \
             regions {regions:?}",
            self.name,
            self.total,
            self.buckets,
            self.ttl_ms,
            self.limit_per_buyer,
            self.max_extends
        )
    }
}

fn draw_item(seed: u64, at: u64, shards: u16) -> ItemPlan {
    let rng = &mut stream(seed, 20 + at);
    let total = one_of(rng, &[1, 3, 10, 40, 200]);
    let mut item = ItemPlan {
        name: format!("item-{at}-{}", rng.random_range(0..1_000)),
        total,
        limit_per_buyer: rng.random_ratio(1, 3).then(|| rng.random_range(2..=5)),
        ttl_ms: one_of(rng, &[300, 1_500, 6_000, 600_000]),
        max_extends: rng.random_range(0..=2),
        buckets: 1,
        regions: Vec::new(),
    };
    if shards > 1 && rng.random_ratio(2, 3) {
        if total < 10 || rng.random_ratio(1, 2) {
            item.buckets = rng.random_range(2..=shards);
        } else {
            item.regions = draw_regions(rng, total, shards);
        }
    }
    item
}

/// Draws two or three regions, of which the last may come later. The quotas sum to the total.
fn draw_regions(rng: &mut SmallRng, total: u64, shards: u16) -> Vec<RegionPlan> {
    let names = ["eu", "us", "ap"];
    let count = rng.random_range(2..=3_usize);
    let has_late = count > 2 || rng.random_ratio(1, 2);
    let there = if has_late { count - 1 } else { count };
    let has_floors = rng.random_ratio(1, 2);
    let mut left = total;
    let regions = names.iter().take(count).enumerate().map(|(at, name)| {
        let quota = match at + 1 {
            later if later > there => 0,
            last if last == there => left,
            _ => rng.random_range(1..left),
        };
        left -= quota;
        let floor = if has_floors { rng.random_range(0..=quota) } else { 0 };
        let buckets = rng.random_range(1..=shards);
        RegionPlan { name: (*name).to_owned(), quota, floor, buckets, late: at >= there }
    });
    regions.collect()
}
