//! `serve --join`: a new, empty machine becomes a node of a running cluster.
//!
//! It draws the uuid of its log and writes it down before it asks, so that the same machine may ask
//! again after a crash, with the token that it has used, and another one may not. Then it takes the
//! id that it is given as it would at `cluster init`, keeps the members, and starts as a learner of
//! nothing: the leaders of the shards take it in.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::json;

use super::office::{Office, Phase};
use crate::client::{CallError, Client, ClientConfig};
use crate::codec;
use crate::ledger::{NodeId, Settings};
use crate::runtime;
use crate::shard::{Adopt, MemberSpec, uuid_bytes, uuid_hex};
use crate::storage::{Disk, read_if_there, write_durably};

const FILE: &str = "joining";
const KIND: u16 = 0x0403;
const VERSION: u16 = 1;
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 10;
/// How long a cluster that does not answer rests before it is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long one attempt may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// Reads the uuid that was drawn for the log of a join under way, or draws one and writes it down.
fn drawn(
    disk: &dyn Disk,
    dir: &Path,
    draw: impl FnOnce() -> [u8; 16],
) -> std::io::Result<[u8; 16]> {
    if let Some(bytes) = read_if_there(disk, &dir.join(FILE), BYTES_MAX)? {
        let read = codec::open(KIND, VERSION, &bytes).and_then(codec::decode);
        return read.map_err(std::io::Error::other);
    }
    let uuid = draw();
    let payload = codec::encode(&uuid).map_err(std::io::Error::other)?;
    write_durably(disk, dir, FILE, &codec::seal(KIND, VERSION, &payload))?;
    Ok(uuid)
}

/// Tells whether a join is under way: a machine with a token is told by nobody else who it is.
pub(super) fn is_under_way(disk: &dyn Disk, dir: &Path) -> bool {
    !matches!(read_if_there(disk, &dir.join(FILE), BYTES_MAX), Ok(None))
}

/// What the cluster answers.
#[derive(Debug, serde::Deserialize)]
struct Admitted {
    cluster_id: String,
    node: u64,
    settings: crate::api::ClusterSettings,
    members: Vec<crate::api::Member>,
}

impl Admitted {
    fn adopt(&self) -> Result<Adopt, String> {
        let settings = &self.settings;
        let tag_key = uuid_bytes(&settings.tag_key).ok_or("the answer has no tag key")?;
        Ok(Adopt {
            cluster_id: self.cluster_id.clone(),
            node: NodeId(self.node),
            settings: Settings {
                shards: settings.shards,
                tag_key,
                slots: settings.slots,
                sweep_max: settings.sweep_max,
                receipt_retention_ms: settings.receipt_retention_ms,
                sold_retention_ms: settings.sold_retention_ms,
            },
        })
    }

    fn members(&self) -> Vec<MemberSpec> {
        let members = self.members.iter().map(|member| MemberSpec {
            node: NodeId(member.node),
            log_uuid: member.log_uuid.clone(),
            peer_addr: member.peer_addr.clone(),
            http_addr: member.http_addr.clone(),
            region: member.region.clone(),
        });
        members.collect()
    }
}

impl Office {
    /// Joins the cluster that answers at one of these URLs, with a token of `holdfast node add`.
    /// Asks until somebody answers; does nothing on a node that belongs to a cluster already, or
    /// that was removed from one: it goes on saying why it serves nothing.
    ///
    /// # Errors
    ///
    /// Words: the cluster refused, or this machine is in no state to join.
    pub async fn join(self: &Arc<Office>, urls: &[String], token: &str) -> Result<(), String> {
        let Some(claim) = self.claim(token)? else {
            tracing::info!("this node has come to a cluster before: --join does nothing");
            return Ok(());
        };
        let config = ClientConfig { operation_within: ATTEMPT_MAX, ..ClientConfig::new(urls) };
        let client = Client::new(config).map_err(|error| error.to_string())?;
        let admitted = loop {
            let key = client.fresh_key();
            let path = "/admin/v1/join";
            let asked =
                client.send(Method::POST, path, Some(&claim), Some(&key), client.deadline());
            match asked.await {
                Ok(answer) => break answer.body,
                Err(CallError::Refused(problem)) if problem.status < 500 => {
                    return Err(format!(
                        "the cluster did not let this node in: {}",
                        problem.detail
                    ));
                }
                Err(error) => {
                    tracing::warn!(%error, "the cluster cannot be asked to let this node in yet");
                    runtime::sleep(AGAIN_AFTER).await;
                }
            }
        };
        let office = Arc::clone(self);
        let joined =
            super::running::run_on(&self.front, async move { office.enter(admitted).await });
        joined.await.map_err(|error| error.to_string())?
    }

