//! One file of a simulated disk: what is durable, what is only written, and what a failed sync left
//! for readers to see. Decides nothing by itself: what survives is the chooser's word.

use std::collections::BTreeMap;
use std::path::Path;

use super::Choice;

/// The unit that survives a power cut whole or not at all, in bytes.
pub const SECTOR_BYTES: usize = 512;
/// How many versions of one unsynced sector a power cut chooses from: the first two and the newest.
const SECTOR_VERSIONS_MAX: usize = 3;

#[derive(Clone, Default)]
pub(super) struct FileState {
    pub(super) durable: Vec<u8>,
    /// The length that a running process sees.
    pub(super) length: u64,
    /// Versions of each sector written since the last sync; the last one is what reads see.
    unsynced: BTreeMap<u64, Vec<[u8; SECTOR_BYTES]>>,
    /// Sectors that a failed sync gave up: reads see them, no later sync writes them.
    pub(super) ghosts: BTreeMap<u64, [u8; SECTOR_BYTES]>,
}

impl FileState {
    fn sector(&self, number: u64) -> [u8; SECTOR_BYTES] {
        if let Some(newest) = self.unsynced.get(&number).and_then(|versions| versions.last()) {
            return *newest;
        }
        if let Some(ghost) = self.ghosts.get(&number) {
            return *ghost;
        }
        let mut sector = [0; SECTOR_BYTES];
        let begin = usize::try_from(number).expect("small").saturating_mul(SECTOR_BYTES);
        if let Some(bytes) = self.durable.get(begin..) {
            let have = bytes.len().min(SECTOR_BYTES);
            sector[..have].copy_from_slice(&bytes[..have]);
        }
        sector
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let have = self.length.saturating_sub(offset).min(buffer.len() as u64);
        let have = usize::try_from(have).expect("bounded by the buffer");
        let mut done = 0;
        while done < have {
            let at = offset + done as u64;
            let within = usize::try_from(at % SECTOR_BYTES as u64).expect("below a sector");
            let step = (SECTOR_BYTES - within).min(have - done);
            let sector = self.sector(at / SECTOR_BYTES as u64);
            buffer[done..done + step].copy_from_slice(&sector[within..within + step]);
            done += step;
        }
        have
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = usize::try_from(at % SECTOR_BYTES as u64).expect("below a sector");
            let step = (SECTOR_BYTES - within).min(bytes.len() - done);
            let number = at / SECTOR_BYTES as u64;
            let mut sector = self.sector(number);
            sector[within..within + step].copy_from_slice(&bytes[done..done + step]);
            self.ghosts.remove(&number);
            let versions = self.unsynced.entry(number).or_default();
            versions.truncate(SECTOR_VERSIONS_MAX - 1);
            versions.push(sector);
            done += step;
        }
        self.length = self.length.max(offset + bytes.len() as u64);
    }

    pub(super) fn set_len(&mut self, length: u64) {
        if length < self.length {
            // What lay behind the cut reads as zeros if the file grows again.
            let first = length / SECTOR_BYTES as u64;
            for number in first..self.length.div_ceil(SECTOR_BYTES as u64) {
                let mut sector = self.sector(number);
                let begin = number * SECTOR_BYTES as u64;
                let keep = usize::try_from(length.saturating_sub(begin)).expect("small");
                sector[keep.min(SECTOR_BYTES)..].fill(0);
                self.unsynced.entry(number).or_default().push(sector);
            }
        }
        self.length = length;
    }

    pub(super) fn sync(&mut self) {
        for (number, versions) in std::mem::take(&mut self.unsynced) {
            self.settle(number, versions.last().expect("a written sector has a version"));
        }
        self.durable.resize(usize::try_from(self.length).expect("small"), 0);
    }

    /// Does what Linux does when a sync fails: calls the pages clean and goes on showing them.
    pub(super) fn fail_sync(&mut self) {
        for (number, versions) in std::mem::take(&mut self.unsynced) {
            self.ghosts.insert(number, *versions.last().expect("a written sector has a version"));
        }
    }

    fn settle(&mut self, number: u64, sector: &[u8; SECTOR_BYTES]) {
        let begin = usize::try_from(number).expect("small") * SECTOR_BYTES;
        if self.durable.len() < begin + SECTOR_BYTES {
            self.durable.resize(begin + SECTOR_BYTES, 0);
        }
        self.durable[begin..begin + SECTOR_BYTES].copy_from_slice(sector);
    }
}

/// Decides what of a file survives.
pub(super) fn survive(
    path: &Path,
    mut file: FileState,
    choose: &mut dyn FnMut(&Choice, usize) -> Option<usize>,
) -> FileState {
    file.ghosts.clear();
    let mut length = file.durable.len() as u64;
    if file.length != length && choose(&Choice::Length(path.to_path_buf()), 1).is_some() {
        length = file.length;
    }
    for (number, versions) in std::mem::take(&mut file.unsynced) {
        if number * SECTOR_BYTES as u64 >= length {
            continue;
        }
        let asked = Choice::Sector(path.to_path_buf(), number);
        if let Some(version) = choose(&asked, versions.len()) {
            file.settle(number, &versions[version]);
        }
    }
    file.durable.resize(usize::try_from(length).expect("small"), 0);
    file.length = length;
    file
}
