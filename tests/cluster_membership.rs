//! Nodes that are added, drained, removed and replaced while buyers buy: nothing that was
//! acknowledged is lost, and whoever dies meanwhile, the operation goes on.

mod cluster;

use std::time::Duration;

use cluster::{Buying, Fleet, Plan, SOON, command, holdfast, seed, wait_for};
use serde_json::json;
use tokio::time::Instant;

/// The grants of a cluster come back within this when its leaders are removed. The promise is one
/// second on a quiet machine; here others build meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(4);

fn three_and(spares: usize) -> Plan {
    Plan::new(3, 2).spares(spares)
}

/// Cases C05, C07: three nodes become five and three again, and one of those that go led.
#[tokio::test]
async fn three_nodes_become_five_and_three_again_under_load_and_nothing_is_lost() {
    let seed = seed();
    let mut fleet = Fleet::start(three_and(2)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 8, seed);
    buying.wait_grants(50).await;
    for id in [4, 5] {
        let from = Instant::now();
        fleet.add(id).await;
        println!("node {id} votes {:?} after its invitation", from.elapsed());
        assert_eq!(fleet.state_of(id).await, "voter");
        buying.wait_grants(50).await;
    }
    fleet.wait_voters(&[1, 2, 3, 4, 5]).await;
    for id in [1, 2] {
        let from = Instant::now();
        let (operation, _) = fleet.begin("DELETE", &format!("/admin/v1/nodes/{id}")).await;
        let ended = fleet.done(operation).await;
        println!("node {id} is out after {:?}: {}", from.elapsed(), ended["note"]);
        let why = fleet.says_why(id).await;
        assert!(why.contains("was removed from the cluster"), "{why}");
        buying.wait_grants(50).await;
        fleet.terminate(id);
        let status = fleet.wait_exit(id, SOON).await;
        assert!(status.success(), "{}", fleet.words(id));
    }
    fleet.wait_voters(&[3, 4, 5]).await;
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}; longest {:?}", books.kept.len(), books.told, books.longest);
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
}

/// Cases C04, C05: the node that leads every shard is removed: its leaderships are handed over
/// first. It says why it serves nothing, also after a restart.
#[tokio::test]
async fn leader_of_every_shard_is_removed_with_a_short_pause_and_says_why_ever_after() {
    let seed = seed();
    let mut fleet = Fleet::start(Plan::new(3, 3).spares(1)).await;
    fleet.put_units("ticket", 1_000_000).await;
    fleet.add(4).await;
    for shard in 0..3 {
        wait_for("node 1 leads everything", SOON, async || {
            let path = format!("/admin/v1/shards/{shard}/leader");
            fleet.order("POST", &path, &json!({"node": 1})).await;
            let (leader, _) = fleet.leader_of_shard(shard).await;
            if leader == 1 { Ok(()) } else { Err(format!("shard {shard}: node {leader}")) }
        })
        .await;
    }
    let buying = Buying::start("ticket", fleet.all_http(), 8, seed);
    buying.wait_grants(100).await;
    let removed = Instant::now();
    let (operation, _) = fleet.begin("DELETE", "/admin/v1/nodes/1").await;
    fleet.done(operation).await;
    let why = fleet.says_why(1).await;
    assert!(why.contains("holdfast node add"), "{why}");
    buying.wait_grants(100).await;
    fleet.wait_voters(&[2, 3, 4]).await;
    // Also after a restart, and when the others are asked nothing.
    fleet.kill(1);
    fleet.start_node(1);
    fleet.wait_up(1).await;
    let why = fleet.says_why(1).await;
    assert!(why.contains("was removed from the cluster"), "{why}");
    fleet.kill(1);
    let books = buying.finish().await;
    let mut after: Vec<_> = books.grants.iter().copied().filter(|at| *at > removed).collect();
    after.sort();
    let gaps = after.windows(2).map(|pair| pair[1] - pair[0]);
    let pause = gaps.max().expect("grants after it").max(books.outage_after(removed));
    println!("removed the leader of every shard -> longest time without a grant: {pause:?}");
    assert!(pause < PAUSE_MAX, "{pause:?}");
    books.verify(&fleet, "ticket").await;
}

