//! Items over several buckets: which shards they get, and waiting until all of them have a change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::call::Call;
use super::front::Front;
use super::problem::Failure;
use crate::ledger::{
    Command, Define, DefineSpread, Found, ItemName, ItemView, Query, RegionPlan, ShardId,
    home_shard,
};
use crate::runtime;
use crate::shard::{Consistency, NodeStatus};

/// The region of an item that names none.
pub(crate) const DEFAULT_REGION: &str = "default";
/// A change of a spread item is waited for until so long before the caller's deadline, and is told
/// to be under way then.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// How often the home is asked whether all shards have it.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// One shard, as a layout is chosen by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardPlace {
    pub(crate) shard: ShardId,
    /// The region of the node that leads it, when that is known.
    pub(crate) region: Option<String>,
}

/// The shards of a cluster with the regions of their leaders.
pub(crate) fn places_of(status: &NodeStatus) -> Vec<ShardPlace> {
    let region_of = |node| {
        let member = status.members.iter().find(|member| member.node == node);
        member.map(|member| member.region.clone())
    };
    let place = |shard: &crate::shard::ShardStatus| ShardPlace {
        shard: shard.shard,
        region: shard.leader.and_then(|leader| region_of(leader.node)),
    };
    status.shards.iter().map(place).collect()
}

/// Chooses the shards of each region's buckets: different ones within a region, those led by a node
/// of the region before others, then those that have the fewest of the item's buckets, then in turn
/// from the home on. The default region begins at home.
///
/// Gives fewer than asked for where there are too few shards; the ledger refuses that.
pub(crate) fn choose_shards(
    home: ShardId,
    places: &[ShardPlace],
    regions: &BTreeMap<String, RegionPlan>,
    used: &[ShardId],
    has_home: bool,
) -> BTreeMap<String, Vec<ShardId>> {
    let mut load: BTreeMap<ShardId, usize> = BTreeMap::new();
    for shard in used {
        *load.entry(*shard).or_default() += 1;
    }
    let default = default_region(regions);
    let count = places.len().max(1);
    let turn =
        |shard: ShardId| (usize::from(shard.0) + count - usize::from(home.0) % count) % count;
    let mut chosen = BTreeMap::new();
    let first = regions.keys().filter(|name| Some(name.as_str()) == default);
    let others = regions.keys().filter(|name| Some(name.as_str()) != default);
    for name in first.chain(others) {
        let mut mine: Vec<ShardId> = Vec::new();
        if !has_home && Some(name.as_str()) == default {
            mine.push(home);
        }
        let mut rest: Vec<&ShardPlace> =
            places.iter().filter(|place| !mine.contains(&place.shard)).collect();
        rest.sort_by_key(|place| {
            let elsewhere = place.region.as_ref() != Some(name);
            let load = load.get(&place.shard).copied().unwrap_or(0);
            (elsewhere, load, turn(place.shard))
        });
        let wanted = regions.get(name).map_or(0, |plan| usize::from(plan.buckets));
        mine.extend(rest.iter().map(|place| place.shard));
        mine.truncate(wanted);
        for shard in &mine {
            *load.entry(*shard).or_default() += 1;
        }
        chosen.insert(name.clone(), mine);
    }
    chosen
}

/// The name of the region that requests without one belong to.
fn default_region(regions: &BTreeMap<String, RegionPlan>) -> Option<&str> {
    match regions.contains_key(DEFAULT_REGION) {
        true => Some(DEFAULT_REGION),
        false => regions.keys().next().map(String::as_str),
    }
}

/// Makes the command that creates or configures an item: one bucket in all needs no layout.
pub(crate) fn define(front: &Front, define: Define) -> Result<Command, Failure> {
    let buckets: usize = define.regions.values().map(|plan| usize::from(plan.buckets)).sum();
    if buckets <= 1 {
        return Ok(Command::Define(define));
    }
    let shards = front.all_shards()?;
    let home = home_shard(define.name.borrowed(), u16::try_from(shards.len()).unwrap_or(u16::MAX));
    let places = places_of(&front.desk.status());
    let shards = choose_shards(home, &places, &define.regions, &[], false);
    Ok(Command::DefineSpread(DefineSpread { define, shards }))
}

