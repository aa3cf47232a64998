//! Stock: availability, the audit's sums, and what is sold out.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;

use super::call::Call;
use super::front::Front;
use super::holds::layout;
use super::problem::{Failure, Stamp, not_found};
use super::wire;
use crate::api::{self, ProblemKind, SaleState};
use crate::ledger::{
    Astray, Availability, BucketId, Found, ItemName, ItemNumber, Mode, Query, ShardId, UnixMs,
};
use crate::shard::Consistency;

/// `GET /v1/items/{item}/availability`
pub(crate) async fn availability(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["consistency", "detail"])?;
    let consistency = parameters.consistency(Consistency::Local)?;
    let detail = match parameters.text("detail") {
        None => false,
        Some("buckets") => true,
        Some(_) => return Err(Failure::malformed("`detail` is `buckets`.")),
    };
    let name = call.item()?;
    let (shards, home) = layout(front, call, &name, consistency).await?;
    let query = Query::Availability(name.clone());
    let found = front.find_in(call, &shards, &query, consistency).await?;
    let mut read = Vec::with_capacity(found.len());
    let mut home_stamp = Stamp::default();
    for (shard, found, stamp) in found {
        if shard == home {
            home_stamp = stamp;
        }
        if let Found::Availability(stock) = found {
            read.push((shard, stock));
        } else if found != Found::NotFound {
            return Err(Failure::mismatch(&found));
        }
    }
    if shards.len() > 1 {
        home_stamp.commit = None;
    }
    let Some((_, at_home)) = read.iter().find(|(shard, _)| *shard == home) else {
        return Err(Failure::from(not_found("item")).stamped(home_stamp));
    };
    let answer = sum_stock(name.item, at_home.clone(), &read, detail);
    Ok(wire::json(StatusCode::OK, &answer, &home_stamp))
}

fn sum_stock(
    item: String,
    home: Availability,
    read: &[(ShardId, Availability)],
    detail: bool,
) -> api::Availability {
    let mut sum = api::Stock::default();
    let mut regions: BTreeMap<String, api::Stock> = BTreeMap::new();
    let mut buckets = Vec::new();
    for (shard, stock) in read {
        for bucket in &stock.buckets {
            for part in [&mut sum, regions.entry(bucket.region.clone()).or_default()] {
                part.available = part.available.saturating_add(bucket.available);
                part.held = part.held.saturating_add(bucket.held);
                part.sold = part.sold.saturating_add(bucket.sold);
            }
            buckets.push(api::BucketStock {
                id: bucket.bucket.0,
                shard: shard.0,
                region: bucket.region.clone(),
                available: bucket.available,
                held: bucket.held,
                sold: bucket.sold,
                in_transit_out: bucket.in_transit_out,
                earmarked: bucket.earmarked,
            });
        }
    }
    buckets.sort_by_key(|bucket| bucket.id);
    let earmarked = buckets.iter().fold(0_u64, |sum, one| sum.saturating_add(one.earmarked));
    let in_buckets = [sum.available, sum.held, sum.sold, earmarked];
    let in_buckets = in_buckets.into_iter().fold(0, u64::saturating_add);
    let total = home.total.unwrap_or(in_buckets);
    let (state, paused_reason) = sale_state(&home, sum.available);
    api::Availability {
        item,
        state,
        paused_reason,
        available: sum.available,
        held: sum.held,
        sold: sum.sold,
        // What no bucket has is between two of them. Donors' own counters would count a unit twice
        // whose arrival they have not learned of.
        in_transit: total.saturating_sub(in_buckets),
        earmarked,
        total,
        as_of: wire::time(read.iter().map(|(_, s)| s.as_of).min().unwrap_or(home.as_of)),
        regions: detail.then_some(regions),
        buckets: detail.then_some(buckets),
    }
}

fn sale_state(home: &Availability, available: u64) -> (SaleState, Option<String>) {
    if home.invariant_broken {
        return (SaleState::Paused, Some("invariant".to_owned()));
    }
    match home.mode {
        Mode::Paused => return (SaleState::Paused, Some("operator".to_owned())),
        Mode::Closed => return (SaleState::Closed, None),
        Mode::Open => {}
    }
    let state = if home.opens_at.is_some_and(|at| home.as_of < at) {
        SaleState::Scheduled
    } else if home.closes_at.is_some_and(|at| home.as_of >= at) {
        SaleState::Over
    } else if available == 0 {
        SaleState::SoldOut
    } else {
        SaleState::OnSale
    };
    (state, None)
}

