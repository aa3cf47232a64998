//! The disks of the nodes. Best are loop-mounted images: they can be full, and a copy of one while
//! its writer stands still is what a power cut leaves. A small tmpfs can at least be full; a plain
//! directory can be neither, and what needs more is skipped, loudly.

use std::path::{Path, PathBuf};

use crate::tool;

/// Bytes of a node's disk.
const DISK_BYTES: u64 = 224 << 20;

/// Copies that are tried until one is of one moment.
const SNAPSHOTS_MAX: u32 = 8;

/// What nodes keep their data on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// An ext4 image on a loop device.
    Image,
    /// A tmpfs: nothing is ever synced there.
    Memory,
    /// A directory.
    Plain,
}

/// The disk of one node.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) medium: Medium,
    pub(crate) mounted: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// Makes the disk of a node under the run's directory; `mounts` tells whether this run may
    /// mount.
    ///
    /// # Errors
    ///
    /// When not even a directory can be made.
    pub(crate) async fn make(scratch: &Path, node: u64, mounts: bool) -> Result<Disk, String> {
        let mounted = scratch.join(format!("n{node}"));
        std::fs::create_dir_all(&mounted).map_err(|e| format!("{}: {e}", mounted.display()))?;
        let image = scratch.join(format!("n{node}.img"));
        let mut disk = Disk { medium: Medium::Plain, mounted, image };
        if !mounts {
            return Ok(disk);
        }
        if disk.format().await.is_ok() && disk.mount().await.is_ok() {
            disk.medium = Medium::Image;
            return Ok(disk);
        }
        let at = disk.mounted.to_string_lossy().into_owned();
        let size = format!("size={DISK_BYTES}");
        if tool::run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &at]).await.is_ok() {
            disk.medium = Medium::Memory;
        }
        Ok(disk)
    }

    /// The node's data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.mounted.join("data")
    }

    async fn format(&self) -> Result<(), String> {
        let image = self.image.to_string_lossy();
        tool::run("truncate", &["-s", &DISK_BYTES.to_string(), &image]).await?;
        tool::run("mkfs.ext4", &["-q", "-F", "-m", "0", &image]).await.map(drop)
    }

    /// Mounts the image.
    ///
    /// # Errors
    ///
    /// When the system does not let us.
    pub(crate) async fn mount(&self) -> Result<(), String> {
        let (image, at) = (self.image.to_string_lossy(), self.mounted.to_string_lossy());
        tool::run("mount", &["-o", "loop", &image, &at]).await.map(drop)
    }

    /// Unmounts it.
    ///
    /// # Errors
    ///
    /// When a process still uses it.
    pub(crate) async fn unmount(&self) -> Result<(), String> {
        tool::run("umount", &[&self.mounted.to_string_lossy()]).await.map(drop)
    }

    /// Copies the image as it is on the device now: what was written and not synced is not in it.
    ///
    /// # Errors
    ///
    /// When it cannot be copied.
    pub(crate) async fn snapshot(&self) -> Result<PathBuf, String> {
        let copy = self.image.with_extension("copy");
        let (image, to) = (self.image.to_string_lossy(), copy.to_string_lossy());
        for _ in 0..SNAPSHOTS_MAX {
            tool::run("cp", &["--sparse=always", &image, &to]).await?;
            // The file system commits by itself now and then: a copy that it wrote into is torn as
            // no power cut tears.
            if tool::run("cmp", &["-s", &image, &to]).await.is_ok() {
                return Ok(copy);
            }
        }
        Err("the image changed during every copy".to_owned())
    }

    /// Puts a copy in the place of the image and says whether its journal has to be replayed: the
    /// sign of a disk that was cut off.
    ///
    /// # Errors
    ///
    /// When it cannot be put there.
    pub(crate) async fn replace(&self, copy: &Path) -> Result<bool, String> {
        let said = tool::run("dumpe2fs", &["-h", &copy.to_string_lossy()]).await?;
        std::fs::rename(copy, &self.image).map_err(|e| e.to_string())?;
        Ok(said.contains("needs_recovery"))
    }

    /// Unmounts it and removes its image, or its directory.
    ///
    /// # Errors
    ///
    /// When a process still uses it.
    pub(crate) async fn discard(&self) -> Result<(), String> {
        if self.medium != Medium::Plain {
            self.unmount().await?;
        }
        let _ = std::fs::remove_file(&self.image);
        std::fs::remove_dir_all(&self.mounted).map_err(|e| e.to_string())
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("filled")
    }

    /// Fills the disk to the last byte; says what the system answered to the write after that.
    ///
    /// # Errors
    ///
    /// When it does not get full.
    pub(crate) fn fill(&self) -> Result<String, String> {
        use std::io::Write;
        if self.medium == Medium::Plain {
            return Err("the node's disk is a directory of this machine's own".to_owned());
        }
        let mut file = std::fs::File::create(self.ballast()).map_err(|e| e.to_string())?;
        let (mut block, mut written) = (1 << 20, 0_u64);
        let zeros = vec![0_u8; block];
        loop {
            match file.write(&zeros[..block]) {
                Ok(count) => written += count as u64,
                Err(_) if block > 512 => block /= 2,
                Err(why) => return Ok(format!("after {written} bytes a write failed: {why}")),
            }
            if written > DISK_BYTES {
                return Err("the disk is larger than it should be".to_owned());
            }
        }
    }

    /// Makes room again.
    pub(crate) fn free(&self) {
        let _ = std::fs::remove_file(self.ballast());
    }
}
