//! What is played: small items, and what may happen to each.

use crate::shelf::{BUCKETS, Plan};
use crate::trade::Scene;
use crate::traps::Trap;

/// Two buckets of one region and two units, one in each; a buyer at each who takes one.
fn two() -> Scene {
    let plan = Plan {
        buckets: 2,
        regions: false,
        total: 2,
        floors: [0; BUCKETS],
        keys: vec![(0, 1), (1, 1)],
        unswept: false,
        bound: 2,
        charters: Vec::new(),
        lands: [0; BUCKETS],
    };
    Scene {
        called: "two buckets",
        plan,
        stock: [1, 1, 0],
        placed: 0,
        pairs: vec![(0, 1), (1, 0)],
        pulls: vec![1],
        sends: 3,
        release: false,
        confirm: false,
        expire: false,
        raises: 0,
        lower: 0,
        revisions: 1,
        deletion: false,
        second_life: false,
        collector: false,
        auditor: false,
        trap: None,
    }
}

/// Three buckets that trade in a ring and back.
fn three() -> Scene {
    let plan = Plan { buckets: 3, total: 3, keys: vec![(1, 1), (2, 2)], ..two().plan };
    Scene {
        called: "three buckets",
        plan,
        stock: [2, 1, 0],
        pairs: vec![(0, 1), (1, 2), (2, 0)],
        ..two()
    }
}

/// Three regions with floors, which lend what is above them.
fn regions() -> Scene {
    let plan = Plan {
        regions: true,
        total: 4,
        floors: [1, 1, 0],
        keys: vec![(0, 1), (2, 2)],
        ..three().plan
    };
    Scene {
        called: "regions with floors",
        plan,
        stock: [2, 2, 0],
        pairs: vec![(0, 2), (1, 2), (2, 0)],
        ..two()
    }
}

/// The rules as they are.
pub(crate) fn right() -> Vec<Scene> {
    let keyed = |keys: Vec<(u8, u8)>| Plan { keys, ..two().plan };
    vec![
        two(),
        Scene { called: "two buckets, holds that end", release: true, expire: true, ..two() },
        Scene { called: "pulls of two", pulls: vec![1, 2], plan: keyed(vec![(0, 2)]), ..two() },
        three(),
        Scene {
            called: "three buckets, every pair, holds that end",
            plan: Plan { keys: vec![(0, 1), (1, 2), (2, 1)], ..three().plan },
            pairs: vec![(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)],
            sends: 2,
            release: true,
            confirm: true,
            ..three()
        },
        regions(),
        Scene {
            called: "floors that travel",
            plan: Plan { floors: [2, 0, 0], ..two().plan },
            pulls: vec![1, 2],
            ..two()
        },
        Scene { called: "an audit at any time", auditor: true, ..two() },
        Scene { called: "raise and lower", raises: 1, lower: 2, auditor: true, ..two() },
        Scene { called: "lowering with an end of holds", lower: 2, release: true, ..two() },
        Scene { called: "pause and resume", revisions: 4, ..two() },
        Scene {
            called: "deletion",
            revisions: 4,
            deletion: true,
            release: true,
            plan: keyed(vec![(1, 1)]),
            pairs: vec![(0, 1)],
            ..two()
        },
        lives(),
        lowered(),
        Scene {
            called: "pause and deletion of three",
            revisions: 3,
            deletion: true,
            plan: Plan { keys: vec![(1, 1), (2, 1)], ..three().plan },
            stock: [1, 1, 1],
            pairs: Vec::new(),
            ..three()
        },
        Scene {
            called: "regions that lend while their total is lowered",
            lower: 1,
            release: true,
            plan: Plan { keys: vec![(2, 1)], ..regions().plan },
            ..regions()
        },
        collected(),
        Scene {
            called: "sold out over three buckets",
            plan: Plan { total: 2, keys: vec![(0, 1), (1, 1), (2, 1)], ..three().plan },
            stock: [1, 1, 0],
            pairs: vec![(1, 2), (2, 0)],
            sends: 1,
            collector: true,
            ..three()
        },
        Scene { called: "sold out with transfers", release: true, expire: false, ..moving() },
        Scene { called: "sold out with due holds", ..due() },
        Scene {
            called: "sold out with raise and lowering",
            raises: 1,
            lower: 1,
            plan: keyed(vec![(0, 1)]),
            pairs: vec![(1, 0)],
            collector: true,
            ..two()
        },
    ]
}

