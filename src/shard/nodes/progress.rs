//! The steps of an operation: which there are, what each asks for, and whether it is done.
//!
//! Everything here is a pure function of the roster and of what the nodes said, so whoever leads
//! shard 0 next goes on where the last one stopped.

use std::collections::BTreeSet;

use super::report::{ReplicaReport, Sight};
use crate::ledger::{
    NodeId, NodeOperation, OperationKind, OperationState, OperationStep, Roster, SeatRole, ShardId,
    UnixMs,
};

/// A node lacks no more than so many entries when it has caught up. The leader asks once more, and
/// exactly, before it gives the vote.
const LAG_MAX: u64 = 256;

/// A step as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepView {
    /// The step.
    pub step: OperationStep,
    /// Whether it is done.
    pub done: bool,
    /// How far it has come, or what holds it up; empty before it begins.
    pub detail: String,
}

/// Lists the steps of a kind of operation.
pub fn steps_of(kind: OperationKind) -> &'static [OperationStep] {
    use OperationStep as Step;
    match kind {
        OperationKind::Add => &[Step::AwaitMachine, Step::Learn, Step::CatchUp, Step::Promote],
        OperationKind::AddLearner => &[Step::AwaitMachine, Step::Learn, Step::CatchUp],
        OperationKind::Promote => &[Step::CatchUp, Step::Promote],
        OperationKind::Demote => &[Step::HandOver, Step::Demote],
        OperationKind::Drain => &[Step::HandOver],
        OperationKind::Undrain => &[],
        OperationKind::Remove => &[Step::HandOver, Step::Forget, Step::Tell],
        OperationKind::Replace => &[
            Step::AwaitMachine,
            Step::Learn,
            Step::CatchUp,
            Step::Promote,
            Step::Forget,
            Step::Tell,
        ],
    }
}

/// Says what a step does.
pub fn step_words(step: OperationStep) -> &'static str {
    match step {
        OperationStep::AwaitMachine => "a machine starts with the token",
        OperationStep::Learn => "every shard takes the node in as a learner",
        OperationStep::CatchUp => "the node installs checkpoints and catches up",
        OperationStep::Promote => "every shard gives the node its vote",
        OperationStep::HandOver => "its leaderships go to other voters",
        OperationStep::Demote => "every shard takes its vote",
        OperationStep::Forget => "every shard takes the node out",
        OperationStep::Tell => "the node is told that it was removed",
        OperationStep::End => "done",
    }
}

/// Returns the step after one.
pub fn next_step(kind: OperationKind, step: OperationStep) -> OperationStep {
    let steps = steps_of(kind);
    let at = steps.iter().position(|known| *known == step);
    let next = at.and_then(|at| steps.get(at.saturating_add(1)));
    next.copied().unwrap_or(OperationStep::End)
}

/// The node that an operation takes out.
fn leaver(operation: &NodeOperation) -> NodeId {
    operation.replaces.unwrap_or(operation.node)
}

/// Takes an operation to a step: changes what is wanted of the nodes.
pub fn enter(roster: &mut Roster, id: u64, step: OperationStep, note: &str, now: UnixMs) {
    let Some(operation) = roster.operations.get_mut(&id) else { return };
    operation.step = step;
    operation.note = note.to_owned();
    operation.changed_at = now;
    if step == OperationStep::End {
        operation.state = OperationState::Done;
        operation.ticket = None;
    }
    let (node, kind, leaver) = (operation.node, operation.kind, leaver(operation));
    let mut set = |node: NodeId, role: Option<SeatRole>, drained: Option<bool>| {
        let Some(seat) = roster.nodes.get_mut(&node) else { return };
        if let Some(role) = role.filter(|role| *role != seat.role) {
            seat.role = role;
            seat.since = now;
        }
        seat.drained = drained.unwrap_or(seat.drained);
    };
    match step {
        OperationStep::AwaitMachine | OperationStep::Learn | OperationStep::CatchUp => {}
        OperationStep::Promote => {
            set(node, Some(SeatRole::Voter), None);
            if kind == OperationKind::Replace {
                set(leaver, Some(SeatRole::Leaving), Some(true));
            }
        }
        OperationStep::HandOver => set(node, None, Some(true)),
        OperationStep::Demote => set(node, Some(SeatRole::Learner), Some(false)),
        OperationStep::Forget => set(leaver, Some(SeatRole::Leaving), Some(true)),
        OperationStep::Tell => set(leaver, Some(SeatRole::Removed), Some(false)),
        OperationStep::End if kind == OperationKind::Undrain => set(node, None, Some(false)),
        OperationStep::End => {}
    }
    roster.forget_old();
}

