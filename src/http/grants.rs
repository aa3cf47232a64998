//! Writes the grants of a batch straight into the answer's bytes.
//!
//! A batch may hold a thousand of them, and nearly all that they say stands in the placements that
//! they answer. What is written here is to the byte what [`api::OperationResult`] would serialise
//! to; a test compares the two.
//!
//! [`api::OperationResult`]: crate::api::OperationResult

use std::io::Write;

use crate::api::Timestamp;
use crate::ledger::{CommitPoint, PlaceRef, Placed, UnixMs};

/// Writes grants one after the other, and remembers what most of them share.
#[derive(Debug, Default)]
pub(crate) struct GrantWriter {
    placed_at: (Option<UnixMs>, Vec<u8>),
    expires_at: (Option<UnixMs>, Vec<u8>),
    commit: (Option<CommitPoint>, Vec<u8>),
}

impl GrantWriter {
    /// Writes the result of a placement that made a hold.
    pub(crate) fn write(
        &mut self,
        place: PlaceRef<'_>,
        placed: &Placed,
        commit: Option<CommitPoint>,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(b"{\"status\":201,\"hold\":{\"id\":\"");
        out.extend_from_slice(placed.id.text().as_bytes());
        out.extend_from_slice(b"\",\"item\":");
        text(place.name.item, out);
        out.extend_from_slice(b",\"state\":\"held\",\"quantity\":");
        number(place.quantity, out);
        out.extend_from_slice(b",\"sold\":0");
        if let Some(buyer) = place.buyer {
            out.extend_from_slice(b",\"buyer\":");
            text(buyer, out);
        }
        out.extend_from_slice(b",\"region\":");
        text(&placed.region, out);
        out.extend_from_slice(b",\"placed_at\":\"");
        time(&mut self.placed_at, placed.placed_at, out);
        out.extend_from_slice(b"\",\"expires_at\":\"");
        time(&mut self.expires_at, placed.expires_at, out);
        out.extend_from_slice(b"\",\"expires_in_ms\":");
        number(placed.expires_at.0.saturating_sub(placed.placed_at.0), out);
        out.extend_from_slice(b",\"extends_left\":");
        number(u64::from(placed.extends_left), out);
        out.extend_from_slice(b",\"revision\":");
        number(placed.revision, out);
        if let Some(reference) = place.reference {
            out.extend_from_slice(b",\"reference\":");
            text(reference, out);
        }
        out.push(b'}');
        if let Some(commit) = commit {
            if self.commit.0 != Some(commit) {
                self.commit = (Some(commit), commit.to_string().into_bytes());
            }
            out.extend_from_slice(b",\"commit\":\"");
            out.extend_from_slice(&self.commit.1);
            out.push(b'"');
        }
        out.extend_from_slice(b"}");
    }
}

fn time(known: &mut (Option<UnixMs>, Vec<u8>), at: UnixMs, out: &mut Vec<u8>) {
    if known.0 != Some(at) {
        *known = (Some(at), Timestamp(at.0).to_string().into_bytes());
    }
    out.extend_from_slice(&known.1);
}

fn number(value: u64, out: &mut Vec<u8>) {
    match u8::try_from(value) {
        Ok(digit @ 0..=9) => out.push(b'0' + digit),
        Ok(_) | Err(_) => write!(out, "{value}").expect("a Vec takes every write"),
    }
}

fn text(value: &str, out: &mut Vec<u8>) {
    if value.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        serde_json::to_writer(out, value).expect("a Vec takes every text");
        return;
    }
    out.push(b'"');
    out.extend_from_slice(value.as_bytes());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OperationResult;
    use crate::http::wire;
    use crate::ledger::{HoldId, LeaderId, LogIndex, NameRef, NodeId, ShardId};

    #[test]
    fn a_grant_is_written_as_its_result_serialises() {
        let name = NameRef { tenant: "t", item: "say \"ticket\\1\"" };
        let plain = PlaceRef {
            name,
            region: None,
            buyer: None,
            key: "k",
            quantity: 1,
            ttl_ms: None,
            reference: None,
        };
        let words = PlaceRef {
            quantity: (1 << 53) - 1,
            buyer: Some("b\\\""),
            reference: Some("für Ännchen \u{1f3ab} \"q\""),
            ..plain
        };
        let placed = Placed {
            id: HoldId { sequence: 17, ..HoldId::default() },
            region: "eu \"west\"".into(),
            placed_at: UnixMs(1_777_628_800_123),
            expires_at: UnixMs(1_777_629_400_123),
            extends_left: 12,
            revision: 10,
        };
        let later = Placed { expires_at: UnixMs(1_777_629_400_124), ..placed.clone() };
        let leader = LeaderId { term: 7, node: NodeId(3) };
        let commit = CommitPoint { shard: ShardId(2), leader, index: LogIndex(99) };
        let mut writer = GrantWriter::default();
        for (place, placed, commit) in
            [(plain, &placed, Some(commit)), (words, &later, None), (words, &placed, Some(commit))]
        {
            let result = OperationResult {
                status: 201,
                hold: Some(wire::hold(placed.view(place))),
                problem: None,
                commit: commit.map(|commit| commit.to_string()),
                replayed: false,
            };
            let mut written = Vec::new();
            writer.write(place, placed, commit, &mut written);
            assert_eq!(
                String::from_utf8(written).expect("JSON is UTF-8"),
                serde_json::to_string(&result).expect("our own types serialise")
            );
        }
    }
}
