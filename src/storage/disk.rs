//! The only door to the file system for the write-ahead log and everything that must be tested by
//! power cuts: a [`Disk`] is the real one or [`SimDisk`](super::SimDisk).
//!
//! A write is volatile until the file's [`DiskFile::sync_data`] returns; a name made, renamed or
//! removed is volatile until [`Disk::sync_dir`] of its directory returns. Nothing here retries,
//! and nothing here syncs without being asked.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::runtime;

/// A place for files: the machine's file system, or a simulated disk.
pub trait Disk: Debug + Send + Sync {
    /// Creates an empty file for reading and writing, emptying one that is there.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that exists for reading and writing, leaving it as it is.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is none, and what else the file system says.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Returns the names in a directory, sorted; files and directories alike.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such directory, and what else the file system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Renames a file, replacing what has the new name. Volatile until [`Disk::sync_dir`].
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Handles to it go on reading. Volatile until [`Disk::sync_dir`].
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory and its missing parents. Volatile until [`Disk::sync_dir`] of each
    /// directory that received a name.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    ///
    /// What the file system says; what is durable is unknown then.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns how many bytes this process may still write below `dir`.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;

    /// Returns the size of the disk below `dir`, in bytes.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn total_bytes(&self, dir: &Path) -> io::Result<u64>;

    /// Returns how long a sync begun now takes in *virtual* time. The simulated driver sleeps it;
    /// zero on a real disk, whose syncs take their own time.
    fn sync_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Tells whether a sync begun now would hang. Only a simulated disk knows.
    fn is_hung(&self) -> bool {
        false
    }
}

/// An open file. Offsets and lengths are in bytes. Shared: reads and writes carry their offset.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; zero at or behind the end.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`, growing the file when needed.
    ///
    /// # Errors
    ///
    /// What the file system says; some of the bytes may have been written then.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything written so far, and the length, durable (fdatasync).
    ///
    /// # Errors
    ///
    /// What the file system says. Never try again and believe the second answer: the kernel may
    /// have dropped the pages that it failed to write.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts or extends the file to `length`.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Returns the file's length.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn length(&self) -> io::Result<u64>;

    /// Fills all of `buffer` from `offset`.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` when the file is shorter, and what [`DiskFile::read_at`] says.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read_at(offset + done as u64, &mut buffer[done..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}

/// What to do about a disk that is full when a node starts.
pub const DISK_FULL: &str = "the disk is full: free space and start again; nothing is lost";

/// Tells whether an error says that the disk has no room, or none for this user.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Creates a directory and its missing parents so that a power cut does not take them away again,
/// whoever made them: a directory's own name lives in its parent.
///
/// # Errors
///
/// What the disk said. A parent that this process may not open gave it no names either.
pub fn create_dir_durably(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.create_dir_all(dir)?;
    for parent in dir.ancestors().skip(1) {
        match disk.sync_dir(parent) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// Writes a small file in the place of any other of that name, durably: beside it (`NAME.tmp`),
/// synced, renamed, the directory synced.
///
/// # Errors
///
/// What the disk said: then the old file is there, or this one, whole.
pub fn write_durably(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let beside = dir.join(format!("{name}.tmp"));
    let file = disk.create(&beside)?;
    file.write_at(0, bytes)?;
    file.sync_data()?;
    disk.rename(&beside, &dir.join(name))?;
    disk.sync_dir(dir)
}

/// Reads a small file, its first `bytes_max` bytes; `None` when there is none.
///
/// # Errors
///
/// What the disk said.
pub fn read_if_there(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; usize::try_from(file.length()?.min(bytes_max)).unwrap_or(0)];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(read as u64, &mut bytes[read..])? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// The machine's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile(fs::File);

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file =
            fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(fs::OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is not UTF-8 is none of ours; it is listed all the same, changed.
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        fs::File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read_at(buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// The size of the chunks in which zeros are written, in bytes.
pub(crate) const ZERO_CHUNK_BYTES: usize = 256 << 10;

/// Creates a file of `bytes` *written* zeros and syncs it. Unwritten extents would cost a metadata
/// commit at every fdatasync. It is synced every few MiB, so that the log, which shares the disk,
/// never waits behind all of it. The name is the caller's to sync.
///
/// # Errors
///
/// What the file system says.
pub(crate) fn create_zeroed(
    disk: &dyn Disk,
    path: &Path,
    bytes: u64,
) -> io::Result<Arc<dyn DiskFile>> {
    /// How much may be written between two syncs, in bytes.
    const UNSYNCED_BYTES_MAX: u64 = 2 << 20;
    let file = disk.create(path)?;
    let zeros = vec![0_u8; ZERO_CHUNK_BYTES];
    let mut at = 0;
    while at < bytes {
        let step = (bytes - at).min(ZERO_CHUNK_BYTES as u64);
        file.write_at(at, &zeros[..usize::try_from(step).expect("a chunk fits in memory")])?;
        at += step;
        if at.is_multiple_of(UNSYNCED_BYTES_MAX) && at < bytes {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    Ok(file)
}

/// Measures the disk as the log uses it: `count` times 4 KiB written behind each other into a
/// preallocated file, each followed by an fdatasync. Returns how long each pair took, in order.
/// The file is removed again.
///
/// # Errors
///
/// What the file system says.
pub fn measure_sync(disk: &dyn Disk, dir: &Path, count: usize) -> io::Result<Vec<Duration>> {
    /// What one write carries, in bytes: a small batch of reservations.
    const WRITE_BYTES: usize = 4 << 10;
    /// The size of the file, in bytes; writes go round in it.
    const FILE_BYTES: u64 = 4 << 20;
    let path = dir.join("measure-sync.tmp");
    let file = create_zeroed(disk, &path, FILE_BYTES)?;
    let page = [0x5a_u8; WRITE_BYTES];
    let measured = (0..count as u64)
        .map(|turn| {
            let begun = runtime::now();
            file.write_at(turn * WRITE_BYTES as u64 % FILE_BYTES, &page)?;
            file.sync_data()?;
            Ok(runtime::now() - begun)
        })
        .collect();
    disk.remove(&path)?;
    measured
}
