//! An independent model of the ledger: items of one bucket, written naively from the laws.
//!
//! Promises: vectors and linear scans only, sums computed anew from the holds at each question, no
//! code of the ledger but the types of its questions. It answers in the words of the golden scripts
//! (hold number 3 is `h3`). It never sweeps: a hold is dead when its deadline has come (law 7).
//! It does not model forgetting, sale windows and transfers; golden scripts do.

use holdfast::ledger::{
    Adjust, Change, Command, Confirm, Define, Definition, Extend, HoldId, HoldRules, ItemName,
    KeyScope, Mode, Place, QUANTITY_MAX, Release, Return,
};

pub(crate) mod exchange;
pub(crate) mod hostile;
pub(crate) mod laws;
pub(crate) mod sequences;
mod told;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Held,
    Sold,
    Released,
    Returned,
}

struct Hold {
    id: Option<HoldId>,
    item: u64,
    placed: Place,
    state: State,
    sold: u64,
    confirmed: u64,
    at: u64,
    deadline: u64,
    extends: u32,
    rules: HoldRules,
    reference: Option<String>,
    keys: Vec<(&'static str, String, Option<u64>)>,
}

struct Item {
    number: u64,
    name: ItemName,
    total: u64,
    mode: Mode,
    definition: Definition,
    changes: u64,
    adjusted: Vec<(String, Change)>,
    gone: bool,
}

/// The model: everything that ever was, in order.
#[derive(Default)]
pub(crate) struct Model {
    now: u64,
    items: Vec<Item>,
    holds: Vec<Hold>,
    voids: Vec<(u64, Option<String>, String)>,
    revisions: Vec<(u64, u64, u64)>,
}

/// What an item has: available, held, sold, total.
pub(crate) type Stock = (u64, u64, u64, u64);

fn buyer_of(place: &Place) -> (bool, &str) {
    place.buyer.as_deref().map_or((false, place.key.as_str()), |buyer| (true, buyer))
}

impl Model {
    pub(crate) fn advance(&mut self, stamp: u64) {
        self.now = self.now.max(stamp);
    }

    pub(crate) fn stock(&self, name: &ItemName) -> Option<Stock> {
        let item = &self.items[self.find(name)?];
        let of = |at: &usize| self.holds[*at].item == item.number;
        let held = (0..self.holds.len()).filter(of).map(|at| self.open_units(at)).sum::<u64>();
        let sold = self.holds.iter().filter(|h| h.item == item.number).map(|h| h.sold).sum::<u64>();
        Some((item.total - held - sold, held, sold, item.total))
    }

    /// Returns the limit of an item and what a buyer has held and sold of it.
    pub(crate) fn buyer(&self, name: &ItemName, buyer: (bool, &str)) -> (Option<u64>, u64, u64) {
        let Some(at) = self.find(name) else { return (None, 0, 0) };
        let item = &self.items[at];
        let his = |at: &usize| {
            let hold = &self.holds[*at];
            hold.item == item.number && buyer_of(&hold.placed) == buyer
        };
        let held = (0..self.holds.len()).filter(his).map(|at| self.open_units(at)).sum();
        let sold = (0..self.holds.len()).filter(his).map(|at| self.holds[at].sold).sum();
        (item.definition.limit_per_buyer, held, sold)
    }

    fn find(&self, name: &ItemName) -> Option<usize> {
        self.items.iter().position(|item| item.name == *name && !item.gone)
    }

    fn dead(&self, at: usize) -> bool {
        self.holds[at].state == State::Held && self.now >= self.holds[at].deadline
    }

    fn open_units(&self, at: usize) -> u64 {
        let open = self.holds[at].state == State::Held && !self.dead(at);
        if open { self.holds[at].placed.quantity } else { 0 }
    }

    /// Answers how a hold ended, as a refusal; `None` while it is live.
    fn ended(&self, at: usize) -> Option<String> {
        let how = match self.holds[at].state {
            State::Held if self.dead(at) => "expired",
            State::Held => return None,
            State::Sold => "confirmed",
            State::Released | State::Returned => "released",
        };
        Some(format!("refused hold-{how}: {}", self.view(at)))
    }

