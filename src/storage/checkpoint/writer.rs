//! Writing a checkpoint into the database that is not current.
//!
//! Pages in steps, then the header, close, sync; only then is it current. A writer that fails or is
//! dropped leaves its database damaged, and the current one is what it was. It never writes to the
//! current database.

use std::sync::Arc;

use super::{
    CheckpointError, CheckpointHeader, CheckpointState, Checkpoints, Place, Shared, State, Weak, at,
};
use crate::ledger::Turn;
use crate::runtime::{self, Instant};
use crate::storage::pages::{
    PageChange, PageError, PageWriter, STEP_PAGES_MAX, StepSum, check_changes,
};

/// How far a checkpoint is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Where it is written.
    pub turn: Turn,
    /// Whether it comes from a peer.
    pub received: bool,
    /// Pages written and deleted so far.
    pub pages: u64,
    /// Bytes of keys and pages written so far.
    pub bytes: u64,
    /// When it began.
    pub began: Instant,
}

impl Checkpoints {
    /// Begins to write a checkpoint into `turn`, as [`Checkpoints::next_turn`] said. Pins of that
    /// database get their private copies first.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`], [`CheckpointError::IsCurrent`] and
    /// [`CheckpointError::NeedsWhole`] when nothing was done; [`CheckpointError::Damaged`] when the
    /// database does not verify (begin again, whole); [`CheckpointError::Io`].
    pub async fn begin(
        &self,
        turn: Turn,
        whole: bool,
    ) -> Result<CheckpointWriter, CheckpointError> {
        let base = {
            let state = self.shared.state.lock();
            match state.places[at(turn)].header() {
                Some(header) if state.based[at(turn)] => Some(Arc::clone(header)),
                Some(_) | None => None,
            }
        };
        let base = if whole { None } else { base };
        if !whole && base.is_none() {
            return Err(CheckpointError::NeedsWhole(turn));
        }
        let open = Open::begin(&self.shared, turn, whole, "written").await?;
        let (pages, bytes) = base.map_or((0, 0), |base| (base.page_count, base.page_bytes));
        Ok(CheckpointWriter { open, pages: signed(pages), bytes: signed(bytes) })
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A checkpoint that is being written. Dropped before [`CheckpointWriter::finish`] it leaves its
/// database damaged.
#[derive(Debug)]
pub struct CheckpointWriter {
    open: Open,
    pages: i64,
    bytes: i64,
}

impl CheckpointWriter {
    /// Returns where it is written.
    pub fn turn(&self) -> Turn {
        self.open.turn
    }

    /// Puts and deletes pages (`None`), in this order.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Refused`] when a page breaks a bound: nothing of `pages` was written. Any
    /// other error ends this writer; the database is damaged.
    pub async fn write(&mut self, pages: Vec<PageChange>) -> Result<(), CheckpointError> {
        let sum = self.open.write(pages).await?;
        self.pages += sum.pages;
        self.bytes += sum.bytes;
        Ok(())
    }

    /// Writes the header last, closes and syncs the database, and makes it current.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Refused`] when the position is behind the current checkpoint's. Whatever
    /// the error, the database is damaged and the current one stays current.
    pub async fn finish(
        self,
        state: CheckpointState,
    ) -> Result<Arc<CheckpointHeader>, CheckpointError> {
        let (pages, bytes) = (u64::try_from(self.pages), u64::try_from(self.bytes));
        let (Ok(page_count), Ok(page_bytes)) = (pages, bytes) else {
            return Err(CheckpointError::Refused("more pages went than there were"));
        };
        self.open.finish(state, page_count, page_bytes, false).await
    }
}

/// A database that is open for writing, by a checkpoint or by a receiver.
pub(super) struct Open {
    shared: Arc<Shared>,
    pub(super) turn: Turn,
    /// `None` while a step is at the desk, and for good when that step failed or was given up.
    writer: Option<Box<dyn PageWriter>>,
    /// What a drop leaves: nothing (true) or damage.
    pub(super) clear_on_drop: bool,
    /// Whether anything of the database was touched.
    begun: bool,
    closed: bool,
    /// Which ledger in memory it is of: see [`super::State::ledger`].
    ledger: u64,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Open {
    /// Takes the place and opens its database.
    pub(super) async fn begin(
        shared: &Arc<Shared>,
        turn: Turn,
        whole: bool,
        what: &'static str,
    ) -> Result<Open, CheckpointError> {
        let clear_on_drop = what == "received";
        let is_current = |state: &State| state.current().is_some_and(|(at, _)| at == turn);
        let ledger = {
            let mut state = shared.state.lock();
            if let Some((_, what)) = state.writing {
                return Err(CheckpointError::Busy(what));
            }
            if is_current(&state) {
                return Err(CheckpointError::IsCurrent(turn));
            }
            state.writing = Some((turn, what));
            state.ledger
        };
        // From here on the drop of `open` gives the place back.
        let mut open = Open {
            shared: Arc::clone(shared),
            turn,
            writer: None,
            clear_on_drop,
            begun: false,
            closed: false,
            ledger,
        };
        let pin = shared.state.lock().pins[at(turn)].upgrade();
        if let Some(pin) = pin {
            // A pin that cannot have its copy says so to whoever reads it.
            let _ = pin.copy().await;
        }
        {
            let mut state = shared.state.lock();
            // The other one may have been found damaged while the pin was copied.
            if is_current(&state) {
                drop(state);
                return Err(CheckpointError::IsCurrent(turn));
            }
            open.begun = true;
            state.pins[at(turn)] = Weak::new();
            state.set(turn, Place::Damaged("a checkpoint into it was not finished".into()));
            state.progress = Some(Progress {
                turn,
                received: clear_on_drop,
                pages: 0,
                bytes: 0,
                began: runtime::now(),
            });
        }
        let store = Arc::clone(&shared.store);
        let writer = shared.desk.run(move || store.begin(turn, whole)).await?;
        open.writer = Some(writer.map_err(|error| shared.failed(turn, error))?);
        Ok(open)
    }

    /// Writes pages in steps.
    pub(super) async fn write(
        &mut self,
        mut pages: Vec<PageChange>,
    ) -> Result<StepSum, CheckpointError> {
        for step in pages.chunks(STEP_PAGES_MAX) {
            check_changes(step).map_err(|error| self.shared.failed(self.turn, error))?;
        }
        let mut sum = StepSum::default();
        while !pages.is_empty() {
            let rest = pages.split_off(pages.len().min(STEP_PAGES_MAX));
            let step = std::mem::replace(&mut pages, rest);
            let written = step
                .iter()
                .map(|(key, value)| (key.0.len() + value.as_ref().map_or(0, Vec::len)) as u64);
            let (count, bytes) = (step.len() as u64, written.sum::<u64>());
            let mut writer = self.take_writer()?;
            let done = self.shared.desk.run(move || {
                let done = writer.write(&step)?;
                Ok::<_, PageError>((writer, done))
            });
            let (writer, done) =
                done.await?.map_err(|error| self.shared.failed(self.turn, error))?;
            self.writer = Some(writer);
            sum.pages += done.pages;
            sum.bytes += done.bytes;
            if let Some(progress) = &mut self.shared.state.lock().progress {
                progress.pages += count;
                progress.bytes += bytes;
            }
        }
        Ok(sum)
    }

    /// Closes the database under its header and makes it current.
    pub(super) async fn finish(
        mut self,
        state: CheckpointState,
        page_count: u64,
        page_bytes: u64,
        replaces_ledger: bool,
    ) -> Result<Arc<CheckpointHeader>, CheckpointError> {
        let sequence = {
            let shared = self.shared.state.lock();
            let index = |state: &CheckpointState| state.position.map(|position| position.index);
            if shared.current().is_some_and(|(_, now)| index(&now.state) > index(&state)) {
                return Err(CheckpointError::Refused("it is older than the current one"));
            }
            shared.sequence + 1
        };
        let origin = self.shared.origin;
        let header = CheckpointHeader { sequence, origin, state, page_count, page_bytes };
        let sealed = header.seal();
        let sealed = sealed.map_err(|_| CheckpointError::Refused("the header is too large"))?;
        let writer = self.take_writer()?;
        let closed = self.shared.desk.run(move || writer.close(&sealed)).await?;
        closed.map_err(|error| self.shared.failed(self.turn, error))?;
        let header = Arc::new(header);
        let mut state = self.shared.state.lock();
        state.set(self.turn, Place::Good(Arc::clone(&header)));
        if replaces_ledger {
            state.replace_ledger();
            self.ledger = state.ledger;
        }
        state.based[at(self.turn)] = self.ledger == state.ledger;
        drop(state);
        self.closed = true;
        Ok(header)
    }

    fn take_writer(&mut self) -> Result<Box<dyn PageWriter>, CheckpointError> {
        let reason = "a step of writing it failed or was given up";
        self.writer.take().ok_or_else(|| self.shared.damaged(self.turn, reason))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let turn = self.turn;
        let clear = self.clear_on_drop && self.begun && !self.closed;
        let writer = self.writer.take();
        if clear {
            // In its turn at the desk, so before whatever begins next.
            let store = Arc::clone(&shared.store);
            shared.desk.post(move || {
                drop(writer);
                if let Err(error) = store.clear(turn) {
                    tracing::warn!(?turn, %error, "a page database that was given up stays");
                }
            });
        } else if writer.is_some() {
            shared.desk.post(move || drop(writer));
        }
        let mut state = shared.state.lock();
        if clear {
            state.set(turn, Place::Empty);
        }
        state.writing = None;
        state.progress = None;
    }
}
