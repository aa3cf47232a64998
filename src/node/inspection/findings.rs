//! What is wrong with a data directory, what it means, and the next command.

use std::path::Path;

use serde::Serialize;

use super::{DatabaseState, Kind, LogVerdict, Seen, ShardFacts};
use crate::ledger::{NodeId, SchemaRange, SchemaVersion};
use crate::shard::{MemberSpec, uuid_hex};
use crate::storage::IdentityError;

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; the next start deals with it.
    Note,
    /// The node starts, and somebody should act.
    Warning,
    /// This node cannot take part as it is.
    Broken,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was seen.
    pub what: String,
    /// What it means.
    pub why: String,
    /// What to do: a command where there is one.
    pub act: String,
}

/// What a start needs on a disk beside the ballast, in segments.
const SEGMENTS_FREE_MIN: u64 = 2;
/// What a node keeps as ballast unless it is configured otherwise, in bytes.
const BALLAST_USUAL: u64 = crate::storage::data_dir::BALLAST_BYTES_DEFAULT;

/// Judges everything that was seen; the worst first.
pub(super) fn judge(seen: &Seen, dir: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if seen.kind != Kind::Node {
        return findings;
    }
    let judge = Judge { seen, dir };
    findings.extend(given_up(seen));
    findings.extend(schema(seen));
    findings.extend(judge.identity());
    findings.extend(judge.log());
    findings.extend(judge.members());
    for shard in &seen.shards {
        findings.extend(judge.shard(shard));
    }
    findings.extend(judge.room());
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Whether the node has left its cluster, or the cluster it.
fn given_up(seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    if seen.is_retired {
        findings.push(finding(
            Severity::Broken,
            "the directory was given up: its state went to a new cluster",
            "a node that started here would sell the same stock twice, and does not start",
            "run the new cluster; keep this directory for as long as sales may be questioned",
        ));
    }
    if let Some(why) = &seen.removed {
        findings.push(finding(
            Severity::Broken,
            format!("the node was removed from its cluster: {why}"),
            "it takes no part any more, also after a restart; the others go on without it",
            "to bring this machine in again, under a new id: empty the directory, and run \
             `holdfast node add` on a node of the cluster",
        ));
    }
    findings
}

/// Whether this build reads what the cluster writes.
fn schema(seen: &Seen) -> Option<Finding> {
    let reads = SchemaRange::up_to(SchemaVersion::NEWEST);
    match &seen.schema {
        Ok(active) if reads.has(*active) => None,
        Ok(active) => Some(finding(
            Severity::Broken,
            format!("the cluster writes schema version {active}; this holdfast reads {reads}"),
            "a node that cannot read what the others write takes no part, and does not start",
            format!("install a holdfast that reads schema version {active}; nothing here is lost"),
        )),
        Err(error) => Some(finding(
            Severity::Broken,
            format!("the file `schema` cannot be read: {error}"),
            "the node does not start without knowing which schema version its cluster writes",
            "if the disk is sound, remove this one file: the log says the same",
        )),
    }
}

struct Judge<'a> {
    seen: &'a Seen,
    dir: &'a Path,
}

fn finding(
    severity: Severity,
    what: impl Into<String>,
    why: impl Into<String>,
    act: impl Into<String>,
) -> Finding {
    Finding { severity, what: what.into(), why: why.into(), act: act.into() }
}

