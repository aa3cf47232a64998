//! A disk in memory that loses power honestly.
//!
//! Every file keeps what is durable apart from what was written since its last sync, by sectors of
//! 512 bytes; every name made, renamed or removed is pending until its directory is synced. A power
//! cut lets a chosen subset of the pending changes survive: any sector, in any version written
//! since the last sync; any length; any name. It never invents bytes and never loses synced ones.
//!
//! It is also a disk that errs on demand: a write or sync that fails, no room, syncs that are slow
//! (virtual time) or hang, bits flipped and files cut or removed at rest. Everything is
//! deterministic: the only choices are those that the caller or the caller's seed makes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(not(feature = "sim"))]
use parking_lot::Condvar;
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::disk::{Disk, DiskFile};

mod mounted;
mod sectors;

pub use sectors::SECTOR_BYTES;
use sectors::{FileState, survive};

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails as a failing device does (EIO).
    Io,
    /// The operation fails for want of room (ENOSPC).
    Full,
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::Io => io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()),
            Fault::Full => io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()),
        }
    }
}

/// One thing a power cut decides, given to the chooser of [`SimDisk::after_power_cut`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Whether a name change reached the disk.
    Name(PathBuf),
    /// Whether a file's new length reached the disk.
    Length(PathBuf),
    /// Whether a sector reached the disk, and in which of its versions.
    Sector(PathBuf, u64),
}

/// A simulated disk, in the hand of whoever runs the test. Clones are handles to the same disk. It
/// is a [`Disk`] itself, one that outlives crashes; a node that shall die in them gets a
/// [`SimDisk::mount`].
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
    /// The only epoch in which this handle works; any, for the test's own.
    epoch: Option<u64>,
}

struct Shared {
    state: Mutex<State>,
    #[cfg(not(feature = "sim"))]
    thawed: Condvar,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").finish_non_exhaustive()
    }
}

#[derive(Clone, Default)]
struct State {
    /// Counts power cuts; handles of an earlier epoch are dead.
    epoch: u64,
    /// Names as a running process sees them.
    names: BTreeMap<PathBuf, Node>,
    /// Names as they are after a power cut without luck.
    durable_names: BTreeMap<PathBuf, Node>,
    /// Name changes since the last sync of their directory, in order.
    pending: Vec<NameChange>,
    files: BTreeMap<u64, FileState>,
    next_file: u64,
    capacity_bytes: Option<u64>,
    sync_delay: Duration,
    hung: bool,
    write_faults: BTreeMap<u64, Fault>,
    sync_faults: BTreeMap<u64, Fault>,
    power_off_after: Option<u64>,
    counts: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    operations: u64,
    writes: u64,
    syncs: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Dir,
    File(u64),
}

#[derive(Clone)]
enum NameChange {
    Made { path: PathBuf, node: Node },
    Renamed { from: PathBuf, to: PathBuf },
    Removed { path: PathBuf },
}

impl NameChange {
    fn path(&self) -> &Path {
        match self {
            NameChange::Made { path, .. } | NameChange::Removed { path } => path,
            NameChange::Renamed { to, .. } => to,
        }
    }
}

impl Default for SimDisk {
    fn default() -> SimDisk {
        SimDisk::new()
    }
}

impl SimDisk {
    /// Returns an empty disk without faults, with instant syncs and no limit.
    pub fn new() -> SimDisk {
        SimDisk::with_state(State::default())
    }

