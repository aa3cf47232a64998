//! The router, and what every call goes through: its body is read within bounds, it is dispatched,
//! a failure becomes a problem, and it is counted.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{on, post};
use axum::{Json, Router};
use futures_util::future::Either;
use http_body_util::BodyExt;

use super::call::Call;
use super::count::Counts;
use super::problem::{Failure, Said, Stamp, said};
use super::route::Route;
use super::{
    Limits, admin, batch, health, holds, items, layout, metrics, nodes, openapi, operation, pages,
    receipts, stock,
};
use crate::api::{self, ProblemKind};
use crate::ledger::{Answer, Command, Found, OperationKind, Query, SchemaVersion, ShardId};
use crate::runtime;
use crate::shard::{Consistency, Desk, Hop, Question, Reply, Request as Ask};

/// A body above its limit is read on up to so many times the limit, and thrown away.
const DRAIN_FACTOR: usize = 4;

/// What the calls of one node share.
pub struct Front {
    pub(crate) desk: Arc<dyn Desk>,
    pub(crate) limits: Limits,
    pub(crate) counts: Counts,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Returns the router of the product: every [`Route`], and problems for everything else.
///
/// Clone it for each HTTP thread; the counts are shared.
pub fn router(front: &Arc<Front>) -> Router {
    let mut router = Router::new();
    for route in Route::ALL {
        let handler = {
            let front = front.clone();
            on(route.filter(), move |request: Request| {
                let front = front.clone();
                async move { front.run(*route, request).await }
            })
        };
        if *route == Route::BatchHolds {
            // Some clients encode the colon; to a server the two spellings are one path.
            router = router.route("/v1/holds%3Abatch", handler.clone());
            router = router.route("/v1/holds%3abatch", handler.clone());
        }
        if *route == Route::ProblemIndex {
            router = router.route("/problems", handler.clone());
        }
        router = router.route(route.path(), handler);
    }
    let (lost, wrong) = (front.clone(), front.clone());
    router
        .fallback(move |request: Request| {
            lost.counts.unrouted(404);
            let words = "There is no such path. All calls are in /openapi.json.";
            let failure = Failure::new(ProblemKind::NotFound, words);
            std::future::ready(failure.into_response(request.uri()))
        })
        .method_not_allowed_fallback(move |request: Request| {
            wrong.counts.unrouted(405);
            let words = format!(
                "`{}` does not take {}. The header Allow lists what it takes; all calls are \
                 in /openapi.json.",
                request.uri().path(),
                request.method()
            );
            let failure = Failure::new(ProblemKind::MethodNotAllowed, words);
            std::future::ready(failure.into_response(request.uri()))
        })
}

/// Returns a router whose every POST reads a JSON body and answers a constant one: what `bench`
/// compares refusals with. It is no part of the product's router.
pub fn empty_handler_router() -> Router {
    async fn empty(Json(_): Json<api::PlaceHold>) -> Json<api::ReleaseHold> {
        Json(api::ReleaseHold { reason: Some("empty".to_owned()) })
    }
    Router::new().route("/", post(empty)).route("/{*path}", post(empty))
}

impl Front {
    /// Makes the front of a node.
    pub fn new(desk: Arc<dyn Desk>, limits: Limits) -> Arc<Front> {
        Arc::new(Front { desk, limits, counts: Counts::default() })
    }

    /// Returns the connections of the node, which its HTTP threads share.
    pub fn connections(&self) -> super::Connections {
        self.counts.connections.clone()
    }

    /// Answers one call.
    async fn run(&self, route: Route, request: Request) -> Response {
        let arrived = runtime::now();
        let counted = self.counts.begin(route, arrived);
        let (parts, body) = request.into_parts();
        let answered = match self.read_body(&parts, body).await {
            Ok(body) => {
                let call = Call { parts, body, arrived };
                let answered = self.dispatch(route, &call).await;
                answered.unwrap_or_else(|failure| failure.into_response(&call.parts.uri))
            }
            Err(failure) => failure.into_response(&parts.uri),
        };
        counted.end(answered.status());
        answered
    }

