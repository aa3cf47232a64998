//! The wire types of HTTP v1, shared by the server and the client.
//!
//! What a body may carry, as serde structs with the names that travel. The server reads requests
//! with its own strict reader (`http/`), which a test holds to these structs; the client writes and
//! reads them with serde_json. The types never know the ledger: the conversions live in `http/`.

mod cluster;
mod hold;
mod index;
mod item;
mod layout;
mod nodes;
mod problem;
mod time;

pub use cluster::*;
pub use hold::*;
pub use index::*;
pub use item::*;
pub use layout::*;
pub use nodes::*;
pub use problem::*;
pub use time::*;

/// Names the tenant while no authentication is configured; `default` when absent.
pub const HEADER_TENANT: &str = "holdfast-tenant";
/// The caller's idempotency key.
pub const HEADER_KEY: &str = "idempotency-key";
/// How many ms the caller still has, 1 … [`DEADLINE_MS_MAX`].
pub const HEADER_DEADLINE: &str = "holdfast-deadline-ms";
/// Where an answer stands in a shard's log: `shard:term.node:index`.
pub const HEADER_COMMIT: &str = "holdfast-commit";
/// The node that leads the shard, as far as the answering node knows.
pub const HEADER_LEADER: &str = "holdfast-leader";
/// `true` on an answer that had been given before.
pub const HEADER_REPLAYED: &str = "idempotent-replayed";

/// Time a caller has who names none, in ms.
pub const DEADLINE_MS_DEFAULT: u64 = 2_000;
/// The longest time a caller may ask for, in ms.
pub const DEADLINE_MS_MAX: u64 = 30_000;
/// The largest quantity or total: 2^53 − 1, the largest integer that every JSON reader keeps exact.
pub const UNITS_MAX: u64 = (1 << 53) - 1;
/// The longest lifetime that any field may name, in ms: 366 days. An item's own maximum is lower.
pub const TTL_MS_MAX: u64 = 366 * 86_400_000;
/// The longest id of a caller (tenant, item, buyer, region, key), in bytes.
pub const ID_BYTES_MAX: usize = 128;
/// The most operations in one `holds:batch`.
pub const BATCH_OPERATIONS_MAX: usize = 1_000;
/// The most entries on one page of a list.
pub const LIST_LIMIT_MAX: u32 = 1_000;
/// The most entries on a page of what is sold out, and as many as there are without `limit`.
pub const SOLD_OUT_LIMIT_MAX: u32 = 10_000;
/// Entries on a page when the caller names no limit.
pub const LIST_LIMIT_DEFAULT: u32 = 100;

/// Checks an id of a caller (tenant, item, buyer, region, key); returns the rule that it breaks.
///
/// # Errors
///
/// The rule, as a sentence without its subject.
pub fn check_id(id: &[u8]) -> Result<(), &'static str> {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err("is 1 to 128 bytes long");
    }
    if !id.iter().all(|b| (0x20..=0x7e).contains(b) && *b != b'/') {
        return Err("is printable ASCII without `/`");
    }
    if id[0] == b' ' || id[id.len() - 1] == b' ' {
        return Err("neither begins nor ends with a space");
    }
    Ok(())
}
