//! The preflight: what an order would do, and whether it may.
//!
//! A pure function of the order, the roster and what the nodes said. It refuses what would lose a
//! quorum or leave fewer voters than survive a death, and names the rule and the figures.

use std::collections::BTreeSet;

use super::order::Order;
use super::progress::{step_words, steps_of};
use super::report::{Sight, quorum};
use crate::ledger::{
    NodeId, NodeOperation, OperationKind, OperationState, SchemaVersion, SeatRole,
};

/// Fewer voters survive no death.
const VOTERS_MIN: usize = 3;

/// A rule that an order would break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What would happen, with the figures, and what to do instead.
    pub words: String,
}

/// What an order would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Steps, in words.
    pub steps: Vec<String>,
    /// What the operator should know before.
    pub warnings: Vec<String>,
}

pub(super) fn broken<T>(name: &'static str, words: String) -> Result<T, Rule> {
    Err(Rule { name, words })
}

/// Judges an order that changes nodes, and says what it would do.
///
/// # Errors
///
/// The [`Rule`] that it would break.
pub fn plan(order: &Order, sight: &Sight) -> Result<Plan, Rule> {
    let Some(kind) = order.kind() else { return Ok(Plan::default()) };
    not_beside_another(order, sight)?;
    every_shard_is_led(sight)?;
    let mut warnings = Vec::new();
    let names = match order {
        Order::Add { region, .. } => {
            add(region.as_deref(), sight, &mut warnings)?;
            "the new node".to_owned()
        }
        Order::Promote { node } => promote(*node, sight, &mut warnings)?,
        Order::Demote { node, fewer } => {
            let seat = voter(*node, sight)?;
            shrink("demoting", *node, *fewer, sight, &mut warnings)?;
            seat
        }
        Order::Drain { node } => drain(*node, sight)?,
        Order::Undrain { node } => undrain(*node, sight)?,
        Order::Remove { node, fewer } => remove(*node, *fewer, sight, &mut warnings)?,
        Order::Replace { node, .. } => replace(*node, sight, &mut warnings)?,
        Order::Cancel { .. }
        | Order::Transfer { .. }
        | Order::Checkpoint { .. }
        | Order::Upgrade => String::new(),
    };
    let steps = steps_of(kind).iter().map(|step| format!("{names}: {}", step_words(*step)));
    Ok(Plan { steps: steps.collect(), warnings })
}

/// Nothing is changed through a minority.
pub(super) fn every_shard_is_led(sight: &Sight) -> Result<(), Rule> {
    let lacks = sight.all_shards().find(|shard| sight.leader(*shard).is_none());
    match lacks {
        None => Ok(()),
        Some(shard) => broken(
            "every-shard-has-a-leader",
            format!(
                "shard {shard} has no leader with a fresh quorum: a change of the nodes needs \
                 one. Look at `holdfast status`"
            ),
        ),
    }
}

/// One operation at a time; but one that holds a node up is no reason to keep it.
fn not_beside_another(order: &Order, sight: &Sight) -> Result<(), Rule> {
    let Some((id, running)) = sight.roster.running() else { return Ok(()) };
    if order.supersedes(running) {
        return Ok(());
    }
    // A machine that is invited waits for its turn.
    if let Order::Add { .. } | Order::Replace { .. } = order {
        return Ok(());
    }
    broken(
        "one-operation-at-a-time",
        format!(
            "operation {id} ({} of node {}) runs: wait for it (`holdfast node wait {id}`), or take \
             the node out that it is about",
            kind_word(running.kind),
            running.node
        ),
    )
}

/// Returns the word of a kind of operation.
pub fn kind_word(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Add => "add",
        OperationKind::AddLearner => "add-learner",
        OperationKind::Promote => "promote",
        OperationKind::Demote => "demote",
        OperationKind::Drain => "drain",
        OperationKind::Undrain => "undrain",
        OperationKind::Remove => "remove",
        OperationKind::Replace => "replace",
    }
}

fn role_of(node: NodeId, sight: &Sight) -> Result<SeatRole, Rule> {
    match sight.roster.nodes.get(&node) {
        Some(seat) => Ok(seat.role),
        None => {
            let known: Vec<String> = sight.roster.nodes.keys().map(ToString::to_string).collect();
            broken("node-is-known", format!("there is no node {node}: {}", known.join(", ")))
        }
    }
}

