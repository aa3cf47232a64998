//! The admission of a new machine: a token, used once, for an id.

use std::sync::Arc;

use super::errand::spec;
use super::operation::cancel;
use super::order::Rejected;
use super::preflight::Rule;
use super::progress::enter;
use super::token::read_token;
use crate::ledger::{
    NodeId, OperationKind, OperationState, OperationStep, Roster, SchemaRange, SchemaVersion,
    SeatRole, UnixMs,
};
use crate::runtime::Instant;
use crate::shard::desk::MemberSpec;
use crate::shard::router::Router;

/// How often a claim is judged anew when another change came first.
const TRIES: usize = 8;

/// What a new machine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The token.
    pub token: String,
    /// The log that it will vote with, which it has drawn and written down before it asks: the
    /// same machine may ask again, another one may not.
    pub log_uuid: [u8; 16],
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
    /// The schema versions that it reads.
    pub reads: SchemaRange,
}

/// What it is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Its id.
    pub node: NodeId,
    /// The operation that brings it in.
    pub operation: u64,
    /// The members, itself included.
    pub members: Vec<MemberSpec>,
}

fn rule<T>(name: &'static str, words: impl Into<String>) -> Result<T, Rule> {
    Err(Rule { name, words: words.into() })
}

/// Writes a claim into a roster of a cluster that writes this schema version. `None`: it stands
/// there already.
pub(crate) fn admit(
    (roster, active): (&Roster, SchemaVersion),
    claim: &Claim,
    (operation, print): (u64, u128),
    now: UnixMs,
) -> Result<(NodeId, Option<(Roster, UnixMs)>), Rule> {
    const ANOTHER: &str = "run `holdfast node add` for another one";
    let Some(known) = roster.operations.get(&operation) else {
        return rule("token-is-known", format!("the cluster knows no such token: {ANOTHER}"));
    };
    let used = || rule("token-is-new", format!("the token was used or given up: {ANOTHER}"));
    let Some(ticket) = known.ticket else { return used() };
    if ticket.print != print {
        return rule("token-is-known", format!("the cluster knows no such token: {ANOTHER}"));
    }
    if !claim.reads.has(active) {
        return rule("schema-version", claim.reads.beyond(active));
    }
    let seat = roster.nodes.get(&known.node);
    // It has come before: the answer was lost, or it was restarted.
    if let Some(seat) = seat.filter(|seat| seat.log_uuid == claim.log_uuid)
        && matches!(seat.role, SeatRole::Learner | SeatRole::Voter)
    {
        return Ok((known.node, None));
    }
    if known.state != OperationState::Waiting {
        return used();
    }
    if now >= ticket.expires_at {
        return rule("token-is-valid", format!("the token has expired: {ANOTHER}"));
    }
    if let Some(seat) = seat.filter(|seat| !seat.region.is_empty() && seat.region != claim.region) {
        return rule(
            "region-is-invited",
            format!(
                "the token is for a machine of region {}, and this one is of {}: set node.region, \
                 or {ANOTHER}",
                seat.region, claim.region
            ),
        );
    }
    let taken = roster.present().find(|(node, seat)| {
        Some(*node) != known.replaces
            && (seat.peer_addr == claim.peer_addr || seat.http_addr == claim.http_addr)
    });
    if let Some((node, seat)) = taken {
        return rule(
            "address-is-free",
            format!(
                "node {node} is at {} and {}: set peer.advertise and http.advertise of this \
                 machine to its own addresses",
                seat.peer_addr, seat.http_addr
            ),
        );
    }
    let mut next = roster.clone();
    let idle = next.running().is_none();
    let (node, expires_at) = (known.node, ticket.expires_at);
    if let Some(seat) = next.nodes.get_mut(&node) {
        seat.role = SeatRole::Learner;
        seat.since = now;
        seat.log_uuid = claim.log_uuid;
        seat.peer_addr.clone_from(&claim.peer_addr);
        seat.http_addr.clone_from(&claim.http_addr);
        seat.region.clone_from(&claim.region);
    }
    if let Some(operation) = next.operations.get_mut(&operation) {
        operation.state = if idle { OperationState::Running } else { OperationState::Queued };
    }
    enter(&mut next, operation, OperationStep::Learn, "", now);
    forget_the_gone(&mut next, operation);
    Ok((node, Some((next, expires_at))))
}

