//! Memory that is touched before it is needed.
//!
//! The first touch of a page costs 2–12 µs in a virtual machine, in the middle of a sale. A shard's
//! thread takes its part of the pool once, writes every byte of it, and gives it back to its own
//! allocator, which keeps it: chunks are small enough to come from the thread's arena, and one of
//! every few stays taken, so that the arena is never given back to the system.

/// The size of a chunk in bytes: below the bound above which the allocator maps memory by itself.
const CHUNK_BYTES: usize = 64 << 10;
/// One of so many chunks stays taken.
const KEPT_ONE_OF: usize = 256;

/// Touches `bytes` of memory for the thread that calls it. Returns the part that must stay taken
/// for as long as the rest shall stay warm.
pub(super) fn warm(bytes: u64) -> Vec<Vec<u8>> {
    let chunks = usize::try_from(bytes).unwrap_or(usize::MAX) / CHUNK_BYTES;
    let mut taken: Vec<Vec<u8>> = Vec::with_capacity(chunks);
    for _ in 0..chunks {
        // Not zeros: those the system gives without touching anything.
        taken.push(vec![1; CHUNK_BYTES]);
    }
    let last = chunks.saturating_sub(1);
    let kept = |at: usize| at == last || at % KEPT_ONE_OF == KEPT_ONE_OF - 1;
    taken.into_iter().enumerate().filter(|(at, _)| kept(*at)).map(|(_, chunk)| chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_memory_stays_taken_in_a_small_part_only() {
        assert_eq!(warm(0).len(), 0);
        assert_eq!(warm(CHUNK_BYTES as u64 * 3).len(), 1);
        assert_eq!(warm(CHUNK_BYTES as u64 * 512).len(), 2);
    }
}
