//! What is read of a ledger, in small numbers.

use super::*;

/// What can be read of one ledger's bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Whether the life asked for is there and not deleted.
    pub(crate) present: bool,
    pub(crate) sellable: u8,
    pub(crate) lendable: u8,
    pub(crate) earmarked: u8,
    /// Units due and not swept.
    pub(crate) due: u8,
    pub(crate) held: u8,
    pub(crate) sold: u8,
    pub(crate) floor: u8,
    /// Floor that home has taken back while it was elsewhere.
    pub(crate) floor_owed: u8,
    pub(crate) received: u8,
    pub(crate) written_off: u8,
    pub(crate) credits: u8,
    pub(crate) in_transit: u8,
    pub(crate) sent: [u8; BUCKETS],
    pub(crate) acked: [u8; BUCKETS],
    pub(crate) accepted: [u8; BUCKETS],
    pub(crate) floor_sent: [u8; BUCKETS],
    pub(crate) floor_accepted: [u8; BUCKETS],
    pub(crate) total: Option<u8>,
    pub(crate) revision: u8,
    pub(crate) open: bool,
    pub(crate) deleting: bool,
    pub(crate) lowering: bool,
    /// The revision that home wants of its copies.
    pub(crate) config: u8,
    /// Keys by what became of them: never placed, live, sold, ended or void.
    pub(crate) keys: Vec<Key>,
    pub(crate) law_holds: bool,
}

/// What became of a placing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Unknown,
    Live,
    Sold,
    Ended,
}

impl Reading {
    /// Units that are its own.
    pub(crate) fn units(&self) -> u8 {
        self.sellable + self.earmarked + self.held + self.sold
    }
}

impl Shelf {
    /// What a ledger says of a life of the item.
    pub(super) fn read_ledger(&self, shard: usize, ledger: &Ledger, life: u8) -> Reading {
        let small = |units: u64| u8::try_from(units).expect("a small model");
        let Found::Levels(levels) = ledger.query(&Query::Levels(self.item(life))) else {
            return Reading { law_holds: true, ..Reading::default() };
        };
        let level = levels.buckets.iter().find(|level| level.bucket == BucketId(shard as u16));
        let level = level.expect("each shard has its bucket");
        let mut reading = Reading {
            present: true,
            sellable: small(level.free),
            lendable: small(level.lendable),
            earmarked: small(level.earmarked),
            held: small(level.held),
            sold: small(level.sold),
            floor: small(level.floor),
            floor_owed: small(level.floor_owed),
            received: small(level.received),
            written_off: small(level.written_off),
            credits: small(level.credits),
            in_transit: small(level.in_transit),
            total: levels.total.map(small),
            revision: small(levels.revision),
            open: levels.mode == Mode::Open,
            config: levels.layout_version.map_or(0, small),
            ..Reading::default()
        };
        let (mut came, mut went) = (u64::from(reading.received), u64::from(reading.written_off));
        for pair in &level.pairs {
            let peer = usize::from(pair.peer.0);
            reading.sent[peer] = small(pair.sent);
            reading.acked[peer] = small(pair.acked);
            reading.accepted[peer] = small(pair.accepted);
            reading.floor_sent[peer] = small(pair.floor_sent);
            reading.floor_accepted[peer] = small(pair.floor_accepted);
            (came, went) = (came + pair.accepted, went + pair.sent);
        }
        let total_holds =
            reading.total.is_none_or(|total| total + reading.written_off == reading.received);
        let sums = came == went + u64::from(reading.units());
        reading.law_holds = sums && total_holds && !levels.invariant_broken;
        if let Found::Availability(stock) = ledger.query(&Query::Availability(self.name.clone()))
            && stock.number == self.item(life).item
        {
            self.read_more(shard, ledger, &mut reading);
        }
        reading
    }

    /// What is read by the item's name.
    fn read_more(&self, shard: usize, ledger: &Ledger, reading: &mut Reading) {
        let small = |units: u64| u8::try_from(units).expect("a small model");
        if let Found::Audit(audit) = ledger.query(&Query::Audit(self.name.clone())) {
            let mine = audit.buckets.iter().find(|b| b.bucket == BucketId(shard as u16));
            reading.due = mine.map_or(0, |bucket| small(bucket.due));
            reading.law_holds &= audit.buckets.iter().all(|bucket| bucket.holds);
        }
        if let Found::Item(item) = ledger.query(&Query::Item(self.name.clone())) {
            reading.deleting = item.deleting;
            reading.lowering = item.lowering.is_some();
        }
        let here = |key: &u8| usize::from(self.plan.keys[usize::from(*key)].0) == shard;
        let keys = 0..self.plan.keys.len() as u8;
        reading.keys = keys
            .map(|key| {
                let found = here(&key).then(|| ledger.query(&Query::Receipt(self.scope(key))));
                match found {
                    Some(Found::Receipt(Receipt::Committed(hold))) => match hold.state {
                        HoldState::Held => Key::Live,
                        HoldState::Sold => Key::Sold,
                        _ => Key::Ended,
                    },
                    Some(Found::Receipt(Receipt::Voided)) => Key::Ended,
                    _ => Key::Unknown,
                }
            })
            .collect();
    }
}
