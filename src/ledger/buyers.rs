//! What a slot's buyers hold and have bought.
//!
//! Most buyers have one live hold and nothing else: of them only that hold is kept, whose record
//! says the rest. Invariants: an entry counts the units of all records with its hash; `live` lists
//! their live holds unless the entry is the one hold itself. Two buyers of one slot share a count
//! with a chance of about 2^-63, and callers cannot make it happen: the hash is keyed. Nothing that
//! is told depends on the order in which holds came: replicas load pages in another one.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::bucket::shift;
use super::table::{Entry, Table};

/// A buyer's hash with its lowest bit taken for the form of the entry; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Name(u64);

impl Name {
    fn of(hash: u64) -> Name {
        Name((hash & !1).max(2))
    }

    /// The bits that it is found by.
    fn bits(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What is kept of a buyer.
#[derive(Debug, Clone, Copy)]
struct Count {
    /// The name, with the lowest bit set when it is one hold.
    name: u64,
    /// The low bits of the one hold's sequence, or units held.
    held: u32,
    /// Units sold.
    sold: u32,
}

impl Count {
    fn is_of(&self, name: Name) -> bool {
        self.name | 1 == name.0 | 1
    }
}

impl Entry for Count {
    const NOTHING: Count = Count { name: 0, held: 0, sold: 0 };

    fn is_nothing(&self) -> bool {
        self.name == 0
    }

    fn hash(&self) -> u32 {
        Name(self.name).bits()
    }
}

/// A live hold of a buyer of whom units are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Live {
    /// The name's upper and lower half: never both zero.
    name: (u32, u32),
    /// The low bits of the hold's sequence.
    low: u32,
}

impl Entry for Live {
    const NOTHING: Live = Live { name: (0, 0), low: 0 };

    fn is_nothing(&self) -> bool {
        self.name == (0, 0)
    }

    fn hash(&self) -> u32 {
        self.name.0
    }
}

/// Live holds of one buyer that stand side by side; those beyond are in a tree, so that a crowd of
/// them makes no other buyer's walk long.
const SIDE_BY_SIDE_MAX: usize = 8;

/// Live holds by buyer.
#[derive(Debug, Default)]
struct LiveHolds {
    few: Table<Live>,
    crowds: BTreeSet<(Name, u32)>,
}

impl LiveHolds {
    fn entry(name: Name, low: u32) -> Live {
        Live { name: (name.bits(), name.0 as u32), low }
    }

    fn insert(&mut self, name: Name, low: u32) {
        let entry = Self::entry(name, low);
        let (mut stand, mut is_there) = (0_usize, false);
        for other in self.few.run(entry.hash()).filter(|other| other.name == entry.name) {
            stand = stand.saturating_add(1);
            is_there |= other.low == low;
        }
        if is_there {
            return;
        }
        if stand < SIDE_BY_SIDE_MAX && !self.crowds.contains(&(name, low)) {
            self.few.insert(entry);
        } else {
            self.crowds.insert((name, low));
        }
    }

    fn remove(&mut self, name: Name, low: u32) {
        let entry = Self::entry(name, low);
        match self.few.find(entry.hash(), |other| *other == entry) {
            Some(place) => self.few.remove(place),
            None => {
                self.crowds.remove(&(name, low));
            }
        }
    }

    /// The first `most` of a buyer, by their low bits: as many as there are, if they are fewer.
    fn of(&self, name: Name, most: usize) -> SmallVec<[u32; 16]> {
        let half = Self::entry(name, 0).name;
        let few = self.few.run(half.0).filter(|entry| entry.name == half).map(|entry| entry.low);
        let crowd = self.crowds.range((name, 0)..=(name, u32::MAX)).map(|(_, low)| *low);
        let mut holds: SmallVec<[u32; 16]> = few.chain(crowd.take(most)).collect();
        holds.sort_unstable();
        holds.truncate(most);
        holds
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.crowds.is_empty()
    }
}

/// What is known of a buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing held, nothing sold.
    Nothing,
    /// One live hold, by the low bits of its sequence.
    One(u32),
    /// Units held (due ones included) and sold.
    Units(u64, u64),
}

/// What a change of a record means for its buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Share {
    /// Units held.
    pub(super) held: u64,
    /// Units sold.
    pub(super) sold: u64,
    /// Whether it is a live hold.
    pub(super) live: bool,
}

/// Units by buyer.
#[derive(Debug, Default)]
pub(super) struct Buyers {
    counts: Table<Count>,
    /// Counts beyond 32 bits.
    large: BTreeMap<Name, (u64, u64)>,
    /// Live holds of buyers of whom units are kept.
    live: LiveHolds,
}

impl Buyers {
    /// What is known of the buyer with this hash.
    pub(super) fn of(&self, hash: u64) -> Known {
        let name = Name::of(hash);
        match self.counts.find(name.bits(), |count| count.is_of(name)) {
            Some(place) => {
                let Count { name, held, sold } = self.counts.at(place);
                match name & 1 {
                    1 => Known::One(held),
                    _ => Known::Units(u64::from(held), u64::from(sold)),
                }
            }
            None => {
                let large = self.large.get(&name);
                large.map_or(Known::Nothing, |(held, sold)| Known::Units(*held, *sold))
            }
        }
    }

    /// Looks at where a buyer's units are kept.
    pub(super) fn glance(&self, hash: u64) -> bool {
        let bits = Name::of(hash).bits();
        self.counts.glance(bits) | self.live.few.glance(bits)
    }