    fn shortage(&self, name: &ItemName, want: u64) -> Option<String> {
        let (available, held, _, _) = self.stock(name)?;
        match available {
            0 => Some(format!("refused sold-out may_return={}", held > 0)),
            _ if available < want => {
                Some(format!("refused insufficient-stock available={available}"))
            }
            _ => None,
        }
    }

    fn over_limit(&self, place: &Place, want: u64) -> Option<String> {
        let (limit, held, sold) = self.buyer(&place.name, buyer_of(place));
        let limit = limit.filter(|limit| held + sold + want > *limit)?;
        Some(format!("refused buyer-limit limit={limit} held={held} sold={sold}"))
    }

    /// Answers one command.
    pub(crate) fn answer(&mut self, command: &Command) -> String {
        match command {
            Command::Define(define) => self.define(define),
            Command::Adjust(adjust) => self.adjust(adjust),
            Command::SetMode(set) => {
                let Some(at) = self.find(&set.name) else { return "refused item-not-found".into() };
                if self.items[at].mode == set.mode {
                    return self.item(at, " replayed");
                }
                self.items[at].mode = set.mode;
                self.changed(at)
            }
            Command::Retire(retire) => {
                let Some(at) = self.find(&retire.name) else {
                    return "refused item-not-found".into();
                };
                let held = self.stock(&retire.name).map_or(0, |stock| stock.1);
                if held > 0 {
                    return format!("refused open-holds held={held}");
                }
                self.items[at].gone = true;
                format!("retired number={}", self.items[at].number)
            }
            Command::Place(place) => self.place(place),
            Command::Extend(extend) => self.on_hold(&extend.hold, |m, at| m.extend(at, extend)),
            Command::Confirm(confirm) => {
                self.on_hold(&confirm.hold, |m, at| m.confirm(at, confirm))
            }
            Command::Release(release) => {
                self.on_hold(&release.hold, |m, at| m.release(at, release))
            }
            Command::Return(back) => self.on_hold(&back.hold, |m, at| m.bring_back(at, back)),
            Command::Void(void) => self.void(&void.scope),
            Command::Advance => "advanced".into(),
            Command::OpenBucket(_)
            | Command::SendStock(_)
            | Command::AcceptStock(_)
            | Command::SettleStock(_) => unreachable!("not modelled"),
        }
    }

    fn changed(&mut self, at: usize) -> String {
        self.items[at].changes += 1;
        self.item(at, "")
    }

    fn define(&mut self, define: &Define) -> String {
        let Some(at) = self.find(&define.name) else {
            let Some(total) = define.total else { return "refused invalid field=total".into() };
            let number = self.items.len() as u64 + 1;
            self.items.push(Item {
                number,
                name: define.name.clone(),
                total,
                mode: Mode::Open,
                definition: define.definition.clone(),
                changes: 0,
                adjusted: Vec::new(),
                gone: false,
            });
            return self.item(self.items.len() - 1, " created");
        };
        let item = &mut self.items[at];
        if define.total.is_some_and(|total| total != item.total) {
            return format!("refused use-adjustments total={}", item.total);
        }
        if item.definition == define.definition {
            return self.item(at, " replayed");
        }
        item.definition = define.definition.clone();
        self.changed(at)
    }

    fn adjust(&mut self, adjust: &Adjust) -> String {
        let Some(at) = self.find(&adjust.name) else { return "refused item-not-found".into() };
        let known = self.items[at].adjusted.iter().find(|(key, _)| *key == adjust.key);
        if let Some((_, change)) = known {
            let same = *change == adjust.change;
            return if same {
                self.item(at, " replayed")
            } else {
                "refused key-reused field=change".into()
            };
        }
        let (available, held, sold, total) = self.stock(&adjust.name).expect("found above");
        let target = match adjust.change {
            Change::Raise(units) => i128::from(total) + i128::from(units),
            Change::Lower(units) => i128::from(total) - i128::from(units),
            Change::Set { total, if_revision } => {
                let now = (self.items[at].number, if_revision, self.items[at].changes);
                if !self.revisions.contains(&now) {
                    return "refused revision-mismatch".into();
                }
                i128::from(total)
            }
        };
        if target > i128::from(QUANTITY_MAX) {
            return "refused invalid field=change".into();
        }
        let needed = i128::from(total) - target;
        if needed > i128::from(available) {
            return format!(
                "refused stock-committed needed={needed} available={available} held={held} sold={sold}"
            );
        }
        self.items[at].adjusted.push((adjust.key.clone(), adjust.change));
        if needed == 0 {
            return self.item(at, " replayed");
        }
        self.items[at].total = u64::try_from(target).expect("not below what is held and sold");
        self.changed(at)
    }

