//! Which shard a question belongs to.

use super::desk::Question;
use crate::ledger::{CommandOf, HoldId, ItemName, NameRef, Placement, Query, ShardId, home_shard};

/// Finds the shard that a question names, in a cluster of so many shards. `None` for queries of a
/// whole shard that name none.
pub(crate) fn shard_of(question: &Question, shards: u16) -> Option<ShardId> {
    let home_of = |name: NameRef<'_>| Some(home_shard(name, shards));
    let home = |name: &ItemName| home_of(name.borrowed());
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
            CommandOf::Define(define) => home(&define.name),
            CommandOf::Adjust(adjust) => home(&adjust.name),
            CommandOf::SetMode(mode) => home(&mode.name),
            CommandOf::Retire(retire) => home(&retire.name),
            CommandOf::Place(place) => home_of(place.asked().name),
            CommandOf::Void(void) => home(&void.scope.name),
            CommandOf::Extend(op) => hold(&op.hold),
            CommandOf::Confirm(op) => hold(&op.hold),
            CommandOf::Release(op) => hold(&op.hold),
            CommandOf::Return(op) => hold(&op.hold),
            CommandOf::OpenBucket(open) => Some(open.bucket.home),
            CommandOf::SendStock(send) => Some(send.from.home),
            CommandOf::AcceptStock(accept) => Some(accept.to.home),
            CommandOf::SettleStock(settle) => Some(settle.from.home),
            CommandOf::DefineSpread(spread) => home(&spread.define.name),
            CommandOf::SetLayout(set) => home(&set.name),
            CommandOf::CopyAnswered(answered) => Some(answered.item.home),
            CommandOf::LowerBegin(begin) => home(&begin.name),
            CommandOf::LowerCommit(end) | CommandOf::LowerAbort(end) => home(&end.name),
            CommandOf::DeleteBegin(delete)
            | CommandOf::DeleteAbort(delete)
            | CommandOf::DeleteCommit(delete) => home(&delete.name),
            CommandOf::MoveStock(send) => Some(send.from.home),
            // Only its proposer knows which of the copies it is for.
            CommandOf::Configure(_) | CommandOf::EraseCopy(_) => None,
            CommandOf::Advance => None,
        },
    }
}
