//! The simulator's eye: sees every entry at the moment at which a replica has applied it.
//!
//! Only in a simulated build. It looks from outside and changes nothing; a node neither knows of it
//! nor waits for it.

use std::cell::RefCell;
use std::rc::Rc;

use crate::ledger::{Ledger, ShardId};
use crate::storage::LogPosition;

/// Is shown a shard's position and ledger after each entry, on whichever replica it was applied;
/// [`Life::present`](crate::runtime::life::Life::present) tells on which node.
pub type Witness = Rc<dyn Fn(ShardId, LogPosition, &Ledger)>;

thread_local! {
    static WITNESS: RefCell<Option<Witness>> = const { RefCell::new(None) };
}

/// Lets `witness` see every entry that is applied on this thread, or nobody.
pub fn bear_witness(witness: Option<Witness>) {
    WITNESS.set(witness);
}

/// Shows the state after an entry.
pub(super) fn show(shard: ShardId, position: LogPosition, ledger: &Ledger) {
    let witness = WITNESS.with_borrow(Clone::clone);
    if let Some(witness) = witness {
        witness(shard, position, ledger);
    }
}