    async fn dispatch(&self, route: Route, call: &Call) -> Result<Response, Failure> {
        match route {
            Route::PlaceHold => holds::place(self, call).await,
            Route::BatchHolds => batch::run(self, call).await,
            Route::ReadHold => holds::read(self, call).await,
            Route::ExtendHold => holds::extend(self, call).await,
            Route::ConfirmHold => holds::confirm(self, call).await,
            Route::ReleaseHold => holds::release(self, call).await,
            Route::ReturnHold => holds::bring_back(self, call).await,
            Route::ListHolds => holds::list(self, call).await,
            Route::ReadReceipt => receipts::read(self, call).await,
            Route::VoidKey => receipts::void(self, call).await,
            Route::PutItem => items::put(self, call).await,
            Route::ListItems => items::list(self, call).await,
            Route::ReadItem => items::read(self, call).await,
            Route::DeleteItem => items::delete(self, call).await,
            Route::AdjustItem => items::adjust(self, call).await,
            Route::PauseItem | Route::ResumeItem | Route::CloseItem => {
                items::set_mode(self, call, route).await
            }
            Route::Availability => stock::availability(self, call).await,
            Route::Audit => stock::audit(self, call).await,
            Route::ReadLayout => layout::read(self, call).await,
            Route::PutLayout => layout::put(self, call).await,
            Route::ReadItemOperation => operation::read(self, call).await,
            Route::ListTransfers => layout::transfers(self, call).await,
            Route::MoveStock => layout::transfer(self, call).await,
            Route::SoldOut => stock::sold_out(self, call).await,
            Route::Cluster => admin::cluster(self, call),
            Route::Digest => admin::digest(self, call),
            Route::Adopt => admin::adopt(self, call).await,
            Route::Begin => admin::begin(self, call).await,
            Route::ListNodes => nodes::list(self, call).await,
            Route::AddNode => nodes::add(self, call).await,
            Route::RemoveNode => nodes::change(self, call, OperationKind::Remove).await,
            Route::PromoteNode => nodes::change(self, call, OperationKind::Promote).await,
            Route::DemoteNode => nodes::change(self, call, OperationKind::Demote).await,
            Route::DrainNode => nodes::change(self, call, OperationKind::Drain).await,
            Route::UndrainNode => nodes::change(self, call, OperationKind::Undrain).await,
            Route::ReplaceNode => nodes::replace(self, call).await,
            Route::Join => nodes::join(self, call).await,
            Route::Upgrade => nodes::upgrade(self, call).await,
            Route::ListShards => nodes::shards(self, call).await,
            Route::MoveLeader => nodes::move_leader(self, call).await,
            Route::CheckpointShard => nodes::checkpoint(self, call).await,
            Route::ListOperations => nodes::operations(self, call).await,
            Route::ReadOperation => nodes::operation(self, call).await,
            Route::CancelOperation => nodes::cancel(self, call).await,
            Route::Livez => health::livez(call),
            Route::Readyz => health::readyz(self, call),
            Route::Metrics => metrics::answer(self, call),
            Route::Index => pages::root(call),
            Route::ProblemIndex => pages::index(call),
            Route::ProblemPage => pages::answer(call),
            Route::OpenApi => openapi::answer(call),
        }
    }

    /// Reads a body within its bounds of size and time.
    async fn read_body(&self, parts: &Parts, body: Body) -> Result<Bytes, Failure> {
        if let Some(encoding) = parts.headers.get(header::CONTENT_ENCODING)
            && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
        {
            let words = "Bodies are not compressed: send it without Content-Encoding.";
            return Err(Failure::malformed(words).closing());
        }
        let reading = std::pin::pin!(collect(body, self.limits.body_bytes_max));
        // Nearly always the body came together with its head: no timer then.
        let reading = match futures_util::future::select(reading, std::future::ready(())).await {
            Either::Left((read, _)) => return read,
            Either::Right(((), reading)) => reading,
        };
        runtime::timeout(self.limits.body_timeout, reading).await.unwrap_or_else(|_| {
            let words =
                "The body did not come in time; nothing was taken. Retry with the same key.";
            Err(Failure::new(ProblemKind::BodyTimeout, words).closing())
        })
    }

    /// Asks the desk one question.
    pub(crate) async fn ask(
        &self,
        call: &Call,
        question: Question,
        consistency: Consistency,
    ) -> Result<(Said, Stamp), Failure> {
        let is_read = matches!(question, Question::Query { .. });
        let ask = Ask { question, deadline: call.deadline()?, consistency, hop: call.hop() };
        let said = said(self.desk.ask(ask).await);
        if is_read { said.map_err(Failure::of_read) } else { said }
    }