/// `GET /v1/items/{item}/audit`
pub(crate) async fn audit(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["consistency"])?;
    let consistency = parameters.consistency(Consistency::Leader)?;
    let name = call.item()?;
    let query = Query::Sums(name.clone());
    for _ in 0..AUDITS_MAX {
        let (shards, home) = layout(front, call, &name, consistency).await?;
        let mut astray = Vec::new();
        for shard in &shards {
            recount(front, call, &name, *shard, consistency, &mut astray).await?;
        }
        let read = front.find_in(call, &shards, &query, consistency).await?;
        // A shard that came meanwhile may have taken units that no other has any more.
        if shards.len() > 1 && layout(front, call, &name, consistency).await?.0 != shards {
            continue;
        }
        return sum_audit(name.item, home, read, &astray);
    }
    Err(Failure::new(ProblemKind::Overloaded, "The layout changes while it is read."))
}

/// Reads of an audit while the layout changes under it.
const AUDITS_MAX: usize = 3;

/// Counts an item's holds on one shard anew, some thousands at a time, so that nobody who buys
/// waits for it. A slot of a bucket that is astray stays so: it does not matter when it was found.
async fn recount(
    front: &Front,
    call: &Call,
    name: &ItemName,
    shard: ShardId,
    consistency: Consistency,
    astray: &mut Vec<(ItemNumber, Astray)>,
) -> Result<(), Failure> {
    let mut from = None;
    loop {
        let query = Query::Recount { name: name.clone(), from };
        let read = front.find_in(call, &[shard], &query, consistency).await?;
        for (_, found, _) in read {
            if let Found::Recount(recount) = found {
                astray.extend(recount.astray.into_iter().map(|one| (recount.number, one)));
                from = recount.next;
            } else if found == Found::NotFound {
                from = None;
            } else {
                return Err(Failure::mismatch(&found));
            }
        }
        if from.is_none() {
            return Ok(());
        }
    }
}

fn sum_audit(
    item: String,
    home: ShardId,
    read: Vec<(ShardId, Found, Stamp)>,
    astray: &[(ItemNumber, Astray)],
) -> Result<Response, Failure> {
    let at_home = read.iter().find(|(shard, _, _)| *shard == home);
    let at_home = at_home.and_then(|(_, found, stamp)| {
        if let Found::Audit(audit) = found {
            Some((audit.number, audit.total, *stamp))
        } else {
            None
        }
    });
    let Some((number, Some(total), mut stamp)) = at_home else {
        return Err(not_found("item").into());
    };
    if read.len() > 1 {
        stamp.commit = None;
    }
    let mut as_of = UnixMs(u64::MAX);
    let mut sums = AuditSums::default();
    for (shard, found, _) in read {
        if let Found::Audit(audit) = found {
            // Another creation of that name has nothing to do with it.
            if audit.number == number {
                as_of = as_of.min(audit.as_of);
                for mut bucket in audit.buckets {
                    let of = |one: &&(ItemNumber, Astray)| {
                        one.0 == number && one.1.bucket == bucket.bucket
                    };
                    for (_, one) in astray.iter().filter(of) {
                        bucket.held_counted = bucket.held_counted.saturating_add_signed(one.held);
                        bucket.sold_counted = bucket.sold_counted.saturating_add_signed(one.sold);
                    }
                    sums.add(shard, audit.applied, bucket);
                }
            }
        } else if found != Found::NotFound {
            return Err(Failure::mismatch(&found));
        }
    }
    let answer = sums.judge(item, number.0, total, as_of);
    Ok(wire::json(StatusCode::OK, &answer, &stamp))
}

/// What is gathered for an audit. S comes from the donor's read and R from the receiver's, so the
/// sum is exact whenever each was read.
#[derive(Default)]
struct AuditSums {
    buckets: Vec<api::BucketAudit>,
    /// (donor, receiver) → (sent, accepted).
    pairs: BTreeMap<(BucketId, BucketId), (u64, u64)>,
}

impl AuditSums {
    fn add(&mut self, shard: ShardId, applied: u64, bucket: crate::ledger::BucketAudit) {
        for (donor, units) in &bucket.accepted {
            self.pairs.entry((*donor, bucket.bucket)).or_default().1 = *units;
        }
        for (receiver, units) in &bucket.sent {
            self.pairs.entry((bucket.bucket, *receiver)).or_default().0 = *units;
        }
        let sum = |pairs: &[(BucketId, u64)]| {
            pairs.iter().fold(0u64, |sum, (_, units)| sum.saturating_add(*units))
        };
        self.buckets.push(api::BucketAudit {
            id: bucket.bucket.0,
            shard: shard.0,
            applied,
            region: bucket.region,
            received: bucket.received,
            accepted: sum(&bucket.accepted),
            available: bucket.available,
            held: bucket.held,
            due: bucket.due,
            sold: bucket.sold,
            written_off: bucket.written_off,
            sent: sum(&bucket.sent),
            held_counted: bucket.held_counted,
            sold_counted: bucket.sold_counted.saturating_add(bucket.sold_forgotten),
            holds: bucket.holds,
        });
    }

