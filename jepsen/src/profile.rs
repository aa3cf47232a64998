//! Profiles: how long, how many nodes, which floors.

use std::time::Duration;

use crate::workload::Workload;

/// How fast a room works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Operations on one item, about.
    pub(crate) generation: u64,
    /// The mean pause of a client between two operations.
    pub(crate) idle: Duration,
}

/// What a run must have done for its verdict to count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floors {
    pub(crate) operations: u64,
    pub(crate) faults: u64,
    pub(crate) kinds: u64,
    pub(crate) leader_changes: u64,
    /// Changes of the members that were proven: drained, demoted, resized, removed, replaced.
    pub(crate) member_changes: u64,
    /// The most operations of a thousand whose fate may stay unknown, times 1,000.
    pub(crate) unresolved_per_million: u64,
    /// The most items of a hundred that the search may leave undecided.
    pub(crate) undecided_percent: u64,
}

/// A profile.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) nodes: u64,
    pub(crate) shards: u64,
    /// How long faults go on.
    pub(crate) faults_for: Duration,
    /// How long one fault lasts: at least, at most.
    pub(crate) fault_lasts: (Duration, Duration),
    /// The pause after one has healed: at least, at most.
    pub(crate) calm: (Duration, Duration),
    pub(crate) pace: Pace,
    /// Workloads and their clients.
    pub(crate) rooms: Vec<(Workload, u64)>,
    pub(crate) floors: Floors,
    /// Buyers of the great race, which is run before the other faults; 0 is none.
    pub(crate) racers: u64,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const FLOORS: Floors = Floors {
    operations: 20_000,
    faults: 30,
    kinds: 8,
    leader_changes: 5,
    member_changes: 4,
    unresolved_per_million: 1_000,
    undecided_percent: 2,
};

/// Every workload with its clients.
fn rooms(times: u64) -> Vec<(Workload, u64)> {
    Workload::ALL.into_iter().map(|workload| (workload, workload.clients() * times)).collect()
}

/// All profiles.
pub(crate) fn all() -> Vec<Profile> {
    let usual = Profile {
        name: "fast",
        what: "3 nodes, every kind of fault, under 5 minutes: for every change",
        nodes: 3,
        shards: 3,
        faults_for: Duration::from_secs(205),
        fault_lasts: (ms(1_200), ms(2_600)),
        calm: (ms(300), ms(900)),
        pace: Pace { generation: 260, idle: ms(60) },
        rooms: rooms(1),
        floors: FLOORS,
        racers: 1_500,
    };
    let thin = Profile {
        name: "thin",
        what: "3 nodes, a few faults, half a minute: does the suite itself work here?",
        faults_for: Duration::from_secs(20),
        racers: 0,
        floors: Floors {
            operations: 1_000,
            faults: 2,
            kinds: 2,
            leader_changes: 1,
            member_changes: 0,
            ..FLOORS
        },
        ..usual.clone()
    };
    let full = Profile {
        name: "full",
        what: "5 nodes, every kind of fault many times, about half an hour",
        nodes: 5,
        shards: 4,
        faults_for: Duration::from_secs(25 * 60),
        fault_lasts: (ms(1_500), ms(6_000)),
        floors: Floors {
            operations: 150_000,
            faults: 150,
            kinds: 12,
            leader_changes: 30,
            member_changes: 20,
            ..FLOORS
        },
        racers: 10_000,
        ..usual.clone()
    };
    let soak = Profile {
        name: "soak",
        what: "5 nodes, four hours; --minutes says how long",
        faults_for: Duration::from_secs(4 * 3_600),
        fault_lasts: (ms(1_500), ms(20_000)),
        calm: (ms(1_000), ms(10_000)),
        pace: Pace { idle: ms(200), ..usual.pace },
        ..full.clone()
    };
    vec![thin, usual, full, soak]
}

/// Finds a profile.
pub(crate) fn named(name: &str) -> Option<Profile> {
    all().into_iter().find(|profile| profile.name == name)
}

impl Profile {
    /// How many clients work.
    pub(crate) fn clients(&self) -> u64 {
        self.rooms.iter().map(|(_, clients)| clients).sum()
    }
}
