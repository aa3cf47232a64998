//! Crashes, damage, disk errors and given-up futures, by seed.

mod checkpoint_site;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use checkpoint_site::{Book, Dice, Pages, Site, digest, key, origin, run, start};
use futures_util::FutureExt;
use holdfast::ledger::Turn;
use holdfast::storage::checkpoint::{CheckpointError, Checkpoints, PageDesk, Place};
use holdfast::storage::pages::sim_store::SimDamage;
use holdfast::storage::pages::{PageStore, SimPages};

/// One node's life with one shard: what the log may have been purged up to, and every state that
/// was ever cut.
struct Life {
    site: Site,
    dice: Dice,
    book: Book,
    purged: u64,
    cuts: BTreeMap<u64, u128>,
}

impl Life {
    fn new(site: Site, seed: u64) -> Life {
        Life { site, dice: Dice(seed), book: Book::default(), purged: 0, cuts: BTreeMap::new() }
    }

    /// Starts, checks what is found, and goes on from there as if the log had led to the newest
    /// state again.
    async fn start(&mut self, seed: u64) -> Checkpoints {
        let checkpoints = self.site.open().await;
        let newest = self.book.clone();
        match start(&checkpoints).await {
            Some((_, header, pages)) => {
                let index = header.state.position.expect("has one").index.0;
                assert_eq!(self.cuts.get(&index), Some(&digest(&pages)), "seed {seed}");
                assert!(index >= self.purged, "seed {seed}: {index} < {}", self.purged);
                self.book = Book { index, pages, ..Book::default() };
                // The log leads on: every page may have changed since.
                for (key, value) in newest.pages {
                    self.book.put(key, value);
                }
                self.book.index = self.book.index.max(newest.index);
            }
            None => {
                assert_eq!(self.purged, 0, "seed {seed}: the log cannot lead to anywhere");
                self.book = Book::default();
                for (key, value) in newest.pages {
                    self.book.put(key, value);
                }
                self.book.index = self.book.index.max(newest.index);
            }
        }
        checkpoints
    }

    fn cut(&mut self) {
        self.cuts.insert(self.book.index, digest(&self.book.pages));
    }

    /// Writes a checkpoint and crashes somewhere in it, or not. Returns whether it was finished.
    async fn checkpoint(&mut self, checkpoints: &Checkpoints) -> bool {
        self.book.shake(&mut self.dice, 15, 40);
        self.cut();
        let (turn, whole) = checkpoints.next_turn();
        let crash_at = self.dice.roll(40) as usize;
        let mut writer = checkpoints.begin(turn, whole).await.expect("begins");
        for (step, change) in self.book.cut(turn, whole).chunks(4).enumerate() {
            if step == crash_at {
                return false;
            }
            writer.write(change.to_vec()).await.expect("writes");
        }
        writer.finish(self.book.state()).await.expect("finishes");
        self.book.cut_is_durable(turn);
        if let Some(limit) = checkpoints.purge_limit() {
            assert!(limit.index.0 >= self.purged, "what was covered stays covered");
            self.purged = limit.index.0;
        }
        true
    }
}

async fn live(site: Site, seed: u64, rounds: u64) {
    let mut life = Life::new(site, seed);
    for _ in 0..rounds {
        let checkpoints = life.start(seed).await;
        let mut crashed = false;
        for _ in 0..=life.dice.roll(4) {
            if !life.checkpoint(&checkpoints).await {
                crashed = true;
                break;
            }
        }
        checkpoints.settle().await.expect("settles");
        let good = |turn| matches!(checkpoints.place(turn), Place::Good(_));
        // One loss at a time is what two databases survive.
        if let Site::Sim(pages) = &life.site
            && !crashed
            && good(Turn::A)
            && good(Turn::B)
            && life.dice.roll(2) == 0
        {
            let turn = [Turn::A, Turn::B][life.dice.roll(2) as usize];
            let kinds =
                [SimDamage::Deleted, SimDamage::Plain, SimDamage::Hidden, SimDamage::Silent];
            pages.damage(turn, kinds[life.dice.roll(4) as usize]);
        }
    }
    life.start(seed).await;
}

#[test]
fn one_loss_at_a_time_never_loses_what_the_log_was_purged_of_in_the_model() {
    for seed in 0..400 {
        run(live(Site::sim(seed), seed, 8));
    }
}

#[test]
fn one_loss_at_a_time_never_loses_what_the_log_was_purged_of_on_real_files() {
    for seed in 0..4 {
        run(live(Site::sled(), seed, 6));
    }
}

#[test]
fn a_disk_error_at_any_step_costs_only_the_database_being_written() {
    run(async {
        let mut seen = 0;
        for step in 0..12 {
            let (mut dice, mut book) = (Dice(step), Book::default());
            let pages = SimPages::new(step);
            let site = Site::Sim(pages.clone());
            let checkpoints = site.open().await;
            for _ in 0..2 {
                book.shake(&mut dice, 30, 40);
                book.checkpoint(&checkpoints).await;
            }
            let kept = book.clone();
            book.shake(&mut dice, 30, 40);
            let fault = u32::try_from(step).expect("small");
            pages.fail_after(fault, io::ErrorKind::StorageFull);
            let (turn, whole) = checkpoints.next_turn();
            let mut outcome = Ok(());
            match checkpoints.begin(turn, whole).await {
                Err(error) => outcome = Err(error),
                Ok(mut writer) => {
                    for change in book.cut(turn, whole).chunks(4) {
                        outcome = writer.write(change.to_vec()).await;
                        if outcome.is_err() {
                            break;
                        }
                    }
                    if outcome.is_ok() {
                        outcome = writer.finish(book.state()).await.map(drop);
                    }
                }
            }
            let Err(error) = outcome else { continue };
            seen += 1;
            let CheckpointError::Io(io) = &error else { panic!("step {step}: {error}") };
            assert_eq!(io.kind(), io::ErrorKind::StorageFull, "so that ballast can be given up");
            assert!(matches!(checkpoints.place(turn), Place::Damaged(_)), "step {step}");
            let (_, header) = checkpoints.current().expect("the other is current");
            assert_eq!(header.state, kept.state());
            let (_, _, found) = start(&checkpoints).await.expect("and good");
            assert_eq!(found, kept.pages);
            assert_eq!(checkpoints.next_turn(), (turn, true));
            book.checkpoint(&checkpoints).await;
            assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
        }
        assert!(seen >= 5, "{seen}");
    });
}

