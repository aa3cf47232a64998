//! The schema version that the cluster writes, kept beside the identity as soon as it is not the
//! first: a build that does not read it does not start, and says why, before it looks at anything
//! that it might misread.

use std::path::Path;

use crate::codec;
use crate::config::Config;
use crate::ledger::{SchemaRange, SchemaVersion};
use crate::storage::{Disk, read_if_there, write_durably};

const FILE: &str = "schema";
const KIND: u16 = 0x0404;
const VERSION: u16 = 1;
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 10;

/// Returns the schema versions that a node of this configuration reads.
pub(super) fn reads(config: &Config) -> SchemaRange {
    SchemaRange::up_to(SchemaVersion(config.node.schema_max).min(SchemaVersion::NEWEST))
}

/// Reads the version that the cluster writes, as far as this directory knows.
///
/// # Errors
///
/// When the file cannot be read or is damaged.
pub(super) fn read(disk: &dyn Disk, dir: &Path) -> std::io::Result<SchemaVersion> {
    let Some(bytes) = read_if_there(disk, &dir.join(FILE), BYTES_MAX)? else {
        return Ok(SchemaVersion::FIRST);
    };
    let decoded = codec::open(KIND, VERSION, &bytes).and_then(codec::decode);
    decoded.map_err(std::io::Error::other)
}

/// Writes that version down durably.
///
/// # Errors
///
/// What the disk said.
pub(super) fn write(disk: &dyn Disk, dir: &Path, active: SchemaVersion) -> std::io::Result<()> {
    let payload = codec::encode(&active).map_err(std::io::Error::other)?;
    write_durably(disk, dir, FILE, &codec::seal(KIND, VERSION, &payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::RealDisk;

    #[test]
    fn a_node_reads_what_its_build_reads_unless_it_is_held_back() {
        let mut config = Config::default();
        assert_eq!(reads(&config), SchemaRange::up_to(SchemaVersion::NEWEST));
        config.node.schema_max = 1;
        assert_eq!(reads(&config), SchemaRange::up_to(SchemaVersion::FIRST));
    }

    #[test]
    fn a_directory_without_the_file_is_of_the_first_version() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(&RealDisk, dir.path()).expect("none"), SchemaVersion::FIRST);
        write(&RealDisk, dir.path(), SchemaVersion(7)).expect("written");
        assert_eq!(read(&RealDisk, dir.path()).expect("there"), SchemaVersion(7));
    }
}
