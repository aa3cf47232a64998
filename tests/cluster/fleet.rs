//! The processes of one cluster: started, killed, stopped in their tracks, continued, asked to end.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::command::{command, holdfast};
use super::turn::Turn;
use super::view::{Digests, NodeView, ShardView};
use super::wire::{Answer, Caller, Lost, Sent};
use super::{Finished, Metrics, SOON, wait_for};

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) shards: u16,
    /// Of the nodes, the last that are there for later: `start` starts and founds the others.
    pub(crate) spares: usize,
    /// More configuration of every node.
    pub(crate) set: Vec<(String, String)>,
}

impl Plan {
    pub(crate) fn new(nodes: usize, shards: u16) -> Plan {
        // Small files: these nodes live for seconds.
        let set = [("log.segment_bytes", "4194304"), ("log.ballast_bytes", "0")];
        let set = set.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Plan { nodes, shards, spares: 0, set: set.into() }
    }

    /// Chooses places for more nodes, which are not started.
    pub(crate) fn spares(mut self, spares: usize) -> Plan {
        self.nodes += spares;
        self.spares = spares;
        self
    }

    /// Sets one more key on every node.
    pub(crate) fn set(mut self, key: &str, value: impl ToString) -> Plan {
        self.set.push((key.to_owned(), value.to_string()));
        self
    }

    /// Timers with room for a machine that is busy with other things, for tests that say nothing
    /// about how fast a failover is.
    pub(crate) fn calm(self) -> Plan {
        self.set("raft.heartbeat_ms", 100)
            .set("raft.election_min_ms", 6_000)
            .set("raft.election_max_ms", 8_000)
            .set("raft.pause_after_ms", 5_000)
    }
}

/// One node: where it is, and its process while it runs.
#[derive(Debug)]
struct Place {
    http: SocketAddr,
    peer: SocketAddr,
    dir: PathBuf,
    child: Option<Child>,
    /// Configuration of this node alone.
    set: Vec<(String, String)>,
    /// Environment of this node alone.
    environment: Vec<(String, String)>,
}

/// A cluster of processes. All end when it is dropped.
#[derive(Debug)]
pub(crate) struct Fleet {
    places: Vec<Place>,
    plan: Plan,
    dir: tempfile::TempDir,
    _turn: Turn,
}

/// A loopback address that no other test uses: a port that is free here stays free.
fn own_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let mixed = std::process::id().wrapping_mul(64).wrapping_add(next);
    let [_, b, c, d] = mixed.to_be_bytes();
    let own = IpAddr::V4(Ipv4Addr::new(127, b, c, d.clamp(2, 250)));
    // Where only 127.0.0.1 is the loopback, that has to do.
    match TcpListener::bind((own, 0)) {
        Ok(_) => own,
        Err(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
    }
}

impl Fleet {
    /// Starts nodes and makes a cluster of them with `holdfast cluster init`.
    pub(crate) async fn start(plan: Plan) -> Fleet {
        let mut fleet = Fleet::prepare(plan);
        fleet.unite().await;
        fleet
    }

    /// Runs `holdfast cluster init`, again when it says that somebody did not answer in time.
    pub(crate) async fn found(&self) {
        wait_for("cluster init", SOON, async || {
            let init = self.init("plan.json");
            match init.code {
                Some(0) => Ok(()),
                Some(3) => Err(init.words()),
                code => panic!("cluster init: {code:?} {}", init.words()),
            }
        })
        .await;
    }

    /// Starts nodes that belong to no cluster yet.
    pub(crate) async fn start_empty(plan: Plan) -> Fleet {
        let mut fleet = Fleet::prepare(plan);
        fleet.start_founders().await;
        fleet
    }

    async fn start_founders(&mut self) {
        for id in self.founders() {
            self.start_node(id);
        }
        for id in self.founders() {
            self.wait_up(id).await;
        }
    }

    /// Starts the nodes that were prepared, makes a cluster of them and waits until all serve.
    pub(crate) async fn unite(&mut self) {
        self.start_founders().await;
        self.found().await;
        self.wait_ready().await;
    }

