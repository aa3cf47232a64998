//! Faults on purpose, one at a time: what the ladder of tests must catch (`make ladder`).
//!
//! A hook stands where a rule stands and asks [`planted`] whether that rule is broken in this
//! process. Without the feature `planted`, which is in no build that ships, the answer is a
//! constant `false` and nothing of the hook is left. With it the environment variable
//! [`VARIABLE`] names the one fault that the process carries, and whoever asks the process is told:
//! on stderr at its start, by `--version`, and by `/readyz` (a header, and words with `?verbose`). (This is a room below all others because
//! the ledger asks too; the answer is the same for the life of a process.)

use std::fmt;

/// The environment variable that names the fault.
pub const VARIABLE: &str = "PLANTED_FAULT";

macro_rules! faults {
    ($($name:ident $text:literal $rule:literal,)*) => {
        /// A rule that can be broken. Its name is what [`VARIABLE`] says.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $(#[doc = $rule] $name,)*
        }

        impl Fault {
            /// All of them, in the order of the design's laws.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];

            /// Returns its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$name => $text,)*
                }
            }

            /// Tells what goes wrong, and the law of the design that it breaks.
            pub fn rule(self) -> &'static str {
                match self {
                    $(Fault::$name => $rule,)*
                }
            }
        }
    };
}

faults! {
    DoubleCredit "double-credit" "1, 9: a unit that comes back is credited twice",
    StockLost "stock-lost" "1: stock that was sent is marked as accepted and not credited",
    AcceptedTwice "accepted-twice" "1: a bucket accepts all that was ever sent, again",
    StockUnchecked "stock-unchecked" "2: a bucket grants what it does not have",
    ReceiptsLostAtLoad "receipts-lost-at-load" "3: ended holds' keys are unknown after a load",
    ReceiptsForgotten "receipts-forgotten" "3: receipts do not outlive the holds' lifetime",
    VoidForgets "void-forgets" "3: a void is answered and leaves no record",
    KeyDropped "key-dropped" "3: a key in flight is dropped when its caller gives up",
    KeyNotJoined "key-not-joined" "3: a key in flight is refused for stock instead of joined",
    ForeignBuyer "foreign-buyer" "4: a bucket grants to a buyer who belongs to another",
    LimitBeforeKey "limit-before-key" "3, 4: the limit is checked before the key is known",
    LimitForgetsSales "limit-forgets-sales" "4: what a buyer has bought does not count",
    FloorIgnored "floor-ignored" "4: a region's floor is lent to others",
    NoSync "no-sync" "5: an entry is acknowledged without a sync",
    VoteNotSynced "vote-not-synced" "5: a vote is given before it is synced",
    SyncRetried "sync-retried" "5: a failed sync is tried again as if nothing had happened",
    SpaceSwallowed "space-swallowed" "5: a write that finds the disk full is taken for done",
    UnknownIsNo "unknown-is-no" "6: an entry without an outcome is told as not taken",
    ClientForgetsDoubt "client-forgets-doubt" "6: a refusal of a retry ends a client's doubt",
    WallClock "wall-clock" "7: ledger time follows the leader's wall clock at once",
    TimeGoesBack "time-goes-back" "7: ledger time goes back with an entry's stamp",
    ConfirmsExpired "confirms-expired" "7: an expired hold is confirmed",
    NeverStale "never-stale" "8: a leader without a fresh quorum goes on",
    StoppedMemory "stopped-memory" "8: a leader's memory answers, however old its quorum is",
    DeposedMemory "deposed-memory" "8: memory answers before an entry of this leadership",
    NoReadIndex "no-read-index" "8: a linearizable read asks nobody",
    OpenInTransfer "open-in-transfer" "8: the gate stays open while leadership is handed over",
    RefusesInFlight "refuses-in-flight" "8: sold out because of units that may not commit",
    SoldOutForever "sold-out-forever" "8: a verdict of sold-out outlives a return",
    CollectOnce "collect-once" "8: sold-out is judged by reading each bucket once",
    PausedSells "paused-sells" "8: a paused item grants",
    ReturnsAll "returns-all" "9: a return of some credits all",
    ExpiredCreditsTwice "expired-credits-twice" "9: a release of an expired hold credits",
    TailLost "tail-lost" "10: the mark of the last sync is ignored: a lost tail is a torn one",
    DamageIsTear "damage-is-tear" "10: what later frames say was synced is ignored",
    ForeignLog "foreign-log" "10: peers accept votes and appends with any log",
    PortAtOnce "port-at-once" "10: a node with a log opens its peer port at once",
    PurgeAhead "purge-ahead" "5: the log is purged up to the newer of two checkpoints",
    CheckpointNotSynced "checkpoint-not-synced" "5: a checkpoint is current before it is synced",
    DigestUnchecked "digest-unchecked" "1: a checkpoint that was received is not compared",
    DigestsAlike "digests-alike" "1: the comparison of replicas says alike",
    MinorityRules "minority-rules" "1: half of the replicas count as a majority",
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Tells whether this process carries this fault.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn planted(_: Fault) -> bool {
    false
}

/// Tells whether this process carries this fault.
#[cfg(feature = "planted")]
pub fn planted(fault: Fault) -> bool {
    carried() == Some(fault)
}

/// Returns the fault that this process carries.
#[cfg(not(feature = "planted"))]
pub const fn carried() -> Option<Fault> {
    None
}

/// Returns the fault that this process carries.
///
/// # Panics
///
/// When [`VARIABLE`] names none: a run that breaks nothing must not count as one that does.
#[cfg(feature = "planted")]
pub fn carried() -> Option<Fault> {
    static CARRIED: std::sync::OnceLock<Option<Fault>> = std::sync::OnceLock::new();
    *CARRIED.get_or_init(|| {
        let name = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())?;
        let known = Fault::ALL.iter().copied().find(|fault| fault.name() == name);
        Some(known.unwrap_or_else(|| panic!("{VARIABLE}={name} is no fault that can be planted")))
    })
}

/// Says what a build with the feature is, and what it breaks now; `None` of any other build.
pub fn confession() -> Option<String> {
    if !cfg!(feature = "planted") {
        return None;
    }
    Some(match carried() {
        Some(fault) => format!(
            "PLANTED FAULT `{fault}` ({}): this process breaks that law on purpose, for tests only",
            fault.rule()
        ),
        None => format!("built with planted faults ({VARIABLE} names none): for tests only"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_name_of_its_own_and_says_which_law_it_breaks() {
        let names: std::collections::BTreeSet<&str> =
            Fault::ALL.iter().map(|fault| fault.name()).collect();
        assert_eq!(names.len(), Fault::ALL.len());
        for fault in Fault::ALL {
            assert!(fault.rule().starts_with(|c: char| c.is_ascii_digit()), "{fault}");
            assert!(fault.name().chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{fault}");
        }
    }

    #[cfg(not(feature = "planted"))]
    #[test]
    fn a_build_without_the_feature_carries_nothing_whatever_the_environment_says() {
        assert_eq!((carried(), confession()), (None, None));
        assert!(Fault::ALL.iter().all(|fault| !planted(*fault)));
    }
}
