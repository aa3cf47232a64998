//! The two page databases of a shard, read from private copies.

use std::path::Path;

use serde::Serialize;

use super::{Closeness, ShardFacts};
use crate::ledger::{Ledger, ShardId, Turn};
use crate::raft::MembersTold;
use crate::storage::pages::{AtRest, PageError, PageStore, SledPages};
use crate::storage::{CheckpointHeader, Identity, ShardLogState};

/// How much is read from a database in one step, in bytes.
const CHUNK_BYTES: usize = 4 << 20;
/// Room that must be left beside a copy, in bytes: sled opens it for writing.
const COPY_SLACK_BYTES: u64 = 32 << 20;

/// How a database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatabaseState {
    /// There is nothing.
    Empty,
    /// A whole checkpoint.
    Good,
    /// A checkpoint that was not finished, or given up for damaged while the node ran.
    Unfinished,
    /// Something that is never used.
    Damaged,
    /// A whole checkpoint of another cluster or shard.
    Foreign,
}

/// One page database.
#[derive(Debug, Clone, Serialize)]
pub struct DatabaseFacts {
    /// `a` or `b`.
    pub name: &'static str,
    /// How it is.
    pub state: DatabaseState,
    /// What is wrong, when something is.
    pub why: Option<String>,
    /// Its place in the row of checkpoints.
    pub sequence: Option<u64>,
    /// The index of the last entry in it.
    pub index: Option<u64>,
    /// Ledger time in it, ms since 1970.
    pub ledger_now_ms: Option<u64>,
    /// Its digest, in hex.
    pub digest: Option<String>,
    /// Whether the digest was recomputed from the pages; `None` when that was not done.
    pub digest_holds: Option<bool>,
    /// Why the digest was not recomputed, when it was to be.
    pub not_read: Option<String>,
    /// Pages in it.
    pub pages: u64,
    /// Bytes of pages and keys.
    pub page_bytes: u64,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// The nodes that vote, as it knows them.
    pub voters: Vec<u64>,
}

/// Looks at both databases of a shard and says which of them a start would load.
pub(super) fn look(
    facts: &mut ShardFacts,
    dir: &Path,
    identity: &Identity,
    log: Option<&ShardLogState>,
    how: &Closeness,
) {
    let store = SledPages::to_look_at(dir.join(format!("shard-{}", facts.shard)), &how.scratch);
    for (turn, name) in [(Turn::A, "a"), (Turn::B, "b")] {
        facts.databases.push(look_at(&store, turn, name, facts.shard, identity, how));
    }
    let purged = log.and_then(|log| log.purged).map(|at| at.index.0);
    let reaches = |database: &&DatabaseFacts| {
        database.state == DatabaseState::Good && database.index >= purged
    };
    let good = facts.databases.iter().filter(reaches);
    facts.starts_from = good.max_by_key(|database| database.sequence).map(|database| database.name);
}

fn look_at(
    store: &SledPages,
    turn: Turn,
    name: &'static str,
    shard: ShardId,
    identity: &Identity,
    how: &Closeness,
) -> DatabaseFacts {
    let mut facts = DatabaseFacts {
        name,
        state: DatabaseState::Empty,
        why: None,
        sequence: None,
        index: None,
        ledger_now_ms: None,
        digest: None,
        digest_holds: None,
        not_read: None,
        pages: 0,
        page_bytes: 0,
        file_bytes: store.bytes_on_disk(turn).unwrap_or(0),
        voters: Vec::new(),
    };
    let mut wrong = |state, why: String| {
        facts.state = state;
        facts.why = Some(why);
    };
    let sealed = match store.look(turn) {
        Ok(AtRest::Empty) => return facts,
        Ok(AtRest::Closed { header }) => header,
        Ok(AtRest::Damaged(why)) => {
            let sealed = store.seal(turn).exists();
            wrong(if sealed { DatabaseState::Damaged } else { DatabaseState::Unfinished }, why);
            return facts;
        }
        Err(error) => {
            wrong(DatabaseState::Damaged, error.to_string());
            return facts;
        }
    };
    let header = match CheckpointHeader::open(&sealed) {
        Ok(header) => header,
        Err(error) => {
            wrong(DatabaseState::Damaged, format!("its header: {error}"));
            return facts;
        }
    };
    if let Some(why) = identity.origin(shard).differs(&header.origin) {
        wrong(DatabaseState::Foreign, why);
        return facts;
    }
    facts.state = DatabaseState::Good;
    facts.sequence = Some(header.sequence);
    facts.index = header.state.position.map(|at| at.index.0);
    facts.ledger_now_ms = Some(header.state.ledger_now.0);
    facts.digest = Some(format!("{:032x}", header.state.digest));
    (facts.pages, facts.page_bytes) = (header.page_count, header.page_bytes);
    match MembersTold::read(&header) {
        Ok(told) => facts.voters = told.voters.iter().map(|node| node.0).collect(),
        Err(error) => {
            facts.state = DatabaseState::Damaged;
            facts.why = Some(format!("its members: {error}"));
            return facts;
        }
    }
    if how.reads_pages {
        read_through(&mut facts, store, turn, shard, identity, &header, how);
    }
    facts
}

/// Compares every byte with the seal and recomputes the digest from a private copy.
fn read_through(
    facts: &mut DatabaseFacts,
    store: &SledPages,
    turn: Turn,
    shard: ShardId,
    identity: &Identity,
    header: &CheckpointHeader,
    how: &Closeness,
) {
    if let Err(error) = store.verify(turn) {
        facts.state = DatabaseState::Damaged;
        facts.why = Some(error.to_string());
        return;
    }
    let free = crate::storage::Disk::free_bytes(&crate::storage::ReadOnlyDisk, &how.scratch);
    let need = facts.file_bytes.saturating_add(COPY_SLACK_BYTES);
    if free.as_ref().is_ok_and(|free| *free < need) {
        let at = how.scratch.display();
        facts.not_read = Some(format!("{need} bytes are needed in {at} to copy it"));
        return;
    }
    match recomputed(store, turn, shard, identity) {
        Ok(digest) if digest == header.state.digest => facts.digest_holds = Some(true),
        Ok(_) => {
            facts.digest_holds = Some(false);
            facts.state = DatabaseState::Damaged;
            facts.why = Some("its pages do not have the digest of its header".to_owned());
        }
        Err(PageError::Damaged(why)) => {
            facts.state = DatabaseState::Damaged;
            facts.why = Some(why);
        }
        // The copy failed, not what was copied.
        Err(error @ (PageError::Io(_) | PageError::Bound(_))) => {
            facts.not_read = Some(error.to_string());
        }
    }
}

fn recomputed(
    store: &SledPages,
    turn: Turn,
    shard: ShardId,
    identity: &Identity,
) -> Result<u128, PageError> {
    let mut reader = store.read(turn)?;
    let mut pages = Vec::new();
    loop {
        let after = pages.last().map(|(key, _): &(crate::ledger::PageKey, _)| key.clone());
        let chunk = reader.read(after.as_ref(), CHUNK_BYTES)?;
        if chunk.is_empty() {
            break;
        }
        pages.extend(chunk);
    }
    let ledger = Ledger::load(shard, identity.settings.clone(), pages.into_iter());
    ledger.map(|ledger| ledger.digest()).map_err(|error| PageError::Damaged(error.to_string()))
}
