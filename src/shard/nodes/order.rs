//! Orders: what operators ask for, judged, written into the roster, and shown.

use std::sync::Arc;
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

use super::errand::{Errand, Errands};
use super::preflight::{Plan, Rule, plan};
use super::progress::{enter, steps_of};
use super::report::Sight;
use crate::ledger::{
    Answer, Command, Found, NodeId, NodeOperation, OperationKind, OperationState, OperationStep,
    Query, ROSTER_SHARD, Refusal, Roster, Seat, SeatRole, SetRoster, ShardId, Ticket, UnixMs,
};
use crate::runtime::{self, Instant};
use crate::shard::desk::{MemberSpec, Outcome, Question};
use crate::shard::router::Router;
use crate::shard::uuid_bytes;

/// How often an order is judged anew when another change came first.
const TRIES: usize = 8;
/// How long a checkpoint may take.
const CHECKPOINT_MAX: Duration = Duration::from_secs(60);

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// A token for a new machine.
    Add {
        /// Whether it is to follow only.
        learner: bool,
        /// How long the token lets somebody in.
        valid: Duration,
    },
    /// A learner is to vote.
    Promote {
        /// The node.
        node: NodeId,
    },
    /// A voter is to follow only.
    Demote {
        /// The node.
        node: NodeId,
        /// Also when fewer than three voters are left.
        fewer: bool,
    },
    /// A node is to lead nothing.
    Drain {
        /// The node.
        node: NodeId,
    },
    /// A drained node may lead again.
    Undrain {
        /// The node.
        node: NodeId,
    },
    /// A node is to go for good.
    Remove {
        /// The node.
        node: NodeId,
        /// Also when fewer than three voters are left.
        fewer: bool,
    },
    /// A token for a new machine, which takes the place of a node.
    Replace {
        /// The node that goes.
        node: NodeId,
        /// How long the token lets somebody in.
        valid: Duration,
    },
    /// Gives up an operation whose machine has not come.
    Cancel {
        /// The operation.
        operation: u64,
    },
    /// Moves a shard's leadership.
    Transfer {
        /// The shard.
        shard: ShardId,
        /// Where to; whoever can win when absent.
        to: Option<NodeId>,
    },
    /// Makes a checkpoint of a shard on the node that leads it.
    Checkpoint {
        /// The shard.
        shard: ShardId,
    },
}

impl Order {
    /// Returns the kind of operation that it begins; `None` for those that are done at once.
    pub fn kind(&self) -> Option<OperationKind> {
        match self {
            Order::Add { learner: false, .. } => Some(OperationKind::Add),
            Order::Add { learner: true, .. } => Some(OperationKind::AddLearner),
            Order::Promote { .. } => Some(OperationKind::Promote),
            Order::Demote { .. } => Some(OperationKind::Demote),
            Order::Drain { .. } => Some(OperationKind::Drain),
            Order::Undrain { .. } => Some(OperationKind::Undrain),
            Order::Remove { .. } => Some(OperationKind::Remove),
            Order::Replace { .. } => Some(OperationKind::Replace),
            Order::Cancel { .. } | Order::Transfer { .. } | Order::Checkpoint { .. } => None,
        }
    }

    /// Tells whether an operation is what it asks for.
    fn is(&self, running: &NodeOperation) -> bool {
        let node = match self {
            Order::Promote { node }
            | Order::Demote { node, .. }
            | Order::Drain { node }
            | Order::Undrain { node }
            | Order::Remove { node, .. } => *node,
            Order::Add { .. }
            | Order::Replace { .. }
            | Order::Cancel { .. }
            | Order::Transfer { .. }
            | Order::Checkpoint { .. } => return false,
        };
        self.kind() == Some(running.kind) && node == running.node
    }

