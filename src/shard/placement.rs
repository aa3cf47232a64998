//! Which shard a question belongs to.

use super::desk::Question;
use super::directory::Directory;
use crate::ledger::{
    BucketId, BucketRef, Command, HoldId, ItemName, ItemRef, KeyScope, Place, Query, ShardId,
    home_shard,
};

/// What a question names that decides where it belongs.
enum Named<'a> {
    /// A shard.
    Shard(ShardId),
    /// An item's home.
    Home(&'a ItemName),
    /// The bucket that owns a buyer or key.
    Owner { name: &'a ItemName, region: Option<&'a str>, buyer: Option<&'a str>, key: &'a str },
    /// A bucket.
    Bucket(BucketRef),
    /// Nothing: a whole shard must be named.
    Nothing,
}

fn of_scope(scope: &KeyScope) -> Named<'_> {
    Named::Owner {
        name: &scope.name,
        region: scope.region.as_deref(),
        buyer: scope.buyer.as_deref(),
        key: &scope.key,
    }
}

fn of_place(place: &Place) -> Named<'_> {
    Named::Owner {
        name: &place.name,
        region: place.region.as_deref(),
        buyer: place.buyer.as_deref(),
        key: &place.key,
    }
}

fn of_hold<'a>(hold: &HoldId) -> Named<'a> {
    Named::Bucket(BucketRef { home: hold.home, item: hold.item, bucket: hold.bucket })
}

fn named(question: &Question) -> Named<'_> {
    match question {
        Question::Query { shard: Some(shard), .. } => Named::Shard(*shard),
        Question::Query { query, shard: None } => match query {
            Query::Hold { id, .. } => of_hold(id),
            Query::Receipt(scope) => of_scope(scope),
            Query::Item(name) | Query::Availability(name) | Query::Audit(name) => Named::Home(name),
            Query::Holds { name, .. } => Named::Home(name),
            Query::Levels(item) | Query::Copy { item, .. } => Named::Shard(item.home),
            Query::Items { .. } | Query::SoldOut { .. } | Query::Duties { .. } => Named::Nothing,
        },
        Question::Command(command) => match command {
            Command::Define(define) => Named::Home(&define.name),
            Command::DefineSpread(spread) => Named::Home(&spread.define.name),
            Command::Adjust(adjust) => Named::Home(&adjust.name),
            Command::SetMode(mode) => Named::Home(&mode.name),
            Command::Retire(retire) => Named::Home(&retire.name),
            Command::SetLayout(layout) => Named::Home(&layout.name),
            Command::LowerBegin(lower) => Named::Home(&lower.name),
            Command::LowerCommit(lower) | Command::LowerAbort(lower) => Named::Home(&lower.name),
            Command::DeleteBegin(delete)
            | Command::DeleteAbort(delete)
            | Command::DeleteCommit(delete) => Named::Home(&delete.name),
            Command::CopyAnswered(answered) => Named::Shard(answered.item.home),
            Command::Place(place) => of_place(place),
            Command::Void(void) => of_scope(&void.scope),
            Command::Extend(op) => of_hold(&op.hold),
            Command::Confirm(op) => of_hold(&op.hold),
            Command::Release(op) => of_hold(&op.hold),
            Command::Return(op) => of_hold(&op.hold),
            Command::OpenBucket(open) => Named::Bucket(open.bucket),
            Command::SendStock(send) | Command::MoveStock(send) => Named::Bucket(send.from),
            Command::AcceptStock(accept) => Named::Bucket(accept.to),
            Command::SettleStock(settle) => Named::Bucket(settle.from),
            // These name no shard: whoever proposes them says where.
            Command::Configure(_) | Command::EraseCopy(_) | Command::Advance => Named::Nothing,
        },
    }
}

/// Finds the shard that a question names, in a cluster of so many shards, by what this node knows.
/// `None` for those that name none, and for a bucket of an item whose layout is not known here.
pub(crate) fn shard_of(
    question: &Question,
    shards: u16,
    directory: &Directory,
) -> Option<ShardId> {
    match named(question) {
        Named::Shard(shard) => Some(shard),
        Named::Home(name) => Some(home_shard(name, shards)),
        Named::Owner { name, region, buyer, key } => {
            let layout = directory.named(name);
            let owner = layout.and_then(|layout| layout.owner(region, buyer, key));
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

/// Names the item whose layout must be known before a question can be routed, when it is not.
pub(crate) fn missing(question: &Question, directory: &Directory) -> Option<ItemRef> {
    let Named::Bucket(bucket) = named(question) else { return None };
    let item = ItemRef { home: bucket.home, item: bucket.item };
    let is_known = || directory.numbered(item).and_then(|one| one.place_of(bucket.bucket)).is_some();
    (bucket.bucket != BucketId(0) && !is_known()).then_some(item)
}

/// Names the item whose layout decided where a question went.
pub(crate) fn laid_out(question: &Question) -> Option<&ItemName> {
    match named(question) {
        Named::Owner { name, .. } => Some(name),
        Named::Shard(_) | Named::Home(_) | Named::Bucket(_) | Named::Nothing => None,
    }
}
