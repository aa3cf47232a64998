//! The node follows the roster: whom it lets in and speaks to, whether it may lead, and whether it
//! still belongs to the cluster.
//!
//! It writes down which schema version the cluster has come to, and ends its part when it does not
//! read that one.
//!
//! As long as some shard of its has no leader it asks the others for theirs: it may have been away
//! while a machine came in that leads now, and would refuse as a stranger the only one from which
//! it could hear of it.
//!
//! It hears of its own removal in one of three ways: from the roster, while it still gets it; from
//! the node that removed it; or, when it was away, from any member, which it asks as long as some
//! shard of its has no leader. The removal is written down before its part ends, so that it is true
//! after a restart too.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;

use super::office::Office;
use super::running::Running;
use crate::codec;
use crate::ledger::{NodeId, OperationKind, Roster, SchemaVersion, Seat, SeatRole};
use crate::raft::Member;
use crate::runtime;
use crate::shard::{MemberSpec, Turns, spec};
use crate::storage::{Disk, read_if_there, write_durably};

/// How often the roster is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a node without a leader asks how it stands.
const ASK_EVERY: Duration = Duration::from_millis(500);

const FILE: &str = "removed";
const KIND: u16 = 0x0402;
const VERSION: u16 = 1;
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// Reads why this node was removed, if it was.
///
/// # Errors
///
/// When the file cannot be read or is damaged.
pub(super) fn read_removal(disk: &dyn Disk, dir: &Path) -> std::io::Result<Option<String>> {
    let Some(bytes) = read_if_there(disk, &dir.join(FILE), BYTES_MAX)? else { return Ok(None) };
    let decoded = codec::open(KIND, VERSION, &bytes).and_then(codec::decode);
    decoded.map(Some).map_err(std::io::Error::other)
}

/// Writes down why this node was removed.
///
/// # Errors
///
/// What the disk said.
pub(super) fn write_removal(disk: &dyn Disk, dir: &Path, why: &str) -> std::io::Result<()> {
    let payload = codec::encode(&why).map_err(std::io::Error::other)?;
    write_durably(disk, dir, FILE, &codec::seal(KIND, VERSION, &payload))
}

/// What a roster says to one node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    /// The members.
    members: Vec<MemberSpec>,
    /// Whose turn it is to lead.
    turns: Turns,
    /// Why some of them are to lead nothing.
    barred: BTreeMap<NodeId, Barred>,
}

/// Why a node is to lead nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barred {
    Drained,
    Demoted,
    Removed,
}

impl Barred {
    fn words(self) -> &'static str {
        match self {
            Barred::Drained => "it is drained: `holdfast node undrain` lets it lead again",
            Barred::Demoted => "it is being demoted: it will follow, without a vote",
            Barred::Removed => "it is being removed from the cluster",
        }
    }
}

/// Says why a node that may not lead may not.
fn barred(roster: &Roster, node: NodeId, seat: &Seat) -> Option<Barred> {
    let leaves = seat.role == SeatRole::Leaving;
    if !seat.drained && !leaves {
        return None;
    }
    let kind = roster.running().map(|(_, running)| running);
    let kind = kind.filter(|one| one.replaces.unwrap_or(one.node) == node).map(|one| one.kind);
    Some(match kind {
        Some(OperationKind::Remove | OperationKind::Replace) => Barred::Removed,
        Some(OperationKind::Demote) => Barred::Demoted,
        Some(
            OperationKind::Add
            | OperationKind::AddLearner
            | OperationKind::Promote
            | OperationKind::Drain
            | OperationKind::Undrain,
        )
        | None => {
            if leaves {
                Barred::Removed
            } else {
                Barred::Drained
            }
        }
    })
}

fn said(roster: &Roster) -> Said {
    let mut said = Said::default();
    for (node, seat) in &roster.nodes {
        match seat.role {
            SeatRole::Invited | SeatRole::Removed => continue,
            SeatRole::Voter => {
                said.turns.voters.insert(*node);
                if seat.drained {
                    said.turns.drained.insert(*node);
                }
            }
            SeatRole::Learner | SeatRole::Leaving => {}
        }
        said.barred.extend(barred(roster, *node, seat).map(|why| (*node, why)));
        said.members.push(spec(*node, seat));
    }
    said
}

/// Starts following the roster. Ends when the node's part does.
pub(super) fn start(office: &Arc<Office>, running: &Arc<Running>) {
    let front = running.front();
    let taken = Arc::new(Mutex::new(0));
    front(Box::pin(follow(Arc::downgrade(office), Arc::downgrade(running), Arc::clone(&taken))));
    front(Box::pin(ask_standing(Arc::downgrade(office), Arc::downgrade(running), taken)));
    front(Box::pin(tell_addresses(Arc::downgrade(office), Arc::downgrade(running))));
}

/// Tells the cluster where this node is, when that is not where its roster or `cluster init` has
/// it: its role stays.
async fn tell_addresses(office: Weak<Office>, running: Weak<Running>) {
    loop {
        let (Some(office), Some(part)) = (office.upgrade(), running.upgrade()) else { return };
        let members = part.router.members();
        let known = members.into_iter().find(|member| member.node == part.identity.node);
        let Some(mut own) = known else { return };
        let here = (office.config.peer.advertised(), office.config.http.advertised());
        if (&own.peer_addr, &own.http_addr) == (&here.0, &here.1) {
            return;
        }
        (own.peer_addr, own.http_addr) = here;
        match part.router.tell_moved(own).await {
            Ok(()) => {
                tracing::info!("the cluster was told of this node's new addresses");
                return;
            }
            Err(why) => tracing::warn!(why, "the cluster does not know where this node is now"),
        }
        drop((office, part));
        runtime::sleep(ASK_EVERY).await;
    }
}

