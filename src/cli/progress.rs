//! Progress on stderr, for people only: nothing is drawn when stderr is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::people_watch;

/// How often a moving display is drawn anew.
const TICK: Duration = Duration::from_millis(120);

/// Shows that something of unknown length goes on.
pub(super) fn spinner(words: impl Into<String>) -> ProgressBar {
    let bar = hidden_unless_watched(ProgressBar::no_length());
    bar.set_style(
        ProgressStyle::with_template("{spinner:.cyan} {msg}").expect("the template is constant"),
    );
    bar.set_message(words.into());
    if people_watch() {
        bar.enable_steady_tick(TICK);
    }
    bar
}

/// Shows how much of a known length is done.
pub(super) fn bar(length: u64, words: impl Into<String>) -> ProgressBar {
    let bar = hidden_unless_watched(ProgressBar::new(length));
    bar.set_style(
        ProgressStyle::with_template("{bar:32.cyan/dim} {pos}/{len}  {msg}")
            .expect("the template is constant"),
    );
    bar.set_message(words.into());
    bar
}

fn hidden_unless_watched(bar: ProgressBar) -> ProgressBar {
    if !people_watch() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}
