//! The start of one shard's group, before openraft sees anything.
//!
//! openraft neither allows nor repairs a state machine behind the purged log: it would sit as a
//! silent learner and panic at the first commit. So, idempotently and safe against crashes: (a)
//! load the newer good database, else the older, else fetch one from any member, until one is at or
//! past the purge point; (b) it is made current first; (c) reconcile the log with it; (d) the
//! membership comes from the checkpoint, never empty when something was purged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use openraft::type_config::alias::StoredMembershipOf;
use openraft::{Config, SnapshotPolicy};
use parking_lot::Mutex;

use super::entry::TypeConfig;
use super::fetch::fetch;
use super::group::{Group, Origin};
use super::log_store::LogStore;
use super::machine::Machine;
use super::network::{APPEND_ENTRIES_MAX, PeerBook, Peers};
use super::pace::Pace;
use super::replica::Replica;
use super::snapshot::membership_of;
use crate::ledger::{
    Ledger, LogIndex, NodeId, PageKey, SchemaRange, SchemaVersion, Settings, ShardId,
};
use crate::peer::Network;
use crate::storage::{
    CheckpointError, CheckpointHeader, Checkpoints, LogPosition, PageDesk, ShardLog, is_full,
};

/// What a shard's group needs to start.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// This node.
    pub node: NodeId,
    /// The shard.
    pub shard: ShardId,
    /// What every replica agrees on.
    pub settings: Settings,
    /// The members, to fetch a checkpoint from when none is left here.
    pub peers: PeerBook,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// The shortest election timeout.
    pub election_min: Duration,
    /// The longest election timeout.
    pub election_max: Duration,
    /// The most bytes of entries in one append.
    pub append_bytes_max: usize,
    /// Pages encoded in one slice of a checkpoint.
    pub cut_pages: usize,
    /// How long one message of a checkpoint may take.
    pub chunk_timeout: Duration,
    /// Whether this node may stand for election from the start.
    pub electable: bool,
    /// How long the members are asked for a checkpoint when none is left here: they may be starting
    /// too.
    pub fetch_max: Duration,
    /// The schema versions that this node reads.
    pub reads: SchemaRange,
}

/// Why a shard does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The files, or those of a peer, could not be used.
    #[error("shard {shard}: {error}")]
    Io {
        /// The shard.
        shard: ShardId,
        /// What happened.
        error: io::Error,
    },
    /// No checkpoint at or past the purge point is left here, and no member gave one.
    #[error(
        "shard {shard}: its log begins after {purged:?}, no good checkpoint reaches that far, and \
         no member gave one; start the others first"
    )]
    NoCheckpoint {
        /// The shard.
        shard: ShardId,
        /// The purge point.
        purged: LogPosition,
    },
    /// There is no room to load a checkpoint. Nothing is known against any of them.
    #[error("shard {shard}: {} ({error})", crate::storage::DISK_FULL)]
    DiskFull {
        /// The shard.
        shard: ShardId,
        /// What the system said.
        error: io::Error,
    },
    /// The cluster writes what this node does not read.
    #[error("{}", reads.beyond(*active))]
    Schema {
        /// What the cluster writes.
        active: SchemaVersion,
        /// What this node reads.
        reads: SchemaRange,
    },
    /// openraft did not start.
    #[error("shard {shard}: {why}")]
    Raft {
        /// The shard.
        shard: ShardId,
        /// Its words.
        why: String,
    },
}

impl StartError {
    /// Tells a disk that is full from everything else that fails.
    pub(super) fn io(shard: ShardId, error: io::Error) -> StartError {
        if is_full(&error) {
            StartError::DiskFull { shard, error }
        } else {
            StartError::Io { shard, error }
        }
    }
}

