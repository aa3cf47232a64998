//! The command line: one verb a file, data on stdout, words on stderr.
//!
//! Promises: with `--json` stdout carries JSON and nothing else, also when the command line itself
//! is wrong; the exit code tells a script what happened (`Failure`); an outcome that is not known
//! is never reported as "no". Never prints progress to anything but a terminal.

mod advice;
mod audit;
mod bench;
mod cluster;
mod demo;
mod doctor;
mod hold;
mod huge_pages;
mod item;
mod layout;
mod local_cluster;
mod node;
mod output;
mod picture;
mod progress;
mod recover;
mod serve;
mod shard;
mod status;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use crate::client::{CallError, Client, ClientConfig, Problem};
use crate::ledger::{SchemaRange, SchemaVersion};
use output::Voice;

/// Exit codes, for `--help`.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused (sold out, not found, ...), or a law is broken (audit, bench)
  2  the command line or a file is wrong
  3  no node could act, or the outcome is unknown (stderr tells the key to retry with)
  4  done, and there is something to act on (doctor, recover, status)";

/// What `--version` says: the version, the commit of a release build made where git knows it, and
/// the schema versions that this build reads and writes.
fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| version_of(env!("SOURCE_COMMIT")));
    &TEXT
}

fn version_of(commit: &str) -> String {
    let commit = if commit.is_empty() { String::new() } else { format!("commit {commit}, ") };
    let planted =
        if cfg!(feature = "planted") { " WITH PLANTED FAULTS, for tests only" } else { "" };
    let reads = SchemaRange::up_to(SchemaVersion::NEWEST);
    format!("{} ({commit}schema versions {reads}){planted}", env!("CARGO_PKG_VERSION"))
}

/// How long a look at a cluster of which no node listens may take.
const UNREACHABLE_WITHIN: Duration = Duration::from_millis(500);

/// Sells the last unit exactly once: a replicated, durable inventory store.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version = version(), after_help = EXIT_CODES, max_term_width = 100)]
struct CommandLine {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    verb: Verb,
}

/// How to reach a cluster, and how to answer.
#[derive(Debug, Clone, Args)]
struct Reach {
    /// Base URLs of the nodes, separated by commas; one is enough, more survive its death.
    #[arg(
        long,
        global = true,
        env = "HOLDFAST_URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7101",
        value_name = "URL"
    )]
    url: Vec<String>,
    /// The tenant; the server's default when absent.
    #[arg(long, global = true, env = "HOLDFAST_TENANT", value_name = "NAME")]
    tenant: Option<String>,
    /// Print JSON on stdout instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// How long one operation may take, retries and all, in ms.
    #[arg(
        long,
        global = true,
        default_value_t = 10_000,
        value_name = "MS",
        value_parser = clap::value_parser!(u64).range(1..=600_000)
    )]
    timeout_ms: u64,
}

impl Reach {
    fn client(&self) -> Result<Client, Failure> {
        self.client_of(&self.url)
    }

    fn client_of(&self, nodes: &[String]) -> Result<Client, Failure> {
        Ok(Client::new(self.config_of(nodes))?)
    }

    fn config_of(&self, nodes: &[String]) -> ClientConfig {
        let mut config = ClientConfig::new(nodes);
        config.tenant.clone_from(&self.tenant);
        config.operation_within = Duration::from_millis(self.timeout_ms);
        config
    }

    /// A client that gives up at once when nobody listens.
    fn impatient_client(&self) -> Result<Client, Failure> {
        let mut config = self.config_of(&self.url);
        config.unreachable_within = UNREACHABLE_WITHIN;
        Ok(Client::new(config)?)
    }

