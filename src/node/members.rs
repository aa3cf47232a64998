//! The members that a node was told at `cluster init`, kept beside its identity: whom to speak to
//! before any membership entry was applied here, and whom to fetch a checkpoint from.

use std::path::Path;

use crate::codec;
use crate::shard::MemberSpec;
use crate::storage::{Disk, read_if_there, write_durably};

const FILE: &str = "members";
const KIND: u16 = 0x0401;
const VERSION: u16 = 1;
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Reads the members; `None` before `cluster init` named them.
///
/// # Errors
///
/// When the file cannot be read or is damaged.
pub(super) fn read(disk: &dyn Disk, dir: &Path) -> std::io::Result<Option<Vec<MemberSpec>>> {
    let Some(bytes) = read_if_there(disk, &dir.join(FILE), BYTES_MAX)? else { return Ok(None) };
    let decoded = codec::open(KIND, VERSION, &bytes).and_then(codec::decode);
    decoded.map(Some).map_err(|error| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, format!("the file {FILE}: {error}"))
    })
}

/// Writes the members durably.
///
/// # Errors
///
/// What the disk said.
pub(super) fn write(disk: &dyn Disk, dir: &Path, members: &[MemberSpec]) -> std::io::Result<()> {
    let payload = codec::encode(&members).map_err(std::io::Error::other)?;
    write_durably(disk, dir, FILE, &codec::seal(KIND, VERSION, &payload))
}
