//! How commands stand in an entry: the bincode of a [`BatchOf`], of which placements, the many and
//! small, are written and read by hand, to the same bytes.
//!
//! [`BatchOf`]: crate::ledger::BatchOf

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::entry::{Payload, TAG_BATCH};
use crate::codec::{self, CodecError};
use crate::ledger::{BatchRef, Command, CommandOf, NameRef, PlaceRef, Placement, UnixMs};

/// A placement as the log has it: encoded once, at the edge, and read where it is from then on. The
/// placements of one request may share their bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PlaceBytes(Bytes);

/// Most placements are smaller.
const PLACE_BYTES_USUAL: usize = 192;

/// A command on its way to the log.
pub type PackedCommand = CommandOf<PlaceBytes>;

impl PlaceBytes {
    /// Encodes a placement.
    pub fn of(place: PlaceRef<'_>) -> PlaceBytes {
        let mut bytes = Vec::with_capacity(PLACE_BYTES_USUAL);
        write_place(&place, &mut bytes);
        PlaceBytes(Bytes::from(bytes))
    }
}

impl fmt::Debug for PlaceBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked().fmt(f)
    }
}

impl Placement for PlaceBytes {
    fn asked(&self) -> PlaceRef<'_> {
        let mut rest = &self.0[..];
        read_place(&mut rest).expect("only what was written as a placement becomes PlaceBytes")
    }
}

impl Serialize for PlaceBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.asked().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PlaceBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PlaceBytes, D::Error> {
        PlaceRef::deserialize(deserializer).map(PlaceBytes::of)
    }
}

/// Packs a command.
pub fn packed(command: Command) -> PackedCommand {
    command.map_place(|place| PlaceBytes::of(place.asked()))
}

