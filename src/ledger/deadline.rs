//! Units by deadline: how many are due, known without walking the holds.
//!
//! Deadlines fall into coarse cells of [`CELL_MS`]; a cell keeps its sum and, in a short sorted
//! list, the sum of each millisecond in it, so that the cell that straddles the present is exact
//! too. Invariants: a cell's `units` is the sum of its list; no list holds a zero; `due` is the sum
//! of every millisecond ≤ `counted_to`.

use std::collections::BTreeMap;

/// Width of a cell in ms.
const CELL_MS: u64 = 256;

/// Sums of a bucket's live holds by deadline.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    cells: BTreeMap<u64, Cell>,
    counted_to: u64,
    due: u64,
}

#[derive(Debug, Default)]
struct Cell {
    units: u64,
    /// (offset within the cell, units), sorted.
    moments: Vec<(u8, u64)>,
}

impl Deadlines {
    /// Adds `units` due at `at` ms.
    pub(super) fn add(&mut self, at: u64, units: u64) {
        if units == 0 {
            return;
        }
        let cell = self.cells.entry(at / CELL_MS).or_default();
        cell.units = cell.units.saturating_add(units);
        let offset = (at % CELL_MS) as u8;
        match cell.moments.binary_search_by_key(&offset, |moment| moment.0) {
            Ok(found) => cell.moments[found].1 = cell.moments[found].1.saturating_add(units),
            Err(place) => cell.moments.insert(place, (offset, units)),
        }
        if at <= self.counted_to {
            self.due = self.due.saturating_add(units);
        }
    }

    /// Takes `units` due at `at` ms away again.
    pub(super) fn remove(&mut self, at: u64, units: u64) {
        if units == 0 {
            return;
        }
        let number = at / CELL_MS;
        let Some(cell) = self.cells.get_mut(&number) else { return };
        cell.units = cell.units.saturating_sub(units);
        let offset = (at % CELL_MS) as u8;
        if let Ok(found) = cell.moments.binary_search_by_key(&offset, |moment| moment.0) {
            cell.moments[found].1 = cell.moments[found].1.saturating_sub(units);
            if cell.moments[found].1 == 0 {
                cell.moments.remove(found);
            }
        }
        if cell.moments.is_empty() {
            self.cells.remove(&number);
        }
        if at <= self.counted_to {
            self.due = self.due.saturating_sub(units);
        }
    }

    /// Units whose deadline is at or before `now`. Exact; costs a step for each whole cell that has
    /// passed since [`Deadlines::advance`] was last called.
    pub(super) fn due_at(&self, now: u64) -> u64 {
        self.due.saturating_add(self.between(now))
    }

    /// Counts up to `now`, so that later questions are cheap.
    pub(super) fn advance(&mut self, now: u64) {
        if now > self.counted_to {
            self.due = self.due_at(now);
            self.counted_to = now;
        }
    }

    /// Units with `counted_to` < deadline ≤ `now`.
    fn between(&self, now: u64) -> u64 {
        if now <= self.counted_to {
            return 0;
        }
        let (first, last) = (self.counted_to / CELL_MS, now / CELL_MS);
        let mut units = 0_u64;
        for (number, cell) in self.cells.range(first..=last) {
            if *number > first && *number < last {
                units = units.saturating_add(cell.units);
                continue;
            }
            let start = number.saturating_mul(CELL_MS);
            for (offset, sum) in &cell.moments {
                let at = start.saturating_add(u64::from(*offset));
                if at > self.counted_to && at <= now {
                    units = units.saturating_add(*sum);
                }
            }
        }
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_units_are_exact_at_every_millisecond_however_time_advances() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut plain: Vec<(u64, u64)> = Vec::new();
        let mut cells = Deadlines::default();
        let mut now = 0;
        for _ in 0..20_000 {
            match random(4) {
                0 | 1 => {
                    let (at, units) = (now + 1 + random(1_500), 1 + random(9));
                    plain.push((at, units));
                    cells.add(at, units);
                }
                2 if !plain.is_empty() => {
                    let (at, units) = plain.swap_remove(random(plain.len() as u64) as usize);
                    cells.remove(at, units);
                }
                _ => {
                    now += random(40);
                    if random(2) == 0 {
                        cells.advance(now);
                    }
                }
            }
            let due: u64 = plain.iter().filter(|(at, _)| *at <= now).map(|(_, units)| units).sum();
            assert_eq!(cells.due_at(now), due, "at {now}");
        }
        for (at, units) in plain {
            cells.remove(at, units);
        }
        assert!(cells.cells.is_empty());
        cells.advance(now);
        assert_eq!(cells.due_at(now), 0);
    }
}
