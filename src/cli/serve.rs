//! `holdfast serve`: runs one node until it is told to stop.

use std::path::PathBuf;

use clap::Args;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::item::pair;
use super::output::people_watch;
use super::{Failure, huge_pages};
use crate::config::{Config, LogFormat, LogLevel, Switch};
use crate::node::Node;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast serve --config config/cluster/n1.toml
  HOLDFAST_NODE__DATA_DIR=/var/lib/holdfast holdfast serve --set http.listen=0.0.0.0:7101

  holdfast serve --config n4.toml --join http://127.0.0.1:7101 --token hfj-...

A new node is empty until `holdfast cluster init` makes it part of a cluster, or --join brings it
into one that runs (`holdfast node add` prints the token).
SIGTERM and Ctrl-C hand leadership over and answer what is under way, then stop.
A second one stops at once, with exit code 130.")]
pub(super) struct Serve {
    /// The TOML file; defaults and the environment alone when absent.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_CONFIG")]
    config: Option<PathBuf>,
    /// Sets one key above file and environment; may be given often.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Join the cluster that answers at one of these URLs, as a new node, when this one is empty.
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "token")]
    join: Vec<String>,
    /// The token that `holdfast node add` printed; it lets one machine in, once.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "HOLDFAST_JOIN_TOKEN",
        hide_env_values = true,
        requires = "join"
    )]
    token: Option<String>,
    /// Also stop when stdin ends: a node that `demo` or `bench` started dies with its parent.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        let config = Config::load(self.config.as_deref(), std::env::vars(), self.set)
            .map_err(|e| Failure::Usage(e.to_string()))?;
        if config.memory.huge_pages == Switch::On {
            huge_pages::ask_for_them();
        }
        speak(&config)?;
        let join = self.token.filter(|_| !self.join.is_empty()).map(|token| (self.join, token));
        run_node(config, join, self.stop_with_stdin)
    }
}

/// Sends the node's words to stderr, as much and in the format that the configuration says.
fn speak(config: &Config) -> Result<(), Failure> {
    let level = match config.log_output.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let words = fmt::layer().with_writer(std::io::stderr);
    let said = tracing_subscriber::registry().with(what_is_said(level));
    let begun = match config.log_output.format {
        LogFormat::Text => said.with(words.with_ansi(people_watch())).try_init(),
        LogFormat::Json => said.with(words.json()).try_init(),
    };
    begun.map_err(|e| Failure::Usage(format!("cannot write a log: {e}")))
}

/// openraft tells the whole of its state at every step, and of a peer that is down at every
/// attempt, in hundreds of lines a second: it is heard only when it fails, or when somebody looks
/// for a fault.
fn what_is_said(level: LevelFilter) -> Targets {
    let of_openraft = if level > LevelFilter::INFO { level } else { level.min(LevelFilter::ERROR) };
    Targets::new().with_default(level).with_target("openraft", of_openraft)
}

/// What the process exits with when it is told twice: it did not wait for what was under way.
const AT_ONCE: i32 = 130;

/// Runs a node until it is told to stop, or until it can do nothing any more.
fn run_node(
    config: Config,
    join: Option<(Vec<String>, String)>,
    stop_with_stdin: bool,
) -> Result<(), Failure> {
    super::block_on(async {
        if let Some(confession) = crate::planted::confession() {
            eprintln!("{confession}");
        }
        let (version, data_dir) = (super::version(), config.node.data_dir.display());
        tracing::info!("holdfast {version}, data in {data_dir}");
        let node = Node::start(config).await.map_err(|e| Failure::Unavailable(e.to_string()))?;
        let mut orders = Orders::listen()?;
        let office = std::sync::Arc::clone(node.office());
        // Ends only when it failed: a node that has joined goes on.
        let refused = async move {
            if let Some((urls, token)) = join
                && let Err(why) = office.join(&urls, &token).await
            {
                return why;
            }
            std::future::pending().await
        };
        let why = tokio::select! {
            why = refused => Err(why),
            why = orders.next(stop_with_stdin) => Ok(why),
            end = node.failed() => Err(end.why),
        };
        match &why {
            Ok(why) => tracing::info!(why, "stopping"),
            Err(why) => tracing::error!(why, "stopping: this node can do nothing any more"),
        }
        tokio::select! {
            () = node.shutdown() => {}
            again = orders.next(false) => {
                tracing::warn!(again, "stopping at once");
                std::process::exit(AT_ONCE);
            }
        }
        tracing::info!("stopped");
        why.map(|_| ()).map_err(Failure::Unavailable)
    })
}

/// What tells this process to stop. A signal that comes between two looks is not lost.
struct Orders {
    terminate: Signal,
    interrupt: Signal,
}

impl Orders {
    /// Listens for signals from now on.
    ///
    /// # Errors
    ///
    /// [`Failure::Unavailable`] when they cannot be listened for.
    fn listen() -> Result<Orders, Failure> {
        let listen = |kind| {
            let failed = |e| Failure::Unavailable(format!("cannot listen for signals: {e}"));
            signal(kind).map_err(failed)
        };
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Orders { terminate: listen(terminate)?, interrupt: listen(interrupt)? })
    }

    /// Waits for SIGTERM, Ctrl-C or, when asked for, the end of stdin, and tells which came.
    async fn next(&mut self, with_stdin: bool) -> &'static str {
        let stdin_ended = async {
            if with_stdin {
                end_of_stdin().await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "Ctrl-C",
            () = stdin_ended => "the end of its stdin",
        }
    }
}

/// Waits for SIGTERM or Ctrl-C and tells which came.
///
/// # Errors
///
/// [`Failure::Unavailable`] when the signals cannot be listened for.
pub(super) async fn told_to_stop() -> Result<&'static str, Failure> {
    Ok(Orders::listen()?.next(false).await)
}

/// Waits on a thread of its own, which may stay blocked for as long as the process lives.
async fn end_of_stdin() {
    let (ended, heard) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut sink = std::io::sink();
        // An error of stdin ends it just as well.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut sink);
        let _ = ended.send(());
    });
    let _ = heard.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openraft_is_heard_when_something_is_wrong_or_when_a_fault_is_looked_for() {
        let heard = |level, of| what_is_said(level).would_enable("openraft::engine", &of);
        assert!(!heard(LevelFilter::INFO, tracing::Level::INFO));
        assert!(!heard(LevelFilter::INFO, tracing::Level::WARN));
        assert!(heard(LevelFilter::INFO, tracing::Level::ERROR));
        assert!(heard(LevelFilter::DEBUG, tracing::Level::DEBUG));
        let own = what_is_said(LevelFilter::INFO).would_enable("holdfast", &tracing::Level::INFO);
        assert!(own);
    }
}
