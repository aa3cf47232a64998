//! The simulated disk as the code under test sees it: one life's mount, and its open files.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let (mut state, epoch) = self.alive()?;
        state.operate(epoch)?;
        if !state.parent_exists(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let id = match state.names.get(path) {
            Some(Node::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(Node::File(id)) => {
                let id = *id;
                state.files.get_mut(&id).expect("a named file exists").set_len(0);
                id
            }
            None => {
                let id = state.next_file;
                state.next_file += 1;
                state.files.insert(id, FileState::default());
                state.change_name(NameChange::Made { path: path.to_owned(), node: Node::File(id) });
                id
            }
        };
        Ok(Arc::new(SimFile { shared: self.shared.clone(), id, epoch }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let (state, _) = self.alive()?;
        match state.names.get(path) {
            Some(Node::File(id)) => {
                Ok(Arc::new(SimFile { shared: self.shared.clone(), id: *id, epoch: state.epoch }))
            }
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let (state, _) = self.alive()?;
        if state.names.get(dir) != Some(&Node::Dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let children = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(children
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut state, epoch) = self.alive()?;
        state.operate(epoch)?;
        match state.names.get(from) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Node::Dir) => Err(io::ErrorKind::Unsupported.into()),
            Some(Node::File(_)) => {
                state.change_name(NameChange::Renamed { from: from.into(), to: to.into() });
                Ok(())
            }
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (mut state, epoch) = self.alive()?;
        state.operate(epoch)?;
        match state.names.get(path) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            Some(Node::File(_)) => {
                state.change_name(NameChange::Removed { path: path.into() });
                Ok(())
            }
        }
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let (mut state, epoch) = self.alive()?;
        state.operate(epoch)?;
        let mut missing: Vec<&Path> = Vec::new();
        for path in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            match state.names.get(path) {
                Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                Some(Node::Dir) => {}
                None if path == Path::new("/") => {}
                None => missing.push(path),
            }
        }
        for path in missing.into_iter().rev() {
            state.change_name(NameChange::Made { path: path.into(), node: Node::Dir });
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let (mut state, epoch) = self.alive()?;
        state.operate(epoch)?;
        let (settled, pending): (Vec<NameChange>, Vec<NameChange>) =
            std::mem::take(&mut state.pending)
                .into_iter()
                .partition(|change| change.path().parent().unwrap_or(Path::new("")) == dir);
        state.pending = pending;
        for change in &settled {
            apply_change(&mut state.durable_names, change);
        }
        Ok(())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let (state, _) = self.alive()?;
        Ok(state.capacity_bytes.map_or(u64::MAX, |all| all.saturating_sub(state.used_bytes())))
    }

    fn total_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let (state, _) = self.alive()?;
        Ok(state.capacity_bytes.unwrap_or(u64::MAX))
    }

    fn sync_delay(&self) -> Duration {
        self.shared.state.lock().sync_delay
    }

    fn is_hung(&self) -> bool {
        self.shared.state.lock().hung
    }
}

struct SimFile {
    shared: Arc<Shared>,
    id: u64,
    epoch: u64,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("id", &self.id).finish_non_exhaustive()
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.shared.state.lock();
        if state.epoch != self.epoch {
            return Err(io::Error::other("this handle is from before the crash"));
        }
        Ok(state.files.get(&self.id).map_or(0, |file| file.read(offset, buffer)))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.operate(self.epoch)?;
        state.counts.writes += 1;
        let nth = state.counts.writes;
        let length = state.files.get(&self.id).map_or(0, |file| file.length);
        state.check_room((offset + bytes.len() as u64).saturating_sub(length))?;
        let fault = state.write_faults.remove(&nth);
        let Some(file) = state.files.get_mut(&self.id) else { return Ok(()) };
        match fault {
            None => file.write(offset, bytes),
            Some(fault) => {
                // A failed write may have written some of it.
                file.write(offset, &bytes[..bytes.len() / 2]);
                return Err(fault.error());
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.operate(self.epoch)?;
        state.counts.syncs += 1;
        let nth = state.counts.syncs;
        #[cfg(not(feature = "sim"))]
        while state.hung && state.epoch == self.epoch {
            self.shared.thawed.wait(&mut state);
        }
        if state.epoch != self.epoch {
            return Err(io::Error::other("this handle is from before the crash"));
        }
        let fault = state.sync_faults.remove(&nth);
        let Some(file) = state.files.get_mut(&self.id) else { return Ok(()) };
        match fault {
            None => file.sync(),
            Some(fault) => {
                file.fail_sync();
                return Err(fault.error());
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.operate(self.epoch)?;
        let now = state.files.get(&self.id).map_or(0, |file| file.length);
        state.check_room(length.saturating_sub(now))?;
        if let Some(file) = state.files.get_mut(&self.id) {
            file.set_len(length);
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        let state = self.shared.state.lock();
        Ok(state.files.get(&self.id).map_or(0, |file| file.length))
    }
}