fn voter(node: NodeId, sight: &Sight) -> Result<String, Rule> {
    match role_of(node, sight)? {
        SeatRole::Voter => Ok(format!("node {node}")),
        SeatRole::Learner => broken("node-votes", format!("node {node} does not vote")),
        SeatRole::Invited => broken("node-votes", format!("node {node} has not come yet")),
        SeatRole::Leaving => broken("node-votes", format!("node {node} is being removed")),
        SeatRole::Removed => broken("node-votes", format!("node {node} was removed")),
    }
}

fn add(region: Option<&str>, sight: &Sight, warnings: &mut Vec<String>) -> Result<(), Rule> {
    let needs = SchemaVersion::REGION_INVITED;
    if let Some(region) = region.filter(|_| sight.schema < needs) {
        let what = format!("an invitation for region {region}");
        let danger = "an older node would let any machine in by it";
        return broken("schema-version", sight.schema.lacks(&what, needs, danger));
    }
    let voters = sight.voters().len();
    if voters % 2 == 1 {
        warnings.push(format!(
            "{} voters survive as many deaths as {voters}: plan for an odd number",
            voters + 1
        ));
    }
    let waiting = sight.roster.operations.values();
    let waiting = waiting.filter(|one| one.state == OperationState::Waiting).count();
    if waiting >= 4 {
        return broken(
            "few-invitations",
            format!("{waiting} machines are awaited: start them, or cancel their operations"),
        );
    }
    Ok(())
}

fn promote(node: NodeId, sight: &Sight, warnings: &mut Vec<String>) -> Result<String, Rule> {
    match role_of(node, sight)? {
        SeatRole::Learner => {}
        SeatRole::Voter => return broken("node-learns", format!("node {node} votes already")),
        SeatRole::Invited => return broken("node-learns", format!("node {node} has not come yet")),
        SeatRole::Leaving | SeatRole::Removed => {
            return broken("node-learns", format!("node {node} was removed"));
        }
    }
    if !sight.is_alive(node) {
        return broken(
            "node-answers",
            format!("node {node} does not answer: a vote that never comes only costs quorum"),
        );
    }
    let voters = sight.voters();
    let (after, alive) = (voters.len() + 1, alive_of(&voters, sight) + 1);
    if alive < quorum(after) {
        let needs = quorum(after);
        return broken(
            "quorum",
            format!("would leave {alive} of {after} voters alive: needs {needs}"),
        );
    }
    if after.is_multiple_of(2) {
        warnings.push(format!("{after} voters survive as many deaths as {}", after - 1));
    }
    Ok(format!("node {node}"))
}

/// Judges an operation whose machine came while another one ran, when its turn has come.
pub(crate) fn may_take_its_turn(operation: &NodeOperation, sight: &Sight) -> Result<(), Rule> {
    every_shard_is_led(sight)?;
    let mut after = sight.voters();
    match operation.kind {
        OperationKind::Add => {}
        OperationKind::Replace => {
            after.retain(|node| Some(*node) != operation.replaces);
        }
        OperationKind::AddLearner
        | OperationKind::Promote
        | OperationKind::Demote
        | OperationKind::Drain
        | OperationKind::Undrain
        | OperationKind::Remove => return Ok(()),
    }
    after.insert(operation.node);
    let (all, alive, needs) = (after.len(), alive_of(&after, sight), quorum(after.len()));
    if alive < needs {
        let words = format!("would leave {alive} of {all} voters alive: needs {needs}");
        return broken("quorum", words);
    }
    Ok(())
}

fn alive_of(voters: &BTreeSet<NodeId>, sight: &Sight) -> usize {
    voters.iter().filter(|voter| sight.is_alive(**voter)).count()
}

