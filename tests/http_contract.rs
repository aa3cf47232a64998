//! The contract of HTTP v1 against a real ledger: what each call answers, with which status,
//! headers and problem. The numbers are those of the reported faults.
#![allow(missing_docs)]

mod http_desk;

use axum::http::StatusCode;
use holdfast::ledger::{LogIndex, NodeId, PauseReason, SchemaVersion};
use holdfast::shard::{Consistency, Hop, Outcome};
use http_desk::{JSON, Shop};

#[tokio::test]
async fn a_hold_is_placed_extended_confirmed_and_returned() {
    let shop = Shop::selling("shirt", 10).await;
    let body =
        r#"{"quantity":2,"buyer":"b_9f","region":"default","ttl_ms":600000,"reference":"cart-81"}"#;
    let placed = shop.place("shirt", "k1", body).await;
    assert_eq!(placed.status, StatusCode::CREATED);
    let hold = placed.json();
    let id = hold["id"].as_str().expect("an id");
    assert_eq!(placed.header("location"), Some(format!("/v1/holds/{id}").as_str()));
    assert_eq!(placed.header("holdfast-commit"), Some("0:7.2:2"));
    assert_eq!(placed.header("holdfast-leader"), Some("2"));
    assert_eq!(placed.header("content-type"), Some("application/json"));
    assert_eq!(placed.header("idempotent-replayed"), None);
    for (field, value) in [
        ("item", "shirt"),
        ("state", "held"),
        ("buyer", "b_9f"),
        ("region", "default"),
        ("placed_at", "2026-05-01T09:30:00.000Z"),
        ("expires_at", "2026-05-01T09:40:00.000Z"),
        ("reference", "cart-81"),
    ] {
        assert_eq!(hold[field], value, "{field}");
    }
    for (field, value) in [
        ("quantity", 2),
        ("sold", 0),
        ("expires_in_ms", 600_000),
        ("extends_left", 1),
        ("revision", 2),
    ] {
        assert_eq!(hold[field], value, "{field}");
    }
    assert_eq!(shop.stock("shirt").await, (8, 2, 0));

    shop.desk.pass(60_000);
    let extended = shop.post(&format!("/v1/holds/{id}/extend"), "k2", "").await;
    assert_eq!(extended.status, StatusCode::OK);
    assert_eq!(extended.json()["expires_at"], "2026-05-01T09:41:00.000Z");
    let again = shop.post(&format!("/v1/holds/{id}/extend"), "k3", r#"{"ttl_ms":900000}"#).await;
    assert_eq!(again.slug(), "extend-budget-spent");
    assert_eq!(again.json()["extends_used"], 1);

    // It lasts as long already: nothing is changed, and no budget is needed for that.
    let shorter = shop.post(&format!("/v1/holds/{id}/extend"), "k3s", r#"{"ttl_ms":1000}"#).await;
    assert_eq!(shorter.status, StatusCode::OK, "{shorter:?}");
    assert_eq!(shorter.json()["expires_at"], "2026-05-01T09:41:00.000Z");
    assert_eq!(shorter.json()["extends_left"], 0);

    let confirmed = shop
        .post(&format!("/v1/holds/{id}/confirm"), "k4", r#"{"quantity":1,"reference":"o"}"#)
        .await;
    assert_eq!((confirmed.status, confirmed.json()["state"] == "sold"), (StatusCode::OK, true));
    assert_eq!(confirmed.json()["sold"], 1);
    assert_eq!(shop.stock("shirt").await, (9, 0, 1));

    let back = shop.post(&format!("/v1/holds/{id}/return"), "k5", r#"{"quantity":1}"#).await;
    assert_eq!((back.status, back.json()["state"] == "returned"), (StatusCode::OK, true));
    assert_eq!(shop.stock("shirt").await, (10, 0, 0));
    let read = shop.get(&format!("/v1/holds/{id}")).await;
    assert_eq!(read.json()["state"], "returned");
    assert_eq!(shop.desk.last_asked().0, Consistency::Leader);
    shop.get(&format!("/v1/holds/{id}?consistency=local")).await;
    assert_eq!(shop.desk.last_asked().0, Consistency::Local);
}

#[tokio::test]
async fn i01_a_key_reused_with_another_body_is_refused_and_names_the_field() {
    let shop = Shop::selling("shirt", 10).await;
    let first = shop.place("shirt", "k", r#"{"quantity":1,"buyer":"b"}"#).await;
    let other = shop.place("shirt", "k", r#"{"quantity":2,"buyer":"b"}"#).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        (other.slug().as_str(), &other.json()["field"]),
        ("idempotency-key-reused", &"quantity".into())
    );
    let other = shop.place("shirt", "k", r#"{"quantity":1,"buyer":"b","ttl_ms":5000}"#).await;
    assert_eq!(
        (other.slug().as_str(), &other.json()["field"]),
        ("idempotency-key-reused", &"ttl_ms".into())
    );
    let replay = shop.place("shirt", "k", r#"{"buyer":"b","quantity":1}"#).await;
    assert_eq!(replay.status, StatusCode::OK);
    assert_eq!(replay.json()["id"], first.json()["id"]);
    assert_eq!(shop.stock("shirt").await, (9, 1, 0));
}

#[tokio::test]
async fn i02_scopes_and_tenants_of_a_key_never_meet() {
    let shop = Shop::selling("x", 10).await;
    shop.put("y", r#"{"total":10}"#).await;
    let on_x = shop.placed("x", "K", r#"{"quantity":1}"#).await;
    let on_y = shop.placed("y", "K", r#"{"quantity":1}"#).await;
    let small = shop.placed("x", "k", r#"{"quantity":1}"#).await;
    assert!(on_x != on_y && on_x != small);
    let confirmed = shop.post(&format!("/v1/holds/{on_x}/confirm"), "K", "").await;
    assert_eq!(confirmed.json()["state"], "sold");
    let released = shop.post(&format!("/v1/holds/{on_y}/release"), "K", "").await;
    assert_eq!(released.json()["state"], "released");

    let other = [JSON, ("Idempotency-Key", "K"), ("Holdfast-Tenant", "t2")];
    let path = "/v1/items/x/holds";
    assert_eq!(shop.call("POST", path, &other, r#"{"quantity":1}"#).await.slug(), "not-found");
    let path = format!("/v1/holds/{small}/release");
    assert_eq!(shop.call("POST", &path, &other, "").await.slug(), "not-found");
    let read = shop.call("GET", &format!("/v1/holds/{small}"), &other[2..], "").await;
    assert_eq!(read.slug(), "not-found");
    assert_eq!(shop.stock("x").await, (8, 1, 1));
}

#[tokio::test]
async fn i09_a_replay_says_so_and_tells_the_truth_of_now() {
    let shop = Shop::selling("shirt", 10).await;
    let body = r#"{"quantity":1,"buyer":"b","ttl_ms":1000}"#;
    let first = shop.place("shirt", "k", body).await;
    let id = first.json()["id"].clone();
    shop.desk.pass(400);
    let replay = shop.place("shirt", "k", body).await;
    assert_eq!(replay.status, StatusCode::OK);
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(replay.json()["id"], id);
    assert_eq!(replay.json()["expires_at"], first.json()["expires_at"]);
    assert_eq!(replay.json()["expires_in_ms"], 600);

    shop.desk.pass(600);
    let expired = shop.place("shirt", "k", body).await;
    assert_eq!(expired.status, StatusCode::GONE);
    assert_eq!(expired.slug(), "hold-expired");
    assert_eq!(expired.json()["expired_at"], first.json()["expires_at"]);
    assert_eq!(expired.json()["hold"]["id"], id);

    for (exit, slug) in [("confirm", "hold-confirmed"), ("release", "hold-released")] {
        let id = shop.placed("shirt", exit, body).await;
        let ended = shop.post(&format!("/v1/holds/{id}/{exit}"), "e", "").await;
        assert_eq!(ended.status, StatusCode::OK);
        let replay = shop.place("shirt", exit, body).await;
        assert_eq!(replay.status, StatusCode::CONFLICT);
        assert_eq!(replay.slug(), slug);
        assert_eq!(replay.json()["state"], ended.json()["state"]);
        let again = shop.post(&format!("/v1/holds/{id}/{exit}"), "e", "").await;
        assert_eq!(again.status, StatusCode::OK, "transitions are idempotent by state");
    }
    shop.stock("shirt").await;
}

#[tokio::test]
async fn l05_l07_l09_an_ended_hold_is_never_credited_twice() {
    let shop = Shop::selling("shirt", 100).await;
    let id = shop.placed("shirt", "k", r#"{"quantity":5}"#).await;
    let at = |verb: &str| format!("/v1/holds/{id}/{verb}");
    assert_eq!(shop.post(&at("return"), "r0", "").await.slug(), "hold-not-sold");
    for key in ["c1", "c1", "c2"] {
        assert_eq!(shop.post(&at("confirm"), key, "").await.json()["sold"], 5);
    }
    assert_eq!(shop.post(&at("release"), "r1", "").await.slug(), "hold-confirmed");
    assert_eq!(shop.stock("shirt").await, (95, 0, 5));
    assert_eq!(shop.post(&at("return"), "r2", "").await.json()["state"], "returned");
    let second = shop.post(&at("return"), "r3", "").await;
    assert_eq!(second.status, StatusCode::CONFLICT);
    assert_eq!(shop.stock("shirt").await, (100, 0, 0));
}

#[tokio::test]
async fn l08_what_was_never_reserved_cannot_be_released_confirmed_or_extended() {
    let shop = Shop::selling("shirt", 1).await;
    let id = shop.placed("shirt", "a", r#"{"quantity":1,"buyer":"A"}"#).await;
    let refused = shop.place("shirt", "b", r#"{"quantity":1,"buyer":"B"}"#).await;
    assert_eq!(refused.slug(), "sold-out");
    assert_eq!(refused.json()["may_return"], true);
    assert!(refused.json().get("hold").is_none(), "a refusal names no hold");
    let mut forged = id.clone();
    let last = forged.pop().expect("ids are not empty");
    forged.push(if last == 'a' { 'b' } else { 'a' });
    let upper = id.to_uppercase();
    for wrong in ["hld_0", "x", "%00", "..", "hld_", forged.as_str(), upper.as_str(), "%FF"] {
        for verb in ["release", "confirm", "extend", "return"] {
            let read = shop.post(&format!("/v1/holds/{wrong}/{verb}"), "z", "").await;
            assert_eq!(read.slug(), "not-found", "{wrong} {verb}");
        }
        assert_eq!(shop.get(&format!("/v1/holds/{wrong}")).await.slug(), "not-found");
    }
    assert_eq!(shop.post("/v1/holds//release", "z", "").await.slug(), "not-found");
    assert_eq!(shop.stock("shirt").await, (0, 1, 0));
}

#[tokio::test]
async fn l17_a_late_confirm_is_410_and_the_hold_is_still_found() {
    let shop = Shop::selling("shirt", 1).await;
    let id = shop.placed("shirt", "a", r#"{"quantity":1,"ttl_ms":1000}"#).await;
    shop.desk.pass(1_000);
    let late = shop.post(&format!("/v1/holds/{id}/confirm"), "c", "").await;
    assert_eq!(late.status, StatusCode::GONE);
    assert_eq!(late.slug(), "hold-expired");
    assert_eq!(late.json()["state"], "expired");
    let read = shop.get(&format!("/v1/holds/{id}")).await;
    assert_eq!((read.status, read.json()["state"] == "expired"), (StatusCode::OK, true));
    assert_eq!(read.json()["expires_in_ms"], 0);
    let again = shop.post(&format!("/v1/holds/{id}/confirm"), "d", r#"{"reacquire":true}"#).await;
    assert_eq!(again.json()["state"], "sold");
    assert_eq!(shop.stock("shirt").await, (0, 0, 1));
    assert_eq!(shop.place("shirt", "b", r#"{"quantity":1}"#).await.json()["may_return"], false);
}

#[tokio::test]
async fn l11_what_an_absent_or_edge_lifetime_means() {
    let shop = Shop::selling("shirt", 10).await;
    let default = shop.place("shirt", "k0", r#"{"quantity":1}"#).await;
    assert_eq!(default.json()["expires_in_ms"], 600_000);
    let short = shop.placed("shirt", "k1", r#"{"quantity":1,"ttl_ms":1}"#).await;
    shop.desk.pass(1);
    assert_eq!(shop.get(&format!("/v1/holds/{short}")).await.json()["state"], "expired");
    let longest = shop.place("shirt", "k2", r#"{"quantity":1,"ttl_ms":3600000}"#).await;
    assert_eq!(longest.status, StatusCode::CREATED);
    let over = shop.place("shirt", "k3", r#"{"quantity":1,"ttl_ms":3600001}"#).await;
    assert_eq!(over.slug(), "validation");
    assert_eq!(over.json()["errors"][0]["field"], "ttl_ms");
    assert!(over.text.contains("3600000"), "the maximum is named: {}", over.text);
}

#[tokio::test]
async fn l25_the_refusal_says_which_rule_stood_in_the_way() {
    let shop = Shop::new();
    shop.put("shirt", r#"{"total":5,"limit_per_buyer":2}"#).await;
    shop.placed("shirt", "a", r#"{"quantity":2,"buyer":"A"}"#).await;
    let more = shop.place("shirt", "b", r#"{"quantity":1,"buyer":"A"}"#).await;
    assert_eq!(more.slug(), "buyer-limit");
    assert_eq!((&more.json()["limit"], &more.json()["held"]), (&2.into(), &2.into()));
    shop.put("cap", r#"{"total":3}"#).await;
    let short = shop.place("cap", "c", r#"{"quantity":4}"#).await;
    assert_eq!(short.slug(), "insufficient-stock");
    assert_eq!(short.json()["available_hint"], 3);
    assert_eq!(short.header("retry-after"), Some("1"));
    assert_eq!(short.json()["retryable"], true);
}

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
    // There is one shard here.
    assert_eq!(shop.put("x", r#"{"total":1,"buckets":2}"#).await.slug(), "validation");
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
    assert!(list.json()["next_cursor"].is_null(), "{}", list.text);
    let first = shop.get("/v1/sold-out?limit=1").await.json();
    assert_eq!(first["items"][0]["item"], "gone");
    assert!(first["items"][1].is_null(), "{first}");
    assert_eq!(first["next_cursor"], "gone");
    let last = shop.get("/v1/sold-out?limit=1&cursor=gone").await.json();
    assert_eq!(last["items"][0]["item"], "left");
    assert!(last["next_cursor"].is_null(), "{last}");
    assert_eq!(shop.get("/v1/sold-out?limit=10001").await.slug(), "malformed");
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

#[tokio::test]
async fn receipts_tell_what_became_of_a_key_and_a_void_is_for_good() {
    let shop = Shop::selling("shirt", 10).await;
    let of = |key: &str| format!("/v1/receipts/{key}?item=shirt&buyer=b");
    assert_eq!(shop.get(&of("k")).await.json()["state"], "not_found");
    assert_eq!(shop.desk.last_asked().0, Consistency::Linearizable);
    let id = shop.placed("shirt", "k", r#"{"quantity":1,"buyer":"b"}"#).await;
    let receipt = shop.get(&of("k")).await.json();
    assert_eq!(
        (&receipt["state"], &receipt["hold"]["id"]),
        (&"committed".into(), &id.clone().into())
    );
    assert_eq!(shop.get("/v1/receipts/k?item=shirt&buyer=c").await.json()["state"], "not_found");
    shop.desk.force(Outcome::InFlight);
    assert_eq!(shop.get(&of("k")).await.json()["state"], "in_flight");

    let scope = r#"{"item":"shirt","buyer":"b"}"#;
    let void = |key: &str| format!("/v1/receipts/{key}/void");
    let gone = shop.call("POST", &void("never"), &[JSON], scope).await;
    assert_eq!((gone.status, &gone.json()["state"]), (StatusCode::OK, &"voided".into()));
    assert_eq!(gone.header("idempotent-replayed"), None);
    let again = shop.call("POST", &void("never"), &[JSON], scope).await;
    assert_eq!((again.status, again.json()), (StatusCode::OK, gone.json()));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(shop.get(&of("never")).await.json()["state"], "voided");
    let late = shop.place("shirt", "never", r#"{"quantity":1,"buyer":"b"}"#).await;
    assert_eq!((late.status, late.slug().as_str()), (StatusCode::CONFLICT, "key-voided"));
    let made = shop.call("POST", &void("k"), &[JSON], scope).await.json();
    assert_eq!((&made["state"], &made["hold"]["id"]), (&"committed".into(), &id.into()));
    assert_eq!(shop.get("/v1/receipts/k").await.slug(), "malformed");
    assert_eq!(shop.get("/v1/receipts/k?item=none").await.slug(), "not-found");
    assert_eq!(shop.call("POST", &void("k"), &[JSON], "{}").await.slug(), "validation");
}

#[tokio::test]
async fn l38_each_operation_of_a_batch_is_its_own_decision_in_order() {
    let shop = Shop::selling("shirt", 3).await;
    let a = shop.placed("shirt", "a", r#"{"quantity":1}"#).await;
    let b = shop.placed("shirt", "b", r#"{"quantity":1}"#).await;
    let body = format!(
        r#"{{"operations":[
        {{"op":"place","key":"c","item":"shirt","quantity":1,"buyer":"x","reference":"r"}},
        {{"op":"place","key":"d","item":"shirt","quantity":1}},
        {{"op":"release","key":"e","hold":"{a}","reason":"changed"}},
        {{"op":"confirm","key":"f","hold":"{b}"}},
        {{"op":"extend","key":"g","hold":"{b}"}},
        {{"op":"place","key":"c","item":"shirt","quantity":1,"buyer":"x","reference":"r"}},
        {{"op":"return","key":"h","hold":"{b}","quantity":1}},
        {{"op":"void","key":"i","item":"shirt"}},
        {{"op":"release","key":"j","hold":"hld_no"}},
        {{"op":"release","hold":"{a}"}},
        {{"op":"place","key":"k","item":"shirt","quantity":0}},
        {{"op":"sell","key":"l"}},
        {{"op":"place","key":"m","item":"shirt","quantity":1,"colour":"red"}},
        7
        ]}}"#
    );
    for spelling in ["/v1/holds:batch", "/v1/holds%3Abatch"] {
        let shop =
            if spelling.contains('%') { Shop::selling("shirt", 3).await } else { shop_of(&shop) };
        let read = shop.call("POST", spelling, &[JSON], body.clone()).await;
        assert_eq!(read.status, StatusCode::OK, "{read:?}");
        if spelling.contains('%') {
            continue;
        }
        let results = read.json()["results"].as_array().expect("results").clone();
        let statuses: Vec<u64> =
            results.iter().map(|r| r["status"].as_u64().expect("a status")).collect();
        assert_eq!(
            statuses,
            [201, 409, 200, 200, 409, 200, 200, 200, 404, 400, 422, 422, 422, 422]
        );
        assert_eq!(results[0]["hold"]["buyer"], "x");
        assert_eq!(results[0]["commit"], "0:7.2:4");
        assert_eq!(results[1]["problem"]["type"], "/problems/sold-out");
        assert_eq!(results[5]["replayed"], true);
        assert_eq!(results[5]["hold"]["id"], results[0]["hold"]["id"]);
        assert_eq!(results[9]["problem"]["type"], "/problems/idempotency-key-missing");
        assert_eq!(results[10]["problem"]["errors"][0]["field"], "quantity");
        assert_eq!(results[12]["problem"]["errors"][0]["field"], "colour");
        for result in &results {
            assert!(!(result.get("hold").is_some() && result.get("problem").is_some()));
        }
    }
    assert_eq!(shop.stock("shirt").await, (2, 1, 0));
}

fn shop_of(shop: &Shop) -> Shop {
    Shop { desk: shop.desk.clone(), router: shop.router.clone() }
}

#[tokio::test]
async fn a_batch_takes_1000_operations_and_not_one_more() {
    let shop = Shop::selling("shirt", 2_000).await;
    let batch = |n: usize| {
        let operations: Vec<String> = (0..n)
            .map(|k| format!(r#"{{"op":"place","key":"k{k}","item":"shirt","quantity":1}}"#))
            .collect();
        format!(r#"{{"operations":[{}]}}"#, operations.join(","))
    };
    let full = shop.call("POST", "/v1/holds:batch", &[JSON], batch(1_000)).await;
    assert_eq!(full.json()["results"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(shop.stock("shirt").await, (1_000, 1_000, 0));
    let over = shop.call("POST", "/v1/holds:batch", &[JSON], batch(1_001)).await;
    assert_eq!((over.status.as_u16(), over.slug().as_str()), (413, "too-large"));
    assert_eq!(shop.stock("shirt").await, (1_000, 1_000, 0));
    let empty = shop.call("POST", "/v1/holds:batch", &[JSON], batch(0)).await;
    assert_eq!(empty.json()["results"].as_array().map(Vec::len), Some(0));
    for body in ["[]", "{}", r#"{"operations":{}}"#, r#"{"operations":[],"more":1}"#] {
        assert_eq!(shop.call("POST", "/v1/holds:batch", &[JSON], body).await.slug(), "validation");
    }
}

#[tokio::test]
async fn i11_every_outcome_has_its_status_and_none_is_a_no_that_is_not_one() {
    let shop = Shop::selling("shirt", 1).await;
    let before = shop.desk.entries();
    for (outcome, status, slug, retry_after) in [
        (Outcome::Paused(PauseReason::QuorumLost), 503, "item-paused", Some("1")),
        (Outcome::Overloaded, 503, "overloaded", Some("1")),
        (Outcome::Late, 503, "deadline-passed", None),
        (Outcome::Unknown, 504, "outcome-unknown", Some("1")),
        (Outcome::NotServing("Stopped by its operator.".to_owned()), 503, "not-serving", Some("5")),
    ] {
        shop.desk.force(outcome.clone());
        let read = shop.place("shirt", "k", r#"{"quantity":1}"#).await;
        assert_eq!((read.status.as_u16(), read.slug().as_str()), (status, slug), "{outcome:?}");
        assert_eq!(read.header("retry-after"), retry_after);
        assert_eq!(read.json()["retryable"], true);
        assert_eq!(read.json()["retry_same_key"], true);
        assert_eq!(read.header("holdfast-leader"), Some("2"));
        let body = r#"{"operations":[{"op":"place","key":"k","item":"shirt","quantity":1}]}"#;
        shop.desk.force(outcome);
        let read = shop.call("POST", "/v1/holds:batch", &[JSON], body).await.json();
        assert_eq!(read["results"][0]["status"], status);
        assert_eq!(read["results"][0]["problem"]["type"], format!("/problems/{slug}"));
    }
    assert_eq!(shop.desk.entries(), before);
}

/// Found by the HTTP fuzzer: a read with a deadline of 1 ms was told that it may have been done.
#[tokio::test]
async fn a_read_without_an_answer_is_late_and_never_of_unknown_outcome() {
    let shop = Shop::selling("shirt", 1).await;
    for path in ["/v1/items/shirt", "/v1/items", "/v1/items/shirt/transfers", "/v1/sold-out"] {
        shop.desk.force(Outcome::Unknown);
        let read = shop.get(path).await;
        assert_eq!(
            (read.status.as_u16(), read.slug().as_str()),
            (503, "deadline-passed"),
            "{path}"
        );
        assert_eq!(read.json()["retry_same_key"], false);
    }
}

/// Seed 370 of the simulator: a lowering in steps had begun, its home could not be asked for a
/// moment, and the caller was told that nothing was taken. The home went on and took it.
#[tokio::test]
async fn a_change_that_has_begun_is_never_told_as_not_taken() {
    let shop = Shop::new();
    let two = r#"{"total":10,"regions":{"eu":{"quota":6},"us":{"quota":4}}}"#;
    assert_eq!(shop.put("shirt", two).await.status, StatusCode::CREATED);
    let before = shop.desk.entries();
    let lower = r#"{"delta":-2,"region":"eu","reason":"recount"}"#;
    let short = ("holdfast-deadline-ms", "700");
    let headers = [JSON, ("idempotency-key", "k"), short];
    let call = shop.call("POST", "/v1/items/shirt/adjustments", &headers, lower);
    let cut_off = async {
        // Its beginning is applied; from the next look on the home has no quorum.
        while shop.desk.entries() < before + 2 {
            tokio::task::yield_now().await;
        }
        shop.desk.force(Outcome::Paused(PauseReason::QuorumLost));
    };
    let both = async { tokio::join!(call, cut_off) };
    let limit = std::time::Duration::from_secs(20);
    let (told, ()) = tokio::time::timeout(limit, both).await.expect("it is answered");
    assert_eq!((told.status.as_u16(), told.slug().as_str()), (504, "outcome-unknown"));
}

#[tokio::test]
async fn prefer_redirect_asks_for_a_307_to_the_leader_with_the_whole_path() {
    let shop = Shop::selling("shirt", 1).await;
    shop.placed("shirt", "k", r#"{"quantity":1}"#).await;
    assert_eq!(shop.desk.last_asked().1, Hop::Forward);
    let elsewhere = Outcome::Elsewhere { node: NodeId(3), http: "10.0.0.3:7101".to_owned() };
    shop.desk.force(elsewhere);
    let headers = [("Prefer", "respond-async, Redirect; x=1")];
    let read = shop.call("GET", "/v1/items/shirt?consistency=leader", &headers, "").await;
    assert_eq!(shop.desk.last_asked().1, Hop::Redirect);
    assert_eq!(read.status, StatusCode::TEMPORARY_REDIRECT);
    let target = "http://10.0.0.3:7101/v1/items/shirt?consistency=leader";
    assert_eq!(read.header("location"), Some(target));
    assert_eq!(read.header("holdfast-leader"), Some("3"));
    assert_eq!(read.text, "");
}

#[tokio::test]
async fn readyz_says_why_not_and_what_to_do() {
    let shop = Shop::new();
    assert_eq!(shop.get("/livez").await.status, StatusCode::OK);
    let ready = shop.get("/readyz").await;
    assert_eq!((ready.status, ready.text.as_str()), (StatusCode::OK, "ready\n"));
    let table = shop.get("/readyz?verbose").await;
    assert!(table.text.contains("leader") && table.text.contains("7.2"), "{}", table.text);
    shop.desk.set_status(|status| {
        status.log.failed = Some("No space left on device".to_owned());
        status.shards[0].paused = Some(PauseReason::QuorumLost);
        status.shards[0].leader = None;
    });
    let sick = shop.get("/readyz?verbose=true").await;
    assert_eq!(sick.status, StatusCode::SERVICE_UNAVAILABLE);
    for words in ["No space left on device", "quorum-lost", "no leader is known"] {
        assert!(sick.text.contains(words), "{}", sick.text);
    }
    let metrics = shop.get("/metrics").await.text;
    assert!(metrics.contains("holdfast_log_failed 1"), "{metrics}");
    shop.desk.set_status(|status| *status = Default::default());
    let empty = shop.get("/readyz").await;
    assert_eq!(empty.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(empty.text.contains("holdfast cluster init"), "{}", empty.text);
    assert_eq!(shop.get("/livez").await.status, StatusCode::OK);
    assert_eq!(shop.get("/v1/sold-out").await.slug(), "not-serving");
    assert_eq!(shop.get("/admin/v1/digest").await.slug(), "not-serving");
    assert_eq!(shop.get("/admin/v1/cluster").await.status, StatusCode::OK);
}

/// Moves by hand were proposed to a cluster of schema version 1, whose older nodes would have
/// stopped at the entry.
#[tokio::test]
async fn move_by_hand_waits_for_the_schema_version_that_has_it() {
    let shop = Shop::new();
    let regions = r#"{"eu":{"quota":5,"buckets":1},"us":{"quota":5,"buckets":1}}"#;
    let made = shop.put("shirt", &format!(r#"{{"total":10,"regions":{regions}}}"#)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    shop.desk.set_status(|status| status.schema.active = SchemaVersion::FIRST);
    let entries = shop.desk.entries();
    let body = r#"{"from":0,"to":1,"quantity":1}"#;
    let refused = shop.post("/v1/items/shirt/transfers", "m", body).await;
    assert_eq!((refused.status.as_u16(), refused.slug().as_str()), (409, "cluster-refused"));
    assert_eq!(refused.json()["reason"], "schema-version");
    for words in ["needs schema version 2", "writes 1", "holdfast cluster upgrade"] {
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    assert_eq!(shop.desk.entries(), entries, "nothing was proposed");
    shop.desk.set_status(|status| status.schema.active = SchemaVersion::MOVE_BY_HAND);
    let moved = shop.post("/v1/items/shirt/transfers", "m", body).await;
    assert_eq!(moved.status, StatusCode::OK, "{moved:?}");
}

/// A removed node's `/v1` answers advised `cluster init`, and its disk was "0 MiB free of 0".
#[tokio::test]
async fn a_removed_node_says_so_on_every_path_and_advises_no_new_cluster() {
    let shop = Shop::new();
    shop.desk.set_status(|status| {
        let node = status.node;
        *status = Default::default();
        (status.node, status.cluster_id) = (node, Some("c0".repeat(16)));
        status.stopped = Some("node 2 was removed from the cluster".to_owned());
        status.ended_for_good = true;
    });
    for path in ["/v1/items", "/v1/sold-out", "/admin/v1/digest"] {
        let refused = shop.get(path).await;
        assert_eq!(refused.slug(), "not-serving", "{path}");
        assert!(refused.text.contains("was removed from the cluster"), "{}", refused.text);
        assert!(refused.text.contains("Ask another node"), "{}", refused.text);
        assert!(!refused.text.contains("cluster init"), "{path}: {}", refused.text);
    }
    let ready = shop.get("/readyz?verbose").await.text;
    assert!(ready.contains("--join URL --token TOKEN"), "{ready}");
    assert!(!ready.contains("cluster init") && !ready.contains("free of 0"), "{ready}");
    assert!(!ready.contains("sync 0 us") && !ready.contains("allowed 0 ms"), "{ready}");
}

#[tokio::test]
async fn an_empty_node_says_which_it_is() {
    let shop = Shop::new();
    shop.desk.set_status(|status| {
        *status = Default::default();
        (status.name, status.http_addr) = (Some("n3".to_owned()), "10.0.0.3:7101".to_owned());
    });
    let cluster = shop.get("/admin/v1/cluster").await.json();
    assert_eq!((&cluster["name"], &cluster["http_addr"]), (&"n3".into(), &"10.0.0.3:7101".into()));
    for path in ["/readyz?verbose", "/v1/sold-out"] {
        let told = shop.get(path).await.text;
        assert!(told.contains("This node (n3, at 10.0.0.3:7101) belongs to no cluster"), "{told}");
    }
}

#[tokio::test]
async fn metrics_follow_the_conventions_and_never_name_an_item_or_a_buyer() {
    let shop = Shop::selling("secret-item", 2).await;
    shop.placed("secret-item", "k", r#"{"quantity":1,"buyer":"secret-buyer"}"#).await;
    shop.place("secret-item", "l", r#"{"quantity":2,"buyer":"secret-buyer"}"#).await;
    shop.get("/nowhere").await;
    shop.desk.set_status(|status| {
        let traffic = &mut status.shards[0].traffic;
        traffic.granted = 41;
        traffic.refused = vec![("sold-out".to_owned(), 3)];
        traffic.commit_seconds.bounds = vec![0.001, 0.01];
        traffic.commit_seconds.counts = vec![5, 2, 1];
        traffic.commit_seconds.sum = 0.5;
    });
    let read = shop.get("/metrics").await;
    assert_eq!(read.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = read.text;
    assert!(!text.contains("secret"), "{text}");
    for line in [
        "# TYPE holdfast_http_requests_total counter",
        "holdfast_http_requests_total{route=\"place_hold\",status=\"201\"} 1",
        "holdfast_http_requests_total{route=\"place_hold\",status=\"409\"} 1",
        "holdfast_http_requests_total{route=\"none\",status=\"404\"} 1",
        "holdfast_grants_total{shard=\"0\"} 41",
        "holdfast_refusals_total{shard=\"0\",reason=\"sold-out\"} 3",
        "holdfast_commit_duration_seconds_bucket{shard=\"0\",le=\"0.001\"} 5",
        "holdfast_commit_duration_seconds_bucket{shard=\"0\",le=\"+Inf\"} 8",
        "holdfast_commit_duration_seconds_count{shard=\"0\"} 8",
        "holdfast_shard_paused{shard=\"0\",reason=\"quorum-lost\"} 0",
        "holdfast_shard_quorum_age_seconds{shard=\"0\"} 0.012",
        "# TYPE holdfast_http_request_duration_seconds histogram",
    ] {
        assert!(
            text.lines().any(|have| have == line || have.trim_end_matches(".0") == line),
            "{line} is not in\n{text}"
        );
    }
    let mut helped = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped.insert(rest.split(' ').next().expect("a name").to_owned());
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().expect("a name");
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).filter(|f| helped.contains(*f)))
                .unwrap_or(name);
            assert!(helped.contains(family), "{name} has no HELP");
            assert!(name.starts_with("holdfast_"), "{name}");
        }
    }
}

#[tokio::test]
async fn the_cluster_and_its_digests_are_shown_and_founded() {
    let shop = Shop::new();
    let cluster = shop.get("/admin/v1/cluster").await.json();
    assert_eq!(cluster["shards"][0]["leader"], 2);
    assert_eq!(cluster["nodes"][0]["lag"], 2);
    assert_eq!(cluster["failures_tolerated"], 1);
    assert_eq!(shop.get("/admin/v1/digest").await.json()["shards"][0]["digest"], "00ff");

    let id = "0123456789abcdef".repeat(2);
    let offer = |node: u64| {
        format!(
            r#"{{"cluster_id":"{id}","node":{node},"settings":{{"shards":4,"tag_key":"{id}",
            "slots":256,"sweep_max":512,"receipt_retention_ms":1,"sold_retention_ms":2}}}}"#
        )
    };
    let adopted = shop.call("POST", "/admin/v1/adopt", &[JSON], offer(1)).await;
    assert_eq!((adopted.status, &adopted.json()["region"]), (StatusCode::OK, &id.clone().into()));
    let refused = shop.call("POST", "/admin/v1/adopt", &[JSON], offer(9)).await;
    assert_eq!((refused.status.as_u16(), refused.slug().as_str()), (409, "cluster-refused"));
    assert_eq!(shop.call("POST", "/admin/v1/adopt", &[JSON], "{}").await.slug(), "validation");
    let member = |node: u64| {
        format!(
            r#"{{"node":{node},"log_uuid":"{id}","peer_addr":"a:1",
                "http_addr":"a:2","region":"eu"}}"#
        )
    };
    let begin = format!(r#"{{"members":[{},{}]}}"#, member(1), member(2));
    let begun = shop.call("POST", "/admin/v1/begin", &[JSON], begin).await;
    assert_eq!((begun.status, &begun.json()["members"]), (StatusCode::OK, &2.into()));
    assert_eq!(shop.desk.begun()[1].log_uuid, id);
    for body in [
        format!(r#"{{"members":[{},{}]}}"#, member(1), member(1)),
        r#"{"members":[]}"#.to_owned(),
        r#"{"members":[{"node":1}]}"#.to_owned(),
    ] {
        assert_eq!(shop.call("POST", "/admin/v1/begin", &[JSON], body).await.slug(), "validation");
    }
}

#[tokio::test]
async fn one_unit_is_told_as_one_unit() {
    let shop = Shop::selling("shirt", 2).await;
    let id = shop.placed("shirt", "k", r#"{"quantity":1,"buyer":"b"}"#).await;
    let path = |step: &str| format!("/v1/holds/{id}/{step}");
    let short = shop.place("shirt", "k2", r#"{"quantity":2,"buyer":"c"}"#).await;
    let open = shop.call("DELETE", "/v1/items/shirt", &[], "").await;
    let more = shop.post(&path("confirm"), "k3", r#"{"quantity":2}"#).await;
    shop.post(&path("confirm"), "k4", "").await;
    let otherwise = shop.post(&path("confirm"), "k5", r#"{"quantity":2}"#).await;
    let back = shop.post(&path("return"), "k6", r#"{"quantity":2}"#).await;
    for (told, words) in [
        (short, "1 unit is available"),
        (open, "1 unit is held"),
        (more, "the hold is for 1 unit\""),
        (otherwise, "the hold is confirmed for 1 unit\""),
        (back, "only 1 unit is sold"),
    ] {
        assert!(told.text.contains(words), "{words}: {}", told.text);
    }
}

#[tokio::test]
async fn a_layout_keeps_what_its_body_leaves_out() {
    let shop = Shop::new();
    let made = shop.put("seat", r#"{"total":10,"regions":{"eu":{"quota":10,"floor":4}}}"#).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let path = "/v1/items/seat/layout";
    let put = async |revision: &str, body: &str| {
        shop.call("PUT", path, &[JSON, ("If-Match", revision)], body.to_owned()).await
    };
    let eu = |read: &http_desk::Read| {
        let eu = &read.json()["regions"]["eu"];
        ["quota", "floor", "buckets"].map(|name| eu[name].as_u64().expect("a number"))
    };
    let fewer = put("1", r#"{"regions":{"eu":{"quota":8}}}"#).await;
    assert_eq!((fewer.status, eu(&fewer)), (StatusCode::OK, [8, 4, 1]), "{fewer:?}");
    let lower = put("2", r#"{"regions":{"eu":{"floor":2}}}"#).await;
    assert_eq!((lower.status, eu(&lower)), (StatusCode::OK, [8, 2, 1]), "{lower:?}");
    // Nothing is kept of a layout that the caller has not read.
    let late = put("2", r#"{"regions":{"eu":{"quota":9}}}"#).await;
    assert_eq!(late.slug(), "revision-mismatch");
    let closed = put("3", r#"{"regions":{"eu":{"quota":0}}}"#).await;
    assert_eq!((closed.status, eu(&closed)), (StatusCode::OK, [0, 0, 1]), "{closed:?}");
    let new = put("4", r#"{"regions":{"eu":{},"us":{}}}"#).await;
    assert_eq!(new.slug(), "validation");
    assert!(new.text.contains("regions.us.quota"), "{new:?}");
}

#[tokio::test]
async fn the_clients_structs_are_read_by_the_servers_strict_reader() {
    use holdfast::api;
    let shop = Shop::selling("shirt", 10).await;
    let text = |value: &dyn Fn() -> serde_json::Result<String>| value().expect("it serialises");
    let item = api::PutItem {
        total: Some(4),
        buckets: None,
        regions: Some(
            [("eu".to_owned(), api::RegionSpec { quota: 4, floor: 0, buckets: 1 })].into(),
        ),
        hold: Some(api::HoldRules {
            ttl_ms: Some(1),
            max_ttl_ms: Some(2),
            max_extends: Some(3),
            max_lifetime_ms: Some(4),
        }),
        limit_per_buyer: Some(1),
        sale: Some(api::SaleWindow {
            opens_at: Some(api::Timestamp(0)),
            closes_at: Some(api::TIMESTAMP_MAX),
        }),
        metadata: Some([("a".to_owned(), "b".to_owned())].into()),
    };
    let made = shop.put("eu", &text(&|| serde_json::to_string(&item))).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let read: api::Item = serde_json::from_str(&made.text).expect("the client reads it");
    assert_eq!(read.regions["eu"].quota, 4);

    let place = api::PlaceHold {
        quantity: 1,
        buyer: Some("b".to_owned()),
        region: Some("default".to_owned()),
        ttl_ms: Some(5),
        reference: Some("r".to_owned()),
    };
    let placed = shop.place("shirt", "k", &text(&|| serde_json::to_string(&place))).await;
    let hold: api::Hold = serde_json::from_str(&placed.text).expect("the client reads it");
    let some = || Some("x".to_owned());
    let batch = api::Batch {
        operations: vec![
            api::Operation::Place {
                key: "p".to_owned(),
                item: "shirt".to_owned(),
                quantity: 1,
                buyer: some(),
                region: Some("default".to_owned()),
                ttl_ms: Some(9),
                reference: some(),
            },
            api::Operation::Extend { key: "e".to_owned(), hold: hold.id.clone(), ttl_ms: Some(9) },
            api::Operation::Confirm {
                key: "c".to_owned(),
                hold: hold.id.clone(),
                quantity: Some(1),
                reacquire: Some(false),
                reference: some(),
            },
            api::Operation::Return {
                key: "r".to_owned(),
                hold: hold.id.clone(),
                quantity: Some(1),
            },
            api::Operation::Release { key: "l".to_owned(), hold: hold.id.clone(), reason: some() },
            api::Operation::Void {
                key: "v".to_owned(),
                item: "shirt".to_owned(),
                buyer: some(),
                region: Some("default".to_owned()),
            },
        ],
    };
    let body = text(&|| serde_json::to_string(&batch));
    let read = shop.call("POST", "/v1/holds:batch", &[JSON], body).await;
    let results: api::BatchResults = serde_json::from_str(&read.text).expect("the client reads it");
    let statuses: Vec<u16> = results.results.iter().map(|r| r.status).collect();
    assert_eq!(statuses, [201, 200, 200, 200, 409, 200], "{}", read.text);
    for (verb, body) in [
        ("extend", text(&|| serde_json::to_string(&api::ExtendHold { ttl_ms: Some(1) }))),
        ("return", text(&|| serde_json::to_string(&api::ReturnHold { quantity: Some(1) }))),
        ("release", text(&|| serde_json::to_string(&api::ReleaseHold { reason: some() }))),
    ] {
        let read = shop.post(&format!("/v1/holds/{}/{verb}", hold.id), "z", &body).await;
        assert_eq!(read.slug(), "hold-released", "{read:?}");
    }
}

/// A read has no key and takes nothing, so its problem speaks of neither.
#[tokio::test]
async fn a_read_is_never_told_to_retry_with_its_key() {
    let shop = Shop::selling("shirt", 5).await;
    for outcome in [
        Outcome::Paused(PauseReason::QuorumLost),
        Outcome::Overloaded,
        Outcome::Late,
        Outcome::Unknown,
    ] {
        for path in ["/v1/items/shirt", "/v1/items", "/v1/holds?item=shirt"] {
            shop.desk.force(outcome.clone());
            let read = shop.get(path).await;
            assert!(read.status.is_server_error(), "{path}: {}", read.text);
            let problem = read.json();
            let detail = problem["detail"].as_str().expect("words");
            assert!(!detail.contains("key") && !detail.contains("taken"), "{path}: {detail}");
            assert_eq!(problem["retry_same_key"], false);
        }
    }
}

#[tokio::test]
async fn a_rule_of_the_ledger_reads_as_a_sentence() {
    let shop = Shop::selling("shirt", 5).await;
    let id = shop.placed("shirt", "k", r#"{"quantity":2,"buyer":"ann"}"#).await;
    shop.post(&format!("/v1/holds/{id}/confirm"), "c", "").await;
    let path = format!("/v1/holds/{id}/return");
    let read = shop.post(&path, "r", r#"{"quantity":3}"#).await.json();
    assert_eq!(read["detail"], "`quantity`: only 2 units are sold.");
    let read = shop.post(&path, "s", r#"{"quantity":0}"#).await.json();
    let detail = read["detail"].as_str().expect("words");
    assert!(detail.starts_with("`quantity` is an integer"), "{detail}");
}

#[tokio::test]
async fn readyz_and_metrics_tell_of_failing_checkpoints_a_failed_log_and_a_replica_far_behind() {
    let shop = Shop::new();
    shop.desk.set_status(|status| {
        let shard = &mut status.shards[0];
        shard.checkpoint_failures = 3;
        shard.checkpoint_trouble = Some("no space".to_owned());
        shard.applied = LogIndex(7);
        shard.last_log = LogIndex(10_007);
    });
    let ready = shop.get("/readyz?verbose").await;
    assert_eq!(ready.status, StatusCode::OK, "an older checkpoint stands: {ready:?}");
    assert!(ready.text.contains("cannot make a checkpoint: no space"), "{ready:?}");
    let metrics = shop.get("/metrics").await.text;
    assert!(metrics.contains("holdfast_checkpoint_failures_total{shard=\"0\"} 3"), "{metrics}");

    shop.desk.set_status(|status| status.shards[0].last_log = LogIndex(10_008));
    let behind = shop.get("/readyz").await;
    assert_eq!(behind.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(behind.text.contains("10001 entries of its log are not applied yet"), "{behind:?}");

    shop.desk.set_status(|status| status.log.failed = Some("EIO".to_owned()));
    let failed = shop.get("/readyz").await;
    assert!(failed.text.contains("restart this node"), "{failed:?}");
}
