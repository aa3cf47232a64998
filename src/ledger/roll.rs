//! The roll of a shard's items: what each is called and what its buyers may do. For those who must
//! look at all of them, whoever's they are. Never changes anything.

use super::command::Mode;
use super::ids::ItemName;
use super::{ItemRef, Ledger};

/// One item, as this shard has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollEntry {
    /// What it is called.
    pub name: ItemName,
    /// The item.
    pub item: ItemRef,
    /// Whether its home is here; otherwise this is a copy.
    pub is_home: bool,
    /// The revision.
    pub revision: u64,
    /// What its buyers may do here.
    pub mode: Mode,
    /// Whether a deletion is under way, which pauses it.
    pub is_going: bool,
}

impl Ledger {
    /// Returns every item that is not deleted, in the order of their numbers.
    pub fn roll(&self) -> Vec<RollEntry> {
        let living = self.items.iter().filter(|(_, item)| !item.record.retired);
        let entry = living.map(|(key, item)| RollEntry {
            name: item.record.name.clone(),
            item: ItemRef { home: key.0, item: key.1 },
            is_home: item.record.home.is_some(),
            revision: item.record.revision,
            mode: item.record.mode,
            is_going: item.record.home.as_ref().is_some_and(|home| home.deleting.is_some()),
        });
        entry.collect()
    }
}
