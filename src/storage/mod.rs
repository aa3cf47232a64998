//! Storage: promises in the log, state in sled. The only room that touches files.

pub mod checkpoint;
pub mod data_dir;
mod disk;
pub mod identity;
pub mod log;
pub mod pages;
mod sim_disk;

pub use disk::{Disk, DiskFile, RealDisk, measure_sync};
pub use sim_disk::{Choice, Fault, SECTOR_BYTES, SimDisk};