/// `taken` is the revision of the roster that was taken last, from wherever.
async fn follow(office: Weak<Office>, running: Weak<Running>, taken: Arc<Mutex<u64>>) {
    let mut schema = SchemaVersion::FIRST;
    loop {
        let Some(part) = running.upgrade() else { return };
        let mut known = taken.lock().await;
        let read = part.router.with_roster(|roster| {
            (roster.revision > *known).then(|| (roster.revision, said(roster), roster.clone()))
        });
        if let Some((revision, said, roster)) = read
            && let Some(office) = office.upgrade()
        {
            take(&office, &part, said, &roster).await;
            *known = revision;
        }
        drop(known);
        let (active, beyond) = part.router.schema_here();
        if active.max(beyond.unwrap_or_default()) > schema
            && let Some(office) = office.upgrade()
        {
            schema = active.max(beyond.unwrap_or_default());
            tracing::info!(%schema, "the cluster's schema version");
            office.keep_schema(schema);
        }
        if let Some(beyond) = beyond
            && let Some(office) = office.upgrade()
        {
            let why = super::schema::reads(&office.config).beyond(beyond);
            drop(part);
            return office.end(why, false).await;
        }
        let told = part.router.dismissed().borrow().clone();
        drop(part);
        if let Some(why) = told
            && let Some(office) = office.upgrade()
        {
            office.end_for_good(why).await;
            return;
        }
        runtime::sleep(LOOK_EVERY).await;
    }
}

/// Takes a roster: the members, who may lead, and how this node stands.
async fn take(office: &Arc<Office>, part: &Arc<Running>, said: Said, roster: &Roster) {
    let own = part.identity.node;
    match roster.nodes.get(&own).map(|seat| seat.role) {
        Some(SeatRole::Removed) => return part.router.dismiss_self(),
        // A replica that lags may show a roster from before this node's time.
        Some(SeatRole::Invited) | None => return,
        Some(SeatRole::Learner | SeatRole::Voter | SeatRole::Leaving) => {}
    }
    let book: BTreeMap<NodeId, Member> =
        said.members.iter().filter_map(super::running::member_of).collect();
    part.book.replace(book);
    part.router.follow_members(said.members.clone(), said.turns.clone());
    part.set_drained(said.barred.get(&own).map(|why| why.words().to_owned()));
    if let Err(error) = office.keep_members(&said.members) {
        tracing::error!(%error, "the members could not be kept: it is tried with the next change");
    }
    let nodes = said.members.len();
    tracing::info!(revision = roster.revision, nodes, "the roster of nodes has changed");
}

/// Asks the others how this node stands, at the start and as long as some shard has no leader: one
/// that was removed while it was away is told by nobody else.
async fn ask_standing(office: Weak<Office>, running: Weak<Running>, taken: Arc<Mutex<u64>>) {
    let mut first = true;
    loop {
        let Some(part) = running.upgrade() else { return };
        if first || part.is_leaderless() {
            let ended = part.router.ask_standing().await;
            if let Some(why) = ended {
                drop(part);
                if let Some(office) = office.upgrade() {
                    office.end_for_good(why).await;
                }
                return;
            }
            let told = part.router.ask_roster().await;
            let mut known = taken.lock().await;
            if let Some(roster) = told.filter(|roster| roster.revision > *known)
                && let Some(office) = office.upgrade()
            {
                take(&office, &part, said(&roster), &roster).await;
                *known = roster.revision;
            }
        }
        first = false;
        drop(part);
        runtime::sleep(ASK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{NodeOperation, OperationState, OperationStep, UnixMs};

    /// A node that was being removed said "it is drained", and how to let it lead again.
    #[test]
    fn a_node_that_may_not_lead_says_which_operation_wants_it_so() {
        let roster = |kind: Option<OperationKind>, role| {
            let seat = Seat { role, drained: true, ..Seat::default() };
            let running = kind.map(|kind| NodeOperation {
                kind,
                node: NodeId(2),
                replaces: None,
                state: OperationState::Running,
                step: OperationStep::HandOver,
                note: String::new(),
                ticket: None,
                begun_at: UnixMs(1),
                changed_at: UnixMs(1),
            });
            let operations = running.map(|one| (1, one)).into_iter().collect();
            Roster { nodes: [(NodeId(2), seat)].into(), operations, ..Roster::default() }
        };
        for (kind, role, expected) in [
            (None, SeatRole::Voter, Barred::Drained),
            (Some(OperationKind::Drain), SeatRole::Voter, Barred::Drained),
            (Some(OperationKind::Demote), SeatRole::Voter, Barred::Demoted),
            (Some(OperationKind::Remove), SeatRole::Voter, Barred::Removed),
            (None, SeatRole::Leaving, Barred::Removed),
        ] {
            let told = said(&roster(kind, role)).barred.get(&NodeId(2)).copied();
            assert_eq!(told, Some(expected), "{kind:?} {role:?}");
        }
        assert!(!Barred::Removed.words().contains("drain"));
    }
}
