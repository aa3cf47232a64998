//! What the model knows, says and is told: its figures, its words, and the names that the ledger
//! gives to its things.

use holdfast::ledger::{HoldId, ItemName, Mode, Place};

use super::{Model, State, no};

/// What an item has: available, held, sold, total.
pub(crate) type Stock = (u64, u64, u64, u64);

/// Who is counted: whether it is a buyer or the key that stands for one, and the name.
fn buyer_of(place: &Place) -> (bool, &str) {
    place.buyer.as_deref().map_or((false, place.key.as_str()), |buyer| (true, buyer))
}

impl Model {
    pub(crate) fn advance(&mut self, stamp: u64) {
        self.now = self.now.max(stamp);
    }

    /// Learns which id the ledger gave to the youngest hold.
    pub(crate) fn learn_hold(&mut self, id: HoldId) {
        if let Some(hold) = self.holds.iter_mut().find(|hold| hold.id.is_none()) {
            hold.id = Some(id);
        }
    }

    /// Learns what number the ledger gives to the state that an item is in now.
    pub(crate) fn learn_revision(&mut self, name: &ItemName, revision: u64) {
        if let Ok(at) = self.find(name) {
            let (number, changes) = (self.items[at].number, self.items[at].changes);
            let known = self.revisions.iter().find(|(n, r, _)| (*n, *r) == (number, revision));
            assert!(known.is_none_or(|known| known.2 == changes), "a change kept the revision");
            self.revisions.push((number, revision, changes));
        }
    }

    pub(crate) fn name_of(&self, id: &HoldId) -> String {
        let at = self.holds.iter().position(|hold| hold.id == Some(*id));
        at.map_or("a hold that the model does not know".into(), |at| format!("h{at}"))
    }

    /// Every hold that was ever made and how it reads now; `None` when its item is gone.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (HoldId, Option<String>)> + '_ {
        (0..self.holds.len()).filter_map(|at| {
            let id = self.holds[at].id?;
            Some((id, self.hold(&id).is_ok().then(|| self.view(at))))
        })
    }

    pub(crate) fn stock(&self, name: &ItemName) -> Option<Stock> {
        let item = &self.items[self.find(name).ok()?];
        let of = |at: &usize| self.holds[*at].item == item.number;
        let held = (0..self.holds.len()).filter(of).map(|at| self.open_units(at)).sum::<u64>();
        let sold = (0..self.holds.len()).filter(of).map(|at| self.holds[at].sold).sum::<u64>();
        Some((item.total - held - sold, held, sold, item.total))
    }

    /// Returns the limit of an item and what a buyer has held and sold of it.
    pub(crate) fn buyer(&self, name: &ItemName, buyer: (bool, &str)) -> (Option<u64>, u64, u64) {
        let Ok(at) = self.find(name) else { return (None, 0, 0) };
        let item = &self.items[at];
        let his = |at: &usize| {
            let hold = &self.holds[*at];
            hold.item == item.number && buyer_of(&hold.placed) == buyer
        };
        let held = (0..self.holds.len()).filter(his).map(|at| self.open_units(at)).sum();
        let sold = (0..self.holds.len()).filter(his).map(|at| self.holds[at].sold).sum();
        (item.definition.limit_per_buyer, held, sold)
    }

    pub(super) fn find(&self, name: &ItemName) -> Result<usize, String> {
        let at = self.items.iter().position(|item| item.name == *name && !item.gone);
        at.map_or(no("item-not-found"), Ok)
    }

    pub(super) fn hold(&self, id: &HoldId) -> Result<usize, String> {
        let there = |number: u64| self.items.iter().any(|i| i.number == number && !i.gone);
        let at = self.holds.iter().position(|h| h.id == Some(*id) && there(h.item));
        at.map_or(no("hold-not-found"), Ok)
    }

    pub(super) fn placed(&self, item: u64, buyer: &Option<String>, key: &str) -> Option<usize> {
        self.holds.iter().position(|hold| {
            hold.item == item && hold.placed.buyer == *buyer && hold.placed.key == key
        })
    }

    /// Says whether a key of an operation is known; refuses it when it was used with other content.
    pub(super) fn known(
        &self,
        at: usize,
        verb: &str,
        key: &str,
        said: Option<u64>,
    ) -> Result<bool, String> {
        let known = self.holds[at].keys.iter().find(|(v, k, _)| *v == verb && k == key);
        let field = if verb == "extend" { "ttl_ms" } else { "quantity" };
        match known {
            Some((_, _, before)) if *before != said => no(&format!("key-reused field={field}")),
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    pub(super) fn mode(&self, at: usize) -> Mode {
        let item = self.items.iter().find(|item| item.number == self.holds[at].item);
        item.map_or(Mode::Closed, |item| item.mode)
    }

    pub(super) fn dead(&self, at: usize) -> bool {
        self.holds[at].state == State::Held && self.now >= self.holds[at].deadline
    }

    fn open_units(&self, at: usize) -> u64 {
        let open = self.holds[at].state == State::Held && !self.dead(at);
        if open { self.holds[at].placed.quantity } else { 0 }
    }

    /// Refuses with how a hold ended, unless it is live.
    pub(super) fn live(&self, at: usize) -> Result<(), String> {
        let how = match self.holds[at].state {
            State::Held if self.dead(at) => "expired",
            State::Held => return Ok(()),
            State::Sold => "confirmed",
            State::Released | State::Returned => "released",
        };
        no(&format!("hold-{how}: {}", self.view(at)))
    }

    pub(super) fn in_stock(&self, name: &ItemName, want: u64) -> Result<(), String> {
        let (available, held, _, _) = self.stock(name).expect("its item is there");
        match available {
            0 => no(&format!("sold-out may_return={}", held > 0)),
            _ if available < want => no(&format!("insufficient-stock available={available}")),
            _ => Ok(()),
        }
    }

    pub(super) fn within_limit(&self, place: &Place, want: u64) -> Result<(), String> {
        let (limit, held, sold) = self.buyer(&place.name, buyer_of(place));
        match limit {
            Some(limit) if held + sold + want > limit => {
                no(&format!("buyer-limit limit={limit} held={held} sold={sold}"))
            }
            Some(_) | None => Ok(()),
        }
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
        text
    }

    pub(super) fn changed(&mut self, at: usize) -> String {
        self.items[at].changes += 1;
        self.item(at, "")
    }

    pub(super) fn item(&self, at: usize, mark: &str) -> String {
        let item = &self.items[at];
        let mode = format!("{:?}", item.mode).to_lowercase();
        let limit = item.definition.limit_per_buyer.map_or("".into(), |l| format!(" limit={l}"));
        format!("item number={} total={} {mode}{limit}{mark}", item.number, item.total)
    }
}
