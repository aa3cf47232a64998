//! One Raft group as the node sees it: router, gate, batcher, watchdog, answers.

mod ask;
mod desk;
mod fence;
mod flight;
mod forward;
mod gate;
mod handover;
mod home;
mod ledger_time;
mod meter;
mod opening;
mod placement;
mod router;
mod status;
#[cfg(all(test, not(feature = "sim")))]
mod tests;
mod writer;

pub use desk::*;
pub use fence::Bar;
pub use forward::{FORWARD_FRAME, ForwardConversation};
pub use handover::Abstaining;
pub use opening::{ShardLimits, ShardService, open_shard};
pub use router::Router;
pub use status::*;
pub use writer::AgreedClock;