impl Judge<'_> {
    fn known_members(&self) -> &[MemberSpec] {
        match &self.seen.members {
            Ok(Some(members)) => members,
            Ok(None) | Err(_) => &[],
        }
    }

    /// The node whose directory this is, by its identity or by the log that lies in it.
    fn node(&self) -> Option<NodeId> {
        if let Some(Ok(identity)) = &self.seen.identity {
            return Some(identity.node);
        }
        let uuid = uuid_hex(&self.seen.uuid_found?);
        let own = self.known_members().iter().find(|member| member.log_uuid == uuid);
        own.map(|member| member.node)
    }

    /// The way back for a node that may not vote under its id any more.
    fn replace(&self) -> String {
        let own = self.node();
        let Some(node) = own else {
            return "keep this directory as it is; on a node that runs, find this node's id with \
                    `holdfast status` and run `holdfast node replace ID`"
                .to_owned();
        };
        let other = self.known_members().iter().find(|member| member.node != node);
        match other {
            Some(other) => format!(
                "keep this directory as it is, and run: holdfast --url http://{} node replace \
                 {node}",
                other.http_addr
            ),
            None => format!(
                "this is the only node of its cluster: holdfast recover {} --damaged-log",
                self.dir.display()
            ),
        }
    }

    fn identity(&self) -> Option<Finding> {
        let error = self.seen.identity.as_ref()?.as_ref().err()?;
        let what = match error {
            IdentityError::NotInitialised => "there is no identity in here",
            IdentityError::Lost(_) => "the file `identity` is missing",
            IdentityError::Damaged(_) => "the file `identity` is damaged",
            IdentityError::OtherFormat { .. } => {
                return Some(finding(
                    Severity::Broken,
                    error.to_string(),
                    "another version of holdfast wrote it",
                    "run the version that wrote it, or a later one that reads it; \
                     docs/deploy/upgrade.md",
                ));
            }
            IdentityError::Exists | IdentityError::Io(_) => {
                return Some(finding(
                    Severity::Broken,
                    error.to_string(),
                    "the disk does not let it be read",
                    "mend the disk or the rights of the file, and look again",
                ));
            }
        };
        Some(finding(
            Severity::Broken,
            what,
            "without it nobody knows whose promises the log holds, so the node does not start",
            format!("put the very file back if you have it; else {}", self.replace()),
        ))
    }

    fn log(&self) -> Option<Finding> {
        let Some(log) = &self.seen.log else {
            let has_identity = matches!(&self.seen.identity, Some(Ok(_)));
            return (!has_identity).then(|| {
                finding(
                    Severity::Broken,
                    "the log is lost, or its first segment cannot be read",
                    "what this node promised to its peers is gone: it must not vote under its id \
                     again",
                    self.replace(),
                )
            });
        };
        let why = log.why.clone().unwrap_or_default();
        match log.verdict {
            LogVerdict::Whole => None,
            LogVerdict::Torn => Some(finding(
                Severity::Note,
                format!("the log ends in a torn tail of {} bytes", log.torn_bytes),
                "it was never acknowledged: a power cut or a kill came in the middle of a write",
                "nothing: the next start cuts it",
            )),
            LogVerdict::Damaged | LogVerdict::Lost => Some(finding(
                Severity::Broken,
                why,
                "what this node promised to its peers is gone: it must not vote under its id \
                 again. The cluster goes on with the others",
                self.replace(),
            )),
            LogVerdict::Foreign => Some(finding(
                Severity::Broken,
                why,
                "the log of another node lies here: directories or disks were mixed up",
                format!("put this node's own log back; if it is gone, {}", self.replace()),
            )),
            LogVerdict::Unreadable => Some(finding(
                Severity::Broken,
                why,
                "the disk does not let the log be read",
                "mend the disk or the rights of the files, and look again",
            )),
        }
    }

    fn members(&self) -> Option<Finding> {
        let Some(Ok(identity)) = &self.seen.identity else { return None };
        let has_begun = self.seen.shards.iter().any(|shard| {
            shard.vote.is_some()
                || shard.last.is_some()
                || shard.databases.iter().any(|database| database.state != DatabaseState::Empty)
        });
        let copy = format!(
            "copy `members` from the data directory of any other node of the cluster (it is the \
             same on every node): scp OTHER:DATA_DIR/members {}/members",
            self.dir.display()
        );
        match &self.seen.members {
            Err(error) => Some(finding(
                Severity::Broken,
                error.to_string(),
                "the node does not know whom to speak to",
                copy,
            )),
            Ok(None) if has_begun => Some(finding(
                Severity::Broken,
                "the file `members` is missing",
                "this node has taken part in its cluster, and must not be founded again",
                copy,
            )),
            Ok(None) => Some(finding(
                Severity::Note,
                "the node was adopted and has not begun",
                "a `cluster init` was cut short",
                "start the nodes, and run the same `holdfast cluster init` again",
            )),
            Ok(Some(members)) => {
                let own = uuid_hex(&identity.log_uuid);
                let listed = members
                    .iter()
                    .any(|member| member.node == identity.node && member.log_uuid == own);
                (!listed).then(|| {
                    finding(
                        Severity::Warning,
                        format!("node {} with log {own} is not in `members`", identity.node),
                        "the file is older than this node's part, or another cluster's",
                        copy,
                    )
                })
            }
        }
    }

    fn shard(&self, shard: &ShardFacts) -> Vec<Finding> {
        let name = shard.shard;
        let mut findings = Vec::new();
        for database in &shard.databases {
            let which = format!("shard {name}, database {}", database.name);
            let why = database.why.clone().unwrap_or_default();
            match database.state {
                DatabaseState::Empty | DatabaseState::Good => {}
                DatabaseState::Unfinished => findings.push(finding(
                    Severity::Note,
                    format!("{which} holds a checkpoint that was not finished"),
                    "the node stopped while it wrote it; there are two so that one may be lost",
                    "nothing: the next start goes by the other, and the next checkpoint writes \
                     this one anew",
                )),
                DatabaseState::Foreign => findings.push(finding(
                    Severity::Broken,
                    format!("{which}: {why}"),
                    "somebody mixed up data directories: the node does not start",
                    format!(
                        "put this node's own shard-{name} back. If it is gone, move the foreign \
                         one away: mv {dir}/shard-{name} {dir}.foreign-shard-{name}",
                        dir = self.dir.display()
                    ),
                )),
                DatabaseState::Damaged => findings.push(finding(
                    Severity::Warning,
                    format!("{which} is damaged: {why}"),
                    "it is never used; there are two so that one may be lost",
                    "nothing: the next start goes by the other, and the next checkpoint writes it \
                     anew. If it happens again, test the disk",
                )),
            }
            if let Some(why) = &database.not_read {
                findings.push(finding(
                    Severity::Note,
                    format!("{which}: its digest was not recomputed: {why}"),
                    "its bytes are those that were closed; only the last proof is missing",
                    "name a directory with room: holdfast doctor --scratch DIR …",
                ));
            }
        }
        findings.extend(self.start_of(shard));
        findings
    }

    /// Whether the shard can start from what is here.
    fn start_of(&self, shard: &ShardFacts) -> Option<Finding> {
        let log_is_whole = self
            .seen
            .log
            .as_ref()
            .is_some_and(|log| matches!(log.verdict, LogVerdict::Whole | LogVerdict::Torn));
        if shard.starts_from.is_some() || !log_is_whole {
            return None;
        }
        // Nothing was purged: the log has everything from its first entry on.
        let purged = shard.purged?;
        let foreign = shard.databases.iter().any(|one| one.state == DatabaseState::Foreign);
        let name = shard.shard;
        let own = self.node();
        let others = self.known_members().iter().filter(|member| Some(member.node) != own);
        let others: Vec<String> =
            others.map(|member| format!("http://{}", member.http_addr)).collect();
        let what =
            format!("shard {name}: neither database reaches index {purged}, where its log begins");
        Some(if others.is_empty() {
            finding(
                Severity::Broken,
                what,
                "the state of this shard is gone, and there is no other node to fetch it from",
                format!(
                    "if you have this directory from before the damage, use that; else what the \
                     log still holds of the other shards: holdfast recover {} --to NEW_DIR",
                    self.dir.display()
                ),
            )
        } else {
            finding(
                if foreign { Severity::Broken } else { Severity::Warning },
                what,
                "the log is whole, so this node keeps its id and its promises; it fetches a \
                 checkpoint from another member as it starts",
                format!("see that one of these runs, then start this node: {}", others.join(" ")),
            )
        })
    }

    fn room(&self) -> Option<Finding> {
        let log = self.seen.log.as_ref()?;
        let free = self.seen.disk.free_bytes?;
        let ballast = self.seen.disk.ballast_bytes.max(BALLAST_USUAL);
        let floor = log.segment_bytes.saturating_mul(SEGMENTS_FREE_MIN).saturating_add(ballast);
        (log.segment_bytes > 0 && free < floor).then(|| {
            finding(
                Severity::Warning,
                format!("the disk has {} MiB free", free >> 20),
                format!(
                    "below {} MiB (two segments and the ballast) the node sheds new holds",
                    floor >> 20
                ),
                format!("free space on the disk of {}", self.dir.display()),
            )
        })
    }
}
