//! The operators' calls: the cluster, the digests, and the two steps of `cluster init`.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::response::Response;

use super::call::Call;
use super::fields::{Broken, Fields};
use super::front::Front;
use super::health;
use super::holds::sound;
use super::problem::{Failure, Stamp};
use super::{trouble, wire};
use crate::api::{self, ProblemKind};
use crate::ledger::{NodeId, SchemaRange, Settings};
use crate::shard::{Adopt, LogStatus, MemberSpec, NodeStatus, Role, ShardStatus};

/// The most members that `begin` takes.
const MEMBERS_MAX: usize = 64;
/// The longest address or region of a member, in bytes.
const ADDRESS_BYTES_MAX: usize = 255;

/// `GET /admin/v1/cluster`
pub(crate) fn cluster(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let status = front.desk.status();
    Ok(wire::json(StatusCode::OK, &view(&status), &Stamp::default()))
}

fn view(status: &NodeStatus) -> api::Cluster {
    let failures_tolerated = status
        .shards
        .iter()
        .map(|shard| match shard.leader {
            Some(_) if shard.failed.is_none() => (shard.voters.len().max(1) - 1) / 2,
            Some(_) | None => 0,
        })
        .min()
        .unwrap_or(0);
    api::Cluster {
        cluster_id: status.cluster_id.clone(),
        node: status.node.0,
        name: status.name.clone(),
        http_addr: status.http_addr.clone(),
        nodes: status.members.iter().map(|member| node(member, status)).collect(),
        shards: status.shards.iter().map(shard).collect(),
        failures_tolerated: u64::try_from(failures_tolerated).unwrap_or(u64::MAX),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema: api::Schema { active: status.schema.active.0, reads: range(status.schema.reads) },
        disk: disk(&status.log),
        clock: api::NodeClock {
            agrees: status.clocks.agrees,
            wild: status.clocks.wild,
            offset_ms_max: status.clocks.offset_ms_max,
        },
        troubles: trouble::troubles(status),
        wall_clock: wire::time(status.wall_clock),
        uptime_ms: status.uptime_ms,
        stopped: status.stopped.clone(),
    }
}

/// Shows the schema versions that a node reads.
pub(crate) fn range(reads: SchemaRange) -> api::SchemaRange {
    api::SchemaRange { oldest: reads.oldest.0, newest: reads.newest.0 }
}

fn disk(log: &LogStatus) -> api::NodeDisk {
    api::NodeDisk {
        free_bytes: log.disk_free_bytes,
        total_bytes: log.disk_total_bytes,
        floor_bytes: log.disk_floor_bytes,
        full: log.disk_full,
        ballast_released: log.ballast_released,
        waits_for_room_ms: log.waits_for_room_ms,
        log_failed: log.failed.clone(),
        oldest_unsynced_ms: log.oldest_unsynced_ms,
        sync_p50_us: log.sync_p50_us,
        sync_p99_us: log.sync_p99_us,
    }
}

fn node(member: &MemberSpec, status: &NodeStatus) -> api::Node {
    let leads = |shard: &&ShardStatus| shard.leader.is_some_and(|l| l.node == member.node);
    let lag = status
        .shards
        .iter()
        .filter(|shard| shard.role == Role::Leader)
        .filter_map(|shard| {
            let (_, matched) = shard.matched.iter().find(|(node, _)| *node == member.node)?;
            Some(shard.last_log.0.saturating_sub(matched.0))
        })
        .max();
    let offset = status.clocks.offset_ms.iter().find(|(node, _)| *node == member.node);
    api::Node {
        clock_offset_ms: offset.map(|(_, ms)| *ms),
        id: member.node.0,
        http_addr: member.http_addr.clone(),
        peer_addr: member.peer_addr.clone(),
        region: member.region.clone(),
        answers: member.node == status.node
            || status.clocks.offset_ms.iter().any(|(node, _)| *node == member.node),
        leads: status.shards.iter().filter(leads).map(|shard| shard.shard.0).collect(),
        lag,
    }
}

/// Returns the word of a role.
pub(crate) fn role_word(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Stopped => "stopped",
    }
}

fn shard(shard: &ShardStatus) -> api::Shard {
    api::Shard {
        shard: shard.shard.0,
        role: role_word(shard.role).to_owned(),
        leader: shard.leader.map(|leader| leader.node.0),
        preferred: shard.preferred.map(|node| node.0),
        term: shard.term,
        voters: shard.voters.iter().map(|node| node.0).collect(),
        learners: shard.learners.iter().map(|node| node.0).collect(),
        last_log: shard.last_log.0,
        applied: shard.applied.0,
        quorum_age_ms: shard.quorum_age_ms,
        checkpoint_age_ms: shard.checkpoint_age_ms,
        paused: shard.paused.map(|reason| reason.word().to_owned()),
        failed: shard.failed.clone(),
    }
}

