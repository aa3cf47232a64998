//! Files of a node: segments of the log, the identity, headers of checkpoints.

use std::path::Path;

use holdfast::codec;
use holdfast::ledger::{LogIndex, NodeId, ShardId, UnixMs};
use holdfast::storage::checkpoint::{CheckpointHeader, CheckpointState, Origin};
use holdfast::storage::log::Record;
use holdfast::storage::{Identity, SimDisk};
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::campaign::{bend, bounded, campaign, place};
use crate::http_desk::settings;
use crate::wal_world::{Model, create, open, position, small, trace, write};

/// Seals an envelope again over whatever its payload has become.
fn sealed_again(rng: &mut SmallRng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    if rng.random_bool(0.3) || bytes.len() < codec::ENVELOPE_HEADER_BYTES {
        return bend(rng, bytes, others);
    }
    let mut payload = bytes.split_off(codec::ENVELOPE_HEADER_BYTES);
    bend(rng, &mut payload, others);
    let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    *bytes = codec::seal(number(4), number(6), &payload);
}

#[test]
fn headers_of_checkpoints_are_read_or_refused() {
    campaign("headers_of_checkpoints", |rng| {
        let state = CheckpointState {
            position: Some(position(rng.random_range(1..9), rng.random_range(0..1_000))),
            membership: (0..rng.random_range(0..200)).map(|_| rng.random()).collect(),
            ledger_now: UnixMs(rng.random()),
            digest: rng.random(),
        };
        let header = CheckpointHeader {
            sequence: rng.random(),
            origin: Origin::new([7; 16], &settings(), ShardId(1)),
            state,
            page_count: rng.random(),
            page_bytes: rng.random(),
        };
        let whole = header.seal().expect("small");
        assert_eq!(CheckpointHeader::open(&whole).expect("whole"), header);
        for _ in 0..200 {
            let mut bytes = whole.clone();
            sealed_again(rng, &mut bytes, &[]);
            let bound = bytes.len() * 16 + (4 << 20);
            let opened = bounded(bound, || CheckpointHeader::open(&bytes));
            if let Ok(opened) = opened {
                assert_eq!(opened.seal().expect("it was read"), bytes, "one header, one spelling");
            }
        }
    });
}

#[test]
fn identities_are_read_or_refused() {
    campaign("identities", |rng| {
        let identity = Identity {
            cluster_id: rng.random(),
            node: NodeId(rng.random()),
            log_uuid: rng.random(),
            settings: settings(),
            region: "eu".repeat(rng.random_range(0..20)),
            created_at: UnixMs(rng.random()),
        };
        let (disk, dir) = (SimDisk::new().mount(), Path::new("/node"));
        disk.create_dir_all(dir).expect("a healthy disk");
        identity.create(&*disk, dir).expect("a healthy disk");
        let names = disk.list(dir).expect("a healthy disk");
        let [file] = &names[..] else { panic!("one file, not {names:?}") };
        let file = disk.open(&dir.join(file)).expect("it was made");
        let mut whole = vec![0; usize::try_from(file.length().expect("healthy")).expect("small")];
        file.read_exact_at(0, &mut whole).expect("a healthy disk");
        for _ in 0..100 {
            let mut bytes = whole.clone();
            sealed_again(rng, &mut bytes, &[]);
            file.set_len(0).expect("a healthy disk");
            file.write_at(0, &bytes).expect("a healthy disk");
            // Read or refused: both are answers.
            let _ = bounded(4 << 20, || Identity::read(&*disk, dir));
        }
    });
}

const FRAME: [u8; 4] = *b"HFWL";
const FRAME_HEADER: usize = 80;

/// Gives every frame that still looks like one the checksums that its bytes need.
fn resealed(bytes: &mut [u8]) {
    let mut at = 0;
    while at + FRAME_HEADER <= bytes.len() {
        if bytes[at..at + 4] != FRAME {
            at += 8;
            continue;
        }
        let length =
            u32::from_le_bytes([bytes[at + 8], bytes[at + 9], bytes[at + 10], bytes[at + 11]]);
        let body = (length as usize).next_multiple_of(8);
        let end = (at + FRAME_HEADER).saturating_add(body);
        if let Some(payload) = bytes.get(at + FRAME_HEADER..end) {
            let crc = crc32fast::hash(payload).to_le_bytes();
            bytes[at + 12..at + 16].copy_from_slice(&crc);
        }
        let crc = crc32fast::hash(&bytes[at..at + FRAME_HEADER - 4]).to_le_bytes();
        bytes[at + FRAME_HEADER - 4..at + FRAME_HEADER].copy_from_slice(&crc);
        at += 8;
    }
}

/// Any files make a log that can be read, written and opened again, or none.
#[test]
fn files_of_a_log_are_read_or_refused() {
    campaign("files_of_a_log", |rng| {
        let disk = SimDisk::new();
        create(&disk, &small());
        let trace = trace(rng.random(), 8, &mut Model::default());
        let mut opened = open(&disk, &small()).expect("whole");
        write(&disk, &mut opened, &trace);
        opened.log.prepare_next();
        drop(opened);
        let files = disk.files();
        let all: Vec<Vec<u8>> = files.iter().filter_map(|path| disk.contents(path)).collect();
        for _ in 0..12 {
            let bad = disk.fork();
            let path = &files[place(rng, files.len())];
            let mut bytes = bad.contents(path).unwrap_or_default();
            bend(rng, &mut bytes, &all);
            if rng.random_bool(0.7) {
                resealed(&mut bytes);
            }
            let file = bad.mount().open(path).expect("it is there");
            file.set_len(0).expect("a healthy disk");
            file.write_at(0, &bytes).expect("a healthy disk");
            let bound = all.iter().map(Vec::len).sum::<usize>() * 16 + (4 << 20);
            let Ok(mut log) = bounded(bound, || open(&bad, &small())) else { continue };
            for (shard, index) in &log.shards {
                // What a forged frame names may not be there: an error then.
                let _ = bounded(bound, || log.log.read(*shard, index, 0..u64::MAX, 1 << 20));
            }
            let vote = Record::Vote(bytes::Bytes::from_static(b"a vote after all"));
            let kept = log.log.record(ShardId(0), &vote).and_then(|()| log.log.sync());
            let truncated = Record::TruncateAfter(Some(LogIndex(rng.random_range(0..40))));
            let _ = log.log.record(ShardId(1), &truncated).and_then(|()| log.log.sync());
            drop(log);
            if kept.is_ok() {
                let _ = bounded(bound, || open(&bad, &small()));
            }
        }
    });
}
