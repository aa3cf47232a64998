//! A whole cluster on this machine: N `holdfast serve` child processes of this very executable.
//!
//! Real processes, so that a kill is a real kill. Promises: ports that are taken are replaced by
//! free ones, and that is said; the children die with their parent, however it dies (their stdin
//! ends); a directory that holds a cluster is started again as it was.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::output::Voice;
use super::progress::spinner;
use super::{Failure, Reach, cluster};
use crate::client::Client;
use crate::runtime::{now, sleep};

/// Where the HTTP ports begin; node n wants this + n − 1.
const HTTP_PORT_FIRST: u16 = 7101;
/// Where the peer ports begin.
const PEER_PORT_FIRST: u16 = 7201;
/// How long a node may take until it answers.
const UP_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to stop before it is killed.
const DOWN_WITHIN: Duration = Duration::from_secs(10);
/// How often a child is looked at while it starts or stops.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The file in the data directory that tells what was started there.
const LAYOUT_FILE: &str = "local-cluster.json";

/// What a local cluster is made of.
pub(super) struct Wanted {
    /// How many nodes.
    pub(super) nodes: u16,
    /// How many shards.
    pub(super) shards: u16,
    /// Where the data goes; a directory of its own, removed at the end, when absent.
    pub(super) data: Option<PathBuf>,
    /// More configuration of every node, `section.key` and value.
    pub(super) set: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layout {
    shards: u16,
    nodes: Vec<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    http: SocketAddr,
    peer: SocketAddr,
}

/// The running cluster; its nodes are killed when it is dropped.
pub(super) struct LocalCluster {
    layout: Layout,
    data: PathBuf,
    temporary: bool,
    set: Vec<(String, String)>,
    children: Vec<Option<Child>>,
}

impl LocalCluster {
    /// Starts the nodes, makes a cluster of them (unless the directory holds one) and waits until
    /// every shard has a leader.
    pub(super) async fn start(
        wanted: Wanted,
        reach: &Reach,
        voice: Voice,
    ) -> Result<LocalCluster, Failure> {
        let temporary = wanted.data.is_none();
        let data = wanted.data.unwrap_or_else(|| {
            std::env::temp_dir().join(format!("holdfast-{:08x}", rand::random::<u32>()))
        });
        fs::create_dir_all(&data)
            .map_err(|e| Failure::Usage(format!("{}: {e}", data.display())))?;
        let layout = match Layout::read(&data)? {
            Some(layout) => {
                voice.say(&format!("starting the cluster in {} again", data.display()));
                layout
            }
            None => {
                let layout = Layout::choose(wanted.nodes, wanted.shards, voice)?;
                layout.write(&data)?;
                layout
            }
        };
        let children = layout.nodes.iter().map(|_| None).collect();
        let mut cluster = LocalCluster { layout, data, temporary, set: wanted.set, children };
        let bar = spinner("starting the nodes");
        for id in cluster.ids() {
            cluster.start_node(id)?;
        }
        for id in cluster.ids() {
            bar.set_message(format!("waiting for node {id}"));
            cluster.wait_until_up(id, reach).await?;
        }
        bar.finish_and_clear();
        let shards = cluster.layout.shards;
        let proposed = crate::config::Cluster { shards, ..crate::config::Cluster::default() };
        let settings = cluster::settings(proposed);
        let plan = cluster.data.join("init.json");
        let urls = cluster.urls();
        let founding = cluster::Wanted { nodes: &urls, shards: Some(shards), settings };
        cluster::found(reach, founding, &plan).await?;
        Ok(cluster)
    }

    /// The ids of its nodes, from 1.
    pub(super) fn ids(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.layout.nodes.len()
    }

    /// The base URLs of its nodes.
    pub(super) fn urls(&self) -> Vec<String> {
        self.layout.nodes.iter().map(|place| format!("http://{}", place.http)).collect()
    }

    /// Where its data lies.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Process ids of the nodes that run.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().flatten().map(Child::id).collect()
    }

    fn dir(&self, id: usize) -> PathBuf {
        self.data.join(format!("n{id}"))
    }

