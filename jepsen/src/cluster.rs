//! The nodes of a run: real `holdfast serve` processes, started, stopped, killed and looked at.
//!
//! The suite ends only processes that it started, by their ids, and waits until they are gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tokio::process::{Child, Command};

use crate::client::{Caller, Patience, Request};
use crate::disk::{Disk, Medium};
use crate::net::{self, HTTP_PORT, Net, PEER_PORT};
use crate::roll::Roll;
use crate::tool;

/// How long a node may take to do what should be done at once.
const SOON: Duration = Duration::from_secs(20);
/// Between two looks at a process.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where the nodes of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// Each in a network namespace of its own.
    Namespaces,
    /// All on the loopback, each at an address of its own: no partitions.
    Loopback,
}

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) binary: PathBuf,
    pub(crate) nodes: u64,
    pub(crate) shards: u64,
    pub(crate) ground: Ground,
    /// The run's directory for what is thrown away.
    pub(crate) scratch: PathBuf,
    /// The directory for what is kept: the nodes' logs.
    pub(crate) out: PathBuf,
    /// The seed, which gives loopback runs addresses of their own.
    pub(crate) seed: u64,
}

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) http: SocketAddr,
    pub(crate) disk: Disk,
    config: PathBuf,
    log: PathBuf,
    clock: PathBuf,
    /// The URLs and the token with which it came: its command line stays as it was.
    join: Option<(String, String)>,
    child: Option<Child>,
    pid: Option<u32>,
}

/// The cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) plan: Plan,
    /// By id: the members, those that are to become members, and those removed that still run.
    pub(crate) nodes: BTreeMap<u64, Node>,
    /// Who belongs to it, for clients.
    pub(crate) roll: Roll,
    pub(crate) net: Option<Net>,
    /// The library that fakes the wall clock, where the machine has it.
    faketime: Option<PathBuf>,
    pub(crate) caller: Caller,
}

impl Plan {
    fn http(&self, node: u64) -> SocketAddr {
        match self.ground {
            Ground::Namespaces => Net::http(node),
            Ground::Loopback => {
                let [run, other, ..] = crate::dice::mix(self.seed).to_le_bytes();
                let last = u8::try_from(node).expect("a few nodes");
                let ip = std::net::Ipv4Addr::new(127, 100 + run % 100, other, last);
                SocketAddr::new(ip.into(), HTTP_PORT)
            }
        }
    }
}

impl Cluster {
    /// Builds the network and the disks, starts the nodes and makes them a cluster.
    ///
    /// # Errors
    ///
    /// When any of it fails: a failure of the harness, not a verdict.
    pub(crate) async fn found(plan: Plan) -> Result<Cluster, String> {
        let net = match plan.ground {
            Ground::Namespaces => Some(Net::lay(plan.nodes).await?),
            Ground::Loopback => None,
        };
        let roll = Roll::default();
        let (nodes, caller, faketime) = (BTreeMap::new(), Caller::new(&roll), faketime());
        let mut cluster = Cluster { plan, nodes, roll, net, faketime, caller };
        for id in 1..=cluster.plan.nodes {
            cluster.furnish(id, None).await?;
            cluster.roll.welcome(id);
            cluster.start(id)?;
        }
        for id in 1..=cluster.plan.nodes {
            cluster.wait_until(id, "it answers", |node| node.is_some()).await?;
        }
        cluster.init().await?;
        for id in 1..=cluster.plan.nodes {
            cluster.wait_until_ready(id).await?;
        }
        Ok(cluster)
    }

    /// Gives a machine its disk and its configuration; `join` are the URLs and the token with which
    /// it comes into a cluster that runs.
    async fn furnish(&mut self, id: u64, join: Option<(String, String)>) -> Result<(), String> {
        let mounts = self.plan.ground == Ground::Namespaces;
        let disk = Disk::make(&self.plan.scratch, id, mounts).await?;
        let file = |name: &str| self.plan.scratch.join(format!("n{id}.{name}"));
        let log = self.plan.out.join(format!("n{id}.log"));
        let (config, clock) = (file("toml"), file("clock"));
        write(&clock, "+0\n")?;
        let http = self.plan.http(id);
        write(&config, &configuration(id, http, &disk.data()))?;
        let node = Node { id, http, disk, config, log, clock, join, child: None, pid: None };
        self.nodes.insert(id, node);
        self.roll.know(id, http);
        Ok(())
    }

    /// Starts a fresh machine that joins with a token. The cluster has told its id.
    ///
    /// # Errors
    ///
    /// When it cannot be made or started.
    pub(crate) async fn join(&mut self, id: u64, token: &str) -> Result<(), String> {
        if let Some(net) = &mut self.net {
            net.connect(id).await?;
        }
        let urls = self.roll.members().into_iter().filter_map(|node| self.roll.address(node));
        let urls: Vec<String> = urls.map(|address| format!("http://{address}")).collect();
        self.furnish(id, Some((urls.join(","), token.to_owned()))).await?;
        self.start(id)
    }

