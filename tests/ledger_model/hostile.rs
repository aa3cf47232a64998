//! Arbitrary commands with extreme values: the ledger is total (case C22). Whatever it is asked, it
//! answers, keeps its own equations, and can be loaded again.

use std::collections::BTreeMap;

use holdfast::ledger::*;
use proptest::collection::vec;
use proptest::prelude::*;

use super::laws;
use super::sequences::nobodys_hold;

pub(super) fn units() -> BoxedStrategy<u64> {
    prop_oneof![
        6 => 0..5_u64,
        2 => Just(QUANTITY_MAX),
        1 => Just(QUANTITY_MAX + 1),
        1 => Just(QUANTITY_MAX - 3),
        1 => Just(u64::MAX),
        1 => Just(1 << 63),
        1 => Just(u64::MAX - 1),
        1 => any::<u64>(),
    ]
    .boxed()
}

fn millis() -> BoxedStrategy<u64> {
    prop_oneof![6 => 0..3_000_u64, 1 => Just(u64::MAX), 1 => Just(i64::MAX as u64), 1 => units()]
        .boxed()
}

pub(super) fn text() -> BoxedStrategy<String> {
    prop_oneof![
        12 => (0..4_u8).prop_map(|n| format!("n{n}")),
        1 => Just(String::new()),
        1 => Just("/".to_string()),
        1 => Just("\u{0}\u{fffd}\u{1f600}".to_string()),
        1 => Just("x".repeat(129)),
        1 => Just("x".repeat(40_000)),
    ]
    .boxed()
}

pub(super) fn item_name() -> BoxedStrategy<ItemName> {
    prop_oneof![
        8 => (0..2_u8).prop_map(|n| ItemName { tenant: "t".into(), item: format!("i{n}") }),
        1 => (text(), text()).prop_map(|(tenant, item)| ItemName { tenant, item }),
    ]
    .boxed()
}

fn region() -> BoxedStrategy<Option<String>> {
    prop_oneof![6 => Just(None), 1 => Just(Some("default".into())), 1 => text().prop_map(Some)]
        .boxed()
}

/// A hold that exists (chosen when it is asked), changed a little or not, or any numbers at all.
#[derive(Debug, Clone)]
enum Guess {
    Known(u8),
    Changed(u8, u8),
    Any(HoldId),
}

fn guess() -> BoxedStrategy<Guess> {
    let any_id =
        (any::<(u16, u64, u16)>(), any::<(u16, u16, u64, u64)>()).prop_map(|(a, b)| HoldId {
            home: ShardId(a.0),
            item: ItemNumber(a.1),
            region: RegionOrdinal(a.2),
            bucket: BucketId(b.0),
            slot: b.1,
            sequence: b.2,
            tag: b.3,
        });
    prop_oneof![
        10 => any::<u8>().prop_map(Guess::Known),
        2 => any::<(u8, u8)>().prop_map(|(at, how)| Guess::Changed(at, how)),
        1 => any_id.prop_map(Guess::Any),
    ]
    .boxed()
}

fn rules() -> BoxedStrategy<HoldRules> {
    (millis(), millis(), any::<u8>(), millis())
        .prop_map(|(ttl_ms, more, extends, life)| HoldRules {
            ttl_ms,
            ttl_ms_max: ttl_ms.saturating_add(more % 5_000),
            extends_max: if extends == 255 { u32::MAX } else { u32::from(extends % 3) },
            lifetime_ms_max: ttl_ms.saturating_add(more % 5_000).saturating_add(life % 10_000),
        })
        .boxed()
}

pub(super) fn definition() -> BoxedStrategy<Definition> {
    let sane = prop_oneof![3 => Just(HoldRules::default()), 2 => rules()];
    let limit = prop::option::weighted(0.3, units());
    let moment = || prop::option::weighted(0.1, millis().prop_map(UnixMs));
    (sane, limit, moment(), moment(), prop::option::weighted(0.1, text()))
        .prop_map(|(rules, limit_per_buyer, opens_at, closes_at, word)| Definition {
            rules,
            limit_per_buyer,
            opens_at,
            closes_at,
            metadata: word.map(|word| (word.clone(), word)).into_iter().collect(),
        })
        .boxed()
}

