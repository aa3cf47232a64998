//! Liveness and readiness. A node is alive while it answers; it is ready when every shard has a
//! leader that it knows, grants, and has a running replica here.

use std::fmt::Write;

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use super::admin::role_word;
use super::call::Call;
use super::front::Front;
use super::problem::Failure;
use super::wire;
use crate::planted::Fault;
use crate::shard::{NodeStatus, Role};

/// What an empty node says.
pub(crate) const NOT_INITIALISED: &str =
    "This node belongs to no cluster yet. Run `holdfast cluster init` against its nodes.";

/// What `/readyz` carries in a build that breaks a law on purpose, and in no other.
const HEADER_PLANTED: HeaderName = HeaderName::from_static("holdfast-planted-fault");

/// A replica that has applied all of its log but so many entries is ready.
const BEHIND_ENTRIES_MAX: u64 = 10_000;

/// `GET /livez`
pub(crate) fn livez(call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    Ok(wire::text(StatusCode::OK, "alive\n".to_owned()))
}

/// `GET /readyz`
pub(crate) fn readyz(front: &Front, call: &Call) -> Result<Response, Failure> {
    let verbose = match call.query(&["verbose"])?.text("verbose") {
        None | Some("false") => false,
        Some("" | "true" | "1") => true,
        Some(_) => return Err(Failure::malformed("`verbose` is true, false, or without a value.")),
    };
    let status = front.desk.status();
    let reasons = reasons(&status);
    let (code, mut text) = if reasons.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n".to_owned())
    };
    for reason in &reasons {
        text.push_str("- ");
        text.push_str(reason);
        text.push('\n');
    }
    let confession = crate::planted::confession();
    if verbose {
        if let Some(confession) = &confession {
            let _ = writeln!(text, "{confession}");
        }
        for shard in &status.shards {
            if let Some(why) = &shard.checkpoint_trouble {
                let name = shard.shard;
                let _ = writeln!(
                    text,
                    "* shard {name}: no checkpoint can be made ({why}); its log grows until one can"
                );
            }
        }
        text.push('\n');
        table(&status, &mut text);
    }
    let mut response = wire::text(code, text);
    if confession.is_some() {
        let fault = crate::planted::carried().map_or("none", Fault::name);
        response.headers_mut().insert(HEADER_PLANTED, HeaderValue::from_static(fault));
    }
    Ok(response)
}

/// Why a node is not ready; empty when it is.
pub(crate) fn reasons(status: &NodeStatus) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(why) = &status.stopped {
        reasons.push(format!("the node has stopped: {why}"));
    }
    if let Some(why) = &status.log.failed {
        reasons.push(format!(
            "the log takes nothing any more: {why}; free space, or mend the disk, and restart this \
             node"
        ));
    }
    if let Some(why) = &status.abstains {
        reasons.push(format!("the node does not lead: {why}"));
    }
    if status.log.disk_full {
        reasons.push("the disk is full: new holds are shed".to_owned());
    }
    if status.stopped.is_none() && (status.cluster_id.is_none() || status.shards.is_empty()) {
        reasons.push(NOT_INITIALISED.to_owned());
    }
    for shard in &status.shards {
        let name = format!("shard {}", shard.shard);
        if let Some(why) = &shard.failed {
            reasons.push(format!("{name}: the replica failed: {why}"));
        } else if shard.role == Role::Stopped {
            reasons.push(format!("{name}: the replica does not run"));
        }
        if shard.leader.is_none() {
            reasons.push(format!("{name}: no leader is known"));
        }
        let behind = shard.last_log.0.saturating_sub(shard.applied.0);
        if behind > BEHIND_ENTRIES_MAX {
            reasons.push(format!("{name}: {behind} entries of its log are not applied yet"));
        }
        if let Some(why) = &shard.digests.trouble {
            reasons.push(format!("{name}: {why}"));
        }
        if let Some(why) = shard.paused {
            reasons.push(format!("{name}: paused ({})", why.word()));
        }
    }
    reasons
}

fn table(status: &NodeStatus, text: &mut String) {
    let heads =
        ["shard", "role", "leader", "term", "applied", "last log", "quorum age ms", "state"];
    let dash = || "-".to_owned();
    let mut rows: Vec<[String; 8]> = vec![heads.map(str::to_owned)];
    for shard in &status.shards {
        let state = match (&shard.failed, shard.paused) {
            (Some(why), _) => format!("failed: {why}"),
            (None, Some(reason)) => format!("paused: {}", reason.word()),
            (None, None) => "ok".to_owned(),
        };
        rows.push([
            shard.shard.to_string(),
            role_word(shard.role).to_owned(),
            shard.leader.map_or_else(dash, |leader| leader.to_string()),
            shard.term.to_string(),
            shard.applied.to_string(),
            shard.last_log.to_string(),
            shard.quorum_age_ms.map_or_else(dash, |age| age.to_string()),
            state,
        ]);
    }
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in &rows {
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(text, "{cell:width$}  ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
}
