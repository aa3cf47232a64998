//! What the model says and is told: its words, and the names that the ledger gives to its things.

use holdfast::ledger::{HoldId, ItemName, Place};

use super::{Model, State};

impl Model {
    /// Learns which id the ledger gave to the youngest hold.
    pub(crate) fn learn_hold(&mut self, id: HoldId) {
        let nameless = self.holds.iter_mut().find(|hold| hold.id.is_none());
        if let Some(hold) = nameless {
            hold.id = Some(id);
        }
    }

    /// Learns what number the ledger gives to the state that an item is in now.
    pub(crate) fn learn_revision(&mut self, name: &ItemName, revision: u64) {
        if let Some(at) = self.find(name) {
            let (number, changes) = (self.items[at].number, self.items[at].changes);
            let known = self.revisions.iter().find(|(n, r, _)| (*n, *r) == (number, revision));
            assert!(known.is_none_or(|known| known.2 == changes), "a change kept the revision");
            self.revisions.push((number, revision, changes));
        }
    }

    pub(crate) fn name_of(&self, id: &HoldId) -> String {
        let at = self.holds.iter().position(|hold| hold.id == Some(*id));
        at.map_or(format!("h{}", self.holds.len() - 1), |at| format!("h{at}"))
    }

    pub(crate) fn holds(&self) -> impl Iterator<Item = (HoldId, Option<String>)> + '_ {
        (0..self.holds.len()).filter_map(|at| {
            let hold = &self.holds[at];
            let alive = self.items.iter().any(|item| item.number == hold.item && !item.gone);
            Some((hold.id?, alive.then(|| self.view(at))))
        })
    }

    pub(super) fn view(&self, at: usize) -> String {
        let hold = &self.holds[at];
        let state = match hold.state {
            State::Held if self.dead(at) => "expired",
            State::Held => "held",
            State::Sold => "sold",
            State::Released => "released",
            State::Returned => "returned",
        };
        let Place { quantity, buyer, .. } = &hold.placed;
        let mut text =
            format!("h{at} {state} qty={quantity} sold={} expires={}", hold.sold, hold.deadline);
        if state == "held" {
            text += &format!(" left={}", hold.rules.extends_max - hold.extends);
        }
        if let Some(buyer) = buyer {
            text += &format!(" buyer={buyer}");
        }
        if let Some(reference) = &hold.reference {
            text += &format!(" ref={reference}");
        }
        text
    }

    pub(super) fn item(&self, at: usize, mark: &str) -> String {
        let item = &self.items[at];
        let mode = format!("{:?}", item.mode).to_lowercase();
        let limit = item.definition.limit_per_buyer.map_or("".into(), |l| format!(" limit={l}"));
        format!("item number={} total={} {mode}{limit}{mark}", item.number, item.total)
    }
}
