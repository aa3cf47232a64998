//! The checked-in contract is the code's, and what it lists is what is mounted.
#![allow(missing_docs)]

mod http_desk;

use std::collections::BTreeSet;

use axum::http::StatusCode;
use holdfast::http::{Route, document_json};
use http_desk::Shop;
use serde_json::Value;

/// `make generated` writes it anew.
#[test]
fn the_checked_in_document_equals_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
    if std::env::var_os("REGENERATE").is_some() {
        std::fs::write(path, document_json()).expect("docs/ is there");
    }
    let checked_in = std::fs::read_to_string(path).expect("docs/openapi.json is checked in");
    assert!(checked_in == document_json(), "docs/openapi.json is old; run `make generated`");
}

fn document() -> serde_json::Value {
    serde_json::from_str(&document_json()).expect("the document is JSON")
}

#[test]
fn the_document_is_openapi_3_1_and_every_reference_in_it_leads_somewhere() {
    let document = document();
    assert!(document["openapi"].as_str().is_some_and(|v| v.starts_with("3.1")));
    let mut references = BTreeSet::new();
    collect(&document, &mut references);
    assert!(references.len() > 20, "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("all references are local");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match (name.as_str(), member) {
                    ("$ref", Value::String(target)) => {
                        references.insert(target.clone());
                    }
                    (_, member) => collect(member, references),
                }
            }
        }
        Value::Array(values) => {
            values.iter().for_each(|value| collect(value, references));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn every_operation_of_the_document_is_mounted_and_every_route_is_in_it() {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let mut described = BTreeSet::new();
    for (path, item) in paths {
        for method in item.as_object().expect("a path item").keys() {
            described.insert((method.to_uppercase(), path.clone()));
        }
    }
    let routes: BTreeSet<(String, String)> =
        Route::ALL.iter().map(|r| (r.method().to_owned(), r.path().to_owned())).collect();
    assert_eq!(described, routes);

    let shop = Shop::selling("shirt", 5).await;
    for (method, path) in described {
        let real = path
            .replace("{item}", "shirt")
            .replace("{id}", "hld_none")
            .replace("{key}", "k")
            .replace("{slug}", "sold-out");
        let read = shop.call(&method, &real, &[("Idempotency-Key", "k")], "").await;
        assert_ne!(read.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {real}");
        if read.status == StatusCode::NOT_FOUND {
            assert!(!read.text.contains("There is no such path"), "{method} {real}: {}", read.text);
        }
        let responses = &document["paths"][&path][method.to_lowercase()]["responses"];
        let status = read.status.as_str();
        assert!(
            responses.get(status).is_some(),
            "{method} {real} answered {status}: {}",
            read.text
        );
    }
}

#[tokio::test]
async fn what_is_not_built_answers_404_and_another_method_405_with_allow() {
    let shop = Shop::new();
    for path in ["/v2/items", "/v1/items/", "/v1//items", "/v1/items/a/buckets", "/bench/echo"] {
        let read = shop.get(path).await;
        assert_eq!(read.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(read.slug(), "not-found");
        assert!(read.text.contains("/openapi.json"), "{}", read.text);
    }
    let read = shop.call("PATCH", "/v1/items/a", &[], "").await;
    assert_eq!(read.slug(), "method-not-allowed");
    let allow = read.header("allow").expect("Allow says which");
    assert!(allow.contains("PUT") && allow.contains("GET") && allow.contains("DELETE"), "{allow}");
}

/// Every link of the index leads somewhere, and the list of problems names them all.
#[tokio::test]
async fn the_root_says_where_to_begin_and_the_problems_are_listed() {
    let shop = Shop::new();
    let index = shop.get("/").await;
    assert_eq!(index.status, StatusCode::OK);
    let links: Vec<String> = index
        .json()
        .as_object()
        .expect("an object")
        .values()
        .filter_map(|value| value.as_str().filter(|text| text.starts_with('/')))
        .map(str::to_owned)
        .collect();
    assert_eq!(links.len(), 6, "{links:?}");
    for link in links {
        let read = shop.get(&link).await;
        assert_ne!(read.status, StatusCode::NOT_FOUND, "{link}");
    }
    for path in ["/problems", "/problems/"] {
        let list = shop.get(path).await;
        for kind in holdfast::api::ProblemKind::ALL {
            assert!(list.text.contains(kind.uri()), "{}", list.text);
        }
    }
}

#[test]
fn the_main_bodies_have_examples_that_the_document_shows() {
    let document = document();
    for (path, method) in [
        ("/v1/items/{item}", "put"),
        ("/v1/items/{item}/holds", "post"),
        ("/v1/items/{item}/adjustments", "post"),
        ("/v1/holds/{id}/confirm", "post"),
        ("/v1/holds:batch", "post"),
        ("/v1/receipts/{key}/void", "post"),
    ] {
        let body = &document["paths"][path][method]["requestBody"]["content"]["application/json"];
        assert!(body["example"].is_object(), "{method} {path}: {body}");
    }
}

#[tokio::test]
async fn the_served_document_is_the_checked_in_one_and_every_problem_has_its_page() {
    let shop = Shop::new();
    let read = shop.get("/openapi.json").await;
    assert_eq!(read.header("content-type"), Some("application/json"));
    assert_eq!(read.text, document_json());
    for kind in holdfast::api::ProblemKind::ALL {
        let read = shop.get(kind.uri()).await;
        assert_eq!(read.status, StatusCode::OK, "{}", kind.uri());
        assert!(read.text.contains(kind.title()) && read.text.len() > 100, "{}", read.text);
    }
    assert_eq!(shop.get("/problems/none").await.slug(), "not-found");
}
