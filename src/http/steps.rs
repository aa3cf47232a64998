//! Changes of an item that take several steps when it lies on several buckets: a lower total, and
//! its deletion. The item's home carries them on by itself; here they are begun and waited for.

use std::time::Duration;

use super::call::Call;
use super::front::Front;
use super::problem::{Failure, Said, Stamp, not_found, refusal};
use super::spread;
use crate::ledger::{
    Adjust, Answer, Change, Command, Delete, Found, ItemName, ItemNumber, ItemView, LowerBegin,
    Query, Refusal, Retire, UnixMs,
};
use crate::runtime;
use crate::shard::{Consistency, Outcome, Question, Request};

/// How often it is looked whether a step has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// What is under way is told so long before the caller's deadline.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// Asks for a change and returns the ledger's own refusal, which decides what is done next.
async fn ask(
    front: &Front,
    call: &Call,
    command: Command,
) -> Result<(Result<Answer, Refusal>, Stamp), Failure> {
    let request = Request {
        question: Question::from(command),
        deadline: call.deadline()?,
        consistency: Consistency::Leader,
        hop: call.hop(),
    };
    let reply = front.desk.ask(request).await;
    if let Outcome::Answered(Answer::Refused(refused)) = reply.outcome {
        let stamp = Stamp { commit: reply.commit, leader: reply.leader };
        return Ok((Err(refused), stamp));
    }
    match super::problem::said(reply)? {
        (Said::Answer(answer), stamp) => Ok((Ok(answer), stamp)),
        (other @ (Said::Found(_) | Said::InFlight), _) => Err(Failure::mismatch(&other)),
    }
}

fn refused(why: Refusal, stamp: Stamp) -> Failure {
    Failure::from(refusal(why)).stamped(stamp)
}

/// Names the region whose quota goes with the total.
pub(super) async fn in_region(
    front: &Front,
    call: &Call,
    name: &ItemName,
    change: Change,
    region: &str,
) -> Result<Change, Failure> {
    let Some(item) = spread::read(front, call, name).await? else {
        return Err(not_found("item").into());
    };
    let Some(info) = item.region_list.iter().find(|info| info.name == region) else {
        return Err(not_found("region").into());
    };
    let region = info.ordinal;
    Ok(match change {
        Change::Raise(units) => Change::RaiseIn { units, region },
        Change::Lower(units) => Change::LowerIn { units, region },
        other @ (Change::Set { .. }
        | Change::RaiseIn { .. }
        | Change::LowerIn { .. }
        | Change::Claim(_)
        | Change::Move(_)) => other,
    })
}

/// Changes a total; a lower one of an item of several buckets gathers its units first.
pub(super) async fn adjust(
    front: &Front,
    call: &Call,
    adjust: Adjust,
) -> Result<(Box<ItemView>, bool, Stamp), Failure> {
    match ask(front, call, Command::Adjust(adjust.clone())).await? {
        (Ok(Answer::Item { item, replayed, .. }), stamp) => Ok((item, replayed, stamp)),
        (Ok(other), _) => Err(Failure::mismatch(&other)),
        (Err(Refusal::LowerInSteps), _) => lower(front, call, adjust).await,
        (Err(why), stamp) => Err(refused(why, stamp)),
    }
}

async fn lower(
    front: &Front,
    call: &Call,
    adjust: Adjust,
) -> Result<(Box<ItemView>, bool, Stamp), Failure> {
    let Some(item) = spread::read(front, call, &adjust.name).await? else {
        return Err(not_found("item").into());
    };
    let Adjust { name, key, change, reason } = adjust.clone();
    let deadline = call.deadline()?;
    let now = runtime::now();
    let left = if deadline > now { deadline - now } else { Duration::ZERO };
    // The home gives up by ledger time; it is stamped when the beginning is applied, at the latest
    // with the first entry after it.
    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let wall = front.desk.status().wall_clock;
    let until = UnixMs(wall.0.saturating_add(left_ms));
    let begin = LowerBegin { name, item: item.number, key, change, reason, until };
    match ask(front, call, Command::LowerBegin(begin)).await? {
        (Ok(Answer::Item { .. }), _) => {}
        (Ok(other), _) => return Err(Failure::mismatch(&other)),
        (Err(why), stamp) => return Err(refused(why, stamp)),
    }
    // It has begun and goes on by itself: that the home cannot be asked now says nothing of it, and
    // must not be told as "nothing was taken" (seed 370 of the simulator).
    loop {
        let goes_on = match spread::read(front, call, &adjust.name).await {
            Ok(None) => return Err(not_found("item").into()),
            Ok(Some(now)) => now.lowering.is_some_and(|begun| begun.key == adjust.key),
            Err(_) => true,
        };
        if !goes_on {
            // Done, the key answers as a replay; given up, it is as if it had never been.
            let told = ask(front, call, Command::Adjust(adjust.clone())).await;
            return match told.map_err(|_| unknown())? {
                (Ok(Answer::Item { item, .. }), stamp) => Ok((item, false, stamp)),
                (Ok(other), _) => Err(Failure::mismatch(&other)),
                (Err(Refusal::LowerInSteps), stamp) => {
                    Err(too_much_in_use(front, call, &adjust).await?.stamped(stamp))
                }
                (Err(why), stamp) => Err(refused(why, stamp)),
            };
        }
        if runtime::now() + ANSWER_WITHIN >= deadline {
            // It may still be done: the same key tells.
            return Err(unknown());
        }
        runtime::sleep(LOOK_EVERY).await;
    }
}