    fn voice(&self) -> Voice {
        Voice::new(self.json)
    }
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run one node.
    Serve(serve::Serve),
    /// Start a whole cluster on this machine and run a small sale.
    Demo(demo::Demo),
    /// Make a cluster of running, empty nodes.
    #[command(
        subcommand,
        after_help = "Example:
  holdfast cluster init --nodes http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103"
    )]
    Cluster(cluster::Cluster),
    /// Create, configure, watch and delete items.
    #[command(
        subcommand,
        after_help = "Examples:
  holdfast item create ticket-1 --total 100 --limit-per-buyer 2
  holdfast item availability ticket-1
  holdfast item adjust ticket-1 --delta 50 --reason 'second batch'"
    )]
    Item(item::Item),
    /// Place, change and look up holds.
    #[command(
        subcommand,
        after_help = "Examples:
  holdfast hold place ticket-1 --quantity 2 --buyer ann
  holdfast hold confirm hld_...
  holdfast hold list ticket-1 --state held"
    )]
    Hold(hold::HoldVerb),
    /// Bring nodes into a running cluster, drain them, take them out.
    #[command(
        subcommand,
        after_help = "Examples:
  holdfast node list
  holdfast node add
  holdfast node replace 3"
    )]
    Node(node::NodeVerb),
    /// Who leads and votes in each shard; moves of leadership; checkpoints.
    #[command(
        subcommand,
        after_help = "Example:
  holdfast shard list"
    )]
    Shard(shard::ShardVerb),
    /// Tell how the nodes and shards are.
    Status(status::Status),
    /// Look at the data directory of a node that does not run, and change nothing in it.
    Doctor(doctor::Doctor),
    /// Make a new cluster of what is left of one that lost its quorum, every item paused.
    Recover(recover::Recover),
    /// Check that every unit is accounted for; exits 1 when a law is broken.
    Audit(audit::AuditVerb),
    /// Measure a cluster with a closed-loop load, then audit it.
    Bench(Box<bench::Bench>),
}

/// Why a verb did not do what it was asked.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// A definite no of the cluster.
    #[error("refused: {}", advice::spoken(.0))]
    Refused(Problem),
    /// A law is broken, or an acknowledged hold is missing.
    #[error("{0}")]
    Broken(String),
    /// The command line, a file or an answer is wrong.
    #[error("{0}")]
    Usage(String),
    /// No node could act, or the outcome is unknown.
    #[error("{0}")]
    Unavailable(String),
    /// All is done, and somebody should look at what was found.
    #[error("{0}")]
    Attention(String),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Refused(_) | Failure::Broken(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unavailable(_) => 3,
            Failure::Attention(_) => 4,
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        match error {
            CallError::Refused(problem) => Failure::Refused(problem),
            CallError::Invalid(words) => Failure::Usage(words),
            CallError::Unavailable(_) => Failure::Unavailable(error.to_string()),
            CallError::Unknown { key: Some(key), last } => Failure::unknown(&key, &last),
            CallError::Unknown { key: None, .. } => Failure::Unavailable(format!(
                "{error}\nIt may still take effect. Run the same command again: doing it twice \
                 does no harm"
            )),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl Failure {
    fn unknown(key: &str, last: &str) -> Failure {
        Failure::Unavailable(format!(
            "the outcome is unknown: {last}\nIt may still take effect. \
             Run the same command again with --key {key}"
        ))
    }
}

/// Reads a command line, the program's name first, runs its verb and returns the process's exit
/// code.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    match CommandLine::try_parse_from(&arguments) {
        Ok(line) => run_verb(line),
        Err(error) => refuse_line(&error, wants_json(&arguments)),
    }
}

/// Tells whether a line that cannot be read asks for JSON.
fn wants_json(arguments: &[OsString]) -> bool {
    let mut flags = arguments.iter().take_while(|argument| *argument != "--");
    flags.any(|flag| flag == "--json" || flag.to_string_lossy().starts_with("--json="))
}

