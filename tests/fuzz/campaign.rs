//! One campaign: rounds with a seed each for as long as there is time, one campaign at a time so
//! that memory can be counted; and how bytes are bent.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use peak_alloc::PeakAlloc;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The memory of the process is one number, so nothing else may run beside a round.
static TURN: Mutex<()> = Mutex::new(());

/// An ordinary run's time for one campaign.
const SECONDS: u64 = 5;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

/// Runs rounds until the time is over, each with a generator of its own seed.
pub(crate) fn campaign(name: &str, mut round: impl FnMut(&mut SmallRng)) {
    let _turn = TURN.lock();
    let mut once = |seed: u64| {
        let ran = catch_unwind(AssertUnwindSafe(|| round(&mut SmallRng::seed_from_u64(seed))));
        if let Err(panic) = ran {
            eprintln!("replay it with: FUZZ_SEED={seed} cargo test --test fuzz {name}");
            resume_unwind(panic);
        }
    };
    if let Some(seed) = number("FUZZ_SEED") {
        return once(seed);
    }
    let asked = number("FUZZ_SECONDS");
    let time = Duration::from_secs(asked.unwrap_or(SECONDS));
    // An ordinary run is the same every time; whoever asks for a long one looks for something new.
    let first: u64 = if asked.is_some() { rand::random::<u64>() >> 16 } else { 1 };
    let (began, mut rounds) = (Instant::now(), 0);
    while began.elapsed() < time {
        once(first + rounds);
        rounds += 1;
    }
    println!("{name}: {rounds} rounds from seed {first} in {:?}", began.elapsed());
    assert!(rounds > 20, "{name}: only {rounds} rounds prove nothing");
}

/// Runs a step and asserts that it never held more than `bytes_max` beyond what was held before.
pub(crate) fn bounded<T>(bytes_max: usize, step: impl FnOnce() -> T) -> T {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let done = step();
    let held = MEMORY.peak_usage().saturating_sub(before);
    assert!(held <= bytes_max, "{held} bytes were held where {bytes_max} should do");
    done
}

/// Numbers at which lengths and counters break.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    (1 << 53) - 1,
    1 << 53,
    i64::MAX as u64,
    u64::MAX,
];

/// A place in something so long.
pub(crate) fn place(rng: &mut SmallRng, length: usize) -> usize {
    if length == 0 { 0 } else { rng.random_range(0..length) }
}

/// Bends bytes one to eight times; `others` gives what may be mixed in.
pub(crate) fn bend(rng: &mut SmallRng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.random_range(1..=8) {
        bend_once(rng, bytes, others);
    }
}

fn bend_once(rng: &mut SmallRng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = place(rng, bytes.len());
    let some = rng.random_range(1..=64).min(bytes.len() - at.min(bytes.len()));
    match rng.random_range(0..10) {
        0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << rng.random_range(0..8),
        2 if !bytes.is_empty() => bytes[at] = rng.random(),
        3 | 4 => {
            let edge =
                EDGES[place(rng, EDGES.len())].wrapping_add(rng.random_range(0..3)).wrapping_sub(1);
            let edge = edge.to_le_bytes();
            let width = [1, 2, 4, 8][place(rng, 4)];
            for (byte, new) in bytes.iter_mut().skip(at).zip(&edge[..width]) {
                *byte = *new;
            }
        }
        5 => bytes.truncate(at),
        6 => drop(bytes.drain(at..at + some)),
        7 => {
            let again = bytes[at..at + some].to_vec();
            bytes.splice(at..at, again);
        }
        8 => {
            let new: Vec<u8> = (0..rng.random_range(1..16)).map(|_| rng.random()).collect();
            bytes.splice(at..at, new);
        }
        _ => {
            let Some(other) = others.get(place(rng, others.len())) else { return };
            let from = place(rng, other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}
