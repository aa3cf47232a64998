//! What happened, as lines with the virtual time at which it did: hashed, and the last of it kept
//! for the reader of a failure.

use std::collections::VecDeque;

use holdfast::runtime::since_start_ms;
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

const TAIL_LINES: usize = 40;

/// The trace of one run: each line is a virtual time, who, and what.
pub(crate) struct Trace {
    state: Mutex<State>,
    /// Whether each line is printed as it comes.
    is_loud: bool,
}

struct State {
    hash: Xxh3,
    tail: VecDeque<String>,
}

impl Trace {
    /// A trace that is hashed, and its end kept.
    pub(crate) fn quiet() -> Trace {
        Trace::new(false)
    }

    /// A trace that is printed, too.
    pub(crate) fn loud() -> Trace {
        Trace::new(true)
    }

    fn new(is_loud: bool) -> Trace {
        let state = State { hash: Xxh3::new(), tail: VecDeque::new() };
        Trace { state: Mutex::new(state), is_loud }
    }

    /// Adds a line about somebody.
    pub(crate) fn say(&self, who: &str, what: impl AsRef<str>) {
        let ms = since_start_ms();
        let line = format!("{:>4}.{:03} {who:<8} {}", ms / 1_000, ms % 1_000, what.as_ref());
        if self.is_loud {
            println!("{line}");
        }
        let mut state = self.state.lock();
        state.hash.update(line.as_bytes());
        state.hash.update(b"\n");
        if state.tail.len() == TAIL_LINES {
            state.tail.pop_front();
        }
        state.tail.push_back(line);
    }

    /// Adds a line about a node.
    pub(crate) fn say_of(&self, node: u64, what: impl AsRef<str>) {
        self.say(&format!("n{node}"), what);
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
