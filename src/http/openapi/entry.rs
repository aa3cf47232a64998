//! What each route is like: its summary, body, query, successes and problems.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, Required};

use super::Book;
use super::parameter::{Query, consistency, cursor, id, integer, limit, text, words};
use crate::api::{self, ProblemKind as K};
use crate::http::route::Route;

/// A route in the words of the document.
pub(super) struct Entry {
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) key: bool,
    pub(super) body: Option<(RefOr<Schema>, Required)>,
    /// A body that a reader may copy.
    pub(super) example: Option<Value>,
    pub(super) query: Vec<Query>,
    pub(super) success: Vec<(u16, &'static str, Option<RefOr<Schema>>)>,
    pub(super) problems: Vec<K>,
}

impl Entry {
    pub(super) fn new(tag: &'static str, summary: &'static str) -> Entry {
        Entry {
            tag,
            summary,
            key: false,
            body: None,
            example: None,
            query: Vec::new(),
            success: Vec::new(),
            problems: vec![K::Malformed],
        }
    }

    /// It carries an idempotency key.
    pub(super) fn keyed(mut self) -> Entry {
        self.key = true;
        self.or(&[K::KeyMissing, K::KeyReused])
    }

    pub(super) fn body(mut self, schema: RefOr<Schema>, required: Required) -> Entry {
        self.body = Some((schema, required));
        self.or(&[K::Validation])
    }

    pub(super) fn like(mut self, example: Value) -> Entry {
        self.example = Some(example);
        self
    }

    pub(super) fn asks(mut self, query: Vec<Query>) -> Entry {
        self.query = query;
        self
    }

    pub(super) fn says(mut self, status: u16, words: &'static str, schema: RefOr<Schema>) -> Entry {
        self.success.push((status, words, Some(schema)));
        self
    }

    fn says_text(mut self, status: u16, words: &'static str) -> Entry {
        self.success.push((status, words, None));
        self
    }

    pub(super) fn or(mut self, problems: &[K]) -> Entry {
        self.problems.extend_from_slice(problems);
        self
    }

    /// It has the problems of every read of a shard.
    pub(super) fn reading(self) -> Entry {
        self.or(&[K::Internal, K::ItemPaused, K::Overloaded, K::DeadlinePassed, K::NotServing])
    }

    /// It has the problems of every change.
    pub(super) fn changing(self) -> Entry {
        self.reading().or(&[K::BodyTimeout, K::TooLarge, K::OutcomeUnknown])
    }
}

/// The problems of a hold that has ended.
const ENDED: [K; 3] = [K::HoldConfirmed, K::HoldReleased, K::HoldExpired];

