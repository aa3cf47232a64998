//! What a run is told as.

use std::time::Duration;

use comfy_table::Table;
use serde_json::{Value, json};

use super::super::demo::span;
use super::super::output::table;
use super::machine::CpuUse;
use super::moments::Around;
use super::scrape::{Moved, Proposed};
use super::tally::Tally;
use super::verdict::Verdict;
use super::{Bench, Mode};

/// Others may take so much of a core before a run is marked.
pub(super) const OTHERS_MAX: f64 = 0.1;

/// Everything about one run.
pub(super) struct Report {
    pub(super) what: String,
    pub(super) mode: Mode,
    pub(super) item: String,
    pub(super) seconds: f64,
    pub(super) tally: Tally,
    pub(super) sync_p50: Option<Duration>,
    pub(super) proposed: Option<Proposed>,
    /// Of the whole run, warm-up and all.
    pub(super) ran_for: Duration,
    pub(super) cpu: Option<CpuUse>,
    pub(super) empty_per_second: Option<f64>,
    pub(super) failover: Option<Option<Duration>>,
    /// The grants around the kill.
    pub(super) around: Option<Around>,
    /// What moved between the buckets of a spread item while it was measured.
    pub(super) moved: Option<Moved>,
    /// How long the last hundredth of the units took, in `tail`; `None` within: it was not sold.
    pub(super) tail: Option<Option<Duration>>,
    pub(super) verdict: Option<Verdict>,
}

impl Report {
    pub(super) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1e-9)
    }

    fn ratio(&self) -> Option<f64> {
        self.empty_per_second.map(|empty| self.per_second(self.tally.requests) / empty.max(1e-9))
    }

    /// Whether others disturbed the run.
    pub(super) fn disturbed(&self) -> bool {
        self.cpu.is_some_and(|cpu| cpu.others > OTHERS_MAX)
    }

    pub(super) fn to_json(&self) -> Value {
        let verdict = self.verdict.as_ref();
        json!({
            "what": self.what,
            "item": self.item,
            "measured_s": self.seconds,
            "decisions": self.tally.decisions,
            "decisions_per_s": self.per_second(self.tally.decisions),
            "requests_per_s": self.per_second(self.tally.requests),
            "granted": self.tally.granted,
            "refused": self.tally.refused,
            "unknown": self.tally.unknown_keys() + self.tally.unknown_changes,
            "latency_ms": self.tally.latency_json(),
            "fdatasync_p50_ms": self.sync_p50.map(|time| time.as_secs_f64() * 1e3),
            "entries_per_s": self.proposed.map(|p| p.entries / self.ran_for.as_secs_f64()),
            "commands_per_entry": self.proposed.map(|p| p.commands / p.entries),
            "cpu_others_cores": self.cpu.map(|cpu| cpu.others),
            "cpu_ours_cores": self.cpu.map(|cpu| cpu.ours),
            "disturbed": self.disturbed(),
            "empty_handler_per_s": self.empty_per_second,
            "of_empty_handler": self.ratio(),
            "failover_ms": self.failover.flatten().map(|gap| gap.as_secs_f64() * 1e3),
            "kept_in_the_second_of_the_kill": self.around.as_ref().map(Around::kept),
            "grants_per_100_ms_around_the_kill": self.around.as_ref().map(|seen| &seen.slots),
            "transfers": self.moved.map(|moved| moved.transfers),
            "transfers_per_unit": self.transfers_per_unit(),
            "tail_ms": self.tail.flatten().map(|took| took.as_secs_f64() * 1e3),
            "audit": verdict.map(|verdict| &verdict.audit),
            "unknown_made_a_hold": verdict.map(|verdict| verdict.unknown_made),
            "holds_looked_up": verdict.map(|verdict| verdict.looked_up),
        })
    }

    pub(super) fn to_table(&self) -> Table {
        let mut shown = table(&[]);
        let mut row = |name: &str, value: String| {
            shown.add_row(vec![name.to_owned(), value]);
        };
        row("run", self.what.clone());
        row("measured", format!("{:.1} s", self.seconds));
        row("decisions", format!("{}/s", grouped(self.per_second(self.tally.decisions))));
        row("requests", format!("{}/s", grouped(self.per_second(self.tally.requests))));
        row("latency", self.latencies());
        for (reason, times) in &self.tally.refused {
            row(&format!("refused: {reason}"), grouped(*times as f64));
        }
        row("unknown outcomes", self.unknown_words());
        if let Some(empty) = self.empty_per_second {
            let ratio = self.ratio().unwrap_or_default();
            row("empty handler", format!("{}/s; this is {ratio:.2} of it", grouped(empty)));
        }
        match self.failover {
            Some(Some(gap)) => row("leader killed", format!("next grant after {}", span(gap))),
            Some(None) => row("leader killed", "no grant after it".into()),
            None => {}
        }
        if let Some(seen) = &self.around {
            row("grants each 100 ms", slots_words(seen));
            let kept = seen.kept();
            let before = grouped(seen.before_per_s);
            row("kept", format!("{kept:.2} of {before}/s in the second from the kill on"));
        }
        if let (Some(moved), Some(each)) = (self.moved, self.transfers_per_unit()) {
            let (transfers, units) = (grouped(moved.transfers), grouped(moved.units));
            row("transfers", format!("{transfers} of {units} units: {each:.5} a unit granted"));
        }
        match self.tail {
            Some(Some(took)) => row("the last hundredth", format!("sold within {}", span(took))),
            Some(None) => row("the last hundredth", "was not sold".into()),
            None => {}
        }
        row("log", self.log_words());
        row("fdatasync p50 before", self.sync_p50.map_or_else(|| "not measured".into(), span));
        row("processors", self.cpu_words());
        if let Some(verdict) = &self.verdict {
            row("audit", verdict_words(verdict));
        }
        shown
    }

    fn transfers_per_unit(&self) -> Option<f64> {
        let granted = self.tally.granted;
        self.moved.filter(|_| granted > 0).map(|moved| moved.transfers / granted as f64)
    }

    fn latencies(&self) -> String {
        let at = |quantile: f64| span(self.tally.latency(quantile));
        let max = span(Duration::from_micros(self.tally.latency_us.max()));
        format!(
            "p50 {}  p90 {}  p99 {}  p99.9 {}  max {max}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999)
        )
    }

    fn unknown_words(&self) -> String {
        let made = self.verdict.as_ref().map_or(0, |verdict| verdict.unknown_made);
        let unknown = self.tally.unknown_keys();
        format!("{unknown} ({made} had made a hold), {} changes", self.tally.unknown_changes)
    }

    fn log_words(&self) -> String {
        match self.proposed {
            Some(proposed) => format!(
                "{} entries/s, {:.1} commands an entry",
                grouped(proposed.entries / self.ran_for.as_secs_f64()),
                proposed.commands / proposed.entries
            ),
            None if self.mode == Mode::SoldOut => "nothing was proposed, or not told".into(),
            None => "not told".into(),
        }
    }

    fn cpu_words(&self) -> String {
        match self.cpu {
            Some(cpu) => {
                let mark = if self.disturbed() { "  DISTURBED: measure again" } else { "" };
                format!("{:.2} cores ours, {:.2} of others{mark}", cpu.ours, cpu.others)
            }
            None => "not told (the nodes are not this command's own)".into(),
        }
    }
}