    /// Tells whether it takes out the very node that an operation is bringing in, or lets lead
    /// again the one that is being drained: then that operation is given up for it.
    pub fn supersedes(&self, running: &NodeOperation) -> bool {
        let brings_in = match running.kind {
            OperationKind::Add | OperationKind::AddLearner | OperationKind::Promote => true,
            OperationKind::Replace => running.step <= OperationStep::CatchUp,
            OperationKind::Demote
            | OperationKind::Drain
            | OperationKind::Undrain
            | OperationKind::Remove => false,
        };
        match self {
            Order::Remove { node, .. } => brings_in && *node == running.node,
            Order::Undrain { node } => {
                running.kind == OperationKind::Drain && *node == running.node
            }
            Order::Add { .. }
            | Order::Promote { .. }
            | Order::Demote { .. }
            | Order::Drain { .. }
            | Order::Replace { .. }
            | Order::Cancel { .. }
            | Order::Transfer { .. }
            | Order::Checkpoint { .. } => false,
        }
    }
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    /// What it would do.
    Planned(Plan),
    /// It is an operation now.
    Begun(Box<Ruling>),
    /// It is done, in words.
    Done(String),
}

/// An operation that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// The operation.
    pub id: u64,
    /// What it will do.
    pub plan: Plan,
    /// The token for the machine that is awaited.
    pub token: Option<String>,
    /// What was seen.
    pub sight: Sight,
}

/// Why an order was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// It would break a rule; nothing was changed.
    Rule(Rule),
    /// Nothing was changed: nobody could act.
    Unavailable(String),
    /// It may have been taken.
    Unknown(String),
}

impl From<Rule> for Rejected {
    fn from(rule: Rule) -> Rejected {
        Rejected::Rule(rule)
    }
}

/// Returns the print of a token under the cluster's secret.
pub(crate) fn print_of(secret: &[u8; 16], operation: u64, token: &[u8; 16]) -> u128 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(b"holdfast join token");
    hasher.write(&operation.to_le_bytes());
    hasher.write(token);
    hasher.finish128().as_u128()
}

/// Writes a token.
pub fn token_of(operation: u64, secret: &[u8; 16]) -> String {
    format!("hfj-{operation}-{}", crate::shard::uuid_hex(secret))
}

/// Reads a token.
pub(crate) fn read_token(token: &str) -> Option<(u64, [u8; 16])> {
    let (operation, secret) = token.trim().strip_prefix("hfj-")?.split_once('-')?;
    Some((operation.parse().ok()?, uuid_bytes(secret)?))
}

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

impl Router {
    /// Reads the roster from its leader; that of `cluster init` when nobody has changed it.
    ///
    /// # Errors
    ///
    /// Words, when nobody leads shard 0 now.
    pub async fn read_roster(
        self: &Arc<Router>,
        deadline: Instant,
    ) -> Result<(Roster, UnixMs), String> {
        let question = Question::Query { query: Query::Roster, shard: Some(ROSTER_SHARD) };
        let reply = self.ask_shard(ROSTER_SHARD, question, deadline).await;
        match reply.outcome {
            Outcome::Found(Found::Roster { roster, now }) if roster.revision > 0 => {
                Ok((*roster, now))
            }
            Outcome::Found(Found::Roster { now, .. }) => {
                Ok((first_roster(&self.members(), now), now))
            }
            other => Err(format!("the roster cannot be read now ({other:?}): try again")),
        }
    }

    /// Brings ledger time up to now, for deadlines that are counted from it.
    pub(crate) async fn advance_roster(
        self: &Arc<Router>,
        deadline: Instant,
    ) -> Result<(), String> {
        let question = Question::from(Command::Advance);
        match self.ask_shard(ROSTER_SHARD, question, deadline).await.outcome {
            Outcome::Answered(Answer::Advanced { .. }) => Ok(()),
            other => Err(format!("shard {ROSTER_SHARD} does not answer now ({other:?})")),
        }
    }

