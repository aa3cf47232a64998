//! What is wrong, as far as one node sees, in three lines each: what, why it matters, what to do.
//! `/readyz?verbose`, `/admin/v1/cluster` and `holdfast status` say the same, since they ask here.

use super::health;
use crate::api::{Severity, Trouble};
use crate::ledger::PauseReason;
use crate::shard::{MemberSpec, NodeStatus, Role, ShardStatus};

/// A replica that has applied all of its log but so many entries is told of.
const BEHIND_ENTRIES_MAX: u64 = 10_000;
/// What a stopped node is told of first.
const LOOK_FIRST: &str = "journalctl -u holdfast -n 50";

fn trouble(
    severity: Severity,
    what: impl Into<String>,
    why: impl Into<String>,
    act: impl Into<String>,
) -> Trouble {
    Trouble { severity, what: what.into(), why: why.into(), act: act.into() }
}

/// Returns everything that is wrong, the worst first; empty when all is well.
pub(crate) fn troubles(status: &NodeStatus) -> Vec<Trouble> {
    let mut found = Vec::new();
    let own = status.node;
    if let Some(why) = status.stopped.as_ref().filter(|_| status.ended_for_good) {
        found.push(trouble(
            Severity::Broken,
            format!("node {own} takes no part, for good: {why}"),
            "it serves nothing; its cluster goes on without it: ask another node",
            "to bring this machine back: run `holdfast node add` on another node, empty this data \
             directory, and start it with `holdfast serve --join URL --token TOKEN`; else stop it: \
             systemctl disable --now holdfast",
        ));
    } else if let Some(why) = &status.stopped {
        found.push(trouble(
            Severity::Broken,
            format!("node {own} takes no part: {why}"),
            "the others go on without it; another loss may pause the sale",
            format!(
                "stop it, look with `holdfast doctor DATA_DIR`, and start it again; {LOOK_FIRST}"
            ),
        ));
    } else if status.cluster_id.is_none() || status.shards.is_empty() {
        found.push(trouble(
            Severity::Broken,
            format!("{} belongs to no cluster yet", health::itself(status)),
            "it holds nothing and grants nothing",
            "holdfast cluster init --nodes URL,URL,URL; or, if it was wiped and the cluster goes \
             on without it: holdfast node replace ID on another node",
        ));
    }
    found.extend(of_the_disk(status));
    found.extend(of_the_clocks(status));
    found.extend(of_the_others(status));
    for shard in &status.shards {
        found.extend(of_a_shard(status, shard));
    }
    found.extend(of_the_grants(status));
    found.sort_by_key(|one| std::cmp::Reverse(one.severity));
    found
}

fn of_the_disk(status: &NodeStatus) -> Vec<Trouble> {
    let (log, own) = (&status.log, status.node);
    let mib = |bytes: u64| bytes >> 20;
    let (free, floor) = (mib(log.disk_free_bytes), mib(log.disk_floor_bytes));
    let mut found = Vec::new();
    if let Some(why) = &log.failed {
        found.push(trouble(
            Severity::Broken,
            format!("node {own}: the log takes nothing any more: {why}"),
            "a write or a sync failed, and is never tried again as if nothing had happened",
            "mend the disk (dmesg tells), free space on it, and restart this node",
        ));
    } else if log.waits_for_room_ms.is_some() {
        found.push(trouble(
            Severity::Broken,
            format!("node {own}: the disk is full: the log waits for room ({free} MiB free)"),
            "it leads nothing and follows nothing; what it acknowledged is safe",
            format!(
                "free {floor} MiB on the disk of its data directory; it returns by itself, \
                 without a restart"
            ),
        ));
    } else if log.disk_full {
        found.push(trouble(
            Severity::Broken,
            format!("node {own}: the disk is nearly full ({free} MiB free): new holds are shed"),
            "confirm, release and extend still work; its leaderships go to whoever has room",
            format!("free space until more than {floor} MiB are free; it returns by itself"),
        ));
    } else if log.ballast_released {
        found.push(trouble(
            Severity::Warning,
            format!("node {own}: the ballast is not there"),
            "a full disk would have no room for a checkpoint",
            format!("free space until more than {floor} MiB are free; it is made again by itself"),
        ));
    }
    if log.failed.is_none()
        && log.waits_for_room_ms.is_none()
        && let Some(why) = &log.housekeeping
    {
        found.push(trouble(
            Severity::Warning,
            format!("node {own}: the next segment of the log could not be made ready: {why}"),
            "the log waits when it needs that segment",
            "free space on its disk, or mend it",
        ));
    }
    found
}

fn of_the_clocks(status: &NodeStatus) -> Vec<Trouble> {
    let (clocks, own) = (&status.clocks, status.node);
    let bound = clocks.offset_ms_max;
    if clocks.wild {
        return vec![trouble(
            Severity::Broken,
            format!("node {own}: its clock is more than {bound} ms from a majority's"),
            "it does not lead, so that no clock expires everybody's holds or freezes expiry",
            "on its machine: chronyc tracking; set the clock right; it leads again by itself",
        )];
    }
    let far = clocks.offset_ms.iter().filter(|(_, ms)| ms.unsigned_abs() > bound);
    let far = far.filter(|_| clocks.agrees).map(|(node, ms)| {
        trouble(
            Severity::Warning,
            format!("node {node}: its clock is {ms} ms from node {own}'s"),
            format!("more than {bound} ms from a majority, and it does not lead"),
            "on its machine: chronyc tracking; set the clock right; it leads again by itself",
        )
    });
    let mut found: Vec<Trouble> = far.collect();
    if status.abstains.as_ref().is_some_and(|why| why.starts_with("it is drained")) {
        found.push(trouble(
            Severity::Warning,
            format!("node {own} is drained"),
            "it follows and leads nothing, as an operator wanted",
            format!("when the work on its machine is done: holdfast node undrain {own}"),
        ));
        return found;
    }
    if let Some(why) = status.abstains.as_ref().filter(|why| why.starts_with("it is being ")) {
        found.push(trouble(
            Severity::Warning,
            format!("node {own} does not lead: {why}"),
            "an operation of the cluster goes on, as an operator wanted",
            "nothing; how far it has come: holdfast node list",
        ));
        return found;
    }
    let other = status.abstains.as_ref().filter(|_| status.log.waits_for_room_ms.is_none());
    if let Some(why) = other {
        found.push(trouble(
            Severity::Warning,
            format!("node {own} does not lead: {why}"),
            "leadership was handed over as far as somebody could take it",
            "look at its disk: dmesg, iostat -x 1; it stands again by itself when that is well",
        ));
    }
    found
}

