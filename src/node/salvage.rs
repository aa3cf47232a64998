//! A new cluster from what is left of one that lost its quorum: the work of `holdfast recover`.
//!
//! A minority cannot know what was acknowledged without it. So this never happens by itself; it
//! takes for each shard the longest log that is left, counts everything in it as done (whatever was
//! acknowledged *and is here* is in it), and pauses every item, so that a human looks before
//! anything is sold again. The new cluster has another id: what is left of the old one and the new
//! one never speak to each other.
//!
//! Promises: the directories that it reads are not changed, but for the mark that keeps a node from
//! starting in them again; the new directory is there whole or not at all.

mod pausing;
mod roster;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::members;
use super::running::{log_options, member_of};
use crate::clock::WallClock;
use crate::config::Config;
use crate::ledger::{
    LeaderId, Ledger, LogIndex, NodeId, SchemaRange, SchemaVersion, Settings, ShardId, Turn,
};
use crate::raft::{VoteTold, found_anew, replay};
use crate::shard::{MemberSpec, uuid_hex};
use crate::storage::pages::{AtRest, PageError, PageStore, SledPages};
use crate::storage::visit::RETIRED_FILE;
use crate::storage::{
    CheckpointHeader, Checkpoints, DataDirError, Disk, Identity, LogError, LogPosition, NodeLog,
    PageDesk, ReadLog, RealDisk, Visit,
};

/// How much is read from a log or a database in one step, in bytes.
const READ_BYTES: usize = 4 << 20;

/// Why nothing was salvaged.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// A directory cannot be looked at, or a node runs in it.
    #[error(transparent)]
    Dir(#[from] DataDirError),
    /// What is wrong, and what would help.
    #[error("{0}")]
    Words(String),
}

fn words(what: impl Into<String>) -> SalvageError {
    SalvageError::Words(what.into())
}

/// What is left of one shard.
#[derive(Debug, Clone, Serialize)]
pub struct ShardLeft {
    /// The shard.
    pub shard: ShardId,
    /// The directory whose log goes furthest.
    pub from: String,
    /// The checkpoint that it begins with.
    pub checkpoint: Option<u64>,
    /// The last index in that log. What other nodes had behind it is lost.
    pub last: u64,
    /// The leadership that wrote it.
    pub leader: LeaderId,
    /// Ledger time there, ms since 1970: what was acknowledged later may be missing.
    pub ledger_now_ms: u64,
    /// Items whose home the shard is.
    pub items: usize,
    /// Units held.
    pub held: u64,
    /// Units sold.
    pub sold: u64,
}

/// What is left of a cluster.
#[derive(Debug, Clone, Serialize)]
pub struct Left {
    /// The cluster, in hex.
    pub cluster_id: String,
    /// Its members, as the directories have them.
    pub members: Vec<u64>,
    /// The nodes whose directories were given.
    pub given: Vec<u64>,
    /// The shards, in order.
    pub shards: Vec<ShardLeft>,
    /// Items that are paused by the recovery.
    pub paused: usize,
}

/// What was made.
#[derive(Debug, Clone, Serialize)]
pub struct Made {
    /// The new cluster, in hex.
    pub cluster_id: String,
    /// Its one node.
    pub node: NodeId,
    /// Where its data is.
    pub dir: String,
}

/// One directory that is left.
struct Source {
    visit: Visit,
    identity: Identity,
    log: ReadLog,
    members: Vec<MemberSpec>,
}

/// The state of every shard, with every item paused, ready to be written.
pub struct Salvage {
    left: Left,
    settings: Settings,
    region: String,
    own: Option<MemberSpec>,
    node: NodeId,
    term: u64,
    ledgers: Vec<Ledger>,
    sources: Vec<Source>,
}

