//! The nemesis: draws a fault of the seed's swarm, inflicts it, and takes it back after a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use holdfast::ledger::NodeId;
use holdfast::peer::SimDefaults;
use holdfast::runtime::{self, life};
use holdfast::storage::Fault;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;

use super::plan::{Kind, NODES, stream};
use super::world::World;

/// Inflicts faults until it is told to stop.
pub(crate) struct Nemesis {
    world: Arc<World>,
    rng: SmallRng,
    stop: Arc<AtomicBool>,
    /// The only machine whose pages are damaged: somebody must have good ones.
    victim: usize,
}

impl Nemesis {
    pub(crate) fn new(world: &Arc<World>, stop: &Arc<AtomicBool>) -> Nemesis {
        let mut rng = stream(world.plan.seed, 3);
        let victim = rng.random_range(0..NODES);
        Nemesis { world: Arc::clone(world), rng, stop: Arc::clone(stop), victim }
    }

    pub(crate) async fn run(mut self) {
        let gap = millis(self.world.plan.fault_gap);
        while !self.stop.load(Ordering::Relaxed) {
            let pause = self.rng.random_range(50..=gap);
            runtime::sleep(Duration::from_millis(pause)).await;
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let Some(kind) = self.world.plan.kinds.choose(&mut self.rng).copied() else { return };
            let length = self.rng.random_range(20..=millis(self.world.plan.fault_length));
            let fault = Inflicted {
                world: Arc::clone(&self.world),
                at: self.rng.random_range(0..NODES),
                other: self.rng.random_range(1..NODES),
                hard: self.rng.random_range(0..1_000),
                length: Duration::from_millis(length),
                victim: self.victim,
            };
            self.world.trace.say(format!("nemesis {kind:?} n{} for {length} ms", fault.at + 1));
            let done = life::spawn_in_the_world(fault.run(kind));
            // Faults overlap now and then.
            if self.rng.random_ratio(3, 4) {
                done.await.ok();
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One fault under way.
struct Inflicted {
    world: Arc<World>,
    at: usize,
    /// Which other node, counted from the first.
    other: usize,
    /// How hard, of a thousand.
    hard: u64,
    length: Duration,
    victim: usize,
}

impl Inflicted {
    async fn run(self, kind: Kind) {
        match kind {
            Kind::PowerCut
            | Kind::Kill
            | Kind::KillLeader
            | Kind::PowerCutAll
            | Kind::PagesLost => {
                self.take_down(kind).await;
            }
            Kind::Isolate | Kind::OneWay | Kind::Pair | Kind::Loss | Kind::Spikes => {
                self.trouble_the_wire(kind).await;
            }
            Kind::SlowSync | Kind::HungSync | Kind::DiskFull | Kind::DiskError => {
                self.trouble_the_disk(kind).await;
            }
            Kind::ClockJump => self.move_the_clock().await,
            Kind::ClockDrift => self.bend_the_clock().await,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "it is given the kinds of its family only")]
    async fn take_down(&self, kind: Kind) {
        let world = &self.world;
        match kind {
            Kind::PowerCut => world.power_cut(self.at),
            Kind::KillLeader => {
                let leader = (0..NODES).max_by_key(|at| (world.leads(*at), *at == self.at));
                let at = leader.unwrap_or(self.at);
                world.trace.say(format!("the leader is n{}", at + 1));
                if self.hard < 500 { world.kill(at) } else { world.power_cut(at) }
            }
            Kind::PowerCutAll => (0..NODES).for_each(|at| world.power_cut(at)),
            Kind::PagesLost => {
                world.kill(self.victim);
                world.damage_pages(self.victim);
            }
            _ => world.kill(self.at),
        }
        runtime::sleep(self.length).await;
        (0..NODES).for_each(|at| world.start(at));
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "it is given the kinds of its family only")]
    async fn trouble_the_wire(&self, kind: Kind) {
        let node = |at: usize| NodeId((at % NODES) as u64 + 1);
        let wire = &self.world.wire;
        let (own, other) = (node(self.at), node(self.at + self.other));
        let cuts: Vec<(NodeId, NodeId)> = match kind {
            Kind::Isolate => (1..NODES)
                .map(|step| node(self.at + step))
                .flat_map(|peer| [(own, peer), (peer, own)])
                .collect(),
            Kind::OneWay => (1..NODES)
                .map(|step| node(self.at + step))
                .map(|peer| if self.hard < 500 { (own, peer) } else { (peer, own) })
                .collect(),
            Kind::Pair => vec![(own, other), (other, own)],
            _ => Vec::new(),
        };
        for (from, to) in &cuts {
            wire.partition(*from, *to, true);
        }
        let hard = u32::try_from(self.hard).unwrap_or(0);
        match kind {
            Kind::Loss => wire.lose(hard * 50),
            Kind::Spikes => wire.behave(SimDefaults {
                spikes_per_million: hard * 300,
                spike_max: Duration::from_millis(900),
                ..self.world.plan.wire.clone()
            }),
            _ => {}
        }
        runtime::sleep(self.length).await;
        for (from, to) in &cuts {
            wire.partition(*from, *to, false);
        }
        match kind {
            Kind::Loss => wire.lose(0),
            Kind::Spikes => wire.behave(self.world.plan.wire.clone()),
            _ => {}
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "it is given the kinds of its family only")]
    async fn trouble_the_disk(&self, kind: Kind) {
        let disk = &self.world.machines[self.at].disk;
        match kind {
            Kind::SlowSync => disk.set_sync_delay(Duration::from_micros(self.hard * 400)),
            Kind::HungSync => disk.set_hung(true),
            Kind::DiskFull => disk.set_capacity(Some(disk.used_bytes())),
            _ if self.hard < 500 => disk.fail_sync(1 + self.hard % 3, Fault::Io),
            _ => disk.fail_write(1 + self.hard % 3, Fault::Io),
        }
        runtime::sleep(self.length).await;
        disk.set_sync_delay(self.world.plan.sync);
        disk.set_hung(false);
        disk.set_capacity(None);
        if let Some(why) = self.world.failure(self.at) {
            self.world.trace.say(format!("n{} had failed: {why}", self.at + 1));
        }
        if kind == Kind::DiskError || self.world.failure(self.at).is_some() {
            if self.hard.is_multiple_of(2) {
                self.world.kill(self.at)
            } else {
                self.world.power_cut(self.at)
            }
            self.world.start(self.at);
        }
    }

    /// Half of the seeds have one machine at most whose clock is wild: then a majority is right.
    fn clock(&self) -> &AtomicI64 {
        let at = if self.world.plan.seed.is_multiple_of(2) { self.victim } else { self.at };
        if self.world.plan.seed % 2 == 1 {
            self.world.judge.several_wild();
        }
        &self.world.machines[at].offset_ms
    }

    async fn move_the_clock(&self) {
        let offset = self.clock();
        let hours = i64::try_from(self.hard).unwrap_or(0) - 500;
        offset.fetch_add(hours * 36_000, Ordering::Relaxed);
        runtime::sleep(self.length).await;
        if self.hard.is_multiple_of(2) {
            offset.store(0, Ordering::Relaxed);
        }
    }

    async fn bend_the_clock(&self) {
        const STEP_MS: u64 = 20;
        let offset = self.clock();
        let step = i64::try_from(self.hard % 41).unwrap_or(0) - 20;
        for _ in 0..millis(self.length) / STEP_MS {
            offset.fetch_add(step, Ordering::Relaxed);
            runtime::sleep(Duration::from_millis(STEP_MS)).await;
        }
    }
}
