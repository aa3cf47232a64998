//! Nodes of two schema versions in one cluster: it goes on selling while they are brought to the
//! newer one, writes that only when every node reads it, and an older one is refused afterwards.
//!
//! The older build is this one held back by `node.schema_max`: it announces, reads and writes
//! version 1 only, and stops where it meets the second.

mod cluster;

use cluster::{Buying, Fleet, Plan, SOON, holdfast, seed, wait_for};
use serde_json::{Value, json};

const UPGRADE: &str = "/admin/v1/cluster/upgrade";

/// Waits until every running node says that the cluster writes this version.
async fn wait_active(fleet: &Fleet, version: u64) {
    wait_for(&format!("the schema version is {version}"), SOON, async || {
        for id in fleet.running() {
            let told = fleet.caller(id).get("/admin/v1/cluster").await;
            let told = told.map_err(|lost| format!("{lost:?}"))?;
            if told.body["schema"]["active"] != json!(version) {
                return Err(format!("node {id}: {}", told.body["schema"]));
            }
        }
        Ok(())
    })
    .await;
}

async fn refused(fleet: &Fleet, path: &str, body: &Value, rule: &str) -> String {
    let answer = fleet.order("POST", path, body).await;
    assert_eq!((answer.status, answer.text_of("reason")), (409, rule), "{answer:?}");
    answer.text_of("detail").to_owned()
}

#[tokio::test]
async fn nodes_are_brought_to_a_new_version_one_by_one_under_load_and_it_is_written_at_the_end() {
    let seed = seed();
    let mut fleet = Fleet::prepare(Plan::new(3, 2).spares(1));
    for id in 1..=4 {
        fleet.set_on(id, "node.schema_max", 1);
    }
    fleet.unite().await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 4, seed);
    buying.wait_grants(50).await;
    // All are old: there is nothing to go on to, and what needs the new one is refused.
    let told = fleet.order("POST", UPGRADE, &json!({})).await;
    assert_eq!(told.status, 200, "{told:?}");
    assert!(told.text_of("done").contains("is 1, the newest that any node reads"), "{told:?}");
    let for_a_region = json!({"region": "eu"});
    for id in 1..=3 {
        let why = refused(&fleet, "/admin/v1/nodes", &for_a_region, "schema-version").await;
        assert!(why.contains("needs schema version 2") && why.contains("writes 1"), "{why}");
        // SIGTERM, the other binary, on again.
        fleet.terminate(id);
        assert!(fleet.wait_exit(id, SOON).await.success(), "{}", fleet.words(id));
        fleet.set_on(id, "node.schema_max", 2);
        fleet.start_node(id);
        fleet.wait_ready().await;
        buying.wait_grants(20).await;
        if id < 3 {
            let why = refused(&fleet, UPGRADE, &json!({}), "every-node-reads-it").await;
            let figures = format!("{id} of 3 nodes read schema version 2: needs 3");
            assert!(
                why.contains(&figures) && why.contains("reads schema versions 1 to 1"),
                "{why}"
            );
            wait_active(&fleet, 1).await;
        }
    }
    // A rehearsal changes nothing; the order does.
    let url = fleet.url(1);
    let plan = holdfast(&["cluster", "upgrade", "--dry-run", "--url", &url]);
    assert!(plan.words().contains("no way back"), "{}", plan.words());
    wait_active(&fleet, 1).await;
    let list = holdfast(&["node", "list", "--url", &url]);
    assert!(list.stdout.contains("all nodes that answer read 2"), "{}", list.words());
    let done = holdfast(&["cluster", "upgrade", "--url", &url]);
    assert_eq!(done.code, Some(0), "{}", done.words());
    assert!(done.stdout.contains("is 2 now, and was 1"), "{}", done.words());
    wait_active(&fleet, 2).await;
    buying.wait_grants(20).await;
    let status = holdfast(&["status", "--url", &url]);
    assert!(status.stdout.contains("schema version 2"), "{}", status.words());
    // Now an old machine is not let in, and of the new ones only that of the region.
    let answer = fleet.order("POST", "/admin/v1/nodes", &for_a_region).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let token = answer.body["token"].as_str().expect("a token").to_owned();
    let more = ["--join".to_owned(), fleet.url(1), "--token".to_owned(), token.clone()];
    for (set, words) in [
        (None, "schema version is 2, and this node reads 1 to 1"),
        (Some(("node.schema_max", "2")), "for a machine of region eu, and this one is of default"),
    ] {
        if let Some((key, value)) = set {
            fleet.set_on(4, key, value);
        }
        fleet.start_node_with(4, &more);
        let status = fleet.wait_exit(4, SOON).await;
        assert!(!status.success() && fleet.words(4).contains(words), "{}", fleet.words(4));
    }
    fleet.set_on(4, "node.region", "eu");
    fleet.join(4, 2, &token).await;
    fleet.done(answer.body["operation"]["id"].as_u64().expect("an id")).await;
    fleet.wait_voters(&[1, 2, 3, 4]).await;
    wait_active(&fleet, 2).await;
    // Nor does a node that goes back to the old build start.
    fleet.terminate(3);
    assert!(fleet.wait_exit(3, SOON).await.success());
    fleet.set_on(3, "node.schema_max", 1);
    let (status, words) = fleet.start_refused(3).await;
    assert!(!status.success(), "{words}");
    assert!(words.contains("schema version is 2, and this node reads 1 to 1"), "{words}");
    let doctor = holdfast(&["doctor", &fleet.data_dir(3).display().to_string()]);
    assert!(doctor.stdout.contains("schema 2"), "{}", doctor.words());
    fleet.set_on(3, "node.schema_max", 2);
    fleet.start_node(3);
    fleet.wait_ready().await;
    let books = buying.finish().await;
    println!("{} holds; {:?}; longest {:?}", books.kept.len(), books.told, books.longest);
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
}