impl std::fmt::Debug for Salvage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Salvage").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Salvage {
    /// Reads the directories and works out the state of every shard. Writes only copies, in
    /// `scratch`. With `damaged_logs` also logs that are damaged are read, up to the damage.
    ///
    /// # Errors
    ///
    /// [`SalvageError`]: nothing was changed.
    pub fn read(
        dirs: &[PathBuf],
        scratch: &Path,
        damaged_logs: bool,
    ) -> Result<Salvage, SalvageError> {
        let mut sources = Vec::new();
        for dir in dirs {
            sources.push(Source::open(dir, damaged_logs)?);
        }
        let first = sources.first().ok_or_else(|| words("name a data directory"))?;
        let (cluster, settings) = (first.identity.cluster_id, first.identity.settings.clone());
        for other in &sources[1..] {
            if other.identity.cluster_id != cluster || other.identity.settings != settings {
                let dir = other.visit.path().display();
                return Err(words(format!("{dir} is of another cluster than the first directory")));
            }
            if sources.iter().filter(|one| one.identity.node == other.identity.node).count() > 1 {
                return Err(words("two of the directories are the same node's"));
            }
        }
        let (mut shards, mut ledgers, mut term) = (Vec::new(), Vec::new(), 0);
        for shard in (0..settings.shards).map(ShardId) {
            let (left, ledger) = best_of(&sources, shard, &settings, scratch)?;
            term = term.max(left.leader.term);
            shards.push(left);
            ledgers.push(ledger);
        }
        let votes = sources.iter().flat_map(|source| source.log.shards().into_values());
        let votes = votes.filter_map(|log| VoteTold::read(&log.vote?).ok());
        let term = votes.map(|vote| vote.leader.term).fold(term, u64::max) + 1;
        let paused = pausing::pause_all(&mut ledgers).map_err(words)?;
        let members = sources.iter().flat_map(|source| &source.members);
        let members: BTreeMap<NodeId, MemberSpec> =
            members.map(|member| (member.node, member.clone())).collect();
        let first = &sources[0];
        let given = sources.iter().map(|source| source.identity.node.0);
        // Ids are never used again, also not by another cluster: it is easier to tell apart.
        let last = members.keys().copied().chain(sources.iter().map(|one| one.identity.node));
        let next = ledgers.first().map_or(0, |ledger: &Ledger| ledger.roster().next_node);
        let node = NodeId(last.map(|node| node.0 + 1).max().unwrap_or(1).max(next));
        Ok(Salvage {
            left: Left {
                cluster_id: uuid_hex(&cluster),
                members: members.keys().map(|node| node.0).collect(),
                given: given.collect(),
                shards,
                paused,
            },
            own: members.get(&first.identity.node).cloned(),
            region: first.identity.region.clone(),
            settings,
            node,
            term,
            ledgers,
            sources,
        })
    }

    /// Returns what is left.
    pub fn left(&self) -> &Left {
        &self.left
    }

    /// Writes the data directory of the one node of a new cluster, and marks the old directories so
    /// that no node starts in them again.
    ///
    /// # Errors
    ///
    /// [`SalvageError`]: the new directory is not there then.
    pub async fn write(mut self, to: &Path, wall: &WallClock) -> Result<Made, SalvageError> {
        let failed = |error: io::Error| words(format!("{}: {error}", to.display()));
        if to.exists() && std::fs::read_dir(to).map_err(failed)?.next().is_some() {
            return Err(words(format!("{} is there already, and not empty", to.display())));
        }
        let beside = beside(to);
        let identity = Identity {
            cluster_id: rand::random(),
            node: self.node,
            log_uuid: rand::random(),
            settings: self.settings.clone(),
            region: self.region.clone(),
            created_at: wall.now(),
        };
        let spec = MemberSpec {
            node: self.node,
            log_uuid: uuid_hex(&identity.log_uuid),
            ..self.own.clone().unwrap_or_default()
        };
        roster::begin_anew(&mut self.ledgers, &spec, identity.log_uuid).map_err(words)?;
        if beside.exists() {
            std::fs::remove_dir_all(&beside).map_err(failed)?;
        }
        let written = write_new(&beside, &identity, &spec, self.ledgers, self.term).await;
        written.map_err(failed)?;
        if to.exists() {
            std::fs::remove_dir(to).map_err(failed)?;
        }
        std::fs::rename(&beside, to).map_err(failed)?;
        RealDisk.sync_dir(to.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let cluster_id = uuid_hex(&identity.cluster_id);
        for source in &self.sources {
            let words = format!(
                "This directory was given up for the new cluster {cluster_id} in {}.\n",
                to.display()
            );
            let path = source.visit.path().join(RETIRED_FILE);
            std::fs::write(&path, words).map_err(failed)?;
            RealDisk.sync_dir(source.visit.path()).map_err(failed)?;
        }
        Ok(Made { cluster_id, node: self.node, dir: to.display().to_string() })
    }
}

