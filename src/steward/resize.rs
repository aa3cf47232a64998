//! The steward's part in changing the nodes: each shard's leader makes its membership what the
//! roster wants, and the leader of shard 0 takes the operations on.
//!
//! Nothing is remembered between two looks: what is due follows from the roster, the membership and
//! what the nodes say. So an operation goes on under the next leader where the last one died, be it
//! between two shards or in the middle of a joint membership. The roster is read from its leader
//! before a membership is changed, and the change is refused by openraft if the membership or the
//! leadership is not the one that was read: an old decision undoes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::ledger::{
    LeaderId, NodeId, OperationState, OperationStep, ROSTER_SHARD, Roster, Seat, SeatRole, UnixMs,
};
use crate::raft::{Member, MemberChange, Membership};
use crate::runtime::{self, Instant};
use crate::shard::{Router, ShardService, Sight, enter, quorum, spec};

/// How often it is looked whether a membership is as the roster wants it.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often an operation is looked at.
const DRIVE_EVERY: Duration = Duration::from_millis(100);
/// How long a change of a membership may take before it is looked at anew.
const CHANGE_MAX: Duration = Duration::from_secs(5);
/// How long a question to another leader may take.
const ASK_MAX: Duration = Duration::from_secs(2);
/// How long a node may take to apply what is committed when it is to get its vote.
const CATCH_UP_MAX: Duration = Duration::from_millis(500);
/// A member that acknowledged nothing for so long does not count as alive.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How long a change that did not come about rests.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// One shard's part.
pub struct Resize {
    shard: ShardService,
    router: Arc<Router>,
    stop: watch::Receiver<bool>,
    driven_at: Option<Instant>,
    /// The last thing said about a change that waits.
    said: String,
}

/// What a membership lacks of what the roster wants.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Due {
    Nothing,
    Change(MemberChange),
}

/// Returns a seat as a membership records it.
fn member(seat: &Seat) -> Member {
    Member {
        log_uuid: seat.log_uuid,
        peer_addr: seat.peer_addr.clone(),
        http_addr: seat.http_addr.clone(),
        region: seat.region.clone(),
    }
}

/// Compares a membership with what the roster wants: first a change left half-way, then nodes that
/// are missing, then the voters, then nodes that are to go.
fn due(roster: &Roster, now: &Membership) -> Due {
    if roster.revision == 0 || !now.committed {
        return Due::Nothing;
    }
    let stays = |seat: &&Seat| matches!(seat.role, SeatRole::Learner | SeatRole::Voter);
    let wanted: BTreeMap<NodeId, Member> = roster
        .nodes
        .iter()
        .filter(|(_, seat)| stays(seat))
        .map(|(node, seat)| (*node, member(seat)))
        .collect();
    let voters: BTreeSet<NodeId> = roster.seated(SeatRole::Voter).collect();
    let missing: BTreeMap<NodeId, Member> = wanted
        .iter()
        .filter(|(node, _)| !now.members.contains_key(node))
        .map(|(node, member)| (*node, member.clone()))
        .collect();
    if now.is_joint() {
        // Whoever is wanted but not in the group yet comes in afterwards.
        let target: BTreeSet<NodeId> =
            voters.iter().filter(|node| now.members.contains_key(node)).copied().collect();
        return if target.is_empty() {
            Due::Nothing
        } else {
            Due::Change(MemberChange::Voters(target))
        };
    }
    if !missing.is_empty() {
        return Due::Change(MemberChange::Learners(missing));
    }
    // The same log at another address: whatever else differs is another node.
    let moved: BTreeMap<NodeId, Member> = wanted
        .iter()
        .filter(|(node, member)| {
            let known = now.members.get(node);
            known.is_some_and(|known| known != *member && known.log_uuid == member.log_uuid)
        })
        .map(|(node, member)| (*node, member.clone()))
        .collect();
    if !moved.is_empty() {
        return Due::Change(MemberChange::Addresses(moved));
    }
    if now.voters.first() != Some(&voters) && !voters.is_empty() {
        return Due::Change(MemberChange::Voters(voters));
    }
    let gone: BTreeSet<NodeId> =
        now.members.keys().filter(|node| !wanted.contains_key(node)).copied().collect();
    if gone.is_empty() { Due::Nothing } else { Due::Change(MemberChange::Forget(gone)) }
}

