//! `holdfast bench`: measures a cluster with a closed-loop load, then audits it.
//!
//! Promises: figures are told as good only when every law holds and every acknowledged hold is
//! found; a run in which others used more than a tenth of a core is marked.

mod empty;
mod load;
mod machine;
mod memory;
mod moments;
mod report;
mod request;
mod rolling;
mod routes;
mod run;
mod scrape;
mod tally;
mod verdict;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::item::pair;
use super::serve::told_to_stop;
use super::{Failure, Reach};
pub(super) use tally::record;

/// Units that `tail` sells at most.
const TAIL_UNITS_MAX: u64 = 100_000_000;

/// What the load is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// One placement a request.
    Unary,
    /// Many placements a request (`--batch`).
    Batch,
    /// Placements that are all refused, one a request.
    SoldOut,
    /// Place, extend, then confirm two of three and release the third.
    LifeCycle,
    /// Sell `--total` units out, one a request, and tell how the last hundredth goes.
    Tail,
    /// An empty handler in this process: what HTTP alone costs.
    Empty,
    /// Places `--holds` holds and tells the memory of each (needs --cluster).
    Preload,
    /// Restarts every node in turn under `--rate` placements a second (needs --cluster).
    Rolling,
    /// Preloads, stops all nodes, and tells how long they take to serve again (needs --cluster).
    Restart,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast bench --cluster 3 --connections 64
  holdfast bench batch --batch 1000 --connections 8 --cluster 3 --data /mnt/disk/bench
  holdfast bench sold-out --compare-empty --cluster 3
  holdfast bench unary --kill-leader --cluster 3
  holdfast bench restart --holds 1000000 --cluster 3
  holdfast bench rolling --rate 5000 --cluster 3
  holdfast bench unary --buckets 4 --cluster 3
  holdfast bench batch --batch 1000 --buckets 4 --skew 50 --cluster 3
  holdfast bench unary --buckets 8 --kill-leader --cluster 3
  holdfast bench unary --buckets 4 --total 2000000 --skew 50 --cluster 3
  holdfast bench tail --buckets 4 --total 10000 --cluster 3
  holdfast bench --url http://n1:7101,http://n2:7101,http://n3:7101 --json

Exits 1, and reports no figures, when the audit afterwards finds a law broken or an acknowledged
hold missing. Use a release build.")]
pub(super) struct Bench {
    /// What the load is made of.
    #[arg(value_enum, default_value_t = Mode::Unary)]
    mode: Mode,
    /// Connections; each sends its next request when it has its last answer.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Seconds that are measured.
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    duration: Duration,
    /// Seconds before that.
    #[arg(long, default_value = "2", value_name = "SECONDS", value_parser = seconds)]
    warm_up: Duration,
    /// The item that is sold; a new one when absent.
    #[arg(long)]
    item: Option<String>,
    /// Units of the new item.
    #[arg(long, value_parser = super::item::quantity, default_value = "1000000000000")]
    total: u64,
    /// Over how many shards the new item is spread (a cluster of its own gets as many). Single
    /// placements go straight to the leaders of their buyers' buckets then, batches round all
    /// nodes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    buckets: u16,
    /// Regions of the new item (r0, r1, …), each spread over `--buckets`; buyers belong to them in
    /// turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    regions: u16,
    /// Placements of a spread item go round all nodes, which forward them, instead of straight to
    /// the leaders.
    #[arg(long)]
    any_node: bool,
    /// Percent of the placements that one buyer makes: all of them meet the same bucket.
    #[arg(long, default_value_t = 0, value_name = "PERCENT",
        value_parser = clap::value_parser!(u8).range(0..=100))]
    skew: u8,
    /// How many different buyers there are.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    buyers: u64,
    /// Operations a request in `batch`, `preload` and `restart`.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    batch: u64,
    /// Placements a second in `rolling`, due at that rate whatever the answers do.
    #[arg(long, default_value_t = 5_000,
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Threads of the load generator, each with its own event loop.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Holds that `preload` and `restart` place.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    holds: u64,
    /// Start a cluster of so many nodes on this machine, and stop it afterwards.
    #[arg(long, value_name = "NODES", value_parser = clap::value_parser!(u16).range(1..=7))]
    cluster: Option<u16>,
    /// Shards of that cluster.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// Where that cluster keeps its data, and where fdatasync is measured.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Sets a configuration key of that cluster's nodes; may be given often.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Measure an empty handler first, with the same client, and tell the ratio.
    #[arg(long)]
    compare_empty: bool,
    /// Kill the leader (kill -9) half-way, tell the time to the next grant, and of a spread item
    /// what was kept of its grants in the second from then on (needs --cluster).
    #[arg(long, requires = "cluster")]
    kill_leader: bool,
}

/// Seconds on the command line, fractions too, at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse::<f64>().ok();
    match seconds.filter(|seconds| (0.0..=86_400.0).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err("must be seconds from 0 to 86400, like 10 or 0.5".to_owned()),
    }
}

impl Bench {
    /// Whether the item lies on several buckets.
    pub(super) fn is_spread(&self) -> bool {
        self.buckets > 1 || self.regions > 1
    }

    /// Whether placements go to their buckets' leaders: those of one bucket do anyway.
    fn goes_straight(&self) -> bool {
        self.is_spread() && !self.any_node
    }

    pub(super) async fn run(self, reach: Reach) -> Result<(), Failure> {
        let needs_cluster = matches!(self.mode, Mode::Preload | Mode::Restart | Mode::Rolling);
        if needs_cluster && self.cluster.is_none() {
            return Err(Failure::Usage("this measurement needs --cluster N".into()));
        }
        if self.mode == Mode::Tail && self.total > TAIL_UNITS_MAX {
            let words = format!("`tail` sells everything: name --total, at most {TAIL_UNITS_MAX}");
            return Err(Failure::Usage(words));
        }
        // Ctrl-C ends whatever goes on; a cluster of its own is stopped on the way out.
        tokio::select! {
            done = self.measure(&reach) => done,
            stopped = told_to_stop() => {
                Err(Failure::Unavailable(format!("{}: the run was given up", stopped?)))
            }
        }
    }

    async fn measure(self, reach: &Reach) -> Result<(), Failure> {
        match self.mode {
            Mode::Preload | Mode::Restart => memory::run(self, reach).await,
            Mode::Rolling => rolling::run(self, reach).await,
            Mode::Empty => run::empty_only(self, reach).await,
            Mode::Unary | Mode::Batch | Mode::SoldOut | Mode::LifeCycle | Mode::Tail => {
                run::measure(self, reach).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_fractions_and_nothing_else() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("10s"), Ok(Duration::from_secs(10)));
        for bad in ["-1", "NaN", "inf", "1e9", "ten", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