fn beside(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    name.push(".unfinished");
    to.with_file_name(name)
}

impl Source {
    fn open(dir: &Path, damaged_logs: bool) -> Result<Source, SalvageError> {
        let visit = Visit::begin(dir)?;
        let disk = visit.disk();
        let in_dir = |what: String| words(format!("{}: {what}", dir.display()));
        let identity =
            Identity::read(disk.as_ref(), dir).map_err(|error| in_dir(error.to_string()))?;
        let active = super::schema::read(disk.as_ref(), dir);
        let active = active.map_err(|error| in_dir(error.to_string()))?;
        let reads = SchemaRange::up_to(SchemaVersion::NEWEST);
        if !reads.has(active) {
            return Err(in_dir(reads.beyond(active)));
        }
        let (at, uuid) = (dir.join("log"), identity.log_uuid);
        let log = match ReadLog::open(disk.as_ref(), &at, uuid) {
            Err(LogError::Damaged { .. }) if damaged_logs => {
                ReadLog::open_to_the_damage(disk.as_ref(), &at, uuid)
            }
            Err(error @ LogError::Damaged { .. }) => {
                let words = "to take it up to the damage: --damaged-log";
                return Err(in_dir(format!("{error}; {words}")));
            }
            read => read,
        };
        let log = log.map_err(|error| in_dir(error.to_string()))?;
        let members = members::read(disk.as_ref(), dir);
        let members = members.map_err(|error| in_dir(error.to_string()))?.unwrap_or_default();
        Ok(Source { visit, identity, log, members })
    }
}

/// Finds the directory whose log of a shard goes furthest, and brings its ledger to its end.
fn best_of(
    sources: &[Source],
    shard: ShardId,
    settings: &Settings,
    scratch: &Path,
) -> Result<(ShardLeft, Ledger), SalvageError> {
    let end = |source: &Source| source.log.shards().get(&shard).and_then(|log| log.last);
    let mut in_order: Vec<&Source> = sources.iter().collect();
    // Raft's order of logs: the later leadership, then the longer log.
    in_order.sort_by_key(|source| std::cmp::Reverse(end(source)));
    let mut troubles = Vec::new();
    for source in in_order {
        match brought_to_its_end(source, shard, settings, scratch) {
            Ok(found) => return Ok(found),
            Err(why) => troubles.push(format!("{}: {why}", source.visit.path().display())),
        }
    }
    Err(words(format!("nothing is left of shard {shard}: {}", troubles.join("; "))))
}

fn brought_to_its_end(
    source: &Source,
    shard: ShardId,
    settings: &Settings,
    scratch: &Path,
) -> Result<(ShardLeft, Ledger), String> {
    let state = source.log.shards().get(&shard).cloned().unwrap_or_default();
    let purged = state.purged.map(|at| at.index.0);
    let dir = source.visit.path().join(format!("shard-{shard}"));
    let store = SledPages::to_look_at(dir, scratch);
    let (mut ledger, begin) = match loaded(&store, source, shard, purged)? {
        Some((ledger, position)) => (ledger, Some(position)),
        None if purged.is_none() => (Ledger::new(shard, settings.clone()), None),
        None => return Err(format!("no good database reaches index {purged:?}")),
    };
    let last = state.last.max(begin).ok_or("its log is empty")?;
    let mut next = begin.map_or(0, |at| at.index.0 + 1);
    while next <= last.index.0 {
        let entries = source.log.read(shard, next..last.index.0 + 1, READ_BYTES);
        let entries = entries.map_err(|error| error.to_string())?;
        let Some(end) = entries.last().map(|entry| entry.position.index.0) else {
            return Err(format!("its log has no entry {next}"));
        };
        replay(&mut ledger, entries).map_err(|error| error.to_string())?;
        next = end + 1;
    }
    let (figures, roll) = (ledger.figures(), ledger.roll());
    let left = ShardLeft {
        shard,
        from: source.visit.path().display().to_string(),
        checkpoint: begin.map(|at| at.index.0),
        last: last.index.0,
        leader: last.leader,
        ledger_now_ms: ledger.now().0,
        items: roll.iter().filter(|entry| entry.is_home).count(),
        held: figures.units_held,
        sold: figures.units_sold,
    };
    Ok((left, ledger))
}

