//! Real nodes for the cluster tests: `serve` processes of the built binary on the loopback.
//!
//! Each test has a cluster of its own, with a data directory, a loopback address and ports of its
//! own, so tests never meet. What is waited for is looked at until a deadline. The processes of a
//! cluster die with their test, however it ends. `HOLDFAST_CLUSTER_ROUNDS` multiplies the sizes for
//! long runs; the seed of every run is printed.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

mod books;
mod command;
mod fleet;
mod metrics;
mod nodes;
mod sluice;
mod turn;
mod view;
mod wire;
mod witness;

pub(crate) use books::{Books, Buying, Ended, Kept, all_holds};
pub(crate) use command::{Finished, command, holdfast};
pub(crate) use fleet::{Fleet, Plan, try_again};
pub(crate) use metrics::Metrics;
pub(crate) use sluice::Sluices;
pub(crate) use view::{NodeView, ShardView};
pub(crate) use wire::{Answer, Caller, Lost, Sent};
pub(crate) use witness::Witness;

use std::time::Duration;

use tokio::time::Instant;

/// How long a cluster may take for what should be done soon: generous, since a machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Pause between two looks at a process.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A size, multiplied by `HOLDFAST_CLUSTER_ROUNDS`.
pub(crate) fn rounds(usual: usize) -> usize {
    let factor = std::env::var("HOLDFAST_CLUSTER_ROUNDS").ok();
    usual * factor.and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

/// A seed that is printed, so that a failing run can be repeated with `HOLDFAST_CLUSTER_SEED`.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("HOLDFAST_CLUSTER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("HOLDFAST_CLUSTER_SEED={seed}");
    seed
}

/// SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }
}

/// Looks until `found` finds something.
///
/// # Panics
///
/// With what it was last told, when `within` has passed.
pub(crate) async fn wait_for<T>(
    what: &str,
    within: Duration,
    mut found: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        let why = match found().await {
            Ok(thing) => return thing,
            Err(why) => why,
        };
        assert!(Instant::now() < deadline, "not within {within:?}: {what}; last: {why}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Lets a measured time pass while processes under test run or stand still.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}
