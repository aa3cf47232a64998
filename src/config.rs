//! The configuration of one node: TOML file, environment and flags into one validated [`Config`].
//!
//! Every key is one line of the table in `config/keys.rs`, from which the struct, the parser, the
//! names of the environment and `config/holdfast.toml` are made; so they cannot disagree. A later
//! source wins: defaults, then the file, then the environment, then flags. A key that is not known
//! is an error that names the nearest one, a value out of bounds is an error that states the rule,
//! and all faults are told at once.
//!
//! The environment names a key by its section and its name, in capitals behind `HOLDFAST_`, joined
//! by two underscores or by one: `HOLDFAST_HTTP__BODY_BYTES_MAX` or `HOLDFAST_HTTP_BODY_BYTES_MAX`.
//! A flag names it as `http.body_bytes_max`.
//!
//! Nothing in here reads a clock, opens a socket or writes a file; only [`Config::load`] reads one.

mod keys;
mod rule;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

pub use keys::{
    Batch, Checkpoint, Cluster, Config, Http, Log, LogOutput, Memory, Node, Peer, Raft,
};
use keys::{KEYS, Key, SECTIONS};
pub(crate) use rule::is_authority;
pub use rule::{LogFormat, LogLevel, Switch};
use rule::{Rule, Value};

/// The prefix of every variable of the environment that Holdfast reads.
pub const ENV_PREFIX: &str = "HOLDFAST_";

/// Variables with our prefix that are not keys of a node: the command line's own.
const ENV_OF_OTHERS: [&str; 4] =
    ["HOLDFAST_URL", "HOLDFAST_CONFIG", "HOLDFAST_TENANT", "HOLDFAST_SEED"];

/// Returns the process's variables that begin with [`ENV_PREFIX`], for [`Config::from_parts`]. What
/// is not Unicode in them is replaced, so that its key is refused by its rule; variables of others
/// are not looked at.
pub fn environment() -> Vec<(String, String)> {
    let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
    let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(ENV_PREFIX);
    let all = std::env::vars_os().filter(|(name, _)| ours(name));
    all.map(|(name, value)| (text(name), text(value))).collect()
}

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The TOML file.
    File,
    /// A variable of the environment.
    Environment,
    /// A flag of the command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::File => "the file",
            Origin::Environment => "the environment",
            Origin::Flag => "a flag",
        })
    }
}

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file cannot be read.
    #[error("cannot read {path}: {why}")]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The file is not TOML.
    #[error("the file is not valid TOML: {0}")]
    Syntax(String),
    /// No such key.
    #[error("{origin} sets `{key}`, which is not a key; the nearest is `{nearest}`")]
    Unknown {
        /// Who set it.
        origin: Origin,
        /// The key as it was written.
        key: String,
        /// The known key, section or variable with the nearest spelling.
        nearest: String,
    },
    /// The value has the wrong type or lies outside the key's bounds.
    #[error("{origin} sets `{key}` to {found}; it must be {rule}")]
    Invalid {
        /// Who set it.
        origin: Origin,
        /// The key.
        key: String,
        /// The value as it was written.
        found: String,
        /// The rule it broke.
        rule: String,
    },
    /// The same key is named twice by one source.
    #[error("{origin} sets `{key}` twice")]
    Twice {
        /// Who set it.
        origin: Origin,
        /// The key.
        key: String,
    },
    /// Values that are each right do not fit together.
    #[error("{rule} ({found})")]
    Contradiction {
        /// The rule they broke.
        rule: &'static str,
        /// The values.
        found: String,
    },
}

