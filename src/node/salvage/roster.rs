//! The roster of a cluster that begins anew with one node: the others are gone for good.
//!
//! What the old cluster wanted of its nodes stands in the ledger of shard 0. Left as it is, it
//! would make the new cluster take the old one's nodes in again.

use super::pausing::asked;
use crate::ledger::{
    Answer, Command, Ledger, OperationState, ROSTER_SHARD, Seat, SeatRole, SetRoster,
};
use crate::shard::MemberSpec;

/// Makes every node of the old cluster a removed one, ends its operations, and seats the new one.
/// A roster that nobody ever changed says nothing, and stays as it is.
///
/// # Errors
///
/// Words, when the ledger does not take it.
pub(super) fn begin_anew(
    ledgers: &mut [Ledger],
    own: &MemberSpec,
    log_uuid: [u8; 16],
) -> Result<(), String> {
    let Some(ledger) = ledgers.get(usize::from(ROSTER_SHARD.0)) else { return Ok(()) };
    let (known, now) = (ledger.roster().clone(), ledger.now());
    if known.revision == 0 {
        return Ok(());
    }
    let mut roster = known.clone();
    for seat in roster.nodes.values_mut().filter(|seat| seat.role != SeatRole::Removed) {
        (seat.role, seat.drained, seat.since) = (SeatRole::Removed, false, now);
    }
    let open = roster.operations.values_mut().filter(|operation| !operation.state.has_ended());
    for operation in open {
        operation.state = OperationState::Cancelled;
        operation.note = "its cluster lost its quorum; this one was made of what was left".into();
        (operation.ticket, operation.changed_at) = (None, now);
    }
    let seat = Seat {
        role: SeatRole::Voter,
        drained: false,
        log_uuid,
        peer_addr: own.peer_addr.clone(),
        http_addr: own.http_addr.clone(),
        region: own.region.clone(),
        since: now,
    };
    roster.nodes.insert(own.node, seat);
    roster.next_node = own.node.0 + 1;
    let set = SetRoster { if_revision: known.revision, before: None, roster };
    match asked(ledgers, ROSTER_SHARD, Command::SetRoster(Box::new(set))) {
        Some(Answer::Noted) => Ok(()),
        other => Err(format!("the roster of nodes cannot be begun anew: {other:?}")),
    }
}