/// `GET /admin/v1/digest`
pub(crate) fn digest(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let status = front.desk.status();
    if status.shards.is_empty() {
        return Err(Failure::new(ProblemKind::NotServing, health::no_shards(&status)));
    }
    let digests = api::Digests {
        node: status.node.0,
        shards: status
            .shards
            .into_iter()
            .map(|shard| api::Digest {
                shard: shard.shard.0,
                applied: shard.applied.0,
                digest: shard.digest,
                ledger_now: wire::time(shard.ledger_now),
            })
            .collect(),
    };
    Ok(wire::json(StatusCode::OK, &digests, &Stamp::default()))
}

/// `POST /admin/v1/adopt`
pub(crate) async fn adopt(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    let cluster_id = fields.hex16("cluster_id", &mut broken);
    let cluster_id = fields.require("cluster_id", cluster_id, &mut broken);
    let node = fields.units("node", &mut broken);
    let node = fields.require("node", node, &mut broken);
    let settings = fields.object("settings", &mut broken);
    let settings = fields.require("settings", settings, &mut broken);
    let settings = settings.and_then(|settings| read_settings(settings, &mut broken));
    fields.end(&mut broken);
    let offer = cluster_id.zip(node).zip(settings).map(|((cluster, node), settings)| Adopt {
        cluster_id: hex(&cluster),
        node: NodeId(node),
        settings,
    });
    let adopted = front.desk.adopt(sound(offer, broken)?).await.map_err(refused)?;
    let adopted = api::Adopted {
        log_uuid: adopted.log_uuid,
        peer_addr: adopted.peer_addr,
        http_addr: adopted.http_addr,
        region: adopted.region,
    };
    Ok(wire::json(StatusCode::OK, &adopted, &Stamp::default()))
}

fn refused(why: String) -> Failure {
    Failure::new(ProblemKind::ClusterRefused, why)
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

fn read_settings(mut fields: Fields<'_>, broken: &mut Broken) -> Option<Settings> {
    let shards = fields.integer("shards", 1, 256, broken);
    let shards = fields.require("shards", shards, broken);
    let tag_key = fields.hex16("tag_key", broken);
    let tag_key = fields.require("tag_key", tag_key, broken);
    let slots = fields.integer("slots", 1, 4_096, broken);
    let slots = fields.require("slots", slots, broken);
    let sweep_max = fields.integer("sweep_max", 1, 100_000, broken);
    let sweep_max = fields.require("sweep_max", sweep_max, broken);
    let receipts = fields.units("receipt_retention_ms", broken);
    let receipts = fields.require("receipt_retention_ms", receipts, broken);
    let sold = fields.units("sold_retention_ms", broken);
    let sold = fields.require("sold_retention_ms", sold, broken);
    fields.end(broken);
    Some(Settings {
        shards: u16::try_from(shards?).ok()?,
        tag_key: tag_key?,
        slots: u16::try_from(slots?).ok()?,
        sweep_max: u32::try_from(sweep_max?).ok()?,
        receipt_retention_ms: receipts?,
        sold_retention_ms: sold?,
    })
}

/// `POST /admin/v1/begin`
pub(crate) async fn begin(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    let listed = fields.list("members", &mut broken);
    let listed = fields.require("members", listed, &mut broken).unwrap_or_default();
    fields.end(&mut broken);
    if listed.len() > MEMBERS_MAX || (listed.is_empty() && broken.0.is_empty()) {
        broken.add("members", format!("has 1 to {MEMBERS_MAX} entries"));
    }
    let mut members: Vec<MemberSpec> = Vec::new();
    for (at, member) in listed.into_iter().take(MEMBERS_MAX).enumerate() {
        let Some(fields) = Fields::of(member, format!("members.{at}."), &mut broken) else {
            continue;
        };
        if let Some(member) = read_member(fields, &mut broken) {
            if members.iter().any(|known| known.node == member.node) {
                broken.add(format!("members.{at}.node"), "is another node's already");
            }
            members.push(member);
        }
    }
    let members = sound(Some(members), broken)?;
    let told = u64::try_from(members.len()).unwrap_or(u64::MAX);
    front.desk.begin(members).await.map_err(refused)?;
    Ok(wire::json(StatusCode::OK, &api::Begun { members: told }, &Stamp::default()))
}

fn read_member(mut fields: Fields<'_>, broken: &mut Broken) -> Option<MemberSpec> {
    let node = fields.units("node", broken);
    let node = fields.require("node", node, broken);
    let log_uuid = fields.hex16("log_uuid", broken);
    let log_uuid = fields.require("log_uuid", log_uuid, broken);
    let mut address = |name: &str| fields.address(name, ADDRESS_BYTES_MAX, broken);
    let (peer_addr, http_addr) = (address("peer_addr"), address("http_addr"));
    let region = fields.text("region", ADDRESS_BYTES_MAX, broken);
    let region = fields.require("region", region, broken).map(Cow::into_owned);
    fields.end(broken);
    Some(MemberSpec {
        node: NodeId(node?),
        log_uuid: hex(&log_uuid?),
        peer_addr: peer_addr?,
        http_addr: http_addr?,
        region: region?,
    })
}
