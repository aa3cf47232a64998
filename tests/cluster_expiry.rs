//! Expiry against confirmation on real nodes.

mod cluster;

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::wait_for;
use cluster::{Answer, Caller, Dice, Fleet, Plan, SOON, all_holds, pass, rounds, seed, try_again};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A hold and the moment at which it lapses, as its buyer was told.
#[derive(Debug, Clone)]
struct Placed {
    id: String,
    lapses: Instant,
}

/// Places holds in batches, with lifetimes from `ttl_ms` on, a little longer each.
async fn place_all(fleet: &Fleet, count: usize, ttl_ms: u64, apart: f64) -> Vec<Placed> {
    let mut placed = Vec::new();
    let mut caller = fleet.caller(2);
    let keys: Vec<usize> = (0..count).collect();
    for part in keys.chunks(500) {
        let operations: Vec<Value> = part
            .iter()
            .map(|n| {
                let ttl = ttl_ms + (*n as f64 * apart) as u64;
                json!({"op": "place", "key": format!("k-{n}"), "item": "ticket", "quantity": 1,
                       "buyer": format!("b-{n}"), "ttl_ms": ttl})
            })
            .collect();
        let body = json!({"operations": operations});
        let answer = caller.post("/v1/holds:batch", "batch", &body).await.expect("an answer");
        let told = Instant::now();
        for result in answer.body["results"].as_array().expect("results") {
            assert_eq!(result["status"], 201, "{result}");
            let left = result["hold"]["expires_in_ms"].as_u64().expect("a lifetime");
            let id = result["hold"]["id"].as_str().expect("an id").to_owned();
            placed.push(Placed { id, lapses: told + Duration::from_millis(left) });
        }
    }
    placed
}

/// Confirms until there is a definite answer, at whichever node answers.
async fn confirm(caller: &mut Caller, fleet: &[std::net::SocketAddr], id: &str) -> Answer {
    let until = Instant::now() + SOON;
    let mut tries = 0;
    loop {
        let path = format!("/v1/holds/{id}/confirm");
        let sent = caller.post(&path, "paid", &json!({})).await;
        if !try_again(&sent) {
            return sent.expect("definite");
        }
        assert!(Instant::now() < until, "{id} is never answered: {sent:?}");
        tries += 1;
        caller.turn_to(fleet[tries % fleet.len()]);
        pass(Duration::from_millis(10)).await;
    }
}

/// Confirms each hold at its deadline, more or less, and returns what each was told.
async fn confirm_all(
    fleet: &Fleet,
    placed: &[Placed],
    dice: &mut Dice,
) -> BTreeMap<String, Answer> {
    const TASKS: usize = 40;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let mine: Vec<_> = placed.iter().skip(task).step_by(TASKS).cloned().collect();
        let (nodes, mut dice) = (fleet.all_http(), Dice(dice.roll()));
        let mut caller = fleet.caller(1 + task % 3);
        tasks.spawn(async move {
            let mut told = Vec::new();
            for hold in mine {
                // From 20 ms before to 20 ms after.
                let early = Duration::from_millis(20);
                let jitter = Duration::from_micros(dice.below(40_000));
                tokio::time::sleep_until((hold.lapses - early) + jitter).await;
                let answer = confirm(&mut caller, &nodes, &hold.id).await;
                told.push((hold.id, answer));
            }
            told
        });
    }
    let mut told = BTreeMap::new();
    while let Some(mine) = tasks.join_next().await {
        told.extend(mine.expect("a buyer does not fall over"));
    }
    told
}

