//! The seal of a closed page database: its header and a hash of each of its files.
//!
//! sled can tell some damage and panics, hangs or stays silent at other. So it is never shown bytes
//! that are not exactly those it left when the database was closed: the seal is written after the
//! files were synced, removed before they are opened for writing, and every byte is compared before
//! sled may read it. A database without its seal, with another file, a missing one, another length
//! or another hash is damaged. A seal is one sealed envelope, replaced atomically.
//!
//! This file never writes to the database itself.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::PageError;
use crate::codec;

/// The envelope kind of a seal.
pub const SEAL_KIND: u16 = 0x0311;
const SEAL_VERSION: u16 = 1;
/// The most files that a database has: `db`, `conf` and snapshots that sled is about to remove.
const FILES_MAX: usize = 64;
/// A seal with its header is smaller than this, in bytes.
const SEAL_BYTES_MAX: u64 = 2 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// What a closed database consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The header of the checkpoint, as its owner encoded it.
    pub header: Vec<u8>,
    files: Vec<FileSeal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileSeal {
    name: String,
    bytes: u64,
    hash: u128,
}

impl Seal {
    /// Reads every file of `dir` and returns its seal.
    ///
    /// # Errors
    ///
    /// [`PageError::Io`]; [`PageError::Damaged`] when something other than files is in there.
    pub fn take(dir: &Path, header: &[u8]) -> Result<Seal, PageError> {
        let mut files = Vec::new();
        for (name, _) in list(dir)? {
            let (bytes, hash) = hash(&dir.join(&name), None)?;
            files.push(FileSeal { name, bytes, hash });
        }
        Ok(Seal { header: header.to_vec(), files })
    }

    /// Writes the seal to `path` atomically and durably: beside it, synced, renamed, directory
    /// synced.
    ///
    /// # Errors
    ///
    /// [`PageError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), PageError> {
        let payload = codec::encode(self)
            .map_err(|error| PageError::Io(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        let beside = path.with_extension("seal.tmp");
        let mut file = File::create(&beside)?;
        file.write_all(&codec::seal(SEAL_KIND, SEAL_VERSION, &payload))?;
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, path)?;
        sync_parent(path)
    }

    /// Reads the seal at `path`; `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`PageError::Damaged`] when it is not a whole seal, [`PageError::Io`].
    pub fn read(path: &Path) -> Result<Option<Seal>, PageError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(PageError::Damaged("its seal is not a file".into()));
        }
        let mut bytes = Vec::new();
        file.take(SEAL_BYTES_MAX).read_to_end(&mut bytes)?;
        let seal = codec::open(SEAL_KIND, SEAL_VERSION, &bytes)
            .and_then(codec::decode::<Seal>)
            .map_err(|error| PageError::Damaged(format!("its seal: {error}")))?;
        if seal.files.is_empty() || seal.files.len() > FILES_MAX {
            return Err(PageError::Damaged("its seal names no files, or too many".into()));
        }
        Ok(Some(seal))
    }

    /// Compares names and lengths of the files in `dir` with the seal's.
    ///
    /// # Errors
    ///
    /// [`PageError::Damaged`] naming the first file that differs, [`PageError::Io`].
    pub fn compare_lengths(&self, dir: &Path) -> Result<(), PageError> {
        let found = list(dir)?;
        for (name, bytes) in &found {
            match self.files.iter().find(|file| file.name == *name) {
                Some(file) if file.bytes == *bytes => {}
                Some(file) => {
                    let was = file.bytes;
                    return Err(PageError::Damaged(format!("{name} has {bytes} bytes, not {was}")));
                }
                None => return Err(PageError::Damaged(format!("{name} was not there"))),
            }
        }
        match self.files.iter().find(|file| !found.iter().any(|(name, _)| *name == file.name)) {
            Some(file) => Err(PageError::Damaged(format!("{} is missing", file.name))),
            None => Ok(()),
        }
    }

    /// Compares every byte of the files in `dir` with the seal, and copies them to `to` on the way
    /// when it is given (a directory that exists).
    ///
    /// # Errors
    ///
    /// [`PageError::Damaged`] naming the first file that differs, [`PageError::Io`].
    pub fn compare(&self, dir: &Path, to: Option<&Path>) -> Result<(), PageError> {
        self.compare_lengths(dir)?;
        for file in &self.files {
            let target = to.map(|to| to.join(&file.name));
            let (bytes, hash) = hash(&dir.join(&file.name), target.as_deref())?;
            if (bytes, hash) != (file.bytes, file.hash) {
                return Err(PageError::Damaged(format!("{} has other bytes", file.name)));
            }
        }
        Ok(())
    }
}

/// Returns the files of a database with their lengths, by name. sled's `blobs` directory must be
/// there empty or not at all: what it holds is never synced.
fn list(dir: &Path) -> Result<Vec<(String, u64)>, PageError> {
    if !fs::symlink_metadata(dir)?.is_dir() {
        return Err(PageError::Damaged("it is not a directory".into()));
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            return Err(PageError::Damaged("a file with a strange name".into()));
        };
        let meta = entry.metadata()?;
        if meta.is_dir() && name == "blobs" {
            if fs::read_dir(entry.path())?.next().is_some() {
                return Err(PageError::Damaged("blobs/ is not empty".into()));
            }
        } else if meta.is_file() && files.len() < FILES_MAX {
            files.push((name, meta.len()));
        } else {
            return Err(PageError::Damaged(format!("{name} does not belong there")));
        }
    }
    files.sort();
    Ok(files)
}

/// Returns length and hash of a file, copying it to `to` on the way.
fn hash(path: &Path, to: Option<&Path>) -> Result<(u64, u128), PageError> {
    let mut from = File::open(path)?;
    let mut to = to.map(File::create).transpose()?;
    let mut hasher = Xxh3::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let read = from.read(&mut chunk)?;
        if read == 0 {
            return Ok((bytes, hasher.digest128()));
        }
        hasher.update(&chunk[..read]);
        if let Some(to) = &mut to {
            to.write_all(&chunk[..read])?;
        }
        bytes += read as u64;
    }
}

/// Syncs every file of a database, its directories and their parent.
///
/// # Errors
///
/// [`PageError::Io`]; [`PageError::Damaged`] when `blobs/` holds anything.
pub fn sync_all(dir: &Path) -> Result<(), PageError> {
    for (name, _) in list(dir)? {
        File::open(dir.join(name))?.sync_data()?;
    }
    let blobs = dir.join("blobs");
    if blobs.is_dir() {
        File::open(blobs)?.sync_all()?;
    }
    File::open(dir)?.sync_all()?;
    sync_parent(dir)
}

/// Syncs the directory that `path` is in.
///
/// # Errors
///
/// [`PageError::Io`].
pub fn sync_parent(path: &Path) -> Result<(), PageError> {
    let parent = path.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf);
    let parent = if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent };
    Ok(File::open(parent)?.sync_all()?)
}