/// Judges what is left when a voter votes no more.
fn shrink(
    doing: &str,
    node: NodeId,
    fewer: bool,
    sight: &Sight,
    warnings: &mut Vec<String>,
) -> Result<(), Rule> {
    let mut left = sight.voters();
    left.remove(&node);
    let (after, alive, needs) = (left.len(), alive_of(&left, sight), quorum(left.len()));
    if after == 0 {
        return broken("quorum", format!("{doing} node {node} would leave no voter"));
    }
    if alive < needs {
        return broken(
            "quorum",
            format!(
                "{doing} node {node} would leave {alive} of {after} voters alive: needs {needs}. \
                 Start the others first"
            ),
        );
    }
    if after < VOTERS_MIN && sight.voters().len() >= VOTERS_MIN && !fewer {
        return broken(
            "three-voters",
            format!(
                "{doing} node {node} would leave {after} voters, which survive no death: needs \
                 {VOTERS_MIN}. `holdfast node replace {node}` brings another machine in; \
                 --allow-fewer does it all the same"
            ),
        );
    }
    let may_lead =
        |voter: &&NodeId| !sight.roster.nodes.get(*voter).is_some_and(|seat| seat.drained);
    let (leading, needs_leading) =
        (left.iter().filter(may_lead).count(), if after == 1 { 1 } else { needs });
    if leading < needs_leading {
        return broken(
            "somebody-may-lead",
            format!(
                "{doing} node {node} would leave {leading} of {after} voters that may lead: needs \
                 {needs_leading}. `holdfast node undrain` lets a drained one lead again"
            ),
        );
    }
    let spare = alive - needs;
    warnings.push(format!(
        "{after} voters are left, {alive} of them alive: {spare} more may die before a quorum is \
         lost"
    ));
    Ok(())
}

/// Judges whether a shard may be handed to a node by its name.
pub(super) fn may_lead(node: NodeId, sight: &Sight) -> Result<(), Rule> {
    let named = voter(node, sight)?;
    if sight.roster.nodes.get(&node).is_some_and(|seat| seat.drained) {
        return broken(
            "node-leads",
            format!("{named} is drained: `holdfast node undrain {node}` lets it lead again"),
        );
    }
    match sight.told.get(&node) {
        None => broken("node-answers", format!("{named} does not answer: it could not win")),
        Some(report) if !report.stands => broken(
            "node-leads",
            format!("{named} does not stand for election now: `holdfast status` says why"),
        ),
        Some(_) => Ok(()),
    }
}

fn drain(node: NodeId, sight: &Sight) -> Result<String, Rule> {
    let named = voter(node, sight)?;
    let drained = |node: &NodeId| sight.roster.nodes.get(node).is_some_and(|seat| seat.drained);
    if drained(&node) {
        return broken("node-leads", format!("node {node} is drained already"));
    }
    let voters = sight.voters();
    let stands = |voter: &&NodeId| {
        **voter != node
            && !drained(voter)
            && sight.told.get(voter).is_some_and(|report| report.stands)
    };
    let (standing, all) = (voters.iter().filter(stands).count(), voters.len());
    // As many as a quorum: else the death of one more could leave a quorum without a leader.
    let needs = if all == 1 { 1 } else { quorum(all) };
    if standing < needs {
        return broken(
            "somebody-may-lead",
            format!("would leave {standing} of {all} voters that may lead: needs {needs}"),
        );
    }
    Ok(named)
}

fn undrain(node: NodeId, sight: &Sight) -> Result<String, Rule> {
    let named = voter(node, sight)?;
    match sight.roster.nodes.get(&node) {
        Some(seat) if seat.drained => Ok(named),
        Some(_) | None => {
            broken("node-is-drained", format!("node {node} is not drained: it may lead"))
        }
    }
}

fn remove(
    node: NodeId,
    fewer: bool,
    sight: &Sight,
    warnings: &mut Vec<String>,
) -> Result<String, Rule> {
    match role_of(node, sight)? {
        SeatRole::Voter => shrink("removing", node, fewer, sight, warnings)?,
        SeatRole::Invited | SeatRole::Learner => {}
        SeatRole::Leaving => {
            return broken("node-is-there", format!("node {node} is being removed already"));
        }
        SeatRole::Removed => {
            return broken("node-is-there", format!("node {node} was removed already"));
        }
    }
    if !sight.is_alive(node) {
        warnings.push(format!(
            "node {node} does not answer: it is told when it comes back, and serves nothing then"
        ));
    }
    Ok(format!("node {node}"))
}