/// Waits until every hold has ended, and holds their ends against what was told.
async fn judge(fleet: &Fleet, total: u64, told: &BTreeMap<String, Answer>) -> Vec<String> {
    let (mut sold, mut lapsed) = (Vec::new(), Vec::new());
    for (id, answer) in told {
        match (answer.status, answer.slug()) {
            (200, _) => sold.push(id.clone()),
            (410, "hold-expired") => lapsed.push(id.clone()),
            _ => panic!("{id}: {answer:?}"),
        }
    }
    println!("{} sold, {} lapsed", sold.len(), lapsed.len());
    wait_for("all have ended", SOON, async || {
        let audit = fleet.read(1, "/v1/items/ticket/audit").await;
        let held = audit.number_of("held");
        if held == 0 { Ok(()) } else { Err(format!("{held} held")) }
    })
    .await;
    fleet.settle().await;
    let audit = fleet.audit("ticket").await;
    assert_eq!(audit.number_of("sold"), sold.len() as u64, "{}", audit.text);
    assert_eq!(audit.number_of("available"), total - sold.len() as u64, "{}", audit.text);
    for node in fleet.running() {
        let holds = all_holds(fleet, node, "ticket").await;
        assert_eq!(holds.len(), told.len());
        for hold in holds {
            let id = hold["id"].as_str().expect("an id");
            let right = if told[id].status == 200 { "sold" } else { "expired" };
            assert_eq!(hold["state"], right, "node {node}: told {:?}", told[id]);
        }
    }
    lapsed
}

/// Cases L19, L14, L17.
#[tokio::test]
async fn confirm_and_expire_of_one_hold_never_both_happen() {
    let mut dice = Dice(seed());
    let fleet = Fleet::start(Plan::new(3, 2).calm()).await;
    let count = rounds(2_000);
    let rules = json!({"ttl_ms": 5_000, "max_ttl_ms": 600_000});
    fleet.put_item("ticket", &json!({"total": count, "hold": rules})).await;
    let placed = place_all(&fleet, count, 2_000, 2.0).await;
    let told = confirm_all(&fleet, &placed, &mut dice).await;
    let lapsed = judge(&fleet, count as u64, &told).await;
    let sold = count - lapsed.len();
    assert!(lapsed.len() > 20 && sold > 20, "{sold} sold, {} lapsed: no race", lapsed.len());

    // What was refused as expired never sells later, but by `reacquire`.
    let mut caller = fleet.caller(3);
    let mut again = async |id: &str, verb: &str, key: &str, body: Value| {
        let path = format!("/v1/holds/{id}/{verb}");
        caller.post(&path, key, &body).await.expect("an answer")
    };
    for (n, id) in lapsed.iter().take(60).enumerate() {
        let late = again(id, "confirm", "later", json!({})).await;
        assert_eq!(late.slug(), "hold-expired", "{late:?}");
        assert_eq!(again(id, "extend", "later", json!({})).await.slug(), "hold-expired");
        if n % 2 == 0 {
            let taken = again(id, "confirm", "anew", json!({"reacquire": true})).await;
            assert_eq!((taken.status, taken.text_of("state")), (200, "sold"), "{taken:?}");
        } else {
            let freed = again(id, "release", "freed", json!({})).await;
            assert_eq!((freed.status, freed.text_of("state")), (200, "released"), "{freed:?}");
            let never = again(id, "confirm", "anew", json!({"reacquire": true})).await;
            assert_eq!(never.slug(), "hold-released", "{never:?}");
        }
    }
    fleet.settle().await;
    let taken = lapsed.len().min(60).div_ceil(2);
    let audit = fleet.audit("ticket").await;
    assert_eq!(audit.number_of("sold"), (sold + taken) as u64, "{}", audit.text);
}

/// Case L19, with the leader dying among the deadlines.
#[tokio::test]
async fn leader_killed_among_the_deadlines_leaves_each_hold_one_end() {
    let mut dice = Dice(seed());
    let mut fleet = Fleet::start(Plan::new(3, 1)).await;
    let count = rounds(600);
    let rules = json!({"ttl_ms": 5_000, "max_ttl_ms": 600_000});
    fleet.put_item("ticket", &json!({"total": count, "hold": rules})).await;
    let placed = place_all(&fleet, count, 1_500, 5.0).await;
    let leader = fleet.leader_of("ticket").await;
    pass(placed[count / 3].lapses - Instant::now()).await;
    fleet.kill(leader);
    let told = confirm_all(&fleet, &placed[count / 3..], &mut dice).await;
    fleet.start_node(leader);
    fleet.wait_ready().await;
    // Nobody paid for the first third: they lapsed.
    let mut all = told;
    for hold in &placed[..count / 3] {
        let mut caller = fleet.caller(1);
        let answer = confirm(&mut caller, &fleet.all_http(), &hold.id).await;
        assert_eq!(answer.slug(), "hold-expired", "{answer:?}");
        all.insert(hold.id.clone(), answer);
    }
    judge(&fleet, count as u64, &all).await;
}
