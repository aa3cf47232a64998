//! Layouts: where an item's buckets lie and what is in them, its regions, and moves by hand.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::http::header;
use axum::response::Response;

use super::call::Call;
use super::fields::Broken;
use super::front::Front;
use super::holds::sound;
use super::operation;
use super::problem::{Failure, Stamp, not_found, validation};
use super::region_change;
use super::spread::{self, Standing, choose_shards, places_of};
use super::steps;
use super::wire;
use crate::api::{self, ProblemKind};
use crate::ledger::{
    AcceptStock, Adjust, Answer, BucketId, BucketRef, Change, Command, Found, ItemName, ItemRef,
    ItemView, Level, Levels, Query, Refusal, RegionOrdinal, RegionPlan, SendStock, SetLayout,
    SettleStock, ShardId,
};
use crate::shard::{Consistency, Hop, Outcome, Question, Request};

/// An item and the levels of all its buckets.
struct Seen {
    item: Box<ItemView>,
    levels: Vec<Levels>,
}

impl Seen {
    /// Reads an item at its home, then every bucket.
    async fn read(
        front: &Front,
        call: &Call,
        name: &ItemName,
        consistency: Consistency,
    ) -> Result<Seen, Failure> {
        let item = match front.find(call, Query::Item(name.clone()), consistency).await? {
            (Found::Item(item), _) => item,
            (Found::NotFound, stamp) => {
                return Err(Failure::from(not_found("item")).stamped(stamp));
            }
            (other, _) => return Err(Failure::mismatch(&other)),
        };
        let query = Query::Levels(ItemRef { home: item.home, item: item.number });
        let mut levels = Vec::new();
        let shards = spread::shards_of(&item);
        for (_, found, _) in front.find_in(call, &shards, &query, consistency).await? {
            if let Found::Levels(one) = found {
                levels.push(one);
            } else if found != Found::NotFound {
                return Err(Failure::mismatch(&found));
            }
        }
        Ok(Seen { item, levels })
    }

    fn level(&self, bucket: BucketId) -> Option<&Level> {
        self.levels.iter().flat_map(|one| &one.buckets).find(|level| level.bucket == bucket)
    }

    fn region_name(&self, ordinal: RegionOrdinal) -> String {
        let found = self.item.region_list.iter().find(|info| info.ordinal == ordinal);
        found.map(|info| info.name.clone()).unwrap_or_default()
    }

    /// Σ over the pairs, S from the donor's read and R from the receiver's.
    fn in_transit(&self) -> u64 {
        let pairs = self.pairs().into_values();
        let units = pairs.map(|(sent, accepted)| sent.saturating_sub(accepted));
        units.fold(0, u64::saturating_add)
    }

    /// (donor, receiver) → (sent, accepted).
    fn pairs(&self) -> BTreeMap<(u16, u16), (u64, u64)> {
        let mut pairs: BTreeMap<(u16, u16), (u64, u64)> = BTreeMap::new();
        for level in self.levels.iter().flat_map(|one| &one.buckets) {
            for pair in &level.pairs {
                if pair.sent > 0 {
                    pairs.entry((level.bucket.0, pair.peer.0)).or_default().0 = pair.sent;
                }
                if pair.accepted > 0 {
                    pairs.entry((pair.peer.0, level.bucket.0)).or_default().1 = pair.accepted;
                }
            }
        }
        pairs
    }

    /// A quota that falls covers what is held and sold of its region; but any region can be closed.
    /// The item's home asks its own buckets once more.
    fn quotas_cover(&self, regions: &BTreeMap<String, RegionPlan>) -> Result<(), Failure> {
        for info in &self.item.region_list {
            let Some((was, plan)) = self.item.regions.get(&info.name).zip(regions.get(&info.name))
            else {
                continue;
            };
            let mine = self.levels.iter().flat_map(|one| &one.buckets);
            let mine = mine.filter(|level| level.region == info.ordinal);
            let (held, sold) = mine.fold((0_u64, 0_u64), |(held, sold), level| {
                (held.saturating_add(level.held), sold.saturating_add(level.sold))
            });
            let needed = held.saturating_add(sold);
            if plan.quota > 0 && plan.quota < was.quota && needed > plan.quota {
                let available = plan.quota;
                let refusal = Refusal::StockCommitted { needed, available, held, sold };
                return Err(super::problem::refusal(refusal).into());
            }
        }
        Ok(())
    }

