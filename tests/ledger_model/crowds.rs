//! Cases that need many holds: ties, abandoned baskets, deadlines in a crowd, keys among thousands.

use std::collections::BTreeMap;

use holdfast::ledger::*;

use super::laws;

const SHARD: ShardId = ShardId(0);

struct Crowd {
    settings: Settings,
    ledger: Ledger,
    name: ItemName,
    index: u64,
}

impl Crowd {
    fn of(total: u64, sweep_max: u32, rules: HoldRules) -> Crowd {
        let settings = Settings {
            sweep_max,
            receipt_retention_ms: 3_600_000,
            sold_retention_ms: 86_400_000,
            ..laws::settings(1)
        };
        let name = ItemName { tenant: "t".into(), item: "x".into() };
        let ledger = Ledger::new(SHARD, settings.clone());
        let mut crowd = Crowd { settings, ledger, name, index: 0 };
        let define = Command::Define(Define {
            name: crowd.name.clone(),
            total: Some(total),
            regions: BTreeMap::new(),
            definition: Definition {
                rules,
                limit_per_buyer: None,
                opens_at: None,
                closes_at: None,
                metadata: BTreeMap::new(),
            },
            if_revision: None,
        });
        crowd.entry(0, vec![define]);
        crowd
    }

    fn entry(&mut self, at: u64, commands: Vec<Command>) -> Vec<Answer> {
        self.index += 1;
        let batch = Batch { stamp: UnixMs(at), commands };
        batch.shown(self.ledger.apply(LogIndex(self.index), &batch))
    }

    fn place(&self, key: String, quantity: u64, ttl: u64) -> Command {
        Command::Place(Place {
            name: self.name.clone(),
            region: None,
            buyer: None,
            key,
            quantity,
            ttl_ms: Some(ttl),
            reference: None,
        })
    }

    fn stock(&self) -> (u64, u64, u64) {
        let audit = laws::audit(&self.ledger, &self.name).expect("the item is there");
        let b = &audit.buckets[0];
        (b.available + b.due, b.held - b.due, b.sold)
    }
}

fn confirm(hold: HoldId) -> Command {
    let (tenant, key) = ("t".into(), "c".into());
    let (quantity, reacquire, reference) = (None, false, None);
    Command::Confirm(Confirm { hold, tenant, key, quantity, reacquire, reference })
}

fn holds(answers: &[Answer]) -> Vec<HoldId> {
    let hold = |answer: &Answer| {
        let Answer::Hold { hold, .. } = answer else { panic!("not a hold: {answer:?}") };
        hold.id
    };
    answers.iter().map(hold).collect()
}

const SHORT: HoldRules =
    HoldRules { ttl_ms: 1_000, ttl_ms_max: 10_000, extends_max: 0, lifetime_ms_max: 10_000 };

/// Case C23: one recorded log, fed to two ledgers and to one that was restored in its middle; a
/// thousand holds have one deadline. Answers, digests and pages are equal, byte for byte.
pub(crate) fn replicas_agree_on_ties() {
    let mut logs: Vec<Vec<Answer>> = Vec::new();
    let mut ends = Vec::new();
    for restored in [false, false, true] {
        let mut crowd = Crowd::of(1_000, 7, SHORT);
        let places = (0..1_000).map(|n| crowd.place(format!("k{n}"), 1, 1_000)).collect();
        let mut log = crowd.entry(0, places);
        let ids = holds(&log[..]);
        if restored {
            crowd.ledger = laws::reload(SHARD, &crowd.settings, &mut crowd.ledger);
        }
        for round in 0..40_u64 {
            let again = (0..9).map(|n| crowd.place(format!("r{round}.{n}"), 3, 500)).collect();
            log.extend(crowd.entry(1_000 + round * 20, again));
            log.extend(crowd.entry(1_000 + round * 20, vec![Command::Advance]));
        }
        let late = ids.iter().copied().map(confirm).collect();
        log.extend(crowd.entry(2_000, late));
        crowd.stock();
        let mut pages = laws::pages(&mut crowd.ledger);
        pages.sort();
        ends.push((crowd.ledger.digest(), pages));
        logs.push(log);
    }
    assert!(logs[0] == logs[1] && logs[0] == logs[2], "one log has one list of answers");
    assert_eq!(ends[0].0, ends[2].0, "and one digest");
    assert!(ends[0] == ends[1] && ends[0] == ends[2], "and one set of pages");
}

