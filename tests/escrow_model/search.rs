//! Breadth-first search over the states of a machine, with the path to the first fault.
//!
//! Promises: visits every state that can be reached within the limit once, nearest first, in the
//! same order in every run. Never decides what is right: the machine does.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// What a search needs to know.
pub(crate) trait Machine {
    /// A state, small enough to keep many.
    type State: Copy + Eq + Hash;
    /// What leads from one to the next.
    type Move: Copy + Debug;

    /// The first state.
    fn start(&mut self) -> Self::State;

    /// Everything that may happen next; an error is a move that breaks a rule.
    fn moves(&mut self, state: &Self::State, out: &mut Moves<Self>);

    /// What must be so in every state.
    fn check(&mut self, state: &Self::State) -> Result<(), String>;
}

/// Moves and where they lead.
pub(crate) type Moves<M> = Vec<(<M as Machine>::Move, Result<<M as Machine>::State, String>)>;

/// What a search has found.
#[derive(Debug)]
pub(crate) struct Report {
    /// States that were visited.
    pub(crate) states: usize,
    /// Moves that were tried.
    pub(crate) moves: u64,
    /// The greatest number of moves to a state.
    pub(crate) depth: u32,
    /// Whether there was nothing left to visit.
    pub(crate) whole: bool,
    /// The nearest fault: why, and the moves to it.
    pub(crate) fault: Option<(String, Vec<String>)>,
}

/// Visits states until there are none left, `limit` have been visited, or one is wrong.
pub(crate) fn explore<M: Machine>(machine: &mut M, limit: usize) -> Report {
    let first = machine.start();
    let mut states = vec![first];
    let mut ways: Vec<(u32, Option<M::Move>, u32)> = vec![(0, None, 0)];
    let mut known = HashMap::from([(first, 0_u32)]);
    let mut report = Report { states: 0, moves: 0, depth: 0, whole: true, fault: None };
    let mut next = Vec::new();
    let mut at = 0;
    while at < states.len() {
        let (state, depth) = (states[at], ways[at].2);
        report.depth = depth;
        report.states = at + 1;
        if let Err(why) = machine.check(&state) {
            report.fault = Some((why, path(&ways, at, None)));
            return report;
        }
        next.clear();
        machine.moves(&state, &mut next);
        for (step, outcome) in next.drain(..) {
            report.moves += 1;
            match outcome {
                Err(why) => {
                    report.fault = Some((why, path(&ways, at, Some(step))));
                    return report;
                }
                Ok(state) if states.len() < limit => {
                    known.entry(state).or_insert_with(|| {
                        states.push(state);
                        ways.push((at as u32, Some(step), depth + 1));
                        states.len() as u32 - 1
                    });
                }
                Ok(state) => report.whole &= known.contains_key(&state),
            }
        }
        at += 1;
    }
    report
}

fn path<L: Copy + Debug>(
    ways: &[(u32, Option<L>, u32)],
    mut at: usize,
    last: Option<L>,
) -> Vec<String> {
    let mut path: Vec<String> = last.iter().map(|step| format!("{step:?}")).collect();
    while let (before, Some(step), _) = ways[at] {
        path.push(format!("{step:?}"));
        at = before as usize;
    }
    path.reverse();
    path
}
