//! The shipped binary against a scripted server: exit codes, stdout and stderr.

mod scripted;

use std::process::{Command, Output};

use scripted::{Scripted, Step, hold, json, problem};
use serde_json::Value;

fn holdfast(url: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .env_remove("HOLDFAST_TENANT")
        .env("HOLDFAST_URL", url)
        .args(arguments)
        .output()
        .expect("the binary runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn stdout_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stdout(output)))
}

#[test]
fn a_placed_hold_is_json_on_stdout_and_nothing_else() {
    let server = Scripted::start(vec![json(201, &hold("hld_1", "held"))]);
    let line = ["hold", "place", "x", "--buyer", "ann", "--key", "k-1", "--json"];
    let output = holdfast(&server.url(), &line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout_json(&output)["id"], "hld_1");
    assert_eq!(stdout(&output).lines().count(), 1);
    assert_eq!(stderr(&output), "");
    assert_eq!(server.got()[0].header("idempotency-key"), Some("k-1"));
}

#[test]
fn people_get_a_table() {
    let server = Scripted::start(vec![json(201, &hold("hld_1", "held"))]);
    let output = holdfast(&server.url(), &["hold", "place", "x"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("hld_1") && text.contains("expires_at"), "{text}");
}

#[test]
fn a_refusal_exits_1_with_the_problem_on_stdout_for_programs() {
    let server = Scripted::start(vec![problem(409, "sold-out")]);
    let output = holdfast(&server.url(), &["hold", "place", "x", "--json"]);
    assert_eq!(code(&output), 1);
    assert_eq!(stdout_json(&output)["problem"]["type"], "/problems/sold-out");
    assert!(stderr(&output).contains("sold-out"));
}

#[test]
fn an_unknown_outcome_exits_3_and_tells_the_key() {
    let silent = (0..10).map(|_| Step::Silence).collect();
    let server = Scripted::start(silent);
    let line = ["--timeout-ms", "200", "hold", "place", "x", "--key", "k-7"];
    let output = holdfast(&server.url(), &line);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("--key k-7"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

#[test]
fn an_item_that_an_operator_paused_is_refused_at_once() {
    let body = r#"{"type":"/problems/item-paused","status":503,"detail":"d","reason":"operator"}"#;
    let server = Scripted::start(vec![json(503, body), json(201, &hold("hld_1", "held"))]);
    let output = holdfast(&server.url(), &["hold", "place", "x"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("holdfast item resume"), "{}", stderr(&output));
    assert_eq!(server.got().len(), 1);
}

#[test]
fn only_a_replay_is_called_one() {
    let confirm = ["hold", "confirm", "hld_1", "--key", "k"];
    let server = Scripted::start(vec![json(200, &hold("hld_1", "sold"))]);
    let output = holdfast(&server.url(), &confirm);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let Step::Answer(status, mut headers, body) = json(200, &hold("hld_1", "sold")) else {
        unreachable!("an answer")
    };
    headers.push(("idempotent-replayed", "true".into()));
    let server = Scripted::start(vec![Step::Answer(status, headers, body)]);
    let output = holdfast(&server.url(), &confirm);
    assert!(stderr(&output).contains("nothing was changed now"), "{}", stderr(&output));
}

/// Long before the ten seconds that an operation may take.
#[test]
fn status_of_a_port_where_nobody_listens_fails_soon() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", free.local_addr().expect("an address"));
    drop(free);
    let begun = std::time::Instant::now();
    let output = holdfast(&url, &["status"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn status_of_a_node_without_a_cluster_says_so_and_exits_3() {
    let server = Scripted::start(vec![json(200, r#"{"node":0,"nodes":[],"shards":[]}"#)]);
    let output = holdfast(&server.url(), &["status"]);
    assert_eq!(code(&output), 3);
    assert!(stderr(&output).contains("holdfast cluster init"), "{}", stderr(&output));
}

#[test]
fn a_node_whose_port_is_taken_does_not_start_and_names_the_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    for (key, other) in [("http.listen", "peer.listen"), ("peer.listen", "http.listen")] {
        let dir = tempfile::tempdir().expect("a directory");
        let data_dir = format!("node.data_dir={}", dir.path().display());
        let (taken, free) = (format!("{key}={address}"), format!("{other}=127.0.0.1:0"));
        let line = ["serve", "--set", &data_dir, "--set", &taken, "--set", &free];
        let output = holdfast("http://127.0.0.1:9", &line);
        assert_eq!(code(&output), 3, "{}", stderr(&output));
        for words in ["in use", key, &address] {
            assert!(stderr(&output).contains(words), "{words}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_cluster_that_is_there_is_named_and_another_one_is_refused() {
    let view = r#"{"cluster_id":"c","node":1,"nodes":[{"id":1,"http_addr":"h:1"}],
        "shards":[{"shard":0,"leader":1}]}"#;
    let init = |shards: &str| {
        let server = Scripted::start(vec![json(200, view), json(200, view)]);
        let url = server.url();
        let line = ["cluster", "init", "--nodes", &url, "--plan", "/nonexistent/p", shards];
        holdfast(&url, &line)
    };
    let same = init("--shards=1");
    assert_eq!(code(&same), 0, "{}", stderr(&same));
    assert!(stderr(&same).contains("already a cluster"), "{}", stderr(&same));
    let other = init("--shards=8");
    assert_eq!(code(&other), 2, "{}", stderr(&other));
    assert!(stderr(&other).contains("1 shards"), "{}", stderr(&other));
}

#[test]
fn a_list_of_holds_takes_its_item_with_and_without_its_flag() {
    for line in [&["hold", "list", "x"][..], &["hold", "list", "--item", "x"]] {
        let server = Scripted::start(vec![json(200, r#"{"holds":[]}"#)]);
        let output = holdfast(&server.url(), line);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(server.got()[0].line.contains("item=x"), "{:?}", server.got());
    }
}

#[test]
fn a_wrong_command_line_exits_2() {
    for line in [
        &["hold", "place", "x", "--quantity", "0"][..],
        &["hold", "list"],
        &["item", "create", "x", "--total", "-1"],
        &["item", "adjust", "x", "--delta", "1", "--if-match", "2"],
        &["frobnicate"],
        &["--url", "https://secret:1", "status"],
        &["item", "adjust", "x"],
        &["serve", "--config", "/nonexistent/holdfast.toml"],
        &["serve", "--set", "http.listne=127.0.0.1:1"],
    ] {
        let output = holdfast("http://127.0.0.1:9", line);
        assert_eq!(code(&output), 2, "{line:?}: {}", stderr(&output));
        assert!(!stderr(&output).is_empty(), "{line:?}");
    }
}

#[test]
fn a_wrong_command_line_is_one_json_object_on_stdout_for_programs() {
    for (line, word) in [
        (&["--json"][..], "subcommand"),
        (&["item", "--json"], "subcommand"),
        (&["--json", "frobnicate"], "frobnicate"),
        (&["hold", "place", "--json"], "ITEM"),
        (&["hold", "place", "x", "--json", "--quantity", "0"], "--quantity"),
        (&["item", "create", "x", "--total", "-1", "--json"], "-1"),
        (&["status", "--json", "--timeout-ms", "soon"], "soon"),
        (&["status", "--json=yes"], "--json"),
        (&["status", "--url", "http://a:1", "--json", "--colour"], "--colour"),
        // Not clap's errors: ours look the same.
        (&["--json", "--url", "https://secret:1", "status"], "https"),
        (&["serve", "--json", "--set", "http.listne=127.0.0.1:1"], "http.listne"),
    ] {
        let output = holdfast("http://127.0.0.1:9", line);
        assert_eq!(code(&output), 2, "{line:?}: {}", stderr(&output));
        let told = stdout_json(&output);
        assert_eq!(told["exit_code"], 2, "{line:?}: {told}");
        let error = told["error"].as_str().expect("words");
        assert!(error.contains(word), "{line:?}: {error}");
        assert!(!error.contains("Usage:") && !error.contains('\u{1b}'), "{line:?}: {error}");
        assert_eq!(told.as_object().map(serde_json::Map::len), Some(2), "{line:?}: {told}");
        assert_eq!(stdout(&output).lines().count(), 1, "{line:?}");
        assert!(!stderr(&output).is_empty(), "people are told too: {line:?}");
    }
    // A value is no flag, help is no error, and nobody else gets JSON.
    for (line, expected) in [
        (&["hold", "place", "--quantity", "0", "x", "--", "--json"][..], 2),
        (&["hold", "frobnicate"], 2),
        (&["--json", "--help"], 0),
        (&["--json", "--version"], 0),
    ] {
        let output = holdfast("http://127.0.0.1:9", line);
        assert_eq!(code(&output), expected, "{line:?}: {}", stderr(&output));
        assert!(!stdout(&output).starts_with('{'), "{line:?}: {}", stdout(&output));
        assert_eq!(stdout(&output).is_empty(), expected == 2, "{line:?}");
    }
}

#[test]
fn an_audit_exits_1_when_a_law_is_broken() {
    let sums = |conserved: bool| {
        json(200, &format!(r#"{{"item":"x","conserved":{conserved},"total":3,"held":1,"sold":2}}"#))
    };
    let list = || json(200, r#"{"items":[{"item":"x"},{"item":"y"}]}"#);
    let whole = Scripted::start(vec![list(), sums(true), sums(true)]);
    let output = holdfast(&whole.url(), &["audit", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout_json(&output)["conserved"], true);

    let broken = Scripted::start(vec![list(), sums(true), sums(false)]);
    let output = holdfast(&broken.url(), &["audit", "--json"]);
    assert_eq!(code(&output), 1);
    let first = stdout(&output).lines().next().expect("the audit").to_owned();
    let first: Value = serde_json::from_str(&first).expect("JSON");
    assert_eq!(first["conserved"], false);
    assert!(stderr(&output).contains("LAW IS BROKEN for y"), "{}", stderr(&output));

    let one = Scripted::start(vec![sums(false)]);
    assert_eq!(code(&holdfast(&one.url(), &["audit", "--item", "x"])), 1);
}

#[test]
fn an_audit_reads_every_page() {
    let sums = r#"{"item":"x","conserved":true,"total":3,"held":1,"sold":2}"#;
    let server = Scripted::start(vec![
        json(200, r#"{"items":[{"item":"a"}],"next_cursor":"c 1"}"#),
        json(200, sums),
        json(200, r#"{"items":[{"item":"b"}]}"#),
        json(200, sums),
    ]);
    let output = holdfast(&server.url(), &["audit", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let lines: Vec<_> = server.got().into_iter().map(|got| got.line).collect();
    assert!(lines.contains(&"GET /v1/items?limit=500&cursor=c%201".to_owned()), "{lines:?}");
    assert_eq!(stdout_json(&output)["items"].as_array().map(Vec::len), Some(2));
}

#[test]
fn status_exits_3_while_a_shard_is_paused() {
    let cluster = r#"{"cluster_id":"c","nodes":[],"shards":[
        {"shard":0,"leader":1},{"shard":1,"leader":2,"paused":"quorum-lost"}]}"#;
    let server = Scripted::start(vec![json(200, cluster)]);
    let output = holdfast(&server.url(), &["status", "--json"]);
    assert_eq!(code(&output), 3);
    assert!(stderr(&output).contains("shard 1 is paused (quorum-lost)"), "{}", stderr(&output));
}

#[test]
fn a_read_is_repeated_after_a_broken_connection() {
    let cluster = r#"{"cluster_id":"c","nodes":[],"shards":[{"shard":0,"leader":1}]}"#;
    let server = Scripted::start(vec![Step::Break, json(200, cluster)]);
    let output = holdfast(&server.url(), &["status", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout_json(&output)["cluster_id"], "c");
}

#[test]
fn cluster_init_adopts_all_before_any_begins() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = dir.path().join("plan.json");
    let ready = r#"{"cluster_id":"c","nodes":[],"shards":[{"shard":0,"leader":1}]}"#;
    let writes = |active: u8| {
        json(200, &format!(r#"{{"schema":{{"active":{active},"reads":{{"newest":2}}}}}}"#))
    };
    let node = |n: u8, after: Vec<Step>| {
        let mut script = vec![
            json(200, r#"{"node":0,"nodes":[],"shards":[]}"#),
            json(
                200,
                &format!(
                    r#"{{"log_uuid":"{n:032}","peer_addr":"p:{n}","http_addr":"h:{n}",
                    "region":"default"}}"#
                ),
            ),
            json(200, r#"{"members":2}"#),
            json(200, ready),
        ];
        script.extend(after);
        Scripted::start(script)
    };
    let one = node(1, vec![writes(1), json(200, r#"{"done":"it is 2"}"#), writes(2)]);
    let two = node(2, vec![writes(2)]);
    let urls = format!("{},{}", one.url(), two.url());
    let plan_text = plan.display().to_string();
    let line = ["cluster", "init", "--nodes", &urls, "--plan", &plan_text, "--json"];
    let output = holdfast(&one.url(), &line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout_json(&output)["shards"], 1);
    let offers: Vec<Value> =
        [&one, &two].map(|node| serde_json::from_str(&node.got()[1].body).expect("JSON")).into();
    assert_eq!((&offers[0]["node"], &offers[1]["node"]), (&1.into(), &2.into()));
    assert_eq!(offers[0]["cluster_id"], offers[1]["cluster_id"]);
    assert_eq!(offers[0]["settings"], offers[1]["settings"]);
    let begin: Value = serde_json::from_str(&one.got()[2].body).expect("JSON");
    assert_eq!(begin["members"][1]["peer_addr"], "p:2");
    assert!(!plan.exists(), "the secret does not lie about");
    // It has nothing that an older build wrote: it begins at the newest schema version.
    assert!(one.got()[5].line.starts_with("POST /admin/v1/cluster/upgrade"), "{:?}", one.got());
}

#[test]
fn cluster_init_never_touches_a_node_of_another_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = dir.path().join("plan.json").display().to_string();
    let empty = Scripted::start(vec![json(200, r#"{"nodes":[],"shards":[]}"#)]);
    let taken = Scripted::start(vec![json(200, r#"{"cluster_id":"c","nodes":[],"shards":[]}"#)]);
    let urls = format!("{},{}", empty.url(), taken.url());
    let output = holdfast(&urls, &["cluster", "init", "--nodes", &urls, "--plan", &plan]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("belong to a cluster already"), "{}", stderr(&output));
    assert!(empty.got().iter().chain(&taken.got()).all(|got| got.line.starts_with("GET ")));
}

#[test]
fn a_batch_exits_by_its_worst_result() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("operations.json");
    std::fs::write(&file, r#"{"operations":[]}"#).expect("written");
    let file = file.display().to_string();
    let granted = format!(r#"{{"status":201,"hold":{}}}"#, hold("hld_1", "held"));
    let refused = r#"{"status":409,"problem":{"type":"/problems/sold-out","status":409}}"#;
    let unknown = r#"{"status":504,"problem":{"type":"/problems/outcome-unknown","status":504}}"#;
    for (results, expected) in [
        (granted.clone(), 0),
        (format!("{granted},{refused}"), 1),
        (format!("{granted},{refused},{unknown}"), 3),
    ] {
        let body = format!(r#"{{"results":[{results}]}}"#);
        let server = Scripted::start(vec![json(200, &body)]);
        let output = holdfast(&server.url(), &["hold", "batch", &file, "--json"]);
        assert_eq!(code(&output), expected, "{}", stderr(&output));
        let first = stdout(&output).lines().next().expect("the results").to_owned();
        assert!(first.starts_with(r#"{"results":"#), "{first}");
    }
}
