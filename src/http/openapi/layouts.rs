//! The calls on items over several buckets.

use serde_json::json;
use utoipa::openapi::Required;

use super::entry::Entry;
use super::parameter::{consistency, words};
use super::{Book, either};
use crate::api::{self, ProblemKind as K};

impl Book {
    pub(super) fn read_layout(&mut self) -> Entry {
        let schema = self.add::<api::ItemLayout>();
        Entry::new("layout", "Reads where an item's buckets lie and what is in them")
            .asks(vec![consistency()])
            .says(200, "The layout.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    pub(super) fn put_layout(&mut self) -> Entry {
        let (layout, body) = (self.add::<api::ItemLayout>(), self.add::<api::PutLayout>());
        let plan = self.add::<api::LayoutPlan>();
        let dry_run = words(&["true", "false"]);
        let dry = "`true` tells what would change (a `LayoutPlan`) and changes nothing.";
        let regions = json!({"eu": {"quota": 60, "floor": 10, "buckets": 2}, "us": {"quota": 40}});
        Entry::new("layout", "Changes quotas and floors, opens and closes regions")
            .body(body, Required::True)
            .like(json!({"regions": regions}))
            .asks(vec![("dry_run", false, dry_run, dry)])
            .says(
                200,
                "Every shard has it, or the plan of a dry run.",
                either(layout.clone(), plan),
            )
            .says(202, "Done at home, on its way to the others: `Location` names it.", layout)
            .changing()
            .or(&[K::NotFound, K::RevisionMismatch, K::PreconditionRequired, K::StockCommitted])
    }

    pub(super) fn read_item_operation(&mut self) -> Entry {
        let schema = self.add::<api::ItemOperation>();
        Entry::new("layout", "Follows a change of an item to all its shards")
            .says(200, "How far it has come. It goes on by itself, whoever dies.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    pub(super) fn list_transfers(&mut self) -> Entry {
        let schema = self.add::<api::Transfers>();
        Entry::new("layout", "Lists what ever moved between an item's buckets")
            .asks(vec![consistency()])
            .says(200, "The running totals of each ordered pair.", schema)
            .reading()
            .or(&[K::NotFound])
    }

    pub(super) fn move_stock(&mut self) -> Entry {
        let (moved, body) = (self.add::<api::MovedStock>(), self.add::<api::MoveStock>());
        Entry::new("layout", "Moves stock between two buckets, once per key")
            .keyed()
            .body(body, Required::True)
            .like(json!({"from": 0, "to": 1, "quantity": 5}))
            .says(200, "Moved.", moved.clone())
            .says(202, "Sent; it arrives by itself.", moved)
            .changing()
            .or(&[K::NotFound, K::StockCommitted, K::ClusterRefused])
    }
}
