//! The picture of a run: one page that needs no network. From top to bottom, over one time axis:
//! what hit each node, who led each shard, whether each shard answered, how many operations ended
//! how, and how long they took; then the verdict's tables.

mod charts;
mod series;

use std::fmt::Write;

use crate::history::{Act, Event, History};
use crate::verdict::Judgement;
use series::Series;

/// Draws a history, with its verdict where there is one.
pub(crate) fn draw(history: &History, judgement: Option<&Judgement>) -> String {
    let series = Series::read(history);
    let mut page = String::with_capacity(1 << 20);
    let title = judgement.map_or_else(
        || "Holdfast partition suite".to_owned(),
        |j| format!("{}: {} seed {}", j.verdict.word(), j.profile, j.seed),
    );
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{}</title>\n<style>{STYLE}</style></head><body>\n",
        escape(&title)
    );
    head(&mut page, judgement, &series);
    charts::draw(&mut page, &series);
    if let Some(judgement) = judgement {
        properties(&mut page, judgement);
    }
    faults(&mut page, history);
    page.push_str("</body></html>\n");
    page
}

/// Makes text safe within HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn head(page: &mut String, judgement: Option<&Judgement>, series: &Series) {
    let Some(j) = judgement else {
        let _ = writeln!(page, "<h1>{} s of history, not judged here</h1>", series.seconds());
        return;
    };
    let word = j.verdict.word();
    let f = &j.figures;
    let _ = writeln!(
        page,
        "<h1><span class=\"verdict {word}\">{word}</span> profile {}, seed {}</h1>\n\
         <p>{} nodes ({}); {} s; <b>{}</b> operations: {} ok, {} refused, {} unknown, of which {} \
         stay unresolved ({:.3} %). <b>{}</b> faults of {} kinds, {} leader changes; from healing \
         to the next commit of a shard: half within {} ms, all within {} ms.</p>",
        escape(&j.profile),
        j.seed,
        j.nodes,
        escape(&j.ground),
        f.seconds,
        f.operations,
        f.ok,
        f.fail,
        f.info,
        f.unresolved,
        f.unresolved_percent,
        f.faults,
        f.fault_kinds,
        f.leader_changes,
        f.recovery_p50_ms,
        f.recovery_max_ms
    );
    if let Some(why) = &j.harness {
        let _ = writeln!(page, "<p class=\"bad\">The suite failed: {}</p>", escape(why));
    }
    for floor in j.floors.iter().filter(|floor| !floor.met) {
        let _ = writeln!(
            page,
            "<p class=\"bad\">Floor missed: {} {}, got {}</p>",
            escape(floor.name),
            escape(&floor.wanted),
            escape(&floor.got)
        );
    }
    for skipped in &j.skipped {
        let _ = writeln!(page, "<p class=\"skip\">Skipped: {}</p>", escape(skipped));
    }
}

fn properties(page: &mut String, judgement: &Judgement) {
    page.push_str(
        "<h2>Properties</h2>\n<table><tr><th>property<th>what it says<th>checked<th>violations\n",
    );
    for (property, outcome) in &judgement.report.properties {
        let class = match (outcome.violations, outcome.checked) {
            (0, 0) => "skip",
            (0, _) => "good",
            (_, _) => "bad",
        };
        let _ = writeln!(
            page,
            "<tr class=\"{class}\"><td>{}<td>{}<td>{}<td>{}",
            property.name(),
            escape(property.sentence()),
            outcome.checked,
            outcome.violations
        );
        for example in outcome.examples.iter().take(5) {
            let _ = writeln!(page, "<tr><td colspan=\"4\"><code>{}</code>", escape(example));
        }
    }
    page.push_str("</table>\n");
}

fn faults(page: &mut String, history: &History) {
    page.push_str(
        "<h2>Faults and their proofs</h2>\n\
         <table class=\"log\"><tr><th>at<th>lasted<th>fault<th>nodes<th>proof of effect\
         <th>on healing\n",
    );
    let ends: Vec<&Event> = history.seen(Act::FaultStop).collect();
    for begun in history.seen(Act::FaultStart) {
        let value = &begun.value;
        let end = ends.iter().find(|event| event.value.fault_id == value.fault_id);
        let lasted = end.map_or_else(String::new, |end| seconds(end.time - begun.time));
        let nodes: Vec<String> =
            value.nodes.iter().flatten().map(|node| format!("n{node}")).collect();
        let class = if value.effective == Some(true) { "" } else { " class=\"skip\"" };
        let proof = value.proof.as_deref().or(value.note.as_deref()).unwrap_or_default();
        let healed = end.and_then(|end| end.value.proof.as_deref().or(end.value.note.as_deref()));
        let _ = writeln!(
            page,
            "<tr{class}><td>{}<td>{lasted}<td>{}<td>{}<td>{}<td>{}",
            seconds(begun.time),
            escape(value.fault.as_deref().unwrap_or_default()),
            nodes.join(" "),
            escape(proof),
            escape(healed.unwrap_or_default())
        );
    }
    page.push_str("</table>\n");
}

fn seconds(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2430; --dim: #66707f; --line: #d5dae2; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --dim: #97a1b0; --line: #39424f; --page: #14181f; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1480px; margin: 1.2em auto; padding: 0 1em; }
h1 { font-size: 1.3em; } h2 { font-size: 1.05em; margin-top: 1.6em; }
.verdict { color: #fff; padding: .1em .6em; border-radius: .3em; text-transform: uppercase; }
.valid { background: #1f8a4c; } .invalid { background: #c2262e; }
.insufficient { background: #b07a10; } .harness-failure { background: #6b4fa3; }
.bad { color: #c2262e; font-weight: 600; } .skip { color: var(--dim); }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg .dim { fill: var(--dim); } svg .name { font-weight: 600; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .p50 { stroke: #2b6cb0; fill: none; stroke-width: 1.5; }
svg .p99 { stroke: #c05621; fill: none; stroke-width: 1.5; }
table { border-collapse: collapse; width: 100%; font-size: 12.5px; }
th, td { text-align: left; padding: .2em .6em; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
td:first-child, .log td:nth-child(-n+4), .log th { white-space: nowrap; }
code { font-size: 11px; overflow-wrap: anywhere; }
";
