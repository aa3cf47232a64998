//! Damage at rest to one page database, on real files: it is seen, named, and costs only itself.

mod checkpoint_site;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use checkpoint_site::{Book, Dice, Pages, Site, run, start};
use holdfast::ledger::Turn;
use holdfast::storage::checkpoint::{CheckpointHeader, Place};
use holdfast::storage::pages::seal::Seal;

/// Two good databases: A at an older index, B the current one.
struct Sound {
    site: Site,
    older: Pages,
    newer: Pages,
}

async fn sound() -> Sound {
    let (mut dice, mut book) = (Dice(21), Book::default());
    let site = Site::sled();
    let checkpoints = site.open().await;
    book.shake(&mut dice, 60, 80);
    book.checkpoint(&checkpoints).await;
    let older = book.pages.clone();
    book.shake(&mut dice, 60, 80);
    book.checkpoint(&checkpoints).await;
    Sound { site, older, newer: book.pages }
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("creates");
    for entry in fs::read_dir(from).expect("reads") {
        let entry = entry.expect("reads");
        if entry.file_type().expect("has one").is_dir() {
            copy_dir(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copies");
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("reads").map(|entry| entry.expect("reads").path());
    let mut files: Vec<_> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("reads");
    file.write_all_at(&[byte[0] ^ 0x20], at).expect("writes");
}

/// Starts the shard and says whose pages it found: the newer's or the older's.
async fn start_finds(sound: &Sound, what: &str) -> Option<&'static str> {
    let checkpoints = sound.site.open().await;
    let (turn, _, pages) = start(&checkpoints).await?;
    match turn {
        Turn::A => assert_eq!(pages, sound.older, "{what}"),
        Turn::B => assert_eq!(pages, sound.newer, "{what}"),
    }
    Some(if turn == Turn::A { "older" } else { "newer" })
}

#[test]
fn any_flipped_bit_of_any_file_costs_that_database_and_no_other_s07() {
    run(async {
        let sound = sound().await;
        let dir = sound.site.dir();
        let mut dice = Dice(22);
        let mut paths = files(&dir.join("b"));
        paths.push(dir.join("b.seal"));
        assert!(paths.len() >= 3, "db, conf and the seal: {paths:?}");
        assert_eq!(start_finds(&sound, "untouched").await, Some("newer"));
        for path in paths {
            let length = fs::metadata(&path).expect("is there").len();
            let positions: Vec<u64> = match length {
                0..=64 => (0..length).collect(),
                _ => (0..20).map(|_| dice.roll(length)).chain([0, length - 1]).collect(),
            };
            for at in positions {
                flip(&path, at);
                let what = format!("{} at {at}", path.display());
                assert_eq!(start_finds(&sound, &what).await, Some("older"), "{what}");
                flip(&path, at);
                assert_eq!(start_finds(&sound, &what).await, Some("newer"), "mended: {what}");
            }
        }
    });
}

#[test]
fn any_cut_of_any_file_costs_that_database_and_names_the_file_s07() {
    run(async {
        let sound = sound().await;
        let dir = sound.site.dir();
        let mut paths = files(&dir.join("b"));
        paths.push(dir.join("b.seal"));
        for path in paths {
            let whole = fs::read(&path).expect("reads");
            let length = whole.len();
            for keep in [0, 1, length / 2, length.saturating_sub(1_024), length - 1] {
                fs::write(&path, &whole[..keep]).expect("writes");
                let what = format!("{} cut to {keep}", path.display());
                let Place::Damaged(reason) = sound.site.open().await.place(Turn::B) else {
                    panic!("{what} was not seen");
                };
                assert!(reason.contains("shard-2/b"), "{reason}");
                assert_eq!(start_finds(&sound, &what).await, Some("older"));
            }
            fs::write(&path, &whole).expect("writes");
            assert_eq!(start_finds(&sound, "mended").await, Some("newer"));
        }
    });
}

#[test]
fn missing_added_emptied_and_swapped_files_are_damage_s07() {
    run(async {
        let sound = sound().await;
        let dir = sound.site.dir();
        let kept = dir.parent().expect("has one").join("kept");
        copy_dir(&dir, &kept);
        type Hurt = Box<dyn Fn(&Path)>;
        let kinds: Vec<(&str, Hurt)> = vec![
            (
                "its directory is gone",
                Box::new(|dir| fs::remove_dir_all(dir.join("b")).expect("x")),
            ),
            ("its db is gone", Box::new(|dir| fs::remove_file(dir.join("b/db")).expect("x"))),
            ("its conf is gone", Box::new(|dir| fs::remove_file(dir.join("b/conf")).expect("x"))),
            ("its seal is gone", Box::new(|dir| fs::remove_file(dir.join("b.seal")).expect("x"))),
            (
                "a file in its place",
                Box::new(|dir| {
                    fs::remove_dir_all(dir.join("b")).expect("x");
                    fs::write(dir.join("b"), b"x").expect("x");
                }),
            ),
            (
                "a directory for a seal",
                Box::new(|dir| {
                    fs::remove_file(dir.join("b.seal")).expect("x");
                    fs::create_dir(dir.join("b.seal")).expect("x");
                }),
            ),
            ("an empty snapshot", Box::new(|dir| fs::write(dir.join("b/snap.F"), []).expect("x"))),
            ("a blob", Box::new(|dir| fs::write(dir.join("b/blobs/7"), [1]).expect("x"))),
            (
                "the other's pages",
                Box::new(|dir| {
                    fs::copy(dir.join("a/db"), dir.join("b/db")).expect("x");
                }),
            ),
            (
                "the other's seal",
                Box::new(|dir| {
                    fs::copy(dir.join("a.seal"), dir.join("b.seal")).expect("x");
                }),
            ),
            (
                "a zeroed last page",
                Box::new(|dir| {
                    let file =
                        fs::OpenOptions::new().write(true).open(dir.join("b/db")).expect("x");
                    let length = file.metadata().expect("x").len();
                    file.write_all_at(
                        &vec![0; 4_096.min(length as usize)],
                        length.saturating_sub(4_096),
                    )
                    .expect("x");
                    // A page of zeros at the end may be what was there: make sure of a difference.
                    file.write_all_at(&[0xa5], length - 1).expect("x");
                }),
            ),
        ];
        for (what, hurt) in kinds {
            hurt(&dir);
            assert_eq!(start_finds(&sound, what).await, Some("older"), "{what}");
            let checkpoints = sound.site.open().await;
            start(&checkpoints).await.expect("the older");
            let mut book = Book { index: 1_000, pages: sound.older.clone(), ..Book::default() };
            book.checkpoint(&checkpoints).await;
            let (turn, _, pages) = start(&sound.site.open().await).await.expect("good");
            assert_eq!((turn, pages), (Turn::B, book.pages), "written anew over {what}");
            checkpoints.settle().await.expect("settles");
            fs::remove_dir_all(&dir).expect("removes");
            copy_dir(&kept, &dir);
            assert_eq!(start_finds(&sound, what).await, Some("newer"), "mended: {what}");
        }
    });
}

#[test]
fn a_database_that_was_rolled_back_whole_is_what_it_was_then() {
    run(async {
        let (mut dice, mut book) = (Dice(23), Book::default());
        let site = Site::sled();
        let (dir, kept) = (site.dir(), site.dir().with_file_name("kept"));
        let checkpoints = site.open().await;
        for _ in 0..2 {
            book.shake(&mut dice, 30, 50);
            book.checkpoint(&checkpoints).await;
        }
        copy_dir(&dir.join("b"), &kept.join("b"));
        fs::copy(dir.join("b.seal"), kept.join("b.seal")).expect("copies");
        let then = book.clone();
        for _ in 0..2 {
            book.shake(&mut dice, 30, 50);
            book.checkpoint(&checkpoints).await;
        }
        drop(checkpoints);
        fs::remove_dir_all(dir.join("b")).expect("removes");
        copy_dir(&kept.join("b"), &dir.join("b"));
        fs::copy(kept.join("b.seal"), dir.join("b.seal")).expect("copies");
        let checkpoints = site.open().await;
        let (turn, header) = checkpoints.current().expect("is there");
        assert_eq!((turn, header.sequence), (Turn::A, 3), "the other is newer now");
        let limit = checkpoints.purge_limit().expect("both are good");
        assert_eq!(Some(limit), then.state().position, "and the log is kept for the old one");
        let (_, pages) = checkpoints.load(Turn::B).await.expect("loads");
        assert_eq!(Pages::from_iter(pages), then.pages);
    });
}

#[test]
fn a_copy_taken_in_the_middle_of_a_checkpoint_has_the_other_database_good() {
    run(async {
        let (mut dice, mut book) = (Dice(24), Book::default());
        let site = Site::sled();
        let checkpoints = site.open().await;
        for _ in 0..2 {
            book.shake(&mut dice, 60, 80);
            book.checkpoint(&checkpoints).await;
        }
        let kept = book.clone();
        book.shake(&mut dice, 200, 80);
        let (turn, whole) = checkpoints.next_turn();
        let mut writer = checkpoints.begin(turn, whole).await.expect("begins");
        let mut copies = vec![Site::sled()];
        copy_dir(&site.dir(), &copies[0].dir());
        for change in book.cut(turn, whole).chunks(20) {
            writer.write(change.to_vec()).await.expect("writes");
            copies.push(Site::sled());
            copy_dir(&site.dir(), &copies.last().expect("pushed").dir());
        }
        for (number, copy) in copies.iter().enumerate() {
            assert!(!copy.dir().join("a.seal").exists(), "whatever sled has done to it so far");
            let checkpoints = copy.open().await;
            assert!(matches!(checkpoints.place(turn), Place::Damaged(_)), "copy {number}");
            assert_eq!(checkpoints.purge_limit(), None);
            let (found, _, pages) = start(&checkpoints).await.expect("the other is good");
            assert_eq!((found == turn, pages), (false, kept.pages.clone()), "copy {number}");
        }
        writer.finish(book.state()).await.expect("and it ends undisturbed");
        assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
    });
}

#[test]
fn damage_that_comes_between_two_checkpoints_is_never_written_upon() {
    run(async {
        let (mut dice, mut book) = (Dice(25), Book::default());
        let site = Site::sled();
        let checkpoints = site.open().await;
        for _ in 0..2 {
            book.shake(&mut dice, 60, 80);
            book.checkpoint(&checkpoints).await;
        }
        let db = site.dir().join("a/db");
        flip(&db, fs::metadata(&db).expect("is there").len() / 3);
        assert_eq!(checkpoints.next_turn(), (Turn::A, false));
        let error = checkpoints.begin(Turn::A, false).await.expect_err("its base is damaged");
        assert!(error.to_string().contains("shard-2/a: db has other bytes"), "{error}");
        assert_eq!(checkpoints.next_turn(), (Turn::A, true));
        book.shake(&mut dice, 60, 80);
        book.checkpoint(&checkpoints).await;
        assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
    });
}

#[test]
fn leftovers_of_a_crash_are_removed_at_the_start() {
    run(async {
        let sound = sound().await;
        let dir = sound.site.dir();
        for name in ["copy-1-0", "gone-1-1"] {
            copy_dir(&dir.join("a"), &dir.join(name));
        }
        fs::write(dir.join("a.seal.tmp"), b"half a seal").expect("writes");
        assert_eq!(start_finds(&sound, "leftovers").await, Some("newer"));
        let checkpoints = sound.site.open().await;
        checkpoints.verify(Turn::A).await.expect("is whole");
        let mut names: Vec<_> = fs::read_dir(&dir)
            .expect("reads")
            .map(|entry| entry.expect("reads").file_name().into_string().expect("ours"))
            .collect();
        names.sort();
        assert_eq!(names, ["a", "a.seal", "b", "b.seal"]);
    });
}

/// What the seal protects from, should it ever be wrong: sled shown damaged bytes. Here each damage
/// is sealed as if it had been so when the database was closed.
#[test]
fn damage_under_a_valid_seal_is_found_by_sled_or_by_the_digest() {
    run(async {
        let sound = sound().await;
        let dir = sound.site.dir();
        let seal = Seal::read(&dir.join("b.seal")).expect("reads").expect("is there");
        let header = CheckpointHeader::open(&seal.header).expect("opens");
        let mut dice = Dice(26);
        let mut seen = [0, 0, 0];
        for path in files(&dir.join("b")) {
            let whole = fs::read(&path).expect("reads");
            for _ in 0..24 {
                let mut bytes = whole.clone();
                let at = dice.roll(whole.len() as u64) as usize;
                match dice.roll(3) {
                    0 => bytes[at] ^= 1 << dice.roll(8),
                    1 => bytes.truncate(at),
                    _ => bytes[at..(at + 4_096).min(whole.len())].fill(0),
                }
                fs::write(&path, &bytes).expect("writes");
                let resealed = Seal::take(&dir.join("b"), &seal.header).expect("takes");
                resealed.write(&dir.join("b.seal")).expect("writes");
                let what = format!("{} at {at} of {}", path.display(), whole.len());
                match sound.site.open().await.load(Turn::B).await {
                    Err(_) => seen[0] += 1,
                    Ok((_, pages)) => {
                        let pages = Pages::from_iter(pages);
                        if pages == sound.newer {
                            seen[1] += 1;
                        } else {
                            seen[2] += 1;
                            let digest = checkpoint_site::digest(&pages);
                            assert_ne!(digest, header.state.digest, "{what}");
                        }
                    }
                }
                assert!(start_finds(&sound, &what).await.is_some(), "{what}");
            }
            fs::write(&path, &whole).expect("writes");
        }
        println!("refused {}, not hurt {}, left to the digest {}", seen[0], seen[1], seen[2]);
        assert!(seen[0] > 0, "{seen:?}");
    });
}
