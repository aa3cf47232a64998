//! What a node says about itself while it comes up: one line when it knows what it is, one when it
//! serves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::office::{Counter, Office};
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
            (_, Some(why)) => format!("this node takes no part: {why}"),
            (Some(cluster), None) => format!("node {} of cluster {cluster}", status.node),
            (None, None) => {
                "empty: waiting for `holdfast cluster init --nodes URL,URL,URL`".to_owned()
            }
        };
        if said.as_ref() != Some(&line) {
            tracing::info!("{line}");
            said = Some(line);
        }
        if http::unready(&status).is_empty() {
            tracing::info!("ready");
            return;
        }
        runtime::sleep(LOOK_EVERY).await;
    }
}