/// A collector while a lowering begins and is given up.
fn lowered() -> Scene {
    Scene {
        called: "sold out with a lowering given up",
        pairs: Vec::new(),
        release: true,
        lower: 1,
        collector: true,
        ..two()
    }
}

/// Two lives of one name, and messages of the first in the second.
fn lives() -> Scene {
    Scene {
        called: "two lives",
        plan: Plan { keys: vec![(1, 1)], ..two().plan },
        pairs: vec![(0, 1)],
        revisions: 2,
        deletion: true,
        second_life: true,
        ..two()
    }
}

/// A collector over buckets whose holds come and go, without transfers.
fn collected() -> Scene {
    Scene {
        called: "sold out with holds that end",
        plan: Plan { keys: vec![(0, 1), (1, 1), (0, 1), (1, 1)], ..two().plan },
        placed: 1,
        pairs: Vec::new(),
        release: true,
        collector: true,
        ..two()
    }
}

/// A collector while stock travels.
fn moving() -> Scene {
    Scene {
        plan: Plan { total: 1, keys: vec![(0, 1), (1, 1)], ..two().plan },
        stock: [1, 0, 0],
        collector: true,
        ..two()
    }
}

/// A collector while holds fall due and nobody sweeps them.
fn due() -> Scene {
    Scene {
        plan: Plan { total: 1, keys: vec![(1, 1)], unswept: true, ..two().plan },
        stock: [0, 1, 0],
        pairs: vec![(1, 0)],
        expire: true,
        collector: true,
        ..two()
    }
}

/// Each wrong reading and the scene in which it shows.
pub(crate) fn traps() -> Vec<(Trap, Scene)> {
    let one_way = || Scene { pairs: vec![(0, 1)], ..two() };
    let deleted = || Scene { pairs: Vec::new(), second_life: false, ..lives() };
    vec![
        (Trap::HighestSequenceSeen, Scene { stock: [2, 0, 0], ..one_way() }),
        (Trap::RefusalNotLogged, two()),
        (Trap::TakeBackByTimeout, two()),
        (Trap::SettleWithoutHowMuch, Scene { stock: [2, 0, 0], ..one_way() }),
        (Trap::SequenceChosenAtProposal, Scene { stock: [2, 0, 0], ..one_way() }),
        (Trap::CountersStartAgainWithLeader, two()),
        (Trap::CountersForgottenAtClose, Scene { revisions: 2, ..two() }),
        (Trap::BucketNumberUsedAgain, three()),
        (Trap::SentAtProposal, two()),
        (Trap::MessageCarriesDifference, two()),
        (Trap::PullWithoutCounter, Scene { stock: [2, 0, 0], ..one_way() }),
        (Trap::TotalLoweredFirst, Scene { lower: 2, ..two() }),
        (Trap::ModeWithoutRevision, Scene { revisions: 4, ..deleted() }),
        (Trap::AnswerForAnotherRevision, deleted()),
        (Trap::MessageWithoutItemNumber, lives()),
        (Trap::CollectOverTransferCounters, collected()),
        (Trap::OneRoundOfZeros, collected()),
        (Trap::JoiningARunningCollect, Scene { release: true, ..collected() }),
        (Trap::CreditsInMemory, collected()),
        (Trap::DueHoldsLeftOut, due()),
        (Trap::BucketZeroLeftOut, moving()),
        (Trap::InTransitLeftOut, moving()),
        (Trap::AnswerOfAnotherRound, collected()),
        (Trap::AuditByDonorsCounters, Scene { auditor: true, ..two() }),
    ]
}