    /// Counts the first record of a buyer if that is a live hold, as it is mostly; tells whether it
    /// was.
    pub(super) fn begin(&mut self, hash: u64, low: u32, share: Share) -> bool {
        let first = share.live && share.sold == 0 && self.of(hash) == Known::Nothing;
        if first {
            self.counts.insert(Count { name: Name::of(hash).0 | 1, held: low, sold: 0 });
        }
        first
    }

    /// The first `most` live holds of a buyer of whom units are kept, by their low bits.
    pub(super) fn live(&self, hash: u64, most: usize) -> SmallVec<[u32; 16]> {
        self.live.of(Name::of(hash), most)
    }

    /// Follows a change of the buyer's record with these low bits of its sequence: (before, after).
    /// Of a new record [`Buyers::begin`] is asked first. `units` tells the units of another live
    /// hold.
    pub(super) fn follow(
        &mut self,
        hash: u64,
        low: u32,
        (before, after): (Share, Share),
        units: impl Fn(u32) -> u64,
        fault: &mut bool,
    ) {
        let name = Name::of(hash);
        let one = after.live && after.sold == 0;
        let (mut held, mut sold) = match self.of(hash) {
            Known::One(known) if known == low && one && before.held == after.held => return,
            Known::Nothing => (0, 0),
            Known::One(known) => {
                self.live.insert(name, known);
                (if known == low { before.held } else { units(known) }, 0)
            }
            Known::Units(held, sold) => (held, sold),
        };
        shift(&mut held, after.held, before.held, fault);
        shift(&mut sold, after.sold, before.sold, fault);
        if after.live {
            self.live.insert(name, low);
        } else {
            self.live.remove(name, low);
        }
        self.set(name, held, sold);
    }

    fn set(&mut self, name: Name, held: u64, sold: u64) {
        let place = self.counts.find(name.bits(), |count| count.is_of(name));
        let small = u32::try_from(held).ok().zip(u32::try_from(sold).ok());
        if let Some((held, sold)) = small.filter(|counts| *counts != (0, 0)) {
            let count = Count { name: name.0, held, sold };
            match place {
                Some(place) => self.counts.set(place, count),
                None => self.counts.insert(count),
            }
            self.large.remove(&name);
            return;
        }
        if let Some(place) = place {
            self.counts.remove(place);
        }
        if small.is_some() {
            self.large.remove(&name);
        } else {
            self.large.insert(name, (held, sold));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_one_buyers_holds_is_told_in_the_same_order_however_it_came() {
        let (mut up, mut down) = (LiveHolds::default(), LiveHolds::default());
        let (name, other) = (Name::of(1 << 40), Name::of(1 << 40 | 2));
        for low in 0..40 {
            up.insert(name, low);
            up.insert(name, low);
            down.insert(name, 39 - low);
            down.insert(other, low);
        }
        for gone in [3, 39, 20] {
            up.remove(name, gone);
            down.remove(name, gone);
        }
        let first = (0..13).filter(|low| *low != 3).collect::<Vec<_>>();
        assert_eq!(up.of(name, 12)[..], first);
        assert_eq!(down.of(name, 12)[..], first);
        assert_eq!((up.of(name, 99).len(), down.of(name, 99).len()), (37, 37));
        assert_eq!(down.of(other, 99).len(), 40);
        for low in 0..40 {
            up.remove(name, low);
            down.remove(name, low);
            down.remove(other, low);
        }
        assert!(up.is_empty() && down.is_empty());
    }

    const NONE: Share = Share { held: 0, sold: 0, live: false };

    fn held(units: u64) -> Share {
        Share { held: units, sold: 0, live: true }
    }

    fn sold(units: u64) -> Share {
        Share { held: 0, sold: units, live: false }
    }

    #[test]
    fn a_buyers_units_are_those_of_the_holds_in_whatever_form_they_are_kept() {
        let (mut buyers, mut fault) = (Buyers::default(), false);
        let other = |low| if low == 9 { 5 } else { panic!("asked for {low}") };
        let mut follow = |buyers: &mut Buyers, low, before, after| {
            if before != NONE || !buyers.begin(77, low, after) {
                buyers.follow(77, low, (before, after), other, &mut fault);
            }
        };
        follow(&mut buyers, 9, NONE, held(5));
        assert_eq!(buyers.of(77), Known::One(9));
        assert_eq!(buyers.of(76), Known::One(9), "the lowest bit is the entry's");
        assert_eq!(buyers.of(78), Known::Nothing);
        follow(&mut buyers, 9, held(5), held(5));
        assert_eq!((buyers.of(77), buyers.live(77, 9).len()), (Known::One(9), 0));
        follow(&mut buyers, 10, NONE, held(1 << 40));
        assert_eq!(buyers.of(77), Known::Units((1 << 40) + 5, 0));
        assert_eq!(buyers.live(77, 9)[..], [9, 10]);
        follow(&mut buyers, 10, held(1 << 40), sold(6));
        assert_eq!(buyers.of(77), Known::Units(5, 6));
        follow(&mut buyers, 9, held(5), NONE);
        assert_eq!((buyers.of(77), buyers.live(77, 9).len()), (Known::Units(0, 6), 0));
        follow(&mut buyers, 10, sold(6), NONE);
        assert_eq!(buyers.of(77), Known::Nothing);
        follow(&mut buyers, 11, NONE, held(2));
        follow(&mut buyers, 11, held(2), sold(2));
        assert_eq!((buyers.of(77), buyers.live(77, 9).len()), (Known::Units(0, 2), 0));
        follow(&mut buyers, 11, sold(2), NONE);
        assert!(buyers.counts.is_empty() && buyers.large.is_empty() && buyers.live.is_empty());
        assert!(!fault);
        buyers.follow(77, 12, (held(1), NONE), other, &mut fault);
        assert!(fault, "units that nobody counted");
    }
}
