//! What the client makes of answers, silence and broken connections (design law 6).
//!
//! Each test runs the real client over TCP against a scripted server.

mod scripted;

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use holdfast::client::{
    CallError, Changed, Client, ClientConfig, NewHold, Placing, Step as Change, Voiding,
};
use holdfast::runtime::now;
use scripted::{Scripted, Step, hold, json, problem};

fn client_of(nodes: &[String]) -> Client {
    let mut config = ClientConfig::new(nodes);
    config.attempt_within = Duration::from_millis(300);
    config.backoff_first = Duration::from_millis(1);
    config.backoff_max = Duration::from_millis(5);
    config.seed = Some(7);
    Client::new(config).expect("right URLs")
}

async fn place(client: &Client, within: Duration) -> Placing {
    client.place("x", &NewHold::new(1, "ann"), "key-1", now() + within).await
}

const SECONDS: Duration = Duration::from_secs(5);

#[tokio::test]
async fn an_unknown_outcome_is_retried_with_the_same_key_and_body() {
    let server = Scripted::start(vec![
        problem(504, "outcome-unknown"),
        Step::Break,
        json(201, &hold("hld_1", "held")),
    ]);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    let Placing::Placed { hold, replayed: false } = placing else { panic!("{placing:?}") };
    assert_eq!(hold.id, "hld_1");
    let got = server.got();
    assert_eq!(got.len(), 3);
    for one in &got {
        assert_eq!(one.line, "POST /v1/items/x/holds");
        assert_eq!(one.header("idempotency-key"), Some("key-1"));
        assert_eq!(one.body, got[0].body);
    }
}

#[tokio::test]
async fn a_pause_is_retried_with_the_same_key_and_leaves_nothing_unknown() {
    let server = Scripted::start(vec![problem(503, "item-paused"), problem(409, "sold-out")]);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    let Placing::Refused(problem) = placing else { panic!("{placing:?}") };
    assert_eq!(problem.slug, "sold-out");
    assert_eq!(server.got().len(), 2, "no void: a 503 says that nothing was taken");
}