/// The answer to a change that has begun and whose end is not known.
pub(super) fn unknown() -> Failure {
    let reply = crate::shard::Reply { outcome: Outcome::Unknown, commit: None, leader: None };
    match super::problem::said(reply) {
        Err(failure) => failure,
        Ok(said) => Failure::mismatch(&said.0),
    }
}

/// The refusal of a lowering that was given up, with the figures of now.
async fn too_much_in_use(front: &Front, call: &Call, adjust: &Adjust) -> Result<Failure, Failure> {
    let Some(item) = spread::read(front, call, &adjust.name).await? else {
        return Ok(not_found("item").into());
    };
    let query = Query::Availability(adjust.name.clone());
    let shards = spread::shards_of(&item);
    let (mut available, mut held, mut sold) = (0_u64, 0_u64, 0_u64);
    for (_, found, _) in front.find_in(call, &shards, &query, Consistency::Leader).await? {
        if let Found::Availability(stock) = found {
            for bucket in stock.buckets {
                available = available.saturating_add(bucket.available);
                held = held.saturating_add(bucket.held);
                sold = sold.saturating_add(bucket.sold);
            }
        }
    }
    let needed = match adjust.change {
        Change::Lower(units) | Change::LowerIn { units, .. } => units,
        Change::Set { total, .. } => item.total.saturating_sub(total),
        Change::Raise(_) | Change::RaiseIn { .. } | Change::Claim(_) | Change::Move(_) => 0,
    };
    let refused = Refusal::StockCommitted { needed, available, held, sold };
    Ok(Failure::from(refusal(refused)))
}

/// Deletes an item; one of several buckets is paused everywhere first.
pub(super) async fn delete(
    front: &Front,
    call: &Call,
    name: ItemName,
) -> Result<(ItemNumber, Stamp), Failure> {
    match ask(front, call, Command::Retire(Retire { name: name.clone() })).await? {
        (Ok(Answer::Retired { item }), stamp) => return Ok((item, stamp)),
        (Ok(other), _) => return Err(Failure::mismatch(&other)),
        // An item of several buckets is deleted in steps.
        (Err(Refusal::Invalid { field, .. }), _) if field == "item" => {}
        (Err(why), stamp) => return Err(refused(why, stamp)),
    }
    let Some(item) = spread::read(front, call, &name).await? else {
        return Err(not_found("item").into());
    };
    let deadline = call.deadline()?;
    let delete = Delete { name: name.clone(), item: item.number };
    let begun = ask(front, call, Command::DeleteBegin(delete)).await?;
    let stamp = match begun {
        (Ok(Answer::Item { .. }), stamp) => stamp,
        (Ok(other), _) => return Err(Failure::mismatch(&other)),
        (Err(why), stamp) => return Err(refused(why, stamp)),
    };
    loop {
        match spread::read(front, call, &name).await {
            Ok(None) => return Ok((item.number, stamp)),
            Ok(Some(now)) if now.number != item.number => return Ok((item.number, stamp)),
            Ok(Some(now)) if !now.deleting => {
                let held = now.copies.iter().fold(0_u64, |sum, copy| sum.saturating_add(copy.held));
                return Err(refused(Refusal::OpenHolds { held: held.max(1) }, stamp));
            }
            // It has begun: an error of the read is none of the deletion.
            Ok(Some(_)) | Err(_) => {
                if runtime::now() + ANSWER_WITHIN >= deadline {
                    return Err(unknown());
                }
                runtime::sleep(LOOK_EVERY).await;
            }
        }
    }
}
