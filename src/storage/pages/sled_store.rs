//! The page store on real files: each database is a sled 0.34.7 directory with a seal beside it.
//!
//! `a/` and `b/` are the databases, `a.seal` and `b.seal` their seals (see [`super::seal`]). sled
//! is used by these rules, each with a measurement behind it: 8 MiB segments, which can never
//! change; values ≤ 16 KiB and `blobs/` found empty, since sled never syncs what it writes there;
//! no compression; a small cache; deletes in steps; only the blocking `flush()`, from one thread
//! at a time, never the asynchronous one; every file synced by us, since sled's flush is not a
//! sync; panics caught; closing and its file lock waited for with a deadline. After a panic the
//! database object is leaked on purpose: dropping it may wait for a thread that is gone.
//!
//! An empty `snap.*` file (sled's own hard-stop damage, which blocks its open) is *not* mended by
//! removing it: a database that was closed and synced by us cannot come by one, so it is damage at
//! rest like any other, and the other database, the log or a peer has the state.
//!
//! This file never opens a closed database in order to read it: sled's open writes. Reading works
//! on a private copy in the same directory, which is compared with the seal while it is copied.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::seal::{Seal, sync_all, sync_parent};
use super::{
    AtRest, HEADER_BYTES_MAX, PageChange, PageError, PageReader, PageStore, PageWriter, StepSum,
    StoredPage, check_changes, count_change,
};
use crate::ledger::{PageKey, Turn};
use crate::planted::{Fault, planted};
use crate::storage::{Disk, RealDisk};

/// sled's segment size, in bytes. It is in the files: it can never change.
const SEGMENT_BYTES: usize = 8 << 20;
/// sled's page cache of one open database, in bytes.
const CACHE_BYTES: u64 = 32 << 20;
/// How often sled's own thread rolls its buffer and rewrites pages out of sparse segments, in ms.
const FLUSH_EVERY_MS: u64 = 500;
/// How long closing a database may take before it is given up for damaged.
const CLOSE_WAIT: Duration = Duration::from_secs(60);
/// The tree that holds the pages; the default tree holds the header.
const PAGES_TREE: &[u8] = b"pages";
const HEADER_KEY: &[u8] = b"header";
/// What the names of private copies begin with.
const COPY: &str = "copy";

/// With less room than this beside a copy, in bytes, sled's failure on it is the disk's.
const COPY_ROOM_BYTES_MIN: u64 = 2 * SEGMENT_BYTES as u64;

/// The two page databases of one shard in a directory.
#[derive(Debug, Clone)]
pub struct SledPages {
    dir: PathBuf,
    /// Where private copies are made: the directory itself, unless nothing may change in there.
    scratch: PathBuf,
}

/// Numbers the private copies of this process.
static PRIVATE: AtomicU64 = AtomicU64::new(0);

impl SledPages {
    /// Returns the store in `dir`, which is created when it does not exist.
    ///
    /// # Errors
    ///
    /// [`PageError::Io`].
    pub fn new(dir: impl Into<PathBuf>) -> Result<SledPages, PageError> {
        let dir = std::path::absolute(dir.into())?;
        fs::create_dir_all(&dir)?;
        sync_parent(&dir)?;
        Ok(SledPages { scratch: dir.clone(), dir })
    }

    /// Returns the store in `dir` for one who only looks: its private copies are made in `scratch`,
    /// a directory that is there, and nothing is made or changed in `dir` by looking, verifying and
    /// reading.
    pub fn to_look_at(dir: impl Into<PathBuf>, scratch: impl Into<PathBuf>) -> SledPages {
        SledPages { dir: dir.into(), scratch: scratch.into() }
    }

    /// Returns the directory of one database.
    pub fn database(&self, turn: Turn) -> PathBuf {
        self.dir.join(name(turn))
    }

    /// Returns the path of one database's seal.
    pub fn seal(&self, turn: Turn) -> PathBuf {
        self.dir.join(name(turn)).with_extension("seal")
    }

