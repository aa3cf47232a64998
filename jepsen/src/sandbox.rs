//! The walls around a run: a network, mount and process namespace of its own.
//!
//! The program that people start is only the supervisor. It starts itself again inside `unshare`,
//! as process 1 of a process namespace: whenever that process ends, however it ends, the kernel
//! ends every other process in there, and with the last one the network namespaces, bridges, rules,
//! mounts and loop devices are gone. It ends itself when its standard input closes, which the death
//! of the supervisor does. Nothing is left to clean but a directory, which carries a mark.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::cluster::Ground;
use crate::options::Mode;
use crate::tool;

/// How the directories of runs begin.
const PREFIX: &str = "holdfast-jepsen-";
/// The file in them that says whose they are: the supervisor's pid and when it started.
const MARK: &str = "supervisor";
/// How long the inside may take to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// The way into the walls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) ground: Ground,
    /// The command before the suite's own.
    prefix: Vec<String>,
    /// What is lacking, when the ground is not what it could be.
    pub(crate) lacks: Option<String>,
}

fn unshare(rootless: bool) -> Vec<String> {
    let mut words = vec!["unshare"];
    if rootless {
        words.extend(["--user", "--map-root-user"]);
    }
    words.extend(["--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]);
    words.into_iter().map(str::to_owned).collect()
}

/// Finds the best way that this machine allows.
///
/// # Errors
///
/// When namespaces were demanded and cannot be had.
pub(crate) async fn way(mode: Mode) -> Result<Way, String> {
    let mut lacks = None;
    if mode != Mode::Loopback {
        let rootless = !rustix::process::geteuid().is_root();
        let prefix = unshare(rootless);
        match probe(&prefix).await {
            Ok(()) => return Ok(Way { ground: Ground::Namespaces, prefix, lacks: None }),
            Err(why) if mode == Mode::Namespaces => {
                return Err(format!("namespaces were asked for and cannot be had: {why}"));
            }
            Err(why) => lacks = Some(format!("no partitions and no disks of their own: {why}")),
        }
    }
    Ok(Way { ground: Ground::Loopback, prefix: Vec::new(), lacks })
}

/// Tries everything that the network of a run needs.
async fn probe(prefix: &[String]) -> Result<(), String> {
    for needed in ["unshare", "nsenter", "ip", "mount"] {
        if !tool::is_there(needed) {
            return Err(format!("{needed} is missing"));
        }
    }
    let script = "set -e; mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns; \
                  ip link add hfprobe type bridge; ip netns add hfprobe; \
                  ip link add v0 type veth peer name v1 netns hfprobe; \
                  nsenter --net=/run/netns/hfprobe true";
    let words: Vec<&str> = prefix.iter().map(String::as_str).chain(["sh", "-c", script]).collect();
    tool::run(words[0], &words[1..]).await.map(drop)
}

/// Where directories of runs are made.
fn root() -> PathBuf {
    std::env::temp_dir()
}

/// A directory for what a run throws away, with the mark of this process.
///
/// # Errors
///
/// When it cannot be made.
pub(crate) fn scratch() -> Result<PathBuf, String> {
    let pid = std::process::id();
    let dir = root().join(format!("{PREFIX}{pid}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let began = started(pid).ok_or("this process is not in /proc")?;
    std::fs::write(dir.join(MARK), format!("{pid} {began}\n")).map_err(|e| e.to_string())?;
    Ok(dir)
}

/// When a process started, in the kernel's ticks: a pid alone may be another's by now.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn is_alive(mark: &str) -> bool {
    let mut words = mark.split_whitespace();
    let pid: Option<u32> = words.next().and_then(|word| word.parse().ok());
    let began: Option<u64> = words.next().and_then(|word| word.parse().ok());
    pid.is_some_and(|pid| started(pid).is_some() && started(pid) == began)
}

/// Ends the processes of a run that are still there: those that name its directory in their command
/// line, which only what the suite started does. Returns how many.
fn sweep(dir: &Path) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let mark = format!("{}", dir.display());
    let mut ended = 0;
    for process in processes.flatten() {
        let pid: Option<i32> = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { continue };
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let names = line.split(|byte| *byte == 0).any(|word| {
            let word = String::from_utf8_lossy(word);
            word == mark || word.starts_with(&format!("{mark}/"))
        });
        let own = std::process::id() == pid.as_raw_nonzero().get().unsigned_abs();
        if names && !own {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            ended += 1;
        }
    }
    ended
}

/// Removes what runs have left whose supervisor is gone. Says what it removed.
pub(crate) fn reap() -> Vec<String> {
    let mut words = Vec::new();
    let Ok(entries) = std::fs::read_dir(root()) else { return words };
    for entry in entries.flatten() {
        let dir = entry.path();
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let Ok(mark) = std::fs::read_to_string(dir.join(MARK)) else { continue };
        if !named || is_alive(&mark) {
            continue;
        }
        let ended = sweep(&dir);
        let removed = std::fs::remove_dir_all(&dir);
        let left = removed.err().map_or_else(String::new, |e| format!(" (not removed: {e})"));
        words.push(format!("{}: {ended} processes ended{left}", dir.display()));
    }
    words
}

/// Starts the suite inside the walls and waits for it. Returns its exit code.
///
/// # Errors
///
/// When it cannot be started, or does not end in a way that has a code.
pub(crate) async fn supervise(
    way: &Way,
    scratch: &Path,
    seed: u64,
    keep: bool,
) -> Result<u8, String> {
    let suite = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut words: Vec<std::ffi::OsString> = way.prefix.iter().map(Into::into).collect();
    words.push(suite.into());
    words.extend(std::env::args_os().skip(1));
    words.extend(["--inside".into(), scratch.into()]);
    let mode = if way.ground == Ground::Namespaces { "namespaces" } else { "loopback" };
    words.extend(["--mode".into(), mode.into(), "--seed".into(), seed.to_string().into()]);
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("{}: {e}", words[0].to_string_lossy()))?;
    let line = child.stdin.take().expect("it was piped");
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|e| e.to_string())?;
    let asked_to_end = async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminated.recv() => {}
        }
    };
    let status = tokio::select! {
        status = child.wait() => status,
        () = asked_to_end => {
            eprintln!("ending the run");
            drop(line);
            match tokio::time::timeout(ENDS_WITHIN, child.wait()).await {
                Ok(status) => status,
                Err(_) => {
                    let _ = child.start_kill();
                    child.wait().await
                }
            }
        }
    };
    sweep(scratch);
    if !keep {
        let _ = std::fs::remove_dir_all(scratch);
    }
    let status = status.map_err(|e| e.to_string())?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.ok_or(format!("the suite ended with {status}"))
}