    /// Sets the roster if it is still as it was read. `Ok(false)`: another change came first.
    ///
    /// # Errors
    ///
    /// [`Rejected`].
    pub async fn set_roster(
        self: &Arc<Router>,
        roster: Roster,
        before: Option<UnixMs>,
        deadline: Instant,
    ) -> Result<bool, Rejected> {
        let set = SetRoster { if_revision: roster.revision, before, roster };
        let question = Question::from(Command::SetRoster(Box::new(set)));
        let reply = self.ask_shard(ROSTER_SHARD, question, deadline).await;
        match reply.outcome {
            Outcome::Answered(Answer::Noted) => Ok(true),
            Outcome::Answered(Answer::Refused(Refusal::RevisionMismatch { .. })) => Ok(false),
            Outcome::Answered(Answer::Refused(Refusal::Invalid { field, rule })) => {
                let words = format!("{field} {rule}");
                Err(Rejected::Rule(Rule { name: "roster-law", words }))
            }
            Outcome::Unknown => Err(Rejected::Unknown(
                "it is not known whether it was taken: look at `holdfast node list`".to_owned(),
            )),
            other => Err(Rejected::Unavailable(format!("nothing was changed ({other:?})"))),
        }
    }

    /// Reads the roster and asks every node how its replicas are.
    ///
    /// # Errors
    ///
    /// Words, when nobody leads shard 0 now.
    pub async fn sight(
        self: &Arc<Router>,
        deadline: Instant,
    ) -> Result<(Sight, UnixMs), Rejected> {
        let read = self.read_roster(deadline).await;
        let (roster, now) = read.map_err(Rejected::Unavailable)?;
        Ok((self.look_at(roster).await, now))
    }

    /// Judges an order and, unless it is a rehearsal, takes it. `secret` is random.
    ///
    /// # Errors
    ///
    /// [`Rejected`].
    pub async fn order(
        self: Arc<Router>,
        order: Order,
        rehearsal: bool,
        secret: [u8; 16],
        deadline: Instant,
    ) -> Result<Ordered, Rejected> {
        match &order {
            Order::Transfer { shard, to } => return self.transfer(*shard, *to, rehearsal).await,
            Order::Checkpoint { shard } => return self.checkpoint_of(*shard, rehearsal).await,
            Order::Cancel { .. }
            | Order::Add { .. }
            | Order::Promote { .. }
            | Order::Demote { .. }
            | Order::Drain { .. }
            | Order::Undrain { .. }
            | Order::Remove { .. }
            | Order::Replace { .. } => {}
        }
        self.advance_roster(deadline).await.map_err(Rejected::Unavailable)?;
        for _ in 0..TRIES {
            let (sight, now) = self.sight(deadline).await?;
            // Who asks for what runs already is shown it: the answer to the first may be lost.
            let same = sight.roster.running().filter(|(_, running)| order.is(running));
            if let Some((id, _)) = same.filter(|_| !rehearsal) {
                let plan = Plan::default();
                return Ok(Ordered::Begun(Box::new(Ruling { id, plan, token: None, sight })));
            }
            let plan = plan(&order, &sight)?;
            let mut roster = sight.roster.clone();
            let begun = match &order {
                Order::Cancel { operation } => {
                    cancel(&mut roster, *operation, now)?;
                    None
                }
                other => Some(begin(&mut roster, other, now, &secret, &self.tag_key())),
            };
            if rehearsal {
                return Ok(Ordered::Planned(plan));
            }
            let token = begun.filter(|id| {
                roster.operations.get(id).is_some_and(|one| one.ticket.is_some())
            });
            let token = token.map(|id| token_of(id, &secret));
            if !self.set_roster(roster.clone(), None, deadline).await? {
                continue;
            }
            return Ok(match begun {
                Some(id) => {
                    let sight = Sight { roster, ..sight };
                    Ordered::Begun(Box::new(Ruling { id, plan, token, sight }))
                }
                None => Ordered::Done("the operation was cancelled".to_owned()),
            });
        }
        let words = "others change the nodes at the same time: try again";
        Err(Rejected::Unavailable(words.to_owned()))
    }

    fn tag_key(&self) -> [u8; 16] {
        self.place(ROSTER_SHARD).map(|place| place.replica.settings().tag_key).unwrap_or_default()
    }

    pub(crate) fn ticket_print(&self, operation: u64, token: &[u8; 16]) -> u128 {
        print_of(&self.tag_key(), operation, token)
    }

