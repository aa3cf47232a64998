//! How this node learns where the buckets of an item live.
//!
//! From this node's own replica of the item's home when it knows the item, else from the home's
//! leader. What is learned only chooses whom to ask; the ledgers decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::ask::Addressed;
use super::desk::{Hop, Outcome, Question, Reply};
use super::directory::Layout;
use super::home::reply;
use super::parley::{Parley, Told};
use super::placement::{laid_out, missing};
use super::router::Router;
use crate::ledger::{
    Answer, BucketRef, Found, ItemCursor, ItemName, ItemRef, NameRef, PauseReason, Query, ShardId,
    home_shard,
};
use crate::runtime::Instant;

impl Router {
    /// Learns the layouts without which these questions cannot be routed. Returns the buckets that
    /// certainly do not exist.
    pub(super) async fn learn_missing(
        self: &Arc<Router>,
        questions: impl IntoIterator<Item = &Question>,
        deadline: Instant,
    ) -> Vec<BucketRef> {
        let mut asked: Vec<BucketRef> = Vec::new();
        for question in questions {
            if let Some(bucket) = missing(question, &self.directory)
                && !asked.contains(&bucket)
            {
                asked.push(bucket);
            }
        }
        let mut none = Vec::new();
        for bucket in asked {
            if Box::pin(self.is_nowhere(bucket, deadline)).await {
                none.push(bucket);
            }
        }
        none
    }

    /// Looks for a bucket's shard: in this node's replica of its home, then at the home's leader.
    /// Tells whether that has said that there is no such bucket.
    async fn is_nowhere(self: &Arc<Router>, bucket: BucketRef, deadline: Instant) -> bool {
        let item = ItemRef { home: bucket.home, item: bucket.item };
        let Some(place) = self.place(item.home) else { return true };
        let here = place.replica.read().ledger.item_numbered(item.home, item.item);
        if let Some(view) = here {
            self.directory.learn(&view);
        }
        if self.shard_of_bucket(bucket).is_some() {
            return false;
        }
        match self.parley(item.home, Parley::Layout(item), deadline).await {
            Some(Told::Layout(Some(view))) => {
                self.directory.learn(&view);
                self.shard_of_bucket(bucket).is_none()
            }
            Some(Told::Layout(None)) => true,
            Some(_) | None => false,
        }
    }

    /// The answer to a question that could not be routed.
    pub(super) fn nowhere(&self, question: &Question, none: &[BucketRef]) -> Reply {
        match missing(question, &self.directory) {
            // Where it lives is not known now. Nothing was taken.
            Some(bucket) if !none.contains(&bucket) => {
                reply(Outcome::Paused(PauseReason::QuorumLost))
            }
            Some(_) | None => no_such_shard(),
        }
    }

    /// Asks questions that went astray where they belong: by what was learned meanwhile, else by
    /// what their items' homes say now. Each once; those that belong nowhere else are left out.
    pub(super) async fn redirect(
        self: &Arc<Router>,
        astray: Vec<(usize, Addressed)>,
        deadline: Instant,
        hop: Hop,
    ) -> Vec<(usize, Reply)> {
        if astray.is_empty() {
            return Vec::new();
        }
        let instead = |asked: &Addressed| {
            self.shard_named(&asked.question).filter(|shard| *shard != asked.shard)
        };
        let lost = astray.iter().filter(|(_, asked)| instead(asked).is_none());
        let lost = lost.filter_map(|(_, asked)| laid_out(&asked.question)).map(|name| name.owned());
        let lost: BTreeSet<ItemName> = lost.collect();
        let learning = lost.iter().map(|name| self.learn(name.borrowed(), deadline));
        Box::pin(join_all(learning)).await;
        let mut by_shard: BTreeMap<ShardId, (Vec<usize>, Vec<Addressed>)> = BTreeMap::new();
        for (at, asked) in astray {
            // What its layout does not route is answered by the shard that it names.
            if laid_out(&asked.question).is_none() {
                continue;
            }
            if let Some(shard) = instead(&asked) {
                let (order, group) = by_shard.entry(shard).or_default();
                order.push(at);
                group.push(Addressed { shard, ..asked });
            }
        }
        let groups = by_shard.into_iter().map(|(shard, (order, asked))| async move {
            let answered = self.answer_group(shard, asked, deadline, hop).await;
            order.into_iter().zip(answered.replies).collect::<Vec<_>>()
        });
        Box::pin(join_all(groups)).await.into_iter().flatten().collect()
    }

    /// Learns where an item's buckets live from its home's leader.
    pub(super) async fn learn(
        self: &Arc<Router>,
        name: NameRef<'_>,
        deadline: Instant,
    ) -> Option<Arc<Layout>> {
        let home = home_shard(name, self.shard_count());
        let question = Question::Query { query: Query::Item(name.owned()), shard: Some(home) };
        let reply = self.ask_shard(home, question, deadline).await;
        match reply.outcome {
            Outcome::Found(Found::Item(view)) => self.directory.learn(&view),
            Outcome::Found(Found::NotFound) => self.directory.forget_name(name),
            Outcome::Found(_)
            | Outcome::Answered(_)
            | Outcome::InFlight
            | Outcome::Paused(_)
            | Outcome::Overloaded
            | Outcome::Late
            | Outcome::Unknown
            | Outcome::Elsewhere { .. }
            | Outcome::NotServing(_) => return None,
        }
        self.directory.named(name)
    }

    /// Learns the layout of the item that a batch begins with, and mostly consists of, from this
    /// node's own replica of its home: a new item's is not in the directory yet, and its buckets'
    /// shards would say that they do not own the buyers.
    pub(super) fn learn_first(&self, question: &Question) {
        let Some(name) = laid_out(question) else { return };
        if self.directory.named(name).is_some() {
            return;
        }
        let Some(place) = self.place(home_shard(name, self.shard_count())) else { return };
        let Some(state) = place.replica.try_read() else { return };
        let found = state.ledger.query(&Query::Item(name.owned()));
        drop(state);
        if let Found::Item(view) = found
            && view.buckets.len() > 1
        {
            self.directory.learn(&view);
        }
    }

    /// Learns the layouts of some more items whose home's replica is here, and tells where to go
    /// on.
    pub fn learn_some(&self, shard: ShardId, from: ItemCursor, steps: usize) -> ItemCursor {
        let Some(place) = self.place(shard) else { return from };
        let state = place.replica.read();
        let (items, next) = state.ledger.spread_from(from, steps);
        let views: Vec<_> = items
            .into_iter()
            .filter(|(item, revision)| {
                let known = self.directory.numbered(*item);
                known.is_none_or(|layout| layout.view().revision < *revision)
            })
            .filter_map(|(item, _)| state.ledger.item_numbered(item.home, item.item))
            .collect();
        drop(state);
        for view in views {
            self.directory.learn(&view);
        }
        next
    }

    /// Learns from an answer that shows an item.
    pub(super) fn learn_from(&self, outcome: &Outcome) {
        if let Outcome::Answered(Answer::Item { item, .. }) = outcome {
            self.directory.learn(item);
        }
    }
}

/// The answer to a question about a hold or bucket that is nowhere.
pub(super) fn no_such_shard() -> Reply {
    reply(Outcome::Answered(Answer::Refused(crate::ledger::Refusal::HoldNotFound)))
}
