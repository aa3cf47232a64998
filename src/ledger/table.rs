//! A table of small entries that are found by 32 bits of their hash: open addressing, one place
//! after the other.
//!
//! Promises: entries of one hash are kept side by side, as many as there are; a table is between
//! 4/9 and 2/3 full once it is not tiny, and grows by half, entries in the order of their
//! hashes, so that growing reads and writes memory in one direction. The order of entries of one
//! hash means nothing.

/// Bytes that memory gives at once.
const LINE_BYTES: usize = 64;

/// What is kept.
pub(super) trait Entry: Copy {
    /// What stands where nothing does.
    const NOTHING: Self;

    /// Whether nothing stands here.
    fn is_nothing(&self) -> bool;

    /// The bits that it is found by.
    fn hash(&self) -> u32;
}

/// The table.
#[derive(Debug)]
pub(super) struct Table<E> {
    places: Vec<E>,
    used: usize,
}

impl<E> Default for Table<E> {
    fn default() -> Table<E> {
        Table { places: Vec::new(), used: 0 }
    }
}

impl<E: Entry> Table<E> {
    /// Where the entry under `hash` stands of which `is_it` is true.
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(&E) -> bool) -> Option<usize> {
        let mut at = self.home(hash);
        loop {
            let entry = self.places.get(at)?;
            if entry.is_nothing() {
                return None;
            }
            if is_it(entry) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    /// The entries from the place on where those under `hash` begin: all of them, and others.
    pub(super) fn run(&self, hash: u32) -> impl Iterator<Item = E> {
        let mut at = self.home(hash);
        std::iter::from_fn(move || {
            let entry = self.places.get(at).copied().filter(|entry| !entry.is_nothing())?;
            at = self.after(at);
            Some(entry)
        })
    }

    /// Looks at the place where entries of a hash begin, and at the next line of memory, so that
    /// both are near when they are asked for; tells whether anything stands there.
    pub(super) fn glance(&self, hash: u32) -> bool {
        let home = self.home(hash);
        let line = LINE_BYTES.checked_div(size_of::<E>()).unwrap_or(1);
        let next = home.saturating_add(line);
        !self.at(home).is_nothing() | !self.at(next).is_nothing()
    }

    /// What stands at a place that [`Table::find`] told.
    pub(super) fn at(&self, place: usize) -> E {
        self.places.get(place).copied().unwrap_or(E::NOTHING)
    }

    /// Exchanges what stands at a place for another entry of the same hash.
    pub(super) fn set(&mut self, place: usize, entry: E) {
        if let Some(stands) = self.places.get_mut(place) {
            *stands = entry;
        }
    }

    /// Adds an entry.
    pub(super) fn insert(&mut self, entry: E) {
        // At most two thirds are used, so that a walk finds its end within a line of memory or two.
        if self.used.saturating_add(1).saturating_mul(3) > self.places.len().saturating_mul(2) {
            let half = self.places.len() / 2;
            self.resize(self.places.len().saturating_add(half).saturating_add(4));
        }
        self.used = self.used.saturating_add(1);
        self.put(entry);
    }

    /// Takes out what stands at a place, and gives memory back after a crowd has left.
    pub(super) fn remove(&mut self, place: usize) {
        let mut hole = place;
        let mut at = self.after(place);
        loop {
            let entry = self.at(at);
            if entry.is_nothing() || at == place {
                break;
            }
            // An entry moves up unless that would be before its home.
            let home = self.home(entry.hash());
            if self.distance(home, at) >= self.distance(hole, at) {
                self.set(hole, entry);
                hole = at;
            }
            at = self.after(at);
        }
        self.set(hole, E::NOTHING);
        self.used = self.used.saturating_sub(1);
        if self.used < self.places.len() / 4 {
            let room = self.used.saturating_add(self.used / 2);
            self.resize(if self.used == 0 { 0 } else { room.saturating_add(4) });
        }
    }

    /// Whether it has no entries.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn put(&mut self, entry: E) {
        let mut at = self.home(entry.hash());
        while self.places.get(at).is_some_and(|stands| !stands.is_nothing()) {
            at = self.after(at);
        }
        self.set(at, entry);
    }

    fn resize(&mut self, places: usize) {
        let old = std::mem::replace(&mut self.places, vec![E::NOTHING; places]);
        for entry in old.into_iter().filter(|entry| !entry.is_nothing()) {
            self.put(entry);
        }
    }

    fn home(&self, hash: u32) -> usize {
        (u64::from(hash).wrapping_mul(self.places.len() as u64) >> 32) as usize
    }

    fn after(&self, place: usize) -> usize {
        let next = place.saturating_add(1);
        if next >= self.places.len() { 0 } else { next }
    }

    /// Steps from `from` to `to`.
    fn distance(&self, from: usize, to: usize) -> usize {
        let whole = if to < from { self.places.len() } else { 0 };
        to.saturating_add(whole).saturating_sub(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Entry for (u32, u32) {
        const NOTHING: (u32, u32) = (0, 0);

        fn is_nothing(&self) -> bool {
            *self == Self::NOTHING
        }

        fn hash(&self) -> u32 {
            self.0
        }
    }

    #[test]
    fn entries_are_found_until_they_are_removed_however_their_hashes_crowd() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut table, mut plain) = (Table::default(), Vec::new());
        for step in 1..40_000_u32 {
            let shrinks = step / 4_000 % 2 == 1;
            if plain.is_empty() || random(10) < if shrinks { 3 } else { 7 } {
                // A few hashes of many entries, at both ends of the table too.
                let hash = match random(4) {
                    0 => random(3) as u32,
                    1 => u32::MAX - random(3) as u32,
                    _ => random(1 << 32) as u32,
                };
                table.insert((hash, step));
                plain.push((hash, step));
            } else {
                let gone = plain.swap_remove(random(plain.len() as u64) as usize);
                let place = table.find(gone.0, |entry| *entry == gone).expect("it was put in");
                table.remove(place);
                assert_eq!(table.find(gone.0, |entry| *entry == gone), None);
            }
            assert!(table.places.len() < table.used * 4 + 8, "{step}");
            let some = plain.get(random(plain.len().max(1) as u64) as usize);
            if let Some(some) = some {
                let place = table.find(some.0, |entry| entry == some).expect("it was put in");
                assert_eq!(table.at(place), *some);
            }
        }
        for entry in plain.drain(..) {
            let place = table.find(entry.0, |stands| *stands == entry).expect("it was put in");
            table.remove(place);
        }
        assert!(table.is_empty() && table.places.is_empty());
    }
}