/// Loads the newest good database that reaches the purge point.
fn loaded(
    store: &SledPages,
    source: &Source,
    shard: ShardId,
    purged: Option<u64>,
) -> Result<Option<(Ledger, LogPosition)>, String> {
    let mut good = Vec::new();
    for turn in [Turn::A, Turn::B] {
        let Ok(AtRest::Closed { header }) = store.look(turn) else { continue };
        let Ok(header) = CheckpointHeader::open(&header) else { continue };
        let own = source.identity.origin(shard).differs(&header.origin).is_none();
        if let Some(position) = header.state.position.filter(|_| own)
            && Some(position.index.0) >= purged
        {
            good.push((header.sequence, turn, position, header.state.digest));
        }
    }
    good.sort_by_key(|(sequence, ..)| std::cmp::Reverse(*sequence));
    for (_, turn, position, digest) in good {
        match pages_of(store, turn) {
            Ok(pages) => {
                let settings = source.identity.settings.clone();
                let ledger = Ledger::load(shard, settings, pages.into_iter());
                if let Ok(ledger) = ledger
                    && ledger.digest() == digest
                {
                    return Ok(Some((ledger, position)));
                }
            }
            Err(PageError::Damaged(_)) => {}
            // No room in the scratch directory is nothing against the database.
            Err(error @ (PageError::Io(_) | PageError::Bound(_))) => return Err(error.to_string()),
        }
    }
    Ok(None)
}

type Pages = Vec<(crate::ledger::PageKey, Vec<u8>)>;

/// Reads a database whole, from a private copy.
///
/// # Errors
///
/// As [`PageStore::read`].
pub(super) fn pages_of(store: &SledPages, turn: Turn) -> Result<Pages, PageError> {
    let mut reader = store.read(turn)?;
    let mut pages: Pages = Vec::new();
    loop {
        let after = pages.last().map(|(key, _)| key.clone());
        let chunk = reader.read(after.as_ref(), READ_BYTES)?;
        if chunk.is_empty() {
            return Ok(pages);
        }
        pages.extend(chunk);
    }
}

async fn write_new(
    dir: &Path,
    identity: &Identity,
    spec: &MemberSpec,
    ledgers: Vec<Ledger>,
    term: u64,
) -> io::Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    std::fs::create_dir_all(dir)?;
    let options = log_options(&Config::default());
    let log = NodeLog::create(Arc::clone(&disk), &dir.join("log"), identity.log_uuid, options)
        .map_err(io::Error::other)?;
    let desk = PageDesk::start()?;
    let member = member_of(spec).ok_or_else(|| io::Error::other("a member without a log"))?;
    let leader = LeaderId { term, node: identity.node };
    for (shard, ledger) in (0..identity.settings.shards).map(ShardId).zip(ledgers) {
        let store = SledPages::new(dir.join(format!("shard-{shard}"))).map_err(io::Error::other)?;
        let origin = identity.origin(shard);
        let checkpoints = Checkpoints::open(Arc::new(store), origin, desk.clone()).await?;
        // The entry that names the only member stands behind everything else.
        let index = LogIndex(ledger.applied().0 + 1);
        let position = LogPosition { leader, index };
        let state = (shard, identity.settings.clone(), ledger);
        found_anew(&log.shard(shard), &checkpoints, state, position, member.clone()).await?;
        checkpoints.settle().await?;
    }
    log.close().await?;
    members::write(disk.as_ref(), dir, std::slice::from_ref(spec))?;
    identity.create(disk.as_ref(), dir).map_err(io::Error::other)
}
