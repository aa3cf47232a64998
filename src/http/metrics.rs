//! `/metrics`: what the node's status and the counts of the calls say, as Prometheus text. Labels
//! are bounded: never an item, a buyer or a tenant.

mod stock;

use std::fmt::Error;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::call::Call;
use super::count::{Counts, MICROS, STATUSES};
use super::front::Front;
use super::problem::Failure;
use super::route::Route;
use super::{health, wire};
use crate::api::ProblemKind;
use crate::ledger::PauseReason;
use crate::shard::{Histogram, NodeStatus, Role, ShardStatus};

/// `GET /metrics`
pub(crate) fn answer(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let text = text(front.desk.status(), &front.counts)
        .map_err(|_| Failure::new(ProblemKind::Internal, "The metrics could not be written."))?;
    let mut response = wire::text(StatusCode::OK, text);
    let kind = HeaderValue::from_static(prometheus_text::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

fn text(status: NodeStatus, counts: &Counts) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Sample { status, http: HttpSample::of(counts) }));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

type Labels = Vec<(&'static str, String)>;

/// Everything that is shown, at one moment.
#[derive(Debug)]
struct Sample {
    status: NodeStatus,
    http: HttpSample,
}

#[derive(Debug)]
struct HttpSample {
    answered: Vec<(Labels, f64)>,
    took: Vec<(Labels, Histogram)>,
    in_flight: f64,
    connections: f64,
    refused: f64,
}

impl HttpSample {
    fn of(counts: &Counts) -> HttpSample {
        let mut answered = Vec::new();
        let mut took = Vec::new();
        let unrouted = std::iter::once(("none", &counts.unrouted));
        let routed =
            Route::ALL.iter().map(|route| (route.word(), &counts.answered[*route as usize]));
        for (word, row) in routed.chain(unrouted) {
            for (status, count) in STATUSES.iter().zip(row) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = vec![("route", word.to_owned()), ("status", status.to_string())];
                    answered.push((labels, float(count)));
                }
            }
        }
        for route in Route::ALL {
            let row = &counts.took[*route as usize];
            let counts_of: Vec<u64> = row.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            if counts_of.iter().any(|n| *n > 0) {
                let sum = counts.took_micros[*route as usize].load(Ordering::Relaxed);
                let histogram = Histogram {
                    bounds: MICROS.iter().map(|us| float(*us) / 1e6).collect(),
                    counts: counts_of,
                    sum: float(sum) / 1e6,
                };
                took.push((vec![("route", route.word().to_owned())], histogram));
            }
        }
        HttpSample {
            answered,
            took,
            in_flight: float(counts.in_flight.load(Ordering::Relaxed).max(0).unsigned_abs()),
            connections: float(u64::try_from(counts.connections.open()).unwrap_or(u64::MAX)),
            refused: float(counts.connections.refused()),
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn float(n: u64) -> f64 {
    n as f64
}

fn flag(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

/// Writes one family after another.
struct Writer<'e>(DescriptorEncoder<'e>);

impl Writer<'_> {
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            let mut row = family.encode_family(&labels)?;
            row.encode_counter::<NoLabelSet, f64, f64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, &'h Histogram)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, histogram) in rows {
            let bounds = histogram.bounds.iter().copied().chain([f64::INFINITY]);
            let filled = histogram.counts.iter().copied().chain(std::iter::repeat(0));
            let buckets: Vec<(f64, u64)> = bounds.zip(filled).collect();
            let count = buckets.iter().map(|(_, n)| n).sum();
            let mut row = family.encode_family(&labels)?;
            row.encode_histogram::<NoLabelSet>(histogram.sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

impl Collector for Sample {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut writer = Writer(encoder);
        self.http(&mut writer)?;
        self.node(&mut writer)?;
        self.shards(&mut writer)?;
        self.traffic(&mut writer)?;
        self.digests(&mut writer)?;
        self.stock(&mut writer)?;
        self.ledger(&mut writer)
    }
}

impl Sample {
    fn each<'s>(
        &'s self,
        value: impl Fn(&'s ShardStatus) -> f64 + 's,
    ) -> impl Iterator<Item = (Labels, f64)> + 's {
        self.status.shards.iter().map(move |shard| (shard_label(shard), value(shard)))
    }

    fn http(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        let none = Labels::new;
        w.counters(
            "holdfast_http_requests",
            "Calls answered, by route and status",
            self.http.answered.iter().cloned(),
        )?;
        w.gauges(
            "holdfast_http_requests_in_flight",
            "Calls being answered",
            [(none(), self.http.in_flight)],
        )?;
        w.histograms(
            "holdfast_http_request_duration_seconds",
            "Time from a call's head to its answer",
            self.http.took.iter().map(|(labels, histogram)| (labels.clone(), histogram)),
        )?;
        w.gauges(
            "holdfast_http_connections",
            "Connections open",
            [(none(), self.http.connections)],
        )?;
        w.counters(
            "holdfast_http_connections_refused",
            "Connections turned away because too many were open",
            [(none(), self.http.refused)],
        )
    }

    fn node(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        let status = &self.status;
        let none = Labels::new;
        let info = vec![
            ("node", status.node.to_string()),
            ("name", status.name.clone().unwrap_or_else(|| status.node.to_string())),
            ("region", status.region.clone()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        w.gauges("holdfast_node_info", "Always 1; the labels say who it is", [(info, 1.0)])?;
        w.gauges(
            "holdfast_ready",
            "Whether /readyz says that the node is ready",
            [(none(), flag(health::reasons(status).is_empty()))],
        )?;
        w.gauges(
            "holdfast_uptime_seconds",
            "Time since the node started",
            [(none(), float(status.uptime_ms) / 1e3)],
        )?;
        let log = &status.log;
        w.gauges(
            "holdfast_log_segments",
            "Segment files of the log",
            [(none(), float(log.segments))],
        )?;
        w.gauges("holdfast_log_bytes", "Bytes in the segments", [(none(), float(log.bytes))])?;
        w.counters("holdfast_log_syncs", "Syncs of the log", [(none(), float(log.syncs))])?;
        w.gauges(
            "holdfast_log_oldest_unsynced_seconds",
            "Age of the oldest append that is not synced",
            [(none(), float(log.oldest_unsynced_ms.unwrap_or(0)) / 1e3)],
        )?;
        w.gauges(
            "holdfast_log_failed",
            "Whether the log takes nothing any more",
            [(none(), flag(log.failed.is_some()))],
        )?;
        w.gauges(
            "holdfast_disk_free_bytes",
            "Free bytes on the log's disk",
            [(none(), float(log.disk_free_bytes))],
        )?;
        let quantile = |word: &str, us: u64| (vec![("quantile", word.to_owned())], float(us) / 1e6);
        w.gauges(
            "holdfast_log_sync_duration_seconds",
            "Time that a sync of the log took, since the start",
            [
                quantile("0.5", log.sync_p50_us),
                quantile("0.99", log.sync_p99_us),
                quantile("1", log.sync_max_us),
            ],
        )?;
        self.health(w)
    }

    /// Clocks, disk, and whether the node leads and takes part at all.
    fn health(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        let status = &self.status;
        let (none, log) = (Labels::new, &status.log);
        let flags: [(&str, &str, bool); 7] = [
            ("holdfast_stopped", "Whether the node's part has ended", status.stopped.is_some()),
            (
                "holdfast_abstains",
                "Whether the node does not stand for election",
                status.abstains.is_some(),
            ),
            ("holdfast_clock_agrees", "Whether a majority's clocks agree", status.clocks.agrees),
            (
                "holdfast_clock_wild",
                "Whether the clock is further from a majority's than allowed",
                status.clocks.wild,
            ),
            (
                "holdfast_disk_full",
                "Whether places are shed for want of room",
                status.log.disk_full,
            ),
            (
                "holdfast_ballast_released",
                "Whether the ballast was given up",
                status.log.ballast_released,
            ),
            (
                "holdfast_log_housekeeping_failed",
                "Whether a segment could not be prepared or removed",
                status.log.housekeeping.is_some(),
            ),
        ];
        for (name, help, on) in flags {
            w.gauges(name, help, [(none(), flag(on))])?;
        }
        w.gauges(
            "holdfast_log_waits_for_room_seconds",
            "How long the log has been waiting for room on the disk",
            [(none(), float(log.waits_for_room_ms.unwrap_or(0)) / 1e3)],
        )?;
        w.gauges(
            "holdfast_clock_offset_allowed_seconds",
            "How far clocks may be apart before a node does not lead",
            [(none(), float(status.clocks.offset_ms_max) / 1e3)],
        )?;
        let offsets = status.clocks.offset_ms.iter();
        w.gauges(
            "holdfast_clock_offset_seconds",
            "A peer's clock minus this node's",
            offsets.map(|(node, ms)| (vec![("peer", node.to_string())], *ms as f64 / 1e3)),
        )
    }

    /// The comparison of digests.
    fn digests(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        w.counters(
            "holdfast_digest_comparisons",
            "Comparisons of replicas in which a majority was alike",
            self.each(|s| float(s.digests.compared)),
        )?;
        w.counters(
            "holdfast_digest_mismatches",
            "Replicas found that differ, and comparisons without a majority",
            self.each(|s| float(s.digests.mismatches)),
        )?;
        w.counters(
            "holdfast_replica_rebuilds",
            "Times that this replica was built anew because it differed",
            self.each(|s| float(s.digests.rebuilt)),
        )?;
        w.gauges(
            "holdfast_digest_trouble",
            "Whether this replica differs, or no majority agrees: call a human",
            self.each(|s| flag(s.digests.trouble.is_some())),
        )
    }

    fn shards(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        w.gauges(
            "holdfast_shard_leading",
            "Whether this node leads the shard",
            self.each(|s| flag(s.role == Role::Leader)),
        )?;
        w.gauges(
            "holdfast_shard_preferred_node",
            "The node that is meant to lead the shard when all is well",
            self.each(|s| float(s.preferred.map_or(0, |node| node.0))),
        )?;
        w.counters(
            "holdfast_shard_homecomings",
            "Leaderships that this node has handed to the node that is meant to have them",
            self.each(|s| float(s.homecomings)),
        )?;
        w.gauges(
            "holdfast_shard_leader_known",
            "Whether this node knows who leads the shard",
            self.each(|s| flag(s.leader.is_some())),
        )?;
        w.gauges("holdfast_shard_term", "The Raft term", self.each(|s| float(s.term)))?;
        w.gauges(
            "holdfast_shard_last_log_index",
            "The last index in the replica's log",
            self.each(|s| float(s.last_log.0)),
        )?;
        w.gauges(
            "holdfast_shard_applied_index",
            "The last index applied",
            self.each(|s| float(s.applied.0)),
        )?;
        w.gauges(
            "holdfast_shard_purged_index",
            "The index up to which the log is purged",
            self.each(|s| float(s.purged.0)),
        )?;
        let leading = self
            .status
            .shards
            .iter()
            .filter_map(|shard| Some((shard_label(shard), float(shard.quorum_age_ms?) / 1e3)));
        w.gauges(
            "holdfast_shard_quorum_age_seconds",
            "Time since a quorum last acknowledged this leader",
            leading,
        )?;
        const REASONS: [PauseReason; 5] = [
            PauseReason::QuorumLost,
            PauseReason::Operator,
            PauseReason::Moving,
            PauseReason::Invariant,
            PauseReason::Restoring,
        ];
        let paused = self.status.shards.iter().flat_map(|shard| {
            REASONS.into_iter().map(move |reason| {
                let mut labels = shard_label(shard);
                labels.push(("reason", reason.word().to_owned()));
                (labels, flag(shard.paused == Some(reason)))
            })
        });
        w.gauges("holdfast_shard_paused", "Whether the shard grants nothing, and why", paused)?;
        w.gauges(
            "holdfast_shard_failed",
            "Whether the replica failed",
            self.each(|s| flag(s.failed.is_some())),
        )?;
        w.gauges(
            "holdfast_shard_ledger_time_seconds",
            "Ledger time, since 1970",
            self.each(|s| float(s.ledger_now.0) / 1e3),
        )?;
        w.gauges(
            "holdfast_checkpoint_index",
            "The index of the last checkpoint",
            self.each(|s| float(s.checkpoint.0)),
        )?;
        w.gauges(
            "holdfast_checkpoint_bytes",
            "Bytes of the two page databases",
            self.each(|s| float(s.checkpoint_bytes)),
        )?;
        w.counters(
            "holdfast_checkpoint_failures",
            "Checkpoints that could not be made since the start",
            self.each(|s| float(s.checkpoint_failures)),
        )
    }

    fn traffic(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        w.counters("holdfast_grants", "Holds granted", self.each(|s| float(s.traffic.granted)))?;
        w.counters(
            "holdfast_replays",
            "Answers that had been given before",
            self.each(|s| float(s.traffic.replayed)),
        )?;
        let refused = self.status.shards.iter().flat_map(|shard| {
            shard.traffic.refused.iter().map(move |(reason, count)| {
                let mut labels = shard_label(shard);
                labels.push(("reason", reason.clone()));
                (labels, float(*count))
            })
        });
        w.counters("holdfast_refusals", "Definite noes, by problem", refused)?;
        type Of = fn(&ShardStatus) -> u64;
        let counters: [(&str, &str, Of); 7] = [
            ("holdfast_answered_from_memory", "Answers that needed no log write", |s| {
                s.traffic.from_memory
            }),
            ("holdfast_unknown_outcomes", "Calls answered outcome-unknown", |s| s.traffic.unknown),
            ("holdfast_paused_refusals", "Calls refused because the shard was paused", |s| {
                s.traffic.paused
            }),
            ("holdfast_shed", "Calls shed because too much was queued", |s| s.traffic.shed),
            ("holdfast_forwarded", "Calls forwarded to a leader elsewhere", |s| {
                s.traffic.forwarded
            }),
            ("holdfast_commands", "Commands proposed", |s| s.traffic.commands),
            ("holdfast_entries", "Log entries proposed", |s| s.traffic.entries),
        ];
        for (name, help, of) in counters {
            w.counters(name, help, self.each(move |s| float(of(s))))?;
        }
        let gauges: [(&str, &str, Of); 3] = [
            ("holdfast_queue_depth", "Calls waiting in the gate", |s| s.traffic.queued),
            ("holdfast_keys_in_flight", "Keys whose entry is not decided", |s| s.traffic.in_flight),
            ("holdfast_parked", "Calls parked until entries are decided", |s| s.traffic.parked),
        ];
        for (name, help, of) in gauges {
            w.gauges(name, help, self.each(move |s| float(of(s))))?;
        }
        type Times = fn(&ShardStatus) -> &Histogram;
        let histograms: [(&str, &str, Times); 3] = [
            ("holdfast_commit_duration_seconds", "Time from proposal to answer", |s| {
                &s.traffic.commit_seconds
            }),
            ("holdfast_apply_duration_seconds", "Time that applying an entry took", |s| {
                &s.traffic.apply_seconds
            }),
            ("holdfast_batch_commands", "Commands in an entry", |s| &s.traffic.batch_commands),
        ];
        for (name, help, of) in histograms {
            let rows = self.status.shards.iter().map(move |s| (shard_label(s), of(s)));
            w.histograms(name, help, rows)?;
        }
        Ok(())
    }

    fn ledger(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        w.gauges("holdfast_items", "Items that exist", self.each(|s| float(s.figures.items)))?;
        let by_state = |of: fn(&ShardStatus) -> [(&'static str, u64); 3]| {
            self.status.shards.iter().flat_map(move |shard| {
                of(shard).map(|(state, count)| {
                    let mut labels = shard_label(shard);
                    labels.push(("state", state.to_owned()));
                    (labels, float(count))
                })
            })
        };
        let holds = by_state(|s| {
            let f = &s.figures;
            [("held", f.holds_held), ("sold", f.holds_sold), ("ended", f.holds_ended)]
        });
        w.gauges("holdfast_holds", "Holds that are remembered, by state", holds)?;
        let units = by_state(|s| {
            let f = &s.figures;
            [("available", f.units_available), ("held", f.units_held), ("sold", f.units_sold)]
        });
        w.gauges("holdfast_units", "Units, by state", units)?;
        w.counters(
            "holdfast_expiries",
            "Holds that expired since the ledger was loaded",
            self.each(|s| float(s.figures.expired)),
        )?;
        w.gauges(
            "holdfast_pages_dirty",
            "Pages that the next checkpoint writes",
            self.each(|s| float(s.figures.pages_dirty)),
        )?;
        w.gauges(
            "holdfast_invariant_failures",
            "Items paused because a law was found broken",
            self.each(|s| float(s.figures.invariant_broken)),
        )
    }
}

fn shard_label(shard: &ShardStatus) -> Labels {
    vec![("shard", shard.shard.to_string())]
}
