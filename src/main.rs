//! The `holdfast` binary: reads the command line and runs one verb.

use std::process::ExitCode;

/// What a request allocates on one thread another one gives back, for which a system's allocator
/// often takes a lock; and that of the GNU C library has huge pages for one thread only.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    holdfast::cli::run(std::env::args_os().collect())
}
