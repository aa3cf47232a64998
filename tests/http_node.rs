//! What a node tells of itself over HTTP: readiness, metrics, the cluster and its founding.
#![allow(missing_docs)]

mod http_desk;

use axum::http::StatusCode;
use holdfast::ledger::PauseReason;
use http_desk::{JSON, Shop};

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
            r#"{{"node":{node},"log_uuid":"{id}","peer_addr":"a:1","http_addr":"a:2",
            "region":"eu"}}"#
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