    fn private(&self, prefix: &str) -> PathBuf {
        let number = PRIVATE.fetch_add(1, Ordering::Relaxed);
        let dir = if prefix == COPY { &self.scratch } else { &self.dir };
        dir.join(format!("{prefix}-{}-{number}", std::process::id()))
    }

    fn sealed(&self, turn: Turn) -> Result<Seal, PageError> {
        let seal = Seal::read(&self.seal(turn))?;
        seal.ok_or_else(|| PageError::Damaged("it was not closed".into()))
    }

    fn unseal(&self, turn: Turn) -> Result<(), PageError> {
        remove_all(&self.seal(turn))?;
        sync_parent(&self.seal(turn))
    }
}

fn name(turn: Turn) -> &'static str {
    match turn {
        Turn::A => "a",
        Turn::B => "b",
    }
}

/// Removes a directory with all that is in it, or whatever else has that name.
fn remove_all(path: &Path) -> Result<(), PageError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => remove_if_there(fs::remove_dir_all(path)),
        Ok(_) => remove_if_there(fs::remove_file(path)),
        Err(error) => remove_if_there(Err(error)),
    }
}

fn remove_if_there(removed: io::Result<()>) -> Result<(), PageError> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl PageStore for SledPages {
    fn tidy(&self) -> Result<(), PageError> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours = ["copy-", "gone-"].iter().any(|prefix| name.starts_with(prefix));
            if ours || name.ends_with(".seal.tmp") {
                remove_all(&entry.path())?;
            }
        }
        Ok(())
    }

    fn look(&self, turn: Turn) -> Result<AtRest, PageError> {
        let database = self.database(turn);
        let looked = match (Seal::read(&self.seal(turn)), database.exists()) {
            (Ok(None), false) => return Ok(AtRest::Empty),
            (Ok(None), true) => Err(PageError::Damaged("it was not closed".into())),
            (Ok(Some(_)), false) => Err(PageError::Damaged("its directory is missing".into())),
            (Ok(Some(seal)), true) => seal.compare_lengths(&database).map(|()| seal.header),
            (Err(error), _) => Err(error),
        };
        match looked {
            Ok(header) => Ok(AtRest::Closed { header }),
            Err(PageError::Damaged(reason)) => {
                Ok(AtRest::Damaged(format!("{}: {reason}", database.display())))
            }
            Err(error @ (PageError::Io(_) | PageError::Bound(_))) => Err(error),
        }
    }

    fn verify(&self, turn: Turn) -> Result<(), PageError> {
        let compare = || self.sealed(turn)?.compare(&self.existing(turn)?, None);
        compare().map_err(|error| self.named(turn, error))
    }

    fn begin(&self, turn: Turn, whole: bool) -> Result<Box<dyn PageWriter>, PageError> {
        let database = self.database(turn);
        if whole {
            self.clear(turn)?;
            fs::create_dir(&database)?;
        } else {
            self.verify(turn)?;
            self.unseal(turn)?;
        }
        let open = OpenPages::open(&database, Some(FLUSH_EVERY_MS))
            .map_err(|error| self.named(turn, error))?;
        Ok(Box::new(SledWriter { open, store: self.clone(), turn }))
    }

    fn read(&self, turn: Turn) -> Result<Box<dyn PageReader>, PageError> {
        let open_copy = || {
            let seal = self.sealed(turn)?;
            let from = self.existing(turn)?;
            let copy = PrivateCopy(self.private(COPY));
            fs::create_dir(&copy.0)?;
            seal.compare(&from, Some(&copy.0))?;
            // Every byte is what was closed. sled writes as it opens, and panics for want of room.
            let roomless = |error| self.or_full(error);
            let mut open = OpenPages::open(&copy.0, None).map_err(roomless)?;
            let header = open.call(|db, _| db.get(HEADER_KEY)).map_err(roomless)?;
            if header.as_deref() != Some(&seal.header[..]) {
                return Err(PageError::Damaged("its header is not its seal's".into()));
            }
            Ok(Box::new(SledReader { open, _copy: copy }) as Box<dyn PageReader>)
        };
        open_copy().map_err(|error| self.named(turn, error))
    }

    fn condemn(&self, turn: Turn) -> Result<(), PageError> {
        self.unseal(turn)
    }

    fn clear(&self, turn: Turn) -> Result<(), PageError> {
        // The seal goes first: a database half removed must not look like a closed one.
        self.unseal(turn)?;
        let gone = self.private("gone");
        match fs::rename(self.database(turn), &gone) {
            Ok(()) => sync_parent(&gone)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        remove_all(&gone)
    }

    fn bytes_on_disk(&self, turn: Turn) -> Result<u64, PageError> {
        use io::ErrorKind::{NotADirectory, NotFound};
        let entries = match fs::read_dir(self.database(turn)) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = 0;
        for entry in entries {
            match entry?.metadata() {
                Ok(meta) if meta.is_file() => bytes += meta.len(),
                Ok(_) => {}
                // sled removes old snapshots while it is open.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(bytes)
    }
}

impl SledPages {
    /// Says in an error which database it is about.
    fn named(&self, turn: Turn, error: PageError) -> PageError {
        match error {
            PageError::Damaged(reason) => {
                PageError::Damaged(format!("{}: {reason}", self.database(turn).display()))
            }
            PageError::Io(_) | PageError::Bound(_) => error,
        }
    }

    /// Says of an error on a copy of sound files that the disk is full, when it is.
    fn or_full(&self, error: PageError) -> PageError {
        let free = RealDisk.free_bytes(&self.scratch);
        match error {
            PageError::Damaged(reason) if free.is_ok_and(|free| free < COPY_ROOM_BYTES_MIN) => {
                PageError::Io(io::Error::new(io::ErrorKind::StorageFull, reason))
            }
            error @ (PageError::Damaged(_) | PageError::Io(_) | PageError::Bound(_)) => error,
        }
    }

    fn existing(&self, turn: Turn) -> Result<PathBuf, PageError> {
        let database = self.database(turn);
        if database.is_dir() {
            return Ok(database);
        }
        Err(PageError::Damaged("its directory is missing".into()))
    }
}

/// A sled database that is open, and the only code that calls sled.
struct OpenPages {
    dir: PathBuf,
    /// `None` once a call panicked or the database was closed.
    trees: Option<(sled::Db, sled::Tree)>,
}

impl fmt::Debug for OpenPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenPages").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl OpenPages {
    fn open(dir: &Path, flush_every_ms: Option<u64>) -> Result<OpenPages, PageError> {
        let trees = guarded(|| {
            let db = sled::Config::new()
                .path(dir)
                .segment_size(SEGMENT_BYTES)
                .cache_capacity(CACHE_BYTES)
                .use_compression(false)
                .flush_every_ms(flush_every_ms)
                .open()?;
            let pages = db.open_tree(PAGES_TREE)?;
            Ok((db, pages))
        })?;
        Ok(OpenPages { dir: dir.to_path_buf(), trees: Some(trees) })
    }

    /// Calls sled; an error or a panic in there ends this database. One that has failed is never
    /// dropped: sled's drop may wait for a thread that is gone.
    fn call<T>(
        &mut self,
        work: impl FnOnce(&sled::Db, &sled::Tree) -> sled::Result<T>,
    ) -> Result<T, PageError> {
        let Some((db, pages)) = &self.trees else {
            return Err(PageError::Damaged("it failed before".into()));
        };
        let done = guarded(|| work(db, pages));
        if done.is_err() {
            std::mem::forget(self.trees.take());
        }
        done
    }

    /// Drops the database and waits until sled has let go of its file: its threads may still write
    /// or truncate for a moment.
    fn close(&mut self) -> Result<(), PageError> {
        let Some(trees) = self.trees.take() else {
            return Ok(());
        };
        let deadline = Instant::now() + CLOSE_WAIT;
        let (done, closed) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new().name("pages-close".into()).spawn(move || {
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(trees)));
            // Nobody listens any more when it took too long.
            let _ = done.send(dropped.is_ok());
        })?;
        if closed.recv_timeout(CLOSE_WAIT) != Ok(true) {
            return Err(PageError::Damaged("sled did not close it".into()));
        }
        let file = File::open(self.dir.join("db"))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(fs::TryLockError::Error(error)) => return Err(error.into()),
                Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(fs::TryLockError::WouldBlock) => {
                    return Err(PageError::Damaged("sled did not let go of its file".into()));
                }
            }
        }
    }
}