    fn judge(mut self, item: String, number: u64, total: u64, as_of: UnixMs) -> api::Audit {
        self.buckets.sort_by_key(|bucket| bucket.id);
        let mut broken = Vec::new();
        let wide = |n: u64| i128::from(n);
        for b in &self.buckets {
            let name = format!("bucket {}", b.id);
            let came = wide(b.received) + wide(b.accepted);
            let went = wide(b.available)
                + wide(b.held)
                + wide(b.sold)
                + wide(b.written_off)
                + wide(b.sent);
            if came != went {
                broken.push(format!("{name}: {came} came in and {went} are accounted for"));
            }
            if b.held != b.held_counted {
                broken.push(format!("{name}: held {} but {} counted", b.held, b.held_counted));
            }
            if b.sold != b.sold_counted {
                broken.push(format!("{name}: sold {} but {} counted", b.sold, b.sold_counted));
            }
            if !b.holds && broken.is_empty() {
                broken.push(format!("{name}: the ledger says that an equation does not hold"));
            }
        }
        let sum = |of: fn(&api::BucketAudit) -> u64| {
            self.buckets.iter().fold(0u64, |sum, b| sum.saturating_add(of(b)))
        };
        let (available, held, sold, written_off) =
            (sum(|b| b.available), sum(|b| b.held), sum(|b| b.sold), sum(|b| b.written_off));
        let in_transit: i128 = self.pairs.values().map(|(s, r)| wide(*s) - wide(*r)).sum();
        let in_all = wide(available) + wide(held) + wide(sold) + in_transit;
        if in_all != wide(total) {
            broken
                .push(format!("the item: units accounted for are {in_all}, the total is {total}"));
        }
        // A unit that travelled between two reads may have been seen twice: then R was seen before
        // its S.
        if wide(held) + wide(sold) > wide(total) - in_transit.min(0) {
            broken.push(format!("the item: {held} held and {sold} sold of {total}"));
        }
        api::Audit {
            item,
            number,
            conserved: broken.is_empty(),
            broken,
            total,
            available,
            held,
            sold,
            written_off,
            in_transit: i64::try_from(in_transit).unwrap_or(i64::MAX),
            buckets: self.buckets,
            transfers: self
                .pairs
                .into_iter()
                .map(|((from, to), (sent, accepted))| api::PairAudit {
                    from: from.0,
                    to: to.0,
                    sent,
                    accepted,
                })
                .collect(),
            as_of: wire::time(as_of),
        }
    }
}

/// `GET /v1/sold-out`: from this node's memory.
pub(crate) async fn sold_out(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["limit", "cursor"])?;
    let limit = parameters.limit_to(api::SOLD_OUT_LIMIT_MAX, api::SOLD_OUT_LIMIT_MAX)?;
    let after = parameters.id("cursor")?;
    let shards = front.all_shards()?;
    // One more than asked for tells whether there is a next page.
    let query = Query::SoldOut { tenant: call.tenant()?, after, limit: limit + 1 };
    let mut items = Vec::new();
    for (_, found, _) in front.find_in(call, &shards, &query, Consistency::Local).await? {
        if let Found::SoldOut(some) = found {
            items.extend(some.into_iter().map(|one| api::SoldOutItem {
                item: one.item,
                paused_reason: one.paused.map(|reason| reason.word().to_owned()),
                may_return: one.may_return,
            }));
        } else if found != Found::NotFound {
            return Err(Failure::mismatch(&found));
        }
    }
    items.sort_by(|a, b| a.item.cmp(&b.item));
    let more = wire::cut_page(&mut items, limit);
    let next_cursor = items.last().filter(|_| more).map(|item| item.item.clone());
    let page = api::SoldOut { items, next_cursor };
    let mut response = wire::json(StatusCode::OK, &page, &Stamp::default());
    let etag = fingerprint(&page);
    if call.has_already(etag.as_bytes()) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = axum::body::Body::empty();
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=1"));
    // The list is a tenant's, and the tenant comes by header.
    headers.insert(header::VARY, HeaderValue::from_static("Holdfast-Tenant, Authorization"));
    Ok(response)
}

/// The entity tag of a list: equal lists have equal tags, on every node.
fn fingerprint(page: &api::SoldOut) -> HeaderValue {
    let text = serde_json::to_vec(page).expect("our own types serialise");
    let hash = xxhash_rust::xxh3::xxh3_128(&text);
    HeaderValue::try_from(format!("\"{hash:032x}\"")).expect("hexadecimal digits in quotes")
}
