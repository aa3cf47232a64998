//! What the nodes count themselves (`/metrics`), before and after a run.

use std::collections::BTreeMap;

use super::super::Reach;

/// Counter of log entries proposed.
const ENTRIES: &str = "holdfast_entries_total";
/// Counter of commands proposed.
const COMMANDS: &str = "holdfast_commands_total";

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

    /// What was proposed since `earlier`; `None` when the nodes do not tell, or have restarted.
    pub(super) fn since(&self, earlier: &Counters) -> Option<Proposed> {
        let grown = |name: &str| Some(self.sums.get(name)? - earlier.sums.get(name)?);
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
    fn counters_that_went_back_or_are_missing_tell_nothing() {
        let mut before = Counters::default();
        before.add("holdfast_entries_total 9\nholdfast_commands_total 9\n");
        let mut restarted = Counters::default();
        restarted.add("holdfast_entries_total 1\nholdfast_commands_total 1\n");
        assert_eq!(restarted.since(&before), None);
        assert_eq!(Counters::default().since(&before), None);
    }
}
