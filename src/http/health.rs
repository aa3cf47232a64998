//! Liveness and readiness. A node is alive while it answers; it is ready when every shard has a
//! leader that it knows, grants, and has a running replica here.

use std::fmt::Write;

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use super::admin::role_word;
use super::call::Call;
use super::front::Front;
use super::problem::Failure;
use super::{trouble, wire};
use crate::api::{Severity, Trouble};
use crate::planted::Fault;
use crate::shard::{NodeStatus, Role};

/// Says why a node has no shards to answer for, and what to do: it has stopped, or it belongs to no
/// cluster yet.
pub(crate) fn no_shards(status: &NodeStatus) -> String {
    match &status.stopped {
        Some(why) => format!("This node takes no part: {why}. Ask another node of its cluster."),
        None => format!(
            "{} belongs to no cluster yet. Run `holdfast cluster init` against its nodes. If it \
             was one of a cluster and its directory was wiped, it comes back under a new id only: \
             run `holdfast node replace ID` on another node, and start it with the token.",
            itself(status)
        ),
    }
}

/// Names a node that may have no id yet: as people call it, and where services reach it.
pub(crate) fn itself(status: &NodeStatus) -> String {
    let at = Some(&status.http_addr).filter(|at| !at.is_empty());
    match (&status.name, at) {
        (Some(name), Some(at)) => format!("This node ({name}, at {at})"),
        (Some(one), None) | (None, Some(one)) => format!("This node ({one})"),
        (None, None) => "This node".to_owned(),
    }
}

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
        text.push('\n');
        table(&status, &mut text);
        about_the_node(&status, &mut text);
        for one in trouble::troubles(&status) {
            let mark = match one.severity {
                Severity::Broken => "x",
                Severity::Warning => "!",
            };
            let Trouble { what, why, act, .. } = one;
            let _ = writeln!(text, "{mark} {what}\n    why  {why}\n    do   {act}");
        }
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
    if status.log.waits_for_room_ms.is_some() {
        reasons.push(
            "the disk is full: the log waits for room, and the node takes part again by itself \
             when there is some"
                .to_owned(),
        );
    } else if status.log.disk_full {
        reasons.push("the disk is full: new holds are shed".to_owned());
    }
    if status.stopped.is_none() && (status.cluster_id.is_none() || status.shards.is_empty()) {
        reasons.push(no_shards(status));
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

/// One line on the disk and one on the clock.
fn about_the_node(status: &NodeStatus, text: &mut String) {
    let (log, clocks) = (&status.log, &status.clocks);
    let _ = write!(text, "\ndisk   ");
    if log.disk_total_bytes == 0 {
        let _ = write!(text, "its room is not known");
    } else {
        let _ = write!(
            text,
            "{} MiB free of {}, places are shed below {}",
            log.disk_free_bytes >> 20,
            log.disk_total_bytes >> 20,
            log.disk_floor_bytes >> 20,
        );
    }
    // Who has no log syncs nothing.
    if log.syncs > 0 {
        let _ = write!(text, "; sync {} us, p99 {} us", log.sync_p50_us, log.sync_p99_us);
    }
    text.push('\n');
    if clocks.offset_ms_max == 0 {
        // It compares its clock with nobody's.
        text.push('\n');
        return;
    }
    let offsets = clocks.offset_ms.iter().map(|(node, ms)| format!("node {node} {ms:+} ms"));
    let offsets: Vec<String> = offsets.collect();
    let others = if offsets.is_empty() { "nobody answers".to_owned() } else { offsets.join(", ") };
    let _ = writeln!(text, "clock  {others}; allowed {} ms\n", clocks.offset_ms_max);
}

const HEADS: [&str; 9] = [
    "shard",
    "role",
    "leader",
    "term",
    "applied",
    "last log",
    "quorum age ms",
    "checkpoint age ms",
    "state",
];

fn table(status: &NodeStatus, text: &mut String) {
    let dash = || "-".to_owned();
    let mut rows: Vec<[String; 9]> = vec![HEADS.map(str::to_owned)];
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
            shard.checkpoint_age_ms.map_or_else(dash, |age| age.to_string()),
            state,
        ]);
    }
    let mut widths = [0; 9];
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