/// The grants around a kill, a second a line.
fn slots_words(seen: &Around) -> String {
    let mut text = String::new();
    for (at, count) in seen.slots.iter().enumerate() {
        if at > 0 {
            text.push(if (at + 10 - seen.kill_at % 10).is_multiple_of(10) { '\n' } else { ' ' });
        }
        if at == seen.kill_at {
            text.push('†');
        }
        text.push_str(&count.to_string());
    }
    text
}

fn verdict_words(verdict: &Verdict) -> String {
    format!("the laws hold; {} acknowledged holds looked up, none missing", verdict.looked_up)
}

/// Tells a run in one line.
pub(super) fn words_of(bench: &Bench) -> String {
    let mode = match bench.mode {
        Mode::Unary => "one placement a request".to_owned(),
        Mode::Batch => format!("batches of {}", bench.batch),
        Mode::SoldOut => "sold-out refusals, one a request".to_owned(),
        Mode::LifeCycle => "place, extend, confirm or release".to_owned(),
        Mode::Tail => format!("{} units sold out, one a request", bench.total),
        Mode::Empty => "an empty handler".to_owned(),
        Mode::Preload => format!("{} holds placed", bench.holds),
        Mode::Restart => format!("a restart with {} holds", bench.holds),
        Mode::Rolling => format!("a rolling restart under {} placements/s", bench.rate),
    };
    let nodes = match bench.cluster {
        Some(nodes) => format!(", {nodes} nodes on this machine"),
        None => String::new(),
    };
    let mut spread = String::new();
    if bench.is_spread() {
        spread = format!(", {} regions of {} buckets", bench.regions, bench.buckets);
    }
    if bench.skew > 0 {
        spread.push_str(&format!(", {} % by one buyer", bench.skew));
    }
    format!("{mode}{spread}, {} connections{nodes}", bench.connections)
}

/// A count for people: `12,345`.
pub(super) fn grouped(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        for (count, expected) in [(0.0, "0"), (999.6, "1,000"), (1_234_567.0, "1,234,567")] {
            assert_eq!(grouped(count), expected);
        }
    }

    #[test]
    fn a_run_in_which_others_took_a_tenth_of_a_core_is_marked() {
        let mut report = Report {
            what: "x".into(),
            mode: Mode::Unary,
            tail: None,
            item: "x".into(),
            seconds: 2.0,
            tally: Tally::new(0),
            sync_p50: None,
            proposed: None,
            ran_for: Duration::from_secs(2),
            cpu: Some(CpuUse { ours: 1.9, others: 0.05 }),
            empty_per_second: Some(100.0),
            failover: None,
            around: None,
            moved: None,
            verdict: None,
        };
        report.tally.measured(Duration::from_millis(1), 50);
        assert!(!report.disturbed());
        report.cpu = Some(CpuUse { ours: 1.8, others: 0.2 });
        let told = report.to_json();
        assert_eq!(told["disturbed"], true);
        assert_eq!(told["decisions_per_s"], 25.0);
        assert_eq!(told["of_empty_handler"], 0.005);
        assert!(report.to_table().to_string().contains("DISTURBED"));
        report.tally.granted = 50;
        report.moved = Some(Moved { transfers: 2.0, units: 40.0 });
        let (slots, before_per_s) = (vec![9, 8, 4], 85.0);
        report.around = Some(Around { slots, kill_at: 2, before_per_s, second: 34 });
        let told = report.to_json();
        assert_eq!(
            (&told["transfers_per_unit"], &told["kept_in_the_second_of_the_kill"]),
            (&json!(0.04), &json!(0.4))
        );
        assert!(report.to_table().to_string().contains("†4"));
    }
}
