//! Which shard a question belongs to.

use super::desk::Question;
use crate::ledger::{Command, HoldId, ItemName, Query, ShardId, home_shard};

/// Finds the shard that a question names, in a cluster of so many shards. `None` for queries of a
/// whole shard that name none.
pub(crate) fn shard_of(question: &Question, shards: u16) -> Option<ShardId> {
    let home = |name: &ItemName| Some(home_shard(name, shards));
    // With one bucket an item, every hold lives on the home shard; its id names the home.
    let hold = |hold: &HoldId| Some(hold.home);
    match question {
        Question::Query { shard: Some(shard), .. } => Some(*shard),
        Question::Query { query, shard: None } => match query {
            Query::Hold { id, .. } => hold(id),
            Query::Receipt(scope) => home(&scope.name),
            Query::Item(name) | Query::Availability(name) | Query::Audit(name) => home(name),
            Query::Holds { name, .. } => home(name),
            Query::Items { .. } | Query::SoldOut { .. } | Query::Duties { .. } => None,
            Query::Levels(item) | Query::Copy { item, .. } => Some(item.home),
        },
        Question::Command(command) => match command {
            Command::Define(define) => home(&define.name),
            Command::Adjust(adjust) => home(&adjust.name),
            Command::SetMode(mode) => home(&mode.name),
            Command::Retire(retire) => home(&retire.name),
            Command::Place(place) => home(&place.name),
            Command::Void(void) => home(&void.scope.name),
            Command::Extend(op) => hold(&op.hold),
            Command::Confirm(op) => hold(&op.hold),
            Command::Release(op) => hold(&op.hold),
            Command::Return(op) => hold(&op.hold),
            Command::OpenBucket(open) => Some(open.bucket.home),
            Command::SendStock(send) => Some(send.from.home),
            Command::AcceptStock(accept) => Some(accept.to.home),
            Command::SettleStock(settle) => Some(settle.from.home),
            Command::DefineSpread(spread) => home(&spread.define.name),
            Command::SetLayout(set) => home(&set.name),
            Command::CopyAnswered(answered) => Some(answered.item.home),
            Command::LowerBegin(begin) => home(&begin.name),
            Command::LowerCommit(end) | Command::LowerAbort(end) => home(&end.name),
            Command::DeleteBegin(delete)
            | Command::DeleteAbort(delete)
            | Command::DeleteCommit(delete) => home(&delete.name),
            Command::MoveStock(send) => Some(send.from.home),
            // Only its proposer knows which of the copies it is for.
            Command::Configure(_) | Command::EraseCopy(_) => None,
            Command::Advance => None,
        },
    }
}
