//! What a body says of an item's regions when it changes the layout: what it leaves out stays as it
//! is.

use std::collections::BTreeMap;

use super::fields::{Broken, Fields};
use crate::api::UNITS_MAX;
use crate::ledger::RegionPlan;

/// A region as a body of `PUT …/layout` names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RegionChange {
    quota: Option<u64>,
    floor: Option<u64>,
    buckets: Option<u16>,
}

/// Reads the regions of a body by name.
pub(super) fn read(fields: &mut Fields<'_>, broken: &mut Broken) -> BTreeMap<String, RegionChange> {
    let mut regions = BTreeMap::new();
    for (name, mut region) in fields.objects("regions", broken).unwrap_or_default() {
        let quota = region.integer("quota", 0, UNITS_MAX, broken);
        let floor = region.integer("floor", 0, UNITS_MAX, broken);
        let buckets = region.integer("buckets", 1, u64::from(u16::MAX), broken);
        region.end(broken);
        let buckets = buckets.and_then(|n| u16::try_from(n).ok());
        regions.insert(name, RegionChange { quota, floor, buckets });
    }
    regions
}

/// Completes the regions by those that the item has: what is left out of one that exists stays as
/// it is, a floor at most at the new quota. A new one has a quota, no floor and one bucket.
pub(super) fn complete(
    changes: BTreeMap<String, RegionChange>,
    has: &BTreeMap<String, RegionPlan>,
    broken: &mut Broken,
) -> BTreeMap<String, RegionPlan> {
    let mut regions = BTreeMap::new();
    for (name, change) in changes {
        let RegionChange { quota, floor, buckets } = change;
        let plan = match (has.get(&name), quota) {
            (Some(has), quota) => {
                let quota = quota.unwrap_or(has.quota);
                let floor = floor.unwrap_or(has.floor.min(quota));
                RegionPlan { quota, floor, buckets: buckets.unwrap_or(has.buckets) }
            }
            (None, Some(quota)) => {
                let (floor, buckets) = (floor.unwrap_or(0), buckets.unwrap_or(1));
                RegionPlan { quota, floor, buckets }
            }
            (None, None) => {
                broken.add(format!("regions.{name}.quota"), "is required for a new region");
                continue;
            }
        };
        regions.insert(name, plan);
    }
    regions
}

/// Whether some of them says less than all of its region.
pub(super) fn leaves_out(changes: &BTreeMap<String, RegionChange>) -> bool {
    let whole = |change: &RegionChange| {
        change.quota.is_some() && change.floor.is_some() && change.buckets.is_some()
    };
    !changes.values().all(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAS: RegionPlan = RegionPlan { quota: 60, floor: 10, buckets: 2 };

    fn completed(change: RegionChange, name: &str) -> (Option<RegionPlan>, Vec<String>) {
        let has = BTreeMap::from([("eu".to_owned(), HAS)]);
        let mut broken = Broken::default();
        let plans = complete(BTreeMap::from([(name.to_owned(), change)]), &has, &mut broken);
        (plans.get(name).copied(), broken.0.into_iter().map(|error| error.field).collect())
    }

    #[test]
    fn what_a_change_leaves_out_of_a_region_that_exists_stays_as_it_is() {
        let nothing = RegionChange::default();
        for (change, plan) in [
            (nothing, HAS),
            (RegionChange { quota: Some(70), ..nothing }, RegionPlan { quota: 70, ..HAS }),
            (RegionChange { floor: Some(0), ..nothing }, RegionPlan { floor: 0, ..HAS }),
            (RegionChange { buckets: Some(3), ..nothing }, RegionPlan { buckets: 3, ..HAS }),
            // Closed by its quota alone, or made smaller than its floor.
            (RegionChange { quota: Some(0), ..nothing }, RegionPlan { quota: 0, floor: 0, ..HAS }),
            (RegionChange { quota: Some(4), ..nothing }, RegionPlan { quota: 4, floor: 4, ..HAS }),
            // But a floor that is said is not made to fit.
            (
                RegionChange { quota: Some(4), floor: Some(5), ..nothing },
                RegionPlan { quota: 4, floor: 5, ..HAS },
            ),
        ] {
            assert_eq!(completed(change, "eu"), (Some(plan), vec![]), "{change:?}");
        }
    }

    #[test]
    fn new_region_needs_a_quota_and_has_no_floor_and_one_bucket_unless_told() {
        let quota = RegionChange { quota: Some(7), ..RegionChange::default() };
        let plan = RegionPlan { quota: 7, floor: 0, buckets: 1 };
        assert_eq!(completed(quota, "us"), (Some(plan), vec![]));
        let missing = completed(RegionChange::default(), "us");
        assert_eq!(missing, (None, vec!["regions.us.quota".to_owned()]));
    }
}