    fn layout(&self) -> api::ItemLayout {
        let item = &self.item;
        let mut regions: BTreeMap<String, api::RegionStock> = BTreeMap::new();
        for info in &item.region_list {
            let plan = item.regions.get(&info.name);
            regions.insert(
                info.name.clone(),
                api::RegionStock {
                    quota: plan.map_or(0, |plan| plan.quota),
                    floor: info.floor,
                    buckets: plan.map_or(0, |plan| plan.buckets),
                    buyers_seed: format!("{:016x}", item.buyers_seed(info.ordinal)),
                    closed: info.closed,
                    ..api::RegionStock::default()
                },
            );
        }
        let mut buckets = Vec::new();
        for place in &item.buckets {
            let region = self.region_name(place.region);
            let peers = item.buckets.iter().filter(|other| other.region == place.region).count();
            let mut shown = api::BucketLevel {
                id: place.bucket.0,
                shard: place.shard.0,
                region: region.clone(),
                share_of_buyers: 1.0 / f64::from(u16::try_from(peers.max(1)).unwrap_or(u16::MAX)),
                ..api::BucketLevel::default()
            };
            if let Some(level) = self.level(place.bucket) {
                shown.available = level.free;
                shown.held = level.held;
                shown.sold = level.sold;
                shown.in_transit = level.in_transit;
                shown.floor = level.floor;
                shown.earmarked = level.earmarked;
                if let Some(sum) = regions.get_mut(&region) {
                    sum.available = sum.available.saturating_add(level.free);
                    sum.held = sum.held.saturating_add(level.held);
                    sum.sold = sum.sold.saturating_add(level.sold);
                }
            }
            buckets.push(shown);
        }
        let as_of = self.levels.iter().map(|one| one.as_of).min().unwrap_or_default();
        api::ItemLayout {
            item: item.name.item.clone(),
            number: item.number.0,
            version: item.config,
            revision: item.revision,
            default_region: item.default_region.clone(),
            total: item.total,
            in_transit: self.in_transit(),
            regions,
            buckets,
            behind: item.behind().map(|shard| shard.0).collect(),
            operation: match (&item.lowering, item.deleting) {
                (_, true) => Some("deletion".to_owned()),
                (Some(_), false) => Some("lowering".to_owned()),
                (None, false) => None,
            },
            as_of: wire::time(as_of),
        }
    }
}

/// `GET /v1/items/{item}/layout`
pub(crate) async fn read(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["consistency"])?;
    let consistency = parameters.consistency(Consistency::Leader)?;
    let seen = Seen::read(front, call, &call.item()?, consistency).await?;
    Ok(layout_response(StatusCode::OK, &seen))
}

fn layout_response(status: StatusCode, seen: &Seen) -> Response {
    let mut response = wire::json(status, &seen.layout(), &Stamp::default());
    response.headers_mut().insert(header::ETAG, wire::etag(seen.item.revision));
    response
}

/// `PUT /v1/items/{item}/layout`
pub(crate) async fn put(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["dry_run"])?;
    let dry_run = match parameters.text("dry_run") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Failure::malformed("`dry_run` is true or false.")),
    };
    let name = call.item()?;
    let if_revision = call.if_match()?.ok_or_else(|| {
        Failure::new(
            ProblemKind::PreconditionRequired,
            "The layout needs If-Match with the ETag of the layout as you read it, so that a \
             change in between is not overwritten.",
        )
    })?;
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    if !fields.has("regions") {
        broken.add("regions", "is required");
    }
    let changes = region_change::read(&mut fields, &mut broken);
    fields.end(&mut broken);
    let changes = sound(Some(changes), broken)?;
    let seen = Seen::read(front, call, &name, Consistency::Leader).await?;
    // What stays as it is is what the caller has read, not what has become of it since.
    if region_change::leaves_out(&changes) && if_revision != seen.item.revision {
        let refusal = Refusal::RevisionMismatch { revision: seen.item.revision };
        return Err(super::problem::refusal(refusal).into());
    }
    let mut broken = Broken::default();
    let regions = region_change::complete(changes, &seen.item.regions, &mut broken);
    let regions = sound(Some(regions), broken)?;
    let shards = new_shards(front, &seen.item, &regions)?;
    if if_revision == seen.item.revision {
        seen.quotas_cover(&regions)?;
    }
    if dry_run {
        let plan = plan(&seen.item, if_revision, &regions, &shards)?;
        return Ok(wire::json(StatusCode::OK, &plan, &Stamp::default()));
    }
    let item = seen.item.number;
    let set = SetLayout { name, item, if_revision, regions, shards };
    let (answer, _) = front.change(call, Command::SetLayout(set)).await?;
    let Answer::Item { item, .. } = answer else { return Err(Failure::mismatch(&answer)) };
    let name = item.name.clone();
    let (status, changed) = match spread::settled(front, call, item.clone()).await? {
        Standing::Everywhere(_) => (StatusCode::OK, item),
        Standing::UnderWay(_) => (StatusCode::ACCEPTED, item),
    };
    // It is changed: that it cannot be read now is no "nothing was taken".
    let seen = Seen::read(front, call, &name, Consistency::Leader).await;
    let seen = seen.map_err(|_| steps::unknown())?;
    let mut response = layout_response(status, &seen);
    if status == StatusCode::ACCEPTED {
        operation::locate(&mut response, &changed);
    }
    Ok(response)
}

