//! The members that a node was told at `cluster init`, kept beside its identity: whom to speak to
//! before any membership entry was applied here, and whom to fetch a checkpoint from.

use std::path::Path;

use crate::codec;
use crate::shard::MemberSpec;
use crate::storage::Disk;

const FILE: &str = "members";
const BESIDE: &str = "members.tmp";
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
    let file = match disk.open(&dir.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.length()?.min(BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(read as u64, &mut bytes[read..])? {
            0 => break,
            more => read += more,
        }
    }
    let decoded = codec::open(KIND, VERSION, &bytes[..read]).and_then(codec::decode);
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
    let sealed = codec::seal(KIND, VERSION, &payload);
    let beside = dir.join(BESIDE);
    let file = disk.create(&beside)?;
    file.write_at(0, &sealed)?;
    file.sync_data()?;
    disk.rename(&beside, &dir.join(FILE))?;
    disk.sync_dir(dir)
}
