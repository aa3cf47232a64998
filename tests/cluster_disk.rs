//! A node whose disk is full. Needs the right to mount a small file system; without it the test says
//! loudly that it proves nothing.

mod cluster;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::{Buying, Fleet, Plan, SOON, seed, wait_for};

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

/// Case S10.
#[tokio::test]
async fn node_whose_disk_is_full_says_so_stops_its_part_and_loses_nothing() {
    let seed = seed();
    let plan = Plan::new(3, 2).set("log.segment_bytes", 1 << 20);
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
    assert_eq!(fleet.init("plan.json").code, Some(0));
    fleet.wait_ready().await;
    fleet.put_units("ticket", 1_000_000).await;
    let buying = Buying::start("ticket", fleet.all_http(), 12, seed);
    buying.wait_grants(50).await;
    disk.fill(64 << 10);
    let told = wait_for("the full disk is told of", SOON + SOON, async || {
        let ready = fleet.caller(3).get("/readyz").await;
        match ready {
            Ok(ready) if ready.status == 503 && ready.text.contains("the log takes nothing") => {
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
