//! The operators' calls that change the nodes: list, add, promote, demote, drain, remove, replace,
//! and the shards' leaderships and checkpoints. What may be done is judged below; here it is read
//! and shown.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;

use super::call::{Call, Parameters};
use super::fields::Broken;
use super::front::Front;
use super::holds::sound;
use super::problem::{Failure, Stamp, not_found};
use super::wire;
use crate::api::{self, ProblemKind};
use crate::ledger::{
    NodeId, NodeOperation, OperationKind, OperationState, OperationStep, SchemaRange,
    SchemaVersion, Seat, SeatRole, ShardId,
};
use crate::runtime;
use crate::shard::{Claim, Order, Ordered, Plan, Rejected, Sight, progress, step_words, uuid_hex};

/// How long a token lets somebody in when nobody says.
const VALID_MS: u64 = 3_600_000;
/// The shortest and the longest life of a token, in ms.
const VALID_MS_BOUNDS: (u64, u64) = (1_000, 604_800_000);
/// The longest address, region or token, in bytes.
const TEXT_BYTES_MAX: usize = 255;

fn failure(rejected: Rejected) -> Failure {
    match rejected {
        Rejected::Rule(rule) => {
            let known = ["node-is-known", "operation-is-known", "shard-is-known"];
            let kind = if known.contains(&rule.name) {
                ProblemKind::NotFound
            } else {
                ProblemKind::ClusterRefused
            };
            let mut failure = Failure::new(kind, rule.words);
            failure.problem.reason = Some(rule.name.to_owned());
            failure
        }
        Rejected::Unavailable(words) => Failure::new(ProblemKind::NotServing, words),
        Rejected::Unknown(words) => Failure::new(ProblemKind::OutcomeUnknown, words),
    }
}

fn number(call: &Call, at: usize, what: &str) -> Result<u64, Failure> {
    let text = call.id_in_path(at, what)?;
    text.parse().map_err(|_| Failure::from(not_found(what)))
}

fn node_in_path(call: &Call) -> Result<NodeId, Failure> {
    number(call, 3, "node").map(NodeId)
}

fn shard_in_path(call: &Call) -> Result<ShardId, Failure> {
    let number = number(call, 3, "shard")?;
    u16::try_from(number).map(ShardId).map_err(|_| Failure::from(not_found("shard")))
}

fn flag(parameters: &Parameters, name: &str) -> Result<bool, Failure> {
    match parameters.text(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Failure::malformed(format!("`{name}` is true or false."))),
    }
}

/// `GET /admin/v1/nodes`
pub(crate) async fn list(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let sight = front.desk.sight(call.deadline()?).await.map_err(failure)?;
    let nodes = sight.roster.nodes.iter().map(|(node, seat)| node_of(*node, seat, &sight));
    let list = api::NodeList {
        schema_version: sight.schema.0,
        nodes: nodes.collect(),
        operations: operations_of(&sight),
    };
    Ok(wire::json(StatusCode::OK, &list, &Stamp::default()))
}

/// `GET /admin/v1/operations`
pub(crate) async fn operations(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let sight = front.desk.sight(call.deadline()?).await.map_err(failure)?;
    let list = api::OperationList { operations: operations_of(&sight) };
    Ok(wire::json(StatusCode::OK, &list, &Stamp::default()))
}

/// `GET /admin/v1/operations/{id}`
pub(crate) async fn operation(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let id = number(call, 3, "operation")?;
    let sight = front.desk.sight(call.deadline()?).await.map_err(failure)?;
    let Some(operation) = sight.roster.operations.get(&id) else {
        return Err(not_found("operation").into());
    };
    let shown = operation_of(id, operation, &sight);
    Ok(wire::json(StatusCode::OK, &shown, &Stamp::default()))
}

/// `GET /admin/v1/shards`
pub(crate) async fn shards(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let sight = front.desk.sight(call.deadline()?).await.map_err(failure)?;
    let known = front.desk.status().shards;
    let preferred = |shard: ShardId| {
        let known = known.iter().find(|known| known.shard == shard)?;
        known.preferred.map(|node| node.0)
    };
    let shards = sight
        .all_shards()
        .map(|shard| api::ShardMembers { preferred: preferred(shard), ..shard_of(shard, &sight) });
    let shards = shards.collect();
    Ok(wire::json(StatusCode::OK, &api::ShardList { shards }, &Stamp::default()))
}

