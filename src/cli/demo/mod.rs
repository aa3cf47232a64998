//! `holdfast demo`: a whole cluster on this machine, and a small sale that it survives.

mod report;
mod sale;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::local_cluster::{LocalCluster, Wanted};
use super::output::Voice;
use super::{Failure, Reach, audit, serve};
pub(super) use report::span;
use sale::Sale;
pub(super) use sale::leader_of_commit;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast demo                    # stays until Ctrl-C, so that you can try it with curl
  holdfast demo --once --json      # for scripts: sells, audits, exits 0

The leader is killed (kill -9) in the middle of the sale unless --no-kill is given.")]
pub(super) struct Demo {
    /// How many nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=7))]
    nodes: u16,
    /// Exit after the sale and its audit.
    #[arg(long)]
    once: bool,
    /// Keep the data here; otherwise it is removed at the end.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How many shards.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// How many buyers come.
    #[arg(long, default_value_t = 1_000, value_parser = many(10))]
    buyers: u32,
    /// How many units there are.
    #[arg(long, default_value_t = 100, value_parser = many(2))]
    units: u32,
    /// Let the leader live.
    #[arg(long)]
    no_kill: bool,
}

/// A count of buyers or units, at least `least` and at most a million.
fn many(least: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(least..=1_000_000)
}

impl Demo {
    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let voice = reach.voice();
        // Ctrl-C ends whatever goes on; the cluster is stopped on the way out.
        tokio::select! {
            done = self.show(&reach, voice) => done,
            stopped = serve::told_to_stop() => stopped.map(|why| voice.say(why)),
        }
    }

    async fn show(self, reach: &Reach, voice: Voice) -> Result<(), Failure> {
        let wanted =
            Wanted { nodes: self.nodes, shards: self.shards, data: self.data, set: Vec::new() };
        let mut cluster = LocalCluster::start(wanted, reach, voice).await?;
        voice.say(&format!(
            "{} nodes at {}\ndata in {}",
            self.nodes,
            cluster.urls().join("  "),
            cluster.data().display()
        ));
        let client = reach.client_of(&cluster.urls())?;
        client.learn_nodes().await?;
        let sale = Sale::new(client.clone(), self.buyers, self.units);
        let kill = !self.no_kill && self.nodes >= 3;
        let told = sale.run(&mut cluster, reach, kill).await?;
        let audited = audit::read(&client, &told.item).await?;
        let faults = told.faults(&audited);
        let data = json!({ "sale": told.to_json(), "audit": audited, "faults": faults });
        voice.data(&data, || report::table_of(&told, &audited));
        if !faults.is_empty() {
            return Err(Failure::Broken(faults.join("\n")));
        }
        voice.say("every unit is accounted for, and nothing was sold twice");
        if self.once {
            return cluster.stop().await;
        }
        voice.say(&hints(&cluster.urls()[0], &told.item));
        let why = serve::told_to_stop().await?;
        voice.say(&format!("{why}: stopping"));
        cluster.stop().await
    }
}

fn hints(url: &str, item: &str) -> String {
    let json = "-H 'content-type: application/json'";
    format!(
        "\nThe cluster stays until Ctrl-C. Try:\n  \
         curl {url}/v1/items/{item}/audit\n  \
         curl -X PUT {url}/v1/items/mine {json} -d '{{\"total\": 5}}'\n  \
         curl {url}/v1/items/mine/holds {json} \\\n    \
         -H 'idempotency-key: k1' -d '{{\"quantity\": 1, \"buyer\": \"ann\"}}'\n  \
         holdfast --url {url} status"
    )
}
