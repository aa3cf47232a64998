//! Faults of processes: killed, standing still, told to stop.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Fault, Nemesis, Strike, Undo};
use crate::cluster::{Cluster, LOOK_AGAIN};

/// How long a stuttering process stands still and runs, in ms.
const STILL_MS: (u64, u64) = (60, 260);
const RUNS_MS: (u64, u64) = (10, 60);

impl Nemesis {
    /// The leader, or any node when nobody says who leads.
    pub(super) async fn leader_or_any(&mut self, cluster: &mut Cluster) -> u64 {
        let any = self.any(cluster);
        cluster.leader().await.unwrap_or(any)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller chose by the family")]
    pub(super) async fn process(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
    ) -> Result<Strike, String> {
        let any = self.any(cluster);
        match fault {
            Fault::KillOne => kill(cluster, vec![any]).await,
            Fault::KillLeader => {
                let leader = self.leader_or_any(cluster).await;
                kill(cluster, vec![leader]).await
            }
            Fault::KillAll => kill(cluster, cluster.ids()).await,
            Fault::Pause => pause(cluster, any).await,
            Fault::PauseLeader => {
                let leader = self.leader_or_any(cluster).await;
                pause(cluster, leader).await
            }
            Fault::Stutter => {
                let leader = self.leader_or_any(cluster).await;
                self.stutter(cluster, leader).await
            }
            Fault::Transfer => {
                let leader = self.leader_or_any(cluster).await;
                transfer(cluster, leader).await
            }
            Fault::RollingRestart => rolling_restart(cluster).await,
            other => Err(format!("{} is no fault of a process", other.name())),
        }
    }

    async fn stutter(&mut self, cluster: &mut Cluster, node: u64) -> Result<Strike, String> {
        let pause = pause(cluster, node).await?;
        let pid = cluster.node(node).pid().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).ok_or("it has no process")?;
        let mut dice = self.dice.clone();
        let _ = self.dice.roll();
        let task = tokio::spawn(async move {
            loop {
                for (signal, (least, most)) in [(Signal::CONT, RUNS_MS), (Signal::STOP, STILL_MS)] {
                    if kill_process(pid, signal).is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(dice.between(least, most))).await;
                }
            }
        });
        Ok(Strike { undo: Undo::Stutter(node, task), ..pause })
    }
}

async fn kill(cluster: &mut Cluster, nodes: Vec<u64>) -> Result<Strike, String> {
    let pids: Vec<u32> = nodes.iter().filter_map(|node| cluster.node(*node).pid()).collect();
    // All at once: none has the time to notice another's death.
    for node in &nodes {
        cluster.node_mut(*node).signal(Signal::KILL);
    }
    for node in &nodes {
        cluster.node_mut(*node).kill().await;
    }
    let there = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let gone = !pids.is_empty() && !pids.iter().any(there);
    let proof = format!("processes {pids:?} are {}", if gone { "gone" } else { "still there" });
    let undo = Undo::Start(nodes.clone());
    Ok(Strike::new(nodes, proof, gone, undo))
}

async fn pause(cluster: &mut Cluster, node: u64) -> Result<Strike, String> {
    let target = cluster.node_mut(node);
    if !target.signal(Signal::STOP) {
        return Err(format!("node {node} does not run"));
    }
    let mut state = target.state();
    for _ in 0..50 {
        if state == Some('T') {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        state = target.state();
    }
    let (pid, letter) = (target.pid().unwrap_or(0), state.unwrap_or('?'));
    let proof = format!("the state of process {pid} is {letter}");
    let undo = Undo::Continue(vec![node]);
    Ok(Strike::new(vec![node], proof, state == Some('T'), undo))
}

async fn transfer(cluster: &mut Cluster, node: u64) -> Result<Strike, String> {
    let took = cluster.node_mut(node).stop().await?;
    let next = cluster.leader().await;
    let leads = next.map_or_else(|| "nobody leads".to_owned(), |n| format!("node {n} leads"));
    let proof = format!("node {node} ended with 0 after {} ms; {leads}", took.as_millis());
    let effective = next.is_some_and(|next| next != node);
    Ok(Strike::new(vec![node], proof, effective, Undo::Start(vec![node])))
}

/// Restarts one node after the other, as an upgrade does: the next when the last is ready.
async fn rolling_restart(cluster: &mut Cluster) -> Result<Strike, String> {
    let nodes = cluster.ids();
    let mut words = Vec::new();
    for node in &nodes {
        let stopped = cluster.node_mut(*node).stop().await?;
        cluster.start(*node)?;
        let ready = cluster.wait_until_ready(*node).await?;
        let (stopped, ready) = (stopped.as_millis(), ready.as_millis());
        words.push(format!("node {node} ended with 0 after {stopped} ms, ready {ready} ms later"));
    }
    Ok(Strike::proven(nodes, words.join("; "), Undo::Nothing))
}

/// Starts nodes that do not run.
pub(super) fn start(cluster: &mut Cluster, nodes: &[u64]) -> Result<String, String> {
    for node in nodes {
        if !cluster.node_mut(*node).is_running() {
            cluster.start(*node)?;
        }
    }
    Ok(String::new())
}

/// Lets nodes go on that stand still.
pub(super) fn wake(cluster: &mut Cluster, nodes: &[u64]) -> Result<String, String> {
    for node in nodes {
        cluster.node_mut(*node).signal(Signal::CONT);
    }
    Ok(String::new())
}
