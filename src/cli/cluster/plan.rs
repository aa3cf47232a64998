//! The plan of `cluster init`: the identity that is offered, on disk before the first node takes
//! it, so that a run that died is gone on with and never offers a second one.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::Failure;
use crate::api::ClusterSettings;

/// What is offered to the nodes, kept until all have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) cluster_id: String,
    pub(super) nodes: Vec<String>,
    pub(super) settings: ClusterSettings,
}

/// Reads the plan of an earlier run, or makes one and puts it on disk.
pub(super) fn plan_of(
    file: &Path,
    nodes: &[String],
    settings: ClusterSettings,
) -> Result<Plan, Failure> {
    let wrong = |words: String| Failure::Usage(format!("{}: {words}", file.display()));
    if file.exists() {
        let text = std::fs::read_to_string(file).map_err(|e| wrong(e.to_string()))?;
        let plan: Plan = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if plan.nodes != nodes || plan.settings.shards != settings.shards {
            return Err(wrong(format!(
                "an earlier run offered {} with {} shards; run that again, or remove the file if \
                 no node has adopted it",
                plan.nodes.join(","),
                plan.settings.shards
            )));
        }
        return Ok(plan);
    }
    let cluster_id = format!("{:032x}", rand::random::<u128>());
    let plan = Plan { cluster_id, nodes: nodes.to_vec(), settings };
    let text = serde_json::to_vec_pretty(&plan).map_err(|e| wrong(e.to_string()))?;
    let mut open = std::fs::OpenOptions::new();
    let mut written = open
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(|e| wrong(e.to_string()))?;
    written.write_all(&text).and_then(|()| written.sync_all()).map_err(|e| wrong(e.to_string()))?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::super::{already_founded, settings};
    use super::*;
    use crate::config::Cluster;

    #[test]
    fn an_interrupted_init_goes_on_with_the_offer_that_it_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("plan.json");
        let nodes = ["http://a:1".to_owned()];
        let of = |shards| settings(Cluster { shards, ..Cluster::default() });
        let first = plan_of(&file, &nodes, of(4)).expect("made");
        let again = plan_of(&file, &nodes, of(4)).expect("read");
        assert_eq!(first, again);
        let known = [Some(first.cluster_id), None];
        assert_eq!(already_founded(&known, true).expect("goes on"), None);
        let other = plan_of(&file, &nodes, of(8)).expect_err("another number of shards");
        assert!(other.to_string().contains("earlier run"), "{other}");
    }
}