pub(super) fn plans() -> BoxedStrategy<BTreeMap<String, RegionPlan>> {
    let plan = (units(), units(), 0..3_u16).prop_map(|(quota, floor, buckets)| RegionPlan {
        quota,
        floor,
        buckets,
    });
    prop_oneof![
        4 => Just(BTreeMap::new()),
        1 => prop::collection::btree_map(text(), plan, 0..3),
    ]
    .boxed()
}

pub(super) fn bucket() -> BoxedStrategy<BucketRef> {
    (0..10_u8, 0..4_u64, 0..3_u16, any::<u64>())
        .prop_map(|(odd, item, bucket, any)| BucketRef {
            home: ShardId(u16::from(odd == 0)),
            item: ItemNumber(if odd == 1 { any } else { item }),
            bucket: BucketId(if odd == 2 { u16::MAX } else { bucket }),
        })
        .boxed()
}

/// A command whose hold is still to be chosen.
#[derive(Debug, Clone)]
pub(crate) struct Shot {
    command: Command,
    guess: Guess,
    wait: u64,
}

fn command() -> BoxedStrategy<Command> {
    let hold = nobodys_hold();
    let tenant = || prop_oneof![9 => Just("t".to_string()), 1 => text()];
    let some = || prop::option::weighted(0.5, units());
    let ttl = || prop::option::weighted(0.6, millis());
    let buyer = || prop::option::weighted(0.6, text());
    let place = (item_name(), region(), buyer(), text(), units(), ttl(), region()).prop_map(
        |(name, region, buyer, key, quantity, ttl_ms, reference)| {
            Command::Place(Place { name, region, buyer, key, quantity, ttl_ms, reference })
        },
    );
    let extend = (tenant(), text(), ttl()).prop_map(move |(tenant, key, ttl_ms)| {
        Command::Extend(Extend { hold, tenant, key, ttl_ms })
    });
    let confirm = (tenant(), text(), some(), any::<bool>(), region()).prop_map(
        move |(tenant, key, quantity, reacquire, reference)| {
            Command::Confirm(Confirm { hold, tenant, key, quantity, reacquire, reference })
        },
    );
    let release = (tenant(), text(), region()).prop_map(move |(tenant, key, reason)| {
        Command::Release(Release { hold, tenant, key, reason })
    });
    let back = (tenant(), text(), some()).prop_map(move |(tenant, key, quantity)| {
        Command::Return(Return { hold, tenant, key, quantity })
    });
    let void = (item_name(), region(), buyer(), text()).prop_map(|(name, region, buyer, key)| {
        Command::Void(Void { scope: KeyScope { name, region, buyer, key } })
    });
    let change = prop_oneof![
        units().prop_map(Change::Raise),
        units().prop_map(Change::Lower),
        (units(), units()).prop_map(|(total, if_revision)| Change::Set { total, if_revision }),
    ];
    let adjust = (item_name(), text(), change, text()).prop_map(|(name, key, change, reason)| {
        Command::Adjust(Adjust { name, key, change, reason })
    });
    let define = (item_name(), some(), plans(), definition(), prop::option::weighted(0.1, units()))
        .prop_map(|(name, total, regions, definition, if_revision)| {
            Command::Define(Define { name, total, regions, definition, if_revision })
        });
    let mode = (item_name(), 0..6_u8).prop_map(|(name, n)| {
        let mode = if n == 0 {
            Mode::Paused
        } else if n == 1 {
            Mode::Closed
        } else {
            Mode::Open
        };
        Command::SetMode(SetMode { name, mode })
    });
    prop_oneof![
        24 => place,
        10 => extend,
        12 => confirm,
        8 => release,
        8 => back,
        3 => void,
        8 => adjust,
        8 => define,
        3 => mode,
        1 => item_name().prop_map(|name| Command::Retire(Retire { name })),
        3 => Just(Command::Advance),
        12 => transfer(),
        16 => super::hostile_spread::command(),
    ]
    .boxed()
}

