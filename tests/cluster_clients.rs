//! Silent and slow clients beside the normal load. Case H13.

mod cluster;

use std::time::Duration;

use cluster::{Caller, Fleet, Plan, SOON, rounds};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// How long a node lets a client be slow, in ms.
const PATIENCE_MS: u64 = 1_000;

/// Asks for as many descriptors as the system gives.
fn many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Fewer may do as well: the test says so when they do not.
    let _ = setrlimit(Resource::Nofile, wanted);
}

/// Places and releases for a while, and returns the time that 99 of 100 calls took at most.
async fn normal_load(fleet: &Fleet, calls: usize, run: &str) -> Duration {
    let mut tasks = JoinSet::new();
    for task in 0..8_usize {
        let (mut caller, run) = (fleet.caller(1 + task % 3), run.to_owned());
        tasks.spawn(async move {
            let mut took = Vec::new();
            for n in 0..calls / 16 {
                let key = format!("{run}-{task}-{n}");
                let body = json!({"quantity": 1, "buyer": key});
                let from = Instant::now();
                let held = caller.post("/v1/items/ticket/holds", &key, &body).await;
                took.push(from.elapsed());
                let held = held.expect("an answer");
                assert_eq!(held.status, 201, "{held:?}");
                let path = format!("/v1/holds/{}/release", held.text_of("id"));
                let from = Instant::now();
                let freed = caller.post(&path, &key, &json!({})).await.expect("an answer");
                took.push(from.elapsed());
                assert_eq!(freed.status, 200, "{freed:?}");
            }
            took
        });
    }
    let mut took = Vec::new();
    while let Some(mine) = tasks.join_next().await {
        took.extend(mine.expect("a buyer does not fall over"));
    }
    took.sort();
    took[took.len() * 99 / 100]
}

/// What a slow client sends at once, and then byte by byte.
#[derive(Clone, Copy)]
enum Slow {
    Silent,
    Head,
    Body,
}

/// Opens a connection, is slow on it, and returns how long the node bore that.
async fn be_slow(mut caller: Caller, slow: Slow) -> Duration {
    let from = Instant::now();
    let stream = caller.connected().await.expect("the node takes connections");
    let first: &[u8] = match slow {
        Slow::Silent => b"",
        Slow::Head => b"POST /v1/items/ticket/holds HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        Slow::Body => {
            b"POST /v1/items/ticket/holds HTTP/1.1\r\nHost: x\r\nIdempotency-Key: slow\r\n\
              Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        }
    };
    let mut alive = stream.write_all(first).await.is_ok();
    let mut read = [0; 512];
    while alive {
        assert!(from.elapsed() < SOON, "a slow client is borne for ever");
        match timeout(Duration::from_millis(200), stream.read(&mut read)).await {
            Ok(Ok(0) | Err(_)) => alive = false,
            // Told why, and closed after that.
            Ok(Ok(_)) => {}
            Err(_) => {
                let drop = matches!(slow, Slow::Head | Slow::Body);
                alive = !drop || stream.write_all(b" ").await.is_ok();
            }
        }
    }
    from.elapsed()
}

#[tokio::test]
async fn silent_and_slow_clients_are_closed_in_time_and_disturb_nobody() {
    many_descriptors();
    let plan = Plan::new(3, 2)
        .calm()
        .set("http.header_timeout_ms", PATIENCE_MS)
        .set("http.body_timeout_ms", PATIENCE_MS)
        .set("http.idle_timeout_ms", PATIENCE_MS);
    let fleet = Fleet::start(plan).await;
    fleet.put_units("ticket", 1_000_000).await;
    let alone = normal_load(&fleet, 1_600, "alone").await;
    let mut slow = JoinSet::new();
    for n in 0..rounds(1_500) {
        let how = [Slow::Silent, Slow::Head, Slow::Body][n % 3];
        slow.spawn(be_slow(fleet.caller(1 + n % 3), how));
    }
    let beside = normal_load(&fleet, 1_600, "beside").await;
    let mut borne = Vec::new();
    while let Some(took) = slow.join_next().await {
        borne.push(took.expect("a slow client is turned away in good order"));
    }
    borne.sort();
    let longest = borne.last().copied().expect("there were some");
    println!("p99 alone {alone:?}, beside {} slow ones {beside:?}", borne.len());
    println!("slow clients were borne for {:?} to {longest:?}", borne[0]);
    assert!(borne[0] >= Duration::from_millis(PATIENCE_MS / 2), "closed before their time");
    assert!(longest < Duration::from_secs(10), "borne for {longest:?}");
    assert!(beside < alone * 10 + Duration::from_millis(100), "{beside:?}, alone {alone:?}");
    // And afterwards everything is as it was.
    let after = normal_load(&fleet, 800, "after").await;
    assert!(after < alone * 10 + Duration::from_millis(100), "{after:?}, alone {alone:?}");
    fleet.settle().await;
    fleet.audit("ticket").await;
}

/// Thousands of idle connections within their time are kept, and served when they speak.
#[tokio::test]
async fn thousands_of_idle_connections_are_kept_and_served() {
    many_descriptors();
    let fleet = Fleet::start(Plan::new(3, 2).calm()).await;
    fleet.put_units("ticket", 1_000_000).await;
    let mut idle = Vec::new();
    for n in 0..rounds(2_400) {
        let mut caller = fleet.caller(1 + n % 3);
        caller.connected().await.expect("the node takes connections");
        idle.push(caller);
    }
    let p99 = normal_load(&fleet, 1_600, "load").await;
    println!("p99 beside {} idle connections: {p99:?}", idle.len());
    let open = fleet.metrics(1).await.sum("holdfast_http_connections", &[]);
    assert!(open >= (idle.len() / 3) as f64, "{open}");
    for caller in &mut idle {
        let answer = caller.get("/livez").await.expect("it was kept");
        assert_eq!(answer.status, 200);
    }
}
