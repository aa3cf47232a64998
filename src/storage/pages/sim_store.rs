//! A model of the two page databases at rest, in memory, for the simulator and for tests.
//!
//! sled cannot run on the simulated disk, so what the simulator needs of it is modelled: two
//! databases that survive a crash of the node, of which the one being written is lost to the crash
//! (as damage or as nothing, by the seed) and the other is untouched. It can be damaged on request,
//! also silently, as sled was seen to do: pages missing or old under a good header.
//!
//! It is deterministic: the same seed and the same calls leave the same databases. It never reads a
//! clock or a random source of the machine.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    AtRest, HEADER_BYTES_MAX, PageChange, PageError, PageReader, PageStore, PageWriter, StepSum,
    StoredPage, check_changes, count_change,
};
use crate::ledger::{PageKey, Turn};

type Pages = BTreeMap<PageKey, Vec<u8>>;

/// The two page databases of one shard, in memory. Clones are the same place: keep one outside the
/// node, and it survives the node's crash.
#[derive(Debug, Clone)]
pub struct SimPages {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    places: [Place; 2],
    random: u64,
    /// Counts writers, so that one of a node that has crashed cannot close anything.
    writers: u64,
    /// Calls until one fails, and how.
    fault: Option<(u32, io::ErrorKind)>,
}

#[derive(Debug, Clone)]
enum Place {
    Empty,
    Closed { header: Vec<u8>, pages: Arc<Pages> },
    Writing { writer: u64, after_crash: Option<&'static str> },
    Damaged(&'static str),
}

/// What may happen to a closed database at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimDamage {
    /// It is not there any more.
    Deleted,
    /// Looking at it shows the damage.
    Plain,
    /// Only reading all of it shows the damage.
    Hidden,
    /// One of its pages is missing or another under a good header: only its number or the digest
    /// shows it.
    Silent,
}

impl SimPages {
    /// Returns two empty databases; `seed` decides what crashes leave.
    pub fn new(seed: u64) -> SimPages {
        let places = [Place::Empty, Place::Empty];
        let state = State { places, random: seed, writers: 0, fault: None };
        SimPages { state: Arc::new(Mutex::new(state)) }
    }

    /// Damages a database. It must not be open for writing.
    pub fn damage(&self, turn: Turn, damage: SimDamage) {
        let mut state = self.state.lock();
        let random = state.next_random();
        let place = state.place(turn);
        match damage {
            SimDamage::Deleted => *place = Place::Empty,
            SimDamage::Plain => *place = Place::Damaged("its seal: checksum mismatch"),
            SimDamage::Hidden | SimDamage::Silent => {
                let Place::Closed { pages, .. } = place else { return };
                let pages = Arc::make_mut(pages);
                if damage == SimDamage::Hidden {
                    // A page that no ledger makes stands for bytes that do not match the seal.
                    pages.insert(PageKey(Vec::new()), Vec::new());
                    return;
                }
                let at = usize::try_from(random % pages.len().max(1) as u64).unwrap_or(0);
                let Some((key, value)) = pages.iter_mut().nth(at) else { return };
                match value.first_mut() {
                    Some(byte) if random & (1 << 40) == 0 => *byte ^= 1,
                    Some(_) | None => {
                        let key = key.clone();
                        pages.remove(&key);
                    }
                }
            }
        }
    }

    /// Returns a database as it is now, to be put back later as an older one of its kind.
    pub fn keep(&self, turn: Turn) -> SimKept {
        SimKept(self.state.lock().place(turn).clone())
    }

    /// Puts a kept database back: a roll-back at rest.
    pub fn put_back(&self, turn: Turn, kept: &SimKept) {
        *self.state.lock().place(turn) = kept.0.clone();
    }

    /// Makes the call after the next `calls` ones that write or read fail with `kind`.
    pub fn fail_after(&self, calls: u32, kind: io::ErrorKind) {
        self.state.lock().fault = Some((calls, kind));
    }

    /// No call is to fail any more.
    pub fn heal(&self) {
        self.state.lock().fault = None;
    }

    /// Tells whether a call is still to fail.
    pub fn is_to_fail(&self) -> bool {
        self.state.lock().fault.is_some()
    }
}

/// A database that was kept by [`SimPages::keep`].
#[derive(Debug, Clone)]
pub struct SimKept(Place);

impl State {
    fn place(&mut self, turn: Turn) -> &mut Place {
        match turn {
            Turn::A => &mut self.places[0],
            Turn::B => &mut self.places[1],
        }
    }

    /// SplitMix64.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn step(&mut self) -> Result<(), PageError> {
        match &mut self.fault {
            Some((0, kind)) => {
                let kind = *kind;
                self.fault = None;
                Err(PageError::Io(kind.into()))
            }
            Some((calls, _)) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn closed(&mut self, turn: Turn) -> Result<(Vec<u8>, Arc<Pages>), PageError> {
        self.step()?;
        match self.place(turn) {
            Place::Empty | Place::Writing { .. } => {
                Err(PageError::Damaged("it was not closed".into()))
            }
            Place::Damaged(reason) => Err(PageError::Damaged((*reason).into())),
            Place::Closed { pages, .. } if pages.contains_key(&PageKey(Vec::new())) => {
                Err(PageError::Damaged("db has other bytes".into()))
            }
            Place::Closed { header, pages } => Ok((header.clone(), Arc::clone(pages))),
        }
    }
}

impl PageStore for SimPages {
    fn tidy(&self) -> Result<(), PageError> {
        let mut state = self.state.lock();
        for turn in [Turn::A, Turn::B] {
            if let Place::Writing { after_crash, .. } = state.place(turn) {
                let left = after_crash.map_or(Place::Empty, Place::Damaged);
                *state.place(turn) = left;
            }
        }
        Ok(())
    }

