//! What the nodes count themselves (`/metrics`), before and after a run.

use std::collections::BTreeMap;

use super::super::Reach;

/// Counter of log entries proposed.
const ENTRIES: &str = "holdfast_entries_total";
/// Counter of commands proposed.
const COMMANDS: &str = "holdfast_commands_total";
/// Counter of transfers between buckets, and of the units in them.
const TRANSFERS: &str = "holdfast_stock_sends_total";
const MOVED: &str = "holdfast_stock_units_sent_total";

/// Counters summed over nodes and labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counters {
    sums: BTreeMap<String, f64>,
}

/// What the leaders proposed between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Proposed {
    pub(super) entries: f64,
    pub(super) commands: f64,
}

/// What moved between buckets from one reading to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moved {
    pub(super) transfers: f64,
    pub(super) units: f64,
}

impl Counters {
    /// Reads all nodes that answer.
    pub(super) async fn read(reach: &Reach, nodes: &[String]) -> Counters {
        let mut counters = Counters::default();
        for node in nodes {
            let Ok(client) = reach.client_of(std::slice::from_ref(node)) else { continue };
            if let Ok(text) = client.get_text("/metrics").await {
                counters.add(&text);
            }
        }
        counters
    }

    fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // A label's value may hold spaces; the number is what stands behind the last one.
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let name = series.split('{').next().unwrap_or(series);
            if let Ok(value) = value.parse::<f64>() {
                *self.sums.entry(name.to_owned()).or_default() += value;
            }
        }
    }

    fn grown(&self, earlier: &Counters, name: &str) -> Option<f64> {
        Some(self.sums.get(name)? - earlier.sums.get(name)?)
    }

    /// What moved since `earlier`; `None` when the nodes do not tell, or have restarted.
    pub(super) fn moved_since(&self, earlier: &Counters) -> Option<Moved> {
        let grown = |name: &str| self.grown(earlier, name).filter(|grown| *grown >= 0.0);
        Some(Moved { transfers: grown(TRANSFERS)?, units: grown(MOVED)? })
    }

    /// What was proposed since `earlier`; `None` when the nodes do not tell, or have restarted.
    pub(super) fn since(&self, earlier: &Counters) -> Option<Proposed> {
        let grown = |name: &str| self.grown(earlier, name);
        let proposed = Proposed { entries: grown(ENTRIES)?, commands: grown(COMMANDS)? };
        (proposed.entries > 0.0 && proposed.commands >= 0.0).then_some(proposed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_labels_and_nodes() {
        let mut before = Counters::default();
        before.add("holdfast_entries_total{shard=\"0\"} 5\nholdfast_commands_total 1\n");
        let mut after = Counters::default();
        after.add(
            "# HELP x\nholdfast_entries_total{shard=\"0\"} 7\n\
             holdfast_entries_total{shard=\"1\",words=\"a b\"} 3\nholdfast_commands_total 501\n",
        );
        let proposed = after.since(&before).expect("both are told");
        assert_eq!(proposed, Proposed { entries: 5.0, commands: 500.0 });
    }

    #[test]
    fn what_moved_is_told_unless_a_node_has_restarted() {
        let reading = |sends, units| {
            let mut counters = Counters::default();
            counters.add(&format!("{TRANSFERS} {sends}\n{MOVED} {units}\n"));
            counters
        };
        let moved = reading(12, 700).moved_since(&reading(2, 100));
        assert_eq!(moved, Some(Moved { transfers: 10.0, units: 600.0 }));
        assert_eq!(reading(1, 700).moved_since(&reading(2, 100)), None);
    }

    #[test]
    fn counters_that_went_back_or_are_missing_tell_nothing() {
        let mut before = Counters::default();
        before.add("holdfast_entries_total 9\nholdfast_commands_total 9\n");
        let mut restarted = Counters::default();
        restarted.add("holdfast_entries_total 1\nholdfast_commands_total 1\n");
        assert_eq!(restarted.since(&before), None);
        assert_eq!(Counters::default().since(&before), None);
    }
}
