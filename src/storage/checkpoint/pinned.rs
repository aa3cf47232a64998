//! Reading a checkpoint: to load the ledger from it, or to send it to a peer while it is pinned.
//!
//! A pin is cheap and blocks nothing. Its private copy of the database is made when it is first
//! read, or when the next checkpoint is about to write to that database; from then on the pin and
//! the database have nothing to do with each other. Pins of one database share one copy, which goes
//! with the last of them. Reading never changes a database.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{CheckpointError, CheckpointHeader, Checkpoints, Shared, at};
use crate::ledger::{PageKey, Turn};
use crate::storage::pages::{PageError, PageReader, StoredPage};

/// The most that is read at once, in bytes.
const CHUNK_BYTES_MAX: usize = 8 << 20;

type Slot = Arc<Mutex<Option<Box<dyn PageReader>>>>;

impl Checkpoints {
    /// Pins the current checkpoint, so that it can be read to the end whatever is written
    /// meanwhile. `None` when there is none. Cheap: nothing is read.
    pub fn pin_current(&self) -> Option<PinnedCheckpoint> {
        let mut state = self.shared.state.lock();
        let (turn, header) = state.current().map(|(turn, header)| (turn, Arc::clone(header)))?;
        if let Some(pin) = state.pins[at(turn)].upgrade()
            && pin.header.sequence == header.sequence
        {
            return Some(PinnedCheckpoint { pin });
        }
        let shared = Arc::clone(&self.shared);
        let pin = Arc::new(Pin { shared, turn, header, slot: Slot::default() });
        state.pins[at(turn)] = Arc::downgrade(&pin);
        Some(PinnedCheckpoint { pin })
    }
}

/// What all pins of one checkpoint share.
pub(super) struct Pin {
    shared: Arc<Shared>,
    turn: Turn,
    header: Arc<CheckpointHeader>,
    /// The private copy, once it is made. Locked only at the desk, one job at a time.
    slot: Slot,
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Pin {
    /// Makes the private copy if there is none yet.
    pub(super) async fn copy(&self) -> Result<(), CheckpointError> {
        self.at_desk(|_| Ok(())).await
    }

    async fn at_desk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn PageReader) -> Result<T, PageError> + Send + 'static,
    ) -> Result<T, CheckpointError> {
        let (slot, turn) = (Arc::clone(&self.slot), self.turn);
        let (store, header) = (Arc::clone(&self.shared.store), Arc::clone(&self.header));
        let done = self.shared.desk.run(move || {
            let mut slot = slot.lock();
            if slot.is_none() {
                match store.look(turn)? {
                    super::AtRest::Closed { header: found }
                        if CheckpointHeader::open(&found).ok().as_ref() == Some(&header) => {}
                    super::AtRest::Closed { .. }
                    | super::AtRest::Empty
                    | super::AtRest::Damaged(_) => {
                        return Ok(None);
                    }
                }
                *slot = Some(store.read(turn)?);
            }
            let Some(reader) = slot.as_mut() else { return Ok(None) };
            work(reader.as_mut()).map(Some)
        });
        match done.await?.map_err(|error| self.shared.failed(turn, error))? {
            Some(done) => Ok(done),
            None => Err(self.shared.damaged(turn, "the pinned checkpoint is not there any more")),
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let slot = Arc::clone(&self.slot);
        self.shared.desk.post(move || drop(slot.lock().take()));
    }
}

/// The checkpoint that was current when it was pinned. Clones share one private copy of it.
#[derive(Debug, Clone)]
pub struct PinnedCheckpoint {
    pin: Arc<Pin>,
}

impl PinnedCheckpoint {
    /// Returns its header.
    pub fn header(&self) -> &Arc<CheckpointHeader> {
        &self.pin.header
    }

    /// Returns pages in the order of their keys, those after `after`: at least one if there is one,
    /// and beyond the first no more than fit `bytes_max` bytes (at most 8 MiB). Empty at the end.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Damaged`] when the database does not verify, [`CheckpointError::Io`].
    pub async fn read_chunk(
        &self,
        after: Option<PageKey>,
        bytes_max: usize,
    ) -> Result<Vec<StoredPage>, CheckpointError> {
        let bytes_max = bytes_max.min(CHUNK_BYTES_MAX);
        self.pin.at_desk(move |reader| reader.read(after.as_ref(), bytes_max)).await
    }
}

/// A verified private copy of one database, to load the ledger from.
pub struct CheckpointReader {
    shared: Arc<Shared>,
    turn: Turn,
    header: Arc<CheckpointHeader>,
    slot: Slot,
}

impl fmt::Debug for CheckpointReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointReader").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl CheckpointReader {
    pub(super) fn new(
        shared: Arc<Shared>,
        turn: Turn,
        header: Arc<CheckpointHeader>,
        reader: Box<dyn PageReader>,
    ) -> CheckpointReader {
        CheckpointReader { shared, turn, header, slot: Arc::new(Mutex::new(Some(reader))) }
    }

    /// Returns its header.
    pub fn header(&self) -> &Arc<CheckpointHeader> {
        &self.header
    }

    /// Returns pages as [`PinnedCheckpoint::read_chunk`] does.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Damaged`] (the database counts as such from now on),
    /// [`CheckpointError::Io`].
    pub async fn read_chunk(
        &self,
        after: Option<PageKey>,
        bytes_max: usize,
    ) -> Result<Vec<StoredPage>, CheckpointError> {
        let slot = Arc::clone(&self.slot);
        let bytes_max = bytes_max.min(CHUNK_BYTES_MAX);
        let chunk = self.shared.desk.run(move || match slot.lock().as_mut() {
            Some(reader) => reader.read(after.as_ref(), bytes_max),
            None => Err(PageError::Damaged("its copy is gone".into())),
        });
        chunk.await?.map_err(|error| self.shared.failed(self.turn, error))
    }
}

impl Drop for CheckpointReader {
    fn drop(&mut self) {
        let slot = Arc::clone(&self.slot);
        self.shared.desk.post(move || drop(slot.lock().take()));
    }
}