    /// Starts one node.
    pub(super) fn start_node(&mut self, id: usize) -> Result<(), Failure> {
        let dir = self.dir(id);
        let cannot = |e: std::io::Error| Failure::Usage(format!("cannot start node {id}: {e}"));
        fs::create_dir_all(&dir).map_err(cannot)?;
        let config = dir.join("node.toml");
        let place = &self.layout.nodes[id - 1];
        fs::write(&config, node_config(place, &dir, self.layout.shards)).map_err(cannot)?;
        let log =
            File::options().create(true).append(true).open(dir.join("node.log")).map_err(cannot)?;
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.arg("serve").arg("--config").arg(&config).arg("--stop-with-stdin");
        // They share this machine's cores.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = (cores / self.layout.nodes.len().max(1)).max(1);
        command.arg("--set").arg(format!("node.shard_threads={threads}"));
        for (key, value) in &self.set {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        // A group of its own: Ctrl-C reaches only the parent, which then stops the children.
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(cannot)?;
        self.children[id - 1] = Some(child);
        Ok(())
    }

    /// Waits until a node answers.
    ///
    /// # Errors
    ///
    /// [`Failure::Unavailable`] with the end of its log when it has stopped, or takes too long.
    pub(super) async fn wait_until_up(&mut self, id: usize, reach: &Reach) -> Result<(), Failure> {
        let client = self.client_of(id, reach)?;
        let until = now() + UP_WITHIN;
        while now() < until {
            if let Some(child) = self.children[id - 1].as_mut()
                && let Some(status) = child.try_wait()?
            {
                return Err(Failure::Unavailable(format!(
                    "node {id} stopped ({status}); the end of its log:\n{}",
                    log_end(&self.dir(id))
                )));
            }
            if client.get_text("/livez").await.is_ok() {
                return Ok(());
            }
            sleep(LOOK_AGAIN).await;
        }
        Err(Failure::Unavailable(format!("node {id} does not answer")))
    }

    /// A client of one node that gives up fast.
    fn client_of(&self, id: usize, reach: &Reach) -> Result<Client, Failure> {
        let quick = Reach { timeout_ms: 200, ..reach.clone() };
        quick.client_of(&[format!("http://{}", self.layout.nodes[id - 1].http)])
    }

    /// Kills one node with SIGKILL: what it has not synced is lost.
    pub(super) fn kill(&mut self, id: usize) -> Result<(), Failure> {
        if let Some(mut child) = self.children[id - 1].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Tells one node to stop, with SIGTERM.
    pub(super) fn terminate(&self, id: usize) -> Result<(), Failure> {
        if let Some(child) = &self.children[id - 1] {
            let pid = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .map_err(std::io::Error::from)?;
        }
        Ok(())
    }

    /// Tells whether one node's process is still there.
    pub(super) fn is_running(&mut self, id: usize) -> Result<bool, Failure> {
        let Some(child) = &mut self.children[id - 1] else { return Ok(false) };
        if child.try_wait()?.is_some() {
            self.children[id - 1] = None;
            return Ok(false);
        }
        Ok(true)
    }

    /// Stops all nodes and removes the data when it was not asked for.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        let bar = spinner("stopping the nodes");
        for child in self.children.iter_mut().flatten() {
            drop(child.stdin.take());
        }
        let until = now() + DOWN_WITHIN;
        for slot in &mut self.children {
            let Some(child) = slot else { continue };
            while child.try_wait()?.is_none() && now() < until {
                sleep(LOOK_AGAIN).await;
            }
            if child.try_wait()?.is_some() {
                *slot = None;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // A child that has gone already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.temporary {
            let _ = fs::remove_dir_all(&self.data);
        }
    }
}

impl Layout {
    fn read(data: &Path) -> Result<Option<Layout>, Failure> {
        let file = data.join(LAYOUT_FILE);
        if !file.exists() {
            return Ok(None);
        }
        let wrong = |e: String| Failure::Usage(format!("{}: {e}", file.display()));
        let text = fs::read_to_string(&file).map_err(|e| wrong(e.to_string()))?;
        serde_json::from_str(&text).map(Some).map_err(|e| wrong(e.to_string()))
    }

    fn write(&self, data: &Path) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(self).map_err(|e| Failure::Usage(e.to_string()))?;
        Ok(fs::write(data.join(LAYOUT_FILE), text)?)
    }

    /// Chooses ports: the documented ones, or free ones where those are taken.
    fn choose(nodes: u16, shards: u16, voice: Voice) -> Result<Layout, Failure> {
        // All are kept open until all are chosen, so that no two get the same.
        let mut open = Vec::new();
        let mut choose = |wanted: u16| -> Result<SocketAddr, Failure> {
            let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)) {
                Ok(listener) => listener,
                Err(e) => {
                    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                    let port = free.local_addr()?.port();
                    voice.say(&format!("port {wanted} is taken ({e}): using {port}"));
                    free
                }
            };
            let address = listener.local_addr()?;
            open.push(listener);
            Ok(address)
        };
        let nodes = (0..nodes)
            .map(|n| {
                Ok(Place { http: choose(HTTP_PORT_FIRST + n)?, peer: choose(PEER_PORT_FIRST + n)? })
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        Ok(Layout { shards, nodes })
    }
}

/// One node's configuration file.
fn node_config(place: &Place, dir: &Path, shards: u16) -> String {
    let mut text = String::new();
    let data = toml::Value::String(dir.display().to_string());
    write!(
        text,
        "[cluster]\nshards = {shards}\n\n[node]\ndata_dir = {data}\n\n[http]\nlisten = \"{}\"\n\n\
         [peer]\nlisten = \"{}\"\n",
        place.http, place.peer
    )
    .expect("a String takes every write");
    text
}

/// The last lines of a node's log.
fn log_end(dir: &Path) -> String {
    const LINES: usize = 15;
    let text = fs::read_to_string(dir.join("node.log")).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_replaced_by_a_free_one_and_no_two_are_the_same() {
        // Whether or not another cluster runs here, this one is taken now.
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, HTTP_PORT_FIRST));
        let layout = Layout::choose(5, 4, Voice::new(true)).expect("free ports");
        assert_ne!(layout.nodes[0].http.port(), HTTP_PORT_FIRST);
        let mut ports: Vec<_> =
            layout.nodes.iter().flat_map(|place| [place.http.port(), place.peer.port()]).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 10);
    }

    #[test]
    fn the_file_of_a_local_node_is_a_valid_configuration() {
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let place = Place { http: at(7301), peer: at(7302) };
        let text = node_config(&place, Path::new("/d/\"quoted\" dir"), 2);
        let config = crate::config::Config::from_parts(Some(&text), [], []).expect("valid");
        assert_eq!(config.http.listen, place.http);
        assert_eq!(config.peer.listen, place.peer);
        assert_eq!(config.cluster.shards, 2);
        assert_eq!(config.node.data_dir, Path::new("/d/\"quoted\" dir"));
    }

    #[test]
    fn a_directory_remembers_its_cluster() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(Layout::read(dir.path()).expect("empty"), None);
        let layout = Layout::choose(3, 4, Voice::new(true)).expect("free ports");
        layout.write(dir.path()).expect("written");
        assert_eq!(Layout::read(dir.path()).expect("read"), Some(layout));
    }
}