/// The partition suite, seed 163652: a node that was away while a machine came in, which leads
/// everything since, refused it as a stranger and could hear of it from nobody else.
#[tokio::test]
async fn node_that_was_away_follows_a_leader_that_came_in_meanwhile() {
    let mut fleet = Fleet::start(three_and(1)).await;
    fleet.put_units("ticket", 1_000).await;
    fleet.kill(3);
    fleet.add(4).await;
    let (operation, _) = fleet.begin("DELETE", "/admin/v1/nodes/1").await;
    fleet.done(operation).await;
    fleet.kill(1);
    for shard in 0..2 {
        wait_for("node 4 leads everything", SOON, async || {
            let path = format!("/admin/v1/shards/{shard}/leader");
            fleet.order("POST", &path, &json!({"node": 4})).await;
            let (leader, _) = fleet.leader_of_shard(shard).await;
            if leader == 4 { Ok(()) } else { Err(format!("shard {shard}: node {leader}")) }
        })
        .await;
    }
    fleet.start_node(3);
    fleet.wait_ready().await;
    assert_eq!(fleet.leader_of_shard(0).await.0, 4, "nobody else told node 3 of it");
}

/// The partition suite, seed 1: the command line of a node that came with `--join` stays as it was.
/// Restarted with it after its removal, the node ended, or not, by who was first.
#[tokio::test]
async fn node_that_joined_says_why_after_its_removal_also_when_started_with_its_old_token() {
    let mut fleet = Fleet::start(three_and(1)).await;
    fleet.put_units("ticket", 1_000).await;
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes").await;
    let token = token.expect("a token");
    fleet.join(4, 1, &token).await;
    fleet.done(operation).await;
    let (operation, _) = fleet.begin("DELETE", "/admin/v1/nodes/4").await;
    fleet.done(operation).await;
    fleet.says_why(4).await;
    for _ in 0..5 {
        fleet.kill(4);
        fleet.join(4, 1, &token).await;
        let why = fleet.says_why(4).await;
        assert!(why.contains("was removed from the cluster"), "{why}");
    }
}

/// Cases C06, C02: a dead node is replaced; when it comes back all the same it serves nothing, and
/// says why.
#[tokio::test]
async fn dead_node_is_replaced_under_load_and_serves_nothing_when_it_comes_back() {
    let seed = seed();
    let mut fleet = Fleet::start(three_and(1)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 8, seed);
    buying.wait_grants(50).await;
    fleet.kill(3);
    buying.wait_grants(50).await;
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes/3/replace").await;
    fleet.join(4, 1, &token.expect("a token")).await;
    let ended = fleet.done(operation).await;
    println!("{}", ended["note"]);
    assert_eq!(fleet.state_of(3).await, "removed");
    fleet.wait_voters(&[1, 2, 4]).await;
    buying.wait_grants(50).await;
    fleet.start_node(3);
    fleet.wait_up(3).await;
    let why = fleet.says_why(3).await;
    assert!(why.contains("was removed from the cluster"), "{why}");
    fleet.kill(3);
    let books = buying.finish().await;
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
}

/// Case C04: the leader is removed again and again, down to one: each time the rest elects.
#[tokio::test]
async fn leader_is_removed_until_one_is_left_and_the_rest_sells_each_time() {
    let mut fleet = Fleet::start(three_and(0)).await;
    fleet.put_units("ticket", 1_000_000).await;
    for left in [2, 1] {
        let (leader, _) = fleet.leader_of_shard(0).await;
        let path = format!("/admin/v1/nodes/{leader}?allow_fewer=true");
        let (operation, _) = fleet.begin("DELETE", &path).await;
        fleet.done(operation).await;
        fleet.says_why(leader).await;
        fleet.kill(leader);
        let id = *fleet.running().first().expect("one is left");
        let from = Instant::now();
        let body = json!({"quantity": 1, "buyer": format!("b{left}")});
        let placed = fleet.insist(id, "/v1/items/ticket/holds", &format!("k{left}"), &body).await;
        assert_eq!(placed.status, 201, "{placed:?}");
        println!("{left} left: sold {:?} after the removal", from.elapsed());
        assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
    }
    fleet.settle().await;
    assert_eq!(fleet.audit("ticket").await.number_of("held"), 2);
}

