//! S01 and S02 in small: the databases' files settle though pages are written for ever.

mod checkpoint_site;

use checkpoint_site::{Book, Dice, Site, key, run, start};

/// Pages of a hot item: few, always dirty, written again and again.
const PAGES: u64 = 256;
const PAGE_BYTES: usize = 8 << 10;
const CHECKPOINTS: usize = 60;

#[test]
fn files_settle_when_the_same_pages_are_written_for_ever_s01() {
    run(async {
        let (mut dice, mut book) = (Dice(31), Book::default());
        let site = Site::sled();
        let checkpoints = site.open().await;
        let (mut peak, mut whole) = (0, 0);
        for number in 0..CHECKPOINTS {
            for _ in 0..PAGES {
                let key = key(dice.roll(PAGES));
                book.put(key, dice.bytes(PAGE_BYTES));
            }
            whole += usize::from(checkpoints.next_turn().1);
            let header = book.checkpoint(&checkpoints).await;
            let bytes = checkpoints.bytes_on_disk().expect("looks");
            peak = peak.max(bytes[0]).max(bytes[1]);
            // One checkpoint may pass the bound before the next into that place is written whole.
            let bound = 4 * header.page_bytes + (64 << 20) + 2 * header.page_bytes + (16 << 20);
            assert!(bytes[0] <= bound && bytes[1] <= bound, "at {number}: {bytes:?} > {bound}");
        }
        let written = CHECKPOINTS as u64 * PAGES * PAGE_BYTES as u64;
        println!("peak {} MiB a database, whole {whole} of {CHECKPOINTS}", peak >> 20);
        assert!(peak * 2 < written, "it would have grown to {written}");
        assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
    });
}

#[test]
fn deleting_everything_gives_the_space_back_s01() {
    run(async {
        let mut book = Book::default();
        let site = Site::sled();
        let checkpoints = site.open().await;
        let mut dice = Dice(32);
        for number in 0..5_000 {
            book.put(key(number), dice.bytes(16 << 10));
        }
        for _ in 0..2 {
            book.checkpoint(&checkpoints).await;
        }
        let full = checkpoints.bytes_on_disk().expect("looks");
        for number in 1..5_000 {
            book.remove(&key(number));
        }
        for _ in 0..4 {
            book.put(key(0), dice.bytes(16 << 10));
            book.checkpoint(&checkpoints).await;
        }
        let empty = checkpoints.bytes_on_disk().expect("looks");
        println!("{full:?} → {empty:?}");
        assert!(empty[0] < 80 << 20 && empty[1] < 80 << 20, "{empty:?}");
        assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
    });
}
