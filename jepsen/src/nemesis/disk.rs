//! Faults of disks: slow, failing, full, and cut off with what was not synced.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::{Fault, Nemesis, Strike, Undo};
use crate::cluster::{Cluster, LOOK_AGAIN};

/// How long an injected fault may take to show in the tracer's file.
const SHOWS_WITHIN: Duration = Duration::from_millis(2_500);

/// A tracer on a node: system calls fail or take long while it is there.
#[derive(Debug)]
pub(crate) struct Tracer {
    child: Child,
    file: PathBuf,
}

impl Nemesis {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller chose by the family")]
    pub(super) async fn disk(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
    ) -> Result<Strike, String> {
        let any = self.any(cluster);
        let node =
            if fault == Fault::SlowDiskLeader { self.leader_or_any(cluster).await } else { any };
        match fault {
            Fault::SlowDisk | Fault::SlowDiskLeader => {
                let us = self.dice.between(30, 120) * 1_000;
                trace(cluster, node, "fdatasync,fsync", &format!("delay_enter={us}"), false).await
            }
            Fault::SyncError => {
                trace(cluster, node, "fdatasync,fsync", "error=EIO:when=1+", true).await
            }
            Fault::WriteError => trace(cluster, node, "pwrite64", "error=EIO:when=1+", true).await,
            Fault::DiskFull => {
                let proof = cluster.node(node).disk.fill()?;
                Ok(Strike::proven(vec![node], proof, Undo::Full(node)))
            }
            Fault::PowerCut => power_cut(cluster, vec![node]).await,
            Fault::PowerCutAll => power_cut(cluster, cluster.ids()).await,
            other => Err(format!("{} is no fault of a disk", other.name())),
        }
    }
}

/// Puts a tracer on a node.
async fn trace(
    cluster: &mut Cluster,
    node: u64,
    calls: &str,
    inject: &str,
    restart: bool,
) -> Result<Strike, String> {
    let pid = cluster.node(node).pid().ok_or("it does not run")?;
    let file = cluster.plan.scratch.join(format!("n{node}.strace"));
    let _ = std::fs::remove_file(&file);
    let child = Command::new("strace")
        .args(["-f", "-qq", "-p", &pid.to_string(), "-e", &format!("trace={calls}")])
        .args(["-e", &format!("inject={calls}:{inject}"), "-o"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("strace: {e}"))?;
    let began = Instant::now();
    let injected = loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let count = text.matches("INJECTED").count() + text.matches("DELAYED").count();
        if count > 0 || began.elapsed() > SHOWS_WITHIN {
            break count;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    let proof = format!("{calls} {inject}: {injected} calls were hit by the tracer's own word");
    let undo = Undo::Trace(Tracer { child, file }, node, restart);
    Ok(Strike::new(vec![node], proof, injected > 0, undo))
}

/// Takes the tracer away. A node whose log has failed takes no part until it is started anew.
pub(super) async fn untrace(
    cluster: &mut Cluster,
    mut tracer: Tracer,
    node: u64,
    restart: bool,
) -> Result<String, String> {
    let pid = tracer.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Only a tracer that ends by itself lets its process go on.
        let _ = kill_process(pid, Signal::INT);
    }
    if tokio::time::timeout(Duration::from_secs(5), tracer.child.wait()).await.is_err() {
        let _ = tracer.child.start_kill();
        let _ = tracer.child.wait().await;
    }
    let text = std::fs::read_to_string(&tracer.file).unwrap_or_default();
    let hits = text.matches("INJECTED").count() + text.matches("DELAYED").count();
    let said = cluster.ready(node).await.err().unwrap_or_else(|| "ready".to_owned());
    if restart {
        cluster.node_mut(node).kill().await;
        cluster.start(node)?;
    } else {
        cluster.node_mut(node).signal(Signal::CONT);
    }
    Ok(format!("{hits} calls were hit; the node said: {said}"))
}

/// Frees a full disk; starts the node anew when it says that its log has failed.
pub(super) async fn make_room(cluster: &mut Cluster, node: u64) -> Result<String, String> {
    let said = cluster.ready(node).await.err().unwrap_or_else(|| "ready".to_owned());
    cluster.node(node).disk.free();
    let running = cluster.node_mut(node).is_running();
    let needs = !running || said.contains("log takes nothing") || said.contains("has stopped");
    if needs {
        cluster.node_mut(node).kill().await;
        cluster.start(node)?;
    }
    let then = if needs { "; it was started anew" } else { "" };
    Ok(format!("the node said: {said}{then}"))
}

/// Cuts the power of nodes: all stand still, their images are copied as they are on the device, the
/// processes die, and the copies take the images' place.
async fn power_cut(cluster: &mut Cluster, nodes: Vec<u64>) -> Result<Strike, String> {
    for node in &nodes {
        if !cluster.node_mut(*node).signal(Signal::STOP) {
            return Err(format!("node {node} does not run"));
        }
    }
    let mut copies = Vec::new();
    for node in &nodes {
        match cluster.node(*node).disk.snapshot().await {
            Ok(copy) => copies.push(copy),
            Err(why) => {
                super::process::wake(cluster, &nodes)?;
                return Err(why);
            }
        }
    }
    let mut proof = Vec::new();
    let mut effective = true;
    for (node, copy) in nodes.iter().zip(&copies) {
        cluster.node_mut(*node).kill().await;
        let disk = &cluster.node(*node).disk;
        disk.unmount().await?;
        let dirty = disk.replace(copy).await?;
        disk.mount().await?;
        effective &= dirty;
        let word = if dirty { "has to be replayed" } else { "was clean" };
        proof.push(format!("the journal of node {node}'s disk {word}"));
    }
    let undo = Undo::Start(nodes.clone());
    Ok(Strike::new(nodes, proof.join("; "), effective, undo))
}
