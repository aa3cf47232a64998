//! Pauses every item of a cluster whose shards are all in memory: at home first, then every copy,
//! by the very steps by which a running cluster does it.

use crate::ledger::{
    Answer, Batch, Command, CopyAnswered, Duty, Found, Ledger, LogIndex, Mode, Query, RollEntry,
    SetMode, ShardId,
};

/// Duties that one look takes on.
const DUTIES_A_LOOK: u32 = 4_096;
/// Rounds after which copies that are still not paused are a fault of ours.
const ROUNDS_MAX: usize = 10_000;

/// Pauses every item of these ledgers, one a shard, in order. Returns how many items there are that
/// grant nothing now and did before.
///
/// # Errors
///
/// Words, when an item could not be paused on every shard.
pub(super) fn pause_all(ledgers: &mut [Ledger]) -> Result<usize, String> {
    let open = |ledgers: &[Ledger]| -> Vec<RollEntry> {
        let all = ledgers.iter().flat_map(Ledger::roll);
        all.filter(|entry| entry.mode == Mode::Open && !entry.is_going).collect()
    };
    let homes: Vec<RollEntry> = open(ledgers).into_iter().filter(|one| one.is_home).collect();
    for entry in &homes {
        set_mode(ledgers, entry, Mode::Paused)?;
    }
    for _ in 0..ROUNDS_MAX {
        settle_copies(ledgers);
        let still = open(ledgers);
        if still.is_empty() {
            return Ok(homes.len());
        }
        for copy in still {
            // The copy is of a later revision than what is left of its home: home goes on to one
            // that is later still.
            let home = ledgers.get(usize::from(copy.item.home.0));
            let home = home.and_then(|home| home.roll().into_iter().find(|h| h.item == copy.item));
            let Some(home) = home else {
                return Err(format!(
                    "item {} of tenant {} is open on a shard, and its home shard does not know it",
                    copy.name.item, copy.name.tenant
                ));
            };
            set_mode(ledgers, &home, Mode::Open)?;
            set_mode(ledgers, &home, Mode::Paused)?;
        }
    }
    Err("the copies of some items could not be paused".to_owned())
}

fn set_mode(ledgers: &mut [Ledger], entry: &RollEntry, mode: Mode) -> Result<(), String> {
    let command = Command::SetMode(SetMode { name: entry.name.clone(), mode });
    match asked(ledgers, entry.item.home, command) {
        Some(Answer::Item { .. }) => Ok(()),
        other => Err(format!("item {} cannot be paused: {other:?}", entry.name.item)),
    }
}

/// Brings every copy to the revision that its home wants, as far as that is a later one.
fn settle_copies(ledgers: &mut [Ledger]) {
    for home in 0..ledgers.len() {
        let query = Query::Duties { after: None, limit: DUTIES_A_LOOK };
        let Found::Duties(duties) = ledgers[home].query(&query) else { continue };
        let home = ShardId(u16::try_from(home).unwrap_or(u16::MAX));
        for duty in duties {
            let (shard, item, command) = match duty {
                Duty::Configure { shard, configure } => {
                    (shard, configure.item, Command::Configure(configure))
                }
                Duty::Erase { shard, erase } => (shard, erase.item, Command::EraseCopy(erase)),
                // Stock on its way, and what was begun, go on when the cluster runs.
                Duty::Deliver { .. } | Duty::Lower { .. } | Duty::Delete { .. } => continue,
            };
            if let Some(Answer::Copy(state)) = asked(ledgers, shard, command) {
                let answered = CopyAnswered { item, shard, state };
                asked(ledgers, home, Command::CopyAnswered(answered));
            }
        }
    }
}

/// Applies one command as the next entry of a shard's log would.
fn asked(ledgers: &mut [Ledger], shard: ShardId, command: Command) -> Option<Answer> {
    let ledger = ledgers.get_mut(usize::from(shard.0))?;
    let next = LogIndex(ledger.applied().0 + 1);
    let batch = Batch { stamp: ledger.now(), commands: vec![command] };
    ledger.apply(next, &batch).into_iter().next()
}
