//! Every operation on the nodes, cut off at every one of its steps: the node that drives it and the
//! operator who follows it are killed there, and the operation goes on to its end.
//!
//! A step lasts a tenth of a second at least, and is looked for more often than that. One that was
//! over before it was seen is cut in another round.

mod cluster;

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use cluster::{Buying, Fleet, Plan, SOON, command, holdfast, pass, seed};
use serde_json::Value;
use tokio::time::Instant;

/// The longest that an operation may take, cut off as often as it has steps.
const OPERATION_MAX: Duration = Duration::from_secs(120);
/// Rounds of all operations in which every step must have been seen. Six are needed.
const ROUNDS_MAX: usize = 20;
/// How often its step is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// An operator at a terminal, who dies in the middle of it.
struct Operator {
    child: Option<Child>,
    /// He goes on reading.
    _words: Option<BufReader<ChildStderr>>,
}

impl Operator {
    /// Gives an order and waits until it has begun; returns the operation and the token.
    fn begins(fleet: &Fleet, verb: &[&str]) -> (Operator, u64, Option<String>) {
        let urls = urls(fleet);
        let arguments = [&["node"], verb, &["--url", urls.as_str()]].concat();
        let mut child = command(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut reader = BufReader::new(child.stderr.take().expect("piped"));
        let mut all = String::new();
        while !all.contains("has begun") && reader.read_line(&mut all).expect("text") > 0 {}
        let begun = all.lines().find(|line| line.contains("has begun"));
        let begun = begun.and_then(|line| line.split("operation ").nth(1));
        let id = begun.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let token = all.split_whitespace().find(|word| word.starts_with("hfj-"));
        let token = token.map(str::to_owned);
        let operator = Operator { child: Some(child), _words: Some(reader) };
        (operator, id.unwrap_or_else(|| panic!("{verb:?}: {all}")), token)
    }

    /// Another one looks at it.
    fn waits(fleet: &Fleet, operation: u64) -> Operator {
        let (urls, operation) = (urls(fleet), operation.to_string());
        let child = command(&["node", "wait", &operation, "--url", &urls])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        Operator { child: Some(child), _words: None }
    }

    fn dies(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child of ours");
            child.wait().expect("a child of ours");
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.dies();
    }
}

fn urls(fleet: &Fleet) -> String {
    fleet.running().into_iter().map(|id| fleet.url(id)).collect::<Vec<_>>().join(",")
}

/// The step at which an operation is; `None` when it has ended.
async fn step_of(fleet: &Fleet, operation: u64) -> Option<String> {
    let until = Instant::now() + SOON;
    let path = format!("/admin/v1/operations/{operation}");
    loop {
        for id in fleet.running() {
            let Ok(told) = fleet.caller(id).get(&path).await else { continue };
            if told.status != 200 {
                continue;
            }
            assert_ne!(told.body["state"], "cancelled", "{}", told.text);
            if told.body["state"] == "done" {
                return None;
            }
            let steps = told.body["steps"].as_array().cloned().unwrap_or_default();
            let at = steps.iter().find(|step| step["state"] == "running");
            let at = at.and_then(|step| step["step"].as_str()).unwrap_or("end");
            return Some(at.to_owned());
        }
        assert!(Instant::now() < until, "nobody says how operation {operation} is");
        pass(LOOK_AGAIN).await;
    }
}

/// The operations and the steps at which each is still to be cut, in their order.
struct Table(BTreeMap<&'static str, VecDeque<&'static str>>);

impl Table {
    fn new() -> Table {
        let steps: [(&str, &[&str]); 6] = [
            ("add", &["await-machine", "learn", "catch-up", "promote"]),
            ("demote", &["hand-over", "demote"]),
            ("promote", &["catch-up", "promote"]),
            ("drain", &["hand-over"]),
            ("replace", &["await-machine", "learn", "catch-up", "promote", "forget", "tell"]),
            ("remove", &["hand-over", "forget", "tell"]),
        ];
        Table(
            steps
                .into_iter()
                .map(|(verb, steps)| (verb, steps.iter().copied().collect()))
                .collect(),
        )
    }

    fn has(&self, verb: &str) -> bool {
        self.0.get(verb).is_some_and(|steps| !steps.is_empty())
    }