fn replace(node: NodeId, sight: &Sight, warnings: &mut Vec<String>) -> Result<String, Rule> {
    let named = voter(node, sight)?;
    let other =
        |one: &crate::ledger::NodeOperation| one.replaces == Some(node) && !one.state.has_ended();
    if let Some((id, _)) = sight.roster.operations.iter().find(|(_, one)| other(one)) {
        return broken(
            "one-replacement",
            format!("operation {id} replaces node {node} already: cancel it first"),
        );
    }
    let mut left = sight.voters();
    left.remove(&node);
    // Old and new set must each have a quorum without the node that goes.
    let (all, alive) = (left.len() + 1, alive_of(&left, sight));
    let needs = quorum(all);
    if alive < needs && !sight.is_alive(node) {
        return broken(
            "quorum",
            format!(
                "only {alive} of {all} voters are alive: needs {needs}. Start the others first"
            ),
        );
    }
    if sight.is_alive(node) {
        warnings.push(format!(
            "node {node} still answers: it goes on until the new node has taken its place"
        ));
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ledger::{LeaderId, Roster, Seat, ShardId, UnixMs};
    use crate::shard::nodes::report::{NodeReport, ReplicaReport};

    fn seat(role: SeatRole) -> Seat {
        Seat { role, log_uuid: [1; 16], since: UnixMs(1), ..Seat::default() }
    }

    /// Nodes with their roles, of which those answer; node 1 leads both shards when it answers.
    fn sight(seats: &[(u64, SeatRole)], alive: &[u64]) -> Sight {
        let nodes = seats.iter().map(|(node, role)| (NodeId(*node), seat(*role))).collect();
        let roster = Roster {
            revision: 3,
            next_node: 9,
            next_operation: 5,
            nodes,
            operations: Default::default(),
        };
        let leader = alive.first().copied().unwrap_or_default();
        let replica = |node: u64, shard: u16| ReplicaReport {
            shard: ShardId(shard),
            leads: (node == leader).then_some(LeaderId { term: 1, node: NodeId(node) }),
            ..ReplicaReport::default()
        };
        let report = |node: &u64| NodeReport {
            stands: true,
            shards: (0..2).map(|shard| replica(*node, shard)).collect(),
        };
        let told = alive.iter().map(|node| (NodeId(*node), report(node))).collect();
        Sight { roster, shards: 2, told, ..Sight::default() }
    }

    const VOTERS: [(u64, SeatRole); 5] = [
        (1, SeatRole::Voter),
        (2, SeatRole::Voter),
        (3, SeatRole::Voter),
        (4, SeatRole::Voter),
        (5, SeatRole::Voter),
    ];

    fn remove(node: u64) -> Order {
        Order::Remove { node: NodeId(node), fewer: false }
    }

    fn remove_all_the_same(node: u64) -> Order {
        Order::Remove { node: NodeId(node), fewer: true }
    }

    /// Seeds 20734 and 20808 of the simulator: one of three was drained and the two others became
    /// learners, so that the only voter was one that does not lead.
    #[test]
    fn a_voter_that_may_lead_is_left() {
        let mut sight = sight(&VOTERS[..3], &[1, 2, 3]);
        sight.roster.nodes.get_mut(&NodeId(2)).expect("it has a seat").drained = true;
        let refused = plan(&remove_all_the_same(3), &sight).map(drop).expect_err("only 1 may lead");
        assert_eq!(refused.name, "somebody-may-lead");
        assert!(plan(&remove_all_the_same(2), &sight).is_ok(), "the drained one may go");
    }

    #[test]
    fn order_is_judged_by_the_figures_that_it_would_leave() {
        let learner = |voters: usize| {
            let mut seats = VOTERS[..voters].to_vec();
            seats.push((6, SeatRole::Learner));
            seats
        };
        let three = &VOTERS[..3];
        let valid = Duration::from_secs(60);
        let promote = || Order::Promote { node: NodeId(6) };
        let replace = |node| Order::Replace { node: NodeId(node), valid };
        let drain = |node| Order::Drain { node: NodeId(node) };
        type Expected = Result<usize, (&'static str, &'static str)>;
        let cases: Vec<(&str, Order, Sight, Expected)> = vec![
            ("five to four", remove(5), sight(&VOTERS, &[1, 2, 3, 4, 5]), Ok(3)),
            ("a dead one of five", remove(5), sight(&VOTERS, &[1, 2, 3, 4]), Ok(3)),
            ("four voters of which three live", remove(4), sight(&VOTERS[..4], &[1, 2, 3]), Ok(3)),
            (
                "a live one of three, one dead",
                remove_all_the_same(2),
                sight(three, &[1, 2]),
                Err(("quorum", "would leave 1 of 2 voters alive: needs 2")),
            ),
            (
                "a live one of five, two dead",
                remove(3),
                sight(&VOTERS, &[1, 2, 3]),
                Err(("quorum", "would leave 2 of 4 voters alive: needs 3")),
            ),
            (
                "three to two",
                remove(3),
                sight(three, &[1, 2, 3]),
                Err(("three-voters", "would leave 2 voters, which survive no death: needs 3")),
            ),
            ("three to two, insisted", remove_all_the_same(3), sight(three, &[1, 2, 3]), Ok(3)),
            (
                "the last one",
                remove_all_the_same(1),
                sight(&VOTERS[..1], &[1]),
                Err(("quorum", "would leave no voter")),
            ),
            ("a learner goes freely", remove(6), sight(&learner(3), &[1, 2, 3]), Ok(3)),
            ("a learner votes", promote(), sight(&learner(3), &[1, 2, 3, 6]), Ok(2)),
            (
                "a learner that does not answer",
                promote(),
                sight(&learner(3), &[1, 2, 3]),
                Err(("node-answers", "does not answer")),
            ),
            ("a dead one is replaced", replace(3), sight(three, &[1, 2]), Ok(6)),
            ("one of three is drained", drain(3), sight(three, &[1, 2, 3]), Ok(1)),
            (
                "one of three is drained, one dead",
                drain(2),
                sight(three, &[1, 2]),
                Err(("somebody-may-lead", "would leave 1 of 3 voters that may lead: needs 2")),
            ),
            (
                "nobody leads",
                remove(5),
                sight(&VOTERS, &[]),
                Err(("every-shard-has-a-leader", "shard 0 has no leader")),
            ),
            ("unknown", remove(7), sight(three, &[1, 2, 3]), Err(("node-is-known", "1, 2, 3"))),
        ];
        for (named, order, sight, expected) in cases {
            match (plan(&order, &sight), expected) {
                (Ok(plan), Ok(steps)) => assert_eq!(plan.steps.len(), steps, "{named}: {plan:?}"),
                (Err(rule), Err((name, words))) => {
                    assert_eq!(rule.name, name, "{named}: {rule:?}");
                    assert!(rule.words.contains(words), "{named}: {rule:?}");
                }
                (judged, expected) => panic!("{named}: {judged:?} instead of {expected:?}"),
            }
        }
    }

    /// A transfer to a drained node said "no voter has caught up in time".
    #[test]
    fn transfer_to_a_node_that_cannot_lead_is_refused_for_the_reason_that_it_has() {
        let mut seats = VOTERS[..3].to_vec();
        seats.push((4, SeatRole::Learner));
        let mut seen = sight(&seats, &[1, 2]);
        let words = |node, seen: &Sight| may_lead(NodeId(node), seen).expect_err("refused").words;
        assert!(may_lead(NodeId(2), &seen).is_ok());
        assert!(words(3, &seen).contains("does not answer"));
        assert!(words(4, &seen).contains("does not vote"));
        assert!(words(9, &seen).contains("there is no node 9"));
        seen.told.get_mut(&NodeId(2)).expect("it answers").stands = false;
        assert!(words(2, &seen).contains("does not stand"));
        seen.roster.nodes.get_mut(&NodeId(2)).expect("it has a seat").drained = true;
        assert!(words(2, &seen).contains("is drained: `holdfast node undrain 2`"));
        let undrain = |node| plan(&Order::Undrain { node: NodeId(node) }, &seen);
        assert!(undrain(2).is_ok());
        let twice = undrain(1).expect_err("nobody drained it");
        assert_eq!(
            (twice.name, twice.words.as_str()),
            ("node-is-drained", "node 1 is not drained: it may lead")
        );
    }

    #[test]
    fn second_operation_is_refused_unless_it_takes_out_the_node_that_holds_the_first_up() {
        let mut seen = sight(&VOTERS, &[1, 2, 3, 4, 5]);
        let running = crate::ledger::NodeOperation {
            kind: OperationKind::Add,
            node: NodeId(5),
            replaces: None,
            state: OperationState::Running,
            step: crate::ledger::OperationStep::CatchUp,
            note: String::new(),
            ticket: None,
            begun_at: UnixMs(1),
            changed_at: UnixMs(1),
        };
        seen.roster.operations.insert(4, running);
        let refused = plan(&remove(4), &seen).expect_err("another node");
        assert_eq!(refused.name, "one-operation-at-a-time");
        assert!(refused.words.contains("operation 4 (add of node 5)"), "{refused:?}");
        assert!(plan(&remove(5), &seen).is_ok(), "the node that does not come");
        let valid = Duration::from_secs(60);
        let add = Order::Add { learner: false, valid, region: None };
        assert!(plan(&add, &seen).is_ok(), "an invitation waits for its turn");
    }
}
