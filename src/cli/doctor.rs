//! `holdfast doctor`: looks at the data directory of a node that does not run, and changes nothing.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;

use super::picture::{bar, size, trouble};
use super::{Failure, Reach};
use crate::node::inspection::{
    Closeness, DatabaseFacts, DatabaseState, Inspection, Kind, LogFacts, LogVerdict, Severity,
    inspect,
};
use crate::storage::DataDirError;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast doctor /var/lib/holdfast
  holdfast doctor --json /var/lib/holdfast | jq '.findings[] | select(.severity == \"broken\")'
  holdfast doctor --quick /var/lib/holdfast && systemctl start holdfast

Changes nothing in the directory. Exit codes:
  0  sound: the node starts
  1  this node cannot take part as it is; what to do is said
  2  no node's data: not a directory, empty, or something else's
  3  a node runs in it: ask that one (`holdfast status`)
  4  the node starts, and there is something to act on")]
pub(super) struct Doctor {
    /// The data directory (`node.data_dir`).
    dir: PathBuf,
    /// Look at names, lengths and headers of the page databases only; the log is read in any case.
    #[arg(long)]
    quick: bool,
    /// Where page databases are copied to, one at a time, to recompute their digests.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

impl Doctor {
    pub(super) fn run(self, reach: &Reach) -> Result<(), Failure> {
        let voice = reach.voice();
        let scratch = self.scratch.unwrap_or_else(std::env::temp_dir);
        let how = Closeness { scratch, reads_pages: !self.quick };
        let found = inspect(&self.dir, &how).map_err(|error| match error {
            DataDirError::InUse { .. } => Failure::Unavailable(format!(
                "{error}. Ask that node (`holdfast status`), or stop it first"
            )),
            DataDirError::Io { .. } => Failure::Usage(error.to_string()),
        })?;
        if voice.is_json() {
            let json = serde_json::to_string(&found).map_err(std::io::Error::other)?;
            voice.line(&json);
        } else {
            voice.line(screen(&found).trim_end());
        }
        verdict(&found)
    }
}

/// What the exit code says.
fn verdict(found: &Inspection) -> Result<(), Failure> {
    let dir = &found.dir;
    match (found.kind, found.worst) {
        (Kind::NotOurs, _) => {
            Err(Failure::Usage(format!("{dir} is no data directory of holdfast")))
        }
        (Kind::Empty, _) => Err(Failure::Usage(format!(
            "{dir} has no node's data in it. Is its disk mounted? A node that starts here is new: \
             it waits for `holdfast cluster init` or joins with `holdfast serve --join`"
        ))),
        (Kind::Node, Some(Severity::Broken)) => {
            Err(Failure::Broken("this node cannot take part as it is: see above".to_owned()))
        }
        (Kind::Node, Some(Severity::Warning)) => {
            Err(Failure::Attention("the node starts, and there is something to act on".to_owned()))
        }
        (Kind::Node, Some(Severity::Note) | None) => Ok(()),
    }
}

/// The whole picture for people.
fn screen(found: &Inspection) -> String {
    let mut text = String::new();
    if found.kind != Kind::Node {
        return text;
    }
    // Writing to a String does not fail.
    let _ = writeln!(text, "{}", head(found));
    if let Some(log) = &found.log {
        let _ = writeln!(text, "{}", log_line(log));
    }
    for shard in &found.shards {
        let vote = shard.vote.map_or_else(
            || "no vote".to_owned(),
            |vote| {
                let how = if vote.committed { "follows" } else { "voted for" };
                format!("{how} node {} in term {}", vote.node, vote.term)
            },
        );
        let index = |at: Option<u64>| at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        let log = format!("log {}..{}", index(shard.purged), index(shard.last));
        let _ = writeln!(text, "shard {:<3} {log:<24} {vote}", shard.shard.to_string());
        for database in &shard.databases {
            let starts = shard.starts_from == Some(database.name);
            let _ = writeln!(text, "{}", database_line(database, starts));
        }
    }
    let disk = &found.disk;
    if let Some(free) = disk.free_bytes {
        let used = disk.used_bytes;
        let _ = writeln!(
            text,
            "disk      {}  {} here, {} free, ballast {}",
            bar(used, used.saturating_add(free), 10),
            size(used),
            size(free),
            size(disk.ballast_bytes)
        );
    }
    let _ = writeln!(text);
    for finding in &found.findings {
        let mark = match finding.severity {
            Severity::Broken => "✗",
            Severity::Warning => "!",
            Severity::Note => "·",
        };
        let _ = writeln!(text, "{}", trouble(mark, &finding.what, &finding.why, &finding.act));
    }
    let last = match found.worst {
        None => "sound: the node starts",
        Some(Severity::Note) => "sound: the node starts, and deals with the above itself",
        Some(Severity::Warning) => "the node starts; act on the above",
        Some(Severity::Broken) => "this node cannot take part as it is",
    };
    let _ = writeln!(text, "{last}");
    text
}

fn head(found: &Inspection) -> String {
    match &found.identity {
        Some(identity) => format!(
            "{}\nnode {} of cluster {}   region {}   format {}   schema {}   log {}",
            found.dir,
            identity.node,
            identity.cluster_id,
            identity.region,
            identity.format,
            found.schema_version,
            identity.log_uuid
        ),
        None => format!("{}\nwhose data this is cannot be read", found.dir),
    }
}

fn log_line(log: &LogFacts) -> String {
    let word = match log.verdict {
        LogVerdict::Whole => "whole",
        LogVerdict::Torn => "torn tail",
        LogVerdict::Damaged => "DAMAGED",
        LogVerdict::Lost => "LOST",
        LogVerdict::Foreign => "FOREIGN",
        LogVerdict::Unreadable => "UNREADABLE",
    };
    if log.segments == 0 {
        return format!("log       {word}, {} in files", size(log.bytes));
    }
    format!(
        "log       {word}: {} frames, synced up to {}, {} of {} and {} spare ({})",
        log.frames,
        log.synced,
        if log.segments == 1 {
            "1 segment".to_owned()
        } else {
            format!("{} segments", log.segments)
        },
        size(log.segment_bytes),
        log.spares,
        size(log.bytes)
    )
}

fn database_line(database: &DatabaseFacts, starts: bool) -> String {
    let name = database.name;
    let mark = if starts { "►" } else { " " };
    match database.state {
        DatabaseState::Empty => format!("  {mark} {name}     empty"),
        DatabaseState::Unfinished => {
            format!("  {mark} {name}     unfinished ({})", size(database.file_bytes))
        }
        DatabaseState::Damaged => {
            format!("  {mark} {name}     DAMAGED ({})", size(database.file_bytes))
        }
        DatabaseState::Foreign => {
            format!("  {mark} {name}     FOREIGN ({})", size(database.file_bytes))
        }
        DatabaseState::Good => {
            let digest = database.digest.as_deref().unwrap_or_default();
            let proof = match database.digest_holds {
                Some(true) => "recomputed",
                Some(false) => "WRONG",
                None => "as its header says",
            };
            format!(
                "  {mark} {name}     good: #{} at index {}, {} pages of {} in {}, digest {} \
                 ({proof})",
                database.sequence.unwrap_or_default(),
                database.index.map_or_else(|| "-".to_owned(), |at| at.to_string()),
                database.pages,
                size(database.page_bytes),
                size(database.file_bytes),
                digest.get(..8).unwrap_or(digest)
            )
        }
    }
}
