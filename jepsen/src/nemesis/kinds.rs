//! The kinds of faults, and what each needs.

use crate::cluster::{Cluster, Ground};
use crate::disk::Medium;
use crate::net::Cutter;
use crate::tool;

macro_rules! faults {
    ($( $name:ident $word:literal $family:ident $what:literal; )*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Fault {
            $($name,)*
        }

        impl Fault {
            /// Every kind.
            pub(crate) const ALL: &'static [Fault] = &[$(Fault::$name,)*];

            /// Its name on the command line and in histories.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Fault::$name => $word,)* }
            }

            /// What it does.
            pub(crate) const fn what(self) -> &'static str {
                match self { $(Fault::$name => $what,)* }
            }

            /// What it belongs to.
            pub(crate) const fn family(self) -> Family {
                match self { $(Fault::$name => Family::$family,)* }
            }
        }
    };
}

/// What a fault hits. Two of different families can go on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Network,
    Process,
    Clock,
    Disk,
    /// Data at rest.
    Rest,
    /// Who belongs to the cluster.
    Members,
}

faults! {
    PartFollower "part-follower" Network "a node that does not lead is alone";
    PartLeader "part-leader" Network "the leader is alone, or with a minority";
    Split "split" Network "two halves, drawn at random";
    OneWayOut "one-way-out" Network "the leader hears the others and is not heard";
    OneWayIn "one-way-in" Network "the leader is heard by the others and does not hear";
    Bridge "bridge" Network "two halves that only one node connects";
    Ring "ring" Network "each node reaches only its neighbours (5 nodes)";
    Flapping "flapping" Network "the leader is cut off and back several times a second";
    Loss "loss" Network "a third of all packets between nodes vanish";
    KillOne "kill-one" Process "kill -9 of any node";
    KillLeader "kill-leader" Process "kill -9 of the leader";
    KillAll "kill-all" Process "kill -9 of all nodes at once";
    Pause "pause" Process "a node stands still (SIGSTOP) and goes on";
    PauseLeader "pause-leader" Process "the leader stands still and goes on";
    Stutter "stutter" Process "the leader stands still most of the time";
    Transfer "transfer" Process "the leader is told to stop: it hands over, and comes back";
    RollingRestart "rolling-restart" Process "each node in turn is stopped and started";
    ClockJump "clock-jump" Clock "a node's wall clock jumps, by seconds to an hour";
    ClockJumpLeader "clock-jump-leader" Clock "the leader's wall clock jumps";
    ClockDrift "clock-drift" Clock "a node's wall clock runs at another speed";
    SlowDisk "slow-disk" Disk "every sync of a node takes 30 to 120 ms longer";
    SlowDiskLeader "slow-disk-leader" Disk "the same on the leader";
    SyncError "sync-error" Disk "syncs of a node fail (EIO)";
    WriteError "write-error" Disk "writes of a node fail (EIO)";
    DiskFull "disk-full" Disk "a node's disk is full";
    PowerCut "power-cut" Disk "a node loses power, and what it had not synced";
    PowerCutAll "power-cut-all" Disk "all nodes lose power at once";
    FlipPages "flip-pages" Rest "bytes of a stopped node's pages are flipped";
    FlipLog "flip-log" Rest "bits of a stopped node's log are flipped: it must refuse to vote";
    CutLog "cut-log" Rest "a stopped node's log is cut short: it must refuse to vote";
    Wipe "wipe" Rest "a stopped node's directory is empty: it must stay out";
    Drain "drain" Members "a node is drained, mostly the leader: it leads nothing until undrained";
    Demote "demote" Members "a voter becomes a learner, and gets its vote back";
    Resize "resize" Members "3 nodes become 5 and 3 again, a learner among them: any may go";
    RemoveLeader "remove-leader" Members "a fresh node comes, and the one that leads most goes";
    Replace "replace" Members "a node's log is gone: it is refused, and replaced by a fresh one";
    HandOver "hand-over" Members "every shard's leadership is ordered to another node";
}

impl Fault {
    /// Why it cannot be made on this cluster; `None` when it can.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most kinds lack nothing")]
    pub(crate) fn lacks(self, cluster: &Cluster) -> Option<String> {
        let no = |why: &str| Some(why.to_owned());
        let images = cluster.nodes.values().all(|node| node.disk.medium == Medium::Image);
        let plain = cluster.nodes.values().any(|node| node.disk.medium == Medium::Plain);
        match self {
            Fault::Ring if cluster.plan.nodes < 5 => no("a ring of three is everybody"),
            Fault::Loss if cluster.net.as_ref().is_some_and(|n| n.cutter != Cutter::Nft) => {
                no("needs nft, which is missing")
            }
            Fault::PowerCut | Fault::PowerCutAll if !images => {
                no("needs loop-mounted images, which cannot be made here")
            }
            Fault::DiskFull if plain => no("needs a disk of the node's own"),
            Fault::SlowDisk | Fault::SlowDiskLeader | Fault::SyncError | Fault::WriteError
                if !tool::is_there("strace") =>
            {
                no("needs strace, which is missing")
            }
            Fault::ClockJump | Fault::ClockJumpLeader | Fault::ClockDrift
                if !cluster.has_clocks() =>
            {
                no("needs libfaketime, which is missing")
            }
            _ if self.family() == Family::Network && cluster.plan.ground == Ground::Loopback => {
                no("needs network namespaces, which cannot be made here")
            }
            _ => None,
        }
    }

    /// Whether another fault may go on at the same time.
    pub(crate) fn goes_with(self, other: Fault) -> bool {
        let alone = |fault: Fault| {
            let with_others = [Fault::Drain, Fault::Resize, Fault::HandOver].contains(&fault);
            fault.family() == Family::Rest
                || (fault.family() == Family::Members && !with_others)
                || matches!(fault, Fault::PowerCut | Fault::PowerCutAll | Fault::KillAll)
                || fault == Fault::RollingRestart
        };
        // A tracer and a signal on one process would wait for each other.
        let entangled =
            |a: Fault, b: Fault| a.family() == Family::Disk && b.family() == Family::Process;
        self.family() != other.family()
            && !alone(self)
            && !alone(other)
            && !entangled(self, other)
            && !entangled(other, self)
    }

    /// Finds a kind.
    pub(crate) fn named(name: &str) -> Option<Fault> {
        Fault::ALL.iter().copied().find(|fault| fault.name() == name)
    }
}
