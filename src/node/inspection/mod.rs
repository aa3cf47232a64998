//! What a data directory holds, told without changing it and without a node: for `holdfast doctor`.
//!
//! Promises: nothing below the directory changes, whatever is found; the verdict on log and pages
//! is the one that a start would come to; whatever is wrong comes with what it means and with the
//! next command. It holds off any node that would start in the directory meanwhile.

mod databases;
mod findings;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{members, roll, schema};
use crate::ledger::{LeaderId, NodeId, SchemaVersion, ShardId};
use crate::raft::VoteTold;
use crate::shard::{MemberSpec, uuid_hex};
use crate::storage::identity::{FORMAT, IDENTITY_FILE};
use crate::storage::{
    DataDirError, Disk, Identity, IdentityError, LogError, LogPosition, ReadLog, Visit,
};
pub use databases::{DatabaseFacts, DatabaseState};
pub use findings::{Finding, Severity};

/// How closely to look.
#[derive(Debug, Clone)]
pub struct Closeness {
    /// Where page databases are copied to, one at a time, to recompute their digests.
    pub scratch: PathBuf,
    /// Whether every byte of the page databases is read and their digests are recomputed.
    pub reads_pages: bool,
}

/// What a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A node's, initialised or with something left of that.
    Node,
    /// A node's that belongs to no cluster yet, or nothing at all.
    Empty,
    /// Something else's.
    NotOurs,
}

/// What was found in a data directory.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// The directory.
    pub dir: String,
    /// What it is.
    pub kind: Kind,
    /// The worst of the findings; `None` when there are none.
    pub worst: Option<Severity>,
    /// What is wrong, what it means, what to do; the worst first.
    pub findings: Vec<Finding>,
    /// Whose data it is.
    pub identity: Option<IdentityFacts>,
    /// The members that the node was told of.
    pub members: Vec<MemberFacts>,
    /// The write-ahead log.
    pub log: Option<LogFacts>,
    /// The schema version that the cluster had come to, as far as the node has written it down.
    pub schema_version: u16,
    /// The shards, in order.
    pub shards: Vec<ShardFacts>,
    /// The disk.
    pub disk: DiskFacts,
}

/// Whose data a directory is.
#[derive(Debug, Clone, Serialize)]
pub struct IdentityFacts {
    /// The cluster, in hex.
    pub cluster_id: String,
    /// The node.
    pub node: NodeId,
    /// The log that may vote for it, in hex.
    pub log_uuid: String,
    /// Shards of the cluster.
    pub shards: u16,
    /// The node's region.
    pub region: String,
    /// The format of the directory.
    pub format: u16,
}

/// A member, as the file `members` has it.
#[derive(Debug, Clone, Serialize)]
pub struct MemberFacts {
    /// Its id.
    pub node: NodeId,
    /// Its log, in hex.
    pub log_uuid: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Its region.
    pub region: String,
}

/// How a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogVerdict {
    /// Everything that was written is there.
    Whole,
    /// The end of what was never acknowledged was torn; the next start cuts it.
    Torn,
    /// Something that was synced is not there, or not what was written.
    Damaged,
    /// It is not there.
    Lost,
    /// It is another node's.
    Foreign,
    /// The disk does not let it be read.
    Unreadable,
}

/// The write-ahead log.
#[derive(Debug, Clone, Serialize)]
pub struct LogFacts {
    /// How it is.
    pub verdict: LogVerdict,
    /// What is wrong, when something is.
    pub why: Option<String>,
    /// Segments in use.
    pub segments: usize,
    /// Segments ready for use.
    pub spares: usize,
    /// Bytes of the directory `log`.
    pub bytes: u64,
    /// The size of a segment.
    pub segment_bytes: u64,
    /// Frames written in its whole life.
    pub frames: u64,
    /// The frame up to which the side file says that it was synced.
    pub synced: u64,
    /// Bytes of a torn tail.
    pub torn_bytes: u64,
}

/// One shard.
#[derive(Debug, Clone, Serialize)]
pub struct ShardFacts {
    /// Its number.
    pub shard: ShardId,
    /// Its vote.
    pub vote: Option<VoteFacts>,
    /// The index up to which its log was purged.
    pub purged: Option<u64>,
    /// The last index in its log.
    pub last: Option<u64>,
    /// The leadership that wrote that entry.
    pub last_leader: Option<LeaderId>,
    /// The two page databases.
    pub databases: Vec<DatabaseFacts>,
    /// Which of them a start would load; `None`: neither.
    pub starts_from: Option<&'static str>,
}

