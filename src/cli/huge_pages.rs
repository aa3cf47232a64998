//! Asks the allocator for pages of 2 MiB, which it takes only as a process starts.
//!
//! mimalloc reads its options from the environment before `main`: a process that was started
//! without them starts itself once more, under the same process id. Where that is not possible it
//! goes on as it is: only time is lost.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Whether memory is asked for in pages of 2 MiB. Whoever set it has decided.
const HUGE: &str = "MIMALLOC_ALLOW_LARGE_OS_PAGES";
/// How long free memory is kept, in ms: a large page that is given back in part is large no more,
/// and the first touch of memory costs most of what using it does.
const KEPT: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "10000");
/// Set for the process that was started once more. One that runs with more rights than its caller
/// (a file with capabilities) may get its environment taken away, and would start itself for ever.
const ASKED: &str = "_HOLDFAST_ASKED_FOR_HUGE_PAGES";
/// The system's word on transparent huge pages, the valid one in brackets.
const SYSTEM: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Starts this process once more with huge pages, unless it has them, the system does not give
/// them, or somebody has decided about them. Must come before any thread or file.
pub(super) fn ask_for_them() {
    let system = std::fs::read_to_string(SYSTEM).unwrap_or_default();
    let decided = [ASKED, HUGE].iter().any(|name| std::env::var_os(name).is_some());
    if decided || !gives_them(&system) {
        return;
    }
    let Ok(this) = std::env::current_exe() else { return };
    let mut again = Command::new(this);
    again.args(std::env::args_os().skip(1)).env(HUGE, "1").env(ASKED, "1");
    if std::env::var_os(KEPT.0).is_none() {
        again.env(KEPT.0, KEPT.1);
    }
    // It returns only when it failed.
    eprintln!("holdfast: goes on without huge pages: {}", again.exec());
}

/// Whether the system gives huge pages to whoever asks.
fn gives_them(system: &str) -> bool {
    system.contains("[madvise]") || system.contains("[always]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_asked_for_where_the_system_gives_them() {
        assert!(gives_them("always [madvise] never\n") && gives_them("[always] madvise never"));
        assert!(!gives_them("always madvise [never]") && !gives_them(""));
    }
}
