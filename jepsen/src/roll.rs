//! The roll: which nodes there are, as everybody in the suite knows them. Nodes come and go while
//! clients work.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug, Default)]
struct Lists {
    addresses: BTreeMap<u64, SocketAddr>,
    members: BTreeSet<u64>,
    removed: BTreeSet<u64>,
}

/// The roll; all copies are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Roll(Arc<Mutex<Lists>>);

impl Roll {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().expect("nobody panics with it")
    }

    /// Notes where a node is, before anybody asks it anything.
    pub(crate) fn know(&self, node: u64, address: SocketAddr) {
        self.lists().addresses.insert(node, address);
    }

    /// Lets clients ask a node.
    pub(crate) fn welcome(&self, node: u64) {
        self.lists().members.insert(node);
    }

    /// Takes a node off: clients ask it no more, but for those whose list is old.
    pub(crate) fn dismiss(&self, node: u64) {
        let mut lists = self.lists();
        lists.members.remove(&node);
        lists.removed.insert(node);
    }

    /// Forgets a node whose process has ended for good.
    pub(crate) fn forget(&self, node: u64) {
        let mut lists = self.lists();
        lists.members.remove(&node);
        lists.removed.remove(&node);
    }

    /// Where a node is; addresses are never given twice.
    pub(crate) fn address(&self, node: u64) -> Option<SocketAddr> {
        self.lists().addresses.get(&node).copied()
    }

    /// The nodes that belong to the cluster.
    pub(crate) fn members(&self) -> Vec<u64> {
        self.lists().members.iter().copied().collect()
    }

    /// The nodes that were removed and still run.
    pub(crate) fn removed(&self) -> Vec<u64> {
        self.lists().removed.iter().copied().collect()
    }
}
