//! The escrow protocol, checked exhaustively on small models that drive the real ledger.
//!
//! Two or three buckets on as many shards, a handful of units; leaders that lose whatever is not in
//! a ledger; a network that delivers anything ever said at any time, in any order, any number of
//! times. Every state that can be reached is visited (up to the limit of a scene) and held against
//! the laws: conservation with stock in transit counted once, nothing oversold, floors, an audit
//! without a consistent cut, no false sold-out, none for a region either, nothing held of a deleted
//! item; and from every state quiet delivery settles S = A = R. Each trap of the protocol is set
//! once and must be found.
//!
//! `ESCROW_MODEL_STATES=2000000 cargo test --test escrow_model` goes further; what is printed is
//! how many states were visited.

#[path = "escrow_model/charter.rs"]
mod charter;
#[path = "escrow_model/client.rs"]
mod client;
#[path = "escrow_model/gate.rs"]
mod gate;
#[path = "escrow_model/lands.rs"]
mod lands;
#[allow(dead_code, reason = "the golden scripts use all of it")]
#[path = "ledger_model/laws.rs"]
mod laws;
#[path = "escrow_model/scenes.rs"]
mod scenes;
#[path = "escrow_model/search.rs"]
mod search;
#[path = "escrow_model/shelf.rs"]
mod shelf;
#[path = "escrow_model/tail.rs"]
mod tail;
#[path = "escrow_model/trade.rs"]
mod trade;
#[path = "escrow_model/traps.rs"]
mod traps;

use std::time::Instant;

use charter::Charter;
use client::Client;
use gate::Gate;
use search::{Machine, Report, explore};
use tail::Tail;
use trade::{Scene, Trade};
use traps::Trap;

/// States that a scene may take in CI, unless the environment says otherwise.
const STATES: usize = 120_000;

fn limit() -> usize {
    let asked = std::env::var("ESCROW_MODEL_STATES");
    asked.map_or(STATES, |text| text.parse().expect("a number of states"))
}

fn run<M: Machine>(called: &str, machine: &mut M, limit: usize) -> Report {
    let begun = Instant::now();
    let report = explore(machine, limit);
    let all = if report.whole && report.fault.is_none() { ", all of them" } else { "" };
    let (states, moves, depth) = (report.states, report.moves, report.depth);
    println!("{called}: {states} states{all}, {moves} moves, depth {depth}, {:?}", begun.elapsed());
    report
}

/// A machine under its right rules has no fault; returns how many states it has.
fn is_right<M: Machine>(called: &str, mut machine: M) -> usize {
    let report = run(called, &mut machine, limit());
    assert!(report.fault.is_none(), "{called}: {:#?}", report.fault);
    report.states
}

/// A machine with a trap has a fault, and the same machine without it has none as far as that.
fn finds<M: Machine>(trap: Trap, machine: impl Fn(Option<Trap>) -> M) {
    let called = format!("{trap:?}");
    let report = run(&called, &mut machine(Some(trap)), limit());
    let Some((why, path)) = report.fault else { panic!("{trap:?} is not found") };
    println!("    found after {} moves: {why}", path.len());
    let right = explore(&mut machine(None), report.states.max(1_000) * 2);
    assert!(right.fault.is_none(), "found without {trap:?} too: {:#?}", right.fault);
}

#[test]
fn buckets_that_trade_keep_every_law_in_every_state() {
    let mut states = 0;
    for scene in scenes::right() {
        let called = scene.called;
        let mut trade = Trade::new(scene);
        let report = run(called, &mut trade, limit());
        let (ledgers, commands) = trade.shelf.counts();
        println!("    {ledgers} ledgers, {commands} different commands to them");
        assert!(report.fault.is_none(), "{called}: {:#?}", report.fault);
        states += report.states;
    }
    println!("{states} states in all");
}

#[test]
fn regions_that_open_close_and_change_their_floors_keep_every_law_in_every_state() {
    let mut states = 0;
    for scene in lands::right() {
        states += is_right(scene.called, Charter::new(scene));
    }
    println!("{states} states in all");
}

#[test]
fn gate_refuses_only_what_was_gone() {
    is_right("a gate and its leaders", Gate::new(None));
}

#[test]
fn client_that_retries_knows_whether_it_has_a_hold() {
    is_right("a client and its attempts", Client::new(None));
}

#[test]
fn last_units_reach_those_who_wait_or_they_are_told() {
    let mut states = 0;
    for stock in [[1, 1, 0], [1, 1, 1], [2, 1, 0], [0, 2, 1], [0, 0, 3], [2, 2, 2]] {
        for wants in [[2, 2, 0], [2, 2, 2], [1, 2, 3], [3, 2, 1], [0, 0, 3], [4, 1, 1]] {
            let called = format!("{stock:?} units for {wants:?}");
            states += is_right(&called, Tail::new(stock, wants, None));
        }
    }
    println!("{states} states in all");
}