impl Book {
    pub(super) fn entry(&mut self, route: Route) -> Entry {
        match route {
            Route::PutItem => self.put_item(),
            Route::ListItems => self.list_items(),
            Route::ReadItem => self.read_item(),
            Route::DeleteItem => self.delete_item(),
            Route::AdjustItem => self.adjust_item(),
            Route::PauseItem => self.mode("Pauses an item: nothing is granted"),
            Route::ResumeItem => self.mode("Opens an item again"),
            Route::CloseItem => self.mode("Closes an item, for good: it takes no more holds"),
            Route::Availability => self.availability(),
            Route::Audit => self.audit(),
            Route::ReadLayout => self.read_layout(),
            Route::PutLayout => self.put_layout(),
            Route::ReadItemOperation => self.read_item_operation(),
            Route::ListTransfers => self.list_transfers(),
            Route::MoveStock => self.move_stock(),
            Route::SoldOut => self.sold_out(),
            Route::PlaceHold => self.place_hold(),
            Route::ListHolds => self.list_holds(),
            Route::ReadHold => self.read_hold(),
            Route::ExtendHold => self
                .transition::<api::ExtendHold>("Moves a hold's deadline within its budget")
                .like(json!({"ttl_ms": 300_000}))
                .or(&ENDED)
                .or(&[K::ExtendBudgetSpent, K::ItemPaused]),
            Route::ConfirmHold => self
                .transition::<api::ConfirmHold>("Sells what a hold holds")
                .like(json!({"reference": "payment-81"}))
                .or(&ENDED)
                .or(&[K::SoldOut, K::InsufficientStock, K::BuyerLimit, K::ItemClosed]),
            Route::ReleaseHold => self
                .transition::<api::ReleaseHold>("Gives a hold's units back")
                .like(json!({"reason": "cart emptied"}))
                .or(&[K::HoldConfirmed, K::HoldReleased]),
            Route::ReturnHold => self
                .transition::<api::ReturnHold>("Brings sold units back to stock")
                .like(json!({"quantity": 1}))
                .or(&ENDED)
                .or(&[K::HoldNotSold]),
            Route::BatchHolds => self.batch_holds(),
            Route::ReadReceipt => self.read_receipt(),
            Route::VoidKey => self.void_key(),
            Route::Cluster => {
                let (schema, words) = (self.add::<api::Cluster>(), "The cluster.");
                Entry::new("cluster", "The cluster as this node sees it").says(200, words, schema)
            }
            Route::Digest => {
                let schema = self.add::<api::Digests>();
                Entry::new("cluster", "Digests of this node's replicas")
                    .says(200, "The digests.", schema)
                    .or(&[K::NotServing])
            }
            Route::Adopt => self.founding::<api::Adopt, api::Adopted>(
                "First step of cluster init: an empty node takes an identity",
            ),
            Route::Begin => self.founding::<api::Begin, api::Begun>(
                "Second step of cluster init: the shards open with these members",
            ),
            Route::ListNodes => self.seen::<api::NodeList>("Lists the nodes and their operations"),
            Route::AddNode => self.add_node(),
            Route::RemoveNode => self.begun("Takes a node out of every shard, for good", true),
            Route::PromoteNode => self.begun("Lets a learner vote in every shard", false),
            Route::DemoteNode => self.begun("Takes a voter's vote in every shard", true),
            Route::DrainNode => {
                self.begun("Hands a node's leaderships over, and gives it none", false)
            }
            Route::UndrainNode => self.begun("Lets a drained node lead again", false),
            Route::ReplaceNode => self.replace_node(),
            Route::Join => self.join_cluster(),
            Route::Upgrade => self.at_once("Takes the cluster to the next schema version"),
            Route::ListShards => self.seen::<api::ShardList>("Lists the shards and their members"),
            Route::MoveLeader => self.move_leader(),
            Route::CheckpointShard => self.at_once("Makes a checkpoint of a shard on its leader"),
            Route::ListOperations => self.list_operations(),
            Route::ReadOperation => self.read_operation(),
            Route::CancelOperation => self.cancel_operation(),
            Route::Livez => Entry::new("node", "Whether the node answers").says_text(200, "Alive."),
            Route::Readyz => readyz(),
            Route::Metrics => Entry::new("node", "Metrics").says_text(200, "Prometheus text."),
            Route::Index => {
                let schema = self.add::<api::Index>();
                Entry::new("node", "Where to begin").says(200, "Paths to look at.", schema)
            }
            Route::ProblemIndex => {
                Entry::new("node", "The kinds of problems").says_text(200, "The list.")
            }
            Route::ProblemPage => Entry::new("node", "The page on a kind of problem")
                .says_text(200, "The page.")
                .or(&[K::NotFound]),
            Route::OpenApi => {
                let schema = ObjectBuilder::new().schema_type(Type::Object).build().into();
                Entry::new("node", "The contract").says(200, "This document.", schema)
            }
        }
    }

    fn put_item(&mut self) -> Entry {
        let (item, body) = (self.add::<api::Item>(), self.add::<api::PutItem>());
        let summary = "Creates an item, or replaces its whole definition: a rule that is left out \
             has its default again (the total stays)";
        Entry::new("items", summary)
            .body(body, Required::False)
            .like(json!({"total": 100, "limit_per_buyer": 2, "hold": {"ttl_ms": 600_000}}))
            .says(200, "Configured, or as it was.", item.clone())
            .says(201, "Created.", item.clone())
            .says(202, "Done at its home; some shards of its buckets have not answered.", item)
            .changing()
            .or(&[K::UseAdjustments, K::RevisionMismatch, K::NotFound, K::NotImplemented])
    }

    fn list_items(&mut self) -> Entry {
        let schema = self.add::<api::ItemList>();
        Entry::new("items", "Lists items by name")
            .asks(vec![limit(), cursor(), consistency()])
            .says(200, "A page.", schema)
            .reading()
    }

    fn read_item(&mut self) -> Entry {
        let schema = self.add::<api::Item>();
        Entry::new("items", "Reads an item")
            .asks(vec![consistency()])
            .says(200, "The item.", schema)
            .says_text(304, "If-None-Match has its ETag.")
            .reading()
            .or(&[K::NotFound])
    }

    fn delete_item(&mut self) -> Entry {
        let schema = self.add::<api::DeletedItem>();
        Entry::new("items", "Deletes an item that has no open holds")
            .says(200, "Deleted.", schema)
            .changing()
            .or(&[K::NotFound, K::StockCommitted, K::Validation])
    }

    fn adjust_item(&mut self) -> Entry {
        let (item, body) = (self.add::<api::Item>(), self.add::<api::AdjustItem>());
        Entry::new("items", "Changes an item's total")
            .keyed()
            .body(body, Required::True)
            .like(json!({"delta": 50, "reason": "second batch"}))
            .says(200, "Changed.", item)
            .changing()
            .or(&[K::NotFound, K::StockCommitted, K::RevisionMismatch])
            .or(&[K::PreconditionRequired, K::NotImplemented])
    }

    fn mode(&mut self, summary: &'static str) -> Entry {
        let schema = self.add::<api::Item>();
        Entry::new("items", summary)
            .says(200, "The item as it is now.", schema.clone())
            .says(202, "Done at its home; some shards of its buckets have not answered.", schema)
            .changing()
            .or(&[K::NotFound, K::ItemClosed, K::Validation])
    }

