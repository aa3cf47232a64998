//! The roster: which nodes the cluster has, what each is to be, and the operations that change it.
//!
//! It stands in the ledger of shard 0, in one page of its own, and every node has a replica of it.
//! It says what is *wanted*: the leader of each shard makes its shard's membership so, and the
//! leader of shard 0 takes an operation on to its next step when every shard has come that far. So
//! an operation outlives the node that drives it and the operator who asked for it.
//!
//! It is changed as a whole, by one who names the revision that he has read. What the ledger itself
//! promises, whoever asks: a node's id and an operation's are never given twice, a log uuid once
//! recorded never changes, a removed node stays removed, at most one operation runs, and the page
//! keeps its bounds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::{Answer, Refusal};
use super::bounds::{Decided, invalid, refuse};
use super::ids::{NodeId, ShardId, UnixMs};
use super::item;
use super::page::{PAGE_VERSION, PageId};
use super::{Books, Ledger};

/// The shard whose ledger has the roster.
pub const ROSTER_SHARD: ShardId = ShardId(0);
/// The most bytes of a roster's record; a page has 16 KiB.
const ROSTER_BYTES_MAX: usize = 15 << 10;
/// The most nodes that are not removed.
pub const SEATS_MAX: usize = 32;
/// Operations that have ended and are still remembered.
pub const ENDED_OPERATIONS_MAX: usize = 16;

/// The nodes of a cluster and what happens to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Counts its changes. 0: nobody has changed the membership since `cluster init`, and what
    /// the shards' memberships say is all there is.
    pub revision: u64,
    /// The id of the next node; never given twice.
    pub next_node: u64,
    /// The id of the next operation; never given twice.
    pub next_operation: u64,
    /// The nodes, the removed ones included.
    pub nodes: BTreeMap<NodeId, Seat>,
    /// Operations by their ids: all that have not ended, and the last that have.
    pub operations: BTreeMap<u64, NodeOperation>,
}

/// One node in the roster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// What the node is to be.
    pub role: SeatRole,
    /// It is to lead nothing.
    pub drained: bool,
    /// Its log; zeros before its machine has come.
    pub log_uuid: [u8; 16],
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
    /// Ledger time of its last change of role.
    pub since: UnixMs,
}

/// What a node is to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SeatRole {
    /// Its id is given, and its machine has not come yet.
    #[default]
    Invited,
    /// It follows every shard and does not vote.
    Learner,
    /// It votes in every shard.
    Voter,
    /// It is to be in no shard any more.
    Leaving,
    /// It is in no shard, and for good.
    Removed,
}

impl SeatRole {
    /// Tells whether the node is there: it has come, and was not removed.
    pub fn is_present(self) -> bool {
        matches!(self, SeatRole::Learner | SeatRole::Voter | SeatRole::Leaving)
    }
}

/// Something that an operator wants to become of the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOperation {
    /// What it is to do.
    pub kind: OperationKind,
    /// The node that it is about; of a replacement the new one.
    pub node: NodeId,
    /// The node that a replacement takes out.
    pub replaces: Option<NodeId>,
    /// How it stands.
    pub state: OperationState,
    /// The step that it has come to.
    pub step: OperationStep,
    /// What holds it up, or how it ended, in words.
    pub note: String,
    /// The ticket of the machine that is to come.
    pub ticket: Option<Ticket>,
    /// Ledger time of its beginning.
    pub begun_at: UnixMs,
    /// Ledger time of its last step.
    pub changed_at: UnixMs,
}

/// What an operation is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationKind {
    /// Brings a machine in, to vote.
    Add,
    /// Brings a machine in, to follow.
    AddLearner,
    /// Lets a learner vote.
    Promote,
    /// Takes the vote from a voter.
    Demote,
    /// Hands the leaderships of a node over and gives it none.
    Drain,
    /// Lets a drained node lead again.
    Undrain,
    /// Takes a node out for good.
    Remove,
    /// Brings a machine in and takes another node out.
    Replace,
}

/// How an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OperationState {
    /// It waits for its machine; others may run meanwhile.
    Waiting,
    /// Its machine has come; it runs when the one that runs has ended.
    Queued,
    /// It runs.
    Running,
    /// It is done.
    Done,
    /// It was given up.
    Cancelled,
}

impl OperationState {
    /// Tells whether nothing more will come of it.
    pub fn has_ended(self) -> bool {
        match self {
            OperationState::Waiting | OperationState::Queued | OperationState::Running => false,
            OperationState::Done | OperationState::Cancelled => true,
        }
    }
}

/// A step of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OperationStep {
    /// The machine starts with its token and gets its id.
    AwaitMachine,
    /// Every shard's leader takes the node in as a learner.
    Learn,
    /// The node installs checkpoints and applies what it lacks.
    CatchUp,
    /// Every shard's leader gives the node its vote (and takes the replaced one's).
    Promote,
    /// The node's leaderships go to others.
    HandOver,
    /// Every shard's leader takes the node's vote.
    Demote,
    /// Every shard's leader forgets the node.
    Forget,
    /// The node is told that it was removed.
    Tell,
    /// Nothing is left to do.
    End,
}

/// What lets one machine in, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The token's print under the cluster's secret: who reads the roster cannot join by it.
    pub print: u128,
    /// Ledger time from which on it lets nobody in.
    pub expires_at: UnixMs,
}

/// Sets the roster (shard 0).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRoster {
    /// The revision that was read.
    pub if_revision: u64,
    /// Refused from this ledger time on.
    pub before: Option<UnixMs>,
    /// The roster from now on; its revision is given by the ledger.
    pub roster: Roster,
}

