//! The calls that change the nodes, and what the document says of them.

use serde_json::json;
use utoipa::ToSchema;
use utoipa::openapi::Required;

use super::Book;
use super::entry::Entry;
use super::parameter::{Query, words};
use crate::api::{self, ProblemKind as K};

fn dry_run() -> Query {
    ("dry_run", false, words(&["true", "false"]), "Answers the plan and changes nothing.")
}

fn allow_fewer() -> Query {
    let says = "Goes on also when fewer than three voters are left, which survive no death.";
    ("allow_fewer", false, words(&["true", "false"]), says)
}

impl Book {
    pub(super) fn add_node(&mut self) -> Entry {
        let body = self.add::<api::AddNode>();
        self.begun("Prints a token that lets one new machine in", false)
            .body(body, Required::False)
            .like(json!({"learner": false, "valid_ms": 3_600_000}))
    }

    pub(super) fn replace_node(&mut self) -> Entry {
        let body = self.add::<api::ReplaceNode>();
        self.begun("Prints a token for a machine that takes a node's place", false)
            .body(body, Required::False)
            .like(json!({"valid_ms": 3_600_000}))
    }

    pub(super) fn join_cluster(&mut self) -> Entry {
        let (joined, body) = (self.add::<api::Joined>(), self.add::<api::Join>());
        Entry::new("nodes", "A new machine comes with its token")
            .body(body, Required::True)
            .says(200, "It is let in.", joined)
            .changing()
            .or(&[K::ClusterRefused])
    }

    pub(super) fn move_leader(&mut self) -> Entry {
        let body = self.add::<api::MoveLeader>();
        self.at_once("Moves a shard's leadership to a voter that can win")
            .body(body, Required::False)
            .like(json!({"node": 2}))
    }

    pub(super) fn cancel_operation(&mut self) -> Entry {
        let schema = self.add::<api::NodeDone>();
        Entry::new("nodes", "Gives up an operation whose machine has not come")
            .says(200, "Given up.", schema)
            .changing()
            .or(&[K::NotFound, K::ClusterRefused])
    }

    pub(super) fn seen<T: ToSchema>(&mut self, summary: &'static str) -> Entry {
        let schema = self.add::<T>();
        Entry::new("nodes", summary).says(200, "As it is now.", schema).reading()
    }

    /// A change that begins an operation; one that shrinks the cluster may be insisted on.
    pub(super) fn begun(&mut self, summary: &'static str, shrinks: bool) -> Entry {
        let mut asks = vec![dry_run()];
        if shrinks {
            asks.push(allow_fewer());
        }
        let (plan, change) = (self.add::<api::NodePlan>(), self.add::<api::NodeChange>());
        Entry::new("nodes", summary)
            .asks(asks)
            .says(200, "The plan of a dry run.", plan)
            .says(202, "Begun; Location names the operation.", change)
            .changing()
            .or(&[K::NotFound, K::ClusterRefused])
    }

    pub(super) fn at_once(&mut self, summary: &'static str) -> Entry {
        let schema = self.add::<api::NodeDone>();
        Entry::new("nodes", summary)
            .asks(vec![dry_run()])
            .says(200, "Done, or the plan of a dry run.", schema)
            .changing()
            .or(&[K::NotFound, K::ClusterRefused])
    }
}