impl Drop for OpenPages {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(dir = %self.dir.display(), %error, "a page database was not closed");
        }
    }
}

/// Runs sled code; a panic becomes damage, an error keeps its kind.
fn guarded<T>(work: impl FnOnce() -> sled::Result<T>) -> Result<T, PageError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(PageError::Io(error)),
        Ok(Err(error)) => Err(PageError::Damaged(format!("sled: {error}"))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(PageError::Damaged(format!("sled panicked: {}", text.unwrap_or("no reason"))))
        }
    }
}

#[derive(Debug)]
struct SledWriter {
    open: OpenPages,
    store: SledPages,
    turn: Turn,
}

impl PageWriter for SledWriter {
    fn write(&mut self, changes: &[PageChange]) -> Result<StepSum, PageError> {
        check_changes(changes)?;
        self.open.call(|db, pages| {
            let mut sum = StepSum::default();
            for (key, value) in changes {
                // No sled batch: it would take a lock that all databases of the process share,
                // and nothing needs a step to be atomic before the seal is written.
                let old = match value {
                    Some(value) => pages.insert(&key.0, &value[..])?,
                    None => pages.remove(&key.0)?,
                };
                let length = |value: usize| key.0.len() + value;
                let new = value.as_ref().map(|value| length(value.len()));
                count_change(&mut sum, old.map(|old| length(old.len())), new);
            }
            db.flush()?;
            Ok(sum)
        })
    }