    fn place(&mut self, place: &Place) -> String {
        let Some(item) = self.find(&place.name) else { return "refused item-not-found".into() };
        let (number, mode) = (self.items[item].number, self.items[item].mode);
        if self.voids.contains(&(number, place.buyer.clone(), place.key.clone())) {
            return "refused key-voided".into();
        }
        if let Some(at) = self.placed(number, &place.buyer, &place.key) {
            let first = &self.holds[at].placed;
            if first.quantity != place.quantity {
                return "refused key-reused field=quantity".into();
            }
            if first.ttl_ms != place.ttl_ms {
                return "refused key-reused field=ttl_ms".into();
            }
            return self.ended(at).unwrap_or(self.view(at) + " replayed");
        }
        match mode {
            Mode::Open => {}
            Mode::Paused => return "refused item-paused reason=operator".into(),
            Mode::Closed => return "refused item-closed".into(),
        }
        let refusal = self.over_limit(place, place.quantity);
        if let Some(no) = refusal.or_else(|| self.shortage(&place.name, place.quantity)) {
            return no;
        }
        let rules = self.items[item].definition.rules;
        self.holds.push(Hold {
            id: None,
            item: number,
            placed: place.clone(),
            state: State::Held,
            sold: 0,
            confirmed: 0,
            at: self.now,
            deadline: self.now + place.ttl_ms.unwrap_or(rules.ttl_ms),
            extends: 0,
            rules,
            reference: place.reference.clone(),
            keys: Vec::new(),
        });
        self.view(self.holds.len() - 1)
    }

    fn placed(&self, item: u64, buyer: &Option<String>, key: &str) -> Option<usize> {
        self.holds.iter().position(|hold| {
            hold.item == item && hold.placed.buyer == *buyer && hold.placed.key == key
        })
    }

    fn void(&mut self, scope: &KeyScope) -> String {
        let Some(item) = self.find(&scope.name) else { return "refused item-not-found".into() };
        let number = self.items[item].number;
        if let Some(at) = self.placed(number, &scope.buyer, &scope.key) {
            return self.view(at) + " replayed";
        }
        self.voids.push((number, scope.buyer.clone(), scope.key.clone()));
        "voided".into()
    }

    fn on_hold(&mut self, id: &HoldId, then: impl FnOnce(&mut Model, usize) -> String) -> String {
        let at = self.holds.iter().position(|hold| hold.id == Some(*id));
        let alive = |at: &usize| {
            self.items.iter().any(|item| item.number == self.holds[*at].item && !item.gone)
        };
        match at.filter(alive) {
            Some(at) => then(self, at),
            None => "refused hold-not-found".into(),
        }
    }

    /// Looks a key up; `Some(Err)` when it was used with other content.
    fn key(
        &self,
        at: usize,
        verb: &str,
        key: &str,
        said: Option<u64>,
    ) -> Option<Result<(), String>> {
        let known = self.holds[at].keys.iter().find(|(v, k, _)| *v == verb && k == key)?;
        let field = if verb == "extend" { "ttl_ms" } else { "quantity" };
        Some(if known.2 == said {
            Ok(())
        } else {
            Err(format!("refused key-reused field={field}"))
        })
    }

    fn paused(&self, at: usize) -> bool {
        let item = self.items.iter().find(|item| item.number == self.holds[at].item);
        item.is_some_and(|item| item.mode == Mode::Paused)
    }