/// Everything that is wrong with a configuration, in the order of its sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The faults; at least one.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not valid")?;
        for fault in &self.faults {
            write!(f, "\n  - {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Builds a configuration from the text of a TOML file, the environment and flags
    /// (`section.key`, value), in rising priority over the defaults. Variables that do not begin
    /// with [`ENV_PREFIX`] are passed over.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with every fault that was found.
    pub fn from_parts(
        toml: Option<&str>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let mut faults = Vec::new();
        if let Some(text) = toml {
            read_file(&mut config, text, &mut faults);
        }
        read_environment(&mut config, env, &mut faults);
        for (name, text) in flags {
            match KEYS.iter().find(|key| key.path() == name) {
                Some(key) => key.put_text(&mut config, &text, Origin::Flag, &mut faults),
                None => faults.push(unknown(Origin::Flag, &name)),
            }
        }
        if faults.is_empty() {
            faults.extend(contradictions(&config));
        }
        if faults.is_empty() { Ok(config) } else { Err(ConfigError { faults }) }
    }

    /// Reads `file`, then builds the configuration as [`Config::from_parts`] does.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the file cannot be read, or any fault of its content.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let Some(path) = file else { return Config::from_parts(None, env, flags) };
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError {
            faults: vec![Fault::Unreadable { path: path.to_owned(), why: error.to_string() }],
        })?;
        Config::from_parts(Some(&text), env, flags)
    }

    /// Returns a small configuration for a test: data under `data_dir`, ports chosen by the system,
    /// a log of small segments, no ballast. It satisfies every rule.
    pub fn for_test(data_dir: impl Into<PathBuf>) -> Config {
        let mut config = Config::default();
        config.node.data_dir = data_dir.into();
        config.http.listen.set_port(0);
        config.http.threads = 1;
        config.peer.listen.set_port(0);
        config.log.segment_bytes = 4 << 20;
        config.log.memory_tail_bytes = 4 << 20;
        config.log.ballast_bytes = 0;
        config
    }

    /// Checks every bound and every rule between keys of a configuration that was changed by hand.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with every rule that is broken.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Vec::new();
        for key in KEYS {
            let value = (key.show)(self);
            if let Err(rule) = key.rule.check(&value) {
                let key = key.path();
                faults.push(Fault::Invalid {
                    origin: Origin::Flag,
                    key,
                    found: value.to_string(),
                    rule,
                });
            }
        }
        faults.extend(contradictions(self));
        if faults.is_empty() { Ok(()) } else { Err(ConfigError { faults }) }
    }

    /// Returns this configuration as a TOML file in which every key stands with its meaning, unit,
    /// bounds, default and variable. `config/holdfast.toml` is this text for the defaults.
    pub fn to_toml_documented(&self) -> String {
        let defaults = Config::default();
        let mut text = String::from(FILE_HEAD);
        for (section, docs) in SECTIONS {
            text.push('\n');
            for line in *docs {
                push_comment(&mut text, line);
            }
            writeln!(text, "[{section}]").expect("a String takes every write");
            for key in KEYS.iter().filter(|key| key.section == *section) {
                text.push('\n');
                for line in key.docs {
                    push_comment(&mut text, line);
                }
                let default = (key.show)(&defaults);
                let rule = &key.rule;
                writeln!(text, "# {rule}{} · default {default}", key.unit())
                    .and_then(|()| writeln!(text, "# {}", key.variable()))
                    .and_then(|()| writeln!(text, "{} = {}", key.name, (key.show)(self)))
                    .expect("a String takes every write");
            }
        }
        text
    }
}

const FILE_HEAD: &str = "\
# Every key of a Holdfast node with its default. Made from the code by
# `Config::default().to_toml_documented()`; a test keeps it equal.
#
# Each key may also be set by the variable named beneath it, and by the flag
# `--set section.key=value`; a flag beats a variable, a variable beats this file. Durations are
# whole milliseconds, sizes whole bytes. Unknown keys are errors. A file needs to name only what it
# changes.
";

fn push_comment(text: &mut String, line: &str) {
    text.push('#');
    text.push_str(line.trim_end());
    text.push('\n');
}

impl Http {
    /// Returns how many threads serve HTTP: `threads`, or half of this machine's cores, at least 1.
    pub fn thread_count(&self) -> usize {
        if self.threads > 0 {
            return usize::from(self.threads);
        }
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        (cores / 2).max(1)
    }

    /// Returns the address that clients are told: `advertise`, or the listening address.
    pub fn advertised(&self) -> String {
        self.advertise.clone().unwrap_or_else(|| self.listen.to_string())
    }
}

impl Peer {
    /// Returns the address that peers are told: `advertise`, or the listening address.
    pub fn advertised(&self) -> String {
        self.advertise.clone().unwrap_or_else(|| self.listen.to_string())
    }
}

impl Raft {
    /// Returns the leader's lease in ms. openraft makes it as long as the greatest election
    /// timeout: for that long after its last word a follower votes for nobody else.
    pub fn lease_ms(&self) -> u64 {
        self.election_max_ms
    }
}

impl Batch {
    /// Returns how many of the queue's places only confirm, release and extend may take.
    pub fn finish_lane(&self) -> usize {
        self.queue_max * usize::from(self.finish_lane_percent) / 100
    }
}

