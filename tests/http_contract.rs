//! The contract of HTTP v1 against a real ledger: what each call answers, with which status,
//! headers and problem. The numbers are those of the reported faults.
#![allow(missing_docs)]

mod http_desk;

use axum::http::StatusCode;
use holdfast::ledger::{NodeId, PauseReason};
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
    let again = shop.post(&format!("/v1/holds/{id}/extend"), "k3", r#"{"ttl_ms":600000}"#).await;
    assert_eq!(again.slug(), "extend-budget-spent");
    assert_eq!(again.json()["extends_used"], 1);

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
