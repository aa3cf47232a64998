//! The machine under the measurement: what a sync costs, who else used the processors, and how
//! much memory the nodes have.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use crate::runtime::{Instant, now};

/// Bytes of the probe file, written full of zeros first, as the log's segments are.
const PROBE_BYTES: usize = 4 << 20;
/// Bytes a probe write.
const PROBE_WRITE: usize = 4 << 10;
/// How many syncs are timed.
const PROBE_SYNCS: u64 = 200;
/// Ticks a second of `/proc/…/stat`; fixed in Linux's interface to programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// Measures the median time of one fdatasync on the disk under `dir`.
pub(super) fn fdatasync_p50(dir: &Path) -> io::Result<Duration> {
    let path = dir.join(format!("holdfast-sync-probe-{:08x}", rand::random::<u32>()));
    let measured = time_syncs(&path);
    let removed = fs::remove_file(&path);
    let median = measured?;
    removed?;
    Ok(median)
}

fn time_syncs(path: &Path) -> io::Result<Duration> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(&vec![0; PROBE_BYTES])?;
    file.sync_all()?;
    let block = [0x5a_u8; PROBE_WRITE];
    let mut times = Vec::new();
    for turn in 0..PROBE_SYNCS {
        let at = turn * PROBE_WRITE as u64 % PROBE_BYTES as u64;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&block)?;
        let begun = now();
        file.sync_data()?;
        times.push(now() - begun);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Processor time at one moment.
pub(super) struct CpuReading {
    at: Instant,
    busy_ticks: u64,
    ours_ticks: u64,
}

/// Who used the processors between two readings, in cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuUse {
    /// This command and the nodes that it started.
    pub(super) ours: f64,
    /// Everything else on the machine, and what its host took.
    pub(super) others: f64,
}

impl CpuReading {
    /// Reads the processors' clocks; `None` where `/proc` does not tell them.
    pub(super) fn take(nodes: &[u32]) -> Option<CpuReading> {
        let busy_ticks = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let own = process_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let nodes: u64 = nodes
            .iter()
            .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .filter_map(|text| process_ticks(&text))
            .sum();
        Some(CpuReading { at: now(), busy_ticks, ours_ticks: own + nodes })
    }

    /// Tells who used the processors since `earlier`.
    pub(super) fn since(&self, earlier: &CpuReading) -> CpuUse {
        let seconds = (self.at - earlier.at).as_secs_f64().max(1e-9);
        let cores = |ticks: u64| ticks as f64 / TICKS_PER_SECOND / seconds;
        let busy = self.busy_ticks.saturating_sub(earlier.busy_ticks);
        let ours = self.ours_ticks.saturating_sub(earlier.ours_ticks);
        CpuUse { ours: cores(ours), others: cores(busy.saturating_sub(ours)) }
    }
}

/// user + nice + system + irq + softirq + steal of all processors.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum())
}

/// utime + stime of a process, all its threads.
fn process_ticks(stat: &str) -> Option<u64> {
    // The name stands in parentheses and may hold spaces.
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Resident memory of a process, in bytes.
pub(super) fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    resident_in(&status)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_name_has_spaces_is_read() {
        let stat = "7 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 30 12 0 0 20 0";
        assert_eq!(process_ticks(stat), Some(42));
    }

    #[test]
    fn idle_and_waiting_are_not_busy_and_what_the_host_took_is() {
        let stat = "cpu  1 2 4 1000 1000 8 16 32 64 64\ncpu0 9 9 9 9\n";
        assert_eq!(busy_ticks(stat), Some(1 + 2 + 4 + 8 + 16 + 32));
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_in("Name: x\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
    }

    #[test]
    fn the_probe_leaves_no_file_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        fdatasync_p50(dir.path()).expect("measured");
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
    }
}