    fn extend(&mut self, at: usize, extend: &Extend) -> String {
        let known = self.key(at, "extend", &extend.key, extend.ttl_ms);
        if let Some(Err(no)) = known {
            return no;
        }
        if let Some(no) = self.ended(at) {
            return no;
        }
        if known.is_some() {
            return self.view(at) + " replayed";
        }
        if self.paused(at) {
            return "refused item-paused reason=operator".into();
        }
        let hold = &self.holds[at];
        let ttl = extend.ttl_ms.unwrap_or(hold.rules.ttl_ms);
        if ttl == 0 || ttl > hold.rules.ttl_ms_max {
            return "refused invalid field=ttl_ms".into();
        }
        let latest = hold.at + hold.rules.lifetime_ms_max;
        if hold.extends == hold.rules.extends_max || self.now + ttl > latest {
            return format!("refused extend-budget-spent used={} latest={latest}", hold.extends);
        }
        let deadline = hold.deadline.max(self.now + ttl);
        let hold = &mut self.holds[at];
        (hold.deadline, hold.extends) = (deadline, hold.extends + 1);
        hold.keys.push(("extend", extend.key.clone(), extend.ttl_ms));
        self.view(at)
    }

    fn confirm(&mut self, at: usize, confirm: &Confirm) -> String {
        let known = self.key(at, "confirm", &confirm.key, confirm.quantity);
        if let Some(Err(no)) = known {
            return no;
        }
        let hold = &self.holds[at];
        let units = confirm.quantity.unwrap_or(hold.placed.quantity);
        let same = known.is_some() || confirm.quantity.is_none_or(|units| units == hold.confirmed);
        match hold.state {
            State::Sold if same => return self.view(at) + " replayed",
            State::Sold | State::Released | State::Returned => {}
            State::Held if self.dead(at) && !confirm.reacquire => {}
            State::Held if self.paused(at) => return "refused item-paused reason=operator".into(),
            State::Held if units == 0 || units > hold.placed.quantity => {
                return "refused invalid field=quantity".into();
            }
            State::Held if self.dead(at) => {
                let refusal = self.over_limit(&hold.placed, units);
                if let Some(no) = refusal.or_else(|| self.shortage(&hold.placed.name, units)) {
                    return no;
                }
                return self.sell(at, units, confirm);
            }
            State::Held => return self.sell(at, units, confirm),
        }
        self.ended(at).expect("it is not live")
    }

    fn sell(&mut self, at: usize, units: u64, confirm: &Confirm) -> String {
        let hold = &mut self.holds[at];
        (hold.state, hold.sold, hold.confirmed) = (State::Sold, units, units);
        hold.reference = confirm.reference.clone().or(hold.reference.take());
        hold.keys.push(("confirm", confirm.key.clone(), confirm.quantity));
        self.view(at)
    }

    fn release(&mut self, at: usize, _: &Release) -> String {
        match self.holds[at].state {
            State::Released => self.view(at) + " replayed",
            State::Sold | State::Returned => self.ended(at).expect("it is not live"),
            State::Held => {
                self.holds[at].state = State::Released;
                self.view(at)
            }
        }
    }

    fn bring_back(&mut self, at: usize, back: &Return) -> String {
        match self.key(at, "return", &back.key, back.quantity) {
            Some(Ok(())) => return self.view(at) + " replayed",
            Some(Err(no)) => return no,
            None => {}
        }
        let sold = self.holds[at].sold;
        let units = back.quantity.unwrap_or(sold);
        match self.holds[at].state {
            State::Sold if units == 0 || units > sold => "refused invalid field=quantity".into(),
            State::Sold => {
                let hold = &mut self.holds[at];
                hold.sold -= units;
                if hold.sold == 0 {
                    hold.state = State::Returned;
                }
                hold.keys.push(("return", back.key.clone(), back.quantity));
                self.view(at)
            }
            State::Released | State::Returned => self.ended(at).expect("it is not live"),
            State::Held if self.dead(at) => self.ended(at).expect("it is dead"),
            State::Held => format!("refused not-sold: {}", self.view(at)),
        }
    }
}
