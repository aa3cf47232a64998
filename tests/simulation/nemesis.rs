//! The nemesis: inflicts the faults that the seed draws, one after the other or together, and takes
//! each back after a while.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use holdfast::ledger::NodeId;
use holdfast::peer::SimDefaults;
use holdfast::runtime::{self, life};
use holdfast::shard::LogStatus;
use holdfast::storage::Fault;

use super::plan::{FaultPlan, Kind, NODES};
use super::world::World;

/// Inflicts faults until it is told to stop.
pub(crate) struct Nemesis {
    world: Arc<World>,
    stop: Arc<AtomicBool>,
}

impl Nemesis {
    pub(crate) fn new(world: &Arc<World>, stop: &Arc<AtomicBool>) -> Nemesis {
        Nemesis { world: Arc::clone(world), stop: Arc::clone(stop) }
    }

    pub(crate) async fn run(self) {
        let mut under_way = Vec::new();
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) || self.world.cut.faults.is_over(number) {
                break;
            }
            let Some(plan) = self.world.plan.fault(number) else { break };
            runtime::sleep(plan.pause).await;
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if !self.world.cut.faults.has(number) {
                continue;
            }
            self.world.begin_fault(plan.kind);
            let (at, length) = (plan.at + 1, plan.length);
            let words = format!("fault {number}: {:?} of n{at} for {length:?}", plan.kind);
            self.world.trace.say("nemesis", words);
            let fault = Inflicted { world: Arc::clone(&self.world), plan };
            let done = life::spawn_in_the_world(async move {
                if fault.run().await {
                    fault.world.took_effect(fault.plan.kind);
                }
                fault.world.trace.say("nemesis", format!("fault {number} is over"));
            });
            if plan.overlaps {
                under_way.push(done);
            } else {
                done.await.ok();
            }
        }
        self.world.faults_are_over();
        for fault in under_way {
            fault.await.ok();
        }
    }
}

/// One fault under way.
struct Inflicted {
    world: Arc<World>,
    plan: FaultPlan,
}

impl Inflicted {
    /// Inflicts it and takes it back; tells whether it changed anything.
    async fn run(&self) -> bool {
        match self.plan.kind {
            Kind::PowerCut
            | Kind::Kill
            | Kind::KillLeader
            | Kind::PowerCutAll
            | Kind::PowerCutMidway
            | Kind::Restart
            | Kind::PagesLost => self.take_down().await,
            Kind::BitFlip => self.flip_a_bit().await,
            Kind::Wipe => self.wipe().await,
            Kind::Stop | Kind::StopLeader | Kind::Stutter => self.hold_up().await,
            Kind::Isolate
            | Kind::OneWay
            | Kind::Pair
            | Kind::Flap
            | Kind::Loss
            | Kind::Spikes
            | Kind::Reset => self.trouble_the_wire().await,
            Kind::SlowSync
            | Kind::HungSync
            | Kind::DiskFull
            | Kind::DiskError
            | Kind::PagesError => self.trouble_the_disk().await,
            Kind::ClockJump => self.move_the_clock().await,
            Kind::ClockDrift => self.bend_the_clock().await,
        }
    }