/// A vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VoteFacts {
    /// The term.
    pub term: u64,
    /// For whom.
    pub node: NodeId,
    /// Whether a quorum granted it.
    pub committed: bool,
}

/// The disk that the directory is on.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DiskFacts {
    /// Bytes that may still be written.
    pub free_bytes: Option<u64>,
    /// Bytes of everything in the directory.
    pub used_bytes: u64,
    /// The size of the ballast file; zero when there is none.
    pub ballast_bytes: u64,
}

/// Names that a node makes in its directory.
const OURS: [&str; 16] = [
    "schema",
    "schema.tmp",
    "joining",
    "joining.tmp",
    "removed",
    "removed.tmp",
    crate::storage::visit::RETIRED_FILE,
    IDENTITY_FILE,
    "identity.tmp",
    "members",
    "members.tmp",
    "lock",
    "ballast",
    "ballast.tmp",
    "log",
    "adopting",
];

/// Looks at the data directory of a node that does not run.
///
/// # Errors
///
/// [`DataDirError::InUse`] while a node runs in it; [`DataDirError::Io`] when it cannot be looked
/// at.
pub fn inspect(dir: &Path, how: &Closeness) -> Result<Inspection, DataDirError> {
    let visit = Visit::begin(dir)?;
    let failed = |error| DataDirError::Io { dir: dir.to_path_buf(), error };
    let disk = visit.disk();
    let names = disk.list(dir).map_err(failed)?;
    let mut seen = Seen { kind: kind_of(&names), ..Seen::default() };
    seen.disk = DiskFacts {
        free_bytes: disk.free_bytes(dir).ok(),
        used_bytes: visit.bytes().map_err(failed)?,
        ballast_bytes: length_of(disk.as_ref(), &dir.join("ballast")),
    };
    seen.removed = roll::read_removal(disk.as_ref(), dir)
        .unwrap_or_else(|error| Some(format!("the file that says why cannot be read: {error}")));
    seen.schema = schema::read(disk.as_ref(), dir);
    seen.is_retired = names.iter().any(|name| name == crate::storage::visit::RETIRED_FILE);
    if seen.kind == Kind::Node {
        look_into(&mut seen, disk.as_ref(), dir, how);
    }
    Ok(seen.judged(dir))
}

/// What was seen, before it is judged.
#[derive(Debug)]
struct Seen {
    kind: Kind,
    disk: DiskFacts,
    identity: Option<Result<Identity, IdentityError>>,
    members: Result<Option<Vec<MemberSpec>>, io::Error>,
    /// The uuid in the log's own files.
    uuid_found: Option<[u8; 16]>,
    log: Option<LogFacts>,
    shards: Vec<ShardFacts>,
    /// Its state was given to a new cluster.
    is_retired: bool,
    /// Why the node was removed from its cluster, when it was.
    removed: Option<String>,
    /// The schema version that the cluster had come to.
    schema: Result<SchemaVersion, io::Error>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            kind: Kind::Empty,
            disk: DiskFacts::default(),
            identity: None,
            members: Ok(None),
            uuid_found: None,
            log: None,
            shards: Vec::new(),
            is_retired: false,
            removed: None,
            schema: Ok(SchemaVersion::FIRST),
        }
    }
}

impl Seen {
    fn judged(self, dir: &Path) -> Inspection {
        let findings = findings::judge(&self, dir);
        let members = self.members.as_ref().ok().and_then(Option::as_ref);
        let member = |spec: &MemberSpec| MemberFacts {
            node: spec.node,
            log_uuid: spec.log_uuid.clone(),
            http_addr: spec.http_addr.clone(),
            peer_addr: spec.peer_addr.clone(),
            region: spec.region.clone(),
        };
        let identity = self.identity.as_ref().and_then(|read| read.as_ref().ok());
        Inspection {
            dir: dir.display().to_string(),
            kind: self.kind,
            worst: findings.iter().map(|finding| finding.severity).max(),
            members: members.map(|all| all.iter().map(member).collect()).unwrap_or_default(),
            identity: identity.map(|identity| IdentityFacts {
                cluster_id: uuid_hex(&identity.cluster_id),
                node: identity.node,
                log_uuid: uuid_hex(&identity.log_uuid),
                shards: identity.settings.shards,
                region: identity.region.clone(),
                format: FORMAT,
            }),
            findings,
            schema_version: self.schema.unwrap_or_default().0,
            log: self.log,
            shards: self.shards,
            disk: self.disk,
        }
    }
}