/// Cases C06, C07, C12: one node is dead and its log purged behind; a new machine that dies as soon
/// as it was let in holds nothing up: it stays a learner, and is taken out; another comes in by a
/// checkpoint, and the dead one goes.
#[tokio::test]
async fn dead_node_and_a_machine_that_never_answers_hold_nothing_up() {
    let seed = seed();
    let mut fleet = Fleet::start(three_and(2)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 4, seed);
    fleet.kill(3);
    buying.wait_grants(100).await;
    for _ in 0..2 {
        for shard in 0..2 {
            let path = format!("/admin/v1/shards/{shard}/checkpoint");
            let made = fleet.order("POST", &path, &json!({})).await;
            assert_eq!(made.status, 200, "{made:?}");
        }
        buying.wait_grants(20).await;
    }
    let (first, token) = fleet.begin("POST", "/admin/v1/nodes").await;
    fleet.join(4, 1, &token.expect("a token")).await;
    wait_for("the machine was let in", SOON, async || {
        let state = fleet.state_of(4).await;
        if state == "invited" { Err(state) } else { Ok(()) }
    })
    .await;
    fleet.kill(4);
    // It may have been quick enough to get its vote: then there is nothing to see here.
    let state = fleet.state_of(4).await;
    println!("the machine died as {state}");
    buying.wait_grants(20).await;
    let (operation, _) = fleet.begin("DELETE", "/admin/v1/nodes/4?allow_fewer=true").await;
    fleet.done(operation).await;
    let ended = fleet.ended(first).await;
    println!("the first operation: {} {}", ended["state"], ended["note"]);
    let from = Instant::now();
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes/3/replace").await;
    fleet.join(5, 1, &token.expect("a token")).await;
    fleet.done(operation).await;
    println!("replaced by a checkpoint within {:?}", from.elapsed());
    fleet.wait_voters(&[1, 2, 5]).await;
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
}

/// Case C26: a node comes back at other addresses, first a learner, then a voter that led: what it
/// is stays, and it is found.
#[tokio::test]
async fn node_at_other_addresses_keeps_its_role_and_is_found() {
    let mut fleet = Fleet::start(three_and(1)).await;
    fleet.put_units("ticket", 1_000).await;
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes").await;
    fleet.join(4, 1, &token.expect("a token")).await;
    fleet.done(operation).await;
    let (operation, _) = fleet.begin("POST", "/admin/v1/nodes/4/demote").await;
    fleet.done(operation).await;
    assert_eq!(fleet.state_of(4).await, "learner");
    let (leader, _) = fleet.leader_of_shard(0).await;
    for (id, role) in [(4, "learner"), (leader, "voter")] {
        fleet.kill(id);
        fleet.move_node(id);
        fleet.start_node(id);
        fleet.wait_up(id).await;
        wait_for(&format!("node {id} is found where it is"), SOON, async || {
            let nodes = fleet.nodes().await;
            let node = nodes.iter().find(|node| node["id"] == json!(id)).expect("it is known");
            let here = node["http_addr"] == json!(fleet.http(id).to_string());
            let is = here && node["answers"] == json!(true) && node["state"] == json!(role);
            if is { Ok(()) } else { Err(node.to_string()) }
        })
        .await;
    }
    let (operation, _) = fleet.begin("POST", "/admin/v1/nodes/4/promote").await;
    fleet.done(operation).await;
    fleet.wait_voters(&[1, 2, 3, 4]).await;
    fleet.settle().await;
}