    fn with_state(state: State) -> SimDisk {
        SimDisk {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                #[cfg(not(feature = "sim"))]
                thawed: Condvar::new(),
            }),
            epoch: None,
        }
    }

    /// Returns the disk for one life of a process: after the next [`SimDisk::power_cut`] or
    /// [`SimDisk::process_kill`] everything that is done through it, and through files opened
    /// through it, fails.
    pub fn mount(&self) -> Arc<dyn Disk> {
        let epoch = Some(self.shared.state.lock().epoch);
        Arc::new(SimDisk { shared: self.shared.clone(), epoch })
    }

    /// Locks the state for a handle that may be dead.
    fn alive(&self) -> io::Result<(MutexGuard<'_, State>, u64)> {
        let state = self.shared.state.lock();
        let epoch = self.epoch.unwrap_or(state.epoch);
        if epoch != state.epoch {
            return Err(io::Error::other("this disk was mounted before the crash"));
        }
        Ok((state, epoch))
    }

    /// Cuts the power of *this* disk: pending changes survive as `seed` decides, every open handle
    /// is dead, faults and hangs are over.
    pub fn power_cut(&self, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Power cuts come in kinds: nothing survives, everything does, or some of it.
        let odds: f64 = [0.0, 1.0, 0.5, 0.1, 0.9][rng.random_range(0..5)];
        let after = self.after_power_cut(&mut |_, versions| {
            rng.random_bool(odds).then(|| {
                if rng.random_bool(0.8) { versions - 1 } else { rng.random_range(0..versions) }
            })
        });
        let mut state = self.shared.state.lock();
        let epoch = state.epoch + 1;
        let next = after.shared.state.lock().clone();
        *state = State { epoch, ..next };
        drop(state);
        #[cfg(not(feature = "sim"))]
        self.shared.thawed.notify_all();
    }

    /// Kills the process that uses *this* disk, not the machine: every open handle is dead, what
    /// was written stays as written, synced or not; faults and hangs are over.
    pub fn process_kill(&self) {
        let mut state = self.shared.state.lock();
        state.epoch += 1;
        state.calm();
        drop(state);
        #[cfg(not(feature = "sim"))]
        self.shared.thawed.notify_all();
    }

    /// Returns another disk, with what this one would hold after a power cut now. `choose` is asked
    /// for each pending change, in a fixed order, with the number of versions it has: `None` loses
    /// it, `Some(i)` lets version `i` survive. This disk goes on as if nothing had happened.
    pub fn after_power_cut(
        &self,
        choose: &mut dyn FnMut(&Choice, usize) -> Option<usize>,
    ) -> SimDisk {
        let mut state = self.shared.state.lock().clone();
        for change in std::mem::take(&mut state.pending) {
            if choose(&Choice::Name(change.path().to_path_buf()), 1).is_some() {
                apply_change(&mut state.durable_names, &change);
            }
        }
        let names = state.durable_names.clone();
        let rooted = |path: &Path| {
            path.ancestors().skip(1).all(|dir| {
                dir.as_os_str().is_empty()
                    || dir == Path::new("/")
                    || names.get(dir) == Some(&Node::Dir)
            })
        };
        state.durable_names.retain(|path, _| rooted(path));
        state.names = state.durable_names.clone();
        let mut survivors = BTreeMap::new();
        for (path, node) in &state.names {
            let Node::File(id) = node else { continue };
            let file = state.files.get(id).expect("a named file exists");
            survivors.insert(*id, survive(path, file.clone(), choose));
        }
        state.files = survivors;
        state.calm();
        SimDisk::with_state(state)
    }

    /// Returns what [`SimDisk::after_power_cut`] would ask, with the versions of each.
    pub fn pending(&self) -> Vec<(Choice, usize)> {
        let mut all = Vec::new();
        self.after_power_cut(&mut |choice, versions| {
            all.push((choice.clone(), versions));
            Some(versions - 1)
        });
        all
    }

    /// Returns another disk that holds exactly what this one holds now, pending changes included.
    pub fn fork(&self) -> SimDisk {
        SimDisk::with_state(self.shared.state.lock().clone())
    }

    /// From now on, `count` more operations that change the disk succeed and every later one fails
    /// as on a machine without power.
    pub fn power_off_after(&self, count: u64) {
        let mut state = self.shared.state.lock();
        state.power_off_after = Some(state.counts.operations + count);
    }

    /// Makes the `nth` write from now (1 is the next) fail, once.
    pub fn fail_write(&self, nth: u64, fault: Fault) {
        let mut state = self.shared.state.lock();
        let at = state.counts.writes + nth;
        state.write_faults.insert(at, fault);
    }

    /// Makes the `nth` sync of file data from now (1 is the next) fail, once. What was not synced
    /// goes on being shown to readers but never reaches the disk unless it is written again, as on
    /// Linux: a later sync that succeeds proves nothing.
    pub fn fail_sync(&self, nth: u64, fault: Fault) {
        let mut state = self.shared.state.lock();
        let at = state.counts.syncs + nth;
        state.sync_faults.insert(at, fault);
    }

    /// Limits the sum of all files' lengths; what would grow them beyond it fails with ENOSPC.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.lock().capacity_bytes = bytes;
    }

    /// Sets how long each sync takes, in virtual time.
    pub fn set_sync_delay(&self, delay: Duration) {
        self.shared.state.lock().sync_delay = delay;
    }

    /// Makes syncs hang from now on, or lets them through again.
    pub fn set_hung(&self, hung: bool) {
        self.shared.state.lock().hung = hung;
        #[cfg(not(feature = "sim"))]
        self.shared.thawed.notify_all();
    }

    /// Loses everything, as when the machine gets a new disk: every open handle is dead.
    pub fn wipe(&self) {
        let mut state = self.shared.state.lock();
        let (epoch, sync_delay) = (state.epoch + 1, state.sync_delay);
        *state = State { epoch, sync_delay, ..State::default() };
        drop(state);
        #[cfg(not(feature = "sim"))]
        self.shared.thawed.notify_all();
    }

    /// Flips the bits of `mask` in one byte at rest.
    ///
    /// # Panics
    ///
    /// When there is no such file or byte.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) {
        self.at_rest(path, |file| {
            let at = usize::try_from(offset).expect("small");
            file.durable[at] ^= mask;
        });
    }

    /// Cuts a file to `length` at rest.
    ///
    /// # Panics
    ///
    /// When there is no such file.
    pub fn cut(&self, path: &Path, length: u64) {
        self.at_rest(path, |file| {
            file.durable.truncate(usize::try_from(length).expect("small"));
            file.length = file.durable.len() as u64;
        });
    }

    /// Removes a file at rest, durably.
    pub fn lose(&self, path: &Path) {
        let mut state = self.shared.state.lock();
        state.names.remove(path);
        state.durable_names.remove(path);
        state.pending.retain(|change| change.path() != path);
    }

    /// Returns the bytes of a file as a running process sees them, or `None` without one.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.shared.state.lock();
        let Some(Node::File(id)) = state.names.get(path) else { return None };
        let file = state.files.get(id).expect("a named file exists");
        let mut bytes = vec![0; usize::try_from(file.length).expect("small")];
        file.read(0, &mut bytes);
        Some(bytes)
    }

    /// Returns the paths of all files, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        let state = self.shared.state.lock();
        let files = state.names.iter().filter(|(_, node)| matches!(node, Node::File(_)));
        files.map(|(path, _)| path.clone()).collect()
    }

    /// Returns how many operations changed the disk or tried to.
    pub fn operations(&self) -> u64 {
        self.shared.state.lock().counts.operations
    }

    /// Returns how many syncs of file data were begun.
    pub fn syncs(&self) -> u64 {
        self.shared.state.lock().counts.syncs
    }

    /// Returns the sum of all files' lengths, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.shared.state.lock().used_bytes()
    }

    fn at_rest(&self, path: &Path, change: impl FnOnce(&mut FileState)) {
        let mut state = self.shared.state.lock();
        let Some(Node::File(id)) = state.names.get(path).copied() else {
            panic!("no file {} on the simulated disk", path.display());
        };
        let file = state.files.get_mut(&id).expect("a named file exists");
        file.sync();
        file.ghosts.clear();
        change(file);
    }
}

