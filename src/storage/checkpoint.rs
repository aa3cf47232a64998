//! Checkpoints of one shard: which of its two page databases is current, and who may touch which.
//!
//! A checkpoint is written into the database that is not current, header last, closed and synced;
//! only then is it current. openraft's "snapshot" is the current one: it is pinned and read in
//! chunks to be sent, and a received one is written whole in the other place.
//!
//! Promises:
//! - Of two good databases the older is never touched while the newer is in doubt: there is one
//!   writer at a time, and it only ever has the place that is not current.
//! - [`Checkpoints::purge_limit`] is covered by *both* databases, or is `None`: either may be lost
//!   and the log still leads on from the other.
//! - An error costs exactly the database that it happened in. The current one stays current.
//! - Nothing is written upon a database unless this process wrote or loaded it last: what is dirty
//!   since then is known only to the ledger in memory ([`CheckpointError::NeedsWhole`]).
//! - A reader has a private, verified copy, so it neither harms nor delays a database.
//!
//! It never judges the pages themselves: who loads them compares the digest and, if it differs,
//! calls [`Checkpoints::mark_damaged`].

mod desk;
mod header;
mod pinned;
mod receiver;
mod writer;

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub use desk::PageDesk;
pub use header::{CheckpointHeader, CheckpointState, Origin};
pub use pinned::{CheckpointReader, PinnedCheckpoint};
pub use receiver::CheckpointReceiver;
pub use writer::{CheckpointWriter, Progress};

use super::log::LogPosition;
use super::pages::{AtRest, PageError, PageStore, StoredPage};
use crate::ledger::Turn;
use crate::planted::{Fault, planted};
use pinned::Pin;

