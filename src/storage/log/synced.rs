//! The side file `synced`: how far the log was synced, in two slots that are written in turn after
//! each sync of the log and before its acknowledgement.
//!
//! Each slot lies within one sector, so a power cut leaves an older mark or a newer one, and damage
//! to one slot leaves the other. Never says more than what was synced.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::LogError;
use crate::storage::disk::{Disk, DiskFile};

/// The name of the side file in the log's directory.
pub(super) const FILE_NAME: &str = "synced";
/// Each slot has a page of its own, in bytes, so that no write ever touches both.
const SLOT_STRIDE_BYTES: u64 = 4096;
/// The whole file's size, in bytes.
const FILE_BYTES: u64 = 2 * SLOT_STRIDE_BYTES;
const SLOT_BYTES: usize = 44;
const MAGIC: [u8; 4] = *b"HFSY";

/// How far the log is known to have been synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SyncedMark {
    /// Every frame up to this sequence was synced; 0 when nothing was.
    pub(super) sequence: u64,
    /// The segment in which that frame lies.
    pub(super) segment: u64,
}

/// The open side file.
#[derive(Debug)]
pub(super) struct SyncedFile {
    file: Arc<dyn DiskFile>,
    uuid: [u8; 16],
    next_slot: u64,
}

fn encode(uuid: &[u8; 16], mark: SyncedMark) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..4].copy_from_slice(&MAGIC);
    slot[4..20].copy_from_slice(uuid);
    slot[20..28].copy_from_slice(&mark.sequence.to_le_bytes());
    slot[28..36].copy_from_slice(&mark.segment.to_le_bytes());
    // 36..40 is kept for later, and zero.
    let crc = crc32fast::hash(&slot[..SLOT_BYTES - 4]);
    slot[SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    slot
}

/// Reads a slot: whose it is and what it says, or `None` when it is torn or was never written.
fn decode(slot: &[u8; SLOT_BYTES]) -> Option<([u8; 16], SyncedMark)> {
    let u64_at = |at: usize| {
        u64::from_le_bytes(*slot[at..].first_chunk::<8>().expect("the offsets lie in the slot"))
    };
    let crc = *slot[SLOT_BYTES - 4..].first_chunk::<4>().expect("a slot ends with its checksum");
    if slot[..4] != MAGIC || crc32fast::hash(&slot[..SLOT_BYTES - 4]) != u32::from_le_bytes(crc) {
        return None;
    }
    let uuid = *slot[4..].first_chunk::<16>().expect("the offsets lie in the slot");
    Some((uuid, SyncedMark { sequence: u64_at(20), segment: u64_at(28) }))
}

impl SyncedFile {
    /// Creates the side file, both slots saying `mark`, and syncs it. Its name is the caller's to
    /// sync.
    pub(super) fn create(
        disk: &dyn Disk,
        path: &Path,
        uuid: [u8; 16],
        mark: SyncedMark,
    ) -> io::Result<SyncedFile> {
        let file = disk.create(path)?;
        file.write_at(0, &[0; FILE_BYTES as usize])?;
        for slot in 0..2 {
            file.write_at(slot * SLOT_STRIDE_BYTES, &encode(&uuid, mark))?;
        }
        file.sync_data()?;
        Ok(SyncedFile { file, uuid, next_slot: 0 })
    }

    /// Opens the side file and reads the newer mark.
    pub(super) fn open(
        disk: &dyn Disk,
        path: &Path,
        uuid: [u8; 16],
    ) -> Result<(SyncedFile, SyncedMark), LogError> {
        let damaged = |offset: u64, what: &str| LogError::damaged(path, offset, what);
        let file = match disk.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(LogError::Lost { what: format!("{} is missing", path.display()) });
            }
            Err(error) => return Err(LogError::io(path, error)),
        };
        let length = file.length().map_err(|error| LogError::io(path, error))?;
        if length != FILE_BYTES {
            return Err(damaged(length, "the side file has another length than it was made with"));
        }
        let mut newest: Option<(u64, SyncedMark)> = None;
        for slot in 0..2 {
            let mut bytes = [0; SLOT_BYTES];
            file.read_exact_at(slot * SLOT_STRIDE_BYTES, &mut bytes)
                .map_err(|error| LogError::io(path, error))?;
            let Some((found, mark)) = decode(&bytes) else { continue };
            if found != uuid {
                return Err(LogError::Foreign { expected: uuid, found });
            }
            if newest.is_none_or(|(_, best)| mark.sequence > best.sequence) {
                newest = Some((slot, mark));
            }
        }
        // Both were synced at creation, and each lies within one sector: a power cut leaves its old
        // bytes or its new ones. So this is no tear.
        let Some((slot, mark)) = newest else {
            return Err(damaged(0, "neither slot of the side file can be read"));
        };
        Ok((SyncedFile { file, uuid, next_slot: 1 - slot }, mark))
    }

    /// Writes `mark` over the older slot. Not synced: see the argument in the log's documentation.
    pub(super) fn write(&mut self, mark: SyncedMark) -> io::Result<()> {
        self.file.write_at(self.next_slot * SLOT_STRIDE_BYTES, &encode(&self.uuid, mark))?;
        self.next_slot = 1 - self.next_slot;
        Ok(())
    }

    /// Syncs the side file.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimDisk;

    #[test]
    fn the_slots_take_turns_so_that_a_damaged_one_leaves_the_mark_before() {
        let disk = SimDisk::new();
        let (path, uuid) = (Path::new("synced"), [7; 16]);
        let mark = |sequence| SyncedMark { sequence, segment: 1 };
        let mut file = SyncedFile::create(&disk, path, uuid, mark(1)).expect("a healthy disk");
        for sequence in 2..9 {
            file.write(mark(sequence)).expect("a healthy disk");
            let (reopened, newest) = SyncedFile::open(&disk, path, uuid).expect("whole");
            assert_eq!(newest, mark(sequence));
            let mut seen = Vec::new();
            for slot in 0..2 {
                let bad = disk.fork();
                bad.flip(path, slot * SLOT_STRIDE_BYTES + 21, 1);
                let (_, mark) = SyncedFile::open(&bad, path, uuid).expect("one slot is whole");
                seen.push(mark.sequence);
            }
            seen.sort_unstable();
            assert_eq!(seen, [sequence - 1, sequence]);
            file = reopened;
        }
        disk.flip(path, 21, 1);
        disk.flip(path, SLOT_STRIDE_BYTES + 21, 1);
        assert!(matches!(SyncedFile::open(&disk, path, uuid), Err(LogError::Damaged { .. })));
    }
}