    fn close(mut self: Box<Self>, header: &[u8]) -> Result<(), PageError> {
        if header.len() > HEADER_BYTES_MAX {
            return Err(PageError::Bound("a header has at most 1 MiB"));
        }
        self.open.call(|db, _| {
            // The pages first, all of them; then the header, last.
            db.flush()?;
            db.insert(HEADER_KEY, header)?;
            db.flush()
        })?;
        self.open.close()?;
        let database = self.store.database(self.turn);
        if !planted(Fault::CheckpointNotSynced) {
            sync_all(&database)?;
        }
        Seal::take(&database, header)?.write(&self.store.seal(self.turn))
    }
}

/// A directory that goes when this goes.
#[derive(Debug)]
struct PrivateCopy(PathBuf);

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            // The next start removes it.
            tracing::warn!(dir = %self.0.display(), %error, "a copy of a page database stays");
        }
    }
}

/// Fields are dropped in this order: sled first, then its directory.
#[derive(Debug)]
struct SledReader {
    open: OpenPages,
    _copy: PrivateCopy,
}

impl PageReader for SledReader {
    fn read(
        &mut self,
        after: Option<&PageKey>,
        bytes_max: usize,
    ) -> Result<Vec<StoredPage>, PageError> {
        self.open.call(|_, pages| {
            let from = after.map_or(Unbounded, |key| Excluded(key.0.clone()));
            let mut chunk = Vec::new();
            let mut bytes = 0;
            for page in pages.range::<Vec<u8>, _>((from, Unbounded)) {
                let (key, value) = page?;
                bytes += key.len() + value.len();
                if bytes > bytes_max && !chunk.is_empty() {
                    break;
                }
                chunk.push((PageKey(key.to_vec()), value.to_vec()));
            }
            Ok(chunk)
        })
    }
}
