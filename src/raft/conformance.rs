//! openraft's own suite for stores, on ours: the write-ahead log on a real disk and sled, or, in a
//! simulated build, both on their models.

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};

use super::entry::TypeConfig;
use super::log_store::LogStore;
use super::machine::Machine;
use super::trial::{self, Site};
use crate::storage::NodeLog;

struct Builder;

/// What must outlive the store: its place, and the log that the shard's log is a part of.
struct Guard {
    _log: NodeLog,
    _site: Site,
}

impl StoreBuilder<TypeConfig, LogStore, Machine, Guard> for Builder {
    async fn build(&self) -> Result<(Guard, LogStore, Machine), StorageError<TypeConfig>> {
        let site = Site::shipped();
        let opened = site.open().await.expect("a new site opens");
        let machine = opened.machine(opened.empty_replica());
        let store = LogStore::new(opened.shard_log(), 1 << 20);
        Ok((Guard { _log: opened.log, _site: site }, store, machine))
    }
}

#[test]
fn openrafts_suite_for_stores_passes() {
    trial::run(async { Suite::test_all(Builder).await.expect("the suite passes") });
}