/// Chooses shards for the regions that the item does not have.
fn new_shards(
    front: &Front,
    item: &ItemView,
    regions: &BTreeMap<String, RegionPlan>,
) -> Result<BTreeMap<String, Vec<ShardId>>, Failure> {
    let is_new = |name: &&String| !item.regions.contains_key(*name);
    let new: BTreeMap<String, RegionPlan> =
        regions.iter().filter(|(name, _)| is_new(name)).map(|(n, p)| (n.clone(), *p)).collect();
    if new.is_empty() {
        return Ok(BTreeMap::new());
    }
    front.all_shards()?;
    let places = places_of(&front.desk.status());
    let used: Vec<ShardId> = item.buckets.iter().map(|place| place.shard).collect();
    Ok(choose_shards(item.home, &places, &new, &used, true))
}

/// Tells what a change of the layout would do. The ledger judges again when it is carried out.
fn plan(
    item: &ItemView,
    if_revision: u64,
    regions: &BTreeMap<String, RegionPlan>,
    shards: &BTreeMap<String, Vec<ShardId>>,
) -> Result<api::LayoutPlan, Failure> {
    if if_revision != item.revision {
        let refusal = Refusal::RevisionMismatch { revision: item.revision };
        return Err(super::problem::refusal(refusal).into());
    }
    let mut broken = Broken::default();
    let quotas = regions.values().fold(0_u64, |sum, plan| sum.saturating_add(plan.quota));
    if quotas > item.total {
        broken.add("regions", format!("the quotas must sum to at most the total ({})", item.total));
    }
    let mut changes = Vec::new();
    for (name, was) in &item.regions {
        let closed = item.region_list.iter().any(|info| info.name == *name && info.closed);
        match regions.get(name) {
            None if !closed => {
                broken.add(format!("regions.{name}"), "is not removed: close it with quota 0");
            }
            None => {}
            Some(plan) => {
                if plan.buckets != was.buckets {
                    let field = format!("regions.{name}.buckets");
                    broken.add(field, format!("cannot be changed: it is {}", was.buckets));
                }
                if plan.floor > plan.quota {
                    broken.add(format!("regions.{name}.floor"), "must be at most the quota");
                }
                if plan.quota != was.quota {
                    changes.push(format!(
                        "{name}: the quota goes from {} to {}",
                        was.quota, plan.quota
                    ));
                }
                if plan.floor != was.floor {
                    changes.push(format!(
                        "{name}: the floor goes from {} to {}",
                        was.floor, plan.floor
                    ));
                }
                if plan.quota == 0 && was.quota > 0 {
                    changes.push(format!("{name} closes: its keys and holds go on answering"));
                }
                if plan.quota > 0 && closed {
                    changes.push(format!("{name} opens again"));
                }
            }
        }
    }
    let mut new_buckets = Vec::new();
    for (name, shards) in shards {
        let wanted = regions.get(name).map_or(0, |plan| usize::from(plan.buckets));
        if shards.len() < wanted {
            let field = format!("regions.{name}.buckets");
            broken.add(field, format!("must be at most {}, the number of shards", shards.len()));
        }
        changes.push(format!("{name} is opened with {wanted} buckets"));
        let bucket = |shard: &ShardId| api::NewBucket { region: name.clone(), shard: shard.0 };
        new_buckets.extend(shards.iter().map(bucket));
    }
    sound(Some(()), broken)?;
    Ok(api::LayoutPlan { revision: item.revision, changes, new_buckets })
}

/// The most units that one bucket of an item may have under way on this node's terms.
fn bound(front: &Front, total: u64) -> u64 {
    let percent = front.desk.status().stock.transit_percent_max;
    let share = u128::from(total).saturating_mul(u128::from(percent)).div_ceil(100);
    u64::try_from(share).unwrap_or(u64::MAX).max(1)
}

