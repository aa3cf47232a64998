//! `/openapi.json`: the contract, written from the list of routes and the wire types.
//!
//! Every [`Route`] is described by one match, so a route without a description does not compile,
//! and one that is not mounted cannot be described. `docs/openapi.json` is a copy that a test holds
//! equal.

mod entry;
mod layouts;
mod nodes;
mod parameter;

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response as Answer;
use utoipa::ToSchema;
use utoipa::openapi::path::{Operation, OperationBuilder, ParameterIn, PathItemBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{AnyOfBuilder, Schema};
use utoipa::openapi::{
    ComponentsBuilder, Content, ContentBuilder, HttpMethod, InfoBuilder, LicenseBuilder, OpenApi,
    OpenApiBuilder, PathsBuilder, Ref, RefOr, ResponseBuilder,
};

use self::parameter::{id, integer, parameter, text};

use super::call::Call;
use super::problem::Failure;
use super::route::Route;
use super::wire;
use crate::api::{self, ProblemKind as K};

/// One answer or another, as the caller asked for: what is done, or the plan of a dry run.
fn either(one: RefOr<Schema>, other: RefOr<Schema>) -> RefOr<Schema> {
    Schema::AnyOf(AnyOfBuilder::new().item(one).item(other).build()).into()
}

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
    let mut items: BTreeMap<&str, PathItemBuilder> = BTreeMap::new();
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
Ids of the caller (tenant, item, buyer, region, key) are 1 to 128 bytes of printable ASCII \
without `/` and without a space at either end, compared byte for byte. In paths and queries \
they are percent-decoded exactly once; `+` stands for itself. Quantities are JSON integers \
from 1 to 2^53 - 1 in their plain spelling. Times are RFC 3339, UTC, milliseconds; durations \
are integers of milliseconds. Unknown fields, unknown query parameters, and anything given \
twice are refused.\n\n\
Every change of holds or stock carries an idempotency key: the same one on every retry of a \
decision. The key of a placement counts within (tenant, item, region, buyer), any other within \
(tenant, resource). A replay carries `Idempotent-Replayed: true`; the key of a hold that has \
ended answers 409 or 410. After `504 outcome-unknown` retry with the same key until a hold or \
a void answers.\n\n\
Every answer that comes from one shard carries `Holdfast-Commit: shard:term.node:index` and \
`Holdfast-Leader`. Any node takes any call and forwards it once; `Prefer: redirect` asks for a \
307 to the leader instead (not for batches and lists). Errors are RFC 9457 \
`application/problem+json`; each `type` is a path that serves its page.";

fn method(route: Route) -> HttpMethod {
    match route.method() {
        "PUT" => HttpMethod::Put,
        "POST" => HttpMethod::Post,
        "DELETE" => HttpMethod::Delete,
        _ => HttpMethod::Get,
    }
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
                "id" if !v1 => "The number of a node or an operation.",
                "shard" => "The shard's number.",
                "id" => "The hold's id, as the server gave it.",
                "key" => "The idempotency key of a placement.",
                "slug" => "The last part of a problem's type.",
                "operation" => "The operation, as the `Location` of a 202 named it.",
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
                .content(
                    "application/json",
                    ContentBuilder::new().schema(Some(schema)).example(entry.example).build(),
                )
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
}

fn problem_responses(kinds: &[K]) -> BTreeMap<u16, utoipa::openapi::Response> {
    let mut slugs: BTreeMap<u16, BTreeSet<&str>> = BTreeMap::new();
    for kind in kinds {
        slugs.entry(kind.status()).or_default().insert(kind.slug());
    }
    slugs
        .into_iter()
        .map(|(status, slugs)| {
            let slugs: Vec<&str> = slugs.into_iter().collect();
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
    if matches!(route, Route::PutItem | Route::AdjustItem | Route::PutLayout) {
        operation = operation.parameter(header("If-Match", text(), if_match));
    }
    operation
}
