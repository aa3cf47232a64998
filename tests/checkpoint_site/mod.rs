//! A shard's page databases and a plain map of pages as its ledger, for the checkpoint tests.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast::ledger::{LeaderId, LogIndex, NodeId, PageKey, Settings, ShardId, Turn, UnixMs};
use holdfast::runtime::Rt;
use holdfast::storage::checkpoint::{
    CheckpointError, CheckpointHeader, CheckpointState, Checkpoints, Origin, PageDesk,
};
use holdfast::storage::log::LogPosition;
use holdfast::storage::pages::{PageChange, PageStore, SimPages, SledPages};
use openraft_rt::AsyncRuntime;
use xxhash_rust::xxh3::xxh3_128;

pub(crate) type Pages = BTreeMap<PageKey, Vec<u8>>;

/// Runs a test's future on the runtime that this build's nodes run on.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    Rt::new(1).block_on(future)
}

/// SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.roll(u64::MAX).to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        shards: 4,
        tag_key: [7; 16],
        slots: 256,
        sweep_max: 512,
        receipt_retention_ms: 86_400_000,
        sold_retention_ms: 7_776_000_000,
    }
}

pub(crate) fn origin() -> Origin {
    Origin::new([1; 16], &settings(), ShardId(2))
}

pub(crate) fn key(number: u64) -> PageKey {
    PageKey(format!("slot/{number:06}").into_bytes())
}

pub(crate) fn digest<'a>(pages: impl IntoIterator<Item = (&'a PageKey, &'a Vec<u8>)>) -> u128 {
    let hash = |(key, value): (&PageKey, &Vec<u8>)| {
        let mut record = key.0.clone();
        record.push(0);
        record.extend_from_slice(value);
        xxh3_128(&record)
    };
    pages.into_iter().map(hash).fold(0, u128::wrapping_add)
}

/// Where a shard's databases are; it survives the "node" that has them open.
pub(crate) enum Site {
    Sled(tempfile::TempDir),
    Sim(SimPages),
}

impl Site {
    pub(crate) fn sled() -> Site {
        Site::Sled(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn sim(seed: u64) -> Site {
        Site::Sim(SimPages::new(seed))
    }

    pub(crate) fn store(&self) -> Arc<dyn PageStore> {
        match self {
            Site::Sled(dir) => Arc::new(SledPages::new(dir.path().join("shard-2")).expect("store")),
            Site::Sim(pages) => Arc::new(pages.clone()),
        }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        match self {
            Site::Sled(dir) => dir.path().join("shard-2"),
            Site::Sim(_) => panic!("the model has no directory"),
        }
    }

    /// Starts the shard's storage as a new process would.
    pub(crate) async fn open(&self) -> Checkpoints {
        self.try_open(origin()).await.expect("opens")
    }

    pub(crate) async fn try_open(&self, origin: Origin) -> Result<Checkpoints, CheckpointError> {
        Checkpoints::open(self.store(), origin, PageDesk::start().expect("a thread")).await
    }
}

/// A ledger: a map of pages that knows what is dirty for which turn.
#[derive(Clone, Default)]
pub(crate) struct Book {
    pub(crate) index: u64,
    pub(crate) pages: Pages,
    pub(crate) dirty: [BTreeSet<PageKey>; 2],
}

pub(crate) fn at(turn: Turn) -> usize {
    match turn {
        Turn::A => 0,
        Turn::B => 1,
    }
}

impl Book {
    pub(crate) fn put(&mut self, key: PageKey, value: Vec<u8>) {
        for dirty in &mut self.dirty {
            dirty.insert(key.clone());
        }
        self.pages.insert(key, value);
        self.index += 1;
    }

    pub(crate) fn remove(&mut self, key: &PageKey) {
        for dirty in &mut self.dirty {
            dirty.insert(key.clone());
        }
        self.pages.remove(key);
        self.index += 1;
    }

    /// Puts, changes and removes some pages of `0..keys`.
    pub(crate) fn shake(&mut self, dice: &mut Dice, changes: u64, keys: u64) {
        for _ in 0..changes {
            let key = key(dice.roll(keys));
            if dice.roll(5) == 0 {
                self.remove(&key);
            } else {
                let length = [0, 3, 200, 4_000, 16 << 10][dice.roll(5) as usize];
                self.put(key, dice.bytes(length));
            }
        }
    }

    pub(crate) fn state(&self) -> CheckpointState {
        CheckpointState {
            position: Some(position(self.index)),
            membership: format!("members at {}", self.index).into_bytes(),
            ledger_now: UnixMs(1_000 + self.index),
            digest: digest(&self.pages),
        }
    }

    /// What a checkpoint into `turn` must write.
    pub(crate) fn cut(&self, turn: Turn, whole: bool) -> Vec<PageChange> {
        let page = |key: &PageKey| (key.clone(), self.pages.get(key).cloned());
        if whole {
            return self.pages.keys().map(page).collect();
        }
        self.dirty[at(turn)].iter().map(page).collect()
    }

    pub(crate) fn cut_is_durable(&mut self, turn: Turn) {
        self.dirty[at(turn)].clear();
    }

    /// Writes one checkpoint where it is due.
    pub(crate) async fn checkpoint(&mut self, checkpoints: &Checkpoints) -> Arc<CheckpointHeader> {
        let (turn, whole) = checkpoints.next_turn();
        let mut writer = checkpoints.begin(turn, whole).await.expect("begins");
        writer.write(self.cut(turn, whole)).await.expect("writes");
        let header = writer.finish(self.state()).await.expect("finishes");
        self.cut_is_durable(turn);
        assert_eq!(checkpoints.current(), Some((turn, Arc::clone(&header))));
        header
    }
}

pub(crate) fn position(index: u64) -> LogPosition {
    LogPosition { leader: LeaderId { term: 3, node: NodeId(1) }, index: LogIndex(index) }
}

/// The start of a shard: the newest database whose digest is its header's. What is not is marked.
pub(crate) async fn start(
    checkpoints: &Checkpoints,
) -> Option<(Turn, Arc<CheckpointHeader>, Pages)> {
    for (turn, _) in checkpoints.candidates() {
        let (header, pages) = match checkpoints.load(turn).await {
            Ok(loaded) => loaded,
            Err(error) => {
                println!("{error}");
                continue;
            }
        };
        let pages: Pages = pages.into_iter().collect();
        if digest(&pages) == header.state.digest {
            return Some((turn, header, pages));
        }
        checkpoints.mark_damaged(turn, "its digest differs").await.expect("marks");
    }
    None
}
