//! Damage to data at rest. The node's own files are put aside first and put back unharmed, since a
//! node whose log is damaged must never take part again, and a cluster that loses one each time
//! would be gone soon. What is judged is that it stays out while it is damaged.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Fault, Nemesis, Strike, Undo};
use crate::cluster::{Cluster, LOOK_AGAIN};
use crate::dice::Dice;
use crate::tool;

/// How long a damaged node is watched: it would be ready within a fraction of it.
const WATCHED: Duration = Duration::from_millis(2_500);
/// Bytes that are flipped in a page database.
const FLIPS: usize = 64;

/// What was done to a node's data.
#[derive(Debug)]
pub(crate) enum Damage {
    /// Its files are here, unharmed; what it runs on is damaged.
    Aside(PathBuf),
    /// It runs on what was damaged, and has to cope.
    Kept,
}

impl Nemesis {
    pub(super) async fn damage(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
    ) -> Result<Strike, String> {
        let node = self.any(cluster);
        let data = cluster.node(node).disk.data();
        cluster.node_mut(node).stop().await?;
        let done = self.harm(fault, &data).await;
        let (words, damage) = match done {
            Ok(done) => done,
            Err(why) => {
                cluster.start(node)?;
                return Err(why);
            }
        };
        cluster.start(node)?;
        if matches!(damage, Damage::Kept) {
            return Ok(Strike::proven(vec![node], words, Undo::Nothing));
        }
        let (said, out) = watch(cluster, node).await;
        let proof = format!("{words}; the node says: {said}");
        if out {
            let strike = Strike::proven(vec![node], proof, Undo::Damage(node, damage));
            return Ok(Strike { stayed_out: Some(true), ..strike });
        }
        // It serves: then what it runs on now is its data, and the old must never come back.
        if let Damage::Aside(kept) = damage {
            let _ = std::fs::remove_dir_all(kept);
        }
        // A flipped bit may lie in what is purged; a cut or an empty log cannot.
        let stayed_out = (fault != Fault::FlipLog).then_some(false);
        let strike = Strike::new(vec![node], proof, stayed_out.is_some(), Undo::Nothing);
        Ok(Strike { stayed_out, ..strike })
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller chose by the family")]
    async fn harm(&mut self, fault: Fault, data: &Path) -> Result<(String, Damage), String> {
        if fault == Fault::FlipPages {
            let words = flip_pages(data, &mut self.dice)?;
            sync(data).await?;
            return Ok((words, Damage::Kept));
        }
        // The very same files are put aside, and a copy is harmed.
        let kept = data.with_extension("kept");
        std::fs::rename(data, &kept).map_err(|e| e.to_string())?;
        let (from, to) = (kept.to_string_lossy(), data.to_string_lossy());
        tool::run("cp", &["-a", "--sparse=always", &from, &to]).await?;
        let harmed = match fault {
            Fault::FlipLog => flip_log(data, &mut self.dice),
            Fault::CutLog => cut_log(data),
            Fault::Wipe => wipe(data),
            other => Err(format!("{} is no damage", other.name())),
        };
        sync(data).await?;
        match harmed {
            Ok(words) => Ok((words, Damage::Aside(kept))),
            Err(why) => {
                let _ = std::fs::remove_dir_all(data);
                std::fs::rename(&kept, data).map_err(|e| e.to_string())?;
                Err(why)
            }
        }
    }
}

/// Watches a damaged node: what it says, and whether it stays out.
pub(super) async fn watch(cluster: &mut Cluster, node: u64) -> (String, bool) {
    let began = Instant::now();
    let mut said = String::new();
    while began.elapsed() < WATCHED {
        if !cluster.node_mut(node).is_running() {
            return (cluster.node(node).last_words(1), true);
        }
        match cluster.ready(node).await {
            Ok(()) => return ("ready".to_owned(), false),
            Err(why) => said = why,
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    (said, true)
}

/// Puts a node's own files back and starts it.
pub(super) async fn mend(
    cluster: &mut Cluster,
    node: u64,
    damage: Damage,
) -> Result<String, String> {
    cluster.node_mut(node).kill().await;
    let data = cluster.node(node).disk.data();
    if let Damage::Aside(kept) = damage {
        std::fs::remove_dir_all(&data).map_err(|e| e.to_string())?;
        std::fs::rename(&kept, &data).map_err(|e| e.to_string())?;
    }
    sync(&data).await?;
    cluster.start(node)?;
    Ok("the very same files were put back".to_owned())
}

/// Syncs the disk: what the suite did must not be lost by a power cut that it makes next.
async fn sync(path: &Path) -> Result<(), String> {
    tool::run("sync", &["-f", &path.to_string_lossy()]).await.map(drop)
}

/// The files under a directory, by name.
fn files(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Where the last byte is that is not zero, plus one.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}

fn flip_pages(data: &Path, dice: &mut Dice) -> Result<String, String> {
    let mut shards = Vec::new();
    for entry in std::fs::read_dir(data).map_err(|e| e.to_string())? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("shard-")) {
            shards.push(path);
        }
    }
    shards.sort();
    let shard = dice.pick(&shards).ok_or("there are no pages yet")?;
    let which = if dice.percent(50) { "a" } else { "b" };
    let dir = shard.join(which);
    let mut pages = files(&dir)?;
    pages.retain(|path| std::fs::metadata(path).is_ok_and(|it| it.len() > 4_096));
    let path = dice.pick(&pages).ok_or("there are no pages yet")?;
    let mut bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let extent = written(&bytes);
    if extent < 1_024 {
        return Err("there are no pages yet".to_owned());
    }
    for _ in 0..FLIPS {
        let at = dice.index(extent);
        bytes[at] ^= 1 << dice.below(8);
    }
    std::fs::write(path, &bytes).map_err(|e| e.to_string())?;
    let name = path.strip_prefix(data).unwrap_or(path).display();
    Ok(format!("{FLIPS} bits of {extent} bytes of {name} were flipped"))
}

/// The segments of the log that hold something, with how much.
fn segments(data: &Path) -> Result<Vec<(PathBuf, usize)>, String> {
    let mut found = Vec::new();
    for path in files(&data.join("log"))? {
        let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
        let extent = written(&bytes);
        if bytes.len() >= 1 << 20 && extent > 4_096 {
            found.push((path, extent));
        }
    }
    Ok(found)
}

fn flip_log(data: &Path, dice: &mut Dice) -> Result<String, String> {
    let (path, extent) = segments(data)?.pop().ok_or("the log is too short")?;
    let mut bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
    let at = extent / 4 + dice.index(extent / 2);
    bytes[at] ^= 1 << dice.below(8);
    std::fs::write(&path, &bytes).map_err(|e| e.to_string())?;
    let name = path.strip_prefix(data).unwrap_or(&path).display();
    Ok(format!("a bit of byte {at} of {extent} of {name} was flipped"))
}

fn cut_log(data: &Path) -> Result<String, String> {
    let (path, extent) = segments(data)?.pop().ok_or("the log is too short")?;
    let file = std::fs::OpenOptions::new().write(true).open(&path).map_err(|e| e.to_string())?;
    let half = extent as u64 / 2;
    file.set_len(half).map_err(|e| e.to_string())?;
    let name = path.strip_prefix(data).unwrap_or(&path).display();
    Ok(format!("{name} was cut from {extent} written bytes to {half}"))
}

fn wipe(data: &Path) -> Result<String, String> {
    std::fs::remove_dir_all(data).map_err(|e| e.to_string())?;
    std::fs::create_dir_all(data).map_err(|e| e.to_string())?;
    Ok("the directory is empty".to_owned())
}