    /// Chooses directories and ports, and starts nothing.
    pub(crate) fn prepare(plan: Plan) -> Fleet {
        let turn = Turn::wait();
        let dir = tempfile::Builder::new().prefix("holdfast-cluster-").tempdir();
        let dir = dir.expect("a temporary directory");
        let own = own_address();
        // All are open until all are chosen, so that no two are the same.
        let open = || TcpListener::bind((own, 0)).expect("a free port");
        let listeners: Vec<_> = (0..plan.nodes).map(|_| (open(), open())).collect();
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound");
        let places = listeners.iter().zip(1..).map(|((http, peer), id)| Place {
            http: address(http),
            peer: address(peer),
            dir: dir.path().join(format!("n{id}")),
            child: None,
            set: Vec::new(),
            environment: Vec::new(),
        });
        Fleet { places: places.collect(), plan, dir, _turn: turn }
    }

    pub(crate) fn ids(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.places.len()
    }

    /// The ids of the nodes that make the cluster.
    fn founders(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.places.len() - self.plan.spares
    }

    /// The ids of the nodes that have a process.
    pub(crate) fn running(&self) -> Vec<usize> {
        self.ids().filter(|id| self.places[id - 1].child.is_some()).collect()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn data_dir(&self, id: usize) -> PathBuf {
        self.places[id - 1].dir.join("data")
    }

    pub(crate) fn http(&self, id: usize) -> SocketAddr {
        self.places[id - 1].http
    }

    pub(crate) fn peer(&self, id: usize) -> SocketAddr {
        self.places[id - 1].peer
    }

    pub(crate) fn all_http(&self) -> Vec<SocketAddr> {
        self.places.iter().map(|place| place.http).collect()
    }

    pub(crate) fn url(&self, id: usize) -> String {
        format!("http://{}", self.http(id))
    }

    /// Sets a key of one node, for its next start.
    pub(crate) fn set_on(&mut self, id: usize, key: &str, value: impl ToString) {
        self.places[id - 1].set.push((key.to_owned(), value.to_string()));
    }

    /// Sets a variable of one node's environment, for its next start.
    pub(crate) fn environment_on(&mut self, id: usize, name: &str, value: impl ToString) {
        self.places[id - 1].environment.push((name.to_owned(), value.to_string()));
    }

    /// Gives a node other addresses, for its next start.
    pub(crate) fn move_node(&mut self, id: usize) {
        let own = self.places[id - 1].http.ip();
        let open = || TcpListener::bind((own, 0)).expect("a free port");
        let (http, peer) = (open(), open());
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound");
        self.places[id - 1].http = address(&http);
        self.places[id - 1].peer = address(&peer);
    }

    pub(crate) fn caller(&self, id: usize) -> Caller {
        Caller::new(self.http(id))
    }

    /// Runs `holdfast cluster init` over all nodes, with a plan file of this name.
    pub(crate) fn init(&self, plan_file: &str) -> Finished {
        let urls: Vec<_> = self.founders().map(|id| self.url(id)).collect();
        let plan = self.dir().join(plan_file).display().to_string();
        let shards = self.plan.shards.to_string();
        let nodes = urls.join(",");
        holdfast(&["cluster", "init", "--nodes", &nodes, "--shards", &shards, "--plan", &plan])
    }

    /// The command line that runs one node.
    fn serve_arguments(&self, id: usize) -> Vec<String> {
        let place = &self.places[id - 1];
        let mut arguments = vec!["serve".to_owned()];
        let mut set = vec![
            ("cluster.shards".to_owned(), self.plan.shards.to_string()),
            ("node.data_dir".to_owned(), self.data_dir(id).display().to_string()),
            ("http.listen".to_owned(), place.http.to_string()),
            ("peer.listen".to_owned(), place.peer.to_string()),
        ];
        set.extend(self.plan.set.iter().chain(&place.set).cloned());
        for (key, value) in set {
            arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
        }
        arguments
    }

    /// Starts one node's process.
    pub(crate) fn start_node(&mut self, id: usize) {
        self.start_node_with(id, &[]);
    }

    /// Starts one node's process with more on its command line.
    pub(crate) fn start_node_with(&mut self, id: usize, more: &[String]) {
        let mut arguments = self.serve_arguments(id);
        arguments.extend_from_slice(more);
        let place = &mut self.places[id - 1];
        assert!(place.child.is_none(), "node {id} runs already");
        fs::create_dir_all(&place.dir).expect("a directory for a node");
        let log = File::options().create(true).append(true).open(place.dir.join("node.log"));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let child = command(&arguments)
            .arg("--stop-with-stdin")
            .envs(place.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log.expect("a file for a node's words"))
            .process_group(0)
            .spawn()
            .expect("the binary starts");
        place.child = Some(child);
    }

    /// Runs one node to its end: for a node that must not start.
    pub(crate) async fn start_refused(&mut self, id: usize) -> (ExitStatus, String) {
        let before = self.words(id).len();
        self.start_node(id);
        let status = self.wait_exit(id, SOON).await;
        (status, self.words(id)[before..].to_owned())
    }

    /// What a node has said on stderr since its first start.
    pub(crate) fn words(&self, id: usize) -> String {
        let file = self.places[id - 1].dir.join("node.log");
        let bytes = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until a node answers at all.
    pub(crate) async fn wait_up(&mut self, id: usize) {
        let deadline = Instant::now() + SOON;
        loop {
            let up = self.caller(id).get("/livez").await;
            if up.is_ok() {
                return;
            }
            let child = self.places[id - 1].child.as_mut().expect("it was started");
            let ended = child.try_wait().expect("a child of ours");
            let words = self.words(id);
            assert!(ended.is_none(), "node {id} ended ({ended:?}): {words}");
            assert!(Instant::now() < deadline, "node {id} is not up ({up:?}): {words}");
            super::pass(super::LOOK_AGAIN).await;
        }
    }

    /// Waits until every running node says that it is ready.
    pub(crate) async fn wait_ready(&mut self) {
        for id in self.running() {
            self.wait_up(id).await;
        }
        for id in self.running() {
            wait_for(&format!("node {id} is ready"), SOON, async || {
                match self.caller(id).get("/readyz").await {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    Ok(answer) => Err(answer.text),
                    Err(lost) => Err(format!("{lost:?}")),
                }
            })
            .await;
        }
    }

    fn pid(&self, id: usize) -> Pid {
        let child = self.places[id - 1].child.as_ref();
        Pid::from_child(child.unwrap_or_else(|| panic!("node {id} does not run")))
    }

    /// Kills a node with SIGKILL.
    pub(crate) fn kill(&mut self, id: usize) {
        let mut child = self.places[id - 1].child.take().expect("it runs");
        child.kill().expect("a child of ours");
        child.wait().expect("a child of ours");
    }

    /// Kills several at once: none is waited for before all are killed.
    pub(crate) fn kill_all(&mut self, ids: &[usize]) {
        for id in ids {
            kill_process(self.pid(*id), Signal::KILL).expect("a child of ours");
        }
        for id in ids {
            self.kill(*id);
        }
    }

    /// Stops a node in its tracks, as a long pause of its machine would.
    pub(crate) fn freeze(&self, id: usize) {
        kill_process(self.pid(id), Signal::STOP).expect("a child of ours");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self, id: usize) {
        kill_process(self.pid(id), Signal::CONT).expect("a child of ours");
    }

    /// Tells a node to end, with SIGTERM.
    pub(crate) fn terminate(&self, id: usize) {
        kill_process(self.pid(id), Signal::TERM).expect("a child of ours");
    }

    /// Waits for the end of a node's process.
    pub(crate) async fn wait_exit(&mut self, id: usize, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            let child = self.places[id - 1].child.as_mut().expect("it was started");
            if let Some(status) = child.try_wait().expect("a child of ours") {
                self.places[id - 1].child = None;
                return status;
            }
            let late = Instant::now() >= deadline;
            assert!(!late, "node {id} has not ended within {within:?}: {}", self.words(id));
            super::pass(super::LOOK_AGAIN).await;
        }
    }

    /// A node's view of the cluster.
    pub(crate) async fn view(&self, id: usize) -> Result<NodeView, String> {
        let answer = self.caller(id).get("/admin/v1/cluster").await;
        let answer = answer.map_err(|lost| format!("node {id}: {lost:?}"))?;
        serde_json::from_value(answer.body).map_err(|error| format!("node {id}: {error}"))
    }

    /// Finds the node that leads a shard, by its own word, and its view of it.
    pub(crate) async fn leader_of_shard(&self, shard: u16) -> (usize, ShardView) {
        wait_for(&format!("somebody leads shard {shard}"), SOON, async || {
            let mut leading = None;
            for id in self.running() {
                let Ok(view) = self.view(id).await else { continue };
                let own = view.shards.into_iter().find(|own| own.shard == shard);
                if let Some(own) = own.filter(|own| own.role == "leader" && own.paused.is_none()) {
                    leading = Some((id, own));
                }
            }
            leading.ok_or_else(|| "nobody".to_owned())
        })
        .await
    }

    /// Finds the node that leads an item's home shard.
    pub(crate) async fn leader_of(&self, item: &str) -> usize {
        let shard = self.shard_of(item).await;
        self.leader_of_shard(shard).await.0
    }

    /// Finds an item's home shard.
    pub(crate) async fn shard_of(&self, item: &str) -> u16 {
        let path = format!("/v1/items/{item}?consistency=local");
        wait_for(&format!("the shard of {item}"), SOON, async || {
            for id in self.running() {
                if let Ok(answer) = self.caller(id).get(&path).await
                    && let Some(shard) = answer.body["layout"]["home_shard"].as_u64()
                {
                    return u16::try_from(shard).map_err(|error| error.to_string());
                }
            }
            Err("no node knows it".to_owned())
        })
        .await
    }

    /// The running nodes but one.
    pub(crate) fn others(&self, id: usize) -> Vec<usize> {
        self.running().into_iter().filter(|other| *other != id).collect()
    }

    /// A node's metrics.
    pub(crate) async fn metrics(&self, id: usize) -> Metrics {
        let answer = self.caller(id).get("/metrics").await.expect("a node that answers");
        assert_eq!(answer.status, 200, "{}", answer.text);
        Metrics(answer.text)
    }

    /// Makes an item, and waits until it is there: the first calls may meet an election.
    pub(crate) async fn put_item(&self, item: &str, body: &Value) {
        let path = format!("/v1/items/{item}");
        let headers = [("Idempotency-Key", "made-by-the-test")];
        wait_for(&format!("{item} is made"), SOON, async || {
            let id = *self.running().first().expect("a node that runs");
            let made = self.caller(id).send("PUT", &path, &headers, Some(body)).await;
            match made {
                Ok(answer) if answer.status == 200 || answer.status == 201 => Ok(()),
                Ok(answer) if answer.status < 500 => panic!("{item}: {answer:?}"),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Makes an item of so many units, with holds that outlive the test.
    pub(crate) async fn put_units(&self, item: &str, total: u64) {
        self.put_item(item, &json!({"total": total, "hold": {"ttl_ms": 600_000}})).await;
    }

    /// Asks one node, always with the same key, until there is a definite answer: a machine that is
    /// busy with other things may cost a shard its quorum for a moment.
    pub(crate) async fn insist(&self, id: usize, path: &str, key: &str, body: &Value) -> Answer {
        let within = Duration::from_millis(1_000);
        wait_for(&format!("{path} is answered"), SOON, async || {
            let sent = self.caller(id).post_within(path, key, body, within).await;
            if try_again(&sent) { Err(format!("{sent:?}")) } else { Ok(sent.expect("definite")) }
        })
        .await
    }

    /// Places many holds in one batch, again until every one of them is there.
    pub(crate) async fn place_batch(&self, id: usize, operations: &[Value]) -> Vec<Value> {
        let body = json!({"operations": operations});
        wait_for("a batch is placed", SOON, async || {
            let sent = self.caller(id).post("/v1/holds:batch", "batch", &body).await;
            let answer = sent.map_err(|lost| format!("{lost:?}"))?;
            let results = answer.body["results"].as_array().cloned().unwrap_or_default();
            let is_open = |result: &&Value| {
                result["status"].as_u64() != Some(201) && result["status"].as_u64() != Some(200)
            };
            match results.iter().find(is_open) {
                Some(open) => Err(open.to_string()),
                None if results.len() == operations.len() => Ok(results),
                None => Err(answer.text),
            }
        })
        .await
    }

    /// Reads until the answer is neither "not now" nor "nobody".
    pub(crate) async fn read(&self, id: usize, path: &str) -> Answer {
        wait_for(path, SOON, async || match self.caller(id).get(path).await {
            Ok(answer) if answer.status < 500 => Ok(answer),
            other => Err(format!("{other:?}")),
        })
        .await
    }

    /// Waits until all running nodes have applied the same whole log, and holds their digests
    /// against each other.
    ///
    /// # Panics
    ///
    /// When two replicas at the same index differ.
    pub(crate) async fn settle(&self) {
        let running = self.running();
        wait_for("all nodes have applied everything", SOON, async || {
            let mut shards: Vec<Vec<ShardView>> = Vec::new();
            for id in &running {
                shards.push(self.view(*id).await?.shards);
            }
            for shard in 0..usize::from(self.plan.shards) {
                let views: Option<Vec<_>> = shards.iter().map(|all| all.get(shard)).collect();
                let views = views.ok_or_else(|| format!("shard {shard} is missing"))?;
                let leads = views.iter().any(|view| view.role == "leader");
                let first = views[0];
                let even = views.iter().all(|view| {
                    view.applied == view.last_log
                        && view.applied == first.applied
                        && view.term == first.term
                        && view.failed.is_none()
                        && view.paused.is_none()
                });
                if !leads || !even {
                    return Err(format!("{views:?}"));
                }
            }
            Ok(())
        })
        .await;
        self.digests_equal().await;
    }

    /// Waits until the replicas of every shard were seen at one index, and their digests were equal
    /// there.
    pub(crate) async fn digests_equal(&self) {
        let running = self.running();
        wait_for("all replicas at one index", SOON, async || {
            let mut all = Vec::new();
            for id in &running {
                let answer = self.caller(*id).get("/admin/v1/digest").await;
                let answer = answer.map_err(|lost| format!("{lost:?}"))?;
                let told: Digests =
                    serde_json::from_value(answer.body).map_err(|error| error.to_string())?;
                all.push(told.shards);
            }
            for at in &all[1..] {
                for (one, other) in all[0].iter().zip(at) {
                    if one.applied != other.applied {
                        return Err(format!("{one:?} and {other:?}"));
                    }
                    assert_eq!(one.digest, other.digest, "two replicas differ: {all:?}");
                }
            }
            Ok(())
        })
        .await;
    }

    /// Holds an item's audit against the laws, on every running node's own replica.
    ///
    /// # Panics
    ///
    /// When a law is broken.
    pub(crate) async fn audit(&self, item: &str) -> Answer {
        let path = format!("/v1/items/{item}/audit?consistency=local");
        let mut last = None;
        for id in self.running() {
            let audit = self.read(id, &path).await;
            assert_eq!(audit.status, 200, "node {id}: {audit:?}");
            assert_eq!(audit.body["conserved"], json!(true), "node {id}: {}", audit.text);
            let [available, held, sold, total] =
                ["available", "held", "sold", "total"].map(|name| audit.number_of(name));
            assert_eq!(available + held + sold, total, "node {id}: {}", audit.text);
            last = Some(audit);
        }
        last.expect("a node runs")
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for id in self.ids() {
                let words = self.words(id);
                let from = words.len().saturating_sub(3_000);
                let from = (from..words.len()).find(|at| words.is_char_boundary(*at));
                println!("--- the end of node {id}'s words\n{}", &words[from.unwrap_or(0)..]);
            }
        }
        for place in &mut self.places {
            if let Some(mut child) = place.child.take() {
                // A child that has gone already is what is wanted.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Whether a caller may try the same again with the same key.
pub(crate) fn try_again(sent: &Sent) -> bool {
    match sent {
        Ok(answer) => answer.is_not_taken() || answer.is_unknown(),
        Err(Lost::NotSent(_) | Lost::Unknown(_)) => true,
    }
}
