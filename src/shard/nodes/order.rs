//! Orders: what operators ask for, judged, written into the roster, and shown.

use std::sync::Arc;
use std::time::Duration;

use super::errand::{Errand, Errands};
use super::operation::{begin, cancel, first_roster};
use super::preflight::{Plan, Rule, may_lead, plan};
use super::report::Sight;
use super::token::{print_of, token_of};
use crate::ledger::{
    Answer, Command, Found, NodeId, NodeOperation, OperationKind, OperationStep, Query,
    ROSTER_SHARD, Refusal, Roster, SetRoster, ShardId, UnixMs,
};
use crate::runtime::{self, Instant};
use crate::shard::desk::{MemberSpec, Outcome, Question};
use crate::shard::router::Router;

/// How often an order is judged anew when another change came first.
const TRIES: usize = 8;
/// How often it is looked who leads a shard that was handed over.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long the roster is waited for by an order that can do without.
const SIGHT_MAX: Duration = Duration::from_secs(1);
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
        /// The one region that it lets a machine of in.
        region: Option<String>,
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
    /// Takes the cluster to the next schema version.
    Upgrade,
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
            Order::Cancel { .. }
            | Order::Transfer { .. }
            | Order::Checkpoint { .. }
            | Order::Upgrade => None,
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
            | Order::Checkpoint { .. }
            | Order::Upgrade => return false,
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
            | Order::Checkpoint { .. }
            | Order::Upgrade => false,
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

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Rejected::Rule(rule) => write!(f, "{}: {}", rule.name, rule.words),
            Rejected::Unavailable(words) | Rejected::Unknown(words) => f.write_str(words),
        }
    }
}

impl From<Rule> for Rejected {
    fn from(rule: Rule) -> Rejected {
        Rejected::Rule(rule)
    }
}

/// Says in a word what came of a question instead of its answer.
fn said(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Paused(reason) => format!("shard {ROSTER_SHARD} is paused: {}", reason.word()),
        Outcome::Overloaded => "too much is queued".to_owned(),
        Outcome::Late => "the deadline came first".to_owned(),
        Outcome::Unknown => "no answer came in time".to_owned(),
        Outcome::NotServing(words) => words.clone(),
        Outcome::Elsewhere { node, .. } => format!("node {node} leads it now"),
        Outcome::InFlight => "it is under way".to_owned(),
        Outcome::Answered(_) | Outcome::Found(_) => "another answer came".to_owned(),
    }
}

