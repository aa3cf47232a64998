//! Cuts while writes go on, and loads of their pages.

use super::*;

/// Two databases are written in turn while entries go on; each finished cut must load into exactly
/// the ledger that was when it began, and a ledger so loaded must go on as the other does.
#[test]
fn a_cut_taken_while_writes_go_on_is_the_state_at_its_beginning() {
    for seed in 1..=12_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut shard = Shard::new(settings());
        let mut databases = [Database::new(), Database::new()];
        shard.one(1_000, define(20));
        let (mut now, mut holds) = (1_000, Vec::new());
        let mut cut: Option<(Turn, u128, LogIndex)> = None;
        let mut twin: Option<Ledger> = None;
        for step in 0..1_500 {
            now += match random.below(200) {
                0 => random.below(8_000_000),
                _ => random.below(150),
            };
            let count = random.below(4);
            let commands: Vec<_> =
                (0..count).map(|_| random_command(&mut random, &holds)).collect();
            let batch = Batch { stamp: UnixMs(now), commands };
            shard.index += 1;
            let answers = shard.ledger.apply(LogIndex(shard.index), &batch);
            if let Some(twin) = &mut twin {
                assert_eq!(twin.apply(LogIndex(shard.index), &batch), answers, "seed {seed}");
                assert_eq!(twin.digest(), shard.ledger.digest(), "seed {seed} step {step}");
            }
            for answer in batch.shown(answers) {
                if let Answer::Hold { hold, .. } = answer {
                    holds.push(hold.id);
                }
            }
            if holds.len() > 60 {
                holds.drain(..30);
            }
            if let Found::Audit(audit) = shard.ledger.query(&Query::Audit(name())) {
                assert!(audit.buckets.iter().all(|bucket| bucket.holds), "seed {seed}: {audit:?}");
            }
            match cut {
                // A cut that goes wrong, or is given up for another one, leaves all of it dirty.
                Some(_) if random.below(40) == 0 => {
                    shard.ledger.end_cut(false);
                    cut = None;
                }
                Some((turn, ..)) if random.below(80) == 0 => {
                    shard.ledger.begin_cut(turn, false);
                    cut = Some((turn, shard.ledger.digest(), shard.ledger.applied()));
                }
                // Ended too early, it has not begun well.
                Some(_) if random.below(80) == 0 => {
                    shard.ledger.end_cut(true);
                    cut = None;
                }
                None if random.below(10) == 0 => {
                    let turn = if random.below(2) == 0 { Turn::A } else { Turn::B };
                    let all = random.below(4) == 0;
                    if all {
                        databases[turn as usize].clear();
                    }
                    shard.ledger.begin_cut(turn, all);
                    cut = Some((turn, shard.ledger.digest(), shard.ledger.applied()));
                }
                Some((turn, digest, applied)) => {
                    let pages = shard.ledger.take_cut(random.below(3) as usize);
                    if !pages.is_empty() {
                        write(&mut databases[turn as usize], pages);
                        continue;
                    }
                    shard.ledger.end_cut(true);
                    cut = None;
                    let back = loaded(&databases[turn as usize], settings()).expect("whole");
                    assert_eq!(back.digest(), digest, "seed {seed} step {step}");
                    assert_eq!(back.applied(), applied);
                }
                None => {}
            }
            if cut.is_none() && random.below(60) == 0 {
                let database = whole(&mut shard.ledger);
                let back = loaded(&database, settings()).expect("whole");
                assert_eq!(back.digest(), shard.ledger.digest(), "seed {seed} step {step}");
                twin = Some(back);
            }
        }
        assert!(shard.ledger.figures().expired > 0, "seed {seed} expired nothing");
    }
}

#[test]
fn pages_of_garbage_are_refused_and_never_panic() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, define(100));
    for n in 0..40 {
        let hold = shard.hold(1_000, place(&format!("b{n}"), &format!("k{n}"), 2));
        if n % 2 == 0 {
            shard.hold(1_000, confirm(hold.id, "c", Some(1), false));
        }
    }
    let good = whole(&mut shard.ledger);
    let digest = loaded(&good, settings()).expect("whole").digest();
    assert!(loaded(&Database::new(), settings()).is_err(), "nothing at all");
    let mut random = Random(77);
    for _ in 0..4_000 {
        let mut bad = good.clone();
        let at = random.below(bad.len() as u64) as usize;
        let key = bad.keys().nth(at).expect("in range").clone();
        let page = bad.get_mut(&key).expect("its key");
        match random.below(4) {
            0 => {
                let at = random.below(page.len() as u64) as usize;
                page[at] ^= 1 << random.below(8);
            }
            1 => page.truncate(random.below(page.len() as u64) as usize),
            2 => page.push(random.below(256) as u8),
            _ => {
                let page = bad.remove(&key).expect("its key");
                let mut other = key.0;
                let at = random.below(other.len() as u64) as usize;
                other[at] ^= 1 << random.below(8);
                bad.insert(PageKey(other), page);
            }
        }
        if bad == good {
            continue;
        }
        if let Ok(ledger) = loaded(&bad, settings()) {
            assert_ne!(ledger.digest(), digest, "damage that the digest does not show");
        }
    }
    let two = good.iter().chain(good.iter()).map(|(k, v)| (k.clone(), v.clone()));
    assert!(Ledger::load(ShardId(0), settings(), two).is_err(), "every page twice");
    let other = Settings { slots: 8, ..settings() };
    assert!(loaded(&good, other).is_err(), "other settings");
}