    fn look(&self, turn: Turn) -> Result<AtRest, PageError> {
        Ok(match self.state.lock().place(turn) {
            Place::Empty | Place::Writing { after_crash: None, .. } => AtRest::Empty,
            Place::Closed { header, .. } => AtRest::Closed { header: header.clone() },
            Place::Writing { after_crash: Some(reason), .. } | Place::Damaged(reason) => {
                AtRest::Damaged((*reason).into())
            }
        })
    }

    fn verify(&self, turn: Turn) -> Result<(), PageError> {
        self.state.lock().closed(turn).map(|_| ())
    }

    fn begin(&self, turn: Turn, whole: bool) -> Result<Box<dyn PageWriter>, PageError> {
        let mut state = self.state.lock();
        let pages = if whole {
            state.step()?;
            Arc::default()
        } else {
            state.closed(turn)?.1
        };
        state.writers += 1;
        let writer = state.writers;
        // What a crash leaves is decided here, so that it does not depend on when it comes.
        let after_crash = match state.next_random() % 4 {
            0 if whole => None,
            1 => Some("its seal: checksum mismatch"),
            2 => Some("its directory is missing"),
            _ => Some("it was not closed"),
        };
        *state.place(turn) = Place::Writing { writer, after_crash };
        Ok(Box::new(SimWriter { state: Arc::clone(&self.state), turn, writer, pages }))
    }

    fn read(&self, turn: Turn) -> Result<Box<dyn PageReader>, PageError> {
        let (_, pages) = self.state.lock().closed(turn)?;
        Ok(Box::new(SimReader { state: Arc::clone(&self.state), pages }))
    }

    fn condemn(&self, turn: Turn) -> Result<(), PageError> {
        let mut state = self.state.lock();
        let place = state.place(turn);
        match place {
            Place::Empty | Place::Damaged(_) => {}
            Place::Closed { .. } | Place::Writing { .. } => {
                *place = Place::Damaged("it was not closed");
            }
        }
        Ok(())
    }

    fn clear(&self, turn: Turn) -> Result<(), PageError> {
        *self.state.lock().place(turn) = Place::Empty;
        Ok(())
    }

    fn bytes_on_disk(&self, turn: Turn) -> Result<u64, PageError> {
        Ok(match self.state.lock().place(turn) {
            Place::Empty | Place::Writing { .. } | Place::Damaged(_) => 0,
            Place::Closed { pages, .. } => {
                pages.iter().map(|(key, value)| (key.0.len() + value.len()) as u64).sum()
            }
        })
    }
}

#[derive(Debug)]
struct SimWriter {
    state: Arc<Mutex<State>>,
    turn: Turn,
    writer: u64,
    pages: Arc<Pages>,
}

impl SimWriter {
    fn step(&self) -> Result<(), PageError> {
        let mut state = self.state.lock();
        state.step()?;
        match state.place(self.turn) {
            Place::Writing { writer, .. } if *writer == self.writer => Ok(()),
            Place::Writing { .. } | Place::Empty | Place::Closed { .. } | Place::Damaged(_) => {
                Err(PageError::Damaged("another writer has it".into()))
            }
        }
    }
}

impl PageWriter for SimWriter {
    fn write(&mut self, changes: &[PageChange]) -> Result<StepSum, PageError> {
        check_changes(changes)?;
        self.step()?;
        let pages = Arc::make_mut(&mut self.pages);
        let mut sum = StepSum::default();
        for (key, value) in changes {
            let length = |value: &Vec<u8>| key.0.len() + value.len();
            let new = value.as_ref().map(length);
            let old = match value {
                Some(value) => pages.insert(key.clone(), value.clone()),
                None => pages.remove(key),
            };
            count_change(&mut sum, old.as_ref().map(length), new);
        }
        Ok(sum)
    }

    fn close(self: Box<Self>, header: &[u8]) -> Result<(), PageError> {
        if header.len() > HEADER_BYTES_MAX {
            return Err(PageError::Bound("a header has at most 1 MiB"));
        }
        self.step()?;
        let closed = Place::Closed { header: header.to_vec(), pages: Arc::clone(&self.pages) };
        *self.state.lock().place(self.turn) = closed;
        Ok(())
    }
}

#[derive(Debug)]
struct SimReader {
    state: Arc<Mutex<State>>,
    pages: Arc<Pages>,
}

impl PageReader for SimReader {
    fn read(
        &mut self,
        after: Option<&PageKey>,
        bytes_max: usize,
    ) -> Result<Vec<StoredPage>, PageError> {
        self.state.lock().step()?;
        let from = after.map_or(Unbounded, Excluded);
        let mut chunk = Vec::new();
        let mut bytes = 0;
        for (key, value) in self.pages.range::<PageKey, _>((from, Unbounded)) {
            bytes += key.0.len() + value.len();
            if bytes > bytes_max && !chunk.is_empty() {
                break;
            }
            chunk.push((key.clone(), value.clone()));
        }
        Ok(chunk)
    }
}