fn transfer() -> BoxedStrategy<Command> {
    let open = (bucket(), item_name(), any::<u16>(), text(), any::<(bool, u8, u8)>(), units())
        .prop_flat_map(|(bucket, name, region, region_name, bits, floor)| {
            definition().prop_map(move |definition| {
                Command::OpenBucket(OpenBucket {
                    bucket,
                    name: name.clone(),
                    region: RegionOrdinal(region % 4),
                    region_name: region_name.clone(),
                    default_region: bits.0,
                    place: (u16::from(bits.1 % 3), u16::from(bits.2 % 3)),
                    floor,
                    definition,
                    revision: floor,
                })
            })
        });
    let send = (bucket(), 0..4_u16, units(), units(), units(), any::<bool>(), units()).prop_map(
        |(from, to, quantity, acked, if_sent, same_region, bound)| {
            let to = BucketId(to);
            Command::SendStock(SendStock { from, to, quantity, acked, if_sent, same_region, bound })
        },
    );
    let accept = (bucket(), 0..4_u16, units(), units()).prop_map(|(to, from, sent, floor_sent)| {
        Command::AcceptStock(AcceptStock { to, from: BucketId(from), sent, floor_sent })
    });
    let settle = (bucket(), 0..4_u16, units()).prop_map(|(from, to, accepted)| {
        Command::SettleStock(SettleStock { from, to: BucketId(to), accepted })
    });
    prop_oneof![1 => open, 3 => send, 2 => accept, 1 => settle].boxed()
}

/// Returns sequences of up to `shots` commands.
pub(crate) fn sequences(shots: usize) -> impl Strategy<Value = Vec<Shot>> {
    let wait = prop_oneof![200 => Just(0), 60 => 0..2_000_u64, 6 => 0..200_000_000_u64,
        1 => Just(u64::MAX), 1 => any::<u64>()];
    let shot = (command(), guess(), wait);
    vec(shot.prop_map(|(command, guess, wait)| Shot { command, guess, wait }), 8..shots)
}

fn aim(command: &mut Command, guess: &Guess, holds: &[HoldId]) {
    let known = |at: &u8| {
        let recent = holds.len().min(24);
        let at = (recent > 0).then(|| holds.len() - 1 - usize::from(*at) % recent);
        at.map_or(nobodys_hold(), |at| holds[at])
    };
    let id = match guess {
        Guess::Known(at) => known(at),
        Guess::Changed(at, how) => {
            let mut id = known(at);
            match how % 6 {
                0 => id.tag ^= 1,
                1 => id.sequence = id.sequence.wrapping_add(1),
                2 => id.slot = id.slot.wrapping_add(1),
                3 => id.bucket.0 = u16::MAX,
                4 => id.item.0 = u64::MAX,
                _ => id.home.0 = u16::MAX,
            }
            id
        }
        Guess::Any(id) => *id,
    };
    match command {
        Command::Extend(extend) => extend.hold = id,
        Command::Confirm(confirm) => confirm.hold = id,
        Command::Release(release) => release.hold = id,
        Command::Return(back) => back.hold = id,
        Command::Define(_)
        | Command::Adjust(_)
        | Command::SetMode(_)
        | Command::Retire(_)
        | Command::Place(_)
        | Command::Void(_)
        | Command::Advance
        | Command::OpenBucket(_)
        | Command::SendStock(_)
        | Command::AcceptStock(_)
        | Command::SettleStock(_)
        | Command::DefineSpread(_)
        | Command::SetLayout(_)
        | Command::Configure(_)
        | Command::CopyAnswered(_)
        | Command::EraseCopy(_)
        | Command::LowerBegin(_)
        | Command::LowerCommit(_)
        | Command::LowerAbort(_)
        | Command::DeleteBegin(_)
        | Command::DeleteAbort(_)
        | Command::DeleteCommit(_)
        | Command::MoveStock(_)
        | Command::SetRoster(_)
        | Command::SetSchema(_) => {}
    }
}

