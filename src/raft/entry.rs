//! What openraft carries for us: the entry's payload, the member's record, the answer of an entry.
//!
//! A payload is opaque bytes from the batcher to the ledger: they are encoded once on the leader
//! and decoded once on each replica, when the entry is applied. The log and the network copy them.

use std::fmt;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::type_config::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{self, CodecError};
use crate::ledger::{
    Answer, BatchRef, Command, CommandOf, LeaderId, LogIndex, NodeId, PlaceRef, Placement, UnixMs,
};
use crate::storage::{LogEntry, LogPosition};

openraft::declare_raft_types!(
    /// The types of every Raft group. Leader ids are (term, node).
    pub(crate) TypeConfig:
        D = Payload,
        R = Applied,
        NodeId = u64,
        Node = Member,
        AsyncRuntime = crate::runtime::Rt,
);

/// An entry's command batch, encoded: one tag byte, then the bincode of a [`Batch`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Payload {
    /// Decodes the batch; placements, of which there may be many, borrow from the bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError`] when the bytes are not a batch that this build knows; the node must stop
    /// then.
    pub fn batch(&self) -> Result<BatchRef<'_>, CodecError> {
        match self.0.split_first() {
            Some((&TAG_BATCH, bytes)) => codec::decode(bytes),
            Some(_) | None => Err(CodecError::Envelope("not a command batch")),
        }
    }
}

/// A placement as the log has it: encoded once, at the edge, and read where it is from then on. The
/// placements of one request may share their bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PlaceBytes(Bytes);

/// A command on its way to the log.
pub type PackedCommand = CommandOf<PlaceBytes>;

impl PlaceBytes {
    /// Encodes a placement.
    pub fn of(place: PlaceRef<'_>) -> PlaceBytes {
        let mut packer = Packer::default();
        packer.add(place);
        packer.finish().pop().expect("one was added")
    }
}

impl fmt::Debug for PlaceBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked().fmt(f)
    }
}

