//! The only room that names openraft: log store, state machine, network, and the start of a shard.
//!
//! Above this room a Raft group is a [`Group`]: something that can be proposed to, asked who leads
//! it and how fresh that is, and told to make checkpoints. Below it are the log and the pages.

mod appended;
mod checkpointing;
mod comparing;
#[cfg(test)]
mod conformance;
mod entry;
mod fetch;
mod group;
mod heard;
mod log_store;
mod machine;
mod membership;
mod network;
mod pace;
mod packing;
mod rebuilding;
mod replica;
mod salvage;
mod serving;
mod snapshot;
mod start;
mod told;
#[cfg(test)]
pub(crate) mod trial;
#[cfg(feature = "sim")]
mod witness;

pub use entry::{Applied, Member, Payload};
pub use group::{Group, GroupState, Leadership, Proposal, ProposeError, Role};
pub use membership::{MemberChange, Membership};
pub use network::PeerBook;
pub use packing::{EntryBuilder, PackedCommand, Packer, PlaceBytes, packed};
pub use replica::{Accusation, AppliedState, EntryTimer, Replica};
pub use salvage::{found_anew, replay};
pub use serving::{RaftConversation, SnapshotConversation};
pub use start::{StartError, StartOptions, start_group};
pub use told::{MembersTold, VoteTold};
#[cfg(feature = "sim")]
pub use witness::{Witness, bear_witness};
