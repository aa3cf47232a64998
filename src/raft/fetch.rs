//! Fetching a checkpoint from a member, when a starting replica has none that reaches its log.
//!
//! Whatever is fetched is written whole beside what is there, compared with its digest, and current
//! before the caller touches its log. A fetch that ends in between leaves nothing behind.

use std::io;
use std::time::Duration;

use super::network::kind;
use super::snapshot::{Incoming, WirePage};
use super::start::{Loaded, StartError, StartOptions, checked_membership};
use crate::codec;
use crate::ledger::LogIndex;
use crate::peer::{Lane, Link, Network};
use crate::runtime;
use crate::storage::{CheckpointHeader, Checkpoints, LogPosition, PageDesk, is_full};

/// How long one message of a fetched checkpoint may take.
const MESSAGE_MAX: Duration = Duration::from_secs(10);
/// How long to wait before everybody is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Fetches a checkpoint from any member that has one at or past the purge point.
pub(super) async fn fetch(
    checkpoints: &Checkpoints,
    desk: &PageDesk,
    network: &Network,
    options: &StartOptions,
    purged: LogPosition,
) -> Result<Loaded, StartError> {
    let shard = options.shard;
    let until = runtime::now() + options.fetch_max;
    loop {
        for peer in options.peers.others(options.node) {
            let node = peer.node;
            let link = network.link(peer, Some(shard), Lane::Snapshot);
            match fetch_from(&link, checkpoints, desk, options, purged.index).await {
                Ok(loaded) => {
                    let at = loaded.position;
                    tracing::info!(%shard, from = %node, ?at, "a checkpoint was fetched");
                    return Ok(loaded);
                }
                // Another member's would not fit either.
                Err(error) if is_full(&error) => return Err(StartError::io(shard, error)),
                Err(error) => tracing::warn!(%shard, from = %node, %error, "no checkpoint there"),
            }
        }
        if runtime::now() + ASK_AGAIN_AFTER >= until {
            return Err(StartError::NoCheckpoint { shard, purged });
        }
        runtime::sleep(ASK_AGAIN_AFTER).await;
    }
}

/// Fetches the checkpoint that this member has, or makes, at or past `reach`.
pub(super) async fn fetch_from(
    link: &Link,
    checkpoints: &Checkpoints,
    desk: &PageDesk,
    options: &StartOptions,
    reach: LogIndex,
) -> io::Result<Loaded> {
    let ask = async |kind: u16, body: Vec<u8>| {
        let deadline = runtime::now() + MESSAGE_MAX;
        link.send(kind, body.into(), deadline).await.map_err(io::Error::other)
    };
    let wanted = codec::encode(&reach).map_err(io::Error::other)?;
    let header = ask(kind::FETCH_HEADER, wanted).await?;
    let header: Option<CheckpointHeader> = codec::decode(&header).map_err(io::Error::other)?;
    let header = header.ok_or_else(|| io::Error::other("that member has no checkpoint"))?;
    if header.state.position.map(|at| at.index) < Some(reach) {
        return Err(io::Error::other("that member's checkpoint ends before this log begins"));
    }
    let membership = checked_membership(&header)?;
    let mut incoming = Incoming::begin(checkpoints, header).await?;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let body = codec::encode(&after).map_err(io::Error::other)?;
        let pages = ask(kind::FETCH_PAGES, body).await?;
        let pages: Vec<WirePage> = codec::decode(&pages).map_err(io::Error::other)?;
        let Some((last, _)) = pages.last() else { break };
        after = Some(last.clone());
        incoming.write(pages).await?;
    }
    let (shard, settings) = (options.shard, options.settings.clone());
    let received = desk.run(move || incoming.finish(shard, settings)).await??;
    let header = received.receiver.finish(&received.header).await?;
    Ok(Loaded { ledger: received.ledger, position: header.state.position, membership })
}
