//! The data directory of a node: its layout, its lock, and the ballast.
//!
//! ```text
//! identity      whose data this is
//! members       who the cluster's members are; the same on each of them
//! lock          held by the process that runs on it
//! ballast       room for one checkpoint on a full disk
//! log/          the write-ahead log of all shards
//! shard-N/a, b  the two page databases of shard N, a.seal and b.seal beside them
//! ```
//!
//! Promises: no two processes are in one directory at once; the ballast is really allocated
//! (written zeros, synced) or not there. It never touches what is in `log/` or `shard-N/`.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Disk;
use crate::ledger::ShardId;

/// The size of the ballast unless it is configured, in bytes.
pub const BALLAST_BYTES_DEFAULT: u64 = 64 << 20;
pub(super) const LOCK_FILE: &str = "lock";
const BALLAST_FILE: &str = "ballast";
const BALLAST_BESIDE: &str = "ballast.tmp";
/// What a page database may take beyond the bytes that are copied of it: it is opened for writing.
const COPY_SLACK_BYTES: u64 = 16 << 20;
const ZEROS_BYTES: usize = 1 << 20;

/// Why a process may not have a data directory.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process is in it.
    #[error("another process{holder} runs on the data directory {}", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// ` (pid N)`, or nothing when it did not say.
        holder: String,
    },
    /// It cannot be made or locked.
    #[error("data directory {}: {error}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the file system says.
        error: io::Error,
    },
}

/// Says who has the lock, as far as the file tells: the lock decides, the number is a courtesy.
pub(super) fn holder_of(lock: File) -> String {
    let mut pid = String::new();
    let read = lock.take(20).read_to_string(&mut pid);
    let known = read.is_ok() && pid.trim().parse::<u32>().is_ok();
    if known { format!(" (pid {})", pid.trim()) } else { String::new() }
}

/// A data directory that this process has for itself until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// The kernel gives the lock back when the process ends, however it ends.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is not there, and locks it.
    ///
    /// # Errors
    ///
    /// [`DataDirError::InUse`], [`DataDirError::Io`].
    pub fn lock(path: impl Into<PathBuf>) -> Result<DataDir, DataDirError> {
        let path = path.into();
        let failed = |error| DataDirError::Io { dir: path.clone(), error };
        fs::create_dir_all(&path).map_err(failed)?;
        let name = path.join(LOCK_FILE);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(name).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DataDirError::InUse { dir: path, holder: holder_of(lock) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The number is a courtesy: a full disk has no room for it, which stops nobody.
        if let Err(error) = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()))
        {
            tracing::warn!(%error, "the lock file does not say whose it is");
        }
        Ok(DataDir { path, _lock: lock })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns where the write-ahead log is.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Returns where the page databases of one shard are.
    pub fn shard(&self, shard: ShardId) -> PathBuf {
        self.path.join(format!("shard-{shard}"))
    }
}

/// A file of zeros that is given up when the disk is full, so that one more checkpoint fits and the
/// log can be purged behind it.
#[derive(Debug)]
pub struct Ballast {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    bytes: u64,
}

impl Ballast {
    /// Returns the ballast of a data directory; none is kept when `bytes` is zero.
    pub fn new(disk: Arc<dyn Disk>, dir: impl Into<PathBuf>, bytes: u64) -> Ballast {
        Ballast { disk, dir: dir.into(), bytes }
    }

    /// Tells whether it is there in its full size.
    pub fn is_there(&self) -> bool {
        let file = self.disk.open(&self.dir.join(BALLAST_FILE));
        file.and_then(|file| file.length()).is_ok_and(|length| length == self.bytes)
    }

    /// Returns how many bytes may still be written beside it.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes(&self.dir)
    }

    /// Gives the room back, durably. Returns whether there was any to give.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn release(&self) -> io::Result<bool> {
        let was_there = self.remove(BALLAST_FILE)?;
        self.remove(BALLAST_BESIDE)?;
        self.disk.sync_dir(&self.dir)?;
        Ok(was_there)
    }

    /// Takes the room again if it is not held and the disk has it twice over: the ballast must not
    /// be what fills the disk. Returns whether it is there now.
    ///
    /// # Errors
    ///
    /// What the disk says; nothing of it stays then.
    pub fn restore(&self) -> io::Result<bool> {
        if self.bytes == 0 {
            self.release()?;
            return Ok(false);
        }
        if self.is_there() {
            return Ok(true);
        }
        self.release()?;
        if self.disk.free_bytes(&self.dir)? < self.bytes.saturating_mul(2) {
            return Ok(false);
        }
        if let Err(error) = self.write() {
            self.release()?;
            return Err(error);
        }
        Ok(true)
    }

    /// Gives the room back if a start could do with it: when less is free than loading the largest
    /// page database takes, which is copied for it, or than the ballast itself. Returns whether it
    /// did.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn release_for_start(&self) -> io::Result<bool> {
        let free = self.free_bytes()?;
        let copy = self.largest_database()?.saturating_add(COPY_SLACK_BYTES);
        if free >= copy.max(self.bytes) {
            return Ok(false);
        }
        self.release()
    }

    /// Returns the bytes of the largest page database of any shard.
    fn largest_database(&self) -> io::Result<u64> {
        let list = |dir: &Path| match self.disk.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed,
        };
        let mut largest = 0;
        for shard in list(&self.dir)?.iter().filter(|name| name.starts_with("shard-")) {
            for database in ["a", "b"] {
                let dir = self.dir.join(shard).join(database);
                let mut bytes = 0u64;
                for name in list(&dir)? {
                    // What is no file, or has just gone, takes nothing.
                    let length = self.disk.open(&dir.join(name)).and_then(|file| file.length());
                    bytes = bytes.saturating_add(length.unwrap_or(0));
                }
                largest = largest.max(bytes);
            }
        }
        Ok(largest)
    }

    fn write(&self) -> io::Result<()> {
        let beside = self.dir.join(BALLAST_BESIDE);
        let file = self.disk.create(&beside)?;
        let zeros = vec![0; ZEROS_BYTES];
        let mut at = 0;
        while at < self.bytes {
            let step = zeros.len().min(usize::try_from(self.bytes - at).unwrap_or(usize::MAX));
            file.write_at(at, &zeros[..step])?;
            at += step as u64;
        }
        file.sync_data()?;
        self.disk.rename(&beside, &self.dir.join(BALLAST_FILE))?;
        self.disk.sync_dir(&self.dir)
    }

    fn remove(&self, name: &str) -> io::Result<bool> {
        match self.disk.remove(&self.dir.join(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