/// `POST /admin/v1/nodes`
pub(crate) async fn add(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["dry_run"])?;
    let mut broken = Broken::default();
    let mut fields = call.fields(true)?;
    let learner = fields.flag("learner", &mut broken).unwrap_or(false);
    let (min, max) = VALID_MS_BOUNDS;
    let valid_ms = fields.integer("valid_ms", min, max, &mut broken).unwrap_or(VALID_MS);
    let region = fields.text("region", TEXT_BYTES_MAX, &mut broken).map(Cow::into_owned);
    fields.end(&mut broken);
    let valid = Duration::from_millis(valid_ms);
    let order = sound(Some(Order::Add { learner, valid, region }), broken)?;
    give(front, call, order, flag(&parameters, "dry_run")?).await
}

/// `POST /admin/v1/nodes/{id}/replace`
pub(crate) async fn replace(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["dry_run"])?;
    let node = node_in_path(call)?;
    let mut broken = Broken::default();
    let mut fields = call.fields(true)?;
    let (min, max) = VALID_MS_BOUNDS;
    let valid_ms = fields.integer("valid_ms", min, max, &mut broken).unwrap_or(VALID_MS);
    fields.end(&mut broken);
    let valid = Duration::from_millis(valid_ms);
    let order = sound(Some(Order::Replace { node, valid }), broken)?;
    give(front, call, order, flag(&parameters, "dry_run")?).await
}

/// `POST /admin/v1/nodes/{id}/promote`, `/demote`, `/drain`, `/undrain`, `DELETE …/{id}`
pub(crate) async fn change(
    front: &Front,
    call: &Call,
    kind: OperationKind,
) -> Result<Response, Failure> {
    let node = node_in_path(call)?;
    let shrinks = matches!(kind, OperationKind::Demote | OperationKind::Remove);
    let known: &[&'static str] = if shrinks { &["dry_run", "allow_fewer"] } else { &["dry_run"] };
    let parameters = call.query(known)?;
    let fewer = flag(&parameters, "allow_fewer")?;
    let order = match kind {
        OperationKind::Promote => Order::Promote { node },
        OperationKind::Demote => Order::Demote { node, fewer },
        OperationKind::Drain => Order::Drain { node },
        OperationKind::Undrain => Order::Undrain { node },
        OperationKind::Add
        | OperationKind::AddLearner
        | OperationKind::Replace
        | OperationKind::Remove => Order::Remove { node, fewer },
    };
    give(front, call, order, flag(&parameters, "dry_run")?).await
}

/// `POST /admin/v1/operations/{id}/cancel`
pub(crate) async fn cancel(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let operation = number(call, 3, "operation")?;
    give(front, call, Order::Cancel { operation }, false).await
}

/// `POST /admin/v1/shards/{shard}/leader`
pub(crate) async fn move_leader(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["dry_run"])?;
    let shard = shard_in_path(call)?;
    let mut broken = Broken::default();
    let mut fields = call.fields(true)?;
    let to = fields.units("node", &mut broken).map(NodeId);
    fields.end(&mut broken);
    let order = sound(Some(Order::Transfer { shard, to }), broken)?;
    give(front, call, order, flag(&parameters, "dry_run")?).await
}

/// `POST /admin/v1/shards/{shard}/checkpoint`
pub(crate) async fn checkpoint(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["dry_run"])?;
    let order = Order::Checkpoint { shard: shard_in_path(call)? };
    give(front, call, order, flag(&parameters, "dry_run")?).await
}

/// `POST /admin/v1/cluster/upgrade`
pub(crate) async fn upgrade(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["dry_run"])?;
    give(front, call, Order::Upgrade, flag(&parameters, "dry_run")?).await
}

