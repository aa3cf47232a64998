//! The node's desk as HTTP has it: what a caller asks goes to the node's part, when it has one.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::office::{Office, Phase};
use super::room::{floor_bytes, log_status};
use super::running::run_on;
use crate::ledger::{ShardId, UnixMs};
use crate::runtime::{self, Instant};
use crate::shard::{
    Admitted, Adopt, Adopted, Claim, Desk, MemberSpec, NodeStatus, Order, Ordered, Rejected, Reply,
    Request, SchemaStatus, Sight, uuid_hex,
};

/// A handle to a node's desk, as HTTP holds it.
#[derive(Debug, Clone)]
pub struct Counter(pub Arc<Office>);

impl Counter {
    /// Changes what the node is, to the end: a caller who goes away half-way must not leave it
    /// neither here nor there.
    fn to_its_end<T, F>(
        &self,
        change: impl FnOnce(Arc<Office>) -> F,
    ) -> BoxFuture<'static, Result<T, String>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let work = change(Arc::clone(&self.0));
        let front = Arc::clone(&self.0.front);
        Box::pin(async move {
            run_on(&front, work).await.map_err(|error| format!("the node is stopping: {error}"))?
        })
    }
}

impl Desk for Counter {
    fn ask(&self, request: Request) -> BoxFuture<'static, Reply> {
        match self.0.running() {
            Some(running) => {
                let router = Arc::clone(&running.router);
                Box::pin(async move { router.answer(request).await })
            }
            None => {
                let reply = self.0.not_serving();
                Box::pin(async move { reply })
            }
        }
    }

    fn ask_many(&self, requests: Vec<Request>) -> BoxFuture<'static, Vec<Reply>> {
        match self.0.running() {
            Some(running) => {
                let router = Arc::clone(&running.router);
                Box::pin(async move { router.answer_all(requests).await })
            }
            None => {
                let replies = vec![self.0.not_serving(); requests.len()];
                Box::pin(async move { replies })
            }
        }
    }

    fn status(&self) -> NodeStatus {
        let uptime = runtime::now() - self.0.started;
        let mut status = NodeStatus {
            http_addr: self.0.config.http.advertised(),
            region: self.0.config.node.region.clone(),
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            wall_clock: UnixMs(self.0.parts.clock.now().0),
            name: self.0.config.node.name.clone(),
            schema: SchemaStatus {
                reads: super::schema::reads(&self.0.config),
                ..SchemaStatus::default()
            },
            ..NodeStatus::default()
        };
        match &*self.0.phase.lock() {
            Phase::Empty => {}
            Phase::Adopted { identity, .. } => status.node = identity.node,
            Phase::Stopped(end) => {
                status.stopped = Some(end.why.clone());
                status.ended_for_good = end.for_good;
                status.log = end.log.clone();
                if let Some(identity) = &end.identity {
                    status.cluster_id = Some(uuid_hex(&identity.cluster_id));
                    status.node = identity.node;
                }
            }
            Phase::Running(running) => {
                status.cluster_id = Some(uuid_hex(&running.identity.cluster_id));
                status.node = running.identity.node;
                status.members = running.router.members();
                status.shards = running.shards.iter().map(|shard| shard.status()).collect();
                status.clocks = running.clocks.status();
                status.abstains = running.abstains();
                status.schema.active = running.router.schema_here().0;
                status.stock = running.router.stock_traffic();
                status.log = log_status(running);
            }
        }
        // The disk is there whatever the node is.
        let (disk, dir) = (&self.0.parts.disk, self.0.dir());
        status.log.disk_free_bytes = disk.free_bytes(&dir).unwrap_or(0);
        status.log.disk_total_bytes = disk.total_bytes(&dir).unwrap_or(0);
        status.log.disk_floor_bytes = floor_bytes(&self.0.config);
        status
    }

    fn shards(&self) -> Vec<ShardId> {
        let running = self.0.running();
        running.map(|own| own.shards.iter().map(|one| one.shard()).collect()).unwrap_or_default()
    }

    fn adopt(&self, offer: Adopt) -> BoxFuture<'static, Result<Adopted, String>> {
        self.to_its_end(|office| async move { office.take_identity(offer).await })
    }

    fn begin(&self, members: Vec<MemberSpec>) -> BoxFuture<'static, Result<(), String>> {
        self.to_its_end(|office| async move { office.take_members(members).await })
    }

    fn sight(&self, deadline: Instant) -> BoxFuture<'static, Result<Sight, Rejected>> {
        let running = self.0.running().ok_or_else(|| self.0.no_part());
        Box::pin(async move {
            let router = Arc::clone(&running?.router);
            Ok(router.sight(deadline).await?.0)
        })
    }

    fn order(
        &self,
        order: Order,
        rehearsal: bool,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Ordered, Rejected>> {
        let running = self.0.running().ok_or_else(|| self.0.no_part());
        let secret = (self.0.parts.random)();
        Box::pin(async move {
            let router = Arc::clone(&running?.router);
            router.order(order, rehearsal, secret, deadline).await
        })
    }

    fn admit(
        &self,
        claim: Claim,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Admitted, Rejected>> {
        let running = self.0.running().ok_or_else(|| self.0.no_part());
        Box::pin(async move {
            let running = running?;
            let (cluster_id, settings) =
                (running.identity.cluster_id, running.identity.settings.clone());
            let router = Arc::clone(&running.router);
            drop(running);
            let admission = router.admit(claim, deadline).await?;
            Ok(Admitted { cluster_id, settings, admission })
        })
    }
}
