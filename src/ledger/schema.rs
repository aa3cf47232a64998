//! The schema version: which kinds of entries and records the cluster may write.
//!
//! Every build reads the versions from [`SchemaVersion::FIRST`] to [`SchemaVersion::NEWEST`]. The
//! cluster writes one of them, its *active* version, which stands in the ledger of shard 0, in a
//! page of its own; a ledger without that page writes the first. Whatever a later version brings
//! may be proposed only when the active version is that one.
//!
//! It goes up by one, and never back: whoever proposes it has asked every member of every shard
//! whether it reads the next one, and names the revision of the roster that he asked by. It raises
//! that revision, so that a machine which is let in at the same time is judged anew.
//!
//! | version | what it brought |
//! |---|---|
//! | 1 | everything before this table |
//! | 2 | this entry and its page; invitations that are for one region; moves of stock by hand |

use std::fmt;

use serde::{Deserialize, Serialize};

use super::answer::{Answer, Refusal};
use super::bounds::{Decided, invalid, refuse};
use super::command::{Change, CommandOf};
use super::item;
use super::page::{PAGE_VERSION, PageId};
use super::roster::{ROSTER_SHARD, SetRoster};
use super::{Books, Ledger};

/// A version of what is written to the log and to the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SchemaVersion(pub u16);

impl SchemaVersion {
    /// What a cluster writes whose ledger names no version.
    pub const FIRST: SchemaVersion = SchemaVersion(1);
    /// The newest that this build reads and writes.
    pub const NEWEST: SchemaVersion = SchemaVersion(2);
    /// The first in which an invitation may be for one region.
    pub const REGION_INVITED: SchemaVersion = SchemaVersion(2);
    /// The first in which an operator moves stock by hand.
    pub const MOVE_BY_HAND: SchemaVersion = SchemaVersion(2);

    /// Says that something needs another version than this one, which the cluster writes, and what
    /// to do; `since` is what would come of it.
    pub fn lacks(self, what: &str, needs: SchemaVersion, since: &str) -> String {
        format!(
            "{what} needs schema version {needs}, and the cluster writes {self}: {since}. Bring \
             every node to a version that reads {needs}, then run `holdfast cluster upgrade`"
        )
    }

    /// Returns the version after it.
    pub fn next(self) -> SchemaVersion {
        SchemaVersion(self.0.saturating_add(1))
    }
}

impl Default for SchemaVersion {
    fn default() -> SchemaVersion {
        SchemaVersion::FIRST
    }
}

impl fmt::Display for SchemaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The versions that a node reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaRange {
    /// The oldest.
    pub oldest: SchemaVersion,
    /// The newest.
    pub newest: SchemaVersion,
}

impl SchemaRange {
    /// Returns all versions up to this one.
    pub fn up_to(newest: SchemaVersion) -> SchemaRange {
        SchemaRange { oldest: SchemaVersion::FIRST, newest }
    }

    /// Says why a node that reads these cannot go on in a cluster that writes another one.
    pub fn beyond(&self, active: SchemaVersion) -> String {
        format!(
            "the cluster's schema version is {active}, and this node reads {self}: a node that \
             cannot read what the others write takes no part. Install a holdfast here that reads \
             {active} (`node.schema_max` may hold this one back), and start it again; nothing in \
             its directory is lost"
        )
    }

    /// Tells whether it has a version.
    pub fn has(&self, version: SchemaVersion) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

impl fmt::Display for SchemaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

/// Raises the schema version (shard 0).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetSchema {
    /// The version from now on: the next one.
    pub to: SchemaVersion,
    /// The roster whose members all read it, set again as it was read.
    pub members: SetRoster,
}

impl<P> CommandOf<P> {
    /// Returns the first version that has this command: it may be proposed only when the cluster
    /// writes that one, since an older build stops at an entry that it cannot read.
    pub fn since(&self) -> SchemaVersion {
        match self {
            CommandOf::Adjust(adjust) => match adjust.change {
                Change::Claim(_) | Change::Move(_) => SchemaVersion::MOVE_BY_HAND,
                Change::Raise(_)
                | Change::Lower(_)
                | Change::Set { .. }
                | Change::RaiseIn { .. }
                | Change::LowerIn { .. } => SchemaVersion::FIRST,
            },
            // What raises the version is proposed when every node says that it reads the next.
            CommandOf::SetSchema(_)
            | CommandOf::Define(_)
            | CommandOf::SetMode(_)
            | CommandOf::Retire(_)
            | CommandOf::Place(_)
            | CommandOf::Extend(_)
            | CommandOf::Confirm(_)
            | CommandOf::Release(_)
            | CommandOf::Return(_)
            | CommandOf::Void(_)
            | CommandOf::Advance
            | CommandOf::OpenBucket(_)
            | CommandOf::SendStock(_)
            | CommandOf::AcceptStock(_)
            | CommandOf::SettleStock(_)
            | CommandOf::DefineSpread(_)
            | CommandOf::SetLayout(_)
            | CommandOf::Configure(_)
            | CommandOf::CopyAnswered(_)
            | CommandOf::EraseCopy(_)
            | CommandOf::LowerBegin(_)
            | CommandOf::LowerCommit(_)
            | CommandOf::LowerAbort(_)
            | CommandOf::DeleteBegin(_)
            | CommandOf::DeleteAbort(_)
            | CommandOf::DeleteCommit(_)
            | CommandOf::MoveStock(_)
            | CommandOf::SetRoster(_) => SchemaVersion::FIRST,
        }
    }
}

/// What a ledger keeps of its version.
#[derive(Debug, Default)]
pub(super) struct SchemaPage {
    version: SchemaVersion,
    hashed: u128,
}

impl SchemaPage {
    /// Takes a version that was read from its page.
    pub(super) fn load(version: SchemaVersion, books: &mut Books) -> SchemaPage {
        let mut page = SchemaPage::default();
        page.set(version, books);
        page
    }

    fn set(&mut self, version: SchemaVersion, books: &mut Books) {
        self.version = version;
        let hash = books.hash(PageId::SCHEMA, |out| item::encode(&version, out));
        books.digest.exchange(std::mem::replace(&mut self.hashed, hash), hash);
    }

    /// Tells whether it has a page.
    pub(super) fn is_written(&self) -> bool {
        self.version > SchemaVersion::FIRST
    }

    /// Its page; `None` before the first change.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        self.is_written().then(|| {
            let mut page = vec![PAGE_VERSION];
            item::encode(&self.version, &mut page);
            page
        })
    }
}

impl Ledger {
    /// Returns the version that the cluster writes. Only shard 0 says more than the first.
    pub fn schema(&self) -> SchemaVersion {
        self.schema.version
    }

    pub(super) fn judge_schema(&self, set: &SetSchema) -> Decided<()> {
        if self.books.shard != ROSTER_SHARD {
            return refuse(Refusal::NotOwner);
        }
        if set.to != self.schema().next() {
            return invalid("to", "must be the version after the active one");
        }
        self.judge_roster(&set.members)
    }

    pub(super) fn set_schema(&mut self, set: &SetSchema) -> Answer {
        if let Err(answer) = self.judge_schema(set) {
            return *answer;
        }
        let page = &mut self.schema;
        self.books.pages.touch(PageId::SCHEMA, || page.encode());
        page.set(set.to, &mut self.books);
        self.set_roster(&set.members)
    }
}
