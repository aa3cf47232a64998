//! The schema version: which one the cluster writes, and whether it may go on to the next.
//!
//! It goes on when an operator says so, and only when every member of every shard reads the next
//! one by its own word. Who comes later is asked at the door.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::order::{Ordered, Rejected};
use super::preflight::{Plan, Rule, broken, every_shard_is_led};
use super::report::Sight;
use crate::ledger::{
    Command, NodeId, ROSTER_SHARD, Roster, SchemaRange, SchemaVersion, SetRoster, SetSchema,
};
use crate::runtime::{self, Instant};
use crate::shard::router::Router;

/// How often it is looked whether this node has applied what it has read from the leader.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often a raise is judged anew when another change came first.
const TRIES: usize = 8;

/// Returns the version that the cluster may go on to; `None` when no node reads more than it
/// writes.
///
/// # Errors
///
/// The [`Rule`] that stands in the way.
pub(super) fn next_version(sight: &Sight) -> Result<Option<SchemaVersion>, Rule> {
    let next = sight.schema.next();
    every_shard_is_led(sight)?;
    let mut members: BTreeSet<NodeId> = sight.roster.present().map(|(node, _)| node).collect();
    for shard in sight.all_shards() {
        if let Some((_, leader)) = sight.leader(shard) {
            members.extend(&leader.members);
        }
    }
    let reads = |node: &NodeId| sight.reads_of(*node).is_some_and(|reads| reads.has(next));
    if members.iter().all(|node| sight.reads_of(*node).is_some() && !reads(node)) {
        return Ok(None);
    }
    let lacks = members.iter().find(|node| !reads(node));
    let Some(node) = lacks else { return Ok(Some(next)) };
    let count = members.iter().filter(|node| reads(node)).count();
    let all = members.len();
    let why = match sight.reads_of(*node) {
        Some(reads) => format!(
            "node {node} reads schema versions {reads}: install a newer holdfast there (or raise \
             its `node.schema_max`)"
        ),
        None => format!(
            "node {node} does not answer: start it, or take it out (`holdfast node remove {node}`)"
        ),
    };
    let rule = "every-node-reads-it";
    broken(rule, format!("{count} of {all} nodes read schema version {next}: needs {all}. {why}"))
}

impl Router {
    /// Returns the schema version that has been applied here, and the one that this node does not
    /// read, when the cluster has come to that.
    pub fn schema_here(&self) -> (SchemaVersion, Option<SchemaVersion>) {
        let place = self.place(ROSTER_SHARD);
        let active = place.map(|place| place.replica.read().ledger.schema());
        let beyond = place.and_then(|place| place.replica.beyond());
        (active.unwrap_or_default(), beyond)
    }

    /// Returns the schema versions that this node reads.
    pub fn reads_here(&self) -> SchemaRange {
        let all = SchemaRange::up_to(SchemaVersion::NEWEST);
        self.place(ROSTER_SHARD).map_or(all, |place| place.replica.reads())
    }

    /// Returns the schema version as of a roster that was read from its leader.
    pub(super) async fn schema_of(
        self: &Arc<Router>,
        roster: &Roster,
        deadline: Instant,
    ) -> Result<SchemaVersion, Rejected> {
        // A raise raises the roster's revision too.
        while self.with_roster(|here| here.revision < roster.revision) {
            if runtime::now() >= deadline {
                let words = "this node has not applied yet what its leader has: try again";
                return Err(Rejected::Unavailable(words.to_owned()));
            }
            runtime::sleep(LOOK_EVERY).await;
        }
        Ok(self.schema_here().0)
    }

