//! The charts, as one SVG over one time axis.

use std::fmt::Write;

use super::escape;
use super::series::{Series, Served, Stretch};

/// The width of the drawing and of its left margin.
const WIDTH: f64 = 1_400.0;
const LEFT: f64 = 92.0;
/// How operations end, with the colour of each.
const OUTCOMES: [(&str, &str); 4] =
    [("#58a55c", "ok"), ("#7f9cc0", "refused"), ("#b9b9c4", "turned away"), ("#e0602e", "unknown")];
/// So many times as many decided as undecided is nearly all.
const MOSTLY: u64 = 9;
/// The height of a lane.
const LANE: f64 = 22.0;
/// Colours of nodes.
const NODES: [&str; 9] = [
    "#4c8bd6", "#e0a030", "#58a55c", "#b565c4", "#d9695f", "#3ba6a6", "#8a7f3d", "#7a86d8", "#999",
];

/// A drawing that grows downwards.
struct Chart<'a> {
    page: &'a mut String,
    series: &'a Series,
    y: f64,
}

fn float(value: u64) -> f64 {
    // Times of hours in ns stay far below 2^53.
    #[allow(clippy::cast_precision_loss, reason = "a drawing")]
    let value = value as f64;
    value
}

/// The colour of a fault, by what it hits.
fn colour(fault: &str) -> &'static str {
    use crate::nemesis::{Family, Fault};
    match Fault::named(fault).map(Fault::family) {
        Some(Family::Network) => "#d9695f",
        Some(Family::Process) => "#8f6bc9",
        Some(Family::Clock) => "#3ba6a6",
        Some(Family::Disk) => "#d08a2e",
        Some(Family::Rest) => "#a0527a",
        // Operations on the nodes have words of their own.
        Some(Family::Members) | None => "#4f7d3a",
    }
}

/// Draws everything.
pub(super) fn draw(page: &mut String, series: &Series) {
    let mut body = String::new();
    let mut chart = Chart { page: &mut body, series, y: 4.0 };
    chart.heading("what hit each node");
    for (node, hits) in &series.hits {
        chart.hits(*node, hits);
    }
    chart.heading("who leads each shard (colour is the node)");
    for (shard, leaders) in &series.leaders {
        chart.leaders(*shard, leaders);
    }
    chart.heading("does each shard decide (green: nearly all, yellow: some, red: nothing)");
    for (shard, served) in &series.served {
        chart.served(*shard, served);
    }
    chart.outcomes();
    chart.latencies();
    chart.axis();
    let height = chart.y + 6.0;
    let _ = writeln!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"timeline\">\n\
         {body}</svg>"
    );
    legend(page);
}

fn legend(page: &mut String) {
    page.push_str("<p class=\"skip\">Faults: ");
    for (words, fault) in [
        ("network", "split"),
        ("process", "pause"),
        ("clock", "clock-jump"),
        ("disk", "slow-disk"),
        ("data at rest", "wipe"),
        ("members", "resize"),
    ] {
        let _ = write!(page, "<span style=\"color:{}\">&#9632;</span> {words} ", colour(fault));
    }
    page.push_str("&middot; Operations: ");
    for (fill, word) in OUTCOMES {
        let _ = write!(page, "<span style=\"color:{fill}\">&#9632;</span> {word} ");
    }
    page.push_str("&middot; hover over anything for its figures.</p>\n");
}