/// Starts a shard's group on this thread's runtime.
///
/// # Errors
///
/// [`StartError`]; nothing that was acknowledged is lost by any of them.
pub async fn start_group(
    log: ShardLog,
    checkpoints: Checkpoints,
    desk: PageDesk,
    network: Network,
    options: StartOptions,
) -> Result<Group, StartError> {
    let shard = options.shard;
    let loaded = prepare(&log, &checkpoints, &desk, &network, &options).await?;
    let Loaded { ledger, position, membership } = loaded;
    let settings = options.settings.clone();
    let replayed_to = log.state().last.map(|at| at.index).unwrap_or_default();
    let replica =
        Arc::new(Replica::new(shard, settings, ledger, position, membership, replayed_to));
    replica.read_only(options.reads);
    let checkpoints = Arc::new(checkpoints);
    let machine = Machine::new(Arc::clone(&replica), Arc::clone(&checkpoints), options.cut_pages);
    let origin = Origin {
        log: log.clone(),
        desk: desk.clone(),
        network: network.clone(),
        options: options.clone(),
        links: Mutex::default(),
        electable: AtomicBool::new(options.electable),
    };
    let pace = Pace::new(Arc::clone(&replica), log.clone());
    let store = LogStore::new(log, options.append_bytes_max);
    let peers = Peers::new(network, shard, store.appended(), pace.clone());
    let config = config(&options).map_err(|error| StartError::Raft { shard, why: error })?;
    let raft = openraft::Raft::new(options.node.0, Arc::new(config), peers, store, machine)
        .await
        .map_err(|fatal| StartError::Raft { shard, why: fatal.to_string() })?;
    let (heard, cut_pages, origin) = (Arc::default(), options.cut_pages, Arc::new(origin));
    let group =
        Group { raft, replica, checkpoints, cut_pages, heard, origin, pace, turn: Arc::default() };
    group.set_electable(options.electable);
    Ok(group)
}

fn config(options: &StartOptions) -> Result<Config, String> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: format!("holdfast-{}", options.shard),
        heartbeat_interval: ms(options.heartbeat),
        heartbeat_min_interval: Some(ms(options.heartbeat) / 2),
        election_timeout_min: ms(options.election_min),
        election_timeout_max: ms(options.election_max),
        install_snapshot_timeout: ms(options.chunk_timeout),
        max_payload_entries: APPEND_ENTRIES_MAX.into(),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        purge_batch_size: 256,
        enable_pre_vote: Some(true),
        broadcast_submitted_on_append: Some(true),
        enable_leader_restore: Some(false),
        api_channel_size: Some(1024),
        notification_channel_size: Some(1024),
        state_machine_channel_size: Some(1024),
        ..Config::default()
    };
    config.validate().map_err(|error| error.to_string())
}

/// What a shard's state machine begins with.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) ledger: Ledger,
    pub(super) position: Option<LogPosition>,
    pub(super) membership: StoredMembershipOf<TypeConfig>,
}

/// Loads the ledger and makes the log agree with it. Whatever ends it in between, it may be done
/// again.
pub(super) async fn prepare(
    log: &ShardLog,
    checkpoints: &Checkpoints,
    desk: &PageDesk,
    network: &Network,
    options: &StartOptions,
) -> Result<Loaded, StartError> {
    let shard = options.shard;
    let loaded = load(log, checkpoints, desk, network, options).await?;
    let (active, reads) = (loaded.ledger.schema(), options.reads);
    if !reads.has(active) {
        return Err(StartError::Schema { active, reads });
    }
    let reconciled = reconcile(log, loaded.position).await;
    reconciled.map_err(|error| StartError::io(shard, error))?;
    Ok(loaded)
}