fn kind_of(names: &[String]) -> Kind {
    let is_shard = |name: &String| name.starts_with("shard-");
    let is_ours = |name: &String| OURS.contains(&name.as_str()) || is_shard(name);
    let is_data = |name: &String| is_shard(name) || name == IDENTITY_FILE || name == "log";
    if names.iter().any(is_data) {
        Kind::Node
    } else if names.iter().all(|name| is_ours(name) || name == "lost+found") {
        Kind::Empty
    } else if names.iter().any(is_ours) {
        Kind::Node
    } else {
        Kind::NotOurs
    }
}

fn length_of(disk: &dyn Disk, path: &Path) -> u64 {
    disk.open(path).and_then(|file| file.length()).unwrap_or(0)
}

fn look_into(seen: &mut Seen, disk: &dyn Disk, dir: &Path, how: &Closeness) {
    let log_dir = dir.join("log");
    let identity = Identity::read(disk, dir);
    seen.members = members::read(disk, dir);
    seen.uuid_found = ReadLog::uuid_in(disk, &log_dir);
    let uuid = identity.as_ref().ok().map(|identity| identity.log_uuid).or(seen.uuid_found);
    let read = uuid.map(|uuid| ReadLog::open(disk, &log_dir, uuid));
    seen.log = read.as_ref().map(|read| log_facts(read.as_ref(), &log_dir));
    if let Ok(identity) = &identity {
        let shards = read.as_ref().and_then(|read| read.as_ref().ok()).map(ReadLog::shards);
        for shard in (0..identity.settings.shards).map(ShardId) {
            let state = shards.as_ref().and_then(|shards| shards.get(&shard));
            let mut facts = shard_facts(shard, state);
            databases::look(&mut facts, dir, identity, state, how);
            seen.shards.push(facts);
        }
    }
    seen.identity = Some(identity);
}

fn shard_facts(shard: ShardId, log: Option<&crate::storage::ShardLogState>) -> ShardFacts {
    let vote = log.and_then(|log| log.vote.as_ref()).and_then(|bytes| VoteTold::read(bytes).ok());
    let index = |at: Option<LogPosition>| at.map(|at| at.index.0);
    ShardFacts {
        shard,
        vote: vote.map(|told| VoteFacts {
            term: told.leader.term,
            node: told.leader.node,
            committed: told.committed,
        }),
        purged: index(log.and_then(|log| log.purged)),
        last: index(log.and_then(|log| log.last)),
        last_leader: log.and_then(|log| log.last).map(|at| at.leader),
        databases: Vec::new(),
        starts_from: None,
    }
}

fn log_facts(read: Result<&ReadLog, &LogError>, dir: &Path) -> LogFacts {
    let bytes = crate::storage::visit::bytes_below(dir).unwrap_or(0);
    let mut facts = LogFacts {
        verdict: LogVerdict::Whole,
        why: None,
        segments: 0,
        spares: 0,
        bytes,
        segment_bytes: 0,
        frames: 0,
        synced: 0,
        torn_bytes: 0,
    };
    match read {
        Ok(log) => {
            let torn = log.torn_bytes() > 0;
            facts.verdict = if torn { LogVerdict::Torn } else { LogVerdict::Whole };
            facts.segments = log.segments();
            facts.spares = log.spares();
            facts.segment_bytes = log.segment_bytes();
            facts.frames = log.frames();
            facts.synced = log.synced();
            facts.torn_bytes = log.torn_bytes();
        }
        Err(error) => {
            facts.why = Some(error.to_string());
            facts.verdict = match error {
                LogError::Lost { .. } => LogVerdict::Lost,
                LogError::Foreign { .. } => LogVerdict::Foreign,
                LogError::Damaged { .. } => LogVerdict::Damaged,
                LogError::Exists { .. } | LogError::Options(_) | LogError::Io { .. } => {
                    LogVerdict::Unreadable
                }
            };
        }
    }
    facts
}