    fn is_done(&self) -> bool {
        self.0.values().all(VecDeque::is_empty)
    }
}

/// One cluster, and what is still to be cut in it.
struct Drill {
    fleet: Fleet,
    buying: Buying,
    table: Table,
    cut: usize,
}

impl Drill {
    /// Runs an operation to its end. When the step is seen at which it is to be cut next, the node
    /// that drives it and the operator who follows it are killed. Returns the operation's node.
    async fn run(&mut self, verb: &'static str, node: Option<u64>, joins: Option<usize>) -> u64 {
        let node = node.map(|node| node.to_string());
        let words: Vec<&str> = std::iter::once(verb).chain(node.as_deref()).collect();
        let (mut operator, operation, mut token) = Operator::begins(&self.fleet, &words);
        let due = self.table.0.get(verb).and_then(|steps| steps.front().copied());
        let (mut is_cut, until) = (false, Instant::now() + OPERATION_MAX);
        while let Some(at) = step_of(&self.fleet, operation).await {
            assert!(Instant::now() < until, "{words:?} is still at {at}");
            if !is_cut && due == Some(at.as_str()) {
                is_cut = true;
                operator.dies();
                let (driver, _) = self.fleet.leader_of_shard(0).await;
                self.fleet.kill(driver);
                println!("{words:?} at {at}: its driver and its operator were killed");
                operator = Operator::waits(&self.fleet, operation);
                self.buying.wait_grants(1).await;
                self.fleet.start_node(driver);
                self.fleet.wait_up(driver).await;
            } else if at == "await-machine"
                && let Some((place, token)) = joins.zip(token.take())
            {
                let by = *self.fleet.running().first().expect("a node runs");
                self.fleet.join(place, by, &token).await;
            }
            pass(LOOK_AGAIN).await;
        }
        operator.dies();
        if is_cut {
            self.cut += 1;
            self.table.0.get_mut(verb).and_then(VecDeque::pop_front);
        } else if let Some(due) = due {
            println!("{words:?}: {due} was over before it was seen; once more");
        }
        // Whoever comes late is told that it is done.
        let (id, urls) = (operation.to_string(), urls(&self.fleet));
        let last = holdfast(&["node", "wait", &id, "--json", "--url", &urls]);
        assert_eq!(last.code, Some(0), "{words:?}: {}", last.words());
        let last: Value = serde_json::from_str(&last.stdout).expect("JSON");
        assert_eq!(last["state"], "done", "{last}");
        self.fleet.wait_ready_but_removed().await;
        self.buying.wait_grants(2).await;
        last["node"].as_u64().expect("a node")
    }

    /// The machine of a node that was removed: it says so, and is emptied for another one.
    async fn empty(&mut self, place: usize) {
        let why = self.fleet.says_why(place).await;
        assert!(why.contains("was removed from the cluster"), "{why}");
        self.fleet.kill(place);
        std::fs::remove_dir_all(self.fleet.data_dir(place)).expect("a directory");
    }
}

#[tokio::test]
async fn operation_cut_off_at_any_step_on_either_side_goes_on_to_its_end_and_nothing_is_lost() {
    let seed = seed();
    let fleet = Fleet::start(Plan::new(3, 2).spares(2)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 4, seed);
    buying.wait_grants(20).await;
    let mut drill = Drill { fleet, buying, table: Table::new(), cut: 0 };
    for round in 0..ROUNDS_MAX {
        if drill.table.is_done() {
            break;
        }
        println!("round {round}");
        let (here, there) = if round % 2 == 0 { (4, 5) } else { (5, 4) };
        let mut node = drill.run("add", None, Some(here)).await;
        if drill.table.has("demote") || drill.table.has("promote") {
            drill.run("demote", Some(node), None).await;
            drill.run("promote", Some(node), None).await;
        }
        if drill.table.has("drain") {
            drill.run("drain", Some(2), None).await;
            drill.run("undrain", Some(2), None).await;
        }
        let mut place = here;
        if drill.table.has("replace") {
            node = drill.run("replace", Some(node), Some(there)).await;
            drill.empty(here).await;
            place = there;
        }
        drill.run("remove", Some(node), None).await;
        drill.empty(place).await;
        drill.fleet.wait_voters(&[1, 2, 3]).await;
    }
    let Drill { fleet, buying, table, cut } = drill;
    let books = buying.finish().await;
    println!("{cut} cuts; {} holds; {:?}; {:?}", books.kept.len(), books.told, books.longest);
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
    assert!(table.is_done(), "never cut in {ROUNDS_MAX} rounds: {:?}", table.0);
    assert_eq!(cut, 18, "every step of every operation");
}