fn apply_change(names: &mut BTreeMap<PathBuf, Node>, change: &NameChange) {
    match change {
        NameChange::Made { path, node } => {
            names.insert(path.clone(), *node);
        }
        NameChange::Renamed { from, to } => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
        NameChange::Removed { path } => {
            names.remove(path);
        }
    }
}

impl State {
    fn calm(&mut self) {
        self.hung = false;
        self.power_off_after = None;
        self.write_faults.clear();
        self.sync_faults.clear();
    }

    fn used_bytes(&self) -> u64 {
        let ids: BTreeSet<u64> = self
            .names
            .values()
            .filter_map(|node| match node {
                Node::File(id) => Some(*id),
                Node::Dir => None,
            })
            .collect();
        ids.iter().filter_map(|id| self.files.get(id)).map(|file| file.length).sum()
    }

    /// Counts one operation that changes the disk.
    fn operate(&mut self, epoch: u64) -> io::Result<()> {
        if epoch != self.epoch {
            return Err(io::Error::other("this handle is from before the crash"));
        }
        self.counts.operations += 1;
        if self.power_off_after.is_some_and(|limit| self.counts.operations > limit) {
            return Err(io::Error::other("the power is off"));
        }
        Ok(())
    }

    fn check_room(&self, grow: u64) -> io::Result<()> {
        match self.capacity_bytes {
            Some(capacity) if grow > 0 && self.used_bytes() + grow > capacity => {
                Err(Fault::Full.error())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn change_name(&mut self, change: NameChange) {
        apply_change(&mut self.names, &change);
        self.pending.push(change);
    }

    fn parent_exists(&self, path: &Path) -> bool {
        path.parent().is_none_or(|dir| {
            dir.as_os_str().is_empty()
                || dir == Path::new("/")
                || self.names.get(dir) == Some(&Node::Dir)
        })
    }
}