/// Encodes many placements into one run of bytes.
#[derive(Debug, Default)]
pub struct Packer {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Packer {
    /// Adds a placement.
    pub fn add(&mut self, place: PlaceRef<'_>) {
        write_place(&place, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Returns the placements in the order in which they were added.
    pub fn finish(self) -> Vec<PlaceBytes> {
        let bytes = Bytes::from(self.bytes);
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = begins.zip(self.ends.iter().copied());
        ranges.map(|(begin, end)| PlaceBytes(bytes.slice(begin..end))).collect()
    }
}

/// Builds a [`Payload`] command by command, up to a bound in bytes.
#[derive(Debug)]
pub struct EntryBuilder {
    bytes: Vec<u8>,
    count: u64,
    /// Where the last command begins.
    last: usize,
    bytes_max: usize,
}

/// The number of [`CommandOf::Place`] in its encoding.
const PLACE_NUMBER: u32 = 4;
const NUMBER_BYTES: usize = 4;
/// Tag, stamp and number of commands come before the first command.
const BATCH_HEADER_BYTES: usize = 1 + 8 + 8;

impl EntryBuilder {
    /// Starts an entry of at most `bytes_max` bytes; one command always fits.
    pub fn new(bytes_max: usize) -> EntryBuilder {
        let mut bytes = Vec::with_capacity(bytes_max.min(8 << 10));
        bytes.resize(BATCH_HEADER_BYTES, 0);
        EntryBuilder { bytes, count: 0, last: BATCH_HEADER_BYTES, bytes_max }
    }

    /// Adds a command, or says `false` when it does not fit any more.
    pub fn push(&mut self, command: &PackedCommand) -> bool {
        let before = self.bytes.len();
        let encoded = if let CommandOf::Place(place) = command {
            self.bytes.extend_from_slice(&PLACE_NUMBER.to_le_bytes());
            self.bytes.extend_from_slice(&place.0);
            true
        } else {
            codec::encode_into(&mut self.bytes, command).is_ok()
        };
        if !encoded || (self.count > 0 && self.bytes.len() > self.bytes_max) {
            self.bytes.truncate(before);
            return false;
        }
        self.count += 1;
        self.last = before;
        true
    }

    /// Takes the command back that was added last. Only once after each [`EntryBuilder::push`].
    pub fn pop(&mut self) {
        self.bytes.truncate(self.last);
        self.count -= 1;
    }

    /// Returns how many bytes the entry has.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns how many commands are in.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Stamps the entry and closes it.
    pub fn finish(mut self, stamp: UnixMs) -> Payload {
        self.bytes[0] = TAG_BATCH;
        self.bytes[1..9].copy_from_slice(&stamp.0.to_le_bytes());
        self.bytes[9..17].copy_from_slice(&self.count.to_le_bytes());
        Payload(Bytes::from(self.bytes))
    }
}

fn write_place(place: &PlaceRef<'_>, out: &mut Vec<u8>) {
    let PlaceRef { name, region, buyer, key, quantity, ttl_ms, reference } = place;
    let text = |text: &str, out: &mut Vec<u8>| {
        out.extend_from_slice(&(text.len() as u64).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    };
    let optional = |value: &Option<&str>, out: &mut Vec<u8>| {
        out.push(u8::from(value.is_some()));
        if let Some(value) = value {
            text(value, out);
        }
    };
    text(name.tenant, out);
    text(name.item, out);
    optional(region, out);
    optional(buyer, out);
    text(key, out);
    out.extend_from_slice(&quantity.to_le_bytes());
    out.push(u8::from(ttl_ms.is_some()));
    if let Some(ttl_ms) = ttl_ms {
        out.extend_from_slice(&ttl_ms.to_le_bytes());
    }
    optional(reference, out);
}

/// Reads a placement off the front.
fn read_place<'a>(rest: &mut &'a [u8]) -> Option<PlaceRef<'a>> {
    let name = NameRef { tenant: read_text(rest)?, item: read_text(rest)? };
    Some(PlaceRef {
        name,
        region: read_optional(rest, read_text)?,
        buyer: read_optional(rest, read_text)?,
        key: read_text(rest)?,
        quantity: read_number(rest)?,
        ttl_ms: read_optional(rest, read_number)?,
        reference: read_optional(rest, read_text)?,
    })
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(u64::from_le_bytes(*head))
}

fn read_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::try_from(read_number(rest)?).ok()?;
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    std::str::from_utf8(head).ok()
}

fn read_optional<'a, T>(
    rest: &mut &'a [u8],
    read: impl FnOnce(&mut &'a [u8]) -> Option<T>,
) -> Option<Option<T>> {
    let (head, tail) = rest.split_first()?;
    *rest = tail;
    match head {
        0 => Some(None),
        1 => read(rest).map(Some),
        _ => None,
    }
}

/// Reads a batch; placements borrow from the bytes.
pub(super) fn read_batch(bytes: &[u8]) -> Result<BatchRef<'_>, CodecError> {
    let short = || CodecError::Envelope("a batch that is cut short");
    let mut rest = bytes;
    let stamp = UnixMs(read_number(&mut rest).ok_or_else(short)?);
    let count = read_number(&mut rest).ok_or_else(short)?;
    // A command has its number at least: a count that is a lie allocates no more than there is.
    let count = usize::try_from(count).ok().filter(|count| *count <= rest.len() / NUMBER_BYTES);
    let count = count.ok_or_else(short)?;
    let mut commands = Vec::with_capacity(count);
    for _ in 0..count {
        let (number, behind) = rest.split_first_chunk::<NUMBER_BYTES>().ok_or_else(short)?;
        if u32::from_le_bytes(*number) == PLACE_NUMBER {
            rest = behind;
            let place = read_place(&mut rest).ok_or(CodecError::Envelope("not a placement"))?;
            commands.push(CommandOf::Place(place));
            continue;
        }
        let command: Command = codec::decode_front(&mut rest)?;
        commands.push(command.map_place(|_| unreachable!("placements have a number of their own")));
    }
    if !rest.is_empty() {
        return Err(CodecError::Envelope("bytes behind the last command"));
    }
    Ok(BatchRef { stamp, commands })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Batch, BatchOf, ItemName, Place};

    #[test]
    fn an_entry_built_command_by_command_decodes_to_its_batch() {
        let mut builder = EntryBuilder::new(64 << 10);
        for _ in 0..3 {
            assert!(builder.push(&CommandOf::Advance));
        }
        let payload = builder.finish(UnixMs(77));
        let batch = payload.batch().expect("a batch");
        assert_eq!(batch, BatchOf { stamp: UnixMs(77), commands: vec![CommandOf::Advance; 3] });
    }

    fn placing() -> Place {
        Place {
            name: ItemName { tenant: "t".to_owned(), item: "x".to_owned() },
            region: None,
            buyer: Some("b".to_owned()),
            key: "k".to_owned(),
            quantity: 3,
            ttl_ms: Some(9),
            reference: None,
        }
    }

    #[test]
    fn a_packed_placement_reads_and_encodes_as_the_placement_it_is() {
        let plain = Command::Place(placing());
        let mut packer = Packer::default();
        packer.add(PlaceRef { key: "before", ..placing().asked() });
        packer.add(placing().asked());
        let packed = CommandOf::Place(packer.finish().remove(1));
        assert_eq!(packed.placing(), plain.placing());
        let bytes = codec::encode(&plain).expect("small");
        assert_eq!(codec::encode(&packed).expect("small"), bytes);
        assert_eq!(codec::decode::<PackedCommand>(&bytes).expect("whole"), packed);
        // And so it stands in the log, before and after other commands.
        let mut builder = EntryBuilder::new(64 << 10);
        for command in [&CommandOf::Advance, &packed, &CommandOf::Advance] {
            assert!(builder.push(command));
        }
        let payload = builder.finish(UnixMs(5));
        let commands = payload.batch().expect("a batch").commands;
        assert_eq!(commands.len(), 3);
        assert_eq!(commands[1].placing(), plain.placing());
        let batch =
            Batch { stamp: UnixMs(5), commands: vec![Command::Advance, plain, Command::Advance] };
        assert_eq!(payload.0[1..], codec::encode(&batch).expect("small"));
    }

    #[test]
    fn every_cut_and_every_flipped_byte_of_a_batch_is_read_as_bincode_reads_it() {
        let mut builder = EntryBuilder::new(64 << 10);
        let place = Place { region: Some("r".to_owned()), ..placing() };
        let release = Command::Release(crate::ledger::Release {
            hold: crate::ledger::HoldId::default(),
            tenant: "t".to_owned(),
            key: "k".to_owned(),
            reason: Some("why".to_owned()),
        });
        for command in [Command::Advance, Command::Place(place), release, Command::Place(placing())]
        {
            assert!(builder.push(&packed(command)));
        }
        let whole = builder.finish(UnixMs(5)).0;
        let same = |bytes: &[u8]| {
            let by_hand = read_batch(bytes).ok();
            let by_bincode = codec::decode::<BatchRef<'_>>(bytes).ok();
            assert_eq!(by_hand, by_bincode);
            by_hand.is_some()
        };
        assert!(same(&whole[1..]));
        for end in 1..whole.len() {
            assert!(!same(&whole[1..end]));
        }
        let mut bytes = whole[1..].to_vec();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                bytes[at] ^= flip;
                same(&bytes);
                bytes[at] ^= flip;
            }
        }
        bytes.push(0);
        assert!(!same(&bytes));
    }

    #[test]
    fn an_entry_is_bounded_in_bytes_but_takes_one_command_always() {
        let mut builder = EntryBuilder::new(BATCH_HEADER_BYTES + 4);
        assert!(builder.push(&CommandOf::Advance));
        assert!(!builder.push(&CommandOf::Advance));
        assert_eq!(builder.finish(UnixMs(1)).batch().expect("a batch").commands.len(), 1);
    }
}
