//! A node whose disk is full. Needs the right to mount a small file system; without it the test
//! says loudly that it proves nothing.

mod cluster;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::{Buying, Fleet, Plan, SOON, seed, wait_for};
use serde_json::json;

/// A small file system in memory, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, megabytes: u64) -> Option<SmallDisk> {
        fs::create_dir_all(at).expect("a directory");
        let size = format!("size={megabytes}m");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        let done = mounted.is_ok_and(|output| output.status.success());
        done.then(|| SmallDisk(at.to_owned()))
    }

    /// Takes every free byte but about `left`.
    fn fill(&self, left: usize) {
        let mut file = fs::File::create(self.0.join("fill")).expect("a file");
        let zeros = vec![0; 64 << 10];
        while file.write_all(&zeros).is_ok() {}
        let size = file.metadata().expect("a file").len();
        file.set_len(size.saturating_sub(left as u64)).expect("shorter");
    }

    fn free(&self) {
        fs::remove_file(self.0.join("fill")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that was just killed may still be leaving.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Writes a batch of holds with long records. Returns the status of the answer.
async fn post_batch(fleet: &Fleet, node: usize, round: usize) -> Option<u16> {
    let operations: Vec<_> = (0..500)
        .map(|n| {
            json!({"op": "place", "key": format!("k-{round}-{n}"), "item": "filler",
                   "quantity": 1, "reference": "r".repeat(128)})
        })
        .collect();
    let body = json!({"operations": operations});
    let answer = fleet.caller(node).post("/v1/holds:batch", "batch", &body).await;
    answer.ok().map(|answer| answer.status)
}

/// Writes a batch at one of the first two nodes.
async fn write_much(fleet: &Fleet, round: usize) {
    // Who answers how does not matter here: what is acknowledged stands in the buyers' books.
    let _ = post_batch(fleet, 1 + round % 2, round).await;
}

/// Found by an attack: a node that was killed and found its disk full said that no good checkpoint
/// was left and that it should be replaced.
#[tokio::test]
async fn node_killed_on_a_full_disk_starts_by_its_ballast_or_asks_for_space() {
    let plan = |ballast: u64| {
        Plan::new(1, 1)
            .set("log.ballast_bytes", ballast)
            .set("log.segment_bytes", 1 << 20)
            .set("peer.append_bytes_max", 1 << 18)
            .set("checkpoint.interval_ms", 200)
    };
    for ballast in [32 << 20, 0] {
        let mut fleet = Fleet::prepare(plan(ballast));
        let Some(disk) = SmallDisk::mount(&fleet.data_dir(1), 128) else {
            println!("SKIPPED, NOTHING WAS PROVED: mounting a tmpfs is not allowed here");
            return;
        };
        fleet.start_node(1);
        fleet.wait_up(1).await;
        fleet.found().await;
        fleet.wait_ready().await;
        fleet.put_units("filler", 1_000_000).await;
        let mut round = 0;
        wait_for("a purged log", SOON + SOON, async || {
            round += 1;
            let answer = post_batch(&fleet, 1, round).await;
            assert!(answer.is_some_and(|status| status < 500), "the disk has room yet");
            let purged = fleet.metrics(1).await.sum("holdfast_shard_purged_index", &[]);
            if purged > 0.0 { Ok(()) } else { Err(format!("purged up to {purged}")) }
        })
        .await;
        let held = fleet.audit("filler").await.number_of("held");
        fleet.kill(1);
        disk.fill(0);
        if ballast > 0 {
            fleet.start_node(1);
            fleet.wait_up(1).await;
            assert!(!fleet.data_dir(1).join("ballast").exists(), "it was given up");
            wait_for("it serves and sheds", SOON, async || {
                let ready = fleet.caller(1).get("/readyz").await.expect("an answer");
                let sheds = ready.text.contains("the disk is full");
                let leads = !ready.text.contains("shard 0");
                if sheds && leads { Ok(()) } else { Err(ready.text) }
            })
            .await;
            disk.free();
        } else {
            let (status, words) = fleet.start_refused(1).await;
            assert!(!status.success(), "{words}");
            let words = words.to_lowercase();
            assert!(words.contains("the disk is full: free space and start again"), "{words}");
            assert!(!words.contains("replace"), "{words}");
            disk.free();
            fleet.start_node(1);
        }
        fleet.wait_ready().await;
        assert_eq!(fleet.audit("filler").await.number_of("held"), held);
        drop(fleet);
        drop(disk);
    }
}

/// Case S10.
#[tokio::test]
async fn node_whose_disk_is_full_says_so_stops_its_part_and_loses_nothing() {
    let seed = seed();
    let plan =
        Plan::new(3, 2).set("peer.append_bytes_max", 1 << 18).set("log.segment_bytes", 1 << 20);
    let mut fleet = Fleet::prepare(plan);
    let Some(disk) = SmallDisk::mount(&fleet.data_dir(3), 48) else {
        println!("SKIPPED, NOTHING WAS PROVED: mounting a tmpfs is not allowed here");
        return;
    };
    for id in fleet.ids() {
        fleet.start_node(id);
    }
    for id in fleet.ids() {
        fleet.wait_up(id).await;
    }
    fleet.found().await;
    fleet.wait_ready().await;
    fleet.put_units("ticket", 1_000_000).await;
    fleet.put_units("filler", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 12, seed);
    buying.wait_grants(50).await;
    disk.fill(64 << 10);
    let mut round = 0;
    let told = wait_for("the full disk is told of", SOON + SOON, async || {
        round += 1;
        write_much(&fleet, round).await;
        let ready = fleet.caller(3).get("/readyz").await;
        match ready {
            Ok(ready) if ready.status == 503 && ready.text.contains("the log takes nothing") => {
                assert!(ready.text.contains("restart this node"), "{}", ready.text);
                Ok(ready.text)
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    println!("{told}");
    assert_eq!(fleet.metrics(3).await.sum("holdfast_log_failed", &[]), 1.0);
    // The others go on.
    buying.wait_grants(50).await;
    for shard in 0..2 {
        wait_for("somebody else leads", SOON, async || {
            let leader = fleet.leader_of_shard(shard).await.0;
            if leader == 3 { Err(format!("node {leader} leads")) } else { Ok(()) }
        })
        .await;
    }
    // With room again, and started anew, it catches up.
    fleet.kill(3);
    disk.free();
    fleet.start_node(3);
    fleet.wait_ready().await;
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}", books.kept.len(), books.told);
    books.verify(&fleet, "ticket").await;
    drop(fleet);
    drop(disk);
}
