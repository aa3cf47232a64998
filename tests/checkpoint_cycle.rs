//! Checkpoints written in turn, on sled's real files and on the simulator's model alike.

mod checkpoint_site;

use checkpoint_site::{Book, Dice, Pages, Site, at, digest, key, position, run, settings, start};
use holdfast::ledger::{PageKey, ShardId, Turn};
use holdfast::storage::checkpoint::{CheckpointError, Origin, Place};
use holdfast::storage::pages::{PAGE_BYTES_MAX, STEP_PAGES_MAX};

macro_rules! on_both {
    ($($rule:ident)*) => {
        mod sled {
            $(#[test] fn $rule() { super::run(super::$rule(super::Site::sled())) })*
        }
        mod sim {
            $(#[test] fn $rule() { super::run(super::$rule(super::Site::sim(11))) })*
        }
    };
}

on_both! {
    checkpoints_alternate_and_every_restart_finds_the_newest
    a_crash_in_the_middle_keeps_the_other_database
    position_and_pages_are_one_unit_c16
    nothing_is_purged_that_only_one_database_covers_c09
    after_a_restart_the_database_that_was_not_loaded_is_written_whole
    a_page_above_its_bound_is_refused_and_nothing_of_its_step_is_written
    one_checkpoint_is_written_at_a_time_and_never_over_the_current_one
    a_checkpoint_behind_the_current_one_is_refused
    a_database_of_another_cluster_shard_or_settings_stops_the_start
    a_pinned_checkpoint_is_read_to_its_end_while_both_databases_are_rewritten
    a_received_checkpoint_replaces_and_never_merges_c13
    a_received_checkpoint_must_be_in_order_whole_and_ours
    a_receive_that_is_given_up_leaves_its_place_empty_c12
    a_receive_that_a_crash_cut_is_not_there_after_the_restart_c12
    a_database_marked_damaged_is_never_used_again
    chunks_are_bounded_in_bytes_and_hold_at_least_one_page
    a_checkpoint_without_pages_is_one
}

async fn checkpoints_alternate_and_every_restart_finds_the_newest(site: Site) {
    let (mut dice, mut book) = (Dice(1), Book::default());
    for round in 0..8_u64 {
        let checkpoints = site.open().await;
        if let Some((_, header, pages)) = start(&checkpoints).await {
            assert_eq!((header.sequence, &pages), (round * 3, &book.pages), "round {round}");
            assert_eq!(header.state, book.state());
        }
        let mut turns = Vec::new();
        for _ in 0..3 {
            book.shake(&mut dice, 60, 90);
            turns.push(checkpoints.next_turn());
            book.checkpoint(&checkpoints).await;
        }
        assert_ne!(turns[0].0, turns[1].0);
        assert_eq!(turns[0].0, turns[2].0, "in turn");
        assert!(!turns[2].1, "the third is written upon the first");
    }
}

async fn a_crash_in_the_middle_keeps_the_other_database(site: Site) {
    let (mut dice, mut book) = (Dice(2), Book::default());
    for crash_after in 0..6_usize {
        let checkpoints = site.open().await;
        start(&checkpoints).await;
        book.shake(&mut dice, 80, 100);
        book.checkpoint(&checkpoints).await;
        book.shake(&mut dice, 80, 100);
        book.checkpoint(&checkpoints).await;
        let kept = book.clone();
        book.shake(&mut dice, 80, 100);
        let (turn, whole) = checkpoints.next_turn();
        let mut writer = checkpoints.begin(turn, whole).await.expect("begins");
        for change in book.cut(turn, whole).into_iter().take(crash_after * 9) {
            writer.write(vec![change]).await.expect("writes");
        }
        drop(writer);
        assert!(matches!(checkpoints.place(turn), Place::Damaged(_)), "at once");
        assert_eq!(checkpoints.next_turn(), (turn, true), "and must be written whole");
        assert_eq!(checkpoints.purge_limit(), None);
        drop(checkpoints);
        let checkpoints = site.open().await;
        assert!(!matches!(checkpoints.place(turn), Place::Good(_)), "also after a restart");
        let (_, header, pages) = start(&checkpoints).await.expect("the other is good");
        assert_eq!((pages, header.state.clone()), (kept.pages.clone(), kept.state()));
        book = kept;
    }
}

async fn position_and_pages_are_one_unit_c16(site: Site) {
    let (mut dice, mut book) = (Dice(3), Book::default());
    let mut at_index: std::collections::BTreeMap<u64, u128> = Default::default();
    for round in 0..10 {
        let checkpoints = site.open().await;
        for turn in [Turn::A, Turn::B] {
            if let Place::Good(header) = checkpoints.place(turn) {
                let (_, pages) = checkpoints.load(turn).await.expect("loads");
                let index = header.state.position.expect("has one").index.0;
                let pages: Pages = pages.into_iter().collect();
                assert_eq!(Some(&digest(&pages)), at_index.get(&index), "round {round}");
            }
        }
        if let Some((_, header, pages)) = start(&checkpoints).await {
            let index = header.state.position.expect("has one").index.0;
            book = Book { index, pages, ..Book::default() };
        }
        for _ in 0..3 {
            book.shake(&mut dice, 20, 40);
            at_index.insert(book.index, digest(&book.pages));
            let (turn, whole) = checkpoints.next_turn();
            let mut writer = checkpoints.begin(turn, whole).await.expect("begins");
            writer.write(book.cut(turn, whole)).await.expect("writes");
            if dice.roll(4) == 0 {
                break;
            }
            writer.finish(book.state()).await.expect("finishes");
            book.cut_is_durable(turn);
        }
    }
}

async fn nothing_is_purged_that_only_one_database_covers_c09(site: Site) {
    let (mut dice, mut book) = (Dice(4), Book::default());
    let checkpoints = site.open().await;
    assert_eq!(checkpoints.purge_limit(), None, "none is good");
    let mut before = None;
    for _ in 0..5 {
        book.shake(&mut dice, 10, 20);
        book.checkpoint(&checkpoints).await;
        assert_eq!(checkpoints.purge_limit(), before, "the older's position");
        before = Some(position(book.index));
    }
    let checkpoints = site.open().await;
    let limit = checkpoints.purge_limit().expect("both are good");
    assert!(limit.index.0 < book.index, "known again after a restart");
    let (current, _) = checkpoints.current().expect("is there");
    checkpoints.mark_damaged(current, "said so").await.expect("marks");
    assert_eq!(checkpoints.purge_limit(), None, "one is good");
}

async fn after_a_restart_the_database_that_was_not_loaded_is_written_whole(site: Site) {
    let (mut dice, mut book) = (Dice(5), Book::default());
    let checkpoints = site.open().await;
    for _ in 0..2 {
        book.shake(&mut dice, 30, 40);
        book.checkpoint(&checkpoints).await;
    }
    let checkpoints = site.open().await;
    let (loaded, header, pages) = start(&checkpoints).await.expect("good");
    let index = header.state.position.expect("has one").index.0;
    let mut book = Book { index, pages, ..Book::default() };
    let (turn, whole) = checkpoints.next_turn();
    assert_eq!((turn == loaded, whole), (false, true));
    let refused = checkpoints.begin(turn, false).await.expect_err("its dirt is not known");
    assert!(matches!(refused, CheckpointError::NeedsWhole(_)), "{refused}");
    book.shake(&mut dice, 30, 40);
    book.checkpoint(&checkpoints).await;
    assert_eq!(checkpoints.next_turn(), (loaded, false), "the loaded one is written upon");
    book.shake(&mut dice, 30, 40);
    book.checkpoint(&checkpoints).await;
    let (_, _, pages) = start(&site.open().await).await.expect("good");
    assert_eq!(pages, book.pages);
}

async fn a_page_above_its_bound_is_refused_and_nothing_of_its_step_is_written(site: Site) {
    let checkpoints = site.open().await;
    let mut writer = checkpoints.begin(Turn::A, true).await.expect("begins");
    let mut book = Book::default();
    book.put(key(1), vec![1; PAGE_BYTES_MAX]);
    writer.write(book.cut(Turn::A, true)).await.expect("exactly at the bound");
    let bad: [(PageKey, Vec<u8>); 3] = [
        (key(2), vec![0; PAGE_BYTES_MAX + 1]),
        (PageKey(vec![7; 65]), Vec::new()),
        (PageKey(Vec::new()), Vec::new()),
    ];
    for (key, value) in bad {
        let pages = vec![(checkpoint_site::key(9), Some(vec![9])), (key, Some(value))];
        let refused = writer.write(pages).await.expect_err("above a bound");
        assert!(matches!(refused, CheckpointError::Refused(_)), "{refused}");
    }
    for number in 10..10 + 3 * STEP_PAGES_MAX as u64 {
        book.put(key(number), number.to_le_bytes().to_vec());
    }
    writer.write(book.cut(Turn::A, true)).await.expect("many are many steps");
    writer.finish(book.state()).await.expect("finishes");
    let (_, header, pages) = start(&site.open().await).await.expect("good");
    assert_eq!((header.page_count, pages), (book.pages.len() as u64, book.pages));
}

async fn one_checkpoint_is_written_at_a_time_and_never_over_the_current_one(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    book.put(key(1), vec![1]);
    let header = book.checkpoint(&checkpoints).await;
    let refused = checkpoints.begin(Turn::A, true).await.expect_err("A is current");
    assert!(matches!(refused, CheckpointError::IsCurrent(Turn::A)), "{refused}");
    let writer = checkpoints.begin(Turn::B, true).await.expect("begins");
    assert_eq!(checkpoints.progress().map(|progress| progress.turn), Some(Turn::B));
    let refused = checkpoints.begin(Turn::B, true).await.expect_err("one at a time");
    assert!(matches!(refused, CheckpointError::Busy("written")), "{refused}");
    let refused = checkpoints.begin_receive().await.expect_err("one at a time");
    assert!(matches!(refused, CheckpointError::Busy("written")), "{refused}");
    let refused = checkpoints.mark_damaged(Turn::B, "no").await.expect_err("it is being written");
    assert!(matches!(refused, CheckpointError::Busy(_)), "{refused}");
    drop(writer);
    assert!(checkpoints.progress().is_none());
    let receiver = checkpoints.begin_receive().await.expect("begins");
    let refused = checkpoints.begin(Turn::B, true).await.expect_err("one at a time");
    assert!(matches!(refused, CheckpointError::Busy("received")), "{refused}");
    drop(receiver);
    assert_eq!(checkpoints.current(), Some((Turn::A, header)));
}

async fn a_checkpoint_behind_the_current_one_is_refused(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    book.put(key(1), vec![1]);
    let old = book.state();
    book.put(key(2), vec![2]);
    let header = book.checkpoint(&checkpoints).await;
    let writer = checkpoints.begin(Turn::B, true).await.expect("begins");
    let refused = writer.finish(old).await.expect_err("time does not go back");
    assert!(matches!(refused, CheckpointError::Refused(_)), "{refused}");
    assert_eq!(checkpoints.current(), Some((Turn::A, header)));
}

async fn a_database_of_another_cluster_shard_or_settings_stops_the_start(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    book.put(key(1), vec![1]);
    book.checkpoint(&checkpoints).await;
    drop(checkpoints);
    let mut other = settings();
    other.slots += 1;
    for origin in [
        Origin::new([2; 16], &settings(), ShardId(2)),
        Origin::new([1; 16], &settings(), ShardId(3)),
        Origin::new([1; 16], &other, ShardId(2)),
    ] {
        let refused = site.try_open(origin).await.expect_err("not ours");
        assert!(matches!(refused, CheckpointError::Foreign { .. }), "{refused}");
    }
    assert!(start(&site.open().await).await.is_some(), "and it was not touched");
}

async fn a_pinned_checkpoint_is_read_to_its_end_while_both_databases_are_rewritten(site: Site) {
    let (mut dice, mut book) = (Dice(6), Book::default());
    let checkpoints = site.open().await;
    for read_before in [true, false] {
        for _ in 0..2 {
            book.shake(&mut dice, 120, 60);
            book.checkpoint(&checkpoints).await;
        }
        let pinned = checkpoints.pin_current().expect("is there");
        let second = checkpoints.pin_current().expect("is there");
        let (as_pinned, state) = (book.pages.clone(), book.state());
        let mut read = Vec::new();
        if read_before {
            read = pinned.read_chunk(None, 20_000).await.expect("reads");
            assert!(read.len() < as_pinned.len(), "there is more to come");
        }
        for _ in 0..3 {
            book.shake(&mut dice, 120, 60);
            book.checkpoint(&checkpoints).await;
        }
        loop {
            let after = read.last().map(|(key, _)| key.clone());
            let chunk = pinned.read_chunk(after, 20_000).await.expect("reads");
            if chunk.is_empty() {
                break;
            }
            read.extend(chunk);
        }
        assert_eq!(pinned.header().state, state);
        assert_eq!(Pages::from_iter(read), as_pinned);
        drop(pinned);
        assert!(!second.read_chunk(None, 1).await.expect("reads").is_empty(), "until the last");
    }
    drop(checkpoints);
    let (_, _, pages) = start(&site.open().await).await.expect("good");
    assert_eq!(pages, book.pages, "and the databases are what they were written to be");
}

async fn a_received_checkpoint_replaces_and_never_merges_c13(site: Site) {
    let (mut dice, mut leader) = (Dice(7), Book::default());
    leader.shake(&mut dice, 200, 80);
    let checkpoints = site.open().await;
    for _ in 0..2 {
        leader.put(key(2_000), b"live on the follower only".to_vec());
        leader.checkpoint(&checkpoints).await;
    }
    leader.shake(&mut dice, 200, 80);
    leader.remove(&key(2_000));
    let sender = Site::sim(1);
    let sending = sender.open().await;
    let sent = leader.checkpoint(&sending).await;
    let pinned = sending.pin_current().expect("is there");
    let mut receiver = checkpoints.begin_receive().await.expect("begins");
    let turn = receiver.turn();
    loop {
        let chunk = pinned.read_chunk(receiver.last().cloned(), 30_000).await.expect("reads");
        if chunk.is_empty() {
            break;
        }
        receiver.write(chunk).await.expect("writes");
    }
    let header = receiver.finish(&sent).await.expect("finishes");
    assert_eq!(header.state, sent.state);
    assert_eq!(header.sequence, 3, "our own count goes on");
    assert_eq!(checkpoints.current(), Some((turn, header)));
    assert!(checkpoints.next_turn().1, "the other database knows nothing of this ledger's dirt");
    let (loaded, _, pages) = start(&site.open().await).await.expect("good");
    assert_eq!((loaded, pages), (turn, leader.pages), "nothing of the old one is left");
}

async fn a_received_checkpoint_must_be_in_order_whole_and_ours(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    book.put(key(5), vec![5]);
    let current = book.checkpoint(&checkpoints).await;
    let sender = Site::sim(1);
    book.put(key(6), vec![6]);
    book.put(key(7), vec![7]);
    let sent = book.checkpoint(&sender.open().await).await;
    let all: Vec<_> = book.pages.clone().into_iter().collect();
    let mut receiver = checkpoints.begin_receive().await.expect("begins");
    receiver.write(all[..2].to_vec()).await.expect("in order");
    for bad in [all[1..].to_vec(), all[..1].to_vec(), vec![all[2].clone(), all[2].clone()]] {
        let refused = receiver.write(bad).await.expect_err("a repetition");
        assert!(matches!(refused, CheckpointError::Refused(_)), "{refused}");
    }
    let refused = receiver.finish(&sent).await.expect_err("one page is missing");
    assert!(matches!(refused, CheckpointError::Refused(_)), "{refused}");
    assert_eq!(checkpoints.place(Turn::B), Place::Empty);
    let mut foreign = (*sent).clone();
    foreign.origin.cluster = [9; 16];
    let mut receiver = checkpoints.begin_receive().await.expect("begins");
    receiver.write(all.clone()).await.expect("in order");
    let refused = receiver.finish(&foreign).await.expect_err("of another cluster");
    assert!(matches!(refused, CheckpointError::Foreign { .. }), "{refused}");
    assert_eq!(checkpoints.current(), Some((Turn::A, current)));
    let mut receiver = checkpoints.begin_receive().await.expect("begins");
    receiver.write(all).await.expect("in order");
    receiver.finish(&sent).await.expect("whole");
    assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
}

async fn a_receive_that_is_given_up_leaves_its_place_empty_c12(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    for number in 0..3 {
        book.put(key(number), vec![5; 100]);
        book.checkpoint(&checkpoints).await;
    }
    for pages in 0..3 {
        let mut receiver = checkpoints.begin_receive().await.expect("begins");
        assert_eq!(receiver.turn(), Turn::B);
        for number in 0..pages {
            receiver.write(vec![(key(number), vec![1])]).await.expect("writes");
        }
        drop(receiver);
        assert_eq!(checkpoints.place(Turn::B), Place::Empty);
        assert_eq!(checkpoints.next_turn(), (Turn::B, true));
    }
    let again = site.open().await;
    book.checkpoint(&checkpoints).await;
    drop(again);
    let reopened = site.open().await;
    assert!(matches!(reopened.place(Turn::B), Place::Good(_)));
}

async fn a_receive_that_a_crash_cut_is_not_there_after_the_restart_c12(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    book.put(key(1), vec![5; 100]);
    book.checkpoint(&checkpoints).await;
    let mut receiver = checkpoints.begin_receive().await.expect("begins");
    receiver.write(vec![(key(2), vec![1])]).await.expect("writes");
    // A crash: nothing of this process runs any more.
    std::mem::forget(receiver);
    let checkpoints = site.open().await;
    assert!(!matches!(checkpoints.place(Turn::B), Place::Good(_)));
    let mut receiver = checkpoints.begin_receive().await.expect("begins anew");
    assert_eq!(receiver.last(), None);
    receiver.write(vec![(key(1), vec![5; 100])]).await.expect("from the start");
    let sent = Book::clone(&book).checkpoint(&Site::sim(1).open().await).await;
    receiver.finish(&sent).await.expect("finishes");
    assert_eq!(start(&site.open().await).await.expect("good").2, book.pages);
}

async fn a_database_marked_damaged_is_never_used_again(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    for number in 0..2 {
        book.put(key(number), vec![number as u8]);
        book.checkpoint(&checkpoints).await;
    }
    checkpoints.mark_damaged(Turn::B, "its digest differs").await.expect("marks");
    assert_eq!(checkpoints.current().map(|(turn, _)| turn), Some(Turn::A));
    assert!(checkpoints.load(Turn::B).await.is_err());
    assert!(checkpoints.verify(Turn::B).await.is_err());
    checkpoints.verify(Turn::A).await.expect("is whole");
    let checkpoints = site.open().await;
    assert!(matches!(checkpoints.place(Turn::B), Place::Damaged(_)));
    assert_eq!(checkpoints.candidates().len(), 1);
    assert_eq!(checkpoints.next_turn(), (Turn::B, true));
    let header = book.checkpoint(&checkpoints).await;
    assert_eq!((header.sequence, at(Turn::B)), (2, 1));
}

async fn chunks_are_bounded_in_bytes_and_hold_at_least_one_page(site: Site) {
    let checkpoints = site.open().await;
    let mut book = Book::default();
    for number in 0..40 {
        book.put(key(number), vec![1; 1_000]);
    }
    book.checkpoint(&checkpoints).await;
    let pinned = checkpoints.pin_current().expect("is there");
    let page = key(0).0.len() + 1_000;
    for (bytes_max, pages) in
        [(0, 1), (page, 1), (2 * page - 1, 1), (7 * page, 7), (usize::MAX, 40)]
    {
        let chunk = pinned.read_chunk(None, bytes_max).await.expect("reads");
        assert_eq!(chunk.len(), pages, "{bytes_max}");
    }
    assert!(pinned.read_chunk(Some(key(39)), 1).await.expect("reads").is_empty());
    assert_eq!(pinned.read_chunk(Some(key(38)), 0).await.expect("reads")[0].0, key(39));
}

async fn a_checkpoint_without_pages_is_one(site: Site) {
    let checkpoints = site.open().await;
    assert!(checkpoints.pin_current().is_none());
    let writer = checkpoints.begin(Turn::A, true).await.expect("begins");
    writer.finish(Default::default()).await.expect("finishes");
    let (_, header, pages) = start(&site.open().await).await.expect("good");
    assert_eq!((header.page_count, header.state.position, pages.len()), (0, None, 0));
    assert_eq!(checkpoints.purge_limit(), None);
}
