//! Operations as they are written into a roster: begun, queued behind nobody, given up.

use super::order::{Order, Rejected};
use super::preflight::Rule;
use super::progress::{enter, steps_of};
use super::token::print_of;
use crate::ledger::{
    NodeId, NodeOperation, OperationKind, OperationState, OperationStep, Roster, Seat, SeatRole,
    Ticket, UnixMs,
};
use crate::shard::desk::MemberSpec;
use crate::shard::uuid_bytes;

/// Makes the roster of a cluster whose membership was never changed.
pub(crate) fn first_roster(members: &[MemberSpec], now: UnixMs) -> Roster {
    let seat = |member: &MemberSpec| Seat {
        role: SeatRole::Voter,
        drained: false,
        log_uuid: uuid_bytes(&member.log_uuid).unwrap_or_default(),
        peer_addr: member.peer_addr.clone(),
        http_addr: member.http_addr.clone(),
        region: member.region.clone(),
        since: now,
    };
    let last = members.iter().map(|member| member.node.0).max().unwrap_or_default();
    Roster {
        revision: 0,
        next_node: last.saturating_add(1),
        next_operation: 1,
        nodes: members.iter().map(|member| (member.node, seat(member))).collect(),
        operations: Default::default(),
    }
}

/// Writes an operation into a roster and returns its id.
pub(super) fn begin(
    roster: &mut Roster,
    order: &Order,
    now: UnixMs,
    secret: &[u8; 16],
    tag_key: &[u8; 16],
) -> u64 {
    let id = roster.next_operation;
    roster.next_operation = id.saturating_add(1);
    let kind = order.kind().unwrap_or(OperationKind::Undrain);
    let superseded = roster.running().filter(|(_, running)| order.supersedes(running));
    if let Some((other, _)) = superseded
        && let Some(other) = roster.operations.get_mut(&other)
    {
        other.state = OperationState::Cancelled;
        other.note = format!("given up for operation {id}");
        other.changed_at = now;
    }
    let (node, replaces, valid) = match order {
        Order::Add { valid, region, .. } => {
            (invite(roster, region.as_deref(), now), None, Some(*valid))
        }
        Order::Replace { node, valid } => (invite(roster, None, now), Some(*node), Some(*valid)),
        Order::Promote { node }
        | Order::Demote { node, .. }
        | Order::Drain { node }
        | Order::Undrain { node }
        | Order::Remove { node, .. } => (*node, None, None),
        Order::Cancel { .. }
        | Order::Transfer { .. }
        | Order::Checkpoint { .. }
        | Order::Upgrade => (NodeId(0), None, None),
    };
    let ticket = valid.map(|valid| Ticket {
        print: print_of(tag_key, id, secret),
        expires_at: UnixMs(
            now.0.saturating_add(u64::try_from(valid.as_millis()).unwrap_or(u64::MAX)),
        ),
    });
    let state = if ticket.is_some() { OperationState::Waiting } else { OperationState::Running };
    let first = steps_of(kind).first().copied().unwrap_or(OperationStep::End);
    let operation = NodeOperation {
        kind,
        node,
        replaces,
        state,
        step: first,
        note: String::new(),
        ticket,
        begun_at: now,
        changed_at: now,
    };
    roster.operations.insert(id, operation);
    // One that was invited and never came has nothing to be taken out of.
    let never_came = roster.nodes.get(&node).is_some_and(|seat| seat.role == SeatRole::Invited);
    if kind == OperationKind::Remove && never_came {
        let invitations = roster.operations.values_mut();
        for other in invitations.filter(|one| one.node == node && one.ticket.is_some()) {
            other.state = OperationState::Cancelled;
            other.ticket = None;
        }
        roster.nodes.remove(&node);
        enter(roster, id, OperationStep::End, "it had not come", now);
    } else {
        enter(roster, id, first, "", now);
    }
    id
}

/// Gives an id, to a machine of that region if one is named.
fn invite(roster: &mut Roster, region: Option<&str>, now: UnixMs) -> NodeId {
    let node = NodeId(roster.next_node);
    roster.next_node = roster.next_node.saturating_add(1);
    let region = region.unwrap_or_default().to_owned();
    roster.nodes.insert(node, Seat { since: now, region, ..Seat::default() });
    node
}

/// Gives up an operation whose machine has not come, or that waits for its turn.
pub(crate) fn cancel(roster: &mut Roster, id: u64, now: UnixMs) -> Result<(), Rejected> {
    let rule = |name, words| Rejected::Rule(Rule { name, words });
    let Some(operation) = roster.operations.get_mut(&id) else {
        return Err(rule("operation-is-known", format!("there is no operation {id}")));
    };
    match operation.state {
        OperationState::Waiting => {}
        OperationState::Queued | OperationState::Running => {
            let words = format!(
                "operation {id} has begun: it goes on, or `holdfast node remove {}` takes the \
                 node out again",
                operation.node
            );
            return Err(rule("operation-waits", words));
        }
        OperationState::Done | OperationState::Cancelled => {
            return Err(rule("operation-waits", format!("operation {id} has ended")));
        }
    }
    operation.state = OperationState::Cancelled;
    operation.note = "cancelled".to_owned();
    operation.ticket = None;
    operation.changed_at = now;
    let node = operation.node;
    if roster.nodes.get(&node).is_some_and(|seat| seat.role == SeatRole::Invited) {
        roster.nodes.remove(&node);
    }
    roster.forget_old();
    Ok(())
}
