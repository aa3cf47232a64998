//! The node: it owns everything, places it on threads, starts it and stops it.
//!
//! A node is empty until `cluster init` gives it an identity and its members; from then on it
//! starts by itself. It never makes a cluster by itself: a wiped node must not found a second one.

mod adoption;
mod announcement;
mod clocks;
mod counter;
pub mod inspection;
mod joining;
mod members;
mod memory;
mod office;
mod parts;
mod roll;
mod room;
mod running;
pub mod salvage;
mod schema;
mod threads;
mod watch;

use crate::storage::is_full;

pub use counter::Counter;
pub use office::{Ended, Office};
pub use parts::{NetworkOf, PagesOf, Parts, PlaceOf, Random, sled_pages};
pub use threads::Node;

/// What an error adds that comes of a full disk.
const FULL: &str = ". The disk is full: free space and start again; nothing is lost";

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] crate::storage::DataDirError),
    /// The identity cannot be used.
    #[error(transparent)]
    Identity(#[from] crate::storage::IdentityError),
    /// The log cannot be used: this node does not vote.
    #[error("{error}{}", mend(.error))]
    Log {
        /// What was found.
        #[from]
        error: crate::storage::LogError,
    },
    /// The page databases cannot be used.
    #[error("{error}{}", mend_pages(.error))]
    Pages {
        /// What was found.
        #[from]
        error: crate::storage::CheckpointError,
    },
    /// The members were known here and are not any more.
    #[error(
        "the file `members` is missing, but this node has taken part in its cluster: copy \
         `members` from the data directory of any other node of the cluster (it is the same on \
         every node) \
         into {} and start again",
        dir.display()
    )]
    MembersLost {
        /// The data directory.
        dir: std::path::PathBuf,
    },
    /// `holdfast recover` gave this directory's state to a new cluster.
    #[error(
        "{} is given up: its state went to a new cluster (the file `{}` says which). Starting it \
         again would sell the same stock twice",
        dir.display(),
        crate::storage::visit::RETIRED_FILE
    )]
    Retired {
        /// The data directory.
        dir: std::path::PathBuf,
    },
    /// A shard does not start.
    #[error(transparent)]
    Shard(#[from] crate::raft::StartError),
    /// A listener, a thread or a file failed.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The cluster writes what this node does not read.
    #[error("{}", reads.beyond(*active))]
    Schema {
        /// What the cluster writes.
        active: crate::ledger::SchemaVersion,
        /// What this node reads.
        reads: crate::ledger::SchemaRange,
    },
    /// The cluster's keys in the configuration are not those of the identity.
    #[error("{0}")]
    Mismatch(String),
}

/// Says what mends a log that cannot be trusted.
fn mend(error: &crate::storage::LogError) -> &'static str {
    use crate::storage::LogError;
    match error {
        LogError::Lost { .. } | LogError::Foreign { .. } | LogError::Damaged { .. } => {
            ". What this node promised to its peers is gone, so it must not vote under this id \
             again. The cluster goes on with the others. Bring this machine back under a new id: \
             run `holdfast node replace ID` on another node, move this directory away, and start \
             with the token; see docs/operations.md"
        }
        LogError::Io { source, .. } if is_full(source) => FULL,
        LogError::Exists { .. } | LogError::Options(_) | LogError::Io { .. } => "",
    }
}

/// Says what mends page databases that cannot be opened.
fn mend_pages(error: &crate::storage::CheckpointError) -> &'static str {
    use crate::storage::CheckpointError;
    match error {
        CheckpointError::Foreign { .. } => {
            ". Somebody mixed up data directories: give this node its own again"
        }
        CheckpointError::Io(error) if is_full(error) => FULL,
        CheckpointError::Io(_)
        | CheckpointError::Busy(_)
        | CheckpointError::NeedsWhole(_)
        | CheckpointError::IsCurrent(_)
        | CheckpointError::Damaged { .. }
        | CheckpointError::Refused(_) => "",
    }
}

impl NodeError {
    pub(crate) fn io(what: impl Into<String>, error: std::io::Error) -> NodeError {
        NodeError::Io { what: what.into(), error }
    }
}
