//! A look at a data directory that changes nothing in it: for `holdfast doctor` and `recover`.
//!
//! Promises: while a [`Visit`] lives, no node runs in the directory and none can start there; no
//! file of it is opened for writing, made, renamed or removed, neither by the visit nor through its
//! [`ReadOnlyDisk`].

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::data_dir::{DataDirError, LOCK_FILE, holder_of};
use super::{Disk, DiskFile, RealDisk};

/// A file that keeps nodes from starting in a directory: its state was given to a new cluster.
pub const RETIRED_FILE: &str = "retired";

/// A data directory that no node runs in for as long as this lives.
#[derive(Debug)]
pub struct Visit {
    path: PathBuf,
    /// Shared with other visits; `None` when no node was ever here.
    _lock: Option<File>,
}

impl Visit {
    /// Begins a look at a directory.
    ///
    /// # Errors
    ///
    /// [`DataDirError::InUse`] while a node runs in it; [`DataDirError::Io`] when it cannot be
    /// looked at.
    pub fn begin(path: impl Into<PathBuf>) -> Result<Visit, DataDirError> {
        let path = path.into();
        let failed = |error| DataDirError::Io { dir: path.clone(), error };
        let listed = fs::read_dir(&path);
        listed.map_err(failed)?;
        let lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Visit { path, _lock: None });
            }
            Err(error) => return Err(failed(error)),
        };
        match lock.try_lock_shared() {
            Ok(()) => Ok(Visit { path, _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => {
                Err(DataDirError::InUse { dir: path, holder: holder_of(lock) })
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the disk to look with.
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(ReadOnlyDisk)
    }

    /// Returns the bytes of all files in the directory, those of its folders among them.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn bytes(&self) -> io::Result<u64> {
        bytes_below(&self.path)
    }
}

/// Returns the bytes of the files in a directory and below it; zero when it is not there.
///
/// # Errors
///
/// What the file system says.
pub fn bytes_below(dir: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut bytes = 0_u64;
    for entry in entries {
        let entry = entry?;
        let meta = entry.metadata()?;
        if meta.is_dir() {
            bytes = bytes.saturating_add(bytes_below(&entry.path())?);
        } else {
            bytes = bytes.saturating_add(meta.len());
        }
    }
    Ok(bytes)
}

/// The machine's file system, of which nothing can be changed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOnlyDisk;

#[derive(Debug)]
struct ReadOnlyFile(File);

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "this look changes nothing"))
}

impl Disk for ReadOnlyDisk {
    fn create(&self, _path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        refused()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(ReadOnlyFile(File::open(path)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(dir)
    }

    fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        RealDisk.total_bytes(dir)
    }
}

impl DiskFile for ReadOnlyFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read_at(buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        refused()
    }

    fn sync_data(&self) -> io::Result<()> {
        refused()
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        refused()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
