//! Arbitrary commands about items of several buckets, with extreme values.

use holdfast::ledger::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::hostile::{bucket, definition, item_name, plans, text, units};

fn item() -> BoxedStrategy<ItemRef> {
    bucket().prop_map(|BucketRef { home, item, .. }| ItemRef { home, item }).boxed()
}

fn number() -> BoxedStrategy<ItemNumber> {
    prop_oneof![8 => 0..4_u64, 1 => any::<u64>()].prop_map(ItemNumber).boxed()
}

fn shard() -> BoxedStrategy<ShardId> {
    prop_oneof![8 => 0..3_u16, 1 => any::<u16>()].prop_map(ShardId).boxed()
}

fn ordinal() -> BoxedStrategy<RegionOrdinal> {
    prop_oneof![8 => 0..3_u16, 1 => any::<u16>()].prop_map(RegionOrdinal).boxed()
}

fn placement() -> BoxedStrategy<BucketPlacement> {
    (0..4_u16, shard(), ordinal())
        .prop_map(|(bucket, shard, region)| BucketPlacement {
            bucket: BucketId(bucket),
            shard,
            region,
        })
        .boxed()
}

fn configure() -> BoxedStrategy<Command> {
    let region = (ordinal(), text(), any::<(bool, bool)>(), units()).prop_map(
        |(ordinal, name, (default, closed), floor)| RegionInfo {
            ordinal,
            name,
            default,
            closed,
            floor,
        },
    );
    let sensible = Just((
        vec![RegionInfo {
            ordinal: RegionOrdinal(0),
            name: "default".into(),
            default: true,
            closed: false,
            floor: 0,
        }],
        vec![BucketPlacement { bucket: BucketId(0), shard: ShardId(0), region: RegionOrdinal(0) }],
    ));
    let any_layout = (vec(region, 0..3), vec(placement(), 0..4));
    let layout = prop_oneof![2 => sensible, 1 => any_layout];
    (item(), item_name(), units(), 0..3_u8, definition(), layout)
        .prop_map(|(item, name, revision, mode, definition, (regions, layout))| {
            let mode = [Mode::Open, Mode::Paused, Mode::Closed][usize::from(mode)];
            let image = Configure { item, name, revision, mode, definition, regions, layout };
            Command::Configure(Box::new(image))
        })
        .boxed()
}

fn of_copies() -> BoxedStrategy<Command> {
    let state = prop_oneof![
        4 => (units(), units(), any::<bool>()).prop_map(|(revision, held, broken)| {
            CopyState::Applied { revision, mode: Mode::Open, held, broken }
        }),
        1 => Just(CopyState::Erased),
    ];
    let answered = (item(), shard(), state).prop_map(|(item, shard, state)| {
        Command::CopyAnswered(CopyAnswered { item, shard, state })
    });
    let erase = item().prop_map(|item| Command::EraseCopy(EraseCopy { item }));
    prop_oneof![4 => configure(), 2 => answered, 1 => erase].boxed()
}

fn of_totals() -> BoxedStrategy<Command> {
    let send = (bucket(), 0..4_u16, units(), units(), any::<bool>(), units()).prop_map(
        |(from, to, quantity, acked, same_region, bound)| {
            let (to, if_sent) = (BucketId(to), 0);
            SendStock { from, to, quantity, acked, if_sent, same_region, bound }
        },
    );
    let moved = (send, any::<bool>())
        .prop_map(|(send, claims)| if claims { Change::Claim(send) } else { Change::Move(send) });
    let change = prop_oneof![
        2 => moved,
        4 => units().prop_map(Change::Lower),
        1 => units().prop_map(Change::Raise),
        2 => (units(), ordinal()).prop_map(|(units, region)| Change::LowerIn { units, region }),
        2 => (units(), ordinal()).prop_map(|(units, region)| Change::RaiseIn { units, region }),
        1 => (units(), units()).prop_map(|(total, if_revision)| Change::Set { total, if_revision }),
    ];
    let begin = (item_name(), number(), text(), change.clone(), text(), units()).prop_map(
        |(name, item, key, change, reason, until)| {
            let until = UnixMs(until);
            Command::LowerBegin(LowerBegin { name, item, key, change, reason, until })
        },
    );
    let end =
        (item_name(), number(), text(), any::<bool>()).prop_map(|(name, item, key, commit)| {
            let end = LowerEnd { name, item, key };
            if commit { Command::LowerCommit(end) } else { Command::LowerAbort(end) }
        });
    let adjust = (item_name(), text(), change, text()).prop_map(|(name, key, change, reason)| {
        Command::Adjust(Adjust { name, key, change, reason })
    });
    prop_oneof![3 => begin, 3 => end, 2 => adjust].boxed()
}

/// Returns commands about items of several buckets.
pub(super) fn command() -> BoxedStrategy<Command> {
    let some = || prop::option::weighted(0.7, units());
    let shards = || btree_map(text(), vec(shard(), 0..3), 0..3);
    let home = || {
        Just([("default".to_string(), vec![ShardId(0)]), ("n1".into(), vec![ShardId(0)])])
            .prop_map(std::collections::BTreeMap::from)
    };
    let shards = move || prop_oneof![3 => home(), 1 => shards()];
    let regions = || {
        let two = (0..9_u64, 0..3_u64).prop_map(|(quota, floor)| {
            let plan = |quota| RegionPlan { quota, floor, buckets: 1 };
            std::collections::BTreeMap::from([
                ("default".to_string(), plan(quota)),
                ("n1".to_string(), plan(8 - quota.min(8))),
            ])
        });
        prop_oneof![3 => two, 1 => plans()]
    };
    let total = || prop_oneof![3 => Just(Some(8)), 1 => some()];
    let spread = (item_name(), total(), regions(), definition(), shards()).prop_map(
        |(name, total, regions, definition, shards)| {
            let define = Define { name, total, regions, definition, if_revision: None };
            Command::DefineSpread(DefineSpread { define, shards })
        },
    );
    let layout = (item_name(), number(), units(), regions(), shards()).prop_map(
        |(name, item, if_revision, regions, shards)| {
            Command::SetLayout(SetLayout { name, item, if_revision, regions, shards })
        },
    );
    let delete = (item_name(), number(), 0..4_u8).prop_map(|(name, item, step)| {
        let delete = Delete { name, item };
        match step {
            0 => Command::DeleteBegin(delete),
            1 => Command::DeleteCommit(delete),
            _ => Command::DeleteAbort(delete),
        }
    });
    let send = (bucket(), 0..4_u16, units(), units(), units(), any::<bool>(), units()).prop_map(
        |(from, to, quantity, acked, if_sent, same_region, bound)| {
            let to = BucketId(to);
            Command::MoveStock(SendStock { from, to, quantity, acked, if_sent, same_region, bound })
        },
    );
    prop_oneof![
        4 => spread,
        3 => layout,
        2 => delete,
        4 => send,
        4 => of_totals(),
        4 => of_copies(),
    ]
    .boxed()
}