/// The log and the pages say it too: a node that went back before it had written the version down
/// stops where it meets it.
#[tokio::test]
async fn older_build_stops_at_the_entry_and_at_the_page_of_the_new_version() {
    let mut fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("ticket", 1_000).await;
    let done = fleet.order("POST", UPGRADE, &json!({})).await;
    assert_eq!(done.status, 200, "{done:?}");
    wait_active(&fleet, 2).await;
    let again = fleet.order("POST", UPGRADE, &json!({})).await;
    assert!(again.text_of("done").contains("is 2, the newest"), "{again:?}");
    for checkpoint in [false, true] {
        if checkpoint {
            fleet.set_on(3, "checkpoint.interval_ms", 100);
            fleet.start_node(3);
            fleet.wait_ready().await;
            wait_for("a checkpoint", SOON, async || {
                fleet.insist(1, "/v1/items/ticket/holds", "one", &json!({"quantity": 1})).await;
                let view = fleet.caller(3).get("/admin/v1/cluster").await;
                let view = view.map_err(|lost| format!("{lost:?}"))?.body;
                let age = &view["shards"][0]["checkpoint_age_ms"];
                if age.is_u64() { Ok(()) } else { Err(view["shards"].to_string()) }
            })
            .await;
        }
        let file = fleet.data_dir(3).join("schema");
        let there = async || file.exists().then_some(()).ok_or("not there".to_owned());
        wait_for("the version is written down", SOON, there).await;
        fleet.kill(3);
        std::fs::remove_file(&file).expect("it is there");
        fleet.set_on(3, "node.schema_max", 1);
        if checkpoint {
            let (status, words) = fleet.start_refused(3).await;
            assert!(!status.success(), "{words}");
            assert!(words.contains("schema version is 2, and this node reads 1 to 1"), "{words}");
        } else {
            fleet.start_node(3);
            fleet.wait_up(3).await;
            let why = fleet.says_why(3).await;
            assert!(why.contains("schema version is 2, and this node reads 1 to 1"), "{why}");
            fleet.kill(3);
            // It has written it down now.
            let (status, words) = fleet.start_refused(3).await;
            assert!(!status.success(), "{words}");
        }
        fleet.set_on(3, "node.schema_max", 2);
    }
    fleet.start_node(3);
    fleet.wait_ready().await;
    fleet.settle().await;
}
