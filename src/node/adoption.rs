//! The mark that an adoption is under way, so that a node killed in the middle of `cluster init` is
//! empty again and not one that lost its identity.
//!
//! The mark is durable before the log is made, and goes after the identity is durable. A log beside
//! the mark and without an identity has never voted: nobody was ever told its uuid.

use std::io;
use std::path::Path;

use crate::storage::Disk;
use crate::storage::identity::IDENTITY_FILE;

const MARK: &str = "adopting";

/// Sets the mark, durably.
///
/// # Errors
///
/// What the disk said.
pub(super) fn begin(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.create(&dir.join(MARK))?.sync_data()?;
    disk.sync_dir(dir)
}

/// Takes the mark away.
///
/// # Errors
///
/// What the disk said.
pub(super) fn end(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.remove(&dir.join(MARK))?;
    disk.sync_dir(dir)
}

/// Undoes an adoption that was cut short: removes the log that it made. Does nothing without a
/// mark.
///
/// # Errors
///
/// What the disk said; the mark stays then.
pub(super) fn undo(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    if !has(disk, &dir.join(MARK))? {
        return Ok(());
    }
    if !has(disk, &dir.join(IDENTITY_FILE))? {
        tracing::warn!("`cluster init` was cut short on this node: it is empty again");
        let log = dir.join("log");
        let names = match disk.list(&log) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        for name in names {
            disk.remove(&log.join(name))?;
        }
        if has(disk, &log)? {
            disk.sync_dir(&log)?;
        }
    }
    end(disk, dir)
}

/// Tells whether a name is there.
fn has(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    match disk.list(dir) {
        Ok(names) => Ok(names.iter().any(|known| name == known.as_str())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::storage::{Identity, IdentityError, LogOptions, NodeLog, RealDisk};

    #[tokio::test]
    async fn node_killed_between_its_log_and_its_identity_is_empty_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        begin(disk.as_ref(), dir.path()).expect("the mark");
        let options = LogOptions {
            segment_bytes: 1 << 20,
            payload_bytes_max: 1 << 16,
            ..LogOptions::default()
        };
        let log = dir.path().join("log");
        let made = NodeLog::create(Arc::clone(&disk), &log, [7; 16], options.clone());
        made.expect("a log").close().await.expect("closed");

        undo(disk.as_ref(), dir.path()).expect("undone");
        let read = Identity::read(disk.as_ref(), dir.path());
        assert!(matches!(read, Err(IdentityError::NotInitialised)), "{read:?}");
        // And it can be adopted anew.
        begin(disk.as_ref(), dir.path()).expect("the mark");
        let made = NodeLog::create(disk, &log, [8; 16], options);
        made.expect("another log").close().await.expect("closed");
    }

    #[tokio::test]
    async fn log_without_identity_and_without_the_mark_is_never_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("log")).expect("a directory");
        std::fs::write(dir.path().join("log/segment"), b"x").expect("a file");
        undo(&RealDisk, dir.path()).expect("nothing to undo");
        let read = Identity::read(&RealDisk, dir.path());
        assert!(matches!(read, Err(IdentityError::Lost(_))), "{read:?}");
    }
}
