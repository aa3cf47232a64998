//! What a node is made of, so that the simulator can hand it a simulated disk, network and clock
//! and run the rest as it ships.

use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::WallClock;
use crate::ledger::ShardId;
use crate::peer::{LocalIdentity, Network, Spawner};
use crate::storage::pages::{PageStore, SledPages};
use crate::storage::{Disk, PageDesk};

/// Where a shard's tasks run.
pub type PlaceOf = Arc<dyn Fn(ShardId) -> std::io::Result<Spawner> + Send + Sync>;
/// Opens the page store of a shard in this directory.
pub type PagesOf =
    Arc<dyn Fn(ShardId, PathBuf) -> std::io::Result<Arc<dyn PageStore>> + Send + Sync>;
/// Makes the network of an identity.
pub type NetworkOf = Arc<dyn Fn(LocalIdentity) -> Network + Send + Sync>;
/// Draws sixteen random bytes.
pub type Random = Arc<dyn Fn() -> [u8; 16] + Send + Sync>;

/// The replaceable parts of a node.
#[derive(Clone)]
pub struct Parts {
    /// The disk under identity and log.
    pub disk: Arc<dyn Disk>,
    /// The page stores.
    pub pages: PagesOf,
    /// The thread that works on pages.
    pub desk: PageDesk,
    /// The network.
    pub network: NetworkOf,
    /// The wall clock.
    pub clock: WallClock,
    /// The shards' runtimes.
    pub place: PlaceOf,
    /// Randomness for uuids.
    pub random: Random,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("disk", &self.disk).finish_non_exhaustive()
    }
}

/// Opens the sled databases of a shard.
///
/// # Errors
///
/// When the directory cannot be made.
pub fn sled_pages(_shard: ShardId, dir: PathBuf) -> std::io::Result<Arc<dyn PageStore>> {
    let store = SledPages::new(dir).map_err(std::io::Error::other)?;
    Ok(Arc::new(store))
}
