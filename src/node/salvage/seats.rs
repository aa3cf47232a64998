//! The roster of what is left: the new node alone. The old ones belong to a cluster that is given
//! up.

use crate::ledger::{
    Answer, Batch, Command, Ledger, LogIndex, NodeId, OperationState, ROSTER_SHARD, Roster, Seat,
    SeatRole, SetRoster,
};

/// Returns the least id that was never given to a node of the old cluster.
pub(super) fn next_node(ledgers: &[Ledger]) -> NodeId {
    let roster = ledgers.get(usize::from(ROSTER_SHARD.0)).map(Ledger::roster);
    NodeId(roster.map(|roster| roster.next_node).unwrap_or_default().max(1))
}

/// Removes every node of the old cluster from the roster and seats the new one. Does nothing when
/// the old cluster never changed its nodes: then there is no roster.
///
/// # Errors
///
/// Words, when the ledger refuses: a fault of ours.
pub(super) fn leave_one(ledgers: &mut [Ledger], node: NodeId, seat: Seat) -> Result<(), String> {
    let Some(ledger) = ledgers.get_mut(usize::from(ROSTER_SHARD.0)) else { return Ok(()) };
    if ledger.roster().revision == 0 {
        return Ok(());
    }
    let mut roster: Roster = ledger.roster().clone();
    roster.nodes.retain(|_, old| old.role != SeatRole::Invited);
    for old in roster.nodes.values_mut() {
        old.role = SeatRole::Removed;
        old.drained = false;
    }
    for operation in roster.operations.values_mut().filter(|one| !one.state.has_ended()) {
        operation.state = OperationState::Cancelled;
        operation.ticket = None;
        operation.note = "given up with the old cluster".to_owned();
    }
    roster.next_node = roster.next_node.max(node.0.saturating_add(1));
    roster.nodes.insert(node, Seat { role: SeatRole::Voter, ..seat });
    let set = SetRoster { if_revision: roster.revision, before: None, roster };
    let commands = vec![Command::SetRoster(Box::new(set))];
    let next = LogIndex(ledger.applied().0 + 1);
    match ledger.apply(next, &Batch { stamp: ledger.now(), commands }).first() {
        Some(Answer::Noted) => Ok(()),
        other => Err(format!("the roster cannot be left to the new node: {other:?}")),
    }
}
