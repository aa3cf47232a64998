//! Every operation on the nodes, cut off at every one of its steps: the node that drives it and the
//! operator who follows it are killed there, and the operation goes on to its end.
//!
//! A step lasts a tenth of a second at least, and is looked for more often than that. One that was
//! over before it was seen is said; the others are cut where they stand.

mod cluster;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use cluster::{Buying, Fleet, Plan, SOON, command, holdfast, pass, seed};
use serde_json::Value;
use tokio::time::Instant;

/// The longest that an operation may take, cut off as often as it has steps.
const OPERATION_MAX: Duration = Duration::from_secs(120);
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
            let at = steps.iter().find(|step| step["state"] != "done");
            let at = at.and_then(|step| step["step"].as_str()).unwrap_or("end");
            return Some(at.to_owned());
        }
        assert!(Instant::now() < until, "nobody says how operation {operation} is");
        pass(LOOK_AGAIN).await;
    }
}

/// What was cut.
#[derive(Default)]
struct Cuts {
    cut: Vec<String>,
    missed: Vec<String>,
}

impl Cuts {
    /// Runs an operation to its end; at each of its steps, in their order, the node that drives it
    /// and the operator who follows it are killed. `joins` comes with the token when it is awaited.
    async fn run(
        &mut self,
        fleet: &mut Fleet,
        buying: &Buying,
        verb: &[&str],
        steps: &[&str],
        joins: Option<usize>,
    ) {
        let (mut operator, operation, mut token) = Operator::begins(fleet, verb);
        let (mut left, until) = (steps.iter().peekable(), Instant::now() + OPERATION_MAX);
        while let Some(at) = step_of(fleet, operation).await {
            assert!(Instant::now() < until, "{verb:?} is still at {at}");
            let named = |step: &str| format!("{} {step}", verb[0]);
            if let Some(place) = left.clone().position(|step| **step == at) {
                for _ in 0..place {
                    self.missed.extend(left.next().map(|step| named(step)));
                }
                left.next();
                operator.dies();
                let (driver, _) = fleet.leader_of_shard(0).await;
                fleet.kill(driver);
                println!("{verb:?} at {at}: node {driver} and the operator were killed");
                self.cut.push(named(&at));
                operator = Operator::waits(fleet, operation);
                buying.wait_grants(3).await;
                fleet.start_node(driver);
                fleet.wait_up(driver).await;
            } else if at == "await-machine"
                && let Some((id, token)) = joins.zip(token.take())
            {
                let by = *fleet.running().first().expect("a node runs");
                fleet.join(id, by, &token).await;
            }
            pass(LOOK_AGAIN).await;
        }
        self.missed.extend(left.map(|step| format!("{} {step}", verb[0])));
        operator.dies();
        // Whoever comes late is told that it is done, and who asks again that there is nothing.
        let wait = ["node", "wait", &operation.to_string(), "--json", "--url", &urls(fleet)];
        let last = holdfast(&wait);
        assert_eq!(last.code, Some(0), "{verb:?}: {}", last.words());
        let last: Value = serde_json::from_str(&last.stdout).expect("JSON");
        assert_eq!(last["state"], "done", "{last}");
        buying.wait_grants(5).await;
    }
}

#[tokio::test]
async fn operation_cut_off_at_any_step_on_either_side_goes_on_to_its_end_and_nothing_is_lost() {
    let seed = seed();
    let mut fleet = Fleet::start(Plan::new(3, 2).spares(2)).await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 4, seed);
    buying.wait_grants(20).await;
    let mut cuts = Cuts::default();
    let add = ["await-machine", "learn", "catch-up", "promote"];
    cuts.run(&mut fleet, &buying, &["add"], &add, Some(4)).await;
    fleet.wait_voters(&[1, 2, 3, 4]).await;
    cuts.run(&mut fleet, &buying, &["drain", "2"], &["hand-over"], None).await;
    assert_eq!(fleet.state_of(2).await, "drained");
    cuts.run(&mut fleet, &buying, &["undrain", "2"], &[], None).await;
    cuts.run(&mut fleet, &buying, &["demote", "4"], &["hand-over", "demote"], None).await;
    assert_eq!(fleet.state_of(4).await, "learner");
    cuts.run(&mut fleet, &buying, &["promote", "4"], &["catch-up", "promote"], None).await;
    fleet.wait_voters(&[1, 2, 3, 4]).await;
    let replace = ["await-machine", "learn", "catch-up", "promote", "forget", "tell"];
    cuts.run(&mut fleet, &buying, &["replace", "4"], &replace, Some(5)).await;
    fleet.says_why(4).await;
    fleet.kill(4);
    fleet.wait_voters(&[1, 2, 3, 5]).await;
    cuts.run(&mut fleet, &buying, &["remove", "5"], &["hand-over", "forget", "tell"], None).await;
    fleet.says_why(5).await;
    fleet.kill(5);
    fleet.wait_voters(&[1, 2, 3]).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}; longest {:?}", books.kept.len(), books.told, books.longest);
    assert!(books.open.is_empty(), "never answered: {:?}", books.open);
    books.verify(&fleet, "ticket").await;
    println!("cut: {:?}\nover before they were seen: {:?}", cuts.cut, cuts.missed);
    let all = cuts.cut.len() + cuts.missed.len();
    assert_eq!(all, 18, "every step of every operation");
    assert!(cuts.cut.len() >= 12, "too few steps were cut: {:?}", cuts.cut);
}
