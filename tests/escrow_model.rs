//! The escrow protocol, checked exhaustively on small models that drive the real ledger.
//!
//! Two or three buckets on as many shards, a handful of units; leaders that lose whatever is not in
//! a ledger; a network that delivers anything ever said at any time, in any order, any number of
//! times. Every state that can be reached is visited (up to the limit of a scene) and held against
//! the laws: conservation with stock in transit counted once, nothing oversold, floors, an audit
//! without a consistent cut, no false sold-out, nothing held of a deleted item; and from every
//! state quiet delivery settles S = A = R. Each trap of the protocol is set once and must be found.
//!
//! `ESCROW_MODEL_STATES=2000000 cargo test --test escrow_model` goes further; what is printed is
//! how many states were visited.

#[path = "escrow_model/client.rs"]
mod client;
#[path = "escrow_model/gate.rs"]
mod gate;
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
fn every_trap_of_trading_is_found() {
    for (trap, scene) in scenes::traps() {
        finds(trap, |trap| Trade::new(Scene { trap, ..scene.clone() }));
    }
}

#[test]
fn gate_refuses_only_what_was_gone() {
    is_right("a gate and its leaders", Gate::new(None));
    for trap in [Trap::RefusalOnInFlight, Trap::RefusalBeforeOwnEntry] {
        finds(trap, Gate::new);
    }
}

#[test]
fn client_that_retries_knows_whether_it_has_a_hold() {
    is_right("a client and its attempts", Client::new(None));
    finds(Trap::RefusalEndsTheOperation, Client::new);
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
    for trap in [Trap::DonorsGiveAll, Trap::DonorsKeepForTheirOwn] {
        finds(trap, |trap| Tail::new([1, 1, 0], [2, 2, 0], trap));
    }
}
