//! What the gate foresees, and entries that nobody waits for.

use super::*;

#[test]
fn what_the_gate_foresees_is_what_the_ledger_answers() {
    for seed in 1..=6_u64 {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut shard = Shard::new(settings());
        shard.one(1_000, define(20));
        let (mut now, mut holds) = (1_000, Vec::new());
        for step in 0..3_000 {
            now += random.below(120);
            shard.apply(now, vec![]);
            let command = random_command(&mut random, &holds);
            let foreseen = shard.ledger.foresee(&command);
            let free = shard.stock_if_any().map(|stock| stock.0);
            let answer = shard.one(now, command.clone());
            match foreseen {
                Foreseen::Answer(said) => assert_eq!(said, answer, "seed {seed} step {step}"),
                Foreseen::Admit(demand) => {
                    assert!(
                        !matches!(answer, Answer::Refused(_)),
                        "seed {seed} step {step}: {command:?} was admitted: {answer:?}"
                    );
                    if demand.bucket.is_some() {
                        assert_eq!(Some(demand.free), free);
                    }
                }
            }
            if let Answer::Hold { hold, .. } = answer {
                holds.push(hold.id);
            }
            if holds.len() > 60 {
                holds.drain(..30);
            }
        }
    }
}

impl Shard {
    fn stock_if_any(&self) -> Option<(u64, u64, u64)> {
        let found = self.ledger.query(&Query::Availability(name()));
        matches!(found, Found::Availability(_)).then(|| self.stock())
    }
}

#[test]
fn an_entry_that_nobody_waits_for_changes_the_ledger_all_the_same() {
    let mut random = Random(11);
    let (mut told, mut silent) =
        (Ledger::new(ShardId(0), settings()), Ledger::new(ShardId(0), settings()));
    let mut holds = Vec::new();
    for index in 1..400 {
        let commands = match index {
            1 => vec![define(500)],
            _ => (0..5).map(|_| random_command(&mut random, &holds)).collect(),
        };
        let batch = Batch { stamp: UnixMs(1_000 + index * 37), commands };
        let answers = batch.shown(told.apply(LogIndex(index), &batch));
        silent.apply_unanswered(LogIndex(index), &batch);
        holds.extend(answers.into_iter().filter_map(|answer| match answer {
            Answer::Hold { hold, .. } => Some(hold.id),
            _ => None,
        }));
        assert_eq!(told.digest(), silent.digest(), "entry {index}");
    }
    assert!(holds.len() > 100, "{} holds", holds.len());
}
