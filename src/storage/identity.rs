//! The identity of a node: whose data a directory is.
//!
//! One file, `identity`, in the data directory: a sealed envelope whose version is the format of
//! everything in the directory. It is written by `cluster init` and `join` and by nothing else,
//! before the first vote, and names the log that votes (design §7: a missing, empty or different
//! log under a listed uuid stops the node).
//!
//! Promises: the file is replaced atomically and durably or not at all; a directory that holds data
//! but no identity is not taken for an empty one; a file that does not read stops the node rather
//! than starting it under no name.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoint::Origin;
use super::{Disk, write_durably};
use crate::codec::{self, CodecError};
use crate::ledger::{NodeId, Settings, ShardId, UnixMs};

/// The name of the identity file within the data directory.
pub const IDENTITY_FILE: &str = "identity";
/// The envelope kind of an identity.
const IDENTITY_KIND: u16 = 0x0313;
/// The format of a data directory that this build reads and writes.
pub const FORMAT: u16 = 1;
/// An identity is smaller than this, in bytes.
const IDENTITY_BYTES_MAX: u64 = 16 << 10;

/// Whose data a directory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster, random, given at `cluster init`.
    pub cluster_id: [u8; 16],
    /// The node, given by the cluster and never reused.
    pub node: NodeId,
    /// The write-ahead log that may vote for this node, random, never reused.
    pub log_uuid: [u8; 16],
    /// What every replica agrees on for the life of the cluster.
    pub settings: Settings,
    /// The region that this node stands in, when it was made.
    pub region: String,
    /// When it was made, by this node's wall clock; for people only.
    pub created_at: UnixMs,
}

/// Why there is no identity to start under.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// There is no identity and nothing else: the node was never initialised.
    #[error("this node is not initialised: there is no identity in its data directory")]
    NotInitialised,
    /// There is no identity, but there is data: it was lost, and nothing may start without it.
    #[error(
        "the identity file is missing, but the data directory holds `{0}`: put the very file back. \
         Without it this node cannot take part: `holdfast node replace ID` on another node brings \
         this machine back under a new id, with an empty directory; see docs/operations.md"
    )]
    Lost(String),
    /// The file is not what was written.
    #[error(
        "the identity file is damaged ({0}): this node cannot take part without it. `holdfast node \
         replace ID` on another node brings this machine back under a new id, with an empty \
         directory; see docs/operations.md"
    )]
    Damaged(CodecError),
    /// The directory was written by a build that this one does not understand.
    #[error("the data directory has format {found}, and this build reads format {FORMAT} only")]
    OtherFormat {
        /// The format found.
        found: u16,
    },
    /// An identity is there already; it is never overwritten by a new one.
    #[error("this node is initialised already")]
    Exists,
    /// The disk failed.
    #[error("identity file: {0}")]
    Io(#[from] io::Error),
}

impl Identity {
    /// Reads the identity of a data directory.
    ///
    /// # Errors
    ///
    /// [`IdentityError`]: only [`IdentityError::NotInitialised`] says that a node may be made here.
    pub fn read(disk: &dyn Disk, dir: &Path) -> Result<Identity, IdentityError> {
        let file = match disk.open(&dir.join(IDENTITY_FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(missing(disk, dir));
            }
            Err(error) => return Err(error.into()),
        };
        let length = file.length()?;
        if length > IDENTITY_BYTES_MAX {
            return Err(IdentityError::Damaged(CodecError::Envelope("far too long")));
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        file.read_exact_at(0, &mut bytes)?;
        let opened = codec::open(IDENTITY_KIND, FORMAT, &bytes);
        match opened.and_then(codec::decode) {
            Ok(identity) => Ok(identity),
            Err(CodecError::Version { found, .. }) => Err(IdentityError::OtherFormat { found }),
            Err(
                error @ (CodecError::Bincode(_) | CodecError::Envelope(_) | CodecError::Checksum),
            ) => Err(IdentityError::Damaged(error)),
        }
    }

    /// Writes the first identity of a data directory, durably.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Exists`] when there is a file of that name, whatever is in it;
    /// [`IdentityError::Io`] (then there is a whole identity or none).
    pub fn create(&self, disk: &dyn Disk, dir: &Path) -> Result<(), IdentityError> {
        match disk.open(&dir.join(IDENTITY_FILE)) {
            Ok(_) => Err(IdentityError::Exists),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.replace(disk, dir),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes this identity in the place of any other, durably: beside it, synced, renamed, the
    /// directory synced.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Io`]: then the old one is there, or this one, whole.
    pub fn replace(&self, disk: &dyn Disk, dir: &Path) -> Result<(), IdentityError> {
        let payload = codec::encode(self).map_err(IdentityError::Damaged)?;
        let sealed = codec::seal(IDENTITY_KIND, FORMAT, &payload);
        if sealed.len() as u64 > IDENTITY_BYTES_MAX {
            let reason = "the identity does not fit its file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason).into());
        }
        Ok(write_durably(disk, dir, IDENTITY_FILE, &sealed)?)
    }

    /// Returns the origin that one shard's page databases must have.
    pub fn origin(&self, shard: ShardId) -> Origin {
        Origin::new(self.cluster_id, &self.settings, shard)
    }
}

/// Says what a directory without an identity is.
fn missing(disk: &dyn Disk, dir: &Path) -> IdentityError {
    let names = match disk.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return error.into(),
    };
    let is_data = |name: &String| {
        let holds_something = |dir: &Path| disk.list(dir).is_ok_and(|names| !names.is_empty());
        (name == "log" && holds_something(&dir.join(name))) || name.starts_with("shard-")
    };
    match names.into_iter().find(is_data) {
        Some(name) => IdentityError::Lost(name),
        None => IdentityError::NotInitialised,
    }
}
