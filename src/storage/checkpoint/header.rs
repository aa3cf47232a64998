//! The header of a checkpoint: what the pages under it are.
//!
//! It is one sealed envelope, written after the pages and bound to them by the page store. It never
//! describes anything but pages that are whole.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::codec::{self, CodecError};
use crate::ledger::{Settings, ShardId, UnixMs};
use crate::storage::log::LogPosition;

/// The envelope kind of a checkpoint header.
const CHECKPOINT_KIND: u16 = 0x0312;
const CHECKPOINT_VERSION: u16 = 1;

/// Whose pages they are. Two databases with different origins are never mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The cluster.
    pub cluster: [u8; 16],
    /// A hash of the ledger's settings: [`Origin::new`].
    pub settings: u128,
    /// The shard.
    pub shard: ShardId,
}

impl Origin {
    /// Returns the origin of one shard's pages.
    ///
    /// # Panics
    ///
    /// Never: settings are a few bytes.
    pub fn new(cluster: [u8; 16], settings: &Settings, shard: ShardId) -> Origin {
        let bytes = codec::encode(settings).expect("settings are a few bytes");
        Origin { cluster, settings: xxh3_128(&bytes), shard }
    }

    /// Says in words what is different about `found`, if anything.
    pub fn differs(&self, found: &Origin) -> Option<String> {
        if found.cluster != self.cluster {
            let [found, own] = [found, self].map(|origin| u128::from_be_bytes(origin.cluster));
            Some(format!("it is of cluster {found:032x}, this node is of {own:032x}"))
        } else if found.shard != self.shard {
            Some(format!("it is of shard {}", found.shard))
        } else if found.settings != self.settings {
            Some("it was written under other settings of the ledger".into())
        } else {
            None
        }
    }
}

/// What the ledger says of itself at the cut: the part of a header that travels with a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckpointState {
    /// The last entry that was applied; `None` before the first.
    pub position: Option<LogPosition>,
    /// The membership at that entry, as `raft/` encoded it.
    pub membership: Vec<u8>,
    /// Ledger time.
    pub ledger_now: UnixMs,
    /// The ledger's digest.
    pub digest: u128,
}

/// The header of one checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointHeader {
    /// Counts the checkpoints of this shard on this node, received ones included; of two good
    /// databases the one with the greater is current.
    pub sequence: u64,
    /// Whose pages they are.
    pub origin: Origin,
    /// What they are.
    pub state: CheckpointState,
    /// How many pages there are.
    pub page_count: u64,
    /// Bytes of all keys and pages.
    pub page_bytes: u64,
}

impl CheckpointHeader {
    /// Encodes and seals it.
    ///
    /// # Errors
    ///
    /// [`CodecError`] when the membership in it is absurdly large.
    pub fn seal(&self) -> Result<Vec<u8>, CodecError> {
        Ok(codec::seal(CHECKPOINT_KIND, CHECKPOINT_VERSION, &codec::encode(self)?))
    }

    /// Opens a sealed header.
    ///
    /// # Errors
    ///
    /// [`CodecError`] when it is not a whole header of a version that this build reads.
    pub fn open(bytes: &[u8]) -> Result<CheckpointHeader, CodecError> {
        codec::decode(codec::open(CHECKPOINT_KIND, CHECKPOINT_VERSION, bytes)?)
    }
}
