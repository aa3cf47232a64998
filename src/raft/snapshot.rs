//! What openraft calls a snapshot: a handle to a checkpoint, ours or one that a peer sent.

use std::io;
use std::sync::Arc;

use openraft::type_config::alias::{SnapshotMetaOf, StoredMembershipOf};

use super::entry::{TypeConfig, log_id_of};
use crate::codec;
use crate::ledger::{Ledger, PageKey, Settings, ShardId};
use crate::planted::{Fault, planted};
use crate::storage::{CheckpointHeader, CheckpointReceiver, Checkpoints, PinnedCheckpoint};

/// The most bytes of pages in one message, keys included.
pub(crate) const CHUNK_BYTES: usize = 768 << 10;

/// A checkpoint on its way into or out of openraft.
#[derive(Debug)]
pub(crate) enum SnapshotHandle {
    /// The current checkpoint of this node, pinned while it is sent.
    Current(PinnedCheckpoint),
    /// A checkpoint that a peer sent: written and verified, not yet current.
    Received(Box<Received>),
}

/// A checkpoint that was received whole, and the ledger that its pages make.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) receiver: CheckpointReceiver,
    pub(crate) header: CheckpointHeader,
    pub(crate) ledger: Ledger,
}

/// One page on the wire: its key and its bytes.
pub(crate) type WirePage = (Vec<u8>, Vec<u8>);

/// Writes a checkpoint that comes in chunks and makes its ledger.
#[derive(Debug)]
pub(crate) struct Incoming {
    receiver: CheckpointReceiver,
    header: CheckpointHeader,
    pages: Vec<(PageKey, Vec<u8>)>,
}

impl Incoming {
    /// Begins to receive the checkpoint that `header` describes.
    pub(crate) async fn begin(
        checkpoints: &Checkpoints,
        header: CheckpointHeader,
    ) -> io::Result<Incoming> {
        let receiver = checkpoints.begin_receive().await?;
        Ok(Incoming { receiver, header, pages: Vec::new() })
    }

    /// Takes the next pages, in the order of their keys.
    pub(crate) async fn write(&mut self, pages: Vec<WirePage>) -> io::Result<()> {
        let pages: Vec<(PageKey, Vec<u8>)> =
            pages.into_iter().map(|(key, bytes)| (PageKey(key), bytes)).collect();
        self.receiver.write(pages.clone()).await?;
        self.pages.extend(pages);
        Ok(())
    }

    /// Makes the ledger and compares its digest with the header's.
    pub(crate) fn finish(self, shard: ShardId, settings: Settings) -> io::Result<Received> {
        let ledger = Ledger::load(shard, settings, self.pages.into_iter())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let (made, sent) = (ledger.digest(), self.header.state.digest);
        if made != sent && !planted(Fault::DigestUnchecked) {
            let words = format!("received pages have digest {made:032x}, not {sent:032x}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, words));
        }
        Ok(Received { receiver: self.receiver, header: self.header, ledger })
    }
}

/// Reads what openraft must know of a checkpoint from its header.
pub(crate) fn meta_of(header: &CheckpointHeader) -> io::Result<SnapshotMetaOf<TypeConfig>> {
    Ok(SnapshotMetaOf::<TypeConfig> {
        last_log_id: header.state.position.map(log_id_of),
        last_membership: membership_of(header)?,
    })
}

/// Reads the membership of a checkpoint.
pub(crate) fn membership_of(
    header: &CheckpointHeader,
) -> io::Result<StoredMembershipOf<TypeConfig>> {
    codec::decode(&header.state.membership).map_err(io::Error::other)
}

/// Shares a header's reading between those who only look.
pub(crate) fn header_of(pinned: &PinnedCheckpoint) -> Arc<CheckpointHeader> {
    Arc::clone(pinned.header())
}