/// Says what is wrong with a command line, or shows the help that it asks for.
fn refuse_line(error: &clap::Error, is_json: bool) -> ExitCode {
    // As with every other word of ours: a reader that has gone is no error.
    let _ = error.print();
    if is_json && error.use_stderr() {
        let missing = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let words = error.render().to_string();
        let words = words.strip_prefix("error: ").filter(|_| !missing);
        let words = words.and_then(|words| words.split("\n\nUsage:").next());
        let words = words.unwrap_or("a verb or an argument is missing: see `holdfast --help`");
        let words = words.split("\n\nFor more information").next().unwrap_or(words).trim();
        Voice::new(true).fact(&Failure::Usage(words.to_owned()));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn run_verb(line: CommandLine) -> ExitCode {
    let CommandLine { reach, verb } = line;
    let voice = reach.voice();
    let done = match verb {
        Verb::Serve(serve) => serve.run(),
        Verb::Demo(demo) => block_on(demo.run(reach)),
        Verb::Cluster(cluster) => block_on(cluster.run(reach)),
        Verb::Item(item) => block_on(item.run(reach)),
        Verb::Hold(hold) => block_on(hold.run(reach)),
        Verb::Node(node) => block_on(node.run(reach)),
        Verb::Shard(shard) => block_on(shard.run(reach)),
        Verb::Status(status) => block_on(status.run(reach)),
        Verb::Doctor(doctor) => doctor.run(&reach),
        Verb::Recover(recover) => block_on(recover.run(reach)),
        Verb::Audit(audit) => block_on(audit.run(reach)),
        Verb::Bench(bench) => block_on(bench.run(reach)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            voice.failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Runs a verb on this thread.
fn block_on(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::Unavailable(format!("cannot start an event loop: {e}")))?;
    runtime.block_on(verb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_verb_has_an_example() {
        CommandLine::command().debug_assert();
        let mut open = vec![CommandLine::command()];
        while let Some(command) = open.pop() {
            let inner: Vec<_> = command.get_subcommands().cloned().collect();
            if inner.is_empty() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("holdfast "), "`{}` has no example", command.get_name());
            }
            open.extend(inner);
        }
    }

    #[test]
    fn a_refusal_exits_1_a_wrong_line_2_and_an_unknown_outcome_3() {
        let problem = Problem::from_members(409, serde_json::Map::new(), None);
        assert_eq!(Failure::from(CallError::Refused(problem)).exit_code(), 1);
        assert_eq!(Failure::Broken(String::new()).exit_code(), 1);
        assert_eq!(Failure::from(CallError::Invalid(String::new())).exit_code(), 2);
        assert_eq!(Failure::from(CallError::Unavailable(String::new())).exit_code(), 3);
        let unknown = CallError::Unknown { key: Some("k-1".into()), last: "504".into() };
        let failure = Failure::from(unknown);
        assert_eq!(failure.exit_code(), 3);
        assert!(failure.to_string().contains("--key k-1"), "{failure}");
    }

    #[test]
    fn flags_that_reach_the_cluster_stand_before_or_behind_the_verb() {
        for line in [
            ["holdfast", "--url", "http://a:1,http://b:2", "--json", "status"],
            ["holdfast", "status", "--url", "http://a:1,http://b:2", "--json"],
        ] {
            let parsed = CommandLine::try_parse_from(line).expect("a right line");
            assert_eq!(parsed.reach.url, ["http://a:1", "http://b:2"]);
            assert!(parsed.reach.json);
        }
    }

    #[test]
    fn version_tells_the_commit_where_it_is_known_and_the_schema_versions_always() {
        let package = env!("CARGO_PKG_VERSION");
        let known = version_of("0123456789ab");
        let told = format!("{package} (commit 0123456789ab, schema versions 1 to 2)");
        assert!(known.starts_with(&told), "{known}");
        let unknown = version_of("");
        assert!(unknown.starts_with(&format!("{package} (schema versions 1 to 2)")), "{unknown}");
        let shown = CommandLine::command().render_version();
        assert_eq!(shown.trim(), format!("holdfast {}", version()));
    }

    #[test]
    fn token_without_a_cluster_to_join_is_a_wrong_line() {
        let line = ["holdfast", "serve", "--token", "hfj-1"];
        let refused = CommandLine::try_parse_from(line).expect_err("it would be ignored");
        assert_eq!(refused.kind(), ErrorKind::MissingRequiredArgument);
        assert!(refused.to_string().contains("--join"), "{refused}");
        let line = ["holdfast", "serve", "--token", "hfj-1", "--join", "http://a:1"];
        assert!(CommandLine::try_parse_from(line).is_ok());
    }

    #[test]
    fn quantities_beyond_the_contract_are_refused_by_the_command_line() {
        for quantity in ["0", "-1", "1.5", "9007199254740992"] {
            let line = ["holdfast", "hold", "place", "x", "--quantity", quantity];
            assert!(CommandLine::try_parse_from(line).is_err(), "{quantity}");
        }
        let most = ["holdfast", "hold", "place", "x", "--quantity", "9007199254740991"];
        assert!(CommandLine::try_parse_from(most).is_ok());
    }
}