impl Key {
    /// Returns `section.name`.
    fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Returns the variable of the environment, in the spelling that is documented.
    fn variable(&self) -> String {
        format!("{ENV_PREFIX}{}__{}", self.section, self.name).to_uppercase()
    }

    fn is_named_by(&self, variable: &str) -> bool {
        variable == self.variable()
            || variable == format!("{ENV_PREFIX}{}_{}", self.section, self.name).to_uppercase()
    }

    /// Returns the unit that the name ends with, for people.
    fn unit(&self) -> &'static str {
        match () {
            () if !matches!(self.rule, Rule::Whole { .. }) => "",
            () if self.name.ends_with("_ms") || self.name.contains("_ms_") => " ms",
            () if self.name.ends_with("_percent") => " %",
            () if self.name.contains("bytes") => " bytes",
            () => "",
        }
    }

    fn put_text(&self, config: &mut Config, text: &str, origin: Origin, faults: &mut Vec<Fault>) {
        self.put_value(config, self.rule.value_of_text(text), origin, faults);
    }

    fn put_value(
        &self,
        config: &mut Config,
        value: Result<Value, String>,
        origin: Origin,
        faults: &mut Vec<Fault>,
    ) {
        let invalid = |found: String, rule: String| Fault::Invalid {
            origin,
            key: self.path(),
            found,
            rule: format!("{rule}{}", self.unit()),
        };
        match value {
            Err(found) => faults.push(invalid(found, self.rule.to_string())),
            Ok(value) => match self.rule.check(&value) {
                Err(rule) => faults.push(invalid(value.to_string(), rule)),
                Ok(()) if (self.put)(config, &value) => {}
                Ok(()) => faults.push(invalid(value.to_string(), self.rule.to_string())),
            },
        }
    }
}

fn read_file(config: &mut Config, text: &str, faults: &mut Vec<Fault>) {
    let table = match toml::from_str::<toml::Table>(text) {
        Ok(table) => table,
        Err(error) => return faults.push(Fault::Syntax(error.to_string().trim_end().to_owned())),
    };
    for (section, content) in table {
        let toml::Value::Table(keys) = content else {
            faults.push(unknown(Origin::File, &section));
            continue;
        };
        if !SECTIONS.iter().any(|(name, _)| *name == section) {
            faults.push(unknown(Origin::File, &section));
            continue;
        }
        for (name, value) in keys {
            match KEYS.iter().find(|key| key.section == section && key.name == name) {
                Some(key) => key.put_value(config, Value::of_toml(&value), Origin::File, faults),
                None => faults.push(unknown(Origin::File, &format!("{section}.{name}"))),
            }
        }
    }
}

fn read_environment(
    config: &mut Config,
    env: impl IntoIterator<Item = (String, String)>,
    faults: &mut Vec<Fault>,
) {
    let ours: BTreeMap<String, String> = env
        .into_iter()
        .filter(|(name, text)| name.starts_with(ENV_PREFIX) && !is_of_others(name, text))
        .collect();
    let mut seen = Vec::new();
    for (variable, text) in ours {
        let Some(key) = KEYS.iter().find(|key| key.is_named_by(&variable)) else {
            faults.push(unknown(Origin::Environment, &variable));
            continue;
        };
        if seen.contains(&key.path()) {
            faults.push(Fault::Twice { origin: Origin::Environment, key: key.path() });
        }
        seen.push(key.path());
        key.put_text(config, &text, Origin::Environment, faults);
    }
}

/// Tells a variable that is not meant for a node: one of the command line's, or one of those that
/// Kubernetes gives to every process beside a service called `holdfast…`.
fn is_of_others(name: &str, text: &str) -> bool {
    ENV_OF_OTHERS.contains(&name)
        || name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && text.contains("://"))
        || name.split_once("_PORT_").is_some_and(|(_, rest)| rest.starts_with(char::is_numeric))
}

fn unknown(origin: Origin, key: &str) -> Fault {
    let known: Vec<String> = match origin {
        Origin::Environment => KEYS.iter().map(Key::variable).collect(),
        Origin::File if !key.contains('.') => {
            SECTIONS.iter().map(|(name, _)| (*name).to_owned()).collect()
        }
        Origin::File | Origin::Flag => KEYS.iter().map(Key::path).collect(),
    };
    let nearest = known
        .into_iter()
        .min_by_key(|candidate| edit_distance(candidate, key))
        .expect("the table of keys is not empty");
    Fault::Unknown { origin, key: key.to_owned(), nearest }
}

