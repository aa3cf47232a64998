//! The laws of the ledger under random sequences, against an independent model.
//!
//! Seeds are fixed, so a run here is a run anywhere; each test prints its own. To try others:
//! `LAWS_SEED=7 LAWS_CASES=1000 cargo test --test ledger_laws`. proptest shrinks what fails to a
//! short sequence and prints it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

mod ledger_model;
#[allow(dead_code, reason = "the golden scripts use all of it")]
#[path = "golden/words.rs"]
mod words;

use ledger_model::{buckets, crowds, exchange, hostile, sequences, spreads};

fn number_from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Runs `cases` sequences from one seed; at least `floor` commands must have been answered.
fn prove<S: Strategy>(cases: u64, floor: u64, strategy: S, run: impl Fn(&S::Value) -> u64) {
    let seed = number_from_environment("LAWS_SEED", 20_260_101);
    let chosen = number_from_environment("LAWS_CASES", cases);
    println!("LAWS_SEED={seed} LAWS_CASES={chosen}");
    let mut bytes = [0_u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: u32::try_from(chosen).expect("not so many"),
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let answered = AtomicU64::new(0);
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |steps| {
        answered.fetch_add(run(&steps), Ordering::Relaxed);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => panic!("LAWS_SEED={seed}: {why}\nafter {steps:?}"),
        Err(TestError::Abort(why)) => panic!("LAWS_SEED={seed}: {why}"),
    }
    let answered = answered.into_inner();
    println!("{answered} commands were answered");
    assert!(chosen != cases || answered >= floor, "only {answered} commands were answered");
}

/// As [`prove`], of runs that tell how often each kind of answer was given: with all cases, those
/// that must have happened did, five times at least.
fn prove_all_kinds<S: Strategy<Value = Vec<T>>, T>(
    cases: u64,
    floor: u64,
    strategy: S,
    run: impl Fn(&[T]) -> sequences::Tally,
    must: &[&str],
) {
    let tally = Mutex::new(sequences::Tally::new());
    prove(cases, floor, strategy, |steps| {
        let kinds = run(steps);
        let mut tally = tally.lock().expect("one thread");
        kinds.iter().for_each(|(kind, n)| *tally.entry(kind.clone()).or_default() += n);
        kinds.values().sum()
    });
    let tally = tally.into_inner().expect("one thread");
    println!("{tally:?}");
    let rare = |kind: &&&str| tally.get(**kind).is_none_or(|n| *n < 5);
    let rare: Vec<_> = must.iter().filter(rare).collect();
    assert!(number_from_environment("LAWS_CASES", cases) < cases || rare.is_empty(), "{rare:?}");
}

/// Kinds of answers that the random sequences must have given often, or they prove little.
const MUST_HAVE_HAPPENED: [&str; 40] = [
    "checkpoints loaded",
    "place done",
    "place replayed",
    "place sold-out",
    "place insufficient-stock",
    "place buyer-limit",
    "place key-reused",
    "place key-voided",
    "place hold-expired",
    "place hold-released",
    "place hold-confirmed",
    "place item-paused",
    "place item-closed",
    "place item-not-found",
    "extend done",
    "extend replayed",
    "extend extend-budget-spent",
    "extend hold-expired",
    "extend hold-confirmed",
    "confirm done",
    "confirm replayed",
    "confirm hold-expired",
    "confirm hold-released",
    "confirm invalid",
    "confirm sold-out",
    "confirm hold-not-found",
    "release done",
    "release replayed",
    "release hold-confirmed",
    "return done",
    "return replayed",
    "return not-sold",
    "return invalid",
    "void done",
    "void replayed",
    "adjust done",
    "adjust stock-committed",
    "adjust revision-mismatch",
    "retire done",
    "retire open-holds",
];

#[test]
fn random_sequences_are_answered_as_the_model_answers_case_l10() {
    prove_all_kinds(320, 60_000, sequences::sequences(400), sequences::run, &MUST_HAVE_HAPPENED);
}

#[test]
fn stock_that_travels_is_neither_created_nor_lost() {
    prove(160, 20_000, exchange::sequences(400), |steps| exchange::run(steps));
}

/// Kinds of answers about items of several buckets that must have been given often.
const OF_SEVERAL_BUCKETS: [&str; 36] = [
    "place done",
    "place replayed",
    "place insufficient-stock",
    "place item-paused",
    "place item-closed",
    "place not-owner",
    "confirm done",
    "release done",
    "sendstock done",
    "sendstock transfer-refused",
    "acceptstock done",
    "acceptstock not-owner",
    "settlestock done",
    "configure done",
    "copyanswered done",
    "setmode done",
    "setmode under-way",
    "setlayout done",
    "setlayout replayed",
    "setlayout invalid",
    "setlayout under-way",
    "adjust done",
    "adjust replayed",
    "adjust invalid",
    "lowerbegin done",
    "lowerbegin under-way",
    "lowerbegin invalid",
    "lowercommit done",
    "lowercommit stock-committed",
    "lowerabort done",
    "deletebegin done",
    "deleteabort done",
    "deletecommit done",
    "deletecommit not-answered",
    "deletecommit open-holds",
    "erasecopy done",
];

#[test]
fn items_of_several_buckets_are_answered_as_the_model_answers() {
    prove_all_kinds(300, 50_000, spreads::sequences(400), spreads::run, &OF_SEVERAL_BUCKETS);
}

#[test]
fn any_command_is_answered_and_breaks_no_law_case_c22() {
    prove(560, 100_000, hostile::sequences(400), |shots| hostile::run(shots, false, 1));
}

#[test]
fn any_command_to_a_shard_of_several_breaks_no_law_case_c22() {
    prove(200, 35_000, hostile::sequences(400), |shots| hostile::run(shots, false, 3));
}

#[test]
fn stock_that_nobody_sent_breaks_no_bucket_case_c22() {
    prove(150, 25_000, hostile::sequences(400), |shots| hostile::run(shots, true, 1));
}

#[test]
fn replicas_agree_on_a_thousand_holds_with_one_deadline_case_c23() {
    crowds::replicas_agree_on_ties();
}

#[test]
fn abandoned_baskets_leave_nothing_behind_case_l22() {
    crowds::abandoned_baskets_leave_nothing_behind();
}

#[test]
fn a_confirmation_around_the_deadline_has_one_end_case_l19() {
    crowds::confirmations_around_the_deadline_have_one_end();
}

#[test]
fn a_key_is_found_among_thousands_until_its_retention_ends_case_i05() {
    crowds::a_key_is_found_among_thousands_until_its_retention_ends();
}

/// Law 4.
#[test]
fn a_buyer_is_served_by_no_other_bucket_than_its_own() {
    buckets::a_buyer_is_served_by_no_other_bucket_than_its_own();
}

#[test]
fn extensions_stop_at_the_greatest_lifetime_case_l16() {
    crowds::extensions_stop_at_the_greatest_lifetime();
}

#[test]
fn a_ledger_with_a_broken_law_is_loaded_again_and_resumed_once_the_law_holds() {
    hostile::break_a_law_and_resume();
}
