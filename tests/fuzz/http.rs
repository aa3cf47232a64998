//! Requests made from the OpenAPI document, and bent: every operation answers or refuses.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use holdfast::http::document_json;
use rand::RngExt;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use crate::campaign::{bend, bounded, campaign, place};
use crate::http_desk::{JSON, Read, Shop};

/// How deep a made value nests where its schema does not say.
const DEPTH_MAX: usize = 4;

fn word(rng: &mut SmallRng) -> String {
    match rng.random_range(0..9) {
        0 => String::new(),
        1 => "k".repeat(place(rng, 300)),
        2 => "naïve ☃ \u{0} \u{7f} \" \\".to_owned(),
        3 => "a/b".to_owned(),
        4 => " padded ".to_owned(),
        _ => format!("k{}", rng.random_range(0..40)),
    }
}

fn anything(rng: &mut SmallRng, depth: usize) -> Value {
    match rng.random_range(0..if depth < DEPTH_MAX { 9 } else { 7 }) {
        0 => Value::Null,
        1 => json!(rng.random_bool(0.5)),
        2 => json!(rng.random_range(-3..5)),
        3 => json!([u64::MAX, 1 << 53, (1 << 53) - 1, 1 << 31][place(rng, 4)]),
        4 => json!([0.5, 1e300, -0.0, 1e-9][place(rng, 4)]),
        5 | 6 => json!(word(rng)),
        7 => (0..rng.random_range(0..4)).map(|_| anything(rng, depth + 1)).collect(),
        _ => {
            let members =
                (0..rng.random_range(0..4)).map(|_| (word(rng), anything(rng, depth + 1)));
            Value::Object(members.collect::<Map<_, _>>())
        }
    }
}

/// A value of a schema, mostly.
fn value_of(rng: &mut SmallRng, document: &Value, schema: &Value, depth: usize) -> Value {
    if depth > 8 || rng.random_bool(0.04) {
        return anything(rng, depth.min(DEPTH_MAX));
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return value_of(rng, document, &document["components"]["schemas"][name], depth + 1);
    }
    for several in ["oneOf", "anyOf", "allOf", "enum"] {
        let Some(choices) = schema[several].as_array().filter(|all| !all.is_empty()) else {
            continue;
        };
        let choice = &choices[place(rng, choices.len())];
        return match several {
            "enum" => choice.clone(),
            _ => value_of(rng, document, choice, depth + 1),
        };
    }
    let kinds = schema["type"].as_array().filter(|kinds| !kinds.is_empty());
    let kind = match kinds {
        Some(kinds) => kinds[place(rng, kinds.len())].clone(),
        None => schema["type"].clone(),
    };
    match kind.as_str() {
        Some("object") => object_of(rng, document, schema, depth),
        Some("array") => {
            let items = &schema["items"];
            (0..rng.random_range(0..5)).map(|_| value_of(rng, document, items, depth + 1)).collect()
        }
        Some("integer") => {
            let least = schema["minimum"].as_i64().unwrap_or(0);
            json!(least + rng.random_range(-1..6))
        }
        Some("boolean") => json!(rng.random_bool(0.5)),
        Some("string") => json!(word(rng)),
        _ => anything(rng, depth.min(DEPTH_MAX)),
    }
}

fn object_of(rng: &mut SmallRng, document: &Value, schema: &Value, depth: usize) -> Value {
    let mut made = Map::new();
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        if rng.random_bool(0.7) {
            made.insert(name.clone(), value_of(rng, document, member, depth + 1));
        }
    }
    if schema["additionalProperties"].is_object() {
        for _ in 0..rng.random_range(0..3) {
            let member = value_of(rng, document, &schema["additionalProperties"], depth + 1);
            made.insert(word(rng), member);
        }
    }
    if rng.random_bool(0.05) {
        made.insert(word(rng), anything(rng, depth.min(DEPTH_MAX)));
    }
    Value::Object(made)
}

