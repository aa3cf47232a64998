//! Where the buyers of a spread item are served, so that the load goes straight there, as a
//! service's own client can: by the layout's rule and by the leaders that the answers name.
//!
//! A wrong guess costs a hop, nothing else: any node takes any call.

use std::net::SocketAddr;

use parking_lot::Mutex;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::Failure;
use crate::client::{Client, path_segment};

/// The routes of one item.
#[derive(Debug)]
pub(super) struct Routes {
    regions: Vec<Region>,
    /// By shard.
    leaders: Mutex<Vec<SocketAddr>>,
    nodes: Vec<SocketAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Region {
    seed: u64,
    /// The shards of its buckets.
    shards: Vec<usize>,
}

impl Routes {
    /// Reads an item's layout and who leads its shards; `nodes` are the cluster's by their ids,
    /// from 1 on. `None` when that is not what the nodes are.
    pub(super) async fn read(
        client: &Client,
        item: &str,
        nodes: &[SocketAddr],
        regions: usize,
    ) -> Result<Option<Routes>, Failure> {
        let path = format!("/v1/items/{}/layout", path_segment(item));
        let layout = client.get(&path).await?.body;
        let cluster = client.get("/admin/v1/cluster").await?.body;
        let names = (0..regions).map(|at| format!("r{at}"));
        let names: Vec<String> = if regions > 1 {
            names.collect()
        } else {
            vec![layout["default_region"].as_str().unwrap_or_default().to_owned()]
        };
        let regions: Option<Vec<Region>> =
            names.iter().map(|name| region_of(&layout, name)).collect();
        let leader = |shard: &Value| {
            let id = usize::try_from(shard["leader"].as_u64()?).ok()?;
            nodes.get(id.checked_sub(1)?).copied()
        };
        let leaders: Option<Vec<SocketAddr>> =
            cluster["shards"].as_array().and_then(|shards| shards.iter().map(leader).collect());
        Ok(regions.zip(leaders).map(|(regions, leaders)| Routes {
            regions,
            leaders: Mutex::new(leaders),
            nodes: nodes.to_vec(),
        }))
    }

    /// The shard that serves a buyer of a region.
    pub(super) fn shard_of(&self, region: usize, buyer: &str) -> usize {
        self.regions.get(region).map_or(0, |region| region.shard_of(buyer))
    }

    /// Who leads a shard, as far as is known.
    pub(super) fn leader(&self, shard: usize) -> Option<SocketAddr> {
        self.leaders.lock().get(shard).copied()
    }

    /// Takes note of who leads a shard.
    pub(super) fn learn(&self, shard: usize, leader: SocketAddr) {
        if let Some(known) = self.leaders.lock().get_mut(shard) {
            *known = leader;
        }
    }

    /// Asks the next node for a shard whose leader does not answer.
    pub(super) fn leave(&self, shard: usize, failed: SocketAddr) {
        let at = self.nodes.iter().position(|node| *node == failed).unwrap_or(0);
        let next = self.nodes.get((at + 1) % self.nodes.len().max(1)).copied();
        let mut leaders = self.leaders.lock();
        if let (Some(known), Some(next)) = (leaders.get_mut(shard), next)
            && *known == failed
        {
            *known = next;
        }
    }
}

impl Region {
    fn shard_of(&self, buyer: &str) -> usize {
        let count = self.shards.len().max(1) as u64;
        let place = xxh3_64_with_seed(buyer.as_bytes(), self.seed) % count;
        self.shards.get(usize::try_from(place).unwrap_or(0)).copied().unwrap_or(0)
    }
}

fn region_of(layout: &Value, name: &str) -> Option<Region> {
    let seed = layout["regions"][name]["buyers_seed"].as_str()?;
    let seed = u64::from_str_radix(seed, 16).ok()?;
    let buckets = layout["buckets"].as_array()?.iter();
    let shards = buckets.filter(|bucket| bucket["region"] == name);
    let shards: Option<Vec<usize>> = shards
        .map(|bucket| bucket["shard"].as_u64().and_then(|shard| usize::try_from(shard).ok()))
        .collect();
    Some(Region { seed, shards: shards? }).filter(|region| !region.shards.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_buyers_shard_is_found_by_the_layouts_rule() {
        let layout = json!({
            "regions": {"eu": {"buyers_seed": "00706c6163650001"}},
            "buckets": [
                {"id": 0, "shard": 3, "region": "us"},
                {"id": 1, "shard": 2, "region": "eu"},
                {"id": 2, "shard": 0, "region": "eu"},
            ],
        });
        let region = region_of(&layout, "eu").expect("it is told");
        assert_eq!(region, Region { seed: 0x0070_6c61_6365_0001, shards: vec![2, 0] });
        let counts = (0..1_000).fold([0_u32; 4], |mut counts, n| {
            counts[region.shard_of(&format!("b{n}"))] += 1;
            counts
        });
        assert!(counts[0] > 400 && counts[2] > 400 && counts[1] + counts[3] == 0, "{counts:?}");
        assert_eq!(region_of(&layout, "asia"), None);
    }

    #[test]
    fn the_next_node_is_asked_once_for_all_who_found_the_leader_gone() {
        let node = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let nodes: Vec<_> = (1..=3).map(node).collect();
        let region = Region { seed: 0, shards: vec![0, 1] };
        let leaders = Mutex::new(vec![node(1), node(2)]);
        let routes = Routes { regions: vec![region], leaders, nodes };
        for _ in 0..2 {
            routes.leave(1, node(2));
        }
        assert_eq!(routes.leader(1), Some(node(3)));
        assert_eq!(routes.leader(0), Some(node(1)));
        routes.learn(0, node(2));
        assert_eq!(routes.leader(0), Some(node(2)));
    }
}