/// `GET /v1/items/{item}/transfers`
pub(crate) async fn transfers(front: &Front, call: &Call) -> Result<Response, Failure> {
    let parameters = call.query(&["consistency"])?;
    let consistency = parameters.consistency(Consistency::Leader)?;
    let seen = Seen::read(front, call, &call.item()?, consistency).await?;
    let transfers = seen.pairs().into_iter().map(|((from, to), (sent, accepted))| api::Transfer {
        from,
        to,
        sent,
        accepted,
    });
    let shown = api::Transfers {
        item: seen.item.name.item.clone(),
        bound: bound(front, seen.item.total),
        transfers: transfers.collect(),
    };
    Ok(wire::json(StatusCode::OK, &shown, &Stamp::default()))
}

/// `POST /v1/items/{item}/transfers`
pub(crate) async fn transfer(front: &Front, call: &Call) -> Result<Response, Failure> {
    call.query(&[])?;
    let (name, key) = (call.item()?, call.key()?);
    let mut broken = Broken::default();
    let mut fields = call.fields(false)?;
    let mut bucket = |name: &str| {
        let number = fields.integer(name, 0, u64::from(u16::MAX), &mut broken);
        let number = fields.require(name, number, &mut broken).unwrap_or_default();
        BucketId(u16::try_from(number).expect("the rule bounds it to 16 bits"))
    };
    let (from, to) = (bucket("from"), bucket("to"));
    let quantity = fields.units("quantity", &mut broken);
    let quantity = fields.require("quantity", quantity, &mut broken);
    fields.end(&mut broken);
    if from == to && broken.0.is_empty() {
        broken.add("to", "is another bucket than `from`");
    }
    let quantity = sound(quantity, broken)?;
    let seen = Seen::read(front, call, &name, Consistency::Leader).await?;
    let place = |bucket: BucketId, field: &str| {
        let found = seen.item.buckets.iter().find(|place| place.bucket == bucket).copied();
        let rule = format!("is one of the item's {} buckets", seen.item.buckets.len());
        let error = api::FieldError { field: field.to_owned(), rule };
        found.ok_or_else(|| Failure::from(validation(vec![error])))
    };
    let (donor, receiver) = (place(from, "from")?, place(to, "to")?);
    let of = |bucket| BucketRef { home: seen.item.home, item: seen.item.number, bucket };
    // What the receiver has accepted is under way no more.
    let accepted = seen.level(to).and_then(|level| {
        level.pairs.iter().find(|pair| pair.peer == from).map(|pair| pair.accepted)
    });
    let send = SendStock {
        from: of(from),
        to,
        quantity,
        acked: accepted.unwrap_or_default(),
        // The giving bucket's ledger knows it.
        if_sent: 0,
        same_region: donor.region == receiver.region,
        bound: bound(front, seen.item.total),
    };
    let keyed = |change| {
        let (name, key) = (name.clone(), key.clone());
        Command::Adjust(Adjust { name, key, change, reason: String::new() })
    };
    if donor.shard != seen.item.home {
        // Nothing has moved by that: what it stands for is all that is remembered of the key.
        let (answer, _) = front.change(call, keyed(Change::Claim(send))).await?;
        if answer != Answer::Noted {
            return Err(Failure::mismatch(&answer));
        }
    }
    let (answer, stamp) = front.change(call, keyed(Change::Move(send))).await?;
    let Answer::Moved { sent, sent_in_all, floor_sent, replayed } = answer else {
        return Err(Failure::mismatch(&answer));
    };
    let mut moved = api::MovedStock { from: from.0, to: to.0, sent, accepted: 0 };
    if donor.shard == receiver.shard {
        moved.accepted = sent_in_all;
    } else {
        let accept = AcceptStock { to: of(to), from, sent: sent_in_all, floor_sent };
        if let Some(Answer::Accepted { accepted }) =
            quietly(front, call, Command::AcceptStock(accept)).await?
        {
            moved.accepted = accepted;
            let settle = SettleStock { from: of(from), to, accepted };
            quietly(front, call, Command::SettleStock(settle)).await?;
        }
    }
    let there = moved.accepted >= moved.sent;
    let status = if there { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = wire::json(status, &moved, &stamp);
    wire::mark_replayed(&mut response, replayed);
    Ok(response)
}

/// Does what the leaders would do by themselves a little later: how it ends does not matter.
async fn quietly(front: &Front, call: &Call, command: Command) -> Result<Option<Answer>, Failure> {
    let question = Question::from(command);
    let consistency = Consistency::Leader;
    let request = Request { question, deadline: call.deadline()?, consistency, hop: Hop::Forward };
    match front.desk.ask(request).await.outcome {
        Outcome::Answered(answer) => Ok(Some(answer)),
        Outcome::Found(_)
        | Outcome::InFlight
        | Outcome::Paused(_)
        | Outcome::Overloaded
        | Outcome::Late
        | Outcome::Unknown
        | Outcome::Elsewhere { .. }
        | Outcome::NotServing(_) => Ok(None),
    }
}