/// Case L22: a thousand times everything is held and abandoned; all is free at the end of each
/// round, and neither records nor pages grow beyond the retention.
pub(crate) fn abandoned_baskets_leave_nothing_behind() {
    let mut crowd = Crowd::of(10, 512, SHORT);
    let (mut most_pages, mut most_records) = (0, 0);
    for round in 0..1_000_u64 {
        let at = round * 60_000;
        let place = crowd.place(format!("k{round}"), 10, 200);
        holds(&crowd.entry(at, vec![place]));
        assert_eq!(crowd.stock(), (0, 10, 0));
        crowd.entry(at + 200, vec![Command::Advance]);
        assert_eq!(crowd.stock(), (10, 0, 0));
        let pages = laws::pages(&mut crowd.ledger).len();
        let records = crowd.ledger.figures().holds_ended;
        if round < 300 {
            (most_pages, most_records) = (pages.max(most_pages), records.max(most_records));
        }
        assert!(records <= most_records, "{records} ended holds are remembered in round {round}");
        assert!(pages <= most_pages + 4, "{pages} pages in round {round}, {most_pages} before");
    }
}

/// Case L19: holds are confirmed around their deadline; each has one end, what was sold stays sold,
/// and everything else is free.
pub(crate) fn confirmations_around_the_deadline_have_one_end() {
    let mut crowd = Crowd::of(2_000, 16, SHORT);
    let places = (0..2_000).map(|n| crowd.place(format!("k{n}"), 1, 500)).collect();
    let ids = holds(&crowd.entry(1_000, places));
    let mut sold = 0;
    for (at, chunk) in ids.chunks(50).enumerate() {
        let stamp = 1_480 + at as u64;
        let answers = crowd.entry(stamp, chunk.iter().copied().map(confirm).collect());
        for answer in answers {
            let granted = matches!(answer, Answer::Hold { .. });
            let expired = matches!(answer, Answer::Refused(Refusal::HoldExpired { .. }));
            assert_eq!((granted, expired), (stamp < 1_500, stamp >= 1_500), "{answer:?}");
            sold += u64::from(granted);
        }
        crowd.stock();
    }
    while crowd.entry(3_000, vec![Command::Advance]) != [Answer::Advanced { swept: 0 }] {}
    assert_eq!((sold, crowd.stock()), (1_000, (1_000, 0, 1_000)));
    let figures = crowd.ledger.figures();
    assert_eq!((figures.holds_held, figures.holds_sold, figures.holds_ended), (0, 1_000, 1_000));
}

/// Case I05: a key answers its hold after thousands of other keys, up to the last moment of its
/// retention, also when the ledger is loaded again in between.
pub(crate) fn a_key_is_found_among_thousands_until_its_retention_ends() {
    let mut crowd = Crowd::of(1_000_000, 512, SHORT);
    let place = crowd.place("K".into(), 3, 10_000);
    let first = holds(&crowd.entry(0, vec![place.clone()]));
    crowd.entry(1, vec![confirm(first[0])]);
    for round in 0..20_u64 {
        let others = (0..500).map(|n| crowd.place(format!("o{round}.{n}"), 1, 1_000)).collect();
        crowd.entry(round * 10_000, others);
        crowd.ledger = laws::reload(SHARD, &crowd.settings, &mut crowd.ledger);
    }
    for at in [600_000, 3_600_000 + 10_000 - 1] {
        let receipt = Query::Receipt(KeyScope {
            name: crowd.name.clone(),
            region: None,
            buyer: None,
            key: "K".into(),
        });
        crowd.entry(at, vec![Command::Advance]);
        let found = crowd.ledger.query(&receipt);
        let known =
            matches!(&found, Found::Receipt(Receipt::Committed(hold)) if hold.id == first[0]);
        assert!(known, "at {at}: {found:?}");
        let before = crowd.stock();
        crowd.entry(at, vec![place.clone()]);
        assert_eq!(crowd.stock(), before, "the key takes nothing a second time");
    }
}

/// Case L16: two hundred extensions of one hold do not keep it beyond its greatest lifetime.
pub(crate) fn extensions_stop_at_the_greatest_lifetime() {
    let rules = HoldRules {
        ttl_ms: 1_000,
        ttl_ms_max: 1_000,
        extends_max: u32::MAX,
        lifetime_ms_max: 20_000,
    };
    let mut crowd = Crowd::of(1, 512, rules);
    let place = crowd.place("k".into(), 1, 1_000);
    let hold = holds(&crowd.entry(0, vec![place]))[0];
    let mut latest = 1_000;
    for round in 1..=200_u64 {
        let (tenant, key, ttl_ms) = ("t".into(), format!("e{round}"), Some(1_000));
        let extend = Command::Extend(Extend { hold, tenant, key, ttl_ms });
        // The same extension twice in one entry is one extension.
        let answers = crowd.entry(round * 500, vec![extend.clone(), extend]);
        for answer in answers {
            if let Answer::Hold { hold, .. } = answer {
                assert!(hold.expires_at.0 <= 20_000, "{hold:?}");
                assert!(hold.expires_at.0 >= latest, "a deadline never moves back");
                latest = hold.expires_at.0;
            }
        }
    }
    assert_eq!(crowd.stock(), (1, 0, 0), "after its limit the unit is free");
}
