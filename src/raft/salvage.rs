//! The state of a group that lost its quorum, read from one replica's log and founded anew with one
//! member: for `holdfast recover`. Never runs beside a node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use openraft::type_config::alias::{StoredMembershipOf, VoteOf};
use openraft::{EntryPayload, Membership};

use super::checkpointing::make_checkpoint;
use super::entry::{Member, TypeConfig, from_log, log_id_of};
use super::replica::Replica;
use crate::codec;
use crate::ledger::{Ledger, LogIndex, NodeId, Settings, ShardId};
use crate::storage::{Checkpoints, LogEntry, LogPosition, ShardLog};

/// Pages that are encoded in one go.
const CUT_PAGES: usize = 1024;

/// Applies entries of a log to the ledger that stands right before them.
///
/// # Errors
///
/// When an entry is not of a kind that this build knows.
pub fn replay(ledger: &mut Ledger, entries: Vec<LogEntry>) -> io::Result<()> {
    for entry in entries {
        let index = entry.position.index;
        let entry = from_log(entry).map_err(io::Error::other)?;
        if let EntryPayload::Normal(payload) = &entry.payload {
            let batch = payload.batch().map_err(io::Error::other)?;
            ledger.apply_unanswered(index, &batch);
        }
    }
    Ok(())
}

/// Founds a shard's group with one member: both its databases have this ledger at this position,
/// its log begins behind it, and its member has won the term of that position.
///
/// # Errors
///
/// What the disk said.
pub async fn found_anew(
    log: &ShardLog,
    checkpoints: &Checkpoints,
    state: (ShardId, Settings, Ledger),
    position: LogPosition,
    member: (NodeId, Member),
) -> io::Result<()> {
    let (shard, settings, ledger) = state;
    let (node, record) = member;
    let voters = vec![BTreeSet::from([node.0])];
    let members = Membership::new(voters, BTreeMap::from([(node.0, record)]));
    let members = members.map_err(|error| io::Error::other(error.to_string()))?;
    let stored = StoredMembershipOf::<TypeConfig>::new(Some(log_id_of(position)), members);
    let replica = Replica::new(shard, settings, ledger, Some(position), stored, LogIndex(0));
    for _ in 0..2 {
        make_checkpoint(&replica, checkpoints, CUT_PAGES).await?;
    }
    let vote = VoteOf::<TypeConfig>::new_committed(position.leader.term, node.0);
    let vote = codec::encode(&vote).map_err(io::Error::other)?;
    log.save_vote(vote.into()).await?;
    log.purge(position).await
}
