//! What happened, as lines with the virtual time at which it did: hashed, and the last of it kept
//! for the reader of a failure.

use std::collections::VecDeque;

use holdfast::runtime::since_start_ms;
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

const TAIL_LINES: usize = 150;

/// The trace of one run.
pub(crate) struct Trace {
    state: Mutex<State>,
    /// Whether each line is printed as it comes.
    loud: bool,
}

struct State {
    hash: Xxh3,
    lines: u64,
    tail: VecDeque<String>,
}

impl Trace {
    pub(crate) fn new() -> Trace {
        let state = State { hash: Xxh3::new(), lines: 0, tail: VecDeque::new() };
        Trace { state: Mutex::new(state), loud: std::env::var_os("SIM_TRACE").is_some() }
    }

    /// Adds a line.
    pub(crate) fn say(&self, line: impl AsRef<str>) {
        let line = format!("{:>7} {}", since_start_ms(), line.as_ref());
        if self.loud {
            println!("{line}");
        }
        let mut state = self.state.lock();
        state.hash.update(line.as_bytes());
        state.hash.update(b"\n");
        state.lines += 1;
        state.tail.push_back(line);
        if state.tail.len() > TAIL_LINES {
            state.tail.pop_front();
        }
    }

    /// Returns the hash of everything said so far.
    pub(crate) fn hash(&self) -> u64 {
        self.state.lock().hash.digest()
    }

    /// Returns the last lines.
    pub(crate) fn tail(&self) -> Vec<String> {
        self.state.lock().tail.iter().cloned().collect()
    }
}