/// Case C02: a node that was wiped and given its old id again is not let in, and names the command
/// that helps.
#[tokio::test]
async fn wiped_node_under_its_old_id_is_refused_with_the_command_that_helps() {
    let mut fleet = Fleet::start(three_and(1)).await;
    fleet.put_units("ticket", 1_000).await;
    // The roster begins with the first operation.
    let (operation, _) = fleet.begin("POST", "/admin/v1/nodes/3/drain").await;
    fleet.done(operation).await;
    let cluster = fleet.view(1).await.expect("a view").cluster_id.expect("a cluster");
    fleet.kill(3);
    std::fs::remove_dir_all(fleet.data_dir(3)).expect("the disk is lost");
    fleet.start_node(3);
    fleet.wait_up(3).await;
    let settings = json!({"shards": 2, "tag_key": "00".repeat(16), "slots": 256, "sweep_max": 512,
        "receipt_retention_ms": 86_400_000, "sold_retention_ms": 7_776_000_000_u64});
    let offer = json!({"cluster_id": cluster, "node": 3, "settings": settings});
    let adopted = fleet.caller(3).post("/admin/v1/adopt", "adopt", &offer).await.expect("answered");
    assert_eq!(adopted.status, 200, "{adopted:?}");
    // Somebody copies the members' file too, as was advised once: its own log is not in it.
    std::fs::copy(fleet.data_dir(1).join("members"), fleet.data_dir(3).join("members"))
        .expect("the members");
    fleet.kill(3);
    fleet.start_node(3);
    fleet.wait_up(3).await;
    let why = fleet.says_why(3).await;
    assert!(why.contains("holdfast node replace 3"), "{why}");
    fleet.kill(3);
    // And the command helps.
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes/3/replace").await;
    fleet.join(4, 1, &token.expect("a token")).await;
    fleet.done(operation).await;
    fleet.wait_voters(&[1, 2, 4]).await;
}

/// Law 10: a node whose log is damaged does not start, and names the command that brings its
/// machine back: the same machine, at the same addresses, under a new id.
#[tokio::test]
async fn node_whose_log_is_damaged_comes_back_by_replace_on_the_same_machine() {
    let seed = seed();
    let mut fleet = Fleet::start(three_and(0)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 4, seed);
    buying.wait_grants(100).await;
    fleet.kill(3);
    let data = fleet.data_dir(3);
    let segment = data.join("log/0000000000000001.seg");
    let mut bytes = std::fs::read(&segment).expect("its first segment");
    bytes[200] ^= 0x55;
    std::fs::write(&segment, bytes).expect("written");
    let (status, words) = fleet.start_refused(3).await;
    assert!(!status.success() && words.contains("holdfast node replace"), "{words}");
    let doctor = holdfast(&["doctor", &data.display().to_string()]);
    assert_eq!(doctor.code, Some(1), "{}", doctor.words());
    assert!(doctor.stdout.contains("node replace 3"), "{}", doctor.words());
    buying.wait_grants(20).await;
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes/3/replace").await;
    std::fs::rename(&data, data.with_file_name("kept")).expect("moved away");
    fleet.join(3, 1, &token.expect("a token")).await;
    fleet.done(operation).await;
    assert_eq!(fleet.state_of(3).await, "removed");
    fleet.wait_voters(&[1, 2, 4]).await;
    fleet.wait_ready().await;
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
}

/// A replacement is awaited, and the node that it is for is removed meanwhile: the machine comes in
/// all the same, and nothing is stuck.
#[tokio::test]
async fn machine_for_a_node_that_was_removed_meanwhile_comes_in_as_one_more() {
    let mut fleet = Fleet::start(three_and(1)).await;
    fleet.put_units("ticket", 1_000).await;
    fleet.kill(3);
    let (replace, token) = fleet.begin("POST", "/admin/v1/nodes/3/replace").await;
    let (remove, _) = fleet.begin("DELETE", "/admin/v1/nodes/3?allow_fewer=true").await;
    fleet.done(remove).await;
    fleet.join(4, 1, &token.expect("a token")).await;
    let ended = fleet.done(replace).await;
    assert_eq!(ended["kind"], "add", "{ended}");
    fleet.wait_voters(&[1, 2, 4]).await;
    fleet.settle().await;
}