/// A trap is found in the machine and the scene in which it shows.
fn is_found(trap: Trap) {
    if let Some((_, scene)) = scenes::traps().into_iter().find(|(known, _)| *known == trap) {
        return finds(trap, |trap| Trade::new(Scene { trap, ..scene.clone() }));
    }
    if let Some((_, scene)) = lands::traps().into_iter().find(|(known, _)| *known == trap) {
        return finds(trap, |trap| Charter::new(charter::Scene { trap, ..scene.clone() }));
    }
    if trap == Trap::RefusalEndsTheOperation {
        return finds(trap, Client::new);
    }
    if [Trap::DonorsGiveAll, Trap::DonorsKeepForTheirOwn].contains(&trap) {
        return finds(trap, |trap| Tail::new([1, 1, 0], [2, 2, 0], trap));
    }
    assert!([Trap::RefusalOnInFlight, Trap::RefusalBeforeOwnEntry].contains(&trap), "{trap:?}");
    finds(trap, Gate::new);
}

/// A test for each trap; one without a test does not compile.
macro_rules! traps {
    ($($name:ident: $trap:ident,)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Trap::$trap);
            }
        )*

        /// The names of these tests.
        const NAMED: &[&str] = &[$(stringify!($name)),*];

        #[allow(dead_code, reason = "that it compiles is what it is for")]
        fn has_a_test(trap: Trap) {
            match trap {
                $(Trap::$trap => {})*
            }
        }
    };
}

traps! {
    highest_sequence_seen_would_lose_a_unit: HighestSequenceSeen,
    refusal_that_is_not_logged_would_double_a_unit: RefusalNotLogged,
    taking_back_by_timeout_would_double_a_unit: TakeBackByTimeout,
    settle_that_does_not_say_how_much_would_lose_a_unit: SettleWithoutHowMuch,
    sequence_chosen_at_proposal_would_lose_a_unit: SequenceChosenAtProposal,
    counters_that_start_again_with_a_leader_would_double_a_unit: CountersStartAgainWithLeader,
    counters_forgotten_when_a_bucket_closes_would_double_a_unit: CountersForgottenAtClose,
    bucket_number_used_again_would_double_a_unit: BucketNumberUsedAgain,
    message_sent_at_proposal_would_make_a_unit_from_nothing: SentAtProposal,
    message_that_carries_the_difference_would_double_a_unit: MessageCarriesDifference,
    pull_that_names_no_counter_would_drain_its_donor: PullWithoutCounter,
    total_lowered_before_it_is_gathered_would_be_oversold: TotalLoweredFirst,
    mode_without_a_revision_would_delete_an_open_hold: ModeWithoutRevision,
    answer_for_another_revision_would_delete_an_open_hold: AnswerForAnotherRevision,
    message_without_the_items_number_would_mix_two_lives: MessageWithoutItemNumber,
    collect_over_transfer_counters_would_be_a_false_sold_out: CollectOverTransferCounters,
    one_round_of_zeros_would_be_a_false_sold_out: OneRoundOfZeros,
    joining_a_running_collect_would_be_a_false_sold_out: JoiningARunningCollect,
    credits_in_a_leaders_memory_would_be_a_false_sold_out: CreditsInMemory,
    due_holds_left_out_would_be_a_false_sold_out: DueHoldsLeftOut,
    bucket_zero_left_out_would_be_a_false_sold_out: BucketZeroLeftOut,
    stock_in_transit_left_out_would_be_a_false_sold_out: InTransitLeftOut,
    answer_of_another_round_would_be_a_false_sold_out: AnswerOfAnotherRound,
    audit_by_donors_counters_would_miss_units: AuditByDonorsCounters,
    floor_left_behind_by_its_stock_would_be_lent_twice: FloorLentTwice,
    old_image_taken_again_would_grant_a_floor_twice: FloorGrantedByAnOldImage,
    erasing_a_closed_region_would_lose_its_stock: StockOfClosedRegionLost,
    late_transfer_to_a_closed_region_would_be_lost: LateTransferToClosedRegion,
    copy_that_never_answered_would_outlive_its_item: CopyThatNeverAnsweredPassedOver,
    closed_regions_left_out_would_be_a_false_sold_out: ClosedRegionsLeftOut,
    lifted_floor_that_is_no_credit_would_be_a_false_sold_out: LiftedFloorIsNoCredit,
    refusal_on_what_is_in_flight_would_be_a_false_sold_out: RefusalOnInFlight,
    refusal_before_an_entry_of_its_own_would_be_a_false_sold_out: RefusalBeforeOwnEntry,
    refusal_that_ends_an_operation_would_hide_a_hold: RefusalEndsTheOperation,
    donors_that_give_all_would_swap_one_unit_for_ever: DonorsGiveAll,
    donors_that_keep_for_their_own_would_serve_nobody: DonorsKeepForTheirOwn,
}

/// `docs/verification.md` has a row for each of these tests.
#[test]
fn every_trap_is_in_the_table_of_traps_by_the_name_of_its_test() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/verification.md");
    let text = std::fs::read_to_string(path).expect("the document is there");
    let (_, table) = text.split_once("## The traps of the escrow protocol").expect("its heading");
    let table = table.split("\n## ").next().expect("the text up to the next heading");
    for name in NAMED {
        assert!(table.contains(&format!("`{name}`")), "{name} is not in the table");
    }
}