    /// Asks for a change; refuses one that the cluster does not write yet.
    pub(crate) async fn change(
        &self,
        call: &Call,
        command: Command,
    ) -> Result<(Answer, Stamp), Failure> {
        let since = command.since();
        // Nearly everything was there from the first version on.
        if since > SchemaVersion::FIRST {
            let writes = self.desk.status().schema.active;
            if writes < since {
                let danger = "an older node would stop at the entry of it";
                let words = writes.lacks("this change", since, danger);
                let mut failure = Failure::new(ProblemKind::ClusterRefused, words);
                failure.problem.reason = Some("schema-version".to_owned());
                return Err(failure);
            }
        }
        self.decide(call, Question::from(command)).await
    }

    /// Asks for a change that is a question already.
    pub(crate) async fn decide(
        &self,
        call: &Call,
        question: Question,
    ) -> Result<(Answer, Stamp), Failure> {
        match self.ask(call, question, Consistency::Leader).await? {
            (Said::Answer(answer), stamp) => Ok((answer, stamp)),
            (other @ (Said::Found(_) | Said::InFlight), _) => Err(Failure::mismatch(&other)),
        }
    }

    /// Asks the shard that the query routes itself to.
    pub(crate) async fn find(
        &self,
        call: &Call,
        query: Query,
        consistency: Consistency,
    ) -> Result<(Found, Stamp), Failure> {
        let question = Question::Query { query, shard: None };
        match self.ask(call, question, consistency).await? {
            (Said::Found(found), stamp) => Ok((found, stamp)),
            (other @ (Said::Answer(_) | Said::InFlight), _) => Err(Failure::mismatch(&other)),
        }
    }

    /// Asks several shards the same query; fails when one of them does. A list that spans shards
    /// is never redirected.
    pub(crate) async fn find_in(
        &self,
        call: &Call,
        shards: &[ShardId],
        query: &Query,
        consistency: Consistency,
    ) -> Result<Vec<(ShardId, Found, Stamp)>, Failure> {
        let deadline = call.deadline()?;
        let asks = shards
            .iter()
            .map(|shard| Ask {
                question: Question::Query { query: query.clone(), shard: Some(*shard) },
                deadline,
                consistency,
                hop: Hop::Forward,
            })
            .collect();
        let replies: Vec<Reply> = self.desk.ask_many(asks).await;
        if replies.len() != shards.len() {
            return Err(Failure::mismatch(&replies.len()));
        }
        let mut found = Vec::with_capacity(replies.len());
        for (shard, reply) in shards.iter().zip(replies) {
            match said(reply).map_err(Failure::of_read)? {
                (Said::Found(one), stamp) => found.push((*shard, one, stamp)),
                (other @ (Said::Answer(_) | Said::InFlight), _) => {
                    return Err(Failure::mismatch(&other));
                }
            }
        }
        Ok(found)
    }

    /// Returns every shard of the cluster.
    ///
    /// # Errors
    ///
    /// `not-serving` before `cluster init`, and when the node takes no part any more.
    pub(crate) fn all_shards(&self) -> Result<Vec<ShardId>, Failure> {
        let shards = self.desk.shards();
        if shards.is_empty() {
            return Err(Failure::new(
                ProblemKind::NotServing,
                health::no_shards(&self.desk.status()),
            ));
        }
        Ok(shards)
    }
}

/// Reads a body up to `max` bytes; a modest excess is read and thrown away, so that a plain client
/// has sent everything and reads the 413.
async fn collect(mut body: Body, max: usize) -> Result<Bytes, Failure> {
    let too_large = || {
        let words = format!("The body is larger than {max} bytes. Send less, or several batches.");
        Failure::new(ProblemKind::TooLarge, words).closing()
    };
    let drain_max = max.saturating_mul(DRAIN_FACTOR);
    let announced = axum::body::HttpBody::size_hint(&body).lower();
    if announced > u64::try_from(drain_max).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let mut first = Bytes::new();
    let mut more: Vec<u8> = Vec::new();
    let mut seen = 0usize;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(
                Failure::malformed("The body broke off, or its framing is wrong.").closing()
            );
        };
        let Ok(data) = frame.into_data() else { continue };
        seen = seen.saturating_add(data.len());
        if seen > drain_max {
            return Err(too_large());
        }
        if seen > max {
            more = Vec::new();
        } else if first.is_empty() {
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&data);
        }
    }
    if seen > max {
        return Err(too_large());
    }
    Ok(if more.is_empty() { first } else { Bytes::from(more) })
}
