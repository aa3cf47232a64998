//! The only reader of wall time.
//!
//! A node reads the wall clock through the [`WallClock`] it was given, so that a test or the
//! simulator can lie about it. Ledger time is derived from it in `shard/`; nothing in the ledger
//! ever sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::ledger::UnixMs;

/// A wall clock: the machine's, or one that a test moves.
#[derive(Clone, Debug, Default)]
pub struct WallClock {
    source: Source,
}

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    /// The machine's clock (virtual monotonic time in the simulator) plus an offset in ms.
    Offset { offset_ms: Arc<AtomicI64> },
}

impl WallClock {
    /// Returns the machine's wall clock.
    pub fn system() -> WallClock {
        WallClock::default()
    }

    /// Returns a clock that shows the machine's time plus `offset_ms` milliseconds, which the
    /// caller may change while it runs.
    pub fn with_offset(offset_ms: Arc<AtomicI64>) -> WallClock {
        WallClock { source: Source::Offset { offset_ms } }
    }

    /// Returns milliseconds since 1970, UTC; zero for a clock set before 1970.
    pub fn now(&self) -> UnixMs {
        match &self.source {
            Source::System => UnixMs(base_ms()),
            Source::Offset { offset_ms } => {
                UnixMs(base_ms().saturating_add_signed(offset_ms.load(Ordering::Relaxed)))
            }
        }
    }
}

/// Milliseconds of the machine's clock; in the simulator, of virtual time counted from a fixed day.
fn base_ms() -> u64 {
    #[cfg(feature = "sim")]
    {
        /// 2026-01-01T00:00:00Z, the day on which every simulated run begins.
        const SIM_EPOCH_MS: u64 = 1_767_225_600_000;
        SIM_EPOCH_MS + crate::runtime::since_start_ms()
    }
    #[cfg(not(feature = "sim"))]
    {
        use std::time::{SystemTime, UNIX_EPOCH};
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