/// Whether a leader hands over before it makes these the voters, since it is none of them. One that
/// came to lead while a change was half-way does not: leadership is handed over only while the
/// members stay as they are, so the change would wait for the handover and the handover for the
/// change. It finishes the change, and Raft ends its leadership with that.
fn hands_over_first(own: NodeId, target: &BTreeSet<NodeId>, membership: &Membership) -> bool {
    !target.contains(&own) && !membership.is_joint()
}

impl Resize {
    /// Makes it; [`Resize::run`] must be called on the shard's runtime.
    pub fn new(shard: ShardService, router: Arc<Router>, stop: watch::Receiver<bool>) -> Resize {
        Resize { shard, router, stop, driven_at: None, said: String::new() }
    }

    /// Looks after the shard's membership until the node stops.
    pub async fn run(mut self) {
        loop {
            if *self.stop.borrow() {
                return;
            }
            if self.shard.leads() {
                self.settle_members().await;
                self.drive().await;
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    fn say(&mut self, words: String) {
        if self.said != words {
            tracing::info!(shard = %self.shard.shard(), "{words}");
            self.said = words;
        }
    }

    /// Makes the membership what the roster wants, one change at a time.
    async fn settle_members(&mut self) {
        // Cheap, and mostly the end: what is applied here says that nothing is due.
        let membership = self.shard.group().membership();
        if self.router.with_roster(|roster| due(roster, &membership)) == Due::Nothing {
            return;
        }
        let Some(leadership) = self.shard.group().leadership() else { return };
        let (leader, membership) = (leadership.id, self.shard.group().membership());
        let read = self.router.read_roster(runtime::now() + ASK_MAX).await;
        let roster = match read {
            Ok((roster, _)) => roster,
            Err(why) => return self.say(why),
        };
        let Due::Change(change) = due(&roster, &membership) else { return };
        if let MemberChange::Voters(target) = &change
            && let Err(why) = self.may_vote(target, &membership, &roster).await
        {
            return self.say(format!("the voters are not changed yet: {why}"));
        }
        self.change(change, leader, &membership).await;
    }

    async fn change(&mut self, change: MemberChange, leader: LeaderId, membership: &Membership) {
        let shard = self.shard.shard();
        tracing::info!(%shard, ?change, "changing the members");
        let group = self.shard.group().clone();
        let moves = matches!(change, MemberChange::Addresses(_));
        match group.change_members(change, leader, membership.at, CHANGE_MAX).await {
            // openraft goes on sending to where a member was: the next leader begins anew.
            Ok(()) if moves => match self.shard.hand_over(self.router.own(), None).await {
                Ok(()) => self.said.clear(),
                Err(why) => self.say(format!("members have moved, and are not followed: {why}")),
            },
            Ok(()) => self.said.clear(),
            Err(why) => {
                self.say(format!("the members were not changed: {why}"));
                runtime::sleep(AGAIN_AFTER).await;
            }
        }
    }

    /// Tells whether these may be the voters from now on. Hands leadership over first when this
    /// node is none of them.
    async fn may_vote(
        &self,
        target: &BTreeSet<NodeId>,
        membership: &Membership,
        roster: &Roster,
    ) -> Result<(), String> {
        let own = self.router.own();
        let state = self.shard.group().state();
        let silent_ms = u64::try_from(SILENT_AFTER.as_millis()).unwrap_or(u64::MAX);
        let hears = |node: &NodeId| {
            *node == own || state.heard_ms.get(node).is_some_and(|age| *age <= silent_ms)
        };
        let (alive, all) = (target.iter().filter(|node| hears(node)).count(), target.len());
        if alive < quorum(all) {
            return Err(format!("{alive} of {all} voters would be alive: needs {}", quorum(all)));
        }
        let voted = membership.all_voters();
        for node in target.difference(&voted) {
            self.caught_up(*node, roster).await?;
        }
        if hands_over_first(own, target, membership) {
            let next = target
                .iter()
                .find(|node| voted.contains(node) && self.shard.could_lead(own, **node));
            let next = next.ok_or("no voter that stays could lead now")?;
            self.shard.hand_over(own, Some(*next)).await?;
            return Err(format!("node {next} leads now, and goes on"));
        }
        Ok(())
    }

    /// Tells whether a node has really caught up: by its own word it has applied all that was
    /// committed here before it was asked. What openraft believes of an empty node may be wrong.
    async fn caught_up(&self, node: NodeId, roster: &Roster) -> Result<(), String> {
        let committed = self.shard.group().committed();
        let deadline = runtime::now() + CATCH_UP_MAX;
        let mut only = roster.clone();
        only.nodes.retain(|known, _| *known == node);
        loop {
            let sight = self.router.look_at(only.clone()).await;
            let told = sight.told.get(&node);
            let told = told.ok_or_else(|| format!("node {node} does not answer"))?;
            let applied = told.replica(self.shard.shard()).map(|one| one.applied);
            let applied = applied.unwrap_or_default();
            if applied >= committed {
                return Ok(());
            }
            if runtime::now() >= deadline {
                let lacks = committed.0.saturating_sub(applied.0);
                return Err(format!("node {node} lacks {lacks} entries"));
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    /// On the leader of shard 0: takes operations on.
    async fn drive(&mut self) {
        if self.shard.shard() != ROSTER_SHARD {
            return;
        }
        let now = runtime::now();
        if self.driven_at.is_some_and(|at| now - at < DRIVE_EVERY) {
            return;
        }
        self.driven_at = Some(now);
        let open = |roster: &Roster| {
            let is_open = roster.operations.values().any(|one| !one.state.has_ended());
            is_open.then(|| roster.clone())
        };
        let Some(roster) = self.router.with_roster(open) else { return };
        let ledger_time = self.shard.ledger_time().unwrap_or_default();
        if let Some(next) = self.next(roster, ledger_time).await {
            let deadline = runtime::now() + ASK_MAX;
            if let Err(why) = self.router.set_roster(next, None, deadline).await {
                self.say(format!("the roster was not changed: {why}"));
            }
        }
    }

    /// Returns the roster after the next step of an operation, if one is due.
    async fn next(&mut self, mut roster: Roster, now: UnixMs) -> Option<Roster> {
        if crate::shard::expire(&mut roster, now) {
            return Some(roster);
        }
        let Some((id, operation)) = roster.running() else {
            return self.next_in_the_queue(roster, now).await;
        };
        let operation = operation.clone();
        if operation.step == OperationStep::Tell {
            return Some(self.tell(roster, id, now).await);
        }
        let sight: Sight = self.router.look_at(roster.clone()).await;
        let (done, detail) = crate::shard::standing_of(operation.step, &operation, &sight);
        if !done {
            let kind = operation.kind;
            self.say(format!("operation {id} ({kind:?}, {:?}): {detail}", operation.step));
            return None;
        }
        let step = crate::shard::next_step(operation.kind, operation.step);
        tracing::info!(operation = id, kind = ?operation.kind, ?step, "an operation goes on");
        enter(&mut roster, id, step, "", now);
        Some(roster)
    }

    /// Lets the operation run whose machine has waited longest, if it still may.
    async fn next_in_the_queue(&mut self, mut roster: Roster, now: UnixMs) -> Option<Roster> {
        let mut all = roster.operations.iter();
        let (id, _) = all.find(|(_, one)| one.state == OperationState::Queued)?;
        let id = *id;
        crate::shard::forget_the_gone(&mut roster, id);
        let operation = roster.operations.get(&id)?.clone();
        let sight = self.router.look_at(roster.clone()).await;
        if let Err(rule) = crate::shard::may_take_its_turn(&operation, &sight) {
            self.say(format!("operation {id} waits: {}: {}", rule.name, rule.words));
            return None;
        }
        let next = roster.operations.get_mut(&id)?;
        next.state = OperationState::Running;
        next.changed_at = now;
        Some(roster)
    }

    /// Tells a node that it was removed. One that does not answer learns it when it comes back.
    async fn tell(&mut self, mut roster: Roster, id: u64, now: UnixMs) -> Roster {
        let leaver = roster.operations.get(&id);
        let leaver = leaver.map(|one| one.replaces.unwrap_or(one.node)).unwrap_or_default();
        let note = match roster.nodes.get(&leaver).map(|seat| spec(leaver, seat)) {
            Some(member) => match self.router.tell_removed(&member).await {
                Ok(()) => format!("node {leaver} was told that it is removed"),
                Err(_) => format!("node {leaver} did not answer: it is told when it comes back"),
            },
            None => String::new(),
        };
        enter(&mut roster, id, OperationStep::End, &note, now);
        tracing::info!(operation = id, note, "an operation is done");
        roster
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::LogPosition;

    fn seat(role: SeatRole) -> Seat {
        Seat { role, log_uuid: [1; 16], ..Seat::default() }
    }

    fn roster(seats: &[(u64, SeatRole)]) -> Roster {
        let nodes = seats.iter().map(|(node, role)| (NodeId(*node), seat(*role))).collect();
        Roster { revision: 1, nodes, ..Roster::default() }
    }

    fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn group(voters: &[&[u64]], members: &[u64]) -> Membership {
        let record = member(&seat(SeatRole::Voter));
        Membership {
            at: None::<LogPosition>,
            committed: true,
            voters: voters.iter().map(|one| set(one)).collect(),
            members: members.iter().map(|node| (NodeId(*node), record.clone())).collect(),
        }
    }

    #[test]
    fn a_leader_that_goes_hands_over_first_unless_the_change_was_left_half_way() {
        let (target, six) = (set(&[1, 2, 3]), NodeId(6));
        let whole = group(&[&[1, 2, 3, 6]], &[1, 2, 3, 6]);
        let half_way = group(&[&[1, 2, 3, 6], &[1, 2, 3]], &[1, 2, 3, 6]);
        assert!(hands_over_first(six, &target, &whole));
        assert!(!hands_over_first(six, &target, &half_way), "each would wait for the other");
        assert!(!hands_over_first(NodeId(2), &target, &whole));
    }

    #[test]
    fn a_membership_is_brought_to_what_the_roster_wants_one_change_at_a_time() {
        use SeatRole::{Invited, Learner, Leaving, Removed, Voter};
        let three = [(1, Voter), (2, Voter), (3, Voter)];
        let with = |more: &[(u64, SeatRole)]| roster(&[&three[..], more].concat());
        let voters = |nodes: &[u64]| Due::Change(MemberChange::Voters(set(nodes)));
        let forget = |nodes: &[u64]| Due::Change(MemberChange::Forget(set(nodes)));
        let learn = Due::Change(MemberChange::Learners(group(&[], &[4]).members));
        let old = group(&[&[1, 2, 3]], &[1, 2, 3]);
        for (named, roster, membership, expected) in [
            ("as it is", with(&[]), old.clone(), Due::Nothing),
            ("invited only", with(&[(4, Invited)]), old.clone(), Due::Nothing),
            ("a learner comes", with(&[(4, Learner)]), old.clone(), learn.clone()),
            ("a voter learns first", with(&[(4, Voter)]), old.clone(), learn),
            (
                "then votes",
                with(&[(4, Voter)]),
                group(&[&[1, 2, 3]], &[1, 2, 3, 4]),
                voters(&[1, 2, 3, 4]),
            ),
            (
                "a replaced node goes in the same change",
                roster(&[(1, Voter), (2, Voter), (3, Leaving), (4, Voter)]),
                group(&[&[1, 2, 3]], &[1, 2, 3, 4]),
                voters(&[1, 2, 4]),
            ),
            (
                "a change left half-way is ended first",
                roster(&[(1, Voter), (2, Voter), (3, Leaving), (4, Voter)]),
                group(&[&[1, 2, 3], &[1, 2, 4]], &[1, 2, 3, 4]),
                voters(&[1, 2, 4]),
            ),
            (
                "a learner that leaves is forgotten",
                roster(&[(1, Voter), (2, Voter), (4, Voter), (3, Leaving)]),
                group(&[&[1, 2, 4]], &[1, 2, 3, 4]),
                forget(&[3]),
            ),
            (
                "a removed node is in nothing",
                roster(&[(1, Voter), (2, Voter), (4, Voter), (3, Removed)]),
                group(&[&[1, 2, 4]], &[1, 2, 4]),
                Due::Nothing,
            ),
            (
                "no roster, no change",
                Roster { revision: 0, ..with(&[(4, Voter)]) },
                old.clone(),
                Due::Nothing,
            ),
            (
                "not before the last change is committed",
                with(&[(4, Learner)]),
                Membership { committed: false, ..old },
                Due::Nothing,
            ),
        ] {
            assert_eq!(due(&roster, &membership), expected, "{named}");
        }
    }
}
