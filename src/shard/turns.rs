//! Whose turn it is to lead a shard when all is well.
//!
//! Every voter has a home row of shards, drained or not; what a drained one leaves goes to the
//! others, each of its shards by an order of its own. So a drain changes whose turn it is for the
//! shards of the drained node and for no other, and the end of a drain brings back just those.

use std::collections::BTreeSet;

use crate::ledger::{NodeId, ShardId};

/// The voters, and which of them may lead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    /// Every voter, in the order of their ids.
    pub voters: BTreeSet<NodeId>,
    /// Those of them that are to lead nothing.
    pub drained: BTreeSet<NodeId>,
}

impl Turns {
    /// Makes the turns of voters of which each may lead.
    pub fn of(voters: impl IntoIterator<Item = NodeId>) -> Turns {
        Turns { voters: voters.into_iter().collect(), drained: BTreeSet::new() }
    }

    /// Names the node that is to lead a shard; `None` when none may.
    pub fn preferred(&self, shard: ShardId) -> Option<NodeId> {
        let voters: Vec<NodeId> = self.voters.iter().copied().collect();
        let (count, shard) = (voters.len(), usize::from(shard.0));
        let home = shard.checked_rem(count)?;
        // The others follow in a ring; each shard of a row begins one further.
        let others = count.saturating_sub(1);
        let begin = shard.checked_div(count)?;
        let ring = (0..others).map(|step| {
            let step = begin.saturating_add(step).checked_rem(others).unwrap_or_default();
            home.saturating_add(1).saturating_add(step).checked_rem(count).unwrap_or_default()
        });
        let order = std::iter::once(home).chain(ring).filter_map(|at| voters.get(at));
        order.copied().find(|node| !self.drained.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SHARDS: u16 = 24;

    fn nodes(count: u64) -> impl Iterator<Item = NodeId> {
        (1..=count).map(NodeId)
    }

    /// A drain dealt whose turn it is anew for every shard, so that shards moved which the drained
    /// node did not lead, one there and back within 40 ms.
    #[test]
    fn drain_changes_the_turns_of_the_drained_nodes_shards_only_and_its_end_brings_them_back() {
        for count in 1..=6 {
            let all = Turns::of(nodes(count));
            for drained in 0..1_u64 << count {
                let drained: BTreeSet<NodeId> =
                    nodes(count).filter(|node| drained >> (node.0 - 1) & 1 == 1).collect();
                let before = Turns { drained: drained.clone(), ..all.clone() };
                for node in nodes(count).filter(|node| !drained.contains(node)) {
                    let mut after = before.clone();
                    after.drained.insert(node);
                    for shard in (0..SHARDS).map(ShardId) {
                        let (was, is) = (before.preferred(shard), after.preferred(shard));
                        if was == Some(node) {
                            assert!(is != was && is.is_none_or(|is| !after.drained.contains(&is)));
                        } else {
                            assert_eq!(was, is, "{shard}: {node} of {count}, {drained:?} before");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_drained_node_leaves_is_shared_out_evenly() {
        for count in 2..=6 {
            for drained in nodes(count) {
                let turns = Turns { drained: [drained].into(), ..Turns::of(nodes(count)) };
                let mut leads: BTreeMap<NodeId, u64> = BTreeMap::new();
                for shard in (0..SHARDS).map(ShardId) {
                    *leads.entry(turns.preferred(shard).expect("another")).or_default() += 1;
                }
                let (least, most) = (leads.values().min(), leads.values().max());
                let (least, most) = (least.expect("some"), most.expect("some"));
                assert!(most - least <= 2, "{drained} of {count}: {leads:?}");
            }
        }
    }
}
