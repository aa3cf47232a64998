//! Partitions and packet loss.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Fault, Nemesis, Strike, Undo};
use crate::cluster::Cluster;
use crate::net::{Net, Way, address};

/// The least and the most that a flapping link is up or down.
const FLAP_MS: (u64, u64) = (80, 350);

/// Both ways between two groups.
fn between(left: &[u64], right: &[u64]) -> BTreeSet<Way> {
    let both = |a: &u64, b: &u64| [(*a, *b), (*b, *a)];
    left.iter().flat_map(|a| right.iter().flat_map(move |b| both(a, b))).collect()
}

impl Nemesis {
    pub(super) async fn partition(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
        id: u64,
    ) -> Result<Strike, String> {
        let leader = cluster.leader().await;
        let ids = cluster.ids();
        let net = cluster.net.as_ref().ok_or("there is no network to cut")?;
        if fault == Fault::Loss {
            return self.loss(net).await;
        }
        let (nodes, ways) = self.ways(fault, leader, &ids)?;
        if fault == Fault::Flapping {
            return self.flap(net, id, nodes, ways).await;
        }
        self.cuts.insert(id, ways.clone());
        net.cut(&self.all_cuts()).await?;
        let proof = prove(net, &ways).await;
        Ok(Strike::new(nodes, proof.0, proof.1, Undo::Cuts))
    }

    fn all_cuts(&self) -> BTreeSet<Way> {
        self.cuts.values().flatten().copied().collect()
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller chose by the family")]
    /// Which ways a fault cuts, and which nodes people would say that it hits.
    fn ways(
        &mut self,
        fault: Fault,
        leader: Option<u64>,
        ids: &[u64],
    ) -> Result<(Vec<u64>, BTreeSet<Way>), String> {
        let mut order = ids.to_vec();
        self.dice.shuffle(&mut order);
        let leader = leader.unwrap_or(order[0]);
        let others: Vec<u64> = order.iter().copied().filter(|id| *id != leader).collect();
        let minority = (ids.len() - 1) / 2;
        Ok(match fault {
            Fault::PartFollower => {
                let alone = others[0];
                let rest: Vec<u64> = ids.iter().copied().filter(|id| *id != alone).collect();
                (vec![alone], between(&[alone], &rest))
            }
            Fault::PartLeader | Fault::Flapping => {
                let (with, against) = others.split_at(minority - 1);
                let few = [&[leader], with].concat();
                let ways = between(&few, against);
                (few, ways)
            }
            Fault::Split => {
                (order[..minority].to_vec(), between(&order[..minority], &order[minority..]))
            }
            Fault::OneWayOut => {
                (vec![leader], others.iter().map(|other| (leader, *other)).collect())
            }
            Fault::OneWayIn => {
                (vec![leader], others.iter().map(|other| (*other, leader)).collect())
            }
            Fault::Bridge => {
                let (middle, rest) = (order[0], &order[1..]);
                let half = rest.len() / 2;
                (vec![middle], between(&rest[..half], &rest[half..]))
            }
            Fault::Ring => {
                let count = order.len();
                let apart = |a: usize, b: usize| {
                    let far = a.abs_diff(b);
                    far > 1 && far < count - 1
                };
                let mut ways = BTreeSet::new();
                for a in 0..count {
                    for b in (0..count).filter(|b| apart(a, *b)) {
                        ways.insert((order[a], order[b]));
                    }
                }
                (ids.to_vec(), ways)
            }
            other => return Err(format!("{} is no partition", other.name())),
        })
    }

    async fn flap(
        &mut self,
        net: &Net,
        id: u64,
        nodes: Vec<u64>,
        ways: BTreeSet<Way>,
    ) -> Result<Strike, String> {
        self.cuts.insert(id, ways.clone());
        net.cut(&self.all_cuts()).await?;
        let (proof, effective) = prove(net, &ways).await;
        let (net, mut dice) = (net.clone(), self.dice.clone());
        let _ = self.dice.roll();
        let task = tokio::spawn(async move {
            loop {
                for ways in [&BTreeSet::new(), &ways] {
                    let pause = dice.between(FLAP_MS.0, FLAP_MS.1);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    let _ = net.cut(ways).await;
                }
            }
        });
        Ok(Strike::new(nodes, proof, effective, Undo::Flaps(task)))
    }

    async fn loss(&mut self, net: &Net) -> Result<Strike, String> {
        let percent = self.dice.between(15, 40);
        let before = net.vanished().await.unwrap_or(0);
        net.lose(percent).await?;
        // Heartbeats go on all the time: within so long some must have vanished.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let vanished = net.vanished().await.unwrap_or(0).saturating_sub(before);
        let proof = format!("{percent} % loss; {vanished} packets vanished in 300 ms");
        Ok(Strike::new(vec![], proof, vanished > 0, Undo::Loss))
    }

    /// Ends one fault's cuts and leaves those of others.
    pub(super) async fn mend(&mut self, cluster: &Cluster, id: u64) -> Result<String, String> {
        let ways = self.cuts.remove(&id).unwrap_or_default();
        let Some(net) = cluster.net.as_ref() else { return Ok(String::new()) };
        let vanished = net.vanished().await;
        net.cut(&self.all_cuts()).await?;
        let open = ways.difference(&self.all_cuts()).next().copied();
        // The other end may be down or standing still for other reasons: this is told, not judged.
        let mut words = vanished.map_or_else(String::new, |n| format!("{n} packets vanished; "));
        if let Some((from, to)) = open {
            let reached = net.reaches(from, to).await;
            let can = if reached { "reaches" } else { "does not yet reach" };
            words.push_str(&format!("node {from} {can} node {to} again"));
        }
        Ok(words)
    }
}

/// Shows that a cut holds: the connections that must fail do.
async fn prove(net: &Net, ways: &BTreeSet<Way>) -> (String, bool) {
    // One way of each pair of nodes is enough: a connection needs both.
    let pairs: BTreeSet<Way> = ways.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
    let mut words = Vec::new();
    let mut effective = !pairs.is_empty();
    for (a, b) in pairs.into_iter().take(2) {
        let (from, to) = if ways.contains(&(a, b)) { (a, b) } else { (b, a) };
        let reached = net.reaches(from, to).await;
        effective &= !reached;
        let can = if reached { "still reaches" } else { "cannot connect to" };
        words.push(format!("node {from} {can} {} of node {to}", address(to)));
    }
    (words.join("; "), effective)
}
