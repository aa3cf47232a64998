//! Comparing replicas: each tells its digest at an index that a log entry named.
//!
//! The same ledger and the same entries make the same digest. A replica is asked on a connection of
//! its own on the vote lane; one that has not applied the entry yet is asked again.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::network::kind;
use super::replica::Accusation;
use crate::codec;
use crate::ledger::{LogIndex, NodeId};
use crate::peer::{Address, Lane, Link};
use crate::runtime::{self, Instant};

/// How long a replica that is behind rests before it is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What a replica says of its digest at an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Told {
    /// It was this.
    At(u128),
    /// The entry is not applied yet.
    NotYet,
    /// The entry was applied and its digest is not remembered.
    Forgotten,
}

impl Group {
    /// Tells this replica's digest at an index.
    pub(super) fn tell_digest(&self, index: LogIndex) -> Told {
        let state = self.replica.read();
        match state.digest_at(index) {
            Some(digest) => Told::At(digest),
            None if state.applied.is_none_or(|at| at.index < index) => Told::NotYet,
            None => Told::Forgotten,
        }
    }

    /// Asks every voter for its digest at an index, this node included, until `deadline`. Those
    /// that do not know it are left out.
    pub async fn digests_at(&self, index: LogIndex, deadline: Instant) -> BTreeMap<NodeId, u128> {
        let own = self.origin.options.node;
        let asked = self.state().voters.into_iter().map(|voter| async move {
            let digest = if voter == own {
                match self.tell_digest(index) {
                    Told::At(digest) => Some(digest),
                    Told::NotYet | Told::Forgotten => None,
                }
            } else {
                self.digest_of(voter, index, deadline).await
            };
            Some((voter, digest?))
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn digest_of(&self, node: NodeId, index: LogIndex, deadline: Instant) -> Option<u128> {
        let link = self.compare_link(node)?;
        let body = codec::encode(&index).ok()?;
        while runtime::now() < deadline {
            let answer = link.send(kind::DIGEST, body.clone().into(), deadline).await;
            match answer.ok().and_then(|bytes| codec::decode::<Told>(&bytes).ok()) {
                Some(Told::At(digest)) => return Some(digest),
                Some(Told::NotYet) => runtime::sleep(AGAIN_AFTER).await,
                Some(Told::Forgotten) | None => return None,
            }
        }
        None
    }

    /// Tells a replica that it differs from a majority. It looks into that itself.
    ///
    /// # Errors
    ///
    /// Words, when it could not be told.
    pub async fn accuse(
        &self,
        node: NodeId,
        accusation: Accusation,
        deadline: Instant,
    ) -> Result<(), String> {
        if node == self.origin.options.node {
            self.replica.accuse(accusation);
            return Ok(());
        }
        let link = self.compare_link(node).ok_or("it is no member")?;
        let body = codec::encode(&accusation).map_err(|error| error.to_string())?;
        let sent = link.send(kind::ACCUSE, body.into(), deadline).await;
        sent.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Returns the connection on which a member is asked.
    fn compare_link(&self, node: NodeId) -> Option<Link> {
        let member = self.replica.read().member(node)?;
        let to = Address { node, log_uuid: member.log_uuid, addr: member.peer_addr };
        let mut links = self.origin.links.lock();
        if let Some(link) = links.get(&node)
            && link.to() == &to
        {
            return Some(link.clone());
        }
        let link = self.origin.network.link(to, Some(self.shard()), Lane::Vote);
        links.insert(node, link.clone());
        Some(link)
    }
}
