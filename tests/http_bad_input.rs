//! Whatever comes in is bounded, checked, and answered by the rule that it broke; nothing is done.
//! The numbers are those of the reported faults. H01, H05 and H06 answer 422 `validation` where the
//! cases suggest 400: the contract's word for a field that breaks a rule.

// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]
#![allow(missing_docs)]

mod http_desk;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_desk::{JSON, Shop};

/// Sends it and checks that it is refused with that slug, names that field, and leaves no entry.
async fn refused(shop: &Shop, path: &str, body: &str, slug: &str, field: &str) {
    let before = shop.desk.entries();
    let method = if path.matches('/').count() == 3 { "PUT" } else { "POST" };
    let headers = [JSON, ("Idempotency-Key", "refused")];
    let read = shop.call(method, path, &headers, body.to_owned()).await;
    assert_eq!(read.slug(), slug, "{method} {path} {body}: {}", read.text);
    if slug == "validation" {
        let problem = read.json();
        let errors = problem["errors"].as_array().expect("errors[]");
        assert!(
            errors
                .iter()
                .any(|e| e["field"] == field && e["rule"].as_str().is_some_and(|r| r.len() > 5)),
            "{path} {body} does not name {field}: {}",
            read.text
        );
    }
    assert_eq!(shop.desk.entries(), before, "{path} {body} left an entry");
}

/// The spellings that are JSON and no integer from 1 to 2^53 − 1.
const NO_UNITS: [&str; 24] = [
    "-1",
    "-0",
    "0",
    "-9223372036854775808",
    "1.0",
    "1e0",
    "1E2",
    "0.5",
    "\"1\"",
    "\"\"",
    "null",
    "true",
    "[1]",
    "{}",
    "1.8446744073709552e19",
    "9007199254740992",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1000000000000000000000000000000",
    "1e999",
    "-1e-999",
];