    /// Ends a machine that was removed, and takes it away with its disk.
    ///
    /// # Errors
    ///
    /// When its disk is still in use, or `ip` fails.
    pub(crate) async fn dismantle(&mut self, id: u64) -> Result<(), String> {
        self.roll.forget(id);
        let Some(mut node) = self.nodes.remove(&id) else { return Ok(()) };
        node.signal(Signal::CONT);
        node.kill().await;
        node.disk.discard().await?;
        match &mut self.net {
            Some(net) => net.disconnect(id).await,
            None => Ok(()),
        }
    }

    async fn init(&self) -> Result<(), String> {
        let urls: Vec<String> =
            self.nodes.values().map(|node| format!("http://{}", node.http)).collect();
        let binary = self.plan.binary.to_string_lossy();
        let (urls, shards) = (urls.join(","), self.plan.shards.to_string());
        let plan = self.plan.scratch.join("init.json");
        let plan = plan.to_string_lossy();
        let arguments = ["cluster", "init", "--shards", &shards, "--plan", &plan, "--nodes", &urls];
        tool::run(&binary, &arguments).await.map(drop)
    }

    pub(crate) fn node(&self, id: u64) -> &Node {
        self.nodes.get(&id).expect("nobody asks for a node that is gone")
    }

    pub(crate) fn node_mut(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).expect("nobody asks for a node that is gone")
    }

    /// The ids of all members.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.roll.members()
    }

    /// What the nodes keep their data on.
    pub(crate) fn medium(&self) -> Option<Medium> {
        self.nodes.values().next().map(|node| node.disk.medium)
    }

    /// Whether the nodes' clocks can be set.
    pub(crate) fn has_clocks(&self) -> bool {
        self.faketime.is_some()
    }

    /// Starts a node's process.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or runs already.
    pub(crate) fn start(&mut self, id: u64) -> Result<(), String> {
        let (ground, faketime) = (self.plan.ground, self.faketime.clone());
        let binary = self.plan.binary.clone();
        let node = self.node_mut(id);
        if node.is_running() {
            return Err(format!("node {id} runs already"));
        }
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&node.log);
        let log = open.map_err(|e| format!("{}: {e}", node.log.display()))?;
        let again = log.try_clone().map_err(|e| e.to_string())?;
        let mut command = match ground {
            Ground::Namespaces => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", net::namespace(id))).arg(&binary);
                command
            }
            Ground::Loopback => Command::new(&binary),
        };
        command.arg("serve").arg("--config").arg(&node.config);
        if let Some((urls, token)) = &node.join {
            command.args(["--join", urls, "--token", token]);
        }
        if let Some(library) = faketime {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", &node.clock)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        command.stdin(Stdio::null()).stdout(log).stderr(again).kill_on_drop(true);
        let child = command.spawn().map_err(|e| format!("starting node {id}: {e}"))?;
        node.pid = child.id();
        node.child = Some(child);
        Ok(())
    }

    /// Asks a node for the cluster as it sees it.
    pub(crate) async fn view(&mut self, id: u64) -> Option<Json> {
        let request = Request::get("/admin/v1/cluster");
        let answer = self.caller.ask(id, &request, Patience::of_ms(300)).await.ok()?;
        (answer.status == 200).then_some(answer.body)
    }

    /// Which node leads most shards, as far as the nodes say.
    pub(crate) async fn leader(&mut self) -> Option<u64> {
        let mut led = BTreeMap::new();
        for id in self.ids() {
            let Some(view) = self.view(id).await else { continue };
            let shards = view["shards"].as_array().cloned().unwrap_or_default();
            let leads = shards.iter().filter(|shard| shard["role"] == "leader").count();
            led.insert(id, leads);
        }
        let best = led.into_iter().max_by_key(|(_, leads)| *leads);
        best.filter(|(_, leads)| *leads > 0).map(|(id, _)| id)
    }

    /// Which node leads a shard, as far as the nodes say; of two the one of the later term.
    pub(crate) async fn leader_of(&mut self, shard: u64) -> Option<u64> {
        let mut found = None;
        for id in self.ids() {
            let Some(view) = self.view(id).await else { continue };
            let own = view["shards"].as_array()?.iter().find(|one| one["shard"] == shard)?;
            if own["role"] == "leader" && own["paused"].is_null() {
                found = found.max(own["term"].as_u64().map(|term| (term, id)));
            }
        }
        found.map(|(_, id)| id)
    }

    /// Looks at a node until it is as it should be.
    ///
    /// # Errors
    ///
    /// When it is not in time, or its process has ended.
    pub(crate) async fn wait_until(
        &mut self,
        id: u64,
        what: &str,
        holds: impl Fn(Option<&Json>) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + SOON;
        loop {
            let view = self.view(id).await;
            if holds(view.as_ref()) {
                return Ok(());
            }
            if !self.node_mut(id).is_running() {
                return Err(format!("node {id} has ended; waited until {what}"));
            }
            if Instant::now() > deadline {
                return Err(format!("node {id} not within {SOON:?}: {what}"));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Waits until a node says that it is ready; returns how long that took.
    ///
    /// # Errors
    ///
    /// When it is not in time, or its process has ended.
    pub(crate) async fn wait_until_ready(&mut self, id: u64) -> Result<Duration, String> {
        let began = Instant::now();
        loop {
            let why = match self.ready(id).await {
                Ok(()) => return Ok(began.elapsed()),
                Err(why) => why,
            };
            if !self.node_mut(id).is_running() {
                return Err(format!("node {id} has ended: {why}"));
            }
            if began.elapsed() > SOON {
                return Err(format!("node {id} is not ready within {SOON:?}: {why}"));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks a node whether it is ready.
    ///
    /// # Errors
    ///
    /// With what it says when it is not.
    pub(crate) async fn ready(&mut self, id: u64) -> Result<(), String> {
        let request = Request::get("/readyz");
        match self.caller.ask(id, &request, Patience::of_ms(300)).await {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(answer.text.replace('\n', " ")),
            Err(lost) => Err(lost.why().to_owned()),
        }
    }

    /// Ends every node.
    pub(crate) async fn end(&mut self) {
        for node in self.nodes.values_mut() {
            node.signal(Signal::CONT);
            node.kill().await;
        }
    }
}

impl Node {
    /// Whether its process runs.
    pub(crate) fn is_running(&mut self) -> bool {
        match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => true,
            Some(Ok(Some(_)) | Err(_)) | None => false,
        }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Sends its process a signal.
    pub(crate) fn signal(&mut self, signal: Signal) -> bool {
        if !self.is_running() {
            return false;
        }
        let pid = self.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// The state letter of its process in /proc: T is stopped, Z is dead.
    pub(crate) fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid?)).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }

    /// Kills it with -9 and waits until it is gone; says whether it was there.
    pub(crate) async fn kill(&mut self) -> bool {
        let was = self.is_running();
        if let Some(mut child) = self.child.take() {
            let _ = child.start_kill();
            let _ = child.wait().await;
        }
        was
    }

    /// Asks it to stop, and waits for its end.
    ///
    /// # Errors
    ///
    /// When it does not end in time; it is killed then.
    pub(crate) async fn stop(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        self.signal(Signal::TERM);
        let Some(child) = self.child.as_mut() else { return Err("it does not run".to_owned()) };
        let ended = tokio::time::timeout(SOON, child.wait()).await;
        match ended {
            Ok(Ok(status)) => {
                self.child = None;
                if status.success() {
                    Ok(began.elapsed())
                } else {
                    Err(format!("node {} ended with {status}", self.id))
                }
            }
            Ok(Err(why)) => Err(why.to_string()),
            Err(_) => {
                self.kill().await;
                Err(format!("node {} did not stop within {SOON:?}", self.id))
            }
        }
    }

    /// Its wall clock, for who moves it all the time.
    pub(crate) fn clock(&self) -> Clock {
        Clock(self.clock.clone())
    }

    /// Sets its wall clock so many ms away from this machine's.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(crate) fn set_clock(&self, offset_ms: i64) -> Result<(), String> {
        self.clock().set(offset_ms)
    }

    /// What it said last.
    pub(crate) fn last_words(&self, lines: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join(" | ")
    }
}

/// The wall clock of a node: a file that libfaketime reads at every look.
#[derive(Debug, Clone)]
pub(crate) struct Clock(PathBuf);

impl Clock {
    /// Sets it so many ms away from this machine's.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(crate) fn set(&self, offset_ms: i64) -> Result<(), String> {
        let sign = if offset_ms < 0 { '-' } else { '+' };
        let ms = offset_ms.unsigned_abs();
        let next = self.0.with_extension("next");
        write(&next, &format!("{sign}{}.{:03}\n", ms / 1000, ms % 1000))?;
        std::fs::rename(&next, &self.0).map_err(|e| e.to_string())
    }
}

/// Small segments and frequent checkpoints: everything that happens in a week happens in a minute.
fn configuration(id: u64, http: SocketAddr, data: &Path) -> String {
    let ip = http.ip();
    let data = data.display();
    format!(
        "[node]\nname = \"n{id}\"\ndata_dir = \"{data}\"\n\n\
         [http]\nlisten = \"{http}\"\n\n\
         [peer]\nlisten = \"{ip}:{PEER_PORT}\"\n\n\
         [log]\nsegment_bytes = 4194304\nballast_bytes = 8388608\n\n\
         [checkpoint]\ninterval_ms = 4000\n"
    )
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Finds libfaketime where Debian puts it.
fn faketime() -> Option<PathBuf> {
    let dirs = [
        "/usr/lib/x86_64-linux-gnu/faketime",
        "/usr/lib/aarch64-linux-gnu/faketime",
        "/usr/lib/faketime",
        "/usr/local/lib/faketime",
    ];
    let paths = dirs.iter().map(|dir| Path::new(dir).join("libfaketimeMT.so.1"));
    paths.into_iter().find(|path| path.is_file())
}
