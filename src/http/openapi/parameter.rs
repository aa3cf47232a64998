//! Parameters and the small schemas they share.

use utoipa::PartialSchema;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{RefOr, Required};

use crate::api;

pub(super) fn parameter(
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

pub(super) fn text() -> RefOr<Schema> {
    String::schema()
}

pub(super) fn id() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .min_length(Some(1))
        .max_length(Some(api::ID_BYTES_MAX))
        .pattern(Some("^[!-.0-~]([ -.0-~]*[!-.0-~])?$"))
        .build()
        .into()
}

pub(super) fn integer(min: u64, max: u64) -> RefOr<Schema> {
    let bound = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::Integer))
        .minimum(Some(bound(min)))
        .maximum(Some(bound(max)))
        .build()
        .into()
}

pub(super) fn words(words: &[&str]) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .enum_values(Some(words.iter().copied()))
        .build()
        .into()
}

/// Name, whether it is required, schema, words.
pub(super) type Query = (&'static str, bool, RefOr<Schema>, &'static str);

pub(super) fn limit() -> Query {
    let words = "Entries on a page; 100 when absent.";
    ("limit", false, integer(1, u64::from(api::LIST_LIMIT_MAX)), words)
}

pub(super) fn cursor() -> Query {
    ("cursor", false, text(), "The `next_cursor` of the page before.")
}

pub(super) fn consistency() -> Query {
    let words_of = words(&["local", "leader", "linearizable"]);
    ("consistency", false, words_of, "This node's replica, the leader's memory, or a read index.")
}
