//! What is played with regions that change.

use crate::charter::Scene;
use crate::shelf::{BUCKETS, Plan};
use crate::traps::Trap;

/// Two regions of one bucket each; the second one closes and opens again, and there is another
/// floor to choose each time.
fn closing() -> Scene {
    let plan = Plan {
        buckets: 2,
        regions: false,
        total: 2,
        floors: [0; BUCKETS],
        keys: vec![(1, 1)],
        unswept: false,
        bound: 2,
        charters: vec![vec![(1, 0), (1, 1)], vec![(2, 0), (0, 0)], vec![(1, 1), (1, 0)]],
        lands: [0, 1, 0],
    };
    Scene {
        called: "a region closes and opens again",
        plan,
        changes: 3,
        pairs: vec![(0, 1), (1, 0)],
        sends: 2,
        stock: [1, 1, 0],
        release: false,
        deletion: false,
        collector: None,
        trap: None,
    }
}

/// A region of two buckets between which its floor travels while it rises and falls; a third bucket
/// belongs to another region.
fn travelling() -> Scene {
    Scene {
        called: "a floor travels while it rises and falls",
        plan: Plan {
            buckets: 3,
            total: 2,
            keys: Vec::new(),
            charters: vec![vec![(2, 2), (0, 0)], vec![(2, 0), (0, 0)], vec![(2, 1), (0, 0)]],
            lands: [0, 0, 1],
            ..closing().plan
        },
        changes: 2,
        pairs: vec![(0, 1), (1, 0), (1, 2)],
        sends: 1,
        stock: [2, 0, 0],
        ..closing()
    }
}

/// A region that is opened live, on a shard that has nothing of the item.
fn opening() -> Scene {
    Scene {
        called: "a region opens on a new shard",
        plan: Plan {
            buckets: 3,
            total: 2,
            keys: vec![(2, 1)],
            charters: vec![
                vec![(1, 0), (1, 0)],
                vec![(1, 0), (0, 0), (1, 1)],
                vec![(2, 0), (0, 0), (0, 0)],
            ],
            lands: [0, 1, 2],
            ..closing().plan
        },
        changes: 2,
        pairs: vec![(0, 2), (1, 2), (2, 0)],
        sends: 1,
        ..closing()
    }
}

/// An item whose regions change is deleted.
fn deleted() -> Scene {
    Scene {
        called: "deletion after a region has opened",
        changes: 1,
        pairs: Vec::new(),
        deletion: true,
        release: true,
        plan: Plan {
            keys: vec![(1, 1)],
            charters: opening().plan.charters[..2].to_vec(),
            ..opening().plan
        },
        ..opening()
    }
}

/// A collector for the first region while the others' floors change places.
fn collected() -> Scene {
    Scene {
        called: "sold out for a region while floors change places",
        plan: Plan {
            buckets: 3,
            total: 1,
            keys: Vec::new(),
            charters: vec![vec![(0, 0), (1, 1), (0, 0)], vec![(0, 0), (1, 0), (0, 0)]],
            lands: [0, 1, 2],
            ..closing().plan
        },
        changes: 2,
        pairs: vec![(1, 0)],
        sends: 1,
        stock: [0, 1, 0],
        collector: Some(0),
        ..closing()
    }
}

/// The same with a unit in each of the others, of which one is always for lending.
fn swapped() -> Scene {
    Scene {
        called: "sold out for a region beside floors that are swapped",
        plan: Plan {
            total: 2,
            charters: vec![vec![(0, 0), (1, 1), (1, 0)], vec![(0, 0), (1, 0), (1, 1)]],
            ..collected().plan
        },
        changes: 3,
        pairs: Vec::new(),
        stock: [0, 1, 1],
        ..collected()
    }
}

/// A collector for the first region while the second one, which has the last unit, closes.
fn closed() -> Scene {
    Scene {
        called: "sold out for a region while another closes",
        plan: Plan {
            total: 1,
            charters: vec![vec![(0, 0), (1, 0)], vec![(1, 0), (0, 0)]],
            ..closing().plan
        },
        changes: 1,
        pairs: vec![(1, 0)],
        sends: 1,
        stock: [0, 1, 0],
        release: true,
        collector: Some(0),
        ..closing()
    }
}

/// The rules as they are.
pub(crate) fn right() -> Vec<Scene> {
    vec![
        closing(),
        Scene { called: "a region closes while holds end", release: true, changes: 2, ..closing() },
        travelling(),
        opening(),
        deleted(),
        collected(),
        swapped(),
        closed(),
    ]
}

/// Each wrong reading and the scene in which it shows.
pub(crate) fn traps() -> Vec<(Trap, Scene)> {
    vec![
        (Trap::FloorLentTwice, travelling()),
        (Trap::FloorGrantedByAnOldImage, closing()),
        (Trap::StockOfClosedRegionLost, closing()),
        (Trap::LateTransferToClosedRegion, closing()),
        (Trap::CopyThatNeverAnsweredPassedOver, deleted()),
        (Trap::ClosedRegionsLeftOut, closed()),
        (Trap::LiftedFloorIsNoCredit, swapped()),
    ]
}