/// A token lets one machine in, once; nothing else does.
#[tokio::test]
async fn token_lets_one_machine_in_once_and_everything_else_is_refused_clearly() {
    let mut fleet = Fleet::start(three_and(2)).await;
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes").await;
    let token = token.expect("a token");
    let forged = format!("hfj-{operation}-{}", "ab".repeat(16));
    for (wrong, words) in [("abc", "this is no token"), (forged.as_str(), "no such token")] {
        let more = ["--join".to_owned(), fleet.url(1), "--token".to_owned(), wrong.to_owned()];
        fleet.start_node_with(5, &more);
        let status = fleet.wait_exit(5, SOON).await;
        assert!(!status.success() && fleet.words(5).contains(words), "{}", fleet.words(5));
    }
    fleet.join(4, 2, &token).await;
    fleet.done(operation).await;
    let more = ["--join".to_owned(), fleet.url(1), "--token".to_owned(), token.clone()];
    fleet.start_node_with(5, &more);
    let status = fleet.wait_exit(5, SOON).await;
    assert!(!status.success() && fleet.words(5).contains("was used"), "{}", fleet.words(5));
    // The same machine with the same command line goes on as what it is.
    fleet.terminate(4);
    assert!(fleet.wait_exit(4, SOON).await.success());
    fleet.join(4, 1, &token).await;
    fleet.wait_ready().await;
    assert_eq!(fleet.state_of(4).await, "voter");
    // One that was never used, and is given up, lets nobody in.
    let (operation, token) = fleet.begin("POST", "/admin/v1/nodes").await;
    let path = format!("/admin/v1/operations/{operation}/cancel");
    assert_eq!(fleet.order("POST", &path, &json!({})).await.status, 200);
    let token = token.expect("a token");
    let more = ["--join".to_owned(), fleet.url(1), "--token".to_owned(), token];
    fleet.start_node_with(5, &more);
    let status = fleet.wait_exit(5, SOON).await;
    assert!(!status.success() && fleet.words(5).contains("given up"), "{}", fleet.words(5));
}

