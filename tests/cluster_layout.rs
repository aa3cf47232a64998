//! Where the leaders are, and what a node answers by itself.

mod cluster;

use std::collections::BTreeMap;

use cluster::{Fleet, Plan, SOON, wait_for};

#[tokio::test]
async fn leaders_of_the_shards_are_spread_over_the_nodes() {
    let fleet = Fleet::start(Plan::new(3, 4)).await;
    let leads = wait_for("every node leads a shard", SOON, async || {
        let mut leads: BTreeMap<u64, Vec<u16>> = BTreeMap::new();
        for id in fleet.running() {
            for shard in fleet.view(id).await?.shards {
                if shard.voters != [1, 2, 3] {
                    return Err(format!("node {id}: {shard:?}"));
                }
                if shard.role == "leader" {
                    leads.entry(id as u64).or_default().push(shard.shard);
                }
            }
        }
        if leads.len() == 3 { Ok(leads) } else { Err(format!("{leads:?}")) }
    })
    .await;
    println!("{leads:?}");
    assert_eq!(leads.values().map(Vec::len).sum::<usize>(), 4, "{leads:?}");
    assert!(leads.values().all(|shards| shards.len() <= 2), "{leads:?}");
    // All nodes say the same of every shard.
    wait_for("all agree", SOON, async || {
        for id in fleet.running() {
            for shard in fleet.view(id).await?.shards {
                let leader = shard.leader.ok_or_else(|| format!("node {id}: {shard:?}"))?;
                if !leads.get(&leader).is_some_and(|own| own.contains(&shard.shard)) {
                    return Err(format!("node {id}: {shard:?}"));
                }
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn node_without_its_cluster_reads_its_own_replica() {
    let mut fleet = Fleet::start(Plan::new(3, 4)).await;
    for n in 0..8 {
        fleet.put_units(&format!("item-{n}"), 10 + n).await;
    }
    fleet.settle().await;
    fleet.kill_all(&[1, 2]);
    for n in 0..8 {
        let path = format!("/v1/items/item-{n}/availability");
        let local = fleet.caller(3).get(&path).await.expect("an answer");
        assert_eq!((local.status, local.number_of("available")), (200, 10 + n), "{local:?}");
        let path = format!("/v1/items/item-{n}/audit?consistency=local");
        let audit = fleet.caller(3).get(&path).await.expect("an answer");
        assert_eq!((audit.status, audit.number_of("total")), (200, 10 + n), "{audit:?}");
        // What a quorum said a moment ago holds for that moment longer.
        let path = format!("/v1/items/item-{n}/availability?consistency=leader");
        wait_for("node 3 knows that it is alone", SOON, async || {
            let truth = fleet.caller(3).get(&path).await.expect("an answer");
            if truth.slug() == "item-paused" { Ok(()) } else { Err(format!("{truth:?}")) }
        })
        .await;
        let path = format!("/v1/items/item-{n}/availability?consistency=linearizable");
        let truth = fleet.caller(3).get(&path).await.expect("an answer");
        assert_eq!(truth.slug(), "item-paused", "{truth:?}");
    }
}