/// Says what came of a handover by who leads afterwards.
fn who_took(
    shard: ShardId,
    to: Option<NodeId>,
    leader: NodeId,
    preferred: Option<NodeId>,
) -> Result<Ordered, Rejected> {
    if let Some(to) = to.filter(|to| *to != leader) {
        let words = format!(
            "node {leader} leads shard {shard} now, and not node {to}: an election came between. \
             Ask again"
        );
        return Err(Rejected::Rule(Rule { name: "leader-is-the-one-named", words }));
    }
    let back = match preferred.filter(|preferred| *preferred != leader) {
        Some(home) => format!(
            ". It is meant for node {home}, and goes back there by itself after \
             raft.prefer_every_ms, unless that one is drained"
        ),
        None => String::new(),
    };
    Ok(Ordered::Done(format!("node {leader} leads shard {shard} now{back}")))
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
        let outcome = self.ask_shard(ROSTER_SHARD, question, deadline).await.outcome;
        let Outcome::Found(Found::Roster { roster, now }) = outcome else {
            return Err(format!("the roster cannot be read now ({}): try again", said(&outcome)));
        };
        let is_new = roster.revision == 0;
        Ok((if is_new { first_roster(&self.members(), now) } else { *roster }, now))
    }

    /// Brings ledger time up to now, for deadlines that are counted from it.
    pub(crate) async fn advance_roster(
        self: &Arc<Router>,
        deadline: Instant,
    ) -> Result<(), String> {
        let question = Question::from(Command::Advance);
        let outcome = self.ask_shard(ROSTER_SHARD, question, deadline).await.outcome;
        if let Outcome::Answered(Answer::Advanced { .. }) = outcome {
            return Ok(());
        }
        Err(format!("shard {ROSTER_SHARD} does not answer now ({}): try again", said(&outcome)))
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
        self.set(Command::SetRoster(Box::new(set)), deadline).await
    }

    /// Changes what stands in shard 0 about the nodes, if the roster is still as it was read.
    pub(super) async fn set(
        self: &Arc<Router>,
        command: Command,
        deadline: Instant,
    ) -> Result<bool, Rejected> {
        let question = Question::from(command);
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
            other @ (Outcome::Answered(_)
            | Outcome::Found(_)
            | Outcome::InFlight
            | Outcome::Paused(_)
            | Outcome::Overloaded
            | Outcome::Late
            | Outcome::Elsewhere { .. }
            | Outcome::NotServing(_)) => {
                let words = format!("nothing was changed ({}): try again", said(&other));
                Err(Rejected::Unavailable(words))
            }
        }
    }

    /// Reads the roster and asks every node how its replicas are.
    ///
    /// # Errors
    ///
    /// Words, when nobody leads shard 0 now.
    pub async fn sight(self: &Arc<Router>, deadline: Instant) -> Result<(Sight, UnixMs), Rejected> {
        let read = self.read_roster(deadline).await;
        let (roster, now) = read.map_err(Rejected::Unavailable)?;
        let schema = self.schema_of(&roster, deadline).await?;
        let (seen, reads) =
            futures_util::future::join(self.look_at(roster.clone()), self.ask_schemas(&roster))
                .await;
        Ok((Sight { schema, reads, ..seen }, now))
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
            Order::Transfer { shard, to } => {
                return self.transfer(*shard, *to, rehearsal, deadline).await;
            }
            Order::Checkpoint { shard } => {
                return self.checkpoint_of(*shard, rehearsal, deadline).await;
            }
            Order::Upgrade => return self.upgrade(rehearsal, deadline).await,
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
            let begun = if let Order::Cancel { operation } = &order {
                cancel(&mut roster, *operation, now)?;
                None
            } else {
                Some(begin(&mut roster, &order, now, &secret, &self.tag_key()))
            };
            if rehearsal {
                return Ok(Ordered::Planned(plan));
            }
            let token = begun
                .filter(|id| roster.operations.get(id).is_some_and(|one| one.ticket.is_some()));
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
        deadline: Instant,
    ) -> Result<Ordered, Rejected> {
        let (leader, _) = self.leading(shard)?;
        if to == Some(leader.node) {
            return Ok(Ordered::Done(format!("node {} leads shard {shard} already", leader.node)));
        }
        // A shard may be moved also while the roster's has no leader.
        let look_until = deadline.min(runtime::now() + SIGHT_MAX);
        if let Some(to) = to
            && let Ok((sight, _)) = self.sight(look_until).await
        {
            may_lead(to, &sight)?;
        }
        if rehearsal {
            let to = to.map_or("whoever can win".to_owned(), |to| format!("node {to}"));
            let steps = vec![format!("node {} hands shard {shard} to {to}", leader.node)];
            return Ok(Ordered::Planned(Plan { steps, warnings: Vec::new() }));
        }
        let deadline = deadline.min(runtime::now() + Duration::from_secs(3));
        self.errand_done(&leader, Errand::HandOver { shard, to }, deadline).await?;
        self.taken_over(shard, to, deadline).await
    }

    /// Waits until somebody leads a shard that was handed over, with a fresh quorum, and says who.
    async fn taken_over(
        self: &Arc<Router>,
        shard: ShardId,
        to: Option<NodeId>,
        deadline: Instant,
    ) -> Result<Ordered, Rejected> {
        loop {
            if let Some(leader) = self.leader_by_its_own_word(shard).await {
                return who_took(shard, to, leader, self.preferred(shard));
            }
            if runtime::now() >= deadline {
                let words = format!(
                    "shard {shard} was handed over, and nobody leads it yet with a fresh quorum: \
                     look at `holdfast shard list`"
                );
                return Err(Rejected::Unknown(words));
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    async fn checkpoint_of(
        self: &Arc<Router>,
        shard: ShardId,
        rehearsal: bool,
        deadline: Instant,
    ) -> Result<Ordered, Rejected> {
        let (leader, _) = self.leading(shard)?;
        if rehearsal {
            let steps = vec![format!("node {} makes a checkpoint of shard {shard}", leader.node)];
            return Ok(Ordered::Planned(Plan { steps, warnings: Vec::new() }));
        }
        let deadline = deadline.min(runtime::now() + CHECKPOINT_MAX);
        self.errand_done(&leader, Errand::Checkpoint { shard }, deadline).await
    }

    async fn errand_done(
        self: &Arc<Router>,
        to: &MemberSpec,
        errand: Errand,
        deadline: Instant,
    ) -> Result<Ordered, Rejected> {
        // The caller is answered in time; the errand goes on: a handover is not left half-way.
        let (router, to) = (Arc::clone(self), to.clone());
        let work = runtime::spawn(async move { router.send_errand(&to, errand, deadline).await });
        let Ok(Ok(told)) = runtime::timeout_at(deadline, work).await else {
            return Err(Rejected::Unknown("it was begun and did not end in time".to_owned()));
        };
        match told {
            Ok(Errands::Done(Ok(words))) => Ok(Ordered::Done(words)),
            Ok(Errands::Done(Err(words))) => {
                Err(Rejected::Rule(Rule { name: "leader-can-change", words }))
            }
            Ok(
                Errands::Report(_) | Errands::Standing(_) | Errands::Schema(_) | Errands::Roster(_),
            ) => Err(Rejected::Unknown("another question was answered".to_owned())),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer was told as done though another than the one named led a moment later.
    #[test]
    fn transfer_is_done_only_when_the_one_named_leads_and_tells_who_does() {
        let took = |to: Option<u64>, leader, home| {
            who_took(ShardId(1), to.map(NodeId), NodeId(leader), Some(NodeId(home)))
        };
        let done = |words: &str| Ok(Ordered::Done(words.to_owned()));
        assert_eq!(took(Some(3), 3, 3), done("node 3 leads shard 1 now"));
        assert_eq!(took(None, 2, 2), done("node 2 leads shard 1 now"));
        let Ok(Ordered::Done(words)) = took(Some(3), 3, 2) else { panic!("it leads") };
        assert!(words.contains("meant for node 2"), "{words}");
        let Err(Rejected::Rule(rule)) = took(Some(3), 1, 2) else { panic!("another leads") };
        assert!(rule.words.contains("node 1 leads shard 1 now, and not node 3"), "{rule:?}");
    }
}
