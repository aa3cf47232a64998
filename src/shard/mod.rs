//! One Raft group as the node sees it: router, gate, batcher, watchdog, answers.

mod desk;
mod status;

pub use desk::*;
pub use status::*;
