//! Which shard a question belongs to.

use super::desk::Question;
use super::directory::Directory;
use crate::ledger::{
    BucketId, BucketRef, Change, CommandOf, HoldId, ItemName, ItemRef, NameRef, PlaceRef,
    Placement, Query, ROSTER_SHARD, ScopeRef, ShardId, home_shard,
};

/// What a question names that decides where it belongs.
enum Named<'a> {
    /// A shard.
    Shard(ShardId),
    /// An item's home.
    Home(NameRef<'a>),
    /// The bucket that owns a buyer or key.
    Owner(ScopeRef<'a>),
    /// A bucket.
    Bucket(BucketRef),
    /// Nothing: a whole shard must be named.
    Nothing,
}

fn home(name: &ItemName) -> Named<'_> {
    Named::Home(name.borrowed())
}

fn of_place(place: PlaceRef<'_>) -> Named<'_> {
    let PlaceRef { name, region, buyer, key, .. } = place;
    Named::Owner(ScopeRef { name, region, buyer, key })
}

fn of_hold<'a>(hold: &HoldId) -> Named<'a> {
    Named::Bucket(BucketRef { home: hold.home, item: hold.item, bucket: hold.bucket })
}

fn named(question: &Question) -> Named<'_> {
    match question {
        Question::Query { shard: Some(shard), .. } => Named::Shard(*shard),
        Question::Query { query, shard: None } => match query {
            Query::Hold { id, .. } => of_hold(id),
            Query::Receipt(scope) => Named::Owner(scope.borrowed()),
            Query::Item(name)
            | Query::Availability(name)
            | Query::Audit(name)
            | Query::Sums(name)
            | Query::Recount { name, .. }
            | Query::Holds { name, .. } => home(name),
            Query::Levels(item) | Query::Copy { item, .. } => Named::Shard(item.home),
            Query::Items { .. } | Query::SoldOut { .. } | Query::Duties { .. } => Named::Nothing,
            Query::Roster => Named::Shard(ROSTER_SHARD),
        },
        Question::Command(command) => match command {
            CommandOf::Define(define) => home(&define.name),
            CommandOf::DefineSpread(spread) => home(&spread.define.name),
            CommandOf::Adjust(adjust) => match &adjust.change {
                Change::Move(send) => Named::Bucket(send.from),
                Change::Raise(_)
                | Change::Lower(_)
                | Change::Set { .. }
                | Change::RaiseIn { .. }
                | Change::LowerIn { .. }
                | Change::Claim(_) => home(&adjust.name),
            },
            CommandOf::SetMode(mode) => home(&mode.name),
            CommandOf::Retire(retire) => home(&retire.name),
            CommandOf::SetLayout(layout) => home(&layout.name),
            CommandOf::LowerBegin(lower) => home(&lower.name),
            CommandOf::LowerCommit(lower) | CommandOf::LowerAbort(lower) => home(&lower.name),
            CommandOf::DeleteBegin(delete)
            | CommandOf::DeleteAbort(delete)
            | CommandOf::DeleteCommit(delete) => home(&delete.name),
            CommandOf::CopyAnswered(answered) => Named::Shard(answered.item.home),
            CommandOf::Place(place) => of_place(place.asked()),
            CommandOf::Void(void) => Named::Owner(void.scope.borrowed()),
            CommandOf::Extend(op) => of_hold(&op.hold),
            CommandOf::Confirm(op) => of_hold(&op.hold),
            CommandOf::Release(op) => of_hold(&op.hold),
            CommandOf::Return(op) => of_hold(&op.hold),
            CommandOf::OpenBucket(open) => Named::Bucket(open.bucket),
            CommandOf::SendStock(send) | CommandOf::MoveStock(send) => Named::Bucket(send.from),
            CommandOf::AcceptStock(accept) => Named::Bucket(accept.to),
            CommandOf::SettleStock(settle) => Named::Bucket(settle.from),
            // These name no shard: whoever proposes them says where.
            CommandOf::Configure(_) | CommandOf::EraseCopy(_) | CommandOf::Advance => {
                Named::Nothing
            }
            CommandOf::SetRoster(_) | CommandOf::SetSchema(_) => Named::Shard(ROSTER_SHARD),
        },
    }
}

/// Finds the shard that a question names, in a cluster of so many shards, by what this node knows.
/// `None` for those that name none, and for a bucket of an item whose layout is not known here.
pub(crate) fn shard_of(question: &Question, shards: u16, directory: &Directory) -> Option<ShardId> {
    match named(question) {
        Named::Shard(shard) => Some(shard),
        Named::Home(name) => Some(home_shard(name, shards)),
        Named::Owner(scope) => {
            let name = scope.name;
            let owner = directory.named(name).and_then(|layout| layout.owner(scope));
            // The home answers for an item of one bucket, for a region that nobody knows, and says
            // `not-owner` for the others.
            Some(owner.map_or_else(|| home_shard(name, shards), |place| place.shard))
        }
        // Bucket 0 lives on the home shard for ever.
        Named::Bucket(BucketRef { home, bucket: BucketId(0), .. }) => Some(home),
        Named::Bucket(bucket) => {
            let layout = directory.numbered(ItemRef { home: bucket.home, item: bucket.item })?;
            Some(layout.place_of(bucket.bucket)?.shard)
        }
        Named::Nothing => None,
    }
}

/// Names the bucket whose shard must be known before a question can be routed, when it is not.
pub(crate) fn missing(question: &Question, directory: &Directory) -> Option<BucketRef> {
    if is_place(question) {
        return None;
    }
    let Named::Bucket(bucket) = named(question) else { return None };
    if bucket.bucket == BucketId(0) {
        return None;
    }
    let layout = directory.numbered(ItemRef { home: bucket.home, item: bucket.item });
    let known = layout.and_then(|layout| layout.place_of(bucket.bucket));
    known.is_none().then_some(bucket)
}

fn is_place(question: &Question) -> bool {
    matches!(question, Question::Command(command) if command.is_place())
}

/// Names the item whose layout decided where a question went.
pub(crate) fn laid_out(question: &Question) -> Option<NameRef<'_>> {
    match named(question) {
        Named::Owner(scope) => Some(scope.name),
        Named::Shard(_) | Named::Home(_) | Named::Bucket(_) | Named::Nothing => None,
    }
}
