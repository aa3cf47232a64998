//! The judge. It reads a history and says which properties hold, how often each was put to the
//! test, and what breaks them.
//!
//! Two tiers. The first goes over the whole history with what Holdfast tells of its log (shard,
//! leader, index): cheap, and sharp where the figures are exact. The second believes none of that:
//! it takes the operations of one item and searches for an order that explains every answer.

pub(crate) mod book;
mod holds;
mod keys;
mod members;
mod order;
mod replay;
mod replicas;
pub(crate) mod search;
mod steps;
mod stock;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::history::History;
use book::Book;

/// Violations of one property that are kept; the rest is counted.
const KEPT: usize = 12;

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Property {
    OneKeyOneHold,
    RefusedLeftNothing,
    VoidIsFinal,
    NothingLost,
    HoldEndsOnce,
    NoConfirmAfterExpiry,
    NeverOversold,
    Conservation,
    BuyerLimit,
    OneLeaderPerIndex,
    LeadersInOrder,
    RealTimeOrder,
    LedgerTime,
    Replay,
    DigestsEqual,
    ReplicasAgree,
    Recovers,
    DamageStaysOut,
    OperationsEnd,
    MembersAgree,
    DrainedLeadsNothing,
    RemovedServesNothing,
    Linearizable,
}

impl Property {
    pub(crate) const ALL: [Property; 23] = [
        Property::OneKeyOneHold,
        Property::RefusedLeftNothing,
        Property::VoidIsFinal,
        Property::NothingLost,
        Property::HoldEndsOnce,
        Property::NoConfirmAfterExpiry,
        Property::NeverOversold,
        Property::Conservation,
        Property::BuyerLimit,
        Property::OneLeaderPerIndex,
        Property::LeadersInOrder,
        Property::RealTimeOrder,
        Property::LedgerTime,
        Property::Replay,
        Property::DigestsEqual,
        Property::ReplicasAgree,
        Property::Recovers,
        Property::DamageStaysOut,
        Property::OperationsEnd,
        Property::MembersAgree,
        Property::DrainedLeadsNothing,
        Property::RemovedServesNothing,
        Property::Linearizable,
    ];

    /// What only some faults put to the test.
    pub(crate) const OF_FAULTS: [Property; 5] = [
        Property::DamageStaysOut,
        Property::OperationsEnd,
        Property::MembersAgree,
        Property::DrainedLeadsNothing,
        Property::RemovedServesNothing,
    ];

    /// The property as a sentence.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Property::OneKeyOneHold => "a key makes at most one hold, and a hold has one key",
            Property::RefusedLeftNothing => "what was refused, or never asked, left no hold",
            Property::VoidIsFinal => "a voided key never has a hold",
            Property::NothingLost => {
                "every hold that was acknowledged is there at the end, as far on"
            }
            Property::HoldEndsOnce => "a hold ends once: sold, released or expired",
            Property::NoConfirmAfterExpiry => "nothing is confirmed past its deadline",
            Property::NeverOversold => "held + sold never exceed the total",
            Property::Conservation => "every unit is accounted for at every read",
            Property::BuyerLimit => "no buyer has more than the limit",
            Property::OneLeaderPerIndex => "a log index has one leader id, whoever tells it",
            Property::LeadersInOrder => "leader ids never decrease along the log",
            Property::RealTimeOrder => "what was answered before is below what is asked after",
            Property::LedgerTime => "ledger time never goes back along the log",
            Property::Replay => "the log, replayed in its order, explains every figure and refusal",
            Property::DigestsEqual => "replicas have one digest at one index",
            Property::ReplicasAgree => "all replicas list the same holds at the end",
            Property::Recovers => {
                "every shard commits within 10 s of healing, every node comes back"
            }
            Property::DamageStaysOut => "a node whose log is cut or gone takes no part",
            Property::OperationsEnd => "an operation on the nodes is done within 30 s",
            Property::MembersAgree => "every node lists the voters that an operation has left",
            Property::DrainedLeadsNothing => "a drained node leads nothing",
            Property::RemovedServesNothing => {
                "a removed node says so, and answers nothing else from then on"
            }
            Property::Linearizable => "an order of the operations explains every answer",
        }
    }

    /// Its name in verdicts.
    pub(crate) fn name(self) -> String {
        let name = serde_json::to_value(self).expect("a word");
        name.as_str().expect("a word").to_owned()
    }
}

/// What became of one property.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Outcome {
    /// How often it was put to the test. 0 says nothing.
    pub(crate) checked: u64,
    pub(crate) violations: u64,
    /// The first ones, in words.
    pub(crate) examples: Vec<String>,
}

impl Outcome {
    /// Counts a test.
    pub(crate) fn expect(&mut self, holds: bool, why: impl FnOnce() -> String) {
        self.checked += 1;
        if !holds {
            self.violations += 1;
            if self.examples.len() < KEPT {
                self.examples.push(why());
            }
        }
    }
}

/// What became of a history.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) properties: BTreeMap<Property, Outcome>,
    /// Items that the search looked at, operations in them, items left undecided and why.
    pub(crate) searched_items: u64,
    pub(crate) searched_operations: u64,
    pub(crate) undecided: Vec<String>,
    /// Items that the search does not even try, by plan: their generations are too long.
    pub(crate) too_large: Vec<String>,
    /// Items whose replay is exact, and those where something could not be known.
    pub(crate) replayed_items: u64,
    pub(crate) unreplayed: Vec<String>,
    /// Items without a complete final list.
    pub(crate) unread: Vec<String>,
    /// Changes whose fate nobody ever learnt.
    pub(crate) unresolved: u64,
}

impl Report {
    pub(crate) fn of(&mut self, property: Property) -> &mut Outcome {
        self.properties.entry(property).or_default()
    }

    /// The properties that are broken.
    pub(crate) fn broken(&self) -> Vec<Property> {
        let broken = self.properties.iter().filter(|(_, outcome)| outcome.violations > 0);
        broken.map(|(property, _)| *property).collect()
    }
}

/// Judges a history.
pub(crate) fn judge(history: &History) -> Report {
    let book = Book::read(history);
    let mut report = Report::default();
    for property in Property::ALL {
        report.of(property);
    }
    keys::check(&book, &mut report);
    holds::check(&book, &mut report);
    stock::check(&book, &mut report);
    order::check(&book, &mut report);
    replay::check(&book, &mut report);
    replicas::check(&book, &mut report);
    members::check(&book, &mut report);
    search::check(&book, &mut report);
    report.unread = book.unread();
    report.unresolved = book.unresolved();
    report
}