#[test]
fn a_step_that_nobody_waits_for_any_more_ends_the_checkpoint_and_nothing_else() {
    run(async {
        for site in [Site::sled(), Site::sim(3)] {
            let (mut dice, mut book) = (Dice(41), Book::default());
            let checkpoints = site.open().await;
            for _ in 0..2 {
                book.shake(&mut dice, 60, 80);
                book.checkpoint(&checkpoints).await;
            }
            let kept = book.clone();
            book.shake(&mut dice, 60, 80);
            let (turn, whole) = checkpoints.next_turn();
            let mut writer = checkpoints.begin(turn, whole).await.expect("begins");
            let given_up = writer.write(book.cut(turn, whole)).now_or_never();
            if given_up.is_none() {
                let after = writer.write(vec![(key(1), None)]).await.expect_err("it is over");
                assert!(matches!(after, CheckpointError::Damaged { .. }), "{after}");
                let after = writer.finish(book.state()).await.expect_err("it is over");
                assert!(matches!(after, CheckpointError::Damaged { .. }), "{after}");
            } else {
                drop(writer);
            }
            assert!(checkpoints.begin(turn, false).await.is_err());
            assert!(checkpoints.begin_receive().now_or_never().is_none_or(|x| x.is_ok()));
            checkpoints.settle().await.expect("settles");
            let (found, _, pages) = start(&checkpoints).await.expect("good");
            assert_eq!((found == turn, pages), (false, kept.pages));
            book.checkpoint(&checkpoints).await;
            assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
        }
    });
}

#[test]
fn pages_lost_silently_are_found_by_their_number_or_the_digest() {
    run(async {
        for seed in 0..20 {
            let (mut dice, mut book) = (Dice(seed), Book::default());
            let pages = SimPages::new(seed);
            let site = Site::Sim(pages.clone());
            let checkpoints = site.open().await;
            for _ in 0..2 {
                book.put(key(1_000 + seed), vec![1]);
                book.shake(&mut dice, 30, 40);
                book.checkpoint(&checkpoints).await;
            }
            let (newer, _) = checkpoints.current().expect("is there");
            pages.damage(newer, SimDamage::Silent);
            let checkpoints = site.open().await;
            assert!(matches!(checkpoints.place(newer), Place::Good(_)), "nothing shows it");
            let (found, _, _) = start(&checkpoints).await.expect("the other is good");
            assert_ne!(found, newer);
            assert!(matches!(site.open().await.place(newer), Place::Damaged(_)), "for good");
        }
    });
}

#[test]
fn the_model_leaves_the_same_after_the_same_seed_and_calls() {
    let left = |seed| {
        let pages = SimPages::new(seed);
        let mut left = Vec::new();
        for _ in 0..20 {
            drop(pages.begin(Turn::A, true).expect("begins"));
            pages.tidy().expect("tidies");
            left.push(pages.look(Turn::A).expect("looks"));
        }
        left
    };
    assert_eq!(left(5), left(5));
    assert_ne!(left(5), left(6));
}

#[test]
fn a_writer_of_a_crashed_node_closes_nothing() {
    let pages = SimPages::new(1);
    let old = pages.begin(Turn::A, true).expect("begins");
    let new = pages.begin(Turn::A, true).expect("the node starts again");
    old.close(b"old").expect_err("it is not its place any more");
    new.close(b"new").expect("closes");
    drop(pages);
}

#[test]
fn work_that_panics_is_an_error_and_the_desk_goes_on() {
    run(async {
        let desk = PageDesk::start().expect("a thread");
        if cfg!(not(feature = "sim")) {
            let lost: io::Result<()> = desk.run(|| panic!("on purpose")).await;
            assert!(lost.expect_err("lost").to_string().contains("panicked"));
        }
        assert_eq!(desk.run(|| 7).await.expect("goes on"), 7);
        let pages = SimPages::new(1);
        let site: Arc<dyn PageStore> = Arc::new(pages);
        let (one, two) = (
            Checkpoints::open(Arc::clone(&site), origin(), desk.clone()).await.expect("opens"),
            Checkpoints::open(Arc::new(SimPages::new(2)), origin(), desk).await.expect("opens"),
        );
        let mut book = Book::default();
        book.put(key(1), vec![1]);
        book.checkpoint(&one).await;
        book.put(key(2), vec![2]);
        let header = book.checkpoint(&two).await;
        assert_eq!(header.sequence, 1, "shards that share a desk share nothing else");
        let (_, found) = one.load(Turn::A).await.expect("loads");
        assert_eq!(Pages::from_iter(found).len(), 1);
    });
}