impl Placement for PlaceBytes {
    fn asked(&self) -> PlaceRef<'_> {
        codec::decode(&self.0).expect("only what decodes becomes PlaceBytes")
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

/// Packs the commands of one caller.
pub fn packed(command: Command) -> PackedCommand {
    use CommandOf as C;
    match command {
        Command::Place(place) => C::Place(PlaceBytes::of(place.asked())),
        Command::Define(define) => C::Define(define),
        Command::Adjust(adjust) => C::Adjust(adjust),
        Command::SetMode(mode) => C::SetMode(mode),
        Command::Retire(retire) => C::Retire(retire),
        Command::Extend(extend) => C::Extend(extend),
        Command::Confirm(confirm) => C::Confirm(confirm),
        Command::Release(release) => C::Release(release),
        Command::Return(returned) => C::Return(returned),
        Command::Void(void) => C::Void(void),
        Command::Advance => C::Advance,
        Command::OpenBucket(open) => C::OpenBucket(open),
        Command::SendStock(send) => C::SendStock(send),
        Command::AcceptStock(accept) => C::AcceptStock(accept),
        Command::SettleStock(settle) => C::SettleStock(settle),
        Command::DefineSpread(spread) => C::DefineSpread(spread),
        Command::SetLayout(layout) => C::SetLayout(layout),
        Command::Configure(configure) => C::Configure(configure),
        Command::CopyAnswered(answered) => C::CopyAnswered(answered),
        Command::EraseCopy(erase) => C::EraseCopy(erase),
        Command::LowerBegin(lower) => C::LowerBegin(lower),
        Command::LowerCommit(lower) => C::LowerCommit(lower),
        Command::LowerAbort(lower) => C::LowerAbort(lower),
        Command::DeleteBegin(delete) => C::DeleteBegin(delete),
        Command::DeleteAbort(delete) => C::DeleteAbort(delete),
        Command::DeleteCommit(delete) => C::DeleteCommit(delete),
        Command::MoveStock(send) => C::MoveStock(send),
    }
}

/// Encodes many placements into one run of bytes.
#[derive(Debug, Default)]
pub struct Packer {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Packer {
    /// Adds a placement.
    ///
    /// # Panics
    ///
    /// When its texts are longer than [`codec::RECORD_BYTES_MAX`], which the edge excludes.
    pub fn add(&mut self, place: PlaceRef<'_>) {
        codec::encode_into(&mut self.bytes, &place).expect("a placement is small");
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
        let encoded = match command {
            CommandOf::Place(place) => {
                self.bytes.extend_from_slice(&PLACE_NUMBER.to_le_bytes());
                self.bytes.extend_from_slice(&place.0);
                true
            }
            other => codec::encode_into(&mut self.bytes, other).is_ok(),
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

/// A member of a group as its membership entries record it. Peers accept votes and appends from no
/// other pair of (node id, log uuid).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The member's log.
    pub log_uuid: [u8; 16],
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where services reach it.
    pub http_addr: String,
    /// Its region.
    pub region: String,
}

/// What applying an entry answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Where the entry stands.
    pub position: LogPosition,
    /// Ledger time after it.
    pub now: UnixMs,
    /// One answer a command.
    pub answers: Vec<Answer>,
}

const TAG_BLANK: u8 = 0;
const TAG_BATCH: u8 = 1;
const TAG_MEMBERSHIP: u8 = 2;

pub(crate) fn position_of(id: &LogIdOf<TypeConfig>) -> LogPosition {
    let leader = id.committed_leader_id();
    LogPosition {
        leader: LeaderId { term: leader.term, node: NodeId(leader.node_id) },
        index: LogIndex(id.index()),
    }
}

pub(crate) fn raft_leader(leader: LeaderId) -> CommittedLeaderIdOf<TypeConfig> {
    openraft::impls::leader_id_adv::LeaderId { term: leader.term, node_id: leader.node.0 }
}

pub(crate) fn log_id_of(position: LogPosition) -> LogIdOf<TypeConfig> {
    LogIdOf::<TypeConfig>::new(raft_leader(position.leader), position.index.0)
}

/// Turns openraft's entry into the log's.
pub(crate) fn to_log(entry: &EntryOf<TypeConfig>) -> Result<LogEntry, CodecError> {
    let payload = match &entry.payload {
        EntryPayload::Blank => Bytes::from_static(&[TAG_BLANK]),
        EntryPayload::Normal(payload) => payload.0.clone(),
        EntryPayload::Membership(membership) => {
            let mut bytes = vec![TAG_MEMBERSHIP];
            codec::encode_into(&mut bytes, membership)?;
            Bytes::from(bytes)
        }
    };
    Ok(LogEntry { position: position_of(&entry.log_id), payload })
}

/// Turns the log's entry into openraft's.
pub(crate) fn from_log(entry: LogEntry) -> Result<EntryOf<TypeConfig>, CodecError> {
    let payload = match entry.payload.first() {
        Some(&TAG_BLANK) if entry.payload.len() == 1 => EntryPayload::Blank,
        Some(&TAG_BATCH) => EntryPayload::Normal(Payload(entry.payload)),
        Some(&TAG_MEMBERSHIP) => EntryPayload::Membership(codec::decode(&entry.payload[1..])?),
        Some(_) | None => return Err(CodecError::Envelope("not a kind of entry this build knows")),
    };
    Ok(EntryOf::<TypeConfig> { log_id: log_id_of(entry.position), payload })
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
    fn an_entry_is_bounded_in_bytes_but_takes_one_command_always() {
        let mut builder = EntryBuilder::new(BATCH_HEADER_BYTES + 4);
        assert!(builder.push(&CommandOf::Advance));
        assert!(!builder.push(&CommandOf::Advance));
        assert_eq!(builder.finish(UnixMs(1)).batch().expect("a batch").commands.len(), 1);
    }
}
