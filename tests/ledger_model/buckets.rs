//! Law 4: a buyer is served by the bucket that its hash names, or by none.

// A test that names one answer panics on every other one, known or to come.
#![allow(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use holdfast::ledger::*;

use super::laws;

const BUYERS: usize = 64;

/// A shard that has buckets 1 and 2 of an item that lives elsewhere: one region, cut in two.
struct Halves {
    shard: ShardId,
    ledger: Ledger,
    name: ItemName,
    index: u64,
}

impl Halves {
    fn new() -> Halves {
        let name = ItemName { tenant: "t".into(), item: "x".into() };
        let shard = ShardId(1 - home_shard(name.borrowed(), 2).0);
        let ledger = Ledger::new(shard, laws::settings(2));
        Halves { shard, ledger, name, index: 0 }
    }

    fn ask(&mut self, command: Command) -> Answer {
        self.index += 1;
        let batch = Batch { stamp: UnixMs(1_000), commands: vec![command] };
        let mut answers = self.ledger.apply(LogIndex(self.index), &batch);
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    fn bucket(&self, number: u16) -> BucketRef {
        let home = ShardId(1 - self.shard.0);
        BucketRef { home, item: ItemNumber(7), bucket: BucketId(number) }
    }

    /// Opens the bucket in this half of the region, and gives it stock.
    fn open(&mut self, number: u16, half: u16, stock: u64) {
        let definition = Definition {
            rules: HoldRules::default(),
            limit_per_buyer: Some(2),
            opens_at: None,
            closes_at: None,
            metadata: BTreeMap::new(),
        };
        let opened = self.ask(Command::OpenBucket(OpenBucket {
            bucket: self.bucket(number),
            name: self.name.clone(),
            region: RegionOrdinal(0),
            region_name: "default".into(),
            default_region: true,
            place: (half, 2),
            floor: 0,
            definition,
            revision: 1,
        }));
        assert_eq!(opened, Answer::BucketOpen);
        let (to, from) = (self.bucket(number), BucketId(0));
        self.ask(Command::AcceptStock(AcceptStock { to, from, sent: stock, floor_sent: 0 }));
    }

    fn place(&mut self, buyer: usize, key: &str) -> Answer {
        self.ask(Command::Place(Place {
            name: self.name.clone(),
            region: None,
            buyer: Some(format!("buyer-{buyer}")),
            key: key.into(),
            quantity: 1,
            ttl_ms: None,
            reference: None,
        }))
    }

    /// Places one unit for each buyer; tells which bucket served it, `None` when none is here.
    fn served(&mut self, key: &str) -> Vec<Option<u16>> {
        let bucket = |answer| match answer {
            Answer::Placed(placed) => Some(placed.id.bucket.0),
            Answer::Hold { hold, .. } => Some(hold.id.bucket.0),
            Answer::Refused(Refusal::NotOwner) => None,
            other => panic!("neither a hold nor elsewhere: {other:?}"),
        };
        (0..BUYERS).map(|buyer| bucket(self.place(buyer, key))).collect()
    }

    fn stock(&self, number: u16) -> u64 {
        let audit = laws::audit(&self.ledger, &self.name).expect("the item is there");
        let own = audit.buckets.iter().find(|bucket| bucket.bucket == BucketId(number));
        own.expect("it is open").available
    }

    /// Sends all that a bucket has to the home shard.
    fn send_away(&mut self, number: u16, quantity: u64) {
        let (from, to) = (self.bucket(number), BucketId(0));
        let (acked, if_sent, same_region, bound) = (0, 0, true, u64::MAX);
        let send = SendStock { from, to, quantity, acked, if_sent, same_region, bound };
        self.ask(Command::SendStock(send));
    }
}

/// Falling through to another bucket, when the own one is elsewhere or dry, would let a retry take
/// a second unit, and the buyer's limit would be counted in two places.
pub(crate) fn a_buyer_is_served_by_no_other_bucket_than_its_own() {
    let mut halves = Halves::new();
    halves.open(1, 0, BUYERS as u64);
    let first = halves.served("k");
    let here = first.iter().filter(|served| served.is_some()).count();
    assert!((8..BUYERS - 8).contains(&here), "half of them, more or less: {here} of {BUYERS}");
    // With the other half here too, everybody is served, and by one bucket only.
    halves.open(2, 1, 1_000);
    let both = halves.served("k");
    for (buyer, (alone, now)) in first.iter().zip(&both).enumerate() {
        assert_eq!(*now, Some(alone.unwrap_or(2)), "buyer {buyer} moved");
    }
    // Bucket 1 is dry, bucket 2 is not: its buyers are refused all the same.
    let left = halves.stock(1);
    halves.send_away(1, left);
    assert_eq!(halves.stock(1), 0);
    for (buyer, own) in both.iter().enumerate() {
        match halves.place(buyer, "another") {
            Answer::Placed(placed) => assert_eq!((placed.id.bucket.0, *own), (2, Some(2))),
            Answer::Refused(Refusal::InsufficientStock { available: 0 }) => {
                assert_eq!(*own, Some(1), "buyer {buyer}: bucket 2 has stock");
            }
            other => panic!("buyer {buyer}: {other:?}"),
        }
    }
    // And a retry finds the first one's unit where it was.
    assert_eq!(halves.served("k"), both);
    laws::audit(&halves.ledger, &halves.name);
}
