//! What many seeds did, in words and as figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::simulation::verdict::Verdict;

/// What many seeds did.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) seeds: u64,
    /// Seeds that were run in a second process, too.
    pub(crate) repeated: u64,
    /// What went wrong with the command itself.
    pub(crate) trouble: Vec<String>,
    failed: Vec<Verdict>,
    calls: Vec<u64>,
    faults: Vec<u32>,
    kinds: BTreeMap<String, Coverage>,
    orders: BTreeMap<String, Coverage>,
    joins: u64,
    entries: u64,
    leaderships: u64,
    moved: u64,
    refused_starts: u64,
    virtual_ms: u64,
}

/// How often something was drawn, how often it changed something, and in how many seeds.
#[derive(serde::Serialize, Default, Clone, Copy)]
struct Coverage {
    drawn: u64,
    took_effect: u64,
    seeds: u64,
}

impl Coverage {
    fn add(&mut self, drawn: u32, took_effect: u32) {
        self.drawn += u64::from(drawn);
        self.took_effect += u64::from(took_effect);
        self.seeds += u64::from(took_effect > 0);
    }
}

/// The figures, for other programs.
#[derive(serde::Serialize)]
pub(crate) struct Figures {
    from: u64,
    seeds: u64,
    failed: Vec<Verdict>,
    repeated_in_another_process: u64,
    trouble: Vec<String>,
    processes: usize,
    seconds: f64,
    seeds_per_hour: f64,
    calls: Spread,
    /// Of the seeds that have faults.
    faults: Spread,
    without_faults: u64,
    faults_by_kind: BTreeMap<String, Coverage>,
    orders_of_operators: BTreeMap<String, Coverage>,
    nodes_replaced: u64,
    entries: u64,
    leaderships: u64,
    units_moved_between_buckets: u64,
    refused_starts: u64,
    virtual_seconds: u64,
}

/// The least, the median and the sum of a figure of each seed.
#[derive(serde::Serialize, Default)]
struct Spread {
    least: u64,
    median: u64,
    sum: u64,
}

impl Spread {
    fn of(mut numbers: Vec<u64>) -> Spread {
        numbers.sort_unstable();
        Spread {
            least: numbers.first().copied().unwrap_or_default(),
            median: numbers.get(numbers.len() / 2).copied().unwrap_or_default(),
            sum: numbers.iter().sum(),
        }
    }
}

fn per_hour(seeds: u64, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "it is shown in whole seeds")]
    let seeds = seeds as f64;
    seeds * 3_600.0 / took.as_secs_f64().max(0.001)
}

impl Summary {
    /// Adds what one seed did.
    pub(crate) fn add(&mut self, verdict: Verdict) {
        self.seeds += 1;
        self.calls.push(verdict.calls);
        self.faults.push(verdict.fault_count());
        for (kind, times) in &verdict.faults {
            let effects = verdict.effects.get(kind).copied().unwrap_or_default();
            self.kinds.entry(kind.clone()).or_default().add(*times, effects);
        }
        for (word, (sent, taken)) in &verdict.orders {
            self.orders.entry(word.clone()).or_default().add(*sent, *taken);
        }
        self.joins += u64::from(verdict.joins);
        self.entries += verdict.entries;
        self.leaderships += verdict.leaderships as u64;
        self.moved += verdict.moved;
        self.refused_starts += u64::from(verdict.refused_starts);
        self.virtual_ms += verdict.virtual_ms;
        if !verdict.is_clean() {
            self.failed.push(verdict);
        }
    }

