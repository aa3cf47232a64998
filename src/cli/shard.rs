//! `holdfast shard`: who leads and votes in each shard, moves of leadership, checkpoints.

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::output::{members, rows};
use super::{Failure, Reach};

#[derive(Debug, Subcommand)]
pub(super) enum ShardVerb {
    /// List the shards: leader, voters, learners.
    #[command(after_help = "Example:
  holdfast shard list")]
    List,
    /// Move a shard's leadership to a voter that can win.
    #[command(after_help = "Examples:
  holdfast shard transfer 0 --to 2
  holdfast shard transfer 0          # to whoever can win")]
    Transfer {
        /// The shard.
        shard: u16,
        /// The node; whoever can win when absent.
        #[arg(long, value_name = "NODE")]
        to: Option<u64>,
        /// Print what would be done, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Make a checkpoint of a shard on the node that leads it, and purge its log.
    #[command(after_help = "Example:
  holdfast shard checkpoint 0")]
    Checkpoint {
        /// The shard.
        shard: u16,
        /// Print what would be done, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

impl ShardVerb {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let (client, voice) = (reach.client()?, reach.voice());
        let (path, body, dry_run) = match self {
            ShardVerb::List => {
                let told = client.get("/admin/v1/shards").await?.body;
                let shards = told["shards"].as_array().cloned().unwrap_or_default();
                let columns =
                    ["shard", "leader", "preferred", "voters", "learners", "changing", "committed"];
                voice.data(&told, || rows(&shards, &columns));
                return Ok(());
            }
            ShardVerb::Transfer { shard, to, dry_run } => {
                let body = to.map_or(json!({}), |node| json!({ "node": node }));
                (format!("/admin/v1/shards/{shard}/leader"), body, dry_run)
            }
            ShardVerb::Checkpoint { shard, dry_run } => {
                (format!("/admin/v1/shards/{shard}/checkpoint"), Value::Null, dry_run)
            }
        };
        let path = if dry_run { format!("{path}?dry_run=true") } else { path };
        let body = (!body.is_null()).then_some(&body);
        let told = client.send(Method::POST, &path, body, None, client.deadline()).await?.body;
        voice.data(&told, || members(&told));
        Ok(())
    }
}
