//! `holdfast recover`: the way back from a lost quorum, offline and explicit.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{Failure, Reach};
use crate::clock::WallClock;
use crate::node::salvage::{Left, Salvage, SalvageError};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast recover /var/lib/holdfast
  holdfast recover /mnt/n1 /mnt/n3 --to /var/lib/holdfast-new --accept-loss

Only when a majority of the nodes is lost for good: a minority cannot know what was acknowledged
without it. Stop every node that is left first, and never start one of the old cluster again.
Without --to it says what is left and writes nothing. With it, a new cluster of one node is written,
every item paused: start it, audit it, and resume item by item.")]
pub(super) struct Recover {
    /// The data directories that are left, of one cluster; the first gives the addresses.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// The data directory of the new cluster's node; must not be there, or be empty.
    #[arg(long, value_name = "NEW_DIR", requires = "accept_loss")]
    to: Option<PathBuf>,
    /// Say that what is not in these directories may be lost.
    #[arg(long)]
    accept_loss: bool,
    /// Also take logs that are damaged, up to the damage: what was written behind it is lost.
    #[arg(long)]
    damaged_log: bool,
    /// Where page databases are copied to, one at a time, to be read.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

impl From<SalvageError> for Failure {
    fn from(error: SalvageError) -> Failure {
        match error {
            SalvageError::Dir(crate::storage::DataDirError::InUse { .. }) => {
                Failure::Unavailable(format!("{error}. Stop that node first"))
            }
            SalvageError::Dir(_) | SalvageError::Words(_) => Failure::Usage(error.to_string()),
        }
    }
}

impl Recover {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let voice = reach.voice();
        let scratch = self.scratch.unwrap_or_else(std::env::temp_dir);
        let salvage = Salvage::read(&self.dirs, &scratch, self.damaged_log)?;
        let left = salvage.left().clone();
        voice.say(&words(&left));
        let Some(to) = self.to else {
            if voice.is_json() {
                voice.line(&json!({"left": left}).to_string());
            }
            return Err(Failure::Attention(
                "nothing was written. To go on: the same command with --to NEW_DIR --accept-loss"
                    .to_owned(),
            ));
        };
        let made = salvage.write(&to, &WallClock::system()).await?;
        if voice.is_json() {
            voice.line(&json!({"left": left, "made": made}).to_string());
        } else {
            voice.line(&format!(
                "cluster {} with node {} is in {}. Next:\n  \
                 1. holdfast serve --set node.data_dir={} (and the rest of your keys)\n  \
                 2. holdfast audit\n  \
                 3. holdfast item resume ITEM, one by one, when its figures are right\n  \
                 4. add nodes: holdfast serve --join URL --token T on each\n\
                 Never start a node of the old cluster {} again.",
                made.cluster_id, made.node, made.dir, made.dir, left.cluster_id
            ));
        }
        Ok(())
    }
}

/// What is left and what may be missing, for people.
fn words(left: &Left) -> String {
    let mut text = String::new();
    let missing: Vec<String> = left
        .members
        .iter()
        .filter(|node| !left.given.contains(node))
        .map(ToString::to_string)
        .collect();
    let given: Vec<String> = left.given.iter().map(ToString::to_string).collect();
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "cluster {}: nodes {} are here, nodes {} are not.",
        left.cluster_id,
        given.join(", "),
        missing.join(", ")
    );
    for shard in &left.shards {
        let time = crate::api::Timestamp(shard.ledger_now_ms);
        let _ = writeln!(
            text,
            "shard {}: up to index {} (term {}, node {}) from {}: {} items, {} held, {} sold; the \
             newest stamp is {time}",
            shard.shard,
            shard.last,
            shard.leader.term,
            shard.leader.node,
            shard.from,
            shard.items,
            shard.held,
            shard.sold
        );
    }
    let _ = write!(
        text,
        "What may be missing: whatever the nodes that are not here acknowledged behind these \
         indexes: holds, confirmations, releases, returns and changes of items later than those \
         stamps. What is here counts as done, also what nobody was told of.\n{} items will be \
         paused.",
        left.paused
    );
    text
}
