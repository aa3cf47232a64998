//! What a node says about itself while it comes up: one line when it knows what it is, one when it
//! serves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::counter::Counter;
use super::office::Office;
use crate::http;
use crate::runtime;
use crate::shard::Desk;

/// How often it is looked whether there is something new to say.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Says what the node is, now and when that changes, and ends when it serves for the first time.
pub(super) async fn announce(office: Weak<Office>) {
    let mut said = None;
    loop {
        let Some(office) = office.upgrade() else { return };
        let status = Counter(Arc::clone(&office)).status();
        drop(office);
        let line = match (&status.cluster_id, &status.stopped) {
            (Some(cluster), None) => Some(format!("node {} of cluster {cluster}", status.node)),
            (None, None) => {
                let words = "empty: waiting to be let in (`--join`), or for `holdfast cluster init \
                             --nodes URL,URL,URL`";
                Some(words.to_owned())
            }
            // It starts, or whoever ended its part has said why.
            (_, Some(_)) => None,
        };
        if let Some(words) = &line
            && said != line
        {
            tracing::info!("{words}");
            said = line;
        }
        if http::unready(&status).is_empty() {
            tracing::info!("ready");
            return;
        }
        runtime::sleep(LOOK_EVERY).await;
    }
}
