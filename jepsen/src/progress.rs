//! The progress display: a line that moves on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::recorder::Recorder;

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Shows how far a run is until it is dropped.
pub(crate) async fn show(
    recorder: Arc<Recorder>,
    now: Arc<Mutex<String>>,
    whole: Duration,
    quiet: bool,
) {
    if quiet {
        return std::future::pending().await;
    }
    let terminal = std::io::stderr().is_terminal();
    let bar = ProgressBar::new(whole.as_secs());
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:28}] {wide_msg}");
    bar.set_style(style.expect("a template that is right"));
    let began = Instant::now();
    let mut said = Instant::now();
    loop {
        let tally = recorder.tally();
        let doing = now.lock().expect("nobody panics with it").clone();
        let words = format!(
            "{} ops: {} ok, {} refused, {} unknown; {} faults; {doing}",
            tally.invoked, tally.ok, tally.fail, tally.info, tally.faults
        );
        if terminal {
            bar.set_position(began.elapsed().as_secs());
            bar.set_message(words);
        } else if said.elapsed() > LINE_EVERY {
            said = Instant::now();
            eprintln!("{:>4} s  {words}", began.elapsed().as_secs());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