/// Loads the ledger from the best checkpoint there is.
async fn load(
    log: &ShardLog,
    checkpoints: &Checkpoints,
    desk: &PageDesk,
    network: &Network,
    options: &StartOptions,
) -> Result<Loaded, StartError> {
    let shard = options.shard;
    let io = |error: io::Error| StartError::io(shard, error);
    let purged = log.state().purged;
    for (turn, header) in checkpoints.candidates() {
        let reaches = header.state.position.map(|at| at.index) >= purged.map(|at| at.index);
        if !reaches {
            tracing::warn!(%shard, ?turn, "a checkpoint ends before the log begins");
            continue;
        }
        let (header, pages) = match checkpoints.load(turn).await {
            Ok(loaded) => loaded,
            Err(CheckpointError::Io(error)) if is_failing_device(&error) => {
                let why = format!("it cannot be read: {error}");
                checkpoints.mark_damaged(turn, &why).await.map_err(|e| io(e.into()))?;
                continue;
            }
            Err(error @ CheckpointError::Damaged { .. }) => {
                tracing::error!(%shard, ?turn, %error, "a checkpoint cannot be loaded");
                continue;
            }
            // No room, no file handle, a stuck thread: nothing is known against the checkpoint, and
            // an older one must not be loaded while this one counts as current.
            Err(
                error @ (CheckpointError::Io(_)
                | CheckpointError::Busy(_)
                | CheckpointError::NeedsWhole(_)
                | CheckpointError::IsCurrent(_)
                | CheckpointError::Foreign { .. }
                | CheckpointError::Refused(_)),
            ) => return Err(io(error.into())),
        };
        match made_of(shard, &options.settings, &header, pages) {
            Ok(loaded) => return Ok(loaded),
            Err(why) => {
                checkpoints.mark_damaged(turn, &why).await.map_err(|e| io(e.into()))?;
            }
        }
    }
    let Some(purged) = purged else {
        // Nothing was ever purged, so the log has everything from its first entry on.
        let ledger = Ledger::new(shard, options.settings.clone());
        let membership = StoredMembershipOf::<TypeConfig>::default();
        return Ok(Loaded { ledger, position: None, membership });
    };
    fetch(checkpoints, desk, network, options, purged).await
}

/// Tells whether a device says that it cannot read what was written.
fn is_failing_device(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    error.raw_os_error() == Some(EIO)
}

fn made_of(
    shard: ShardId,
    settings: &Settings,
    header: &CheckpointHeader,
    pages: Vec<(PageKey, Vec<u8>)>,
) -> Result<Loaded, String> {
    let ledger = Ledger::load(shard, settings.clone(), pages.into_iter())
        .map_err(|error| error.to_string())?;
    if ledger.digest() != header.state.digest {
        return Err("its pages do not have the digest of its header".to_owned());
    }
    let membership = checked_membership(header).map_err(|error| error.to_string())?;
    Ok(Loaded { ledger, position: header.state.position, membership })
}

/// Reads the membership of a checkpoint. It is never empty: a group's first entry names its
/// members.
pub(super) fn checked_membership(
    header: &CheckpointHeader,
) -> io::Result<StoredMembershipOf<TypeConfig>> {
    let membership = membership_of(header)?;
    if membership.voter_ids().next().is_none() {
        return Err(io::Error::other("it names no members"));
    }
    Ok(membership)
}

/// Makes the log agree with the checkpoint: keeps the tail behind it if the log has the
/// checkpoint's entry, and otherwise drops everything after the purge point and begins at the
/// checkpoint.
async fn reconcile(log: &ShardLog, checkpoint: Option<LogPosition>) -> io::Result<()> {
    let Some(checkpoint) = checkpoint else { return Ok(()) };
    let state = log.state();
    if state.purged == Some(checkpoint) {
        return Ok(());
    }
    let at = checkpoint.index.0;
    let there = log.read(at..at.saturating_add(1), 1)?;
    if there.first().is_some_and(|entry| entry.position == checkpoint) {
        return Ok(());
    }
    tracing::warn!(?checkpoint, last = ?state.last, "the log does not lead to the checkpoint");
    let keep: Option<LogIndex> = state.purged.map(|at| at.index);
    log.truncate_after(keep).await?;
    log.purge(checkpoint).await
}

#[cfg(test)]
mod tests;
