//! The escrow protocol, checked exhaustively on small models that drive the real ledger.
//!
//! Two or three buckets on as many shards, a handful of units; leaders that lose whatever is not in
//! a ledger; a network that delivers anything ever said at any time, in any order, any number of
//! times. Every state that can be reached is visited (up to the limit of a scene) and held against
//! the laws: conservation with stock in transit counted once, nothing oversold, floors, an audit
//! without a consistent cut, no false sold-out, nothing held of a deleted item; and from every state
//! quiet delivery settles S = A = R. Each trap of the protocol is set once and must be found.
//!
//! `ESCROW_MODEL_STATES=2000000 cargo test --test escrow_model` goes further; what is printed is
//! how many states were visited.

#[allow(dead_code, reason = "the golden scripts use all of it")]
#[path = "ledger_model/laws.rs"]
mod laws;
#[path = "escrow_model/scenes.rs"]
mod scenes;
#[path = "escrow_model/search.rs"]
mod search;
#[path = "escrow_model/shelf.rs"]
mod shelf;
#[path = "escrow_model/trade.rs"]
mod trade;
#[path = "escrow_model/traps.rs"]
mod traps;

use std::time::Instant;

use search::{Report, explore};
use trade::{Scene, Trade};

/// States that a scene may take in CI, unless the environment says otherwise.
const STATES: usize = 40_000;

fn limit() -> usize {
    let asked = std::env::var("ESCROW_MODEL_STATES");
    asked.map_or(STATES, |text| text.parse().expect("a number of states"))
}

fn run(scene: Scene) -> Report {
    let (called, begun) = (scene.called, Instant::now());
    let mut trade = Trade::new(scene);
    let report = explore(&mut trade, limit());
    let (ledgers, commands) = trade.shelf.counts();
    println!(
        "{called}: {} states, {} moves, depth {}{}; {ledgers} ledgers, {commands} commands; {:?}",
        report.states,
        report.moves,
        report.depth,
        if report.whole { ", all of them" } else { "" },
        begun.elapsed(),
    );
    report
}

#[test]
fn buckets_that_trade_keep_every_law_in_every_state() {
    let mut states = 0;
    for scene in scenes::right() {
        let called = scene.called;
        let report = run(scene);
        states += report.states;
        assert!(report.fault.is_none(), "{called}: {:#?}", report.fault);
    }
    println!("{states} states in all");
}

#[test]
fn every_trap_of_trading_is_found() {
    let mut missed = Vec::new();
    for (trap, scene) in scenes::traps() {
        let report = run(Scene { trap: Some(trap), ..scene });
        let Some((why, path)) = report.fault else {
            missed.push(trap);
            continue;
        };
        println!("  {trap:?} is found after {} moves: {why}", path.len());
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