    /// Returns what this machine says of itself to be let in (the body of `POST /admin/v1/join`);
    /// `None` on a node that belongs to a cluster already.
    ///
    /// # Errors
    ///
    /// Words: this machine is in no state to join.
    pub fn claim(&self, token: &str) -> Result<Option<serde_json::Value>, String> {
        let Some(log_uuid) = self.joins_with()? else { return Ok(None) };
        Ok(Some(json!({
            "token": token,
            "log_uuid": uuid_hex(&log_uuid),
            "peer_addr": self.config.peer.advertised(),
            "http_addr": self.config.http.advertised(),
            "region": self.config.node.region,
            "schema_newest": super::schema::reads(&self.config).newest.0,
        })))
    }

    /// Takes the answer to a claim: becomes the node that it names, and starts.
    ///
    /// # Errors
    ///
    /// Words: the answer is none, or the node does not start.
    pub async fn enter(self: Arc<Office>, answer: serde_json::Value) -> Result<(), String> {
        let admitted: Admitted = serde_json::from_value(answer)
            .map_err(|error| format!("the answer is no admission: {error}"))?;
        let Some(log_uuid) = self.joins_with()? else { return Ok(()) };
        let (offer, members) = (admitted.adopt()?, admitted.members());
        let node = offer.node;
        self.take_admission(offer, log_uuid, members).await?;
        tracing::info!(%node, "this node has joined the cluster: its shards take it in");
        Ok(())
    }

    /// Returns the log uuid under which this node may ask to be let in; `None` when it belongs to
    /// a cluster, or did.
    fn joins_with(&self) -> Result<Option<[u8; 16]>, String> {
        match &*self.phase.lock() {
            Phase::Empty => {
                let drawn = drawn(self.parts.disk.as_ref(), &self.dir(), || (self.parts.random)());
                drawn.map(Some).map_err(|error| format!("the file {FILE}: {error}"))
            }
            Phase::Adopted { identity, .. } => Ok(Some(identity.log_uuid)),
            Phase::Running(_) | Phase::Stopped(_) => Ok(None),
        }
    }

    async fn take_admission(
        self: Arc<Office>,
        offer: Adopt,
        log_uuid: [u8; 16],
        members: Vec<MemberSpec>,
    ) -> Result<(), String> {
        let _one = self.changing.lock().await;
        let cluster_id = uuid_bytes(&offer.cluster_id).ok_or("the answer has no cluster id")?;
        let adopted = match &*self.phase.lock() {
            Phase::Adopted { identity, .. } => Some((identity.node, identity.cluster_id)),
            Phase::Empty | Phase::Running(_) | Phase::Stopped(_) => None,
        };
        match adopted {
            None => drop(self.make_identity(cluster_id, offer, log_uuid)?),
            Some(own) => is_admitted(own, (offer.node, cluster_id))?,
        }
        self.keep_members(&members)
            .map_err(|error| format!("the members cannot be kept: {error}"))?;
        self.start(members).await.map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// Compares what a machine was adopted as with what it is let in as.
fn is_admitted(own: (NodeId, [u8; 16]), admitted: (NodeId, [u8; 16])) -> Result<(), String> {
    if own == admitted {
        return Ok(());
    }
    let say = |(node, cluster): (NodeId, [u8; 16])| {
        format!("node {node} of cluster {}", uuid_hex(&cluster))
    };
    Err(format!(
        "this machine was told to be {} and is let in as {}: empty its data directory, and start \
         it again with a new token",
        say(own),
        say(admitted)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::RealDisk;

    /// Simulator seed 140179: it entered as the one and went on as the other.
    #[test]
    fn a_machine_that_was_told_to_be_another_node_does_not_enter() {
        let (mine, other) = ([1; 16], [2; 16]);
        assert_eq!(is_admitted((NodeId(4), mine), (NodeId(4), mine)), Ok(()));
        for admitted in [(NodeId(5), mine), (NodeId(4), other)] {
            let why = is_admitted((NodeId(4), mine), admitted).expect_err("not the same");
            assert!(why.contains("empty its data directory"), "{why}");
        }
    }

    #[test]
    fn a_machine_asks_again_under_the_log_that_it_drew_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = drawn(&RealDisk, dir.path(), || [7; 16]).expect("drawn");
        let again = drawn(&RealDisk, dir.path(), || [8; 16]).expect("read");
        assert_eq!((first, again), ([7; 16], [7; 16]));
    }
}