/// Percent-encodes whatever a URI may not carry plainly.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => (byte as char).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

struct Operation {
    method: String,
    path: String,
    says: Value,
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, says) in methods.as_object().expect("methods") {
            let method = method.to_uppercase();
            all.push(Operation { method, path: path.clone(), says: says.clone() });
        }
    }
    all
}

/// A request to an operation; `holds` are ids that exist.
fn request(
    rng: &mut SmallRng,
    document: &Value,
    operation: &Operation,
    holds: &[String],
) -> Request<Body> {
    let mut path = operation.path.clone();
    let mut query = Vec::new();
    let mut headers: Vec<(String, String)> = Vec::new();
    for parameter in operation.says["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().expect("a name");
        let known = match name {
            "item" => Some("shirt".to_owned()),
            "id" => holds.get(place(rng, holds.len())).cloned(),
            _ => None,
        };
        let made = value_of(rng, document, &parameter["schema"], 0);
        let made = made.as_str().map_or_else(|| made.to_string(), str::to_owned);
        let value = known.filter(|_| rng.random_bool(0.7)).unwrap_or(made);
        match parameter["in"].as_str() {
            Some("path") => path = path.replace(&format!("{{{name}}}"), &encoded(&value)),
            Some("query") if rng.random_bool(0.4) => {
                query.push(format!("{name}={}", encoded(&value)));
            }
            Some("header") if rng.random_bool(0.6) => headers.push((name.to_owned(), value)),
            _ => {}
        }
    }
    if !query.is_empty() {
        path = format!("{path}?{}", query.join("&"));
    }
    let schema = &operation.says["requestBody"]["content"]["application/json"]["schema"];
    let mut body = if schema.is_null() {
        Vec::new()
    } else {
        value_of(rng, document, schema, 0).to_string().into_bytes()
    };
    if rng.random_bool(0.3) {
        bend(rng, &mut body, &[b"{\"quantity\":".repeat(400), b"[".repeat(2_000)]);
    }
    let mut request = Request::builder().method(operation.method.as_str()).uri(path);
    if rng.random_bool(0.95) {
        request = request.header(JSON.0, JSON.1);
    }
    for (name, value) in headers {
        if let Ok(value) = axum::http::HeaderValue::from_bytes(value.as_bytes()) {
            request = request.header(name, value);
        }
    }
    request.body(Body::from(body)).expect("a request")
}

fn is_answer(read: &Read, operation: &Operation) {
    let Operation { method, path, says } = operation;
    let status = read.status.as_u16();
    let listed =
        says["responses"].as_object().is_some_and(|all| all.contains_key(read.status.as_str()));
    assert!(listed, "{method} {path}: {status} is not in the document: {}", read.text);
    assert!(status < 500 || status == 503 || status == 504, "{method} {path}: {}", read.text);
    if status >= 400 && !path.ends_with("readyz") {
        read.slug();
    }
}

#[test]
fn requests_to_every_operation_are_answered_as_the_document_says() {
    let document: Value = serde_json::from_str(&document_json()).expect("the document is JSON");
    let operations = operations(&document);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    campaign("requests_to_every", |rng| {
        let shop = runtime.block_on(Shop::selling("shirt", 500));
        let mut holds = Vec::new();
        for n in 0..3 {
            let (key, body) = (format!("k{n}"), format!(r#"{{"quantity":2,"buyer":"b{n}"}}"#));
            holds.push(runtime.block_on(shop.placed("shirt", &key, &body)));
        }
        for _ in 0..60 {
            let operation = &operations[place(rng, operations.len())];
            let request = request(rng, &document, operation, &holds);
            let read = bounded(16 << 20, || runtime.block_on(shop.send(request)));
            is_answer(&read, operation);
        }
        let audit = runtime.block_on(shop.get("/v1/items/shirt/audit"));
        if audit.status == StatusCode::OK {
            assert_eq!(audit.json()["conserved"], true, "{audit:?}");
        }
    });
}
