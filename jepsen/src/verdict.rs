//! The verdict on a run, as JSON and as a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use crate::check::{Property, Report};
use crate::history::{Act, History, Kind};
use crate::nemesis::{Family, Fault};
use crate::profile::Floors;

/// What a run says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// Nothing contradicts the contract, and enough was done to say so.
    Valid,
    /// Something does.
    Invalid,
    /// Nothing does, but a floor was missed.
    Insufficient,
    /// The suite could not do its work.
    HarnessFailure,
}

impl Verdict {
    /// The exit code of a run that has no verdict, too.
    pub(crate) const HARNESS_FAILURE: u8 = 4;

    /// The exit code of a run.
    pub(crate) fn code(self) -> u8 {
        match self {
            Verdict::Valid => 0,
            Verdict::Invalid => 1,
            Verdict::Insufficient => 3,
            Verdict::HarnessFailure => Verdict::HARNESS_FAILURE,
        }
    }

    /// Its name.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Valid => "valid",
            Verdict::Invalid => "invalid",
            Verdict::Insufficient => "insufficient",
            Verdict::HarnessFailure => "harness-failure",
        }
    }
}

/// A floor and whether it was reached.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Floor {
    pub(crate) name: &'static str,
    pub(crate) wanted: String,
    pub(crate) got: String,
    pub(crate) met: bool,
}

/// What came of one kind of fault.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FaultCount {
    pub(crate) effective: u64,
    pub(crate) skipped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why_skipped: Option<String>,
}

/// Figures of a history.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Figures {
    /// Operations that reached a node: what found no connection is not counted.
    pub(crate) operations: u64,
    pub(crate) ok: u64,
    pub(crate) fail: u64,
    pub(crate) info: u64,
    /// Attempts that found no connection.
    pub(crate) unsent: u64,
    /// By what was asked: ok, fail, info.
    pub(crate) by_act: BTreeMap<String, [u64; 3]>,
    /// Refusals by slug.
    pub(crate) refusals: BTreeMap<String, u64>,
    pub(crate) faults: u64,
    pub(crate) fault_kinds: u64,
    pub(crate) leader_changes: u64,
    pub(crate) member_changes: u64,
    pub(crate) unresolved: u64,
    pub(crate) unresolved_percent: f64,
    pub(crate) seconds: u64,
    /// Ms from healing to the first commit of a shard: half of them below, the worst.
    pub(crate) recovery_p50_ms: u64,
    pub(crate) recovery_max_ms: u64,
}

/// All of it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// Why it is a harness failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) harness: Option<String>,
    pub(crate) profile: String,
    pub(crate) seed: u64,
    pub(crate) nodes: u64,
    pub(crate) ground: String,
    /// What could not be had on this machine, or from this version: it is not passed, it is
    /// skipped.
    pub(crate) skipped: Vec<String>,
    pub(crate) figures: Figures,
    pub(crate) floors: Vec<Floor>,
    pub(crate) faults: BTreeMap<String, FaultCount>,
    pub(crate) report: Report,
}

/// Counts a history.
pub(crate) fn count(history: &History, report: &Report) -> Figures {
    let mut figures = Figures { unresolved: report.unresolved, ..Figures::default() };
    let mut leaderships: BTreeSet<(u64, u64, u64)> = BTreeSet::new();
    let mut kinds: BTreeSet<&str> = BTreeSet::new();
    let mut recoveries: Vec<u64> = Vec::new();
    for op in history.ops() {
        if op.kind() == Kind::Fail && op.told().is_some_and(|told| told.status.is_none()) {
            figures.unsent += 1;
            continue;
        }
        figures.operations += 1;
        let act = serde_json::to_value(op.f()).expect("a word");
        let counts = figures.by_act.entry(act.as_str().unwrap_or_default().to_owned()).or_default();
        match op.kind() {
            Kind::Ok => {
                figures.ok += 1;
                counts[0] += 1;
            }
            Kind::Fail => {
                figures.fail += 1;
                counts[1] += 1;
                let slug = op.refusal().unwrap_or("no reason");
                let slug = if slug.len() > 40 { &slug[..40] } else { slug };
                *figures.refusals.entry(slug.to_owned()).or_default() += 1;
            }
            Kind::Info | Kind::Invoke => {
                figures.info += 1;
                counts[2] += 1;
            }
        }
        if let Some(commit) = op.commit() {
            leaderships.insert((commit.shard, commit.term, commit.node));
        }
    }
    for event in &history.events {
        let value = &event.value;
        if let (Act::Leader, Some(shard), Some(term), Some(node)) =
            (event.f, value.shard, value.term, value.leader)
        {
            leaderships.insert((shard, term, node));
        }
        if event.f == Act::FaultStart && value.effective == Some(true) {
            figures.faults += 1;
            kinds.extend(value.fault.as_deref());
            let family = value.fault.as_deref().and_then(Fault::named).map(Fault::family);
            figures.member_changes += u64::from(family == Some(Family::Members));
        }
        if event.f == Act::Recovered && value.shard.is_some() {
            recoveries.extend(value.recovery_ms);
        }
    }
    let shards: BTreeSet<u64> = leaderships.iter().map(|(shard, _, _)| *shard).collect();
    figures.leader_changes = leaderships.len() as u64 - shards.len() as u64;
    figures.fault_kinds = kinds.len() as u64;
    figures.seconds = history.events.last().map_or(0, |event| event.time / 1_000_000_000);
    recoveries.sort_unstable();
    figures.recovery_p50_ms = recoveries.get(recoveries.len() / 2).copied().unwrap_or(0);
    figures.recovery_max_ms = recoveries.last().copied().unwrap_or(0);
    let per_million = figures.unresolved * 1_000_000 / figures.operations.max(1);
    figures.unresolved_percent =
        f64::from(u32::try_from(per_million).unwrap_or(u32::MAX)) / 10_000.0;
    figures
}

