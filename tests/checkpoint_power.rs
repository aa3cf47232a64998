//! Power cuts on a real file system: copies of a loop-mounted ext4 image, which hold only what the
//! file system has really written. Needs root, loop devices and `mkfs.ext4`; without them it says
//! loudly that it proved nothing.

mod checkpoint_site;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use checkpoint_site::{Book, Dice, Site, origin, run, start};
use holdfast::storage::checkpoint::{Checkpoints, PageDesk, Place};
use holdfast::storage::pages::SledPages;

fn call(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect("starts");
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// Tells whether a program succeeds; says nothing.
fn quiet(program: &str, arguments: &[&std::ffi::OsStr]) -> bool {
    let done = Command::new(program).args(arguments).output();
    done.is_ok_and(|output| output.status.success())
}

/// Tells whether an image can be made and mounted here.
fn can_mount() -> bool {
    let temp = tempfile::tempdir().expect("a directory");
    let image = temp.path().join("image");
    let file = fs::File::create(&image).expect("creates");
    file.set_len(8 << 20).expect("grows");
    let at = temp.path().join("disk");
    fs::create_dir_all(&at).expect("makes");
    quiet("mkfs.ext4", &["-q".as_ref(), image.as_os_str()])
        && quiet("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()])
        && quiet("umount", &["-l".as_ref(), at.as_os_str()])
}

/// How often a copy of the disk is tried.
const ATTEMPTS_MAX: usize = 100;

/// An image that is mounted until this is dropped.
struct Mount(PathBuf);

impl Mount {
    fn of(image: &Path, at: PathBuf) -> Mount {
        fs::create_dir_all(&at).expect("makes");
        call("mount", &["-o", "loop", &image.to_string_lossy(), &at.to_string_lossy()]);
        Mount(at)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

async fn open(at: &Path) -> Checkpoints {
    let store = SledPages::new(at.join("shard-2")).expect("store");
    let desk = PageDesk::start().expect("a thread");
    Checkpoints::open(std::sync::Arc::new(store), origin(), desk).await.expect("opens")
}

/// Copies a disk that is in use as it is at one moment. The system writes to it whenever it likes,
/// and a copy takes a while: one that has bytes of different moments is no disk after a power cut.
/// Two copies in a row that are the same have those of the moment between them.
fn photograph(image: &Path, dir: &Path) -> PathBuf {
    let (first, second) = (dir.join("copy"), dir.join("copy-again"));
    let copy = |to: &Path| {
        call("cp", &["--sparse=always", &image.to_string_lossy(), &to.to_string_lossy()]);
    };
    for _ in 0..ATTEMPTS_MAX {
        copy(&first);
        copy(&second);
        if quiet("cmp", &["-s".as_ref(), first.as_os_str(), second.as_os_str()]) {
            return first;
        }
    }
    panic!("the disk was written to all the time")
}

/// Cuts the power now, starts from what is left, and says what was found.
async fn after_power_cut(image: &Path, dir: &Path, expected: &Book, what: &str) {
    let copy = photograph(image, dir);
    let mount = Mount::of(&copy, dir.join("after"));
    let checkpoints = open(&mount.0).await;
    let (_, header, pages) = start(&checkpoints).await.unwrap_or_else(|| panic!("{what}"));
    assert_eq!((pages, header.state.clone()), (expected.pages.clone(), expected.state()), "{what}");
    checkpoints.settle().await.expect("settles");
}

#[test]
fn a_finished_checkpoint_survives_a_power_cut_at_any_later_moment() {
    if !can_mount() {
        eprintln!("SKIPPED: no power was cut, since nothing can be loop-mounted here");
        return;
    }
    let Site::Sled(temp) = Site::sled() else { unreachable!("made of files") };
    let image = temp.path().join("image");
    let file = fs::File::create(&image).expect("creates");
    file.set_len(512 << 20).expect("grows");
    call("mkfs.ext4", &["-q", &image.to_string_lossy()]);
    let mount = Mount::of(&image, temp.path().join("disk"));
    run(async {
        let (mut dice, mut book) = (Dice(51), Book::default());
        let checkpoints = open(&mount.0).await;
        book.shake(&mut dice, 200, 200);
        book.checkpoint(&checkpoints).await;
        for round in 0..6 {
            let before = book.clone();
            book.shake(&mut dice, 200, 200);
            let (turn, whole) = checkpoints.next_turn();
            let mut writer = checkpoints.begin(turn, whole).await.expect("begins");
            after_power_cut(&image, temp.path(), &before, &format!("{round}: begun")).await;
            let cut = book.cut(turn, whole);
            let (first, second) = cut.split_at(cut.len() / 2);
            writer.write(first.to_vec()).await.expect("writes");
            after_power_cut(&image, temp.path(), &before, &format!("{round}: half")).await;
            writer.write(second.to_vec()).await.expect("writes");
            after_power_cut(&image, temp.path(), &before, &format!("{round}: written")).await;
            writer.finish(book.state()).await.expect("finishes");
            book.cut_is_durable(turn);
            assert!(matches!(checkpoints.place(turn), Place::Good(_)));
            after_power_cut(&image, temp.path(), &book, &format!("{round}: finished")).await;
        }
        checkpoints.settle().await.expect("settles");
    });
}