/// What a ledger keeps of a roster.
#[derive(Debug, Default)]
pub(super) struct RosterPage {
    pub(super) roster: Roster,
    hashed: u128,
}

impl RosterPage {
    /// Takes a roster that was read from its page.
    pub(super) fn load(roster: Roster, books: &mut Books) -> RosterPage {
        let hashed = books.hash(PageId::ROSTER, |out| item::encode(&roster, out));
        books.digest.exchange(0, hashed);
        RosterPage { roster, hashed }
    }

    /// Its page; `None` before the first change.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        (self.roster.revision > 0).then(|| {
            let mut page = vec![PAGE_VERSION];
            item::encode(&self.roster, &mut page);
            page
        })
    }
}

impl Roster {
    /// Returns the operation that runs.
    pub fn running(&self) -> Option<(u64, &NodeOperation)> {
        let mut all = self.operations.iter();
        let running = all.find(|(_, one)| one.state == OperationState::Running);
        running.map(|(id, one)| (*id, one))
    }

    /// Returns the nodes that are to be that, in the order of their ids.
    pub fn seated(&self, role: SeatRole) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().filter(move |(_, seat)| seat.role == role).map(|(id, _)| *id)
    }

    /// Returns the nodes that are there, in the order of their ids: not those that have not come
    /// yet, nor those that were removed.
    pub fn present(&self) -> impl Iterator<Item = (NodeId, &Seat)> + '_ {
        let there = self.nodes.iter().filter(|(_, seat)| seat.role.is_present());
        there.map(|(id, seat)| (*id, seat))
    }

    /// Forgets the oldest of the operations that have ended, beyond those that are remembered.
    pub fn forget_old(&mut self) {
        let ended = self.operations.iter().filter(|(_, one)| one.state.has_ended());
        let ended: Vec<u64> = ended.map(|(id, _)| *id).collect();
        let beyond = ended.len().saturating_sub(ENDED_OPERATIONS_MAX);
        for id in ended.into_iter().take(beyond) {
            self.operations.remove(&id);
        }
    }

    /// Tells which law a change from `self` to `next` would break.
    fn broken_by(&self, next: &Roster) -> Option<(&'static str, &'static str)> {
        if next.next_node < self.next_node || next.next_operation < self.next_operation {
            return Some(("next_node", "must not go back: ids are never given twice"));
        }
        let given = |id: u64, next: u64| id > 0 && id < next;
        if !next.nodes.keys().all(|node| given(node.0, next.next_node)) {
            return Some(("nodes", "must have ids that were given"));
        }
        if !next.operations.keys().all(|id| given(*id, next.next_operation)) {
            return Some(("operations", "must have ids that were given"));
        }
        for (node, seat) in &self.nodes {
            let Some(after) = next.nodes.get(node) else {
                // One that never came leaves nothing that could come back.
                if seat.log_uuid == [0; 16] {
                    continue;
                }
                return Some(("nodes", "must keep every node that ever had a log"));
            };
            if seat.log_uuid != [0; 16] && after.log_uuid != seat.log_uuid {
                return Some(("log_uuid", "must never change"));
            }
            if seat.role == SeatRole::Removed && after.role != SeatRole::Removed {
                return Some(("role", "must stay removed"));
            }
        }
        let is_new = |node: &NodeId| self.revision > 0 && !self.nodes.contains_key(node);
        if next.nodes.keys().any(|node| is_new(node) && node.0 < self.next_node) {
            return Some(("nodes", "must not give an id again"));
        }
        let running = next.operations.values();
        let running = running.filter(|one| one.state == OperationState::Running);
        if running.count() > 1 {
            return Some(("operations", "must not run two at once"));
        }
        let here = next.nodes.values().filter(|seat| seat.role != SeatRole::Removed);
        if here.count() > SEATS_MAX {
            return Some(("nodes", "must not be more than 32"));
        }
        let mut bytes = Vec::new();
        item::encode(next, &mut bytes);
        if bytes.is_empty() || bytes.len() > ROSTER_BYTES_MAX {
            return Some(("roster", "must fit its page"));
        }
        None
    }
}

impl Ledger {
    /// Returns the roster. Only shard 0 has one.
    pub fn roster(&self) -> &Roster {
        &self.roster.roster
    }

    pub(super) fn judge_roster(&self, set: &SetRoster) -> Decided<()> {
        if self.books.shard != ROSTER_SHARD {
            return refuse(Refusal::NotOwner);
        }
        let known = &self.roster.roster;
        if set.if_revision != known.revision {
            return refuse(Refusal::RevisionMismatch { revision: known.revision });
        }
        if set.before.is_some_and(|before| self.books.now >= before) {
            return invalid("before", "has passed");
        }
        match known.broken_by(&set.roster) {
            Some((field, rule)) => invalid(field, rule),
            None => Ok(()),
        }
    }

    pub(super) fn set_roster(&mut self, set: &SetRoster) -> Answer {
        if let Err(answer) = self.judge_roster(set) {
            return *answer;
        }
        let page = &mut self.roster;
        self.books.pages.touch(PageId::ROSTER, || page.encode());
        page.roster = set.roster.clone();
        page.roster.revision = set.if_revision.saturating_add(1);
        let hash = self.books.hash(PageId::ROSTER, |out| item::encode(&page.roster, out));
        self.books.digest.exchange(std::mem::replace(&mut page.hashed, hash), hash);
        Answer::Noted
    }
}
