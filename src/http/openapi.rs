//! `/openapi.json`: the contract, written from the list of routes and the wire types.
//!
//! Every [`Route`] is described by one match, so a route without a description does not compile,
//! and one that is not mounted cannot be described. `docs/openapi.json` is a copy that a test holds
//! equal.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response as Answer;
use utoipa::openapi::path::{
    Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{
    ComponentsBuilder, Content, HttpMethod, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder,
    PathsBuilder, Ref, RefOr, Required, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::call::Call;
use super::problem::Failure;
use super::route::Route;
use super::wire;
use crate::api::{self, ProblemKind as K};

/// `GET /openapi.json`
pub(crate) fn answer(call: &Call) -> Result<Answer, Failure> {
    call.query(&[])?;
    let mut response = wire::text(StatusCode::OK, document_json());
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Returns the document as JSON, as it is served and checked in: indented, with a line end.
pub fn document_json() -> String {
    let mut text = serde_json::to_string_pretty(&document()).expect("the document serialises");
    text.push('\n');
    text
}

/// Returns the OpenAPI 3.1 document of HTTP v1.
pub fn document() -> OpenApi {
    let mut book = Book::default();
    book.add::<api::Problem>();
    let mut paths = PathsBuilder::new();
    let mut items: BTreeMap<&str, utoipa::openapi::path::PathItemBuilder> = BTreeMap::new();
    for route in Route::ALL {
        let item = items.entry(route.path()).or_default();
        let described = std::mem::take(item);
        *item = described.operation(method(*route), book.operation(*route));
    }
    for (path, item) in items {
        paths = paths.path(path, item.build());
    }
    let mut components = ComponentsBuilder::new();
    for (name, schema) in book.schemas {
        components = components.schema(name, schema);
    }
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Holdfast")
                .version("1")
                .description(Some(CONVENTIONS))
                .license(Some(LicenseBuilder::new().name("Apache-2.0 OR MIT").build()))
                .build(),
        )
        .paths(paths)
        .components(Some(components.build()))
        .build()
}

const CONVENTIONS: &str = "Sells the last unit exactly once.\n\n\
Ids of the caller (tenant, item, buyer, region, key) are 1 to 128 bytes of printable ASCII without \
`/` and without a space at either end, compared byte for byte. In paths and queries they are \
percent-decoded exactly once; `+` stands for itself. Quantities are JSON integers from 1 to 2^53 - 1 \
in their plain spelling. Times are RFC 3339, UTC, milliseconds; durations are integers of \
milliseconds. Unknown fields, unknown query parameters, and anything given twice are refused.\n\n\
Every change of holds or stock carries an idempotency key: the same one on every retry of a decision. \
The key of a placement counts within (tenant, item, region, buyer), any other within (tenant, \
resource). A replay carries `Idempotent-Replayed: true`; the key of a hold that has ended answers 409 \
or 410. After `504 outcome-unknown` retry with the same key until a hold or a void answers.\n\n\
Every answer that comes from one shard carries `Holdfast-Commit: shard:term.node:index` and \
`Holdfast-Leader`. Any node takes any call and forwards it once; `Prefer: redirect` asks for a 307 \
to the leader instead (not for batches and lists). Errors are RFC 9457 `application/problem+json`; \
each `type` is a path that serves its page.";

fn method(route: Route) -> HttpMethod {
    match route.method() {
        "PUT" => HttpMethod::Put,
        "POST" => HttpMethod::Post,
        "DELETE" => HttpMethod::Delete,
        _ => HttpMethod::Get,
    }
}

/// What a route is like, in the words of the document.
struct Entry {
    tag: &'static str,
    summary: &'static str,
    key: bool,
    body: Option<(RefOr<Schema>, Required)>,
    query: Vec<(&'static str, bool, RefOr<Schema>, &'static str)>,
    success: Vec<(u16, &'static str, Option<RefOr<Schema>>)>,
    problems: Vec<K>,
}

#[derive(Default)]
struct Book {
    schemas: BTreeMap<String, RefOr<Schema>>,
}

impl Book {
    fn add<T: ToSchema>(&mut self) -> RefOr<Schema> {
        let mut nested = Vec::new();
        T::schemas(&mut nested);
        self.schemas.extend(nested);
        self.schemas.insert(T::name().into_owned(), T::schema());
        Ref::from_schema_name(T::name()).into()
    }

    fn operation(&mut self, route: Route) -> Operation {
        let entry = self.entry(route);
        let v1 = route.path().starts_with("/v1/");
        let mut operation = OperationBuilder::new()
            .operation_id(Some(route.word()))
            .summary(Some(entry.summary))
            .tag(entry.tag);
        for name in route
            .path()
            .split('/')
            .filter_map(|part| part.strip_prefix('{').and_then(|part| part.strip_suffix('}')))
        {
            let words = match name {
                "id" => "The hold's id, as the server gave it.",
                "key" => "The idempotency key of a placement.",
                "slug" => "The last part of a problem's type.",
                _ => "The item's name.",
            };
            let schema = if name == "slug" || name == "id" { text() } else { id() };
            let parameter = parameter(name, ParameterIn::Path, true, schema, words);
            operation = operation.parameter(parameter);
        }
        for (name, required, schema, words) in entry.query {
            let parameter = parameter(name, ParameterIn::Query, required, schema, words);
            operation = operation.parameter(parameter);
        }
        if entry.key {
            let words = "One for each decision of a buyer, the same on every retry of it.";
            operation = operation.parameter(parameter(
                "Idempotency-Key",
                ParameterIn::Header,
                true,
                id(),
                words,
            ));
        }
        if v1 {
            operation = headers(operation, route);
        }
        if let Some((schema, required)) = entry.body {
            let body = RequestBodyBuilder::new()
                .content("application/json", Content::new(Some(schema)))
                .required(Some(required))
                .build();
            operation = operation.request_body(Some(body));
        }
        for (status, words, schema) in entry.success {
            let mut response = ResponseBuilder::new().description(words);
            response = match schema {
                Some(schema) => response.content("application/json", Content::new(Some(schema))),
                None if status < 300 || status == 503 => {
                    response.content("text/plain", Content::new(Some(text())))
                }
                None => response,
            };
            operation = operation.response(status.to_string(), response.build());
        }
        for (status, response) in problem_responses(&entry.problems) {
            operation = operation.response(status.to_string(), response);
        }
        operation.build()
    }

    fn entry(&mut self, route: Route) -> Entry {
        match route {
            Route::PutItem
            | Route::ListItems
            | Route::ReadItem
            | Route::DeleteItem
            | Route::AdjustItem
            | Route::PauseItem
            | Route::ResumeItem
            | Route::CloseItem
            | Route::Availability
            | Route::Audit
            | Route::SoldOut => self.item_entry(route),
            Route::PlaceHold
            | Route::ListHolds
            | Route::ReadHold
            | Route::ExtendHold
            | Route::ConfirmHold
            | Route::ReleaseHold
            | Route::ReturnHold
            | Route::BatchHolds
            | Route::ReadReceipt
            | Route::VoidKey => self.hold_entry(route),
            Route::Cluster
            | Route::Digest
            | Route::Adopt
            | Route::Begin
            | Route::Livez
            | Route::Readyz
            | Route::Metrics
            | Route::ProblemPage
            | Route::OpenApi => self.node_entry(route),
        }
    }

    fn item_entry(&mut self, route: Route) -> Entry {
        let item = self.add::<api::Item>();
        let change = |summary: &'static str, words: &'static str, more: &[K]| Entry {
            tag: "items",
            summary,
            key: false,
            body: None,
            query: Vec::new(),
            success: vec![(200, words, Some(item.clone()))],
            problems: changing(more),
        };
        let read = |summary, query, words, schema| Entry {
            tag: "items",
            summary,
            key: false,
            body: None,
            query,
            success: vec![(200, words, Some(schema))],
            problems: reading(&[K::NotFound]),
        };
        match route {
            Route::PutItem => {
                let mut entry = change(
                    "Creates or configures an item",
                    "Configured, or as it was.",
                    &[K::UseAdjustments, K::RevisionMismatch, K::Validation, K::NotImplemented],
                );
                entry.success.push((201, "Created.", Some(item.clone())));
                entry.body = Some((self.add::<api::PutItem>(), Required::False));
                entry
            }
            Route::AdjustItem => {
                let more = [
                    K::KeyMissing,
                    K::NotFound,
                    K::StockCommitted,
                    K::RevisionMismatch,
                    K::Validation,
                    K::KeyReused,
                    K::PreconditionRequired,
                    K::NotImplemented,
                ];
                let mut entry = change("Changes an item's total", "Changed.", &more);
                entry.key = true;
                entry.body = Some((self.add::<api::AdjustItem>(), Required::True));
                entry
            }
            Route::PauseItem => change(
                "Pauses an item: nothing is granted",
                "Paused.",
                &[K::NotFound, K::Validation],
            ),
            Route::ResumeItem => {
                change("Opens an item again", "Open.", &[K::NotFound, K::Validation])
            }
            Route::CloseItem => {
                change("Takes no more holds", "Closed.", &[K::NotFound, K::Validation])
            }
            Route::DeleteItem => {
                let mut entry = change(
                    "Deletes an item that has no open holds",
                    "Deleted.",
                    &[K::NotFound, K::StockCommitted, K::Validation],
                );
                entry.success = vec![(200, "Deleted.", Some(self.add::<api::DeletedItem>()))];
                entry
            }
            Route::ListItems => {
                let query = vec![limit(), cursor(), consistency()];
                read("Lists items by name", query, "A page.", self.add::<api::ItemList>())
            }
            Route::ReadItem => {
                let mut entry = read("Reads an item", vec![consistency()], "The item.", item);
                entry.success.push((304, "If-None-Match has its ETag.", None));
                entry
            }
            Route::Availability => {
                let detail = "`buckets` adds the figures of each region and bucket.";
                let query = vec![consistency(), ("detail", false, words(&["buckets"]), detail)];
                let schema = self.add::<api::Availability>();
                read(
                    "Reads an item's stock, from the local replica by default",
                    query,
                    "Stock.",
                    schema,
                )
            }
            Route::Audit => {
                let schema = self.add::<api::Audit>();
                read("Sums an item's units by cause", vec![consistency()], "The sums.", schema)
            }
            _ => {
                let schema = self.add::<api::SoldOut>();
                let mut entry =
                    read("Lists what cannot be reserved now", Vec::new(), "The list.", schema);
                entry.success.push((304, "If-None-Match has its ETag.", None));
                entry.problems.retain(|kind| *kind != K::NotFound);
                entry
            }
        }
    }

    fn hold_entry(&mut self, route: Route) -> Entry {
        let hold = self.add::<api::Hold>();
        let base = |summary, success, problems| Entry {
            tag: "holds",
            summary,
            key: false,
            body: None,
            query: Vec::new(),
            success,
            problems,
        };
        let transition = |summary, more: &[K]| {
            let success = vec![(200, "The hold as it is now.", Some(hold.clone()))];
            let mut kinds = vec![K::KeyMissing, K::NotFound, K::Validation, K::KeyReused];
            kinds.extend_from_slice(more);
            Entry { key: true, ..base(summary, success, changing(&kinds)) }
        };
        match route {
            Route::PlaceHold => {
                let success = vec![
                    (201, "Placed.", Some(hold.clone())),
                    (200, "A replay: the hold that this key placed.", Some(hold)),
                ];
                let more = [
                    K::KeyMissing,
                    K::NotFound,
                    K::SoldOut,
                    K::KeyVoided,
                    K::InsufficientStock,
                    K::BuyerLimit,
                    K::ItemClosed,
                    K::SaleNotOpen,
                    K::HoldConfirmed,
                    K::HoldReleased,
                    K::HoldExpired,
                    K::Validation,
                    K::KeyReused,
                ];
                let body = Some((self.add::<api::PlaceHold>(), Required::True));
                Entry { key: true, body, ..base("Places a hold", success, changing(&more)) }
            }
            Route::ExtendHold => Entry {
                body: Some((self.add::<api::ExtendHold>(), Required::False)),
                ..transition(
                    "Moves a hold's deadline within its budget",
                    &[K::HoldConfirmed, K::HoldReleased, K::HoldExpired, K::ExtendBudgetSpent],
                )
            },
            Route::ConfirmHold => Entry {
                body: Some((self.add::<api::ConfirmHold>(), Required::False)),
                ..transition(
                    "Sells what a hold holds",
                    &[
                        K::HoldConfirmed,
                        K::HoldReleased,
                        K::HoldExpired,
                        K::SoldOut,
                        K::InsufficientStock,
                        K::BuyerLimit,
                    ],
                )
            },
            Route::ReleaseHold => Entry {
                body: Some((self.add::<api::ReleaseHold>(), Required::False)),
                ..transition("Gives a hold's units back", &[K::HoldConfirmed])
            },
            Route::ReturnHold => Entry {
                body: Some((self.add::<api::ReturnHold>(), Required::False)),
                ..transition("Brings sold units back to stock", &[K::HoldReleased, K::HoldNotSold])
            },
            Route::ReadHold => {
                let success = vec![(200, "The hold, also after its end.", Some(hold))];
                let problems = reading(&[K::NotFound]);
                Entry { query: vec![consistency()], ..base("Reads a hold", success, problems) }
            }
            Route::ListHolds => {
                let success = vec![(200, "A page.", Some(self.add::<api::HoldList>()))];
                let states = words(&["held", "sold", "released", "expired", "returned"]);
                let query = vec![
                    ("item", true, id(), "The item."),
                    ("buyer", false, id(), "Only this buyer's."),
                    ("state", false, states, "Only in this state."),
                    limit(),
                    cursor(),
                    consistency(),
                ];
                Entry { query, ..base("Lists an item's holds", success, reading(&[K::NotFound])) }
            }
            Route::BatchHolds => {
                let words = "One result for each operation, in order.";
                let success = vec![(200, words, Some(self.add::<api::BatchResults>()))];
                let body = Some((self.add::<api::Batch>(), Required::True));
                let problems = vec![K::Malformed, K::BodyTimeout, K::TooLarge, K::Validation];
                Entry {
                    body,
                    ..base("Up to 1,000 operations, each a decision of its own", success, problems)
                }
            }
            Route::ReadReceipt => {
                let success = vec![(200, "The receipt.", Some(self.add::<api::Receipt>()))];
                let query = vec![
                    ("item", true, id(), "The item."),
                    ("buyer", false, id(), "The buyer that the placement named."),
                    ("region", false, id(), "The region that the placement named."),
                ];
                let problems = reading(&[K::NotFound]);
                Entry { query, ..base("Tells what became of a placing key", success, problems) }
            }
            _ => {
                let words = "Voided, or the hold that the key had made.";
                let success = vec![(200, words, Some(self.add::<api::Receipt>()))];
                let body = Some((self.add::<api::VoidKey>(), Required::True));
                let problems = changing(&[K::NotFound, K::Validation]);
                Entry { body, ..base("Gives up on a placing key for good", success, problems) }
            }
        }
    }

    fn node_entry(&mut self, route: Route) -> Entry {
        let base = |tag, summary, success, problems| Entry {
            tag,
            summary,
            key: false,
            body: None,
            query: Vec::new(),
            success,
            problems,
        };
        let malformed = vec![K::Malformed];
        match route {
            Route::Cluster => {
                let success = vec![(200, "The cluster.", Some(self.add::<api::Cluster>()))];
                base("cluster", "The cluster as this node sees it", success, malformed)
            }
            Route::Digest => {
                let success = vec![(200, "The digests.", Some(self.add::<api::Digests>()))];
                let problems = vec![K::Malformed, K::NotServing];
                base("cluster", "Digests of this node's replicas", success, problems)
            }
            Route::Adopt => {
                let success = vec![(200, "Adopted.", Some(self.add::<api::Adopted>()))];
                let body = Some((self.add::<api::Adopt>(), Required::True));
                let summary = "First step of cluster init: an empty node takes an identity";
                Entry { body, ..base("cluster", summary, success, founding()) }
            }
            Route::Begin => {
                let success = vec![(200, "Begun.", Some(self.add::<api::Begun>()))];
                let body = Some((self.add::<api::Begin>(), Required::True));
                let summary = "Second step of cluster init: the shards open with these members";
                Entry { body, ..base("cluster", summary, success, founding()) }
            }
            Route::Livez => {
                base("node", "Whether the node answers", vec![(200, "Alive.", None)], malformed)
            }
            Route::Readyz => {
                let success =
                    vec![(200, "Ready.", None), (503, "Not ready, with the reasons.", None)];
                let words = "Adds a table of the shards.";
                let query = vec![("verbose", false, text(), words)];
                let summary = "Whether every shard has a leader, grants, and runs here";
                Entry { query, ..base("node", summary, success, malformed) }
            }
            Route::Metrics => {
                let success = vec![(200, "Prometheus text.", None)];
                base("node", "Metrics", success, malformed)
            }
            Route::ProblemPage => {
                let success = vec![(200, "The page.", None)];
                let problems = vec![K::Malformed, K::NotFound];
                base("node", "The page on a kind of problem", success, problems)
            }
            _ => {
                let schema = ObjectBuilder::new().schema_type(Type::Object).build().into();
                let success = vec![(200, "This document.", Some(schema))];
                base("node", "The contract", success, malformed)
            }
        }
    }
}

fn founding() -> Vec<K> {
    vec![K::Malformed, K::BodyTimeout, K::ClusterRefused, K::TooLarge, K::Validation]
}

/// The problems of every change, and these.
fn changing(more: &[K]) -> Vec<K> {
    let mut kinds = vec![
        K::Malformed,
        K::BodyTimeout,
        K::TooLarge,
        K::Internal,
        K::ItemPaused,
        K::Overloaded,
        K::DeadlinePassed,
        K::NotServing,
        K::OutcomeUnknown,
    ];
    kinds.extend_from_slice(more);
    kinds
}

/// The problems of every read, and these.
fn reading(more: &[K]) -> Vec<K> {
    let mut kinds = vec![
        K::Malformed,
        K::Internal,
        K::ItemPaused,
        K::Overloaded,
        K::DeadlinePassed,
        K::NotServing,
    ];
    kinds.extend_from_slice(more);
    kinds
}

fn problem_responses(kinds: &[K]) -> BTreeMap<u16, utoipa::openapi::Response> {
    let mut slugs: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for kind in kinds {
        slugs.entry(kind.status()).or_default().push(kind.slug());
    }
    slugs
        .into_iter()
        .map(|(status, mut slugs)| {
            slugs.sort_unstable();
            let schema = Ref::from_schema_name(api::Problem::name());
            let response = ResponseBuilder::new()
                .description(slugs.join(", "))
                .content("application/problem+json", Content::new(Some(schema)))
                .build();
            (status, response)
        })
        .collect()
}

fn headers(mut operation: OperationBuilder, route: Route) -> OperationBuilder {
    let header = |name, schema, words| parameter(name, ParameterIn::Header, false, schema, words);
    operation = operation
        .parameter(header("Holdfast-Tenant", id(), "The tenant; `default` when absent."))
        .parameter(header(
            "Holdfast-Deadline-Ms",
            integer(1, api::DEADLINE_MS_MAX),
            "Time the caller still has, in ms; 2,000 when absent. Past it nothing is proposed.",
        ));
    let if_match = "The revision that the caller has read, as its ETag gave it.";
    match route {
        Route::PutItem | Route::AdjustItem => {
            operation.parameter(header("If-Match", text(), if_match))
        }
        _ => operation,
    }
}

fn parameter(
    name: &str,
    place: ParameterIn,
    required: bool,
    schema: RefOr<Schema>,
    words: &str,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(if required { Required::True } else { Required::False })
        .description(Some(words))
        .schema(Some(schema))
        .build()
}

fn text() -> RefOr<Schema> {
    String::schema()
}

fn id() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .min_length(Some(1))
        .max_length(Some(api::ID_BYTES_MAX))
        .pattern(Some("^[!-.0-~]([ -.0-~]*[!-.0-~])?$"))
        .build()
        .into()
}

fn integer(min: u64, max: u64) -> RefOr<Schema> {
    let bound = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::Integer))
        .minimum(Some(bound(min)))
        .maximum(Some(bound(max)))
        .build()
        .into()
}

fn words(words: &[&str]) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .enum_values(Some(words.iter().copied()))
        .build()
        .into()
}

type Query = (&'static str, bool, RefOr<Schema>, &'static str);

fn limit() -> Query {
    let words = "Entries on a page; 100 when absent.";
    ("limit", false, integer(1, u64::from(api::LIST_LIMIT_MAX)), words)
}

fn cursor() -> Query {
    ("cursor", false, text(), "The `next_cursor` of the page before.")
}

fn consistency() -> Query {
    let words_of = words(&["local", "leader", "linearizable"]);
    ("consistency", false, words_of, "This node's replica, the leader's memory, or a read index.")
}