async fn give(
    front: &Front,
    call: &Call,
    order: Order,
    rehearsal: bool,
) -> Result<Response, Failure> {
    let deadline = call.deadline()?;
    let ordered = runtime::timeout_at(deadline, front.desk.order(order, rehearsal, deadline)).await;
    let ordered = ordered.map_err(|runtime::Elapsed| {
        let words = "It may have been taken: look at /admin/v1/operations.";
        Failure::new(ProblemKind::OutcomeUnknown, words)
    })?;
    let ordered = ordered.map_err(failure)?;
    Ok(match ordered {
        Ordered::Planned(plan) => {
            let Plan { steps, warnings } = plan;
            let plan = api::NodePlan { steps, warnings };
            wire::json(StatusCode::OK, &plan, &Stamp::default())
        }
        Ordered::Done(done) => {
            wire::json(StatusCode::OK, &api::NodeDone { done }, &Stamp::default())
        }
        Ordered::Begun(ruling) => {
            let operation = ruling.sight.roster.operations.get(&ruling.id);
            let operation = operation.map(|one| operation_of(ruling.id, one, &ruling.sight));
            let change = api::NodeChange {
                operation: operation.unwrap_or_default(),
                warnings: ruling.plan.warnings,
                token: ruling.token,
            };
            let mut response = wire::json(StatusCode::ACCEPTED, &change, &Stamp::default());
            let location = HeaderValue::try_from(format!("/admin/v1/operations/{}", ruling.id));
            let location = location.expect("a path of digits");
            response.headers_mut().insert(header::LOCATION, location);
            response
        }
    })
}

/// `POST /admin/v1/join`
pub(crate) async fn join(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    let log_uuid = fields.hex16("log_uuid", &mut broken);
    let log_uuid = fields.require("log_uuid", log_uuid, &mut broken);
    let mut text = |name: &str| {
        let read = fields.text(name, TEXT_BYTES_MAX, &mut broken);
        fields.require(name, read, &mut broken).map(Cow::into_owned)
    };
    let (token, region) = (text("token"), text("region"));
    let mut address = |name: &str| fields.address(name, TEXT_BYTES_MAX, &mut broken);
    let (peer_addr, http_addr) = (address("peer_addr"), address("http_addr"));
    let newest = fields.integer("schema_newest", 1, u64::from(u16::MAX), &mut broken);
    // A build from before there were several does not say.
    let newest = newest.and_then(|newest| u16::try_from(newest).ok()).map(SchemaVersion);
    let reads = SchemaRange::up_to(newest.unwrap_or_default());
    fields.end(&mut broken);
    let claim = (|| {
        Some(Claim {
            token: token?,
            log_uuid: log_uuid?,
            peer_addr: peer_addr?,
            http_addr: http_addr?,
            region: region?,
            reads,
        })
    })();
    let claim = sound(claim, broken)?;
    let admitted = front.desk.admit(claim, call.deadline()?).await.map_err(failure)?;
    let settings = admitted.settings;
    let members = admitted.admission.members.into_iter().map(|member| api::Member {
        node: member.node.0,
        log_uuid: member.log_uuid,
        peer_addr: member.peer_addr,
        http_addr: member.http_addr,
        region: member.region,
    });
    let joined = api::Joined {
        cluster_id: uuid_hex(&admitted.cluster_id),
        node: admitted.admission.node.0,
        operation: admitted.admission.operation,
        settings: api::ClusterSettings {
            shards: settings.shards,
            tag_key: uuid_hex(&settings.tag_key),
            slots: settings.slots,
            sweep_max: settings.sweep_max,
            receipt_retention_ms: settings.receipt_retention_ms,
            sold_retention_ms: settings.sold_retention_ms,
        },
        members: members.collect(),
    };
    Ok(wire::json(StatusCode::OK, &joined, &Stamp::default()))
}

