//! Asks the allocator for pages of 2 MiB, which it takes only as a process starts.
//!
//! The GNU C library reads `glibc.malloc.hugetlb` from the environment before `main`: a process
//! that was started without it starts itself once more, under the same process id. Where that is
//! not possible it goes on as it is: only time is lost.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

const TUNABLES: &str = "GLIBC_TUNABLES";
const HUGE: &str = "glibc.malloc.hugetlb";
/// Set for the process that was started once more. One that runs with more rights than its caller
/// (a file with capabilities) gets its tunables taken away, and would start itself for ever.
const ASKED: &str = "_HOLDFAST_ASKED_FOR_HUGE_PAGES";
/// The system's word on transparent huge pages, the valid one in brackets.
const SYSTEM: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Starts this process once more with huge pages, unless it has them, the system does not give
/// them, or somebody has decided about them. Must come before any thread or file.
pub(super) fn ask_for_them() {
    let system = std::fs::read_to_string(SYSTEM).unwrap_or_default();
    if std::env::var_os(ASKED).is_some() {
        return;
    }
    let Some(tunables) = tunables(&system, std::env::var_os(TUNABLES).as_deref()) else { return };
    let Ok(this) = std::env::current_exe() else { return };
    let failed = Command::new(this)
        .args(std::env::args_os().skip(1))
        .env(TUNABLES, tunables)
        .env(ASKED, "1")
        .exec();
    // It returns only when it failed.
    eprintln!("holdfast: goes on without huge pages: {failed}");
}

/// What the tunables have to be; `None` when there is nothing to change.
fn tunables(system: &str, given: Option<&OsStr>) -> Option<OsString> {
    let has_them = cfg!(all(target_os = "linux", target_env = "gnu"))
        && (system.contains("[madvise]") || system.contains("[always]"));
    let given = given.unwrap_or_default();
    if !has_them || given.to_string_lossy().contains(HUGE) {
        return None;
    }
    let mut tunables = given.to_owned();
    if !tunables.is_empty() {
        tunables.push(":");
    }
    tunables.push(format!("{HUGE}=1"));
    Some(tunables)
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_starts_itself_once_more_and_only_once() {
        let madvise = "always [madvise] never\n";
        let first = tunables(madvise, None).expect("it has no huge pages yet");
        assert_eq!(first, "glibc.malloc.hugetlb=1");
        assert_eq!(tunables(madvise, Some(&first)), None);
        let others = OsStr::new("glibc.malloc.arena_max=4");
        let second = tunables(madvise, Some(others)).expect("others are kept");
        assert_eq!(second, "glibc.malloc.arena_max=4:glibc.malloc.hugetlb=1");
    }

    #[test]
    fn whoever_decided_about_huge_pages_is_heard() {
        let off = OsStr::new("glibc.malloc.hugetlb=0");
        assert_eq!(tunables("[always] madvise never", Some(off)), None);
        assert_eq!(tunables("always madvise [never]", None), None);
        assert_eq!(tunables("", None), None);
    }
}