    /// Tells whether every law was kept.
    pub(crate) fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.trouble.is_empty()
    }

    /// Says how it goes.
    pub(crate) fn progress(&self, took: Duration) -> String {
        let faults: u64 = self.faults.iter().map(|one| u64::from(*one)).sum();
        let calls: u64 = self.calls.iter().sum();
        format!(
            "{:.0} seeds/h, {} failed; {calls} calls, {faults} faults of {} kinds, {} leaderships",
            per_hour(self.seeds, took),
            self.failed.len(),
            self.kinds.len(),
            self.leaderships
        )
    }

    /// Returns the figures.
    pub(crate) fn figures(self, from: u64, processes: usize, took: Duration) -> Figures {
        let hurt = self.faults.iter().filter(|one| **one > 0).map(|one| u64::from(*one));
        Figures {
            from,
            seeds: self.seeds,
            without_faults: self.faults.iter().filter(|one| **one == 0).count() as u64,
            faults: Spread::of(hurt.collect()),
            calls: Spread::of(self.calls),
            failed: self.failed,
            repeated_in_another_process: self.repeated,
            trouble: self.trouble,
            processes,
            seconds: took.as_secs_f64(),
            seeds_per_hour: per_hour(self.seeds, took),
            faults_by_kind: self.kinds,
            orders_of_operators: self.orders,
            nodes_replaced: self.joins,
            entries: self.entries,
            leaderships: self.leaderships,
            units_moved_between_buckets: self.moved,
            refused_starts: self.refused_starts,
            virtual_seconds: self.virtual_ms / 1_000,
        }
    }

    /// Says what was done and found.
    pub(crate) fn words(&self, from: u64, processes: usize, took: Duration) -> String {
        let hurt = self.faults.iter().filter(|one| **one > 0).map(|one| u64::from(*one));
        let (calls, faults) = (Spread::of(self.calls.clone()), Spread::of(hurt.collect()));
        let mut words = String::new();
        // One in full; the others were told in a line each.
        if let Some(verdict) = self.failed.iter().min_by_key(|one| one.seed) {
            writeln!(words, "{}", verdict.report()).expect("a string takes everything");
        }
        let (kinds, orders) = (table("fault", &self.kinds), table("order", &self.orders));
        write!(
            words,
            "{} seeds from {from} in {:.0} s on {processes} processes: {:.0} seeds/h\n\
             {} failed; {} were run in a second process too and left the same trace\n\
             calls: {} in all, {} at least, {} in the median\n\
             faults: {} in all, {} at least, {} in the median; {} seeds have none\n\
             {kinds}{orders}\
             {} machines came in in the place of a lost node; {} entries, at each of which conservation was looked at; {} leaderships; {} units \
             went from bucket to bucket; {} starts on a damaged log were refused; {} s of virtual \
             time",
            self.seeds,
            took.as_secs_f64(),
            per_hour(self.seeds, took),
            self.failed.len(),
            self.repeated,
            calls.sum,
            calls.least,
            calls.median,
            faults.sum,
            faults.least,
            faults.median,
            self.faults.iter().filter(|one| **one == 0).count(),
            self.joins,
            self.entries,
            self.leaderships,
            self.moved,
            self.refused_starts,
            self.virtual_ms / 1_000,
        )
        .expect("a string takes everything");
        words
    }
}

/// What the swarm covered, a line a kind.
fn table(of: &str, rows: &BTreeMap<String, Coverage>) -> String {
    let mut words = format!("{of:<16} {:>8} {:>12} {:>8}\n", "drawn", "took effect", "seeds");
    for (name, Coverage { drawn, took_effect, seeds }) in rows {
        writeln!(words, "{name:<16} {drawn:>8} {took_effect:>12} {seeds:>8}")
            .expect("a string takes everything");
    }
    words
}

/// Says how a single run ended.
pub(crate) fn tell_one(verdict: &Verdict) {
    let end = if verdict.is_clean() { "every law was kept" } else { "BROKEN" };
    println!(
        "seed {}: {end}; {} calls, {} decisions, {} faults, {} leaderships, {} entries, {} units \
         moved, {} s; trace hash {}",
        verdict.seed,
        verdict.calls,
        verdict.decisions,
        verdict.fault_count(),
        verdict.leaderships,
        verdict.entries,
        verdict.moved,
        verdict.virtual_ms / 1_000,
        verdict.hash
    );
    verdict.broken.iter().for_each(|law| println!("  {law}"));
}