    fn availability(&mut self) -> Entry {
        let schema = self.add::<api::Availability>();
        let detail = "`buckets` adds the figures of each region and bucket.";
        Entry::new("items", "Reads an item's stock, from the local replica by default")
            .asks(vec![consistency(), ("detail", false, words(&["buckets"]), detail)])
            .says(200, "Its stock.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    fn audit(&mut self) -> Entry {
        let schema = self.add::<api::Audit>();
        Entry::new("items", "Sums an item's units by cause")
            .asks(vec![consistency()])
            .says(200, "The sums, and whether they hold.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    fn sold_out(&mut self) -> Entry {
        let schema = self.add::<api::SoldOut>();
        let limit = integer(1, u64::from(api::SOLD_OUT_LIMIT_MAX));
        Entry::new("items", "Lists what cannot be reserved now, from this node's memory")
            .asks(vec![("limit", false, limit, "The most entries on a page."), cursor()])
            .says(200, "The list.", schema)
            .says_text(304, "If-None-Match has its ETag.")
            .reading()
    }

    fn place_hold(&mut self) -> Entry {
        let (hold, body) = (self.add::<api::Hold>(), self.add::<api::PlaceHold>());
        Entry::new("holds", "Places a hold")
            .keyed()
            .body(body, Required::True)
            .like(json!({"quantity": 2, "buyer": "ann", "reference": "cart-81"}))
            .says(201, "Placed.", hold.clone())
            .says(200, "A replay: the hold that this key placed.", hold)
            .changing()
            .or(&[K::NotFound, K::SoldOut, K::KeyVoided, K::InsufficientStock, K::BuyerLimit])
            .or(&[K::ItemClosed, K::SaleNotOpen])
            .or(&ENDED)
    }

    fn list_holds(&mut self) -> Entry {
        let schema = self.add::<api::HoldList>();
        let states = words(&["held", "sold", "released", "expired", "returned"]);
        Entry::new("holds", "Lists an item's holds")
            .asks(vec![
                ("item", true, id(), "The item."),
                ("buyer", false, id(), "Only this buyer's."),
                ("state", false, states, "Only in this state."),
                limit(),
                cursor(),
                consistency(),
            ])
            .says(200, "A page.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    fn read_hold(&mut self) -> Entry {
        let schema = self.add::<api::Hold>();
        Entry::new("holds", "Reads a hold, also after its end")
            .asks(vec![consistency()])
            .says(200, "The hold.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    fn transition<T: ToSchema>(&mut self, summary: &'static str) -> Entry {
        let (hold, body) = (self.add::<api::Hold>(), self.add::<T>());
        Entry::new("holds", summary)
            .keyed()
            .body(body, Required::False)
            .says(200, "The hold as it is now.", hold)
            .changing()
            .or(&[K::NotFound])
    }

    fn batch_holds(&mut self) -> Entry {
        let (results, body) = (self.add::<api::BatchResults>(), self.add::<api::Batch>());
        let place = json!({"op": "place", "key": "order-81", "item": "ticket", "quantity": 2,
            "buyer": "ann"});
        let confirm = json!({"op": "confirm", "key": "pay-80", "hold": "hld_..."});
        Entry::new("holds", "Up to 1,000 operations, each a decision of its own")
            .body(body, Required::True)
            .like(json!({"operations": [place, confirm]}))
            .says(200, "One result for each operation, in order.", results)
            .or(&[K::BodyTimeout, K::TooLarge, K::Internal])
    }

    fn read_receipt(&mut self) -> Entry {
        let schema = self.add::<api::Receipt>();
        Entry::new("holds", "Tells what became of a placing key")
            .asks(vec![
                ("item", true, id(), "The item."),
                ("buyer", false, id(), "The buyer that the placement named."),
                ("region", false, id(), "The region that the placement named."),
            ])
            .says(200, "The receipt.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    fn void_key(&mut self) -> Entry {
        let (receipt, body) = (self.add::<api::Receipt>(), self.add::<api::VoidKey>());
        Entry::new("holds", "Gives up on a placing key for good")
            .body(body, Required::True)
            .like(json!({"item": "ticket", "buyer": "ann"}))
            .says(200, "Voided, or the hold that the key had made.", receipt)
            .changing()
            .or(&[K::NotFound])
    }

    fn founding<B: ToSchema, S: ToSchema>(&mut self, summary: &'static str) -> Entry {
        let (success, body) = (self.add::<S>(), self.add::<B>());
        Entry::new("cluster", summary).body(body, Required::True).says(200, "Done.", success).or(&[
            K::BodyTimeout,
            K::TooLarge,
            K::ClusterRefused,
        ])
    }
}

fn readyz() -> Entry {
    let verbose = ("verbose", false, text(), "Adds a table of the shards.");
    Entry::new("node", "Whether every shard has a leader, grants, and runs here")
        .asks(vec![verbose])
        .says_text(200, "Ready.")
        .says_text(503, "Not ready, with the reasons.")
}
