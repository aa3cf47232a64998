//! A leader that stood still and goes on answers nothing from the past.

mod cluster;

use std::time::Duration;

use cluster::{Answer, Caller, Fleet, Plan, SOON, Witness, pass, rounds, try_again, wait_for};
use serde_json::{Value, json};

/// Asks until there is a definite answer.
async fn insist(fleet: &Fleet, node: usize, path: &str, key: &str, body: &Value) -> Answer {
    let within = Duration::from_millis(1_000);
    wait_for(path, SOON, async || {
        let sent = fleet.caller(node).post_within(path, key, body, within).await;
        if try_again(&sent) { Err(format!("{sent:?}")) } else { Ok(sent.expect("definite")) }
    })
    .await
}

/// What is asked of the old leader, and what would be an answer from the past.
struct Asked {
    caller: Caller,
    what: &'static str,
}

const COPIES: usize = 6;

/// Writes to the sockets of a node that stands still: it will read them when it goes on.
async fn ask_the_frozen(fleet: &Fleet, node: usize, round: usize, hold: &str) -> Vec<Asked> {
    let mut asked = Vec::new();
    for copy in 0..COPIES {
        let fresh = format!("fresh-{round}-{copy}");
        let reads = [
            ("available", "/v1/items/sells/availability?consistency=leader".to_owned()),
            ("truly available", "/v1/items/sells/availability?consistency=linearizable".to_owned()),
            ("hold", format!("/v1/holds/{hold}")),
        ];
        for (what, path) in reads {
            let mut caller = fleet.caller(node);
            caller.write("GET", &path, &[], None).await.expect("the kernel takes it");
            asked.push(Asked { caller, what });
        }
        let places = [
            ("grant", "/v1/items/sells/holds", fresh.clone(), 1),
            ("refusal", "/v1/items/frees/holds", fresh, 2),
            ("replay", "/v1/items/frees/holds", format!("held-{round}"), 1),
        ];
        for (what, path, key, quantity) in places {
            let body = json!({"quantity": quantity, "buyer": format!("b-{round}")});
            let headers = [("Idempotency-Key", key.as_str())];
            let mut caller = fleet.caller(node);
            caller.write("POST", path, &headers, Some(&body)).await.expect("the kernel takes it");
            asked.push(Asked { caller, what });
        }
    }
    asked
}

/// Holds an answer of the old leader against what is true by then: `sells` is sold out, `frees` has
/// its one unit free, and the hold on it is released.
fn judge(what: &str, answer: &Answer) {
    if answer.status == 503 || answer.status == 504 {
        return;
    }
    let is_true = match what {
        "available" | "truly available" => answer.number_of("available") == 0,
        "hold" => answer.text_of("state") == "released",
        "grant" => answer.slug() == "sold-out",
        "refusal" => answer.slug() == "insufficient-stock",
        "replay" => answer.slug() == "hold-released",
        _ => unreachable!("{what} is not asked"),
    };
    assert!(is_true, "an answer from the past to `{what}`: {answer:?}");
}

/// Case C24.
#[tokio::test]
async fn leader_stopped_for_three_seconds_and_continued_answers_nothing_from_the_past() {
    let fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("sells", 1_000).await;
    fleet.put_units("frees", 1).await;
    let mut left = 1_000;
    let pauses = [3_000, 600, 900, 1_500].map(Duration::from_millis);
    for (round, pause) in pauses.into_iter().cycle().take(rounds(pauses.len())).enumerate() {
        let holds = "/v1/items/frees/holds";
        let body = json!({"quantity": 1, "buyer": format!("b-{round}")});
        let held = insist(&fleet, 1, holds, &format!("held-{round}"), &body).await;
        assert_eq!(held.status, 201, "{held:?}");
        let hold = held.text_of("id");
        let old = fleet.leader_of("sells").await;
        // The old leader has fresh memory and connections that were used just now.
        let seen = fleet.read(old, "/v1/items/sells/availability?consistency=leader").await;
        assert_eq!(seen.number_of("available"), left);
        fleet.freeze(old);
        let other = fleet.others(old)[0];
        let all = json!({"quantity": left, "buyer": "all"});
        let key = format!("all-{round}");
        let sold = insist(&fleet, other, "/v1/items/sells/holds", &key, &all).await;
        assert!(sold.status == 201 || sold.status == 200, "{sold:?}");
        let path = format!("/v1/holds/{hold}/release");
        let freed = insist(&fleet, other, &path, "freed", &json!({})).await;
        assert_eq!(freed.text_of("state"), "released", "{freed:?}");
        let asked = ask_the_frozen(&fleet, old, round, hold).await;
        pass(pause).await;
        fleet.thaw(old);
        let mut definite = 0;
        for mut one in asked {
            let answer = one.caller.read().await.expect("an answer");
            judge(one.what, &answer);
            definite += usize::from(answer.status < 500);
        }
        println!("round {round}: {definite} of {} answers were definite", COPIES * 6);
        // The old leader follows the new one, and answers through it.
        let path = "/v1/items/sells/availability?consistency=leader";
        let now = fleet.read(old, path).await;
        assert_eq!(now.number_of("available"), 0);
        // Back to stock for the next round: what was sold out, goes on being sold.
        let path = format!("/v1/holds/{}/release", sold.text_of("id"));
        let freed = insist(&fleet, other, &path, "freed", &json!({})).await;
        assert_eq!(freed.text_of("state"), "released", "{freed:?}");
        left = fleet
            .read(other, "/v1/items/sells/availability?consistency=leader")
            .await
            .number_of("available");
        assert_eq!(left, 1_000);
    }
    fleet.settle().await;
    for item in ["sells", "frees"] {
        fleet.audit(item).await;
    }
}

/// Short pauses around the lease, while a unit goes to and fro and everybody is asked about it.
#[tokio::test]
async fn pauses_around_the_lease_never_let_an_answer_from_the_past_out() {
    let fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("unit", 1).await;
    let all = fleet.all_http();
    let asked: Vec<_> = all.iter().chain(&all).copied().collect();
    let witness = Witness::start("unit", all, &asked);
    for pause in [100, 250, 350, 450, 600, 900].into_iter().cycle().take(rounds(6)) {
        witness.wait_moves(10).await;
        let leader = fleet.leader_of("unit").await;
        fleet.freeze(leader);
        pass(Duration::from_millis(pause)).await;
        fleet.thaw(leader);
    }
    witness.wait_moves(10).await;
    let told = witness.finish().await;
    println!("{told:?}");
    assert!(told.free > 20 && told.taken > 20, "too few were told anything: {told:?}");
    fleet.settle().await;
    fleet.audit("unit").await;
}
