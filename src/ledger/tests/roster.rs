//! The roster: what the ledger itself promises of it, whoever asks.

use super::*;

fn seat(log: u8, role: SeatRole) -> Seat {
    Seat { role, log_uuid: [log; 16], ..Seat::default() }
}

fn roster() -> Roster {
    Roster {
        revision: 0,
        next_node: 4,
        next_operation: 1,
        nodes: (1..=3).map(|node| (NodeId(node), seat(1, SeatRole::Voter))).collect(),
        operations: BTreeMap::new(),
    }
}

fn set(if_revision: u64, roster: &Roster) -> Command {
    Command::SetRoster(Box::new(SetRoster { if_revision, before: None, roster: roster.clone() }))
}

#[test]
fn roster_is_changed_by_who_has_read_it_and_by_nobody_else() {
    let mut shard = Shard::new(settings());
    assert_eq!(shard.one(1_000, set(0, &roster())), Answer::Noted);
    assert_eq!(shard.ledger.roster().revision, 1);
    let stale = shard.one(1_001, set(0, &roster()));
    assert_eq!(stale, Answer::Refused(Refusal::RevisionMismatch { revision: 1 }));
    let late = SetRoster { if_revision: 1, before: Some(UnixMs(1_002)), roster: roster() };
    let late = shard.one(1_002, Command::SetRoster(Box::new(late)));
    assert!(matches!(late, Answer::Refused(Refusal::Invalid { .. })), "{late:?}");
    assert_eq!(shard.ledger.roster().revision, 1);
}

#[test]
fn ids_are_never_given_again_logs_never_change_and_the_removed_stay_removed() {
    let mut shard = Shard::new(settings());
    let mut first = roster();
    first.nodes.insert(NodeId(3), seat(1, SeatRole::Removed));
    assert_eq!(shard.one(1_000, set(0, &first)), Answer::Noted);
    let changed = |change: fn(&mut Roster)| {
        let mut next = first.clone();
        change(&mut next);
        next
    };
    for (named, next) in [
        ("an id goes back", changed(|next| next.next_node = 3)),
        ("an id that was not given", {
            changed(|next| drop(next.nodes.insert(NodeId(9), Seat::default())))
        }),
        ("a node is forgotten", changed(|next| drop(next.nodes.remove(&NodeId(3))))),
        ("a log changes", {
            changed(|next| drop(next.nodes.insert(NodeId(1), seat(2, SeatRole::Voter))))
        }),
        ("a removed node comes back", {
            changed(|next| drop(next.nodes.insert(NodeId(3), seat(1, SeatRole::Learner))))
        }),
    ] {
        let answer = shard.one(1_001, set(1, &next));
        assert!(matches!(answer, Answer::Refused(Refusal::Invalid { .. })), "{named}: {answer:?}");
    }
    let more = changed(|next| {
        next.next_node = 5;
        next.nodes.insert(NodeId(4), Seat::default());
    });
    assert_eq!(shard.one(1_002, set(1, &more)), Answer::Noted);
}

#[test]
fn roster_comes_back_from_its_page_and_is_part_of_the_digest() {
    let mut shard = Shard::new(settings());
    let before = shard.ledger.digest();
    shard.one(1_000, set(0, &roster()));
    assert_ne!(shard.ledger.digest(), before);
    let database = whole(&mut shard.ledger);
    let back = loaded(&database, settings()).expect("whole");
    assert_eq!(back.roster(), shard.ledger.roster());
    assert_eq!(back.digest(), shard.ledger.digest());
    // A cut that was begun before a change shows the roster as it was.
    shard.ledger.begin_cut(Turn::A, true);
    let digest = shard.ledger.digest();
    shard.one(1_001, set(1, &roster()));
    let old = taken(&mut shard.ledger, 1);
    let back = loaded(&old, settings()).expect("whole");
    assert_eq!((back.roster().revision, back.digest()), (1, digest));
}

fn raise(to: u16, if_revision: u64) -> Command {
    let members = SetRoster { if_revision, before: None, roster: roster() };
    Command::SetSchema(Box::new(SetSchema { to: SchemaVersion(to), members }))
}

#[test]
fn schema_version_goes_up_by_one_with_the_roster_it_was_judged_by_and_never_back() {
    let mut shard = Shard::new(settings());
    assert_eq!(shard.ledger.schema(), SchemaVersion::FIRST);
    shard.one(1_000, set(0, &roster()));
    let stale = shard.one(1_001, raise(2, 0));
    assert_eq!(stale, Answer::Refused(Refusal::RevisionMismatch { revision: 1 }));
    for wrong in [1, 3] {
        let answer = shard.one(1_002, raise(wrong, 1));
        assert!(matches!(answer, Answer::Refused(Refusal::Invalid { .. })), "{wrong}: {answer:?}");
    }
    assert_eq!(shard.one(1_003, raise(2, 1)), Answer::Noted);
    assert_eq!((shard.ledger.schema(), shard.ledger.roster().revision), (SchemaVersion(2), 2));
    // Whoever was judged by the roster of before is judged anew.
    let stale = shard.one(1_004, set(1, &roster()));
    assert_eq!(stale, Answer::Refused(Refusal::RevisionMismatch { revision: 2 }));
    let again = shard.one(1_005, raise(2, 2));
    assert!(matches!(again, Answer::Refused(Refusal::Invalid { .. })), "{again:?}");
}

#[test]
fn schema_version_comes_back_from_its_page_and_is_part_of_the_digest() {
    let mut shard = Shard::new(settings());
    shard.one(1_000, set(0, &roster()));
    let first = whole(&mut shard.ledger);
    let pages = |database: &Database| database.keys().cloned().collect::<Vec<_>>();
    let before = shard.ledger.digest();
    // A cut that was begun before the raise shows the version as it was.
    shard.ledger.begin_cut(Turn::A, true);
    shard.one(1_001, raise(2, 1));
    assert_ne!(shard.ledger.digest(), before);
    let old = taken(&mut shard.ledger, 1);
    assert_eq!(pages(&old), pages(&first), "version 1 has no page of its own");
    let back = loaded(&old, settings()).expect("whole");
    assert_eq!((back.schema(), back.digest()), (SchemaVersion::FIRST, before));
    let back = loaded(&whole(&mut shard.ledger), settings()).expect("whole");
    assert_eq!((back.schema(), back.digest()), (SchemaVersion(2), shard.ledger.digest()));
}
