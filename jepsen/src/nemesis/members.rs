//! Changes of who belongs to the cluster, while everybody works: nodes are drained, lose and get
//! their vote, come, go and are replaced. What proves a change is what every node lists, what the
//! node itself says, and what it serves.

use std::time::{Duration, Instant};

use super::{Fault, Nemesis, Strike, Undo};
use crate::cluster::{Cluster, LOOK_AGAIN};
use crate::history::{Act, Kind, Process, Value};
use crate::operator::Order;
use crate::recorder::Beside;

/// How long nodes may take to list what an operation has left, and a node to learn its removal.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// How long clients go on asking a removed node.
const ASKED_ON: Duration = Duration::from_millis(900);
/// Of so many joins one loses the leader on the way.
const KILLS_PERCENT: u64 = 40;
/// How long it is dead.
const DEAD_FOR: Duration = Duration::from_millis(500);
/// The states of nodes that vote.
const VOTES: [&str; 3] = ["voter", "drained", "draining"];

fn list(nodes: &[u64]) -> String {
    nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn without(nodes: &[u64], node: u64) -> Vec<u64> {
    nodes.iter().copied().filter(|other| *other != node).collect()
}

impl Nemesis {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller chose by the family")]
    pub(super) async fn members(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
    ) -> Result<Strike, String> {
        match fault {
            Fault::Drain => self.drain(cluster).await,
            Fault::Demote => self.demote(cluster).await,
            Fault::Resize => self.grow(cluster).await,
            Fault::RemoveLeader => self.remove_leader(cluster).await,
            Fault::Replace => self.replace(cluster).await,
            Fault::HandOver => self.hand_over(cluster).await,
            other => Err(format!("{} is no change of members", other.name())),
        }
    }

    fn say(&self, act: Act, node: Option<u64>, value: Value) {
        let beside = Beside { node, ..Beside::default() };
        self.recorder.note(Kind::Info, Process::nemesis(), act, value, beside);
    }

    /// Notes how an operation ended. One that does not end breaks a promise, and nothing that came
    /// after it could be judged.
    fn end(
        &mut self,
        order: Order,
        node: u64,
        ended: Result<(Duration, String), String>,
    ) -> Result<String, String> {
        let operation = Some(order.word().to_owned());
        let value = Value { operation, nodes: Some(vec![node]), ..Value::default() };
        match ended {
            Ok((took, note)) => {
                let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                let noted = (!note.is_empty()).then_some(note);
                let value = Value { recovery_ms: Some(ms), note: noted, ..value };
                self.say(Act::Operation, Some(node), value);
                Ok(format!("{} of node {node} took {ms} ms", order.word()))
            }
            Err(why) => {
                let value = Value { note: Some(why.clone()), ..value };
                self.say(Act::Operation, Some(node), value);
                self.halted = true;
                Err(why)
            }
        }
    }

    /// Gives an order about a node that is there, and waits for its end.
    async fn carry(&mut self, cluster: &mut Cluster, order: Order) -> Result<String, String> {
        self.tell(order.word());
        let begun = cluster.order(order).await?;
        let ended = cluster.done(begun.id).await;
        self.end(order, begun.node, ended)
    }

    /// Brings a fresh machine in; sometimes the leader dies on the way. Returns its id.
    async fn bring(
        &mut self,
        cluster: &mut Cluster,
        order: Order,
        may_kill: bool,
    ) -> Result<(u64, String), String> {
        self.tell(order.word());
        let begun = cluster.order(order).await?;
        let token = begun.token.ok_or("the operation has no token")?;
        cluster.join(begun.node, &token).await?;
        let mut words = String::new();
        if may_kill && self.dice.percent(KILLS_PERCENT) {
            tokio::time::sleep(Duration::from_millis(self.dice.between(200, 900))).await;
            let leader = self.leader_or_any(cluster).await;
            cluster.node_mut(leader).kill().await;
            tokio::time::sleep(DEAD_FOR).await;
            cluster.start(leader)?;
            words = format!(", though node {leader}, which led, was killed meanwhile");
        }
        let ended = cluster.done(begun.id).await;
        if ended.is_err() && !cluster.node_mut(begun.node).is_running() {
            let last = cluster.node(begun.node).last_words(2);
            words.push_str(&format!("; the new node has ended: {last}"));
        }
        let ended = ended.map_err(|why| format!("{why}{words}"));
        let told = self.end(order, begun.node, ended)?;
        cluster.roll.welcome(begun.node);
        Ok((begun.node, format!("{told}{words}")))
    }

    /// Asks every node who votes, until it lists these; notes the last that each said.
    async fn agree(&mut self, cluster: &mut Cluster, wanted: &[u64]) -> (String, bool) {
        let mut all = true;
        for node in cluster.ids() {
            let began = Instant::now();
            let mut voters = Vec::new();
            while began.elapsed() < KNOWN_WITHIN {
                if let Some(seats) = cluster.seats(node).await {
                    let votes = |(_, state): &&(u64, String)| VOTES.contains(&state.as_str());
                    voters = seats.iter().filter(votes).map(|(id, _)| *id).collect();
                    voters.sort_unstable();
                }
                if voters == wanted {
                    break;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            all &= voters == wanted;
            let wanted = Some(wanted.to_vec());
            let value = Value { voters: Some(voters), wanted, ..Value::default() };
            self.say(Act::Members, Some(node), value);
        }
        let word = if all { "every node lists" } else { "not every node lists" };
        (format!("{word} the voters {}", list(wanted)), all)
    }

    /// Takes a removed node off the roll, and waits until it says that it takes no part. Clients
    /// whose list is old go on asking it.
    async fn depart(&mut self, cluster: &mut Cluster, node: u64) -> Result<String, String> {
        if !cluster.node_mut(node).is_running() {
            cluster.start(node)?;
        }
        cluster.roll.dismiss(node);
        let began = Instant::now();
        let (mut said, mut out) = (String::new(), false);
        while began.elapsed() < KNOWN_WITHIN && !out {
            said = cluster.ready(node).await.err().unwrap_or_else(|| "ready".to_owned());
            out = said.contains("was removed");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let value = Value {
            nodes: Some(vec![node]),
            stayed_out: Some(out),
            proof: Some(said.clone()),
            ..Value::default()
        };
        self.say(Act::Removed, Some(node), value);
        tokio::time::sleep(ASKED_ON).await;
        let said: String = said.chars().take(120).collect();
        Ok(format!("node {node} says: {said}"))
    }

    /// What a drained node leads by its own word; waits until it answers.
    async fn note_drained(&mut self, cluster: &mut Cluster, node: u64, drained: bool) -> u64 {
        let began = Instant::now();
        let mut leads = cluster.leads(node).await;
        while leads.is_none() && began.elapsed() < KNOWN_WITHIN {
            tokio::time::sleep(LOOK_AGAIN).await;
            leads = cluster.leads(node).await;
        }
        let leads = leads.unwrap_or_default();
        let value = Value {
            nodes: Some(vec![node]),
            leads: Some(leads),
            drained: Some(drained),
            ..Value::default()
        };
        self.say(Act::Drained, Some(node), value);
        leads
    }

    async fn drain(&mut self, cluster: &mut Cluster) -> Result<Strike, String> {
        let leader = self.leader_or_any(cluster).await;
        let node = if self.dice.percent(75) { leader } else { self.any(cluster) };
        let led = cluster.leads(node).await.unwrap_or_default();
        let told = self.carry(cluster, Order::Drain(node)).await?;
        let leads = self.note_drained(cluster, node, true).await;
        let proof = format!("{told}; by its own word it led {led} shards and leads {leads}");
        Ok(Strike::new(vec![node], proof, leads == 0, Undo::Drained(node)))
    }

    pub(super) async fn undrain(
        &mut self,
        cluster: &mut Cluster,
        node: u64,
    ) -> Result<String, String> {
        let leads = self.note_drained(cluster, node, false).await;
        let told = self.carry(cluster, Order::Undrain(node)).await?;
        Ok(format!("to the end it led {leads} shards; {told}"))
    }

    async fn demote(&mut self, cluster: &mut Cluster) -> Result<Strike, String> {
        let ids = cluster.ids();
        let leader = self.leader_or_any(cluster).await;
        let node = if self.dice.percent(50) { leader } else { self.any(cluster) };
        let mut words = String::new();
        if ids.len() == 3 {
            let rule = cluster.refused(Order::Demote(node, false)).await?;
            words = format!("refused by the rule {rule}, then insisted on; ");
        }
        words.push_str(&self.carry(cluster, Order::Demote(node, true)).await?);
        let (listed, agreed) = self.agree(cluster, &without(&ids, node)).await;
        let proof = format!("{words}; {listed}");
        Ok(Strike::new(vec![node], proof, agreed, Undo::Demoted(node)))
    }

    pub(super) async fn promote(
        &mut self,
        cluster: &mut Cluster,
        node: u64,
    ) -> Result<String, String> {
        let told = self.carry(cluster, Order::Promote(node)).await?;
        let (listed, _) = self.agree(cluster, &cluster.ids()).await;
        Ok(format!("{told}; {listed}"))
    }

    /// Three become five, five six: one comes as a learner and gets its vote later, one at once.
    async fn grow(&mut self, cluster: &mut Cluster) -> Result<Strike, String> {
        let (first, mut words) = self.bring(cluster, Order::AddLearner, true).await?;
        let mut came = vec![first];
        let told = self.carry(cluster, Order::Promote(first)).await?;
        words.push_str(&format!("; {told}"));
        if cluster.ids().len() == 4 {
            let (second, told) = self.bring(cluster, Order::Add, true).await?;
            came.push(second);
            words.push_str(&format!("; {told}"));
        }
        let (listed, agreed) = self.agree(cluster, &cluster.ids()).await;
        let (proof, count) = (format!("{words}; {listed}"), came.len());
        Ok(Strike::new(came, proof, agreed, Undo::Grown(count)))
    }

    /// Any of them go, as many as came, and the last of them is started anew to say why once more.
    pub(super) async fn shrink(
        &mut self,
        cluster: &mut Cluster,
        count: usize,
    ) -> Result<String, String> {
        let mut words = Vec::new();
        let mut gone = Vec::new();
        for _ in 0..count {
            let node = self.any(cluster);
            words.push(self.remove(cluster, node).await?);
            gone.push(node);
        }
        let last = gone.last().copied().unwrap_or_default();
        cluster.node_mut(last).kill().await;
        words.push(format!("started anew, {}", self.depart(cluster, last).await?));
        dismantle(cluster, &gone).await?;
        Ok(words.join("; "))
    }

    async fn remove(&mut self, cluster: &mut Cluster, node: u64) -> Result<String, String> {
        let told = self.carry(cluster, Order::Remove(node)).await?;
        let said = self.depart(cluster, node).await?;
        let (listed, _) = self.agree(cluster, &cluster.ids()).await;
        Ok(format!("{told}; {said}; {listed}"))
    }

    /// Another comes, and the node goes that leads most.
    async fn remove_leader(&mut self, cluster: &mut Cluster) -> Result<Strike, String> {
        let (came, told) = self.bring(cluster, Order::Add, true).await?;
        let leader = self.leader_or_any(cluster).await;
        let led = cluster.leads(leader).await.unwrap_or_default();
        let removed = self.remove(cluster, leader).await?;
        let proof = format!("{told}; node {leader} led {led} shards; {removed}");
        let effective = led > 0 && !cluster.ids().contains(&leader);
        Ok(Strike::new(vec![came, leader], proof, effective, Undo::Dismantle(vec![leader])))
    }

    /// A node's log is wiped: it is refused under its old id, with the command that helps. Another
    /// comes in its place. Then the old one comes back with its log, and serves nothing.
    async fn replace(&mut self, cluster: &mut Cluster) -> Result<Strike, String> {
        let node = self.any(cluster);
        let disk = &cluster.node(node).disk;
        let (log, kept) = (disk.data().join("log"), disk.mounted.join("log-kept"));
        cluster.node_mut(node).kill().await;
        let moved = |from, to| std::fs::rename(from, to).map_err(|e| e.to_string());
        moved(&log, &kept)?;
        cluster.start(node)?;
        let (said, out) = super::rest::watch(cluster, node).await;
        cluster.node_mut(node).kill().await;
        if log.exists() {
            std::fs::remove_dir_all(&log).map_err(|e| e.to_string())?;
        }
        moved(&kept, &log)?;
        let helps = said.contains("node replace");
        let rest = without(&cluster.ids(), node);
        cluster.roll.forget(node);
        let brought = self.bring(cluster, Order::Replace(node), rest.len() > 2).await;
        let (came, told) = match brought {
            Ok(brought) => brought,
            Err(why) => {
                cluster.roll.welcome(node);
                return Err(why);
            }
        };
        let (listed, agreed) = self.agree(cluster, &cluster.ids()).await;
        let back = self.depart(cluster, node).await?;
        let said: String = said.chars().take(500).collect();
        let proof = format!("without its log node {node} says: {said}; {told}; {listed}; {back}");
        let undo = Undo::Dismantle(vec![node]);
        let strike = Strike::new(vec![node, came], proof, helps && agreed, undo);
        Ok(Strike { stayed_out: Some(out), ..strike })
    }

    /// The leadership of every shard goes to another voter, by order.
    async fn hand_over(&mut self, cluster: &mut Cluster) -> Result<Strike, String> {
        let (mut words, mut moved) = (Vec::new(), 0);
        let mut nodes = Vec::new();
        for shard in 0..cluster.plan.shards {
            let Some(from) = cluster.leader_of(shard).await else { continue };
            let others = without(&cluster.ids(), from);
            let to = *self.dice.pick(&others).expect("a cluster has several nodes");
            let said = cluster.hand_over(shard, to).await;
            let began = Instant::now();
            let mut now = cluster.leader_of(shard).await;
            while said == "done" && now != Some(to) && began.elapsed() < ASKED_ON {
                tokio::time::sleep(LOOK_AGAIN).await;
                now = cluster.leader_of(shard).await;
            }
            moved += u64::from(now == Some(to));
            let now = now.map_or_else(|| "nobody".to_owned(), |node| format!("node {node}"));
            words.push(format!("shard {shard} from node {from} to {to}: {said}, {now} leads"));
            nodes.push(to);
        }
        nodes.sort_unstable();
        nodes.dedup();
        Ok(Strike::new(nodes, words.join("; "), moved > 0, Undo::Nothing))
    }
}

/// Takes machines away that were removed.
pub(super) async fn dismantle(cluster: &mut Cluster, nodes: &[u64]) -> Result<String, String> {
    for node in nodes {
        cluster.dismantle(*node).await?;
    }
    Ok(format!("the machines of {} were taken away", list(nodes)))
}