/// Fires one sequence and returns how many commands were answered. With `forged`, accepts of units
/// that nobody sent are fired too: they make units from nothing, so only each bucket's own sums can
/// be asked for then.
/// The ledger is shard 0's of so many.
pub(crate) fn run(shots: &[Shot], forged: bool, shards: u16) -> u64 {
    let shard = ShardId(0);
    let settings = Settings { sweep_max: 1, ..laws::settings(shards) };
    let mut ledger = Ledger::new(shard, settings.clone());
    let (mut holds, mut names) = (Vec::new(), Vec::<ItemName>::new());
    for (at, shot) in shots.iter().enumerate() {
        let mut command = shot.command.clone();
        aim(&mut command, &shot.guess, &holds);
        if !forged && matches!(command, Command::AcceptStock(_)) {
            command = Command::Advance;
        }
        let stamp = UnixMs(ledger.now().0.saturating_add(shot.wait));
        // At the end of time everything is forgotten at once, also between entries of one stamp.
        let time_goes_on = stamp.0 < 1 << 63;
        let foreseen = (shot.wait == 0 && time_goes_on).then(|| ledger.foresee(&command));
        let batch = Batch { stamp, commands: vec![command] };
        let answers = batch.shown(ledger.apply(LogIndex(at as u64 + 1), &batch));
        assert_eq!(answers.len(), 1);
        if let Some(Foreseen::Answer(known)) = foreseen {
            assert_eq!(known, answers[0], "foreseen otherwise: {batch:?}");
        }
        if let Answer::Hold { hold, .. } = &answers[0]
            && !holds.contains(&hold.id)
        {
            holds.push(hold.id);
        }
        if let Answer::Item { item, .. } = &answers[0]
            && !names.contains(&item.name)
        {
            names.push(item.name.clone());
        }
        for name in &names {
            if forged {
                laws::equations(&ledger, name)
            } else {
                laws::audit(&ledger, name)
            };
        }
        if at % 64 == 63 {
            ledger = laws::reload(shard, &settings, &mut ledger);
        }
    }
    shots.len() as u64
}

/// Makes units from nothing by a forged accept. Writing off more than the item ever had is refused;
/// selling more than it ever had breaks the law, which pauses the item. The ledger loads again
/// then, and also after an operator has resumed the item: in vain while the law is broken, and for
/// good once the missing units have come in.
pub(crate) fn break_a_law_and_resume() {
    let shard = ShardId(0);
    let settings = laws::settings(1);
    let mut ledger = Ledger::new(shard, settings.clone());
    let name = ItemName { tenant: "t".into(), item: "x".into() };
    let definition = Definition {
        rules: HoldRules::default(),
        limit_per_buyer: None,
        opens_at: None,
        closes_at: None,
        metadata: BTreeMap::new(),
    };
    let to = BucketRef { home: shard, item: ItemNumber(1), bucket: BucketId(0) };
    let (from, change) = (BucketId(1), Change::Lower(3));
    let (key, reason) = ("a".to_string(), String::new());
    let commands = vec![
        Command::Define(Define {
            name: name.clone(),
            total: Some(1),
            regions: BTreeMap::new(),
            definition,
            if_revision: None,
        }),
        Command::AcceptStock(AcceptStock { to, from, sent: 4, floor_sent: 0 }),
        Command::Adjust(Adjust { name: name.clone(), key, change, reason: reason.clone() }),
        Command::Place(Place {
            name: name.clone(),
            region: None,
            buyer: None,
            key: "k".into(),
            quantity: 4,
            ttl_ms: None,
            reference: None,
        }),
    ];
    let broken = |ledger: &Ledger| {
        let found = ledger.query(&Query::Item(name.clone()));
        let Found::Item(item) = found else { panic!("the item is there, not {found:?}") };
        item.invariant_broken
    };
    let mut index = 0;
    let mut entry = |ledger: &mut Ledger, commands: Vec<Command>| {
        index += 1;
        let answers = ledger.apply(LogIndex(index), &Batch { stamp: UnixMs(index), commands });
        *ledger = laws::reload(shard, &settings, ledger);
        answers
    };
    let answers = entry(&mut ledger, commands);
    assert!(matches!(answers[2], Answer::Refused(Refusal::StockCommitted { .. })), "{answers:?}");
    assert!(broken(&ledger), "four of one are held and nobody saw it: {answers:?}");
    let open = || Command::SetMode(SetMode { name: name.clone(), mode: Mode::Open });
    entry(&mut ledger, vec![open()]);
    assert!(broken(&ledger), "nothing has mended the law");
    let (key, change) = ("b".to_string(), Change::Raise(3));
    let raise = Command::Adjust(Adjust { name: name.clone(), key, change, reason });
    entry(&mut ledger, vec![raise]);
    assert!(broken(&ledger), "only an operator resumes the item");
    entry(&mut ledger, vec![open()]);
    assert!(!broken(&ledger), "the equations hold again");
}
