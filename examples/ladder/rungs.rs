//! The rungs as data: which suites, in which order. A rung is cheaper and blinder than the next.

/// How a suite is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Build {
    /// The package's unit tests.
    Units,
    /// An integration test.
    Test,
    /// An integration test on the simulator's runtime.
    Simulated,
    /// The partition suite, against the planted binary.
    Partition,
}

/// A test binary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) build: Build,
}

/// A rung.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rung {
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) suites: &'static [Suite],
}

const fn test(name: &'static str) -> Suite {
    Suite { name, build: Build::Test }
}

/// All rungs, from the lowest.
pub(crate) const RUNGS: &[Rung] = &[
    Rung {
        number: 1,
        name: "rules",
        suites: &[
            test("golden"),
            Suite { name: "holdfast", build: Build::Units },
            test("ledger_laws"),
        ],
    },
    Rung { number: 2, name: "escrow model", suites: &[test("escrow_model")] },
    Rung {
        number: 3,
        name: "files",
        suites: &[
            test("wal_crash"),
            test("wal_damage"),
            test("wal_driver"),
            test("checkpoint_cycle"),
            test("checkpoint_faults"),
            test("checkpoint_damage"),
            test("checkpoint_space"),
            test("checkpoint_power"),
            test("identity"),
            test("node_start"),
        ],
    },
    Rung {
        number: 4,
        name: "simulator",
        suites: &[Suite { name: "simulation", build: Build::Simulated }],
    },
    Rung {
        number: 5,
        name: "faces",
        suites: &[
            test("http_contract"),
            test("http_bad_input"),
            test("http_serve"),
            test("client_outcomes"),
            test("peer_sim"),
            test("peer_tcp"),
            test("node_health"),
        ],
    },
    Rung {
        number: 6,
        name: "cluster",
        suites: &[
            test("cluster_retry"),
            test("cluster_stopped"),
            test("cluster_quorum"),
            test("cluster_restart"),
            test("cluster_identity"),
            test("cluster_disk"),
            test("cluster_snapshot"),
            test("cluster_race"),
            test("cluster_expiry"),
            test("cluster_handover"),
            test("cluster_clients"),
            test("cluster_layout"),
            test("cluster_spread"),
        ],
    },
    Rung {
        number: 7,
        name: "partition suite",
        suites: &[Suite { name: "holdfast-jepsen", build: Build::Partition }],
    },
];