#[tokio::test]
async fn a_refusal_after_an_unanswered_attempt_is_told_only_after_a_void() {
    let server = Scripted::start(vec![
        Step::Break,
        problem(409, "sold-out"),
        json(200, r#"{"state":"voided"}"#),
    ]);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    let Placing::Refused(problem) = placing else { panic!("{placing:?}") };
    assert_eq!(problem.slug, "sold-out");
    let void = &server.got()[2];
    assert_eq!(void.line, "POST /v1/receipts/key-1/void");
    assert!(void.body.contains(r#""buyer":"ann""#), "{}", void.body);
}

#[tokio::test]
async fn the_hold_that_a_void_finds_is_the_buyers() {
    let server = Scripted::start(vec![
        Step::Break,
        problem(409, "sold-out"),
        json(200, &format!(r#"{{"state":"committed","hold":{}}}"#, hold("hld_2", "held"))),
    ]);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    let Placing::Placed { hold, replayed: true } = placing else { panic!("{placing:?}") };
    assert_eq!(hold.id, "hld_2");
}

#[tokio::test]
async fn a_void_that_finds_an_ended_hold_never_looks_like_a_live_one() {
    let server = Scripted::start(vec![
        Step::Break,
        problem(409, "sold-out"),
        json(200, &format!(r#"{{"state":"committed","hold":{}}}"#, hold("hld_2", "expired"))),
    ]);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    let Placing::GaveUp { last, .. } = placing else { panic!("{placing:?}") };
    assert!(last.contains("hld_2"), "{last}");
}

#[tokio::test]
async fn a_refusal_that_cannot_be_voided_is_unresolved_and_names_its_key() {
    let mut steps = vec![Step::Break, problem(409, "sold-out")];
    steps.extend((0..2_000).map(|_| problem(503, "item-paused")));
    let server = Scripted::start(steps);
    let placing = place(&client_of(&[server.url()]), Duration::from_millis(1_500)).await;
    let Placing::Unresolved { key, last } = placing else { panic!("{placing:?}") };
    assert_eq!(key, "key-1");
    assert!(last.contains("sold-out") && last.contains("item-paused"), "{last}");
}

#[tokio::test]
async fn giving_up_after_silence_voids_first() {
    let server = Scripted::start(vec![
        Step::Silence,
        Step::Silence,
        Step::Silence,
        json(200, r#"{"state":"voided"}"#),
    ]);
    let mut config = ClientConfig::new([server.url()]);
    // Three attempts of 200 ms (and the 50 ms that an answer may travel) use up all but the void's
    // quarter of the second.
    config.attempt_within = Duration::from_millis(200);
    config.backoff_first = Duration::from_micros(1);
    let client = Client::new(config).expect("a right URL");
    let placing = place(&client, Duration::from_secs(1)).await;
    let Placing::GaveUp { key, .. } = placing else { panic!("{placing:?}") };
    assert_eq!(key, "key-1");
    let lines: Vec<_> = server.got().into_iter().map(|got| got.line).collect();
    assert_eq!(lines.last().map(String::as_str), Some("POST /v1/receipts/key-1/void"));
}

#[tokio::test]
async fn a_cluster_that_took_nothing_is_given_up_without_a_void() {
    let steps = (0..2_000).map(|_| problem(503, "item-paused")).collect();
    let server = Scripted::start(steps);
    let placing = place(&client_of(&[server.url()]), Duration::from_millis(200)).await;
    assert!(matches!(placing, Placing::GaveUp { .. }), "{placing:?}");
    let got = server.got();
    assert!(got.len() > 2, "it was tried again");
    assert!(got.iter().all(|one| !one.line.contains("/void")));
}

#[tokio::test]
async fn a_proxys_503_says_nothing_about_what_lies_behind_it() {
    let server = Scripted::start(vec![
        json(503, "<html>busy</html>"),
        problem(409, "sold-out"),
        json(200, r#"{"state":"voided"}"#),
    ]);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    assert!(matches!(placing, Placing::Refused(_)), "{placing:?}");
    assert_eq!(server.got().len(), 3, "it was voided");
}

#[tokio::test]
async fn a_voided_key_is_settled_whatever_was_unanswered() {
    let server = Scripted::start(vec![Step::Break, problem(409, "key-voided")]);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    let Placing::Refused(problem) = placing else { panic!("{placing:?}") };
    assert_eq!(problem.slug, "key-voided");
    assert_eq!(server.got().len(), 2);
}

#[tokio::test]
async fn a_node_that_refuses_connections_is_passed_over_and_nothing_is_unknown() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let dead = format!("http://{}", closed.local_addr().expect("an address"));
    drop(closed);
    let server = Scripted::start(vec![problem(409, "sold-out")]);
    let placing = place(&client_of(&[dead, server.url()]), SECONDS).await;
    assert!(matches!(placing, Placing::Refused(_)), "{placing:?}");
    assert_eq!(server.got().len(), 1, "no void: the dead node got nothing");
}

#[tokio::test]
async fn a_redirect_is_followed_and_the_leader_is_remembered() {
    let leader =
        Scripted::start(vec![json(201, &hold("hld_1", "held")), json(201, &hold("hld_2", "held"))]);
    let location = format!("{}/v1/items/x/holds", leader.url());
    let follower =
        Scripted::start(vec![Step::Answer(307, vec![("location", location)], String::new())]);
    let client = client_of(&[follower.url()]);
    for _ in 0..2 {
        let placing = place(&client, SECONDS).await;
        assert!(matches!(placing, Placing::Placed { .. }), "{placing:?}");
    }
    assert_eq!(follower.got().len(), 1, "the second request went straight to the leader");
    assert_eq!(leader.got().len(), 2);
}

#[tokio::test]
async fn a_leader_header_is_a_hint_for_the_item() {
    let leader = Scripted::start(vec![json(201, &hold("hld_2", "held"))]);
    let hint = vec![("holdfast-leader", leader.address.to_string())];
    let follower = Scripted::start(vec![Step::Answer(201, hint, hold("hld_1", "held"))]);
    let client = client_of(&[follower.url()]);
    for _ in 0..2 {
        let placing = place(&client, SECONDS).await;
        assert!(matches!(placing, Placing::Placed { .. }), "{placing:?}");
    }
    assert_eq!((follower.got().len(), leader.got().len()), (1, 1));
}

#[tokio::test]
async fn every_attempt_tells_the_time_that_is_left_and_one_absolute_deadline() {
    let mut steps: Vec<_> = (0..3).map(|_| problem(504, "outcome-unknown")).collect();
    steps.push(json(201, &hold("hld_1", "held")));
    let server = Scripted::start(steps);
    let placing = place(&client_of(&[server.url()]), SECONDS).await;
    assert!(matches!(placing, Placing::Placed { .. }), "{placing:?}");
    let number = |name: &str| -> Vec<u64> {
        let got = server.got();
        let texts = got.iter().map(|got| got.header(name).expect("it is sent").to_owned());
        texts.map(|text| text.parse().expect("a number")).collect()
    };
    assert!(number("holdfast-deadline-ms").iter().all(|left| (1..=300).contains(left)));
    let absolute = number("holdfast-deadline-at");
    let spread = absolute.iter().max().zip(absolute.iter().min()).map(|(max, min)| max - min);
    assert!(spread.expect("four attempts") <= 20, "one deadline: {absolute:?}");
}

#[tokio::test]
async fn a_silent_cluster_costs_no_more_than_the_deadline() {
    let server = Scripted::start((0..100).map(|_| Step::Silence).collect());
    let begun = now();
    let placing = place(&client_of(&[server.url()]), Duration::from_millis(600)).await;
    let took = now() - begun;
    assert!(matches!(placing, Placing::Unresolved { .. }), "{placing:?}");
    assert!(took < Duration::from_millis(1_500), "{took:?}");
}

#[tokio::test]
async fn a_confirm_refused_after_an_unanswered_attempt_is_unresolved_unless_it_is_final() {
    let confirm = |reacquire| Change::Confirm { quantity: None, reacquire, reference: None };
    for (reacquire, status, slug, final_word) in [
        (false, 410, "hold-expired", true),
        (true, 410, "hold-expired", false),
        (true, 409, "sold-out", false),
        (false, 409, "hold-released", true),
    ] {
        let server = Scripted::start(vec![Step::Break, problem(status, slug)]);
        let client = client_of(&[server.url()]);
        let changed = client.change("hld_1", &confirm(reacquire), "key-2", now() + SECONDS).await;
        match (&changed, final_word) {
            (Changed::Refused(_), true) | (Changed::Unresolved { .. }, false) => {}
            (other, _) => panic!("{slug} with reacquire {reacquire}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_void_is_repeated_until_it_is_answered() {
    let server = Scripted::start(vec![
        Step::Break,
        problem(504, "outcome-unknown"),
        json(200, r#"{"state":"voided"}"#),
    ]);
    let client = client_of(&[server.url()]);
    let voided = client.void("x", Some("ann"), None, "key-1", now() + SECONDS).await;
    assert!(matches!(voided, Ok(Voiding::Voided)), "{voided:?}");
}

#[tokio::test]
async fn a_read_that_is_not_answered_is_unavailable_and_never_unknown() {
    let server = Scripted::start(Vec::new());
    let mut config = ClientConfig::new([server.url()]);
    config.operation_within = Duration::from_millis(100);
    let client = Client::new(config).expect("a right URL");
    let read = client.get("/v1/items/x").await;
    assert!(matches!(read, Err(CallError::Unavailable(_))), "{read:?}");
}

#[tokio::test]
async fn the_tenant_and_the_encoded_item_travel() {
    let server = Scripted::start(vec![json(201, &hold("hld_1", "held"))]);
    let mut config = ClientConfig::new([server.url()]);
    config.tenant = Some("shop-1".into());
    let client = Client::new(config).expect("a right URL");
    let placing = client.place("a b%", &NewHold::new(1, "ann"), "k", now() + SECONDS).await;
    assert!(matches!(placing, Placing::Placed { .. }), "{placing:?}");
    let got = &server.got()[0];
    assert_eq!(got.line, "POST /v1/items/a%20b%25/holds");
    assert_eq!(got.header("holdfast-tenant"), Some("shop-1"));
}
