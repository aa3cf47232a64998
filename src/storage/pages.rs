//! Where the pages of one shard live: two page databases, written in turn.
//!
//! A [`PageStore`] holds the databases [`Turn::A`] and [`Turn::B`]. At rest each of them is
//! *empty*, *closed* (whole, synced, with the header that was written last) or *damaged*. The three
//! are told apart before a byte of it is believed. All operations are on a closed database and
//! block: `checkpoint/` hands them to a thread of their own.
//!
//! Promises, of every implementation:
//! - From [`PageStore::begin`] until [`PageWriter::close`] has returned, that database is not
//!   closed:
//!   a crash in between leaves it damaged or empty, never an old header over new pages.
//! - The other database is not touched, neither by writing nor by reading ([`PageStore::read`]
//!   works on a copy).
//! - Header and pages are one unit: what [`PageReader`] returns is exactly what was written under
//!   that header.
//!
//! It never knows what a page or a header means.

pub mod seal;
pub mod sim_store;
pub mod sled_store;

use std::fmt::Debug;
use std::io;

use crate::ledger::{PageKey, Turn};

pub use sim_store::SimPages;
pub use sled_store::SledPages;

/// The largest page that a database takes, in bytes. (sled writes what is much larger to files that
/// it never syncs.)
pub const PAGE_BYTES_MAX: usize = 16 << 10;
/// The longest page key, in bytes.
pub const PAGE_KEY_BYTES_MAX: usize = 64;
/// The most pages that are written or deleted in one step. (A one-shot delete of many entries costs
/// sled gigabytes of memory.)
pub const STEP_PAGES_MAX: usize = 512;
/// The largest header, in bytes.
pub const HEADER_BYTES_MAX: usize = 1 << 20;

/// A page to put, or (`None`) to delete.
pub type PageChange = (PageKey, Option<Vec<u8>>);
/// A page as it is stored.
pub type StoredPage = (PageKey, Vec<u8>);

/// Why a page database could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The disk or its file system failed, or is full ([`io::ErrorKind::StorageFull`]).
    #[error("page database: {0}")]
    Io(#[from] io::Error),
    /// What is stored is not what was written. The database must be written anew.
    #[error("the page database is damaged: {0}")]
    Damaged(String),
    /// The request breaks a bound of this file; nothing was done.
    #[error("not a page that can be stored: {0}")]
    Bound(&'static str),
}

/// What one of the two databases is, at rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AtRest {
    /// There is nothing.
    Empty,
    /// It was closed under this header, and nothing has changed its files' names or lengths since.
    Closed {
        /// The header as it was given to [`PageWriter::close`].
        header: Vec<u8>,
    },
    /// There is something that must not be used, for this reason.
    Damaged(String),
}

/// What a step of writing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepSum {
    /// Pages that are there now and were not before, less those that went.
    pub pages: i64,
    /// Bytes of keys and values, likewise.
    pub bytes: i64,
}

/// A place for the two page databases of one shard.
pub trait PageStore: Debug + Send + Sync + 'static {
    /// Removes what a crash may have left beside the two databases (copies, half-removed ones).
    ///
    /// # Errors
    ///
    /// [`PageError::Io`].
    fn tidy(&self) -> Result<(), PageError>;

    /// Says what a database is, at a cost that does not grow with its size.
    ///
    /// # Errors
    ///
    /// [`PageError::Io`] when the disk does not let it look.
    fn look(&self, turn: Turn) -> Result<AtRest, PageError>;

    /// Reads every byte of a closed database and compares it with what was closed.
    ///
    /// # Errors
    ///
    /// [`PageError::Damaged`] when it differs or is not closed, [`PageError::Io`].
    fn verify(&self, turn: Turn) -> Result<(), PageError>;

    /// Opens a database for writing. `whole` removes what is there and makes it anew; otherwise it
    /// is verified first, and only what differs need be written. It is not closed from here on.
    ///
    /// # Errors
    ///
    /// [`PageError::Damaged`] when it is not a closed database that verifies (then it can only be
    /// written whole), [`PageError::Io`].
    fn begin(&self, turn: Turn, whole: bool) -> Result<Box<dyn PageWriter>, PageError>;

    /// Opens a verified copy of a closed database for reading.
    ///
    /// # Errors
    ///
    /// As [`PageStore::verify`].
    fn read(&self, turn: Turn) -> Result<Box<dyn PageReader>, PageError>;

    /// Makes sure that a database is never again taken for a closed one.
    ///
    /// # Errors
    ///
    /// [`PageError::Io`].
    fn condemn(&self, turn: Turn) -> Result<(), PageError>;

    /// Removes a database.
    ///
    /// # Errors
    ///
    /// [`PageError::Io`].
    fn clear(&self, turn: Turn) -> Result<(), PageError>;

    /// Returns how many bytes one database takes on the disk.
    ///
    /// # Errors
    ///
    /// [`PageError::Io`].
    fn bytes_on_disk(&self, turn: Turn) -> Result<u64, PageError>;
}

/// A database that is being written. Dropping it leaves the database damaged or empty.
pub trait PageWriter: Debug + Send {
    /// Writes at most [`STEP_PAGES_MAX`] changes, in order.
    ///
    /// # Errors
    ///
    /// [`PageError::Bound`] before anything is written; any other error ends this writer.
    fn write(&mut self, changes: &[PageChange]) -> Result<StepSum, PageError>;

    /// Writes the header last, closes the database and syncs it. When this returns it is closed and
    /// durable.
    ///
    /// # Errors
    ///
    /// Whatever the error, the database is not to be used.
    fn close(self: Box<Self>, header: &[u8]) -> Result<(), PageError>;
}

/// A verified copy of a closed database.
pub trait PageReader: Debug + Send {
    /// Returns pages in the order of their keys, those after `after`, at least one if there is one,
    /// and no more than fit `bytes_max` bytes of keys and values beyond the first.
    ///
    /// # Errors
    ///
    /// [`PageError::Damaged`], [`PageError::Io`].
    fn read(
        &mut self,
        after: Option<&PageKey>,
        bytes_max: usize,
    ) -> Result<Vec<StoredPage>, PageError>;
}

/// Checks the bounds of one step.
///
/// # Errors
///
/// [`PageError::Bound`] naming the bound.
pub fn check_changes(changes: &[PageChange]) -> Result<(), PageError> {
    if changes.len() > STEP_PAGES_MAX {
        return Err(PageError::Bound("more than 512 pages in one step"));
    }
    for (key, value) in changes {
        if key.0.is_empty() || key.0.len() > PAGE_KEY_BYTES_MAX {
            return Err(PageError::Bound("a page key has 1 to 64 bytes"));
        }
        if value.as_ref().is_some_and(|value| value.len() > PAGE_BYTES_MAX) {
            return Err(PageError::Bound("a page has at most 16 KiB"));
        }
    }
    Ok(())
}

/// Adds one change to a step's sum: a page of `new` bytes (key and value) where there was one of
/// `old` bytes.
fn count_change(sum: &mut StepSum, old: Option<usize>, new: Option<usize>) {
    sum.pages += i64::from(new.is_some()) - i64::from(old.is_some());
    // Both are at most PAGE_KEY_BYTES_MAX + PAGE_BYTES_MAX.
    let bytes = |length: Option<usize>| i64::try_from(length.unwrap_or(0)).unwrap_or(i64::MAX);
    sum.bytes += bytes(new) - bytes(old);
}