    /// Takes the cluster to the next schema version.
    pub(super) async fn upgrade(
        self: &Arc<Router>,
        rehearsal: bool,
        deadline: Instant,
    ) -> Result<Ordered, Rejected> {
        for _ in 0..TRIES {
            let (sight, _) = self.sight(deadline).await?;
            let active = sight.schema;
            let Some(to) = next_version(&sight)? else {
                let words =
                    format!("the schema version is {active}, the newest that any node reads");
                return Ok(Ordered::Done(words));
            };
            if rehearsal {
                let steps = vec![format!("the schema version goes from {active} to {to}")];
                let warning = format!(
                    "there is no way back: a holdfast that reads only up to {active} does not \
                     start any more in this cluster"
                );
                return Ok(Ordered::Planned(Plan { steps, warnings: vec![warning] }));
            }
            let roster = sight.roster;
            let members = SetRoster { if_revision: roster.revision, before: None, roster };
            let set = Command::SetSchema(Box::new(SetSchema { to, members }));
            if self.set(set, deadline).await? {
                let words = format!("the schema version is {to} now, and was {active}");
                return Ok(Ordered::Done(words));
            }
        }
        let words = "others change the nodes at the same time: try again";
        Err(Rejected::Unavailable(words.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{LeaderId, Seat, SeatRole, ShardId};
    use crate::shard::nodes::report::{NodeReport, ReplicaReport};

    const TWO: SchemaVersion = SchemaVersion(2);

    fn sight(newest: &[(u64, Option<u16>)]) -> Sight {
        let voter = Seat { role: SeatRole::Voter, log_uuid: [1; 16], ..Seat::default() };
        let nodes = newest.iter().map(|(node, _)| (NodeId(*node), voter.clone())).collect();
        let members: BTreeSet<NodeId> = newest.iter().map(|(node, _)| NodeId(*node)).collect();
        let report = |node: u64| NodeReport {
            stands: true,
            shards: vec![ReplicaReport {
                shard: ShardId(0),
                leads: (node == 1).then_some(LeaderId { term: 1, node: NodeId(1) }),
                voters: vec![members.clone()],
                members: members.clone(),
                settled: true,
                ..ReplicaReport::default()
            }],
        };
        let alive = newest.iter().filter(|(_, newest)| newest.is_some());
        let reads = newest.iter().filter_map(|(node, newest)| {
            // One that reads 0 is a build that answers and does not say.
            let newest = newest.filter(|newest| *newest > 0)?;
            Some((NodeId(*node), SchemaRange::up_to(SchemaVersion(newest))))
        });
        Sight {
            roster: Roster { revision: 1, nodes, ..Roster::default() },
            shards: 1,
            told: alive.map(|(node, _)| (NodeId(*node), report(*node))).collect(),
            schema: SchemaVersion::FIRST,
            reads: reads.collect(),
        }
    }

    #[test]
    fn version_goes_on_only_when_every_member_of_every_shard_reads_the_next() {
        let all = sight(&[(1, Some(2)), (2, Some(2)), (3, Some(2))]);
        assert_eq!(next_version(&all), Ok(Some(TWO)));
        let one_lacks = next_version(&sight(&[(1, Some(2)), (2, Some(2)), (3, Some(1))]));
        let rule = one_lacks.expect_err("node 3 does not read it");
        assert_eq!(rule.name, "every-node-reads-it");
        assert!(rule.words.contains("2 of 3 nodes read schema version 2: needs 3"), "{rule:?}");
        assert!(rule.words.contains("node 3 reads schema versions 1 to 1"), "{rule:?}");
        let rule = next_version(&sight(&[(1, Some(2)), (2, None), (3, Some(2))]));
        let rule = rule.expect_err("node 2 is silent");
        assert!(rule.words.contains("node 2 does not answer"), "{rule:?}");
        let rule = next_version(&sight(&[(1, Some(2)), (2, Some(0)), (3, Some(2))]));
        let rule = rule.expect_err("a build that announces nothing reads the first");
        assert!(rule.words.contains("node 2 reads schema versions 1 to 1"), "{rule:?}");
        let old = sight(&[(1, Some(1)), (2, Some(1))]);
        assert_eq!(next_version(&old), Ok(None));
    }

    #[test]
    fn a_member_of_one_shard_counts_also_when_the_roster_lets_it_go() {
        let mut seen = sight(&[(1, Some(2)), (2, Some(2)), (3, None)]);
        seen.roster.nodes.remove(&NodeId(3));
        let rule = next_version(&seen).expect_err("shard 0 still sends to node 3");
        assert!(rule.words.contains("node 3 does not answer"), "{rule:?}");
    }

    #[test]
    fn without_a_leader_of_every_shard_nothing_is_raised() {
        let seen = Sight { shards: 2, ..sight(&[(1, Some(2))]) };
        let rule = next_version(&seen).expect_err("shard 1 has no leader");
        assert_eq!(rule.name, "every-shard-has-a-leader");
    }
}