/// Makes an operation whose other node was removed meanwhile what is left of it: a node more.
pub(crate) fn forget_the_gone(roster: &mut Roster, id: u64) {
    let Roster { operations, nodes, .. } = roster;
    let Some(operation) = operations.get_mut(&id) else { return };
    let Some(replaced) = operation.replaces else { return };
    let stays =
        |seat: &crate::ledger::Seat| matches!(seat.role, SeatRole::Voter | SeatRole::Learner);
    if operation.step <= OperationStep::CatchUp && !nodes.get(&replaced).is_some_and(stays) {
        operation.kind = OperationKind::Add;
        operation.replaces = None;
        operation.note =
            format!("node {replaced} was removed meanwhile: this one comes all the same");
    }
}

/// Gives up every invitation whose token has run out; tells whether there was one.
pub(crate) fn expire(roster: &mut Roster, now: UnixMs) -> bool {
    let late = |one: &&crate::ledger::NodeOperation| {
        one.state == OperationState::Waiting
            && one.ticket.is_some_and(|ticket| now >= ticket.expires_at)
    };
    let late: Vec<u64> =
        roster.operations.iter().filter(|(_, one)| late(one)).map(|(id, _)| *id).collect();
    for id in &late {
        if cancel(roster, *id, now).is_ok()
            && let Some(operation) = roster.operations.get_mut(id)
        {
            operation.note = "its token expired and nobody had come".to_owned();
        }
    }
    !late.is_empty()
}

