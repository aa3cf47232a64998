//! Storage: promises in the log, state in sled. The only room that touches files.
//!
//! The write-ahead log remembers the order in which the ledger was asked; two page databases a
//! shard, written in turn, keep the ledger's pages; the identity file says whose data this is.
//! `sled::` is named in here and nowhere else.

pub mod checkpoint;
pub mod data_dir;
mod disk;
pub mod identity;
pub mod log;
pub mod pages;
mod sim_disk;
pub mod visit;

pub use checkpoint::{
    CheckpointError, CheckpointHeader, CheckpointReceiver, CheckpointState, CheckpointWriter,
    Checkpoints, Origin, PageDesk, PinnedCheckpoint,
};
pub use data_dir::{Ballast, DataDir, DataDirError};
pub use disk::{
    DISK_FULL, Disk, DiskFile, RealDisk, create_dir_durably, is_full, measure_sync, read_if_there,
    write_durably,
};
pub use identity::{Identity, IdentityError};
pub use log::{
    LogEntry, LogError, LogHealth, LogOptions, LogPosition, NodeLog, ReadLog, ShardLog,
    ShardLogState,
};
pub use sim_disk::{Choice, Fault, SECTOR_BYTES, SimDisk};
pub use visit::{ReadOnlyDisk, Visit};