/// Holds the figures against the floors.
pub(crate) fn floors(figures: &Figures, report: &Report, wanted: &Floors) -> Vec<Floor> {
    let least = |name, wanted: u64, got: u64| Floor {
        name,
        wanted: format!(">= {wanted}"),
        got: got.to_string(),
        met: got >= wanted,
    };
    let most = |name, wanted: String, got: String, met| Floor { name, wanted, got, met };
    let allowed = figures.operations * wanted.unresolved_per_million / 1_000_000;
    let undecided = report.undecided.len() as u64;
    let undecided_max = report.searched_items * wanted.undecided_percent / 100;
    let vacuous: Vec<String> = Property::ALL
        .into_iter()
        .filter(|property| !Property::OF_FAULTS.contains(property))
        .filter(|property| report.properties.get(property).is_none_or(|o| o.checked == 0))
        .map(Property::name)
        .collect();
    vec![
        least("operations", wanted.operations, figures.operations),
        least("faults", wanted.faults, figures.faults),
        least("kinds of faults", wanted.kinds, figures.fault_kinds),
        least("leader changes", wanted.leader_changes, figures.leader_changes),
        least("changes of members", wanted.member_changes, figures.member_changes),
        most(
            "unresolved operations",
            format!("<= {allowed}"),
            figures.unresolved.to_string(),
            figures.unresolved <= allowed,
        ),
        most(
            "undecided items",
            format!("<= {undecided_max}"),
            undecided.to_string(),
            undecided <= undecided_max,
        ),
        most(
            "items without final reads",
            "<= 0".to_owned(),
            report.unread.len().to_string(),
            report.unread.is_empty(),
        ),
        most(
            "properties never put to the test",
            "none".to_owned(),
            if vacuous.is_empty() { "none".to_owned() } else { vacuous.join(", ") },
            vacuous.is_empty(),
        ),
    ]
}

/// Gives the verdict.
pub(crate) fn decide(report: &Report, floors: &[Floor], harness: Option<&str>) -> Verdict {
    if !report.broken().is_empty() {
        return Verdict::Invalid;
    }
    if harness.is_some() {
        return Verdict::HarnessFailure;
    }
    if floors.iter().all(|floor| floor.met) { Verdict::Valid } else { Verdict::Insufficient }
}

impl Judgement {
    /// Writes it for people.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let f = &self.figures;
        let word = self.verdict.word().to_uppercase();
        let _ = writeln!(out, "verdict  {word}  (profile {}, seed {})", self.profile, self.seed);
        if let Some(why) = &self.harness {
            let _ = writeln!(out, "the suite could not do its work: {why}");
        }
        let _ = writeln!(
            out,
            "\n{} nodes, {}; {} s; {} operations: {} ok, {} refused, {} unknown \
             ({} unresolved, {:.3} %); {} more found no connection",
            self.nodes,
            self.ground,
            f.seconds,
            f.operations,
            f.ok,
            f.fail,
            f.info,
            f.unresolved,
            f.unresolved_percent,
            f.unsent
        );
        let _ = writeln!(
            out,
            "{} faults of {} kinds, {} leader changes, {} changes of members; healing to commit: \
             p50 {} ms, max {} ms",
            f.faults,
            f.fault_kinds,
            f.leader_changes,
            f.member_changes,
            f.recovery_p50_ms,
            f.recovery_max_ms
        );
        let report = &self.report;
        let _ = writeln!(
            out,
            "search: {} operations of {} items, {} undecided; exact replay of {} items",
            report.searched_operations,
            report.searched_items,
            report.undecided.len(),
            report.replayed_items
        );
        let _ = writeln!(out, "\n{:<24} {:>9} {:>10}", "property", "checked", "violations");
        for (property, outcome) in &report.properties {
            let _ = writeln!(
                out,
                "{:<24} {:>9} {:>10}  {}",
                property.name(),
                outcome.checked,
                outcome.violations,
                property.sentence()
            );
        }
        let _ = writeln!(out, "\n{:<34} {:>10} {:>10}", "floor", "wanted", "got");
        for floor in &self.floors {
            let mark = if floor.met { "" } else { "  MISSED" };
            let Floor { name, wanted, got, .. } = floor;
            let _ = writeln!(out, "{name:<34} {wanted:>10} {got:>10}{mark}");
        }
        let _ = writeln!(out, "\n{:<20} {:>5} {:>8}", "fault", "done", "skipped");
        for (name, count) in &self.faults {
            let why = count.why_skipped.as_deref().unwrap_or_default();
            let why = why.chars().take(90).collect::<String>();
            let (done, skipped) = (count.effective, count.skipped);
            let _ = writeln!(out, "{name:<20} {done:>5} {skipped:>8}  {why}");
        }
        for skipped in &self.skipped {
            let _ = writeln!(out, "SKIPPED: {skipped}");
        }
        self.violations(&mut out);
        out
    }

    fn violations(&self, out: &mut String) {
        for (property, outcome) in &self.report.properties {
            if outcome.violations > 0 {
                let _ = writeln!(out, "\nVIOLATED: {}: {}", property.name(), property.sentence());
                for example in outcome.examples.iter().take(3) {
                    let _ = writeln!(out, "  {example}");
                }
            }
        }
    }
}