/// What would lose a quorum, or leave too few voters, is refused with the rule and the figures; a
/// second operator is told of the first; a rehearsal changes nothing.
#[tokio::test]
async fn preflight_names_the_rule_and_the_figures_and_a_second_operator_is_told_of_the_first() {
    let mut fleet = Fleet::start(three_and(1)).await;
    let refused = async |method: &str, path: &str, rule: &str, words: &str| {
        let answer = fleet.order(method, path, &json!({})).await;
        assert_eq!((answer.status, answer.text_of("reason")), (409, rule), "{answer:?}");
        assert!(answer.text_of("detail").contains(words), "{answer:?}");
    };
    refused("DELETE", "/admin/v1/nodes/3", "three-voters", "needs 3").await;
    refused("POST", "/admin/v1/nodes/3/promote", "node-learns", "votes already").await;
    let path = "/admin/v1/nodes/3?dry_run=true&allow_fewer=true";
    let plan = fleet.order("DELETE", path, &json!({})).await;
    assert_eq!((plan.status, plan.body["steps"].as_array().map(Vec::len)), (200, Some(3)));
    let none = fleet.order("DELETE", "/admin/v1/nodes/9", &json!({})).await;
    assert_eq!(none.status, 404, "{none:?}");
    assert!(fleet.nodes().await.iter().all(|node| node["state"] == "voter"));
    let (operation, _) = fleet.begin("POST", "/admin/v1/nodes/3/drain").await;
    fleet.done(operation).await;
    let (leader, _) = fleet.leader_of_shard(0).await;
    assert_ne!(leader, 3, "a drained node leads nothing");
    refused("POST", "/admin/v1/nodes/2/drain", "somebody-may-lead", "1 of 3 voters that may lead")
        .await;
    let (operation, _) = fleet.begin("POST", "/admin/v1/nodes/3/undrain").await;
    fleet.done(operation).await;
    fleet.kill(3);
    wait_for("node 3 is missed", SOON, async || {
        let answer = fleet.order("DELETE", "/admin/v1/nodes/2?allow_fewer=true", &json!({})).await;
        let rule = answer.text_of("reason").to_owned();
        let words = answer.text_of("detail").to_owned();
        let figures = words.contains("1 of 2 voters alive: needs 2");
        if rule == "quorum" && figures { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    // An operation that waits for a machine which never catches up: others are told of it.
    let (first, token) = fleet.begin("POST", "/admin/v1/nodes").await;
    fleet.join(4, 1, &token.expect("a token")).await;
    wait_for("the machine was let in", SOON, async || {
        let state = fleet.state_of(4).await;
        if state == "invited" { Err(state) } else { Ok(()) }
    })
    .await;
    let second = fleet.order("DELETE", "/admin/v1/nodes/3?allow_fewer=true", &json!({})).await;
    if second.status == 409 {
        assert_eq!(second.text_of("reason"), "one-operation-at-a-time", "{second:?}");
        assert!(second.text_of("detail").contains(&format!("operation {first}")), "{second:?}");
    } else {
        println!("the first operation was done before the second was asked for");
        assert_eq!(second.status, 202, "{second:?}");
    }
    fleet.done(first).await;
}

/// The operator's command is killed half-way, and so is, at each step, the node that drives the
/// operation: it goes on.
#[tokio::test]
async fn operation_outlives_its_operator_and_every_node_that_drives_it() {
    let seed = seed();
    let mut fleet = Fleet::start(three_and(1)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 4, seed);
    buying.wait_grants(50).await;
    let urls: Vec<String> = (1..=3).map(|id| fleet.url(id)).collect();
    let arguments = ["node", "add", "--json", "--url", &urls.join(",")];
    let mut operator = command(&arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // The token stands in its words; the operator dies before the machine comes.
    let words = {
        use std::io::BufRead;
        let stderr = operator.stderr.take().expect("piped");
        let lines = std::io::BufReader::new(stderr).lines();
        let lines = lines.map_while(Result::ok);
        lines.take_while(|line| !line.contains("has begun")).collect::<Vec<_>>().join("\n")
    };
    operator.kill().expect("a child of ours");
    operator.wait().expect("a child of ours");
    let token = words.split_whitespace().find(|word| word.starts_with("hfj-"));
    let token = token.unwrap_or_else(|| panic!("no token in {words}")).to_owned();
    fleet.join(4, 1, &token).await;
    // Whoever leads shard 0 drives: it dies, again and again, until the operation is done.
    let mut killed = 0;
    for _ in 0..cluster::rounds(4) {
        let (driver, _) = fleet.leader_of_shard(0).await;
        fleet.kill(driver);
        killed += 1;
        buying.wait_grants(5).await;
        fleet.start_node(driver);
        fleet.wait_ready().await;
    }
    println!("{killed} drivers were killed");
    fleet.done(1).await;
    fleet.wait_voters(&[1, 2, 3, 4]).await;
    // And out again, its drivers killed as well.
    let (operation, _) = fleet.begin("DELETE", "/admin/v1/nodes/4").await;
    for _ in 0..cluster::rounds(2) {
        let (driver, _) = fleet.leader_of_shard(0).await;
        if driver == 4 {
            continue;
        }
        fleet.kill(driver);
        buying.wait_grants(5).await;
        fleet.start_node(driver);
        fleet.wait_up(driver).await;
    }
    fleet.done(operation).await;
    let why = fleet.says_why(4).await;
    assert!(why.contains("was removed from the cluster"), "{why}");
    fleet.kill(4);
    fleet.wait_voters(&[1, 2, 3]).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}; longest {:?}", books.kept.len(), books.told, books.longest);
    books.verify(&fleet, "ticket").await;
    let listed = holdfast(&["node", "list", "--url", &urls.join(",")]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stdout.contains("removed"), "{listed:?}");
}
