//! Items over HTTP against a real ledger: definitions, totals, modes, stock, lists.
#![allow(missing_docs)]

mod http_desk;

use axum::http::StatusCode;
use holdfast::shard::Consistency;
use http_desk::{JSON, Shop};

#[tokio::test]
async fn l32_the_same_definition_again_changes_nothing_and_another_total_is_refused() {
    let shop = Shop::selling("shirt", 10).await;
    shop.placed("shirt", "a", r#"{"quantity":4}"#).await;
    let first = shop.get("/v1/items/shirt").await;
    let again = shop.put("shirt", r#"{"total":10}"#).await;
    assert_eq!(again.status, StatusCode::OK);
    assert_eq!(again.json()["revision"], first.json()["revision"]);
    assert_eq!(shop.stock("shirt").await, (6, 4, 0));
    let other = shop.put("shirt", r#"{"total":11}"#).await;
    assert_eq!(other.slug(), "use-adjustments");
    assert_eq!(other.json()["total"], 10);
    let described = shop.put("shirt", r#"{"metadata":{"colour":"red","empty":""}}"#).await;
    assert_eq!(described.json()["metadata"]["colour"], "red");
    assert_ne!(described.header("etag"), first.header("etag"));
    assert_eq!(shop.stock("shirt").await, (6, 4, 0));
}

#[tokio::test]
async fn l27_l28_totals_change_by_adjustments_once_a_key_and_absolutely_only_with_if_match() {
    let shop = Shop::selling("shirt", 10).await;
    shop.placed("shirt", "a", r#"{"quantity":7}"#).await;
    let adjust = "/v1/items/shirt/adjustments";
    let below = shop.post(adjust, "k1", r#"{"delta":-4,"reason":"broken"}"#).await;
    assert_eq!(below.slug(), "stock-committed");
    assert_eq!((&below.json()["held"], &below.json()["available"]), (&7.into(), &3.into()));
    for replayed in [None, Some("true"), Some("true")] {
        let up = shop.post(adjust, "k2", r#"{"delta":2,"reason":"delivery"}"#).await;
        assert_eq!((up.status, &up.json()["total"]), (StatusCode::OK, &12.into()));
        assert_eq!(up.header("idempotent-replayed"), replayed);
    }
    let naked = shop.post(adjust, "k3", r#"{"set_total":20}"#).await;
    assert_eq!(naked.status.as_u16(), 428);
    assert_eq!(naked.slug(), "precondition-required");
    let read = shop.get("/v1/items/shirt").await;
    let etag = read.header("etag").expect("items have an ETag").to_owned();
    assert_eq!(etag, format!("\"{}\"", read.json()["revision"]));
    let with = |key: &'static str, etag: &str| {
        [JSON, ("Idempotency-Key", key), ("If-Match", Box::leak(etag.to_owned().into_boxed_str()))]
    };
    let set = shop.call("POST", adjust, &with("k4", &etag), r#"{"set_total":20}"#).await;
    assert_eq!((set.status, &set.json()["total"]), (StatusCode::OK, &20.into()));
    let stale = shop.call("POST", adjust, &with("k5", &etag), r#"{"set_total":8}"#).await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(stale.slug(), "revision-mismatch");
    let both = shop.call("POST", adjust, &with("k6", &etag), r#"{"delta":1,"reason":"r"}"#).await;
    assert_eq!(both.slug(), "malformed");
    assert_eq!(shop.stock("shirt").await, (13, 7, 0));
}

#[tokio::test]
async fn an_item_is_paused_resumed_closed_and_deleted() {
    let shop = Shop::selling("shirt", 3).await;
    let id = shop.placed("shirt", "a", r#"{"quantity":1}"#).await;
    let post = |verb: &str| format!("/v1/items/shirt/{verb}");
    let call = |path: String| async { shop.call("POST", &{ path }, &[], "").await };
    assert_eq!(call(post("pause")).await.json()["state"], "paused");
    let paused = shop.place("shirt", "b", r#"{"quantity":1}"#).await;
    assert_eq!(paused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        (paused.slug().as_str(), &paused.json()["reason"]),
        ("item-paused", &"operator".into())
    );
    assert!(paused.json()["retry_same_key"] == true && paused.header("retry-after").is_some());
    assert_eq!(shop.get("/v1/items/shirt/availability").await.json()["state"], "paused");
    assert_eq!(call(post("resume")).await.json()["state"], "open");
    assert_eq!(call(post("close")).await.json()["state"], "closed");
    assert_eq!(shop.place("shirt", "b", r#"{"quantity":1}"#).await.slug(), "item-closed");
    let open = shop.call("DELETE", "/v1/items/shirt", &[], "").await;
    assert_eq!((open.slug().as_str(), &open.json()["held"]), ("stock-committed", &1.into()));
    shop.post(&format!("/v1/holds/{id}/release"), "r", "").await;
    let gone = shop.call("DELETE", "/v1/items/shirt", &[], "").await;
    assert_eq!(gone.status, StatusCode::OK);
    let number = gone.json()["number"].clone();
    assert_eq!(shop.get("/v1/items/shirt").await.slug(), "not-found");
    let again = shop.put("shirt", r#"{"total":3}"#).await;
    assert_eq!(again.status, StatusCode::CREATED);
    assert_ne!(again.json()["number"], number, "an item deleted and created again is another");
    assert_eq!(shop.get(&format!("/v1/holds/{id}")).await.slug(), "not-found");
}

#[tokio::test]
async fn a_definition_is_read_back_as_it_was_written() {
    let shop = Shop::new();
    let body = r#"{"total":7,"buckets":1,"hold":{"ttl_ms":1000,"max_ttl_ms":5000,"max_extends":3,
        "max_lifetime_ms":9000},"limit_per_buyer":4,"sale":{"opens_at":"2026-05-01T10:00:00Z",
        "closes_at":"2026-05-02T10:00:00.500Z"},"metadata":{"a":"b"}}"#;
    let made = shop.put("shirt", body).await;
    assert_eq!(made.status, StatusCode::CREATED);
    assert_eq!(made.header("location"), Some("/v1/items/shirt"));
    let read = shop.get("/v1/items/shirt").await;
    assert_eq!(read.text, made.text);
    let item = read.json();
    assert_eq!(item["hold"]["max_lifetime_ms"], 9000);
    assert_eq!(item["sale"]["opens_at"], "2026-05-01T10:00:00.000Z");
    assert_eq!(item["sale"]["closes_at"], "2026-05-02T10:00:00.500Z");
    assert_eq!(item["regions"]["default"]["quota"], 7);
    assert_eq!(item["layout"]["buckets"][0]["id"], 0);
    let early = shop.place("shirt", "k", r#"{"quantity":1}"#).await;
    assert_eq!(early.slug(), "sale-not-open");
    assert_eq!(early.json()["opens_at"], "2026-05-01T10:00:00.000Z");
    assert_eq!(shop.get("/v1/items/shirt/availability").await.json()["state"], "scheduled");
    let etag = read.header("etag").expect("an ETag");
    let same = shop.call("GET", "/v1/items/shirt", &[("If-None-Match", etag)], "").await;
    assert_eq!((same.status, same.text.as_str()), (StatusCode::NOT_MODIFIED, ""));
    // One default never breaks a rule that the caller did not name.
    let short = shop.put("short", r#"{"total":1,"hold":{"max_ttl_ms":50}}"#).await;
    assert_eq!(short.json()["hold"]["ttl_ms"], 50);
    let long = shop.put("long", r#"{"total":1,"hold":{"ttl_ms":8000000}}"#).await;
    assert_eq!(long.json()["hold"]["max_ttl_ms"], 8_000_000);
    assert_eq!(shop.put("x", r#"{"total":1,"units":["A1"]}"#).await.slug(), "not-implemented");
    assert_eq!(shop.put("x", r#"{"total":1,"buckets":2}"#).await.slug(), "not-implemented");
    let mismatch = [JSON, ("If-Match", "\"99\"")];
    let read = shop.call("PUT", "/v1/items/shirt", &mismatch, r#"{"total":7}"#).await;
    assert_eq!(read.slug(), "revision-mismatch");
}

#[tokio::test]
async fn lists_are_paged_by_a_cursor_and_lose_and_repeat_nothing() {
    let shop = Shop::new();
    for n in 0..7 {
        shop.put(&format!("item%20{n}"), r#"{"total":9}"#).await;
    }
    for n in 0..7 {
        let body = format!("{{\"quantity\":1,\"buyer\":\"b{}\"}}", n % 2);
        shop.placed("item%200", &format!("k{n}"), &body).await;
    }
    for (first, name, field, wanted) in [
        ("/v1/items?limit=3".to_owned(), "items", "item", 7),
        ("/v1/holds?item=item%200&limit=3".to_owned(), "holds", "id", 7),
        ("/v1/holds?item=item%200&buyer=b1&state=held&limit=3".to_owned(), "holds", "id", 3),
        ("/v1/holds?item=item%200&state=sold&limit=3".to_owned(), "holds", "id", 0),
    ] {
        let mut seen = Vec::new();
        let mut path = first.clone();
        loop {
            let page = shop.get(&path).await;
            assert_eq!(page.status, StatusCode::OK, "{page:?}");
            let page = page.json();
            let entries = page[name].as_array().expect("a list").clone();
            assert!(entries.len() <= 3);
            seen.extend(entries.iter().map(|e| e[field].as_str().expect("a name").to_owned()));
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("{first}&cursor={}", cursor.replace(' ', "%20"));
        }
        let mut sorted = seen.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!((seen.len(), sorted.len()), (wanted, wanted), "{first}");
        if name == "items" {
            assert_eq!(seen, sorted, "by name");
        }
    }
    assert_eq!(shop.get("/v1/holds?item=none").await.slug(), "not-found");
    assert_eq!(shop.get("/v1/holds").await.slug(), "malformed");
    assert_eq!(shop.get("/v1/holds?item=item%200&state=gone").await.slug(), "malformed");
    assert_eq!(shop.get("/v1/holds?item=item%200&cursor=x").await.slug(), "malformed");
    for limit in ["0", "1001", "-1", "1.0", "", "x", "99999999999999999999"] {
        let path = format!("/v1/items?limit={limit}");
        assert_eq!(shop.get(&path).await.slug(), "malformed", "{limit}");
    }
}

#[tokio::test]
async fn the_sold_out_list_is_cached_by_its_tag_and_is_a_tenants_own() {
    let shop = Shop::selling("gone", 1).await;
    shop.put("left", r#"{"total":2}"#).await;
    shop.placed("gone", "k", r#"{"quantity":1}"#).await;
    let list = shop.get("/v1/sold-out").await;
    assert_eq!(shop.desk.last_asked().0, Consistency::Local);
    assert_eq!(list.json()["items"][0]["item"], "gone");
    assert_eq!(list.json()["items"][0]["may_return"], true);
    assert_eq!(list.json()["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(list.header("cache-control"), Some("public, max-age=1"));
    assert!(list.header("vary").is_some_and(|v| v.contains("Holdfast-Tenant")));
    let tag = list.header("etag").expect("an ETag");
    let same = shop.call("GET", "/v1/sold-out", &[("If-None-Match", tag)], "").await;
    assert_eq!((same.status, same.text.as_str()), (StatusCode::NOT_MODIFIED, ""));
    let other = shop.call("GET", "/v1/sold-out", &[("Holdfast-Tenant", "t2")], "").await;
    assert_eq!(other.json()["items"].as_array().map(Vec::len), Some(0));
    shop.call("POST", "/v1/items/left/pause", &[], "").await;
    let list = shop.call("GET", "/v1/sold-out", &[("If-None-Match", tag)], "").await;
    assert_eq!(list.status, StatusCode::OK);
    assert_eq!(list.json()["items"][1]["paused_reason"], "operator");
}

#[tokio::test]
async fn availability_is_local_unless_asked_and_shows_buckets_when_asked() {
    let shop = Shop::selling("shirt", 10).await;
    shop.placed("shirt", "k", r#"{"quantity":4}"#).await;
    let stock = shop.get("/v1/items/shirt/availability").await;
    assert_eq!(shop.desk.last_asked().0, Consistency::Local);
    let json = stock.json();
    assert_eq!(json["state"], "on-sale");
    for (field, value) in
        [("available", 6), ("held", 4), ("sold", 0), ("in_transit", 0), ("total", 10)]
    {
        assert_eq!(json[field], value, "{field}");
    }
    assert_eq!(json["as_of"], "2026-05-01T09:30:00.000Z");
    assert!(json.get("buckets").is_none());
    let path = "/v1/items/shirt/availability?consistency=linearizable&detail=buckets";
    let json = shop.get(path).await.json();
    assert_eq!(shop.desk.last_asked().0, Consistency::Linearizable);
    assert_eq!(json["buckets"][0]["available"], 6);
    assert_eq!(json["regions"]["default"]["held"], 4);
    let audit = shop.get("/v1/items/shirt/audit").await.json();
    assert_eq!((&audit["conserved"], &audit["buckets"][0]["received"]), (&true.into(), &10.into()));
}