/// Returns how many single-letter edits turn `a` into `b`. Long input is cut at 100 letters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(100).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(100).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Returns the rules between keys that do not hold.
fn contradictions(config: &Config) -> Vec<Fault> {
    let Config { cluster, http, peer, raft, batch, log, .. } = config;
    let segment_need = 4 * batch.entry_bytes_max.max(peer.append_bytes_max);
    let rules: [(bool, &'static str, String); 15] = [
        (
            cluster.sold_retention_ms >= cluster.receipt_retention_ms,
            "cluster.sold_retention_ms must be at least cluster.receipt_retention_ms",
            format!("{} < {}", cluster.sold_retention_ms, cluster.receipt_retention_ms),
        ),
        (
            raft.heartbeat_ms * 2 < raft.pause_after_ms,
            "raft.pause_after_ms must be more than two heartbeats, or one late one pauses a shard",
            format!("2 × {} ≥ {}", raft.heartbeat_ms, raft.pause_after_ms),
        ),
        (
            raft.heartbeat_ms * 2 <= raft.election_min_ms,
            "raft.election_min_ms must be at least two heartbeats",
            format!("{} < 2 × {}", raft.election_min_ms, raft.heartbeat_ms),
        ),
        (
            raft.election_min_ms < raft.election_max_ms,
            "raft.election_min_ms must be less than raft.election_max_ms",
            format!("{} ≥ {}", raft.election_min_ms, raft.election_max_ms),
        ),
        (
            raft.pause_after_ms < raft.lease_ms(),
            "raft.pause_after_ms must be shorter than the lease, which is raft.election_max_ms: \
             memory may answer only while no other node can lead",
            format!("{} ≥ {}", raft.pause_after_ms, raft.lease_ms()),
        ),
        (
            batch.entry_bytes_max <= peer.append_bytes_max,
            "batch.entry_bytes_max must fit in peer.append_bytes_max",
            format!("{} > {}", batch.entry_bytes_max, peer.append_bytes_max),
        ),
        (
            peer.append_bytes_max < peer.frame_bytes_max,
            "peer.append_bytes_max must be less than peer.frame_bytes_max",
            format!("{} ≥ {}", peer.append_bytes_max, peer.frame_bytes_max),
        ),
        (
            peer.chunk_bytes_max < peer.frame_bytes_max,
            "peer.chunk_bytes_max must be less than peer.frame_bytes_max",
            format!("{} ≥ {}", peer.chunk_bytes_max, peer.frame_bytes_max),
        ),
        (
            http.body_bytes_max < peer.frame_bytes_max,
            "http.body_bytes_max must be less than peer.frame_bytes_max, as a body is forwarded \
             in one frame",
            format!("{} ≥ {}", http.body_bytes_max, peer.frame_bytes_max),
        ),
        (
            peer.frame_bytes_max <= peer.queue_bytes_max,
            "peer.frame_bytes_max must fit in peer.queue_bytes_max",
            format!("{} > {}", peer.frame_bytes_max, peer.queue_bytes_max),
        ),
        (
            log.segment_bytes >= segment_need,
            "log.segment_bytes must be at least four of the largest appends",
            format!("{} < {segment_need}", log.segment_bytes),
        ),
        (
            log.hung_ms < log.dead_ms,
            "log.hung_ms must be less than log.dead_ms",
            format!("{} ≥ {}", log.hung_ms, log.dead_ms),
        ),
        (
            http.listen != peer.listen || http.listen.port() == 0,
            "http.listen and peer.listen must differ",
            http.listen.to_string(),
        ),
        (
            !peer.listen.ip().is_unspecified() || peer.advertise.is_some(),
            "peer.advertise must be set when peer.listen is every address, as peers cannot dial it",
            peer.listen.to_string(),
        ),
        (
            !http.listen.ip().is_unspecified() || http.advertise.is_some(),
            "http.advertise must be set when http.listen is every address, as clients are told it",
            http.listen.to_string(),
        ),
    ];
    rules
        .into_iter()
        .filter(|(holds, _, _)| !holds)
        .map(|(_, rule, found)| Fault::Contradiction { rule, found })
        .collect()
}
