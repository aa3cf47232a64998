//! Faults of wall clocks, through libfaketime. Monotonic time is left alone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Fault, Nemesis, Strike, Undo};
use crate::cluster::Cluster;
use crate::wire;

/// Jumps, in ms: just within what Holdfast tolerates, beyond it, and far beyond.
const JUMPS_MS: [i64; 8] = [1_500, -1_500, 4_000, -4_000, 60_000, -60_000, 3_600_000, -3_600_000];
/// How much a drifting clock gains a second, in ms.
const DRIFTS_MS: [i64; 4] = [100, -100, 700, -700];
/// How often a drifting clock is moved.
const DRIFT_EVERY: Duration = Duration::from_millis(100);

impl Nemesis {
    pub(super) async fn clock(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
    ) -> Result<Strike, String> {
        let any = self.any(cluster);
        let node =
            if fault == Fault::ClockJumpLeader { self.leader_or_any(cluster).await } else { any };
        let before = offset_ms(cluster, node).await?;
        if fault == Fault::ClockDrift {
            return self.drift(cluster, node, before).await;
        }
        let jump = *self.dice.pick(&JUMPS_MS).expect("there are some");
        cluster.node(node).set_clock(jump)?;
        let after = offset_ms(cluster, node).await?;
        let moved = after - before;
        let proof = format!("by its own word node {node}'s clock moved by {moved} ms");
        let effective = (moved - jump).abs() < jump.abs() / 2;
        Ok(Strike::new(vec![node], proof, effective, Undo::Clock(node, None)))
    }

    async fn drift(
        &mut self,
        cluster: &mut Cluster,
        node: u64,
        before: i64,
    ) -> Result<Strike, String> {
        let gain = *self.dice.pick(&DRIFTS_MS).expect("there are some");
        let clock = cluster.node(node).clock();
        let task = tokio::spawn(async move {
            let began = tokio::time::Instant::now();
            loop {
                let ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(0);
                let _ = clock.set(gain * ms / 1_000);
                tokio::time::sleep(DRIFT_EVERY).await;
            }
        });
        // Long enough for the slowest drift to show.
        tokio::time::sleep(Duration::from_millis(700)).await;
        let after = offset_ms(cluster, node).await;
        let undo = Undo::Clock(node, Some(task));
        let moved = after.map(|after| after - before)?;
        let proof = format!("{gain} ms a second; by its own word it moved by {moved} ms");
        let effective = moved.signum() == gain.signum() && moved.abs() >= 30;
        Ok(Strike::new(vec![node], proof, effective, undo))
    }
}

/// How far a node's wall clock is from this machine's, by its own word.
async fn offset_ms(cluster: &mut Cluster, node: u64) -> Result<i64, String> {
    let view = cluster.view(node).await.ok_or(format!("node {node} does not answer"))?;
    let told = wire::moment(&view["wall_clock"]).ok_or("it tells no time")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|e| e.to_string())?;
    let now = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    Ok(i64::try_from(told).unwrap_or(i64::MAX) - now)
}
