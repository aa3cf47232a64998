//! The shipped binary against the real HTTP room and a real ledger (one shard, no Raft): what the
//! verbs send is understood, and what they read is what is answered.

use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use holdfast::http::{Connections, Front, Limits, router, serve};
use holdfast::ledger::{
    BatchOf, CommitPoint, LeaderId, Ledger, LogIndex, NodeId, Settings, ShardId, UnixMs,
};
use holdfast::shard::{
    Adopt, Adopted, Desk, MemberSpec, NodeStatus, Outcome, Question, Reply, Request, ShardStatus,
};
use serde_json::Value;

/// 2026-05-01T09:30:00Z
const START: UnixMs = UnixMs(1_777_627_800_000);
const LEADER: LeaderId = LeaderId { term: 1, node: NodeId(1) };

struct LedgerDesk(Mutex<(Ledger, u64)>);

impl LedgerDesk {
    fn reply(&self, request: Request) -> Reply {
        let mut state = self.0.lock().expect("nobody panics while it answers");
        let outcome = match request.question {
            Question::Command(command) => {
                state.1 += 1;
                let index = LogIndex(state.1);
                let batch = BatchOf { stamp: START, commands: vec![command] };
                Outcome::Answered(state.0.apply(index, &batch).remove(0))
            }
            Question::Query { query, .. } => Outcome::Found(state.0.query(&query)),
        };
        let commit = CommitPoint { shard: ShardId(0), leader: LEADER, index: LogIndex(state.1) };
        Reply { outcome, commit: Some(commit), leader: Some(LEADER.node) }
    }
}

impl Desk for LedgerDesk {
    fn ask(&self, request: Request) -> BoxFuture<'static, Reply> {
        Box::pin(std::future::ready(self.reply(request)))
    }

    fn ask_many(&self, requests: Vec<Request>) -> BoxFuture<'static, Vec<Reply>> {
        let replies = requests.into_iter().map(|request| self.reply(request)).collect();
        Box::pin(std::future::ready(replies))
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
            cluster_id: Some("c0".repeat(16)),
            node: LEADER.node,
            shards: vec![ShardStatus { leader: Some(LEADER), ..ShardStatus::default() }],
            ..NodeStatus::default()
        }
    }

    fn adopt(&self, _: Adopt) -> BoxFuture<'static, Result<Adopted, String>> {
        Box::pin(std::future::ready(Err("not here".to_owned())))
    }

    fn begin(&self, _: Vec<MemberSpec>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(std::future::ready(Err("not here".to_owned())))
    }
}

/// Serves a fresh ledger and returns its URL.
fn shop() -> String {
    let settings = Settings {
        shards: 1,
        tag_key: [7; 16],
        slots: 16,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 86_400_000,
    };
    let ledger = Ledger::new(ShardId(0), settings);
    let front = Front::new(Arc::new(LedgerDesk(Mutex::new((ledger, 0)))), Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("an event loop");
        let (limits, connections) = (Limits::default(), Connections::default());
        let served = serve(listener, router(&front), limits, connections, std::future::pending());
        runtime.block_on(served)
    });
    url
}

fn holdfast(url: &str, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .env_remove("HOLDFAST_TENANT")
        .env("HOLDFAST_URL", url)
        .args(line.split(' '))
        .output()
        .expect("the binary runs")
}

/// Runs a line that must exit so, and returns its JSON.
fn json(url: &str, line: &str, code: i32) -> Value {
    let output = holdfast(url, &format!("{line} --json"));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}: {words}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = text.lines().next().unwrap_or_default();
    serde_json::from_str(first).unwrap_or_else(|e| panic!("{line}: {e}: {text} {words}"))
}

#[test]
fn an_item_lives_and_ends_through_the_verbs() {
    let url = shop();
    json(&url, "item create x --total 3 --limit-per-buyer 2 --ttl-ms 60000", 0);
    let hold = json(&url, "hold place x --quantity 2 --buyer ann --key k-1", 0);
    let id = hold["id"].as_str().expect("an id").to_owned();
    assert_eq!(json(&url, "hold place x --quantity 2 --buyer ann --key k-1", 0)["id"], hold["id"]);
    let refused = json(&url, "hold place x --buyer ann", 1);
    assert_eq!(refused["problem"]["type"], "/problems/buyer-limit");
    assert_eq!(json(&url, "hold receipt k-1 --item x --buyer ann", 0)["state"], "committed");
    assert_eq!(json(&url, &format!("hold extend {id} --ttl-ms 90000"), 0)["extends_left"], 0);
    assert_eq!(json(&url, &format!("hold confirm {id} --quantity 1"), 0)["state"], "sold");
    assert_eq!(json(&url, "item availability x --linearizable --buckets", 0)["available"], 2);
    assert_eq!(json(&url, "hold list --item x --state sold", 0)["holds"][0]["id"], id.as_str());
    assert_eq!(json(&url, &format!("hold get {id}"), 0)["sold"], 1);
    json(&url, &format!("hold return {id}"), 0);
    assert_eq!(json(&url, "hold void k-9 --item x --buyer bob", 0)["state"], "voided");
    let voided = json(&url, "hold place x --buyer bob --key k-9", 1);
    assert_eq!(voided["problem"]["type"], "/problems/key-voided");
    json(&url, "item adjust x --delta 7 --reason more", 0);
    json(&url, "item set x --max-extends 3", 0);
    let item = json(&url, "item get x", 0);
    assert_eq!((&item["total"], &item["hold"]["ttl_ms"]), (&10.into(), &60_000.into()));
    assert_eq!((&item["limit_per_buyer"], &item["hold"]["max_extends"]), (&2.into(), &3.into()));
    let adjust = format!("item adjust x --set-total 12 --if-match {}", item["revision"]);
    json(&url, &adjust, 0);
    json(&url, &adjust, 1);
    json(&url, "item pause x", 0);
    json(&url, "item resume x", 0);
    assert_eq!(json(&url, "item list", 0)["items"][0]["item"], "x");
    assert_eq!(json(&url, "item audit x", 0)["conserved"], true);
    assert_eq!(json(&url, "audit", 0)["items"][0]["total"], 12);
    assert_eq!(json(&url, "status", 0)["shards"][0]["leader"], 1);
    json(&url, "item close x", 0);
    json(&url, "item delete x", 0);
    json(&url, "item get x", 1);
}

#[test]
fn every_mode_of_the_bench_passes_its_own_verdict() {
    let url = shop();
    for (mode, decided) in [
        ("unary --connections 4", "granted"),
        ("batch --batch 50 --connections 2", "granted"),
        ("life-cycle --connections 3", "granted"),
        ("sold-out --connections 2 --compare-empty", "refused"),
    ] {
        let told = json(&url, &format!("bench {mode} --duration 0.3 --warm-up 0.1"), 0);
        assert!(told["decisions"].as_u64() > Some(0), "{mode}: {told}");
        assert_eq!(told["audit"]["conserved"], true, "{mode}");
        if decided == "granted" {
            assert!(told["granted"].as_u64() > Some(0), "{mode}: {told}");
            assert!(told["holds_looked_up"].as_u64() > Some(0), "{mode}: {told}");
        } else {
            assert!(told["refused"]["sold-out"].as_u64() > Some(0), "{mode}: {told}");
            assert!(told["of_empty_handler"].as_f64() > Some(0.0), "{mode}: {told}");
        }
        assert_eq!(told["unknown"], 0, "{mode}");
    }
}
