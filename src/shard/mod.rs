//! One Raft group as the node sees it: router, gate, batcher, watchdog, answers.

mod ask;
mod desk;
mod directory;
mod double_collect;
mod fence;
mod flight;
mod forward;
mod gate;
mod handover;
mod home;
mod learning;
mod ledger_time;
mod meter;
mod nodes;
mod opening;
mod parley;
mod placement;
mod replies;
mod router;
mod slake;
mod sold_out;
mod status;
mod stock_meter;
mod supply;
#[cfg(all(test, not(feature = "sim")))]
mod tests;
mod thirst;
mod trade;
mod turns;
mod writer;

pub use desk::*;
pub use fence::Bar;
pub use forward::{FORWARD_FRAME, ForwardConversation};
pub use handover::Abstaining;
pub use nodes::*;
pub use opening::{ShardLimits, ShardService, open_shard};
pub use router::Router;
pub use status::*;
pub use supply::{Asked, Donor, Rank, StockPolicy, Supply};
pub use thirst::ThirstLimits;
pub(crate) use trade::Spreading;
pub use turns::Turns;
pub use writer::AgreedClock;
