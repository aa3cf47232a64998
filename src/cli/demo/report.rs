//! The report of the demo's sale, for people.

use std::time::Duration;

use comfy_table::Table;
use serde_json::Value;

use super::super::audit;
use super::super::output::table;
use super::sale::Told;

/// Shows what was asked, what was answered, and whether it adds up.
pub(super) fn table_of(told: &Told, audited: &Value) -> Table {
    let books = &told.books;
    let mut shown = table(&[]);
    let mut row = |name: &str, value: String| {
        shown.add_row(vec![name.to_owned(), value]);
    };
    row("the sale", format!("{} buyers, {} units, {}", told.buyers, told.units, span(told.took)));
    let placed = format!("{} (units that came back are placed again)", books.placed);
    row("holds placed", placed);
    row("  confirmed", books.confirmed.len().to_string());
    row("  given back", books.released.to_string());
    row("  walked away from", format!("{} (expired, and were sold again)", books.walked_away));
    row("retries with the same key", format!("{} (each found its own hold)", books.retried));
    for (reason, times) in &books.refused {
        row(&format!("refused: {reason}"), times.to_string());
    }
    let unanswered = format!("{} / {} (nobody answered in time)", books.gave_up, books.unknown);
    row("gave up / unknown", unanswered);
    row("a placement took", latencies(told));
    match (told.killed, told.gap) {
        (Some(node), Some(gap)) => {
            row(&format!("kill -9 of node {node}"), format!("next grant after {}", span(gap)));
        }
        (Some(node), None) => row(&format!("kill -9 of node {node}"), "no grant after it".into()),
        (None, _) => {}
    }
    let sums = ["total", "available", "held", "sold"]
        .map(|name| format!("{} {name}", audit::sum(audited, name)));
    row("audit", sums.join(", "));
    row("the laws", if audit::holds(audited) { "hold" } else { "ARE BROKEN" }.to_owned());
    shown
}

fn latencies(told: &Told) -> String {
    let times = &told.books.placing_us;
    format!(
        "p50 {}, p99 {}, max {} (with the kill)",
        span(Duration::from_micros(times.value_at_quantile(0.5))),
        span(Duration::from_micros(times.value_at_quantile(0.99))),
        span(Duration::from_micros(times.max())),
    )
}

/// A span of time for people: three figures and a unit.
pub(in crate::cli) fn span(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    match us {
        us if us < 1_000.0 => format!("{us:.0} µs"),
        us if us < 10_000.0 => format!("{:.2} ms", us / 1e3),
        us if us < 1_000_000.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}