/// Shows the steps of an operation.
pub fn progress(operation: &NodeOperation, sight: &Sight) -> Vec<StepView> {
    let steps = steps_of(operation.kind);
    let at = steps.iter().position(|step| *step == operation.step).unwrap_or(steps.len());
    let view = |(place, step): (usize, &OperationStep)| {
        let past = place < at || operation.state == OperationState::Done;
        let (done, detail) = if past {
            (true, String::new())
        } else if place == at && !operation.state.has_ended() {
            standing_of(*step, operation, sight)
        } else {
            (false, String::new())
        };
        StepView { step: *step, done, detail }
    };
    steps.iter().enumerate().map(view).collect()
}

/// Tells whether a step is done, and how far it has come.
pub fn standing_of(
    step: OperationStep,
    operation: &NodeOperation,
    sight: &Sight,
) -> (bool, String) {
    let node = operation.node;
    match step {
        OperationStep::AwaitMachine => match &operation.ticket {
            Some(_) => (false, "waiting for `holdfast serve --join URL --token TOKEN`".to_owned()),
            None => (true, String::new()),
        },
        OperationStep::Learn => {
            everywhere(sight, |one| one.settled && one.members.contains(&node))
        }
        OperationStep::CatchUp => caught_up(node, sight),
        OperationStep::Promote => {
            let wanted = sight.voters();
            everywhere(sight, |one| one.settled && one.voters.as_slice() == [wanted.clone()])
        }
        OperationStep::HandOver => {
            let leads = |shard: &ShardId| {
                let known = sight.leader(*shard);
                known.is_none_or(|(leader, _)| leader == node)
            };
            let left: Vec<ShardId> = sight.all_shards().filter(leads).collect();
            match left.first() {
                None => (true, String::new()),
                Some(first) => {
                    let count = left.len();
                    (false, format!("{count} shards to go, shard {first} first"))
                }
            }
        }
        OperationStep::Demote => {
            everywhere(sight, |one| one.settled && is_uniform(one) && !votes(one, node))
        }
        OperationStep::Forget => {
            let leaver = leaver(operation);
            everywhere(sight, |one| {
                one.settled && is_uniform(one) && !one.members.contains(&leaver)
            })
        }
        OperationStep::Tell => (false, "telling it".to_owned()),
        OperationStep::End => (true, String::new()),
    }
}

fn is_uniform(replica: &ReplicaReport) -> bool {
    replica.voters.len() == 1
}

fn votes(replica: &ReplicaReport, node: NodeId) -> bool {
    replica.voters.iter().any(|set: &BTreeSet<NodeId>| set.contains(&node))
}

/// Tells in how many shards the leader's word passes.
fn everywhere(sight: &Sight, passes: impl Fn(&ReplicaReport) -> bool) -> (bool, String) {
    let (mut done, mut missing) = (0_u16, None);
    for shard in sight.all_shards() {
        match sight.leader(shard) {
            Some((_, leader)) if passes(leader) => done += 1,
            Some(_) => missing = missing.or_else(|| Some(format!("shard {shard} is next"))),
            None => missing = missing.or_else(|| Some(format!("shard {shard} has no leader now"))),
        }
    }
    let all = sight.shards;
    match missing {
        None => (done == all, String::new()),
        Some(missing) => (false, format!("{done} of {all} shards; {missing}")),
    }
}

fn caught_up(node: NodeId, sight: &Sight) -> (bool, String) {
    if !sight.is_alive(node) {
        let words = format!("node {node} does not answer: start it, or take it out again");
        return (false, words);
    }
    let (mut done, mut behind, mut unknown) = (0_u16, 0_u64, 0_u16);
    for shard in sight.all_shards() {
        match sight.lag(shard, node) {
            Some(lag) if lag <= LAG_MAX => done += 1,
            Some(lag) => behind = behind.saturating_add(lag),
            None => unknown += 1,
        }
    }
    let all = sight.shards;
    if done == all {
        return (true, String::new());
    }
    let words = format!(
        "{done} of {all} shards; {behind} entries behind in the others{}",
        if unknown > 0 { format!(", {unknown} of them without a leader now") } else { String::new() }
    );
    (false, words)
}