fn node_of(node: NodeId, seat: &Seat, sight: &Sight) -> api::NodeSeat {
    let leader_is = |shard: &ShardId| sight.leader(*shard).is_some_and(|(lead, _)| lead == node);
    let votes_in = |shard: &ShardId| {
        let leader = sight.leader(*shard).map(|(_, replica)| replica);
        leader.is_some_and(|one| one.voters.iter().any(|set| set.contains(&node)))
    };
    let is_in = |shard: &ShardId| {
        sight.leader(*shard).is_some_and(|(_, replica)| replica.members.contains(&node))
    };
    let leads: Vec<u16> = sight.all_shards().filter(leader_is).map(|shard| shard.0).collect();
    let votes: Vec<u16> = sight.all_shards().filter(votes_in).map(|shard| shard.0).collect();
    let state = match seat.role {
        SeatRole::Invited => "invited",
        SeatRole::Learner if !sight.all_shards().all(|shard| is_in(&shard)) => "joining",
        SeatRole::Learner => "learner",
        SeatRole::Voter if votes.len() < usize::from(sight.shards) => "promoting",
        SeatRole::Voter if seat.drained && !leads.is_empty() => "draining",
        SeatRole::Voter if seat.drained => "drained",
        SeatRole::Voter => "voter",
        SeatRole::Leaving => "leaving",
        SeatRole::Removed => "removed",
    };
    api::NodeSeat {
        id: node.0,
        state: state.to_owned(),
        http_addr: seat.http_addr.clone(),
        peer_addr: seat.peer_addr.clone(),
        region: seat.region.clone(),
        answers: sight.is_alive(node),
        lag: sight.all_shards().filter_map(|shard| sight.lag(shard, node)).max(),
        leads,
        votes,
        since: wire::time(seat.since),
        reads_schema: sight.reads_of(node).map(super::admin::range),
    }
}

fn operations_of(sight: &Sight) -> Vec<api::NodeOperation> {
    let all = sight.roster.operations.iter();
    all.map(|(id, operation)| operation_of(*id, operation, sight)).collect()
}

fn kind_word(kind: OperationKind) -> &'static str {
    crate::shard::kind_word(kind)
}

fn step_word(step: OperationStep) -> &'static str {
    match step {
        OperationStep::AwaitMachine => "await-machine",
        OperationStep::Learn => "learn",
        OperationStep::CatchUp => "catch-up",
        OperationStep::Promote => "promote",
        OperationStep::HandOver => "hand-over",
        OperationStep::Demote => "demote",
        OperationStep::Forget => "forget",
        OperationStep::Tell => "tell",
        OperationStep::End => "end",
    }
}

fn operation_of(id: u64, operation: &NodeOperation, sight: &Sight) -> api::NodeOperation {
    let state = match operation.state {
        OperationState::Waiting => "waiting",
        OperationState::Queued => "queued",
        OperationState::Running => "running",
        OperationState::Done => "done",
        OperationState::Cancelled => "cancelled",
    };
    let steps = progress(operation, sight).into_iter();
    let steps = steps.map(|view| api::OperationStep {
        step: step_word(view.step).to_owned(),
        title: step_words(view.step).to_owned(),
        state: match (view.done, view.step == operation.step) {
            // It is left a moment after it is done; until then it is where the operation stands.
            (true | false, true) if !operation.state.has_ended() => "running",
            (true, true | false) => "done",
            (false, true | false) => "to-come",
        }
        .to_owned(),
        detail: view.detail,
    });
    api::NodeOperation {
        id,
        kind: kind_word(operation.kind).to_owned(),
        node: operation.node.0,
        replaces: operation.replaces.map(|node| node.0),
        state: state.to_owned(),
        steps: steps.collect(),
        note: operation.note.clone(),
        begun_at: wire::time(operation.begun_at),
        changed_at: wire::time(operation.changed_at),
        token_expires_at: operation
            .ticket
            .filter(|_| operation.state == OperationState::Waiting)
            .map(|ticket| wire::time(ticket.expires_at)),
    }
}

fn shard_of(shard: ShardId, sight: &Sight) -> api::ShardMembers {
    let leader = sight.leader(shard);
    let replicas = sight.told.iter().filter_map(|(node, told)| {
        let replica = told.replica(shard)?;
        Some(api::ReplicaOf {
            node: node.0,
            applied: replica.applied.0,
            checkpoint: replica.checkpoint.0,
        })
    });
    let mut shown = api::ShardMembers {
        shard: shard.0,
        leader: leader.map(|(node, _)| node.0),
        replicas: replicas.collect(),
        ..api::ShardMembers::default()
    };
    if let Some((_, one)) = leader {
        let votes = |node: &NodeId| one.voters.iter().any(|set| set.contains(node));
        shown.voters = one.members.iter().filter(|node| votes(node)).map(|node| node.0).collect();
        shown.learners =
            one.members.iter().filter(|node| !votes(node)).map(|node| node.0).collect();
        shown.changing = one.voters.len() > 1 || !one.settled;
        shown.committed = one.committed.0;
    }
    shown
}
