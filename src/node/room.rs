//! The log of a node and the room on the disk under it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::parts::Parts;
use super::running::Running;
use crate::config::Config;
use crate::shard::LogStatus;
use crate::storage::Ballast;

/// The free bytes below which new places are shed: two segments and the ballast.
pub(super) fn floor_bytes(config: &Config) -> u64 {
    config.log.segment_bytes.saturating_mul(2).saturating_add(config.log.ballast_bytes)
}

/// Gives the ballast up when there may be too little room to load what is here. The watch takes it
/// back when there is more.
pub(super) fn make_room(config: &Config, parts: &Parts) {
    let (disk, dir) = (Arc::clone(&parts.disk), config.node.data_dir.clone());
    match Ballast::new(disk, dir, config.log.ballast_bytes).release_for_start() {
        Ok(true) => tracing::warn!("the disk is nearly full: the ballast was given up to start"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "the room on the disk is not known"),
    }
}

/// Says how the log is; the figures of its disk are left out.
pub(super) fn log_status(running: &Running) -> LogStatus {
    let health = running.log.health();
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let age = health.oldest_unsynced.map(ms);
    LogStatus {
        segments: health.segments as u64,
        bytes: health.bytes,
        syncs: health.syncs,
        oldest_unsynced_ms: age,
        failed: health.failed,
        sync_p50_us: health.sync_p50_us,
        sync_p99_us: health.sync_p99_us,
        sync_max_us: health.sync_max_us,
        housekeeping: health.housekeeping,
        waits_for_room_ms: health.waits_for_room.map(ms),
        disk_full: running.disk_full.load(Ordering::Relaxed),
        ballast_released: running.ballast_released.load(Ordering::Relaxed),
        ..LogStatus::default()
    }
}
