//! What a seed decides before the run begins: the shop, the crowd, and which faults come how hard.

use std::time::Duration;

use holdfast::peer::SimDefaults;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt, SeedableRng};

/// Nodes of the cluster.
pub(crate) const NODES: usize = 3;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A machine loses its power, and what it had not synced as the disk's seed decides.
    PowerCut,
    /// A process is killed; what it wrote stays written.
    Kill,
    /// The process that leads the most shards is killed.
    KillLeader,
    /// Every machine loses its power.
    PowerCutAll,
    /// A node hears and reaches nobody.
    Isolate,
    /// A node hears everybody and reaches nobody, or the other way round.
    OneWay,
    /// Two nodes do not reach each other.
    Pair,
    /// Packets are lost, and their connections break.
    Loss,
    /// Packets are late, some very late.
    Spikes,
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
}

const KINDS: [Kind; 16] = [
    Kind::PowerCut,
    Kind::Kill,
    Kind::KillLeader,
    Kind::PowerCutAll,
    Kind::Isolate,
    Kind::OneWay,
    Kind::Pair,
    Kind::Loss,
    Kind::Spikes,
    Kind::SlowSync,
    Kind::HungSync,
    Kind::DiskFull,
    Kind::DiskError,
    Kind::ClockJump,
    Kind::ClockDrift,
    Kind::PagesLost,
];

/// An item of the shop.
#[derive(Debug, Clone)]
pub(crate) struct ItemPlan {
    pub(crate) name: String,
    pub(crate) total: u64,
    pub(crate) limit_per_buyer: Option<u64>,
    pub(crate) ttl_ms: u64,
    pub(crate) max_extends: u32,
    /// Over how many shards it is spread.
    pub(crate) buckets: u16,
}

/// Everything that a seed decides before the run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) shards: u16,
    pub(crate) items: Vec<ItemPlan>,
    pub(crate) buyers: u32,
    pub(crate) clients: usize,
    /// Calls that all clients make together, at least.
    pub(crate) calls: u64,
    /// The longest pause of a client between two decisions.
    pub(crate) think: Duration,
    /// The swarm: the kinds of this seed.
    pub(crate) kinds: Vec<Kind>,
    /// The longest pause between two faults.
    pub(crate) fault_gap: Duration,
    /// The longest that a fault stays.
    pub(crate) fault_length: Duration,
    pub(crate) wire: SimDefaults,
    pub(crate) sync: Duration,
    pub(crate) checkpoint_commands: u64,
    pub(crate) checkpoint_interval_ms: u64,
    /// How many of a thousand calls are sent by a client that does not wait for the answer.
    pub(crate) impatience: u32,
}

/// Returns a stream of randomness of its own for a purpose.
pub(crate) fn stream(seed: u64, purpose: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (purpose << 32 | purpose))
}

impl Plan {
    /// Draws the plan of a seed.
    pub(crate) fn draw(seed: u64) -> Plan {
        let mut rng = stream(seed, 1);
        let count = rng.random_range(1..=4);
        let items: Vec<ItemPlan> = (0..count).map(|at| draw_item(&mut rng, at)).collect();
        let mut kinds = KINDS.to_vec();
        kinds.shuffle(&mut rng);
        // One seed in twelve has no fault at all; the others have some, seldom all.
        let many = if rng.random_ratio(1, 12) { 0 } else { rng.random_range(1..=7) };
        kinds.truncate(many);
        let ms = Duration::from_millis;
        let shards = rng.random_range(1..=3);
        let items = spread(items, shards, &mut stream(seed, 11));
        Plan {
            seed,
            shards,
            items,
            buyers: *[3, 10, 40].choose(&mut rng).expect("not empty"),
            clients: rng.random_range(3..=8),
            calls: rng.random_range(300..=500),
            think: ms(*[5, 40, 200].choose(&mut rng).expect("not empty")),
            kinds,
            fault_gap: ms(*[300, 1_000, 3_000].choose(&mut rng).expect("not empty")),
            fault_length: ms(*[200, 1_000, 3_000].choose(&mut rng).expect("not empty")),
            wire: SimDefaults {
                delay_max: Duration::from_micros(*[300, 2_000, 10_000].choose(&mut rng).expect("")),
                ..SimDefaults::default()
            },
            sync: Duration::from_micros(*[0, 200, 2_000].choose(&mut rng).expect("not empty")),
            checkpoint_commands: *[100, 1_000_000].choose(&mut rng).expect("not empty"),
            checkpoint_interval_ms: *[500, 2_000, 30_000].choose(&mut rng).expect("not empty"),
            impatience: *[0, 20, 100].choose(&mut rng).expect("not empty"),
        }
    }
}

/// Spreads some of the items over several shards.
fn spread(mut items: Vec<ItemPlan>, shards: u16, rng: &mut SmallRng) -> Vec<ItemPlan> {
    for item in &mut items {
        if shards > 1 && rng.random_ratio(2, 3) {
            item.buckets = rng.random_range(2..=shards);
        }
    }
    items
}

fn draw_item(rng: &mut SmallRng, at: usize) -> ItemPlan {
    ItemPlan {
        name: format!("item-{at}-{}", rng.random_range(0..1_000)),
        total: *[1, 3, 10, 40, 200].choose(rng).expect("not empty"),
        limit_per_buyer: rng.random_ratio(1, 3).then(|| rng.random_range(2..=5)),
        ttl_ms: *[300, 1_500, 6_000, 600_000].choose(rng).expect("not empty"),
        max_extends: rng.random_range(0..=2),
        buckets: 1,
    }
}
