//! The judge, judged: histories that are valid by construction are accepted, and every property
//! rejects histories in which exactly it was broken. A check that cannot fail checks nothing.

mod lies;
mod world;

use std::collections::BTreeMap;

use crate::check::{self, Property};
use crate::dice::Dice;
use crate::history::{Event, History};

/// Valid histories that are judged.
const VALID: u64 = 60;
/// Broken ones that every property must reject.
const REJECTED: u64 = 24;
/// Seeds that are tried to find a history in which a lie can be told.
const SEEDS_MAX: u64 = 4_000;
/// Operations of a history.
const OPERATIONS: u64 = 260;

#[test]
fn valid_histories_are_accepted_and_put_every_property_to_the_test() {
    let mut checked: BTreeMap<Property, u64> = BTreeMap::new();
    for seed in 0..VALID {
        let report = check::judge(&world::history(seed, OPERATIONS));
        let broken = report.broken();
        let why = broken.first().map(|first| &report.properties[first].examples);
        assert!(broken.is_empty(), "seed {seed}: {broken:?}: {why:#?}");
        assert!(report.undecided.is_empty(), "seed {seed}: {:?}", report.undecided);
        assert!(report.unreplayed.is_empty(), "seed {seed}: {:?}", report.unreplayed);
        assert!(report.unread.is_empty(), "seed {seed}: {:?}", report.unread);
        for (property, outcome) in report.properties {
            *checked.entry(property).or_default() += outcome.checked;
        }
    }
    for property in Property::ALL {
        let times = checked.get(&property).copied().unwrap_or(0);
        assert!(times >= VALID, "{} was put to the test {times} times", property.name());
    }
}

/// Tells a lie in as many histories as needed; every one must be found out, by its property.
fn find_out(property: Property, lies: &[lies::Lie]) {
    assert!(!lies.is_empty(), "no lie is known about {}", property.name());
    for (name, lie) in lies {
        let mut rejected = 0;
        for seed in 0..SEEDS_MAX {
            let mut history = world::history(seed, OPERATIONS);
            let mut dice = Dice::new(seed, name);
            if lie(&mut history, &mut dice).is_none() {
                continue;
            }
            renumber(&mut history.events);
            let report = check::judge(&history);
            let found = report.properties[&property].violations;
            assert!(found > 0, "{}: `{name}` is believed, seed {seed}", property.name());
            rejected += 1;
            if rejected == REJECTED {
                break;
            }
        }
        assert_eq!(rejected, REJECTED, "`{name}` can be told too seldom");
    }
}

fn renumber(events: &mut [Event]) {
    for (at, event) in events.iter_mut().enumerate() {
        event.index = at as u64;
    }
}

macro_rules! lies_are_found_out {
    ($($test:ident $property:ident;)*) => {
        $(
            #[test]
            fn $test() {
                find_out(Property::$property, &lies::about(Property::$property));
            }
        )*

        #[test]
        fn every_property_has_its_lies() {
            let tested = [$(Property::$property),*];
            for property in Property::ALL {
                assert!(tested.contains(&property), "{} is not tested", property.name());
            }
        }
    };
}

lies_are_found_out! {
    second_hold_of_a_key_is_found OneKeyOneHold;
    hold_of_a_refused_key_is_found RefusedLeftNothing;
    hold_of_a_voided_key_is_found VoidIsFinal;
    lost_hold_is_found NothingLost;
    second_end_of_a_hold_is_found HoldEndsOnce;
    confirm_after_expiry_is_found NoConfirmAfterExpiry;
    oversold_item_is_found NeverOversold;
    unit_from_nowhere_is_found Conservation;
    buyer_above_the_limit_is_found BuyerLimit;
    second_leader_of_an_index_is_found OneLeaderPerIndex;
    leader_of_the_past_is_found LeadersInOrder;
    answer_from_the_past_is_found RealTimeOrder;
    time_that_goes_back_is_found LedgerTime;
    figures_that_the_log_does_not_explain_are_found Replay;
    digest_of_its_own_is_found DigestsEqual;
    replica_of_its_own_mind_is_found ReplicasAgree;
    slow_recovery_is_found Recovers;
    damaged_node_that_serves_is_found DamageStaysOut;
    operation_without_an_end_is_found OperationsEnd;
    node_with_another_list_is_found MembersAgree;
    drained_leader_is_found DrainedLeadsNothing;
    removed_node_that_serves_is_found RemovedServesNothing;
    answers_without_an_order_are_found Linearizable;
}

#[test]
fn history_survives_its_file() {
    let history = world::history(7, OPERATIONS);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("history.jsonl");
    let lines: Vec<String> = history
        .events
        .iter()
        .map(|event| serde_json::to_string(event).expect("plain data"))
        .collect();
    std::fs::write(&path, lines.join("\n")).expect("written");
    let read = History::read(&path).expect("read");
    assert_eq!(read.events, history.events);
}
