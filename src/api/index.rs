//! Where to begin, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What answers here, and paths to look at next (`GET /`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Index {
    /// `holdfast`.
    pub name: String,
    /// The version of the node.
    pub version: String,
    /// Every call of the API.
    pub api: String,
    /// The kinds of problems, each with its page.
    pub problems: String,
    /// The cluster as this node sees it.
    pub cluster: String,
    /// Whether this node serves, and why not.
    pub ready: String,
    /// Whether this node answers.
    pub alive: String,
    /// Prometheus metrics.
    pub metrics: String,
}