#[tokio::test]
async fn h01_h05_h06_a_number_is_a_plain_integer_in_range_or_the_field_is_named() {
    let shop = Shop::selling("shirt", 9_007_199_254_740_991).await;
    let id = shop.placed("shirt", "k", r#"{"quantity":2}"#).await;
    let holds = "/v1/items/shirt/holds".to_owned();
    for number in NO_UNITS {
        let put = |field: &str| format!(r#"{{"{field}":{number}}}"#);
        refused(&shop, &holds, &put("quantity"), "validation", "quantity").await;
        for verb in ["confirm", "return"] {
            let path = format!("/v1/holds/{id}/{verb}");
            refused(&shop, &path, &put("quantity"), "validation", "quantity").await;
        }
        let path = format!("/v1/holds/{id}/extend");
        refused(&shop, &path, &put("ttl_ms"), "validation", "ttl_ms").await;
        let body = format!(r#"{{"quantity":1,"ttl_ms":{number}}}"#);
        refused(&shop, &holds, &body, "validation", "ttl_ms").await;
        refused(&shop, "/v1/items/new", &put("limit_per_buyer"), "validation", "limit_per_buyer")
            .await;
        for field in ["ttl_ms", "max_ttl_ms", "max_lifetime_ms"] {
            let body = format!(r#"{{"total":1,"hold":{{"{field}":{number}}}}}"#);
            refused(&shop, "/v1/items/new", &body, "validation", &format!("hold.{field}")).await;
        }
        if number != "0" {
            let body = put("total");
            refused(&shop, "/v1/items/new", &body, "validation", "total").await;
            let body = format!(r#"{{"total":1,"regions":{{"eu":{{"quota":{number}}}}}}}"#);
            refused(&shop, "/v1/items/new", &body, "validation", "regions.eu.quota").await;
            let body =
                format!(r#"{{"total":1,"regions":{{"eu":{{"quota":1,"floor":{number}}}}}}}"#);
            refused(&shop, "/v1/items/new", &body, "validation", "regions.eu.floor").await;
            let body = put("set_total");
            refused(&shop, "/v1/items/shirt/adjustments", &body, "validation", "set_total").await;
        }
        if number != "-1" {
            let body = format!(r#"{{"delta":{number},"reason":"r"}}"#);
            refused(&shop, "/v1/items/shirt/adjustments", &body, "validation", "delta").await;
        }
        let body = format!(
            r#"{{"operations":[{{"op":"place","key":"b","item":"shirt","quantity":{number}}}]}}"#
        );
        let before = shop.desk.entries();
        let read = shop.call("POST", "/v1/holds:batch", &[JSON], body).await.json();
        assert_eq!(read["results"][0]["problem"]["errors"][0]["field"], "quantity");
        assert_eq!(shop.desk.entries(), before);
    }
    for spelling in ["01", "+1", "0x1", "1_000", "NaN", "Infinity", "1.", ".5"] {
        refused(&shop, &holds, &format!(r#"{{"quantity":{spelling}}}"#), "malformed", "").await;
    }
    // In range and too many is the stock's business, not the input's.
    let many = shop.place("shirt", "m", r#"{"quantity":9007199254740991}"#).await;
    assert_eq!(many.slug(), "insufficient-stock");
    let overflow = r#"{"delta":9007199254740991,"reason":"r"}"#;
    let read = shop.post("/v1/items/shirt/adjustments", "o", overflow).await;
    assert_eq!(read.slug(), "validation", "{read:?}");
    assert_eq!(shop.stock("shirt").await, (9_007_199_254_740_989, 2, 0));
}

#[tokio::test]
async fn h02_duplicate_members_and_parameters_are_refused_in_every_spelling() {
    let shop = Shop::selling("shirt", 9).await;
    let holds = "/v1/items/shirt/holds";
    for body in [
        r#"{"quantity":1,"quantity":1}"#,
        r#"{"quantity":1,"quantity":2}"#,
        r#"{"quantity":1,"\u0071uantity":1}"#,
        r#"{"quantity":1,"ttl_ms":5,"ttl_ms":5}"#,
    ] {
        refused(&shop, holds, body, "malformed", "").await;
    }
    refused(
        &shop,
        "/v1/items/new",
        r#"{"total":1,"metadata":{"a":"1","\u0061":"1"}}"#,
        "malformed",
        "",
    )
    .await;
    for query in [
        "consistency=local&consistency=local",
        "consistency=local&%63onsistency=leader",
        "Consistency=local",
        "unknown=1",
        "detail=buckets&detail=buckets",
        "detail=regions",
        "consistency=",
        "consistency=Local",
        "consistency=local%20",
        "%FF=1",
        "consistency=%ff",
        "consistency=%zz",
        "consistency=loca%6",
    ] {
        let read = shop.get(&format!("/v1/items/shirt/availability?{query}")).await;
        assert_eq!(read.slug(), "malformed", "{query}");
    }
    let once = shop.get("/v1/items/shirt/availability?%63onsistency=%6Cocal&").await;
    assert_eq!(once.status, StatusCode::OK);
    let post = shop.post("/v1/items/shirt/holds?quantity=1", "k", r#"{"quantity":1}"#).await;
    assert_eq!(post.slug(), "malformed");
}

#[tokio::test]
async fn unknown_fields_and_null_and_wrong_kinds_are_refused_by_name() {
    let shop = Shop::selling("shirt", 9).await;
    let id = shop.placed("shirt", "k", r#"{"quantity":2}"#).await;
    let holds = "/v1/items/shirt/holds";
    for (body, field) in [
        (r#"{"quantity":1,"qty":1}"#, "qty"),
        (r#"{"quantity":1,"Quantity":1}"#, "Quantity"),
        (r#"{}"#, "quantity"),
        (r#"{"quantity":1,"buyer":null}"#, "buyer"),
        (r#"{"quantity":1,"buyer":7}"#, "buyer"),
        (r#"{"quantity":1,"buyer":""}"#, "buyer"),
        (r#"{"quantity":1,"buyer":"a/b"}"#, "buyer"),
        (r#"{"quantity":1,"buyer":" a"}"#, "buyer"),
        (r#"{"quantity":1,"buyer":"a\u0000"}"#, "buyer"),
        (r#"{"quantity":1,"buyer":"ä"}"#, "buyer"),
        (r#"{"quantity":1,"region":["eu"]}"#, "region"),
        (r#"{"quantity":1,"reference":""}"#, "reference"),
        (r#"{"quantity":1,"reference":"a\nb"}"#, "reference"),
        ("[]", "body"),
        ("null", "body"),
        ("\"quantity\"", "body"),
        ("1", "body"),
    ] {
        refused(&shop, holds, body, "validation", field).await;
    }
    let long = "x".repeat(129);
    refused(&shop, holds, &format!(r#"{{"quantity":1,"buyer":"{long}"}}"#), "validation", "buyer")
        .await;
    let wide = "é".repeat(65);
    let body = format!(r#"{{"quantity":1,"reference":"{wide}"}}"#);
    refused(&shop, holds, &body, "validation", "reference").await;
    for (verb, body, field) in [
        ("confirm", r#"{"reacquire":1}"#, "reacquire"),
        ("confirm", r#"{"reacquire":null}"#, "reacquire"),
        ("confirm", r#"{"reason":"x"}"#, "reason"),
        ("release", r#"{"reason":{}}"#, "reason"),
        ("release", r#"{"quantity":1}"#, "quantity"),
        ("extend", r#"{"ttl":1}"#, "ttl"),
    ] {
        refused(&shop, &format!("/v1/holds/{id}/{verb}"), body, "validation", field).await;
    }
    for (body, field) in [
        (r#"{"total":1,"hold":null}"#, "hold"),
        (r#"{"total":1,"hold":{"ttl":1}}"#, "hold.ttl"),
        (r#"{"total":1,"hold":{"ttl_ms":9,"max_ttl_ms":8}}"#, "hold.ttl_ms"),
        (r#"{"total":1,"hold":{"max_ttl_ms":9,"max_lifetime_ms":8}}"#, "hold.max_lifetime_ms"),
        (r#"{"total":1,"hold":{"max_extends":-1}}"#, "hold.max_extends"),
        (r#"{"total":1,"hold":{"max_extends":4294967296}}"#, "hold.max_extends"),
        (r#"{"total":1,"sale":{"opens_at":1}}"#, "sale.opens_at"),
        (r#"{"total":1,"sale":{"opens_at":"2026-02-30T00:00:00Z"}}"#, "sale.opens_at"),
        (r#"{"total":1,"sale":{"opens_at":"2026-02-03 00:00:00Z"}}"#, "sale.opens_at"),
        (
            r#"{"total":1,"sale":{"opens_at":"2026-02-03T00:00:00Z",
                "closes_at":"2026-02-03T00:00:00Z"}}"#,
            "sale.closes_at",
        ),
        (r#"{"total":1,"metadata":{"a":{"b":1}}}"#, "metadata.a"),
        (r#"{"total":1,"metadata":[]}"#, "metadata"),
        (r#"{"total":1,"regions":{"e/u":{"quota":1}}}"#, "regions.e/u"),
        (r#"{"total":1,"regions":{"eu":{}}}"#, "regions.eu.quota"),
        (r#"{"total":1,"regions":{"eu":1}}"#, "regions.eu"),
        (r#"{"total":1,"buckets":0}"#, "buckets"),
        (r#"{"total":1,"held":1}"#, "held"),
    ] {
        refused(&shop, "/v1/items/new", body, "validation", field).await;
    }
    let words = "x".repeat(4_096);
    let body = format!(r#"{{"total":1,"metadata":{{"a":"{words}"}}}}"#);
    refused(&shop, "/v1/items/new", &body, "validation", "metadata").await;
    for (body, field) in [
        (r#"{"delta":1}"#, "reason"),
        (r#"{"delta":1,"set_total":1,"reason":"r"}"#, "delta"),
        (r#"{"reason":"r"}"#, "delta"),
    ] {
        refused(&shop, "/v1/items/shirt/adjustments", body, "validation", field).await;
    }
    refused(&shop, "/v1/items/shirt/pause", r#"{"why":1}"#, "validation", "why").await;
    // Many broken rules are told of, and an answer stays small whatever came in.
    let many: Vec<String> = (0..5_000).map(|n| format!(r#""f{n}":1"#)).collect();
    let read = shop.place("shirt", "k9", &format!("{{{}}}", many.join(","))).await;
    assert_eq!(read.slug(), "validation");
    assert!(read.text.len() < 20_000, "{}", read.text.len());
    let name = "n".repeat(100_000);
    let read = shop.place("shirt", "k9", &format!(r#"{{"{name}":1}}"#)).await;
    assert!(read.text.len() < 2_000, "{}", read.text.len());
}

#[tokio::test]
async fn h07_a_lifetime_beyond_its_maximum_is_refused_and_a_live_hold_keeps_its_deadline() {
    let shop = Shop::selling("shirt", 9).await;
    let id = shop.placed("shirt", "k", r#"{"quantity":2}"#).await;
    for ttl in [
        "2147483648",
        "9007199254740991",
        "9223372036854775",
        "9223372036854775807",
        "18446744073709551615",
    ] {
        let body = format!(r#"{{"ttl_ms":{ttl}}}"#);
        let read = shop.post(&format!("/v1/holds/{id}/extend"), "e", &body).await;
        assert_eq!(read.slug(), "validation", "{ttl}");
        let maximum = if ttl == "2147483648" { "3600000" } else { "31622400000" };
        assert!(read.text.contains(maximum), "the maximum is named: {}", read.text);
    }
    let read = shop.get(&format!("/v1/holds/{id}")).await.json();
    assert_eq!((&read["expires_in_ms"], &read["extends_left"]), (&600_000.into(), &1.into()));
}

#[tokio::test]
async fn h09_ids_are_percent_decoded_exactly_once_and_never_escape_their_segment() {
    let shop = Shop::new();
    for (written, name, spellings) in [
        ("a", "a", &["a", "%61"][..]),
        ("a:b", "a:b", &["a:b", "a%3Ab", "a%3ab", "%61%3A%62"][..]),
        ("a%20b", "a b", &["a%20b"][..]),
        ("%25", "%", &["%25"][..]),
        ("%252F", "%2F", &["%252F", "%252%46"][..]),
        ("a+b", "a+b", &["a+b", "a%2Bb", "a%2bb"][..]),
        (".", ".", &[".", "%2E", "%2e"][..]),
        ("..", "..", &["..", "%2E%2E", ".%2e"][..]),
        ("holds:batch", "holds:batch", &["holds%3Abatch"][..]),
    ] {
        assert_eq!(
            shop.put(written, r#"{"total":3}"#).await.status,
            StatusCode::CREATED,
            "{written}"
        );
        for spelling in spellings {
            let read = shop.get(&format!("/v1/items/{spelling}")).await;
            assert_eq!(read.json()["item"], name, "{spelling}");
            let hold = shop.place(spelling, &format!("k{spelling}"), r#"{"quantity":1}"#).await;
            assert!([201, 409].contains(&hold.status.as_u16()), "{spelling} {hold:?}");
        }
    }
    for wrong in [
        "a%2Fb", "a%2fb", "%00", "a%00", "%FF", "%ff", "%C3%A4", "%7F", "%1F", "%0a", "%20a",
        "a%20", "%", "%2", "%zz", "a%", "%u0061",
    ] {
        let before = shop.desk.entries();
        assert_eq!(shop.put(wrong, r#"{"total":1}"#).await.slug(), "malformed", "{wrong}");
        assert_eq!(shop.get(&format!("/v1/items/{wrong}")).await.slug(), "malformed", "{wrong}");
        let read = shop.get(&format!("/v1/receipts/{wrong}?item=a")).await;
        assert_eq!(read.slug(), "malformed", "{wrong}");
        let read = shop.get(&format!("/v1/holds?item={wrong}")).await;
        assert_eq!(read.slug(), "malformed", "{wrong}");
        assert_eq!(shop.desk.entries(), before);
    }
    // An empty name is no item's.
    assert_eq!(shop.place("", "k", r#"{"quantity":1}"#).await.slug(), "malformed");
    assert_eq!(shop.get("/v1/items/a/").await.slug(), "not-found");
    assert_eq!(shop.get("/v1//items/a").await.slug(), "not-found");
    let items = shop.get("/v1/items").await.json();
    assert_eq!(items["items"].as_array().map(Vec::len), Some(9));
}

#[tokio::test]
async fn h12_the_key_header_is_exact_after_trimming_and_bounded() {
    let shop = Shop::selling("shirt", 99).await;
    let path = "/v1/items/shirt/holds";
    let body = r#"{"quantity":1}"#;
    let missing = shop.call("POST", path, &[JSON], body).await;
    assert_eq!(missing.slug(), "idempotency-key-missing");
    let keys = |keys: &[&str]| -> Vec<(&'static str, String)> {
        keys.iter().map(|key| ("Idempotency-Key", (*key).to_owned())).collect()
    };
    let call = |headers: Vec<(&'static str, String)>| async {
        let headers = headers;
        let mut all = vec![JSON];
        all.extend(headers.iter().map(|(name, value)| (*name, value.as_str())));
        shop.call("POST", path, &all, body).await
    };
    let long = "k".repeat(128);
    let over = "k".repeat(129);
    let huge = "k".repeat(8_192);
    for wrong in ["", "  ", &over, &huge, "ä", "a/b", "ключ"] {
        let read = call(keys(&[wrong])).await;
        assert_eq!(read.slug(), "malformed", "{wrong}");
        assert!(read.text.contains("Idempotency-Key"), "{}", read.text);
    }
    assert_eq!(call(keys(&["a", "b"])).await.slug(), "malformed");
    let first = call(keys(&["key one, two"])).await;
    assert_eq!(first.status, StatusCode::CREATED, "inner spaces and commas belong to the key");
    for same in [&["  key one, two\t"][..], &["key one, two", "key one, two"][..]] {
        let read = call(keys(same)).await;
        assert_eq!((read.status, &read.json()["id"]), (StatusCode::OK, &first.json()["id"]));
    }
    assert_eq!(call(keys(&[&long])).await.status, StatusCode::CREATED);
    assert_eq!(call(keys(&["k"])).await.status, StatusCode::CREATED);
    assert_eq!(call(keys(&["K"])).await.status, StatusCode::CREATED, "case matters in values");
    let odd = shop.call("POST", path, &[JSON, ("iDEMPOTENCY-kEY", "k")], body).await;
    assert_eq!(odd.status, StatusCode::OK, "and not in names");

    for wrong in ["", "a/b", "ä", &over] {
        let read = shop.call("GET", "/v1/items", &[("Holdfast-Tenant", wrong)], "").await;
        assert_eq!(read.slug(), "malformed", "tenant {wrong}");
    }
    let two = [("Holdfast-Tenant", "a"), ("Holdfast-Tenant", "b")];
    assert_eq!(shop.call("GET", "/v1/items", &two, "").await.slug(), "malformed");
    for wrong in ["0", "-1", "30001", "1.0", "x", "", "99999999999999999999"] {
        let read = shop.call("GET", "/v1/items", &[("Holdfast-Deadline-Ms", wrong)], "").await;
        assert_eq!(read.slug(), "malformed", "deadline {wrong}");
    }
    for wrong in ["*", "W/\"1\"", "\"x\"", "\"1\", \"2\"", ""] {
        let headers = [JSON, ("If-Match", wrong)];
        let read = shop.call("PUT", "/v1/items/shirt", &headers, "{}").await;
        assert_eq!(read.slug(), "malformed", "If-Match {wrong}");
    }
}

#[tokio::test]
async fn bodies_are_json_in_utf8_and_say_so() {
    let shop = Shop::selling("shirt", 9).await;
    let path = "/v1/items/shirt/holds";
    let body = r#"{"quantity":1}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json5", "json", ""]
    {
        let headers = [("Content-Type", kind), ("Idempotency-Key", "k")];
        assert_eq!(shop.call("POST", path, &headers, body).await.slug(), "malformed", "{kind}");
    }
    let none = shop.call("POST", path, &[("Idempotency-Key", "k")], body).await;
    assert_eq!(none.slug(), "malformed");
    let packed = [JSON, ("Idempotency-Key", "k"), ("Content-Encoding", "gzip")];
    assert_eq!(shop.call("POST", path, &packed, body).await.slug(), "malformed");
    for broken in [
        &b""[..],
        b"{",
        b"{\"quantity\":1}{}",
        b"\xef\xbb\xbf{\"quantity\":1}",
        b"\xff",
        b"{\"quantity\":1,}",
    ] {
        let headers = [JSON, ("Idempotency-Key", "k")];
        let read = shop.call("POST", path, &headers, broken.to_vec()).await;
        assert_eq!(read.slug(), "malformed", "{broken:?}");
    }
    let fine = [("Content-Type", "Application/JSON; charset=utf-8"), ("Idempotency-Key", "k")];
    assert_eq!(shop.call("POST", path, &fine, body).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn h14_a_body_above_the_limit_is_413_and_depth_is_400() {
    let shop = Shop::selling("shirt", 9).await;
    let limit = 1 << 20;
    let padded = |bytes: usize| {
        let body = r#"{"quantity":1}"#;
        format!("{body}{}", " ".repeat(bytes - body.len()))
    };
    for (bytes, status) in [(limit - 1, 201), (limit, 201), (limit + 1, 413), (3 * limit, 413)] {
        let read = shop.place("shirt", &format!("k{bytes}"), &padded(bytes)).await;
        assert_eq!(read.status.as_u16(), status, "{bytes}");
        if status == 413 {
            assert_eq!(read.slug(), "too-large");
            assert_eq!(read.header("connection"), Some("close"));
        }
    }
    // An endless body is given up, not gathered.
    let endless =
        futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 1 << 16]));
    let request = Request::builder()
        .method("POST")
        .uri("/v1/items/shirt/holds")
        .header("Content-Type", "application/json")
        .header("Idempotency-Key", "endless");
    let read = shop.send(request.body(Body::from_stream(endless)).expect("a request")).await;
    assert_eq!(read.slug(), "too-large");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let read = shop.place("shirt", "deep", &format!(r#"{{"quantity":{deep}}}"#)).await;
    assert_eq!(read.slug(), "malformed");
    assert!(read.text.contains("16"), "the rule is named: {}", read.text);
}

#[tokio::test]
async fn h13_a_body_that_does_not_come_is_408_and_a_broken_one_400() {
    let body_timeout = std::time::Duration::from_millis(20);
    let shop = Shop::with(holdfast::http::Limits { body_timeout, ..Default::default() });
    shop.put("shirt", r#"{"total":9}"#).await;
    let request = || {
        Request::builder()
            .method("POST")
            .uri("/v1/items/shirt/holds")
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", "slow")
    };
    let silent = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let read = shop.send(request().body(Body::from_stream(silent)).expect("a request")).await;
    assert_eq!((read.status.as_u16(), read.slug().as_str()), (408, "body-timeout"));
    assert_eq!(read.header("connection"), Some("close"));
    let broken = futures_util::stream::iter([
        Ok(b"{\"quantity\":1}".to_vec()),
        Err(std::io::Error::other("the client went away")),
    ]);
    let read = shop.send(request().body(Body::from_stream(broken)).expect("a request")).await;
    assert_eq!(read.slug(), "malformed");
    assert_eq!(shop.stock("shirt").await, (9, 0, 0));
}

#[tokio::test]
async fn h03_every_number_in_an_answer_is_exact_in_a_double_and_ids_are_strings() {
    let shop = Shop::selling("shirt", 9_007_199_254_740_991).await;
    let placed = shop.place("shirt", "k", r#"{"quantity":9007199254740991}"#).await;
    assert!(placed.json()["id"].is_string());
    let texts = [
        placed.text,
        shop.get("/v1/items/shirt").await.text,
        shop.get("/v1/items/shirt/availability?detail=buckets").await.text,
        shop.get("/v1/items/shirt/audit").await.text,
    ];
    fn exact(value: &serde_json::Value) {
        match value {
            serde_json::Value::Number(n) => {
                let units = n.as_u64().expect("all numbers are whole");
                assert!(units <= 9_007_199_254_740_991, "{units}");
            }
            serde_json::Value::Array(values) => values.iter().for_each(exact),
            serde_json::Value::Object(members) => members.values().for_each(exact),
            _ => {}
        }
    }
    for text in texts {
        exact(&serde_json::from_str(&text).expect("JSON"));
    }
}

#[tokio::test]
async fn a_bare_list_is_told_the_shape_of_a_batch() {
    let shop = Shop::selling("shirt", 5).await;
    let read = shop.call("POST", "/v1/holds:batch", &[JSON], "  [{\"op\":\"place\"}]").await;
    assert_eq!(read.slug(), "validation");
    assert!(read.text.contains("operations"), "{}", read.text);
}

#[tokio::test]
async fn an_operation_without_its_key_is_told_its_unknown_fields_as_well() {
    let shop = Shop::selling("shirt", 5).await;
    let problem_of = async |operation: &str| {
        let body = format!(r#"{{"operations":[{operation}]}}"#);
        let read = shop.call("POST", "/v1/holds:batch", &[JSON], body).await.json();
        read["results"][0]["problem"].clone()
    };
    let both = problem_of(r#"{"op":"place","item":"shirt","qty":1}"#).await.to_string();
    for field in ["\"key\"", "\"qty\"", "\"quantity\""] {
        assert!(both.contains(field), "{field}: {both}");
    }
    let only_key = problem_of(r#"{"op":"place","item":"shirt","quantity":1}"#).await;
    assert_eq!(only_key["type"], "/problems/idempotency-key-missing");
    let only_key = problem_of(r#"{"op":"confirm","hold":"hld_none"}"#).await;
    assert_eq!(only_key["type"], "/problems/idempotency-key-missing");
}

/// `make fuzz`, seed 7: a machine came in whose peers were to reach it at `NHR£J`, and the
/// operation that brought it in waited for it.
#[tokio::test]
async fn node_comes_from_an_address_that_others_can_reach() {
    let shop = Shop::selling("shirt", 10).await;
    let uuid = "0".repeat(32);
    for wrong in ["NHR£J", "host", ":7201", "host:0", "host:70000", "host:x", "a b:1", ""] {
        for (field, peer, http) in [("peer_addr", wrong, "h:1"), ("http_addr", "h:1", wrong)] {
            let member = format!(
                r#""log_uuid":"{uuid}","peer_addr":"{peer}","http_addr":"{http}","region":"eu""#
            );
            for (path, body, named) in [
                ("/admin/v1/join", format!(r#"{{"token":"t",{member}}}"#), field.to_owned()),
                (
                    "/admin/v1/begin",
                    format!(r#"{{"members":[{{"node":1,{member}}}]}}"#),
                    format!("members.0.{field}"),
                ),
            ] {
                let read = shop.call("POST", path, &[JSON], body.clone()).await;
                assert_eq!(read.slug(), "validation", "{path} {body}: {}", read.text);
                let errors = read.json()["errors"].as_array().expect("errors[]").clone();
                assert!(errors.iter().any(|e| e["field"] == named.as_str()), "{}", read.text);
            }
        }
    }
}

/// Of the calls of services, those take a key that their own words do not make safe to repeat. The
/// document says which, and is held to what they answer.
#[tokio::test]
async fn every_call_that_needs_a_key_says_so_and_no_other_asks_for_one() {
    let shop = Shop::selling("shirt", 10).await;
    let id = shop.placed("shirt", "k", r#"{"quantity":1,"buyer":"b"}"#).await;
    let document: serde_json::Value =
        serde_json::from_str(&holdfast::http::document_json()).expect("the document is JSON");
    let mut asked = Vec::new();
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            if !path.starts_with("/v1/") || method == "get" {
                continue;
            }
            let parameters = operation["parameters"].as_array().expect("a list");
            let keyed = parameters.iter().any(|one| one["name"] == "Idempotency-Key");
            let path = path.replace("{item}", "shirt").replace("{id}", &id);
            let read =
                shop.call(&method.to_uppercase(), &path.replace("{key}", "k"), &[], "").await;
            let missing = read.text.contains("idempotency-key-missing");
            assert_eq!(missing, keyed, "{method} {path}: {read:?}");
            asked.push(format!("{method} {path}"));
        }
    }
    assert!(asked.len() >= 15, "{asked:?}");
}
