//! What a run leaves: what was broken, and what it did.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use holdfast::runtime::since_start_ms;

use super::plan::Kind;
use super::world::World;

/// What a run leaves.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Verdict {
    pub(crate) seed: u64,
    /// The laws that were broken, in the order in which it was seen.
    pub(crate) broken: Vec<String>,
    /// The hash of the whole trace, in hex.
    pub(crate) hash: String,
    /// The last lines of the trace, when something was broken.
    pub(crate) tail: Vec<String>,
    /// Calls over HTTP.
    pub(crate) calls: u64,
    /// Decisions of clients.
    pub(crate) decisions: u32,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<String, u32>,
    /// Of these, those that changed something.
    pub(crate) effects: BTreeMap<String, u32>,
    /// Orders of operators: how many were sent, and how many were taken.
    pub(crate) orders: BTreeMap<String, (u32, u32)>,
    /// Empty machines that came in in the place of a lost node.
    pub(crate) joins: u32,
    /// Leaderships that wrote entries, over all shards.
    pub(crate) leaderships: usize,
    /// Entries, each counted once, at each of which conservation was looked at.
    pub(crate) entries: u64,
    /// Units that went from bucket to bucket.
    pub(crate) moved: u64,
    /// Nodes that refused to start on what was left of their log.
    pub(crate) refused_starts: u32,
    pub(crate) virtual_ms: u64,
}

impl Verdict {
    /// Tells what became of a world. Must be called inside the simulation.
    pub(crate) fn of(world: &World) -> Verdict {
        let broken = world.judge.verdict();
        let faults = world.tally.faults.lock();
        let effects = world.tally.effects.lock();
        let orders = world.tally.orders.lock();
        let by_name = |counts: &BTreeMap<Kind, u32>| {
            counts.iter().map(|(kind, times)| (format!("{kind:?}"), *times)).collect()
        };
        let stocks = world.stocks.lock();
        Verdict {
            seed: world.plan.seed,
            hash: format!("{:016x}", world.trace.hash()),
            tail: if broken.is_empty() { Vec::new() } else { world.trace.tail() },
            broken,
            calls: world.tally.calls.load(Ordering::Relaxed),
            decisions: world.tally.decisions.load(Ordering::Relaxed),
            faults: by_name(&faults),
            effects: by_name(&effects),
            orders: orders.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect(),
            joins: world.tally.joins.load(Ordering::Relaxed),
            leaderships: world.judge.leaderships(),
            entries: stocks.entries,
            moved: stocks.moved(),
            refused_starts: world.tally.refused_starts.load(Ordering::Relaxed),
            virtual_ms: since_start_ms(),
        }
    }

    /// Tells that a run ended in a panic.
    pub(crate) fn of_a_panic(seed: u64, words: String) -> Verdict {
        Verdict { seed, broken: vec![format!("the run panicked: {words}")], ..Verdict::default() }
    }

    /// Tells whether all laws were kept.
    pub(crate) fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }

    /// Returns how many faults there were.
    pub(crate) fn fault_count(&self) -> u32 {
        self.faults.values().sum()
    }

    /// Names the first broken law without its particulars: runs with the same name fail alike.
    pub(crate) fn law(&self) -> Option<String> {
        let first = self.broken.first()?;
        let words: Vec<&str> = first
            .split_whitespace()
            .map_while(|word| {
                let is_plain = word.chars().all(|c| c.is_ascii_alphabetic() || "',-".contains(c));
                (is_plain || word.ends_with(':')).then_some(word)
            })
            .take(5)
            .collect();
        Some(if words.is_empty() { first.chars().take(12).collect() } else { words.join(" ") })
    }

    /// Says what was broken, after what, and how to see it again.
    pub(crate) fn report(&self) -> String {
        let (tail, broken) = (self.tail.join("\n"), self.broken.join("\n  "));
        let (seed, replay) = (self.seed, replay_command(self.seed, &super::cut::Cut::default()));
        format!("{tail}\n\nseed {seed} breaks:\n  {broken}\nreplay it with: {replay}\n")
    }
}

/// The command that replays a run.
pub(crate) fn replay_command(seed: u64, cut: &super::cut::Cut) -> String {
    format!("cargo run --release --features sim --example simulate -- replay {seed}{cut}")
}
