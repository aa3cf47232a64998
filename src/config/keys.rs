//! The table of keys: section, name, type, default, rule, and what it is for.
//!
//! A doc comment in here is both the field's documentation and the comment in
//! `config/holdfast.toml`. The unit is the end of the name: `_ms` milliseconds, `_bytes` bytes,
//! `_percent` percent, nothing for counts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::rule::{LogFormat, LogLevel, Rule, Setting, Switch, Value};

/// One key: how it is called, what it may be, and where it lives in a [`Config`].
pub(super) struct Key {
    /// Its section.
    pub(super) section: &'static str,
    /// Its name in the section.
    pub(super) name: &'static str,
    /// Its doc comment, a line each.
    pub(super) docs: &'static [&'static str],
    /// Its type and bounds.
    pub(super) rule: Rule,
    /// Sets it; `false` when the value does not fit the field's type.
    pub(super) put: fn(&mut Config, &Value) -> bool,
    /// Reads it.
    pub(super) show: fn(&Config) -> Value,
}

const fn whole(min: u64, max: u64) -> Rule {
    Rule::Whole { min, max }
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;

macro_rules! keys {
    ($(
        $(#[doc = $section_doc:literal])+
        $section:ident: $Section:ident {
            $(
                $(#[doc = $doc:literal])+
                $name:ident: $kind:ty = $default:expr, $rule:expr;
            )+
        }
    )+) => {
        /// A node's configuration: every value within its bounds, all of them fitting together.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Config {
            $($(#[doc = $section_doc])+ pub $section: $Section,)+
        }

        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $Section {
                $($(#[doc = $doc])+ pub $name: $kind,)+
            }

            impl Default for $Section {
                fn default() -> $Section {
                    $Section { $($name: $default,)+ }
                }
            }
        )+

        /// The sections in the order of the file, with their doc comments.
        pub(super) static SECTIONS: &[(&str, &[&str])] =
            &[$((stringify!($section), &[$($section_doc),+]),)+];

        /// Every key in the order of the file.
        pub(super) static KEYS: &[Key] = &[$($(
            Key {
                section: stringify!($section),
                name: stringify!($name),
                docs: &[$($doc),+],
                rule: $rule,
                put: |config, value| match <$kind>::of_value(value) {
                    Some(value) => {
                        config.$section.$name = value;
                        true
                    }
                    None => false,
                },
                show: |config| config.$section.$name.to_value(),
            },
        )+)+];
    };
}

keys! {
    /// What all nodes agree on for the life of the cluster. `holdfast cluster init --config FILE`
    /// proposes these, once; without a file it proposes the defaults. From then on the cluster's
    /// identity counts, and what a node's own file says in this section is passed over.
    cluster: Cluster {
        /// Raft groups that the items are spread over. Each has its own leader, so more than one
        /// lets several machines share the work; on one machine they only cost.
        shards: u16 = 4, whole(1, 64);
        /// Partitions of a bucket's holds, so that no map and no page grows large.
        slots: u16 = 256, whole(1, 1024);
        /// Due holds that one log entry expires, beyond what its own commands need. Bounds the
        /// stall when a million holds fall due in one second.
        sweep_max: u32 = 512, whole(1, 65_536);
        /// How long the answer to an idempotency key outlives the greatest lifetime that its hold
        /// could have had. A client that retries later than this may buy twice.
        receipt_retention_ms: u64 = DAY_MS, whole(MINUTE_MS, 366 * DAY_MS);
        /// How long a sold hold keeps a record that can be returned. At least the receipts' time.
        sold_retention_ms: u64 = 90 * DAY_MS, whole(MINUTE_MS, 3660 * DAY_MS);
    }

    /// This node.
    node: Node {
        /// Where the log, the pages and the identity live. One node, one directory, and a disk that
        /// means it when it says "synced".
        data_dir: PathBuf = PathBuf::from("data"), Rule::Path;
        /// The region that this node stands in; leaders of a region's buckets prefer its nodes.
        region: String = "default".to_owned(), Rule::Name;
        /// What people call this node in logs and tables; its number when empty.
        name: Option<String> = None, Rule::OptionalName;
        /// Threads that carry the shards, each with its own event loop; with fewer than shards they
        /// share them. 0 takes as many as there are cores: more threads than those only wake each
        /// other.
        shard_threads: u16 = 0, whole(0, 256);
        /// The newest schema version that this node reads and writes. Below this build's own it is,
        /// in this respect, the older build: to keep the way back open for as long as it is set
        /// anywhere (`holdfast cluster upgrade` is refused), and for drills.
        schema_max: u16 = 2, whole(1, 2);
    }

    /// The listener for services and operators.
    http: Http {
        /// Where it listens.
        listen: SocketAddr = loopback(7101), Rule::Listen;
        /// Where clients reach it, for redirects and leader hints; the listening address when
        /// empty.
        advertise: Option<String> = None, Rule::OptionalAuthority;
        /// Threads that serve HTTP, each with its own event loop. 0 takes half of the cores, at
        /// least 1: the shards need the other half.
        threads: u16 = 0, whole(0, 256);
        /// The largest body of a request; more is answered 413.
        body_bytes_max: u64 = MIB, whole(KIB, 16 * MIB);
        /// How long a client may take to send a request's head.
        header_timeout_ms: u64 = 5_000, whole(100, 10 * MINUTE_MS);
        /// How long a client may take to send a request's body.
        body_timeout_ms: u64 = 10_000, whole(100, 10 * MINUTE_MS);
        /// How long a connection may stay silent between two requests.
        idle_timeout_ms: u64 = MINUTE_MS, whole(100, 60 * MINUTE_MS);
        /// Connections at once; more are closed at once.
        connections_max: usize = 10_000, whole(1, 1_000_000);
        /// How long a stopping node waits for requests that it has begun.
        drain_ms: u64 = 5_000, whole(0, 10 * MINUTE_MS);
    }

    /// The listener for the other nodes, and the connections to them.
    peer: Peer {
        /// Where it listens.
        listen: SocketAddr = loopback(7201), Rule::Listen;
        /// Where the other nodes reach it; the listening address when empty.
        advertise: Option<String> = None, Rule::OptionalAuthority;
        /// The largest frame between two nodes; a longer one closes the connection.
        frame_bytes_max: u64 = 4 * MIB, whole(64 * KIB, 64 * MIB);
        /// Log entries in one append message.
        append_bytes_max: u64 = MIB, whole(16 * KIB, 16 * MIB);
        /// Pages in one message of a checkpoint that is being sent.
        chunk_bytes_max: u64 = MIB, whole(16 * KIB, 16 * MIB);
        /// Connections from other nodes at once.
        connections_max: usize = 1_024, whole(1, 65_536);
        /// Requests of one connection that are sent and not answered.
        in_flight_max: usize = 1_024, whole(1, 1_000_000);
        /// Requests that may wait to be sent on one connection; more are refused at once.
        queue_max: usize = 8_192, whole(1, 1_000_000);
        /// Bytes that may wait to be sent on one connection; more are refused at once.
        queue_bytes_max: u64 = 16 * MIB, whole(MIB, GIB);
        /// How long connecting to a node and shaking hands with it may take.
        connect_timeout_ms: u64 = 1_000, whole(10, MINUTE_MS);
        /// How long an accepted connection may take to say who it is.
        handshake_timeout_ms: u64 = 2_000, whole(10, MINUTE_MS);
        /// How long one message of a checkpoint may take: the receiver writes it to its disk.
        chunk_timeout_ms: u64 = 10_000, whole(100, 10 * MINUTE_MS);
        /// How long sent bytes may stay unacknowledged before the system gives up the connection.
        /// Without it a connection hangs for tens of seconds after a partition has healed.
        tcp_user_timeout_ms: u64 = 2_000, whole(100, 10 * MINUTE_MS);
    }

    /// Elections and the lease. Must be the same on every node: a follower's promise not to vote is
    /// what the leader's freshness stands on.
    raft: Raft {
        /// How often a leader tells its followers that it lives.
        heartbeat_ms: u64 = 50, whole(5, 10_000);
        /// The least time without a leader after which a node stands for election.
        election_min_ms: u64 = 200, whole(20, MINUTE_MS);
        /// The greatest such time. It is the lease as well, and a node with a log opens its peer
        /// port no sooner than this after its start, as it has forgotten whom it promised.
        election_max_ms: u64 = 400, whole(40, MINUTE_MS);
        /// The age of the last quorum acknowledgement at which a shard pauses and memory may not
        /// answer any more. More than two heartbeats, less than the lease.
        pause_after_ms: u64 = 300, whole(10, MINUTE_MS);
        /// A shard's leadership goes back to the node that is meant to have it at most this often,
        /// and only when that node lacks nothing.
        prefer_every_ms: u64 = MINUTE_MS, whole(100, DAY_MS);
    }

    /// From a request to a log entry: the queue and the batcher of one shard.
    batch: Batch {
        /// The largest log entry. Commands beyond it wait for the next one.
        entry_bytes_max: u64 = 64 * KIB, whole(4 * KIB, 4 * MIB);
        /// Log entries proposed and not yet applied. Two keep the disk and the network both busy.
        entries_in_flight: usize = 2, whole(1, 16);
        /// Requests in whose way only units in flight stand, and which wait for those to be
        /// decided; more are answered `overloaded`.
        park_max: usize = 4_096, whole(0, 1_000_000);
        /// Commands that may wait for the batcher; more are answered `overloaded`, nothing taken.
        queue_max: usize = 65_536, whole(16, 10_000_000);
        /// How long a command may wait for the batcher; older ones are answered `overloaded`.
        queue_age_ms_max: u64 = 500, whole(1, MINUTE_MS);
        /// The part of the queue that only confirm, release and extend may take, so that a rush of
        /// placements can never keep a paid hold from being confirmed.
        finish_lane_percent: u16 = 25, whole(1, 90);
    }

    /// Stock between the buckets of an item that is spread over several.
    stock: Stock {
        /// How long a placement waits at a dry bucket for stock from the others.
        wait_ms_max: u64 = 250, whole(0, 10_000);
        /// Placements that wait so on this node at once; more are refused at once.
        waiters_max: usize = 4_096, whole(0, 1_000_000);
        /// How long ago the moment may be at which nothing was free anywhere, for `sold-out`.
        sold_out_age_ms_max: u64 = 100, whole(1, 10_000);
        /// The least time between two looks at all buckets of one item for such a verdict.
        collect_every_ms: u64 = 50, whole(1, 10_000);
        /// What a bucket may have under way, in percent of the item's total: what a partition can
        /// strand. At least one unit, and what the largest request that waits asks for.
        transit_percent_max: u16 = 5, whole(1, 100);
    }

    /// The write-ahead log, one for all shards of the node.
    log: Log {
        /// The size of one segment, written full of zeros before its use.
        segment_bytes: u64 = 64 * MIB, whole(MIB, 4 * GIB);
        /// The latest entries of one shard that are kept in memory for followers and for apply.
        memory_tail_bytes: u64 = 64 * MIB, whole(MIB, 64 * GIB);
        /// Writes that may wait for the disk thread; beyond it shards wait, and their queues shed.
        queue_max: usize = 4_096, whole(16, 1_000_000);
        /// The age of the oldest unsynced append at which the node hands its leaderships over.
        hung_ms: u64 = 500, whole(10, 10 * MINUTE_MS);
        /// The age of the oldest unsynced append at which the node stops.
        dead_ms: u64 = 10_000, whole(100, 60 * MINUTE_MS);
        /// A file of zeros that is given up on a full disk, so that one checkpoint can be written
        /// and the log purged. 0 keeps none.
        ballast_bytes: u64 = 64 * MIB, whole(0, 64 * GIB);
    }

    /// The wall clock. Must be the same on every node.
    clock: Clock {
        /// How far this node's clock may be from those of a majority of all members. Beyond it the
        /// node does not lead: it hands leadership over, does not stand for election, and says so.
        offset_ms_max: u64 = 2_000, whole(100, MINUTE_MS);
    }

    /// When a shard writes what has changed to its pages. The first that is reached counts.
    checkpoint: Checkpoint {
        /// Bytes of log since the last one.
        log_bytes: u64 = 128 * MIB, whole(64 * KIB, 64 * GIB);
        /// Commands since the last one.
        commands: u64 = 1_000_000, whole(100, 1_000_000_000);
        /// Time since the last one, when anything has changed.
        interval_ms: u64 = 30_000, whole(100, DAY_MS);
        /// Pages that are encoded in one go between two log entries: at most a millisecond's work.
        cut_pages: usize = 32, whole(1, 65_536);
    }

    /// Memory that is touched before it is needed.
    memory: Memory {
        /// A pool that is touched at start, since the first touch of a page costs 2–12 µs in a
        /// virtual machine. 0 is off.
        warm_bytes: u64 = 0, whole(0, 1 << 40);
        /// Whether memory is asked for in pages of 2 MiB where the system has them (Linux with
        /// transparent huge pages): one first touch in place of 512, and fewer misses on the way to
        /// a hold. The process starts itself once more for it.
        huge_pages: Switch = Switch::On, Rule::OneOf(Switch::WORDS);
    }

    /// What the node says on standard error.
    log_output: LogOutput {
        /// How much.
        level: LogLevel = LogLevel::Info, Rule::OneOf(LogLevel::WORDS);
        /// For people or for programs.
        format: LogFormat = LogFormat::Text, Rule::OneOf(LogFormat::WORDS);
    }
}