/// How a change of an item stands on its other shards.
#[derive(Debug)]
pub(crate) enum Standing {
    /// Every shard has it.
    Everywhere(Box<ItemView>),
    /// Some have not answered yet; it goes on by itself.
    UnderWay(Box<ItemView>),
}

/// Waits until every shard of an item has its last change, or the caller must be answered.
pub(crate) async fn settled(
    front: &Front,
    call: &Call,
    item: Box<ItemView>,
) -> Result<Standing, Failure> {
    let wanted = item.config;
    let mut item = item;
    let until = call.deadline()?;
    loop {
        if item.copies.iter().all(|copy| copy.revision >= wanted) {
            return Ok(Standing::Everywhere(item));
        }
        if runtime::now() + ANSWER_WITHIN >= until {
            return Ok(Standing::UnderWay(item));
        }
        runtime::sleep(ASK_EVERY).await;
        match read(front, call, &item.name).await {
            // Another creation of that name has another number.
            Ok(Some(now)) if now.number == item.number => item = now,
            Ok(Some(_) | None) => return Ok(Standing::UnderWay(item)),
            // The change is made. That its home cannot be asked now must not be told as "nothing
            // was taken".
            Err(_) => {}
        }
    }
}

/// Reads an item at its home's leader.
pub(crate) async fn read(
    front: &Front,
    call: &Call,
    name: &ItemName,
) -> Result<Option<Box<ItemView>>, Failure> {
    match front.find(call, Query::Item(name.clone()), Consistency::Leader).await? {
        (Found::Item(item), _) => Ok(Some(item)),
        (Found::NotFound, _) => Ok(None),
        (other, _) => Err(Failure::mismatch(&other)),
    }
}

/// The shards on which an item has buckets, the home first.
pub(crate) fn shards_of(item: &ItemView) -> Vec<ShardId> {
    let others: BTreeSet<ShardId> = item.buckets.iter().map(|place| place.shard).collect();
    let others = others.into_iter().filter(|shard| *shard != item.home);
    std::iter::once(item.home).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(regions: &[&str]) -> Vec<ShardPlace> {
        let place = |(shard, region): (u16, &&str)| ShardPlace {
            shard: ShardId(shard),
            region: (!region.is_empty()).then(|| (*region).to_owned()),
        };
        (0..).zip(regions).map(place).collect()
    }

    fn plan(buckets: u16) -> RegionPlan {
        RegionPlan { quota: 10, floor: 0, buckets }
    }

    fn numbers(chosen: &BTreeMap<String, Vec<ShardId>>, region: &str) -> Vec<u16> {
        chosen[region].iter().map(|shard| shard.0).collect()
    }

    #[test]
    fn buckets_of_one_region_go_round_the_shards_from_the_home_on() {
        let regions = BTreeMap::from([("default".to_owned(), plan(3))]);
        let chosen = choose_shards(ShardId(2), &places(&["", "", "", ""]), &regions, &[], false);
        assert_eq!(numbers(&chosen, "default"), [2, 3, 0]);
    }

    #[test]
    fn region_prefers_shards_that_its_own_nodes_lead() {
        let regions = BTreeMap::from([("eu".to_owned(), plan(2)), ("us".to_owned(), plan(2))]);
        let places = places(&["eu", "us", "us", "eu"]);
        let chosen = choose_shards(ShardId(1), &places, &regions, &[], false);
        assert_eq!(numbers(&chosen, "eu"), [1, 3], "the default region begins at home");
        assert_eq!(numbers(&chosen, "us"), [2, 1]);
    }

    #[test]
    fn new_region_goes_where_the_item_has_the_fewest_buckets() {
        let regions = BTreeMap::from([("asia".to_owned(), plan(2))]);
        let used = [ShardId(0), ShardId(1), ShardId(1)];
        let chosen = choose_shards(ShardId(0), &places(&["", "", ""]), &regions, &used, true);
        assert_eq!(numbers(&chosen, "asia"), [2, 0]);
    }

    #[test]
    fn more_buckets_than_shards_are_left_to_the_ledger_to_refuse() {
        let regions = BTreeMap::from([("default".to_owned(), plan(5))]);
        let chosen = choose_shards(ShardId(0), &places(&["", ""]), &regions, &[], false);
        assert_eq!(numbers(&chosen, "default"), [0, 1]);
    }
}