impl Chart<'_> {
    fn x(&self, time: u64) -> f64 {
        LEFT + (WIDTH - LEFT - 8.0) * float(time) / float(self.series.end)
    }

    fn heading(&mut self, words: &str) {
        self.y += 20.0;
        let y = self.y - 6.0;
        let _ =
            writeln!(self.page, "<text class=\"name\" x=\"{LEFT}\" y=\"{y:.1}\">{words}</text>");
    }

    fn name(&mut self, words: &str) {
        let y = self.y + LANE / 2.0 + 3.0;
        let _ = writeln!(self.page, "<text x=\"4\" y=\"{y:.1}\">{}</text>", escape(words));
    }

    fn bar(&mut self, from: f64, to: f64, y: f64, height: f64, fill: &str, words: &str) {
        let width = (to - from).max(1.0);
        let _ = writeln!(
            self.page,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{fill}\"><title>{}</title></rect>",
            escape(words)
        );
    }

    fn label(&mut self, from: f64, to: f64, words: &str) {
        // About six units a character.
        let fits = (to - from) / 6.0;
        if fits > float(words.len() as u64) {
            let y = self.y + LANE / 2.0 + 3.0;
            let x = from + 3.0;
            let _ = writeln!(
                self.page,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" style=\"fill:#fff;pointer-events:none\">{}</text>",
                escape(words)
            );
        }
    }

    fn rule(&mut self) {
        let y = self.y + LANE - 2.0;
        let right = WIDTH - 8.0;
        let _ = writeln!(
            self.page,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
    }

    fn hits(&mut self, node: u64, hits: &[Stretch]) {
        self.name(&format!("node {node}"));
        self.rule();
        for hit in hits {
            let (from, to) = (self.x(hit.from), self.x(hit.to));
            let words = format!("{}: {}", hit.label, hit.words);
            self.bar(from, to, self.y, LANE - 4.0, colour(&hit.label), &words);
            self.label(from, to, &hit.label);
        }
        self.y += LANE;
    }

    fn leaders(&mut self, shard: u64, leaders: &[Stretch]) {
        self.name(&format!("shard {shard}"));
        self.rule();
        for lead in leaders {
            let (from, to) = (self.x(lead.from), self.x(lead.to));
            let at = usize::try_from(lead.node).unwrap_or(0).saturating_sub(1) % NODES.len();
            self.bar(from, to - 1.0, self.y, LANE - 4.0, NODES[at], &lead.words);
            self.label(from, to, &lead.label);
        }
        self.y += LANE;
    }

    fn served(&mut self, shard: u64, served: &[Served]) {
        self.name(&format!("shard {shard}"));
        self.rule();
        for (at, served) in served.iter().enumerate() {
            let Served { decided, undecided } = *served;
            let fill = match (decided, undecided) {
                (0, 0) => continue,
                (0, _) => "#c2262e",
                (_, _) if decided >= undecided * MOSTLY => "#58a55c",
                (_, _) => "#e3b341",
            };
            let from = self.x(at as u64 * self.series.slice);
            let to = self.x((at as u64 + 1) * self.series.slice);
            let words = format!("{decided} decided, {undecided} not");
            self.bar(from, to, self.y, LANE - 4.0, fill, &words);
        }
        self.y += LANE;
    }

    fn outcomes(&mut self) {
        const HEIGHT: f64 = 150.0;
        self.heading(
            "operations a second: ok, refused, turned away (503 or no connection), unknown",
        );
        let sum = |s: &super::series::Slice| s.ok + s.refused + s.turned_away + s.unknown;
        let seconds = float(self.series.slice) / 1e9;
        // The race and the final reads come as fast as they can: they would flatten all the rest.
        let mut sums: Vec<u64> = self.series.slices.iter().map(sum).collect();
        sums.sort_unstable();
        let usual = sums.get(sums.len() * 95 / 100).copied().unwrap_or(1);
        let most = (usual + usual / 4).max(1);
        let top = float(most) / seconds;
        for (at, slice) in self.series.slices.iter().enumerate() {
            let from = self.x(at as u64 * self.series.slice);
            let to = self.x((at as u64 + 1) * self.series.slice) - 0.5;
            let mut y = self.y + HEIGHT;
            let counts = [slice.ok, slice.refused, slice.turned_away, slice.unknown];
            for (count, (fill, word)) in counts.into_iter().zip(OUTCOMES) {
                if count == 0 {
                    continue;
                }
                let room = (y - self.y).max(0.0);
                let height = (HEIGHT * float(count) / float(most)).max(1.0).min(room);
                y -= height;
                self.bar(from, to, y, height, fill, &format!("{count} {word}"));
            }
        }
        self.scale(&format!("{top:.0}/s"), "0", HEIGHT);
    }

    fn scale(&mut self, top: &str, bottom: &str, height: f64) {
        let (high, low) = (self.y + 10.0, self.y + height);
        let _ = writeln!(
            self.page,
            "<text class=\"dim\" x=\"4\" y=\"{high:.1}\">{top}</text>\
             <text class=\"dim\" x=\"4\" y=\"{low:.1}\">{bottom}</text>"
        );
        self.y += height;
    }

    /// Latencies on a logarithmic scale, from 0.1 ms to 10 s.
    fn latencies(&mut self) {
        const HEIGHT: f64 = 130.0;
        self.heading("time to an answer: half within (blue), 99 of 100 within (orange)");
        let y = self.y;
        let place = |us: u64| {
            let decades = (float(us.max(100)) / 100.0).log10().min(5.0);
            y + HEIGHT - HEIGHT * decades / 5.0
        };
        for (us, word) in [
            (100, "0.1 ms"),
            (1_000, "1 ms"),
            (10_000, "10 ms"),
            (100_000, "100 ms"),
            (1_000_000, "1 s"),
        ] {
            let at = place(us);
            let right = WIDTH - 8.0;
            let _ = writeln!(
                self.page,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"dim\" x=\"4\" y=\"{:.1}\">{word}</text>",
                at + 3.0
            );
        }
        for (share, class) in [(50, "p50"), (99, "p99")] {
            let mut points = String::new();
            for (at, slice) in self.series.slices.iter().enumerate() {
                let index = slice.latencies.len() * share / 100;
                let index = index.min(slice.latencies.len().saturating_sub(1));
                let Some(us) = slice.latencies.get(index) else { continue };
                let x = self.x(at as u64 * self.series.slice + self.series.slice / 2);
                let _ = write!(points, "{x:.1},{:.1} ", place(*us));
            }
            let _ = writeln!(self.page, "<polyline class=\"{class}\" points=\"{points}\"/>");
        }
        self.y += HEIGHT;
    }

    fn axis(&mut self) {
        let seconds = self.series.seconds();
        let step = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600];
        let step = step.into_iter().find(|step| seconds / step <= 24).unwrap_or(7_200);
        let bottom = self.y + 4.0;
        let text = self.y + 18.0;
        for at in (0..=seconds).step_by(usize::try_from(step).unwrap_or(1)) {
            let x = self.x(at * 1_000_000_000);
            let _ = writeln!(
                self.page,
                "<line class=\"grid\" stroke-dasharray=\"1 5\" x1=\"{x:.1}\" x2=\"{x:.1}\" \
                 y1=\"8\" y2=\"{bottom:.1}\"/><text class=\"dim\" x=\"{x:.1}\" y=\"{text:.1}\" \
                 text-anchor=\"middle\">{at} s</text>"
            );
        }
        if let Some(time) = self.series.final_from {
            let x = self.x(time);
            let _ = writeln!(
                self.page,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"8\" y2=\"{bottom:.1}\" stroke=\"#2b6cb0\"/>\
                 <text x=\"{:.1}\" y=\"14\" text-anchor=\"end\">final reads</text>",
                x - 4.0
            );
        }
        self.y += 22.0;
    }
}
