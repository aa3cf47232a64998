//! Storage: promises in the log, state in sled. The only room that touches files.

mod disk;
pub mod log;
mod sim_disk;

pub use disk::{Disk, DiskFile, RealDisk, measure_sync};
pub use sim_disk::{Choice, Fault, SECTOR_BYTES, SimDisk};