/// A database is written whole, not upon, once its files have more than this times its pages' bytes
/// (and [`BLOAT_BYTES_MIN`] more): sled collects its garbage late.
const BLOAT_RATIO: u64 = 4;
/// Bytes of files that a database may have beyond [`BLOAT_RATIO`] times its pages.
const BLOAT_BYTES_MIN: u64 = 64 << 20;
/// How much is read from a database in one step when it is loaded, in bytes.
const LOAD_CHUNK_BYTES: usize = 4 << 20;

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another checkpoint is being written or received. Nothing was done.
    #[error("another checkpoint is being {0}")]
    Busy(&'static str),
    /// This database can only be written whole. Nothing was done.
    #[error("database {0:?} can only be written whole")]
    NeedsWhole(Turn),
    /// The place asked for is the current one, which is never written. Nothing was done.
    #[error("database {0:?} is the current one")]
    IsCurrent(Turn),
    /// The database is damaged and counts as such from now on.
    #[error("database {turn:?} of shard {shard} is damaged: {reason}")]
    Damaged {
        /// The shard.
        shard: u16,
        /// Which of the two.
        turn: Turn,
        /// What was seen.
        reason: String,
    },
    /// The database belongs to another cluster or shard, or to other settings: somebody mixed up
    /// data directories. Nothing was changed.
    #[error("database {turn:?} of shard {shard} belongs elsewhere: {reason}")]
    Foreign {
        /// The shard that looked.
        shard: u16,
        /// Which of the two.
        turn: Turn,
        /// What differs.
        reason: String,
    },
    /// What was given breaks a bound or an order of checkpoints: see the method that says so.
    #[error("not a checkpoint that can be taken: {0}")]
    Refused(&'static str),
    /// The disk failed, or is full ([`io::ErrorKind::StorageFull`]).
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<CheckpointError> for io::Error {
    fn from(error: CheckpointError) -> io::Error {
        match error {
            CheckpointError::Io(error) => error,
            CheckpointError::Busy(_) => io::Error::new(io::ErrorKind::ResourceBusy, error),
            CheckpointError::NeedsWhole(_)
            | CheckpointError::IsCurrent(_)
            | CheckpointError::Damaged { .. }
            | CheckpointError::Foreign { .. }
            | CheckpointError::Refused(_) => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

/// What one of the two places holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Nothing.
    Empty,
    /// A whole checkpoint. Its pages are verified when they are read.
    Good(Arc<CheckpointHeader>),
    /// Something that is never used, for this reason.
    Damaged(String),
}

impl Place {
    fn header(&self) -> Option<&Arc<CheckpointHeader>> {
        match self {
            Place::Good(header) => Some(header),
            Place::Empty | Place::Damaged(_) => None,
        }
    }
}

/// The two page databases of one shard. Clones are handles to the same.
#[derive(Clone)]
pub struct Checkpoints {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn PageStore>,
    origin: Origin,
    desk: PageDesk,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    places: [Place; 2],
    /// Whether the ledger in memory knows what is dirty since that database was written.
    based: [bool; 2],
    /// What writes now, and to where.
    writing: Option<(Turn, &'static str)>,
    progress: Option<Progress>,
    pins: [Weak<Pin>; 2],
    sequence: u64,
    /// Counts the ledgers that were in memory: one that was replaced while its checkpoint was being
    /// written tells nothing about the dirt of the next.
    ledger: u64,
}

fn at(turn: Turn) -> usize {
    match turn {
        Turn::A => 0,
        Turn::B => 1,
    }
}

fn other(turn: Turn) -> Turn {
    match turn {
        Turn::A => Turn::B,
        Turn::B => Turn::A,
    }
}

impl State {
    /// Of the good databases the one with the greatest sequence.
    fn current(&self) -> Option<(Turn, &Arc<CheckpointHeader>)> {
        let good = [Turn::A, Turn::B].into_iter();
        let good = good.filter_map(|turn| Some((turn, self.places[at(turn)].header()?)));
        good.max_by_key(|(_, header)| header.sequence)
    }

    fn replace_ledger(&mut self) {
        self.ledger += 1;
        self.based = [false; 2];
    }

    fn set(&mut self, turn: Turn, place: Place) {
        if let Place::Good(header) = &place {
            self.sequence = self.sequence.max(header.sequence);
        } else {
            self.based[at(turn)] = false;
        }
        self.places[at(turn)] = place;
    }
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoints")
            .field("shard", &self.shared.origin.shard)
            .field("state", &self.shared.state.lock())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Translates an error of the page store in `turn`; damage is remembered.
    fn failed(&self, turn: Turn, error: PageError) -> CheckpointError {
        match error {
            PageError::Io(error) => CheckpointError::Io(error),
            PageError::Bound(reason) => CheckpointError::Refused(reason),
            PageError::Damaged(reason) => {
                let shard = self.origin.shard.0;
                tracing::error!(shard, ?turn, reason, "a page database is damaged");
                self.state.lock().set(turn, Place::Damaged(reason.clone()));
                CheckpointError::Damaged { shard, turn, reason }
            }
        }
    }
}

impl Checkpoints {
    /// Looks at both databases of a shard. Leftovers of a crash are removed; nothing is read but
    /// headers and the lengths of files.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Foreign`] when one belongs elsewhere, [`CheckpointError::Io`].
    pub async fn open(
        store: Arc<dyn PageStore>,
        origin: Origin,
        desk: PageDesk,
    ) -> Result<Checkpoints, CheckpointError> {
        let looking = Arc::clone(&store);
        let looked = desk.run(move || -> Result<_, PageError> {
            looking.tidy()?;
            Ok([looking.look(Turn::A)?, looking.look(Turn::B)?])
        });
        let state = State {
            places: [Place::Empty, Place::Empty],
            based: [false; 2],
            writing: None,
            progress: None,
            pins: [Weak::new(), Weak::new()],
            sequence: 0,
            ledger: 0,
        };
        let looked = looked.await?;
        let shared = Shared { store, origin, desk, state: Mutex::new(state) };
        let looked = looked.map_err(|error| shared.failed(Turn::A, error))?;
        for (turn, found) in [Turn::A, Turn::B].into_iter().zip(looked) {
            let place = shared.judge(turn, found)?;
            if let Place::Damaged(reason) = &place {
                let shard = shared.origin.shard.0;
                tracing::warn!(shard, ?turn, reason, "a page database is damaged");
            }
            shared.state.lock().set(turn, place);
        }
        Ok(Checkpoints { shared: Arc::new(shared) })
    }

    /// Returns what a place holds.
    pub fn place(&self, turn: Turn) -> Place {
        self.shared.state.lock().places[at(turn)].clone()
    }

    /// Returns the newest good checkpoint and where it is.
    pub fn current(&self) -> Option<(Turn, Arc<CheckpointHeader>)> {
        let state = self.shared.state.lock();
        state.current().map(|(turn, header)| (turn, Arc::clone(header)))
    }

    /// Returns the good databases, the newest first: the order in which a start tries them.
    pub fn candidates(&self) -> Vec<(Turn, Arc<CheckpointHeader>)> {
        let Some((turn, header)) = self.current() else { return Vec::new() };
        let mut candidates = vec![(turn, header)];
        if let Place::Good(older) = self.place(other(turn)) {
            candidates.push((other(turn), older));
        }
        candidates
    }

    /// Returns up to where the log may be purged: what both databases cover. `None`: nothing may
    /// be, since only one is good.
    pub fn purge_limit(&self) -> Option<LogPosition> {
        let state = self.shared.state.lock();
        let a = state.places[0].header()?.state.position?;
        let b = state.places[1].header()?.state.position?;
        Some(if (a.index <= b.index) != planted(Fault::PurgeAhead) { a } else { b })
    }

    /// Returns where the next checkpoint goes, and whether it must be written whole: into the place
    /// that is not current, and whole when that one is empty, damaged, bloated, or not what the
    /// ledger in memory counts its dirt from.
    pub fn next_turn(&self) -> (Turn, bool) {
        let (turn, live) = {
            let state = self.shared.state.lock();
            let turn = state.current().map_or(Turn::A, |(turn, _)| other(turn));
            match state.places[at(turn)].header() {
                Some(header) if state.based[at(turn)] => (turn, header.page_bytes),
                Some(_) | None => return (turn, true),
            }
        };
        let bytes = self.shared.store.bytes_on_disk(turn).unwrap_or(u64::MAX);
        let bound = live.saturating_mul(BLOAT_RATIO).saturating_add(BLOAT_BYTES_MIN);
        (turn, bytes > bound)
    }

    /// Opens a verified copy of a database, to load the ledger from it page by page. From here on
    /// checkpoints may be written upon this database, and the other one is written whole: the
    /// caller replaces the ledger in memory by what it reads.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Damaged`] (it counts as such from now on), [`CheckpointError::Io`].
    pub async fn reader(&self, turn: Turn) -> Result<CheckpointReader, CheckpointError> {
        let shared = &self.shared;
        let header = {
            let state = shared.state.lock();
            match &state.places[at(turn)] {
                Place::Good(header) => Arc::clone(header),
                Place::Empty => return Err(shared.damaged(turn, "it is empty")),
                Place::Damaged(reason) => return Err(shared.damaged(turn, reason)),
            }
        };
        let store = Arc::clone(&shared.store);
        let reader = shared.desk.run(move || store.read(turn)).await?;
        let reader = reader.map_err(|error| shared.failed(turn, error))?;
        let mut state = shared.state.lock();
        state.replace_ledger();
        state.based[at(turn)] = true;
        drop(state);
        Ok(CheckpointReader::new(Arc::clone(shared), turn, header, reader))
    }

    /// Reads a whole database: [`Checkpoints::reader`] and all its pages.
    ///
    /// # Errors
    ///
    /// As [`Checkpoints::reader`]; also damage when the pages are not as many as the header says.
    pub async fn load(
        &self,
        turn: Turn,
    ) -> Result<(Arc<CheckpointHeader>, Vec<StoredPage>), CheckpointError> {
        let reader = self.reader(turn).await?;
        let mut pages: Vec<StoredPage> = Vec::new();
        loop {
            let after = pages.last().map(|(key, _)| key.clone());
            let chunk = reader.read_chunk(after, LOAD_CHUNK_BYTES).await?;
            if chunk.is_empty() {
                break;
            }
            pages.extend(chunk);
        }
        let header = Arc::clone(reader.header());
        let bytes: usize = pages.iter().map(|(key, value)| key.0.len() + value.len()).sum();
        if (pages.len() as u64, bytes as u64) != (header.page_count, header.page_bytes) {
            let reason = format!("{} pages where {} were", pages.len(), header.page_count);
            self.mark_damaged(turn, &reason).await?;
            return Err(self.shared.damaged(turn, &reason));
        }
        Ok((header, pages))
    }

    /// Reads every byte of a good database and marks it damaged if it differs from what was closed.
    ///
    /// # Errors
    ///
    /// As [`Checkpoints::reader`].
    pub async fn verify(&self, turn: Turn) -> Result<(), CheckpointError> {
        if !matches!(self.place(turn), Place::Good(_)) {
            return Err(self.shared.damaged(turn, "it is not good"));
        }
        let store = Arc::clone(&self.shared.store);
        let verified = self.shared.desk.run(move || store.verify(turn)).await?;
        verified.map_err(|error| self.shared.failed(turn, error))
    }

    /// Says that a database is not what its header says (its digest differs). It is never used
    /// again, also not after a restart.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`] while it is being written, [`CheckpointError::Io`] when the disk
    /// does not take it (in this process it is damaged all the same).
    pub async fn mark_damaged(&self, turn: Turn, reason: &str) -> Result<(), CheckpointError> {
        let shared = &self.shared;
        {
            let mut state = shared.state.lock();
            match state.writing {
                Some((writing, what)) if writing == turn => {
                    return Err(CheckpointError::Busy(what));
                }
                Some(_) | None => state.set(turn, Place::Damaged(reason.to_owned())),
            }
        }
        let shard = shared.origin.shard.0;
        tracing::error!(shard, ?turn, reason, "a page database was found damaged");
        let store = Arc::clone(&shared.store);
        let condemned = shared.desk.run(move || store.condemn(turn)).await?;
        condemned.map_err(|error| shared.failed(turn, error))
    }

    /// Returns how far the checkpoint is that is being written or received now.
    pub fn progress(&self) -> Option<Progress> {
        self.shared.state.lock().progress
    }

    /// Waits until everything that was given up before has been cleaned up: call it before the same
    /// databases are opened again by the same process.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`].
    pub async fn settle(&self) -> Result<(), CheckpointError> {
        Ok(self.shared.desk.run(|| ()).await?)
    }

    /// Returns how many bytes each of the two databases takes on the disk.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`].
    pub fn bytes_on_disk(&self) -> Result<[u64; 2], CheckpointError> {
        let bytes = |turn| {
            let bytes = self.shared.store.bytes_on_disk(turn);
            bytes.map_err(|error| self.shared.failed(turn, error))
        };
        Ok([bytes(Turn::A)?, bytes(Turn::B)?])
    }
}

impl Shared {
    fn damaged(&self, turn: Turn, reason: &str) -> CheckpointError {
        CheckpointError::Damaged { shard: self.origin.shard.0, turn, reason: reason.to_owned() }
    }

    /// Decides what a database at rest is for this shard.
    fn judge(&self, turn: Turn, found: AtRest) -> Result<Place, CheckpointError> {
        let bytes = match found {
            AtRest::Empty => return Ok(Place::Empty),
            AtRest::Damaged(reason) => return Ok(Place::Damaged(reason)),
            AtRest::Closed { header } => header,
        };
        let header = match CheckpointHeader::open(&bytes) {
            Ok(header) => header,
            Err(error) => return Ok(Place::Damaged(format!("its header: {error}"))),
        };
        match self.origin.differs(&header.origin) {
            Some(reason) => {
                Err(CheckpointError::Foreign { shard: self.origin.shard.0, turn, reason })
            }
            None => Ok(Place::Good(Arc::new(header))),
        }
    }
}
