//! What the picture shows, read from a history.

use std::collections::BTreeMap;

use crate::history::{Act, History, Kind};

/// How many slices of time there are at most.
const SLICES: u64 = 240;

/// A stretch of time of a node or a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) label: String,
    pub(super) words: String,
    /// The node that leads.
    pub(super) node: u64,
}

/// A slice of time: what ended in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Slice {
    pub(super) ok: u64,
    pub(super) refused: u64,
    pub(super) turned_away: u64,
    pub(super) unknown: u64,
    /// Latencies of what was answered, in µs.
    pub(super) latencies: Vec<u64>,
}

/// What a shard did in a slice: decisions, and attempts that were not decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) decided: u64,
    pub(super) undecided: u64,
}

/// Everything that is drawn.
#[derive(Debug, Default)]
pub(super) struct Series {
    pub(super) end: u64,
    /// Ns of a slice.
    pub(super) slice: u64,
    pub(super) slices: Vec<Slice>,
    /// By node.
    pub(super) hits: BTreeMap<u64, Vec<Stretch>>,
    /// By shard.
    pub(super) leaders: BTreeMap<u64, Vec<Stretch>>,
    pub(super) served: BTreeMap<u64, Vec<Served>>,
    /// When the final reads began.
    pub(super) final_from: Option<u64>,
}

impl Series {
    pub(super) fn read(history: &History) -> Series {
        let end = history.events.last().map_or(1, |event| event.time).max(1);
        let slice = (end / SLICES).max(250_000_000);
        let count = usize::try_from(end / slice + 1).expect("a few hundred");
        let mut series =
            Series { end, slice, slices: vec![Slice::default(); count], ..Series::default() };
        series.count(history, count);
        series.hit(history);
        series.change(history);
        series.lead(history);
        let is_final = |value: &str| value == crate::check::book::FINAL;
        series.final_from = history
            .seen(Act::Note)
            .find(|event| event.value.note.as_deref().is_some_and(is_final))
            .map(|event| event.time);
        series
    }

    pub(super) fn seconds(&self) -> u64 {
        self.end / 1_000_000_000
    }

    fn at(&self, time: u64) -> usize {
        usize::try_from(time / self.slice).expect("a few hundred").min(self.slices.len() - 1)
    }

    fn count(&mut self, history: &History, count: usize) {
        let mut home: BTreeMap<String, u64> = BTreeMap::new();
        for op in history.ops() {
            if let (Some(item), Some(shard)) =
                (op.asked().item.clone(), op.told().and_then(|told| told.home_shard))
            {
                home.insert(item, shard);
            }
            let Some(done) = op.done else { continue };
            let at = self.at(done.time);
            let turned_away = done.kind == Kind::Fail
                && done.value.status.is_none_or(|status| status == 503 || status == 501);
            let slice = &mut self.slices[at];
            match done.kind {
                Kind::Ok => slice.ok += 1,
                Kind::Fail if turned_away => slice.turned_away += 1,
                Kind::Fail => slice.refused += 1,
                Kind::Info | Kind::Invoke => slice.unknown += 1,
            }
            if done.kind != Kind::Info {
                slice.latencies.push((done.time - op.invoke.time) / 1_000);
            }
            let shard = op
                .commit()
                .map(|commit| commit.shard)
                .or_else(|| home.get(op.asked().item.as_deref().unwrap_or_default()).copied());
            // Who finds no connection has asked a dead node, not the shard.
            let reached = done.kind != Kind::Fail || done.value.status.is_some();
            let Some(shard) = shard.filter(|_| op.f().changes() && reached) else { continue };
            let served = self.served.entry(shard).or_insert_with(|| vec![Served::default(); count]);
            if turned_away || done.kind == Kind::Info {
                served[at].undecided += 1;
            } else {
                served[at].decided += 1;
            }
        }
        for slice in &mut self.slices {
            slice.latencies.sort_unstable();
        }
    }

    fn hit(&mut self, history: &History) {
        let nodes: Vec<u64> = {
            let mut nodes: Vec<u64> = history.events.iter().filter_map(|e| e.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes
        };
        for node in &nodes {
            self.hits.entry(*node).or_default();
        }
        let end = self.end;
        let ends: Vec<_> = history.seen(Act::FaultStop).collect();
        for begun in history.seen(Act::FaultStart).filter(|e| e.value.effective == Some(true)) {
            let value = &begun.value;
            let over = ends.iter().find(|e| e.value.fault_id == value.fault_id);
            let stretch = Stretch {
                from: begun.time,
                to: over.map_or(end, |over| over.time),
                label: value.fault.clone().unwrap_or_default(),
                words: value.proof.clone().unwrap_or_default(),
                node: 0,
            };
            let hit = value.nodes.clone().unwrap_or_default();
            for node in if hit.is_empty() { &nodes } else { &hit } {
                self.hits.entry(*node).or_default().push(stretch.clone());
            }
        }
    }

    /// Operations on the nodes: each is noted at its end, with how long it took.
    fn change(&mut self, history: &History) {
        for ended in history.seen(Act::Operation) {
            let Some(node) = ended.node else { continue };
            let took = ended.value.recovery_ms;
            let words = took.map_or_else(|| "it did not end".to_owned(), |ms| format!("{ms} ms"));
            let stretch = Stretch {
                from: ended.time.saturating_sub(took.unwrap_or(45_000) * 1_000_000),
                to: ended.time,
                label: ended.value.operation.clone().unwrap_or_default(),
                words,
                node: 0,
            };
            self.hits.entry(node).or_default().push(stretch);
        }
    }

    /// Leaderships, from the answers that rest on them and from what the observer saw.
    fn lead(&mut self, history: &History) {
        let mut seen: BTreeMap<u64, Vec<(u64, u64, u64)>> = BTreeMap::new();
        for event in &history.events {
            let value = &event.value;
            let leader = match (event.f, event.commit) {
                (Act::Leader, _) => value.shard.zip(value.term).zip(value.leader),
                (_, Some(c)) => Some(((c.shard, c.term), c.node)),
                (_, None) => None,
            };
            if let Some(((shard, term), node)) = leader {
                seen.entry(shard).or_default().push((event.time, term, node));
            }
        }
        let end = self.end;
        for (shard, sights) in seen {
            let mut stretches: Vec<Stretch> = Vec::new();
            let mut highest = (0, 0);
            for (time, term, node) in sights {
                if (term, node) <= highest {
                    continue;
                }
                highest = (term, node);
                if let Some(last) = stretches.last_mut() {
                    last.to = time;
                }
                stretches.push(Stretch {
                    from: time,
                    to: end,
                    label: format!("n{node}"),
                    words: format!("node {node} leads in term {term}"),
                    node,
                });
            }
            self.leaders.insert(shard, stretches);
        }
    }
}