/// Members that have failed to answer several times in a row.
fn silent(status: &NodeStatus) -> impl Iterator<Item = &MemberSpec> {
    status.members.iter().filter(|member| status.clocks.silent.contains(&member.node))
}

fn of_the_others(status: &NodeStatus) -> Vec<Trouble> {
    let told = silent(status).map(|member| {
        let (node, http) = (member.node, &member.http_addr);
        trouble(
            Severity::Warning,
            format!("node {node} ({http}) does not answer node {}", status.node),
            "every shard has lost one copy for as long as it is away",
            format!(
                "on its machine: systemctl status holdfast; {LOOK_FIRST}. If the machine is gone: \
                 holdfast node replace {node}"
            ),
        )
    });
    told.collect()
}

fn of_a_shard(status: &NodeStatus, shard: &ShardStatus) -> Vec<Trouble> {
    let (name, own) = (format!("shard {}", shard.shard), status.node);
    let mut found = Vec::new();
    if let Some(why) = &shard.failed {
        found.push(trouble(
            Severity::Broken,
            format!("{name}: the replica on node {own} failed: {why}"),
            "this copy takes no part; the others go on",
            format!("restart this node; if it fails again: holdfast doctor DATA_DIR; {LOOK_FIRST}"),
        ));
    } else if shard.role == Role::Stopped {
        found.push(trouble(
            Severity::Broken,
            format!("{name}: the replica on node {own} does not run"),
            "this copy takes no part; the others go on",
            format!("restart this node; {LOOK_FIRST}"),
        ));
    }
    if let Some(why) = &shard.digests.trouble {
        found.push(trouble(
            Severity::Broken,
            format!("{name}: {why}"),
            "replicas that differ would answer differently: this one answers nothing now",
            "call a human: keep all data directories, and compare GET /admin/v1/digest of all \
             nodes",
        ));
    }
    if let Some(why) = &shard.checkpoint_trouble {
        found.push(trouble(
            Severity::Warning,
            format!("{name}: node {own} cannot make a checkpoint: {why}"),
            "its log grows until one can be made",
            "free space on its disk, or mend it; nothing else is needed",
        ));
    }
    let behind = shard.last_log.0.saturating_sub(shard.applied.0);
    if behind > BEHIND_ENTRIES_MAX {
        found.push(trouble(
            Severity::Warning,
            format!("{name}: node {own} has {behind} entries of its log to apply yet"),
            "it answers what it has applied so far",
            "nothing, if the number falls (look again); else it is too slow for this load",
        ));
    }
    found
}

/// Which shards grant nothing, those of one reason together.
fn of_the_grants(status: &NodeStatus) -> Vec<Trouble> {
    let mut kinds: Vec<(Option<PauseReason>, Vec<String>)> = Vec::new();
    for shard in &status.shards {
        let kind = match (shard.leader, shard.paused) {
            (None, _) => None,
            (Some(_), Some(reason)) => Some(reason),
            (Some(_), None) => continue,
        };
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, shards)) => shards.push(shard.shard.to_string()),
            None => kinds.push((kind, vec![shard.shard.to_string()])),
        }
    }
    let told = kinds.into_iter().map(|(kind, shards)| {
        let which = if shards.len() == 1 { "shard" } else { "shards" };
        of_one_reason(status, kind, &format!("{which} {}", shards.join(", ")))
    });
    told.collect()
}

fn of_one_reason(status: &NodeStatus, kind: Option<PauseReason>, name: &str) -> Trouble {
    let away: Vec<String> = silent(status).map(|member| member.node.to_string()).collect();
    let bring = if away.is_empty() {
        "wait a second and look again; then look at the network between the nodes".to_owned()
    } else {
        format!("start the nodes that do not answer ({}), or mend the network", away.join(", "))
    };
    let Some(reason) = kind else {
        return trouble(
            Severity::Broken,
            format!("{name}: no leader is known to node {}", status.node),
            "items there grant nothing: a majority of the nodes must hear each other",
            bring,
        );
    };
    let (why, act) = match reason {
        PauseReason::QuorumLost => (
            "without a fresh quorum nothing is granted, so that nothing is sold twice; it resumes \
             by itself",
            bring,
        ),
        PauseReason::Operator => (
            "an operator paused it",
            "holdfast item resume ITEM, when it may sell again".to_owned(),
        ),
        PauseReason::Moving => (
            "leadership is moving, or the node is ending",
            "wait a second and look again".to_owned(),
        ),
        PauseReason::Invariant => (
            "a law was found broken, or replicas differ: nobody may be sold anything until a human \
             has looked",
            "call a human: holdfast audit, and keep all data directories".to_owned(),
        ),
        PauseReason::Restoring => (
            "the new leader has not applied everything yet",
            "wait a second and look again".to_owned(),
        ),
    };
    trouble(Severity::Broken, format!("{name}: paused ({})", reason.word()), why, act)
}