    async fn transfer(
        self: &Arc<Router>,
        shard: ShardId,
        to: Option<NodeId>,
        rehearsal: bool,
    ) -> Result<Ordered, Rejected> {
        let (leader, _) = self.leading(shard)?;
        if to == Some(leader.node) {
            return Ok(Ordered::Done(format!("node {} leads shard {shard} already", leader.node)));
        }
        if rehearsal {
            let to = to.map_or("whoever can win".to_owned(), |to| format!("node {to}"));
            let steps = vec![format!("node {} hands shard {shard} to {to}", leader.node)];
            return Ok(Ordered::Planned(Plan { steps, warnings: Vec::new() }));
        }
        let deadline = runtime::now() + Duration::from_secs(3);
        self.errand_done(&leader, Errand::HandOver { shard, to }, deadline).await
    }

    async fn checkpoint_of(
        self: &Arc<Router>,
        shard: ShardId,
        rehearsal: bool,
    ) -> Result<Ordered, Rejected> {
        let (leader, _) = self.leading(shard)?;
        if rehearsal {
            let steps = vec![format!("node {} makes a checkpoint of shard {shard}", leader.node)];
            return Ok(Ordered::Planned(Plan { steps, warnings: Vec::new() }));
        }
        let deadline = runtime::now() + CHECKPOINT_MAX;
        self.errand_done(&leader, Errand::Checkpoint { shard }, deadline).await
    }

    async fn errand_done(
        self: &Arc<Router>,
        to: &MemberSpec,
        errand: Errand,
        deadline: Instant,
    ) -> Result<Ordered, Rejected> {
        match self.send_errand(to, errand, deadline).await {
            Ok(Errands::Done(Ok(words))) => Ok(Ordered::Done(words)),
            Ok(Errands::Done(Err(words))) => {
                Err(Rejected::Rule(Rule { name: "leader-can-change", words }))
            }
            Ok(Errands::Report(_) | Errands::Standing(_)) => {
                Err(Rejected::Unknown("another question was answered".to_owned()))
            }
            Err(error) => Err(Rejected::Unavailable(error)),
        }
    }

    /// Returns the member that leads a shard, as far as this node knows.
    fn leading(&self, shard: ShardId) -> Result<(MemberSpec, ShardId), Rejected> {
        let Some(place) = self.place(shard) else {
            let words = format!("there is no shard {shard}: 0 to {}", self.shard_count() - 1);
            return Err(Rejected::Rule(Rule { name: "shard-is-known", words }));
        };
        let leader = place.group.leader();
        let leader = self.members().into_iter().find(|member| Some(member.node) == leader);
        let leader = leader.ok_or_else(|| {
            Rejected::Unavailable(format!("shard {shard} has no leader now: try again"))
        })?;
        Ok((leader, shard))
    }
}

/// Writes an operation into a roster and returns its id.
fn begin(
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
        Order::Add { valid, .. } => (invite(roster, now), None, Some(*valid)),
        Order::Replace { node, valid } => (invite(roster, now), Some(*node), Some(*valid)),
        Order::Promote { node }
        | Order::Demote { node, .. }
        | Order::Drain { node }
        | Order::Undrain { node }
        | Order::Remove { node, .. } => (*node, None, None),
        Order::Cancel { .. } | Order::Transfer { .. } | Order::Checkpoint { .. } => {
            (NodeId(0), None, None)
        }
    };
    let ticket = valid.map(|valid| Ticket {
        print: print_of(tag_key, id, secret),
        expires_at: UnixMs(
            now.0.saturating_add(u64::try_from(valid.as_millis()).unwrap_or(u64::MAX)),
        ),
    });
    let state =
        if ticket.is_some() { OperationState::Waiting } else { OperationState::Running };
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

/// Gives an id.
fn invite(roster: &mut Roster, now: UnixMs) -> NodeId {
    let node = NodeId(roster.next_node);
    roster.next_node = roster.next_node.saturating_add(1);
    roster.nodes.insert(node, Seat { since: now, ..Seat::default() });
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
