//! Randomness of a client: keys, and pauses between attempts.
//!
//! Promises: a pause is spread evenly over 0 … min(first × 2^n, max), so that a thousand clients
//! that met one failure do not come back together. With a seed everything repeats.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(super) struct Dice {
    state: Option<AtomicU64>,
}

impl Dice {
    pub(super) fn new(seed: Option<u64>) -> Dice {
        Dice { state: seed.map(AtomicU64::new) }
    }

    fn roll(&self) -> u64 {
        match &self.state {
            None => rand::random(),
            // SplitMix64 (Steele, Lea, Flood 2014).
            Some(state) => {
                let step = 0x9E37_79B9_7F4A_7C15_u64;
                let mut z = state.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                z ^ (z >> 31)
            }
        }
    }

    /// 128 bits in hex.
    pub(super) fn key(&self) -> String {
        format!("{:016x}{:016x}", self.roll(), self.roll())
    }

    /// The pause before attempt `n`, counted from 0.
    pub(super) fn pause(&self, n: u32, first: Duration, max: Duration) -> Duration {
        let ceiling = first.saturating_mul(1 << n.min(16)).min(max);
        let ceiling_us = u64::try_from(ceiling.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.roll() % (ceiling_us + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_within_its_doubling_ceiling_and_reaches_its_upper_half() {
        let dice = Dice::new(Some(7));
        let (first, max) = (Duration::from_millis(10), Duration::from_millis(500));
        for (n, ceiling_ms) in [(0, 10), (1, 20), (3, 80), (9, 500), (40, 500)] {
            let pauses: Vec<_> = (0..200).map(|_| dice.pause(n, first, max)).collect();
            let ceiling = Duration::from_millis(ceiling_ms);
            assert!(pauses.iter().all(|pause| *pause <= ceiling), "n = {n}");
            assert!(pauses.iter().any(|pause| *pause > ceiling / 2), "n = {n}");
            assert!(pauses.iter().any(|pause| *pause < ceiling / 2), "n = {n}");
        }
    }

    #[test]
    fn keys_are_128_bits_of_hex_and_differ() {
        let dice = Dice::new(None);
        let (one, two) = (dice.key(), dice.key());
        assert_eq!(one.len(), 32);
        assert!(one.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(one, two);
    }
}