impl Router {
    /// Lets a new machine in that has a token.
    ///
    /// # Errors
    ///
    /// [`Rejected`].
    pub async fn admit(
        self: Arc<Router>,
        claim: Claim,
        deadline: Instant,
    ) -> Result<Admission, Rejected> {
        let Some((operation, token)) = read_token(&claim.token) else {
            return Err(Rejected::Rule(Rule {
                name: "token-is-known",
                words: "this is no token: `holdfast node add` prints one".to_owned(),
            }));
        };
        self.advance_roster(deadline).await.map_err(Rejected::Unavailable)?;
        for _ in 0..TRIES {
            let read = self.read_roster(deadline).await;
            let (roster, now) = read.map_err(Rejected::Unavailable)?;
            let token = (operation, self.ticket_print(operation, &token));
            let active = self.schema_of(&roster, deadline).await?;
            let (node, change) = admit((&roster, active), &claim, token, now)?;
            let seated = match change {
                None => roster,
                Some((next, before)) => {
                    if !self.set_roster(next.clone(), Some(before), deadline).await? {
                        continue;
                    }
                    next
                }
            };
            let members = seated.present().map(|(node, seat)| spec(node, seat)).collect();
            return Ok(Admission { node, operation, members });
        }
        let words = "others change the nodes at the same time: try again";
        Err(Rejected::Unavailable(words.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{NodeOperation, Seat, Ticket};

    const PRINT: u128 = 77;
    const FIRST: SchemaVersion = SchemaVersion::FIRST;

    fn roster() -> Roster {
        let operation = NodeOperation {
            kind: OperationKind::Add,
            node: NodeId(4),
            replaces: None,
            state: OperationState::Waiting,
            step: OperationStep::AwaitMachine,
            note: String::new(),
            ticket: Some(Ticket { print: PRINT, expires_at: UnixMs(1_000) }),
            begun_at: UnixMs(1),
            changed_at: UnixMs(1),
        };
        let seat = |log: u8, at: &str| Seat {
            role: if log == 0 { SeatRole::Invited } else { SeatRole::Voter },
            log_uuid: [log; 16],
            peer_addr: format!("{at}:1"),
            http_addr: format!("{at}:2"),
            ..Seat::default()
        };
        Roster {
            revision: 5,
            next_node: 5,
            next_operation: 3,
            nodes: [(NodeId(1), seat(1, "a")), (NodeId(4), seat(0, ""))].into(),
            operations: [(2, operation)].into(),
        }
    }

    fn claim(log: u8, at: &str) -> Claim {
        Claim {
            token: String::new(),
            log_uuid: [log; 16],
            peer_addr: format!("{at}:1"),
            http_addr: format!("{at}:2"),
            region: "eu".to_owned(),
            reads: SchemaRange::up_to(FIRST),
        }
    }

    #[test]
    fn token_lets_one_machine_in_and_the_same_machine_again() {
        let before = roster();
        let seen = (&before, FIRST);
        let (node, change) = admit(seen, &claim(4, "d"), (2, PRINT), UnixMs(10)).expect("in");
        let (after, _) = change.expect("a change");
        assert_eq!((node, after.nodes[&node].role), (NodeId(4), SeatRole::Learner));
        assert_eq!(after.operations[&2].state, OperationState::Running);
        assert_eq!(after.operations[&2].step, OperationStep::Learn);
        let seen = (&after, FIRST);
        let again = admit(seen, &claim(4, "d"), (2, PRINT), UnixMs(9_999)).expect("the same");
        assert_eq!(again, (NodeId(4), None));
        let other = admit(seen, &claim(5, "e"), (2, PRINT), UnixMs(11)).expect_err("another");
        assert_eq!(other.name, "token-is-new");
        // Who knows the log but not the token learns nothing.
        let forged = admit(seen, &claim(4, "d"), (2, PRINT + 1), UnixMs(11)).expect_err("forged");
        assert_eq!(forged.name, "token-is-known");
    }

    #[test]
    fn wrong_late_and_doubled_claims_are_refused_each_for_its_reason() {
        let before = roster();
        let judged = |claim: &Claim, operation, print, now| {
            let judged = admit((&before, FIRST), claim, (operation, print), UnixMs(now));
            judged.expect_err("refused").name
        };
        assert_eq!(judged(&claim(4, "d"), 9, PRINT, 10), "token-is-known");
        assert_eq!(judged(&claim(4, "d"), 2, PRINT + 1, 10), "token-is-known");
        assert_eq!(judged(&claim(4, "d"), 2, PRINT, 1_000), "token-is-valid");
        assert_eq!(judged(&claim(4, "a"), 2, PRINT, 10), "address-is-free");
    }

    #[test]
    fn machine_that_comes_while_another_operation_runs_waits_for_its_turn() {
        let mut before = roster();
        let mut running = before.operations[&2].clone();
        running.state = OperationState::Running;
        before.operations.insert(1, running);
        let seen = (&before, FIRST);
        let (_, change) = admit(seen, &claim(4, "d"), (2, PRINT), UnixMs(10)).expect("in");
        let (after, _) = change.expect("a change");
        assert_eq!(after.operations[&2].state, OperationState::Queued);
    }

    #[test]
    fn machine_that_cannot_read_what_the_cluster_writes_is_told_both_figures() {
        let before = roster();
        let seen = (&before, SchemaVersion(2));
        let told = admit(seen, &claim(4, "d"), (2, PRINT), UnixMs(10)).expect_err("too old");
        assert_eq!(told.name, "schema-version");
        assert!(told.words.contains("schema version is 2"), "{told:?}");
        assert!(told.words.contains("reads 1 to 1"), "{told:?}");
    }

    #[test]
    fn invitation_for_one_region_lets_a_machine_of_that_region_in_and_no_other() {
        let mut before = roster();
        before.nodes.get_mut(&NodeId(4)).expect("invited").region = "us".to_owned();
        let seen = (&before, FIRST);
        let told = admit(seen, &claim(4, "d"), (2, PRINT), UnixMs(10)).expect_err("of eu");
        assert_eq!(told.name, "region-is-invited");
        before.nodes.get_mut(&NodeId(4)).expect("invited").region = "eu".to_owned();
        let seen = (&before, FIRST);
        assert!(admit(seen, &claim(4, "d"), (2, PRINT), UnixMs(10)).is_ok());
    }

    #[test]
    fn replacement_of_a_node_that_was_removed_meanwhile_is_one_node_more() {
        let mut before = roster();
        let operation = before.operations.get_mut(&2).expect("waits");
        operation.kind = OperationKind::Replace;
        operation.replaces = Some(NodeId(1));
        before.nodes.get_mut(&NodeId(1)).expect("there").role = SeatRole::Removed;
        let seen = (&before, FIRST);
        let (_, change) = admit(seen, &claim(4, "d"), (2, PRINT), UnixMs(10)).expect("in");
        let (after, _) = change.expect("a change");
        let operation = &after.operations[&2];
        assert_eq!((operation.kind, operation.replaces), (OperationKind::Add, None));
    }

    #[test]
    fn invitation_that_nobody_took_ends_with_its_token_and_its_id_is_not_given_again() {
        let mut roster = roster();
        assert!(!expire(&mut roster, UnixMs(999)));
        assert!(expire(&mut roster, UnixMs(1_000)));
        assert_eq!(roster.operations[&2].state, OperationState::Cancelled);
        assert!(!roster.nodes.contains_key(&NodeId(4)));
        assert_eq!(roster.next_node, 5);
    }
}