    /// The node that leads the most shards, by its own word.
    fn leader(&self) -> usize {
        let at = self.plan.at;
        let leader = (0..NODES).max_by_key(|one| (self.world.leads(*one), *one == at));
        let leader = leader.unwrap_or(at);
        self.world.trace.say("nemesis", format!("the leader is n{}", leader + 1));
        leader
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "it is given the kinds of its family only")]
    async fn take_down(&self) -> bool {
        let (world, at, hard) = (&self.world, self.plan.at, self.plan.hard);
        let victim = world.plan.victim;
        let ended = match self.plan.kind {
            Kind::PowerCut => world.power_cut(at),
            Kind::KillLeader => {
                let at = self.leader();
                if hard < 500 { world.kill(at) } else { world.power_cut(at) }
            }
            Kind::PowerCutAll => (0..NODES).filter(|at| world.power_cut(*at)).count() > 0,
            Kind::PowerCutMidway => {
                world.machines[at].disk.power_off_after(hard % 40);
                runtime::sleep(self.plan.length / 4).await;
                world.power_cut(at)
            }
            Kind::Restart => world.stop_in_order(at).await,
            Kind::PagesLost => {
                world.kill(victim);
                world.damage_pages(victim);
                !world.is_lost(victim)
            }
            _ => world.kill(at),
        };
        runtime::sleep(self.plan.length).await;
        (0..NODES).for_each(|at| world.start(at));
        ended
    }

    /// A bit of the victim's log or identity is another when it starts again.
    async fn flip_a_bit(&self) -> bool {
        let (world, at) = (&self.world, self.world.plan.victim);
        world.kill(at);
        let flipped = world.flip_a_bit(at);
        runtime::sleep(self.plan.length).await;
        world.start(at);
        flipped
    }

    /// The victim comes back with nothing, and is even told that it was a member.
    async fn wipe(&self) -> bool {
        let (world, at) = (&self.world, self.world.plan.victim);
        if world.is_lost(at) {
            return false;
        }
        world.kill(at);
        world.wipe(at);
        runtime::sleep(self.plan.length).await;
        world.start(at);
        if self.plan.hard < 500 {
            runtime::sleep(Duration::from_millis(50)).await;
            world.adopt_again(at).await;
        }
        true
    }

    /// A process does nothing for a while; the machine and its network go on.
    async fn hold_up(&self) -> bool {
        let at = if self.plan.kind == Kind::StopLeader { self.leader() } else { self.plan.at };
        let Some(life) = self.world.life(at) else { return false };
        if self.plan.kind != Kind::Stutter {
            life.stop();
            runtime::sleep(self.plan.length).await;
            life.go_on();
            return !life.is_over();
        }
        let (on, off) = (1 + self.plan.hard % 7, 1 + self.plan.hard % 90);
        let ends = runtime::now() + self.plan.length;
        while runtime::now() < ends && !life.is_over() {
            life.stop();
            runtime::sleep(Duration::from_millis(off)).await;
            life.go_on();
            runtime::sleep(Duration::from_millis(on)).await;
        }
        true
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "it is given the kinds of its family only")]
    async fn trouble_the_wire(&self) -> bool {
        let node = |at: usize| self.world.machines[at % NODES].node_id();
        let wire = &self.world.wire;
        let before = wire.counters();
        let (own, other) = (node(self.plan.at), node(self.plan.at + self.plan.other));
        let peers = || (1..NODES).map(|step| node(self.plan.at + step));
        let is_deaf = self.plan.hard < 500;
        let cuts: Vec<(NodeId, NodeId)> = match self.plan.kind {
            Kind::Isolate | Kind::Flap => {
                peers().flat_map(|peer| [(own, peer), (peer, own)]).collect()
            }
            Kind::OneWay => {
                peers().map(|peer| if is_deaf { (peer, own) } else { (own, peer) }).collect()
            }
            Kind::Pair => vec![(own, other), (other, own)],
            _ => Vec::new(),
        };
        let cut = |on: bool| cuts.iter().for_each(|(from, to)| wire.partition(*from, *to, on));
        cut(true);
        let hard = u32::try_from(self.plan.hard).unwrap_or(0);
        match self.plan.kind {
            Kind::Loss => wire.lose(hard * 50),
            Kind::Spikes => wire.behave(SimDefaults {
                spikes_per_million: hard * 300,
                spike_max: Duration::from_millis(900),
                ..self.world.plan.wire.clone()
            }),
            Kind::Reset => wire.break_connections(own, other),
            Kind::Flap => {
                let ends = runtime::now() + self.plan.length;
                let step = Duration::from_millis(20 + self.plan.hard % 300);
                let mut on = true;
                while runtime::now() < ends {
                    runtime::sleep(step).await;
                    on = !on;
                    cut(on);
                }
            }
            _ => {}
        }
        if !matches!(self.plan.kind, Kind::Flap | Kind::Reset) {
            runtime::sleep(self.plan.length).await;
        }
        cut(false);
        match self.plan.kind {
            Kind::Loss => wire.lose(0),
            Kind::Spikes => wire.behave(self.world.plan.wire.clone()),
            _ => {}
        }
        let after = wire.counters();
        match self.plan.kind {
            Kind::Loss => after.dropped > before.dropped,
            Kind::Spikes => after.delivered > before.delivered,
            Kind::Reset => after.broken > before.broken,
            // What met the cut.
            _ => after.held + after.dials_held > before.held + before.dials_held,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "it is given the kinds of its family only")]
    async fn trouble_the_disk(&self) -> bool {
        let (at, hard) = (self.plan.at, self.plan.hard);
        let machine = &self.world.machines[at];
        let disk = &machine.disk;
        let syncs = disk.syncs();
        match self.plan.kind {
            Kind::SlowSync => disk.set_sync_delay(Duration::from_micros(hard * 400)),
            Kind::HungSync => disk.set_hung(true),
            Kind::DiskFull => disk.set_capacity(Some(disk.used_bytes())),
            Kind::PagesError => {
                let calls = u32::try_from(hard % 12).unwrap_or(0);
                let kind =
                    if hard < 500 { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
                machine.pages.iter().for_each(|pages| pages.fail_after(calls, kind));
            }
            _ if hard < 500 => disk.fail_sync(1 + hard % 3, Fault::Io),
            _ => disk.fail_write(1 + hard % 3, Fault::Io),
        }
        runtime::sleep(self.plan.length).await;
        let log = self.world.status(at).map(|status| status.log);
        let waits = log.as_ref().is_some_and(|log| log.oldest_unsynced_ms.is_some());
        let is_full = |log: &LogStatus| log.disk_full || log.waits_for_room_ms.is_some();
        let has_no_room = log.as_ref().is_some_and(is_full);
        disk.set_sync_delay(self.world.plan.sync);
        disk.set_hung(false);
        disk.set_capacity(None);
        let failure = self.world.failure(at);
        if let Some(why) = &failure {
            self.world.trace.say_of(machine.id, format!("has failed: {why}"));
        }
        if self.plan.kind == Kind::DiskError || failure.is_some() {
            if hard.is_multiple_of(2) {
                self.world.kill(at);
            } else {
                self.world.power_cut(at);
            }
            self.world.start(at);
        }
        match self.plan.kind {
            Kind::SlowSync => disk.syncs() > syncs || waits,
            Kind::HungSync => waits || failure.is_some(),
            Kind::DiskFull => has_no_room || failure.is_some(),
            Kind::PagesError => machine.pages.iter().any(|pages| !pages.is_to_fail()),
            _ => failure.is_some(),
        }
    }

    /// Half of the seeds have one machine at most whose clock is wild: then a majority is right.
    fn clock(&self) -> (usize, &AtomicI64) {
        let is_one = self.world.plan.seed.is_multiple_of(2);
        let at = if is_one { self.world.plan.victim } else { self.plan.at };
        if !is_one {
            self.world.judge.several_wild();
        }
        (at, &self.world.machines[at].offset_ms)
    }

    async fn move_the_clock(&self) -> bool {
        let (at, offset) = self.clock();
        let hours = i64::try_from(self.plan.hard).unwrap_or(0) - 500;
        offset.fetch_add(hours * 36_000, Ordering::Relaxed);
        runtime::sleep(self.plan.length).await;
        let is_seen = hours != 0 && self.world.is_up(at);
        if self.plan.hard.is_multiple_of(2) {
            offset.store(0, Ordering::Relaxed);
        }
        is_seen
    }

    async fn bend_the_clock(&self) -> bool {
        const STEP: Duration = Duration::from_millis(20);
        let (at, offset) = self.clock();
        let step = i64::try_from(self.plan.hard % 41).unwrap_or(0) - 20;
        let ends = runtime::now() + self.plan.length;
        while runtime::now() < ends {
            offset.fetch_add(step, Ordering::Relaxed);
            runtime::sleep(STEP).await;
        }
        step != 0 && self.world.is_up(at)
    }
}
