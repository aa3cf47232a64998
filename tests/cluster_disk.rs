//! A node whose disk is full. Needs the right to mount a small file system; without it the test
//! says loudly that it proves nothing.

mod cluster;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::{Buying, Fleet, Plan, SOON, holdfast, seed, wait_for};
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

/// Three nodes, of which some have a small disk of their own; `None` where that is not allowed.
async fn with_small_disks(small: &[usize]) -> Option<(Fleet, Vec<SmallDisk>)> {
    let plan =
        Plan::new(3, 2).set("peer.append_bytes_max", 1 << 18).set("log.segment_bytes", 1 << 20);
    let mut fleet = Fleet::prepare(plan);
    let mut disks = Vec::new();
    for id in small {
        let Some(disk) = SmallDisk::mount(&fleet.data_dir(*id), 48) else {
            println!("SKIPPED, NOTHING WAS PROVED: mounting a tmpfs is not allowed here");
            return None;
        };
        disks.push(disk);
    }
    fleet.unite().await;
    fleet.put_units("ticket", 1_000_000).await;
    fleet.put_units("filler", 1_000_000).await;
    Some((fleet, disks))
}

/// Waits until a node's log waits for room, while somebody writes.
async fn until_no_room(fleet: &Fleet, node: usize) {
    let mut round = 0;
    let told = wait_for("the full disk is told of", SOON + SOON, async || {
        round += 1;
        write_much(fleet, round).await;
        match fleet.caller(node).get("/readyz?verbose").await {
            Ok(ready) if ready.text.contains("the log waits for room") => Ok(ready),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(told.status, 503);
    println!("{}", told.text);
    let metrics = fleet.metrics(node).await;
    assert!(metrics.sum("holdfast_log_waits_for_room_seconds", &[]) > 0.0);
    assert_eq!(metrics.sum("holdfast_log_failed", &[]), 0.0);
}

async fn until_led_by_another(fleet: &Fleet, node: usize) {
    for shard in 0..2 {
        wait_for("somebody else leads", SOON, async || {
            let leader = fleet.leader_of_shard(shard).await.0;
            if leader == node { Err(format!("node {leader} leads")) } else { Ok(()) }
        })
        .await;
    }
}

/// Case S10.
#[tokio::test]
async fn node_whose_disk_is_full_says_so_hands_over_and_returns_by_itself_when_there_is_room() {
    let seed = seed();
    let Some((mut fleet, disks)) = with_small_disks(&[3]).await else { return };
    let buying = Buying::start("ticket", fleet.all_http(), 12, seed);
    buying.wait_grants(50).await;
    // It is the leader that gets into trouble.
    for shard in 0..2 {
        wait_for("node 3 leads", SOON, async || {
            let shard_word = shard.to_string();
            let url = fleet.url(1);
            let moved = holdfast(&["shard", "transfer", &shard_word, "--to", "3", "--url", &url]);
            let leader = fleet.leader_of_shard(shard).await.0;
            if leader == 3 { Ok(()) } else { Err(moved.words()) }
        })
        .await;
    }
    let pid = fleet.words(3).len();
    disks[0].fill(64 << 10);
    let began = tokio::time::Instant::now();
    until_led_by_another(&fleet, 3).await;
    println!("others lead {:?} after the disk was full", began.elapsed());
    buying.wait_grants(50).await;
    until_no_room(&fleet, 3).await;
    // The others go on, and whoever asks the full node is answered.
    until_led_by_another(&fleet, 3).await;
    buying.wait_grants(50).await;
    let started = tokio::time::Instant::now();
    let asked = fleet.caller(3).get("/v1/items/ticket/availability").await;
    println!("asked of the full node: {:?} after {:?}", asked, started.elapsed());
    // With room again it takes part again, the same process.
    disks[0].free();
    fleet.wait_ready().await;
    let words = fleet.words(3)[pid..].to_owned();
    assert!(words.contains("the write-ahead log goes on"), "{words}");
    assert!(!words.contains("holdfast::cli::serve"), "it was started anew: {words}");
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}", books.kept.len(), books.told);
    books.verify(&fleet, "ticket").await;
    drop(fleet);
    drop(disks);
}

/// Case S10: with two full there is no quorum. Refusals are clean, reads go on, and when there is
/// room again everything goes on.
#[tokio::test]
async fn two_full_disks_of_three_pause_the_sale_and_it_goes_on_when_there_is_room() {
    let seed = seed();
    let Some((mut fleet, disks)) = with_small_disks(&[2, 3]).await else { return };
    let buying = Buying::start("ticket", fleet.all_http(), 6, seed);
    buying.wait_grants(50).await;
    for disk in &disks {
        disk.fill(64 << 10);
    }
    let mut round = 0;
    wait_for("no quorum is left", SOON + SOON, async || {
        round += 1;
        write_much(&fleet, round).await;
        let mut waiting = 0;
        for id in [2, 3] {
            let metrics = fleet.metrics(id).await;
            let waits = metrics.sum("holdfast_log_waits_for_room_seconds", &[]);
            waiting += usize::from(waits > 0.0);
        }
        if waiting == 2 { Ok(()) } else { Err(format!("{waiting} wait")) }
    })
    .await;
    let body = json!({"quantity": 1, "buyer": "b"});
    wait_for("clean refusals", SOON, async || {
        let within = std::time::Duration::from_millis(1_000);
        let path = "/v1/items/ticket/holds";
        let sent = fleet.caller(1).post_within(path, "during", &body, within).await;
        match sent {
            Ok(answer) if answer.status == 503 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for id in fleet.ids() {
        let read = fleet.caller(id).get("/v1/items/ticket/audit?consistency=local").await;
        assert_eq!(read.expect("an answer").status, 200, "reads go on at node {id}");
    }
    for disk in &disks {
        disk.free();
    }
    fleet.wait_ready().await;
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}", books.kept.len(), books.told);
    books.verify(&fleet, "ticket").await;
    drop(fleet);
    drop(disks);
}

/// A small ext4 on a loop device, which can be made to hang; thawed and unmounted when it is
/// dropped.
struct LoopDisk(PathBuf);

fn tool(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

impl LoopDisk {
    fn mount(at: &Path, image: &Path) -> Option<LoopDisk> {
        fs::create_dir_all(at).expect("a directory");
        let (at_text, image) = (at.display().to_string(), image.display().to_string());
        let made = tool("truncate", &["-s", "128M", &image])
            && tool("mkfs.ext4", &["-q", "-F", "-m", "0", &image])
            && tool("mount", &["-o", "loop", &image, &at_text]);
        made.then(|| LoopDisk(at.to_owned()))
    }

    /// From now on nothing is written and nothing fails: every write and sync waits.
    fn hang(&self) -> bool {
        tool("fsfreeze", &["-f", &self.0.display().to_string()])
    }

    fn go_on(&self) -> bool {
        tool("fsfreeze", &["-u", &self.0.display().to_string()])
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        self.go_on();
        tool("umount", &["-l", &self.0.display().to_string()]);
    }
}

/// Case C17 on real processes: the leader's disk hangs.
#[tokio::test]
async fn leader_whose_disk_hangs_hands_over_answers_all_the_same_and_follows_when_it_is_well() {
    let seed = seed();
    let plan = Plan::new(3, 1).set("log.hung_ms", 300);
    let mut fleet = Fleet::prepare(plan.set("log.dead_ms", 120_000));
    let mut disks = Vec::new();
    for id in fleet.ids() {
        let image = fleet.dir().join(format!("{id}.img"));
        let at = fleet.dir().join(format!("disk-{id}"));
        let Some(disk) = LoopDisk::mount(&at, &image) else {
            println!("SKIPPED, NOTHING WAS PROVED: mounting a loop device is not allowed here");
            return;
        };
        fleet.set_on(id, "node.data_dir", at.join("data").display());
        disks.push(disk);
    }
    fleet.unite().await;
    fleet.put_units("ticket", 1_000_000).await;
    fleet.put_units("asked", 10).await;
    let buying = Buying::start("ticket", fleet.all_http(), 8, seed);
    buying.wait_grants(50).await;
    let leader = fleet.leader_of("ticket").await;
    let disk = &disks[leader - 1];
    if !disk.hang() {
        println!("SKIPPED, NOTHING WAS PROVED: freezing a file system is not allowed here");
        return;
    }
    let hung = tokio::time::Instant::now();
    wait_for("somebody else leads", SOON, async || {
        let now = fleet.leader_of_shard(0).await.0;
        if now == leader { Err(format!("node {now} leads")) } else { Ok(()) }
    })
    .await;
    println!("another leader {:?} after the disk began to hang", hung.elapsed());
    buying.wait_grants(50).await;
    println!("grants again {:?} after it", hung.elapsed());
    let told = wait_for("it says so", SOON, async || {
        match fleet.caller(leader).get("/readyz?verbose").await {
            Ok(ready) if ready.text.contains("the disk hangs") => Ok(ready),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(told.status, 503);
    assert!(told.text.contains("iostat"), "{}", told.text);
    // Whoever asks it is answered, soon: that nothing was taken here, or by the new leader.
    let body = json!({"quantity": 1, "buyer": "b"});
    let within = std::time::Duration::from_millis(1_000);
    let path = "/v1/items/asked/holds";
    let asked = fleet.caller(leader).post_within(path, "asked", &body, within).await;
    let asked = asked.expect("an answer, no hang");
    assert!(asked.status == 503 || asked.status / 100 == 2, "{asked:?}");
    // The same key elsewhere is granted once.
    let other = fleet.others(leader)[0];
    let granted = fleet.insist(other, path, "asked", &body).await;
    assert_eq!(granted.status / 100, 2, "{granted:?}");
    assert!(disk.go_on(), "it can be thawed");
    fleet.wait_ready().await;
    buying.wait_grants(50).await;
    let books = buying.finish().await;
    println!("{} holds; {:?}", books.kept.len(), books.told);
    books.verify(&fleet, "ticket").await;
    drop(fleet);
    drop(disks);
}
